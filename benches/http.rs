//! Text moderation end to end (`make bench`): requests over loopback connections through routes, keys, limits,
//! tokenizer, batches and the classifier of the default identifier, and back.
//!
//! The engine's own rate is in `models.rs`, group `moderation`: what is missing here went into HTTP and the queue, and
//! into the client, which runs on the same cores.
#![expect(clippy::unwrap_used, reason = "a benchmark without its models has nothing to measure")]

#[path = "client/mod.rs"]
mod client;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dichroic::{
    access::{KeyStore, MemoryLimiter},
    domain::{Device, ModelId, UsageLimit},
    engine::{BatchOptions, Batcher, Factory, batch::BatchPolicy},
    http::{App, BodyLimits, ServeOptions, router, serve},
    lifecycle::Lifecycle,
    registry::Bundle,
    runtime::{Runtime, TextClassifier, WindowTokenizer},
    service::{Company, Models, ServiceOptions, Services, TextGuardian, TextModel},
    telemetry::{Metrics, Traces},
};
use futures_util::future::try_join_all;
use secrecy::SecretString;
use tokio::net::TcpListener;

use client::{Client, head_for};

const KEY: &str = "the-key-of-the-benchmark";
const PATH: &str = "/v1/guardians/text";

/// The server's parts as `cli::compose` puts them together, text moderation only. Nothing is answered from memory: the
/// guardian has no cache.
fn app() -> App {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    let runtime = Runtime::load(Path::new("runtime/libonnxruntime.so"), cores).unwrap();
    let bundle = Arc::new(Bundle::open(Path::new("models/alpha-4o-mini/build/text")).unwrap());
    let metrics = Metrics::new().unwrap();
    let spec = bundle.manifest().text_classifier.clone().unwrap();
    let tokenizer = WindowTokenizer::open(&bundle).unwrap();
    let digest = bundle.digest().to_owned();
    let factory: Factory<TextClassifier> = Arc::new(move || TextClassifier::open(&runtime, &bundle));
    let policy = BatchPolicy { budget: 512, items: 64, wait: Duration::from_micros(500) };
    let options = BatchOptions { capacity: 1024, workers: cores.min(2), policy };
    let batcher = Batcher::start("bench", options, &factory, &metrics.model("bench", "text")).unwrap();
    let own = TextModel::new("bench".to_owned(), tokenizer, batcher, &spec, Arc::clone(&metrics));
    let guardian = TextGuardian::new(Arc::new(own), Company::default(), digest);
    let models = Models { text: Some(Arc::new(guardian)), ..Models::default() };
    let services = ServiceOptions { timeout: Duration::from_secs(30), image_queue: 1, device: Device::Cpu };
    let id = ModelId::ALL.into_iter().find(|id| id.as_str() == "alpha-4o-mini").unwrap();
    let unlimited = UsageLimit { per_minute: 0, burst: 1 };
    App {
        services: Arc::new(Services::new(BTreeMap::from([(id, models)]), services, Arc::clone(&metrics))),
        keys: Arc::new(KeyStore::open(None, Some(SecretString::from(KEY)), unlimited).unwrap()),
        limiter: Arc::new(MemoryLimiter::default()),
        metrics,
        traces: Traces::default(),
        lifecycle: Lifecycle::new(),
        bodies: BodyLimits::default(),
        playground: false,
    }
}

/// Answers a second by connections, each with one request under way.
fn moderation(criterion: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let app = app();
    // As the server does once it is ready.
    tokio.block_on(app.services.calibrate());
    let lifecycle = app.lifecycle.clone();
    let listener = tokio.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio.spawn(serve(listener, router(app), ServeOptions::default(), lifecycle.clone()));
    let number = AtomicUsize::new(0);
    // No text comes twice: an answer that was remembered would not be the classifier's.
    let fresh = || {
        let n = number.fetch_add(1, Ordering::Relaxed);
        format!(r#"{{"text": "The train leaves at nine and the {n} tickets are on the table."}}"#)
    };
    let mut group = criterion.benchmark_group("http");
    for connections in [1_usize, 8, 32] {
        let mut clients: Vec<Client> =
            tokio.block_on(try_join_all((0..connections).map(|_| Client::connect(&address)))).unwrap();
        group.throughput(Throughput::Elements(connections as u64));
        group.bench_function(BenchmarkId::new("moderation", connections), |bench| {
            bench.iter_custom(|rounds| {
                let start = Instant::now();
                tokio
                    .block_on(try_join_all(clients.iter_mut().map(async |client| {
                        for _ in 0..rounds {
                            let body = fresh();
                            let (status, _) = client.ask(&head_for(PATH, KEY, body.len()), body.as_bytes()).await?;
                            assert_eq!(status, 200);
                        }
                        std::io::Result::Ok(())
                    })))
                    .unwrap();
                start.elapsed()
            });
        });
    }
    group.finish();
    lifecycle.hard().cancel();
    lifecycle.soft().cancel();
    tokio.block_on(server).unwrap().unwrap();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(5));
    targets = moderation
}
criterion_main!(benches);
