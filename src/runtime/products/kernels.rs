//! What a product calls, and of that what is done with a row before it is rounded: written once, compiled for instructions
//! of either kind with their own vectors. A module that calls [`kernels`] has those in scope, and the rest of what
//! [`Kernels`] names; each function is compiled with the instructions given, as one that had others would not be inlined.

use super::{
    Bits, Bounds, Gate, PANEL,
    activations::Activations,
    packed::{Halves, Packed},
};

/// What a product calls, compiled for some instructions.
pub(super) struct Kernels {
    /// The product of all rows with some panels; the pieces have the place of each row's results.
    pub(super) multiply: fn(&Share<'_>, &mut [&mut [f32]]),
    /// The same of codes in halves: the upper ones, and of the lower ones what they are in the mean. How far that may be off
    /// goes to the bounds, with energies `[rows, blocks]`, the sums of the squares of a block's rounded values.
    pub(super) multiply_upper: fn(&Share<'_>, &[f32], &mut [&mut [f32]], &mut Bounds),
    /// Of pieces that `multiply_upper` filled those panels of a row again, from whole codes, in which a number may be as much
    /// as is wanted or more, of each row its own.
    pub(super) complete: fn(&Share<'_>, &mut [&mut [f32]], &Bounds, &[f32]),
    /// Rounds a row.
    pub(super) round: fn(Bits, &[f32], &mut Rounded<'_>),
    /// Numbers in half precision, the nearest ones.
    pub(super) in_half_precision: fn(&[f32; PANEL]) -> Halves,
    /// Divides a row by the root of its mean square, and multiplies its channels by a gain. The row with what is added to it
    /// goes to the first place, where there is one, the result to the last.
    pub(super) normalise: fn(&Norm<'_>, Option<&mut [f32]>, &mut [f32]),
    /// Puts the first half of a row through a gate, and multiplies it with the second.
    pub(super) gate: fn(Gate, &[f32], &mut [f32]),
}

/// What a thread multiplies: all rows with the panels from `first` on.
pub(super) struct Share<'a> {
    pub(super) weights: &'a Packed,
    pub(super) first: usize,
    pub(super) rows: &'a Activations,
}

/// The places of a rounded row, as in [`Activations`].
pub(super) struct Rounded<'a> {
    pub(super) codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
}

/// Rows, and the sums of the squares of each block's rounded values, `[rows, blocks]`.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) rows: &'a Activations,
    pub(super) energies: &'a [f32],
}

/// The places of [`Bounds`] from the first row of a tile on, and from a panel of it: of each row there are `panels`.
pub(super) struct Told<'a> {
    pub(super) least: &'a mut [f32],
    pub(super) most: &'a mut [f32],
    pub(super) panels: usize,
}

/// A row that is to be normalised.
pub(super) struct Norm<'a> {
    pub(super) row: &'a [f32],
    /// What is added to it before.
    pub(super) added: Option<&'a [f32]>,
    pub(super) gain: &'a [f32],
    /// What is added to its mean square.
    pub(super) epsilon: f32,
}

/// How many of so many rows are multiplied with a panel together.
pub(super) fn tile_of(rows: usize) -> usize {
    match rows {
        1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// [`Kernels`] for the instructions named, but for the products of a tile.
macro_rules! kernels {
    ($features:literal) => {
        pub(super) const KERNELS: Kernels =
            Kernels { multiply, multiply_upper, complete, round, in_half_precision, normalise, gate };

        fn multiply(share: &Share<'_>, pieces: &mut [&mut [f32]]) {
            let Share { weights, first, rows } = *share;
            let width = pieces.first().map_or(0, |piece| piece.len());
            for (index, at) in (0..width).step_by(PANEL).enumerate() {
                let Some(panel) = weights.panel(first + index) else { return };
                let (mut row, mut pieces) = (0, &mut *pieces);
                while row < rows.rows() && !pieces.is_empty() {
                    let count = tile_of(rows.rows() - row);
                    let Some((these, others)) = pieces.split_at_mut_checked(count) else { return };
                    // SAFETY: `Instructions` are those of this processor.
                    unsafe { tile(weights.layout().bits, panel, rows, row, at, these) };
                    (row, pieces) = (row + count, others);
                }
            }
        }

        fn multiply_upper(share: &Share<'_>, energies: &[f32], pieces: &mut [&mut [f32]], bounds: &mut Bounds) {
            let Share { weights, first, rows } = *share;
            let panels = pieces.first().map_or(0, |piece| piece.len()).div_ceil(PANEL);
            bounds.least = vec![f32::NEG_INFINITY; rows.rows()];
            bounds.most = vec![f32::NEG_INFINITY; rows.rows() * panels];
            let taken = Measured { rows, energies };
            for index in 0..panels {
                let Some(panel) = weights.panel(first + index) else { return };
                let (mut row, mut pieces) = (0, &mut *pieces);
                while row < rows.rows() && !pieces.is_empty() {
                    let count = tile_of(rows.rows() - row);
                    let Some((these, others)) = pieces.split_at_mut_checked(count) else { return };
                    let (least, most) = (&mut bounds.least[row..], &mut bounds.most[row * panels + index..]);
                    let told = Told { least, most, panels };
                    // SAFETY: `Instructions` are those of this processor.
                    unsafe { upper_tile(panel, taken, row, index * PANEL, these, told) };
                    (row, pieces) = (row + count, others);
                }
            }
        }

        fn complete(share: &Share<'_>, pieces: &mut [&mut [f32]], bounds: &Bounds, wanted: &[f32]) {
            let Share { weights, first, rows } = *share;
            for (row, (piece, wanted)) in pieces.iter_mut().zip(wanted).enumerate() {
                let panels = piece.len().div_ceil(PANEL);
                for (index, out) in piece.chunks_mut(PANEL).enumerate() {
                    if bounds.most[row * panels + index] >= *wanted
                        && let Some(panel) = weights.panel(first + index)
                    {
                        // SAFETY: `Instructions` are those of this processor.
                        unsafe { whole_product(panel, rows, row, out) }
                    }
                }
            }
        }

        fn round(bits: Bits, row: &[f32], places: &mut Rounded<'_>) {
            // SAFETY: `Instructions` are those of this processor.
            unsafe { rounded(bits, row, places) }
        }

        fn in_half_precision(values: &[f32; PANEL]) -> Halves {
            // SAFETY: `Instructions` are those of this processor.
            unsafe { rounded_to_halves(values) }
        }

        fn normalise(norm: &Norm<'_>, whole: Option<&mut [f32]>, out: &mut [f32]) {
            // SAFETY: `Instructions` are those of this processor.
            unsafe { normalised(norm, whole, out) }
        }

        fn gate(gate: Gate, row: &[f32], out: &mut [f32]) {
            // SAFETY: as for `normalise`.
            unsafe {
                match gate {
                    Gate::Silu => gated::<false>(row, out),
                    Gate::Gelu => gated::<true>(row, out),
                }
            }
        }

        #[target_feature(enable = $features)]
        fn normalised(norm: &Norm<'_>, whole: Option<&mut [f32]>, out: &mut [f32]) {
            let Norm { row, added, gain, epsilon } = norm;
            let mut squares = splat(0.0);
            let added = added.map(|added| added.as_chunks::<PANEL>().0);
            for (index, (values, out)) in
                row.as_chunks::<PANEL>().0.iter().zip(out.as_chunks_mut::<PANEL>().0).enumerate()
            {
                let mut values = load(values);
                if let Some(added) = added.and_then(|added| added.get(index)) {
                    values = add(values, load(added));
                }
                squares = times_and(values, values, squares);
                store(out, values);
            }
            if let Some(whole) = whole {
                whole.copy_from_slice(out);
            }
            #[expect(clippy::cast_precision_loss, reason = "far below 2²⁴")]
            let mean = sum(squares) / row.len() as f32;
            let factor = splat(1.0 / (mean + epsilon).sqrt());
            for (out, gain) in out.as_chunks_mut::<PANEL>().0.iter_mut().zip(gain.as_chunks::<PANEL>().0) {
                let values = times(times(load(out), factor), load(gain));
                store(out, values);
            }
        }

        #[target_feature(enable = $features)]
        fn gated<const GELU: bool>(row: &[f32], out: &mut [f32]) {
            let (gates, others) = row.split_at(out.len());
            let both = gates.as_chunks::<PANEL>().0.iter().zip(others.as_chunks::<PANEL>().0);
            for ((gate, other), out) in both.zip(out.as_chunks_mut::<PANEL>().0) {
                let gate = load(gate);
                let inner = if GELU {
                    // 2 √(2/π) x (1 + 0.044715 x²).
                    let cubic = times_and(times(gate, gate), splat(0.044_715), splat(1.0));
                    times(times(gate, splat(1.595_769)), cubic)
                } else {
                    gate
                };
                // x · σ(y) is x / (1 + e^-y).
                let beyond = power_of_two(times(inner, splat(-LOG2_E)));
                store(out, times(over(gate, add(beyond, splat(1.0))), load(other)));
            }
        }
    };
}

pub(super) use kernels;
