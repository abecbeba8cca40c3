//! A text the way it reads: invisible signs gone, look-alike letters folded, disguises undone, emoji by their names.
//!
//! The classifiers were trained on such texts (`scripts/train/normalise.py` is the same program, and
//! `tests/fixtures/normalise.json` holds both to the same answers). Whoever calls this scores the raw text too:
//! what is folded here may have been meant.

use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

use super::leet::without_leet;

/// Letters that pass for a Latin one once NFKC has folded the mathematical and wide ones, in small. Unicode Technical
/// Standard 39 lists far more; these are the alphabets that a keyboard or a page of "fancy text" offers: Greek, Cyrillic,
/// Armenian, Latin in another dress, Cherokee, Lisu, syllabics, a rune. Some languages spell with the hooked ones: they lose
/// the hooks here, and are read as they were written as well.
const CONFUSABLE: &[(char, &str)] = &[
    ('a', "аαաɑᴀꭺꓮᗩɐ"),
    ('b', "бвьβʙᏼꓐᗷƀɓ"),
    ('c', "сᴄꮯꓚᑕƈȼ"),
    ('d', "ԁᴅꭰꓓᗪɗɖ"),
    ('e', "еёεєᴇꭼꓰᗴɇɘ"),
    ('f', "ƒꜰꓝᖴ"),
    ('g', "ɡɢꮐꓖǥɠ"),
    ('h', "нһհʜꮋꓧᕼɦ"),
    ('i', "іїιıɩɪꭵꓲɨ"),
    ('j', "јᴊꭻꓙᒍɉʝ"),
    ('k', "кκᴋꮶꓗᛕƙʞ"),
    ('l', "ӏʟꮮꓡᒪƚɫɭ"),
    ('m', "мᴍꮇꓟᗰɱ"),
    ('n', "ηոɴꓠᑎɲɳ"),
    ('o', "оοσօᴏꓳɵ"),
    ('p', "рρᴘꮲꓑᑭƥ"),
    ('q', "ԛǫᑫ"),
    ('r', "гяʀꮢꓣᖇɾɍɼ"),
    ('s', "ѕꜱꮪꓢᔕʂ"),
    ('t', "тτᴛꭲꓔŧƭʈ"),
    ('u', "υսᴜꓴᑌʉ"),
    ('v', "νᴠꮩꓦᐯʋ"),
    ('w', "ԝωѡᴡꮃꓪᗯ"),
    ('x', "хχꓫ"),
    ('y', "уγүʏꭹꓬɏƴ"),
    ('z', "зᴢꮓꓜƶʐ"),
];

static LATIN: LazyLock<HashMap<char, char>> = LazyLock::new(|| {
    CONFUSABLE.iter().flat_map(|&(latin, others)| others.chars().map(move |other| (other, latin))).collect()
});

/// Where alphabets of 26 letters in boxes begin: parenthesised, squared, negative circled, negative squared, regional
/// indicators.
///
/// A flag is two of the last and reads as its country's code, `fr`: nothing tells it from letters that spell a word.
const BOXED: [char; 5] = ['\u{249c}', '\u{1f130}', '\u{1f150}', '\u{1f170}', '\u{1f1e6}'];

/// Words in Latin letters from which a text may be in them although it holds others.
const FEW_WORDS: usize = 3;

/// Emoji that are spelled out.
const NAMED: usize = 64;

/// Letters that no English word has twice in a row, or hardly one.
const SINGLE: &str = "ahijkquvyAHIJKQUVY";
/// A word of these is a number, or says `xxx`.
const ROMAN: &str = "ivx";

/// Between spaced-out letters, up to [`WIDEST`] of the same.
const GAPS: &str = " .-*_·•,/|~:\n\t='–—";
const WIDEST: usize = 3;

/// Signs in a row, with whatever space between them, that are no ornament any more but fill a window of the classifier:
/// of more the first [`SIGNS_KEPT`] stay.
const SIGNS: usize = 8;
const SIGNS_KEPT: usize = 3;

/// Letters for every two parts of a word in `CamelCase`, at least, and how often it rises: else it is `wRiTtEn LiKe ThIs`.
const HUMPS: usize = 5;
const RISES: usize = 2;

/// The text without invisible signs and disguises; itself where it has none, as most have.
#[must_use]
pub(crate) fn normalise(text: &str) -> Cow<'_, str> {
    let lines = with_line_ends(text);
    // Of ASCII nothing is folded: most texts are spared that.
    let latin = if lines.is_ascii() { lines } else { Cow::Owned(folded(&lines)) };
    // Twice: the gaps of `s.h.!.t` show once its sign is a letter, the word in `k 1 l l` once its gaps are closed.
    let latin = then(latin, |text| map_runs(text, is_no_space, without_leet));
    let latin = then(latin, with_gaps_closed);
    let latin = then(latin, |text| map_runs(text, is_no_space, without_leet));
    let latin = then(latin, |text| map_runs(text, is_sign, with_row_cut));
    let latin = then(latin, |text| map_runs(text, is_letter_or_mark, with_humps_apart));
    then(latin, |text| map_runs(text, is_letter_or_mark, |word| then(in_one_case(word), with_repeats_cut)))
}

/// A line ends with one sign, as a gap between letters is of one kind. Other controls show nothing, and some tokenizers
/// join what they part.
fn with_line_ends(text: &str) -> Cow<'_, str> {
    let ends = |c: char| matches!(c, '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let shows = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    if !text.contains("\r\n") && text.chars().all(|c| shows(c) && !ends(c)) {
        return text.into();
    }
    let lines = text.replace("\r\n", "\n").replace(ends, "\n");
    lines.chars().filter(|&c| shows(c)).collect()
}

/// What `change` makes of a text; what it only borrows is that text.
fn then<'a>(text: Cow<'a, str>, change: impl for<'b> Fn(&'b str) -> Cow<'b, str>) -> Cow<'a, str> {
    match text {
        Cow::Borrowed(text) => change(text),
        Cow::Owned(text) => {
            let changed = match change(&text) {
                Cow::Borrowed(_) => None,
                Cow::Owned(changed) => Some(changed),
            };
            Cow::Owned(changed.unwrap_or(text))
        }
    }
}

fn is_no_space(c: char) -> bool {
    !c.is_whitespace()
}

/// The text without invisible signs and decoration, in plain letters where they pass for such.
fn folded(text: &str) -> String {
    let visible: String = turned(text).chars().filter(|&c| !is_invisible(c)).map(blank).map(unboxed).collect();
    let mut folded = String::with_capacity(visible.len());
    for part in visible.split_inclusive(is_lone_jamo) {
        // Lone Korean letters stay: NFKC would tear them from the alphabet that people type.
        let end = part.char_indices().next_back().filter(|&(_, c)| is_lone_jamo(c)).map_or(part.len(), |(at, _)| at);
        let plain = part[..end].nfkc().filter(|&c| !is_invisible(c));
        folded.extend(plain.map(|c| if is_pattern(c) { ' ' } else { c }));
        folded.push_str(&part[end..]);
    }
    let named = with_emoji_named(&folded);
    without_decoration(&with_confusables_folded(&named))
}

/// What an override has shown from right to left, up to its end or that of the line, in the order in which it is read.
fn turned(text: &str) -> Cow<'_, str> {
    const OVERRIDE: char = '\u{202e}';
    let Some((before, mut rest)) = text.split_once(OVERRIDE) else { return text.into() };
    let mut out = before.to_owned();
    loop {
        let end = rest.find(['\u{202c}', '\n']).unwrap_or(rest.len());
        out.extend(rest[..end].chars().rev());
        let Some((between, next)) = rest[end..].split_once(OVERRIDE) else {
            out.push_str(&rest[end..]);
            return out.into();
        };
        out.push_str(between);
        rest = next;
    }
}

/// A word in `CamelCase` as the words that it is made of.
fn with_humps_apart(word: &str) -> Cow<'_, str> {
    if 2 * word.len() < HUMPS * (RISES + 1) || word.chars().skip(1).all(|c| !c.is_uppercase()) {
        return word.into();
    }
    let chars: Vec<char> = word.chars().collect();
    let rises = |pair: &[char; 2]| pair[0].is_lowercase() && pair[1].is_uppercase();
    let begins = |at: usize| {
        let [before, here] = [chars[at - 1], chars[at]];
        let ends_capitals = || before.is_uppercase() && chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        here.is_uppercase() && (before.is_lowercase() || ends_capitals())
    };
    let parts = 1 + (1..chars.len()).filter(|&at| begins(at)).count();
    if chars.array_windows().filter(|pair| rises(pair)).count() < RISES || 2 * chars.len() < HUMPS * parts {
        return word.into();
    }
    let mut out = String::with_capacity(word.len() + parts);
    for (at, &c) in chars.iter().enumerate() {
        if at > 0 && begins(at) {
            out.push(' ');
        }
        out.push(c);
    }
    out.into()
}

/// A row of more than [`SIGNS`] signs as its first ones.
fn with_row_cut(row: &str) -> Cow<'_, str> {
    let signs = row.chars().filter(|&c| is_no_space(c));
    if row.len() <= SIGNS || signs.clone().nth(SIGNS).is_none() {
        return row.into();
    }
    let kept: String = signs.take(SIGNS_KEPT).collect();
    format!(" {kept} ").into()
}

/// What is neither letter nor digit.
fn is_sign(c: char) -> bool {
    !c.is_numeric() && !is_letter_or_mark(c)
}

/// A word with a capital behind its first letter in small ones: `kIlL`, `KILL`. Some tokenizers tell them apart.
fn in_one_case(word: &str) -> Cow<'_, str> {
    if word.chars().skip(1).any(char::is_uppercase) { word.to_lowercase().into() } else { word.into() }
}

/// Soft hyphen, joiners, bidirectional marks, variation selectors, tags; skin tones, which only colour the
/// sign before them; and lines under or through a sign, which strike out a whole text with its gaps and digits.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{332}'..='\u{338}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{1f3fb}'..='\u{1f3ff}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// A space for what looks like one and counts as a letter or a sign: the empty Braille cell, the fillers of Korean.
fn blank(c: char) -> char {
    if matches!(c, '\u{2800}' | '\u{3164}' | '\u{ffa0}') { ' ' } else { c }
}

/// Signs that say nothing and are no punctuation to a tokenizer, which takes the words on either side for one: arrows,
/// operators, frames, blocks, shapes, Braille.
fn is_pattern(c: char) -> bool {
    matches!(c,
        '¦' | '©' | '¬' | '®' | '°' | '±' | '×' | '÷' | '\u{2190}'..='\u{25ff}' | '\u{27c0}'..='\u{2aff}'
        | '\u{fffc}' | '\u{fffd}')
}

/// The small letter that is boxed in `c`; any other sign as it is.
fn unboxed(c: char) -> char {
    let place = |first: char| u32::from(c).checked_sub(u32::from(first)).filter(|&place| place < 26);
    BOXED.into_iter().find_map(place).and_then(|place| char::from_u32(u32::from('a') + place)).unwrap_or(c)
}

fn is_lone_jamo(c: char) -> bool {
    ('\u{3131}'..='\u{318e}').contains(&c)
}

pub(crate) fn is_emoji(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

/// Emoji by their names, the same in a row at most twice. A name may take a dozen tokens: of a text full of emoji the
/// first [`NAMED`] say enough.
fn with_emoji_named(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut named, mut last, mut repeats) = (0, None, 0);
    for c in text.chars() {
        repeats = if last == Some(c) { repeats + 1 } else { 1 };
        last = Some(c);
        if !is_emoji(c) {
            out.push(c);
        } else if repeats <= 2 && named < NAMED {
            named += 1;
            let name = unicode_names2::name(c).map(|name| name.to_string().to_lowercase()).unwrap_or_default();
            // Unicode calls the knife by its Japanese name.
            let name = name.replace("hocho", "knife");
            // Of an outlined or a filled sign only the shape matters.
            let shape: Vec<&str> = name
                .split(' ')
                .enumerate()
                .filter(|&(at, word)| {
                    let last = at + 1 == name.split(' ').count();
                    last || !matches!(word, "black" | "white" | "heavy")
                })
                .map(|(_, word)| word)
                .collect();
            out.push(' ');
            out.push_str(&shape.join(" "));
            out.push(' ');
        } else if repeats <= 2 {
            out.push(' ');
        }
    }
    out
}

fn lower(c: char) -> char {
    let mut lowered = c.to_lowercase();
    match (lowered.next(), lowered.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

fn confusable(c: char) -> Option<char> {
    if c.is_ascii() { None } else { LATIN.get(&lower(c)).copied() }
}

/// Whether a word is of letters that pass for Latin ones, one of them of no alphabet that look-alikes are words in.
fn is_styled(word: &str) -> bool {
    word.chars().any(|c| confusable(c).is_some() && !is_foreign(c))
        && word.chars().all(|c| confusable(c).is_some() || is_combining_mark(c))
}

/// What a word is made of: vowel signs and other marks belong to the letter before them.
fn is_letter_or_mark(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphabetic() } else { c.is_alphabetic() || is_combining_mark(c) }
}

/// Letters of the alphabets that look-alikes are taken from and texts are written in: Greek, Cyrillic, Armenian.
fn is_foreign(c: char) -> bool {
    matches!(c,
        '\u{386}'..='\u{481}' | '\u{48a}'..='\u{52f}' | '\u{531}'..='\u{556}' | '\u{561}'..='\u{587}'
        | '\u{1f00}'..='\u{1fff}')
}

/// Confusable letters as Latin ones, unless the text is truly written in their alphabet: words with some other letter of it
/// tell, as long as a text in Latin letters does not merely hold a few. Letters of further scripts, accented Latin ones
/// among them, say nothing of that.
fn with_confusables_folded(text: &str) -> String {
    if text.is_ascii() {
        return text.to_owned();
    }
    let is_latin = |word: &str| word.chars().any(|c| c.is_ascii_alphabetic());
    let is_true = |word: &str| word.chars().any(|c| is_foreign(c) && confusable(c).is_none());
    let words = || text.split(|c| !is_letter_or_mark(c));
    let (latin, foreign) =
        (words().filter(|word| is_latin(word)).count(), words().filter(|word| is_true(word)).count());
    let everywhere = latin > 0 && (foreign == 0 || latin >= FEW_WORDS && latin > foreign);
    map_runs(text, is_letter_or_mark, |word| {
        if is_latin(word) || is_styled(word) || everywhere && !is_true(word) {
            word.chars().map(|c| confusable(c).unwrap_or(c)).collect()
        } else {
            word.into()
        }
    })
    .into_owned()
}

/// The text without marks directly behind a visible ASCII sign. NFKC has composed those that make a letter; marks on
/// other letters may be how a language is written, and marks of one script are no decoration.
fn without_decoration(text: &str) -> String {
    let mut decorated = false;
    text.chars()
        .filter(|&c| {
            let decoration = decorated && is_decoration(c);
            decorated = decoration || c.is_ascii_graphic();
            !decoration
        })
        .collect()
}

/// The blocks of combining marks that belong to no script, and the signs around numbers of old Cyrillic.
fn is_decoration(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{a66f}'..='\u{a672}' | '\u{fe20}'..='\u{fe2f}')
}

/// `k i l l`, `k.i.l.l` and `k  i  l  l` as one word: three letters or more, each alone between the same signs.
fn with_gaps_closed(text: &str) -> Cow<'_, str> {
    let is_gap = |sign: u8| GAPS.contains(char::from(sign));
    // A letter alone between two gaps, wide or not.
    let spaced = |signs: &[u8; 3]| is_gap(signs[0]) && signs[0] == signs[2] && !is_gap(signs[1]);
    if text.is_ascii() && !text.as_bytes().array_windows().any(spaced) {
        return text.into();
    }
    let chars: Vec<char> = text.chars().collect();
    let is_letter = |at: usize| chars.get(at).is_some_and(|&c| c.is_numeric() || is_letter_or_mark(c));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let alone = is_letter(at) && (at == 0 || !is_letter(at - 1));
        let gap = chars.get(at + 1).copied().filter(|&c| GAPS.contains(c));
        let (mut end, mut step) = (at, 1);
        if let (true, Some(gap)) = (alone, gap) {
            let wide = chars[at + 1..].iter().take(WIDEST + 1).take_while(|&&c| c == gap).count();
            step = wide + 1;
            let closes = |end: usize| chars[end + 1..].iter().take(wide).filter(|&&c| c == gap).count() == wide;
            while wide <= WIDEST && closes(end) && is_letter(end + step) {
                end += step;
            }
            // The last one may begin a longer word.
            if is_letter(end + 1) {
                end = end.saturating_sub(step).max(at);
            }
        }
        if end >= at + 2 * step {
            out.extend(chars[at..=end].iter().step_by(step));
            at = end + 1;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out.into()
}

/// Letters and marks that stand three times or more in a row, twice; once where no English word, or hardly one, has
/// them twice. `VIII` is no word that was stretched, and `KKK` hardly.
fn with_repeats_cut(word: &str) -> Cow<'_, str> {
    let thrice = |signs: &[u8; 3]| signs[0] == signs[1] && signs[1] == signs[2];
    if word.is_ascii() && !word.as_bytes().array_windows().any(thrice) || word.chars().all(|c| ROMAN.contains(lower(c)))
    {
        return word.into();
    }
    let stretched = !word.chars().map(lower).all(|c| word.starts_with(|first| lower(first) == c));
    let mut out = String::with_capacity(word.len());
    let (mut last, mut count) = (None, 0);
    for c in word.chars() {
        count = if last == Some(c) { count + 1 } else { 1 };
        last = Some(c);
        if count < 3 {
            out.push(c);
        } else if count == 3 && stretched && SINGLE.contains(c) {
            out.pop();
        }
    }
    out.into()
}

/// `text` with every run of characters that are `inside` passed through `change`.
fn map_runs(
    text: &str,
    inside: impl Fn(char) -> bool,
    change: impl for<'a> Fn(&'a str) -> Cow<'a, str>,
) -> Cow<'_, str> {
    let mut out = String::new();
    // What of the text is in `out`, and what was looked at.
    let (mut copied, mut seen) = (0, 0);
    while let Some(start) = text[seen..].find(&inside).map(|length| seen + length) {
        let end = text[start..].find(|c| !inside(c)).map_or(text.len(), |length| start + length);
        if let Cow::Owned(changed) = change(&text[start..end]) {
            out.push_str(&text[copied..start]);
            out.push_str(&changed);
            copied = end;
        }
        seen = end;
    }
    if copied == 0 {
        return text.into();
    }
    out.push_str(&text[copied..]);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ascii_nothing_is_folded() {
        let every: String = (0..128_u8).map(char::from).collect();
        assert_eq!(folded(&every), every);
        // In any company: each sign beside each other one.
        for first in 0..128_u8 {
            let beside: String = (0..128_u8).flat_map(|second| [first, second, first]).map(char::from).collect();
            assert_eq!(folded(&beside), beside);
        }
    }

    #[test]
    fn a_text_reads_as_it_did_in_training() {
        let cases: Vec<(String, String)> =
            serde_json::from_str(include_str!("../../tests/fixtures/normalise.json")).unwrap();
        assert!(cases.len() > 80);
        for (raw, expected) in cases {
            assert_eq!(normalise(&raw), expected, "of {raw:?}");
        }
    }

    #[test]
    fn any_text_is_normalised_without_a_panic() {
        use proptest::prelude::*;
        proptest!(|(text in "\\PC{0,60}")| {
            let once = normalise(&text);
            prop_assert!(!once.chars().any(is_invisible));
        });
    }
}
