//! Text that was read in a picture: from lines to one text, and from that to texts of the length that is judged.

use super::text::MAX_CHARACTERS;

/// Characters between the starts of two windows: they overlap by a quarter, so that no sentence of common length is
/// seen only in halves.
const STRIDE: usize = 375;
/// How far back a cut looks for white space.
const OVERLAP: usize = MAX_CHARACTERS - STRIDE;

/// Joins the lines of a passage, in reading order, to running text. Lines of scripts that are written without spaces
/// are joined without one, and a word that was broken by a hyphen is made whole.
pub fn join<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for line in lines.into_iter().map(str::trim).filter(|line| !line.is_empty()) {
        if is_broken(&text, line) {
            text.pop();
        } else if !(text.is_empty() || text.ends_with(is_spaceless) && line.starts_with(is_spaceless)) {
            text.push(' ');
        }
        text.push_str(line);
    }
    text
}

/// Whether `text` ends in the first part of a word and `line` begins with the second.
fn is_broken(text: &str, line: &str) -> bool {
    text.strip_suffix('-').is_some_and(|word| word.ends_with(char::is_alphabetic))
        && line.starts_with(char::is_lowercase)
}

/// Whether a character belongs to a script that sets no spaces between words: kana, Han, and their punctuation and
/// wide forms.
fn is_spaceless(character: char) -> bool {
    matches!(
        character,
        '\u{3000}'..='\u{30FF}' | '\u{31F0}'..='\u{31FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}'
            | '\u{F900}'..='\u{FAFF}' | '\u{FF00}'..='\u{FF9F}' | '\u{20000}'..='\u{3FFFF}'
    )
}

/// Cuts a text of any length into overlapping texts of at most [`MAX_CHARACTERS`] characters, after white space where
/// there is some near. None of them is blank.
pub fn windows(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let mut windows = Vec::new();
    let mut rest = characters.as_slice();
    while rest.len() > MAX_CHARACTERS {
        let (window, _) = rest.split_at(after_space(rest, MAX_CHARACTERS));
        windows.push(window);
        (_, rest) = rest.split_at(after_space(rest, STRIDE));
    }
    windows.push(rest);
    let windows = windows.into_iter().map(|window| window.iter().collect::<String>());
    windows.filter(|window| !window.trim().is_empty()).collect()
}

/// The last place up to `at` behind white space; `at` itself where none is near.
fn after_space(characters: &[char], at: usize) -> usize {
    let near = at.saturating_sub(OVERLAP).saturating_add(1)..=at;
    let behind_space = |place: &usize| characters.get(place - 1).is_some_and(|character| character.is_whitespace());
    near.rev().find(behind_space).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_running_text() {
        assert_eq!(join(["", " one ", "two", "  "]), "one two");
        assert_eq!(join(["immi-", "grants came"]), "immigrants came");
        assert_eq!(join(["1990 -", "a year", "X-", "Ray"]), "1990 - a year X- Ray");
        assert_eq!(join(["今日は", "いい天気。", "Hello", "世界"]), "今日はいい天気。 Hello 世界");
        assert_eq!(join([]), "");
        assert_eq!(join(["-", "a"]), "- a");
    }

    #[test]
    fn a_text_within_the_limit_is_one_window() {
        assert_eq!(windows(""), [""; 0]);
        assert_eq!(windows(" \n"), [""; 0]);
        let longest = "é".repeat(500);
        assert_eq!(windows(&longest), [longest]);
    }

    #[test]
    fn windows_overlap_cover_everything_and_end_behind_spaces() {
        let words: Vec<String> = (0..400).map(|number| format!("w{number}")).collect();
        let text = format!("{} ", words.join(" "));
        let found = windows(&text);
        assert!(found.len() > 3);
        let mut covered = 0;
        for (number, window) in found.iter().enumerate() {
            assert!(window.chars().count() <= 500);
            let at = text.find(window.as_str()).unwrap();
            assert!(at <= covered, "a gap before window {number}");
            assert!(number == 0 || covered - at >= 100, "windows overlap");
            assert!(window.starts_with('w') && window.ends_with(' '));
            covered = at + window.len();
        }
        assert_eq!(covered, text.len());
    }

    #[test]
    fn a_text_without_spaces_is_cut_where_it_must_be() {
        let found = windows(&"字".repeat(1_000));
        assert_eq!(found.iter().map(|window| window.chars().count()).collect::<Vec<_>>(), [500, 500, 250]);
    }
}
