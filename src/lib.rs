//! Dichroic: text expression, replies and content moderation from local ONNX models.
pub mod domain;
pub mod registry;
pub mod runtime;
