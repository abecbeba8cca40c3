//! `POST /v1/prisms/text`: a text said two ways.

use axum::{extract::State, response::Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::TextRequest;
use crate::{
    domain::Prism,
    http::{SharedState, error::ApiError, extract::Valid, openapi::GenerationErrors},
};

/// Both expressions; or the string `"false"` in both fields.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct PrismAnswer {
    /// The positive expression of the text.
    positive: String,
    /// The negative expression of the text.
    negative: String,
}

impl From<Prism> for PrismAnswer {
    fn from(prism: Prism) -> Self {
        match prism {
            Prism::Expressed { positive, negative } => Self { positive, negative },
            Prism::Inexpressible => Self { positive: "false".into(), negative: "false".into() },
        }
    }
}

/// Returns one positive and one negative expression of a text.
///
/// A text with nothing to express (an acknowledgement or interjection, a clear agreement or answer, a sentence without
/// meaning, a mathematical formula) gets the string `"false"` in both fields. The same request gives the same answer,
/// unless the server is too busy to improve it.
#[utoipa::path(
    post,
    path = "/v1/prisms/text",
    operation_id = "express_text",
    tag = "expression",
    summary = "Dual expression",
    request_body(content = TextRequest, examples(
        ("feedback" = (summary = "A statement", value = json!({"text": "The meeting was moved to Friday."}))),
        ("model" = (summary = "With a model", value = json!({
            "text": "My train is half an hour late again.",
            "model": "alpha-4o-mini",
        }))),
        ("acknowledgement" = (summary = "Nothing to express", value = json!({"text": "ok", "model": null}))),
    )),
    responses(
        (status = 200, description = "Both expressions.", body = PrismAnswer, examples(
            ("expressed" = (value = json!({
                "positive": "The meeting was moved to Friday, and I'll be back in time.",
                "negative": "The meeting was moved to Friday, and I'm worried about the future.",
            }))),
            ("inexpressible" = (summary = "Nothing to express", value = json!({
                "positive": "false",
                "negative": "false",
            }))),
        )),
        GenerationErrors,
    ),
)]
pub(in crate::http) async fn express_text(
    State(shared): State<SharedState>,
    Valid(TextRequest { text, model }, _room): Valid<TextRequest>,
) -> Result<Json<PrismAnswer>, ApiError> {
    Ok(Json(shared.app.services.prism(model, text).await?.into()))
}
