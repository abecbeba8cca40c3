//! Texts that passed validation.

/// Longest accepted text, in Unicode scalar values (neither bytes nor UTF-16 units).
pub const MAX_CHARACTERS: usize = 500;

/// A text of 1 to [`MAX_CHARACTERS`] characters that is not only white space. Holding one is the proof.
///
/// The text is kept as it came: nothing is trimmed or normalised here.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ValidText(String);

/// Why a string is no [`ValidText`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Empty, or nothing but white space.
    #[error("text must hold at least one character that is not white space")]
    Blank,
    /// More than [`MAX_CHARACTERS`] Unicode scalar values.
    #[error("text must be at most {MAX_CHARACTERS} characters")]
    TooLong,
}

impl ValidText {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`TextError`] for a blank or an overlong text.
    pub fn new(text: String) -> Result<Self, TextError> {
        // A scalar value takes at most four bytes, so most overlong texts are refused without counting.
        if text.len() > MAX_CHARACTERS * 4 || text.chars().nth(MAX_CHARACTERS).is_some() {
            return Err(TextError::TooLong);
        }
        if text.chars().all(char::is_whitespace) {
            return Err(TextError::Blank);
        }
        Ok(Self(text))
    }

    /// The text as it came.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Length in Unicode scalar values.
    pub fn characters(&self) -> usize {
        self.0.chars().count()
    }
}

/// Shows the length only: a user's text must not reach a log by way of a debug print.
impl std::fmt::Debug for ValidText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValidText({} characters)", self.characters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_scalar_values_not_bytes_or_utf16_units() {
        assert!(ValidText::new("😀".repeat(500)).is_ok());
        assert_eq!(ValidText::new("😀".repeat(501)), Err(TextError::TooLong));
        assert!(ValidText::new("a".repeat(500)).is_ok());
        assert_eq!(ValidText::new("a".repeat(501)), Err(TextError::TooLong));
    }

    #[test]
    fn refuses_blank_texts_and_keeps_the_rest_untrimmed() {
        for blank in ["", " ", "\n\t", "\u{2003}\u{3000}"] {
            assert_eq!(ValidText::new(blank.into()), Err(TextError::Blank), "{blank:?}");
        }
        assert_eq!(ValidText::new(" a ".into()).unwrap().as_str(), " a ");
    }

    #[test]
    fn a_long_blank_text_is_too_long() {
        assert_eq!(ValidText::new(" ".repeat(501)), Err(TextError::TooLong));
    }

    #[test]
    fn debug_output_hides_the_text() {
        let text = ValidText::new("my secret".into()).unwrap();
        assert!(!format!("{text:?}").contains("secret"));
    }
}
