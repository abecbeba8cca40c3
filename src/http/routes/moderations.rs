//! `POST /v1/moderations`: moderation as clients of OpenAI ask for it.
//!
//! The keys are OpenAI's as far as the categories are ours; `defamation` is one more. Keys of theirs that no model
//! here judges are absent, not false.

use axum::{extract::State, response::Json};
use serde::Serialize;
use utoipa::{
    ToSchema,
    openapi::schema::{ArrayBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, Type},
};
use uuid::Uuid;

use super::{PICTURE, model_names_with, optional_model, string_schema};
use crate::{
    domain::{
        Category, Finding, Modality, ModelId, ModerationInput, Threshold,
        input::{MAX_CHARACTERS, MAX_ITEMS},
    },
    http::{
        SharedState,
        error::{ApiError, Param},
        extract::{IMAGE_BODY_BYTES, Payload, Valid},
        fields::Fields,
        openapi::InputErrors,
    },
};

/// What OpenAI's clients send as `model`, some of them without being told to. Here each stands for the default.
const OPENAI_MODELS: [&str; 4] =
    ["omni-moderation-latest", "omni-moderation-2024-09-26", "text-moderation-latest", "text-moderation-stable"];

/// Texts and pictures to moderate.
#[derive(ToSchema)]
pub(in crate::http) struct ModerationRequest {
    #[schema(schema_with = input_schema)]
    input: ModerationInput,
    /// The score from which a category counts as found. Null is the same as leaving it out. OpenAI has no such field.
    #[schema(value_type = Option<f64>, minimum = 0.1, maximum = 1, default = 0.5, required = false)]
    score_threshold: Threshold,
    #[schema(schema_with = model_schema, required = false)]
    model: ModelId,
}

impl Payload for ModerationRequest {
    const MAX_BYTES: usize = IMAGE_BODY_BYTES;

    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, &[Param::Input, Param::ScoreThreshold, Param::Model])?;
        let (score_threshold, model) = (fields.score_threshold()?, fields.model_or_default_for(&OPENAI_MODELS)?);
        Ok(Self { input: fields.input()?, score_threshold, model })
    }

    fn model(&self) -> ModelId {
        self.model
    }
}

fn model_schema() -> Schema {
    let description = "The model to use. Null is the same as leaving it out; so is each of OpenAI's names.";
    optional_model("ModerationModelId", description)
}

/// The schema `ModerationModelId`.
pub(in crate::http) fn model_names() -> Object {
    model_names_with("An identifier of models, or one of OpenAI's names, which stand for the default.", &OPENAI_MODELS)
}

/// The three forms of `input`.
fn input_schema() -> Schema {
    let text = || string_schema(MAX_CHARACTERS);
    let array = || ArrayBuilder::new().min_items(Some(1)).max_items(Some(MAX_ITEMS));
    let url = ObjectBuilder::new().schema_type(Type::String).description(Some(
        "A `data:` URL with a JPEG, PNG, WebP, GIF, BMP or TIFF picture of at most 10 MiB in Base64. Nothing is fetched.",
    ));
    let image_url = ObjectBuilder::new().schema_type(Type::Object).property("url", url).required("url");
    let text_part = part_schema("text").property("text", text()).required("text");
    let image_part = part_schema("image_url").property("image_url", image_url).required("image_url");
    let part = OneOfBuilder::new().item(text_part).item(image_part);
    OneOfBuilder::new()
        .description(Some(
            "A text; or 1 to 32 texts, each with a result of its own; or 1 to 32 parts that are one input with one \
             result, the highest score of a category. All texts together have at most 16,000 characters, counted as \
             Unicode scalar values.",
        ))
        .item(text())
        .item(array().items(text()))
        .item(array().items(part))
        .build()
        .into()
}

fn part_schema(kind: &str) -> ObjectBuilder {
    let kind = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([kind]));
    ObjectBuilder::new().schema_type(Type::Object).property("type", kind).required("type")
}

/// The results of a moderation request.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct ModerationResponse {
    /// A name for this answer, never the same twice.
    #[schema(example = "modr-01934f2a7c1e7d3a9b523f0c6a8e1d47")]
    id: String,
    /// The model that was used.
    #[schema(example = "alpha-4o-mini")]
    model: &'static str,
    /// One for each text; for parts, one.
    results: Vec<ModerationResult>,
}

/// The verdict on one input.
#[derive(Serialize, ToSchema)]
struct ModerationResult {
    /// Whether any category was found.
    flagged: bool,
    categories: ModerationCategories,
    category_scores: ModerationScores,
    category_applied_input_types: ModerationInputTypes,
}

/// Whether each category's score reaches the threshold (`score >= score_threshold`).
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_excessive_bools, reason = "the interface has five booleans")]
struct ModerationCategories {
    /// Sexually explicit content.
    sexual: bool,
    /// Attacks on people for who they are.
    hate: bool,
    /// Suicide and self-injury.
    self_harm: bool,
    /// Threats, incitement or praise of violence.
    violence: bool,
    /// A damaging claim about, or a public attack on, an identifiable person or firm, judged from the form of
    /// speech: nothing here checks whether it is true. OpenAI has no such category.
    defamation: bool,
}

/// Five independent calibrated probabilities, rounded to four decimals.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
struct ModerationScores {
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

/// The kinds of content in which each category was looked for. A kind that is not named had no part in the score.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
struct ModerationInputTypes {
    sexual: Vec<InputType>,
    hate: Vec<InputType>,
    self_harm: Vec<InputType>,
    violence: Vec<InputType>,
    defamation: Vec<InputType>,
}

/// A kind of content.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum InputType {
    Text,
    Image,
}

impl From<Modality> for InputType {
    fn from(modality: Modality) -> Self {
        match modality {
            Modality::Text => Self::Text,
            Modality::Image => Self::Image,
        }
    }
}

impl From<Finding> for ModerationResult {
    fn from(finding: Finding) -> Self {
        let verdict = finding.verdict();
        let [sexual, hate, self_harm, violence, defamation] = Category::ALL.map(|category| verdict.found(category));
        let categories = ModerationCategories { sexual, hate, self_harm, violence, defamation };
        let scores = verdict.scores();
        let [sexual, hate, self_harm, violence, defamation] = Category::ALL.map(|category| scores.get(category));
        let category_scores = ModerationScores { sexual, hate, self_harm, violence, defamation };
        let [sexual, hate, self_harm, violence, defamation] =
            Category::ALL.map(|category| finding.judged_in(category).map(InputType::from).collect());
        let category_applied_input_types = ModerationInputTypes { sexual, hate, self_harm, violence, defamation };
        Self { flagged: verdict.flagged(), categories, category_scores, category_applied_input_types }
    }
}

/// Judges texts and pictures against five categories of harm, in the form of OpenAI's moderation endpoint.
///
/// OpenAI's clients work with this server's address and key. The five categories here are all there are: of OpenAI's
/// other keys (`harassment`, `illicit`, those with a slash) none is in an answer. Of what a picture shows, `sexual` is
/// judged, and of violence firearms that are held, aimed or carried; of the text in it, everything.
#[utoipa::path(
    post,
    path = "/v1/moderations",
    operation_id = "moderate",
    tag = "moderation",
    summary = "Moderation in OpenAI's form",
    request_body(content = ModerationRequest, examples(
        ("text" = (summary = "A text, as a client of OpenAI sends it", value = json!({
            "input": "What a lovely morning.",
            "model": "omni-moderation-latest",
        }))),
        ("texts" = (summary = "Texts, with a threshold and a model", value = json!({
            "input": ["See you at seven.", "I will break every window in your house."],
            "score_threshold": 0.3,
            "model": "alpha-4o-mini",
        }))),
        ("parts" = (summary = "A text with a picture", value = json!({
            "input": [
                {"type": "text", "text": "Look what I drew."},
                {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PICTURE}")}},
            ],
        }))),
    )),
    responses(
        (status = 200, description = "The verdicts.", body = ModerationResponse, examples(
            ("parts" = (summary = "A text with a picture", value = json!({
                "id": "modr-01934f2a7c1e7d3a9b523f0c6a8e1d47",
                "model": "alpha-4o-mini",
                "results": [{
                    "flagged": false,
                    "categories": {
                        "sexual": false, "hate": false, "self-harm": false, "violence": false, "defamation": false,
                    },
                    "category_scores": {
                        "sexual": 0.0062, "hate": 0.0081, "self-harm": 0.0004, "violence": 0.0047,
                        "defamation": 0.0008,
                    },
                    "category_applied_input_types": {
                        "sexual": ["text", "image"], "hate": ["text", "image"], "self-harm": ["text", "image"],
                        "violence": ["text", "image"], "defamation": ["text", "image"],
                    },
                }],
            }))),
        )),
        InputErrors,
    ),
)]
pub(in crate::http) async fn moderate(
    State(shared): State<SharedState>,
    Valid(ModerationRequest { input, score_threshold, model }, _room): Valid<ModerationRequest>,
) -> Result<Json<ModerationResponse>, ApiError> {
    let findings = shared.app.services.moderate(model, input, score_threshold).await;
    let findings = findings.map_err(|error| ApiError::from(error).about(Param::Input))?;
    let results = findings.into_iter().map(ModerationResult::from).collect();
    let id = format!("modr-{}", Uuid::now_v7().simple());
    Ok(Json(ModerationResponse { id, model: model.as_str(), results }))
}
