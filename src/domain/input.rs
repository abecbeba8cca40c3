//! The input of a moderation request that may hold several texts and pictures.

use super::{Finding, ImageBytes, Judged, Modality, Threshold, text};

/// Most texts, or parts, in one input.
pub const MAX_ITEMS: usize = 32;

/// Most Unicode scalar values in all texts of an input together: what as many single texts could hold.
pub const MAX_CHARACTERS: usize = MAX_ITEMS * text::MAX_CHARACTERS;

/// A piece of an input.
#[derive(Clone, PartialEq, Eq)]
pub enum Part {
    /// A text, as it came.
    Text(String),
    /// A picture.
    Image(ImageBytes),
}

impl Part {
    /// What kind of content it is.
    pub const fn modality(&self) -> Modality {
        match self {
            Self::Text(_) => Modality::Text,
            Self::Image(_) => Modality::Image,
        }
    }
}

/// What becomes of the parts of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each is judged for itself.
    Each,
    /// Together they are one thing.
    Together,
}

impl Grouping {
    /// One finding for each group, in the order of the parts.
    pub fn findings(self, parts: &[Judged], threshold: Threshold) -> Vec<Finding> {
        let size = match self {
            Self::Each => 1,
            Self::Together => parts.len().max(1),
        };
        parts.chunks(size).map(|group| Finding::of(group, threshold)).collect()
    }
}

/// 1 to [`MAX_ITEMS`] parts whose texts are not blank and together at most [`MAX_CHARACTERS`] long. Holding one is the
/// proof.
#[derive(Clone, PartialEq, Eq)]
pub struct ModerationInput {
    parts: Vec<Part>,
    grouping: Grouping,
}

/// Why parts are no [`ModerationInput`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// There is none.
    #[error("input must hold at least one item")]
    Empty,
    /// More than [`MAX_ITEMS`].
    #[error("input must hold at most {MAX_ITEMS} items")]
    TooMany,
    /// A text is empty, or nothing but white space.
    #[error("each text of input must hold at least one character that is not white space")]
    TextBlank,
    /// The texts together have more than [`MAX_CHARACTERS`] Unicode scalar values.
    #[error("the texts of input must be at most {MAX_CHARACTERS} characters together")]
    TextTooLong,
}

impl ModerationInput {
    /// Checks `parts`.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn new(parts: Vec<Part>, grouping: Grouping) -> Result<Self, InputError> {
        match parts.len() {
            0 => return Err(InputError::Empty),
            1..=MAX_ITEMS => {}
            _ => return Err(InputError::TooMany),
        }
        let mut left = MAX_CHARACTERS;
        for part in &parts {
            let Part::Text(text) = part else { continue };
            // No more is counted than may come.
            let characters = text.chars().take(left + 1).count();
            left = left.checked_sub(characters).ok_or(InputError::TextTooLong)?;
            if text.chars().all(char::is_whitespace) {
                return Err(InputError::TextBlank);
            }
        }
        Ok(Self { parts, grouping })
    }

    /// The parts, and what becomes of them.
    pub fn into_parts(self) -> (Vec<Part>, Grouping) {
        (self.parts, self.grouping)
    }
}

/// Shows the number of parts only: what a user sent must not reach a log by way of a debug print.
impl std::fmt::Debug for ModerationInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModerationInput({} parts)", self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Result<ModerationInput, InputError> {
        ModerationInput::new(texts.iter().map(|text| Part::Text((*text).to_owned())).collect(), Grouping::Each)
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        assert_eq!(texts(&[]), Err(InputError::Empty));
        assert!(texts(&["a"; 32]).is_ok());
        assert_eq!(texts(&["a"; 33]), Err(InputError::TooMany));
    }

    #[test]
    fn characters_are_scalar_values_and_counted_together() {
        assert!(texts(&[&"\u{1f600}".repeat(16_000)]).is_ok());
        assert_eq!(texts(&[&"a".repeat(16_001)]), Err(InputError::TextTooLong));
        assert!(texts(&[&"a".repeat(15_998), "b", "c"]).is_ok());
        assert_eq!(texts(&[&"a".repeat(15_999), "b", "c"]), Err(InputError::TextTooLong));
    }

    #[test]
    fn no_text_may_be_blank() {
        for blank in ["", " ", "\n\t", "\u{2003}\u{3000}"] {
            assert_eq!(texts(&["a", blank]), Err(InputError::TextBlank), "{blank:?}");
        }
    }

    #[test]
    fn debug_output_hides_the_texts() {
        assert_eq!(format!("{:?}", texts(&["my secret"]).unwrap()), "ModerationInput(1 parts)");
    }
}
