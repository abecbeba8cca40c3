//! What an expression must keep of its text, and must not keep: facts stay, wording changes.

use std::collections::BTreeSet;

use super::Language;

/// Tenths of an answer's words, and of the text's, that stand in the other in the same order where it is a copy.
const COPIED_TENTHS: usize = 9;

/// Numbers that English often writes as words.
const NUMBER_WORDS: [(&str, &str); 28] = [
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("seventy", "70"),
    ("eighty", "80"),
    ("ninety", "90"),
];

/// The share of the text's numbers and names that the answer names too, from 0 to 1; 1 where the text has none.
///
/// A number is a run of digits with what joins them ("7:42", "1,200"), however it is written; a name is a word with a
/// capital that does not open a sentence. German, the language of the text, gives every noun one: there, names are not
/// told.
pub fn facts_kept(text: &str, answer: &str, language: Language) -> f64 {
    let mut wanted: BTreeSet<String> = numbers(text).collect();
    if language != Language::German {
        wanted.extend(names(text));
    }
    if wanted.is_empty() {
        return 1.0;
    }
    let said: BTreeSet<String> = numbers(answer).chain(spelled_numbers(answer)).chain(words(answer)).collect();
    // "On Saturdays" is kept by "next Saturday".
    let is_kept = |fact: &String| {
        said.contains(fact)
            || said.contains(&format!("{fact}s"))
            || fact.strip_suffix('s').is_some_and(|one| said.contains(one))
    };
    let (kept, all) =
        wanted.iter().fold((0.0, 0.0), |(kept, all), fact| (if is_kept(fact) { kept + 1.0 } else { kept }, all + 1.0));
    kept / all
}

/// Whether the answer says the text over again: hardly a word of it is new, and hardly one left out.
pub fn repeats(text: &str, answer: &str) -> bool {
    let (text, answer) = (units(text), units(answer));
    if text == answer {
        return true;
    }
    10 * in_common(&text, &answer) >= COPIED_TENTHS * text.len().max(answer.len())
}

/// Digits with the signs between them, without any that end a sentence.
fn numbers(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_numeric() && !matches!(c, '.' | ',' | ':' | '/'))
        .map(|run| run.trim_matches(|c: char| !c.is_numeric()))
        .filter(|run| !run.is_empty())
        .map(|run| run.replace(',', ""))
}

fn spelled_numbers(text: &str) -> impl Iterator<Item = String> + '_ {
    words(text)
        .filter_map(|word| NUMBER_WORDS.iter().find(|(name, _)| *name == word).map(|(_, digits)| (*digits).to_owned()))
}

/// Words in lower case, without a possessive ending.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '\'' | '’')).filter_map(plain)
}

fn plain(word: &str) -> Option<String> {
    let word = word.trim_matches(['\'', '’']).to_lowercase();
    let word = word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(&word);
    (!word.is_empty()).then(|| word.to_owned())
}

/// Words with a capital inside a sentence. A text in capitals throughout has no names to tell.
fn names(text: &str) -> Vec<String> {
    if !text.chars().any(char::is_lowercase) {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut opens = true;
    for token in text.split_whitespace() {
        let word = token.trim_matches(|c: char| !c.is_alphanumeric());
        let capital = word.chars().next().is_some_and(char::is_uppercase);
        let alone = word == "I" || word.starts_with("I'") || word.starts_with("I’");
        if capital && !opens && !alone && word.chars().any(char::is_lowercase) {
            out.extend(words(word));
        }
        let end = token.trim_end_matches(['"', '”', '’', '\'', ')']);
        opens = word.is_empty() || end.ends_with(['.', '!', '?', ':', '…', '-', '–', '—']);
    }
    out
}

/// Words; in scripts without spaces, characters.
fn units(text: &str) -> Vec<String> {
    let wide = |c: char| matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}');
    if text.chars().any(wide) {
        text.chars().filter(|c| c.is_alphanumeric()).map(String::from).collect()
    } else {
        words(text).collect()
    }
}

/// Length of the longest common subsequence. Texts have at most a few hundred words.
fn in_common(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0_usize; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        let mut left = 0;
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            *cell = if x == y { diagonal + 1 } else { above.max(left) };
            (diagonal, left) = (above, *cell);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str, answer: &str) -> f64 {
        facts_kept(text, answer, Language::English)
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "shares of small counts are exact")]
    fn numbers_and_names_are_counted_as_facts() {
        let text = "The 7:42 from Reading gets Anna to Paddington for £1,200, she says.";
        assert_eq!(kept(text, "Anna's trip, Reading to Paddington at 7:42, costs 1200"), 1.0);
        assert_eq!(kept(text, "Anna goes from Reading to London at 7:42 for 1200"), 0.8);
        assert_eq!(kept("Rain all day. Nobody came.", "It was quiet"), 1.0, "an opening word is no name");
        assert_eq!(kept("We waited 50 minutes", "Fifty long minutes"), 1.0);
        assert_eq!(kept("Pocket money, paid on Saturdays", "Paid each Saturday"), 1.0);
        assert_eq!(kept("I think I'm done and I'd go", "Done"), 1.0);
        assert_eq!(kept("WHY IS IT 30 DEGREES", "It is 30 degrees"), 1.0);
        assert_eq!(kept("7時42分の電車", "42分に乗る"), 0.5);
        assert_eq!(facts_kept("Um 7:42 fährt der Zug nach Köln", "Abfahrt 7:42", Language::German), 1.0);
    }

    #[test]
    fn a_copy_is_told_from_a_rewording() {
        assert!(repeats("The bus was late again.", "the bus was late AGAIN!"));
        assert!(repeats(
            "My sister Anna got the job in Leeds after a long search",
            "My sister Anna got the job in Leeds after the long search"
        ));
        assert!(!repeats("The bus was late again.", "Once more the bus let me down."));
        assert!(!repeats("It broke again", "It broke again, and I am so very tired of it"));
        assert!(repeats("今日は雨です。", "今日は雨です"));
        assert!(!repeats("今日は雨です。", "雨の一日も悪くないです。"));
    }
}
