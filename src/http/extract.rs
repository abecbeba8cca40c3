//! Request bodies: what may come, how much of it, and how long it may take.
//!
//! Owns the checks of `Content-Type` and size, and the memory that bodies, and the pictures in them, take. Refuses a body as
//! soon as its limit is passed. Runs on the tokio threads; large bodies are parsed on the blocking pool.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use http_body_util::BodyExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{SharedState, error::ApiError, observe::Note};
use crate::domain::ModelId;

/// Largest body of a text operation: 500 characters take 6 kB in the longest escaping there is.
pub(super) const TEXT_BODY_BYTES: usize = 64 * 1024;

/// Largest body with pictures: 10 MiB of picture are 13.4 MiB of Base64, and 14.2 MiB when a line break is
/// escaped after every 64 characters of it. The rest is for escaped slashes and other fields.
pub(super) const IMAGE_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Bodies up to here are parsed where they arrive: it takes less time than handing them over.
const INLINE_BYTES: usize = 64 * 1024;

/// Grain of the memory account for bodies.
pub(super) const GRAIN_BYTES: usize = 64 * 1024;

/// What is read and thrown away of a body that was refused, so that the sender gets to see the answer.
const DRAIN_BYTES: usize = 2 * IMAGE_BODY_BYTES;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A request body with its wire type.
pub(super) trait Payload: Sized + Send + 'static {
    /// Largest accepted body.
    const MAX_BYTES: usize;

    /// Reads and validates a whole body.
    fn parse(body: &[u8]) -> Result<Self, ApiError>;

    /// The model it names.
    fn model(&self) -> ModelId;
}

/// Extracts a validated body. Holding one is proof that everything in it was checked. To be kept with it until it is
/// answered: the room that its pictures take.
pub(super) struct Valid<T>(pub(super) T, pub(super) Room);

/// Memory that a request takes, given back when this is dropped.
pub(super) struct Room(#[expect(dead_code, reason = "held, not looked at")] Option<OwnedSemaphorePermit>);

impl<T: Payload> FromRequest<SharedState> for Valid<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &SharedState) -> Result<Self, Self::Rejection> {
        let (parts, mut body) = request.into_parts();
        let note = Note::of(&parts.extensions);
        let mut held = Held::new(T::MAX_BYTES, Arc::clone(&shared.body_room));
        let read = if is_json(&parts.headers) {
            let reading = timeout(shared.app.bodies.deadline, held.read(&mut body));
            reading.await.unwrap_or(Err(ApiError::IncompleteBody))
        } else {
            Err(ApiError::UnsupportedContentType)
        };
        note.set_received(held.bytes.len());
        if let Err(error) = read {
            if error != ApiError::IncompleteBody && (held.begun || !awaits_leave(&parts.headers)) {
                drain(body).await;
            }
            return Err(error);
        }
        let (value, permits) = if held.bytes.len() <= INLINE_BYTES {
            held.parsed()?
        } else {
            let span = tracing::Span::current();
            // All of it: a caller who leaves must not give back room that the bytes still take.
            let parse = move || span.in_scope(|| held.parsed());
            let parsed = tokio::task::spawn_blocking(parse).await;
            // What the panic said may quote the body; its place has been logged.
            parsed.map_err(|_| {
                shared.app.metrics.task_panics.with_label_values(&["body"]).inc();
                ApiError::Internal
            })??
        };
        let value: T = value;
        note.set_model(value.model());
        Ok(Self(value, Room(permits)))
    }
}

/// The bytes of a body that have arrived, with the permits for the memory they take.
struct Held {
    bytes: Vec<u8>,
    max_bytes: usize,
    /// Whether it was asked for: what was told to wait for leave has got it.
    begun: bool,
    room: Arc<Semaphore>,
    permits: Option<OwnedSemaphorePermit>,
}

impl Held {
    fn new(max_bytes: usize, room: Arc<Semaphore>) -> Self {
        Self { bytes: Vec::new(), max_bytes, begun: false, room, permits: None }
    }

    /// What the bytes say. They are dropped; the permits for them pass to what was made of them, which is no larger.
    fn parsed<T: Payload>(self) -> Result<(T, Option<OwnedSemaphorePermit>), ApiError> {
        T::parse(&self.bytes).map(|value| (value, self.permits))
    }

    async fn read(&mut self, body: &mut Body) -> Result<(), ApiError> {
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > self.max_bytes {
            return Err(ApiError::BodyTooLarge);
        }
        self.bytes.reserve_exact(declared);
        self.begun = true;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| ApiError::IncompleteBody)?.into_data() else { continue };
            let length = self.bytes.len() + data.len();
            if length > self.max_bytes {
                return Err(ApiError::BodyTooLarge);
            }
            self.account_for(length)?;
            self.bytes.extend_from_slice(&data);
        }
        Ok(())
    }

    /// Takes permits as the body grows, so that a caller who sends nothing holds nothing. The first grain is free:
    /// no number of pictures can keep a text out.
    fn account_for(&mut self, length: usize) -> Result<(), ApiError> {
        let grains = length.div_ceil(GRAIN_BYTES).saturating_sub(1);
        let held = self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = u32::try_from(grains.saturating_sub(held)).unwrap_or(u32::MAX);
        if wanted == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.room).try_acquire_many_owned(wanted);
        let more = more.map_err(|_| ApiError::Overloaded { retry_after: Duration::from_secs(1) })?;
        match &mut self.permits {
            Some(permits) => permits.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// Refuses a request whose body nobody has looked at.
pub(super) async fn turn_away(request: Request, error: ApiError) -> ApiError {
    let (parts, body) = request.into_parts();
    if !awaits_leave(&parts.headers) {
        drain(body).await;
    }
    error
}

/// Whether the body is sent after `100 Continue` only, which goes out when it is first asked for.
fn awaits_leave(headers: &HeaderMap) -> bool {
    headers.contains_key(header::EXPECT)
}

/// Reads and drops what is left of a refused request's body, within bounds: an answer sent while the client is still
/// writing is lost to most clients.
async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, axum::body::Bytes::len);
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
    };
    // Whether the end was reached does not matter: the answer goes out either way.
    let _ = timeout(DRAIN_TIME, reading).await;
}

/// `application/json` or `application/*+json`, with any parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    essence
        .strip_prefix(b"application/")
        .is_some_and(|subtype| subtype == b"json" || (subtype.len() > 5 && subtype.ends_with(b"+json")))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn json(values: &[&str]) -> bool {
        let pairs = values.iter().map(|value| (header::CONTENT_TYPE, HeaderValue::from_str(value).unwrap()));
        is_json(&pairs.collect())
    }

    #[test]
    fn content_types() {
        for value in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8 ; x=\"y\"",
            " application/json ",
            "application/problem+json",
        ] {
            assert!(json(&[value]), "{value}");
        }
        for value in ["", "text/plain", "text/json", "application/jsonp", "application/+json", "json", "application/x"]
        {
            assert!(!json(&[value]), "{value}");
        }
        assert!(!json(&[]));
        assert!(!json(&["application/json", "text/plain"]));
    }

    #[test]
    fn memory_is_taken_as_a_body_grows_and_given_back() {
        let room = Arc::new(Semaphore::new(3));
        let mut first = Held::new(IMAGE_BODY_BYTES, Arc::clone(&room));
        assert_eq!(first.account_for(GRAIN_BYTES), Ok(()));
        assert_eq!(room.available_permits(), 3);
        assert_eq!(first.account_for(GRAIN_BYTES + 1), Ok(()));
        assert_eq!(first.account_for(3 * GRAIN_BYTES), Ok(()));
        assert_eq!(room.available_permits(), 1);
        let mut second = Held::new(IMAGE_BODY_BYTES, Arc::clone(&room));
        let refusal = Err(ApiError::Overloaded { retry_after: Duration::from_secs(1) });
        assert_eq!(second.account_for(4 * GRAIN_BYTES), refusal);
        drop(first);
        assert_eq!(second.account_for(4 * GRAIN_BYTES), Ok(()));
        drop(second);
        assert_eq!(room.available_permits(), 3);
    }
}
