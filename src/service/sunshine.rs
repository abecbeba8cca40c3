//! The reply: one short encouraging sentence.

use std::{sync::Arc, time::Instant};

use super::{ServiceError, TextGuardian, Writer, prism::checked, writer::Task};
use crate::{
    domain::{Threshold, ValidText, care, sober},
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
    if care::is_due(judgement.scores) {
        return Ok(care::REPLY.into());
    }
    if sober::is_due(judgement.scores) {
        return Ok(sober::REPLY.into());
    }
    match checked(writer, guardian, metrics, &text, &[Task::Reply], deadline).await {
        Err(ServiceError::GenerationRejected) if Threshold::default().judge(judgement.scores).flagged() => {
            Ok(sober::REPLY.into())
        }
        replies => replies?.pop().ok_or(ServiceError::Internal),
    }
}
