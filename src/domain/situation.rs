//! Everyday situations that texts tell of, and replies that people wrote beforehand for texts of each that have certain words.
//!
//! Such a reply names what the text speaks of, which those that fit many a text do not ([`Attitudes`]).

use super::{Attitudes, Language, Naming};

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
    /// How probable a situation must be for its replies to count at all.
    pub least: f32,
    /// For each language that has any, the replies of every situation, in the order in which a judge tells them.
    pub written: Vec<(Language, Vec<Vec<Particular>>)>,
    /// For each language that has any, the sentences that are chosen one by one.
    pub attitudes: Vec<(Language, Attitudes)>,
    /// For each language that has any, how the replies among these are said of what a text speaks of.
    pub naming: Vec<(Language, Naming)>,
}

impl Situations {
    /// The replies for a situation that name what this text speaks of; none where the situation is not probable enough, or
    /// nothing was written in the language.
    pub fn replies(&self, language: Language, situation: Likeliest, text: &str) -> Vec<&str> {
        let Likeliest { place, probability } = situation;
        let all = self.written.iter().find_map(|(one, all)| (*one == language).then_some(all));
        // What is not a number is no sign of anything.
        let Some(replies) = all.and_then(|all| all.get(place)).filter(|_| probability >= self.least) else {
            return Vec::new();
        };
        let said = plain(text);
        let speaks = |one: &&Particular| one.words.iter().any(|words| said.contains(&plain(words)));
        replies.iter().filter(speaks).map(|one| one.reply.as_str()).collect()
    }

    /// A reply that is chosen one by one, said of what this text speaks of; none where that has no name, or no place in it.
    pub fn named(&self, language: Language, reply: &str, text: &str) -> Option<String> {
        let naming = self.naming.iter().find_map(|(one, naming)| (*one == language).then_some(naming))?;
        let place = self.attitudes(language)?.reply.iter().position(|one| one == reply)?;
        naming.reply(place, text)
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

/// Lower-case words between single blanks, so that a phrase is found as a part of it.
fn plain(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|sign: char| !sign.is_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |told, word| told + word + " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(words: &[&str], reply: &str) -> Particular {
        Particular { words: words.iter().map(|&word| word.to_owned()).collect(), reply: reply.into() }
    }

    #[test]
    fn a_reply_is_for_texts_that_speak_of_what_it_names() {
        let replies = vec![named(&["raise", "pay rise"], "A raise!"), named(&["by-election"], "An election!")];
        let situations = Situations {
            least: 0.6,
            written: vec![(Language::English, vec![replies])],
            attitudes: Vec::new(),
            naming: Vec::new(),
        };
        let sure = Likeliest { place: 0, probability: 0.9 };
        let found = |text| situations.replies(Language::English, sure, text);
        assert_eq!(found("Got my RAISE, finally"), ["A raise!"]);
        assert_eq!(found("A pay-rise at last!"), ["A raise!"]);
        assert_eq!(found("We won the by-election."), ["An election!"]);
        assert_eq!(found("They praised me, and I was raised here"), [""; 0]);
    }

    #[test]
    fn replies_are_of_the_likeliest_situation_where_that_is_sure_enough() {
        let won = vec![named(&["Pokal"], "Ein Pokal!")];
        let lost = vec![named(&["Pokal"], "Kein Pokal.")];
        let situations = Situations {
            least: 0.6,
            written: vec![(Language::German, vec![won, lost])],
            attitudes: Vec::new(),
            naming: Vec::new(),
        };
        let reply = |logits: &[f32], language| {
            let found = situations.replies(language, Likeliest::of_logits(logits)?, "Der Pokal");
            found.first().copied()
        };
        assert_eq!(reply(&[0.0, 3.0], Language::German), Some("Kein Pokal."));
        assert_eq!(reply(&[3.0, 0.0], Language::German), Some("Ein Pokal!"));
        assert_eq!(reply(&[0.1, 0.2], Language::German), None, "neither is sure");
        assert_eq!(reply(&[0.0, 3.0], Language::French), None);
        assert_eq!(reply(&[0.0, f32::NAN], Language::German), None);
        assert_eq!(reply(&[], Language::German), None);
        // More classes than were written for.
        assert_eq!(reply(&[0.0, 0.0, 9.0], Language::German), None);
    }
}
