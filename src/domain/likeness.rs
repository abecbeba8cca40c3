//! What an expression must keep of its text, and must neither keep nor add: facts stay, wording changes.

use std::{collections::BTreeSet, mem};

use super::Language;

/// Tenths of an answer's words, and of the text's, that stand in the other in the same order where it is a copy.
const COPIED_TENTHS: usize = 9;

/// Of so many words of a text an answer that says it over may have lost one.
const SLIPPED_MOST: usize = 3;

/// Units of a run that is a loop where it stands twice.
const LOOPED_WORDS: usize = 3;
const LOOPED_CHARACTERS: usize = 8;

/// Numbers that English often writes as words. An ordinal counts as its number: "May 1st" is "1 May" too.
const NUMBER_WORDS: [(&str, u32); 42] = [
    ("zero", 0),
    ("one", 1),
    ("two", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
    ("six", 6),
    ("seven", 7),
    ("eight", 8),
    ("nine", 9),
    ("ten", 10),
    ("eleven", 11),
    ("twelve", 12),
    ("thirteen", 13),
    ("fourteen", 14),
    ("fifteen", 15),
    ("sixteen", 16),
    ("seventeen", 17),
    ("eighteen", 18),
    ("nineteen", 19),
    ("twenty", 20),
    ("thirty", 30),
    ("forty", 40),
    ("fifty", 50),
    ("sixty", 60),
    ("seventy", 70),
    ("eighty", 80),
    ("ninety", 90),
    ("first", 1),
    ("second", 2),
    ("third", 3),
    ("fourth", 4),
    ("fifth", 5),
    ("sixth", 6),
    ("seventh", 7),
    ("eighth", 8),
    ("ninth", 9),
    ("tenth", 10),
    ("hundred", 100),
    ("thousand", 1000),
    ("both", 2),
    ("twice", 2),
];

/// On their own, these often count nothing: "one never knows", "at first", "a second", "a thousand times".
const LOOSE: [&str; 8] = ["zero", "one", "first", "second", "hundred", "thousand", "both", "twice"];

/// Neighbours of which one is a number word that counts nothing: "a day or two", "the two of us".
const IDIOMS: [(&str, &str); 13] = [
    ("a", "third"),
    ("cloud", "nine"),
    ("high", "five"),
    ("or", "two"),
    ("own", "two"),
    ("seventh", "heaven"),
    ("sixth", "sense"),
    ("the", "two"),
    ("these", "two"),
    ("two", "faced"),
    ("two", "thirds"),
    ("us", "two"),
    ("you", "two"),
];

/// Titles that are written short. The full stop of one ends no sentence.
pub const TITLES: [&str; 10] = ["Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mme", "Dra", "Sr", "Sra"];

/// Words with a capital that name nobody: titles in full, oaths, and "I" without its apostrophe.
const NO_NAMES: [&str; 16] = [
    "doctor",
    "doctora",
    "professor",
    "mister",
    "madame",
    "monsieur",
    "señor",
    "señora",
    "god",
    "dieu",
    "dios",
    "deus",
    "ok",
    "okay",
    "im",
    "ive",
];

/// Words that French joins to the next by an apostrophe.
const ELIDED: [&str; 9] = ["d", "l", "j", "qu", "m", "s", "n", "c", "t"];

/// What a sentence inside a sentence opens with.
const OPENING: [char; 15] = ['"', '“', '”', '„', '«', '‹', '\'', '‘', '’', '‚', '(', '[', '{', '¿', '¡'];
/// What may follow the sign that ends one.
const CLOSING: [char; 7] = ['"', '”', '’', '\'', ')', ']', '»'];

/// The share of the text's numbers and names that the answer names too, from 0 to 1; 1 where the text has none.
///
/// A number is a run of digits with what joins them ("7:42", "1,200") or, in English, words ("twenty-five"), however
/// it is written; a name is a word with a capital that does not open a sentence. German, the language of the text,
/// gives every noun one: there, names are not told.
pub fn facts_kept(text: &str, answer: &str, language: Language) -> f64 {
    let wanted = facts(text, language);
    if wanted.is_empty() {
        return 1.0;
    }
    let said = forms(answer);
    let (kept, all) = wanted
        .iter()
        .fold((0.0, 0.0), |(kept, all), fact| (if is_among(fact, &said) { kept + 1.0 } else { kept }, all + 1.0));
    kept / all
}

/// How many numbers and names of the answer the text has in no form.
pub fn facts_invented(text: &str, answer: &str, language: Language) -> usize {
    let known = forms(text);
    facts(answer, language).iter().filter(|fact| !is_among(fact, &known)).count()
}

/// How many of the text's words an answer loses that has most of them: it says the text over and slips, as in "my right
/// mirror" for the left one. One that says it in other words loses none.
///
/// Told of scripts with spaces only, and not of Korean, whose words end otherwise where a sentence goes on.
pub fn slips(text: &str, answer: &str) -> usize {
    // However the apostrophe is typed.
    let all = |text: &str| -> BTreeSet<String> { words(&text.replace('’', "'")).collect() };
    let (asked, said) = (all(text), all(answer));
    let lost = asked.difference(&said).count();
    if is_wide(text) || SLIPPED_MOST * lost > asked.len() { 0 } else { lost }
}

/// Whether the answer runs in a circle: a run of words that its text does not repeat, or a whole sentence, twice.
pub fn loops(text: &str, answer: &str) -> bool {
    let length = if is_wide(answer) { LOOPED_CHARACTERS } else { LOOPED_WORDS };
    let (before, said) = (units(text), units(answer));
    let is_refrain = |run: &[String]| before.windows(length).filter(|other| *other == run).count() > 1;
    let mut runs = BTreeSet::new();
    if said.windows(length).any(|run| !runs.insert(run) && !is_refrain(run)) {
        return true;
    }
    let mut seen = BTreeSet::new();
    sentences(answer).into_iter().any(|sentence| !seen.insert(sentence))
}

/// Whether a sentence of the answer goes on behind its end, as in "We won!, and": the model hung something on the text.
pub fn runs_on(text: &str, answer: &str) -> bool {
    ["!,", "?,"].into_iter().any(|signs| answer.contains(signs) && !text.contains(signs))
}

/// Whether the answer says the text over again: hardly a word of it is new, and hardly one left out.
pub fn repeats(text: &str, answer: &str) -> bool {
    let (text, answer) = (units(text), units(answer));
    if text == answer {
        return true;
    }
    10 * in_common(&text, &answer) >= COPIED_TENTHS * text.len().max(answer.len())
}

/// The numbers and names of a text, each once.
fn facts(text: &str, language: Language) -> BTreeSet<String> {
    let mut facts: BTreeSet<String> = numbers(text).collect();
    // Elsewhere the same letters are other words: the Spanish "ten" is "have".
    if language == Language::English {
        facts.extend(spelled_numbers(text).into_iter().filter(|(_, counts)| *counts).map(|(number, _)| number));
    }
    if language != Language::German {
        facts.extend(names(text));
    }
    facts
}

/// All that a fact may be in a text: a number, a number in words, a word in lower case.
fn forms(text: &str) -> BTreeSet<String> {
    let mut forms: BTreeSet<String> = words(text).collect();
    forms.extend(words(text).filter_map(|word| after_elision(&word).map(str::to_owned)));
    forms.extend(numbers(text));
    forms.extend(spelled_numbers(text).into_iter().map(|(number, _)| number));
    forms
}

/// "On Saturdays" is kept by "next Saturday".
fn is_among(fact: &str, forms: &BTreeSet<String>) -> bool {
    forms.contains(fact)
        || forms.contains(&format!("{fact}s"))
        || fact.strip_suffix('s').is_some_and(|one| forms.contains(one))
}

/// Digits with the signs between them, without any that end a sentence.
///
/// A comma before just three digits parts thousands, any other one numbers: "4,5,6".
fn numbers(text: &str) -> impl Iterator<Item = String> {
    let mut found: Vec<String> = Vec::new();
    for run in text.split(|c: char| !c.is_numeric() && !matches!(c, '.' | ',' | ':' | '/')) {
        let mut joins = false;
        for part in run.split(',') {
            let thousands = joins && part.chars().take_while(|c| c.is_numeric()).count() == 3;
            match found.last_mut() {
                Some(number) if thousands => number.push_str(part),
                _ => found.push(part.to_owned()),
            }
            joins = part.ends_with(char::is_numeric);
        }
    }
    found
        .into_iter()
        .map(|number| number.trim_matches(|c: char| !c.is_numeric()).to_owned())
        .filter(|number| !number.is_empty())
}

/// Numbers in words, as digits, each with whether it surely counts something.
fn spelled_numbers(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    // A sign parts numbers: "twenty, five" is no 25.
    let parts = |c: char| !c.is_alphanumeric() && !c.is_whitespace() && !matches!(c, '\'' | '’' | '-' | '\u{2011}');
    for clause in text.split(parts) {
        let said: Vec<String> = words(clause).collect();
        let mut rest = said.as_slice();
        let mut before = "";
        while let Some((word, after)) = rest.split_first() {
            rest = after;
            let word = word.as_str();
            if let Some(start) = worth(word) {
                let mut number = start;
                while let Some((next, after)) = rest.split_first()
                    && let Some(more) = joined(number, next)
                {
                    (number, rest) = (more, after);
                }
                let next = rest.first().map_or("", String::as_str);
                let idle = LOOSE.contains(&word) || IDIOMS.contains(&(before, word)) || IDIOMS.contains(&(word, next));
                found.push((number.to_string(), number != start || !idle));
            }
            before = word;
        }
    }
    found
}

/// The number that a number makes with the next word; none where that is not a part of it.
fn joined(number: u32, word: &str) -> Option<u32> {
    let (hundreds, tens) = (number % 1000, number % 100);
    match word {
        "and" if number > 0 && tens == 0 => Some(number),
        "hundred" if (1..100).contains(&hundreds) => Some(number + 99 * hundreds),
        "thousand" if (1..1000).contains(&number) => Some(1000 * number),
        _ => {
            let room = match tens {
                0 if number > 0 => 100,
                20 | 30 | 40 | 50 | 60 | 70 | 80 | 90 => 10,
                _ => 0,
            };
            worth(word).filter(|more| (1..room).contains(more)).map(|more| number + more)
        }
    }
}

fn worth(word: &str) -> Option<u32> {
    NUMBER_WORDS.iter().find(|(name, _)| *name == word).map(|(_, number)| *number)
}

/// Words in lower case, without a possessive ending.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    pieces(text).filter_map(plain)
}

/// Words as they are written, with the apostrophes about them.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '\'' | '’'))
}

fn plain(word: &str) -> Option<String> {
    let word = word.trim_matches(['\'', '’']).to_lowercase();
    let word = word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(&word);
    (!word.is_empty()).then(|| word.to_owned())
}

/// What follows an elided word: the "Anna" of "d'Anna".
fn after_elision(word: &str) -> Option<&str> {
    let (elided, rest) = word.split_once(['\'', '’'])?;
    (!rest.is_empty() && ELIDED.contains(&elided.to_lowercase().as_str())).then_some(rest)
}

/// Words with a capital inside a sentence. A text in capitals throughout has no names to tell.
fn names(text: &str) -> Vec<String> {
    if !text.chars().any(char::is_lowercase) {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut opens = true;
    for token in text.split_whitespace() {
        opens = opens || token.starts_with(OPENING);
        let word = bare(token);
        // Where a word is elided, that one opens the sentence, not the name behind it: "L'Espagne".
        let rest = after_elision(word);
        let capital = rest.unwrap_or(word);
        if capital.starts_with(char::is_uppercase) && (rest.is_some() || !opens) {
            out.extend(pieces(capital).filter_map(name));
        }
        opens = word.is_empty() || closes(token) || token.trim_end_matches(CLOSING).ends_with([':', '-', '–', '—']);
    }
    out
}

/// A word with a capital as a fact; none where it names nobody.
fn name(word: &str) -> Option<String> {
    if !word.starts_with(char::is_uppercase) || !word.contains(char::is_lowercase) || TITLES.contains(&word) {
        return None;
    }
    plain(word).filter(|name| !NO_NAMES.contains(&name.as_str()) && !name.starts_with("i'") && !name.starts_with("i’"))
}

/// A word without the signs about it.
fn bare(token: &str) -> &str {
    token.trim_matches(|c: char| !c.is_alphanumeric())
}

/// Whether a sentence ends with this token: the full stop of a title or an initial ends none.
fn closes(token: &str) -> bool {
    let end = token.trim_end_matches(CLOSING);
    let word = bare(token);
    let mut letters = word.chars();
    let initial = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none() && word != "I";
    end.ends_with(['!', '?', '…']) || (end.ends_with('.') && !initial && !TITLES.contains(&word))
}

/// The units of each sentence.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for part in text.split(['。', '！', '？', '\n']) {
        let mut sentence = Vec::new();
        for token in part.split_whitespace() {
            sentence.extend(units(token));
            if closes(token) {
                found.push(mem::take(&mut sentence));
            }
        }
        found.push(sentence);
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Words; in scripts without spaces, characters.
fn units(text: &str) -> Vec<String> {
    if is_wide(text) {
        text.chars().filter(|c| c.is_alphanumeric()).map(String::from).collect()
    } else {
        words(text).collect()
    }
}

/// Whether a text is in a script whose characters stand for words: Japanese, Chinese, Korean.
fn is_wide(text: &str) -> bool {
    text.chars().any(|c| matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'))
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

    #[test]
    fn a_slip_is_a_word_that_is_lost_where_the_text_is_said_over() {
        let mirror = "Die Waschanlage hat meinen linken Spiegel abgerissen.";
        for (text, answer, lost) in [
            (mirror, "Die Waschanlage hat meinen rechten Spiegel abgerissen, und das ist ärgerlich.", 1),
            (mirror, "Leider hat die Waschanlage meinen linken Spiegel abgerissen.", 0),
            (mirror, "Mein Auto hat nur noch einen Spiegel.", 0),
            ("We won the cup", "We won the cup, and I'm so glad.", 0),
            ("Won the cup", "Lost the cup, and I'm so sad.", 1),
            ("Anna’s cat didn’t eat", "Anna's cat didn't eat, and I'm worried.", 0),
            ("歯が痛い。", "歯が痛くて、何も手につかない。", 0),
            ("", "I'm glad.", 0),
        ] {
            assert_eq!(slips(text, answer), lost, "{text} {answer}");
        }
    }

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
    #[expect(clippy::float_cmp, reason = "shares of small counts are exact")]
    fn a_fact_is_the_same_however_it_is_written() {
        for (text, answer, share) in [
            ("My boss said \"You are late again\"", "My boss told me off for being late", 1.0),
            ("He asked (He always asks) about it", "That question again", 1.0),
            ("Oh my God, I'm OK", "All is well", 1.0),
            ("Parcel left at number 14, signed for by Mrs. Adeyemi.", "Mrs. Adams has the parcel from number 14", 0.5),
            ("I saw Dr. Lee today", "Doctor Lee saw me", 1.0),
            ("I saw Dr. Lee today", "The doctor saw me", 0.0),
            ("A letter from J. Okafor came", "A letter came", 0.0),
            ("So did I. Then we left", "We left as well", 1.0),
            ("I turned 25 today", "I turned twenty-five today", 1.0),
            ("I turned 25 today", "I turned twenty five today", 1.0),
            ("I turned 25 today", "Of all twenty, five came", 0.0),
            ("It cost 2,350 in all", "It cost two thousand three hundred and fifty", 1.0),
            ("I came 1st", "I came first", 1.0),
            ("I came 3rd", "I came second", 0.0),
            ("On the fifth of May", "On 5 May", 1.0),
            ("Hier j'ai vu Anna au parc", "La visite d'Anna m'a plu", 1.0),
            ("La visite d’Anna m’a plu", "Elle m’a plu", 0.0),
            ("L'Espagne me manque", "Le pays me manque", 0.0),
            ("I rolled 4,5,6", "I rolled 4, 5 and 6", 1.0),
            ("I won 1,200,000", "I won 1200000", 1.0),
            ("Fourteen girls and twelve boys", "ten girls and twelve boys", 0.5),
            ("Fourteen girls and twelve boys", "14 girls and 12 boys", 1.0),
            ("My two sons sing", "Both sons sing", 1.0),
            ("One never knows, and at first I was on cloud nine for a day or two", "It was nice", 1.0),
        ] {
            assert_eq!(kept(text, answer), share, "{text} | {answer}");
        }
        assert_eq!(facts_kept("Ten paciencia", "Espera", Language::Spanish), 1.0, "no number in Spanish");
    }

    #[test]
    fn what_the_text_does_not_say_is_invented() {
        for (text, answer, count) in [
            ("I saw Dr. Lee on the 3rd", "Doctor Lee saw me on day three", 0),
            ("my sister anna turned twenty-five", "A toast to Anna at 25", 0),
            ("Paid on Saturdays", "Paid each Saturday", 0),
            ("Hier j'ai vu Anna", "La joie d'Anna m'a plu", 0),
            ("The bus was late", "One could say the bus, thank God, is OK, and I'm at peace for a second", 0),
            ("The bus was late", "It said: \"Wait for me\" (No thanks)", 0),
            ("The bus was late", "The bus to Leeds was late on Monday in May", 3),
            ("The bus was late", "All 14 of us waited twenty minutes", 2),
            ("Mrs. Adeyemi signed", "The signature is from Mrs. Adams", 1),
        ] {
            assert_eq!(facts_invented(text, answer, Language::English), count, "{text} | {answer}");
        }
        assert_eq!(facts_invented("Der Bus kam", "Um 7 kam der Bus nach Köln", Language::German), 1);
    }

    #[test]
    fn a_loop_is_told_from_a_refrain() {
        for (text, answer, looped) in [
            ("I am tired", "I want to rest because I want to rest", true),
            ("I want to rest, I want to sleep", "I want to go and I want to stay", false),
            ("I am tired", "I want a rest and I want to sleep", false),
            ("I am tired", "So tired! Home was far. So tired.", true),
            ("I am tired", "Ask J. J. Lee, or Mr. Kim and Mr. Lee.", false),
            ("今日は雨です", "雨の日も悪くないと思うし雨の日も悪くない", true),
            ("今日は雨です", "雨です。本当に雨です。", false),
            ("今日は雨です", "雨です。雨です。", true),
        ] {
            assert_eq!(loops(text, answer), looped, "{answer}");
        }
    }

    #[test]
    fn a_sentence_that_goes_on_behind_its_end_is_seen() {
        for (text, answer, on) in [
            ("we drew 2-2!", "We drew 2-2!, and I'm proud of us.", true),
            ("Who took it?", "Who took it?, I wonder.", true),
            ("He shouted \"now!\", then left", "He shouted \"now!\", then left, and I'm glad.", false),
            ("The van comes at 7 p.m.", "The van comes at 7 p.m., and I'm glad.", false),
        ] {
            assert_eq!(runs_on(text, answer), on, "{answer}");
        }
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
