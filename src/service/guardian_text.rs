//! Text moderation: every window of a text, the highest score a category wins.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ServiceError;
use crate::{
    domain::{Expressibility, Scores},
    engine::Batcher,
    runtime::{TextOutput, Window, WindowTokenizer},
    telemetry::Metrics,
};

/// A text classifier behind its batcher.
pub struct TextGuardian {
    tokenizer: WindowTokenizer,
    batcher: Batcher<Window, TextOutput>,
    special_threshold: f32,
    digest: String,
    metrics: Arc<Metrics>,
}

/// What the classifier says of a whole text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judgement {
    pub(super) scores: Scores,
    pub(super) expressibility: Expressibility,
}

impl TextGuardian {
    /// `special_threshold` and `digest` come from the bundle that tokenizer and batcher were made from.
    pub fn new(
        tokenizer: WindowTokenizer,
        batcher: Batcher<Window, TextOutput>,
        special_threshold: f32,
        digest: String,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { tokenizer, batcher, special_threshold, digest, metrics }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Classifies a word: proof that the model answers.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        self.judge("ready".into(), Instant::now() + time).await.map(drop)
    }

    /// Classifies a text of any length.
    pub(super) async fn judge(&self, text: String, deadline: Instant) -> Result<Judgement, ServiceError> {
        let mut judgements = self.judge_all(vec![text], deadline).await?;
        judgements.pop().ok_or(ServiceError::Internal)
    }

    /// Classifies several texts in one submission.
    pub(super) async fn judge_all(
        &self,
        texts: Vec<String>,
        deadline: Instant,
    ) -> Result<Vec<Judgement>, ServiceError> {
        let mut windows = Vec::new();
        let mut counts = Vec::with_capacity(texts.len());
        let timer = self.metrics.tokenization_seconds.start_timer();
        for text in &texts {
            let tokens = self.tokenizer.encode(text).map_err(|error| {
                tracing::error!(%error, "a text could not be tokenised");
                ServiceError::Internal
            })?;
            counts.push(tokens.windows.len());
            windows.extend(tokens.windows);
        }
        timer.observe_duration();
        let outputs = self.batcher.submit(windows, deadline).await?;
        let mut rest = outputs.as_slice();
        counts
            .into_iter()
            .map(|count| {
                let (mine, others) = rest.split_at_checked(count).ok_or(ServiceError::Internal)?;
                rest = others;
                Ok(self.combine(mine))
            })
            .collect()
    }

    fn combine(&self, windows: &[TextOutput]) -> Judgement {
        let scores = windows.iter().map(|window| Scores::new(window.harm)).fold(Scores::default(), Scores::max);
        // One ordinary window makes the whole text expressible.
        let plainest = windows
            .iter()
            .map(|window| window.expressibility)
            .max_by(|a, b| a[0].total_cmp(&b[0]))
            .unwrap_or([1.0, 0.0, 0.0, 0.0, 0.0]);
        Judgement { scores, expressibility: Expressibility::decide(plainest, self.special_threshold) }
    }
}
