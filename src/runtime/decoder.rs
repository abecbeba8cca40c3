//! A generator graph that writes into a KV cache of ours: [`Decode`] over ONNX Runtime. It is the form that `scripts/`
//! builds; [`super::growing`] is for the other.
//!
//! Graph contract (see `scripts/forge/decoder.py`): `input_ids` int64 `[batch, sequence]`, `seqlens_k` int32
//! `[batch]` (tokens of the row after the pass, minus one), `total_sequence_length` int32 scalar (the longest row
//! after the pass), `past.{layer}.{key,value}` and `present.…`, float32 or for GPUs float16, bound to the same memory,
//! `logits_at` int64 `[places]` (the positions of the pass whose logits are wanted; graphs without it give those of the
//! last), `logits` float32 `[batch × places, answer tokens]`. A pass is either one row with any number of tokens or many
//! rows with one token each; where attention and products are ours, many rows with as many tokens each too.
//!
//! A bundle may have a second graph of the same contract for passes over prompts: these are bound by arithmetic, steps
//! by reading weights, and what computes the one fastest is slow for the other. Which graph a pass takes follows from
//! its length and from whether it verifies guesses, never from company, which so changes no answer. Where the products are
//! ours ([`super::products`]) it is left out: theirs are as fast for both. For these a bundle may have a graph of weights
//! that theirs alone can multiply, which is then opened instead of both.

use std::{
    collections::{HashMap, hash_map::Entry},
    path::Path,
};

use ort::{
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    value::Tensor,
};

use super::{
    Decode, Runtime, RuntimeError, Step,
    kv::{KvCache, KvElement, KvShape},
};
use crate::domain::Device;
use crate::registry::{Bundle, manifest::GeneratorSpec};

/// Tokens a prefill pass takes at once. The attention of a pass needs `heads × chunk × window` floats, so a long
/// prompt is cut to keep that near 50 MB.
const PREFILL_CHUNK: usize = 256;

/// The input that has a default, so that a graph without it is called in the same way.
const LOGITS_AT: &str = "logits_at";

/// The positions of a pass whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Last,
    Each,
}

/// A session and one binding for each set of rows in use.
struct Graph {
    // Field order is drop order: bindings belong to the session.
    bindings: HashMap<(usize, usize), IoBinding>,
    session: Session,
    /// Whether its products are ours.
    ours: bool,
}

impl Graph {
    fn open(runtime: &Runtime, path: &Path) -> Result<Self, RuntimeError> {
        let (session, ours) = runtime.open_generator(path)?;
        Ok(Self { bindings: HashMap::new(), session, ours })
    }
}

/// A generator: its graphs and the cache that both of them write.
pub struct Decoder {
    // Field order is drop order: bindings point into the cache.
    graph: Graph,
    prefill: Option<Graph>,
    cache: KvCache,
    spec: GeneratorSpec,
    /// The token of each logit, where that is not its place.
    answers: Option<Vec<u32>>,
    rows: usize,
    /// Whether the graph can tell the logits of other positions than the last.
    tells_each: bool,
    /// Why the cache cannot be trusted any more: a copy in it failed, as only a GPU's can. No pass reads it again.
    broken: Option<RuntimeError>,
}

impl Decoder {
    /// Opens the graphs of `bundle` with a cache of `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no generator or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle, rows: usize) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .generator
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no generator".into()))?;
        let own = spec.products.as_ref().filter(|_| runtime.has_operators());
        let graph = Graph::open(runtime, &own.map_or_else(|| bundle.graph(), |name| bundle.file(name)))?;
        if own.is_some() && !graph.ours {
            return Err(RuntimeError::Load("its graph for products of ours has none that we can do".into()));
        }
        let answers = spec.answer_tokens.as_ref().map(|name| answer_tokens(&bundle.file(name), &spec)).transpose()?;
        let written = |token| answers.as_ref().is_none_or(|answers| answers.binary_search(token).is_ok());
        if spec.mood.as_ref().is_some_and(|mood| !mood.tokens.iter().all(written)) {
            return Err(RuntimeError::Load("its mood is read from tokens that its answers cannot hold".into()));
        }
        let element = KvElement::of(&graph.session)?;
        // Products of ours are as fast with the first graph's weights, and need no second copy of them.
        let prefill = spec.prefill.as_ref().filter(|_| !graph.ours);
        let prefill = prefill.map(|name| Graph::open(runtime, &bundle.file(name))).transpose()?;
        if prefill.as_ref().map(|graph| KvElement::of(&graph.session)).transpose()?.is_some_and(|its| its != element) {
            return Err(RuntimeError::Load("the graph for prompts has a cache of another precision".into()));
        }
        if runtime.device() == Device::Cuda && element == KvElement::Single {
            tracing::warn!(
                name = bundle.manifest().name,
                "this generator was built for the CPU, which computes much of it; `make models DEVICE=cuda` builds it \
                 for a GPU"
            );
        }
        let GeneratorSpec { layers, kv_heads: heads, window, head_dim: width, .. } = spec;
        let cache = KvCache::new(KvShape { layers, rows, heads, window, width, element }, runtime.device())?;
        let tells_each = graph.session.overridable_initializers().iter().any(|input| input.name() == LOGITS_AT);
        Ok(Self { graph, prefill, cache, spec, answers, rows, tells_each, broken: None })
    }

    /// One pass over rows `start..start + past.len()`; `tokens` is `[rows, sequence]` flattened. Answers one logits
    /// vector a place.
    fn pass(
        &mut self,
        start: usize,
        past: &[usize],
        tokens: &[u32],
        wanted: Wanted,
    ) -> Result<Vec<Vec<f32>>, RuntimeError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let count = past.len();
        let sequence = tokens.len() / count.max(1);
        let after: Vec<usize> = past.iter().map(|past| past + sequence).collect();
        let longest = after.iter().copied().max().unwrap_or(0);
        if count == 0 || sequence == 0 || start + count > self.rows || longest > self.spec.window {
            return Err(RuntimeError::Shape(format!("{count} rows from {start} with {longest} tokens")));
        }
        // Guesses are verified by the graph that steps, whose tokens they must be.
        let prompt = self.prefill.as_mut().filter(|_| sequence > 1 && wanted == Wanted::Last);
        let is_prompt = prompt.is_some();
        let Graph { bindings, session, .. } = prompt.unwrap_or(&mut self.graph);
        let binding = match bindings.entry((start, count)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.cache.bind(session, start, count)?),
        };
        // Anew for each pass: the tensor of the last one is written to again otherwise, and may be of another size.
        let host = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::CPUOutput)?;
        binding.bind_output_to_device("logits", &host)?;
        let places: Vec<i64> = match wanted {
            Wanted::Last => vec![-1],
            Wanted::Each => (0_i64..).take(sequence).collect(),
        };
        let told = count * places.len();
        // The other graph tells the last position by itself, and nothing else is asked of it.
        if self.tells_each && !is_prompt {
            binding.bind_input(LOGITS_AT, &Tensor::from_array(([places.len()], places))?)?;
        }
        let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        binding.bind_input("input_ids", &Tensor::from_array(([count, sequence], ids))?)?;
        binding.bind_input(
            "seqlens_k",
            &Tensor::from_array(([count], after.iter().map(|&n| int32(n - 1)).collect::<Vec<_>>()))?,
        )?;
        binding.bind_input("total_sequence_length", &Tensor::from_array(ndarray::arr0(int32(longest)))?)?;
        let outputs = session.run_binding(binding)?;
        let logits = outputs.get("logits").ok_or_else(|| RuntimeError::Shape("no logits".into()))?;
        let (shape, values) = logits.try_extract_tensor::<f32>()?;
        let width = self.answers.as_ref().map_or(self.spec.vocab, Vec::len);
        let told = if values.len() == told * width {
            Ok(values.chunks(width).map(<[f32]>::to_vec).collect())
        } else {
            Err(RuntimeError::Shape(format!("logits {shape:?}")))
        };
        drop(outputs);
        // Each choice of rows has a binding of its own, and would hold on to what it told last.
        binding.bind_output_to_device("logits", &host)?;
        told
    }
}

impl Decode for Decoder {
    fn rows(&self) -> usize {
        self.rows
    }

    fn window(&self) -> usize {
        self.spec.window
    }

    fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        let mut done = past;
        let mut logits = Vec::new();
        for chunk in tokens.chunks(PREFILL_CHUNK) {
            logits = self.pass(row, &[done], chunk, Wanted::Last)?.pop().unwrap_or_default();
            done += chunk.len();
        }
        Ok(logits)
    }

    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let past: Vec<usize> = steps.iter().map(|step| step.past).collect();
        let tokens: Vec<u32> = steps.iter().map(|step| step.token).collect();
        self.pass(0, &past, &tokens, Wanted::Last)
    }

    fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        self.pass(row, &[past], tokens, Wanted::Each)
    }

    fn verify_all(&mut self, rows: &[(usize, Vec<u32>)]) -> Result<Vec<Vec<Vec<f32>>>, RuntimeError> {
        let longest = rows.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let together = self.graph.ours && rows.iter().all(|(past, _)| past + longest <= self.spec.window);
        if !together {
            return rows.iter().enumerate().map(|(row, (past, tokens))| self.verify(row, *past, tokens)).collect();
        }
        let past: Vec<usize> = rows.iter().map(|(past, _)| *past).collect();
        // Behind a row's own tokens the last of them again, in places that the next pass writes over.
        let padded = rows.iter().flat_map(|(_, tokens)| {
            let last = tokens.last().copied();
            tokens.iter().copied().chain(last.into_iter().cycle()).take(longest)
        });
        let padded: Vec<u32> = padded.collect();
        let mut logits = self.pass(0, &past, &padded, Wanted::Each)?.into_iter();
        let of_row = |(_, tokens): &(usize, Vec<u32>)| {
            let mut told: Vec<Vec<f32>> = logits.by_ref().take(longest).collect();
            told.truncate(tokens.len());
            told
        };
        Ok(rows.iter().map(of_row).collect())
    }

    fn token(&self, place: u32) -> u32 {
        // A place beyond them cannot be: every pass compares its width with theirs.
        self.answers.as_ref().and_then(|tokens| tokens.get(usize::try_from(place).ok()?)).copied().unwrap_or(place)
    }

    fn place(&self, token: u32) -> Option<u32> {
        let Some(tokens) = &self.answers else { return Some(token) };
        u32::try_from(tokens.binary_search(&token).ok()?).ok()
    }

    fn verifies(&self) -> bool {
        self.tells_each
    }

    fn verifies_as_it_steps(&self) -> bool {
        self.tells_each && self.graph.ours
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) {
        self.broken = self.cache.copy(from, to, length).err().or_else(|| self.broken.take());
    }
}

/// The tokens that logits are of.
fn answer_tokens(path: &Path, spec: &GeneratorSpec) -> Result<Vec<u32>, RuntimeError> {
    let load = |reason: String| RuntimeError::Load(format!("{}: {reason}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| load(error.to_string()))?;
    let (ids, rest) = bytes.as_chunks();
    let tokens: Vec<u32> = ids.iter().map(|id| u32::from_le_bytes(*id)).collect();
    let known = tokens.last().is_some_and(|&last| usize::try_from(last).is_ok_and(|last| last < spec.vocab));
    if !rest.is_empty() || !known || !tokens.is_sorted_by(|a, b| a < b) {
        return Err(load("it does not hold tokens of the vocabulary, ascending".into()));
    }
    Ok(tokens)
}

/// Lengths are bounded by the window of the manifest, far below the type's limit.
fn int32(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
