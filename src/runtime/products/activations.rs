//! Rows of activations, rounded to 8 bits in blocks.

use std::sync::Mutex;

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::{Instructions, Layout, Parallel};

/// Rows from which they are rounded side by side: fewer are done before other threads would begin.
const SHARED_FROM: usize = 16;

/// Rounded rows.
#[derive(Default)]
pub(super) struct Activations {
    /// [rows, depth]. For codes of 4 bits, of each eight the even ones come first: so do the codes' halves.
    pub(super) codes: Vec<i8>,
    /// [rows, blocks].
    pub(super) scales: Vec<f32>,
    /// The sum of each block's rounded values, [rows, blocks].
    pub(super) sums: Vec<f32>,
    rows: usize,
}

impl Activations {
    /// Rounds rows `[rows, depth]` for a product with weights of this layout.
    pub(super) fn fill(
        &mut self,
        instructions: Instructions,
        layout: Layout,
        rows: &[f32],
        threads: usize,
        parallel: &Parallel<'_>,
    ) -> Result<(), ort::Error> {
        let (depth, blocks) = (layout.depth, layout.blocks());
        self.rows = rows.len() / depth;
        self.codes.resize(self.rows * depth, 0);
        self.scales.resize(self.rows * blocks, 0.0);
        self.sums.resize(self.rows * blocks, 0.0);
        let parts = rows
            .chunks_exact(depth)
            .zip(self.codes.chunks_exact_mut(depth))
            .zip(self.scales.chunks_exact_mut(blocks).zip(self.sums.chunks_exact_mut(blocks)));
        let round = |row: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]| match instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Vnni => avx512::round(layout.bits, row, codes, scales, sums),
        };
        if threads > 1 && self.rows >= SHARED_FROM {
            let parts: Vec<_> = parts.map(Mutex::new).collect();
            parallel(parts.len(), &|index| {
                // Each is locked once, by whom it belongs to.
                if let Some(Ok(mut part)) = parts.get(index).map(Mutex::lock) {
                    let ((row, codes), (scales, sums)) = &mut *part;
                    round(row, codes, scales, sums);
                }
            })
        } else {
            for ((row, codes), (scales, sums)) in parts {
                round(row, codes, scales, sums);
            }
            Ok(())
        }
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}
