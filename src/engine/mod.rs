//! Queues and schedulers: from single requests to full batches and back.
//!
//! Owns bounded inboxes, batching policy, KV slots and the OS threads that run the models. Refuses async code,
//! HTTP and policy about texts. Every queue is bounded; a caller that left is skipped; a worker that panics fails
//! its own batch and is replaced.

pub mod batch;
pub mod generate;
mod inbox;
mod pulse;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub use batch::{BatchOptions, Batcher, Calibrated};
pub use generate::{Finish, GenerateParams, Generation, Generator, GeneratorOptions, Lookup, Sampling};

use crate::runtime::RuntimeError;

/// Makes a model for a worker, at the start and again after a panic.
pub type Factory<M> = Arc<dyn Fn() -> Result<M, RuntimeError> + Send + Sync>;

/// A model that is made again. A panic in that must not take the worker's thread along, with everybody in its queue.
fn loaded<M>(factory: &Factory<M>) -> Result<M, RuntimeError> {
    catch_unwind(AssertUnwindSafe(|| factory()))
        .unwrap_or_else(|_| Err(RuntimeError::Load("making the model panicked".into())))
}

/// Why the engine gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The inbox is full.
    #[error("the queue is full")]
    Overloaded,
    /// The request's time ran out before it was served.
    #[error("the deadline passed")]
    Deadline,
    /// The engine is being stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The model failed or its worker panicked.
    #[error("inference failed")]
    Failed,
}
