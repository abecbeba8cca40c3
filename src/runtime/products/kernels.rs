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
    /// The product of all rows with the panels from the given one on; the pieces have the place of each row's results.
    pub(super) multiply: fn(&Packed, usize, &Activations, &mut [&mut [f32]]),
    /// The same of codes in halves: the upper ones, and of the lower ones what they are in the mean. How far that may be off
    /// goes to the bounds, with energies `[rows, blocks]`, the sums of the squares of a block's rounded values.
    pub(super) multiply_upper: fn(&Packed, usize, &Activations, &[f32], &mut [&mut [f32]], &mut Bounds),
    /// Of pieces that `multiply_upper` filled those panels of a row again, from whole codes, in which a number may be as much
    /// as is wanted or more, of each row its own.
    pub(super) complete: fn(&Packed, usize, &Activations, &mut [&mut [f32]], &Bounds, &[f32]),
    /// Rounds a row into its codes, scales and sums.
    pub(super) round: fn(Bits, &[f32], &mut [i8], &mut [f32], &mut [f32]),
    /// Numbers in half precision, the nearest ones.
    pub(super) in_half_precision: fn(&[f32; PANEL]) -> Halves,
    /// Divides a row, with what is added to it, by the root of its mean square, and multiplies its channels by a gain. The
    /// mean square has an epsilon added; the sum goes to the first place, the result to the last.
    pub(super) normalise: fn(&[f32], Option<&[f32]>, &[f32], f32, Option<&mut [f32]>, &mut [f32]),
    /// Puts the first half of a row through a gate, and multiplies it with the second.
    pub(super) gate: fn(Gate, &[f32], &mut [f32]),
}

/// [`Kernels`] for the instructions named, and two of them.
macro_rules! kernels {
    ($features:literal) => {
        pub(super) const KERNELS: Kernels =
            Kernels { multiply, multiply_upper, complete, round, in_half_precision, normalise, gate };

        fn normalise(
            row: &[f32],
            added: Option<&[f32]>,
            gain: &[f32],
            epsilon: f32,
            whole: Option<&mut [f32]>,
            out: &mut [f32],
        ) {
            // SAFETY: `Instructions` are those of this processor.
            unsafe { normalised(row, added, gain, epsilon, whole, out) }
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
        fn normalised(
            row: &[f32],
            added: Option<&[f32]>,
            gain: &[f32],
            epsilon: f32,
            whole: Option<&mut [f32]>,
            out: &mut [f32],
        ) {
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
