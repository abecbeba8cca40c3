//! Everyday situations that texts tell of, and the replies that people wrote beforehand for texts of each.
//!
//! A small model that hardly knows a language garbles what it writes in it; what a text is about it tells far better. So a reply
//! is chosen there, not made: one that is true of any text of the situation, or of those that have certain words.

use super::{Attitudes, Language};

/// What was written for the texts of one situation in one language.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentences {
    /// Replies, each one sentence.
    pub reply: Vec<String>,
    /// Replies for texts of the situation that have certain words.
    pub particular: Vec<Particular>,
}

/// A reply that names more than the situation: a raise, a driving test, a fever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Particular {
    /// Words or phrases, of which a text must have one.
    pub words: Vec<String>,
    /// One sentence.
    pub reply: String,
}

/// All that was written, by language and situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Situations {
    /// How probable a situation must be for its sentences to count at all.
    pub least: f32,
    /// For each language that has any, the sentences of every situation, in the order in which a judge tells them.
    pub written: Vec<(Language, Vec<Sentences>)>,
    /// For each language that has any, the sentences that are chosen one by one.
    pub attitudes: Vec<(Language, Attitudes)>,
}

impl Situations {
    /// What was written for the situation of this number; none where it is not probable enough, or nothing was written in the
    /// language.
    pub fn sentences(&self, language: Language, situation: Likeliest) -> Option<&Sentences> {
        let Likeliest { place, probability } = situation;
        let (_, all) = self.written.iter().find(|(one, _)| *one == language)?;
        // What is not a number is no sign of anything.
        all.get(place).filter(|_| probability >= self.least)
    }

    /// The sentences of a language that are chosen one by one; none where there are none.
    pub fn attitudes(&self, language: Language) -> Option<&Attitudes> {
        self.attitudes.iter().find_map(|(one, attitudes)| (*one == language).then_some(attitudes))
    }
}

/// The situation that a text most likely tells of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeliest {
    /// Its place among all.
    pub place: usize,
    /// From 0 to 1.
    pub probability: f32,
}

impl Likeliest {
    /// By the logits of all situations; none where there are none.
    pub fn of_logits(logits: &[f32]) -> Option<Self> {
        let (place, highest) = logits.iter().copied().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let all: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
        Some(Self { place, probability: 1.0 / all })
    }
}

impl Sentences {
    /// The replies that name what a text speaks of.
    pub fn particular(&self, text: &str) -> Vec<&str> {
        let said = plain(text);
        let speaks = |one: &&Particular| one.words.iter().any(|words| said.contains(&plain(words)));
        self.particular.iter().filter(speaks).map(|one| one.reply.as_str()).collect()
    }
}

/// Lower-case words between single blanks, so that a phrase is found as a part of it.
fn plain(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|sign: char| !sign.is_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |told, word| told + word + " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_names_more_is_for_texts_that_speak_of_it() {
        let named = |words: &[&str], reply: &str| Particular {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            reply: reply.into(),
        };
        let sentences = Sentences {
            particular: vec![named(&["raise", "pay rise"], "A raise!"), named(&["by-election"], "An election!")],
            ..Sentences::default()
        };
        let particular = |text| sentences.particular(text);
        assert_eq!(particular("Got my RAISE, finally"), ["A raise!"]);
        assert_eq!(particular("A pay-rise at last!"), ["A raise!"]);
        assert_eq!(particular("We won the by-election."), ["An election!"]);
        assert_eq!(particular("They praised me, and I was raised here"), [""; 0]);
    }

    #[test]
    fn sentences_are_of_the_likeliest_situation_where_that_is_sure_enough() {
        let said = |words: &str| Sentences { reply: vec![words.into()], ..Sentences::default() };
        let written = vec![(Language::German, vec![said("Glückwunsch!"), said("Schade.")])];
        let situations = Situations { least: 0.6, written, attitudes: Vec::new() };
        let reply = |logits: &[f32], language| {
            let found = situations.sentences(language, Likeliest::of_logits(logits)?)?;
            found.reply.first().map(String::as_str)
        };
        assert_eq!(reply(&[0.0, 3.0], Language::German), Some("Schade."));
        assert_eq!(reply(&[3.0, 0.0], Language::German), Some("Glückwunsch!"));
        assert_eq!(reply(&[0.1, 0.2], Language::German), None, "neither is sure");
        assert_eq!(reply(&[0.0, 3.0], Language::French), None);
        assert_eq!(reply(&[0.0, f32::NAN], Language::German), None);
        assert_eq!(reply(&[], Language::German), None);
        // More classes than were written for.
        assert_eq!(reply(&[0.0, 0.0, 9.0], Language::German), None);
    }
}
