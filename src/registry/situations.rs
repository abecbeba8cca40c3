//! The file of a judge's bundle that says what people wrote for the situations that it tells.
//!
//! Owns its form. Refuses a file in which a sentence is missing: of a situation without one nothing could be said.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;

use super::{Bundle, BundleError};
use crate::domain::{Language, Sentences, Situations};

/// Every sentence of a situation is checked each time one is asked for, expressions in all pairs.
const MOST_SENTENCES: usize = 16;
/// Of a sentence.
const MOST_CHARACTERS: usize = 200;

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
    let File { least, names, sentences } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
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
        let told = told.into_iter().map(|[positive, negative, reply]| Sentences { positive, negative, reply });
        written.push((language, told.collect()));
    }
    Ok(Situations { least, written })
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
        assert!(fault(r#"{"xx":[]}"#).contains("no language"));
        assert!(parsed(br#"{"least":2,"names":[],"sentences":{}}"#).is_err());
    }
}
