//! The tokens of plain texts, as the `tokenizers` library tells them, in a tenth of its time.
//!
//! The library keeps for every character where it came from, which nobody asks here: of what the server does about a short
//! text beside the pass, that is a fifth. Owns what needs no Unicode, the words of ASCII texts under
//! BERT's rules; any other text, and any tokenizer of other rules, is the library's.

use std::collections::HashMap;

use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::vocabulary::Tokenizer;

/// Pieces of words, with their tokens.
type Pieces = HashMap<Box<[u8]>, u32>;

/// The pieces of words that a vocabulary has.
pub(super) struct Words {
    /// Those that begin a word.
    first: Pieces,
    /// Those that go on with one.
    further: Pieces,
    /// Bytes of the longest of either.
    longest: usize,
    /// What stands for a word that cannot be made of them.
    unknown: u32,
    /// Characters of the longest word that is looked at.
    longest_word: usize,
    lowercase: bool,
}

impl Words {
    /// The words of a tokenizer; none where its rules are others, or it reads anything as more than text.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let (Some(NormalizerWrapper::BertNormalizer(rules)), Some(PreTokenizerWrapper::BertPreTokenizer(_))) =
            (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer())
        else {
            return None;
        };
        let ModelWrapper::WordPiece(model) = tokenizer.get_model().kind() else { return None };
        let only_text = tokenizer.get_encode_special_tokens()
            && tokenizer.get_added_tokens_decoder().values().all(|token| token.special);
        if !rules.clean_text || !only_text || model.continuing_subword_prefix.is_empty() {
            return None;
        }
        let (mut first, mut further) = (Pieces::new(), Pieces::new());
        for (piece, id) in tokenizer.get_vocab(false) {
            if let Some(rest) = piece.strip_prefix(&model.continuing_subword_prefix) {
                further.insert(rest.as_bytes().into(), id);
            }
            // Also what begins so: a text may have these signs.
            first.insert(piece.as_bytes().into(), id);
        }
        let unknown = *first.get(model.unk_token.as_bytes())?;
        let longest = first.keys().chain(further.keys()).map(|piece| piece.len()).max()?;
        let (longest_word, lowercase) = (model.max_input_chars_per_word, rules.lowercase);
        Some(Self { first, further, longest, unknown, longest_word, lowercase })
    }

    /// The tokens of an ASCII text; none of any other.
    pub(super) fn ids(&self, text: &str) -> Option<Vec<u32>> {
        if !text.is_ascii() {
            return None;
        }
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut word = Vec::with_capacity(self.longest);
        for &byte in text.as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.end(&mut word, &mut ids),
                _ if byte.is_ascii_punctuation() => {
                    self.end(&mut word, &mut ids);
                    word.push(byte);
                    self.end(&mut word, &mut ids);
                }
                _ if byte.is_ascii_control() => {}
                _ => word.push(if self.lowercase { byte.to_ascii_lowercase() } else { byte }),
            }
        }
        self.end(&mut word, &mut ids);
        Some(ids)
    }

    /// Adds the longest pieces that make a word, from its beginning on.
    fn end(&self, word: &mut Vec<u8>, ids: &mut Vec<u32>) {
        let before = ids.len();
        let mut rest = word.as_slice();
        let mut pieces = &self.first;
        while !rest.is_empty() {
            let found = (1..=rest.len().min(self.longest)).rev().find_map(|length| {
                rest.split_at_checked(length).and_then(|(piece, rest)| Some((*pieces.get(piece)?, rest)))
            });
            let Some((id, others)) = found.filter(|_| word.len() <= self.longest_word) else {
                ids.truncate(before);
                ids.push(self.unknown);
                break;
            };
            ids.push(id);
            (rest, pieces) = (others, &self.further);
        }
        word.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::normalizers::BertNormalizer;

    use super::*;

    /// A tokenizer of some pieces, that reads special tokens as text.
    fn tokenizer(lowercase: bool) -> Tokenizer {
        let pieces = [
            "[UNK]", "[CLS]", "a", "b", "c", "ab", "abc", "A", "##a", "##b", "##bc", "##cab", "!", "#", "##", "[", "]",
            "cls", "1", "##1", "unk",
        ];
        let vocab: HashMap<&str, u32> = pieces.into_iter().zip(0..).collect();
        let said = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 1, "content": "[CLS]", "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }],
            "normalizer": {
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                "lowercase": lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 9, "vocab": vocab,
            },
        });
        let mut tokenizer = Tokenizer::from_bytes(said.to_string()).unwrap();
        tokenizer.set_encode_special_tokens(true);
        tokenizer
    }

    fn library(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    #[test]
    fn an_ascii_text_has_the_librarys_tokens() {
        for lowercase in [true, false] {
            let tokenizer = tokenizer(lowercase);
            let words = Words::of(&tokenizer).unwrap();
            let every: String = (0..128_u8).map(char::from).collect();
            let known = [
                "",
                " ",
                "abcab ABC",
                "##a #a [CLS] [UNK]",
                "abababab a",
                "ababababab b",
                "aabz!a",
                "a\u{b}b\u{c}c\td\0",
            ];
            for text in known.into_iter().chain([every.as_str()]) {
                assert_eq!(words.ids(text).unwrap(), library(&tokenizer, text), "{text:?}");
            }
            proptest!(|(text in "[abcABC#!\\[\\] 1\t\u{7f}z]{0,40}", any in "[ -~\\x00-\\x1f]{0,40}")| {
                prop_assert_eq!(words.ids(&text).unwrap(), library(&tokenizer, &text));
                prop_assert_eq!(words.ids(&any).unwrap(), library(&tokenizer, &any));
            });
        }
    }

    #[test]
    fn other_texts_and_other_rules_are_the_librarys() {
        let tokenizer = tokenizer(true);
        let words = Words::of(&tokenizer).unwrap();
        assert_eq!(words.ids("caf\u{e9}"), None);
        let mut special = tokenizer.clone();
        special.set_encode_special_tokens(false);
        assert!(Words::of(&special).is_none(), "it would read [CLS] as its token");
        let mut bare = tokenizer;
        bare.with_normalizer(None::<BertNormalizer>).unwrap();
        assert!(Words::of(&bare).is_none());
    }
}
