//! The judge of answers: a text with an answer to it, or a text alone, to what is held of it.

use ort::session::Session;

use super::{Forward, Runtime, RuntimeError, Window, classifier::softmax, finite, padded::Padded, sigmoid};
use crate::registry::{Bundle, manifest::VERDICTS};

/// What the judge says of one sequence. Each part has a meaning for its own kind of sequence alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Of a text with an answer: how likely a reader finds that right as its positive expression, its negative one, and as
    /// the reply to it.
    pub right: [f32; 3],
    /// Of a text alone: the logits of good news, bad news and neither.
    pub mood: [f32; 3],
    /// Of a text alone: probabilities in the order of `Expressibility::ALL`, summing to 1, where the judge has a head for it.
    pub expressibility: Option<[f32; 5]>,
}

/// A session of the judge's graph: `input_ids` int64 `[batch, tokens]`, `lengths` int32 `[batch]` → `verdict` float32 logits
/// `[batch, 6]`, in the order of [`VERDICTS`], and `expressibility` `[batch, 5]` where the judge has that head.
pub struct AnswerJudge {
    session: Session,
    pad_id: u32,
}

impl AnswerJudge {
    /// Opens the graph of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no judge of answers or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = bundle.manifest().answer_judge.as_ref();
        let spec = spec.ok_or_else(|| RuntimeError::Load("the bundle is no judge of answers".into()))?;
        let (session, _) = runtime.open_classifier(&bundle.graph(), 1, 0)?;
        Ok(Self { session, pad_id: spec.pad_id })
    }
}

impl Forward for AnswerJudge {
    type Input = Window;
    type Output = Said;

    const TAKES_TOKENS: bool = true;

    fn cost(input: &Window) -> usize {
        input.0.len()
    }

    fn run(&mut self, batch: &[Window]) -> Result<Vec<Said>, RuntimeError> {
        let outputs = self.session.run(Padded::of(batch, self.pad_id).into_inputs()?)?;
        let verdict = outputs.get("verdict").ok_or_else(|| RuntimeError::Shape("no output verdict".into()))?;
        let (_, logits) = verdict.try_extract_tensor::<f32>()?;
        let (rows, rest) = finite(logits)?.as_chunks::<{ VERDICTS.len() }>();
        if rows.len() != batch.len() || !rest.is_empty() {
            return Err(RuntimeError::Shape(format!("{} verdicts for {} sequences", logits.len(), batch.len())));
        }
        let kinds = match outputs.get("expressibility") {
            Some(output) => Some(finite(output.try_extract_tensor::<f32>()?.1)?.as_chunks::<5>().0),
            None => None,
        };
        if let Some(kinds) = kinds.filter(|kinds| kinds.len() != batch.len()) {
            return Err(RuntimeError::Shape(format!("{} kinds for {} sequences", kinds.len(), batch.len())));
        }
        let said = |(row, &[positive, negative, reply, good, bad, plain]): (usize, &[f32; 6])| Said {
            right: [positive, negative, reply].map(sigmoid),
            mood: [good, bad, plain],
            expressibility: kinds.and_then(|kinds| kinds.get(row).copied()).map(softmax),
        };
        Ok(rows.iter().enumerate().map(said).collect())
    }
}
