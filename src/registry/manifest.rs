//! The manifest beside every built model: what it is, which files it consists of, how to feed it.
//!
//! Plain serde types, read by the server and written for models that are added. Unknown fields are refused, so that a
//! newer format is never half understood. One file, though a long one, as it is one document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::{Category, ModelId};

/// The only manifest format this server reads.
pub const FORMAT: u32 = 1;

/// `manifest.json` of one component of one identifier.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Must be [`FORMAT`].
    pub format: u32,
    /// Which part below is present.
    pub kind: Kind,
    /// Name of the model, for people.
    pub name: String,
    /// Pinned source the model was built from.
    pub source: String,
    /// SPDX identifier or name of the licence of the weights.
    pub licence: String,
    /// SHA-256 over recipe, sources and converter: equal fingerprints mean equal builds.
    pub fingerprint: String,
    /// Every file of the bundle, those of [`Kind::files`] among them.
    pub files: Vec<ManifestFile>,
    /// Present for [`Kind::Generator`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorSpec>,
    /// Present for [`Kind::TextClassifier`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_classifier: Option<TextClassifierSpec>,
    /// Present for [`Kind::ImageClassifier`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_classifier: Option<ImageClassifierSpec>,
    /// Present for [`Kind::TextReader`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_reader: Option<TextReaderSpec>,
    /// Present for [`Kind::AnswerJudge`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_judge: Option<AnswerJudgeSpec>,
}

impl Manifest {
    /// Size of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The identifiers whose classifiers judge beside or instead of this one. Each is a whole bundle, its manifest too, in
    /// a folder of the identifier's name.
    pub fn company(&self) -> Vec<ModelId> {
        let Some(spec) = self.text_classifier.as_ref().filter(|_| self.kind == Kind::TextClassifier) else {
            return Vec::new();
        };
        let mut company = spec.ensemble.as_ref().map_or_else(Vec::new, |ensemble| ensemble.members.clone());
        company.extend(spec.elsewhere.filter(|id| !company.contains(id)));
        company
    }

    /// The same without its company: how to drive the network in it.
    #[must_use]
    pub fn alone(&self) -> Self {
        let mut alone = self.clone();
        alone.files.retain(|file| !file.path.contains('/'));
        if let Some(spec) = &mut alone.text_classifier {
            (spec.ensemble, spec.elsewhere) = (None, None);
        }
        alone
    }
}

/// What a bundle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Causal language model with a KV cache.
    Generator,
    /// Five harm heads and an expressibility head over a text encoder, or labels that stand for the categories.
    TextClassifier,
    /// Picture classifier.
    ImageClassifier,
    /// Detector, orientation and recogniser of text in pictures.
    TextReader,
    /// Reads a text with an answer to it and tells whether that is right.
    AnswerJudge,
}

impl Kind {
    /// Files without which a bundle of this kind is of no use. A text model has a tokenizer too.
    pub const fn files(self) -> &'static [&'static str] {
        match self {
            Self::Generator | Self::TextClassifier | Self::ImageClassifier | Self::AnswerJudge => &["model.onnx"],
            Self::TextReader => &["detector.onnx", "orientation.onnx", "recogniser.onnx", "characters.json"],
        }
    }
}

/// One file of a bundle.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// File name, relative to the manifest; only the files of a classifier's company are in folders.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256.
    pub sha256: String,
}

/// How to drive a generator graph.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratorSpec {
    /// Transformer layers, each with one key and one value cache.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Size of the vocabulary, the width of the logits unless `answer_tokens` are named.
    pub vocab: usize,
    /// A file with the tokens that the logits are of, where answers cannot hold all: ids as little-endian `u32`,
    /// ascending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_tokens: Option<String>,
    /// How the graph is given the tokens that it has seen.
    #[serde(default)]
    pub cache: CacheForm,
    /// A second graph of the same inputs and outputs, for passes of several tokens; absent where one serves for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<String>,
    /// A graph of the same inputs and outputs for our own products, which is opened instead of both others where the
    /// processor has what they need; absent where the others serve there too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<String>,
    /// Longest sequence, prompt and answer together, in tokens.
    pub window: usize,
    /// Token ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// The prompt of each task.
    pub tasks: Tasks,
    /// How the mood of a text is read from the model; absent where that was not learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mood: Option<MoodSpec>,
    /// The languages that it was taught to write.
    #[serde(default, skip_serializing_if = "Languages::is_any")]
    pub languages: Languages,
}

/// A linear reading of the logits with which the model begins a reply: of good news, bad news and neither, the sum
/// over `tokens` of weight times logit, and the bias; a softmax makes them probabilities.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MoodSpec {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// For good news, bad news and neither, the weight of each of `tokens`.
    pub weights: [Vec<f32>; 3],
    /// For good news, bad news and neither.
    pub bias: [f32; 3],
}

/// Who keeps the keys and values of past tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheForm {
    /// We do: past and present are one buffer as long as the window, which the graph writes into. `scripts/` builds so.
    #[default]
    Shared,
    /// The graph does: it takes a past and answers with a longer present. What Hugging Face's exporters write.
    Growing,
}

/// The prompts around a user's text.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tasks {
    /// Prompt of the positive expression.
    pub positive: TaskPrompt,
    /// Prompt of the negative expression.
    pub negative: TaskPrompt,
    /// Prompt of the reply.
    pub reply: TaskPrompt,
}

/// What stands before and after the user's text. Control tokens are recognised here, and only here.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPrompt {
    /// Everything before the text; computed once and cached.
    pub prefix: String,
    /// Everything after it.
    pub suffix: String,
    /// The doubt above which an answer is made again, in nats: the mean surprise of its three least likely tokens.
    /// Absent where it was not measured; then none is made again for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_doubt: Option<f32>,
    /// The probability of being right below which an answer is made again, by the judge of answers, where one is installed.
    /// Absent where none is asked: it was not measured for this task, or is no help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_right: Option<f32>,
    /// When an answer is what people wrote for the text, where a judge tells that. Absent where none is: what the model writes is
    /// better, or that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beforehand: Option<Beforehand>,
}

/// How probable what people wrote must be to come first: where that passes the checks nothing is generated. Of an expression
/// that is the probability that an attitude fits, and both lights must have one; of a reply that it fits, or where all are of situations that of the situation: one of a less probable situation is a candidate beside what is
/// made again. But a reply that names what the text speaks of comes first whatever this says, where anything is said here.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Beforehand {
    /// Of English texts; absent where what people wrote is no help there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub english: Option<f32>,
    /// Of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f32>,
}

impl Beforehand {
    /// The bound for a text, given whether it is in English.
    pub fn of(self, english: bool) -> Option<f32> {
        if english { self.english } else { self.others }
    }
}

/// How to feed a text classifier and read its heads.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextClassifierSpec {
    /// Tokens a window, `cls` and `sep` included.
    pub window: usize,
    /// Tokens between the starts of two windows of a long text.
    pub stride: usize,
    /// Token that opens a window.
    pub cls_id: u32,
    /// Token that closes it.
    pub sep_id: u32,
    /// Token that fills a batch up.
    pub pad_id: u32,
    /// Order of the `harm` output; must be the order of the interface.
    pub categories: [String; 5],
    /// Per category, how a logit becomes a probability.
    pub calibration: [Calibration; 5],
    /// The expressibility head; absent where the model has labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expressibility: Option<ExpressibilitySpec>,
    /// Present for a model that was trained elsewhere: its one head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelsSpec>,
    /// The languages that the model was taught.
    #[serde(default, skip_serializing_if = "Languages::is_any")]
    pub languages: Languages,
    /// Present where others judge beside this model, each text or those that it doubts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<EnsembleSpec>,
    /// The identifier whose classifier judges instead of this one what is in no language of its, and such sentences of other
    /// texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<ModelId>,
}

/// What a classifier can read, or a generator write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Languages {
    /// Many; what it says of the others is as good as any other model's here.
    #[default]
    Any,
    /// English alone: what it says of other texts is more or less nothing.
    English,
}

impl Languages {
    /// Whether it need not be written down.
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }

    /// Whether a text is in one of them, given whether it is in English.
    pub fn include(self, english: bool) -> bool {
        english || self == Self::Any
    }
}

/// Several classifiers that answer as one, with the weighted mean of their log-odds, where all of them read the text.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnsembleSpec {
    /// The identifiers whose text classifiers judge beside this one.
    pub members: Vec<ModelId>,
    /// How much each one's opinion counts, this one's first and then theirs in that order; equally much where this is absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f32>,
    /// The probability of some category, by this one alone, from which the others are asked at all; absent where they judge
    /// each text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f32>,
    /// Per category, how the mean of the log-odds becomes a probability.
    pub calibration: [Calibration; 5],
}

impl EnsembleSpec {
    /// The weight of this one and of each member, in that order.
    pub fn weights_of_all(&self) -> Vec<f32> {
        if self.weights.is_empty() { vec![1.0; self.members.len() + 1] } else { self.weights.clone() }
    }
}

/// The head of a sequence classifier as Hugging Face's libraries export it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LabelsSpec {
    /// How its logits become probabilities.
    pub activation: Activation,
    /// Its labels, in the order of the `logits` output.
    pub order: Vec<LabelSpec>,
}

/// Whether labels exclude one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// They do not: each logit stands alone.
    Sigmoid,
    /// They do: the probabilities sum to 1.
    Softmax,
}

/// One label and the category that it stands for, if any.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSpec {
    /// The model's own name of it.
    pub name: String,
    /// Several labels may stand for one category; a category without a label scores 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
}

/// Probability = sigmoid(slope · (logit − point)), with a slope on either side: 0.5 is the operating point, and the
/// temperatures below and above it make the scores probabilities.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Logit of the operating point.
    pub point: f32,
    /// Slope below it; positive.
    pub below: f32,
    /// Slope above it; positive.
    pub above: f32,
}

/// The second head of our own text classifiers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExpressibilitySpec {
    /// Order of the output; must be the order of `domain::Expressibility`.
    pub classes: [String; 5],
    /// A text is special when 1 − p(statement) reaches this.
    pub threshold: f32,
}

/// How to feed an image classifier and read its classes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImageClassifierSpec {
    /// Side of the square input in pixels.
    pub size: u32,
    /// Order of the `probabilities` output.
    pub classes: [String; 5],
    /// How the sexual score follows from the classes.
    pub sexual: SexualSpec,
    /// Order of the `scores_extra` output, calibrated probabilities of further categories; a graph without it has none.
    #[serde(default)]
    pub heads: Vec<Category>,
    /// Where pictures are searched for text: the share of its size at which a page is looked at first. What shows
    /// nothing like text then is not searched; absent where every page is searched at its full size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glance: Option<f32>,
}

/// sexual = sigmoid(scale · logit(Σ weight · p(class)) + bias).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SexualSpec {
    /// Weight of each class that counts.
    pub weights: BTreeMap<String, f32>,
    /// Factor on the logit; positive.
    pub scale: f32,
    /// Added to the scaled logit.
    pub bias: f32,
}

/// How to feed the three graphs of a text reader. All take `pixels`, uint8 RGB `[batch, height, width, 3]`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextReaderSpec {
    /// Where text is.
    pub detector: DetectorSpec,
    /// Whether a line is upside down.
    pub orientation: OrientationSpec,
    /// What a line says.
    pub recogniser: RecogniserSpec,
}

/// The detector's input, and what counts as text in its map.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DetectorSpec {
    /// Both sides of the input are multiples of this.
    pub multiple: u32,
    /// A page with fewer pixels is enlarged up to as many, at most twice over.
    pub least_pixels: u32,
    /// A page with more pixels is reduced to as many.
    pub most_pixels: u32,
    /// Most pixels of a side.
    pub most_side: u32,
    /// Probability above which a pixel is text.
    pub threshold: f32,
    /// Mean probability from which a region is text.
    pub box_threshold: f32,
    /// Area over perimeter, times this, is how far each side of a region's box moves out.
    pub unclip: f32,
}

/// The orientation's input: lines longer than it are squeezed to half, of longer ones yet the left end is shown.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OrientationSpec {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

/// The recogniser's input, and when its answer counts.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RecogniserSpec {
    /// Rows.
    pub height: u32,
    /// Least columns.
    pub least_width: u32,
    /// Wider inputs have this many columns more, or a multiple of it.
    pub width_step: u32,
    /// Most columns of a line; a longer one is squeezed.
    pub most_width: u32,
    /// Mean probability of a line's characters from which it counts as read.
    pub threshold: f32,
}

/// How to feed a judge of answers and read it. A sequence is the text and, behind it, the answer, each ended by `sep`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerJudgeSpec {
    /// Token that opens a sequence.
    pub cls_id: u32,
    /// Token that ends the text, and the answer.
    pub sep_id: u32,
    /// Token that fills a batch up.
    pub pad_id: u32,
    /// Most tokens of the text; the end of a longer one is not read.
    pub text_tokens: usize,
    /// Most tokens of the answer.
    pub answer_tokens: usize,
    /// Order of the `verdict` output; must be [`VERDICTS`]. Absent where it judges no answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<[String; 6]>,
    /// The file with what people wrote: the attitudes and replies of the `attitude` output, and replies for some texts of the
    /// situations of the `situation` output, if there is that; absent where it tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub situations: Option<String>,
    /// The languages of the texts that it was taught.
    #[serde(default, skip_serializing_if = "Languages::is_any")]
    pub languages: Languages,
}

/// What a judge of answers tells, as logits: of an answer how right it is as an expression in either light or as a reply,
/// each alone; of a text without an answer its mood, the three together.
pub const VERDICTS: [&str; 6] = ["positive", "negative", "reply", "good", "bad", "plain"];
