//! Layers of a text encoder: an operator of ours in place of the twenty or so nodes of each.
//!
//! ONNX Runtime computes each node over the whole batch, padding included, and writes what lies between two of them to
//! memory: of a short text that takes as long as the products. Here a thread carries some rows through a layer, padding
//! has none, and what a product gives is scaled, bent and rounded for the next one before it leaves the registers. The
//! arithmetic is that of the nodes (`scripts/forge/encoder.py` says what they are): products of whole numbers, all else in
//! single precision. A row's bits do not depend on the rows beside it.
//!
//! Owns the operator, and the change of a graph that puts it in place ([`with_whole_layers`]). It needs instructions that
//! not every processor has ([`Instructions`]); elsewhere the nodes stay. Runs on the engine thread that runs the session,
//! and on the session's own threads.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
mod layer;
mod nodes;
mod weights;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput},
    value::TensorElementType,
};

pub(super) use kernels::Kernels;
use layer::{Batch, Workspace};
pub(super) use nodes::with_whole_layers;
use weights::{Layer, Product};

use super::{
    instructions::Instructions,
    kv::{MappedFiles, Room},
};

/// The domain of the operator in a graph, and its name.
const DOMAIN: &str = "dichroic.encoder";
const NAME: &str = "EncoderLayer";

/// Columns that are multiplied at once; all widths are multiples of it.
const PANEL: usize = 32;

/// Rows that are multiplied at once.
const TILE: usize = 12;

/// Numbers of single precision in a vector.
const LANES: usize = 16;

/// Rows that are rounded together, and inputs whose codes lie side by side.
const FOUR: usize = 4;

/// Steps of a rounding up to which they differ: more are as many codes as there are.
const MOST_STEPS: f32 = 255.0;

/// Widths of an attention head that there is code for.
const HEAD_SIZES: [usize; 3] = [16, 32, 64];

impl Kernels {
    /// Those for some instructions, which this processor has to have.
    pub(super) fn of(instructions: Instructions) -> &'static Self {
        match instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Vnni => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => &avx2::KERNELS,
        }
    }
}

/// The domain with the operator, for sessions of `threads` threads.
///
/// # Errors
/// [`ort::Error`] when ONNX Runtime refuses it.
pub(super) fn domain(kernels: &'static Kernels, threads: usize) -> Result<OperatorDomain, ort::Error> {
    OperatorDomain::new(DOMAIN)?.add(Layers { kernels, threads, shared: Arc::default() })
}

/// The operator. Its kernels belong to one session, which runs one of them at a time.
struct Layers {
    kernels: &'static Kernels,
    threads: usize,
    shared: Arc<Shared>,
}

/// What the layers of a session share.
#[derive(Default)]
struct Shared {
    /// What is between two products; kept, as every layer and every pass needs as much.
    workspace: Mutex<Workspace>,
    /// Where the weights' files are mapped; all are before the first layer is asked.
    files: OnceLock<MappedFiles>,
    /// Where the weights lie.
    room: Mutex<Room>,
}

/// A part of a product of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Whole numbers [depth, columns].
    Codes,
    /// [columns].
    Scales,
    /// What is added [columns].
    Bias,
    /// What a step of the rounded input is worth, and the code of its zero.
    Step,
    Zero,
    /// Optional: the input times the first, less the second [depth], is what is rounded.
    Narrowing,
    Offset,
    /// Optional: places [n] of that input which are multiplied unrounded with weights [n, columns] besides.
    Chosen,
    Exact,
}

impl Part {
    const ALL: [Self; 9] = [
        Self::Codes,
        Self::Scales,
        Self::Bias,
        Self::Step,
        Self::Zero,
        Self::Narrowing,
        Self::Offset,
        Self::Chosen,
        Self::Exact,
    ];

    fn input(self) -> OperatorInput {
        match self {
            Self::Codes => OperatorInput::required(TensorElementType::Int8),
            Self::Scales | Self::Bias | Self::Step => OperatorInput::required(TensorElementType::Float32),
            Self::Zero => OperatorInput::required(TensorElementType::Uint8),
            // Those that follow an optional one may be missing in the operator's eyes; the change of the graph sees to it.
            Self::Narrowing | Self::Offset | Self::Exact => OperatorInput::optional(TensorElementType::Float32),
            Self::Chosen => OperatorInput::optional(TensorElementType::Int64),
        }
    }
}

/// An input of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// [batch, tokens, width].
    States,
    /// How many tokens of a text are no padding [batch].
    Lengths,
    /// Optional: what is added to the scores of an attention [1, heads, tokens, tokens].
    Distances,
    /// Queries, keys and values, side by side.
    Packed(Part),
    /// Of what the heads gather.
    Attended(Part),
    /// Up, and down again.
    Inner(Part),
    Down(Part),
    /// Normalisations [width], behind the attention and behind the rest.
    FirstScale,
    FirstShift,
    SecondScale,
    SecondShift,
}

impl Input {
    const ALL: [Self; 43] = {
        let mut all = [Self::States; 43];
        all[1] = Self::Lengths;
        all[2] = Self::Distances;
        let parts = Part::ALL.len();
        let mut place = 0;
        while place < parts {
            let part = Part::ALL[place];
            all[3 + place] = Self::Packed(part);
            all[3 + parts + place] = Self::Attended(part);
            all[3 + 2 * parts + place] = Self::Inner(part);
            all[3 + 3 * parts + place] = Self::Down(part);
            place += 1;
        }
        all[39] = Self::FirstScale;
        all[40] = Self::FirstShift;
        all[41] = Self::SecondScale;
        all[42] = Self::SecondShift;
        all
    };

    /// Its place among the operator's.
    fn place(self) -> usize {
        Self::ALL.iter().position(|other| *other == self).unwrap_or(usize::MAX)
    }
}

impl Operator for Layers {
    type Kernel<'attr> = LayerKernel;

    fn name(&self) -> &'static str {
        NAME
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        Input::ALL.map(|input| match input {
            Input::Lengths => OperatorInput::required(TensorElementType::Int32),
            Input::Distances => OperatorInput::optional(TensorElementType::Float32),
            Input::Packed(part) | Input::Attended(part) | Input::Inner(part) | Input::Down(part) => part.input(),
            _ => OperatorInput::required(TensorElementType::Float32),
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> Result<Self::Kernel<'attr>, ort::Error> {
        let heads: Option<i64> = context.get("num_heads");
        let epsilon: Option<f32> = context.get("epsilon");
        Ok(LayerKernel {
            heads: heads.and_then(|heads| usize::try_from(heads).ok()).ok_or_else(|| refused("number of heads"))?,
            epsilon: epsilon.ok_or_else(|| refused("epsilon"))?,
            kernels: self.kernels,
            threads: self.threads,
            shared: Arc::clone(&self.shared),
            layer: None,
        })
    }
}

fn refused(what: &str) -> ort::Error {
    ort::Error::new(format!("a layer of a text encoder has an unexpected {what}"))
}

/// One layer of a graph.
struct LayerKernel {
    heads: usize,
    epsilon: f32,
    kernels: &'static Kernels,
    threads: usize,
    shared: Arc<Shared>,
    /// The weights, from the first call on.
    layer: Option<Layer>,
}

impl Kernel for LayerKernel {
    fn compute(&mut self, context: &ComputeContext) -> Result<(), ort::Error> {
        let layer = match &mut self.layer {
            Some(layer) => layer,
            empty => empty.insert(layer(context, self.heads, self.epsilon, &self.shared)?),
        };
        let needed = |input: Input| context.input(input.place())?.ok_or_else(|| refused("input"));
        let (states, lengths) = (needed(Input::States)?, needed(Input::Lengths)?);
        let distances = context.input(Input::Distances.place())?;
        let (shape, states) = states.try_extract_tensor::<f32>()?;
        let (_, lengths) = lengths.try_extract_tensor::<i32>()?;
        let distances = distances.as_ref().map(|distances| distances.try_extract_tensor::<f32>()).transpose()?;
        let mut out = context.output(0, shape.to_vec())?.ok_or_else(|| refused("output"))?;
        let out = out.try_extract_tensor_mut::<f32>()?.1;
        let batch = Batch::new(states, lengths, distances.map(|(_, values)| values), layer)?;
        // Nothing is half written in it that a later call would read.
        let mut workspace = self.shared.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let parallel = |parts: usize, work: &(dyn Fn(usize) + Sync)| context.par_for(parts, 0, work);
        layer::run(self.kernels, layer, &batch, out, &mut workspace, self.threads, &parallel)
    }
}

/// The weights of a layer.
fn layer(context: &ComputeContext, heads: usize, epsilon: f32, shared: &Shared) -> Result<Layer, ort::Error> {
    let files = shared.files.get_or_init(MappedFiles::now);
    let numbers = |input: Input| -> Result<Vec<f32>, ort::Error> {
        let value = context.input(input.place())?.ok_or_else(|| refused("input"))?;
        Ok(value.try_extract_tensor::<f32>()?.1.to_vec())
    };
    let product = |of: fn(Part) -> Input| -> Result<Product, ort::Error> {
        let needed = |part: Part| context.input(of(part).place())?.ok_or_else(|| refused("input"));
        let optional = |part: Part| -> Result<Option<Vec<f32>>, ort::Error> {
            let value = context.input(of(part).place())?;
            value.map(|value| Ok(value.try_extract_tensor::<f32>()?.1.to_vec())).transpose()
        };
        let codes = needed(Part::Codes)?;
        let codes = codes.try_extract_tensor::<i8>()?.1;
        let chosen = context.input(of(Part::Chosen).place())?;
        let chosen =
            chosen.map(|chosen| Ok::<_, ort::Error>(chosen.try_extract_tensor::<i64>()?.1.to_vec())).transpose()?;
        let first = |values: &[f32]| values.first().copied().ok_or_else(|| refused("step"));
        let zero = needed(Part::Zero)?.try_extract_tensor::<u8>()?.1.first().copied().ok_or_else(|| refused("zero"))?;
        let product = Product::new(
            codes,
            &numbers(of(Part::Scales))?,
            numbers(of(Part::Bias))?,
            (first(&numbers(of(Part::Step))?)?, zero),
            optional(Part::Narrowing)?.zip(optional(Part::Offset)?),
            chosen.zip(optional(Part::Exact)?),
            &mut shared.room.lock().unwrap_or_else(PoisonError::into_inner),
        )?;
        files.forget(codes);
        Ok(product)
    };
    Layer::new(
        [product(Input::Packed)?, product(Input::Attended)?, product(Input::Inner)?, product(Input::Down)?],
        [
            (numbers(Input::FirstScale)?, numbers(Input::FirstShift)?),
            (numbers(Input::SecondScale)?, numbers(Input::SecondShift)?),
        ],
        heads,
        epsilon,
    )
}

/// Calls a function for each of so many parts, side by side.
type Parallel<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) -> Result<(), ort::Error> + 'a;
