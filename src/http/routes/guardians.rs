//! `POST /v1/guardians/text` and `/v1/guardians/image`: moderation of texts and pictures.

use axum::{extract::State, response::Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::{PICTURE, model_schema, text_schema};
use crate::{
    domain::{Category, ImageBytes, ModelId, Threshold, ValidText, Verdict},
    http::{
        SharedState,
        error::{ApiError, Param},
        extract::{IMAGE_BODY_BYTES, Payload, TEXT_BODY_BYTES, Valid},
        fields::Fields,
        openapi::{ImageErrors, ModerationErrors},
    },
};

/// A text to moderate.
#[derive(ToSchema)]
pub(in crate::http) struct TextModerationRequest {
    #[schema(schema_with = text_schema)]
    text: ValidText,
    /// The score from which a category counts as found. Null is the same as leaving it out.
    #[schema(value_type = Option<f64>, minimum = 0.1, maximum = 1, default = 0.5, required = false)]
    score_threshold: Threshold,
    #[schema(schema_with = model_schema, required = false)]
    model: ModelId,
}

impl Payload for TextModerationRequest {
    const MAX_BYTES: usize = TEXT_BODY_BYTES;

    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, &[Param::Text, Param::ScoreThreshold, Param::Model])?;
        Ok(Self { text: fields.text()?, score_threshold: fields.score_threshold()?, model: fields.model()? })
    }

    fn model(&self) -> ModelId {
        self.model
    }
}

/// A picture to moderate.
#[derive(ToSchema)]
pub(in crate::http) struct ImageModerationRequest {
    /// A JPEG, PNG, WebP, GIF, BMP or TIFF picture of at most 10 MiB, 40 megapixels and 16,384 pixels a side, as
    /// standard or URL-safe Base64 with or without padding and white space. A `data:*;base64,` prefix is accepted.
    /// An animation has at most 160 megapixels over all frames, and 4,096 frames.
    #[schema(value_type = String, min_length = 1, content_encoding = "base64")]
    image: ImageBytes,
    /// The score from which a category counts as found. Null is the same as leaving it out.
    #[schema(value_type = Option<f64>, minimum = 0.1, maximum = 1, default = 0.5, required = false)]
    score_threshold: Threshold,
    #[schema(schema_with = model_schema, required = false)]
    model: ModelId,
}

impl Payload for ImageModerationRequest {
    const MAX_BYTES: usize = IMAGE_BODY_BYTES;

    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, &[Param::Image, Param::ScoreThreshold, Param::Model])?;
        let image = fields.image()?;
        let (score_threshold, model) = (fields.score_threshold()?, fields.model()?);
        Ok(Self { image: ImageBytes::from_base64(&image)?, score_threshold, model })
    }

    fn model(&self) -> ModelId {
        self.model
    }
}

/// The verdict on a text or a picture.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct ModerationAnswer {
    /// Whether any category was found.
    flagged: bool,
    categories: Found,
    category_scores: CategoryScores,
}

/// Whether each category's score reaches the threshold (`score >= score_threshold`).
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "the interface has five booleans")]
pub(in crate::http) struct Found {
    /// Sexually explicit content.
    sexual: bool,
    /// Attacks on people for who they are.
    hate: bool,
    /// Suicide and self-injury.
    self_harm: bool,
    /// Threats, incitement or praise of violence.
    violence: bool,
    /// A damaging claim about, or a public attack on, an identifiable person or firm, judged from the form of
    /// speech: nothing here checks whether it is true.
    defamation: bool,
}

/// Five independent calibrated probabilities, rounded to four decimals.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct CategoryScores {
    #[schema(minimum = 0, maximum = 1)]
    sexual: f64,
    #[schema(minimum = 0, maximum = 1)]
    hate: f64,
    #[schema(minimum = 0, maximum = 1)]
    self_harm: f64,
    #[schema(minimum = 0, maximum = 1)]
    violence: f64,
    #[schema(minimum = 0, maximum = 1)]
    defamation: f64,
}

impl From<Verdict> for ModerationAnswer {
    fn from(verdict: Verdict) -> Self {
        let [sexual, hate, self_harm, violence, defamation] = Category::ALL.map(|category| verdict.found(category));
        let categories = Found { sexual, hate, self_harm, violence, defamation };
        let scores = verdict.scores();
        let [sexual, hate, self_harm, violence, defamation] = Category::ALL.map(|category| scores.get(category));
        let category_scores = CategoryScores { sexual, hate, self_harm, violence, defamation };
        Self { flagged: verdict.flagged(), categories, category_scores }
    }
}

/// Judges a text against five categories of harm.
#[utoipa::path(
    post,
    path = "/v1/guardians/text",
    operation_id = "moderate_text",
    tag = "moderation",
    summary = "Text moderation",
    request_body(content = TextModerationRequest, examples(
        ("plain" = (summary = "A text", value = json!({"text": "What a lovely morning."}))),
        ("threshold" = (summary = "With a stricter threshold", value = json!({
            "text": "I will break every window in your house.",
            "score_threshold": 0.3,
            "model": "alpha-4o-mini",
        }))),
        ("highest" = (summary = "An integer, and the default model", value = json!({
            "text": "See you at seven.",
            "score_threshold": 1,
            "model": null,
        }))),
    )),
    responses(
        (status = 200, description = "The verdict.", body = ModerationAnswer, examples(
            ("clean" = (value = json!({
                "flagged": false,
                "categories": {
                    "sexual": false, "hate": false, "self_harm": false, "violence": false, "defamation": false,
                },
                "category_scores": {
                    "sexual": 0.001, "hate": 0.0081, "self_harm": 0.0004, "violence": 0.0047, "defamation": 0.0008,
                },
            }))),
        )),
        ModerationErrors,
    ),
)]
pub(in crate::http) async fn moderate_text(
    State(shared): State<SharedState>,
    Valid(TextModerationRequest { text, score_threshold, model }, _room): Valid<TextModerationRequest>,
) -> Result<Json<ModerationAnswer>, ApiError> {
    Ok(Json(shared.app.services.guard_text(model, text, score_threshold).await?.into()))
}

/// Judges a picture against five categories of harm.
///
/// `sexual`, and of violence firearms that are held, aimed or carried, are judged from what the picture shows, and every
/// category from the text in it, as text moderation judges it; the higher score counts. Without text in the picture
/// `hate`, `self_harm` and `defamation` are 0: nothing sees them in what it shows. Of an animation, up to eight frames are
/// judged, and the highest score counts.
#[utoipa::path(
    post,
    path = "/v1/guardians/image",
    operation_id = "moderate_image",
    tag = "moderation",
    summary = "Image moderation",
    request_body(content = ImageModerationRequest, examples(
        ("png" = (summary = "A PNG picture", value = json!({"image": PICTURE}))),
        ("data_url" = (summary = "A data URL, with a threshold and a model", value = json!({
            "image": format!("data:image/png;base64,{PICTURE}"),
            "score_threshold": 0.8,
            "model": "alpha-4o-mini",
        }))),
    )),
    responses(
        (status = 200, description = "The verdict.", body = ModerationAnswer, examples(
            ("clean" = (value = json!({
                "flagged": false,
                "categories": {
                    "sexual": false, "hate": false, "self_harm": false, "violence": false, "defamation": false,
                },
                "category_scores": {
                    "sexual": 0.0062, "hate": 0.0, "self_harm": 0.0, "violence": 0.0, "defamation": 0.0,
                },
            }))),
        )),
        ImageErrors,
    ),
)]
pub(in crate::http) async fn moderate_image(
    State(shared): State<SharedState>,
    Valid(ImageModerationRequest { image, score_threshold, model }, _room): Valid<ImageModerationRequest>,
) -> Result<Json<ModerationAnswer>, ApiError> {
    Ok(Json(shared.app.services.guard_image(model, image, score_threshold).await?.into()))
}
