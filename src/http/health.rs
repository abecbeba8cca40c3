//! Probes and metrics: what an orchestrator asks.
//!
//! Owns `/livez`, `/readyz` and `/metrics`, which are public. Refuses to be counted as work: no key, no limit. Runs
//! on the tokio threads.

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Json},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    SharedState,
    error::{ApiError, ErrorBody},
};
use crate::service::{ModelStatus, Readiness};

/// That the server answers at all.
#[derive(Serialize, ToSchema)]
pub(super) struct Liveness {
    /// Always `alive`: a server that is not does not answer.
    #[schema(example = "alive")]
    status: &'static str,
}

/// Whether requests should be sent here.
#[derive(Serialize, ToSchema)]
pub(super) struct ReadinessReport {
    status: ReadinessStatus,
    /// The loaded models, one row a component.
    models: Vec<ModelReport>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ReadinessStatus {
    Ready,
    NotReady,
    Stopping,
}

/// One loaded model.
#[derive(Serialize, ToSchema)]
struct ModelReport {
    /// The identifier that requests name.
    #[schema(example = "alpha-4o-mini")]
    id: &'static str,
    /// `generator`, `text`, `image`, `ocr` or `judge`.
    #[schema(example = "text")]
    component: &'static str,
    /// Whether it has answered within the last seconds, a request or a canary inference.
    ready: bool,
    /// The hash of the model's manifest, which holds those of its files.
    sha256: String,
    /// What it computes on: `cpu`, or `cuda`, a GPU.
    #[schema(example = "cpu")]
    device: &'static str,
}

impl From<ModelStatus> for ModelReport {
    fn from(ModelStatus { id, component, ready, sha256, device }: ModelStatus) -> Self {
        Self { id: id.as_str(), component, ready, sha256, device: device.as_str() }
    }
}

/// Answers while the event loop turns.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "server",
    summary = "Is the server alive?",
    responses((status = 200, description = "The server answers.", body = Liveness)),
    security(()),
)]
pub(super) async fn livez() -> Json<Liveness> {
    Json(Liveness { status: "alive" })
}

/// Ready means: every installed model is loaded and has just answered a request or a canary inference, and the server is not
/// stopping.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "server",
    summary = "Should requests be sent here?",
    responses(
        (status = 200, description = "Requests are welcome.", body = ReadinessReport),
        (status = 503, description = "Not yet, or no longer.", body = ReadinessReport),
    ),
    security(()),
)]
pub(super) async fn readyz(State(shared): State<SharedState>) -> (StatusCode, Json<ReadinessReport>) {
    let Readiness { ready, models } = shared.app.services.readiness().await;
    let status = match (shared.app.lifecycle.stopping(), ready) {
        (true, _) => ReadinessStatus::Stopping,
        (false, true) => ReadinessStatus::Ready,
        (false, false) => ReadinessStatus::NotReady,
    };
    let code = match status {
        ReadinessStatus::Ready => StatusCode::OK,
        ReadinessStatus::NotReady | ReadinessStatus::Stopping => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(ReadinessReport { status, models: models.into_iter().map(ModelReport::from).collect() }))
}

/// In the text format 0.0.4 of Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "server",
    summary = "Metrics",
    responses(
        (status = 200, description = "All series.", body = String, content_type = "text/plain; version=0.0.4"),
        (status = 500, description = "Internal Server Error", body = ErrorBody),
    ),
    security(()),
)]
pub(super) async fn metrics(State(shared): State<SharedState>) -> Result<impl IntoResponse, ApiError> {
    let text = shared.app.metrics.render().map_err(|error| {
        tracing::error!(%error, "metrics could not be written");
        ApiError::Internal
    })?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}
