//! The judge of answers behind its batcher: a text and what was written of it in, how right that is out; of a text alone,
//! what people wrote for it: attitudes and replies that fit, and replies that name what it speaks of.
//!
//! Owns of which texts answers are judged: those in a language of which it has learned. What follows from a verdict is for
//! whoever checks answers. Runs on the async threads; a text and an answer are short enough to be tokenised there.

use std::time::{Duration, Instant};

use super::{ServiceError, in_portions, language, writer::Task};
use crate::{
    domain::{Expressibility, Kind, Language, Moods, Polarity, Situations},
    engine::Batcher,
    registry::manifest::{AnswerJudgeSpec, Languages},
    runtime::{JudgeTokenizer, RuntimeError, Said, Window},
};

/// The share of the special classes from which the judge holds a text for one: its head was fitted to that.
const SPECIAL: f32 = 0.5;

/// Tells right answers from wrong ones, and what can be expressed from what cannot. Several identifiers may stand on one.
pub struct AnswerJudge {
    tokenizer: JudgeTokenizer,
    batcher: Batcher<Window, Said>,
    languages: Languages,
    /// Whether it has the head that judges answers.
    tells_verdicts: bool,
    situations: Option<Situations>,
    digest: String,
}

/// What it says of a text and of answers to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opinion {
    pub(super) moods: Moods,
    /// How likely a reader finds each answer right, in order.
    pub(super) right: Vec<f64>,
}

impl AnswerJudge {
    /// `tokenizer` and `batcher` are made from the bundle of this digest that `spec` is of, `situations` is what that has to
    /// say of them.
    pub fn new(
        tokenizer: JudgeTokenizer,
        batcher: Batcher<Window, Said>,
        spec: &AnswerJudgeSpec,
        situations: Option<Situations>,
        digest: String,
    ) -> Self {
        let (languages, tells_verdicts) = (spec.languages, spec.verdicts.is_some());
        Self { tokenizer, batcher, languages, tells_verdicts, situations, digest }
    }

    /// Whether it judges answers.
    pub(super) fn tells_verdicts(&self) -> bool {
        self.tells_verdicts
    }

    /// Whether it tells what people wrote for a text, given whether that is in English.
    pub fn tells_situations(&self, english: bool) -> bool {
        self.situations.is_some() && self.languages.include(english)
    }

    /// The replies that people wrote, in this language, for the situation that a text tells of, and that name what it speaks of;
    /// none where the situation is unsure.
    pub(super) async fn naming(
        &self,
        text: &str,
        language: Language,
        deadline: Instant,
    ) -> Result<Vec<&str>, ServiceError> {
        let Some(situations) = self.situations.as_ref().filter(|situations| situations.has_replies(language)) else {
            return Ok(Vec::new());
        };
        let Some(found) = self.alone(text, deadline).await?.situation else { return Ok(Vec::new()) };
        Ok(situations.replies(language, found, text))
    }

    /// Up to `most` sentences of each kind, in this language, with how likely each fits a text, the likeliest first; none where
    /// there are none of a kind in the language.
    pub(super) async fn fitting<const KINDS: usize>(
        &self,
        text: &str,
        language: Language,
        kinds: [Kind; KINDS],
        most: usize,
        deadline: Instant,
    ) -> Result<Option<[Vec<(&str, f32)>; KINDS]>, ServiceError> {
        let attitudes = self.situations.as_ref().and_then(|situations| situations.attitudes(language));
        let Some(attitudes) = attitudes.filter(|attitudes| kinds.iter().all(|&kind| attitudes.has(kind))) else {
            return Ok(None);
        };
        let Some(probabilities) = self.alone(text, deadline).await?.attitudes else { return Ok(None) };
        Ok(Some(kinds.map(|kind| attitudes.likeliest(&probabilities, kind, most))))
    }

    /// What it says of a text without an answer.
    async fn alone(&self, text: &str, deadline: Instant) -> Result<Said, ServiceError> {
        let alone = self.tokenizer.text(text).map_err(|error| broken(&error))?;
        in_portions(&self.batcher, vec![alone], deadline).await?.pop().ok_or(ServiceError::Internal)
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Judges a word: proof that the model answers.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        let word = self.tokenizer.text("ready").map_err(|error| broken(&error))?;
        self.batcher.submit(vec![word], Instant::now() + time).await?;
        Ok(())
    }

    /// How far it holds that nothing can be expressed of a text ([`Expressibility::lean`]); none for one that it does not
    /// read, or where no head tells.
    pub(super) async fn lean(&self, text: &str, deadline: Instant) -> Result<Option<f32>, ServiceError> {
        if !self.languages.include(language::is_english(text)) {
            return Ok(None);
        }
        let kinds = self.alone(text, deadline).await?.expressibility;
        Ok(kinds.map(|kinds| Expressibility::lean(kinds, SPECIAL)))
    }

    /// None for a text that it does not read.
    pub(super) async fn opinion<'a>(
        &self,
        text: &str,
        answers: impl IntoIterator<Item = (Task, &'a str)>,
        deadline: Instant,
    ) -> Result<Option<Opinion>, ServiceError> {
        if !self.languages.include(language::is_english(text)) {
            return Ok(None);
        }
        let alone = self.tokenizer.text(text).map_err(|error| broken(&error))?;
        let (mut tasks, mut sequences) = (Vec::new(), vec![alone.clone()]);
        for (task, answer) in answers {
            tasks.push(task);
            sequences.push(self.tokenizer.answered(&alone, answer).map_err(|error| broken(&error))?);
        }
        let said = in_portions(&self.batcher, sequences, deadline).await?;
        let (text, answered) = said.split_first().ok_or(ServiceError::Internal)?;
        let Some(text) = text.verdict else { return Ok(None) };
        let verdicts = tasks.into_iter().zip(answered);
        let right = verdicts.filter_map(|(task, said)| Some(f64::from(of_task(said.verdict?.right, task))));
        Ok(Some(Opinion { moods: Moods::of_logits(text.mood), right: right.collect() }))
    }
}

fn of_task([positive, negative, reply]: [f32; 3], task: Task) -> f32 {
    match task {
        Task::Express(Polarity::Positive) => positive,
        Task::Express(Polarity::Negative) => negative,
        Task::Reply => reply,
    }
}

fn broken(error: &RuntimeError) -> ServiceError {
    tracing::error!(%error, "a sequence for the judge of answers could not be tokenised");
    ServiceError::Internal
}
