//! Local inference: the only importer of `ort` and `tokenizers`.
//!
//! Owns sessions, tokenizers and KV buffers, and turns tensors into plain numbers. Refuses queues, deadlines and
//! policy. A session has one owner: its methods take `&mut self` and run on the engine thread that holds it.

#[cfg(target_arch = "x86_64")]
mod attention;
pub mod classifier;
pub mod decoder;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "there are no kernels for other processors yet")
)]
mod encoder;
pub mod graph;
pub mod growing;
pub mod instructions;
pub mod judge;
mod kv;
mod labels;
mod leet;
mod nodes;
mod normalise;
pub mod ocr;
mod padded;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "there are no kernels for other processors yet")
)]
mod products;
pub mod session;
pub mod tokenizer;
#[cfg(target_arch = "x86_64")]
mod vectors;
pub mod vision;
mod vocabulary;
mod wire;
mod words;

pub use classifier::{TextClassifier, TextOutput, TextTokens, Window, together};
pub use decoder::Decoder;
pub use graph::GeneratorGraph;
pub use growing::GrowingDecoder;
pub use instructions::Instructions;
pub use judge::{AnswerJudge, Said, Verdict};
pub use kv::give_back_what_is_free;
pub(crate) use normalise::{is_emoji, normalise};
pub use ocr::{LineOrientation, LinePixels, LineRecogniser, PagePixels, Reading, TextDetector, TextMap};
pub use session::Runtime;
pub use tokenizer::{JudgeTokenizer, PromptTokenizer, WindowTokenizer, ends};
pub use vision::{ImageClassifier, Pixels};

/// One pass over a batch: classifiers.
pub trait Forward: Send + 'static {
    /// One item of a batch.
    type Input: Send + 'static;
    /// What the model says of one item.
    type Output: Send + 'static;

    /// Whether the costs of items are tokens.
    const TAKES_TOKENS: bool = false;

    /// Cost of an item when it stands alone, in the unit of the batch budget (tokens, or 1 a picture). An item is
    /// padded to the costliest of its batch.
    fn cost(input: &Self::Input) -> usize;

    /// Runs the batch and answers item by item, in order.
    ///
    /// # Errors
    /// [`RuntimeError`] fails the whole batch.
    fn run(&mut self, batch: &[Self::Input]) -> Result<Vec<Self::Output>, RuntimeError>;
}

/// Stepwise decoding over rows of a KV cache: generators.
///
/// Rows `0..rows()` hold sequences. A step always covers rows `0..n`, so the caller keeps live rows together with
/// [`Decode::copy`].
pub trait Decode: Send + 'static {
    /// Number of rows of the cache.
    fn rows(&self) -> usize;

    /// Longest sequence of a row, in tokens.
    fn window(&self) -> usize;

    /// Appends `tokens` to a row that already holds `past` tokens; answers the logits after the last, in places that
    /// [`Decode::token`] knows.
    ///
    /// # Errors
    /// [`RuntimeError`]; the row is then undefined.
    fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError>;

    /// Appends one token to each of rows `0..steps.len()`; answers the logits of each row.
    ///
    /// # Errors
    /// [`RuntimeError`]; all these rows are then undefined.
    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError>;

    /// Appends `tokens` to a row that already holds `past` tokens; answers the logits after each of them.
    ///
    /// Those that the caller then takes back by a smaller `past` are written over.
    ///
    /// # Errors
    /// [`RuntimeError`]; the row is then undefined.
    fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError>;

    /// [`Decode::verify`] of each of rows `0..rows.len()`, with the tokens that it holds.
    ///
    /// # Errors
    /// [`RuntimeError`]; all these rows are then undefined.
    fn verify_all(&mut self, rows: &[(usize, Vec<u32>)]) -> Result<Vec<Vec<Vec<f32>>>, RuntimeError> {
        rows.iter().enumerate().map(|(row, (past, tokens))| self.verify(row, *past, tokens)).collect()
    }

    /// Which token a place in the logits is of.
    fn token(&self, place: u32) -> u32 {
        place
    }

    /// Which place in the logits a token has, if it can be written.
    fn place(&self, token: u32) -> Option<u32> {
        Some(token)
    }

    /// Whether [`Decode::verify`] can be called.
    fn verifies(&self) -> bool;

    /// Whether [`Decode::verify_all`] is one pass, and gives each token the bits that a step would give it.
    fn verifies_as_it_steps(&self) -> bool {
        false
    }

    /// Copies the first `length` tokens of the cache of row `from` over row `to`.
    fn copy(&mut self, from: usize, to: usize, length: usize);
}

/// One row's share of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The token to append.
    pub token: u32,
    /// Tokens the row holds before it.
    pub past: usize,
}

/// Why inference failed. The text is for logs, never for callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The shared library is missing or of another version.
    #[error(
        "cannot load ONNX Runtime: {0}; run `make setup`, or point runtime_library at libonnxruntime.so 1.24 or newer"
    )]
    Library(String),
    /// There is no GPU to compute on.
    #[error(
        "no GPU can be used: {0}; `make setup DEVICE=cuda` installs the library for one, which also needs the driver \
         (`nvidia-smi` shows it), CUDA 13 and cuDNN 9; device = \"cpu\" does without"
    )]
    Device(String),
    /// A model file could not be opened.
    #[error("cannot load the model: {0}")]
    Load(String),
    /// A pass failed.
    #[error("inference failed: {0}")]
    Inference(String),
    /// A graph answered with a shape that its manifest does not promise.
    #[error("the model answered with an unexpected shape: {0}")]
    Shape(String),
}

impl From<ort::Error> for RuntimeError {
    fn from(error: ort::Error) -> Self {
        Self::Inference(error.to_string())
    }
}

/// Refuses an answer with a value that is not a number: a score made from it could let anything pass.
fn finite(values: &[f32]) -> Result<&[f32], RuntimeError> {
    if values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        Err(RuntimeError::Inference("the model answered with a value that is not a number".into()))
    }
}

/// 1 / (1 + e^-x).
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
