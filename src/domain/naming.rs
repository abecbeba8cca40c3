//! Replies that people wrote for many a text, said of what a text speaks of.
//!
//! "How annoying, I hope that's sorted out soon" is true of many texts, and names nothing of them. What stands in a text behind an
//! article or "my" can be named: "How annoying about your bike, I hope that's sorted out soon". Nothing is said of it that the
//! text does not say.

use std::collections::HashSet;

/// Where in a sentence the name stands.
pub const GAP: &str = "{}";
/// Words of a text up to which one of its things is surely what it is about.
const SHORT: usize = 30;
/// Words before a name, of which those of the first kind are the reader's own. Of "your" nobody knows whose it is.
const OWN: [&str; 2] = ["my", "our"];
const OTHERS: [&str; 4] = ["the", "a", "an", "this"];
/// Words behind which stands where or when something was, or what was not there, and not what it was about: "I cried in the car".
const PLACES: [&str; 32] = [
    "in", "at", "on", "by", "from", "of", "to", "under", "behind", "near", "outside", "inside", "into", "onto",
    "through", "beside", "between", "along", "across", "towards", "until", "till", "before", "after", "during",
    "since", "past", "not", "without", "hasn't", "haven't", "isn't",
];

/// What can be named in one language, which is English so far, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Lower-case nouns of one or two words.
    pub nouns: HashSet<String>,
    /// For each reply that is chosen one by one the sentence with a [`GAP`] for a name; none where it has no place for one.
    pub replies: Vec<Option<String>>,
}

impl Naming {
    /// The reply of this place, said of what the text speaks of; none where there is nothing to name.
    pub fn reply(&self, place: usize, text: &str) -> Option<String> {
        let sentence = self.replies.get(place)?.as_deref()?;
        Some(sentence.replacen(GAP, &self.name(text)?, 1))
    }

    /// What a text speaks of: what is called the reader's own before anything else, the first of either.
    fn name(&self, text: &str) -> Option<String> {
        let words = words(text);
        if words.len() > SHORT {
            return None;
        }
        let named = |own: bool| {
            (0..words.len()).find_map(|at| {
                let [(first, _), rest @ ..] = words.get(at..)? else { return None };
                let told: &[&str] = if own { &OWN } else { &OTHERS };
                let before = at.checked_sub(1).and_then(|before| words.get(before));
                let of_place = before.is_some_and(|(word, _)| PLACES.contains(&word.as_str()));
                (told.contains(&first.as_str()) && !of_place).then(|| self.behind(rest)).flatten()
            })
        };
        let of =
            |(noun, whose): (String, bool), own: bool| format!("{} {noun}", if own && !whose { "your" } else { "the" });
        named(true).map(|found| of(found, true)).or_else(|| named(false).map(|found| of(found, false)))
    }

    /// The noun that these words begin with, or the second of them, and whether it is somebody else's: "my sister's bike".
    fn behind(&self, words: &[(String, bool)]) -> Option<(String, bool)> {
        let at = |place: usize| words.get(place).map(|(word, _)| word.as_str());
        // Nothing that a sign of punctuation keeps apart.
        let together = |place: usize| words.get(place).is_some_and(|(_, joined)| *joined);
        for start in 0..2 {
            if !(0..=start).all(together) {
                return None;
            }
            let first = at(start)?;
            let knows = |word: &str| self.nouns.contains(word);
            let second = at(start + 1).filter(|_| together(start + 1));
            // "wedding dress" is a noun, and so is what two nouns make: "pub quiz".
            let pair = second.map(|second| (format!("{first} {second}"), knows(first) && knows(second)));
            let found = pair.and_then(|(pair, nouns)| (nouns || knows(&pair)).then_some(pair));
            let found = found.or_else(|| knows(first).then(|| first.to_owned()));
            if let Some(noun) = found {
                return Some((noun, start > 0 && at(0).is_some_and(|word| word.ends_with("'s"))));
            }
        }
        None
    }
}

/// Lower-case words, and whether only blanks stand before each.
fn words(text: &str) -> Vec<(String, bool)> {
    let lower = text.to_lowercase().replace('’', "'");
    let mut found = Vec::new();
    let mut apart = false;
    for piece in lower.split_whitespace() {
        let is_word = |sign: char| sign.is_alphanumeric() || sign == '\'' || sign == '-';
        let bare = piece.trim_matches(|sign| !is_word(sign));
        if bare.is_empty() {
            apart = true;
            continue;
        }
        found.push((bare.to_owned(), !apart && piece.starts_with(bare)));
        apart = !piece.ends_with(bare);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming() -> Naming {
        Naming {
            nouns: ["bike", "bus driver", "bus", "sister", "school", "tyre", "computer"].map(str::to_owned).into(),
            replies: vec![Some("What a pity about {}!".to_owned()), None],
        }
    }

    #[test]
    fn a_reply_is_said_of_what_the_text_speaks_of() {
        let naming = naming();
        for (text, name) in [
            ("They sold my reserved bike.", "your bike"),
            ("Our bike is gone", "your bike"),
            ("The bus hit our BIKE!", "your bike"),
            ("The bus driver waved.", "the bus driver"),
            ("Somebody stole a new bike", "the bike"),
            ("My bike computer says so", "your bike computer"),
            ("I cried in the bus about a bike", "the bike"),
            ("My sister's bike is gone.", "the bike"),
            ("My sister’s bike is gone.", "the bike"),
            ("I met my sister, bike and all", "your sister"),
        ] {
            assert_eq!(naming.reply(0, text), Some(format!("What a pity about {name}!")), "{text}");
        }
    }

    #[test]
    fn nothing_is_named_that_may_be_something_else() {
        let naming = naming();
        for text in [
            "",
            "We bike to school every day.",
            "Your bike is gone.",
            // Two words between, another sentence, somebody who has something.
            "My very old rusty bike",
            "I like that. Bike lanes are rare",
            "My sister's gone",
            "the, bike",
            "I cried in the bus",
            "He hates that bike",
            "She hasn't a bike",
        ] {
            assert_eq!(naming.reply(0, text), None, "{text}");
        }
        assert_eq!(naming.reply(1, "My bike!"), None, "no place for it");
        assert_eq!(naming.reply(2, "My bike!"), None);
        let long = format!("My bike! {}", "and then some more ".repeat(8));
        assert_eq!(naming.reply(0, &long), None, "a long text is about more");
    }
}
