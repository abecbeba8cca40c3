//! Texts to token ids and back.
//!
//! A tokenizer is immutable and shared; encoding runs on the caller's thread.

use std::path::Path;

use tokenizers::AddedToken;

use super::{RuntimeError, TextTokens, Window, normalise::normalise, vocabulary::Tokenizer, words::Words};
use crate::registry::{
    Bundle,
    manifest::{AnswerJudgeSpec, TaskPrompt, TextClassifierSpec},
};

/// Cuts a text into the windows of a classifier.
pub struct WindowTokenizer {
    tokenizer: Tokenizer,
    /// Tells the tokens of plain texts, where its rules are simple.
    words: Option<Words>,
    spec: TextClassifierSpec,
}

impl WindowTokenizer {
    /// Reads the tokenizer of a text classifier's bundle.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when the bundle is no text classifier or its tokenizer cannot be read.
    pub fn open(bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = bundle
            .manifest()
            .text_classifier
            .clone()
            .ok_or_else(|| RuntimeError::Load("the bundle is no text classifier".into()))?;
        let tokenizer = read(&bundle.tokenizer(), true)?;
        let words = Words::of(&tokenizer);
        Ok(Self { tokenizer, words, spec })
    }

    /// Encodes `text` whole, as written and as it reads: one window when it fits, overlapping windows otherwise.
    /// Nothing is cut off.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<TextTokens, RuntimeError> {
        let raw = self.ids(text)?;
        let form = normalise(text);
        let mut normalised = Vec::new();
        if form != text && !form.trim().is_empty() {
            let tokens = self.ids(&form)?;
            // Case and the like are the tokenizer's own business: what it takes for the same is scored once.
            if tokens != raw {
                normalised = self.cut(&tokens);
            }
        }
        Ok(TextTokens { raw: self.cut(&raw), normalised })
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let plain = self.words.as_ref().and_then(|words| words.ids(text));
        plain.map_or_else(|| ids(&self.tokenizer, text), Ok)
    }

    /// Tokens of the longest window.
    pub fn window(&self) -> usize {
        self.spec.window
    }

    /// A window of so many tokens and of no text, to measure with. Its ids are ones that every model here has.
    pub fn filler(&self, tokens: usize) -> Window {
        let mut ids = vec![self.spec.cls_id; tokens.saturating_sub(1)];
        ids.push(self.spec.sep_id);
        Window(ids)
    }

    fn cut(&self, tokens: &[u32]) -> Vec<Window> {
        let room = self.spec.window - 2;
        let mut windows = Vec::new();
        let mut start = 0;
        loop {
            let end = (start + room).min(tokens.len());
            let mut ids = Vec::with_capacity(end - start + 2);
            ids.push(self.spec.cls_id);
            ids.extend_from_slice(tokens.get(start..end).unwrap_or_default());
            ids.push(self.spec.sep_id);
            windows.push(Window(ids));
            if end == tokens.len() {
                return windows;
            }
            start += self.spec.stride;
        }
    }
}

/// Puts a text and an answer to it into one sequence for a judge.
pub struct JudgeTokenizer {
    tokenizer: Tokenizer,
    spec: AnswerJudgeSpec,
}

impl JudgeTokenizer {
    /// Reads the tokenizer of a judge's bundle.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when the bundle is no judge of answers or its tokenizer cannot be read.
    pub fn open(bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = bundle.manifest().answer_judge.clone();
        let spec = spec.ok_or_else(|| RuntimeError::Load("the bundle is no judge of answers".into()))?;
        Ok(Self { tokenizer: read(&bundle.tokenizer(), true)?, spec })
    }

    /// The text alone.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn text(&self, text: &str) -> Result<Window, RuntimeError> {
        let text = ids(&self.tokenizer, text)?;
        let mut sequence = vec![self.spec.cls_id];
        sequence.extend(text.into_iter().take(self.spec.text_tokens));
        sequence.push(self.spec.sep_id);
        Ok(Window(sequence))
    }

    /// The text, of which [`Self::text`] made `text`, with an answer.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn answered(&self, text: &Window, answer: &str) -> Result<Window, RuntimeError> {
        let mut sequence = text.0.clone();
        sequence.extend(ids(&self.tokenizer, answer)?.into_iter().take(self.spec.answer_tokens));
        sequence.push(self.spec.sep_id);
        Ok(Window(sequence))
    }
}

/// Builds prompts around a user's text and turns generated ids back into text.
pub struct PromptTokenizer {
    /// Recognises control tokens; used for our own prompt parts only.
    control: Tokenizer,
    /// Reads control tokens as ordinary characters, so that a text cannot close its own turn.
    plain: Tokenizer,
}

impl PromptTokenizer {
    /// Reads the tokenizer of a generator's bundle.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when it cannot be read.
    pub fn open(bundle: &Bundle) -> Result<Self, RuntimeError> {
        Self::read(&bundle.tokenizer())
    }

    /// Reads the tokenizer at `path`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(path: &Path) -> Result<Self, RuntimeError> {
        let control = read(path, false)?;
        let mut plain = control.clone();
        plain.set_encode_special_tokens(true);
        // Exports leave some of theirs unmarked, such as "<tool_call>"; runs of spaces are no control tokens.
        let unmarked: Vec<AddedToken> = plain
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| !token.special && !token.content.trim().is_empty())
            .map(|token| AddedToken { special: true, ..token })
            .collect();
        plain.add_special_tokens(unmarked).map_err(|error| RuntimeError::Load(error.to_string()))?;
        Ok(Self { control, plain })
    }

    /// Compares the tokenizer with a generator of elsewhere that has `vocab` logits.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when it has tokens that the model does not know, or does not give a text back.
    pub fn fits(&self, vocab: usize) -> Result<(), RuntimeError> {
        const TRIAL: &str = "Anna's 3 cats - they sleep; all day long!";
        let tokens = self.control.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        if tokens > vocab {
            return Err(RuntimeError::Load(format!(
                "the tokenizer has {tokens} tokens and the model {vocab}; take the tokenizer.json that belongs to it"
            )));
        }
        let again = self.decode(&ids(&self.control, TRIAL)?)?;
        if again.trim() == TRIAL {
            Ok(())
        } else {
            Err(RuntimeError::Load(format!(
                "the tokenizer gives {TRIAL:?} back as {again:?}; take the tokenizer.json of a model that generates \
                 text"
            )))
        }
    }

    /// The id of a token, control tokens among them.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.control.token_to_id(token)
    }

    /// The token of an id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.control.id_to_token(id)
    }

    /// The control tokens that a model of elsewhere was trained to see before a text, as they are written in a prompt.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn opening(&self) -> Result<String, RuntimeError> {
        let text = "a";
        let bare = ids(&self.control, text)?;
        let whole = self.control.encode_fast(text, true).map_err(|error| inference(&error))?;
        let whole = whole.get_ids();
        let before = (0..whole.len()).find(|&at| whole.get(at..).is_some_and(|rest| rest.starts_with(&bare)));
        let opening = whole.get(..before.unwrap_or(0)).unwrap_or_default();
        Ok(opening.iter().filter_map(|&id| self.token(id)).collect())
    }

    /// The token that ends an answer after which `text` stands: a control token at its head, or all of it.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn ending(&self, text: &str) -> Result<Option<u32>, RuntimeError> {
        let tokens = ids(&self.control, text)?;
        let Some(&first) = tokens.first() else { return Ok(None) };
        let control = self.control.get_added_tokens_decoder().get(&first).is_some_and(|token| token.special);
        Ok((control || tokens.len() == 1).then_some(first))
    }

    /// The tokens before the text.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn prefix(&self, prompt: &TaskPrompt) -> Result<Vec<u32>, RuntimeError> {
        ids(&self.control, &prompt.prefix)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn text(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        ids(&self.plain, text)
    }

    /// The tokens after the text.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn suffix(&self, prompt: &TaskPrompt) -> Result<Vec<u32>, RuntimeError> {
        ids(&self.control, &prompt.suffix)
    }

    /// The tokens of the text and of what stands after it.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn body(&self, prompt: &TaskPrompt, text: &str) -> Result<Vec<u32>, RuntimeError> {
        Ok([self.text(text)?, self.suffix(prompt)?].concat())
    }

    /// The text of generated tokens, control tokens left out.
    ///
    /// # Errors
    /// [`RuntimeError::Inference`] when the tokenizer fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, RuntimeError> {
        self.control.decode(tokens, true).map_err(|error| inference(&error))
    }
}

/// The tokens that the tokenizer at `path` puts before and after a text, as a model of elsewhere was trained with them.
///
/// # Errors
/// [`RuntimeError::Load`] when it cannot be read, or puts more or fewer than one at either end.
pub fn ends(path: &Path) -> Result<[u32; 2], RuntimeError> {
    let around = read(path, true)?.encode_fast("", true).map_err(|error| inference(&error))?;
    around.get_ids().try_into().map_err(|_| {
        RuntimeError::Load(format!(
            "{} puts {} tokens around a text; a text classifier has one before it and one after it",
            path.display(),
            around.get_ids().len()
        ))
    })
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, RuntimeError> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| inference(&error))?;
    Ok(encoding.get_ids().to_vec())
}

fn read(path: &Path, special_as_text: bool) -> Result<Tokenizer, RuntimeError> {
    let load = |error: &dyn std::fmt::Display| {
        RuntimeError::Load(format!(
            "{} cannot be read ({error}); take the tokenizer.json that belongs to the model",
            path.display()
        ))
    };
    let mut tokenizer = Tokenizer::from_file(path).map_err(|error| load(&error))?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| load(&error))?;
    tokenizer.set_encode_special_tokens(special_as_text);
    Ok(tokenizer)
}

fn inference(error: &dyn std::fmt::Display) -> RuntimeError {
    RuntimeError::Inference(error.to_string())
}
