//! Our side of `make bench-peers`, and the client that both sides' servers are asked by.
//!
//! Takes one job as JSON on standard input and answers what it measured as JSON on standard output, in seconds and
//! counts: medians and ratios are for `scripts/peers`. A job that fails ends the program with a message.
#![expect(clippy::unwrap_used, reason = "what cannot be measured must end loudly")]

#[path = "../benches/client/mod.rs"]
mod client;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dichroic::{
    domain::Device,
    engine::{
        BatchOptions, Batcher, Factory, GenerateParams, Generation, Generator, GeneratorOptions, Lookup, Sampling,
        batch::BatchPolicy, generate,
    },
    imaging::{self, Limits},
    registry::Bundle,
    runtime::{
        Decode, Decoder, Forward, ImageClassifier, Pixels, PromptTokenizer, Runtime, Step, TextClassifier, Window,
    },
    telemetry::{Metrics, ModelMetrics},
};
use futures_util::future::{join_all, try_join_all};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use client::{Client, head_for};

/// What is to be measured.
#[derive(Deserialize)]
#[serde(tag = "job", rename_all = "snake_case", deny_unknown_fields)]
enum Job {
    /// A generator through its scheduler.
    Generate {
        library: PathBuf,
        threads: usize,
        #[serde(default)]
        device: Device,
        bundle: PathBuf,
        prefix: Vec<u32>,
        /// Texts of which the first token is awaited.
        first: Vec<Vec<u32>>,
        /// Texts that `tokens` tokens are generated for, one after the other.
        whole: Vec<Vec<u32>>,
        /// Texts that this is done for at once.
        together: Vec<Vec<u32>>,
        tokens: usize,
    },
    /// A generator that guesses tokens ahead beside the same one that does not, on both expressions of each text.
    Speculate(Speculate),
    /// A text classifier through its batches, with more waiting than it can take.
    Moderate {
        library: PathBuf,
        threads: usize,
        #[serde(default)]
        device: Device,
        bundle: PathBuf,
        windows: Vec<Vec<u32>>,
        /// How many of them make a batch; what is measured at the start, as the server does, if not given.
        batch: Option<usize>,
        seconds: f64,
    },
    /// An image classifier alone, by pictures a batch.
    Classify { library: PathBuf, threads: usize, bundle: PathBuf, picture: PathBuf, batches: Vec<usize>, seconds: f64 },
    /// The same passes of a generator or a text classifier again and again.
    Passes(Passes),
    /// A server over keep-alive connections.
    Load(Load),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Speculate {
    library: PathBuf,
    threads: usize,
    bundle: PathBuf,
    /// A file with one text a line.
    texts: PathBuf,
    /// How many answers are generated at once; each of these is measured.
    rows: Vec<usize>,
    /// Most tokens guessed at once.
    guesses: usize,
    /// Most tokens of an answer.
    tokens: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Passes {
    library: PathBuf,
    threads: usize,
    bundle: PathBuf,
    what: Pass,
    /// Tokens of what a pass is over, from the first on.
    tokens: Vec<u32>,
    /// Whether operators of ours stand for ONNX Runtime's nodes, where the processor has what they need.
    ours: bool,
    /// Passes before those that count.
    warm: usize,
    counted: usize,
    /// Where profiles are written, if any: in ONNX Runtime's form, a file for each graph.
    profiles: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Pass {
    /// The last token for each of so many rows that hold the others.
    Step { rows: usize },
    /// All tokens of one row.
    Prefill,
    /// So many windows of all tokens, by one worker of a text classifier.
    Texts { count: usize },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    /// `127.0.0.1:PORT`.
    address: String,
    path: String,
    key: String,
    /// A file with one body a line.
    bodies: PathBuf,
    /// Lines of it to pass over.
    skip: usize,
    /// Whether to start over where the lines end, instead of failing.
    repeat: bool,
    connections: usize,
    seconds: f64,
    /// Requests a second, sent by the clock whatever the answers take; none sends as fast as they come.
    rate: Option<f64>,
}

fn main() {
    let job: Job = serde_json::from_reader(io::stdin()).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = match job {
        Job::Generate { library, threads, device, bundle, prefix, first, whole, together, tokens } => {
            let runtime = on(device, Runtime::load(&library, threads).unwrap());
            let (generator, _) = generator(&runtime, &Arc::new(Bundle::open(&bundle).unwrap()), together.len(), None);
            tokio.block_on(generation(&generator, &prefix.into(), [&first, &whole, &together], tokens))
        }
        Job::Speculate(speculate) => tokio.block_on(speculate.run()),
        Job::Moderate { library, threads, device, bundle, windows, batch, seconds } => {
            let runtime = on(device, Runtime::load(&library, threads).unwrap());
            let windows: Vec<Window> = windows.into_iter().map(Window).collect();
            let widest = windows.iter().map(|window| window.0.len()).max().unwrap();
            let policy = match batch {
                Some(items) => BatchPolicy { budget: items * widest, items, ..UNMEASURED },
                None => UNMEASURED,
            };
            let batcher = batcher(&runtime, &bundle, threads, policy);
            if batch.is_none() {
                let ids = windows[0].0.clone();
                let filler = move |tokens| Window(ids.iter().copied().cycle().take(tokens).collect());
                // As the server does once it is ready; where nothing can be measured, both go on as they began.
                tokio.block_on(batcher.calibrate(usize::MAX, filler));
            }
            let portion = batch.unwrap_or(UNMEASURED.items);
            // The first pass of a shape costs more than those that follow.
            tokio.block_on(moderation(&batcher, &windows, portion, Duration::from_millis(500)));
            let mut found = tokio.block_on(moderation(&batcher, &windows, portion, Duration::from_secs_f64(seconds)));
            let told = windows.into_iter().take(portion).collect();
            let outputs = tokio.block_on(batcher.submit(told, later())).unwrap();
            found["harm"] = outputs.iter().map(|output| json!(output.harm)).collect();
            found
        }
        Job::Classify { library, threads, bundle, picture, batches, seconds } => {
            let runtime = Runtime::load(&library, threads).unwrap();
            classification(&runtime, &bundle, &picture, &batches, Duration::from_secs_f64(seconds))
        }
        Job::Passes(passes) => passes.run(),
        Job::Load(load) => tokio.block_on(load.run()),
    };
    serde_json::to_writer(io::stdout(), &found).unwrap();
}

/// The runtime with the device that a job asks for.
fn on(device: Device, runtime: Runtime) -> Runtime {
    match device {
        Device::Cpu => runtime,
        Device::Cuda => runtime.on_cuda().unwrap(),
    }
}

fn later() -> Instant {
    Instant::now() + Duration::from_mins(10)
}

fn generator(
    runtime: &Runtime,
    bundle: &Arc<Bundle>,
    together: usize,
    lookup: Option<Lookup>,
) -> (Generator, ModelMetrics) {
    let (runtime, bundle) = (runtime.clone(), Arc::clone(bundle));
    let rows = generate::rows_for(together.max(1));
    let factory: Factory<Decoder> = Arc::new(move || Decoder::open(&runtime, &bundle, rows));
    let metrics = Metrics::new().unwrap().model("gauge", "generator");
    let options = GeneratorOptions { capacity: rows.max(64), prefill_tokens: 32, lookup };
    (Generator::start("gauge", options, &factory, &metrics).unwrap(), metrics)
}

async fn generation(
    generator: &Generator,
    prefix: &Arc<[u32]>,
    [first, whole, together]: [&Vec<Vec<u32>>; 3],
    tokens: usize,
) -> Value {
    let timed = async |texts: &[Vec<u32>], max_tokens: usize| -> (f64, Vec<Vec<u32>>) {
        let sequences = texts.iter().map(|body| GenerateParams {
            prefix: Arc::clone(prefix),
            body: body.clone(),
            max_tokens,
            // All are to generate equally many.
            stop: Arc::from([]),
            sampling: Sampling::Greedy,
            watched: Arc::default(),
        });
        let sequences = sequences.collect();
        let start = Instant::now();
        let generations = generator.submit(sequences, later()).await.unwrap();
        let seconds = start.elapsed().as_secs_f64();
        (seconds, generations.into_iter().map(|generation| generation.tokens).collect())
    };
    timed(together, 4).await;
    let mut firsts = Vec::new();
    for text in first {
        firsts.push(timed(std::slice::from_ref(text), 1).await.0);
    }
    let mut wholes = Vec::new();
    for text in whole {
        let (one, _) = timed(std::slice::from_ref(text), 1).await;
        let (all, answer) = timed(std::slice::from_ref(text), tokens).await;
        wholes.push(json!({"first": one, "all": all, "tokens": answer[0]}));
    }
    let (seconds, answers) = timed(together, tokens).await;
    json!({"first": firsts, "whole": wholes, "together": {"all": seconds, "tokens": answers}})
}

/// One side of a comparison: what was generated, and in what time.
#[derive(Default)]
struct Side {
    seconds: f64,
    tokens: usize,
    answers: Vec<Generation>,
}

impl Side {
    async fn generate(&mut self, generator: &Generator, sequences: Vec<GenerateParams>) {
        let start = Instant::now();
        let generations = generator.submit(sequences, later()).await.unwrap();
        self.seconds += start.elapsed().as_secs_f64();
        self.tokens += generations.iter().map(|generation| generation.tokens.len()).sum::<usize>();
        self.answers.extend(generations);
    }

    fn found(&self) -> Value {
        #[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
        let rate = self.tokens as f64 / self.seconds;
        json!({"tokens": self.tokens, "seconds": self.seconds, "tokens_a_second": rate})
    }
}

impl Speculate {
    async fn run(&self) -> Value {
        let runtime = Runtime::load(&self.library, self.threads).unwrap();
        let bundle = Arc::new(Bundle::open(&self.bundle).unwrap());
        let sequences = self.sequences(&bundle);
        let mut measured = Vec::new();
        for &rows in &self.rows {
            let (plain, _) = generator(&runtime, &bundle, rows, None);
            let lookup = Lookup { rows, tokens: self.guesses, anyway: true };
            let (guessing, metrics) = generator(&runtime, &bundle, rows, Some(lookup));
            // The first pass of a shape costs more than those that follow.
            for generator in [&plain, &guessing] {
                Side::default().generate(generator, sequences.iter().take(rows).cloned().collect()).await;
            }
            let before = (metrics.guessed_tokens.get(), metrics.accepted_tokens.get());
            let (mut off, mut on) = (Side::default(), Side::default());
            for (number, group) in sequences.chunks(rows).enumerate() {
                // Whoever goes second finds the machine as the first one left it.
                if number % 2 == 0 {
                    off.generate(&plain, group.to_vec()).await;
                    on.generate(&guessing, group.to_vec()).await;
                } else {
                    on.generate(&guessing, group.to_vec()).await;
                    off.generate(&plain, group.to_vec()).await;
                }
            }
            let guessed = metrics.guessed_tokens.get() - before.0;
            let accepted = metrics.accepted_tokens.get() - before.1;
            #[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^52")]
            let acceptance = (guessed > 0).then(|| accepted as f64 / guessed as f64);
            let equal = off
                .answers
                .iter()
                .zip(&on.answers)
                .filter(|(off, on)| (&off.tokens, off.finish) == (&on.tokens, on.finish))
                .count();
            measured.push(json!({
                "rows": rows, "off": off.found(), "lookup": on.found(), "guessed": guessed, "accepted": accepted,
                "acceptance": acceptance, "answers": off.answers.len(), "equal_answers": equal,
            }));
        }
        json!(measured)
    }

    /// Both expressions of each text, one after the other.
    fn sequences(&self, bundle: &Bundle) -> Vec<GenerateParams> {
        let spec = bundle.manifest().generator.as_ref().unwrap();
        let tokenizer = PromptTokenizer::open(bundle).unwrap();
        let texts = std::fs::read_to_string(&self.texts).unwrap();
        let both = texts.lines().flat_map(|text| [&spec.tasks.positive, &spec.tasks.negative].map(|task| (task, text)));
        both.map(|(task, text)| GenerateParams {
            prefix: tokenizer.prefix(task).unwrap().into(),
            body: tokenizer.body(task, text).unwrap(),
            max_tokens: self.tokens,
            stop: spec.stop_ids.clone().into(),
            sampling: Sampling::Greedy,
            watched: Arc::default(),
        })
        .collect()
    }
}

impl Passes {
    fn run(&self) -> Value {
        let runtime = Runtime::load(&self.library, self.threads).unwrap();
        let runtime = if self.ours { runtime } else { runtime.with_instructions(None) };
        let runtime = match &self.profiles {
            Some(folder) => runtime.profiled(folder.clone()),
            None => runtime,
        };
        let bundle = Bundle::open(&self.bundle).unwrap();
        match self.what {
            Pass::Step { rows } => {
                let mut decoder = Decoder::open(&runtime, &bundle, rows).unwrap();
                let (&token, before) = self.tokens.split_last().unwrap();
                for row in 0..rows {
                    decoder.prefill(row, 0, before).unwrap();
                }
                let steps = vec![Step { token, past: before.len() }; rows];
                self.timed(|| drop(decoder.step(&steps).unwrap()))
            }
            Pass::Prefill => {
                let mut decoder = Decoder::open(&runtime, &bundle, 1).unwrap();
                self.timed(|| drop(decoder.prefill(0, 0, &self.tokens).unwrap()))
            }
            Pass::Texts { count } => {
                let mut classifier = TextClassifier::open(&runtime, &bundle).unwrap();
                let windows = vec![Window(self.tokens.clone()); count];
                self.timed(|| drop(classifier.run(&windows).unwrap()))
            }
        }
    }

    /// Seconds of a pass.
    fn timed(&self, mut pass: impl FnMut()) -> Value {
        (0..self.warm).for_each(|_| pass());
        let start = Instant::now();
        (0..self.counted).for_each(|_| pass());
        #[expect(clippy::cast_precision_loss, reason = "a count of passes is far below 2^52")]
        let seconds = start.elapsed().as_secs_f64() / self.counted as f64;
        json!({"seconds": seconds})
    }
}

/// How the server's batches are by default, before it has measured them.
const UNMEASURED: BatchPolicy = BatchPolicy { budget: 512, items: 64, wait: Duration::from_micros(500) };

/// A batcher as the server makes it. No cache is before it.
fn batcher(
    runtime: &Runtime,
    bundle: &Path,
    threads: usize,
    policy: BatchPolicy,
) -> Batcher<Window, <TextClassifier as Forward>::Output> {
    let (runtime, bundle) = (runtime.clone(), Bundle::open(bundle).unwrap());
    let factory: Factory<TextClassifier> = Arc::new(move || TextClassifier::open(&runtime, &bundle));
    let options =
        BatchOptions { capacity: 1024.max(8 * policy.items), workers: threads.min(TextClassifier::WORKERS), policy };
    Batcher::start("gauge", options, &factory, &Metrics::new().unwrap().model("gauge", "text")).unwrap()
}

async fn moderation(
    batcher: &Batcher<Window, <TextClassifier as Forward>::Output>,
    windows: &[Window],
    portion: usize,
    span: Duration,
) -> Value {
    const ASKERS: usize = 4;
    let portions: Vec<&[Window]> = windows.chunks(portion).collect();
    let start = Instant::now();
    let counts = join_all((0..ASKERS).map(async |asker| {
        let mut count = 0;
        for portion in portions.iter().cycle().skip(asker).step_by(ASKERS) {
            if start.elapsed() >= span {
                break;
            }
            count += batcher.submit(portion.to_vec(), later()).await.unwrap().len();
        }
        count
    }));
    let count: usize = counts.await.into_iter().sum();
    json!({"texts": count, "seconds": start.elapsed().as_secs_f64()})
}

fn classification(runtime: &Runtime, bundle: &Path, picture: &Path, batches: &[usize], span: Duration) -> Value {
    let bundle = Bundle::open(bundle).unwrap();
    let size = bundle.manifest().image_classifier.as_ref().unwrap().size;
    let mut classifier = ImageClassifier::open(runtime, &bundle).unwrap();
    let frame = imaging::decode(&std::fs::read(picture).unwrap(), &Limits::default()).unwrap().remove(0);
    let measured: Vec<Value> = batches
        .iter()
        .map(|&count| {
            let batch: Vec<Pixels> = (0..count).map(|_| Pixels(imaging::to_tensor(&frame, size).into())).collect();
            classifier.run(&batch).unwrap();
            let (start, mut passes) = (Instant::now(), 0);
            while start.elapsed() < span {
                classifier.run(&batch).unwrap();
                passes += 1;
            }
            json!({"batch": count, "pictures": passes * count, "seconds": start.elapsed().as_secs_f64()})
        })
        .collect();
    json!(measured)
}

impl Load {
    /// When each request is due, and a gate that lets it through then. A thread of its own sleeps until a due time to
    /// some 0.1 ms, where tokio's timers count whole milliseconds, which the server's times must not include.
    fn clock(&self, rate: f64, start: Instant) -> (Arc<Semaphore>, Arc<[Instant]>) {
        let span = Duration::from_secs_f64(self.seconds);
        #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
        let due = |number: usize| Duration::from_secs_f64(number as f64 / rate);
        let dues: Arc<[Instant]> = (0..).map(due).take_while(|due| *due < span).map(|due| start + due).collect();
        let gate = Arc::new(Semaphore::new(0));
        let (opened, times, connections) = (Arc::clone(&gate), Arc::clone(&dues), self.connections);
        std::thread::spawn(move || {
            for due in &*times {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                opened.add_permits(1);
            }
            // For everybody to see that there are no more.
            opened.add_permits(connections);
        });
        (gate, dues)
    }

    async fn run(&self) -> Value {
        let text = std::fs::read_to_string(&self.bodies).unwrap();
        let bodies: Vec<&str> = text.lines().skip(self.skip).collect();
        let next = AtomicUsize::new(0);
        let clients: Vec<Client> =
            try_join_all((0..self.connections).map(|_| Client::connect(&self.address))).await.unwrap();
        let start = Instant::now();
        let span = Duration::from_secs_f64(self.seconds);
        let clock = self.rate.map(|rate| self.clock(rate, start));
        let lists = join_all(clients.into_iter().map(async |mut client| {
            let (mut latencies, mut refused) = (Vec::new(), 0_usize);
            while start.elapsed() < span {
                if let Some((gate, _)) = &clock {
                    gate.acquire().await.unwrap().forget();
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                let body = if self.repeat { bodies.get(number % bodies.len()) } else { bodies.get(number) };
                let Some(body) = body else { break };
                let mut sent = Instant::now();
                if let Some((_, dues)) = &clock {
                    // A request that goes out late has waited: its time counts from when it was due.
                    let Some(&due) = dues.get(number) else { break };
                    sent = due;
                }
                let head = head_for(&self.path, &self.key, body.len());
                let (status, _) = client.ask(&head, body.as_bytes()).await.unwrap();
                if status == 200 {
                    latencies.push(sent.elapsed().as_secs_f64());
                } else {
                    refused += 1;
                }
            }
            (latencies, refused)
        }))
        .await;
        let seconds = start.elapsed().as_secs_f64();
        let refused: usize = lists.iter().map(|(_, refused)| refused).sum();
        let mut latencies: Vec<f64> = lists.into_iter().flat_map(|(latencies, _)| latencies).collect();
        latencies.sort_by(f64::total_cmp);
        let asked = next.load(Ordering::Relaxed);
        json!({
            "answers": latencies.len(), "refused": refused, "seconds": seconds,
            "p50": share(&latencies, 50), "p99": share(&latencies, 99),
            "ran_out": !self.repeat && asked > bodies.len(),
        })
    }
}

/// The value that `percent` of the sorted ones do not exceed.
fn share(sorted: &[f64], percent: usize) -> Option<f64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}
