//! How often a caller may call.
//!
//! Owns the [`Limiter`] seam: in one process the counts live in memory ([`memory`]). Checking is asynchronous
//! because replicas that serve one key set may share their counts over a network.

pub mod memory;

use std::pin::Pin;

pub use memory::MemoryLimiter;

use super::Caller;
use crate::domain::LimitDecision;

/// The answer of a limiter, to come.
pub type Decision<'a> = Pin<Box<dyn Future<Output = LimitDecision> + Send + 'a>>;

/// Counts requests against each caller's limit.
pub trait Limiter: Send + Sync + 'static {
    /// Counts one request of the caller and says whether it may go on. A refused request takes nothing.
    fn check<'a>(&'a self, caller: &'a Caller) -> Decision<'a>;
}
