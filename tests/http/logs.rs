//! What is logged about a request, and what never is.

use std::{
    io,
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use axum::http::HeaderValue;
use dichroic::telemetry::{Metrics, Traces};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{GUARD_TEXT, KEY, MODERATIONS, PRISMS, Server, Setup, post, post_as, sound};

#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Lines {
    /// Collects what this thread logs at every level, as the server would write it.
    pub(crate) fn collect(level: &str) -> (Self, tracing::subscriber::DefaultGuard) {
        // Whether a place in the code logs at all is remembered for all threads: one that is first reached while no
        // subscriber of any thread listens would stay silent in this one.
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap());
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt().json().with_env_filter(level).with_writer(lines.clone()).finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn entries(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn one_line_a_request_with_its_id() {
    let server = Server::new();
    let (lines, _guard) = Lines::collect("info");
    let mut request = post(GUARD_TEXT, json!({"text": "zebra"}).to_string());
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("seven"));
    server.send(request).await.assert_ok();
    let entries = lines.entries();
    assert_eq!(entries.len(), 1, "{entries:#?}");
    assert_eq!(entries[0]["span"]["request_id"], "seven");
    let fields = &entries[0]["fields"];
    assert_eq!(fields["method"], "POST");
    assert_eq!(fields["path"], GUARD_TEXT);
    assert_eq!(fields["status"], 200);
    assert_eq!(fields["model"], "alpha-4o-mini");
    assert_eq!(fields["key_id"], "bootstrap");
    assert_eq!(fields["received"], 16);
    assert!(fields["sent"].as_u64().unwrap() > 100);
    let milliseconds = |name: &str| fields[name].as_f64().unwrap();
    assert!(milliseconds("inference_ms") > 0.0 && milliseconds("queue_ms") > 0.0);
    assert!(milliseconds("latency_ms") > milliseconds("inference_ms") + milliseconds("queue_ms"));
    assert_eq!(fields["flagged"], false);
    assert!(fields.get("categories").is_none() && fields.get("trace_id").is_none(), "{fields}");
}

#[tokio::test]
async fn a_verdict_is_told_by_its_flags_and_not_by_scores() {
    let server = Server::new();
    let (lines, _guard) = Lines::collect("info");
    server.post(GUARD_TEXT, &json!({"text": "violence=0.8 hate=0.9 sexual=0.1"})).await.assert_ok();
    let both = json!({"input": ["violence=0.7", "a quiet day"]});
    server.post(MODERATIONS, &both).await.assert_ok();
    server.post(PRISMS, &sound(PRISMS)).await.assert_ok();
    let entries = lines.entries();
    let fields: Vec<&Value> = entries.iter().map(|entry| &entry["fields"]).collect();
    assert_eq!((&fields[0]["flagged"], &fields[0]["categories"]), (&json!(true), &json!("hate,violence")));
    assert_eq!((&fields[1]["flagged"], &fields[1]["categories"]), (&json!(true), &json!("violence")));
    assert!(fields[2].get("flagged").is_none(), "nothing was judged for the caller: {}", fields[2]);
    assert!(fields[2]["inference_ms"].as_f64().unwrap() > 0.0);
    let mut told: Vec<&str> = fields[0].as_object().unwrap().keys().map(String::as_str).collect();
    told.sort_unstable();
    let known = [
        "categories",
        "code",
        "flagged",
        "inference_ms",
        "key_id",
        "latency_ms",
        "message",
        "method",
        "model",
        "path",
        "queue_ms",
        "received",
        "sent",
        "status",
    ];
    assert_eq!(told, known, "no score is among them");
}

#[tokio::test]
async fn a_line_names_its_trace() {
    let metrics = Metrics::new().unwrap();
    // Nobody listens on the port of the discard protocol; what matters here is the line.
    let traces = Traces::to("http://127.0.0.1:9", &metrics, Handle::current()).unwrap();
    let server = Server::with(Setup { traces: traces.clone(), ..Setup::default() });
    let (lines, guard) = Lines::collect("info");
    let mut request = post(GUARD_TEXT, sound(GUARD_TEXT).to_string());
    let parent = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    request.headers_mut().insert("traceparent", parent);
    server.send(request).await.assert_ok();
    assert_eq!(lines.entries()[0]["fields"]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    drop(guard);
    tokio::task::spawn_blocking(move || traces.shutdown(Duration::from_secs(4))).await.unwrap();
}

#[tokio::test]
async fn a_failure_is_one_line_that_no_filter_strips_of_its_id() {
    let server = Server::new();
    let (lines, _guard) = Lines::collect("error");
    server.post(PRISMS, &json!({"text": "scribe:empty"})).await.assert_error(500, "generation_rejected");
    let entries = lines.entries();
    assert_eq!(entries.len(), 1, "{entries:#?}");
    assert_eq!(entries[0]["fields"]["code"], "generation_rejected");
    assert!(entries[0]["span"]["request_id"].is_string());
}

#[tokio::test]
async fn neither_texts_nor_keys_nor_unknown_paths_are_logged() {
    let server = Server::new();
    let issued = server.issue(dichroic::access::keys::NewKey::default());
    let (lines, _guard) = Lines::collect("trace");
    server.post(PRISMS, &json!({"text": "zebra"})).await.assert_ok();
    server.post(PRISMS, &json!({"text": "zebra scribe:harm"})).await.assert_error(500, "generation_rejected");
    server.post(PRISMS, &json!({"text": "a", "model": "zebra"})).await.assert_error(400, "unknown_model");
    server.send(post(PRISMS, "{\"zebra\": zebra")).await.assert_error(400, "invalid_json");
    server.get("/v1/zebra?zebra=zebra").await.assert_error(404, "not_found");
    server.send(post_as("zebra", PRISMS, &sound(PRISMS))).await.assert_error(401, "invalid_api_key");
    server.send(post_as(&issued, PRISMS, &sound(PRISMS))).await.assert_ok();
    let text = lines.text();
    assert!(text.lines().count() >= 7, "{text}");
    assert!(!text.contains("zebra"), "{text}");
    assert!(!text.contains(KEY) && !text.contains(&issued), "{text}");
}

#[tokio::test]
async fn a_caller_who_leaves_is_noted() {
    let server = Server::new();
    let (lines, _guard) = Lines::collect("info");
    let slow = json!({"text": "reader:slow"});
    let left = tokio::time::timeout(Duration::from_millis(50), server.post(GUARD_TEXT, &slow)).await;
    assert!(left.is_err());
    assert_eq!(lines.entries()[0]["fields"]["code"], "caller_left");
    assert_eq!(server.metrics.in_flight.get(), 0);
}
