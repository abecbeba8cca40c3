//! Tells which language a text is in.

use whatlang::{Detector, Lang};

use crate::domain::Language;

/// Confidence from which two Latin texts of unlike languages count as such: short ones are often mistaken.
const SURE: f64 = 0.9;

/// The language of a text; English where it is none of ours, or too short to tell.
pub(super) fn of(text: &str) -> Language {
    detected(text).map_or_else(Language::default, |(language, _)| language)
}

/// Whether an answer is surely in another language than its text.
pub(super) fn differs(text: &str, answer: &str) -> bool {
    match (detected(text), detected(answer)) {
        (Some((text, _)), Some((answer, _))) if is_wide(text) != is_wide(answer) => true,
        (Some((text, sure)), Some((answer, also))) => text != answer && sure.min(also) >= SURE,
        _ => false,
    }
}

/// Written in a script of its own: told by that alone.
fn is_wide(language: Language) -> bool {
    matches!(language, Language::Japanese | Language::Korean | Language::Chinese)
}

/// The likeliest of our languages, and how likely, from 0 to 1.
fn detected(text: &str) -> Option<(Language, f64)> {
    let ours = vec![Lang::Eng, Lang::Jpn, Lang::Kor, Lang::Spa, Lang::Fra, Lang::Deu, Lang::Cmn, Lang::Por];
    let info = Detector::with_allowlist(ours).detect(text)?;
    let language = match info.lang() {
        Lang::Jpn => Language::Japanese,
        Lang::Kor => Language::Korean,
        Lang::Spa => Language::Spanish,
        Lang::Fra => Language::French,
        Lang::Deu => Language::German,
        Lang::Cmn => Language::Chinese,
        Lang::Por => Language::Portuguese,
        _ => Language::English,
    };
    Some((language, info.confidence()))
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
    fn an_answer_in_another_language_is_noticed() {
        assert!(differs("今日は雨です。", "It is raining today."));
        assert!(differs("It is raining today and nobody came.", "今日は雨です。"));
        assert!(!differs("今日は雨です。", "雨の一日も悪くない。"));
        assert!(!differs("Gestern war ich mit Anna am See.", "Mit Anna am See, das war ein schöner Tag."));
        assert!(!differs("ok", "Good."));
    }
}
