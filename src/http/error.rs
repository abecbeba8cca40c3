//! The sole mapping of errors to statuses, codes and messages.
//!
//! Owns the error body. Refuses to carry anything that came from a caller: messages are fixed sentences, and `param`
//! is one of five known names. Runs on the tokio threads.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    domain::{ImageFieldError, InputError, TextError, ThresholdOutOfRange, UnknownModel},
    service::ServiceError,
};

/// A field of a request body that the interface knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Param {
    Text,
    Model,
    Image,
    Input,
    ScoreThreshold,
}

impl Param {
    /// The field's name in a body.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Model => "model",
            Self::Image => "image",
            Self::Input => "input",
            Self::ScoreThreshold => "score_threshold",
        }
    }
}

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) enum ErrorType {
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    #[serde(rename = "authentication_error")]
    Authentication,
    #[serde(rename = "not_found_error")]
    NotFound,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
    #[serde(rename = "not_implemented_error")]
    NotImplemented,
}

/// Everything that can go wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    NotFound,
    MethodNotAllowed,
    MissingApiKey,
    InvalidApiKey,
    InsufficientScope,
    RateLimitExceeded { retry_after: Duration },
    Overloaded { retry_after: Duration },
    UnsupportedContentType,
    BodyTooLarge,
    IncompleteBody,
    InvalidJson,
    NotAnObject,
    DuplicateField(Param),
    MissingField(Param),
    InvalidType(Param),
    InputEmpty,
    TooManyInputs,
    InvalidInputPart,
    TextBlank(Param),
    TextTooLong(Param),
    UnknownModel,
    ScoreThresholdOutOfRange,
    UnsupportedImageUrl,
    InvalidBase64(Param),
    ImageTooLarge(Param),
    UnsupportedImage(Param),
    CorruptImage(Param),
    ModelNotInstalled,
    GenerationRejected,
    DeadlineExceeded,
    ShuttingDown,
    Internal,
}

/// What an error is on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) status: StatusCode,
    pub(super) kind: ErrorType,
    pub(super) code: &'static str,
    pub(super) message: &'static str,
    pub(super) param: Option<Param>,
}

impl ApiError {
    /// One line an error: the table that the documentation is made from as well.
    #[rustfmt::skip]
    pub(super) const fn facts(self) -> Facts {
        use ErrorType::{Authentication, InvalidRequest, NotFound, NotImplemented, RateLimit, Server};
        use Param::{Image, Input, Model, ScoreThreshold, Text};

        let (status, kind, code, param, message) = match self {
            Self::NotFound => (404, NotFound, "not_found", None, "there is nothing at this path"),
            Self::MethodNotAllowed => (405, InvalidRequest, "method_not_allowed", None, "this path does not take this method; see the Allow header"),
            Self::MissingApiKey => (401, Authentication, "missing_api_key", None, "an API key is needed, in the header Authorization: Bearer KEY"),
            Self::InvalidApiKey => (401, Authentication, "invalid_api_key", None, "the API key is not accepted"),
            Self::InsufficientScope => (401, Authentication, "insufficient_scope", None, "the API key does not cover this operation"),
            Self::RateLimitExceeded { .. } => (429, RateLimit, "rate_limit_exceeded", None, "the usage limit of this API key is exceeded; see the Retry-After header"),
            Self::Overloaded { .. } => (429, RateLimit, "overloaded", None, "the server is busy; see the Retry-After header"),
            Self::UnsupportedContentType => (400, InvalidRequest, "unsupported_content_type", None, "Content-Type must be application/json"),
            Self::BodyTooLarge => (400, InvalidRequest, "body_too_large", None, "the request body is too large for this operation"),
            Self::IncompleteBody => (400, InvalidRequest, "incomplete_body", None, "the request body did not arrive in full in time"),
            Self::InvalidJson => (400, InvalidRequest, "invalid_json", None, "the request body must be valid JSON in UTF-8, nested at most 127 levels"),
            Self::NotAnObject => (400, InvalidRequest, "invalid_type", None, "the request body must be a JSON object"),
            Self::DuplicateField(field) => (400, InvalidRequest, "duplicate_field", Some(field), "the field may be given only once"),
            Self::MissingField(field) => (400, InvalidRequest, "missing_field", Some(field), match field {
                Text => "text is required",
                Model => "model is required",
                Image => "image is required",
                Input => "input is required",
                ScoreThreshold => "score_threshold is required",
            }),
            Self::InvalidType(field) => (400, InvalidRequest, "invalid_type", Some(field), match field {
                Text => "text must be a string",
                Model => "model must be a string or null",
                Image => "image must be a string",
                Input => "input must be a string, an array of strings, or an array of text and image_url parts",
                ScoreThreshold => "score_threshold must be a number or null",
            }),
            Self::InputEmpty => (400, InvalidRequest, "input_empty", Some(Input), "input must hold at least one item"),
            Self::TooManyInputs => (400, InvalidRequest, "too_many_inputs", Some(Input), "input must hold at most 32 items"),
            Self::InvalidInputPart => (400, InvalidRequest, "invalid_input_part", Some(Input), r#"each part of input must be {"type": "text", "text": "..."} or {"type": "image_url", "image_url": {"url": "data:..."}}"#),
            Self::TextBlank(field) => (400, InvalidRequest, "text_blank", Some(field), match field {
                Input => "each text of input must hold at least one character that is not white space",
                _ => "text must hold at least one character that is not white space",
            }),
            Self::TextTooLong(field) => (400, InvalidRequest, "text_too_long", Some(field), match field {
                Input => "the texts of input must be at most 16,000 characters together",
                _ => "text must be at most 500 characters",
            }),
            Self::UnknownModel => (400, InvalidRequest, "unknown_model", Some(Model), "model must be one of alpha-4o-mini, beta-3-haiku, gamma-1.5-flash, delta-3.1"),
            Self::ScoreThresholdOutOfRange => (400, InvalidRequest, "score_threshold_out_of_range", Some(ScoreThreshold), "score_threshold must be a number from 0.1 to 1"),
            Self::UnsupportedImageUrl => (400, InvalidRequest, "unsupported_image_url", Some(Input), "an image url must be a data: URL that holds the image; this server fetches nothing"),
            Self::InvalidBase64(field) => (400, InvalidRequest, "invalid_base64", Some(field), "an image must be Base64-encoded image data"),
            Self::ImageTooLarge(field) => (400, InvalidRequest, "image_too_large", Some(field), "an image must be at most 10 MiB decoded, 40 megapixels and 16,384 pixels a side; an animation at most 160 megapixels over all frames, and 4,096 frames"),
            Self::UnsupportedImage(field) => (400, InvalidRequest, "unsupported_image", Some(field), "an image must be a JPEG, PNG, WebP, GIF, BMP or TIFF picture"),
            Self::CorruptImage(field) => (400, InvalidRequest, "corrupt_image", Some(field), "the image data are damaged or incomplete"),
            Self::ModelNotInstalled => (501, NotImplemented, "model_not_installed", Some(Model), "this model is not installed on this server for this operation"),
            Self::GenerationRejected => (500, Server, "generation_rejected", None, "no acceptable text could be generated for this input"),
            Self::DeadlineExceeded => (500, Server, "deadline_exceeded", None, "the request took too long"),
            Self::ShuttingDown => (500, Server, "shutting_down", None, "the server is shutting down; try again"),
            Self::Internal => (500, Server, "internal_error", None, "something went wrong on the server"),
        };
        let status = match status {
            400 => StatusCode::BAD_REQUEST,
            401 => StatusCode::UNAUTHORIZED,
            404 => StatusCode::NOT_FOUND,
            405 => StatusCode::METHOD_NOT_ALLOWED,
            429 => StatusCode::TOO_MANY_REQUESTS,
            501 => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Facts { status, kind, code, message, param }
    }

    /// The same complaint about another field: texts and pictures come in more than one.
    pub(super) const fn about(self, field: Param) -> Self {
        match self {
            Self::TextBlank(_) => Self::TextBlank(field),
            Self::TextTooLong(_) => Self::TextTooLong(field),
            Self::InvalidBase64(_) => Self::InvalidBase64(field),
            Self::ImageTooLarge(_) => Self::ImageTooLarge(field),
            Self::UnsupportedImage(_) => Self::UnsupportedImage(field),
            Self::CorruptImage(_) => Self::CorruptImage(field),
            other => other,
        }
    }

    /// The body with its request id.
    pub(super) fn body(self, request_id: &str) -> ErrorBody<'_> {
        let Facts { kind, code, message, param, .. } = self.facts();
        ErrorBody { error: ErrorDetail { kind, code, message, param, request_id } }
    }

    fn retry_after(self) -> Option<Duration> {
        match self {
            Self::RateLimitExceeded { retry_after } | Self::Overloaded { retry_after } => Some(retry_after),
            _ => None,
        }
    }
}

/// Whole seconds, rounded up: coming back a little late is fine, a little early is refused again.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// The answer without its body, which needs the request id: `observe` writes it from the extension left here.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.facts().status.into_response();
        let headers = response.headers_mut();
        if self.facts().status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(retry_after) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, whole_seconds(retry_after).max(1).into());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The body of every answer that is not a success, but for the 503 of `/readyz`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorDetail<'a> {
    /// The class of the error.
    #[serde(rename = "type")]
    kind: ErrorType,
    /// A stable word for the cause.
    code: &'a str,
    /// One sentence for a person. It may change; do not compare with it.
    message: &'a str,
    /// The offending field of the body, if one is to blame.
    #[schema(required = true)]
    param: Option<Param>,
    /// The `x-request-id` of this answer.
    request_id: &'a str,
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Blank => Self::TextBlank(Param::Text),
            TextError::TooLong => Self::TextTooLong(Param::Text),
        }
    }
}

impl From<InputError> for ApiError {
    fn from(error: InputError) -> Self {
        match error {
            InputError::Empty => Self::InputEmpty,
            InputError::TooMany => Self::TooManyInputs,
            InputError::TextBlank => Self::TextBlank(Param::Input),
            InputError::TextTooLong => Self::TextTooLong(Param::Input),
        }
    }
}

impl From<UnknownModel> for ApiError {
    fn from(UnknownModel: UnknownModel) -> Self {
        Self::UnknownModel
    }
}

impl From<ThresholdOutOfRange> for ApiError {
    fn from(ThresholdOutOfRange: ThresholdOutOfRange) -> Self {
        Self::ScoreThresholdOutOfRange
    }
}

impl From<ImageFieldError> for ApiError {
    fn from(error: ImageFieldError) -> Self {
        match error {
            ImageFieldError::InvalidBase64 => Self::InvalidBase64(Param::Image),
            ImageFieldError::TooLarge => Self::ImageTooLarge(Param::Image),
            ImageFieldError::NotDataUrl => Self::UnsupportedImageUrl,
        }
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::ModelNotInstalled => Self::ModelNotInstalled,
            ServiceError::Overloaded { retry_after } => Self::Overloaded { retry_after },
            ServiceError::Deadline => Self::DeadlineExceeded,
            ServiceError::ShuttingDown => Self::ShuttingDown,
            ServiceError::GenerationRejected => Self::GenerationRejected,
            ServiceError::UnsupportedImage => Self::UnsupportedImage(Param::Image),
            ServiceError::ImageTooLarge => Self::ImageTooLarge(Param::Image),
            ServiceError::CorruptImage => Self::CorruptImage(Param::Image),
            ServiceError::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (duration, seconds) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(duration)), seconds);
        }
    }

    #[test]
    fn every_failure_of_a_service_has_its_status_and_code() {
        for (error, status, code) in [
            (ServiceError::ModelNotInstalled, 501, "model_not_installed"),
            (ServiceError::Overloaded { retry_after: Duration::ZERO }, 429, "overloaded"),
            (ServiceError::Deadline, 500, "deadline_exceeded"),
            (ServiceError::ShuttingDown, 500, "shutting_down"),
            (ServiceError::GenerationRejected, 500, "generation_rejected"),
            (ServiceError::UnsupportedImage, 400, "unsupported_image"),
            (ServiceError::ImageTooLarge, 400, "image_too_large"),
            (ServiceError::CorruptImage, 400, "corrupt_image"),
            (ServiceError::Internal, 500, "internal_error"),
        ] {
            let facts = ApiError::from(error).facts();
            assert_eq!((facts.status.as_u16(), facts.code), (status, code));
        }
    }

    #[test]
    fn a_refusal_never_says_to_come_back_at_once() {
        let response = ApiError::Overloaded { retry_after: Duration::ZERO }.into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
