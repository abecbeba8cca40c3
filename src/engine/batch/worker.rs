//! The thread that gathers, runs and answers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    super::{EngineError, Factory, inbox::Inbox, loaded, pulse::Pulse},
    Job,
    calibration::Shape,
    policy::{BatchPolicy, Gather},
    tuning::{Measurement, Tuning},
};
use crate::{runtime::Forward, telemetry::ModelMetrics};

/// Pause before a model that could not be loaded again is tried once more.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a worker that is to measure looks again whether it is alone.
const COMPANY_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Worker<F: Forward> {
    /// `None` while a model that panicked could not be loaded again.
    pub(super) model: Option<F>,
    /// When to load the next one, while there is none.
    pub(super) retry: Instant,
    /// Workers of this batcher that have a model.
    pub(super) able: Arc<AtomicUsize>,
    pub(super) factory: Factory<F>,
    pub(super) inbox: Arc<Inbox<Job<F::Input, F::Output>>>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) tuning: Arc<Tuning<F::Input>>,
    /// The measurement that this worker has taken on.
    pub(super) measurement: Option<Measurement<F::Input>>,
    pub(super) policy: BatchPolicy,
    pub(super) metrics: ModelMetrics,
}

/// What a worker does next.
enum Work<I, O> {
    Serve(Vec<Job<I, O>>),
    Measure(Shape),
    Reload,
}

impl<F: Forward> Worker<F> {
    /// Serves until the inbox is closed; what still waits then is answered with `ShuttingDown`.
    pub(super) fn run(mut self) {
        while let Some(work) = self.gather() {
            match work {
                Work::Serve(batch) => self.serve(batch),
                Work::Measure(shape) => self.measure(shape),
                Work::Reload => self.reload(),
            }
        }
    }

    fn gather(&mut self) -> Option<Work<F::Input, F::Output>> {
        let inbox = Arc::clone(&self.inbox);
        let mut held = inbox.hold();
        loop {
            if held.closed() {
                refuse(held.queue().drain(..), EngineError::ShuttingDown);
                return None;
            }
            let now = Instant::now();
            held.sift(|job| job.if_awaited(now, &self.metrics));
            if self.model.is_none() {
                let pause = self.retry.saturating_duration_since(now);
                if pause.is_zero() {
                    return Some(Work::Reload);
                }
                // What waits is left to the workers that can serve it; where there are none, nobody is kept waiting.
                if self.able.load(Ordering::SeqCst) == 0 {
                    refuse(held.queue().drain(..), EngineError::Failed);
                    drop(self.tuning.take());
                }
                held = held.wait(Some(pause));
                continue;
            }
            let queue = held.queue();
            let Some(oldest) = queue.front().map(|job| job.queued) else {
                if let Some(shape) = self.next_shape() {
                    return Some(Work::Measure(shape));
                }
                held = held.wait(self.measurement.is_some().then_some(COMPANY_PAUSE));
                continue;
            };
            let costs: Vec<usize> = queue.iter().map(|job| job.cost).collect();
            let policy = BatchPolicy { budget: self.tuning.budget(), ..self.policy };
            match policy.decide(&costs, self.able.load(Ordering::SeqCst), oldest, now) {
                Gather::Wait(time) => held = held.wait(Some(time)),
                Gather::Run(places) => {
                    let mut batch: Vec<_> = places.iter().rev().filter_map(|&place| queue.remove(place)).collect();
                    batch.reverse();
                    return Some(Work::Serve(batch));
                }
            }
        }
    }

    /// What is to be measured now, for a worker that nothing waits for.
    fn next_shape(&mut self) -> Option<Shape> {
        if self.measurement.is_none() {
            self.measurement = self.tuning.take();
        }
        // Whoever asked for it has left.
        self.measurement.take_if(|measurement| measurement.reply.is_closed());
        let measurement = self.measurement.as_ref()?;
        if self.tuning.busy() { None } else { measurement.plan.next() }
    }

    /// Runs one shape of no text. It is no work of anybody's: the metrics of passes leave it out.
    fn measure(&mut self, shape: Shape) {
        let (Some(mut measurement), Some(model)) = (self.measurement.take(), self.model.as_mut()) else { return };
        let batch: Vec<F::Input> = (0..shape.rows).map(|_| (measurement.sample)(shape.tokens)).collect();
        let begun = self.tuning.begun();
        let start = Instant::now();
        // As in `serve`.
        let result = catch_unwind(AssertUnwindSafe(|| model.run(&batch)));
        let time = start.elapsed();
        match result {
            Ok(Ok(_)) => {
                measurement.plan.record(time, self.tuning.begun() == begun);
                if measurement.plan.next().is_some() {
                    self.measurement = Some(measurement);
                    return;
                }
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "a batch for measuring failed");
                self.metrics.failures.inc();
            }
            Err(_) => {
                tracing::error!("a worker panicked while it measured; it is replaced");
                self.metrics.panics.inc();
                self.metrics.failures.inc();
                self.lose_model();
            }
        }
        let found = measurement.plan.conclusion();
        if let Some(found) = &found {
            self.tuning.set_budget(found.budget);
        }
        self.metrics.batch_tokens.set(self.tuning.budget().try_into().unwrap_or(i64::MAX));
        let _ = measurement.reply.send(found);
    }

    fn serve(&mut self, batch: Vec<Job<F::Input, F::Output>>) {
        let Some(model) = self.model.as_mut() else {
            refuse(batch, EngineError::Failed);
            return;
        };
        let start = Instant::now();
        let costs: usize = batch.iter().map(|job| job.cost).sum();
        let padded = batch.len() * batch.iter().map(|job| job.cost).max().unwrap_or(0);
        let mut inputs = Vec::with_capacity(batch.len());
        let mut replies = Vec::with_capacity(batch.len());
        for job in batch {
            self.metrics.queue_seconds.observe((start - job.queued).as_secs_f64());
            job.ticket.taken(start);
            inputs.push(job.input);
            replies.push(job.reply);
        }
        // The model is dropped and rebuilt after a panic, so no half-changed state is seen again.
        self.tuning.pass_begins();
        let result = catch_unwind(AssertUnwindSafe(|| model.run(&inputs)));
        self.tuning.pass_ends();
        self.metrics.observe_batch(inputs.len(), costs, padded, start.elapsed());
        if F::TAKES_TOKENS {
            self.metrics.input_tokens.inc_by(costs as u64);
        }
        match result {
            Ok(Ok(outputs)) if outputs.len() == replies.len() => {
                self.pulse.beat(Instant::now());
                for (reply, output) in replies.into_iter().zip(outputs) {
                    let _ = reply.send(Ok(output));
                }
                return;
            }
            Ok(Ok(outputs)) => {
                tracing::error!(answers = outputs.len(), items = replies.len(), "a model lost answers");
            }
            Ok(Err(error)) => tracing::error!(%error, "a batch failed"),
            Err(_) => {
                tracing::error!("a worker panicked; it is replaced");
                self.metrics.panics.inc();
                self.lose_model();
            }
        }
        self.metrics.failures.inc();
        for reply in replies {
            let _ = reply.send(Err(EngineError::Failed));
        }
    }

    /// Lets go of a model in an unknown state. It is loaded again by [`Work::Reload`], after the callers were answered.
    fn lose_model(&mut self) {
        if self.model.take().is_some() {
            self.able.fetch_sub(1, Ordering::SeqCst);
        }
        self.retry = Instant::now();
    }

    fn reload(&mut self) {
        match loaded(&self.factory) {
            Ok(model) => {
                self.model = Some(model);
                self.able.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => {
                tracing::error!(%error, "a worker could not load its model again");
                self.retry = Instant::now() + RELOAD_PAUSE;
                // Whoever asked for it is not kept waiting, either.
                self.measurement = None;
            }
        }
    }
}

/// Tells the callers why there is no answer.
fn refuse<I, O>(jobs: impl IntoIterator<Item = Job<I, O>>, why: EngineError) {
    for job in jobs {
        let _ = job.reply.send(Err(why));
    }
}
