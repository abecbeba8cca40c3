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
use ort::value::Tensor;

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
    let grid = [16_u32, 32, 64, 128].map(|tokens| [1_u32, 4, 8, 16, 32, 64].map(|texts| (texts, tokens)));
    // What exceeds the largest budget that a server chooses by itself never forms a batch there.
    for (texts, tokens) in grid.into_iter().flatten().filter(|(texts, tokens)| texts * tokens <= 2048) {
        let batch: Vec<Window> =
            (0..texts).map(|text| Window((0..tokens).map(|n| 1000 + text + n).collect())).collect();
        group.throughput(Throughput::Elements(u64::from(texts)));
        group.bench_with_input(BenchmarkId::from_parameter(format!("{texts}x{tokens}")), &batch, |bench, batch| {
            bench.iter(|| classifier.run(black_box(batch)).unwrap());
        });
    }
}

/// Texts a second of every installed classifier at 8 texts of 32 tokens, beside the same base model as anyone would
/// export it, where `STOCK_MINILM` names that file (`scripts/peers/stock_minilm.py` makes it).
fn classifiers(criterion: &mut Criterion) {
    const TEXTS: usize = 8;
    const TOKENS: usize = 32;
    let mut group = criterion.benchmark_group("classifiers 8x32");
    group.throughput(Throughput::Elements(TEXTS as u64));
    if let Some(stock) = std::env::var_os("STOCK_MINILM") {
        let mut session = runtime().open(Path::new(&stock)).unwrap();
        let ids: Vec<i64> = (0..TEXTS * TOKENS).map(|n| 1000 + i64::try_from(n).unwrap()).collect();
        group.bench_function("stock MiniLM int8", |bench| {
            bench.iter(|| {
                let given = |value: Vec<i64>| Tensor::from_array(([TEXTS, TOKENS], value)).unwrap();
                let outputs = session
                    .run(ort::inputs![
                        "input_ids" => given(ids.clone()),
                        "attention_mask" => given(vec![1; ids.len()]),
                        "token_type_ids" => given(vec![0; ids.len()]),
                    ])
                    .unwrap();
                black_box(outputs.len())
            });
        });
    }
    for model in ["alpha-4o-mini", "beta-3-haiku", "gamma-1.5-flash", "delta-3.1"] {
        let Ok(bundle) = Bundle::open(&Path::new("models").join(model).join("build/text")) else { continue };
        let mut classifier = TextClassifier::open(&runtime(), &bundle).unwrap();
        let batch: Vec<Window> = (0..8).map(|text| Window((0..32).map(|n| 1000 + 40 * text + n).collect())).collect();
        group.bench_function(model, |bench| bench.iter(|| classifier.run(black_box(&batch)).unwrap()));
    }
}

/// Tokens a second by live rows, and the first token of a short text after a cached prefix.
fn generation(criterion: &mut Criterion) {
    let mut decoder = Decoder::open(&runtime(), &bundle("generator"), 9).unwrap();
    let prefix: Vec<u32> = (1000..1200).collect();
    decoder.prefill(8, 0, &prefix).unwrap();
    let mut group = criterion.benchmark_group("generation");
    for rows in [1_usize, 2, 4, 6, 8] {
        for row in 0..rows {
            decoder.copy(8, row, prefix.len());
        }
        let steps = vec![Step { token: 1000, past: prefix.len() }; rows];
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_with_input(BenchmarkId::new("step", rows), &steps, |bench, steps| {
            bench.iter(|| decoder.step(black_box(steps)).unwrap());
        });
    }
    // What guessed tokens must be worth: so many steps does a pass that verifies them cost.
    for guessed in [1_usize, 2, 4, 6] {
        let written = vec![1000; 1 + guessed];
        group.throughput(Throughput::Elements(1));
        group.bench_with_input(BenchmarkId::new("verifying", guessed), &written, |bench, written| {
            bench.iter(|| decoder.verify(0, prefix.len(), black_box(written)).unwrap());
        });
    }
    group.throughput(Throughput::Elements(1));
    let body: Vec<u32> = (2000..2024).collect();
    group.bench_function("first token of 24 after a cached prefix of 200", |bench| {
        bench.iter(|| {
            decoder.copy(8, 0, prefix.len());
            decoder.prefill(0, prefix.len(), black_box(&body)).unwrap()
        });
    });
    group.bench_function("first token of 24 after a prefix of 200 that is new", |bench| {
        bench.iter(|| {
            decoder.prefill(0, 0, black_box(&prefix)).unwrap();
            decoder.prefill(0, prefix.len(), black_box(&body)).unwrap()
        });
    });
    for length in [16_usize, 64, 200] {
        group.bench_with_input(BenchmarkId::new("copy of a prefix", length), &length, |bench, &length| {
            bench.iter(|| decoder.copy(8, 0, black_box(length)));
        });
    }
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
    targets = moderation, classifiers, generation, pictures
}
criterion_main!(benches);
