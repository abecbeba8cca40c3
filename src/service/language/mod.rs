//! Tells which language a text is in.
//!
//! A library tells it by the letters, and takes a fifth of short English texts for foreign ones: there words decide that are
//! much more frequent in English than in the others it may be, or the other way round (`scripts/train/language_words.py`).

use std::{borrow::Cow, collections::HashSet, sync::LazyLock};

use unicode_normalization::UnicodeNormalization;
use whichlang::{Lang, detect_language};

use crate::{
    domain::Language,
    runtime::{is_emoji, normalise},
};

/// Characters from which two texts that read as unlike languages count as such: shorter ones are often mistaken.
const TELLING: usize = 24;

/// Characters up to which words have a say beside letters.
const SHORT: usize = 50;

static ENGLISH: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("english.txt").lines().collect());
static OTHERS: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("others.txt").lines().collect());

/// What a text is in, as far as a classifier of English is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tongue {
    English,
    /// English, but for these sentences.
    Mixed(String),
    Other,
}

/// The language of a text; English where it is none of ours.
pub(super) fn of(text: &str) -> Language {
    named(undisguised(text))
}

fn named(language: Option<Lang>) -> Language {
    match language {
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
    undisguised(text).is_none_or(|language| language == Lang::Eng)
}

/// As [`is_english`], and for a short text also where its letters speak for a language that no generator was taught, and no
/// word for one that was: it is likelier English. So is a text that quotes another language in English words.
pub(super) fn is_answered_in_english(text: &str) -> bool {
    let found = undisguised(text);
    let short = text.chars().nth(TELLING).is_none();
    let unknown = || named(found) == Language::English && Words::of(text).others == 0;
    found.is_none_or(|language| language == Lang::Eng) || short && unknown() || is_quoted_in_english(text)
}

/// Whether what stands around a text's quotations is all in English words.
fn is_quoted_in_english(text: &str) -> bool {
    const MARKS: [char; 7] = ['"', '“', '”', '„', '«', '»', '‟'];
    let own: Vec<&str> = text.split(MARKS).step_by(2).collect();
    let words = Words::of(&own.join(" "));
    text.contains(MARKS) && words.all > 0 && words.english == words.all
}

fn undisguised(text: &str) -> Option<Lang> {
    let bare: Cow<'_, str> =
        if text.is_ascii() { text.into() } else { text.chars().filter(|&c| !is_emoji(c)).collect() };
    let plain = normalise(&bare);
    let found = detected(&plain)?;
    Some(if found != Lang::Eng && is_accented_english(&plain) { Lang::Eng } else { found })
}

/// Whether a text is English but for accents, which classifiers of English do not see: without them most words are English,
/// at least two of them only then, as of no language that is written with accents.
fn is_accented_english(text: &str) -> bool {
    if text.is_ascii() {
        return false;
    }
    let bare: String = text.nfd().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).collect();
    let (written, bare) = (Words::of(text), Words::of(&bare));
    let gained = bare.english.saturating_sub(written.english);
    2 * bare.english > bare.all && gained >= 2 && 2 * gained > written.accented
}

fn trimmed(part: &str) -> &str {
    part.trim_matches(['.', ' ', '\t', '\r'])
}

/// As [`is_english`], and what of an English text is not: of a long one a foreign sentence may be what matters. A sentence
/// counts as foreign where it is long enough to tell, or known by its script or its words.
pub(super) fn tongue(text: &str) -> Tongue {
    if !is_english(text) {
        return Tongue::Other;
    }
    let tells = |sentence: &str| {
        let Words { english, others, .. } = Words::of(sentence);
        let wide = sentence.chars().filter(|&c| is_wide_letter(c)).nth(1).is_some();
        wide || others >= 2 && english == 0 || sentence.chars().count() >= TELLING
    };
    let is_foreign = |part: &&str| tells(part) && !is_english(part);
    let sentences = text.split(['!', '?', ';', '\n', '。', '！', '？']).flat_map(|part| part.split(". "));
    let foreign: Vec<&str> = sentences
        .map(trimmed)
        .flat_map(|sentence| {
            // A clause is enough to threaten in.
            let clauses = || sentence.split([',', ':', '(', ')', '"', '“', '”', '–', '—']).map(trimmed);
            if is_foreign(&sentence) { vec![sentence] } else { clauses().filter(is_foreign).collect() }
        })
        .collect();
    if foreign.is_empty() { Tongue::English } else { Tongue::Mixed(foreign.join("\n")) }
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
    Some(if doubtful && Words::of(text).sound_english(found) { Lang::Eng } else { found })
}

/// How many words a text has, and how many are known for English ones, or for others.
struct Words {
    all: usize,
    english: usize,
    others: usize,
    /// With letters beyond the plain ones.
    accented: usize,
}

impl Words {
    fn of(text: &str) -> Self {
        let mut found = Self { all: 0, english: 0, others: 0, accented: 0 };
        for word in text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()) {
            let word = word.to_lowercase();
            found.all += 1;
            found.english += usize::from(ENGLISH.contains(word.as_str()));
            found.others += usize::from(!word.is_ascii() || OTHERS.contains(word.as_str()));
            found.accented += usize::from(!word.is_ascii());
        }
        found
    }

    /// Whether they are English rather than of the language that their letters speak for. Words of only four others are
    /// known: against any further one most must be English.
    fn sound_english(&self, letters: Lang) -> bool {
        let known = matches!(letters, Lang::Deu | Lang::Spa | Lang::Fra | Lang::Por);
        let most = self.english == self.all || self.english >= 2 && 2 * self.english >= self.all;
        self.english > self.others && (known || most)
    }
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
    fn who_quotes_another_language_is_answered_in_the_own_one() {
        for text in [
            "Translate: \"Wo ist der Bahnhof?\"",
            "She said “ich liebe dich” and then she left",
            "What does «à bientôt» mean?",
        ] {
            assert!(is_answered_in_english(text), "{text}");
        }
        for text in [
            "Was heißt \"good morning\" auf Deutsch?",
            "\"Wo ist der Bahnhof?\"",
            "Er sagte \"ja\" und ging nach Hause",
            "Wo ist der Bahnhof?",
        ] {
            assert!(!is_answered_in_english(text), "{text}");
        }
    }

    #[test]
    fn english_is_known_in_disguise_and_other_languages_by_a_few_words() {
        for text in [
            "I hâte yôu ånd I wíll kíll yôu ånd yôur whôle fåmily tônight",
            "Í'm gónna kíll thát bítch tonight",
            "Ì wãnt tó dìé tônight",
        ] {
            assert!(is_english(text), "{text}");
        }
        for text in
            ["Où est le café que j'ai payé à ma mère ?", "Ela não me disse que já não vem à festa", "Tôi yêu em"]
        {
            assert!(!is_english(text), "{text}");
        }
        assert_eq!(of("Ｉ ｗａｎｔ ｔｏ ｄｉｅ"), Language::English);
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
            "suicidal again",
            "1 year sober!!",
            "3 job offers, zero clue",
            "I hate lesbians.",
            "2nd interview tmrw eek",
        ] {
            assert!(is_english(text), "{text}");
            assert_eq!(of(text), Language::English, "{text}");
        }
        for text in ["Terrible service", "Anytime!", "Fascinating."] {
            assert!(is_answered_in_english(text), "{text}");
        }
        for text in ["te voy a matar", "殺してやる", "Ho perso il treno per la seconda volta questa settimana"] {
            assert!(!is_answered_in_english(text), "{text}");
        }
        // Of the last ones no words are known.
        for text in ["we maken hem dood", "hij is dood", "muori male", "ben seni test"] {
            assert!(!is_english(text), "{text}");
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
        let mixed = |more: &str, found: &str| {
            assert_eq!(tongue(&format!("{english}{more}")), Tongue::Mixed(found.into()), "{more}");
        };
        let threat = "Te voy a matar esta noche, hijo de puta";
        mixed(&format!(" {threat}."), threat);
        mixed("\n殺してやる", "殺してやる");
        mixed(
            " See you on Friday at the office, ich bring dich um du Hurensohn, and please bring the notes.",
            "ich bring dich um du Hurensohn",
        );
        mixed(" Te voy a matar. We remain yours. ich bring dich um!", "Te voy a matar\nich bring dich um");
        assert_eq!(tongue(threat), Tongue::Other);
        for more in
            [" Train cancelled. Awful service.", " I have no idea what he wants from me.\n¯\\_(ツ)_/¯", " Ciao!"]
        {
            assert_eq!(tongue(&format!("{english}{more}")), Tongue::English, "{more}");
        }
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
