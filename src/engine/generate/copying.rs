//! Help for models that say a text over again and slip: the word with which the text goes on is made likelier. Pure.

/// Tokens at the end of an answer that the text must hold for its next one to be favoured; of an answer that has no more,
/// all of it.
const LEAST: usize = 2;

/// Which text an answer says over, and how strongly it is held to that.
#[derive(Clone, Debug, PartialEq)]
pub struct Copying {
    /// The tokens of the text, each with whether it is of a word: what ends a sentence is never favoured, as an answer that
    /// adds something to the text goes on there.
    pub text: Vec<(u32, bool)>,
    /// Nats that are added to the logit of the token that follows in the text.
    pub bonus: f32,
}

impl Copying {
    /// The token with which the text goes on where it holds the longest end of `answer`, of equals the last.
    pub(super) fn next(&self, answer: &[u32]) -> Option<u32> {
        let shared = |end: usize| {
            let before = self.text.iter().take(end).rev().map(|(token, _)| token);
            before.zip(answer.iter().rev()).take_while(|(ours, theirs)| ours == theirs).count()
        };
        let (length, end) = (1..self.text.len()).map(|end| (shared(end), end)).max()?;
        let whole = length == answer.len() && length == end && length > 0;
        let &(token, word) = self.text.get(end)?;
        (word && (length >= LEAST || whole)).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_goes_on_behind_the_longest_end_of_the_answer_that_it_holds() {
        let text = [1, 2, 3, 9, 2, 3, 4, 5].map(|token| (token, token != 9)).to_vec();
        let copying = Copying { text, bonus: 1.0 };
        for (answer, next) in [
            (&[1, 2][..], Some(3)),
            (&[1, 2, 3], None),
            (&[7, 2, 3], Some(4)),
            (&[9, 2, 3], Some(4)),
            (&[1], Some(2)),
            (&[3], None),
            (&[8, 4], None),
            (&[4, 5], None),
            (&[], None),
        ] {
            assert_eq!(copying.next(answer), next, "{answer:?}");
        }
        assert_eq!(Copying { text: Vec::new(), bonus: 1.0 }.next(&[1, 2]), None);
    }
}
