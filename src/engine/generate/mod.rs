//! Text generation: one scheduler thread a model, several sequences at once over the rows of a KV cache.

#[cfg(test)]
mod doubles;
mod lookup;
mod prefix;
mod sampler;
mod scheduler;
mod slots;
mod worker;

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

pub use lookup::Lookup;
pub use sampler::Sampling;
pub use scheduler::{Finish, Generation};

use super::{
    EngineError, Factory,
    inbox::{self, Inbox},
    pulse::Pulse,
};
use crate::{
    runtime::{Decode, RuntimeError},
    telemetry::{ModelMetrics, Submission, Ticket},
};

/// Size of a generator.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    /// Sequences that may wait.
    pub capacity: usize,
    /// Most tokens of a newcomer's prompt computed between two steps of those that are being served.
    pub prefill_tokens: usize,
    /// Whether next tokens are guessed and verified several at once.
    pub lookup: Option<Lookup>,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct GenerateParams {
    /// Tokens before the text; equal prefixes are computed once.
    pub prefix: Arc<[u32]>,
    /// The text and what follows it; at least one token.
    pub body: Vec<u32>,
    /// Most tokens to generate, at least one.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop: Arc<[u32]>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens whose logits are told of the place where the answer begins: [`Generation::watched`].
    pub watched: Arc<[u32]>,
}

/// Rows that a decoder needs for `sequences` at once: theirs and those of the cached prefixes.
pub const fn rows_for(sequences: usize) -> usize {
    sequences + scheduler::PREFIX_ROWS
}

/// Handle to the scheduler of one model. Dropping it stops the thread after the step in hand.
pub struct Generator {
    inbox: Arc<Inbox<Job>>,
    window: usize,
    pulse: Arc<Pulse>,
    metrics: ModelMetrics,
    thread: Option<JoinHandle<()>>,
}

/// One sequence on its way through the engine.
struct Job {
    params: GenerateParams,
    queued: Instant,
    deadline: Instant,
    ticket: Ticket,
    reply: oneshot::Sender<Result<Generation, EngineError>>,
}

impl Job {
    /// Itself, while its caller waits.
    fn if_awaited(self, now: Instant, metrics: &ModelMetrics) -> Option<Self> {
        let reply = inbox::awaited(self.reply, self.deadline, now, metrics)?;
        Some(Self { reply, ..self })
    }
}

impl Generator {
    /// Loads the model and starts its thread.
    ///
    /// # Errors
    /// [`RuntimeError`] when the model cannot be loaded, cannot verify guesses that are asked for, or the thread cannot
    /// be started.
    pub fn start<D: Decode>(
        name: &str,
        options: GeneratorOptions,
        factory: &Factory<D>,
        metrics: &ModelMetrics,
    ) -> Result<Self, RuntimeError> {
        let inbox = Arc::new(Inbox::new(options.capacity));
        let pulse = Arc::new(Pulse::new(Instant::now()));
        let decoder = factory()?;
        if options.lookup.is_some_and(|lookup| lookup.anyway) && !decoder.verifies() {
            return Err(RuntimeError::Load(
                "its graph tells the last position's logits only; run `make models`, or set speculation to off".into(),
            ));
        }
        let window = decoder.window();
        let together = decoder.verifies_as_it_steps();
        let lookup = options.lookup.filter(|lookup| together || lookup.anyway);
        let lookup = lookup.map(|lookup| Lookup { rows: if together { lookup.rows } else { 1 }, ..lookup });
        let pace = scheduler::Pace { prefill_tokens: options.prefill_tokens, lookup };
        let worker = worker::Worker {
            scheduler: Some(scheduler::Scheduler::new(decoder, pace)),
            pace,
            factory: Arc::clone(factory),
            inbox: Arc::clone(&inbox),
            pulse: Arc::clone(&pulse),
            metrics: metrics.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("{name}-generator"))
            .spawn(move || worker.run())
            .map_err(|error| RuntimeError::Load(format!("cannot start a generator thread: {error}")))?;
        Ok(Self { inbox, window, pulse, metrics: metrics.clone(), thread: Some(thread) })
    }

    /// Queues all sequences or none and answers them in order. Dropping the future ends them within one step.
    ///
    /// # Errors
    /// [`EngineError`]; `Failed` also for a sequence that cannot fit the model's window.
    pub async fn submit(
        &self,
        sequences: Vec<GenerateParams>,
        deadline: Instant,
    ) -> Result<Vec<Generation>, EngineError> {
        let fits = |params: &GenerateParams| {
            !params.body.is_empty()
                && params.max_tokens > 0
                && params.prefix.len() + params.body.len() + params.max_tokens <= self.window
        };
        if !sequences.iter().all(fits) {
            tracing::error!(window = self.window, "a sequence does not fit the generator's window");
            return Err(EngineError::Failed);
        }
        let (queued, ticket) = (Instant::now(), Ticket::default());
        let (jobs, answers): (Vec<_>, Vec<_>) = sequences
            .into_iter()
            .map(|params| {
                let (reply, answer) = oneshot::channel();
                (Job { params, queued, deadline, ticket: ticket.clone(), reply }, answer)
            })
            .unzip();
        self.inbox.push(jobs, |job| job.if_awaited(queued, &self.metrics))?;
        let _noted = Submission::new(&self.metrics.component, answers.len(), queued, ticket);
        let mut generations = Vec::with_capacity(answers.len());
        for answer in answers {
            generations.push(answer.await.unwrap_or_else(|_| Err(self.inbox.unanswered()))?);
        }
        Ok(generations)
    }

    /// Longest sequence, prompt and answer together, in tokens.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Whether a token has been generated within this time.
    pub fn answered_within(&self, span: Duration) -> bool {
        self.pulse.within(span, Instant::now())
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;
    use crate::{
        runtime::Step,
        telemetry::{Metrics, ModelMetrics},
    };

    /// Fails over a prompt that holds 7, panics over 13, and for 99 waits until the test lets it go on.
    struct Moody {
        adder: doubles::Adder,
        started: Arc<AtomicUsize>,
        gate: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl Decode for Moody {
        fn rows(&self) -> usize {
            self.adder.rows()
        }

        fn window(&self) -> usize {
            self.adder.window()
        }

        fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
            self.started.fetch_add(1, Ordering::SeqCst);
            assert!(!tokens.contains(&13), "unlucky");
            if tokens.contains(&7) {
                return Err(RuntimeError::Inference("seven".into()));
            }
            if tokens.contains(&99) {
                self.gate.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap();
            }
            self.adder.prefill(row, past, tokens)
        }

        fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
            self.adder.step(steps)
        }

        fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
            self.adder.verify(row, past, tokens)
        }

        fn verifies(&self) -> bool {
            false
        }

        fn copy(&mut self, from: usize, to: usize, length: usize) {
            self.adder.copy(from, to, length);
        }
    }

    struct Bench {
        generator: Arc<Generator>,
        metrics: ModelMetrics,
        built: Arc<AtomicUsize>,
        started: Arc<AtomicUsize>,
        gate: mpsc::Sender<()>,
    }

    fn bench(capacity: usize) -> Bench {
        bench_of(capacity, |_| {})
    }

    /// `making` is told how many models were made before.
    fn bench_of(capacity: usize, making: fn(usize)) -> Bench {
        let (gate, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let (built, started): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let factory: Factory<Moody> = {
            let (built, started) = (Arc::clone(&built), Arc::clone(&started));
            Arc::new(move || {
                making(built.fetch_add(1, Ordering::SeqCst));
                let adder = doubles::Adder::new(rows_for(2), 64, 200);
                Ok(Moody { adder, started: Arc::clone(&started), gate: Arc::clone(&receiver) })
            })
        };
        let metrics = Metrics::new().unwrap().model("moody", "generator");
        let options = GeneratorOptions { capacity, prefill_tokens: 16, lookup: None };
        let generator = Generator::start("moody", options, &factory, &metrics).unwrap();
        Bench { generator: Arc::new(generator), metrics, built, started, gate }
    }

    fn sequence(body: &[u32]) -> GenerateParams {
        let (prefix, stop): (Arc<[u32]>, Arc<[u32]>) = (Arc::from([1, 2]), Arc::from([]));
        GenerateParams {
            prefix,
            body: body.to_vec(),
            max_tokens: 4,
            stop,
            sampling: Sampling::Greedy,
            watched: Arc::default(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    type Answer = tokio::task::JoinHandle<Result<Vec<Generation>, EngineError>>;

    fn submit(bench: &Bench, body: &[u32], deadline: Instant) -> Answer {
        let (generator, sequence) = (Arc::clone(&bench.generator), sequence(body));
        tokio::spawn(async move { generator.submit(vec![sequence], deadline).await })
    }

    async fn until(condition: impl Fn() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < patience, "the engine did not get there");
            tokio::task::yield_now().await;
        }
    }

    /// Submits what holds the thread until the gate opens. Prefix and body are two passes.
    async fn blocked(bench: &Bench) -> Answer {
        let answer = submit(bench, &[99], soon());
        until(|| bench.started.load(Ordering::SeqCst) == 2).await;
        answer
    }

    #[tokio::test]
    async fn a_panic_or_a_failed_pass_ends_its_batch_and_the_model_is_replaced() {
        let bench = bench(8);
        for (unlucky, built) in [(13, 2), (7, 3)] {
            let failed = bench.generator.submit(vec![sequence(&[unlucky])], soon()).await;
            assert_eq!(failed, Err(EngineError::Failed));
            let answers = bench.generator.submit(vec![sequence(&[5])], soon()).await.unwrap();
            assert_eq!(answers[0].tokens.len(), 4);
            assert_eq!(bench.built.load(Ordering::SeqCst), built);
        }
        assert_eq!((bench.metrics.panics.get(), bench.metrics.failures.get()), (1, 2));
        assert!(bench.generator.answered_within(Duration::from_mins(1)));
    }

    #[tokio::test]
    async fn a_model_that_could_not_be_made_again_is_tried_again_while_nobody_waits() {
        let bench = bench_of(8, |made| assert_ne!(made, 1, "short of memory"));
        assert_eq!(bench.generator.submit(vec![sequence(&[7])], soon()).await, Err(EngineError::Failed));
        until(|| bench.built.load(Ordering::SeqCst) == 3).await;
        assert!(bench.generator.submit(vec![sequence(&[5])], soon()).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_finished_when_another_fails_is_answered() {
        let bench = bench(8);
        // The prefix is known from here on: each of the others is one pass.
        bench.generator.submit(vec![sequence(&[5])], soon()).await.unwrap();
        let short = |body: &[u32]| {
            let (generator, sequence) = (Arc::clone(&bench.generator), sequence(body));
            let sequence = GenerateParams { max_tokens: 1, ..sequence };
            tokio::spawn(async move { generator.submit(vec![sequence], soon()).await })
        };
        let started = bench.started.load(Ordering::SeqCst);
        let first = short(&[99]);
        until(|| bench.started.load(Ordering::SeqCst) == started + 1).await;
        let second = short(&[5]);
        until(|| bench.generator.inbox.len() == 1).await;
        let third = short(&[7]);
        until(|| bench.generator.inbox.len() == 2).await;
        bench.gate.send(()).unwrap();
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
        assert_eq!(third.await.unwrap(), Err(EngineError::Failed));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let bench = bench(1);
        let first = blocked(&bench).await;
        let second = submit(&bench, &[5], soon());
        until(|| bench.generator.inbox.len() == 1).await;
        assert_eq!(bench.generator.submit(vec![sequence(&[6])], soon()).await, Err(EngineError::Overloaded));
        bench.gate.send(()).unwrap();
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn who_left_or_is_late_makes_room_in_a_full_queue() {
        let bench = bench(2);
        let first = blocked(&bench).await;
        let gone = submit(&bench, &[5], soon());
        until(|| bench.generator.inbox.len() == 1).await;
        let late = submit(&bench, &[6], Instant::now());
        until(|| bench.generator.inbox.len() == 2).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let last = submit(&bench, &[5], soon());
        until(|| bench.generator.inbox.len() == 1).await;
        assert_eq!(late.await.unwrap(), Err(EngineError::Deadline));
        assert_eq!(bench.metrics.abandoned.get(), 1);
        bench.gate.send(()).unwrap();
        assert!(first.await.unwrap().is_ok() && last.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn who_left_or_is_late_is_not_generated_for() {
        let bench = bench(8);
        let first = blocked(&bench).await;
        let gone = submit(&bench, &[5], soon());
        until(|| bench.generator.inbox.len() == 1).await;
        let late = submit(&bench, &[6], Instant::now());
        until(|| bench.generator.inbox.len() == 2).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        bench.gate.send(()).unwrap();
        assert_eq!(late.await.unwrap(), Err(EngineError::Deadline));
        assert!(first.await.unwrap().is_ok());
        assert_eq!(bench.started.load(Ordering::SeqCst), 2, "neither reached the model");
        assert_eq!(bench.metrics.abandoned.get(), 1);
    }

    #[tokio::test]
    async fn what_is_submitted_together_shares_its_text() {
        let bench = bench(8);
        let together = vec![sequence(&[5, 5, 5, 5]), sequence(&[5, 5, 5, 6])];
        let both = bench.generator.submit(together, soon()).await.unwrap();
        // All but the last two tokens of the second.
        assert_eq!(bench.metrics.shared_tokens.get(), 2);
        let alone = bench.generator.submit(vec![sequence(&[5, 5, 5, 6])], soon()).await.unwrap();
        assert_eq!((bench.metrics.shared_tokens.get(), &both[1]), (2, &alone[0]));
    }

    #[test]
    fn a_model_that_cannot_verify_guesses_is_refused_at_the_start() {
        let factory: Factory<Moody> = Arc::new(|| {
            let (adder, gate) = (doubles::Adder::new(rows_for(1), 64, 200), mpsc::channel().1);
            Ok(Moody { adder, started: Arc::default(), gate: Arc::new(Mutex::new(gate)) })
        });
        let metrics = Metrics::new().unwrap().model("moody", "generator");
        let lookup = Some(Lookup { rows: 1, tokens: 4, anyway: true });
        let options = GeneratorOptions { capacity: 1, prefill_tokens: 16, lookup };
        let refusal = Generator::start("moody", options, &factory, &metrics).err().unwrap().to_string();
        assert!(refusal.contains("set speculation to off"), "{refusal}");
    }

    #[tokio::test]
    async fn what_cannot_fit_the_window_is_refused_before_the_queue() {
        let bench = bench(8);
        for body in [vec![], vec![5; 64]] {
            assert_eq!(bench.generator.submit(vec![sequence(&body)], soon()).await, Err(EngineError::Failed));
        }
        assert_eq!(bench.started.load(Ordering::SeqCst), 0);
    }
}
