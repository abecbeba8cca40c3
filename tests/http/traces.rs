//! Traces, as a collector gets them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing,
};
use dichroic::telemetry::{
    Metrics, Traces,
    record::{Stage, Work},
    traces::Answered,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span},
};
use prost::Message;
use serde_json::json;
use tokio::{net::TcpListener, runtime::Handle, task::AbortHandle};

use crate::support::{GUARD_TEXT, KEY, PRISMS, Server, Setup, doubles::SLOW, post, post_as, sound};

/// A collector on a free port of this machine.
struct Collector {
    endpoint: String,
    messages: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    serving: AbortHandle,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    async fn start(status: StatusCode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let messages: Arc<Mutex<Vec<(HeaderMap, Bytes)>>> = Arc::default();
        let taken = Arc::clone(&messages);
        let take = async move |headers: HeaderMap, body: Bytes| {
            taken.lock().unwrap().push((headers, body));
            status
        };
        let router = Router::new().route("/v1/traces", routing::post(take));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Self { endpoint, messages, serving }
    }

    fn resources(&self) -> Vec<ResourceSpans> {
        let messages = self.messages.lock().unwrap();
        let decoded = messages.iter().map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap());
        decoded.flat_map(|message| message.resource_spans).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = self.resources().into_iter().flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Everything that has come, as it came.
    fn bytes(&self) -> Vec<u8> {
        let messages = self.messages.lock().unwrap();
        let headers = |headers: &HeaderMap| format!("{headers:?}").into_bytes();
        messages.iter().flat_map(|(head, body)| [headers(head), body.to_vec()].concat()).collect()
    }
}

/// A server that sends its traces there.
struct Traced {
    server: Server,
    traces: Traces,
    metrics: Arc<Metrics>,
}

impl Traced {
    fn to(endpoint: &str) -> Self {
        let metrics = Metrics::new().unwrap();
        let traces = Traces::to(endpoint, &metrics, Handle::current()).unwrap();
        Self { server: Server::with(Setup { traces: traces.clone(), ..Setup::default() }), traces, metrics }
    }

    /// Sends what is queued, as a stop of the server does.
    async fn stopped(&self, patience: Duration) {
        let traces = self.traces.clone();
        tokio::task::spawn_blocking(move || traces.shutdown(patience)).await.unwrap();
    }

    fn posts(&self, outcome: &str) -> u64 {
        self.metrics.trace_posts.with_label_values(&[outcome]).get()
    }
}

const PATIENCE: Duration = Duration::from_secs(4);

fn attributes(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let shown = |value: &KeyValue| match value.value.clone().unwrap().value.unwrap() {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.as_str(), shown(attribute))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_span_and_below_it_are_its_wait_and_its_inference() {
    let collector = Collector::start(StatusCode::OK).await;
    let traced = Traced::to(&collector.endpoint);
    // Without a figure: a text that reads otherwise when its disguise is undone is two items.
    let mut request = post(GUARD_TEXT, json!({"text": "zebra reader:slow"}).to_string());
    for (name, value) in [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "animal=zebra"),
        ("x-request-id", "zebra-7"),
        ("user-agent", "zebra/1.0"),
    ] {
        request.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    traced.server.send(request).await.assert_ok();
    traced.stopped(PATIENCE).await;

    let spans = collector.spans();
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    assert_eq!(spans.len(), 3, "{spans:#?}");
    let (request, queue, inference) = (named("POST /v1/guardians/text"), named("queue"), named("inference"));
    assert_eq!(request.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(request.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    // SPAN_KIND_SERVER
    assert_eq!((request.kind, request.trace_state.as_str()), (2, ""));
    let stated = [
        ("dichroic.model", "alpha-4o-mini"),
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("http.route", "/v1/guardians/text"),
    ];
    assert_eq!(attributes(&request.attributes), stated.map(|(name, value)| (name, value.to_owned())).into());
    for stage in [queue, inference] {
        assert_eq!((&stage.trace_id, &stage.parent_span_id), (&request.trace_id, &request.span_id));
        let stated = [("dichroic.component", "text"), ("dichroic.items", "1")];
        assert_eq!(attributes(&stage.attributes), stated.map(|(name, value)| (name, value.to_owned())).into());
    }
    let times = [queue.start_time_unix_nano, inference.start_time_unix_nano, inference.end_time_unix_nano];
    assert!(request.start_time_unix_nano <= times[0] && times.is_sorted() && times[2] <= request.end_time_unix_nano);
    assert_eq!(queue.end_time_unix_nano, inference.start_time_unix_nano);
    assert!(Duration::from_nanos(times[2] - times[1]) >= SLOW);

    let resource = collector.resources().remove(0).resource.unwrap();
    let resource = attributes(&resource.attributes);
    assert_eq!(resource["service.name"], "dichroic");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((traced.posts("sent"), traced.posts("failed")), (1, 0));
    assert_eq!(collector.messages.lock().unwrap()[0].0["content-type"], "application/x-protobuf");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_text_key_or_unknown_path_is_in_any_span() {
    let collector = Collector::start(StatusCode::OK).await;
    let traced = Traced::to(&collector.endpoint);
    let server = &traced.server;
    let issued = server.issue(dichroic::access::keys::NewKey::default());
    let mut odd = post(PRISMS, json!({"text": "zebra scribe:harm"}).to_string());
    for (name, value) in [("traceparent", "00-zebra-zebra-01"), ("tracestate", "zebra=1"), ("baggage", "zebra=1")] {
        odd.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    server.send(odd).await.assert_error(500, "generation_rejected");
    server.post(PRISMS, &json!({"text": "a zebra crossed the street"})).await.assert_ok();
    server.post(PRISMS, &json!({"text": "a", "model": "zebra"})).await.assert_error(400, "unknown_model");
    server.send(post(PRISMS, "{\"zebra\": zebra")).await.assert_error(400, "invalid_json");
    server.send(post_as("zebra", PRISMS, &sound(PRISMS))).await.assert_error(401, "invalid_api_key");
    server.send(post_as(&issued, PRISMS, &sound(PRISMS))).await.assert_ok();
    server.get("/v1/zebra?zebra=zebra").await.assert_error(404, "not_found");
    server.get("/livez").await.assert_ok();
    traced.stopped(PATIENCE).await;

    let spans = collector.spans();
    let requests: Vec<&Span> = spans.iter().filter(|span| span.kind == 2).collect();
    assert!(requests.iter().all(|span| span.name == "POST /v1/prisms/text"), "{requests:#?}");
    let codes: Vec<String> =
        requests.iter().filter_map(|span| attributes(&span.attributes).remove("error.type")).collect();
    assert_eq!(codes, ["generation_rejected", "unknown_model", "invalid_json", "invalid_api_key"]);
    assert_eq!(requests.len(), codes.len() + 2, "those that were answered; no probe, no unknown path");
    // STATUS_CODE_ERROR, for failures of the server alone.
    let failed: Vec<i32> = requests.iter().map(|span| span.status.clone().unwrap_or_default().code).collect();
    assert_eq!(failed.iter().filter(|code| **code == 2).count(), 1);
    let components: Vec<String> =
        spans.iter().filter_map(|span| attributes(&span.attributes).remove("dichroic.component")).collect();
    assert!(components.contains(&"generator".into()) && components.contains(&"text".into()), "{components:?}");

    let bytes = collector.bytes();
    for never in ["zebra", "crossed", "bright side", KEY, issued.as_str()] {
        let found = bytes.windows(never.len()).any(|window| window.eq_ignore_ascii_case(never.as_bytes()));
        assert!(!found, "{never}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_the_callers_if_it_names_one_and_none_if_it_says_so() {
    let collector = Collector::start(StatusCode::OK).await;
    let traced = Traced::to(&collector.endpoint);
    for parent in ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "nonsense"] {
        let mut request = post(GUARD_TEXT, sound(GUARD_TEXT).to_string());
        request.headers_mut().insert("traceparent", HeaderValue::from_static(parent));
        traced.server.send(request).await.assert_ok();
    }
    traced.server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    traced.stopped(PATIENCE).await;
    let spans = collector.spans();
    let roots: Vec<&Span> = spans.iter().filter(|span| span.kind == 2).collect();
    assert_eq!(roots.len(), 2, "the first is not sampled: {roots:#?}");
    assert!(roots.iter().all(|span| span.parent_span_id.is_empty()));
    assert_ne!(roots[0].trace_id, roots[1].trace_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_is_a_span_too() {
    let collector = Collector::start(StatusCode::OK).await;
    let traced = Traced::to(&collector.endpoint);
    let slow = json!({"text": "reader:slow"});
    let left = tokio::time::timeout(SLOW / 4, traced.server.post(GUARD_TEXT, &slow)).await;
    assert!(left.is_err());
    traced.stopped(PATIENCE).await;
    let spans = collector.spans();
    let request = spans.iter().find(|span| span.kind == 2).unwrap();
    assert_eq!(attributes(&request.attributes)["error.type"], "caller_left");
    let mut below: Vec<&str> = spans.iter().filter(|span| span.kind != 2).map(|span| span.name.as_str()).collect();
    below.sort_unstable();
    assert_eq!(below, ["inference", "queue"], "it left while the model worked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_gone_or_refuses_is_counted_and_costs_no_answer() {
    let refusing = Collector::start(StatusCode::FORBIDDEN).await;
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for endpoint in [&refusing.endpoint, &gone] {
        let traced = Traced::to(endpoint);
        traced.server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
        traced.stopped(PATIENCE).await;
        assert_eq!(traced.posts("sent"), 0);
        assert!(traced.posts("failed") >= 1);
        traced.server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_holds_nobody_up() {
    // The system accepts connections for it; nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let traced = Traced::to(&format!("http://{}", silent.local_addr().unwrap()));
    let begun = Instant::now();
    let stage = Stage { component: "text".into(), items: 1, queued: begun, started: Some(begun), ended: begun };
    let work = Work { stages: vec![stage], ..Work::default() };
    let answered = Answered {
        traceparent: None,
        method: "POST",
        route: GUARD_TEXT,
        status: 200,
        code: None,
        model: "alpha-4o-mini",
        began: begun,
        work: &work,
    };
    // Several times what the queue holds.
    for _ in 0..5_000 {
        assert!(traced.traces.tell(&answered).is_some());
    }
    traced.server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    traced.stopped(Duration::from_millis(200)).await;
    // One message alone would have taken longer to give up.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn without_a_collector_there_is_no_trace() {
    let traces = Traces::default();
    assert!(!traces.are_on());
    let work = Work::default();
    let answered = Answered {
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        method: "POST",
        route: GUARD_TEXT,
        status: 200,
        code: None,
        model: "alpha-4o-mini",
        began: Instant::now(),
        work: &work,
    };
    assert_eq!(traces.tell(&answered), None);
}
