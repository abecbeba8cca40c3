//! Text moderation: every window of a text, as written and as it reads, and the highest score of a category wins.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use super::{
    RETRY_AFTER, ScoreCache, ServiceError, in_portions,
    pool::{Task, on_pool},
};
use crate::{
    domain::{Expressibility, Scores},
    engine::{Batcher, Calibrated},
    runtime::{TextOutput, TextTokens, Window, WindowTokenizer},
    telemetry::Metrics,
};

/// Bytes of text that are tokenised where they are: it takes less time than handing them over. The longest input, 32
/// times the length of a single text, would hold up an async thread.
const INLINE_BYTES: usize = 4096;

/// Requests with longer texts that may be tokenised or wait for it.
const LONG_TEXTS: usize = 32;

/// A text classifier behind its batcher.
pub struct TextGuardian {
    tokenizer: Arc<WindowTokenizer>,
    long_texts: Arc<Semaphore>,
    batcher: Batcher<Window, TextOutput>,
    special_threshold: f32,
    digest: String,
    metrics: Arc<Metrics>,
    cache: Option<ScoreCache>,
}

/// What the classifier says of a whole text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judgement {
    pub(super) scores: Scores,
    pub(super) expressibility: Expressibility,
    /// Probability that the text is said in a positive light, by its first window; none where no model tells.
    pub(super) positive: Option<f32>,
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
        let long_texts = Arc::new(Semaphore::new(LONG_TEXTS));
        Self { tokenizer: Arc::new(tokenizer), long_texts, batcher, special_threshold, digest, metrics, cache: None }
    }

    /// The same, which answers texts that were judged a moment ago from memory.
    #[must_use]
    pub fn with_cache(self, cache: ScoreCache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Classifies a word: proof that the model answers, which a remembered answer would not be.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        self.classify(vec!["ready".into()], Instant::now() + time).await.map(drop)
    }

    /// Chooses the token budget of a batch by measurement; none where there was nothing to choose by.
    pub(super) async fn calibrate(&self) -> Option<Calibrated> {
        let tokenizer = Arc::clone(&self.tokenizer);
        self.batcher.calibrate(self.tokenizer.window(), move |tokens| tokenizer.filler(tokens)).await
    }

    pub(super) fn forget_expired(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_expired();
        }
    }

    /// Classifies a text of any length.
    pub(super) async fn judge(&self, text: String, deadline: Instant) -> Result<Judgement, ServiceError> {
        let mut judgements = self.judge_all(vec![text], deadline).await?;
        judgements.pop().ok_or(ServiceError::Internal)
    }

    /// Classifies several texts, those that are remembered without an inference.
    pub(super) async fn judge_all(
        &self,
        texts: Vec<String>,
        deadline: Instant,
    ) -> Result<Vec<Judgement>, ServiceError> {
        match &self.cache {
            Some(cache) => cache.judge(&texts, |texts| self.classify(texts, deadline)).await,
            None => self.classify(texts, deadline).await,
        }
    }

    /// Runs the classifier over several texts, their windows side by side.
    async fn classify(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Judgement>, ServiceError> {
        let mut windows = Vec::new();
        let mut counts = Vec::with_capacity(texts.len());
        for tokens in self.tokens(texts).await? {
            counts.push((tokens.raw.len(), tokens.normalised.len()));
            windows.extend(tokens.raw.into_iter().chain(tokens.normalised));
        }
        let outputs = in_portions(&self.batcher, windows, deadline).await?;
        let mut rest = outputs.as_slice();
        counts
            .into_iter()
            .map(|(raw, normalised)| {
                let (mine, others) = rest.split_at_checked(raw + normalised).ok_or(ServiceError::Internal)?;
                rest = others;
                Ok(self.combine(mine, raw))
            })
            .collect()
    }

    /// The tokens of each text.
    async fn tokens(&self, texts: Vec<String>) -> Result<Vec<TextTokens>, ServiceError> {
        if texts.iter().map(String::len).sum::<usize>() <= INLINE_BYTES {
            return encode(&self.tokenizer, &texts, &self.metrics);
        }
        let permit = Arc::clone(&self.long_texts).try_acquire_owned();
        let permit = permit.map_err(|_| ServiceError::Overloaded { retry_after: RETRY_AFTER })?;
        let (tokenizer, metrics) = (Arc::clone(&self.tokenizer), Arc::clone(&self.metrics));
        let tokens = on_pool(Task::Text, &self.metrics, move || {
            let _permit = permit;
            encode(&tokenizer, &texts, &metrics)
        });
        tokens.await?
    }

    /// Of `windows` the first `raw` are of the text as it was written: only these say what kind of text it is, as a
    /// row of signs that is spelled out looks like a sentence.
    fn combine(&self, windows: &[TextOutput], raw: usize) -> Judgement {
        let scores = windows.iter().map(|window| Scores::new(window.harm)).fold(Scores::default(), Scores::max);
        // One ordinary window makes the whole text expressible.
        let plainest = windows
            .iter()
            .take(raw)
            .map(|window| window.expressibility)
            .max_by(|a, b| a[0].total_cmp(&b[0]))
            .unwrap_or([1.0, 0.0, 0.0, 0.0, 0.0]);
        Judgement {
            scores,
            expressibility: Expressibility::decide(plainest, self.special_threshold),
            positive: windows.first().and_then(|window| window.positive),
        }
    }
}

fn encode(tokenizer: &WindowTokenizer, texts: &[String], metrics: &Metrics) -> Result<Vec<TextTokens>, ServiceError> {
    let timer = metrics.tokenization_seconds.start_timer();
    let tokens = texts.iter().map(|text| tokenizer.encode(text)).collect::<Result<_, _>>().map_err(|error| {
        tracing::error!(%error, "a text could not be tokenised");
        ServiceError::Internal
    });
    timer.observe_duration();
    tokens
}
