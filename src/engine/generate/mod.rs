//! Text generation: one scheduler thread a model, several sequences at once over the rows of a KV cache.

#[cfg(test)]
mod doubles;
mod prefix;
mod sampler;
mod scheduler;
mod slots;
mod worker;

use std::{sync::Arc, thread::JoinHandle, time::Instant};

use tokio::sync::oneshot;

pub use sampler::Sampling;
pub use scheduler::{Finish, Generation};

use super::{EngineError, Factory, inbox::Inbox};
use crate::{
    runtime::{Decode, RuntimeError},
    telemetry::ModelMetrics,
};

/// Size of a generator.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    /// Sequences that may wait.
    pub capacity: usize,
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
}

/// Rows that a decoder needs for `sequences` at once: theirs and those of the cached prefixes.
pub const fn rows_for(sequences: usize) -> usize {
    sequences + scheduler::PREFIX_ROWS
}

/// Handle to the scheduler of one model. Dropping it stops the thread after the step in hand.
pub struct Generator {
    inbox: Arc<Inbox<Job>>,
    window: usize,
    thread: Option<JoinHandle<()>>,
}

/// One sequence on its way through the engine.
struct Job {
    params: GenerateParams,
    queued: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Generation, EngineError>>,
}

impl Generator {
    /// Loads the model and starts its thread.
    ///
    /// # Errors
    /// [`RuntimeError`] when the model cannot be loaded or the thread cannot be started.
    pub fn start<D: Decode>(
        name: &str,
        options: GeneratorOptions,
        factory: &Factory<D>,
        metrics: &ModelMetrics,
    ) -> Result<Self, RuntimeError> {
        let inbox = Arc::new(Inbox::new(options.capacity));
        let decoder = factory()?;
        let window = decoder.window();
        let worker = worker::Worker::new(decoder, Arc::clone(factory), Arc::clone(&inbox), metrics.clone());
        let thread = std::thread::Builder::new()
            .name(format!("{name}-generator"))
            .spawn(move || worker.run())
            .map_err(|error| RuntimeError::Load(format!("cannot start a generator thread: {error}")))?;
        Ok(Self { inbox, window, thread: Some(thread) })
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
        let queued = Instant::now();
        let (jobs, answers): (Vec<_>, Vec<_>) = sequences
            .into_iter()
            .map(|params| {
                let (reply, answer) = oneshot::channel();
                (Job { params, queued, deadline, reply }, answer)
            })
            .unzip();
        self.inbox.push(jobs)?;
        let mut generations = Vec::with_capacity(answers.len());
        for answer in answers {
            generations.push(answer.await.unwrap_or(Err(EngineError::ShuttingDown))?);
        }
        Ok(generations)
    }

    /// Longest sequence, prompt and answer together, in tokens.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Sequences waiting now.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
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
