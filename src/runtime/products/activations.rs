//! Rows of activations, rounded to 8 bits in blocks.

use std::{mem, sync::Mutex};

use super::{
    BLOCK, Before, Kernels, Layout, PANEL, Parallel,
    kernels::{Norm, Rounded, Share},
    packed::Packed,
};

/// Values from which several rows are rounded side by side: fewer are done before other threads would begin.
const SHARED_FROM: usize = 1 << 13;

/// Rows as they come, with what is done before they are rounded.
pub(super) struct Rows<'a> {
    pub(super) before: Before,
    /// [rows, [`Before::width`]].
    pub(super) values: &'a [f32],
    /// What is added to rows that are normalised, [rows, depth].
    pub(super) added: Option<&'a [f32]>,
    /// By what their channels are multiplied: [depth], and nothing where none are.
    pub(super) gain: &'a [f32],
    /// What is added to their mean square.
    pub(super) epsilon: f32,
    /// The place of their sums with what is added, [rows, depth].
    pub(super) sums: Option<&'a mut [f32]>,
}

impl<'a> Rows<'a> {
    /// Takes the first rows off.
    pub(super) fn first(&mut self, count: usize, depth: usize) -> Self {
        let cut = |values: &mut &'a [f32], length: usize| {
            let (first, rest) = values.split_at(length.min(values.len()));
            *values = rest;
            first
        };
        Self {
            values: cut(&mut self.values, count * self.before.width(depth)),
            added: self.added.as_mut().map(|added| cut(added, count * depth)),
            sums: self.sums.as_mut().and_then(|sums| {
                let length = sums.len().min(count * depth);
                mem::take(sums).split_at_mut_checked(length).map(|(first, rest)| {
                    *sums = rest;
                    first
                })
            }),
            ..*self
        }
    }
}

/// Rounded rows.
#[derive(Default)]
pub(super) struct Activations {
    /// [rows, depth]. For codes of 4 bits, of each eight the even ones come first: so do the codes' halves.
    pub(super) codes: Vec<i8>,
    /// [rows, blocks].
    pub(super) scales: Vec<f32>,
    /// The sum of each block's rounded values in the parts that zero points are of, [rows, blocks].
    pub(super) sums: Vec<f32>,
    /// What is rounded, where that is not what comes, [rows, depth].
    prepared: Vec<f32>,
    /// What is made of rows that follows them, [rows, that many].
    inner: Vec<f32>,
    rows: usize,
    /// Of a row.
    blocks: usize,
}

/// A row, and the places of what it becomes.
struct Row<'a> {
    values: &'a [f32],
    added: Option<&'a [f32]>,
    sum: Option<&'a mut [f32]>,
    prepared: &'a mut [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Activations {
    /// Rounds rows for a product with weights of this layout, and what is made of each with the weights `inner` behind it.
    pub(super) fn fill(
        &mut self,
        kernels: &Kernels,
        layout: Layout,
        inner: Option<&Packed>,
        rows: Rows<'_>,
        threads: usize,
        parallel: &Parallel<'_>,
    ) -> Result<(), ort::Error> {
        let depth = layout.depth - inner.map_or(0, |inner| inner.layout().columns);
        self.round(kernels, layout, depth, rows, threads, parallel)?;
        if let Some(inner) = inner {
            self.follow(kernels, layout, inner, threads, parallel)?;
        }
        let parts = layout.bits.parts();
        self.sums.iter_mut().for_each(|sum| *sum *= parts);
        Ok(())
    }

    /// Rounds rows of so many values; sums are whole.
    fn round(
        &mut self,
        kernels: &Kernels,
        layout: Layout,
        depth: usize,
        rows: Rows<'_>,
        threads: usize,
        parallel: &Parallel<'_>,
    ) -> Result<(), ort::Error> {
        let Rows { before, values, added, gain, epsilon, sums } = rows;
        let width = before.width(depth);
        (self.rows, self.blocks) = (values.len() / width, layout.blocks());
        self.codes.resize(self.rows * layout.depth, 0);
        self.scales.resize(self.rows * self.blocks, 0.0);
        self.sums.resize(self.rows * self.blocks, 0.0);
        self.prepared.resize(self.rows * depth, 0.0);
        let mut added = added.map(|added| added.chunks_exact(depth));
        let mut whole = sums.map(|sums| sums.chunks_exact_mut(depth));
        let parts = values
            .chunks_exact(width)
            .zip(self.prepared.chunks_exact_mut(depth))
            .zip(self.codes.chunks_exact_mut(layout.depth))
            .zip(self.scales.chunks_exact_mut(self.blocks).zip(self.sums.chunks_exact_mut(self.blocks)))
            .map(|(((values, prepared), codes), (scales, sums))| Row {
                values,
                added: added.as_mut().and_then(Iterator::next),
                sum: whole.as_mut().and_then(Iterator::next),
                prepared,
                codes,
                scales,
                sums,
            });
        let round = |row: &mut Row<'_>| {
            let Row { values, added, sum, prepared, codes, scales, sums } = row;
            let values = match before {
                Before::Nothing => values,
                Before::Norm => {
                    let norm = Norm { row: values, added: *added, gain, epsilon };
                    (kernels.normalise)(&norm, sum.as_deref_mut(), prepared);
                    &**prepared
                }
                Before::Gate(gate) => {
                    (kernels.gate)(gate, values, prepared);
                    &**prepared
                }
            };
            (kernels.round)(layout.bits, values, &mut Rounded { codes, scales, sums });
        };
        if threads > 1 && self.rows > 1 && self.rows * width >= SHARED_FROM {
            let parts: Vec<_> = parts.map(Mutex::new).collect();
            parallel(parts.len(), &|index| {
                // Each is locked once, by whom it belongs to.
                if let Some(Ok(mut row)) = parts.get(index).map(Mutex::lock) {
                    round(&mut row);
                }
            })
        } else {
            for mut row in parts {
                round(&mut row);
            }
            Ok(())
        }
    }

    /// Rounds what weights make of the rows, which then follows these.
    fn follow(
        &mut self,
        kernels: &Kernels,
        layout: Layout,
        inner: &Packed,
        threads: usize,
        parallel: &Parallel<'_>,
    ) -> Result<(), ort::Error> {
        let Layout { depth, columns, .. } = inner.layout();
        let mut values = mem::take(&mut self.inner);
        values.resize(self.rows * columns, 0.0);
        let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
        let side_by_side = threads > 1 && self.rows * depth >= SHARED_FROM;
        let part = if side_by_side { PANEL } else { columns };
        parts.resize_with(columns.div_ceil(part), Vec::new);
        for row in values.chunks_exact_mut(columns) {
            parts.iter_mut().zip(row.chunks_mut(part)).for_each(|(pieces, piece)| pieces.push(piece));
        }
        let share = |index: usize| Share { weights: inner, first: index * part / PANEL, rows: self };
        if side_by_side {
            let parts: Vec<_> = parts.into_iter().map(Mutex::new).collect();
            parallel(parts.len(), &|index| {
                // Each is locked once, by whom it belongs to.
                if let Some(Ok(mut pieces)) = parts.get(index).map(Mutex::lock) {
                    (kernels.multiply)(&share(index), &mut pieces);
                }
            })?;
        } else {
            parts.iter_mut().enumerate().for_each(|(index, pieces)| (kernels.multiply)(&share(index), pieces));
        }
        let blocks = depth / BLOCK;
        let rows = values
            .chunks_exact(columns)
            .zip(self.codes.chunks_exact_mut(layout.depth))
            .zip(self.scales.chunks_exact_mut(self.blocks).zip(self.sums.chunks_exact_mut(self.blocks)));
        for ((values, codes), (scales, sums)) in rows {
            let (codes, scales, sums) = (&mut codes[depth..], &mut scales[blocks..], &mut sums[blocks..]);
            (kernels.round)(layout.bits, values, &mut Rounded { codes, scales, sums });
        }
        self.inner = values;
        Ok(())
    }

    /// The sum of the squares of each block's rounded values, [rows, blocks].
    pub(super) fn energies(&self) -> Vec<f32> {
        let squares = |block: &[i8; BLOCK]| block.iter().map(|code| f32::from(*code) * f32::from(*code)).sum();
        self.codes.as_chunks().0.iter().map(squares).collect()
    }

    /// How many blocks a row has.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}
