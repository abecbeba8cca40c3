//! The commands beside `keys`, run as a user runs them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helper may panic as its test may")]

#[cfg(feature = "bench")]
mod bench;
mod device;
mod manual;
mod models;
mod start;
mod support;
