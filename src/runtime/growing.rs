//! A generator graph that answers with its cache, longer by the new tokens: [`Decode`] for models that were exported
//! elsewhere.
//!
//! Graph contract, as Hugging Face's exporters write it: `input_ids` int64 `[batch, tokens]`; where the graph has them,
//! `attention_mask` int64 `[batch, past + tokens]` and `position_ids` int64 `[batch, tokens]`;
//! `past_key_values.{layer}.{key,value}` float32 `[batch, heads, past, width]` → `logits` float32
//! `[batch, tokens, vocab]` and `present.{layer}.{key,value}`.
//!
//! A pass takes one row. Rows of one pass would have to be padded to one length, and whether padding leaves the answer
//! alone is up to each graph: some count positions themselves. So a step costs as many passes as there are rows.

use std::{borrow::Cow, iter, sync::Arc};

use ort::{
    session::{Session, SessionInputValue},
    value::{DynValue, Tensor},
};

use super::{Decode, Runtime, RuntimeError, Step};
use crate::registry::{Bundle, manifest::GeneratorSpec};

/// Tokens a prefill pass takes at once. The graph gives logits for each of them, and those of a large vocabulary are most
/// of the memory that a pass needs.
const PREFILL_CHUNK: usize = 64;

/// A generator: session, and the cache of each row as the graph gave it last.
pub struct GrowingDecoder {
    session: Session,
    spec: GeneratorSpec,
    /// Names of a cache on its way in and out, key of layer 0 first.
    names: Vec<[String; 2]>,
    takes_mask: bool,
    takes_positions: bool,
    nothing: Row,
    rows: Vec<Row>,
}

/// Tokens and their keys and values. A pass never changes those that it is given, so rows may share them.
#[derive(Clone)]
struct Row {
    length: usize,
    caches: Arc<[DynValue]>,
}

impl GrowingDecoder {
    /// Opens the graph of `bundle` for `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no generator or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle, rows: usize) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .generator
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no generator".into()))?;
        let session = runtime.open(&bundle.graph())?;
        let takes = |name: &str| session.inputs().iter().any(|input| input.name() == name);
        let names = (0..spec.layers)
            .flat_map(|layer| ["key", "value"].map(|half| (layer, half)))
            .map(|(layer, half)| [format!("past_key_values.{layer}.{half}"), format!("present.{layer}.{half}")])
            .collect::<Vec<_>>();
        let empty = |_: &[String; 2]| {
            Ok(Tensor::from_array(([1, spec.kv_heads, 0, spec.head_dim], Vec::<f32>::new()))?.into_dyn())
        };
        let caches = names.iter().map(empty).collect::<Result<Arc<[DynValue]>, RuntimeError>>()?;
        let nothing = Row { length: 0, caches };
        Ok(Self {
            takes_mask: takes("attention_mask"),
            takes_positions: takes("position_ids"),
            rows: vec![nothing.clone(); rows],
            nothing,
            names,
            session,
            spec,
        })
    }

    /// The first `past` tokens of a row, which may hold more: those of an earlier sequence, or of the row it was copied
    /// from.
    fn held(&self, row: usize, past: usize) -> Result<Row, RuntimeError> {
        let held = self.rows.get(row).filter(|held| held.length >= past);
        let held = held.ok_or_else(|| RuntimeError::Shape(format!("row {row} does not hold {past} tokens")))?;
        if past == held.length {
            return Ok(held.clone());
        }
        if past == 0 {
            return Ok(self.nothing.clone());
        }
        let caches = held.caches.iter().map(|cache| self.cut(cache, held.length, past)).collect::<Result<_, _>>()?;
        Ok(Row { length: past, caches })
    }

    fn cut(&self, cache: &DynValue, length: usize, past: usize) -> Result<DynValue, RuntimeError> {
        let GeneratorSpec { kv_heads, head_dim, .. } = self.spec;
        let (_, values) = cache.try_extract_tensor::<f32>()?;
        let kept: Vec<f32> =
            values.chunks(length * head_dim).flat_map(|head| head.iter().take(past * head_dim)).copied().collect();
        Ok(Tensor::from_array(([1, kv_heads, past, head_dim], kept))?.into_dyn())
    }

    /// One pass of one row; answers the logits after each of its tokens.
    fn pass(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        let (count, after) = (tokens.len(), past + tokens.len());
        if count == 0 || after > self.spec.window {
            return Err(RuntimeError::Shape(format!("{count} tokens after {past} in row {row}")));
        }
        let held = self.held(row, past)?;
        let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> =
            ort::inputs!["input_ids" => Tensor::from_array(([1, count], ids))?];
        if self.takes_mask {
            inputs.push(("attention_mask".into(), Tensor::from_array(([1, after], vec![1_i64; after]))?.into()));
        }
        if self.takes_positions {
            let positions: Vec<i64> = (past..after).map(int64).collect();
            inputs.push(("position_ids".into(), Tensor::from_array(([1, count], positions))?.into()));
        }
        for ([name, _], cache) in self.names.iter().zip(held.caches.iter()) {
            inputs.push((name.as_str().into(), cache.into()));
        }
        let mut outputs = self.session.run(inputs)?;
        let logits = outputs.get("logits").ok_or_else(|| RuntimeError::Shape("no logits".into()))?;
        let (shape, values) = logits.try_extract_tensor::<f32>()?;
        if values.len() != count * self.spec.vocab {
            return Err(RuntimeError::Shape(format!("logits {shape:?}")));
        }
        let logits = values.to_vec();
        let expected = [1, self.spec.kv_heads, after, self.spec.head_dim].map(int64);
        let mut caches = Vec::with_capacity(self.names.len());
        for [_, name] in &self.names {
            let cache = outputs.remove(name).ok_or_else(|| RuntimeError::Shape(format!("no {name}")))?;
            let (shape, _) = cache.try_extract_tensor::<f32>()?;
            if shape[..] != expected {
                return Err(RuntimeError::Shape(format!("{name} {shape:?}")));
            }
            caches.push(cache);
        }
        drop(outputs);
        if let Some(place) = self.rows.get_mut(row) {
            *place = Row { length: after, caches: caches.into() };
        }
        Ok(logits)
    }
}

impl Decode for GrowingDecoder {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn window(&self) -> usize {
        self.spec.window
    }

    fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        let mut done = past;
        let mut last = Vec::new();
        for chunk in chunks(tokens) {
            let logits = self.pass(row, done, chunk)?;
            last = logits.rchunks(self.spec.vocab).next().unwrap_or_default().to_vec();
            done += chunk.len();
        }
        Ok(last)
    }

    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        steps.iter().enumerate().map(|(row, step)| self.pass(row, step.past, &[step.token])).collect()
    }

    fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let logits = self.pass(row, past, tokens)?;
        Ok(logits.chunks(self.spec.vocab).map(<[f32]>::to_vec).collect())
    }

    fn verifies(&self) -> bool {
        true
    }

    fn copy(&mut self, from: usize, to: usize, _length: usize) {
        // All of it is shared; the next pass of either row takes what it needs.
        if let Some(row) = self.rows.get(from).cloned()
            && let Some(place) = self.rows.get_mut(to)
        {
            *place = row;
        }
    }
}

/// Pieces of at most [`PREFILL_CHUNK`] tokens, none of them a single one unless it is all there is: that would be a step,
/// which rounds otherwise, and an answer would depend on how its prompt was cut.
fn chunks(mut tokens: &[u32]) -> impl Iterator<Item = &[u32]> {
    iter::from_fn(move || {
        let left = tokens.len();
        let length = if left <= PREFILL_CHUNK { left } else { PREFILL_CHUNK.min(left - 2) };
        let (chunk, rest) = tokens.split_at_checked(length).filter(|(chunk, _)| !chunk.is_empty())?;
        tokens = rest;
        Some(chunk)
    })
}

/// Lengths are bounded by the window of the manifest, far below the type's limit.
fn int64(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_chunk_is_a_single_token_unless_it_is_all() {
        for length in 0..=4 * PREFILL_CHUNK {
            let tokens: Vec<u32> = (0..).take(length).collect();
            let lengths: Vec<usize> = chunks(&tokens).map(<[u32]>::len).collect();
            assert_eq!(chunks(&tokens).collect::<Vec<_>>().concat(), tokens);
            let whole = length <= 1;
            assert!(
                lengths.iter().all(|&chunk| (2..=PREFILL_CHUNK).contains(&chunk) || whole),
                "{length}: {lengths:?}"
            );
            assert_eq!(lengths.len(), length.div_ceil(PREFILL_CHUNK));
        }
    }
}
