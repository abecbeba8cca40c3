//! Costs of our own code around the models (`make bench`): queues and batches, the scheduler's step, sampling,
//! tokenising. The models are stand-ins that take no time; only the tokenizers are those of the built models.
//!
//! Compare figures of one run with each other only: they belong to one machine and moment.
#![expect(clippy::unwrap_used, reason = "a benchmark without its models has nothing to measure")]

use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dichroic::{
    engine::{
        BatchOptions, Batcher, Factory, GenerateParams, Generator, GeneratorOptions, Sampling, batch::BatchPolicy,
        generate,
    },
    registry::Bundle,
    runtime::{Decode, Forward, PromptTokenizer, RuntimeError, Step, WindowTokenizer},
    telemetry::Metrics,
};

/// A classifier that answers at once; an item is its own cost.
struct Instantly;

impl Forward for Instantly {
    type Input = usize;
    type Output = usize;

    fn cost(input: &usize) -> usize {
        *input
    }

    fn run(&mut self, batch: &[usize]) -> Result<Vec<usize>, RuntimeError> {
        Ok(batch.to_vec())
    }
}

/// A generator that answers at once, with logits of a vocabulary's width.
struct Effortless {
    rows: usize,
    logits: Vec<f32>,
}

impl Decode for Effortless {
    fn rows(&self) -> usize {
        self.rows
    }

    fn window(&self) -> usize {
        4096
    }

    fn prefill(&mut self, _row: usize, _past: usize, _tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        Ok(self.logits.clone())
    }

    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Ok(vec![self.logits.clone(); steps.len()])
    }

    fn verify(&mut self, _row: usize, _past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Ok(vec![self.logits.clone(); tokens.len()])
    }

    fn verifies(&self) -> bool {
        true
    }

    fn copy(&mut self, _from: usize, _to: usize, _length: usize) {}
}

fn blocking() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// Items a second through inbox, policy, worker and back, by how many wait and how they differ in length.
fn batching(criterion: &mut Criterion) {
    let policy = BatchPolicy { budget: 2048, items: 64, wait: Duration::ZERO };
    let options = BatchOptions { capacity: 1024, workers: 1, policy };
    let factory: Factory<Instantly> = Arc::new(|| Ok(Instantly));
    let metrics = Metrics::new().unwrap().model("bench", "text");
    let batcher = Batcher::start("bench", options, &factory, &metrics).unwrap();
    let tokio = blocking();
    let mut group = criterion.benchmark_group("batching");
    for waiting in [1_usize, 64, 512] {
        let lengths = |spread: usize| -> Vec<usize> { (0..waiting).map(|n| 8 + n * 37 % spread).collect() };
        for (kind, items) in [("equal", lengths(1)), ("mixed", lengths(120))] {
            group.throughput(Throughput::Elements(waiting as u64));
            group.bench_with_input(BenchmarkId::new(kind, waiting), &items, |bench, items| {
                bench.iter(|| tokio.block_on(batcher.submit(black_box(items.clone()), soon())).unwrap());
            });
        }
    }
}

/// Tokens a second of the scheduler and the sampler alone, by live rows: a model's step costs this on top.
fn scheduling(criterion: &mut Criterion) {
    const TOKENS: usize = 32;
    const VOCABULARY: u16 = 49_152;
    let logits: Vec<f32> = (0..VOCABULARY).map(|n| f32::from(n % 997) / 100.0).collect();
    let rows = generate::rows_for(8);
    let factory: Factory<Effortless> = Arc::new(move || Ok(Effortless { rows, logits: logits.clone() }));
    let metrics = Metrics::new().unwrap().model("bench", "generator");
    let options = GeneratorOptions { capacity: 64, prefill_tokens: 32, lookup: None };
    let generator = Generator::start("bench", options, &factory, &metrics).unwrap();
    let tokio = blocking();
    let mut group = criterion.benchmark_group("scheduling");
    for (kind, sampling) in
        [("greedy", Sampling::Greedy), ("nucleus", Sampling::Nucleus { temperature: 0.8, top_p: 0.95, seed: 1 })]
    {
        for live in [1_usize, 8] {
            let sequence = GenerateParams {
                prefix: Arc::from([1, 2, 3]),
                body: vec![4; 24],
                max_tokens: TOKENS,
                stop: Arc::from([]),
                sampling,
                watched: Arc::default(),
            };
            group.throughput(Throughput::Elements((live * TOKENS) as u64));
            group.bench_with_input(BenchmarkId::new(kind, live), &live, |bench, &live| {
                bench.iter(|| tokio.block_on(generator.submit(vec![sequence.clone(); live], soon())).unwrap());
            });
        }
    }
}

/// Texts a second turned into tokens.
fn tokenising(criterion: &mut Criterion) {
    let open = |component: &str| Bundle::open(&Path::new("models/alpha-4o-mini/build").join(component)).unwrap();
    let classifier = WindowTokenizer::open(&open("text")).unwrap();
    let generator = open("generator");
    let prompts = PromptTokenizer::open(&generator).unwrap();
    let prompt = &generator.manifest().generator.as_ref().unwrap().tasks.positive;
    let short = "The train leaves at nine and the tickets are on the table.";
    let long = short.repeat(8);
    let disguised = "Th3 tr\u{430}in l\u{435}aves @t n1ne \u{200b}and the t i c k e t s are on the t4ble.";
    let mut group = criterion.benchmark_group("tokenising");
    group.throughput(Throughput::Elements(1));
    for (kind, text) in [("short", short), ("long", long.as_str()), ("disguised", disguised)] {
        group.bench_function(BenchmarkId::new("windows", kind), |bench| {
            bench.iter(|| classifier.encode(black_box(text)).unwrap());
        });
        group.bench_function(BenchmarkId::new("prompt", kind), |bench| {
            bench.iter(|| prompts.body(prompt, black_box(text)).unwrap());
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = batching, scheduling, tokenising
}
criterion_main!(benches);
