//! Readiness by proof: real work that a model has just done, or else one canary inference; not a flag set at the start.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde::Serialize;
use tokio::{sync::Mutex, time::timeout};

use super::{AnswerJudge, ImageGuardian, Models, ServiceError, TextGuardian, TextReader, Writer};
use crate::{
    domain::{Device, ModelId},
    telemetry::Metrics,
};

/// How long a success counts as proof: probes come often and must cost little, and on a busy server they must not wait
/// in the queues of the very models that prove themselves by the work.
const FRESH: Duration = Duration::from_secs(10);
/// How long a failure is told again: to those who waited for the same canary, not to a prober that comes back. That one
/// acts on a second failure, and is to hear of two.
const BRIEF: Duration = Duration::from_secs(1);
/// Time a canary may take: the first one of a generator computes its prompt prefixes.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long ago a model whose queue is full must have worked to count as busy: no step and no batch takes so long.
const BUSY: Duration = Duration::from_secs(30);
/// Time after which it is not waited for any more. One that was taken up in time may run over, on a slow machine; a model
/// that hangs must not keep the prober waiting, who is to hear of it.
const LONGEST: Duration = Duration::from_mins(2);

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
    pub(super) async fn check(
        &self,
        models: &BTreeMap<ModelId, Models>,
        device: Device,
        metrics: &Metrics,
    ) -> Readiness {
        // Held across the canaries: many probes at once cause one inference.
        let mut last = self.last.lock().await;
        if let Some((at, readiness)) = last.as_ref()
            && at.elapsed() < if readiness.ready { FRESH } else { BRIEF }
        {
            return readiness.clone();
        }
        let parts: Vec<(ModelId, Part<'_>)> =
            models.iter().flat_map(|(&id, models)| Part::of(models).map(move |part| (id, part))).collect();
        // Side by side, so that a model that hangs costs the wait once, and each once, however many identifiers share it.
        let mut distinct: Vec<Part<'_>> = Vec::new();
        for &(_, part) in &parts {
            if !distinct.iter().any(|other| other.is(part)) {
                distinct.push(part);
            }
        }
        let told = |id: ModelId, part: Part<'_>, ready: bool| {
            metrics.ready.with_label_values(&[id.as_str(), part.component()]).set(i64::from(ready));
        };
        // Not until the answer: for one that never comes, the prober does not wait.
        for &(id, part) in parts.iter().filter(|(_, part)| !part.answered_within(FRESH)) {
            told(id, part, false);
        }
        let answers = join_all(distinct.iter().map(|part| part.answers())).await;
        let statuses: Vec<ModelStatus> = parts
            .into_iter()
            .map(|(id, part)| {
                let ready = distinct.iter().zip(&answers).any(|(other, &answers)| answers && other.is(part));
                told(id, part, ready);
                ModelStatus { id, component: part.component(), ready, sha256: part.digest().to_owned(), device }
            })
            .collect();
        let ready = !statuses.is_empty() && statuses.iter().all(|status| status.ready);
        let readiness = Readiness { ready, models: statuses };
        *last = Some((Instant::now(), readiness.clone()));
        readiness
    }
}

/// One running model of an identifier.
#[derive(Clone, Copy)]
enum Part<'a> {
    Generator(&'a Writer),
    Text(&'a TextGuardian),
    Image(&'a ImageGuardian),
    Ocr(&'a TextReader),
    Judge(&'a AnswerJudge),
}

impl<'a> Part<'a> {
    fn of(models: &'a Models) -> impl Iterator<Item = Self> {
        // What tells the light, and what writes other languages, is another identifier's, and has its part there.
        let Models { writer, elsewhere: _, text, image, reader, light: _, judge, situations: _ } = models;
        let parts = [
            writer.as_deref().map(Part::Generator),
            text.as_deref().map(Part::Text),
            image.as_deref().map(Part::Image),
            reader.as_deref().map(Part::Ocr),
            judge.as_deref().map(Part::Judge),
        ];
        parts.into_iter().flatten()
    }

    const fn component(self) -> &'static str {
        match self {
            Self::Generator(_) => "generator",
            Self::Text(_) => "text",
            Self::Image(_) => "image",
            Self::Ocr(_) => "ocr",
            Self::Judge(_) => "judge",
        }
    }

    fn digest(self) -> &'a str {
        match self {
            Self::Generator(model) => model.digest(),
            Self::Text(model) => model.digest(),
            Self::Image(model) => model.digest(),
            Self::Ocr(model) => model.digest(),
            Self::Judge(model) => model.digest(),
        }
    }

    /// Whether both are the same running model.
    fn is(self, other: Part<'_>) -> bool {
        match (self, other) {
            (Self::Generator(one), Part::Generator(other)) => std::ptr::eq(one, other),
            (Self::Text(one), Part::Text(other)) => std::ptr::eq(one, other),
            (Self::Image(one), Part::Image(other)) => std::ptr::eq(one, other),
            (Self::Ocr(one), Part::Ocr(other)) => std::ptr::eq(one, other),
            (Self::Judge(one), Part::Judge(other)) => std::ptr::eq(one, other),
            _ => false,
        }
    }

    fn answered_within(self, span: Duration) -> bool {
        match self {
            Self::Generator(model) => model.answered_within(span),
            Self::Text(model) => model.answered_within(span),
            Self::Image(model) => model.answered_within(span),
            Self::Ocr(model) => model.answered_within(span),
            Self::Judge(model) => model.answered_within(span),
        }
    }

    /// Whether it has answered of late, or does so now.
    async fn answers(self) -> bool {
        if self.answered_within(FRESH) {
            return true;
        }
        let canary = async {
            match self {
                Self::Generator(model) => model.probe(PATIENCE).await,
                Self::Text(model) => model.probe(FRESH, PATIENCE).await,
                Self::Image(model) => model.probe(PATIENCE).await,
                Self::Ocr(model) => model.probe(FRESH, PATIENCE).await,
                Self::Judge(model) => model.probe(PATIENCE).await,
            }
        };
        match timeout(LONGEST, canary).await {
            Ok(Ok(())) => true,
            // A full queue is work, not a fault, as long as it moves.
            Ok(Err(ServiceError::Overloaded { .. })) => self.answered_within(BUSY),
            _ => false,
        }
    }
}

/// Of what came of several canaries the gravest: that one queue is full says nothing of the other models.
pub(super) fn gravest(outcomes: impl IntoIterator<Item = Result<(), ServiceError>>) -> Result<(), ServiceError> {
    let mut refused = Ok(());
    for outcome in outcomes {
        match outcome {
            Err(ServiceError::Overloaded { .. }) => refused = outcome,
            other => other?,
        }
    }
    refused
}
