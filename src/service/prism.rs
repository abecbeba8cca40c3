//! Dual expression and the checks on everything that is generated.

use std::{sync::Arc, time::Instant};

use super::{
    ServiceError, TextGuardian, Writer,
    writer::{Attempt, Task},
};
use crate::{
    domain::{Expressibility, Polarity, Prism, Threshold, ValidText, care},
    telemetry::Metrics,
};

/// Sampled candidates of the one regeneration, as rows of one batch.
const CANDIDATES: u64 = 2;

/// How good a candidate is; ordered from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quality {
    /// Empty, or flagged by our own moderation: never given out.
    Unfit,
    /// Harmless, but it repeats the input.
    Copy,
    /// Passed every check.
    Good,
}

pub(super) async fn express(
    writer: &Writer,
    guardian: &TextGuardian,
    metrics: &Arc<Metrics>,
    text: ValidText,
    deadline: Instant,
) -> Result<Prism, ServiceError> {
    let judgement = guardian.judge(text.as_str().to_owned(), deadline).await?;
    if care::is_due(judgement.scores) {
        return Ok(care::prism());
    }
    if judgement.expressibility != Expressibility::Statement {
        return Ok(Prism::Inexpressible);
    }
    let tasks = [Task::Express(Polarity::Positive), Task::Express(Polarity::Negative)];
    match <[String; 2]>::try_from(checked(writer, guardian, metrics, &text, &tasks, deadline).await?) {
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
    deadline: Instant,
) -> Result<Vec<String>, ServiceError> {
    let first: Vec<(Task, Attempt)> = tasks.iter().map(|&task| (task, 0)).collect();
    let mut best = assessed(writer, guardian, text, &first, deadline).await?;
    let again: Vec<usize> =
        best.iter().enumerate().filter(|(_, (quality, _))| *quality != Quality::Good).map(|(place, _)| place).collect();
    if !again.is_empty() {
        let retries: Vec<(usize, (Task, Attempt))> = again
            .iter()
            .filter_map(|&place| tasks.get(place).map(|&task| (place, task)))
            .flat_map(|(place, task)| (1..=CANDIDATES).map(move |attempt| (place, (task, attempt))))
            .collect();
        for &place in &again {
            if let Some((quality, _)) = best.get(place) {
                let reason = if *quality == Quality::Copy { "copy" } else { "unfit" };
                metrics.regenerated.with_label_values(&[reason]).inc();
            }
        }
        let attempts: Vec<_> = retries.iter().map(|&(_, attempt)| attempt).collect();
        let candidates = assessed(writer, guardian, text, &attempts, deadline).await?;
        for ((place, _), candidate) in retries.into_iter().zip(candidates) {
            if let Some(current) = best.get_mut(place)
                && candidate.0 > current.0
            {
                *current = candidate;
            }
        }
    }
    best.into_iter()
        .map(
            |(quality, answer)| {
                if quality == Quality::Unfit { Err(ServiceError::GenerationRejected) } else { Ok(answer) }
            },
        )
        .collect()
}

async fn assessed(
    writer: &Writer,
    guardian: &TextGuardian,
    text: &ValidText,
    attempts: &[(Task, Attempt)],
    deadline: Instant,
) -> Result<Vec<(Quality, String)>, ServiceError> {
    let answers = writer.write(text, attempts, deadline).await?;
    let judgements = guardian.judge_all(answers.clone(), deadline).await?;
    let input = words(text.as_str());
    Ok(answers
        .into_iter()
        .zip(judgements)
        .map(|(answer, judgement)| {
            let said = words(&answer);
            let quality = if said.is_empty() || Threshold::default().judge(judgement.scores).flagged() {
                Quality::Unfit
            } else if said == input {
                Quality::Copy
            } else {
                Quality::Good
            };
            (quality, answer)
        })
        .collect())
}

/// What is said, without case, spacing and punctuation.
fn words(text: &str) -> String {
    text.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
