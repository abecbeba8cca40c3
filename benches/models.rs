//! Costs of the parts of a request, on the built models of the default identifier (`make bench`).
//!
//! Compare figures of one run with each other only: they belong to one machine and moment.
#![expect(clippy::unwrap_used, reason = "a benchmark without its models has nothing to measure")]

use std::{hint::black_box, path::Path, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dichroic::{
    imaging::{self, Limits},
    registry::Bundle,
    runtime::{Decode, Decoder, Forward, ImageClassifier, Pixels, Runtime, Step, TextClassifier, Window},
};

fn bundle(component: &str) -> Bundle {
    Bundle::open(&Path::new("models/alpha-4o-mini/build").join(component)).unwrap()
}

fn runtime() -> Runtime {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    Runtime::load(Path::new("runtime/libonnxruntime.so"), cores).unwrap()
}

/// Texts a second by batch and tokens.
fn moderation(criterion: &mut Criterion) {
    let mut classifier = TextClassifier::open(&runtime(), &bundle("text")).unwrap();
    let mut group = criterion.benchmark_group("moderation");
    for (texts, tokens) in [(1_u32, 16_u32), (8, 16), (8, 32), (8, 64), (32, 32)] {
        let batch: Vec<Window> =
            (0..texts).map(|text| Window((0..tokens).map(|n| 1000 + text + n).collect())).collect();
        group.throughput(Throughput::Elements(u64::from(texts)));
        group.bench_with_input(BenchmarkId::from_parameter(format!("{texts}x{tokens}")), &batch, |bench, batch| {
            bench.iter(|| classifier.run(black_box(batch)).unwrap());
        });
    }
}

/// Tokens a second by live rows, and the first token of a short text after a cached prefix.
fn generation(criterion: &mut Criterion) {
    let mut decoder = Decoder::open(&runtime(), &bundle("generator"), 9).unwrap();
    let prefix: Vec<u32> = (1000..1200).collect();
    decoder.prefill(8, 0, &prefix).unwrap();
    let mut group = criterion.benchmark_group("generation");
    for rows in [1_usize, 4, 8] {
        for row in 0..rows {
            decoder.copy(8, row, prefix.len());
        }
        let steps = vec![Step { token: 1000, past: prefix.len() }; rows];
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_with_input(BenchmarkId::new("step", rows), &steps, |bench, steps| {
            bench.iter(|| decoder.step(black_box(steps)).unwrap());
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("first token of 24 after a cached prefix", |bench| {
        let body: Vec<u32> = (2000..2024).collect();
        bench.iter(|| {
            decoder.copy(8, 0, prefix.len());
            decoder.prefill(0, prefix.len(), black_box(&body)).unwrap()
        });
    });
}

/// Decoding, resizing and classifying a picture.
fn pictures(criterion: &mut Criterion) {
    let bytes = std::fs::read("tests/golden/images/landscape.png").unwrap();
    let size = bundle("image").manifest().image_classifier.as_ref().unwrap().size;
    let mut classifier = ImageClassifier::open(&runtime(), &bundle("image")).unwrap();
    let frame = imaging::decode(&bytes, &Limits::default()).unwrap().remove(0);
    let pixels = vec![Pixels(imaging::to_tensor(&frame, size).into())];
    let mut group = criterion.benchmark_group("pictures");
    group.bench_function("decode", |bench| {
        bench.iter(|| imaging::decode(black_box(&bytes), &Limits::default()).unwrap());
    });
    group.bench_function("resize", |bench| bench.iter(|| imaging::to_tensor(black_box(&frame), size)));
    group.bench_function("classify", |bench| bench.iter(|| classifier.run(black_box(&pixels)).unwrap()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(5));
    targets = moderation, generation, pictures
}
criterion_main!(benches);
