//! `POST /v1/sunshines/text`: a short reply to a text.

use axum::{extract::State, response::Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::TextRequest;
use crate::http::{SharedState, error::ApiError, extract::Valid, openapi::GenerationErrors};

/// A reply.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct SunshineAnswer {
    /// One sentence.
    #[schema(min_length = 1, max_length = 200)]
    text: String,
}

/// Returns one encouraging sentence in reply to a text.
///
/// The same request gives the same answer, unless the server is too busy to improve it.
#[utoipa::path(
    post,
    path = "/v1/sunshines/text",
    operation_id = "reply_to_text",
    tag = "expression",
    summary = "Reply text",
    request_body(content = TextRequest, examples(
        ("plain" = (summary = "A text", value = json!({"text": "I have an exam tomorrow and I am nervous."}))),
        ("model" = (summary = "With a model", value = json!({
            "text": "We finally finished painting the kitchen.",
            "model": "alpha-4o-mini",
        }))),
    )),
    responses(
        (status = 200, description = "The reply.", body = SunshineAnswer, examples(
            ("reply" = (value = json!({
                "text": "You're nervous about your exam, but you're still confident in your ability to do well.",
            }))),
        )),
        GenerationErrors,
    ),
)]
pub(in crate::http) async fn reply_to_text(
    State(shared): State<SharedState>,
    Valid(TextRequest { text, model }, _room): Valid<TextRequest>,
) -> Result<Json<SunshineAnswer>, ApiError> {
    Ok(Json(SunshineAnswer { text: shared.app.services.sunshine(model, text).await? }))
}
