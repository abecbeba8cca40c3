//! Tells which language a text is in.
//!
//! A library tells it by the letters, and takes a fifth of short English texts for foreign ones: there words decide that are
//! much more frequent in English than in the others it may be, or the other way round (`scripts/train/language_words.py`).

use std::{borrow::Cow, collections::HashSet, sync::LazyLock};

use whichlang::{Lang, detect_language};

use crate::{
    domain::Language,
    runtime::{is_emoji, normalise},
};

/// Characters from which two texts that read as unlike languages count as such: shorter ones are often mistaken.
const TELLING: usize = 24;

/// Characters below which words have a say beside letters.
const SHORT: usize = 50;

static ENGLISH: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("english.txt").lines().collect());
static OTHERS: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("others.txt").lines().collect());

/// What a text is in, as far as a classifier of English is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tongue {
    English,
    /// English, but for a sentence.
    Mixed,
    Other,
}

/// The language of a text; English where it is none of ours.
pub(super) fn of(text: &str) -> Language {
    match detected(text) {
        Some(Lang::Jpn) => Language::Japanese,
        Some(Lang::Kor) => Language::Korean,
        Some(Lang::Spa) => Language::Spanish,
        Some(Lang::Fra) => Language::French,
        Some(Lang::Deu) => Language::German,
        Some(Lang::Cmn) => Language::Chinese,
        Some(Lang::Por) => Language::Portuguese,
        _ => Language::English,
    }
}

/// Whether a text is in English as far as anyone can tell: signs and figures alone are in every language. Disguises are
/// taken off before, as a word in them is one of no language; emoji are not named, as their names are English.
pub(super) fn is_english(text: &str) -> bool {
    let bare: Cow<'_, str> =
        if text.is_ascii() { text.into() } else { text.chars().filter(|&c| !is_emoji(c)).collect() };
    detected(&normalise(&bare)).is_none_or(|language| language == Lang::Eng)
}

/// As [`is_english`], and whether a sentence of an English text is not: of a long text that may be the one that matters.
pub(super) fn tongue(text: &str) -> Tongue {
    if !is_english(text) {
        return Tongue::Other;
    }
    let sentences = text.split(['.', '!', '?', ';', '\n', '。', '！', '？']).map(str::trim);
    let foreign = |sentence: &str| {
        let long = sentence.chars().count() >= TELLING || sentence.chars().any(is_wide_letter);
        long && sentence.len() < text.len() && !is_english(sentence)
    };
    if sentences.into_iter().any(foreign) { Tongue::Mixed } else { Tongue::English }
}

/// Whether an answer is surely in another language than its text.
pub(super) fn differs(text: &str, answer: &str) -> bool {
    let (Some(of_text), Some(of_answer)) = (detected(text), detected(answer)) else {
        return false;
    };
    let tells = |said: &str, language| is_wide(language) || said.chars().count() >= TELLING;
    of_text != of_answer && tells(text, of_text) && tells(answer, of_answer)
}

/// Written in a script of its own, which a few characters show.
fn is_wide(language: Lang) -> bool {
    matches!(language, Lang::Jpn | Lang::Kor | Lang::Cmn)
}

/// Of a script that a few characters of tell a language.
fn is_wide_letter(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

/// The likeliest of the languages that the library knows; none where there is no word.
fn detected(text: &str) -> Option<Lang> {
    let found = text.chars().any(char::is_alphabetic).then(|| detect_language(text))?;
    let doubtful = found != Lang::Eng && text.chars().nth(SHORT).is_none() && !text.chars().any(is_wide_letter);
    Some(if doubtful && sounds_english(text) { Lang::Eng } else { found })
}

/// Whether more words are known for English ones than for others.
fn sounds_english(text: &str) -> bool {
    let (mut english, mut others) = (0, 0);
    for word in text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()) {
        let word = word.to_lowercase();
        english += usize::from(ENGLISH.contains(word.as_str()));
        others += usize::from(!word.is_ascii() || OTHERS.contains(word.as_str()));
    }
    english > others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_are_told_apart() {
        for (text, language) in [
            ("I can't go on like this anymore", Language::English),
            ("もう消えてしまいたい", Language::Japanese),
            ("더는 살고 싶지 않아", Language::Korean),
            ("Ya no quiero seguir viviendo así", Language::Spanish),
            ("Je n'ai plus envie de vivre", Language::French),
            ("Ich will einfach nicht mehr leben", Language::German),
            ("我真的不想活了", Language::Chinese),
            ("Não quero mais viver desse jeito", Language::Portuguese),
            ("7 + 5", Language::English),
        ] {
            assert_eq!(of(text), language, "{text}");
        }
    }

    #[test]
    fn english_is_known_in_disguise_and_other_languages_by_a_few_words() {
        for text in
            ["you are all worthless", "y0u 4r3 w0rthl3ss and 1 h4t3 y0u", "7 + 5", "👍", "Уоu are all worthless"]
        {
            assert!(is_english(text), "{text}");
        }
        for text in
            ["te voy a matar", "ich bring dich um", "je vais te tuer", "殺してやる", "죽여버릴거야", "我要杀了你"]
        {
            assert!(!is_english(text), "{text}");
            let adorned = format!("{text} 🔪🔪😀👍🔥");
            assert!(!is_english(&adorned), "{adorned}");
        }
    }

    #[test]
    fn short_english_is_not_taken_for_foreign() {
        for text in [
            "She said yes!!!",
            "Train cancelled",
            "tax refund £312",
            "Terrible service",
            "suicidal again",
            "1 year sober!!",
            "3 job offers, zero clue",
            "A Terrible Idea",
            "I hate lesbians.",
            "2nd interview tmrw eek",
        ] {
            assert!(is_english(text), "{text}");
            assert_eq!(of(text), Language::English, "{text}");
        }
        for text in
            ["Tren cancelado", "Quel service terrible", "Schon wieder Regen", "Que dia horrível", "Ganz toll gemacht"]
        {
            assert!(!is_english(text), "{text}");
        }
    }

    #[test]
    fn a_foreign_sentence_in_an_english_text_is_noticed() {
        let english = "Thank you for your letter of last week. We have read it with care, and will answer it soon.";
        assert_eq!(tongue(english), Tongue::English);
        assert_eq!(tongue(&format!("{english} Te voy a matar esta noche, hijo de puta.")), Tongue::Mixed);
        assert_eq!(tongue(&format!("{english}\n殺してやる")), Tongue::Mixed);
        assert_eq!(tongue("Te voy a matar esta noche, hijo de puta."), Tongue::Other);
        assert_eq!(tongue("She said yes!!! Train cancelled. Terrible service."), Tongue::English);
    }

    #[test]
    fn an_answer_in_another_language_is_noticed() {
        assert!(differs("今日は雨です。", "It is raining today, and that is fine."));
        assert!(differs("It is raining today and nobody came.", "今日は雨です。"));
        assert!(differs("Gestern war ich mit Anna am See.", "Yesterday I was at the lake with Anna."));
        assert!(!differs("今日は雨です。", "雨の一日も悪くない。"));
        assert!(!differs("Gestern war ich mit Anna am See.", "Mit Anna am See, das war ein schöner Tag."));
        assert!(!differs("ok", "Good."));
    }
}
