//! A batch through a layer: which rows there are, and who carries which of them.

use std::{ops::Range, sync::Mutex};

use super::{
    FOUR, Parallel, TILE,
    kernels::Kernels,
    refused,
    weights::{Layer, Product},
};
/// Rows that are carried through a layer at once: the second-level cache holds what lies between their products.
const CHUNK: usize = 8 * TILE;

/// Fewest rows that a thread is given: with fewer, the weights that it reads for them take longer than the products.
const FEWEST: usize = 8;

/// The texts of a batch, and their rows without padding.
pub(super) struct Batch<'a> {
    states: &'a [f32],
    distances: Option<&'a [f32]>,
    width: usize,
    /// Tokens of a text with its padding.
    tokens: usize,
    /// Which rows are a text's.
    texts: Vec<Range<usize>>,
    /// Where a row lies among those of the padded batch.
    places: Vec<usize>,
}

impl<'a> Batch<'a> {
    /// `states` `[batch, tokens, width]`, of which so many of each text are no padding; `distances`
    /// `[1, heads, tokens, tokens]`. A text of no length counts as one of a single token, as its padding is never asked for.
    ///
    /// # Errors
    /// [`ort::Error`] for shapes that do not fit each other.
    pub(super) fn new(
        states: &'a [f32],
        lengths: &[i32],
        distances: Option<&'a [f32]>,
        layer: &Layer,
    ) -> Result<Self, ort::Error> {
        let width = layer.width();
        let tokens = (states.len() / width).checked_div(lengths.len()).unwrap_or(0);
        let fits = tokens > 0
            && states.len() == lengths.len() * tokens * width
            && distances.is_none_or(|distances| distances.len() == layer.heads * tokens * tokens);
        if !fits {
            return Err(refused("batch"));
        }
        let (mut texts, mut places) = (Vec::with_capacity(lengths.len()), Vec::with_capacity(lengths.len() * tokens));
        for (text, length) in lengths.iter().enumerate() {
            let length = usize::try_from(*length).unwrap_or(0).clamp(1, tokens);
            texts.push(places.len()..places.len() + length);
            places.extend(text * tokens..text * tokens + length);
        }
        Ok(Self { states, distances, width, tokens, texts, places })
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.states[self.places[row] * self.width..][..self.width]
    }
}

/// What lies between the products of a layer; each of its parts is as large as it ever was needed.
#[derive(Default)]
pub(super) struct Workspace {
    /// Queries, keys and values of all rows [rows, 3 width].
    packed: Vec<f32>,
    /// One for each thread.
    own: Vec<Own>,
}

#[derive(Default)]
struct Own {
    rounded: Rounded,
    gelu: Rounded,
    /// [chunk, width].
    context: Vec<f32>,
    product: Vec<f32>,
    middle: Vec<f32>,
    attention: Attention,
}

/// Four codes of each row of a tile.
pub(super) type Fours = [[u8; 4]; TILE];

/// Rounded rows of a product, and the channels of theirs that are not.
#[derive(Default)]
pub(super) struct Rounded {
    pub(super) rows: usize,
    /// [tiles, depth / 4].
    pub(super) codes: Vec<Fours>,
    /// [rows, chosen].
    pub(super) exact: Vec<f32>,
    /// How many are chosen.
    pub(super) chosen: usize,
}

impl Rounded {
    /// Makes place for so many rows of what a product takes.
    pub(super) fn resize(&mut self, rows: usize, product: &Product) {
        self.rows = rows;
        self.chosen = product.exact.chosen.len();
        self.codes.resize(rows.div_ceil(TILE) * product.depth / 4, [[0; 4]; TILE]);
        self.exact.resize(rows * self.chosen, 0.0);
    }

    pub(super) fn fill<'b>(
        &mut self,
        kernels: &Kernels,
        product: &Product,
        rows: impl ExactSizeIterator<Item = &'b [f32]>,
    ) {
        self.resize(rows.len(), product);
        let fours = product.depth / 4;
        let (mut rows, mut index) = (rows.into_iter(), 0);
        while let Some(first) = rows.next() {
            // Where fewer than four are left, the first of them again.
            let mut some = [first; FOUR];
            let mut count = 1;
            for (place, row) in some[1..].iter_mut().zip(&mut rows) {
                *place = row;
                count += 1;
            }
            let codes = &mut self.codes[index / TILE * fours..][..fours];
            (kernels.round)(&product.rounding, &some, index % TILE / FOUR, codes);
            for row in &some[..count] {
                let exact = &mut self.exact[index * self.chosen..][..self.chosen];
                for (place, chosen) in exact.iter_mut().zip(&product.exact.chosen) {
                    *place = product.rounding.even(*chosen, row[*chosen]);
                }
                index += 1;
            }
        }
    }

    /// The unrounded channels of a row; none of one that is not there.
    pub(super) fn exact_of(&self, row: usize) -> &[f32] {
        self.exact.get(row * self.chosen..(row + 1) * self.chosen).unwrap_or_default()
    }
}

/// What an attention works on.
#[derive(Default)]
pub(super) struct Attention {
    /// A head's queries, the first number of each, then the second [head size, 16].
    pub(super) queries: Vec<f32>,
    /// Of each token those of these queries [tokens, 16].
    pub(super) scores: Vec<f32>,
}

/// The queries of one text that are asked together.
pub(super) struct Asked<'a> {
    /// Queries, keys and values of all tokens of the text [tokens, 3 width].
    pub(super) packed: &'a [f32],
    pub(super) queries: Range<usize>,
    /// What is added to scores [heads, padded tokens, padded tokens].
    pub(super) distances: Option<&'a [f32]>,
    pub(super) padded: usize,
    pub(super) heads: usize,
    pub(super) width: usize,
}

/// `out` `[batch, tokens, width]` is what the layer makes of the batch; padding becomes nothing.
pub(super) fn run(
    kernels: &Kernels,
    layer: &Layer,
    batch: &Batch<'_>,
    out: &mut [f32],
    workspace: &mut Workspace,
    threads: usize,
    parallel: &Parallel<'_>,
) -> Result<(), ort::Error> {
    if out.len() != batch.states.len() {
        return Err(refused("output"));
    }
    let rows = batch.places.len();
    let shares = rows.div_ceil(FEWEST).min(threads).max(1);
    let share = |index: usize| rows * index / shares..rows * (index + 1) / shares;
    workspace.own.resize_with(workspace.own.len().max(shares), Own::default);
    workspace.packed.resize(rows * 3 * layer.width(), 0.0);
    let Workspace { packed, own } = workspace;

    let mut rest = &mut packed[..];
    let mut parts = Vec::with_capacity(shares);
    for (index, own) in own.iter_mut().take(shares).enumerate() {
        let (mine, others) = rest.split_at_mut(share(index).len() * 3 * layer.width());
        rest = others;
        parts.push(Mutex::new((share(index), own, mine)));
    }
    side_by_side(&parts, parallel, |(rows, own, packed)| own.pack(kernels, layer, batch, rows.clone(), packed))?;
    drop(parts);

    let packed = &packed[..];
    let mut rest = out;
    let mut parts = Vec::with_capacity(shares);
    let mut start = 0;
    for (index, own) in own.iter_mut().take(shares).enumerate() {
        let rows = share(index);
        // Up to where the next one's rows begin, with the padding between.
        let end = batch.places.get(rows.end).copied().unwrap_or(batch.states.len() / batch.width);
        let (mine, others) = rest.split_at_mut((end - start) * batch.width);
        rest = others;
        parts.push(Mutex::new((rows, own, mine, start)));
        start = end;
    }
    side_by_side(&parts, parallel, |(rows, own, out, start)| {
        own.finish(kernels, layer, batch, packed, rows.clone(), out, *start);
    })
}

/// Calls a function for each part, of which one alone needs no other thread.
fn side_by_side<T: Send>(
    parts: &[Mutex<T>],
    parallel: &Parallel<'_>,
    work: impl Fn(&mut T) + Sync,
) -> Result<(), ort::Error> {
    let one = |index: usize| {
        // Each is locked once, by whom it belongs to.
        if let Some(Ok(mut part)) = parts.get(index).map(Mutex::lock) {
            work(&mut part);
        }
    };
    if parts.len() == 1 {
        one(0);
        return Ok(());
    }
    parallel(parts.len(), &one)
}

impl Own {
    /// Queries, keys and values of some rows.
    fn pack(&mut self, kernels: &Kernels, layer: &Layer, batch: &Batch<'_>, rows: Range<usize>, packed: &mut [f32]) {
        for (rows, packed) in chunks(rows).zip(packed.chunks_mut(CHUNK * 3 * batch.width)) {
            self.rounded.fill(kernels, &layer.packed, rows.map(|row| batch.row(row)));
            (kernels.multiply)(&layer.packed, &self.rounded, packed);
        }
    }

    /// The rest of the layer for some rows; `out` begins with row `start` of the padded batch.
    #[expect(clippy::too_many_arguments, reason = "what all share, and what is its own")]
    fn finish(
        &mut self,
        kernels: &Kernels,
        layer: &Layer,
        batch: &Batch<'_>,
        packed: &[f32],
        rows: Range<usize>,
        out: &mut [f32],
        start: usize,
    ) {
        let (width, mut done) = (batch.width, 0);
        for rows in chunks(rows) {
            let count = rows.len();
            for of_chunk in [&mut self.context, &mut self.product, &mut self.middle] {
                of_chunk.resize(count * width, 0.0);
            }
            self.attend(kernels, layer, batch, packed, rows.clone());
            self.rounded.fill(kernels, &layer.attended, self.context.chunks_exact(width));
            (kernels.multiply)(&layer.attended, &self.rounded, &mut self.product);
            let products = self.product.chunks_exact(width).zip(self.middle.chunks_exact_mut(width));
            for (row, (product, middle)) in rows.clone().zip(products) {
                (kernels.normalise)(product, batch.row(row), &layer.first, layer.epsilon, middle);
            }
            self.rounded.fill(kernels, &layer.inner, self.middle.chunks_exact(width));
            self.gelu.resize(count, &layer.down);
            (kernels.multiply_for_next)(&layer.inner, &self.rounded, &layer.down, &mut self.gelu);
            (kernels.multiply)(&layer.down, &self.gelu, &mut self.product);
            let products = self.product.chunks_exact(width).zip(self.middle.chunks_exact(width));
            for (row, (product, middle)) in rows.zip(products) {
                // Padding before it becomes nothing.
                let place = batch.places[row] - start;
                out[done * width..place * width].fill(0.0);
                (kernels.normalise)(product, middle, &layer.second, layer.epsilon, &mut out[place * width..][..width]);
                done = place + 1;
            }
        }
        out[done * width..].fill(0.0);
    }

    /// What the heads gather for some rows, into `context`.
    fn attend(&mut self, kernels: &Kernels, layer: &Layer, batch: &Batch<'_>, packed: &[f32], rows: Range<usize>) {
        let width = batch.width;
        let first = batch.texts.partition_point(|text| text.end <= rows.start);
        let mut out = &mut self.context[..];
        for text in batch.texts.iter().skip(first).take_while(|text| text.start < rows.end) {
            let queries = text.start.max(rows.start)..text.end.min(rows.end);
            let (mine, others) = out.split_at_mut(queries.len() * width);
            out = others;
            let asked = Asked {
                packed: &packed[text.start * 3 * width..text.end * 3 * width],
                queries: queries.start - text.start..queries.end - text.start,
                distances: batch.distances,
                padded: batch.tokens,
                heads: layer.heads,
                width,
            };
            (kernels.attend)(&asked, &mut self.attention, mine);
        }
    }
}

fn chunks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(CHUNK).map(move |start| start..(start + CHUNK).min(end))
}
