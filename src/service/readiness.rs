//! Readiness by proof: real work that a model has just done, or else one canary inference; not a flag set at the start.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::Mutex;

use super::{Models, ServiceError};
use crate::domain::{Device, ModelId};

/// How long a success counts as proof: probes come often and must cost little, and on a busy server they must not wait
/// in the queues of the very models that prove themselves by the work.
const FRESH: Duration = Duration::from_secs(10);
/// Time a canary may take: the first one of a generator computes its prompt prefixes.
const PATIENCE: Duration = Duration::from_mins(1);

/// The state of every installed model.
#[derive(Clone, Debug, Serialize)]
pub struct Readiness {
    /// Whether all of them answer and there is at least one.
    pub ready: bool,
    /// One entry for every component of every identifier.
    pub models: Vec<ModelStatus>,
}

/// The state of one component.
#[derive(Clone, Debug, Serialize)]
pub struct ModelStatus {
    /// The identifier.
    pub id: ModelId,
    /// `generator`, `text`, `image` or `ocr`.
    pub component: &'static str,
    /// Whether it has answered of late.
    pub ready: bool,
    /// SHA-256 of its manifest.
    pub sha256: String,
    /// What it computes on.
    pub device: Device,
}

/// The last result and when it was found.
#[derive(Default)]
pub(super) struct Probe {
    last: Mutex<Option<(Instant, Readiness)>>,
}

impl Probe {
    pub(super) async fn check(&self, models: &BTreeMap<ModelId, Models>, device: Device) -> Readiness {
        // Held across the canaries: many probes at once cause one inference.
        let mut last = self.last.lock().await;
        if let Some((at, readiness)) = last.as_ref()
            && at.elapsed() < FRESH
        {
            return readiness.clone();
        }
        let mut statuses = Vec::new();
        for (&id, models) in models {
            let status = |component, digest: &str, answer: Result<(), ServiceError>| ModelStatus {
                id,
                component,
                // A full queue is work, not a fault.
                ready: matches!(answer, Ok(()) | Err(ServiceError::Overloaded { .. })),
                sha256: digest.to_owned(),
                device,
            };
            if let Some(writer) = &models.writer {
                let answer = if writer.answered_within(FRESH) { Ok(()) } else { writer.probe(PATIENCE).await };
                statuses.push(status("generator", writer.digest(), answer));
            }
            if let Some(text) = &models.text {
                let answer = if text.answered_within(FRESH) { Ok(()) } else { text.probe(PATIENCE).await };
                statuses.push(status("text", text.digest(), answer));
            }
            if let Some(image) = &models.image {
                let answer = if image.answered_within(FRESH) { Ok(()) } else { image.probe(PATIENCE).await };
                statuses.push(status("image", image.digest(), answer));
            }
            if let Some(reader) = &models.reader {
                let answer = if reader.answered_within(FRESH) { Ok(()) } else { reader.probe(PATIENCE).await };
                statuses.push(status("ocr", reader.digest(), answer));
            }
        }
        let ready = !statuses.is_empty() && statuses.iter().all(|status| status.ready);
        let readiness = Readiness { ready, models: statuses };
        *last = Some((Instant::now(), readiness.clone()));
        readiness
    }
}
