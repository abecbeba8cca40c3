//! Logs and metrics. Owns every metric series and the log subscriber; refuses user text and keys.

pub mod metrics;
pub mod subscriber;

pub use metrics::{Metrics, ModelMetrics};
