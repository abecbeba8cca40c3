//! Logs, metrics and traces. Owns every metric series, the log subscriber, what is noted about a request, and the spans
//! that are made of it; refuses user text and keys.

pub mod metrics;
pub mod record;
pub mod subscriber;
pub mod traces;

pub use metrics::{Metrics, ModelMetrics};
pub use record::{Record, Submission, Ticket};
pub use traces::Traces;
