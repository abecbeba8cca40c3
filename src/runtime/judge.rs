//! The judge of answers: a text with an answer to it, or a text alone, to what is held of it.

use ort::session::Session;

use super::{Forward, Runtime, RuntimeError, Window, classifier::softmax, finite, padded::Padded, sigmoid};
use crate::{
    domain::Likeliest,
    registry::{Bundle, manifest::VERDICTS},
};

/// What the judge says of one sequence, as far as it has a head for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// How right an answer is, or the mood of a text.
    pub verdict: Option<Verdict>,
    /// Of a text alone: probabilities in the order of `Expressibility::ALL`, summing to 1.
    pub expressibility: Option<[f32; 5]>,
    /// Of a text alone: the everyday situation that it most likely tells of.
    pub situation: Option<Likeliest>,
    /// Of a text alone: how likely each sentence that is chosen one by one fits, each for itself.
    pub attitudes: Option<Vec<f32>>,
}

/// Each part has a meaning for its own kind of sequence alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Of a text with an answer: how likely a reader finds that right as its positive expression, its negative one, and as
    /// the reply to it.
    pub right: [f32; 3],
    /// Of a text alone: the logits of good news, bad news and neither.
    pub mood: [f32; 3],
}

/// A session of the judge's graph: `input_ids` int64 `[batch, tokens]`, `lengths` int32 `[batch]` → float32 logits, an output
/// for each head that it has: `verdict` `[batch, 6]`, in the order of [`VERDICTS`], `expressibility` `[batch, 5]`, `situation`
/// `[batch, situations]`, `attitude` `[batch, attitudes and replies]`.
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
        // What a manifest promises and a graph lacks would never be told, and nobody would see it.
        let (verdicts, written) = (spec.verdicts.is_some(), spec.situations.is_some());
        for (name, promised) in [("verdict", verdicts), ("attitude", written)] {
            if session.outputs().iter().any(|output| output.name() == name) != promised {
                return Err(RuntimeError::Load(format!("its output {name} is not as its manifest says")));
            }
        }
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
        // Of each head the logits, those of a sequence after those of another.
        let head = |name: &str| -> Result<Vec<&[f32]>, RuntimeError> {
            let Some(output) = outputs.get(name) else { return Ok(Vec::new()) };
            let logits = finite(output.try_extract_tensor::<f32>()?.1)?;
            let wide = logits.len() / batch.len().max(1);
            if wide == 0 || wide * batch.len() != logits.len() {
                return Err(RuntimeError::Shape(format!(
                    "{} logits of {name} for {} sequences",
                    logits.len(),
                    batch.len()
                )));
            }
            Ok(logits.chunks_exact(wide).collect())
        };
        let (verdicts, kinds, situations) = (head("verdict")?, head("expressibility")?, head("situation")?);
        let attitudes = head("attitude")?;
        let misshapen = |name: &str| RuntimeError::Shape(format!("an output {name} of another width"));
        let said = |row: usize| {
            let verdict = verdicts.get(row).map(|&logits| <[f32; VERDICTS.len()]>::try_from(logits)).transpose();
            let verdict = verdict.map_err(|_| misshapen("verdict"))?;
            let kinds = kinds.get(row).map(|&logits| <[f32; 5]>::try_from(logits)).transpose();
            Ok(Said {
                verdict: verdict.map(|[positive, negative, reply, good, bad, plain]| Verdict {
                    right: [positive, negative, reply].map(sigmoid),
                    mood: [good, bad, plain],
                }),
                expressibility: kinds.map_err(|_| misshapen("expressibility"))?.map(softmax),
                situation: situations.get(row).and_then(|logits| Likeliest::of_logits(logits)),
                attitudes: attitudes.get(row).map(|logits| logits.iter().copied().map(sigmoid).collect()),
            })
        };
        (0..batch.len()).map(said).collect()
    }
}
