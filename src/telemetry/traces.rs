//! Traces over OTLP (HTTP, protobuf): a span for each answered operation, and below it one for each wait in a queue and
//! each stretch of inference. Off unless a collector is named.
//!
//! Owns the bounded queue of spans and the only connection that this room opens, in plain HTTP. Refuses whatever a
//! caller wrote, except the ids of a well-formed `traceparent`: a span is made of times, numbers and fixed words, from
//! the request's record, when the request has ended. That runs on its tokio thread and never waits. A thread of the
//! library gathers batches, tokio sends them; a collector that is slow or gone costs the spans that do not fit.

use std::{
    borrow::Cow,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _},
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider},
};
use prometheus::IntCounterVec;
use tokio::{net::TcpStream, runtime::Handle, time::timeout};

use super::{
    Metrics,
    metrics::OUTCOMES,
    record::{Stage, Work},
};

/// Spans that may wait to be sent; more are dropped.
const QUEUE: usize = 2048;
/// Spans in one message.
const BATCH: usize = 512;
/// How long a span waits for others.
const DELAY: Duration = Duration::from_secs(5);
/// Time for one message, attempts and pauses included.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes that are read of a collector's answer.
const MOST_ANSWER: usize = 64 * 1024;

/// Where spans go. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Pipe>);

#[derive(Clone, Debug)]
struct Pipe {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The caller's header of this name, as it came.
    pub traceparent: Option<&'a str>,
    /// One of the standard methods.
    pub method: &'static str,
    /// The pattern of its path.
    pub route: &'a str,
    /// Of the answer.
    pub status: u16,
    /// Of the error, if there was one.
    pub code: Option<&'static str>,
    /// Which model answered.
    pub model: &'static str,
    /// When it arrived.
    pub began: Instant,
    /// What it came to.
    pub work: &'a Work,
}

impl Traces {
    /// Sends spans to the collector at `endpoint`, such as `http://127.0.0.1:4318`, through the given runtime.
    ///
    /// # Errors
    /// [`ExporterBuildError`] for an endpoint that is no address.
    pub fn to(endpoint: &str, metrics: &Metrics, tokio: Handle) -> Result<Self, ExporterBuildError> {
        let client = Client { tokio, posts: metrics.trace_posts.clone(), failing: AtomicBool::new(false) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(PATIENCE)
            .build()?;
        let queue = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(queue).build())
            .with_resource(Resource::builder().with_service_name("dichroic").with_attribute(version).build())
            .build();
        let tracer = provider.tracer("dichroic");
        Ok(Self(Some(Pipe { provider, tracer })))
    }

    /// Whether there is a collector.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Makes the spans of a request and queues them, or drops them where the queue is full. Answers the id of the trace
    /// if it is one that is kept.
    pub fn tell(&self, request: &Answered) -> Option<String> {
        let tracer = &self.0.as_ref()?.tracer;
        let clock = Clock { wall: SystemTime::now(), steady: Instant::now() };
        let parent = Parent(request.traceparent);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &parent);
        let mut span = tracer
            .span_builder(format!("{} {}", request.method, request.route))
            .with_kind(SpanKind::Server)
            .with_start_time(clock.at(request.began))
            .with_attributes([
                KeyValue::new("http.request.method", request.method),
                KeyValue::new("http.route", request.route.to_owned()),
                KeyValue::new("http.response.status_code", i64::from(request.status)),
                KeyValue::new("dichroic.model", request.model),
            ])
            .start_with_context(tracer, &parent);
        if let Some(code) = request.code {
            span.set_attribute(KeyValue::new("error.type", code));
            if request.status >= 500 {
                span.set_status(Status::Error { description: Cow::Borrowed(code) });
            }
        }
        let context = Context::new().with_span(span);
        for stage in &request.work.stages {
            let wait = ("queue", stage.queued, stage.started.unwrap_or(stage.ended));
            let inference = stage.started.map(|started| ("inference", started, stage.ended));
            for (name, start, end) in [Some(wait), inference].into_iter().flatten() {
                tracer
                    .span_builder(name)
                    .with_start_time(clock.at(start))
                    .with_attributes(attributes(stage))
                    .start_with_context(tracer, &context)
                    .end_with_timestamp(clock.at(end));
            }
        }
        let span = context.span();
        span.end_with_timestamp(clock.wall);
        let ids = span.span_context();
        ids.is_sampled().then(|| ids.trace_id().to_string())
    }

    /// Sends what is queued, for at most so long. Blocks, and needs the runtime to turn meanwhile.
    pub fn shutdown(&self, patience: Duration) {
        if let Some(pipe) = &self.0
            && let Err(error) = pipe.provider.shutdown_with_timeout(patience)
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

fn attributes(stage: &Stage) -> [KeyValue; 2] {
    [
        KeyValue::new("dichroic.component", stage.component.to_string()),
        KeyValue::new("dichroic.items", i64::try_from(stage.items).unwrap_or(i64::MAX)),
    ]
}

/// The one header that is taken over. `tracestate`, its companion, holds what callers like.
struct Parent<'a>(Option<&'a str>);

impl Extractor for Parent<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.filter(|_| name == "traceparent")
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// Turns the times of a request into those of the calendar.
struct Clock {
    wall: SystemTime,
    steady: Instant,
}

impl Clock {
    fn at(&self, time: Instant) -> SystemTime {
        self.wall.checked_sub(self.steady.saturating_duration_since(time)).unwrap_or(self.wall)
    }
}

/// Posts batches, each over a connection of its own: they are seconds apart.
#[derive(Debug)]
struct Client {
    tokio: Handle,
    posts: IntCounterVec,
    failing: AtomicBool,
}

impl HttpClient for Client {
    // Written out as the library's macro would.
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        // The library's thread has no reactor.
        let exchange = self.tokio.spawn(async move { timeout(PATIENCE, post(request)).await });
        Box::pin(async move {
            let outcome = match exchange.await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(late)) => Err(late.into()),
                Err(stopped) => Err(stopped.into()),
            };
            self.note(&outcome);
            outcome
        })
    }
}

impl Client {
    /// Counts every outcome, and logs where it turns.
    fn note(&self, outcome: &Result<Response<Bytes>, HttpError>) {
        let failure = match outcome {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        let [sent, failed] = OUTCOMES;
        self.posts.with_label_values(&[if failure.is_none() { sent } else { failed }]).inc();
        match (failure.as_deref(), self.failing.swap(failure.is_some(), Ordering::Relaxed)) {
            (Some(reason), false) => tracing::warn!(reason, "traces do not reach the collector"),
            (None, true) => tracing::info!("traces reach the collector again"),
            _ => {}
        }
    }
}

async fn post(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut head, body) = request.into_parts();
    let address = head.uri.authority().ok_or("the endpoint names no host")?.as_str().to_owned();
    head.headers.insert(HOST, address.parse()?);
    // A server is asked for the path alone.
    head.uri = head.uri.path().parse()?;
    let stream = TcpStream::connect(&address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async move {
        let response = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MOST_ANSWER).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    // The connection ends when the exchange has let go of it; what broke it breaks the exchange too.
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
