//! Dichroic: text expression, replies and content moderation from local ONNX models, in one server.
//!
//! The map, from the inside out; arrows of import point inwards only (`tests/architecture.rs` holds this):
//!
//! - [`domain`]: what the service is about, as pure types. [`telemetry`] and [`lifecycle`] stand beside it.
//! - [`access`]: keys and usage limits. [`imaging`]: untrusted bytes to pixels. [`registry`]: verified model files.
//! - [`runtime`]: ONNX Runtime sessions, tokenizers, the KV cache.
//! - [`engine`]: bounded queues, micro-batches, continuous batching, on threads of their own.
//! - [`service`]: the use cases. [`http`]: their face. [`config`] and [`cli`]: how it all is put together.
//!
//! A moderation request passes `http` → `service::guardian_text` → `service::text_model` → `engine::batch` →
//! `runtime::classifier` and back to `domain::Threshold`. A generation request passes `http` → `service::prism` → `engine::generate` →
//! `runtime::decoder`, and what comes back is checked by the same text classifier.

pub mod access;
pub mod cli;
pub mod config;
pub mod domain;
pub mod engine;
pub mod http;
pub mod imaging;
pub mod lifecycle;
pub mod registry;
pub mod runtime;
pub mod service;
pub mod telemetry;
