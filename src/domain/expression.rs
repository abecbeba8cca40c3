//! Expressions and replies: what is asked of a generator, and when nothing can be expressed.

/// What a generator is asked to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// The text said in a positive light.
    Positive,
    /// The text said in a negative light.
    Negative,
}

/// The outcome of a dual expression.
#[derive(Clone, PartialEq, Eq)]
pub enum Prism {
    /// Both expressions of the text.
    Expressed {
        /// The positive expression.
        positive: String,
        /// The negative expression.
        negative: String,
    },
    /// The text has nothing to express both ways; on the wire both fields are the string `"false"`.
    Inexpressible,
}

/// How sure one classifier may be of it: one that is all too sure must not outvote the others.
const SUREST: f32 = 1e-4;

/// What kind of text this is, as far as expressing it two ways is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expressibility {
    /// Something that can be said in a positive and in a negative light.
    Statement,
    /// An acknowledgement or interjection.
    Acknowledgement,
    /// A clear agreement or answer.
    Agreement,
    /// Nothing that has a meaning.
    Meaningless,
    /// A mathematical formula.
    Formula,
}

impl Expressibility {
    /// The classes in the order of the classifier's head.
    pub const ALL: [Self; 5] =
        [Self::Statement, Self::Acknowledgement, Self::Agreement, Self::Meaningless, Self::Formula];

    /// The class as it is named in manifests and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Statement => "statement",
            Self::Acknowledgement => "acknowledgement",
            Self::Agreement => "agreement",
            Self::Meaningless => "meaningless",
            Self::Formula => "formula",
        }
    }

    /// How far a classifier holds a text for one of the special classes: the log-odds of all of them together, less those
    /// of `threshold`, so that those of several classifiers can be averaged. Special from 0 on.
    ///
    /// `probabilities` are in the order of [`Self::ALL`]. What is not a number speaks for a statement: refusing to express an
    /// ordinary text costs a user more than expressing an interjection.
    pub fn lean([statement, ..]: [f32; 5], threshold: f32) -> f32 {
        let odds = |special: f32| {
            let held = special.clamp(SUREST, 1.0 - SUREST);
            (held / (1.0 - held)).ln()
        };
        let lean = odds(1.0 - statement) - odds(threshold);
        if lean.is_nan() { f32::NEG_INFINITY } else { lean }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_guards_ordinary_texts() {
        let probabilities = [0.4, 0.05, 0.05, 0.1, 0.4];
        assert!(Expressibility::lean(probabilities, 0.5) > 0.0);
        assert!(Expressibility::lean(probabilities, 0.7) < 0.0);
        assert!(Expressibility::lean([0.5, 0.5, 0.0, 0.0, 0.0], 0.5) >= 0.0, "at the threshold a text is special");
    }

    #[test]
    fn one_that_is_sure_beyond_measure_is_one_voice_yet() {
        let sure = Expressibility::lean([0.0, 0.0, 0.0, 0.0, 1.0], 0.5);
        let others = Expressibility::lean([0.999_99, 0.000_01, 0.0, 0.0, 0.0], 0.6);
        assert!(sure.is_finite() && sure + others < 0.0);
    }

    #[test]
    fn a_broken_score_never_hides_a_text() {
        assert!(Expressibility::lean([f32::NAN; 5], 0.5) < 0.0);
    }
}
