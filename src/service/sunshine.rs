//! The reply: one short encouraging sentence.

use std::{sync::Arc, time::Instant};

use super::{ServiceError, TextGuardian, Writer, prism::checked, writer::Task};
use crate::{
    domain::{ValidText, care},
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
    let mut replies = checked(writer, guardian, metrics, &text, &[Task::Reply], deadline).await?;
    replies.pop().ok_or(ServiceError::Internal)
}
