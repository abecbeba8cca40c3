//! A generator graph that writes into a KV cache of ours: [`Decode`] over ONNX Runtime. It is the form that `scripts/`
//! builds; [`super::growing`] is for the other.
//!
//! Graph contract (see `scripts/forge/decoder.py`): `input_ids` int64 `[batch, sequence]`, `seqlens_k` int32
//! `[batch]` (tokens of the row after the pass, minus one), `total_sequence_length` int32 scalar (the longest row
//! after the pass), `past.{layer}.{key,value}` and `present.…`, float32 or for GPUs float16, bound to the same memory,
//! `logits_at` int64 `[places]` (the positions of the pass whose logits are wanted; graphs without it give those of the
//! last), `logits` float32 `[batch × places, vocab]`. A pass is either one row with any number of tokens or many rows
//! with one token each.

use std::collections::HashMap;

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

/// A generator: session, cache, and one binding for each set of rows in use.
pub struct Decoder {
    // Field order is drop order: bindings point into the cache and belong to the session.
    bindings: HashMap<(usize, usize), IoBinding>,
    cache: KvCache,
    session: Session,
    spec: GeneratorSpec,
    rows: usize,
    /// Whether the graph can tell the logits of other positions than the last.
    tells_each: bool,
    /// Why the cache cannot be trusted any more: a copy in it failed, as only a GPU's can. No pass reads it again.
    broken: Option<RuntimeError>,
}

impl Decoder {
    /// Opens the graph of `bundle` with a cache of `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no generator or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle, rows: usize) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .generator
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no generator".into()))?;
        let session = runtime.open_awake(&bundle.graph(), 1)?;
        let element = KvElement::of(&session)?;
        if runtime.device() == Device::Cuda && element == KvElement::Single {
            tracing::warn!(
                name = bundle.manifest().name,
                "this generator was built for the CPU, which computes much of it; `make models DEVICE=cuda` builds it \
                 for a GPU"
            );
        }
        let GeneratorSpec { layers, kv_heads: heads, window, head_dim: width, .. } = spec;
        let cache = KvCache::new(KvShape { layers, rows, heads, window, width, element }, runtime.device())?;
        let tells_each = session.overridable_initializers().iter().any(|input| input.name() == LOGITS_AT);
        Ok(Self { bindings: HashMap::new(), cache, session, spec, rows, tells_each, broken: None })
    }

    /// One pass over rows `start..start + past.len()`; `tokens` is `[rows, sequence]` flattened. Answers one logits
    /// vector `[vocab]` a place.
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
        let binding = match self.bindings.entry((start, count)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(self.cache.bind(&self.session, start, count)?)
            }
        };
        // Anew for each pass: the tensor of the last one is written to again otherwise, and may be of another size.
        let host = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::CPUOutput)?;
        binding.bind_output_to_device("logits", &host)?;
        let places: Vec<i64> = match wanted {
            Wanted::Last => vec![-1],
            Wanted::Each => (0_i64..).take(sequence).collect(),
        };
        let told = count * places.len();
        if self.tells_each {
            binding.bind_input(LOGITS_AT, &Tensor::from_array(([places.len()], places))?)?;
        }
        let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        binding.bind_input("input_ids", &Tensor::from_array(([count, sequence], ids))?)?;
        binding.bind_input(
            "seqlens_k",
            &Tensor::from_array(([count], after.iter().map(|&n| int32(n - 1)).collect::<Vec<_>>()))?,
        )?;
        binding.bind_input("total_sequence_length", &Tensor::from_array(ndarray::arr0(int32(longest)))?)?;
        let outputs = self.session.run_binding(binding)?;
        let logits = outputs.get("logits").ok_or_else(|| RuntimeError::Shape("no logits".into()))?;
        let (shape, values) = logits.try_extract_tensor::<f32>()?;
        if values.len() == told * self.spec.vocab {
            Ok(values.chunks(self.spec.vocab).map(<[f32]>::to_vec).collect())
        } else {
            Err(RuntimeError::Shape(format!("logits {shape:?}")))
        }
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

    fn verifies(&self) -> bool {
        self.tells_each
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) {
        self.broken = self.cache.copy(from, to, length).err().or_else(|| self.broken.take());
    }
}

/// Lengths are bounded by the window of the manifest, far below the type's limit.
fn int32(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
