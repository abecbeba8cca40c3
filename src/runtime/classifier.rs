//! The text classifier: windows of tokens to calibrated probabilities.

use ort::session::Session;

use super::{Forward, Runtime, RuntimeError, finite, labels::LabelHead, padded::Padded, sigmoid};
use crate::registry::{
    Bundle,
    manifest::{Calibration, TextClassifierSpec},
};

/// How sure a member of an ensemble may be.
const SUREST: f32 = 1e-4;

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
    /// Probabilities in the order of `Expressibility::ALL`, summing to 1; surely a statement where the model has labels
    /// and no head for it.
    pub expressibility: [f32; 5],
    /// Probability that the text is said in a positive light, where the model has a head for it.
    pub positive: Option<f32>,
}

/// A session of the classifier graph: `input_ids` int64 `[batch, tokens]`, `lengths` int32 `[batch]` →
/// `harm` and `expressibility` float32 logits `[batch, 5]`, and `sentiment` `[batch, 1]` where the model has that head.
/// A model with labels has the graph of [`super::labels`] instead.
pub struct TextClassifier {
    session: Session,
    spec: TextClassifierSpec,
    labels: Option<LabelHead>,
}

impl TextClassifier {
    /// How many of one model share the threads, at most: two passes side by side waste less of two cores than one pass
    /// spread over both. Each has weights of its own, so there are no more.
    pub const WORKERS: usize = 2;

    /// Opens the graph of `bundle`, for the first worker.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no text classifier or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        Self::open_worker(runtime, bundle, 0)
    }

    /// Opens the graph of `bundle` for the worker of this number, from 0.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_worker(runtime: &Runtime, bundle: &Bundle, number: usize) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .text_classifier
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no text classifier".into()))?;
        let (session, _) = runtime.open_classifier(&bundle.graph(), Self::WORKERS, number)?;
        let labels = spec.labels.as_ref().map(|labels| LabelHead::new(labels, &session)).transpose()?;
        Ok(Self { session, spec, labels })
    }

    fn read(&self, harm: &[f32], expressibility: &[f32], sentiment: Option<f32>) -> Option<TextOutput> {
        Some(TextOutput {
            harm: calibrated(harm.try_into().ok()?, &self.spec.calibration),
            expressibility: softmax(expressibility.try_into().ok()?),
            positive: sentiment.map(sigmoid),
        })
    }

    /// The heads of our own classifiers.
    fn heads(&mut self, windows: Padded) -> Result<Vec<TextOutput>, RuntimeError> {
        let rows = windows.rows;
        let outputs = self.session.run(windows.into_inputs()?)?;
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

impl Forward for TextClassifier {
    type Input = Window;
    type Output = TextOutput;

    const TAKES_TOKENS: bool = true;

    fn cost(input: &Window) -> usize {
        input.0.len()
    }

    fn run(&mut self, batch: &[Window]) -> Result<Vec<TextOutput>, RuntimeError> {
        let windows = Padded::of(batch, self.spec.pad_id);
        let Some(head) = &self.labels else { return self.heads(windows) };
        let harm = head.run(&mut self.session, windows)?;
        let statement = [1.0, 0.0, 0.0, 0.0, 0.0];
        Ok(harm
            .into_iter()
            .map(|harm| TextOutput {
                harm: calibrated(harm, &self.spec.calibration),
                expressibility: statement,
                positive: None,
            })
            .collect())
    }
}

/// What several classifiers say of one text as one probability a category: the weighted mean of their log-odds, calibrated.
/// They err in different places, and the mean errs less often than each of them.
///
/// `said` are the members' calibrated probabilities with the weight of each, above 0, in any order; without any, every
/// probability is that of even odds.
#[must_use]
pub fn together(said: &[([f32; 5], f32)], calibration: &[Calibration; 5]) -> [f32; 5] {
    let (mut sums, mut whole) = ([0.0; 5], 0.0);
    for (one, weight) in said {
        whole += weight;
        for (sum, p) in sums.iter_mut().zip(one) {
            *sum += weight * log_odds(*p);
        }
    }
    calibrated(sums.map(|sum| if whole > 0.0 { sum / whole } else { sum }), calibration)
}

/// Held within 1 in 10,000: one that is all too sure must not outvote the others. NaN stays NaN, which counts as found.
fn log_odds(p: f32) -> f32 {
    let held = p.clamp(SUREST, 1.0 - SUREST);
    (held / (1.0 - held)).ln()
}

fn calibrated(logits: [f32; 5], calibration: &[Calibration; 5]) -> [f32; 5] {
    let mut out = [0.0; 5];
    for ((out, logit), place) in out.iter_mut().zip(logits).zip(calibration) {
        let off = logit - place.point;
        *out = sigmoid(off * if off < 0.0 { place.below } else { place.above });
    }
    out
}

pub(super) fn softmax(logits: [f32; 5]) -> [f32; 5] {
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
    fn an_ensemble_says_the_mean_of_the_log_odds_and_heeds_its_own_point() {
        let plain = [Calibration { point: 0.0, below: 1.0, above: 1.0 }; 5];
        // Odds of 9, 1 and 1/81: their geometric mean is 0.48.
        let said = [0.9, 0.5, 1.0 / 82.0].map(|p| ([p; 5], 2.0));
        let odds = (9.0_f32 / 81.0).cbrt();
        let close = |found: f32, wanted: f32| assert!((found - wanted).abs() < 1e-4, "{found} instead of {wanted}");
        close(together(&said, &plain)[0], odds / (1.0 + odds));
        let strict = [Calibration { point: odds.ln(), below: 1.0, above: 1.0 }; 5];
        close(together(&said, &strict)[4], 0.5);
        // Where the first counts twice: odds of 9, 9, 1 and 1/81, each with a quarter of the say, are even.
        close(together(&[([0.9; 5], 2.0), ([0.5; 5], 1.0), ([1.0 / 82.0; 5], 1.0)], &plain)[0], 0.5);
        // One that is sure beyond measure is one voice yet, and a fault is no low score.
        assert!(together(&[1.0, 0.000_01, 0.05].map(|p| ([p; 5], 1.0)), &plain)[0] < 0.5);
        assert!(together(&[0.1, f32::NAN].map(|p| ([p; 5], 1.0)), &plain)[0].is_nan());
    }

    #[test]
    fn softmax_survives_large_logits() {
        let p = softmax([1000.0, 0.0, 0.0, 0.0, 1000.0]);
        assert!((p[0] - 0.5).abs() < 1e-6 && (p[4] - 0.5).abs() < 1e-6 && p[1] < 1e-6);
    }
}
