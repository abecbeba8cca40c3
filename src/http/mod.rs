//! The HTTP face of the service: routes, credentials, limits, bodies, answers, errors, documentation and the
//! playground, and TLS beneath them.
//!
//! Owns everything that is particular to HTTP and translates it to and from the types of `domain`, `access` and
//! `service`; the only importer of axum, utoipa and rustls. Refuses decisions: what a text means is for `service` to
//! say. Runs on the tokio threads.

mod auth;
mod error;
mod extract;
mod fields;
mod health;
mod input;
mod observe;
mod openapi;
mod playground;
mod router;
mod routes;
mod server;
mod tls;

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use utoipa::openapi::OpenApi;

use crate::{
    access::{KeyStore, Limiter},
    lifecycle::Lifecycle,
    service::Services,
    telemetry::{Metrics, Traces},
};

pub use router::router;
pub use server::{ServeOptions, serve};
pub use tls::{Tls, TlsError, TlsReload, Validity};

/// What the router needs from the rest of the program.
#[derive(Clone)]
pub struct App {
    /// The operations.
    pub services: Arc<Services>,
    /// Who may call.
    pub keys: Arc<KeyStore>,
    /// How often.
    pub limiter: Arc<dyn Limiter>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
    /// Where their traces go.
    pub traces: Traces,
    /// Whether the server is stopping.
    pub lifecycle: Lifecycle,
    /// How much of a body is held, and for how long.
    pub bodies: BodyLimits,
    /// Whether `/` serves the playground.
    pub playground: bool,
}

/// Bounds on request bodies while they arrive. Their largest sizes are fixed by the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Time in which a body has to arrive in full.
    pub deadline: Duration,
    /// Bytes of image bodies held at once over all requests; beyond it callers are told to come back.
    pub held_bytes: usize,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30), held_bytes: 256 * 1024 * 1024 }
    }
}

/// [`App`] with what the router adds for itself; the state of every handler.
struct Shared {
    app: App,
    /// One permit for each [`extract::GRAIN_BYTES`] of body that may be held.
    body_room: Arc<Semaphore>,
    document: OpenApi,
}

type SharedState = Arc<Shared>;

impl Shared {
    fn new(app: App, document: OpenApi) -> SharedState {
        let grains = (app.bodies.held_bytes / extract::GRAIN_BYTES).min(Semaphore::MAX_PERMITS);
        Arc::new(Self { body_room: Arc::new(Semaphore::new(grains)), app, document })
    }
}
