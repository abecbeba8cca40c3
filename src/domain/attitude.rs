//! Sentences that people wrote beforehand and that fit many a text: attitudes, which stand behind its own words and put it in a
//! light, and replies.
//!
//! An expression is the text's own words and what the writer thinks of it. Which sentences fit a text a judge tells better than a
//! small model writes one; and the facts stay as they are, in any language.

use super::{Language, Polarity};

/// Signs that end a sentence.
const CLOSING: [char; 7] = ['.', '!', '?', '…', '。', '！', '？'];

/// Signs that may stand behind the last word.
const AROUND: [char; 10] = ['"', '”', '“', '’', '\'', '»', '」', '』', ')', '）'];

/// The sentences of one language, in the order in which a judge tells how likely each fits: kind by kind, as here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attitudes {
    /// Those that put a text in a positive light.
    pub positive: Vec<String>,
    /// Those that put it in a negative one.
    pub negative: Vec<String>,
    /// Replies; none where a judge was not taught any.
    pub reply: Vec<String>,
}

/// A kind of sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Behind the text's own words.
    Light(Polarity),
    /// To them.
    Reply,
}

impl Attitudes {
    /// Those of a kind, and how many stand before them.
    fn of(&self, kind: Kind) -> (usize, &[String]) {
        match kind {
            Kind::Light(Polarity::Positive) => (0, &self.positive),
            Kind::Light(Polarity::Negative) => (self.positive.len(), &self.negative),
            Kind::Reply => (self.positive.len() + self.negative.len(), &self.reply),
        }
    }

    /// Whether there are any of a kind.
    pub fn has(&self, kind: Kind) -> bool {
        !self.of(kind).1.is_empty()
    }

    /// Up to `most` sentences of a kind with how likely each fits, the likeliest first. None where `probabilities` are not of
    /// these sentences.
    pub fn likeliest(&self, probabilities: &[f32], kind: Kind, most: usize) -> Vec<(&str, f32)> {
        let (before, sentences) = self.of(kind);
        let all = self.positive.len() + self.negative.len() + self.reply.len();
        let Some(probabilities) = probabilities.get(before..).filter(|_| probabilities.len() == all) else {
            return Vec::new();
        };
        let mut found: Vec<_> = sentences.iter().map(String::as_str).zip(probabilities.iter().copied()).collect();
        found.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        found.truncate(most);
        found
    }
}

/// A text's own words, and an attitude behind them.
pub fn joined(text: &str, attitude: &str, language: Language) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wide = matches!(language, Language::Japanese | Language::Chinese);
    let open = words.trim_end_matches([',', ';', ':', '、', '，', '；', '：']);
    // "We're at 100%", "He said \"no\"", but not "Really?!" or an emoji.
    let inner = open.trim_end_matches(AROUND);
    let ends = |last: char| last.is_alphanumeric() || matches!(last, '%' | '€' | '$' | '£' | '°');
    let stop = match inner.chars().next_back() {
        Some(last) if ends(last) && wide => "。",
        Some(last) if ends(last) => ".",
        _ => "",
    };
    let close = inner.ends_with(CLOSING) || !stop.is_empty();
    let space = if wide && close { "" } else { " " };
    format!("{open}{stop}{space}{attitude}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attitude_stands_behind_the_own_words_as_a_sentence() {
        let german = |text| joined(text, "Das freut mich.", Language::German);
        assert_eq!(german("Wir haben gewonnen!"), "Wir haben gewonnen! Das freut mich.");
        assert_eq!(german(" wir haben\ngewonnen "), "wir haben gewonnen. Das freut mich.");
        assert_eq!(german("Gewonnen 🎉"), "Gewonnen 🎉 Das freut mich.");
        assert_eq!(german("Sie sagte \"ja\""), "Sie sagte \"ja\". Das freut mich.");
        assert_eq!(german("Wir sind bei 100%"), "Wir sind bei 100%. Das freut mich.");
        assert_eq!(german("Wir haben gewonnen,"), "Wir haben gewonnen. Das freut mich.");
        let japanese = |text| joined(text, "うれしい。", Language::Japanese);
        assert_eq!(japanese("試合に勝った"), "試合に勝った。うれしい。");
        assert_eq!(japanese("試合に勝った！"), "試合に勝った！うれしい。");
        assert_eq!(japanese("試合に勝った🎉"), "試合に勝った🎉 うれしい。");
        assert_eq!(japanese("「勝った。」"), "「勝った。」うれしい。");
        assert_eq!(joined("이겼어요", "기뻐요.", Language::Korean), "이겼어요. 기뻐요.");
    }

    #[test]
    fn the_likeliest_sentences_of_a_kind_come_first() {
        let said = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut attitudes = Attitudes {
            positive: said(&["Good.", "Better."]),
            negative: said(&["Bad.", "Worse.", "Worst."]),
            reply: said(&["Oh?", "Oh!"]),
        };
        let (positive, negative) = (Kind::Light(Polarity::Positive), Kind::Light(Polarity::Negative));
        let found = |kind, most| attitudes.likeliest(&[0.1, 0.6, 0.2, 0.9, 0.3, 0.4, 0.5], kind, most);
        assert_eq!(found(positive, 4), [("Better.", 0.6), ("Good.", 0.1)]);
        assert_eq!(found(negative, 2), [("Worse.", 0.9), ("Worst.", 0.3)]);
        assert_eq!(found(Kind::Reply, 2), [("Oh!", 0.5), ("Oh?", 0.4)]);
        // Of other sentences than these.
        for others in [&[0.5][..], &[0.5; 6], &[0.5; 8]] {
            assert_eq!(attitudes.likeliest(others, positive, 2), []);
        }
        assert!(attitudes.has(Kind::Reply));
        attitudes.reply.clear();
        assert!(attitudes.has(positive) && !attitudes.has(Kind::Reply));
        assert_eq!(attitudes.likeliest(&[0.5; 5], positive, 1), [("Good.", 0.5)]);
        assert_eq!(attitudes.likeliest(&[0.5; 5], Kind::Reply, 1), []);
    }
}
