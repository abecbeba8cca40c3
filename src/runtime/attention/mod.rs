//! The attention of a generator: an operator of ours in place of ONNX Runtime's `GroupQueryAttention`.
//!
//! In a step a query meets some hundred keys, which is little to do; ONNX Runtime shares that out among threads, as products
//! of matrices of one row, and rounds a token otherwise in a prompt than in a step. Here the queries of one key head go
//! together, the sums of several keys are found at once, and what would take longer to share out than to do is not shared out
//! (docs/performance.md has what that is worth). The arithmetic is that of `GroupQueryAttention` in single precision; a
//! token's numbers do not depend on what is beside it, neither other rows nor other tokens of its pass.
//!
//! Owns the operator, and which nodes it stands for ([`replace`]). It comes with [`super::products`], and needs what these
//! need; elsewhere `GroupQueryAttention` stays. Runs on the engine thread that runs the session, and on the session's own
//! threads.

mod avx2;
mod avx512;
mod kernels;

use std::{collections::HashMap, f32::consts::LOG2_E, ops::Range, sync::Mutex};

use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::{
    instructions::Instructions,
    nodes::{FLOAT, Graph, MICROSOFT, Node},
    wire::{field, put_bytes},
};

/// The operator's name, and that of what it replaces.
const NAME: &str = "GroupQueryAttention";

/// Widths of a head that there is code for.
const WIDTHS: [usize; 5] = [16, 32, 64, 128, 256];

/// Products of a query and a key, of 64 numbers each, that take as long as to wake a thread for.
const SHARED_FROM: usize = 4096;

/// Parts for each thread: one that something else delays leaves its parts to others.
const PARTS: usize = 4;

/// Puts nodes of ours in the place of a graph's attentions; none where one of them cannot be ours.
pub(super) fn replace(graph: &Graph<'_>, domain: &str, replaced: &mut HashMap<usize, Option<Vec<u8>>>) -> Option<()> {
    let attends = |node: &Node<'_>| node.kind == NAME.as_bytes() && node.domain == MICROSOFT;
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| attends(node)) {
        if !ours(graph, node) {
            return None;
        }
        let mut changed = Vec::new();
        for input in &node.inputs {
            put_bytes(&mut changed, field::NODE_INPUT, input);
        }
        for output in &node.outputs {
            put_bytes(&mut changed, field::NODE_OUTPUT, output);
        }
        put_bytes(&mut changed, field::NODE_NAME, node.outputs.first().copied().unwrap_or_default());
        put_bytes(&mut changed, field::NODE_KIND, NAME.as_bytes());
        put_bytes(&mut changed, field::NODE_DOMAIN, domain.as_bytes());
        for attribute in node.attributes.values() {
            put_bytes(&mut changed, field::NODE_ATTRIBUTE, attribute);
        }
        replaced.insert(index, Some(changed));
    }
    Some(())
}

/// Whether a node is an attention that ours can do: with places by rotation, by constant tables, and nothing beyond what
/// `scripts/forge/decoder.py` asks for.
fn ours(graph: &Graph<'_>, node: &Node<'_>) -> bool {
    let tables = [7, 8].map(|place| graph.constants.get(node.input(place)));
    let width = tables[0].and_then(|table| table.shape.get(1)).map_or(0, |half| 2 * half);
    let known = ["do_rotary", "kv_num_heads", "local_window_size", "num_heads", "rotary_interleaved"];
    node.inputs.len() == 9
        && node.outputs.len() == 3
        && node.outputs.iter().all(|name| !name.is_empty())
        && tables.iter().all(|table| table.is_some_and(|table| table.kind == FLOAT && table.shape.len() == 2))
        && WIDTHS.contains(&width)
        && node.number("do_rotary") == Some(1)
        // A query that sees nothing, not even itself, has no answer.
        && node.number("local_window_size") != Some(0)
        && node.attributes.keys().all(|name| known.iter().any(|known| known.as_bytes() == *name))
}

/// The operator, for sessions of so many threads. Its kernels belong to one session, which runs one of them at a time.
pub(super) struct Attention {
    pub(super) instructions: Instructions,
    pub(super) threads: usize,
}

impl Operator for Attention {
    type Kernel<'attr> = Attending;

    fn name(&self) -> &'static str {
        NAME
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let numbers = || OperatorInput::required(TensorElementType::Float32);
        let maybe = || OperatorInput::optional(TensorElementType::Float32);
        [
            // Queries [batch, tokens, heads × width], or with keys and values behind them.
            numbers(),
            // Keys and values [batch, tokens, key heads × width], where they are not.
            maybe(),
            maybe(),
            // Those of earlier tokens [batch, key heads, window, width].
            maybe(),
            maybe(),
            // Tokens of each row after the pass, less one [batch], and of the longest.
            OperatorInput::optional(TensorElementType::Int32),
            OperatorInput::optional(TensorElementType::Int32),
            // Cosines and sines by place [places, width / 2].
            maybe(),
            maybe(),
        ]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        // What the heads gather [batch, tokens, heads × width], and all keys and values, as they came.
        [(); 3].map(|()| OperatorOutput::required(TensorElementType::Float32))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> Result<Self::Kernel<'attr>, ort::Error> {
        let attribute = |name: &str| -> Option<i64> { context.get(name) };
        let number = |name: &str| {
            let value = attribute(name).and_then(|value| usize::try_from(value).ok());
            value.filter(|value| *value > 0).ok_or_else(|| refused(name))
        };
        let (heads, key_heads) = (number("num_heads")?, number("kv_num_heads")?);
        if !heads.is_multiple_of(key_heads) {
            return Err(refused("kv_num_heads"));
        }
        Ok(Attending {
            heads,
            key_heads,
            interleaved: attribute("rotary_interleaved") == Some(1),
            // -1 is none.
            near: attribute("local_window_size").and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX),
            instructions: self.instructions,
            threads: self.threads,
            queries: Vec::new(),
            weights: Vec::new(),
        })
    }
}

fn refused(what: &str) -> ort::Error {
    ort::Error::new(format!("an attention has an unexpected {what}"))
}

/// One attention of a graph.
pub(super) struct Attending {
    heads: usize,
    key_heads: usize,
    /// Whether neighbouring numbers are rotated together, instead of those of the two halves of a head.
    interleaved: bool,
    /// How many tokens a query looks at, itself the last.
    near: usize,
    instructions: Instructions,
    threads: usize,
    /// Rotated queries [batch, key heads, tokens, heads of a key head, width], and the weights of each part; kept.
    queries: Vec<f32>,
    weights: Vec<Mutex<Vec<f32>>>,
}

/// The dimensions of a pass.
#[derive(Clone, Copy)]
struct Dimensions {
    batch: usize,
    tokens: usize,
    window: usize,
    width: usize,
}

impl Kernel for Attending {
    fn compute(&mut self, context: &ComputeContext) -> Result<(), ort::Error> {
        let needed = |place: usize| context.input(place)?.ok_or_else(|| refused("input"));
        let first = needed(0)?;
        let (shape, first) = first.try_extract_tensor::<f32>()?;
        let (key, value) = (context.input(1)?, context.input(2)?);
        let lengths = needed(5)?;
        let lengths = lengths.try_extract_tensor::<i32>()?.1;
        let (cosines, sines) = (needed(7)?, needed(8)?);
        let (cosines, sines) = (cosines.try_extract_tensor::<f32>()?, sines.try_extract_tensor::<f32>()?.1);
        let (past_key, past_value) = (needed(3)?, needed(4)?);
        let whole = past_key.try_extract_tensor::<f32>()?.0.to_vec();

        let size = |shape: &[i64], place: usize| shape.get(place).and_then(|size| usize::try_from(*size).ok());
        let half = size(cosines.0, 1).unwrap_or(0);
        let (Some(batch), Some(tokens), Some(window)) = (size(shape, 0), size(shape, 1), size(&whole, 2)) else {
            return Err(refused("shape"));
        };
        let dimensions = Dimensions { batch, tokens, window, width: 2 * half };
        let (of_queries, of_keys) = (self.heads * dimensions.width, self.key_heads * dimensions.width);
        // Where keys and values stand behind the queries, of each token the three in one row.
        let (keys, values, stride) = if let (Some(key), Some(value)) = (&key, &value) {
            (key.try_extract_tensor::<f32>()?.1, value.try_extract_tensor::<f32>()?.1, of_keys)
        } else {
            let keys = first.get(of_queries..).unwrap_or_default();
            (keys, keys.get(of_keys..).unwrap_or_default(), of_queries + 2 * of_keys)
        };
        let query_stride = if stride == of_keys { of_queries } else { stride };
        let places = cosines.1.len() / half.max(1);
        let after: Option<Vec<usize>> =
            lengths.iter().map(|length| usize::try_from(*length).ok().map(|length| length + 1)).collect();
        let after = after.ok_or_else(|| refused("length"))?;
        let fits = WIDTHS.contains(&dimensions.width)
            && tokens > 0
            && first.len() == batch * tokens * query_stride
            // The last token's are followed by nothing.
            && keys.len().min(values.len()) >= (batch * tokens).saturating_sub(1) * stride + of_keys
            && after.len() == batch
            && after.iter().all(|after| (tokens..=window.min(places)).contains(after))
            && sines.len() == cosines.1.len()
            && size(&whole, 0) == Some(batch)
            && size(&whole, 1) == Some(self.key_heads)
            && size(&whole, 3) == Some(dimensions.width)
            && past_value.try_extract_tensor::<f32>()?.0[..] == whole[..];
        if !fits {
            return Err(refused("shape"));
        }
        let rows = |of: usize| i64::try_from(of).map_err(|_| refused("shape"));
        let mut out = context
            .output(0, vec![rows(batch)?, rows(tokens)?, rows(of_queries)?])?
            .ok_or_else(|| refused("output"))?;
        let out = out.try_extract_tensor_mut::<f32>()?.1;

        // What was there before lies where all of it is to lie, but for whoever calls with memory of two kinds. Nothing
        // borrows it while what is there now is written.
        let past: Vec<usize> = after.iter().map(|after| after - tokens).collect();
        let mut present = Vec::with_capacity(2);
        for (place, of_past) in [(1, &past_key), (2, &past_value)] {
            let from = of_past.try_extract_tensor::<f32>()?.1.as_ptr();
            let mut to = context.output(place, whole.clone())?.ok_or_else(|| refused("output"))?;
            let all = to.try_extract_tensor_mut::<f32>()?.1;
            if all.as_ptr() != from {
                let source = of_past.try_extract_tensor::<f32>()?.1;
                for (row, past) in past.iter().enumerate() {
                    for head in 0..self.key_heads {
                        let start = (row * self.key_heads + head) * window * dimensions.width;
                        let kept = start..start + past * dimensions.width;
                        all[kept.clone()].copy_from_slice(&source[kept]);
                    }
                }
            }
            present.push(to);
        }
        let [all_keys, all_values] = &mut present[..] else { return Err(refused("output")) };
        let all_keys = all_keys.try_extract_tensor_mut::<f32>()?.1;
        let all_values = all_values.try_extract_tensor_mut::<f32>()?.1;

        let rotate = Rotation { cosines: cosines.1, sines, half, interleaved: self.interleaved };
        #[expect(clippy::cast_precision_loss, reason = "a head is small")]
        let scale = LOG2_E / (dimensions.width as f32).sqrt();
        let group = self.heads / self.key_heads;
        self.queries.resize(batch * tokens * of_queries, 0.0);
        for (index, token) in (0..batch * tokens).zip(first.chunks(query_stride)) {
            let (row, at) = (index / tokens, index % tokens);
            let place = past[row] + at;
            for (head, query) in token[..of_queries].chunks_exact(dimensions.width).enumerate() {
                let to = ((row * self.key_heads + head / group) * tokens + at) * group + head % group;
                rotate.turn(query, place, scale, &mut self.queries[to * dimensions.width..][..dimensions.width]);
            }
            for head in 0..self.key_heads {
                let from = index * stride + head * dimensions.width;
                let to = ((row * self.key_heads + head) * window + place) * dimensions.width;
                rotate.turn(&keys[from..from + dimensions.width], place, 1.0, &mut all_keys[to..to + dimensions.width]);
                all_values[to..to + dimensions.width].copy_from_slice(&values[from..from + dimensions.width]);
            }
        }
        self.gather(dimensions, &past, all_keys, all_values, out, &|parts, work| context.par_for(parts, 0, work))
    }
}

/// Calls a function for each of so many parts, side by side.
type Parallel<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) -> Result<(), ort::Error> + 'a;

impl Attending {
    /// What the rotated queries gather, into `out`.
    fn gather(
        &mut self,
        dimensions: Dimensions,
        past: &[usize],
        keys: &[f32],
        values: &[f32],
        out: &mut [f32],
        parallel: &Parallel<'_>,
    ) -> Result<(), ort::Error> {
        let Dimensions { batch, tokens, window, width } = dimensions;
        let (group, key_heads) = (self.heads / self.key_heads, self.key_heads);
        // Of each token and key head what its queries gather lies together in `out`.
        let units = batch * tokens * key_heads;
        let most = past.iter().max().map_or(0, |past| past + tokens).min(self.near);
        let work = units * group * most * width / 64;
        let parts = if work < SHARED_FROM { 1 } else { (self.threads * PARTS).min(units) };
        self.weights.resize_with(self.weights.len().max(parts), Mutex::default);
        let queries = &self.queries[..];
        let share = |part: usize| -> Range<usize> { units * part / parts..units * (part + 1) / parts };
        let mut rest = out;
        let mut shares = Vec::with_capacity(parts);
        for (part, weights) in self.weights.iter().take(parts).enumerate() {
            let (mine, others) = rest.split_at_mut(share(part).len() * group * width);
            rest = others;
            shares.push(Mutex::new((mine, weights)));
        }
        let near = self.near;
        let gather = match self.instructions {
            Instructions::Avx512Vnni => avx512::gather,
            Instructions::Avx2 => avx2::gather,
        };
        let one = |part: usize| {
            // Each is locked once, by whom it belongs to.
            let Some(Ok(mut own)) = shares.get(part).map(Mutex::lock) else { return };
            let (out, weights) = &mut *own;
            let Ok(mut weights) = weights.lock() else { return };
            for (unit, out) in share(part).zip(out.chunks_exact_mut(group * width)) {
                let (row, at, head) = (unit / key_heads / tokens, unit / key_heads % tokens, unit % key_heads);
                let end = past[row] + at + 1;
                let start = end.saturating_sub(near);
                let before = (row * key_heads + head) * window;
                let seen = (before + start) * width..(before + end) * width;
                let query = ((row * key_heads + head) * tokens + at) * group * width;
                let queries = &queries[query..query + group * width];
                gather(queries, &keys[seen.clone()], &values[seen], width, &mut weights, out);
            }
        };
        if parts == 1 {
            one(0);
            return Ok(());
        }
        parallel(parts, &one)
    }
}

/// Where a token stands, put into its numbers (`RoFormer`, <https://arxiv.org/abs/2104.09864>).
struct Rotation<'a> {
    /// By place [places, half].
    cosines: &'a [f32],
    sines: &'a [f32],
    half: usize,
    interleaved: bool,
}

impl Rotation<'_> {
    /// A head's numbers at a place, times a scale.
    fn turn(&self, head: &[f32], place: usize, scale: f32, out: &mut [f32]) {
        let of_place = place * self.half..(place + 1) * self.half;
        let turns = self.cosines[of_place.clone()].iter().zip(&self.sines[of_place]);
        if self.interleaved {
            let pairs = head.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
            for ((cosine, sine), ([one, other], out)) in turns.zip(pairs) {
                *out = [(one * cosine - other * sine) * scale, (one * sine + other * cosine) * scale];
            }
        } else {
            let (ones, others) = head.split_at(self.half);
            let (first, second) = out.split_at_mut(self.half);
            let pairs = ones.iter().zip(others).zip(first.iter_mut().zip(second));
            for ((cosine, sine), ((one, other), (first, second))) in turns.zip(pairs) {
                *first = (one * cosine - other * sine) * scale;
                *second = (one * sine + other * cosine) * scale;
            }
        }
    }
}
