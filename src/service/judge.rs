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

/// A text as the judge reads it, beside what people wrote.
pub(super) struct Reading<'a> {
    situations: &'a Situations,
    said: Said,
    text: &'a str,
    language: Language,
}

impl<'a> Reading<'a> {
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// That in which what people wrote is looked for.
    pub(super) fn language(&self) -> Language {
        self.language
    }

    /// The replies for the situation that the text tells of, and that name what it speaks of; none where the situation is unsure.
    pub(super) fn of_situation(&self) -> Vec<&'a str> {
        let found = self.said.situation;
        found.map_or_else(Vec::new, |found| self.situations.replies(self.language, found, self.text))
    }

    /// A reply that fits many texts, said of what this one speaks of, where it can be.
    pub(super) fn named(&self, reply: &str) -> Option<String> {
        self.situations.named(self.language, reply, self.text)
    }

    /// Up to `most` sentences of each kind with how likely each fits the text, the likeliest first; none where there are none of
    /// a kind in its language.
    pub(super) fn fitting<const KINDS: usize>(
        &self,
        kinds: [Kind; KINDS],
        most: usize,
    ) -> Option<[Vec<(&'a str, f32)>; KINDS]> {
        let attitudes = self.situations.attitudes(self.language)?;
        let probabilities = self.said.attitudes.as_deref()?;
        let told = kinds.iter().all(|&kind| attitudes.has(kind));
        told.then(|| kinds.map(|kind| attitudes.likeliest(probabilities, kind, most)))
    }
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

    /// What it says of a text without an answer, and of what people wrote for it in this language.
    pub(super) async fn read<'a>(
        &'a self,
        text: &'a str,
        language: Language,
        deadline: Instant,
    ) -> Result<Option<Reading<'a>>, ServiceError> {
        let Some(situations) = &self.situations else { return Ok(None) };
        let said = self.alone(text, deadline).await?;
        Ok(Some(Reading { situations, said, text, language }))
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
