//! The one head of a sequence classifier that was trained elsewhere: its labels stand for the categories.
//!
//! Graph contract, as Hugging Face's exporters write it: `input_ids`, `attention_mask` and, where the graph has it,
//! `token_type_ids`, all int64 `[batch, tokens]` → `logits` float32 `[batch, labels]`.

use std::borrow::Cow;

use ort::{
    session::{Session, SessionInputValue},
    value::{Outlet, Tensor, TensorElementType, ValueType},
};

use super::{RuntimeError, finite, padded::Padded};
use crate::{
    domain::Category,
    registry::manifest::{Activation, LabelsSpec},
};

/// What the logits of a graph mean.
pub(super) struct LabelHead {
    activation: Activation,
    categories: Vec<Option<Category>>,
    token_types: bool,
}

impl LabelHead {
    /// Compares the graph with its contract.
    pub(super) fn new(spec: &LabelsSpec, session: &Session) -> Result<Self, RuntimeError> {
        let inputs: Vec<&str> = session.inputs().iter().map(Outlet::name).collect();
        let known = ["input_ids", "attention_mask", "token_type_ids"];
        if !known[..2].iter().all(|name| inputs.contains(name)) || !inputs.iter().all(|name| known.contains(name)) {
            return Err(RuntimeError::Load(format!(
                "its inputs are {}; a sequence classifier takes input_ids, attention_mask and perhaps token_type_ids",
                inputs.join(", ")
            )));
        }
        match session.outputs().iter().find(|output| output.name() == "logits").map(Outlet::dtype) {
            Some(ValueType::Tensor { ty: TensorElementType::Float32, .. }) => {}
            Some(other) => {
                return Err(RuntimeError::Load(format!(
                    "its logits are {other} and not a float32 tensor; export the model in float32"
                )));
            }
            None => {
                return Err(RuntimeError::Load("it has no output named logits, as a sequence classifier has".into()));
            }
        }
        Ok(Self {
            activation: spec.activation,
            categories: spec.order.iter().map(|label| label.category).collect(),
            token_types: inputs.contains(&"token_type_ids"),
        })
    }

    /// One logit a category, for each row.
    pub(super) fn run(&self, session: &mut Session, windows: Padded) -> Result<Vec<[f32; 5]>, RuntimeError> {
        let Padded { rows, tokens, ids, lengths } = windows;
        let shape = [rows, tokens];
        let mask: Vec<i64> =
            lengths.iter().flat_map(|&length| (0..tokens).map(move |place| i64::from(place < length))).collect();
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = ort::inputs![
            "input_ids" => Tensor::from_array((shape, ids))?,
            "attention_mask" => Tensor::from_array((shape, mask))?,
        ];
        if self.token_types {
            let first = vec![0_i64; rows * tokens];
            inputs.push(("token_type_ids".into(), Tensor::from_array((shape, first))?.into()));
        }
        let outputs = session.run(inputs)?;
        let logits = outputs.get("logits").ok_or_else(|| RuntimeError::Shape("no output logits".into()))?;
        let (shape, logits) = logits.try_extract_tensor::<f32>()?;
        let labels = self.categories.len();
        if shape.len() != 2 || logits.len() != rows * labels {
            return Err(RuntimeError::Shape(format!("logits {shape:?} for {rows} windows and {labels} labels")));
        }
        Ok(finite(logits)?.chunks(labels).map(|row| self.harm(row)).collect())
    }

    /// Of labels that do not exclude one another the likeliest of a category counts, of others their sum. A category
    /// without a label has the logit of probability 0.
    fn harm(&self, row: &[f32]) -> [f32; 5] {
        Category::ALL.map(|category| {
            let labelled = || row.iter().copied().zip(&self.categories);
            let mine = labelled().filter(|(_, label)| **label == Some(category)).map(|(logit, _)| logit);
            match self.activation {
                Activation::Sigmoid => mine.fold(f32::NEG_INFINITY, f32::max),
                Activation::Softmax => {
                    let others = labelled().filter(|(_, label)| **label != Some(category)).map(|(logit, _)| logit);
                    match (log_sum(mine), log_sum(others)) {
                        (f32::NEG_INFINITY, _) => f32::NEG_INFINITY,
                        // log(p / (1 - p)): the common denominator falls out.
                        (mine, others) => mine - others,
                    }
                }
            }
        })
    }
}

/// log Σ e^x, which is −∞ of nothing.
fn log_sum(logits: impl Iterator<Item = f32> + Clone) -> f32 {
    let highest = logits.clone().fold(f32::NEG_INFINITY, f32::max);
    if highest == f32::NEG_INFINITY {
        return highest;
    }
    highest + logits.map(|logit| (logit - highest).exp()).sum::<f32>().ln()
}

#[cfg(test)]
mod tests {
    use super::{super::sigmoid, *};

    fn probabilities(activation: Activation, categories: &[Option<Category>], row: &[f32]) -> [f32; 5] {
        LabelHead { activation, categories: categories.to_vec(), token_types: false }.harm(row).map(sigmoid)
    }

    fn close(found: [f32; 5], expected: [f32; 5]) {
        assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-5), "{found:?} is not {expected:?}");
    }

    #[test]
    fn the_likeliest_of_independent_labels_counts() {
        let labels = [Some(Category::Hate), None, Some(Category::Hate), Some(Category::Violence)];
        let found = probabilities(Activation::Sigmoid, &labels, &[-1.0, 9.0, 2.0, 0.0]);
        close(found, [0.0, sigmoid(2.0), 0.0, 0.5, 0.0]);
    }

    #[test]
    fn labels_that_exclude_one_another_add_up() {
        let row = [0.2_f32, 0.5, 0.1, 0.2].map(f32::ln);
        let labels = [Some(Category::Hate), None, Some(Category::Hate), Some(Category::Sexual)];
        close(probabilities(Activation::Softmax, &labels, &row), [0.2, 0.3, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn large_logits_stay_numbers() {
        let labels = [Some(Category::Violence), None];
        close(probabilities(Activation::Softmax, &labels, &[900.0, -900.0]), [0.0, 0.0, 0.0, 1.0, 0.0]);
        close(probabilities(Activation::Softmax, &labels, &[-900.0, 900.0]), [0.0; 5]);
        close(
            probabilities(Activation::Softmax, &[Some(Category::Violence); 2], &[1.0, 2.0]),
            [0.0, 0.0, 0.0, 1.0, 0.0],
        );
    }
}
