//! Products with block-quantised weights: an operator of ours in place of ONNX Runtime's `MatMulNBits`.
//!
//! A step of a generator is little else than these products. In ONNX Runtime's a vector holds the codes of one output, and
//! each block's sum is spread over several places, all of which have to be scaled: more work than the products themselves.
//! Here vectors hold codes of 16 outputs, and a block's sum is scaled once ([`packed`]). The arithmetic is that of
//! `MatMulNBits` at accuracy level 4: a row is rounded to 8 bits in blocks of 32 with a scale each, blocks are multiplied
//! as whole numbers and summed in single precision; but the weights' scales are held in half precision. A row's bits do not
//! depend on the rows beside it.
//!
//! Weights of 4 bits may be as their source has them: with zero points in sixteenths, which `MatMulNBits` cannot do, and with
//! what an adapter changes beside them, as values that are made of a row by weights of 8 bits and follow it as one more block.
//!
//! What a step does between two products is little, and takes its time by being so many nodes. So a normalisation or a gate
//! whose result a product alone reads is done with that product, as its rows are rounded ([`Before`]).
//!
//! The head of a generator tells a number for each of its tokens, of which a few are likely and all the others count as good
//! as nothing. So its codes of 8 bits lie in halves: a step reads the upper ones alone, then the lower ones of those tokens
//! too that may come near the largest ([`NEAR`]). What these tell is what whole codes do; what the others tell is a little off,
//! so that their probability is right in the mean.
//!
//! Owns the operator, and the change of a graph that puts it in place ([`with_products`]). It needs instructions that not
//! every processor has ([`Instructions`]); elsewhere, and in nodes of other kinds, `MatMulNBits` stays.
//! Runs on the engine thread that runs the session, and on the session's own threads.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
mod nodes;
mod packed;
mod weights;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput},
    value::{TensorElementType, ValueRef},
};

use activations::{Activations, Rows};
use kernels::{Kernels, Share};
pub(super) use nodes::with_products;
use packed::Packed;
use weights::{Bits, Layout, Weights};

#[cfg(target_arch = "x86_64")]
use crate::runtime::attention::Attention;
use crate::runtime::{
    instructions::Instructions,
    kv::{MappedFiles, Room},
};

/// The domain of our operators in a graph.
const DOMAIN: &str = "dichroic";

/// The operator's name, and that of what it replaces.
const NAME: &str = "MatMulNBits";

/// The attribute that says what is done before it, by its number.
const BEFORE: &str = "before";

/// The attribute that says whether it tells how likely tokens are.
const HEAD: &str = "head";

/// The attribute that says how many values made of a row follow it.
const INNER: &str = "inner";

/// The attribute that says whether zero points are of sixteenths.
const FINE: &str = "fine";

/// Columns from which a head has its codes in halves: fewer are read in no time.
const HALVED_FROM: usize = 4096;

/// How far below a row's largest number one may be for it to be computed from whole codes: a token there is less likely than
/// the first by a factor of 150.
const NEAR: f32 = 5.0;

/// Values that share a scale.
const BLOCK: usize = 32;

/// Columns that are multiplied at once.
const PANEL: usize = 16;

/// What the lower halves of codes are in the mean, and their variance.
const MIDDLE: f32 = 7.5;
const VARIANCE: f32 = 255.0 / 12.0;

/// Bytes ahead of what is read that are asked for.
const AHEAD: usize = 8192;

/// Bytes of rounded rows that the columns go over again and again: a second-level cache holds them.
const ROWS_BYTES: usize = 1 << 18;

/// Parts that the columns are cut into for each thread: a thread that something else delays leaves its parts to others.
const PARTS: usize = 4;

impl Kernels {
    /// Those for some instructions, which this processor has to have.
    fn of(instructions: Instructions) -> &'static Self {
        match instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Vnni => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => &avx2::KERNELS,
        }
    }
}

/// The domain with the operator, and with that of [`super::attention`], for sessions of `threads` threads.
///
/// # Errors
/// [`ort::Error`] when ONNX Runtime refuses it.
pub(super) fn domain(instructions: Instructions, threads: usize) -> Result<OperatorDomain, ort::Error> {
    let kernels = Kernels::of(instructions);
    let domain = OperatorDomain::new(DOMAIN)?.add(Products { kernels, threads, shared: Arc::default() })?;
    #[cfg(target_arch = "x86_64")]
    let domain = domain.add(Attention { instructions, threads })?;
    Ok(domain)
}

/// The operator. Its kernels belong to one session, which runs one of them at a time.
struct Products {
    kernels: &'static Kernels,
    threads: usize,
    shared: Arc<Shared>,
}

/// What the products of a session share.
#[derive(Default)]
struct Shared {
    /// Where they write rounded rows; kept, as a step has more than a hundred products.
    rounded: Mutex<Activations>,
    /// Where the weights' files are mapped; all are before the first product is asked.
    files: OnceLock<MappedFiles>,
    /// Where the weights lie.
    room: Mutex<Room>,
}

impl Operator for Products {
    type Kernel<'attr> = Product;

    fn name(&self) -> &'static str {
        NAME
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [
            // Rows [.., K], or [.., 2 K] where one half is the other's gate.
            OperatorInput::required(TensorElementType::Float32),
            // Codes [N, blocks, bytes of a block].
            OperatorInput::required(TensorElementType::Uint8),
            // Scales [N, blocks].
            OperatorInput::required(TensorElementType::Float32),
            // Zero points [N, blocks], of 4 bits two a byte, or in sixteenths.
            OperatorInput::optional(TensorElementType::Uint8),
            // What is added to the product [N].
            OperatorInput::optional(TensorElementType::Float32),
            // What is added to the rows before they are normalised [.., K].
            OperatorInput::optional(TensorElementType::Float32),
            // By what channels of normalised rows are multiplied [K].
            OperatorInput::optional(TensorElementType::Float32),
            // Of what is made of a row and follows it, the codes of 8 bits, scales and zero points, as above.
            OperatorInput::optional(TensorElementType::Uint8),
            OperatorInput::optional(TensorElementType::Float32),
            OperatorInput::optional(TensorElementType::Uint8),
        ]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        // The product [.., N], and the rows with what was added to them [.., K].
        [OperatorOutput::required(TensorElementType::Float32), OperatorOutput::optional(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> Result<Self::Kernel<'attr>, ort::Error> {
        let number = |name: &str| {
            let value: Option<i64> = context.get(name);
            value.and_then(|value| usize::try_from(value).ok()).ok_or_else(|| refused(name))
        };
        let (depth, columns) = (number("K")?, number("N")?);
        let bits = Bits::try_from(number("bits")?)?;
        if depth == 0 || !depth.is_multiple_of(BLOCK) || columns == 0 {
            return Err(refused("K or N"));
        }
        let whole = |name: &str| -> usize {
            let value: Option<i64> = context.get(name);
            value.and_then(|value| usize::try_from(value).ok()).unwrap_or_default()
        };
        let layout = Layout { bits, fine: whole(FINE) == 1 && bits == Bits::Four, depth, columns };
        let inner = match whole(INNER) {
            0 => None,
            inner if inner.is_multiple_of(BLOCK) && inner < depth && bits == Bits::Four => {
                Some(Layout { bits: Bits::Eight, fine: false, depth: depth - inner, columns: inner })
            }
            _ => return Err(refused(INNER)),
        };
        let before = number(BEFORE).ok().and_then(Before::of).ok_or_else(|| refused(BEFORE))?;
        // What is no normalisation has none.
        let epsilon: Option<f32> = context.get("epsilon");
        Ok(Product {
            layout,
            inner,
            before,
            halved: whole(HEAD) == 1 && columns >= HALVED_FROM && bits == Bits::Eight,
            epsilon: epsilon.unwrap_or_default(),
            kernels: self.kernels,
            threads: self.threads,
            shared: Arc::clone(&self.shared),
            packed: None,
        })
    }
}

fn refused(what: &str) -> ort::Error {
    ort::Error::new(format!("a product with block-quantised weights has an unexpected {what}"))
}

/// What is done with rows before they are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// They are divided by the root of their mean square, and multiplied channel by channel.
    Norm,
    /// The first half, through the gate, is multiplied with the second.
    Gate(Gate),
}

/// What a number is multiplied with the sigmoid of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// x · σ(x)
    Silu,
    /// x · σ(2 √(2/π) (x + 0.044715 x³)), which is Gelu by the hyperbolic tangent.
    Gelu,
}

impl Before {
    const ALL: [Self; 4] = [Self::Nothing, Self::Norm, Self::Gate(Gate::Silu), Self::Gate(Gate::Gelu)];

    /// How many values make a row of so many.
    fn width(self, depth: usize) -> usize {
        match self {
            Self::Nothing | Self::Norm => depth,
            Self::Gate(_) => 2 * depth,
        }
    }

    fn number(self) -> u64 {
        Self::ALL.iter().zip(0..).find_map(|(before, number)| (*before == self).then_some(number)).unwrap_or_default()
    }

    fn of(number: usize) -> Option<Self> {
        Self::ALL.get(number).copied()
    }
}

/// One product of a graph.
struct Product {
    layout: Layout,
    /// The layout of what makes of a row what follows it.
    inner: Option<Layout>,
    before: Before,
    /// Whether codes are read in halves.
    halved: bool,
    epsilon: f32,
    kernels: &'static Kernels,
    threads: usize,
    shared: Arc<Shared>,
    /// The weights, from the first call on, and those that make what follows a row.
    packed: Option<(Packed, Option<Packed>)>,
}

impl Product {
    /// Values of a row, without what follows it.
    fn depth(&self) -> usize {
        self.inner.map_or(self.layout.depth, |inner| inner.depth)
    }

    /// Its weights, and those of what follows a row, packed.
    fn weights(
        &self,
        context: &ComputeContext,
        parallel: &Parallel<'_>,
    ) -> Result<(Packed, Option<Packed>), ort::Error> {
        let bias = optional(context, 4)?;
        let own = self.packed_from(self.layout, [1, 2, 3], numbers(bias.as_ref())?, context, parallel)?;
        let inner = self.inner.map(|inner| self.packed_from(inner, [7, 8, 9], None, context, parallel)).transpose()?;
        Ok((own, inner))
    }

    /// Weights whose codes, scales and zero points are in these places.
    fn packed_from(
        &self,
        layout: Layout,
        places: [usize; 3],
        bias: Option<&[f32]>,
        context: &ComputeContext,
        parallel: &Parallel<'_>,
    ) -> Result<Packed, ort::Error> {
        let needed = |place: usize| optional(context, place)?.ok_or_else(|| refused("input"));
        let [codes, scales, zeros] = places;
        let (codes, scales, zeros) = (needed(codes)?, needed(scales)?, needed(zeros)?);
        let mut weights = Weights::new(
            layout,
            codes.try_extract_tensor::<u8>()?.1,
            scales.try_extract_tensor::<f32>()?.1,
            zeros.try_extract_tensor::<u8>()?.1,
            bias,
        )?;
        // What follows a row is of other bits than what reads it.
        weights.evens_first = layout.bits != self.layout.bits;
        let packed = Packed::new(&weights, self.halved, self.kernels, &self.shared.room, parallel)?;
        let files = self.shared.files.get_or_init(MappedFiles::now);
        files.forget(weights.codes);
        files.forget(weights.scales);
        files.forget(weights.zeros);
        Ok(packed)
    }
}

impl Kernel for Product {
    fn compute(&mut self, context: &ComputeContext) -> Result<(), ort::Error> {
        let parallel = |parts: usize, work: &(dyn Fn(usize) + Sync)| context.par_for(parts, 0, work);
        let depth = self.depth();
        if self.packed.is_none() {
            self.packed = Some(self.weights(context, &parallel)?);
        }
        let (weights, inner) = self.packed.as_ref().ok_or_else(|| refused("input"))?;
        let rows = context.input(0)?.ok_or_else(|| refused("input"))?;
        let (shape, rows) = rows.try_extract_tensor::<f32>()?;
        let mut shape = shape.to_vec();
        let wide = shape.pop().and_then(|wide| usize::try_from(wide).ok());
        if wide != Some(self.before.width(depth)) {
            return Err(refused("input"));
        }
        let of_width = |width: usize| -> Result<Vec<i64>, ort::Error> {
            let width = i64::try_from(width).map_err(|_| refused("shape"))?;
            Ok(shape.iter().copied().chain([width]).collect())
        };
        let mut out = context.output(0, of_width(self.layout.columns)?)?.ok_or_else(|| refused("output"))?;
        let out = out.try_extract_tensor_mut::<f32>()?.1;
        let (added, gain) = (optional(context, 5)?, optional(context, 6)?);
        let (added, gain) = (numbers(added.as_ref())?, numbers(gain.as_ref())?);
        let mut sums = match self.before {
            Before::Norm if context.num_outputs()? > 1 => context.output(1, of_width(depth)?)?,
            _ => None,
        };
        let sums =
            sums.as_mut().map(|sums| sums.try_extract_tensor_mut::<f32>()).transpose()?.map(|(_, values)| values);
        let fits = added.is_none_or(|added| added.len() == rows.len())
            && gain.map_or(0, <[f32]>::len) == if self.before == Before::Norm { depth } else { 0 };
        if !fits {
            return Err(refused("shape"));
        }
        let rows = Rows {
            before: self.before,
            values: rows,
            added,
            gain: gain.unwrap_or_default(),
            epsilon: self.epsilon,
            sums,
        };
        // Nothing is half written in it that a later call would read.
        let mut rounded = self.shared.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        let weights = (weights, inner.as_ref());
        multiply(self.kernels, weights, rows, out, &mut rounded, self.threads, &parallel)
    }
}

/// An input that may be missing.
fn optional(context: &ComputeContext, place: usize) -> Result<Option<ValueRef<'_>>, ort::Error> {
    if place < context.num_inputs()? { context.input(place) } else { Ok(None) }
}

/// The values of an input that may be missing.
fn numbers<'a>(tensor: Option<&'a ValueRef<'_>>) -> Result<Option<&'a [f32]>, ort::Error> {
    Ok(tensor.map(|tensor| tensor.try_extract_tensor::<f32>()).transpose()?.map(|(_, values)| values))
}

/// What numbers may be that were told from the upper halves of codes.
#[derive(Default)]
struct Bounds {
    /// What the largest of a row is at least [rows].
    least: Vec<f32>,
    /// What the largest of a panel is at most [rows, panels].
    most: Vec<f32>,
}

/// Calls a function for each of so many parts, side by side.
type Parallel<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) -> Result<(), ort::Error> + 'a;

/// `out` `[rows, columns]` is what is made of `rows`, and of what the inner weights make of them, times the weights.
fn multiply(
    kernels: &Kernels,
    (weights, inner): (&Packed, Option<&Packed>),
    mut rows: Rows<'_>,
    out: &mut [f32],
    rounded: &mut Activations,
    threads: usize,
    parallel: &Parallel<'_>,
) -> Result<(), ort::Error> {
    let layout = weights.layout();
    let Layout { depth, columns, .. } = layout;
    let at_once = (ROWS_BYTES / depth).max(8).next_multiple_of(8);
    let part = columns.div_ceil(threads * PARTS).next_multiple_of(PANEL);
    for out in out.chunks_mut(at_once * columns) {
        let own = depth - inner.map_or(0, |inner| inner.layout().columns);
        rounded.fill(kernels, layout, inner, rows.first(out.len() / columns, own), threads, parallel)?;
        // Of each part its piece of every row, and what its numbers may be where they are not told from whole codes.
        let mut parts: Vec<(Vec<&mut [f32]>, Bounds)> = Vec::new();
        parts.resize_with(columns.div_ceil(part), Default::default);
        for row in out.chunks_mut(columns) {
            for ((pieces, _), piece) in parts.iter_mut().zip(row.chunks_mut(part)) {
                pieces.push(piece);
            }
        }
        let parts: Vec<Mutex<_>> = parts.into_iter().map(Mutex::new).collect();
        let rounded = &*rounded;
        let energies = if weights.halved() { rounded.energies() } else { Vec::new() };
        parallel(parts.len(), &|index| {
            // Each is locked once at a time, by whom it belongs to.
            if let Some(Ok(mut own)) = parts.get(index).map(Mutex::lock) {
                let (pieces, bounds) = &mut *own;
                let share = Share { weights, first: index * part / PANEL, rows: rounded };
                if weights.halved() {
                    (kernels.multiply_upper)(&share, &energies, pieces, bounds);
                } else {
                    (kernels.multiply)(&share, pieces);
                }
            }
        })?;
        if weights.halved() {
            let mut wanted = vec![f32::NEG_INFINITY; rounded.rows()];
            for part in &parts {
                let (_, bounds) = &*part.lock().unwrap_or_else(PoisonError::into_inner);
                wanted.iter_mut().zip(&bounds.least).for_each(|(wanted, least)| *wanted = wanted.max(least - NEAR));
            }
            parallel(parts.len(), &|index| {
                if let Some(Ok(mut own)) = parts.get(index).map(Mutex::lock) {
                    let (pieces, bounds) = &mut *own;
                    let share = Share { weights, first: index * part / PANEL, rows: rounded };
                    (kernels.complete)(&share, pieces, bounds, &wanted);
                }
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as the runtime's own")]
    fn in_turn(parts: usize, work: &(dyn Fn(usize) + Sync)) -> Result<(), ort::Error> {
        (0..parts).for_each(work);
        Ok(())
    }

    /// Numbers from 0 to 1.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).unwrap()) / 65_535.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn of_halves_the_largest_numbers_are_those_of_whole_codes_and_the_others_are_close() {
        let layout = Layout { bits: Bits::Eight, fine: false, depth: 96, columns: 4003 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
        let byte = |number: &f32| (number * 255.0) as u8;
        let codes: Vec<u8> = numbers(layout.columns * layout.depth, 3).iter().map(byte).collect();
        let zeros: Vec<u8> = numbers(layout.columns * 3, 5).iter().map(|number| 120 + byte(number) / 16).collect();
        let scales: Vec<f32> = numbers(layout.columns * 3, 7).iter().map(|number| 0.012 + 0.006 * number).collect();
        let bias = numbers(layout.columns, 9);
        let weights = Weights::new(layout, &codes, &scales, &zeros, Some(&bias)).unwrap();
        for (kernels, count) in Instructions::of_this_processor()
            .map(Kernels::of)
            .flat_map(|kernels| [1, 2, 3, 9].map(|count| (kernels, count)))
        {
            let rows: Vec<f32> = numbers(count * layout.depth, 11).iter().map(|number| 2.0 * number - 1.0).collect();
            let [whole, halved] = [false, true].map(|halved| {
                let packed = Packed::new(&weights, halved, kernels, &Mutex::default(), &in_turn).unwrap();
                assert_eq!(packed.halved(), halved);
                let rows =
                    Rows { before: Before::Nothing, values: &rows, added: None, gain: &[], epsilon: 0.0, sums: None };
                let mut out = vec![f32::NAN; count * layout.columns];
                multiply(kernels, (&packed, None), rows, &mut out, &mut Activations::default(), 2, &in_turn).unwrap();
                out
            });
            for (whole, halved) in whole.chunks(layout.columns).zip(halved.chunks(layout.columns)) {
                let largest = whole.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let (mut off, mut likelier) = (0, 0.0);
                for (whole, halved) in whole.iter().zip(halved) {
                    assert!((whole - halved).abs() < 2.0, "{halved} instead of {whole}");
                    if *whole > largest - NEAR {
                        assert_eq!(whole.to_bits(), halved.to_bits(), "{whole} of {largest}");
                    }
                    if whole.to_bits() != halved.to_bits() {
                        off += 1;
                        likelier += (halved - whole).exp();
                    }
                }
                #[expect(clippy::cast_precision_loss, reason = "a thousand")]
                let likelier = likelier / off as f32;
                assert!((likelier - 1.0).abs() < 0.05, "tokens are {likelier} times as likely in the mean");
                assert!(off > layout.columns / 8, "{off}: the lower halves of most are not read");
            }
        }
    }

    /// Sums of a block are the largest that there are, and a second panel has fewer columns than the first.
    #[test]
    fn the_largest_codes_times_the_largest_rows_are_their_sum() {
        for (bits, largest) in [(Bits::Four, 15.0), (Bits::Eight, 255.0)] {
            for (kernels, columns) in Instructions::of_this_processor()
                .map(Kernels::of)
                .flat_map(|kernels| [16, 23, 24, 27].map(|columns| (kernels, columns)))
            {
                let layout = Layout { bits, fine: false, depth: 64, columns };
                let (codes, zeros) =
                    (vec![u8::MAX; columns * layout.code_bytes()], vec![0; columns * layout.zero_bytes()]);
                let scales = vec![1.0; columns * 2];
                let weights = Weights::new(layout, &codes, &scales, &zeros, None).unwrap();
                let packed = Packed::new(&weights, false, kernels, &Mutex::default(), &in_turn).unwrap();
                for sign in [1.0, -1.0] {
                    let values = vec![sign; 7 * layout.depth];
                    let rows = Rows {
                        before: Before::Nothing,
                        values: &values,
                        added: None,
                        gain: &[],
                        epsilon: 0.0,
                        sums: None,
                    };
                    let mut out = vec![f32::NAN; 7 * columns];
                    multiply(kernels, (&packed, None), rows, &mut out, &mut Activations::default(), 2, &in_turn)
                        .unwrap();
                    let wanted = sign * 64.0 * largest;
                    assert!(out.iter().all(|sum| (sum - wanted).abs() < 0.01), "{bits:?}: {out:?} instead of {wanted}");
                }
            }
        }
    }
}
