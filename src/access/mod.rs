//! Who may call, and how often: keys and usage limits.
//!
//! Owns the key file, the comparison of credentials and the counting of requests. Refuses anything of HTTP: which
//! status or header follows from a [`Denied`] or a `LimitDecision` is the router's business.

pub mod keys;
pub mod limits;

pub use keys::{Caller, Denied, KeyFileError, KeyStore, Reload};
pub use limits::{
    Fallback, Limiter, MemoryLimiter, RedisLimiter, RedisOptions, RedisServer, redis::probe as probe_redis,
};
