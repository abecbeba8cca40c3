//! Guesses at the next tokens of an answer: answers repeat words of their prompt. Pure.
//!
//! Prompt lookup (Saxena 2023, "Prompt Lookup Decoding"), a draft for speculative decoding (Leviathan, Kalman, Matias
//! 2023) that needs no second model.

/// How far guesses go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Most live sequences for which guesses are made, where one pass verifies those of all: the more they are, the
    /// less is left to gain. Elsewhere one, as each one's would take a pass of its own, while without guesses all share
    /// a step.
    pub rows: usize,
    /// Most tokens guessed at once.
    pub tokens: usize,
    /// Whether to guess also where verifying rounds otherwise than a step does, so that an answer may depend on company.
    pub anyway: bool,
}

/// Tokens at the end of an answer that are looked for in the prompt, the more telling first.
const TAILS: [usize; 2] = [3, 2];

/// What followed the end of `answer` where the prompt holds it last; at most `most` tokens, none where it does not.
pub(super) fn guess<'a>(prompt: &'a [u32], answer: &[u32], most: usize) -> &'a [u32] {
    let after = |tail: &[u32]| {
        let holds = |end: &usize| prompt.get(..*end).is_some_and(|before| before.ends_with(tail));
        let end = (tail.len()..prompt.len()).rev().find(holds)?;
        prompt.get(end..(end + most).min(prompt.len()))
    };
    let mut tails = TAILS.into_iter().filter_map(|length| answer.get(answer.len().checked_sub(length)?..));
    tails.find_map(after).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_same_words_is_guessed() {
        let prompt = [1, 2, 3, 4, 5, 6, 9, 3, 4, 7];
        assert_eq!(guess(&prompt, &[8, 2, 3, 4], 2), [5, 6], "three tokens tell more than two");
        assert_eq!(guess(&prompt, &[8, 3, 4], 3), [7], "of equals the last, and not beyond the prompt");
        assert_eq!(guess(&prompt, &[1, 2], 4), [3, 4, 5, 6]);
        for (answer, most) in [(&[4_u32][..], 4), (&[], 4), (&[2, 4], 4), (&[4, 7], 4), (&[1, 2], 0)] {
            assert_eq!(guess(&prompt, answer, most), [0_u32; 0], "{answer:?}");
        }
    }
}
