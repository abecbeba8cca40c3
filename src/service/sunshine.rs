//! The reply: one short encouraging sentence.

use std::{sync::Arc, time::Instant};

use super::{
    ServiceError, TextGuardian, Writer, language,
    prism::{bound, checked},
    writer::Task,
};
use crate::{
    domain::{Threshold, ValidText, fixed},
    telemetry::Metrics,
};

pub(super) async fn reply(
    writer: &Writer,
    guardian: &TextGuardian,
    metrics: &Arc<Metrics>,
    text: ValidText,
    deadline: Instant,
) -> Result<String, ServiceError> {
    let judgement = guardian.judge(text.as_str().to_owned(), deadline).await?;
    let language = language::of(text.as_str());
    if let Some(fixed) = fixed::due(judgement.scores, language) {
        return Ok(fixed.reply.into());
    }
    match checked(writer, guardian, metrics, &text, &[Task::Reply], bound(judgement), deadline).await {
        Err(ServiceError::GenerationRejected) if Threshold::default().judge(judgement.scores).flagged() => {
            Ok(fixed::sober(language).reply.into())
        }
        replies => replies?.pop().ok_or(ServiceError::Internal),
    }
}
