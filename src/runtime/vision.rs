//! The image classifier: resized pixels to what is seen in them.
//!
//! The sexual score follows from class probabilities. Scores of further categories come calibrated from heads within
//! the graph; a manifest that names none leaves those categories to the text that is read.

use std::sync::Arc;

use ort::{session::Session, value::Tensor};

use super::{Forward, Runtime, RuntimeError, finite, sigmoid};
use crate::{
    domain::Seen,
    registry::{Bundle, manifest::ImageClassifierSpec},
};

/// A picture as the graph wants it: RGB in 0..1, `[size, size, 3]`.
#[derive(Clone, Debug)]
pub struct Pixels(pub Arc<[f32]>);

/// A session of the classifier graph: `pixels` float32 `[batch, size, size, 3]` → `probabilities` `[batch, 5]`, and
/// where the manifest names heads, `scores_extra` `[batch, heads]`.
pub struct ImageClassifier {
    session: Session,
    spec: ImageClassifierSpec,
}

impl ImageClassifier {
    /// Opens the graph of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no image classifier or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .image_classifier
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no image classifier".into()))?;
        Ok(Self { session: runtime.open(&bundle.graph())?, spec })
    }

    /// Class probabilities of each picture, in the order of the manifest.
    ///
    /// # Errors
    /// [`RuntimeError`] fails the whole batch.
    pub fn probabilities(&mut self, batch: &[Pixels]) -> Result<Vec<[f32; 5]>, RuntimeError> {
        Ok(self.answers(batch)?.0)
    }

    /// Of each picture, the class probabilities, and of all pictures in turn, the scores of the heads.
    fn answers(&mut self, batch: &[Pixels]) -> Result<(Vec<[f32; 5]>, Vec<f32>), RuntimeError> {
        let side = usize::try_from(self.spec.size).unwrap_or(0);
        let mut pixels = Vec::with_capacity(batch.len() * side * side * 3);
        for Pixels(picture) in batch {
            if picture.len() != side * side * 3 {
                return Err(RuntimeError::Shape(format!("{} values for a side of {side}", picture.len())));
            }
            pixels.extend_from_slice(picture);
        }
        let outputs = self.session.run(ort::inputs![
            "pixels" => Tensor::from_array(([batch.len(), side, side, 3], pixels))?,
        ])?;
        let output = outputs.get("probabilities").ok_or_else(|| RuntimeError::Shape("no probabilities".into()))?;
        let (_, values) = output.try_extract_tensor::<f32>()?;
        let answers: Vec<[f32; 5]> = finite(values)?.chunks(5).filter_map(|row| row.try_into().ok()).collect();
        if answers.len() != batch.len() {
            return Err(RuntimeError::Shape(format!("{} probabilities for {} pictures", values.len(), batch.len())));
        }
        if self.spec.heads.is_empty() {
            return Ok((answers, Vec::new()));
        }
        let output = outputs.get("scores_extra").ok_or_else(|| RuntimeError::Shape("no scores_extra".into()))?;
        let (_, scores) = output.try_extract_tensor::<f32>()?;
        if scores.len() != batch.len() * self.spec.heads.len() {
            return Err(RuntimeError::Shape(format!("{} scores of heads for {} pictures", scores.len(), batch.len())));
        }
        Ok((answers, finite(scores)?.to_vec()))
    }

    fn sexual(&self, probabilities: [f32; 5]) -> f32 {
        let spec = &self.spec.sexual;
        let mass: f32 = self
            .spec
            .classes
            .iter()
            .zip(probabilities)
            .filter_map(|(class, probability)| spec.weights.get(class).map(|weight| weight * probability))
            .sum();
        // Keeps the logit finite for a certain yes or no.
        let mass = mass.clamp(1e-6, 1.0 - 1e-6);
        sigmoid(spec.scale * (mass / (1.0 - mass)).ln() + spec.bias)
    }
}

impl Forward for ImageClassifier {
    type Input = Pixels;
    /// The calibrated scores.
    type Output = Seen;

    fn cost(_: &Pixels) -> usize {
        1
    }

    fn run(&mut self, batch: &[Pixels]) -> Result<Vec<Seen>, RuntimeError> {
        let (answers, scores) = self.answers(batch)?;
        let heads = &self.spec.heads;
        let seen = answers.into_iter().enumerate().map(|(n, probabilities)| {
            let scores = scores.iter().skip(n * heads.len());
            let sexual = Seen::new(self.sexual(probabilities));
            heads.iter().zip(scores).fold(sexual, |seen, (&head, &score)| seen.with(head, score))
        });
        Ok(seen.collect())
    }
}
