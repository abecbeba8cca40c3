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

    /// Picks the class from probabilities in the order of [`Self::ALL`].
    ///
    /// A text counts as special only when everything but "statement" together reaches `threshold`: refusing to
    /// express an ordinary text costs a user more than expressing an interjection.
    pub fn decide(probabilities: [f32; 5], threshold: f32) -> Self {
        let [statement, special @ ..] = probabilities;
        if 1.0 - statement < threshold || statement.is_nan() {
            return Self::Statement;
        }
        let likeliest = special.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
        match likeliest {
            0 => Self::Acknowledgement,
            1 => Self::Agreement,
            2 => Self::Meaningless,
            _ => Self::Formula,
        }
    }
}

/// What a person in distress is answered: written with care beforehand, never generated. A small model may praise
/// the thought or agree with it, and moderation of its output cannot be relied on to notice.
pub mod care {
    use super::Prism;
    use crate::domain::{Category, Scores};

    /// The self-harm score from which a text is taken for distress. Below the operating point of moderation, because
    /// a caring answer to a harmless text costs less than a cheerful one to a person in danger.
    pub const THRESHOLD: f64 = 0.3;

    /// The reply.
    pub const REPLY: &str = "What you are carrying sounds very heavy, and you do not have to carry it alone: please \
                             tell someone you trust today, or call your local crisis line.";
    /// The positive expression: hope, without cheer.
    pub const POSITIVE: &str = "This is a very hard moment, and saying so is a first step towards help.";
    /// The negative expression: sober, without any encouragement.
    pub const NEGATIVE: &str = "This is a very hard moment, too heavy to be left alone with.";

    /// Whether a text with these scores is answered with care instead of being expressed.
    pub fn is_due(scores: Scores) -> bool {
        scores.get(Category::SelfHarm) >= THRESHOLD
    }

    /// Both expressions.
    pub fn prism() -> Prism {
        Prism::Expressed { positive: POSITIVE.into(), negative: NEGATIVE.into() }
    }
}

/// What harmful input is answered where nothing may be generated, or nothing was that may be given out: it names what
/// was said without saying it again. A small model would rather carry the harm on.
pub mod sober {
    use super::Prism;
    use crate::domain::{Category, Scores};

    /// The score of any category but self-harm from which nothing is generated. Above the operating point of
    /// moderation: a text that is flagged by mistake is better expressed than called harsh.
    pub const THRESHOLD: f64 = 0.8;

    /// Whether a text with these scores is answered soberly instead of being expressed.
    pub fn is_due(scores: Scores) -> bool {
        Category::ALL.into_iter().any(|category| category != Category::SelfHarm && scores.get(category) >= THRESHOLD)
    }

    /// The reply.
    pub const REPLY: &str = "That is a strong feeling, and a moment's pause can help you find words for it that you \
                             will still stand by tomorrow.";
    /// The positive expression.
    pub const POSITIVE: &str = "There is a strong feeling in these words, and it can also be said with respect.";
    /// The negative expression.
    pub const NEGATIVE: &str = "These words are harsh and could hurt the people they speak of.";

    /// Both expressions.
    pub fn prism() -> Prism {
        Prism::Expressed { positive: POSITIVE.into(), negative: NEGATIVE.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_guards_ordinary_texts() {
        let probabilities = [0.4, 0.05, 0.05, 0.1, 0.4];
        assert_eq!(Expressibility::decide(probabilities, 0.5), Expressibility::Formula);
        assert_eq!(Expressibility::decide(probabilities, 0.7), Expressibility::Statement);
    }

    #[test]
    fn each_class_is_reached() {
        for (at, class) in Expressibility::ALL.into_iter().enumerate() {
            let mut probabilities = [0.0; 5];
            probabilities[at] = 1.0;
            assert_eq!(Expressibility::decide(probabilities, 0.5), class);
        }
    }

    #[test]
    fn a_broken_score_never_hides_a_text() {
        assert_eq!(Expressibility::decide([f32::NAN; 5], 0.5), Expressibility::Statement);
    }
}
