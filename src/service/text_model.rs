//! One text classifier behind its batcher: a whole text in, what the network says of it out.
//!
//! Owns windows and how they are put together. What is answered to whom, and together with whom, is the guardian's. Refuses
//! more long texts than it can work on. Runs on the async threads; long texts are tokenised on the rayon pool.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::{
    RETRY_AFTER, ServiceError, in_portions,
    pool::{Task, on_pool},
};
use crate::{
    domain::Expressibility,
    engine::{Batcher, Calibrated},
    registry::manifest::{Languages, TextClassifierSpec},
    runtime::{TextOutput, TextTokens, Window, WindowTokenizer},
    telemetry::Metrics,
};

/// Bytes of text that are worked on where they are: it takes less time than handing them over. The longest input, 32
/// times the length of a single text, would hold up an async thread.
pub(super) const INLINE_BYTES: usize = 4096;

/// Requests with longer texts that may be tokenised or wait for it.
const LONG_TEXTS: usize = 32;

/// A text classifier behind its batcher. Several guardians may stand on one.
pub struct TextModel {
    name: String,
    tokenizer: Arc<WindowTokenizer>,
    long_texts: Arc<Semaphore>,
    batcher: Batcher<Window, TextOutput>,
    languages: Languages,
    special_threshold: Option<f32>,
    /// Whether it has the head that tells the light of a text: a classifier with labels has none.
    tells_light: bool,
    /// Held through a canary: several guardians may want one at once.
    probing: Mutex<()>,
    metrics: Arc<Metrics>,
}

/// What it says of a whole text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Opinion {
    /// Calibrated probabilities in the order of `Category::ALL`.
    pub(super) harm: [f32; 5],
    /// How far it holds that nothing can be expressed ([`Expressibility::lean`]); none where no head tells.
    pub(super) lean: Option<f32>,
    /// Probability that the text is said in a positive light, by its first window; none where no head tells.
    pub(super) positive: Option<f32>,
}

impl TextModel {
    /// `tokenizer` and `batcher` are made from the bundle that `spec` is of; `name` is that of its metrics.
    pub fn new(
        name: String,
        tokenizer: WindowTokenizer,
        batcher: Batcher<Window, TextOutput>,
        spec: &TextClassifierSpec,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            name,
            tokenizer: Arc::new(tokenizer),
            long_texts: Arc::new(Semaphore::new(LONG_TEXTS)),
            batcher,
            languages: spec.languages,
            special_threshold: spec.expressibility.as_ref().map(|head| head.threshold),
            tells_light: spec.labels.is_none(),
            probing: Mutex::default(),
            metrics,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it reads a text, given whether that is in English.
    pub(super) fn reads(&self, english: bool) -> bool {
        self.languages.include(english)
    }

    pub(super) fn tells_light(&self) -> bool {
        self.tells_light
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Classifies a word, unless it has just worked: proof that the model answers.
    pub(super) async fn probe(&self, fresh: Duration, time: Duration) -> Result<(), ServiceError> {
        let _one = self.probing.lock().await;
        if self.answered_within(fresh) {
            return Ok(());
        }
        self.opinions(vec!["ready".into()], Instant::now() + time).await.map(drop)
    }

    /// Chooses the token budget of a batch by measurement; none where there was nothing to choose by.
    pub(super) async fn calibrate(&self) -> Option<Calibrated> {
        let tokenizer = Arc::clone(&self.tokenizer);
        self.batcher.calibrate(self.tokenizer.window(), move |tokens| tokenizer.filler(tokens)).await
    }

    /// What it says of several texts, their windows side by side.
    pub(super) async fn opinions(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Opinion>, ServiceError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
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

    /// Leave to work on long texts.
    pub(super) fn leave_for_long(&self) -> Result<OwnedSemaphorePermit, ServiceError> {
        let permit = Arc::clone(&self.long_texts).try_acquire_owned();
        permit.map_err(|_| ServiceError::Overloaded { retry_after: RETRY_AFTER })
    }

    /// The tokens of each text.
    async fn tokens(&self, texts: Vec<String>) -> Result<Vec<TextTokens>, ServiceError> {
        if texts.iter().map(String::len).sum::<usize>() <= INLINE_BYTES {
            return encode(&self.tokenizer, &texts, &self.metrics);
        }
        let permit = self.leave_for_long()?;
        let (tokenizer, metrics) = (Arc::clone(&self.tokenizer), Arc::clone(&self.metrics));
        let tokens = on_pool(Task::Text, &self.metrics, move || {
            let _permit = permit;
            encode(&tokenizer, &texts, &metrics)
        });
        tokens.await?
    }

    /// Of `windows` the first `raw` are of the text as it was written: only these say what kind of text it is, as a
    /// row of signs that is spelled out looks like a sentence.
    fn combine(&self, windows: &[TextOutput], raw: usize) -> Opinion {
        let mut harm = [0.0; 5];
        for window in windows {
            for (highest, p) in harm.iter_mut().zip(window.harm) {
                // What is not a number stays, and counts as found.
                if p > *highest || p.is_nan() {
                    *highest = p;
                }
            }
        }
        // One ordinary window makes the whole text expressible.
        let plainest = windows
            .iter()
            .take(raw)
            .map(|window| window.expressibility)
            .max_by(|a, b| a[0].total_cmp(&b[0]))
            .unwrap_or([1.0, 0.0, 0.0, 0.0, 0.0]);
        Opinion {
            harm,
            lean: self.special_threshold.map(|threshold| Expressibility::lean(plainest, threshold)),
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
