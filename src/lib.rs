//! Dichroic: text expression, replies and content moderation from local ONNX models.
pub mod domain;
pub mod engine;
pub mod imaging;
pub mod registry;
pub mod runtime;
pub mod service;
pub mod telemetry;
