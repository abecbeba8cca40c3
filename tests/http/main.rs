//! The interface, driven through the real router: every rule of the specification and of the decisions it left open.
//!
//! Models are replaced by doubles at the `Forward` and `Decode` seams; everything above them is what ships.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, also inside a helper")]

mod bodies;
mod cache;
mod company;
#[path = "../corpus/mod.rs"]
mod corpus;
mod credentials;
mod documentation;
mod errors;
mod guardians;
mod health;
mod limits;
mod logs;
mod moderations;
mod playground;
mod prisms;
mod properties;
mod serving;
mod sunshines;
mod support;
mod tls;
mod traces;
