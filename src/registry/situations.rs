//! The file of a judge's bundle that says what people wrote: attitudes, replies, how those name what a text speaks of, and replies
//! for some texts of the situations that it tells.
//!
//! Owns its form. Refuses a file in which a sentence is missing: where it is likeliest nothing could be said.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;

use super::{Bundle, BundleError};
use crate::domain::{Attitudes, Language, Naming, Particular, Situations, naming::GAP};

/// Of a situation: all that is written is kept in memory, and is looked through for each answer.
const MOST_SENTENCES: usize = 16;
/// Of a kind that is chosen one by one, in one language.
const MOST_ATTITUDES: usize = 256;
/// That can be named, in one language.
const MOST_NOUNS: usize = 8_192;
/// Of a sentence.
const MOST_CHARACTERS: usize = 200;

/// For every situation, replies for some of its texts: the words of which a text must have one, and the reply.
type OfVariants = Vec<Vec<(Vec<String>, String)>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// How probable a situation must be; nothing where none is told.
    #[serde(default)]
    least: f32,
    /// Of the situations, in the order of the judge's output; none where it tells none.
    #[serde(default)]
    names: Vec<String>,
    /// For languages that have them, by code; they come before those that are chosen one by one.
    #[serde(default)]
    particular: BTreeMap<String, OfVariants>,
    /// For each language, by its code, the positive attitudes, the negative ones, and the replies, if any, in the order of the
    /// judge's output.
    attitudes: BTreeMap<String, [Vec<String>; 3]>,
    /// For languages that have any, by code: nouns, and the replies among these with a gap for one, empty where there is no place.
    #[serde(default)]
    naming: BTreeMap<String, (Vec<String>, Vec<String>)>,
}

/// What a judge's bundle has to say of situations; none where it tells none.
///
/// # Errors
/// [`BundleError`] for a file that cannot be read or does not have the sentences.
pub fn of(bundle: &Bundle) -> Result<Option<Situations>, BundleError> {
    let spec = bundle.manifest().answer_judge.as_ref();
    let Some(name) = spec.and_then(|spec| spec.situations.as_ref()) else { return Ok(None) };
    let path = bundle.file(name);
    let bytes = fs::read(&path).map_err(|cause| BundleError::Unreadable { path: path.clone(), cause })?;
    parsed(&bytes).map(Some).map_err(|reason| BundleError::Malformed { path, reason })
}

fn parsed(bytes: &[u8]) -> Result<Situations, String> {
    let File { least, names, particular, attitudes, naming } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !(0.0..=1.0).contains(&least) || (least == 0.0 && !particular.is_empty()) {
        return Err("the least probability of a situation is not above 0 and at most 1".into());
    }
    let attitudes = attitudes_of(attitudes)?;
    let mut written = Vec::new();
    for (code, told) in particular {
        let language = language_of(&code)?;
        if !attitudes.iter().any(|(one, kinds)| *one == language && !kinds.reply.is_empty()) {
            return Err(format!("it has replies for some texts in {code}, and none for all"));
        }
        written.push((language, particular_of(told, &code, names.len())?));
    }
    let mut namings = Vec::new();
    for (code, (nouns, replies)) in naming {
        let language = language_of(&code)?;
        let count = attitudes.iter().find_map(|(one, kinds)| (*one == language).then_some(kinds.reply.len()));
        let faulty = |reply: &String| !reply.is_empty() && (reply.matches(GAP).count() != 1 || is_long(reply));
        if count != Some(replies.len()) || replies.iter().any(faulty) || nouns.len() > MOST_NOUNS || lacks(&nouns) {
            return Err(format!(
                "in {code}, for naming there are 1 to {MOST_NOUNS} nouns, and for each reply one with a single {GAP}, of at most {MOST_CHARACTERS} characters, or none"
            ));
        }
        let replies = replies.into_iter().map(|reply| Some(reply).filter(|reply| !reply.is_empty())).collect();
        namings.push((language, Naming { nouns: nouns.into_iter().collect(), replies }));
    }
    Ok(Situations { least, written, attitudes, naming: namings })
}

fn language_of(code: &str) -> Result<Language, String> {
    let language = Language::ALL.into_iter().find(|language| language.code() == code);
    language.ok_or_else(|| format!("{code:?} is no language that is answered"))
}

fn lacks(sentences: &[String]) -> bool {
    sentences.is_empty() || sentences.iter().any(|sentence| sentence.trim().is_empty())
}

fn is_long(sentence: &str) -> bool {
    sentence.chars().nth(MOST_CHARACTERS).is_some()
}

/// The sentences of every language that are chosen one by one: equally many, as one output of the judge tells how likely each fits.
fn attitudes_of(told: BTreeMap<String, [Vec<String>; 3]>) -> Result<Vec<(Language, Attitudes)>, String> {
    let mut attitudes: Vec<(Language, Attitudes)> = Vec::new();
    for (code, kinds) in told {
        let language = language_of(&code)?;
        let faulty = |kind: &Vec<String>| {
            kind.len() > MOST_ATTITUDES || lacks(kind) || kind.iter().any(|sentence| is_long(sentence))
        };
        let [positive, negative, reply] = &kinds;
        if [positive, negative].into_iter().chain(Some(reply).filter(|reply| !reply.is_empty())).any(faulty) {
            return Err(format!(
                "in {code}, each light has 1 to {MOST_ATTITUDES} attitudes, each of 1 to {MOST_CHARACTERS} characters, and so have replies"
            ));
        }
        let [positive, negative, reply] = kinds;
        let counts = |kinds: &Attitudes| [&kinds.positive, &kinds.negative, &kinds.reply].map(Vec::len);
        let attitudes_here = Attitudes { positive, negative, reply };
        if attitudes.first().is_some_and(|(_, others)| counts(others) != counts(&attitudes_here)) {
            return Err(format!("in {code} it has other attitudes than in another language"));
        }
        attitudes.push((language, attitudes_here));
    }
    Ok(attitudes)
}

/// For every situation the replies for some of its texts.
fn particular_of(told: OfVariants, code: &str, situations: usize) -> Result<Vec<Vec<Particular>>, String> {
    let blank = |words: &String| !words.contains(char::is_alphanumeric);
    let whole = |(words, reply): &(Vec<String>, String)| {
        !words.is_empty() && !words.iter().chain([reply]).any(blank) && reply.chars().nth(MOST_CHARACTERS).is_none()
    };
    if told.len() != situations || told.iter().any(|of_one| of_one.len() > MOST_SENTENCES || !of_one.iter().all(whole))
    {
        return Err(format!(
            "in {code}, replies for some texts are of all {situations} situations, at most {MOST_SENTENCES} of one, each with words and of at most {MOST_CHARACTERS} characters"
        ));
    }
    let named = |of_one: Vec<(Vec<String>, String)>| {
        of_one.into_iter().map(|(words, reply)| Particular { words, reply }).collect()
    };
    Ok(told.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_for_some_texts_are_whole_or_the_file_is_refused() {
        let attitudes = r#"{"de":[["a."],["b."],["c."]]}"#;
        let file = |particular: &str| {
            parsed(
                format!(r#"{{"least":0.5,"names":["won","lost"],"particular":{particular},"attitudes":{attitudes}}}"#)
                    .as_bytes(),
            )
        };
        let told = file(r#"{"de":[[[["Pokal"],"Ein Pokal!"]],[]]}"#).unwrap();
        let (language, of_all) = &told.written[0];
        assert_eq!(*language, Language::German);
        assert_eq!(of_all[0], [Particular { words: vec!["Pokal".into()], reply: "Ein Pokal!".into() }]);
        let fault = |particular: &str| file(particular).unwrap_err();
        for faulty in [r#"{"de":[[]]}"#, r#"{"de":[[[[],"g."]],[]]}"#, r#"{"de":[[[["!"],"g."]],[]]}"#] {
            assert!(fault(faulty).contains("in de, replies for some texts"), "{faulty}");
        }
        let many = format!(r#"{{"de":[[{}[["a"],"g."]],[]]}}"#, r#"[["a"],"g."],"#.repeat(16));
        assert!(fault(&many).contains("at most 16 of one"));
        assert!(fault(r#"{"fr":[[],[]]}"#).contains("none for all"));
        assert!(fault(r#"{"xx":[[],[]]}"#).contains("no language"));
        for least in [r#""least":2,"#, ""] {
            let file = format!(r#"{{{least}"names":["won"],"particular":{{"de":[[]]}},"attitudes":{attitudes}}}"#);
            assert!(parsed(file.as_bytes()).unwrap_err().contains("the least probability"), "{least}");
        }
    }

    #[test]
    fn every_reply_has_its_place_for_a_name_or_none_or_the_file_is_refused() {
        let file = |naming: &str| {
            let attitudes = r#"{"de":[["a."],["b."],["Schade!","d."]]}"#;
            parsed(format!(r#"{{"attitudes":{attitudes},"naming":{naming}}}"#).as_bytes())
        };
        let whole = file(r#"{"de":[["geige"],["Schade um {}!",""]]}"#).unwrap();
        assert_eq!(whole.named(Language::German, "Schade!", "My Geige"), Some("Schade um your geige!".into()));
        assert_eq!(whole.named(Language::German, "d.", "My Geige"), None);
        assert_eq!(whole.named(Language::German, "Schade um {}!", "My Geige"), None);
        assert_eq!(whole.named(Language::French, "Schade!", "My Geige"), None);
        for faulty in [
            r#"{"de":[[],["Schade um {}!",""]]}"#,
            r#"{"de":[[" "],["Schade um {}!",""]]}"#,
            r#"{"de":[["geige"],["Schade um {}!"]]}"#,
            r#"{"de":[["geige"],["Schade!",""]]}"#,
            r#"{"de":[["geige"],["{} und {}!",""]]}"#,
            r#"{"fr":[["geige"],["Schade um {}!",""]]}"#,
        ] {
            assert!(file(faulty).unwrap_err().contains("for naming there are"), "{faulty}");
        }
        assert!(file(r#"{"xx":[["geige"],[]]}"#).unwrap_err().contains("no language"));
    }

    #[test]
    fn every_language_has_the_same_attitudes_or_the_file_is_refused() {
        let file = |attitudes: &str| parsed(format!(r#"{{"attitudes":{attitudes}}}"#).as_bytes());
        let whole = file(r#"{"de":[["a."],["b.","c."],[]],"fr":[["d."],["e.","f."],[]]}"#).unwrap();
        assert_eq!(whole.attitudes(Language::French).unwrap().negative, ["e.", "f."]);
        assert_eq!(whole.attitudes(Language::Spanish), None);
        let fault = |attitudes: &str| file(attitudes).unwrap_err();
        for other in [r#"[["d."],["e.","f."],[]]"#, r#"[["d."],["e."],["f."]]"#] {
            let two = format!(r#"{{"de":[["a."],["b."],[]],"fr":{other}}}"#);
            assert!(fault(&two).contains("in fr it has other attitudes"), "{other}");
        }
        for faulty in [r#"{"de":[[],["b."],[]]}"#, r#"{"de":[["a."],[" "],[]]}"#, r#"{"de":[["a."],["b."],[" "]]}"#] {
            assert!(fault(faulty).contains("in de, each light has 1 to 256 attitudes"), "{faulty}");
        }
        assert!(fault(&format!(r#"{{"de":[["a."],[{}"b."],[]]}}"#, r#""b.","#.repeat(256))).contains("1 to 256"));
        assert!(fault(r#"{"xx":[["a."],["b."],[]]}"#).contains("no language"));
    }
}
