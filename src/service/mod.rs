//! The use cases: what each operation does with the models of an identifier.
//!
//! The only composer of engines. Refuses HTTP. Runs on the async threads; everything heavy is handed to engine
//! threads or to the rayon pool, and dropping a call's future takes its work out of every queue.

mod guardian_image;
mod guardian_text;
mod judge;
mod language;
mod manners;
mod moderation;
mod pool;
mod prism;
mod quality;
mod readiness;
mod reading;
mod score_cache;
mod sunshine;
mod text_model;
mod writer;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use guardian_image::ImageGuardian;
pub use guardian_text::{Beside, Company, TextGuardian};
pub use judge::AnswerJudge;
pub use readiness::{ModelStatus, Readiness};
pub use reading::{PageText, ReaderStages, TextReader};
pub use score_cache::{ScoreCache, ScoreCacheOptions};
pub use text_model::TextModel;
pub use writer::Writer;

use crate::{
    domain::{
        Category, Device, Finding, ImageBytes, ModelId, ModerationInput, Operation, Prism, Threshold, ValidText,
        Verdict,
    },
    engine::{Batcher, EngineError},
    imaging::ImageError,
    telemetry::{Metrics, record},
};

/// Why an operation gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The identifier has no model for this operation on this machine.
    #[error("no model is installed for this operation")]
    ModelNotInstalled,
    /// A queue is full.
    #[error("the queue is full")]
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The request's time ran out.
    #[error("the deadline passed")]
    Deadline,
    /// The server is being stopped.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Every generated candidate was flagged or empty.
    #[error("no generated answer passed the checks")]
    GenerationRejected,
    /// The bytes are no picture of a known format.
    #[error("the picture's format is not supported")]
    UnsupportedImage,
    /// The picture exceeds a limit.
    #[error("the picture is too large")]
    ImageTooLarge,
    /// The picture is damaged.
    #[error("the picture is damaged")]
    CorruptImage,
    /// A model failed.
    #[error("inference failed")]
    Internal,
}

impl From<EngineError> for ServiceError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => Self::Overloaded { retry_after: RETRY_AFTER },
            EngineError::Deadline => Self::Deadline,
            EngineError::ShuttingDown => Self::ShuttingDown,
            EngineError::Failed => Self::Internal,
        }
    }
}

impl From<ImageError> for ServiceError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Unsupported => Self::UnsupportedImage,
            ImageError::TooLarge => Self::ImageTooLarge,
            ImageError::Corrupt => Self::CorruptImage,
        }
    }
}

/// A queue of this server drains within about a second.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a text classifier that is measured may wait for moments in which nothing else is asked of it.
const CALIBRATION: Duration = Duration::from_mins(1);

/// The models behind one identifier. What is absent answers [`ServiceError::ModelNotInstalled`].
#[derive(Clone, Default)]
pub struct Models {
    /// Writes expressions and replies.
    pub writer: Option<Arc<Writer>>,
    /// Writes them instead where `writer` was not taught the language of the text: the writer of another identifier.
    pub elsewhere: Option<Arc<Writer>>,
    /// Moderates texts, and guards what the writer writes.
    pub text: Option<Arc<TextGuardian>>,
    /// Moderates pictures by what they show.
    pub image: Option<Arc<ImageGuardian>>,
    /// Reads the text in pictures, which the text classifier then judges.
    pub reader: Option<Arc<TextReader>>,
    /// Tells the light of expressions where `text` has no head for it: the text classifier of another identifier with
    /// the same writer.
    pub light: Option<Arc<TextGuardian>>,
    /// Tells right answers of the writer from wrong ones, or what people wrote for a text, or both.
    pub judge: Option<Arc<AnswerJudge>>,
    /// Tell what people wrote for a text, the best one first: not all read every language.
    pub situations: Vec<Arc<AnswerJudge>>,
}

/// Bounds of the use cases.
#[derive(Clone, Copy, Debug)]
pub struct ServiceOptions {
    /// Time a request may take.
    pub timeout: Duration,
    /// Pictures that may be decoded or wait for it.
    pub image_queue: usize,
    /// What the models compute on.
    pub device: Device,
}

/// Everything that handlers see.
pub struct Services {
    models: BTreeMap<ModelId, Models>,
    options: ServiceOptions,
    metrics: Arc<Metrics>,
    image_permits: Arc<Semaphore>,
    readiness: readiness::Probe,
}

impl Services {
    /// Puts the use cases over the given models.
    pub fn new(models: BTreeMap<ModelId, Models>, options: ServiceOptions, metrics: Arc<Metrics>) -> Self {
        // At 0 from the start, as `Metrics` does with what it can name itself.
        for operation in [Operation::GuardianText, Operation::GuardianImage, Operation::Moderation] {
            for category in Category::ALL {
                metrics.flagged.with_label_values(&[operation.as_str(), category.as_str()]);
            }
        }
        for reason in quality::FAILURES {
            metrics.regenerated.with_label_values(&[reason]);
        }
        for task in writer::Task::ALL {
            metrics.beforehand.with_label_values(&[task.as_str()]);
        }
        Self {
            models,
            image_permits: Arc::new(Semaphore::new(options.image_queue)),
            options,
            metrics,
            readiness: readiness::Probe::default(),
        }
    }

    /// One positive and one negative expression of a text.
    ///
    /// # Errors
    /// [`ServiceError`]
    pub async fn prism(&self, model: ModelId, text: ValidText) -> Result<Prism, ServiceError> {
        let desk = self.desk(model, &text)?;
        self.timed(|deadline| prism::express(desk, text, deadline)).await
    }

    /// One short encouraging reply to a text.
    ///
    /// # Errors
    /// [`ServiceError`]
    pub async fn sunshine(&self, model: ModelId, text: ValidText) -> Result<String, ServiceError> {
        let desk = self.desk(model, &text)?;
        self.timed(|deadline| sunshine::reply(desk, text, deadline)).await
    }

    /// Moderates a text.
    ///
    /// # Errors
    /// [`ServiceError`]
    pub async fn guard_text(
        &self,
        model: ModelId,
        text: ValidText,
        threshold: Threshold,
    ) -> Result<Verdict, ServiceError> {
        let guardian = self.models(model).text.as_ref().ok_or(ServiceError::ModelNotInstalled)?;
        let judgement = self.timed(|deadline| guardian.judge(text.as_str().to_owned(), deadline)).await?;
        Ok(self.verdict(Operation::GuardianText, threshold.judge(judgement.scores)))
    }

    /// Moderates a picture.
    ///
    /// # Errors
    /// [`ServiceError`]
    pub async fn guard_image(
        &self,
        model: ModelId,
        image: ImageBytes,
        threshold: Threshold,
    ) -> Result<Verdict, ServiceError> {
        let models = self.models(model);
        let permit = image_permit(&self.image_permits)?;
        let judge = |deadline| guardian_image::judge(models, image, permit, &self.metrics, deadline);
        let judged = self.timed(judge).await?;
        Ok(self.verdict(Operation::GuardianImage, threshold.judge(judged.scores())))
    }

    /// Moderates texts and pictures together, all under one deadline: a finding for each part, or one for the whole.
    ///
    /// # Errors
    /// [`ServiceError`]; one part that cannot be judged fails the request.
    pub async fn moderate(
        &self,
        model: ModelId,
        input: ModerationInput,
        threshold: Threshold,
    ) -> Result<Vec<Finding>, ServiceError> {
        let (parts, grouping) = input.into_parts();
        let models = self.models(model);
        let (places, metrics) = (&self.image_permits, &*self.metrics);
        let scored = self.timed(|deadline| moderation::score(models, parts, places, metrics, deadline)).await?;
        let findings = grouping.findings(&scored, threshold);
        for finding in &findings {
            self.verdict(Operation::Moderation, finding.verdict());
        }
        Ok(findings)
    }

    /// Whether every installed model answers, by work or a canary inference that is at most a few seconds old.
    pub async fn readiness(&self) -> Readiness {
        self.readiness.check(&self.models, self.options.device, &self.metrics).await
    }

    /// Measures each text classifier, one after the other and only while nothing waits for it, and has it take batches
    /// of the size that suits this machine. One that is never idle holds up the others for [`CALIBRATION`] at most.
    pub async fn calibrate(&self) {
        let mut seen: Vec<&Arc<TextModel>> = Vec::new();
        for guardian in self.guardians() {
            for model in guardian.models() {
                let name = model.name();
                if seen.iter().any(|other| Arc::ptr_eq(other, model)) {
                    continue;
                }
                seen.push(model);
                if let Ok(Some(found)) = tokio::time::timeout(CALIBRATION, model.calibrate()).await {
                    tracing::info!(name, tokens = found.budget, measured = %found, "batch size chosen");
                } else {
                    tracing::warn!(name, "the batch size could not be measured and stays as it is");
                }
            }
        }
    }

    /// Lets go of moderation scores that are too old to be given out again.
    pub fn forget_expired(&self) {
        for guardian in self.guardians() {
            guardian.forget_expired();
        }
    }

    fn guardians(&self) -> impl Iterator<Item = &Arc<TextGuardian>> {
        self.models.values().filter_map(|models| models.text.as_ref())
    }

    fn models(&self, id: ModelId) -> &Models {
        const NONE: &Models = &Models {
            writer: None,
            elsewhere: None,
            text: None,
            image: None,
            reader: None,
            light: None,
            judge: None,
            situations: Vec::new(),
        };
        self.models.get(&id).unwrap_or(NONE)
    }

    fn desk(&self, id: ModelId, text: &ValidText) -> Result<prism::Desk<'_>, ServiceError> {
        let models = self.models(id);
        let (Some(writer), Some(guardian)) = (&models.writer, &models.text) else {
            return Err(ServiceError::ModelNotInstalled);
        };
        let taught = || writer.writes(language::is_answered_in_english(text.as_str()));
        let writer = models.elsewhere.as_ref().filter(|_| !taught()).unwrap_or(writer);
        let (light, judge) = (models.light.as_deref(), models.judge.as_deref().filter(|judge| judge.tells_verdicts()));
        let english = language::is_answered_in_english(text.as_str());
        let situations = models.situations.iter().map(|judge| &**judge).find(|judge| judge.tells_situations(english));
        Ok(prism::Desk { writer, guardian, light, judge, situations, metrics: &self.metrics })
    }

    /// Runs a use case under the request's deadline. The engines honour it too; this holds for what lies between.
    async fn timed<T, F: Future<Output = Result<T, ServiceError>>>(
        &self,
        work: impl FnOnce(Instant) -> F,
    ) -> Result<T, ServiceError> {
        let deadline = Instant::now() + self.options.timeout;
        tokio::time::timeout_at(deadline.into(), work(deadline)).await.unwrap_or(Err(ServiceError::Deadline))
    }

    fn verdict(&self, operation: Operation, verdict: Verdict) -> Verdict {
        let found = Category::ALL.into_iter().filter(|category| verdict.found(*category));
        let found: Vec<&'static str> = found.map(Category::as_str).collect();
        for category in &found {
            self.metrics.flagged.with_label_values(&[operation.as_str(), category]).inc();
        }
        record::judged(&found);
        verdict
    }
}

/// Leave for a picture to be decoded or to wait for it.
fn image_permit(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ServiceError> {
    let permit = Arc::clone(places).try_acquire_owned();
    permit.map_err(|_| ServiceError::Overloaded { retry_after: RETRY_AFTER })
}

/// Most items of one request in a queue at once: a few batches. The next follow when these are answered, so that
/// nothing is too long for the queue, and a short request does not wait behind the whole of a long one.
const PORTION: usize = 64;

/// Runs all inputs, a portion at a time. Only the first can be refused for want of room: of each request that was let in
/// one portion at most waits beyond the queue's bound.
async fn in_portions<I: Send + 'static, O: Send + 'static>(
    batcher: &Batcher<I, O>,
    inputs: Vec<I>,
    deadline: Instant,
) -> Result<Vec<O>, ServiceError> {
    let portion = PORTION.min(batcher.capacity()).max(1);
    let mut outputs = Vec::with_capacity(inputs.len());
    let mut inputs = inputs.into_iter();
    while inputs.len() > 0 {
        let next = inputs.by_ref().take(portion).collect();
        let answers =
            if outputs.is_empty() { batcher.submit(next, deadline).await } else { batcher.go_on(next, deadline).await };
        outputs.extend(answers?);
    }
    Ok(outputs)
}
