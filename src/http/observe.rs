//! What is said and counted about every request: its id, one line in the log, the metrics.
//!
//! Owns the request id, the tracing span around a request, the record of its work, the body of error answers (which
//! holds the id), and the place where a panic ends. Refuses to log anything a caller wrote except a well-formed request
//! id: no text, no key, no unknown path. Runs on the tokio threads.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    body::HttpBody,
    extract::{MatchedPath, Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Json, Response},
};
use futures_util::FutureExt;
use tracing::Instrument;
use uuid::Uuid;

use super::{SharedState, error::ApiError};
use crate::{
    domain::{ModelId, Operation},
    telemetry::{Record, traces::Answered},
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Shown for a label that a request never got as far as having.
const NONE: &str = "none";

/// What handlers and layers leave for the log line. One a request, in its extensions.
#[derive(Debug, Default)]
pub(super) struct Note {
    model: OnceLock<ModelId>,
    key_id: OnceLock<String>,
    received: AtomicUsize,
}

impl Note {
    /// The note of a request; an unattached one outside of [`observe`].
    pub(super) fn of(extensions: &Extensions) -> Arc<Self> {
        extensions.get::<Arc<Self>>().cloned().unwrap_or_default()
    }

    /// The model that answers.
    pub(super) fn set_model(&self, model: ModelId) {
        let _ = self.model.set(model);
    }

    /// Which key called (its id: never the key).
    pub(super) fn set_key_id(&self, id: &str) {
        let _ = self.key_id.set(id.to_owned());
    }

    /// Bytes of body read.
    pub(super) fn set_received(&self, bytes: usize) {
        self.received.store(bytes, Ordering::Relaxed);
    }
}

/// Wraps every request, also those that match no route.
pub(super) async fn observe(State(shared): State<SharedState>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    // At the level of errors, so that no filter takes the request id away from a line that is shown.
    let span = tracing::error_span!("request", request_id = id.to_str().unwrap_or_default());
    let entry = Entry::new(&request, Arc::clone(&shared));
    request.extensions_mut().insert(Arc::clone(&entry.note));
    let record = Arc::clone(&entry.record);

    let answering = async move {
        // Nothing of a request outlives it, so there is no state that a panic could leave broken.
        let outcome = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        // What the panic said is not looked at: it may quote the caller's text.
        let mut response = outcome.unwrap_or_else(|_| {
            shared.app.metrics.task_panics.with_label_values(&["request"]).inc();
            ApiError::Internal.into_response()
        });
        let error = response.extensions_mut().remove::<ApiError>();
        if let Some(error) = error {
            write_body(&mut response, error, &id);
        }
        entry.finish(&response, error);
        response.headers_mut().insert(REQUEST_ID, id);
        response
    };
    record.during(answering).instrument(span).await
}

/// The caller's id when it is 1 to 128 visible ASCII characters, otherwise a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers
        .get(REQUEST_ID)
        .filter(|value| (1..=128).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic));
    given
        .cloned()
        .or_else(|| HeaderValue::try_from(Uuid::now_v7().to_string()).ok())
        .unwrap_or(HeaderValue::from_static(NONE))
}

fn write_body(response: &mut Response, error: ApiError, id: &HeaderValue) {
    let (parts, body) = Json(error.body(id.to_str().unwrap_or(NONE))).into_response().into_parts();
    response.headers_mut().extend(parts.headers);
    *response.body_mut() = body;
}

/// The log line of a request in the making. Dropped unfinished, it says that the caller left.
struct Entry {
    method: Method,
    path: Option<MatchedPath>,
    started: Instant,
    trace_parent: Option<HeaderValue>,
    note: Arc<Note>,
    record: Arc<Record>,
    shared: SharedState,
    finished: bool,
}

impl Entry {
    fn new(request: &Request, shared: SharedState) -> Self {
        shared.app.metrics.in_flight.inc();
        let trace_parent = request.headers().get(TRACE_PARENT).filter(|_| shared.app.traces.are_on());
        Self {
            method: request.method().clone(),
            path: request.extensions().get::<MatchedPath>().cloned(),
            started: Instant::now(),
            trace_parent: trace_parent.cloned(),
            note: Arc::default(),
            record: Arc::default(),
            shared,
            finished: false,
        }
    }

    fn finish(mut self, response: &Response, error: Option<ApiError>) {
        self.finished = true;
        let sent = response.body().size_hint().exact();
        self.record(response.status(), error.map(|error| error.facts().code), sent);
    }

    fn record(&self, status: StatusCode, code: Option<&'static str>, sent: Option<u64>) {
        let elapsed = self.started.elapsed();
        let work = self.record.take();
        let method = known_method(&self.method);
        let path = self.path.as_ref().map(MatchedPath::as_str);
        let model = self.note.model.get().map_or(NONE, |model| model.as_str());
        let mut trace_id = None;
        if let Some((route, operation)) = path.and_then(|path| Some((path, Operation::at_path(path)?.as_str()))) {
            self.shared.app.metrics.requests.with_label_values(&[operation, model, status.as_str()]).inc();
            self.shared.app.metrics.request_seconds.with_label_values(&[operation]).observe(elapsed.as_secs_f64());
            if let Some(code) = code.filter(|_| status.is_client_error()) {
                self.shared.app.metrics.rejected.with_label_values(&[code]).inc();
            }
            let traceparent = self.trace_parent.as_ref().and_then(|value| value.to_str().ok());
            let (status, began, work) = (status.as_u16(), self.started, &work);
            trace_id =
                self.shared.app.traces.tell(&Answered { traceparent, method, route, status, code, model, began, work });
        }
        let path = path.unwrap_or(NONE);
        let key_id = self.note.key_id.get().map_or(NONE, String::as_str);
        let received = self.note.received.load(Ordering::Relaxed);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let [latency_ms, queue_ms, inference_ms] = [elapsed, work.queue, work.inference].map(milliseconds);
        // Absent where nothing was judged; `categories` also where nothing was found.
        let flagged = work.found.as_ref().map(|found| !found.is_empty());
        let categories = work.found.filter(|found| !found.is_empty()).map(|found| found.join(","));
        let failed = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        let (status, code, sent) = (status.as_u16(), code.unwrap_or(NONE), sent.unwrap_or(0));
        macro_rules! line {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    method,
                    path,
                    status,
                    code,
                    latency_ms,
                    queue_ms,
                    inference_ms,
                    received,
                    sent,
                    model,
                    key_id,
                    flagged,
                    categories,
                    trace_id,
                    $message
                )
            };
        }
        if failed {
            line!(error, "request failed");
        } else {
            line!(info, "request");
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.app.metrics.in_flight.dec();
        if !self.finished {
            // Nobody receives either status. After the grace period it is the server that hangs up.
            if self.shared.app.lifecycle.hard().is_cancelled() {
                self.record(StatusCode::INTERNAL_SERVER_ERROR, Some("shutting_down"), None);
            } else {
                // 499 is what proxies log for it.
                let left = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
                self.record(left, Some("caller_left"), None);
            }
        }
    }
}

/// The method's name if it is a standard one: an extension method is whatever the caller typed.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(given: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(given).unwrap());
        request_id(&headers).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_sound_id_is_kept() {
        for given in ["a", "req-1", "!~", &"x".repeat(128)] {
            assert_eq!(id_for(given.as_bytes()), given);
        }
    }

    #[test]
    fn any_other_is_replaced_by_a_fresh_uuid() {
        for given in [&b""[..], b"a b", b"a\tb", "é".as_bytes(), "x".repeat(129).as_bytes()] {
            let id = Uuid::parse_str(&id_for(given)).unwrap();
            assert_eq!(id.get_version_num(), 7, "{given:?}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
