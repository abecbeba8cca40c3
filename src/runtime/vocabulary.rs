//! The vocabulary of a tokenizer, read once and shared.
//!
//! The library's own type for all kinds of vocabularies is read through two copies of it as JSON, and copied with every
//! tokenizer: of the processor time of a start with all identifiers, a sixth. Here the kind is looked up first, and the text
//! read as that kind alone.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
    models::{TrainerWrapper, bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece},
};

/// A tokenizer, whose copies share their vocabulary.
pub(super) type Tokenizer =
    TokenizerImpl<Vocabulary, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The library's vocabulary, which remembers no text.
#[derive(Clone)]
pub(super) struct Vocabulary(Arc<ModelWrapper>);

impl Vocabulary {
    /// Whichever kind it is of.
    pub(super) fn kind(&self) -> &ModelWrapper {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Tagged<'a> {
            #[serde(rename = "type", borrow)]
            kind: Option<Cow<'a, str>>,
        }
        fn read<M: DeserializeOwned + Into<ModelWrapper>>(text: &str) -> serde_json::Result<ModelWrapper> {
            serde_json::from_str::<M>(text).map(Into::into)
        }
        let text: &RawValue = Deserialize::deserialize(deserializer)?;
        let text = text.get();
        let Tagged { kind } = serde_json::from_str(text).map_err(D::Error::custom)?;
        let mut model = match kind.as_deref() {
            Some("BPE") => read::<BPE>(text),
            Some("WordPiece") => read::<WordPiece>(text),
            Some("WordLevel") => read::<WordLevel>(text),
            Some("Unigram") => read::<Unigram>(text),
            // Files of long ago do not say.
            _ => read::<ModelWrapper>(text),
        }
        .map_err(D::Error::custom)?;
        // The library remembers every piece of text that it has seen, for as long as it lives: a text must not outlive its
        // request, here least of all.
        model.resize_cache(0);
        Ok(Self(Arc::new(model)))
    }
}

impl Model for Vocabulary {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.get_trainer()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ids<M: Model, N: tokenizers::Normalizer, P, Q, D>(
        tokenizer: &TokenizerImpl<M, N, P, Q, D>,
        text: &str,
    ) -> Vec<u32>
    where
        P: tokenizers::PreTokenizer,
        Q: tokenizers::PostProcessor,
        D: tokenizers::Decoder,
    {
        tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn every_kind_of_vocabulary_has_the_librarys_tokens() {
        let untyped = json!({
            "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "ab": 1, "##c": 2, "c": 3},
        });
        let typed = |kind: &str, mut fields: Value| {
            fields["type"] = kind.into();
            fields
        };
        let models = [
            typed("WordPiece", untyped.clone()),
            typed("WordLevel", json!({"unk_token": "[UNK]", "vocab": {"[UNK]": 0, "abc": 1, "c": 2}})),
            typed(
                "BPE",
                json!({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], ["ab", "c"]]}),
            ),
            typed("BPE", json!({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]})),
            typed(
                "Unigram",
                json!({"unk_id": 0, "vocab": [["[UNK]", 0.0], ["a", -3.0], ["b", -3.0], ["c", -2.0], ["ab", -1.0]]}),
            ),
            untyped,
        ];
        for model in models {
            let said = json!({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}).to_string();
            let (ours, library) =
                (Tokenizer::from_bytes(&said).unwrap(), tokenizers::Tokenizer::from_bytes(&said).unwrap());
            for text in ["abc c", "cab abab", "abc", ""] {
                assert_eq!(ids(&ours, text), ids(&library, text), "{text:?} {said}");
            }
            assert_eq!(ours.get_vocab(true), library.get_vocab(true));
            let copy = ours.clone();
            assert!(Arc::ptr_eq(&copy.get_model().0, &ours.get_model().0), "a copy has a vocabulary of its own");
        }
        let unknown = json!({"version": "1.0", "model": {"type": "Runes", "vocab": {}}}).to_string();
        assert!(Tokenizer::from_bytes(unknown).is_err());
    }
}
