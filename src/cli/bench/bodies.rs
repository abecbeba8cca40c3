//! What `dichroic bench` sends.
//!
//! A server answers a text that it moderated a moment ago from memory, which is not what a load is to measure: texts to
//! moderate are therefore sent with a number at their end that comes once.

use std::fs;

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{BenchArgs, read};
use crate::domain::{Operation, ValidText, text::MAX_CHARACTERS};

/// What is sent unless a file says otherwise: short and long, so that batches have something to pad.
const TEXTS: [&str; 6] = [
    "My sister Anna got the job in Leeds.",
    "Our team shipped the release on Friday, and nobody had to stay late.",
    "The train was forty minutes late again.",
    "I have practised this piece for three months, and at the concert my hands shook so much that I lost \
     my place twice.",
    "The new bakery opens at six.",
    "We moved to the fourth floor. There is no lift, the kitchen is small, and the neighbours below play the drums, \
     but in the evening the whole living room is full of light and we can see as far as the river.",
];

/// The bodies of all requests.
pub(super) enum Bodies {
    /// Sent in turn as they are: a picture, or texts to write about.
    Alike(Vec<Bytes>),
    /// Texts to moderate, sent in turn, no two alike.
    Numbered {
        /// Where each has its text.
        field: &'static str,
        /// With the texts as they were given.
        bodies: Vec<Value>,
        /// The number of the first request. Runs begin at different ones: the server may still remember the last run.
        first: u64,
    },
}

impl Bodies {
    /// Those that the arguments ask for.
    pub(super) fn of(args: &BenchArgs) -> anyhow::Result<Self> {
        let field = if args.operation == Operation::Moderation { "input" } else { "text" };
        let mut bodies = Vec::new();
        if args.operation == Operation::GuardianImage {
            let path = args.image.as_deref().context("guardian_image needs --image")?;
            let wrong = || format!("cannot read {}; check --image, and who may read the file", path.display());
            let image = fs::read(path).with_context(wrong)?;
            bodies.push(json!({"image": BASE64_STANDARD.encode(image)}));
        } else {
            ensure!(args.image.is_none(), "--image goes with --operation guardian_image");
            let texts = match &args.texts {
                Some(path) => read(path, "--texts")?.lines().map(str::to_owned).collect(),
                None => TEXTS.map(str::to_owned).to_vec(),
            };
            for (number, text) in texts.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
                // One that every server refuses would measure nothing.
                let wrong = || format!("line {} cannot be sent; shorten it or leave it out", number + 1);
                let text = ValidText::new(text).with_context(wrong)?;
                bodies.push(json!({field: text.as_str()}));
            }
        }
        ensure!(!bodies.is_empty(), "the file of texts is empty; write one text a line");
        if let Some(model) = args.model {
            for body in &mut bodies {
                if let Some(body) = body.as_object_mut() {
                    body.insert("model".into(), json!(model));
                }
            }
        }
        Ok(match args.operation {
            Operation::GuardianText | Operation::Moderation => {
                Self::Numbered { field, bodies, first: u64::from(getrandom::u32()? % 1_000_000) }
            }
            _ => Self::Alike(bodies.into_iter().map(|body| Bytes::from(body.to_string())).collect()),
        })
    }

    /// The body of a request.
    pub(super) fn get(&self, number: u64) -> Bytes {
        match self {
            Self::Alike(bodies) => in_turn(bodies, number),
            Self::Numbered { field, bodies, first } => {
                let mut body: Value = in_turn(bodies, number);
                if let Some(Value::String(text)) = body.get_mut(*field) {
                    *text = numbered(text, first + number);
                }
                Bytes::from(body.to_string())
            }
        }
    }
}

fn in_turn<T: Clone + Default>(items: &[T], number: u64) -> T {
    let place = usize::try_from(number).unwrap_or(0) % items.len().max(1);
    items.get(place).cloned().unwrap_or_default()
}

/// The text with the number at its end, shortened where both together were too long to be accepted.
fn numbered(text: &str, number: u64) -> String {
    let end = format!(" {number}");
    text.chars().take(MAX_CHARACTERS.saturating_sub(end.len())).chain(end.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_texts_are_alike_and_none_is_too_long() {
        let long = "é".repeat(MAX_CHARACTERS);
        let bodies = vec![json!({"text": "Short.", "model": "alpha-4o-mini"}), json!({"text": long})];
        let bodies = Bodies::Numbered { field: "text", bodies, first: 999_999 };
        let sent: Vec<Value> = (0..4).map(|number| serde_json::from_slice(&bodies.get(number)).unwrap()).collect();
        assert_eq!(sent[0], json!({"text": "Short. 999999", "model": "alpha-4o-mini"}));
        assert_eq!(sent[2], json!({"text": "Short. 1000001", "model": "alpha-4o-mini"}));
        let (second, fourth) = (sent[1]["text"].as_str().unwrap(), sent[3]["text"].as_str().unwrap());
        assert!(second.ends_with("é 1000000") && fourth.ends_with("é 1000002"));
        assert!(ValidText::new(second.to_owned()).is_ok() && second.chars().count() == MAX_CHARACTERS);
    }
}
