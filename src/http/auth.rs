//! Who may pass: credential, scope, then usage limit.
//!
//! Owns the `Authorization`, `RateLimit` and `RateLimit-Policy` headers. Refuses before a byte of the body is looked
//! at, and never writes a key anywhere. Runs on the tokio threads.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    Shared, SharedState,
    error::{ApiError, whole_seconds},
    extract::turn_away,
    observe::Note,
};
use crate::domain::{LimitDecision, Operation, UsageLimit};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit");

/// Lets a request on to its handler, or answers 401 or 429.
pub(super) async fn guard(State(shared): State<SharedState>, request: Request, next: Next) -> Response {
    let operation = Operation::at_path(request.uri().path());
    let note = Note::of(request.extensions());
    let (refusal, limit_headers) = match admit(&shared, operation, request.headers(), &note).await {
        Ok(headers) => (None, headers),
        Err((error, headers)) => (Some(error), headers),
    };
    let mut response = if let Some(error) = refusal {
        turn_away(request, error).await.into_response()
    } else {
        next.run(request).await
    };
    response.headers_mut().extend(limit_headers);
    response
}

async fn admit(
    shared: &Shared,
    operation: Option<Operation>,
    headers: &HeaderMap,
    note: &Note,
) -> Result<HeaderMap, (ApiError, HeaderMap)> {
    let refuse = |error| (error, HeaderMap::new());
    let key = bearer(headers).map_err(refuse)?;
    let caller = shared.app.keys.authenticate(key).map_err(|_| refuse(ApiError::InvalidApiKey))?;
    note.set_key_id(caller.key_id());
    // A guarded path without an operation has no scope that could cover it.
    if !operation.is_some_and(|operation| caller.may(operation)) {
        return Err(refuse(ApiError::InsufficientScope));
    }
    let decision = shared.app.limiter.check(&caller).await;
    let headers = limit_headers(&decision);
    match decision {
        LimitDecision::Refused { retry_after, .. } => Err((ApiError::RateLimitExceeded { retry_after }, headers)),
        LimitDecision::Unlimited | LimitDecision::Allowed { .. } => Ok(headers),
    }
}

/// The key of the one `Authorization: Bearer KEY` header.
fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(ApiError::MissingApiKey)?;
    // Two credentials: which of them a proxy in front has checked is anyone's guess.
    if values.next().is_some() {
        return Err(ApiError::InvalidApiKey);
    }
    let value = value.to_str().map_err(|_| ApiError::InvalidApiKey)?;
    let (scheme, key) = value.split_once(' ').unwrap_or((value, ""));
    let key = key.trim_matches(' ');
    match (scheme.eq_ignore_ascii_case("bearer"), key) {
        (true, "") => Err(ApiError::MissingApiKey),
        (true, key) => Ok(key),
        (false, _) => Err(ApiError::InvalidApiKey),
    }
}

/// The two fields of draft-ietf-httpapi-ratelimit-headers: the policy, and what is left of it.
fn limit_headers(decision: &LimitDecision) -> HeaderMap {
    let (UsageLimit { per_minute, .. }, remaining, reset) = match *decision {
        LimitDecision::Unlimited => return HeaderMap::new(),
        LimitDecision::Allowed { limit, remaining, reset } => (limit, remaining, reset),
        // After that one request may come, and all of them when the others are restored, too.
        LimitDecision::Refused { limit, retry_after } => {
            (limit, 0, retry_after + limit.restores(limit.burst.saturating_sub(1)))
        }
    };
    let fields = [
        (POLICY, format!("\"key\";q={per_minute};w=60")),
        (REMAINING, format!("\"key\";r={remaining};t={}", whole_seconds(reset))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_bytes(value.as_bytes()).unwrap())).collect()
    }

    #[test]
    fn the_scheme_is_read_in_any_case_and_the_key_as_it_stands() {
        for value in ["Bearer dk_A", "bearer dk_A", "BEARER   dk_A", "BeArEr dk_A  "] {
            assert_eq!(bearer(&headers(&[value])), Ok("dk_A"), "{value:?}");
        }
    }

    #[test]
    fn anything_else_is_no_credential() {
        for (values, error) in [
            (&[][..], ApiError::MissingApiKey),
            (&["Bearer"], ApiError::MissingApiKey),
            (&["Bearer  "], ApiError::MissingApiKey),
            (&["dk_A"], ApiError::InvalidApiKey),
            (&["Basic dk_A"], ApiError::InvalidApiKey),
            (&["Bearerdk_A"], ApiError::InvalidApiKey),
            (&["Bearer\tdk_A"], ApiError::InvalidApiKey),
            (&["Bearer é"], ApiError::InvalidApiKey),
            (&["Bearer dk_A", "Bearer dk_A"], ApiError::InvalidApiKey),
        ] {
            assert_eq!(bearer(&headers(values)), Err(error), "{values:?}");
        }
    }
}
