//! The OpenAPI document and its page.
//!
//! Owns what the routes do not say themselves: the head of the document, the error answers (made from the table in
//! `error`), the headers that the layers add, and the files of the documentation page, which are in the binary.
//! Refuses any outside origin. Runs once at start-up, then on the tokio threads.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::header,
    response::{IntoResponse, Json, Redirect, Response},
};
use utoipa::{
    IntoResponses, Modify, OpenApi,
    openapi::{
        ContentBuilder, HeaderBuilder, Object, Ref, RefOr, ResponseBuilder, Type,
        example::ExampleBuilder,
        extensions::ExtensionsBuilder,
        header::Header,
        path::Operation,
        response::Response as Answer,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_swagger_ui::Config;

use super::{
    SharedState,
    error::{ApiError, ErrorBody, Param},
    router,
    routes::{self, moderations},
};

/// Version of the interface that is served, as opposed to the version of this server.
const INTERFACE_VERSION: &str = "1.6.2";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Dichroic",
        description = "Text expression, replies and content moderation from local models. Interface version 1.6.2.\n\n\
            Everything that is not a success has the body `ErrorBody`, but for the 503 of `/readyz`. So has what no \
            operation lists: 404 for a path that does not exist, and 405 with the header `Allow` for a method that a \
            path does not take.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "This server")),
    tags(
        (name = "expression", description = "Texts said in another light, and replies."),
        (name = "moderation", description = "Texts and pictures judged against five categories of harm."),
        (name = "server", description = "Probes, metrics and this document. No key needed."),
    ),
    components(schemas(ErrorBody)),
    security(("key" = [])),
    modifiers(&Head),
)]
struct Document;

/// What the attribute above has no words for.
struct Head;

impl Modify for Head {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let version = ExtensionsBuilder::new().add("x-interface-version", INTERFACE_VERSION).build();
        document.info.extensions = Some(version);
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("dk_<id>_<secret>")
            .description(Some("An API key, issued with `dichroic keys create`."))
            .build();
        let components = document.components.get_or_insert_default();
        components.security_schemes.insert("key".into(), SecurityScheme::Http(scheme).into());
        components.schemas.insert("ModelId".into(), routes::model_names().into());
        components.schemas.insert("ModerationModelId".into(), moderations::model_names().into());
    }
}

/// The document without routes.
pub(super) fn head() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// The whole document, made from the same calls as the routes.
pub(super) fn document() -> utoipa::openapi::OpenApi {
    let mut document = router::api(|method| method).into_openapi();
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            describe_headers(operation);
        }
    }
    document
}

/// Adds the headers that come from the layers around the handlers, not from the handlers.
fn describe_headers(operation: &mut Operation) {
    let counted = operation.security.is_none();
    for (status, answer) in &mut operation.responses.responses {
        let RefOr::T(answer) = answer else { continue };
        let mut add = |name: &str, header: Header| answer.headers.insert(name.into(), header.into());
        add("x-request-id", header_of(Type::String, "The id from the request, or a new one."));
        if counted && status != "401" && status != "404" {
            add(
                "RateLimit-Policy",
                header_of(
                    Type::String,
                    "The key's limit: requests (q) in a window of seconds (w). Absent without a limit.",
                ),
            );
            add(
                "RateLimit",
                header_of(
                    Type::String,
                    "What is left of it (r), and the seconds until it is restored (t). Absent without a limit.",
                ),
            );
        }
        match status.as_str() {
            "401" => add("WWW-Authenticate", header_of(Type::String, "Always `Bearer`.")),
            "429" => add("Retry-After", header_of(Type::Integer, "Seconds to wait before the next attempt.")),
            _ => None,
        };
    }
}

fn header_of(kind: Type, description: &str) -> Header {
    HeaderBuilder::new().schema(Some(Object::with_type(kind))).description(Some(description)).build()
}

/// Answers other than 200 of the generating operations.
pub(super) struct GenerationErrors;

impl IntoResponses for GenerationErrors {
    fn responses() -> BTreeMap<String, RefOr<Answer>> {
        error_answers(&[TEXT, &[ApiError::GenerationRejected]])
    }
}

/// Answers other than 200 of text moderation.
pub(super) struct ModerationErrors;

impl IntoResponses for ModerationErrors {
    fn responses() -> BTreeMap<String, RefOr<Answer>> {
        error_answers(&[TEXT, THRESHOLD])
    }
}

/// Answers other than 200 of image moderation.
pub(super) struct ImageErrors;

impl IntoResponses for ImageErrors {
    fn responses() -> BTreeMap<String, RefOr<Answer>> {
        error_answers(&[IMAGE, THRESHOLD])
    }
}

/// Answers other than 200 of the moderation of several texts and pictures.
pub(super) struct InputErrors;

impl IntoResponses for InputErrors {
    fn responses() -> BTreeMap<String, RefOr<Answer>> {
        error_answers(&[INPUT, THRESHOLD])
    }
}

const SOON: Duration = Duration::from_secs(1);

const COMMON: &[ApiError] = &[
    ApiError::UnsupportedContentType,
    ApiError::BodyTooLarge,
    ApiError::IncompleteBody,
    ApiError::InvalidJson,
    ApiError::NotAnObject,
    ApiError::InvalidType(Param::Model),
    ApiError::DuplicateField(Param::Model),
    ApiError::UnknownModel,
    ApiError::MissingApiKey,
    ApiError::InvalidApiKey,
    ApiError::InsufficientScope,
    ApiError::NotFound,
    ApiError::RateLimitExceeded { retry_after: SOON },
    ApiError::Overloaded { retry_after: SOON },
    ApiError::DeadlineExceeded,
    ApiError::ShuttingDown,
    ApiError::Internal,
    ApiError::ModelNotInstalled,
];

const TEXT: &[ApiError] = &[
    ApiError::MissingField(Param::Text),
    ApiError::InvalidType(Param::Text),
    ApiError::DuplicateField(Param::Text),
    ApiError::TextBlank(Param::Text),
    ApiError::TextTooLong(Param::Text),
];

const THRESHOLD: &[ApiError] = &[
    ApiError::InvalidType(Param::ScoreThreshold),
    ApiError::DuplicateField(Param::ScoreThreshold),
    ApiError::ScoreThresholdOutOfRange,
];

const IMAGE: &[ApiError] = &[
    ApiError::MissingField(Param::Image),
    ApiError::InvalidType(Param::Image),
    ApiError::DuplicateField(Param::Image),
    ApiError::InvalidBase64(Param::Image),
    ApiError::ImageTooLarge(Param::Image),
    ApiError::UnsupportedImage(Param::Image),
    ApiError::CorruptImage(Param::Image),
];

const INPUT: &[ApiError] = &[
    ApiError::MissingField(Param::Input),
    ApiError::InvalidType(Param::Input),
    ApiError::DuplicateField(Param::Input),
    ApiError::InputEmpty,
    ApiError::TooManyInputs,
    ApiError::InvalidInputPart,
    ApiError::TextBlank(Param::Input),
    ApiError::TextTooLong(Param::Input),
    ApiError::UnsupportedImageUrl,
    ApiError::InvalidBase64(Param::Input),
    ApiError::ImageTooLarge(Param::Input),
    ApiError::UnsupportedImage(Param::Input),
    ApiError::CorruptImage(Param::Input),
];

/// One answer a status, with an example of every error that has it.
fn error_answers(errors: &[&[ApiError]]) -> BTreeMap<String, RefOr<Answer>> {
    let mut by_status: BTreeMap<u16, BTreeMap<String, ApiError>> = BTreeMap::new();
    for error in COMMON.iter().chain(errors.iter().copied().flatten()) {
        let facts = error.facts();
        let name =
            facts.param.map_or_else(|| facts.code.to_owned(), |param| format!("{}.{}", facts.code, param.as_str()));
        by_status.entry(facts.status.as_u16()).or_default().insert(name, *error);
    }
    let answers = by_status.into_iter().map(|(status, errors)| {
        let examples = errors.into_iter().map(|(name, error)| {
            let body = serde_json::to_value(error.body("01934f2a-7c1e-7d3a-9b52-3f0c6a8e1d47")).ok();
            (name, ExampleBuilder::new().value(body).build())
        });
        let schema = Ref::from_schema_name("ErrorBody");
        let content = ContentBuilder::new().schema(Some(schema)).examples_from_iter(examples).build();
        let answer = ResponseBuilder::new().description(meaning(status)).content("application/json", content).build();
        (status.to_string(), answer.into())
    });
    answers.collect()
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "Validation",
        401 => "Unauthorized",
        404 => "Not Found",
        429 => "Usage Limit Exceeded",
        501 => "Not Implemented Error",
        _ => "Internal Server Error",
    }
}

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "server",
    summary = "OpenAPI document",
    responses((status = 200, description = "This document.", body = Object)),
    security(()),
)]
pub(super) async fn json(State(shared): State<SharedState>) -> Response {
    Json(&shared.document).into_response()
}

/// Everything the page loads is next to it. Inline styles are what the page's own scripts set on elements.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The page's own links are relative to a folder. So is this one: a prefix put before it by a proxy stays.
pub(super) async fn docs_root() -> Redirect {
    Redirect::permanent("docs/")
}

/// The page.
pub(super) async fn docs_index() -> Result<Response, ApiError> {
    file("index.html")
}

/// A file of the page.
pub(super) async fn docs_file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    // No file's name is anything but UTF-8.
    let Ok(Path(name)) = name else { return Err(ApiError::NotFound) };
    file(&name)
}

fn file(name: &str) -> Result<Response, ApiError> {
    // Without a validator named, the page would send the document's address to one on the internet.
    let config = Config::new(["../openapi.json"]).validator_url("none").display_request_duration(true);
    let file = utoipa_swagger_ui::serve(name, Arc::new(config)).map_err(|error| {
        tracing::error!(%error, "a file of the documentation page could not be made");
        ApiError::Internal
    })?;
    let file = file.ok_or(ApiError::NotFound)?;
    let headers = [
        (header::CONTENT_TYPE, file.content_type.as_str()),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    // Borrowed from the binary: a copy would cost each of many slow clients its own 1.5 MB.
    Ok((headers, file.bytes).into_response())
}
