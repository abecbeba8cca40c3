//! Weights in the order in which products read them.
//!
//! A panel has 16 columns, as many as a vector of 512 bits has numbers of 32, and two of 256. Of each block of 32 values it holds four bytes of
//! each column after the other, then the next four, so that a vector of codes times four bytes of a row, the same for all
//! columns, adds to one number a column. A column's sum of a block is then in one place, to be scaled once.

use std::sync::{Mutex, PoisonError};

use super::{
    Kernels, PANEL, Parallel,
    weights::{Bits, Layout, Weights},
};
use crate::runtime::kv::{Pages, Room};

/// Bytes of a line of a cache, which is also a vector. They lie at multiples of that in memory, so that no load crosses two.
pub(super) const LINE: usize = 64;

/// Codes: four bytes of each column of a panel, or of four bits eight codes.
pub(super) type Line = [u8; LINE];

/// A number of half precision for each column of a panel.
pub(super) type Halves = [u8; 2 * PANEL];

/// What the largest scale of a matrix becomes at most, so that it and the small ones are in the range of half precision.
const LARGEST: f32 = 32_768.0;

/// A number for each column of a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; PANEL]);

/// A matrix of weights in panels; columns that the last one lacks are nothing.
pub(super) struct Packed {
    layout: Layout,
    /// Lines [panels, blocks, lines of a block].
    codes: Pages,
    /// Where codes of 8 bits are in halves, `codes` are the upper ones and these the lower ones.
    lower: Option<Pages>,
    /// Numbers of half precision [panels, blocks, columns], in `unit`s: a step is bound by what it reads, and this is up to a
    /// tenth less. They are off by 1 in 2,048 at most, far less than the weights are by their codes.
    scales: Pages,
    /// A power of two.
    unit: f32,
    /// Bytes [panels, blocks, columns].
    zeros: Pages,
    /// [panels], nothing where nothing is added.
    bias: Vec<Lanes>,
}

/// A panel of [`Packed`]: the lines of each block, its scales and its zero points, and what is added.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) codes: &'a [Line],
    /// Lower halves of codes; none where they are whole.
    pub(super) lower: &'a [Line],
    pub(super) scales: &'a [Halves],
    pub(super) unit: f32,
    /// In parts of [`Bits::parts`].
    pub(super) zeros: &'a [[u8; PANEL]],
    pub(super) bias: Option<&'a Lanes>,
}

impl Packed {
    /// Packs weights, panels side by side; codes of 8 bits in halves, if wanted.
    pub(super) fn new(
        weights: &Weights<'_>,
        halved: bool,
        kernels: &Kernels,
        room: &Mutex<Room>,
        parallel: &Parallel<'_>,
    ) -> Result<Self, ort::Error> {
        let layout = weights.layout;
        let (panels, blocks) = (layout.columns.div_ceil(PANEL), layout.blocks());
        let halved = halved && layout.bits == Bits::Eight;
        let lines = blocks * layout.lines_of_a_block() / if halved { 2 } else { 1 };
        let zeroed = |bytes| {
            let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
            room.zeroed(bytes).map_err(|error| ort::Error::new(format!("no memory for a product's weights ({error})")))
        };
        let mut packed = Self {
            layout,
            codes: zeroed(panels * lines * LINE)?,
            lower: halved.then(|| zeroed(panels * lines * LINE)).transpose()?,
            scales: zeroed(panels * blocks * size_of::<Halves>())?,
            unit: unit(weights.scales),
            zeros: zeroed(panels * blocks * PANEL)?,
            bias: Vec::new(),
        };
        for bias in weights.bias.unwrap_or_default().chunks(PANEL) {
            let mut added = Lanes([0.0; PANEL]);
            added.0.iter_mut().zip(bias).for_each(|(place, bias)| *place = *bias);
            packed.bias.push(added);
        }
        let mut lower = packed.lower.as_mut().map(|lower| lower.chunks_mut(lines * LINE));
        let parts: Vec<_> = packed
            .codes
            .chunks_mut(lines * LINE)
            .map(|codes| (codes, lower.as_mut().and_then(Iterator::next)))
            .zip(packed.scales.chunks_mut(blocks * size_of::<Halves>()))
            .zip(packed.zeros.chunks_mut(blocks * PANEL))
            .map(Mutex::new)
            .collect();
        let unit = packed.unit;
        parallel(parts.len(), &|panel| {
            // Each is locked once, by whom it belongs to.
            if let Some(Ok(mut part)) = parts.get(panel).map(Mutex::lock) {
                let (((codes, lower), scales), zeros) = &mut *part;
                let (codes, scales, zeros) =
                    (codes.as_chunks_mut().0, scales.as_chunks_mut().0, zeros.as_chunks_mut::<PANEL>().0);
                match lower {
                    None => pack(weights, panel, codes),
                    Some(lower) => pack_halves(weights, panel, codes, lower.as_chunks_mut().0),
                }
                for (place, column) in weights.columns().skip(panel * PANEL).take(PANEL).enumerate() {
                    for (block, zero) in zeros.iter_mut().enumerate() {
                        zero[place] = column.zero(block);
                    }
                }
                let columns = weights.columns().skip(panel * PANEL).take(PANEL);
                let of_columns: Vec<&[f32]> = columns.map(|column| column.scales).collect();
                for (block, scales) in scales.iter_mut().enumerate() {
                    let mut values = [0.0; PANEL];
                    for (value, of_column) in values.iter_mut().zip(&of_columns) {
                        *value = of_column.get(block).copied().unwrap_or_default() / unit;
                    }
                    *scales = (kernels.in_half_precision)(&values);
                }
            }
        })?;
        drop(parts);
        Ok(packed)
    }

    /// A panel; there are `columns.div_ceil(PANEL)`.
    pub(super) fn panel<'s>(&'s self, index: usize) -> Option<Panel<'s>> {
        let blocks = self.layout.blocks();
        let lines = self.layout.lines_of_a_block() / if self.halved() { 2 } else { 1 };
        let of_panel = |pages: &'s Pages| Some(pages.chunks_exact(blocks * lines * LINE).nth(index)?.as_chunks().0);
        Some(Panel {
            codes: of_panel(&self.codes)?,
            lower: self.lower.as_ref().map_or(Some(&[][..]), of_panel)?,
            scales: self.scales.chunks_exact(blocks * size_of::<Halves>()).nth(index)?.as_chunks().0,
            unit: self.unit,
            zeros: self.zeros.chunks_exact(blocks * PANEL).nth(index)?.as_chunks().0,
            bias: self.bias.get(index),
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether its codes are in halves.
    pub(super) fn halved(&self) -> bool {
        self.lower.is_some()
    }
}

/// The power of two in which scales are at most [`LARGEST`].
fn unit(scales: &[f32]) -> f32 {
    let largest = scales.iter().fold(0.0_f32, |largest, scale| largest.max(scale.abs()));
    if largest > 0.0 && largest.is_finite() { (largest / LARGEST).log2().ceil().exp2() } else { 1.0 }
}

fn pack(weights: &Weights<'_>, panel: usize, codes: &mut [Line]) {
    for (place, column) in weights.columns().skip(panel * PANEL).take(PANEL).enumerate() {
        if weights.evens_first {
            for (lines, eight) in codes.as_chunks_mut::<2>().0.iter_mut().zip(column.codes.as_chunks::<8>().0) {
                for (half, line) in lines.iter_mut().enumerate() {
                    line.as_chunks_mut::<4>().0[place] = [0, 2, 4, 6].map(|even| eight[even + half]);
                }
            }
            continue;
        }
        for (line, four) in codes.iter_mut().zip(column.codes.as_chunks::<4>().0) {
            line.as_chunks_mut::<4>().0[place] = *four;
        }
    }
}

/// Halves of codes: of eight of a column a line has the first four in the lower four bits, the others in the upper ones.
fn pack_halves(weights: &Weights<'_>, panel: usize, upper: &mut [Line], lower: &mut [Line]) {
    /// The lower four bits of four bytes.
    const FOURS: u32 = 0x0f0f_0f0f;
    for (place, column) in weights.columns().skip(panel * PANEL).take(PANEL).enumerate() {
        for ((upper, lower), eight) in upper.iter_mut().zip(&mut *lower).zip(column.codes.as_chunks::<8>().0) {
            let [first, other] = *eight.as_chunks::<4>().0 else { continue };
            let (first, other) = (u32::from_ne_bytes(first), u32::from_ne_bytes(other));
            let halves = [(upper, first >> 4 & FOURS | other & !FOURS), (lower, first & FOURS | (other & FOURS) << 4)];
            for (line, four) in halves {
                line.as_chunks_mut::<4>().0[place] = four.to_ne_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::instructions::Instructions;

    /// A number of half precision that is no infinity.
    fn of_half([low, high]: [u8; 2]) -> f32 {
        let bits = u16::from_le_bytes([low, high]);
        let (exponent, rest) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
        let size = if exponent == 0 { rest * 2.0_f32.powi(-14) } else { (1.0 + rest) * 2.0_f32.powi(exponent - 15) };
        if bits >> 15 == 1 { -size } else { size }
    }

    #[test]
    fn scales_of_any_size_keep_eleven_bits_beside_the_largest() {
        // Blocks of one column: sizes as of weights, which half precision alone would lose most of.
        let scales = [3.1e-4_f32, 1.7e-6, 2.2e-7, 0.0, 9.9e-5, 3.0e-4, 7.7e-5, 1.0e-12];
        let layout = Layout { bits: Bits::Eight, fine: false, depth: 32 * scales.len(), columns: 1 };
        let (codes, zeros) = (vec![7; layout.depth], vec![128; scales.len()]);
        let weights = Weights::new(layout, &codes, &scales, &zeros, None).unwrap();
        let in_turn = |parts: usize, work: &(dyn Fn(usize) + Sync)| {
            (0..parts).for_each(work);
            Ok(())
        };
        for instructions in Instructions::of_this_processor() {
            let kernels = Kernels::of(instructions);
            let packed = Packed::new(&weights, false, kernels, &Mutex::default(), &in_turn).unwrap();
            let panel = packed.panel(0).unwrap();
            for (scale, halves) in scales.iter().zip(panel.scales) {
                let [first, rest @ ..] = halves.as_chunks().0 else { unreachable!() };
                // What is far below the largest adds nothing that counts: of it is kept what a part in 2^29 of that is.
                let off = (of_half(*first) * panel.unit - scale).abs();
                assert!(off <= (scale / 2048.0).max(scales[0] / 2.0_f32.powi(29)), "{instructions:?} {scale}: {off}");
                assert!(rest.iter().all(|half| *half == [0, 0]), "columns that are not there");
            }
        }
    }
}
