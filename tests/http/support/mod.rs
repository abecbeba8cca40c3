//! A server without a port, and what tests say to it.

pub(crate) mod doubles;
pub(crate) mod pictures;
mod tokenizers;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use dichroic::{
    access::{
        KeyStore, Limiter, MemoryLimiter,
        keys::{NewKey, file},
    },
    domain::{Device, ModelId, Operation, UsageLimit},
    engine::{BatchOptions, Batcher, Generator, GeneratorOptions, batch::BatchPolicy},
    http::{App, BodyLimits, router},
    lifecycle::Lifecycle,
    registry::{
        Bundle,
        manifest::{Beforehand, Calibration, DetectorSpec, Languages, OrientationSpec, RecogniserSpec, TextReaderSpec},
        situations,
    },
    runtime::{Forward, JudgeTokenizer, PromptTokenizer, RuntimeError, WindowTokenizer},
    service::{
        AnswerJudge, Beside, Company, ImageGuardian, Models, ReaderStages, ScoreCache, ScoreCacheOptions,
        ServiceOptions, Services, TextGuardian, TextModel, TextReader, Writer,
    },
    telemetry::{Metrics, Traces},
};
use http_body_util::BodyExt;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use time::OffsetDateTime;
use tower::ServiceExt;

use doubles::{Compass, Critic, Finder, Lens, Reader, Scholar, Scribe};

pub(crate) const PRISMS: &str = "/v1/prisms/text";
pub(crate) const SUNSHINES: &str = "/v1/sunshines/text";
pub(crate) const GUARD_TEXT: &str = "/v1/guardians/text";
pub(crate) const GUARD_IMAGE: &str = "/v1/guardians/image";
pub(crate) const MODERATIONS: &str = "/v1/moderations";
pub(crate) const OPERATIONS: [&str; 5] = [PRISMS, SUNSHINES, GUARD_TEXT, GUARD_IMAGE, MODERATIONS];

/// The bootstrap key of every test server.
pub(crate) const KEY: &str = "bootstrap-key-of-the-tests";

/// What a test server is made of. `Default` is a generous one.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct Setup {
    pub(crate) limit: UsageLimit,
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) timeout: Duration,
    pub(crate) queue: usize,
    pub(crate) image_queue: usize,
    /// What the models are said to compute on.
    pub(crate) device: Device,
    /// Whether the text in pictures is read.
    pub(crate) reads: bool,
    /// Whether violence and hate are seen in pictures.
    pub(crate) heads: bool,
    /// The share of their size at which pictures are first looked at for text.
    pub(crate) glance: Option<f32>,
    pub(crate) bodies: BodyLimits,
    pub(crate) playground: bool,
    pub(crate) traces: Traces,
    /// Whether beta-3-haiku has a text classifier of its own instead of alpha's.
    pub(crate) apart: bool,
    /// What is remembered of moderated texts, if anything.
    pub(crate) cache: Option<ScoreCacheOptions>,
    /// Whether alpha's text classifier has no head for the light of a text.
    pub(crate) dim: bool,
    /// Whether alpha is lent one that has.
    pub(crate) lent: bool,
    /// Whether beta-3-haiku has a text classifier of its own that has company: one beside it, which heeds words that begin
    /// with `second:`, and one for other languages than English, which heeds those that begin with `third:`. Then
    /// gamma-1.5-flash has one with the latter alone, and both write.
    pub(crate) ensemble: bool,
    /// The probability from which those beside it are asked; each time without it.
    pub(crate) from: Option<f32>,
    /// How much the first and the second count.
    pub(crate) weights: [f32; 2],
    /// Whether what alpha writes is judged.
    pub(crate) judged: bool,
    /// Which part answers of alpha's have that people wrote for a text, which its judge then tells.
    pub(crate) beforehand: Option<Beforehand>,
    /// Whether alpha's writer was taught English alone, and another one, `polyglot` in metrics, answers other texts.
    pub(crate) polyglot: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limit: UsageLimit { per_minute: 0, burst: 1 },
            limiter: Arc::new(MemoryLimiter::default()),
            timeout: Duration::from_secs(30),
            queue: 512,
            image_queue: 64,
            device: Device::Cpu,
            reads: true,
            heads: false,
            glance: None,
            bodies: BodyLimits::default(),
            playground: true,
            traces: Traces::default(),
            apart: false,
            cache: None,
            dim: false,
            lent: false,
            ensemble: false,
            from: None,
            weights: [1.0; 2],
            judged: false,
            beforehand: None,
            polyglot: false,
        }
    }
}

pub(crate) struct Server {
    pub(crate) router: Router,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) services: Arc<Services>,
    keys: Arc<KeyStore>,
    folder: TempDir,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn limited(limit: UsageLimit) -> Self {
        Self::with(Setup { limit, ..Setup::default() })
    }

    /// Installed are: all of alpha-4o-mini (without its reader if it is not to read), the text classifier of beta-3-haiku, nothing else.
    pub(crate) fn with(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new().unwrap();
        let lifecycle = Lifecycle::default();
        let key_file = key_file(folder.path());
        let keys = KeyStore::open(Some(&key_file), Some(SecretString::from(KEY)), setup.limit).unwrap();
        let keys = Arc::new(keys);
        let options = ServiceOptions { timeout: setup.timeout, image_queue: setup.image_queue, device: setup.device };
        let models = models(folder.path(), &setup, &metrics);
        let services = Arc::new(Services::new(models, options, Arc::clone(&metrics)));
        let app = App {
            services: Arc::clone(&services),
            keys: Arc::clone(&keys),
            limiter: setup.limiter,
            metrics: Arc::clone(&metrics),
            traces: setup.traces,
            lifecycle: lifecycle.clone(),
            bodies: setup.bodies,
            playground: setup.playground,
        };
        Self { router: router(app), metrics, lifecycle, services, keys, folder }
    }

    /// Issues a key, as `dichroic keys create` does.
    pub(crate) fn issue(&self, new: NewKey) -> String {
        // Long ago, so that a key can have expired.
        let issued = file::create(&key_file(self.folder.path()), new, OffsetDateTime::UNIX_EPOCH).unwrap();
        self.keys.reload_if_changed();
        issued.key.expose_secret().to_owned()
    }

    pub(crate) fn issue_for(&self, operation: Operation) -> String {
        self.issue(NewKey { scopes: Some(vec![operation]), ..NewKey::default() })
    }

    pub(crate) fn revoke(&self, key: &str) {
        let id = key.split('_').nth(1).unwrap();
        file::revoke(&key_file(self.folder.path()), id, OffsetDateTime::now_utc()).unwrap();
        self.keys.reload_if_changed();
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// POSTs JSON with the bootstrap key.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(post(path, body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }
}

fn key_file(folder: &Path) -> std::path::PathBuf {
    folder.join("keys.json")
}

/// An authenticated JSON request.
pub(crate) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path)
        .header(header::AUTHORIZATION, format!("Bearer {KEY}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

/// The same with another key.
pub(crate) fn post_as(key: &str, path: &str, body: &Value) -> Request<Body> {
    let mut request = post(path, body.to_string());
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    request
}

pub(crate) fn bare(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
}

/// The field that the operation at `path` requires.
pub(crate) fn required(path: &str) -> &'static str {
    match path {
        GUARD_IMAGE => "image",
        MODERATIONS => "input",
        _ => "text",
    }
}

/// A body that the operation at `path` accepts.
pub(crate) fn sound(path: &str) -> Value {
    if path == GUARD_IMAGE {
        json!({"image": pictures::encoded(&pictures::png(pictures::BLACK))})
    } else {
        json!({required(path): "The meeting was moved to Friday."})
    }
}

/// `sound` with some fields set.
pub(crate) fn sound_with(path: &str, fields: &Value) -> Value {
    let mut body = sound(path);
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The whole error body is as it should be; answers status and code.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String) {
        let body = self.json();
        let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["error"]);
        let error = &body["error"];
        let mut fields: Vec<&str> = error.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["code", "message", "param", "request_id", "type"]);
        assert_eq!(error["request_id"].as_str(), self.header("x-request-id"));
        let kind = match self.status.as_u16() {
            400 | 405 => "invalid_request_error",
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500 => "server_error",
            501 => "not_implemented_error",
            other => panic!("{other} is no status of an error"),
        };
        assert_eq!(error["type"], kind);
        assert!(error["message"].as_str().unwrap().len() > 10);
        (self.status.as_u16(), error["code"].as_str().unwrap().to_owned())
    }

    #[track_caller]
    pub(crate) fn assert_error(&self, status: u16, code: &str) {
        let found = self.error();
        assert_eq!((found.0, found.1.as_str()), (status, code));
    }

    #[track_caller]
    pub(crate) fn assert_field_error(&self, code: &str, param: &str) {
        self.assert_error(400, code);
        assert_eq!(self.json()["error"]["param"], param);
    }

    #[track_caller]
    pub(crate) fn assert_ok(&self) {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
    }
}

fn models(folder: &Path, setup: &Setup, metrics: &Arc<Metrics>) -> BTreeMap<ModelId, Models> {
    let queue = setup.queue;
    let text = Arc::new(text_guardian(folder, setup, "double", !setup.dim, metrics));
    let judge = (setup.judged || setup.beforehand.is_some()).then(|| Arc::new(answer_judge(folder, queue, metrics)));
    let alpha = Models {
        writer: Some(Arc::new(writer(folder, "double", setup.polyglot, setup, metrics))),
        elsewhere: setup.polyglot.then(|| Arc::new(writer(folder, "polyglot", false, setup, metrics))),
        text: Some(Arc::clone(&text)),
        image: Some(Arc::new(image_guardian(setup, metrics))),
        reader: setup.reads.then(|| Arc::new(text_reader(queue, metrics))),
        situations: judge.clone().into_iter().collect(),
        judge,
        light: setup.lent.then(|| Arc::new(text_guardian(folder, setup, "lent", true, metrics))),
    };
    let own = |name, company| {
        let own = text_model(folder, setup.queue, name, Reader { light: true, heeds: "" }, metrics);
        Some(Arc::new(guardian(own, company, setup, name, metrics)))
    };
    if setup.ensemble {
        let writer = alpha.writer.clone();
        let company = company(folder, setup, metrics);
        let elsewhere = Company { elsewhere: company.elsewhere.clone(), ..Company::default() };
        // Reads every language itself, with one beside it that reads English.
        let polyglot = Company { beside: company.beside.clone(), elsewhere: None };
        let beta = Models { writer: writer.clone(), text: own("other", company), ..Models::default() };
        let gamma = Models { writer: writer.clone(), text: own("fourth", elsewhere), ..Models::default() };
        let delta = Models { writer, text: own("fifth", polyglot), ..Models::default() };
        let models = [(ModelId::Alpha, alpha), (ModelId::Beta, beta), (ModelId::Gamma, gamma), (ModelId::Delta, delta)];
        return BTreeMap::from(models);
    }
    let text = if setup.apart { own("other", Company::default()) } else { Some(text) };
    let beta = Models { text, ..Models::default() };
    BTreeMap::from([(ModelId::Alpha, alpha), (ModelId::Beta, beta)])
}

fn batching(capacity: usize) -> BatchOptions {
    let policy = BatchPolicy { budget: 16_384, items: 64, wait: Duration::ZERO };
    BatchOptions { capacity, workers: 1, policy }
}

fn text_guardian(folder: &Path, setup: &Setup, name: &str, light: bool, metrics: &Arc<Metrics>) -> TextGuardian {
    let own = text_model(folder, setup.queue, name, Reader { light, heeds: "" }, metrics);
    guardian(own, Company::default(), setup, name, metrics)
}

fn guardian(own: TextModel, company: Company, setup: &Setup, name: &str, metrics: &Metrics) -> TextGuardian {
    let guardian = TextGuardian::new(Arc::new(own), company, "2".repeat(64));
    match setup.cache {
        Some(options) => guardian.with_cache(ScoreCache::new(options, &metrics.model(name, "text")).unwrap()),
        None => guardian,
    }
}

/// One beside, one for other languages.
fn company(folder: &Path, setup: &Setup, metrics: &Arc<Metrics>) -> Company {
    let other = |name, heeds| Arc::new(text_model(folder, setup.queue, name, Reader { light: true, heeds }, metrics));
    let even = Calibration { point: 0.0, below: 1.0, above: 1.0 };
    let models = vec![other("second", "second:")];
    let beside = Beside { models, weights: setup.weights.to_vec(), calibration: [even; 5], from: setup.from };
    Company { beside: Some(beside), elsewhere: Some(other("third", "third:")) }
}

/// All but the third read English alone.
fn text_model(folder: &Path, queue: usize, name: &str, reader: Reader, metrics: &Arc<Metrics>) -> TextModel {
    let bundle = Bundle::open(&tokenizers::text_bundle(folder)).unwrap();
    let factory: dichroic::engine::Factory<Reader> = Arc::new(move || Ok(reader));
    let batcher = Batcher::start("text", batching(queue), &factory, &metrics.model(name, "text")).unwrap();
    let mut spec = bundle.manifest().text_classifier.clone().unwrap();
    spec.languages = if ["third", "fifth"].contains(&name) { Languages::Any } else { Languages::English };
    TextModel::new(name.to_owned(), WindowTokenizer::open(&bundle).unwrap(), batcher, &spec, Arc::clone(metrics))
}

fn image_guardian(setup: &Setup, metrics: &Arc<Metrics>) -> ImageGuardian {
    let model = metrics.model("double", "image");
    let heads = setup.heads;
    let factory: dichroic::engine::Factory<Lens> = Arc::new(move || Ok(Lens { heads }));
    let batcher = Batcher::start("image", batching(setup.queue), &factory, &model).unwrap();
    ImageGuardian::new(16, batcher, "0".repeat(64), Arc::clone(metrics)).with_glance(setup.glance)
}

fn text_reader(queue: usize, metrics: &Arc<Metrics>) -> TextReader {
    let spec = TextReaderSpec {
        detector: DetectorSpec {
            multiple: 32,
            least_pixels: 1,
            most_pixels: 1_000_000,
            most_side: 4096,
            threshold: 0.3,
            box_threshold: 0.5,
            unclip: 1.6,
        },
        orientation: OrientationSpec { height: 16, width: 64 },
        recogniser: RecogniserSpec { height: 16, least_width: 64, width_step: 32, most_width: 512, threshold: 0.5 },
    };
    let stages = ReaderStages {
        detector: stage("detector", queue, || Ok(Finder), metrics),
        orientation: stage("orientation", queue, || Ok(Compass), metrics),
        recogniser: stage("recogniser", queue, || Ok(Scholar), metrics),
    };
    TextReader::new(stages, spec, "1".repeat(64), Arc::clone(metrics))
}

fn answer_judge(folder: &Path, queue: usize, metrics: &Arc<Metrics>) -> AnswerJudge {
    let bundle = Bundle::open(&tokenizers::judge_bundle(folder)).unwrap();
    let batcher = stage("judge", queue, || Ok(Critic), metrics);
    let (tokenizer, spec) = (JudgeTokenizer::open(&bundle).unwrap(), bundle.manifest().answer_judge.as_ref().unwrap());
    AnswerJudge::new(tokenizer, batcher, spec, situations::of(&bundle).unwrap(), "3".repeat(64))
}

fn stage<F: Forward>(
    name: &str,
    queue: usize,
    make: fn() -> Result<F, RuntimeError>,
    metrics: &Metrics,
) -> Batcher<F::Input, F::Output> {
    let factory: dichroic::engine::Factory<F> = Arc::new(make);
    Batcher::start(name, batching(queue), &factory, &metrics.model("double", name)).unwrap()
}

fn writer(folder: &Path, name: &str, english: bool, setup: &Setup, metrics: &Arc<Metrics>) -> Writer {
    let bundle = Bundle::open(&tokenizers::generator_bundle(folder, setup.beforehand)).unwrap();
    let model = metrics.model(name, "generator");
    let factory: dichroic::engine::Factory<Scribe> = Arc::new(|| Ok(Scribe::new()));
    let options = GeneratorOptions { capacity: setup.queue, prefill_tokens: 16, lookup: None };
    let generator = Generator::start(name, options, &factory, &model).unwrap();
    let mut spec = bundle.manifest().generator.clone().unwrap();
    if english {
        spec.languages = Languages::English;
    }
    Writer::new(PromptTokenizer::open(&bundle).unwrap(), generator, &spec, bundle.digest().to_owned()).unwrap()
}
