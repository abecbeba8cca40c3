//! The text classifier: windows of tokens to calibrated probabilities.

use ort::{session::Session, value::Tensor};

use super::{Forward, Runtime, RuntimeError, finite, sigmoid};
use crate::registry::{Bundle, manifest::TextClassifierSpec};

/// One window of a text: token ids with the opening and closing token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window(pub Vec<u32>);

/// A whole text as overlapping windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTokens {
    /// The windows of the text as it was written, in reading order; at least one.
    pub raw: Vec<Window>,
    /// Those of its normalised form; none where that reads the same.
    pub normalised: Vec<Window>,
}

/// What the classifier says of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOutput {
    /// Calibrated probabilities in the order of `Category::ALL`.
    pub harm: [f32; 5],
    /// Probabilities in the order of `Expressibility::ALL`, summing to 1.
    pub expressibility: [f32; 5],
    /// Probability that the text is said in a positive light, where the model has a head for it.
    pub positive: Option<f32>,
}

/// A session of the classifier graph: `input_ids` int64 `[batch, tokens]`, `lengths` int32 `[batch]` →
/// `harm` and `expressibility` float32 logits `[batch, 5]`, and `sentiment` `[batch, 1]` where the model has that head.
pub struct TextClassifier {
    session: Session,
    spec: TextClassifierSpec,
}

impl TextClassifier {
    /// Opens the graph of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no text classifier or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .text_classifier
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no text classifier".into()))?;
        Ok(Self { session: runtime.open(&bundle.graph())?, spec })
    }

    fn read(&self, harm: &[f32], expressibility: &[f32], sentiment: Option<f32>) -> Option<TextOutput> {
        let harm: [f32; 5] = harm.try_into().ok()?;
        let mut calibrated = [0.0; 5];
        for ((out, logit), place) in calibrated.iter_mut().zip(harm).zip(&self.spec.calibration) {
            let off = logit - place.point;
            *out = sigmoid(off * if off < 0.0 { place.below } else { place.above });
        }
        Some(TextOutput {
            harm: calibrated,
            expressibility: softmax(expressibility.try_into().ok()?),
            positive: sentiment.map(sigmoid),
        })
    }
}

impl Forward for TextClassifier {
    type Input = Window;
    type Output = TextOutput;

    const TAKES_TOKENS: bool = true;

    fn cost(input: &Window) -> usize {
        input.0.len()
    }

    fn run(&mut self, batch: &[Window]) -> Result<Vec<TextOutput>, RuntimeError> {
        let rows = batch.len();
        let tokens = batch.iter().map(Self::cost).max().unwrap_or(0);
        let pad = i64::from(self.spec.pad_id);
        let mut ids = Vec::with_capacity(rows * tokens);
        let mut lengths = Vec::with_capacity(rows);
        for Window(window) in batch {
            ids.extend(window.iter().map(|&id| i64::from(id)));
            ids.resize(ids.len() + tokens - window.len(), pad);
            lengths.push(i32::try_from(window.len()).unwrap_or(i32::MAX));
        }
        let outputs = self.session.run(ort::inputs![
            "input_ids" => Tensor::from_array(([rows, tokens], ids))?,
            "lengths" => Tensor::from_array(([rows], lengths))?,
        ])?;
        let head = |name: &str| outputs.get(name).ok_or_else(|| RuntimeError::Shape(format!("no output {name}")));
        let (_, harm) = head("harm")?.try_extract_tensor::<f32>()?;
        let (_, expressibility) = head("expressibility")?.try_extract_tensor::<f32>()?;
        let harm = finite(harm)?.to_vec();
        let expressibility = finite(expressibility)?.to_vec();
        let sentiment = match outputs.get("sentiment") {
            Some(output) => finite(output.try_extract_tensor::<f32>()?.1)?.to_vec(),
            None => Vec::new(),
        };
        drop(outputs);
        let answers: Option<Vec<TextOutput>> = harm
            .chunks(5)
            .zip(expressibility.chunks(5))
            .enumerate()
            .map(|(row, (harm, expressibility))| self.read(harm, expressibility, sentiment.get(row).copied()))
            .collect();
        match answers {
            Some(answers) if answers.len() == rows => Ok(answers),
            _ => Err(RuntimeError::Shape(format!("{} logits for {rows} windows", harm.len()))),
        }
    }
}

fn softmax(logits: [f32; 5]) -> [f32; 5] {
    let highest = logits.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits.map(|logit| (logit - highest).exp());
    let total: f32 = weights.iter().sum();
    weights.map(|weight| weight / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_number_is_a_failure_not_a_low_score() {
        assert!(finite(&[0.1, f32::NAN]).is_err() && finite(&[f32::INFINITY]).is_err());
        assert!(finite(&[0.1, -3.0]).is_ok());
    }

    #[test]
    fn softmax_survives_large_logits() {
        let p = softmax([1000.0, 0.0, 0.0, 0.0, 1000.0]);
        assert!((p[0] - 0.5).abs() < 1e-6 && (p[4] - 0.5).abs() < 1e-6 && p[1] < 1e-6);
    }
}
