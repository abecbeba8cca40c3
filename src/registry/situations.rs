//! The file of a judge's bundle that says what people wrote for the situations that it tells.
//!
//! Owns its form. Refuses a file in which a sentence is missing: of a situation without one nothing could be said.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;

use super::{Bundle, BundleError};
use crate::domain::{Language, Particular, Sentences, Situations};

/// Of a situation and a kind: all that is written is kept in memory, and is put in order for each answer.
const MOST_SENTENCES: usize = 16;
/// Of a sentence.
const MOST_CHARACTERS: usize = 200;

/// For every situation, replies for some of its texts: the words of which a text must have one, and the reply.
type OfVariants = Vec<Vec<(Vec<String>, String)>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// How probable a situation must be.
    least: f32,
    /// Of the situations, in the order of the judge's output.
    names: Vec<String>,
    /// For each language, by its code, the sentences of every situation in that order: positive and negative attitudes,
    /// replies.
    sentences: BTreeMap<String, Vec<[Vec<String>; 3]>>,
    /// For languages that have them, by code.
    #[serde(default)]
    particular: BTreeMap<String, OfVariants>,
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
    let File { least, names, sentences, mut particular } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !(0.0..=1.0).contains(&least) {
        return Err("the least probability of a situation is not from 0 to 1".into());
    }
    let mut written = Vec::new();
    for (code, told) in sentences {
        let language = Language::ALL.into_iter().find(|language| language.code() == code);
        let language = language.ok_or_else(|| format!("{code:?} is no language that is answered"))?;
        if told.len() != names.len() {
            return Err(format!("it has {} situations in {code} and {} names", told.len(), names.len()));
        }
        let blank = |sentence: &String| sentence.trim().is_empty();
        if let Some(place) =
            told.iter().position(|kinds| kinds.iter().any(|kind| kind.is_empty() || kind.iter().any(blank)))
        {
            let name = names.get(place).map_or("", String::as_str);
            return Err(format!("{name} lacks a sentence in {code}"));
        }
        let long = |sentence: &String| sentence.chars().nth(MOST_CHARACTERS).is_some();
        if told.iter().flatten().any(|kind| kind.len() > MOST_SENTENCES || kind.iter().any(long)) {
            return Err(format!(
                "a situation has more than {MOST_SENTENCES} sentences of a kind in {code}, or one of more than {MOST_CHARACTERS} characters"
            ));
        }
        let particular = particular_of(particular.remove(&code), &code, names.len())?;
        let told = told.into_iter().zip(particular);
        let told =
            told.map(|([positive, negative, reply], particular)| Sentences { positive, negative, reply, particular });
        written.push((language, told.collect()));
    }
    if let Some(code) = particular.keys().next() {
        return Err(format!("it has replies for some texts in {code}, and no sentences"));
    }
    Ok(Situations { least, written })
}

/// For every situation the replies for some of its texts; none where there are none in this language.
fn particular_of(told: Option<OfVariants>, code: &str, situations: usize) -> Result<Vec<Vec<Particular>>, String> {
    let Some(told) = told else { return Ok(vec![Vec::new(); situations]) };
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
    fn a_file_has_every_sentence_or_is_refused() {
        let file = |sentences: &str| {
            parsed(format!(r#"{{"least":0.5,"names":["won","lost"],"sentences":{sentences}}}"#).as_bytes())
        };
        let whole = file(r#"{"de":[[["a."],["b."],["c."]],[["d."],["e."],["f."]]]}"#).unwrap();
        let (language, told) = &whole.written[0];
        assert_eq!((*language, told[1].reply[0].as_str()), (Language::German, "f."));
        let fault = |sentences: &str| file(sentences).unwrap_err();
        assert!(fault(r#"{"de":[[["a."],["b."],["c."]]]}"#).contains("1 situations in de"));
        assert!(fault(r#"{"de":[[["a."],["b."],["c."]],[["d."],[],["f."]]]}"#).contains("lost lacks a sentence in de"));
        assert!(fault(r#"{"de":[[["a."],["b."],["c."]],[["d."],["e."],[" "]]]}"#).contains("lost lacks"));
        let many = format!(r#"{{"de":[[[{}"a."],["b."],["c."]],[["d."],["e."],["f."]]]}}"#, r#""a.","#.repeat(16));
        assert!(fault(&many).contains("more than 16 sentences"));
        let some = |particular: &str| {
            let sentences = r#"{"de":[[["a."],["b."],["c."]],[["d."],["e."],["f."]]]}"#;
            parsed(
                format!(r#"{{"least":0.5,"names":["won","lost"],"sentences":{sentences},"particular":{particular}}}"#)
                    .as_bytes(),
            )
        };
        let told = some(r#"{"de":[[[["Pokal"],"Ein Pokal!"]],[]]}"#).unwrap();
        assert_eq!(
            told.written[0].1[0].particular,
            [Particular { words: vec!["Pokal".into()], reply: "Ein Pokal!".into() }]
        );
        for faulty in [r#"{"de":[[]]}"#, r#"{"de":[[[[],"g."]],[]]}"#, r#"{"de":[[[["!"],"g."]],[]]}"#] {
            assert!(some(faulty).unwrap_err().contains("in de, replies for some texts"), "{faulty}");
        }
        assert!(some(r#"{"fr":[[],[]]}"#).unwrap_err().contains("no sentences"));
        assert!(fault(r#"{"xx":[]}"#).contains("no language"));
        assert!(parsed(br#"{"least":2,"names":[],"sentences":{}}"#).is_err());
    }
}
