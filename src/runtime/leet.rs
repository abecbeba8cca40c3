//! Leetspeak as letters: digits and signs that stand for them inside a word.
//!
//! Owns which words are such; prices, units, names that end in a number and handles stay as they are. The same program in
//! Python is `scripts/train/normalise.py`.

use std::borrow::Cow;

fn unleet(c: char) -> Option<char> {
    Some(match c {
        '0' => 'o',
        '1' | '!' | '|' => 'i',
        '3' | '€' => 'e',
        '4' | '@' => 'a',
        '5' | '$' => 's',
        '7' | '+' => 't',
        '8' => 'b',
        _ => return None,
    })
}

/// A word with its leet signs as letters; numbers, prices and handles as they are.
pub(super) fn without_leet(word: &str) -> Cow<'_, str> {
    if !word.contains(|c| c == '9' || unleet(c).is_some()) {
        return word.into();
    }
    let core = word.trim_end_matches(['!', '?', '.', ',', ';', ':', '|', '+']);
    let letters = core.chars().filter(char::is_ascii_alphabetic).count();
    let chars: Vec<char> = core.chars().collect();
    let is_letter = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(char::is_ascii_alphabetic);
    let read: Vec<Option<char>> = chars
        .iter()
        .enumerate()
        .map(|(at, &c)| match c {
            // Only beside a letter: `fa9`, not `.9`.
            '9' => (is_letter(at.checked_sub(1)) || is_letter(Some(at + 1))).then_some('g'),
            c => unleet(c),
        })
        .collect();
    let signs = read.iter().flatten().count();
    let handle = core.starts_with('@') && letters > 3 && signs == 1;
    if signs == 0 || signs > 2 * letters || handle || is_number(core) || is_numbered(core) {
        return word.into();
    }
    let mut out: String = read.iter().zip(&chars).map(|(letter, &c)| letter.unwrap_or(c)).collect();
    out.push_str(&word[core.len()..]);
    out.into()
}

/// What two letters behind a number are: a unit, or the end of an ordinal.
const UNITS: &[&str] = &[
    "am", "pm", "st", "nd", "rd", "th", "kg", "mg", "km", "cm", "mm", "nm", "ft", "yd", "mi", "ml", "cl", "dl", "oz",
    "lb", "ha", "hr", "mo", "wk", "yr", "ms", "kw", "mw", "hz", "kb", "mb", "gb", "tb", "px", "pt", "pp", "pc", "bc",
    "ad", "yo", "in", "er", "re", "ra", "ro", "to",
];

/// `$20`, `2pm`, `10.5km`: digits with a sign of money, or with one letter or one of [`UNITS`], unlike `4ss`.
fn is_number(core: &str) -> bool {
    let money = |c: char| c == '$' || c == '€';
    let body = core.strip_prefix(money).unwrap_or(core);
    let body = body.strip_suffix(money).unwrap_or(body);
    let digits = body.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &body[digits.len()..];
    (unit.len() < 2 || UNITS.contains(&unit.to_ascii_lowercase().as_str()))
        && digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | ':'))
}

/// `covid19`, `covid-19`, `mp3`, `size8`, `4x4`: a name that ends in a number.
///
/// One last digit may be a letter instead (`rap3`, `di3`), and shape alone does not tell `rap3` from `web3`. It is a
/// number behind a single letter, behind initials, which have no vowel (`ps5`, `html5`), and behind an `e`, with which
/// the word is whole (`size8`, `iphone5`, `type1`). Of 212,000 training texts one in 1,570 has a word that this leaves
/// to change needlessly (`web3`, `any1`); it costs little, for the raw text is scored too.
fn is_numbered(core: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    let name = core.trim_end_matches(is_digit);
    let digits = core.len() - name.len();
    let is_word = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic());
    let between = name.trim_start_matches(is_digit);
    if between.len() < name.len() {
        // What stands between numbers: dice, hours, players, lines, games, sizes. Elsewhere it is a word: `4r3`.
        return digits > 0 && matches!(between, "d" | "e" | "h" | "p" | "v" | "x" | "D" | "E" | "H" | "P" | "V" | "X");
    }
    match digits {
        0 => false,
        1 => is_word(name) && (name.len() == 1 || name.ends_with(['e', 'E']) || !name.contains(is_vowel)),
        _ => is_word(name.strip_suffix('-').unwrap_or(name)),
    }
}

fn is_vowel(c: char) -> bool {
    matches!(c.to_ascii_lowercase(), 'a' | 'e' | 'i' | 'o' | 'u' | 'y')
}
