//! The scheduler's thread: takes jobs, advances the batch, answers, and survives a panic of the model.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    super::{EngineError, Factory, inbox::Inbox, loaded, pulse::Pulse},
    GenerateParams, Generation, Job,
    scheduler::{Pace, Progress, Scheduler, Waiting},
};
use crate::{
    runtime::{Decode, RuntimeError},
    telemetry::{ModelMetrics, Ticket},
};

/// Pause before a model that could not be loaded again is tried once more.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// The caller of a live sequence.
pub(super) struct Reply {
    sender: tokio::sync::oneshot::Sender<Result<Generation, EngineError>>,
    deadline: Instant,
    ticket: Ticket,
}

impl Waiting for Reply {
    fn is_gone(&self) -> bool {
        self.sender.is_closed() || Instant::now() >= self.deadline
    }

    fn is_with(&self, other: &Self) -> bool {
        self.ticket.is_with(&other.ticket)
    }
}

pub(super) struct Worker<D: Decode> {
    /// `None` while a model that failed could not be loaded again.
    pub(super) scheduler: Option<Scheduler<D, Reply>>,
    pub(super) pace: Pace,
    pub(super) factory: Factory<D>,
    pub(super) inbox: Arc<Inbox<Job>>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) metrics: ModelMetrics,
}

impl<D: Decode> Worker<D> {
    /// Serves until the inbox is closed.
    pub(super) fn run(mut self) {
        while self.wait_for_work() {
            self.advance();
        }
        for reply in self.scheduler.as_mut().map(Scheduler::abandon).unwrap_or_default() {
            let _ = reply.sender.send(Err(EngineError::ShuttingDown));
        }
    }

    /// Blocks while there is nothing to do; false once the inbox is closed.
    fn wait_for_work(&self) -> bool {
        let idle = self.scheduler.as_ref().is_none_or(Scheduler::is_idle);
        let mut held = self.inbox.hold();
        loop {
            if held.closed() {
                for job in held.queue().drain(..) {
                    let _ = job.reply.send(Err(EngineError::ShuttingDown));
                }
                return false;
            }
            // Without a model there is one to load, also while nobody waits for it.
            if !idle || self.scheduler.is_none() || !held.queue().is_empty() {
                return true;
            }
            held = held.wait(None);
        }
    }

    fn advance(&mut self) {
        let Some(scheduler) = self.scheduler.as_mut() else {
            self.reload();
            while self.scheduler.is_none()
                && let Some((_, reply)) = next_job(&self.inbox, &self.metrics)
            {
                let _ = reply.sender.send(Err(EngineError::Failed));
            }
            return;
        };
        let start = Instant::now();
        let (inbox, metrics) = (&self.inbox, &self.metrics);
        // The scheduler is dropped and rebuilt after a panic, so no half-changed state is seen again.
        let waiting = inbox.hold().queue().len();
        let mut progress = Progress::default();
        let pass = || scheduler.advance(waiting, || next_job(inbox, metrics), &mut progress);
        let result = catch_unwind(AssertUnwindSafe(pass));
        if let Ok(Ok(())) = result {
            let rows = scheduler.live() + progress.finished.len() + progress.gone.len();
            if rows > 0 {
                self.metrics.observe_batch(rows, rows, rows, start.elapsed());
                self.pulse.beat(Instant::now());
            }
        }
        self.answer(progress);
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(Some(&error)),
            Err(_) => self.fail(None),
        }
    }

    fn answer(&self, progress: Progress<Reply>) {
        self.metrics.generated_tokens.inc_by(progress.tokens as u64);
        self.metrics.prefix_hits.inc_by(progress.prefix_hits as u64);
        self.metrics.shared_tokens.inc_by(progress.shared as u64);
        self.metrics.guessed_tokens.inc_by(progress.guessed as u64);
        self.metrics.accepted_tokens.inc_by(progress.accepted as u64);
        for (reply, generation) in progress.finished {
            let _ = reply.sender.send(Ok(generation));
        }
        for reply in progress.gone {
            // Whose time is up may still be there.
            if reply.sender.is_closed() {
                self.metrics.abandoned.inc();
            }
            let _ = reply.sender.send(Err(EngineError::Deadline));
        }
    }

    /// Fails everybody in the batch. The cache is then undefined, so the model is made anew.
    fn fail(&mut self, error: Option<&RuntimeError>) {
        if let Some(error) = error {
            tracing::error!(%error, "a decode step failed; the generator is replaced");
        } else {
            tracing::error!("a generator panicked; it is replaced");
            self.metrics.panics.inc();
        }
        self.metrics.failures.inc();
        for reply in self.scheduler.as_mut().map(Scheduler::abandon).unwrap_or_default() {
            let _ = reply.sender.send(Err(EngineError::Failed));
        }
        self.reload();
    }

    fn reload(&mut self) {
        // Dropped first: two copies of a large model may not fit in memory.
        self.scheduler = None;
        match loaded(&self.factory) {
            Ok(decoder) => self.scheduler = Some(Scheduler::new(decoder, self.pace)),
            Err(error) => {
                tracing::error!(%error, "a generator could not load its model again");
                std::thread::sleep(RELOAD_PAUSE);
            }
        }
    }
}

/// The oldest job whose caller still waits.
fn next_job(inbox: &Inbox<Job>, metrics: &ModelMetrics) -> Option<(GenerateParams, Reply)> {
    let mut held = inbox.hold();
    while let Some(job) = held.queue().pop_front() {
        let now = Instant::now();
        let Some(job) = job.if_awaited(now, metrics) else { continue };
        metrics.queue_seconds.observe(now.saturating_duration_since(job.queued).as_secs_f64());
        metrics.input_tokens.inc_by((job.params.prefix.len() + job.params.body.len()) as u64);
        job.ticket.taken(now);
        return Some((job.params, Reply { sender: job.reply, deadline: job.deadline, ticket: job.ticket }));
    }
    None
}
