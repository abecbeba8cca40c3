//! From verified bundles to running services.
//!
//! Owns what a model is started with, and that it is started once. Runs on the thread that starts the server; services
//! have their models loaded on the rayon pool, several at a time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use rayon::iter::{ParallelBridge as _, ParallelIterator as _};

use crate::{
    config::{Config, DeviceChoice, Speculation},
    domain::{Device, ModelId},
    engine::{BatchOptions, Batcher, Factory, Generator, GeneratorOptions, Lookup, batch::BatchPolicy, generate},
    registry::{
        Bundle, ComponentName, INSTALL, Registry,
        manifest::{CacheForm, EnsembleSpec},
        situations,
    },
    runtime::{
        self, Decode, Decoder, Forward, GrowingDecoder, ImageClassifier, JudgeTokenizer, LineOrientation,
        LineRecogniser, PromptTokenizer, Runtime, RuntimeError, TextClassifier, TextDetector, WindowTokenizer,
    },
    service::{
        AnswerJudge, Beside, Company, ImageGuardian, Models, ReaderStages, ScoreCache, ScoreCacheOptions,
        ServiceOptions, Services, TextGuardian, TextModel, TextReader, Writer,
    },
    telemetry::Metrics,
};

/// Most texts in a batch, whatever their length.
const BATCH_TEXTS: usize = 64;
/// The same on a GPU, which takes many short texts as fast as few. Chosen, not measured.
const CUDA_BATCH_TEXTS: usize = 512;
/// Most tokens in a batch on a GPU, unless the settings say otherwise: 64 windows of 256 tokens. A GPU computes them side
/// by side where a processor's cache would run over. Chosen, not measured.
const CUDA_BATCH_TOKENS: usize = 16_384;
/// Most pictures in a batch: the frames of one animation.
const BATCH_PICTURES: usize = 8;
/// Most lines of text from pictures in a batch.
const BATCH_LINES: usize = 32;
/// Most columns of such a batch: each costs the recogniser an answer over thousands of characters for every eighth.
const BATCH_COLUMNS: usize = 8_192;
/// Lines of one picture that may be queued at once.
const QUEUED_LINES: usize = 64;
/// Tokens in a batch of texts until it is measured, and where it cannot be: the middle of what is chosen from.
const UNMEASURED_TOKENS: usize = 512;
/// Rows for which tokens are guessed: both expressions of two texts.
const GUESSED_ROWS: usize = 4;
/// Tokens that are guessed at once.
const GUESSED_TOKENS: usize = 4;
/// Its generator answers what the others were not taught.
const MULTILINGUAL: ModelId = ModelId::Gamma;

/// The runtime on what the settings choose, and where they leave it open why that is no GPU.
///
/// # Errors
/// [`RuntimeError::Device`] when a GPU is demanded and none can be used.
pub(super) fn placed(runtime: Runtime, choice: DeviceChoice) -> Result<(Runtime, Option<RuntimeError>), RuntimeError> {
    match choice {
        DeviceChoice::Cpu => Ok((runtime, None)),
        DeviceChoice::Cuda => Ok((runtime.on_cuda()?, None)),
        DeviceChoice::Auto => match runtime.clone().on_cuda() {
            Ok(runtime) => Ok((runtime, None)),
            Err(error) => Ok((runtime, Some(error))),
        },
    }
}

/// Most tokens in a batch of texts, where the settings or the device say it; it is to be measured where they do not.
pub(super) fn text_budget(config: &Config, device: Device) -> Option<usize> {
    match device {
        Device::Cpu => config.batch_tokens,
        Device::Cuda => config.batch_tokens.or(Some(CUDA_BATCH_TOKENS)),
    }
}

/// Gives each identifier the text classifier of another one with the same writer: the head that tells the light of what
/// is written belongs to the writer as much as to the classifier, and not every classifier has it.
fn lend_light(models: &mut BTreeMap<ModelId, Models>) {
    let lenders: Vec<_> = models
        .values()
        .filter_map(|models| Some((models.writer.clone()?, models.text.clone().filter(|text| text.tells_light())?)))
        .collect();
    for borrower in models.values_mut() {
        let (Some(writer), Some(text)) = (&borrower.writer, &borrower.text) else { continue };
        borrower.light = lenders
            .iter()
            .find(|(other, light)| Arc::ptr_eq(other, writer) && !Arc::ptr_eq(light, text))
            .map(|(_, light)| Arc::clone(light));
    }
}

/// Has the texts that the writer of an identifier was not taught to answer, those in other languages, answered by that of
/// the multilingual identifier. By no other one: what an added generator can write, nobody here knows.
fn lend_writer(models: &mut BTreeMap<ModelId, Models>) {
    let lender = models.get(&MULTILINGUAL).and_then(|models| models.writer.clone());
    let Some(lender) = lender.filter(|writer| writer.writes(false)) else { return };
    for borrower in models.values_mut() {
        let untaught = borrower.writer.as_ref().is_some_and(|writer| !writer.writes(false));
        borrower.elsewhere = untaught.then(|| Arc::clone(&lender));
    }
}

/// Has what was written beforehand told for all identifiers by whoever here does: for English texts first by a judge that was taught
/// English alone, which tells them better than one that reads all languages.
fn lend_situations(models: &mut BTreeMap<ModelId, Models>) {
    let judges = models.values().filter_map(|models| models.judge.clone());
    let (all, english): (Vec<_>, Vec<_>) = judges.partition(|judge| judge.tells_situations(false));
    let english = english.into_iter().filter(|judge| judge.tells_situations(true));
    let tellers: Vec<_> = english.take(1).chain(all.into_iter().take(1)).collect();
    for borrower in models.values_mut() {
        borrower.situations.clone_from(&tellers);
    }
}

/// What is loaded once: of a text classifier the network, which may have company in one bundle and none in another.
fn key(component: ComponentName, bundle: &Bundle) -> &str {
    if component == ComponentName::Text { bundle.network() } else { bundle.digest() }
}

/// A model that is loaded once.
struct Distinct<'r> {
    /// What logs and metrics call it: the identifier, and before it whose company it is where that has another network.
    name: String,
    id: ModelId,
    component: ComponentName,
    bundle: &'r Arc<Bundle>,
}

/// A running model, for every identifier that stands on it.
enum Loaded {
    Writer(Arc<Writer>),
    Text(Arc<TextModel>),
    Image(Arc<ImageGuardian>),
    Reader(Arc<TextReader>),
    Judge(Arc<AnswerJudge>),
}

/// Makes services out of bundles; equal bundles are loaded once.
pub(super) struct Composer<'a> {
    config: &'a Config,
    runtime: Runtime,
    metrics: Arc<Metrics>,
}

impl<'a> Composer<'a> {
    pub(super) fn new(config: &'a Config, runtime: Runtime, metrics: Arc<Metrics>) -> Self {
        Self { config, runtime, metrics }
    }

    /// Loads every installed model and starts its threads.
    pub(super) fn services(self, registry: &Registry) -> anyhow::Result<Services> {
        if registry.is_empty() {
            bail!(
                "no model is installed in {} for {}; {INSTALL}",
                self.config.models_dir.display(),
                self.config.models.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ")
            );
        }
        let loaded = self.loaded(registry)?;
        let device = self.runtime.device();
        let mut models: BTreeMap<ModelId, Models> = BTreeMap::new();
        let mut guardians: BTreeMap<&str, Arc<TextGuardian>> = BTreeMap::new();
        for (id, component, bundle) in registry.iter() {
            let Some(model) = loaded.get(&(component, key(component, bundle))) else { continue };
            let behind = models.entry(id).or_default();
            match model {
                Loaded::Writer(writer) => behind.writer = Some(Arc::clone(writer)),
                Loaded::Text(own) => {
                    let guardian = match guardians.entry(bundle.digest()) {
                        Entry::Occupied(known) => Arc::clone(known.get()),
                        Entry::Vacant(new) => {
                            Arc::clone(new.insert(Arc::new(self.guardian(id, bundle, own, &loaded)?)))
                        }
                    };
                    behind.text = Some(guardian);
                }
                Loaded::Image(image) => behind.image = Some(Arc::clone(image)),
                Loaded::Reader(reader) => behind.reader = Some(Arc::clone(reader)),
                Loaded::Judge(judge) => behind.judge = Some(Arc::clone(judge)),
            }
            let labels = &[id.as_str(), component.as_str(), bundle.digest(), device.as_str()];
            self.metrics.model_info.with_label_values(labels).set(1);
            tracing::info!(%id, %component, name = bundle.manifest().name, %device, "model loaded");
        }
        lend_light(&mut models);
        lend_writer(&mut models);
        lend_situations(&mut models);
        let options =
            ServiceOptions { timeout: self.config.request_timeout, image_queue: self.config.image_queue, device };
        Ok(Services::new(models, options, self.metrics))
    }

    /// Every model of the registry once, by component and digest.
    fn loaded<'r>(&self, registry: &'r Registry) -> anyhow::Result<BTreeMap<(ComponentName, &'r str), Loaded>> {
        let (mut seen, mut taken) = (BTreeSet::new(), BTreeSet::new());
        let mut distinct = Vec::new();
        let own = registry.iter().map(|(id, component, bundle)| (id, None, component, bundle));
        // Company last, so that a network which an identifier here stands on is known by that identifier.
        let company = registry.iter().flat_map(|(owner, component, bundle)| {
            let wanted = self.company(bundle);
            let company = bundle.company().iter().filter(move |(id, _)| wanted.contains(id));
            company.map(move |(id, bundle)| (*id, Some(owner), component, bundle))
        });
        for (id, owner, component, bundle) in own.chain(company) {
            if seen.insert((component, key(component, bundle))) {
                // Another network than the one that has its identifier here.
                let foreign = owner.filter(|_| taken.contains(&(component, id)));
                taken.insert((component, id));
                let name = foreign.map_or_else(|| id.to_string(), |owner| format!("{owner}/{id}"));
                distinct.push(Distinct { name, id, component, bundle });
            }
        }
        // One thread loads the largest from the beginning to the end, while others load the rest.
        distinct.sort_by_key(|model| Reverse(model.bundle.manifest().alone().bytes()));
        // A bridge, because it hands out what is next in this order; other parallel iterators begin in several places.
        let mut loaded: Vec<_> = distinct
            .into_iter()
            .par_bridge()
            .map(|model| {
                let Distinct { name, id, component, bundle } = &model;
                let loaded = self.load(&model);
                let loaded = loaded.with_context(|| format!("cannot load the {component} model of {name}"));
                (*id, *component, key(*component, bundle), loaded)
            })
            .collect();
        // Of several that fail, the first in the order of the registry is told.
        loaded.sort_by_key(|&(id, component, ..)| (id, component));
        loaded.into_iter().map(|(_, component, key, model)| Ok(((component, key), model?))).collect()
    }

    fn load(&self, model: &Distinct<'_>) -> anyhow::Result<Loaded> {
        let &Distinct { ref name, id, component, bundle } = model;
        Ok(match component {
            ComponentName::Generator => Loaded::Writer(Arc::new(self.writer(id, bundle)?)),
            ComponentName::Text => Loaded::Text(Arc::new(self.text(name, bundle)?)),
            ComponentName::Image => Loaded::Image(Arc::new(self.image(id, bundle)?)),
            ComponentName::Ocr => Loaded::Reader(Arc::new(self.reader(id, bundle)?)),
            ComponentName::Judge => Loaded::Judge(Arc::new(self.judge(id, bundle)?)),
        })
    }

    fn writer(&self, id: ModelId, bundle: &Arc<Bundle>) -> anyhow::Result<Writer> {
        let spec = bundle.manifest().generator.clone().context("the manifest has no generator part")?;
        // A tokenizer of a large vocabulary takes nearly as long as the graph, where a thread is free for it.
        let (generator, tokenizer) = rayon::join(
            || match spec.cache {
                CacheForm::Shared => self.generator(id, bundle, Decoder::open),
                CacheForm::Growing => self.generator(id, bundle, GrowingDecoder::open),
            },
            || PromptTokenizer::open(bundle),
        );
        Ok(Writer::new(tokenizer?, generator?, &spec, bundle.digest().to_owned())?)
    }

    fn generator<D: Decode>(
        &self,
        id: ModelId,
        bundle: &Arc<Bundle>,
        open: fn(&Runtime, &Bundle, usize) -> Result<D, RuntimeError>,
    ) -> anyhow::Result<Generator> {
        let rows = generate::rows_for(self.config.generator_slots);
        let factory: Factory<D> = {
            let (runtime, bundle) = (self.runtime.clone(), Arc::clone(bundle));
            Arc::new(move || open(&runtime, &bundle, rows))
        };
        let options = GeneratorOptions {
            capacity: self.config.generator_queue,
            prefill_tokens: self.config.prefill_tokens,
            lookup: (self.config.speculation != Speculation::Off).then_some(Lookup {
                rows: GUESSED_ROWS,
                tokens: GUESSED_TOKENS,
                anyway: self.config.speculation == Speculation::Lookup,
            }),
        };
        let metrics = self.metrics.model(id.as_str(), "generator");
        Ok(Generator::start(id.as_str(), options, &factory, &metrics)?)
    }

    /// Those who judge beside a text classifier, unless the settings leave it alone with its doubts.
    fn ensemble<'b>(&self, bundle: &'b Bundle) -> Option<&'b EnsembleSpec> {
        let ensemble = bundle.manifest().text_classifier.as_ref()?.ensemble.as_ref();
        ensemble.filter(|ensemble| ensemble.from.is_none() || self.config.second_reading)
    }

    /// The company of a text classifier that is asked at all.
    fn company(&self, bundle: &Bundle) -> Vec<ModelId> {
        let members = self.ensemble(bundle).map_or_else(Vec::new, |ensemble| ensemble.members.clone());
        let elsewhere = bundle.manifest().text_classifier.as_ref().and_then(|spec| spec.elsewhere);
        members.into_iter().chain(elsewhere).collect()
    }

    /// The text classifier of an identifier with its company, all of them loaded.
    fn guardian(
        &self,
        id: ModelId,
        bundle: &Bundle,
        own: &Arc<TextModel>,
        loaded: &BTreeMap<(ComponentName, &str), Loaded>,
    ) -> anyhow::Result<TextGuardian> {
        let spec = bundle.manifest().text_classifier.as_ref().context("the manifest has no text_classifier part")?;
        let other = |id: ModelId| {
            let (_, bundle) = bundle.company().iter().find(|(other, _)| *other == id)?;
            match loaded.get(&(ComponentName::Text, bundle.network()))? {
                Loaded::Text(text) => Some(Arc::clone(text)),
                _ => None,
            }
        };
        let other = |id| other(id).with_context(|| format!("the text classifier of {id} was not loaded"));
        let beside = self.ensemble(bundle).map(|ensemble| {
            let members = ensemble.members.iter().map(|id| other(*id)).collect::<anyhow::Result<_>>()?;
            anyhow::Ok(Beside {
                weights: ensemble.weights_of_all(),
                models: members,
                calibration: ensemble.calibration,
                from: ensemble.from,
            })
        });
        let company = Company { beside: beside.transpose()?, elsewhere: spec.elsewhere.map(other).transpose()? };
        let guardian = TextGuardian::new(Arc::clone(own), company, bundle.digest().to_owned());
        let Some(bounds) = self.config.moderation_cache else { return Ok(guardian) };
        let options = ScoreCacheOptions { entries: bounds.entries, age: bounds.age };
        let cache = ScoreCache::new(options, &self.metrics.model(id.as_str(), "text"));
        Ok(guardian.with_cache(cache.context("the system gives no random bytes")?))
    }

    fn text(&self, name: &str, bundle: &Arc<Bundle>) -> anyhow::Result<TextModel> {
        let spec = bundle.manifest().text_classifier.as_ref().context("the manifest has no text_classifier part")?;
        let factory: Factory<TextClassifier> = {
            let (runtime, bundle) = (self.runtime.clone(), Arc::clone(bundle));
            // One that is opened anew, after it broke, takes the next number: two may then have the larger share.
            let opened = AtomicUsize::new(0);
            Arc::new(move || {
                let number = opened.fetch_add(1, Ordering::Relaxed) % TextClassifier::WORKERS;
                TextClassifier::open_worker(&runtime, &bundle, number)
            })
        };
        let device = self.runtime.device();
        let budget = text_budget(self.config, device);
        let items = match device {
            Device::Cpu => BATCH_TEXTS,
            Device::Cuda => CUDA_BATCH_TEXTS,
        };
        let options = BatchOptions {
            capacity: self.config.text_queue,
            workers: self.config.threads.get().min(TextClassifier::WORKERS),
            policy: BatchPolicy { budget: budget.unwrap_or(UNMEASURED_TOKENS), items, wait: self.config.batch_wait },
        };
        let metrics = self.metrics.model(name, "text");
        if let Some(tokens) = budget {
            metrics.batch_tokens.set(tokens.try_into().unwrap_or(i64::MAX));
        }
        let batcher = Batcher::start(&format!("{name}-text"), options, &factory, &metrics)?;
        Ok(TextModel::new(name.to_owned(), WindowTokenizer::open(bundle)?, batcher, spec, Arc::clone(&self.metrics)))
    }

    fn image(&self, id: ModelId, bundle: &Arc<Bundle>) -> anyhow::Result<ImageGuardian> {
        let spec = bundle.manifest().image_classifier.as_ref().context("the manifest has no image_classifier part")?;
        let factory: Factory<ImageClassifier> = {
            let (runtime, bundle) = (self.runtime.clone(), Arc::clone(bundle));
            Arc::new(move || ImageClassifier::open(&runtime, &bundle))
        };
        let options = BatchOptions {
            // Every admitted picture may have all its frames queued, each over two grounds or in two versions.
            capacity: self.config.image_queue * BATCH_PICTURES * 2,
            workers: 1,
            policy: BatchPolicy { budget: BATCH_PICTURES, items: BATCH_PICTURES, wait: Duration::ZERO },
        };
        let name = format!("{id}-image");
        let batcher = Batcher::start(&name, options, &factory, &self.metrics.model(id.as_str(), "image"))?;
        let digest = bundle.digest().to_owned();
        Ok(ImageGuardian::new(spec.size, batcher, digest, Arc::clone(&self.metrics)).with_glance(spec.glance))
    }

    /// The text reader of an identifier.
    pub(super) fn reader(&self, id: ModelId, bundle: &Arc<Bundle>) -> anyhow::Result<TextReader> {
        let spec = bundle.manifest().text_reader.context("the manifest has no text_reader part")?;
        let pictures = self.config.image_queue;
        // A page fills the cores by itself: the budget lets each go alone.
        let pages = BatchPolicy { budget: 1, items: 1, wait: Duration::ZERO };
        let small = BatchPolicy { budget: BATCH_LINES, items: BATCH_LINES, wait: Duration::ZERO };
        let lines = BatchPolicy { budget: BATCH_COLUMNS, items: BATCH_LINES, wait: Duration::ZERO };
        let (capacity, lined_up) = (pictures * BATCH_PICTURES * 2, pictures * QUEUED_LINES);
        let detector = Stage { name: "detector", capacity, policy: pages, open: TextDetector::open };
        let orientation = Stage { name: "orientation", capacity: lined_up, policy: small, open: LineOrientation::open };
        let recogniser = Stage { name: "recogniser", capacity: lined_up, policy: lines, open: LineRecogniser::open };
        let stages = ReaderStages {
            detector: self.stage(id, bundle, &detector)?,
            orientation: self.stage(id, bundle, &orientation)?,
            recogniser: self.stage(id, bundle, &recogniser)?,
        };
        Ok(TextReader::new(stages, spec, bundle.digest().to_owned(), Arc::clone(&self.metrics)))
    }

    fn judge(&self, id: ModelId, bundle: &Arc<Bundle>) -> anyhow::Result<AnswerJudge> {
        let policy = BatchPolicy { budget: UNMEASURED_TOKENS, items: BATCH_TEXTS, wait: Duration::ZERO };
        let stage = Stage { name: "judge", capacity: self.config.text_queue, policy, open: runtime::AnswerJudge::open };
        let batcher = self.stage(id, bundle, &stage)?;
        let spec = bundle.manifest().answer_judge.as_ref().context("the manifest has no answer_judge part")?;
        let tokenizer = JudgeTokenizer::open(bundle)?;
        Ok(AnswerJudge::new(tokenizer, batcher, spec, situations::of(bundle)?, bundle.digest().to_owned()))
    }

    fn stage<F: Forward>(
        &self,
        id: ModelId,
        bundle: &Arc<Bundle>,
        stage: &Stage<F>,
    ) -> anyhow::Result<Batcher<F::Input, F::Output>> {
        let factory: Factory<F> = {
            let (runtime, bundle, open) = (self.runtime.clone(), Arc::clone(bundle), stage.open);
            Arc::new(move || open(&runtime, &bundle))
        };
        let options = BatchOptions { capacity: stage.capacity, workers: 1, policy: stage.policy };
        let metrics = self.metrics.model(id.as_str(), stage.name);
        Ok(Batcher::start(&format!("{id}-{}", stage.name), options, &factory, &metrics)?)
    }
}

/// A network with one worker.
struct Stage<F> {
    name: &'static str,
    capacity: usize,
    policy: BatchPolicy,
    open: fn(&Runtime, &Bundle) -> Result<F, RuntimeError>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeFlags;

    #[test]
    fn a_budget_that_is_set_holds_on_every_device_and_is_measured_on_none_but_the_cpu() {
        let budgets = |tokens: &str| {
            let environment = [("DICHROIC_BATCH_TOKENS".into(), tokens.into())];
            let config = Config::from_sources(None, environment, &ServeFlags::default()).unwrap();
            [Device::Cpu, Device::Cuda].map(|device| text_budget(&config, device))
        };
        assert_eq!(budgets("2048"), [Some(2048), Some(2048)]);
        assert_eq!(budgets("auto"), [None, Some(16_384)]);
    }
}
