//! Products with block-quantised weights: an operator of ours in place of ONNX Runtime's `MatMulNBits`.
//!
//! A step of a generator is little else than these products. In ONNX Runtime's a vector holds the codes of one output, and
//! each block's sum is spread over several places, all of which have to be scaled: more work than the products themselves.
//! Here a vector holds codes of 16 outputs, and a block's sum is scaled once ([`packed`]). The arithmetic is that of
//! `MatMulNBits` at accuracy level 4: a row is rounded to 8 bits in blocks of 32 with a scale each, blocks are multiplied
//! as whole numbers and summed in single precision. A row's bits do not depend on the rows beside it.
//!
//! Owns the operator, and the change of a graph that puts it in place ([`renamed`]). It needs instructions that not every
//! processor has ([`Instructions::of_this_processor`]); elsewhere, and in nodes of other kinds, `MatMulNBits` stays.
//! Runs on the engine thread that runs the session, and on the session's own threads.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod nodes;
mod packed;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use activations::Activations;
pub(super) use nodes::renamed;
use packed::Packed;

use crate::runtime::kv::{MappedFiles, Room};

/// The domain of our operators in a graph.
const DOMAIN: &str = "dichroic";

/// The operator's name, and that of what it replaces.
const NAME: &str = "MatMulNBits";

/// Values that share a scale.
const BLOCK: usize = 32;

/// Columns that are multiplied at once.
const PANEL: usize = 16;

/// Bytes of rounded rows that the columns go over again and again: a second-level cache holds them.
const ROWS_BYTES: usize = 1 << 18;

/// Parts that the columns are cut into for each thread: a thread that something else delays leaves its parts to others.
const PARTS: usize = 4;

/// What the products are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    /// AVX-512 with VNNI, and its instructions on bytes and on shorter vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Instructions {
    /// The best that this processor has, if any.
    pub(super) fn of_this_processor() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if avx512::available() {
            return Some(Self::Avx512Vnni);
        }
        None
    }
}

/// The domain with the operator, for sessions of `threads` threads.
///
/// # Errors
/// [`ort::Error`] when ONNX Runtime refuses it.
pub(super) fn domain(instructions: Instructions, threads: usize) -> Result<OperatorDomain, ort::Error> {
    OperatorDomain::new(DOMAIN)?.add(Products { instructions, threads, shared: Arc::default() })
}

/// The operator. Its kernels belong to one session, which runs one of them at a time.
struct Products {
    instructions: Instructions,
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
            // Rows [.., K].
            OperatorInput::required(TensorElementType::Float32),
            // Codes [N, blocks, bytes of a block].
            OperatorInput::required(TensorElementType::Uint8),
            // Scales [N, blocks].
            OperatorInput::required(TensorElementType::Float32),
            // Zero points [N, blocks], of 4 bits two a byte.
            OperatorInput::optional(TensorElementType::Uint8),
            // The order of the blocks: no graph with one is renamed.
            OperatorInput::optional(TensorElementType::Int32),
            // What is added [N].
            OperatorInput::optional(TensorElementType::Float32),
        ]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
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
        let layout = Layout { bits, depth, columns };
        Ok(Product {
            layout,
            instructions: self.instructions,
            threads: self.threads,
            shared: Arc::clone(&self.shared),
            packed: None,
        })
    }
}

fn refused(what: &str) -> ort::Error {
    ort::Error::new(format!("a product with block-quantised weights has an unexpected {what}"))
}

/// Bits of a weight's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    Four,
    Eight,
}

impl TryFrom<usize> for Bits {
    type Error = ort::Error;

    fn try_from(bits: usize) -> Result<Self, ort::Error> {
        match bits {
            4 => Ok(Self::Four),
            8 => Ok(Self::Eight),
            _ => Err(refused("number of bits")),
        }
    }
}

/// The shape of a matrix of weights: `columns` outputs, each of `depth` codes in blocks.
#[derive(Clone, Copy, Debug)]
struct Layout {
    bits: Bits,
    depth: usize,
    columns: usize,
}

impl Layout {
    /// Blocks of a column.
    fn blocks(&self) -> usize {
        self.depth / BLOCK
    }

    /// Lines of 64 bytes that hold the codes of a block of 16 columns.
    fn lines_of_a_block(&self) -> usize {
        match self.bits {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }

    /// Bytes of a column's codes.
    fn code_bytes(&self) -> usize {
        match self.bits {
            Bits::Four => self.depth / 2,
            Bits::Eight => self.depth,
        }
    }

    /// Bytes of a column's zero points.
    fn zero_bytes(&self) -> usize {
        match self.bits {
            Bits::Four => self.blocks().div_ceil(2),
            Bits::Eight => self.blocks(),
        }
    }
}

/// A matrix of weights as the graph holds it.
#[derive(Clone, Copy)]
struct Weights<'a> {
    layout: Layout,
    codes: &'a [u8],
    scales: &'a [f32],
    zeros: &'a [u8],
    bias: Option<&'a [f32]>,
}

/// What belongs to one output.
struct Column<'a> {
    bits: Bits,
    codes: &'a [u8],
    scales: &'a [f32],
    zeros: &'a [u8],
}

impl<'a> Weights<'a> {
    /// Refuses tensors whose lengths are not those of the layout.
    fn new(
        layout: Layout,
        codes: &'a [u8],
        scales: &'a [f32],
        zeros: &'a [u8],
        bias: Option<&'a [f32]>,
    ) -> Result<Self, ort::Error> {
        let Layout { columns, .. } = layout;
        let fits = codes.len() == columns * layout.code_bytes()
            && scales.len() == columns * layout.blocks()
            && zeros.len() == columns * layout.zero_bytes()
            && bias.is_none_or(|bias| bias.len() == columns);
        if fits { Ok(Self { layout, codes, scales, zeros, bias }) } else { Err(refused("shape")) }
    }

    fn columns(&self) -> impl Iterator<Item = Column<'a>> {
        let bits = self.layout.bits;
        let codes = self.codes.chunks_exact(self.layout.code_bytes());
        let scales = self.scales.chunks_exact(self.layout.blocks());
        let zeros = self.zeros.chunks_exact(self.layout.zero_bytes());
        codes.zip(scales).zip(zeros).map(move |((codes, scales), zeros)| Column { bits, codes, scales, zeros })
    }
}

impl Column<'_> {
    /// The zero point of a block.
    fn zero(&self, block: usize) -> u8 {
        match self.bits {
            Bits::Four => self.zeros[block / 2] >> (block % 2 * 4) & 15,
            Bits::Eight => self.zeros[block],
        }
    }
}

/// One product of a graph.
struct Product {
    layout: Layout,
    instructions: Instructions,
    threads: usize,
    shared: Arc<Shared>,
    /// The weights, from the first call on.
    packed: Option<Packed>,
}

pub static COMPUTE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
pub static INNER: [std::sync::atomic::AtomicU64; 3] = [const { std::sync::atomic::AtomicU64::new(0) }; 3];
struct T(std::time::Instant, &'static std::sync::atomic::AtomicU64);
impl Drop for T { fn drop(&mut self) { self.1.fetch_add(self.0.elapsed().as_nanos() as u64, std::sync::atomic::Ordering::Relaxed); } }
impl Kernel for Product {
    fn compute(&mut self, context: &ComputeContext) -> Result<(), ort::Error> {
        let _t = T(std::time::Instant::now(), &COMPUTE);
        let parallel = |parts: usize, work: &(dyn Fn(usize) + Sync)| context.par_for(parts, 0, work);
        let packed = match &mut self.packed {
            Some(packed) => packed,
            empty => empty.insert(packed(self.layout, context, &self.shared, &parallel)?),
        };
        let rows = context.input(0)?.ok_or_else(|| refused("input"))?;
        let (shape, rows) = rows.try_extract_tensor::<f32>()?;
        let mut shape = shape.to_vec();
        let depth = shape.pop().and_then(|depth| usize::try_from(depth).ok());
        if depth != Some(self.layout.depth) {
            return Err(refused("input"));
        }
        shape.push(i64::try_from(self.layout.columns).map_err(|_| refused("N"))?);
        let mut out = context.output(0, shape)?.ok_or_else(|| refused("output"))?;
        let out = out.try_extract_tensor_mut::<f32>()?.1;
        // Nothing is half written in it that a later call would read.
        let mut rounded = self.shared.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        multiply(self.instructions, packed, rows, out, &mut rounded, self.threads, &parallel)
    }
}

/// The weights of a product, packed.
fn packed(
    layout: Layout,
    context: &ComputeContext,
    shared: &Shared,
    parallel: &Parallel<'_>,
) -> Result<Packed, ort::Error> {
    let inputs = context.num_inputs()?;
    let input = |place: usize| if place < inputs { context.input(place) } else { Ok(None) };
    let needed = |place: usize| input(place)?.ok_or_else(|| refused("input"));
    let (codes, scales, zeros, bias) = (needed(1)?, needed(2)?, needed(3)?, input(5)?);
    let bias = bias.as_ref().map(|bias| bias.try_extract_tensor::<f32>()).transpose()?;
    let weights = Weights::new(
        layout,
        codes.try_extract_tensor::<u8>()?.1,
        scales.try_extract_tensor::<f32>()?.1,
        zeros.try_extract_tensor::<u8>()?.1,
        bias.map(|(_, values)| values),
    )?;
    let packed = Packed::new(&weights, &shared.room, parallel)?;
    let files = shared.files.get_or_init(MappedFiles::now);
    files.forget(weights.codes);
    files.forget(weights.scales);
    files.forget(weights.zeros);
    Ok(packed)
}

/// Calls a function for each of so many parts, side by side.
type Parallel<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) -> Result<(), ort::Error> + 'a;

/// `out` `[rows, columns]` is `rows` `[rows, depth]` times the weights.
fn multiply(
    instructions: Instructions,
    weights: &Packed,
    rows: &[f32],
    out: &mut [f32],
    rounded: &mut Activations,
    threads: usize,
    parallel: &Parallel<'_>,
) -> Result<(), ort::Error> {
    let layout = weights.layout();
    let Layout { depth, columns, .. } = layout;
    let at_once = (ROWS_BYTES / depth).max(8).next_multiple_of(8);
    let part = columns.div_ceil(threads * PARTS).next_multiple_of(PANEL);
    for (rows, out) in rows.chunks(at_once * depth).zip(out.chunks_mut(at_once * columns)) {
        rounded.fill(instructions, layout, rows, threads, parallel)?;
        // Of each part its piece of every row.
        let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
        parts.resize_with(columns.div_ceil(part), Vec::new);
        for row in out.chunks_mut(columns) {
            for (pieces, piece) in parts.iter_mut().zip(row.chunks_mut(part)) {
                pieces.push(piece);
            }
        }
        let parts: Vec<Mutex<Vec<&mut [f32]>>> = parts.into_iter().map(Mutex::new).collect();
        let rounded = &*rounded;
        let _t = T(std::time::Instant::now(), &INNER[0]);
        parallel(parts.len(), &|index| {
            let _t = T(std::time::Instant::now(), &INNER[1]);
            // Each is locked once, by whom it belongs to.
            if let Some(Ok(mut pieces)) = parts.get(index).map(Mutex::lock) {
                match instructions {
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx512Vnni => avx512::multiply(weights, index * part / PANEL, rounded, &mut pieces),
                }
            }
        })?;
    }
    Ok(())
}
