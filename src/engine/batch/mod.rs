//! Dynamic micro-batching for one-pass models.
//!
//! Callers push into one bounded inbox; the workers of a model share it. The worker that holds the inbox gathers a
//! batch by [`BatchPolicy`], lets go, runs it and answers each caller. While nothing waits, a worker may measure which
//! batches suit the machine: one pass at a time, after each of which it looks at the inbox first.

mod calibration;
mod policy;
mod tuning;
mod worker;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

pub use calibration::{BUDGETS, Calibrated};
pub use policy::BatchPolicy;

use self::{
    calibration::Plan,
    tuning::{Measurement, Tuning},
};
use super::{
    EngineError, Factory,
    inbox::{self, Inbox},
    pulse::Pulse,
};
use crate::{
    runtime::{Forward, RuntimeError},
    telemetry::{ModelMetrics, Submission, Ticket},
};

/// Size of a batcher.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Items that may wait.
    pub capacity: usize,
    /// Worker threads, each with a model of its own.
    pub workers: usize,
    /// Bounds of a batch.
    pub policy: BatchPolicy,
}

/// Handle to the workers of one model, whichever runtime it has. Dropping it stops them after the batch in hand.
pub struct Batcher<I, O> {
    inbox: Arc<Inbox<Job<I, O>>>,
    cost: fn(&I) -> usize,
    pulse: Arc<Pulse>,
    tuning: Arc<Tuning<I>>,
    items: usize,
    metrics: ModelMetrics,
    workers: Vec<JoinHandle<()>>,
}

/// One item on its way through the engine.
struct Job<I, O> {
    input: I,
    cost: usize,
    queued: Instant,
    deadline: Instant,
    ticket: Ticket,
    reply: oneshot::Sender<Result<O, EngineError>>,
}

impl<I, O> Job<I, O> {
    /// Itself, while its caller waits.
    fn if_awaited(self, now: Instant, metrics: &ModelMetrics) -> Option<Self> {
        let reply = inbox::awaited(self.reply, self.deadline, now, metrics)?;
        Some(Self { reply, ..self })
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Loads a model for each worker, side by side, and starts the threads.
    ///
    /// # Errors
    /// [`RuntimeError`] when a model cannot be loaded or a thread cannot be started.
    pub fn start<F: Forward<Input = I, Output = O>>(
        name: &str,
        options: BatchOptions,
        factory: &Factory<F>,
        metrics: &ModelMetrics,
    ) -> Result<Self, RuntimeError> {
        let inbox = Arc::new(Inbox::new(options.capacity));
        let pulse = Arc::new(Pulse::new(Instant::now()));
        let tuning = Arc::new(Tuning::new(options.policy.budget));
        let opened = opened(options.workers.max(1), factory)?;
        let able = Arc::new(AtomicUsize::new(opened.len()));
        let mut workers = Vec::with_capacity(opened.len());
        for (number, model) in opened.into_iter().enumerate() {
            let worker = worker::Worker {
                model: Some(model),
                retry: Instant::now(),
                able: Arc::clone(&able),
                factory: Arc::clone(factory),
                inbox: Arc::clone(&inbox),
                pulse: Arc::clone(&pulse),
                tuning: Arc::clone(&tuning),
                measurement: None,
                policy: options.policy,
                metrics: metrics.clone(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || worker.run())
                .map_err(|error| RuntimeError::Load(format!("cannot start a worker thread: {error}")))?;
            workers.push(thread);
        }
        let (items, metrics) = (options.policy.items, metrics.clone());
        Ok(Self { inbox, cost: F::cost, pulse, tuning, items, metrics, workers })
    }

    /// Queues all inputs or none and answers them in order. Dropping the future takes them out of the queue.
    ///
    /// # Errors
    /// [`EngineError`]; one failed item fails the call.
    pub async fn submit(&self, inputs: Vec<I>, deadline: Instant) -> Result<Vec<O>, EngineError> {
        self.answer(inputs, deadline, false).await
    }

    /// As [`Self::submit`], for the rest of what has been submitted in part and answered: it is queued whether there is
    /// room or not, as to refuse it would waste what was done and have it asked again.
    ///
    /// # Errors
    /// Those of [`Self::submit`] but for [`EngineError::Overloaded`].
    pub async fn go_on(&self, inputs: Vec<I>, deadline: Instant) -> Result<Vec<O>, EngineError> {
        self.answer(inputs, deadline, true).await
    }

    async fn answer(&self, inputs: Vec<I>, deadline: Instant, let_in: bool) -> Result<Vec<O>, EngineError> {
        let (queued, ticket) = (Instant::now(), Ticket::default());
        let (jobs, answers): (Vec<_>, Vec<_>) = inputs
            .into_iter()
            .map(|input| {
                let (reply, answer) = oneshot::channel();
                let (cost, ticket) = ((self.cost)(&input), ticket.clone());
                (Job { input, cost, queued, deadline, ticket, reply }, answer)
            })
            .unzip();
        if let_in {
            self.inbox.add(jobs)?;
        } else {
            self.inbox.push(jobs, |job| job.if_awaited(queued, &self.metrics))?;
        }
        let _noted = Submission::new(&self.metrics.component, answers.len(), queued, ticket);
        let mut outputs = Vec::with_capacity(answers.len());
        for answer in answers {
            outputs.push(answer.await.unwrap_or_else(|_| Err(self.inbox.unanswered()))?);
        }
        Ok(outputs)
    }

    /// Has a worker that has nothing to do run some shapes, and sets the budget of a batch to the smallest that is
    /// about as fast as the fastest. `sample` makes an input of a cost, `longest` is the highest cost of one. Between
    /// two shapes the worker takes what waits, so that a request waits for one of them at most. Dropping the future
    /// ends it.
    ///
    /// None where nothing could be measured; the budget is then as it was.
    pub async fn calibrate(&self, longest: usize, sample: impl Fn(usize) -> I + Send + 'static) -> Option<Calibrated> {
        let (reply, answer) = oneshot::channel();
        self.tuning.ask(Measurement { plan: Plan::new(self.items, longest), sample: Box::new(sample), reply });
        self.inbox.wake();
        answer.await.ok().flatten()
    }

    /// Items that may wait: more in one submission are always refused.
    pub fn capacity(&self) -> usize {
        self.inbox.capacity()
    }

    /// Whether a batch has succeeded within this time.
    pub fn answered_within(&self, span: Duration) -> bool {
        self.pulse.within(span, Instant::now())
    }

    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.inbox.len()
    }
}

impl<I, O> Drop for Batcher<I, O> {
    fn drop(&mut self) {
        self.inbox.close();
        for worker in self.workers.drain(..) {
            // A worker's panics are caught inside; a failed join would leave nothing to do anyway.
            let _ = worker.join();
        }
    }
}

/// As many models, each opened on a thread of its own.
fn opened<F: Forward>(count: usize, factory: &Factory<F>) -> Result<Vec<F>, RuntimeError> {
    std::thread::scope(|scope| {
        let opening: Vec<_> = (0..count).map(|_| scope.spawn(|| factory())).collect();
        opening.into_iter().map(|model| model.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    };

    use super::*;
    use crate::telemetry::Metrics;

    /// Answers the input; waits for a permit a batch, panics on 13, fails on 7.
    struct Fake {
        permits: Arc<Mutex<mpsc::Receiver<()>>>,
        batches: Arc<Mutex<Vec<Vec<usize>>>>,
        started: Arc<AtomicUsize>,
    }

    impl Forward for Fake {
        type Input = usize;
        type Output = usize;

        fn cost(input: &usize) -> usize {
            *input
        }

        fn run(&mut self, batch: &[usize]) -> Result<Vec<usize>, RuntimeError> {
            self.started.fetch_add(1, Ordering::SeqCst);
            self.permits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv().unwrap();
            self.batches.lock().unwrap().push(batch.to_vec());
            assert!(!batch.contains(&13), "unlucky");
            if batch.contains(&7) {
                return Err(RuntimeError::Inference("seven".into()));
            }
            Ok(batch.to_vec())
        }
    }

    struct Bench {
        batcher: Arc<Batcher<usize, usize>>,
        permits: mpsc::Sender<()>,
        batches: Arc<Mutex<Vec<Vec<usize>>>>,
        built: Arc<AtomicUsize>,
        started: Arc<AtomicUsize>,
        metrics: ModelMetrics,
    }

    fn bench(capacity: usize) -> Bench {
        bench_of(capacity, 1, || Ok(()))
    }

    /// `open` goes before each load of a model.
    fn bench_of(
        capacity: usize,
        workers: usize,
        open: impl Fn() -> Result<(), RuntimeError> + Send + Sync + 'static,
    ) -> Bench {
        let (permits, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let batches: Arc<Mutex<Vec<Vec<usize>>>> = Arc::default();
        let (built, started): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let factory: Factory<Fake> = {
            let (batches, built, started) = (Arc::clone(&batches), Arc::clone(&built), Arc::clone(&started));
            Arc::new(move || {
                open()?;
                built.fetch_add(1, Ordering::SeqCst);
                let started = Arc::clone(&started);
                Ok(Fake { permits: Arc::clone(&receiver), batches: Arc::clone(&batches), started })
            })
        };
        let policy = BatchPolicy { budget: 1000, items: 8, wait: Duration::ZERO };
        let metrics = Metrics::new().unwrap().model("fake", "text");
        let options = BatchOptions { capacity, workers, policy };
        let started_batcher = Batcher::start("fake", options, &factory, &metrics).unwrap();
        Bench { batcher: Arc::new(started_batcher), permits, batches, built, started, metrics }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    type Answer = tokio::task::JoinHandle<Result<Vec<usize>, EngineError>>;

    /// Submits on a task of its own.
    fn submit(bench: &Bench, inputs: Vec<usize>, deadline: Instant) -> Answer {
        let batcher = Arc::clone(&bench.batcher);
        tokio::spawn(async move { batcher.submit(inputs, deadline).await })
    }

    async fn until(condition: impl Fn() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < patience, "the engine did not get there");
            tokio::task::yield_now().await;
        }
    }

    /// Submits what the worker takes at once and then sits on, for want of a permit.
    async fn blocked(bench: &Bench, input: usize) -> Answer {
        let answer = submit(bench, vec![input], soon());
        until(|| bench.started.load(Ordering::SeqCst) == 1).await;
        answer
    }

    /// Submits and waits until that many items are queued.
    async fn queued(bench: &Bench, inputs: Vec<usize>, deadline: Instant, waiting: usize) -> Answer {
        let answer = submit(bench, inputs, deadline);
        until(|| bench.batcher.waiting() == waiting).await;
        answer
    }

    #[tokio::test]
    async fn what_waits_while_a_batch_runs_goes_together_in_the_next() {
        let bench = bench(16);
        let first = blocked(&bench, 1).await;
        let second = queued(&bench, vec![2, 3], soon(), 2).await;
        let third = queued(&bench, vec![4], soon(), 3).await;
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(vec![1]));
        assert_eq!(second.await.unwrap(), Ok(vec![2, 3]));
        assert_eq!(third.await.unwrap(), Ok(vec![4]));
        assert_eq!(*bench.batches.lock().unwrap(), [vec![1], vec![2, 3, 4]]);
    }

    #[tokio::test]
    async fn workers_share_what_waits() {
        let bench = bench_of(16, 2, || Ok(()));
        let first = blocked(&bench, 1).await;
        let second = submit(&bench, vec![2], soon());
        until(|| bench.started.load(Ordering::SeqCst) == 2).await;
        let rest = queued(&bench, vec![3, 4, 5, 6], soon(), 4).await;
        bench.permits.send(()).unwrap();
        until(|| bench.started.load(Ordering::SeqCst) == 3).await;
        assert_eq!(bench.batcher.waiting(), 2, "the other half is left to the other worker");
        for _ in 0..4 {
            bench.permits.send(()).unwrap();
        }
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(vec![1]), Ok(vec![2])));
        assert_eq!(rest.await.unwrap(), Ok(vec![3, 4, 5, 6]));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let bench = bench(2);
        let first = blocked(&bench, 1).await;
        let second = queued(&bench, vec![2, 3], soon(), 2).await;
        assert_eq!(bench.batcher.submit(vec![4], soon()).await, Err(EngineError::Overloaded));
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn callers_that_left_and_late_ones_make_room_in_a_full_queue() {
        let bench = bench(2);
        let first = blocked(&bench, 1).await;
        let gone = queued(&bench, vec![2], soon(), 1).await;
        let late = queued(&bench, vec![3], Instant::now(), 2).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let last = queued(&bench, vec![4], soon(), 1).await;
        assert_eq!(late.await.unwrap(), Err(EngineError::Deadline));
        assert_eq!(bench.metrics.abandoned.get(), 1);
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(vec![1]));
        assert_eq!(last.await.unwrap(), Ok(vec![4]));
    }

    #[tokio::test]
    async fn callers_that_left_and_late_ones_are_not_run() {
        let bench = bench(16);
        let first = blocked(&bench, 1).await;
        let gone = queued(&bench, vec![2], soon(), 1).await;
        let late = queued(&bench, vec![3], Instant::now(), 2).await;
        let last = queued(&bench, vec![4], soon(), 3).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(vec![1]));
        assert_eq!(late.await.unwrap(), Err(EngineError::Deadline));
        assert_eq!(last.await.unwrap(), Ok(vec![4]));
        assert_eq!(*bench.batches.lock().unwrap(), [vec![1], vec![4]]);
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_batch_and_the_worker_is_replaced() {
        let bench = bench(16);
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![13], soon()).await, Err(EngineError::Failed));
        assert_eq!(bench.metrics.panics.get(), 1);
        assert!(!bench.batcher.answered_within(Duration::from_mins(1)), "a failure proves nothing");
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![5], soon()).await, Ok(vec![5]));
        assert!(bench.batcher.answered_within(Duration::from_mins(1)));
        assert_eq!(bench.built.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_panic_is_told_before_the_model_is_loaded_again() {
        let shut = Arc::new(AtomicBool::new(false));
        let bench = bench_of(16, 1, {
            let shut = Arc::clone(&shut);
            move || {
                // Not for ever, so that a test that fails ends.
                let patience = Instant::now() + Duration::from_secs(5);
                while shut.load(Ordering::SeqCst) && Instant::now() < patience {
                    std::thread::yield_now();
                }
                Ok(())
            }
        });
        shut.store(true, Ordering::SeqCst);
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![13], soon()).await, Err(EngineError::Failed));
        assert_eq!(bench.built.load(Ordering::SeqCst), 1);
        shut.store(false, Ordering::SeqCst);
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![5], soon()).await, Ok(vec![5]));
        assert_eq!(bench.built.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_worker_without_a_model_leaves_the_work_to_the_others() {
        let loads = AtomicUsize::new(0);
        let bench = bench_of(16, 2, move || match loads.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Ok(()),
            _ => Err(RuntimeError::Load("it is gone".into())),
        });
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![13], soon()).await, Err(EngineError::Failed));
        let first = submit(&bench, vec![1], soon());
        until(|| bench.started.load(Ordering::SeqCst) == 2).await;
        // The one that could serve is busy: it waits for that one.
        let second = queued(&bench, vec![2], soon(), 1).await;
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(vec![1]));
        assert_eq!(second.await.unwrap(), Ok(vec![2]));
    }

    #[tokio::test]
    async fn without_any_model_callers_are_told_so_until_one_is_back() {
        let gone = Arc::new(AtomicBool::new(false));
        let bench = bench_of(16, 2, {
            let gone = Arc::clone(&gone);
            move || {
                if gone.load(Ordering::SeqCst) { Err(RuntimeError::Load("it is gone".into())) } else { Ok(()) }
            }
        });
        gone.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            bench.permits.send(()).unwrap();
            assert_eq!(bench.batcher.submit(vec![13], soon()).await, Err(EngineError::Failed));
        }
        for input in 1..5 {
            assert_eq!(bench.batcher.submit(vec![input], soon()).await, Err(EngineError::Failed));
        }
        assert_eq!(bench.batcher.calibrate(256, |cost| cost).await, None);
        assert_eq!(bench.started.load(Ordering::SeqCst), 2);
        gone.store(false, Ordering::SeqCst);
        bench.permits.send(()).unwrap();
        let patience = Instant::now() + Duration::from_secs(30);
        while bench.batcher.submit(vec![5], soon()).await != Ok(vec![5]) {
            assert!(Instant::now() < patience, "no model came back");
        }
    }

    #[tokio::test]
    async fn a_failed_pass_keeps_the_model() {
        let bench = bench(16);
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![7], soon()).await, Err(EngineError::Failed));
        bench.permits.send(()).unwrap();
        assert_eq!(bench.batcher.submit(vec![5], soon()).await, Ok(vec![5]));
        assert_eq!(bench.built.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_measured_budget_is_the_budget_from_then_on() {
        let bench = bench(16);
        for _ in 0..100 {
            bench.permits.send(()).unwrap();
        }
        let found = bench.batcher.calibrate(256, |cost| cost).await.unwrap();
        // Eight items are the most in a batch: above 512 nothing changes, and the smallest of equals is chosen.
        assert!([128, 256, 512].contains(&found.budget), "{found:?}");
        assert_eq!(found.rates.iter().map(|&(budget, _)| budget).collect::<Vec<_>>(), BUDGETS);
        assert_eq!(usize::try_from(bench.metrics.batch_tokens.get()), Ok(found.budget));
        let measured = bench.batches.lock().unwrap().len();
        assert!(bench.batches.lock().unwrap().iter().flatten().all(|cost| [16, 64].contains(cost)));
        assert_eq!(bench.metrics.batch_size.get_sample_count(), 0, "measuring is nobody's work");
        // They fit into the budget of 1,000 that the batcher was started with.
        assert_eq!(bench.batcher.submit(vec![400, 400], soon()).await, Ok(vec![400, 400]));
        assert_eq!(bench.batches.lock().unwrap()[measured..], [vec![400], vec![400]]);
    }

    #[tokio::test]
    async fn a_request_waits_for_one_measured_pass_at_most() {
        let bench = bench(16);
        let measuring = {
            let batcher = Arc::clone(&bench.batcher);
            tokio::spawn(async move { batcher.calibrate(256, |cost| cost).await })
        };
        until(|| bench.started.load(Ordering::SeqCst) == 1).await;
        let answer = queued(&bench, vec![5], soon(), 1).await;
        bench.permits.send(()).unwrap();
        bench.permits.send(()).unwrap();
        assert_eq!(answer.await.unwrap(), Ok(vec![5]));
        assert_eq!(bench.batches.lock().unwrap()[..2], [vec![16; 8], vec![5]]);
        // Nobody waits for the result any more: after the pass under way there are requests alone.
        measuring.abort();
        assert!(measuring.await.unwrap_err().is_cancelled());
        for _ in 0..4 {
            bench.permits.send(()).unwrap();
        }
        assert_eq!(bench.batcher.submit(vec![6], soon()).await, Ok(vec![6]));
        assert_eq!(bench.batcher.submit(vec![7, 8], soon()).await, Err(EngineError::Failed));
        assert!(bench.started.load(Ordering::SeqCst) <= 5);
    }

    #[tokio::test]
    async fn a_model_that_cannot_be_measured_keeps_its_budget_and_serves_on() {
        let bench = bench(16);
        for _ in 0..3 {
            bench.permits.send(()).unwrap();
        }
        assert_eq!(bench.batcher.calibrate(256, |_| 7).await, None);
        assert_eq!(bench.batcher.calibrate(256, |_| 13).await, None);
        assert_eq!((bench.metrics.failures.get(), bench.metrics.panics.get()), (2, 1));
        assert_eq!(bench.metrics.batch_tokens.get(), 1000);
        assert_eq!(bench.batcher.submit(vec![5], soon()).await, Ok(vec![5]));
    }
}
