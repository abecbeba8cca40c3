//! How often a caller may call.
//!
//! Owns the [`Limiter`] seam: the counts of one process live in memory ([`memory`]), those that several replicas
//! share in Redis (`redis`). Checking is asynchronous because of the latter.

pub mod memory;
pub mod redis;

use std::pin::Pin;

pub use self::redis::{Fallback, RedisLimiter, RedisOptions, RedisServer};
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
