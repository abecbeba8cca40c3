//! Dual expression and the checks on everything that is generated.

use std::{sync::Arc, time::Instant};

use super::{
    ServiceError, TextGuardian, Writer,
    guardian_text::Judgement,
    language,
    writer::{Attempt, Task},
};
use crate::{
    domain::{Expressibility, Polarity, Prism, Threshold, ValidText, fixed, likeness},
    telemetry::Metrics,
};

/// Sampled candidates of the one regeneration, as rows of one batch. They take as long as the answers are: a text
/// longer than [`LONG_TEXT`] gets fewer.
const CANDIDATES: u64 = 4;
const CANDIDATES_OF_LONG_TEXT: u64 = 2;
/// Characters.
const LONG_TEXT: usize = 160;

/// The score from which an answer is not given out. An answer to a text that is itself flagged is held to a stricter
/// one: it may carry a part of the harm on in milder words.
const STRICT: f64 = 0.2;

pub(super) fn bound(input: Judgement) -> Threshold {
    if Threshold::default().judge(input.scores).flagged() {
        Threshold::new(STRICT).unwrap_or_default()
    } else {
        Threshold::default()
    }
}

/// What the checks say of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quality {
    /// Neither empty nor flagged by our own moderation at the bound; what is not fit is never given out.
    fit: bool,
    /// It says the input over again.
    repeats: bool,
    /// It is surely in another language than the input.
    foreign: bool,
    /// Share of the input's names and numbers that it keeps, from 0 to 1. Replies need none.
    facts: f64,
    /// Probability that it is said in the light that was asked for; 1 where none was, or no model tells.
    light: f64,
}

impl Quality {
    /// From 0, unfit, to 7: a copy or another language is worse than the wrong light, and that worse than a lost fact.
    fn score(self) -> f64 {
        if !self.fit {
            return 0.0;
        }
        1.0 + if self.repeats || self.foreign { 0.0 } else { 2.5 } + 2.0 * self.light + 1.5 * self.facts
    }

    /// The check that it failed first, as metrics name it; none where it passed all.
    fn failure(self, turned: bool) -> Option<&'static str> {
        if !self.fit {
            Some("unfit")
        } else if self.repeats {
            Some("copy")
        } else if self.foreign {
            Some("language")
        } else if !turned {
            Some("polarity")
        } else if self.facts < 1.0 {
            Some("facts")
        } else {
            None
        }
    }
}

/// Whether the answers differ in light as they should: of a pair, the positive one more positive than the negative.
///
/// A model that errs in one text of five on its own errs in one pair of fourteen.
fn turned(answers: &[(Quality, String)]) -> bool {
    answers.iter().map(|(quality, _)| quality.light - 0.5).sum::<f64>() > 0.0
}

pub(super) async fn express(
    writer: &Writer,
    guardian: &TextGuardian,
    metrics: &Arc<Metrics>,
    text: ValidText,
    deadline: Instant,
) -> Result<Prism, ServiceError> {
    let judgement = guardian.judge(text.as_str().to_owned(), deadline).await?;
    let language = language::of(text.as_str());
    if let Some(fixed) = fixed::due(judgement.scores, language) {
        return Ok(fixed.prism());
    }
    if judgement.expressibility != Expressibility::Statement {
        return Ok(Prism::Inexpressible);
    }
    let tasks = [Task::Express(Polarity::Positive), Task::Express(Polarity::Negative)];
    let answers = match checked(writer, guardian, metrics, &text, &tasks, bound(judgement), deadline).await {
        Err(ServiceError::GenerationRejected) if Threshold::default().judge(judgement.scores).flagged() => {
            return Ok(fixed::sober(language).prism());
        }
        answers => answers?,
    };
    match <[String; 2]>::try_from(answers) {
        Ok([positive, negative]) => Ok(Prism::Expressed { positive, negative }),
        Err(_) => Err(ServiceError::Internal),
    }
}

/// Generates each task greedily, checks the answers, and makes those that fail once more by sampling.
///
/// The best candidate of a task wins. When none may be given out the call fails, rather than answer with something
/// empty or harmful.
pub(super) async fn checked(
    writer: &Writer,
    guardian: &TextGuardian,
    metrics: &Arc<Metrics>,
    text: &ValidText,
    tasks: &[Task],
    bound: Threshold,
    deadline: Instant,
) -> Result<Vec<String>, ServiceError> {
    let first: Vec<(Task, Attempt)> = tasks.iter().map(|&task| (task, 0)).collect();
    let mut best = assessed(writer, guardian, text, &first, bound, deadline).await?;
    let turned = turned(&best);
    let again: Vec<(usize, &'static str)> =
        best.iter().enumerate().filter_map(|(place, (quality, _))| Some((place, quality.failure(turned)?))).collect();
    if !again.is_empty() {
        let long = text.as_str().chars().count() > LONG_TEXT;
        let candidates = if long { CANDIDATES_OF_LONG_TEXT } else { CANDIDATES };
        let retries: Vec<(usize, (Task, Attempt))> = again
            .iter()
            .filter_map(|&(place, _)| tasks.get(place).map(|&task| (place, task)))
            .flat_map(|(place, task)| (1..=candidates).map(move |attempt| (place, (task, attempt))))
            .collect();
        for (_, reason) in &again {
            metrics.regenerated.with_label_values(&[*reason]).inc();
        }
        let attempts: Vec<_> = retries.iter().map(|&(_, attempt)| attempt).collect();
        let candidates = assessed(writer, guardian, text, &attempts, bound, deadline).await?;
        for ((place, _), candidate) in retries.into_iter().zip(candidates) {
            if let Some(current) = best.get_mut(place)
                && candidate.0.score() > current.0.score()
            {
                *current = candidate;
            }
        }
    }
    best.into_iter()
        .map(|(quality, answer)| if quality.fit { Ok(answer) } else { Err(ServiceError::GenerationRejected) })
        .collect()
}

async fn assessed(
    writer: &Writer,
    guardian: &TextGuardian,
    text: &ValidText,
    attempts: &[(Task, Attempt)],
    bound: Threshold,
    deadline: Instant,
) -> Result<Vec<(Quality, String)>, ServiceError> {
    let answers = writer.write(text, attempts, deadline).await?;
    let judgements = guardian.judge_all(answers.clone(), deadline).await?;
    Ok(attempts
        .iter()
        .zip(answers)
        .zip(judgements)
        .map(|((&(task, _), answer), judgement)| (assess(text.as_str(), task, &answer, judgement, bound), answer))
        .collect())
}

fn assess(text: &str, task: Task, answer: &str, judgement: Judgement, bound: Threshold) -> Quality {
    let said = answer.chars().any(char::is_alphanumeric);
    let positive = judgement.positive.map(f64::from);
    let kept = || likeness::facts_kept(text, answer, language::of(text));
    let (light, facts) = match task {
        Task::Express(Polarity::Positive) => (positive, kept()),
        Task::Express(Polarity::Negative) => (positive.map(|positive| 1.0 - positive), kept()),
        Task::Reply => (None, 1.0),
    };
    Quality {
        fit: said && !bound.judge(judgement.scores).flagged(),
        repeats: likeness::repeats(text, answer),
        foreign: language::differs(text, answer),
        facts,
        light: light.unwrap_or(1.0),
    }
}
