//! Weights in the order in which products read them.
//!
//! A panel has 16 columns, as many as a vector has numbers of 32 bits. Of each block of 32 values it holds four bytes of
//! each column after the other, then the next four, so that a vector of codes times four bytes of a row, the same for all
//! columns, adds to one number a column. A column's sum of a block is then in one place, to be scaled once.

use std::sync::{Mutex, PoisonError};

use super::{Layout, PANEL, Parallel, Weights};
use crate::runtime::kv::{Pages, Room};

/// Bytes of a line of a cache, which is also a vector. They lie at multiples of that in memory, so that no load crosses two.
pub(super) const LINE: usize = 64;

/// Codes: four bytes of each column of a panel, or of four bits eight codes. Or a scale for each of them.
pub(super) type Line = [u8; LINE];

/// A number for each column of a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; PANEL]);

/// A matrix of weights in panels; columns that the last one lacks are nothing.
pub(super) struct Packed {
    layout: Layout,
    /// Lines [panels, blocks, lines of a block].
    codes: Pages,
    /// Numbers of single precision [panels, blocks, columns].
    scales: Pages,
    /// Bytes [panels, blocks, columns].
    zeros: Pages,
    /// [panels], nothing where nothing is added.
    bias: Vec<Lanes>,
}

/// A panel of [`Packed`]: the lines of each block, its scales and its zero points, and what is added.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) codes: &'a [Line],
    pub(super) scales: &'a [Line],
    pub(super) zeros: &'a [[u8; PANEL]],
    pub(super) bias: Option<&'a Lanes>,
}

impl Packed {
    /// Packs weights, panels side by side.
    pub(super) fn new(weights: &Weights<'_>, room: &Mutex<Room>, parallel: &Parallel<'_>) -> Result<Self, ort::Error> {
        let layout = weights.layout;
        let (panels, blocks) = (layout.columns.div_ceil(PANEL), layout.blocks());
        let lines = blocks * layout.lines_of_a_block();
        let zeroed = |bytes| {
            let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
            room.zeroed(bytes).map_err(|error| ort::Error::new(format!("no memory for a product's weights ({error})")))
        };
        let mut packed = Self {
            layout,
            codes: zeroed(panels * lines * LINE)?,
            scales: zeroed(panels * blocks * LINE)?,
            zeros: zeroed(panels * blocks * PANEL)?,
            bias: Vec::new(),
        };
        for bias in weights.bias.unwrap_or_default().chunks(PANEL) {
            let mut added = Lanes([0.0; PANEL]);
            added.0.iter_mut().zip(bias).for_each(|(place, bias)| *place = *bias);
            packed.bias.push(added);
        }
        let parts: Vec<_> = packed
            .codes
            .chunks_mut(lines * LINE)
            .zip(packed.scales.chunks_mut(blocks * LINE))
            .zip(packed.zeros.chunks_mut(blocks * PANEL))
            .map(Mutex::new)
            .collect();
        parallel(parts.len(), &|panel| {
            // Each is locked once, by whom it belongs to.
            if let Some(Ok(mut part)) = parts.get(panel).map(Mutex::lock) {
                let ((codes, scales), zeros) = &mut *part;
                let (codes, scales, zeros) =
                    (codes.as_chunks_mut().0, scales.as_chunks_mut().0, zeros.as_chunks_mut().0);
                pack(weights, panel, codes, scales, zeros);
            }
        })?;
        drop(parts);
        Ok(packed)
    }

    /// A panel; there are `columns.div_ceil(PANEL)`.
    pub(super) fn panel(&self, index: usize) -> Option<Panel<'_>> {
        let blocks = self.layout.blocks();
        Some(Panel {
            codes: self.codes.chunks_exact(blocks * self.layout.lines_of_a_block() * LINE).nth(index)?.as_chunks().0,
            scales: self.scales.chunks_exact(blocks * LINE).nth(index)?.as_chunks().0,
            zeros: self.zeros.chunks_exact(blocks * PANEL).nth(index)?.as_chunks().0,
            bias: self.bias.get(index),
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

fn pack(weights: &Weights<'_>, panel: usize, codes: &mut [Line], scales: &mut [Line], zeros: &mut [[u8; PANEL]]) {
    let columns = weights.columns().skip(panel * PANEL).take(PANEL);
    for (place, column) in columns.enumerate() {
        let (fours, _) = column.codes.as_chunks::<4>();
        for (line, four) in codes.iter_mut().zip(fours) {
            line.as_chunks_mut().0[place] = *four;
        }
        for (block, ((scale, zero), of_column)) in
            scales.iter_mut().zip(zeros.iter_mut()).zip(column.scales).enumerate()
        {
            scale.as_chunks_mut().0[place] = of_column.to_ne_bytes();
            zero[place] = column.zero(block);
        }
    }
}
