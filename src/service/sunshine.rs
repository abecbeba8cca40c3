//! The reply: one short encouraging sentence.

use std::time::Instant;

use super::{
    ServiceError, language,
    prism::{Desk, checked},
    writer::Task,
};
use crate::domain::{ValidText, fixed};

pub(super) async fn reply(desk: Desk<'_>, text: ValidText, deadline: Instant) -> Result<String, ServiceError> {
    let judgement = desk.guardian.judge(text.as_str().to_owned(), deadline).await?;
    let language = language::of(text.as_str());
    if let Some(fixed) = fixed::due(judgement.scores, language) {
        return Ok(fixed.reply.into());
    }
    let outcome = checked(desk, &text, &[Task::Reply], judgement, deadline).await?;
    outcome.or_fixed(judgement, language, |fixed| fixed.reply.into(), |mut answers| answers.pop())
}
