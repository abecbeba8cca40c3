//! A generator with its prompts: from a task and a text to a clean line of prose.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ServiceError;
use crate::{
    domain::{Polarity, ValidText},
    engine::{Finish, GenerateParams, Generation, Generator, Sampling},
    registry::manifest::{GeneratorSpec, TaskPrompt},
    runtime::{PromptTokenizer, RuntimeError},
};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// An expression of the text.
    Express(Polarity),
    /// A reply to it.
    Reply,
}

/// How often a task was tried for one text: the first try is greedy, later ones are sampled.
pub(super) type Attempt = u64;

/// Most characters of a reply.
pub(super) const REPLY_CHARACTERS: usize = 200;

/// Most tokens of an expression, however long the text: its length follows the text's up to here.
const EXPRESSION_TOKENS: usize = 220;
/// Most sentences of an expression.
const EXPRESSION_SENTENCES: usize = 2;
const REPLY_TOKENS: usize = 72;

/// A generator behind its scheduler, with the prompts of its bundle.
pub struct Writer {
    tokenizer: PromptTokenizer,
    generator: Generator,
    prompts: [Prompt; 3],
    stop: Arc<[u32]>,
    digest: String,
}

struct Prompt {
    text: TaskPrompt,
    prefix: Arc<[u32]>,
}

impl Writer {
    /// Tokenises the task prefixes once.
    ///
    /// # Errors
    /// [`RuntimeError`] when a prompt cannot be tokenised.
    pub fn new(
        tokenizer: PromptTokenizer,
        generator: Generator,
        spec: &GeneratorSpec,
        digest: String,
    ) -> Result<Self, RuntimeError> {
        let prompt = |text: &TaskPrompt| -> Result<Prompt, RuntimeError> {
            Ok(Prompt { prefix: tokenizer.prefix(text)?.into(), text: text.clone() })
        };
        let prompts = [prompt(&spec.tasks.positive)?, prompt(&spec.tasks.negative)?, prompt(&spec.tasks.reply)?];
        Ok(Self { prompts, stop: spec.stop_ids.clone().into(), tokenizer, generator, digest })
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.generator.answered_within(span)
    }

    /// Generates all tasks as rows of one batch and answers the cleaned texts in order.
    pub(super) async fn write(
        &self,
        text: &ValidText,
        tasks: &[(Task, Attempt)],
        deadline: Instant,
    ) -> Result<Vec<String>, ServiceError> {
        let broken = |error: RuntimeError| {
            tracing::error!(%error, "a prompt could not be tokenised");
            ServiceError::Internal
        };
        let sequences: Result<Vec<GenerateParams>, RuntimeError> =
            tasks.iter().map(|&(task, attempt)| self.params(text, task, attempt)).collect();
        let generations = self.generator.submit(sequences.map_err(broken)?, deadline).await?;
        generations
            .iter()
            .zip(tasks)
            .map(|(generation, &(task, _))| self.finish(generation, task).map_err(broken))
            .collect()
    }

    /// Generates one token of each task: proof that the model answers. It also leaves the prompt prefixes in the
    /// cache, so that no user's request pays for them.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        let sequences = self
            .prompts
            .iter()
            .map(|prompt| {
                let body = self.tokenizer.body(&prompt.text, "Hello")?;
                Ok(GenerateParams {
                    prefix: Arc::clone(&prompt.prefix),
                    body,
                    max_tokens: 1,
                    stop: Arc::clone(&self.stop),
                    sampling: Sampling::Greedy,
                })
            })
            .collect::<Result<Vec<_>, RuntimeError>>()
            .map_err(|_| ServiceError::Internal)?;
        self.generator.submit(sequences, Instant::now() + time).await?;
        Ok(())
    }

    fn params(&self, text: &ValidText, task: Task, attempt: Attempt) -> Result<GenerateParams, RuntimeError> {
        let [positive, negative, reply] = &self.prompts;
        let prompt = match task {
            Task::Express(Polarity::Positive) => positive,
            Task::Express(Polarity::Negative) => negative,
            Task::Reply => reply,
        };
        let body = self.tokenizer.body(&prompt.text, text.as_str())?;
        let wanted = match task {
            Task::Express(_) => (32 + 2 * body.len()).min(EXPRESSION_TOKENS),
            Task::Reply => REPLY_TOKENS,
        };
        let room = self.generator.window().saturating_sub(prompt.prefix.len() + body.len());
        let sampling = if attempt == 0 {
            Sampling::Greedy
        } else {
            Sampling::Nucleus { temperature: 0.8, top_p: 0.95, seed: seed(text.as_str(), task, attempt) }
        };
        Ok(GenerateParams {
            prefix: Arc::clone(&prompt.prefix),
            body,
            max_tokens: wanted.min(room),
            stop: Arc::clone(&self.stop),
            sampling,
        })
    }

    fn finish(&self, generation: &Generation, task: Task) -> Result<String, RuntimeError> {
        let raw = self.tokenizer.decode(&generation.tokens)?;
        let line = first_line(&raw);
        Ok(match task {
            Task::Express(_) => {
                let finished = if generation.finish == Finish::Length { whole_sentences(line) } else { line };
                sentences(finished, EXPRESSION_SENTENCES).to_owned()
            }
            Task::Reply => shorten(sentences(line, 1), REPLY_CHARACTERS),
        })
    }
}

/// A seed from the input, so that the same request gives the same answer (FNV-1a, 64 bit).
fn seed(text: &str, task: Task, attempt: Attempt) -> u64 {
    let task = match task {
        Task::Express(Polarity::Positive) => 1,
        Task::Express(Polarity::Negative) => 2,
        Task::Reply => 3,
    };
    text.bytes()
        .chain([task])
        .chain(attempt.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The first line with words in it, without surrounding white space or quotation marks.
fn first_line(raw: &str) -> &str {
    let line = raw.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    let unquoted = line
        .strip_prefix(['"', '“', '「'])
        .and_then(|rest| rest.strip_suffix(['"', '”', '」']))
        .filter(|inner| !inner.contains(['"', '“', '”']));
    unquoted.unwrap_or(line).trim()
}

/// Byte offset just after each sentence of `text`.
///
/// A sentence ends with closing punctuation that is followed by white space or the end, or, in scripts written
/// without spaces, directly.
fn sentence_ends(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut characters = text.char_indices().peekable();
    std::iter::from_fn(move || {
        while let Some((at, character)) = characters.next() {
            let wide = matches!(character, '。' | '！' | '？');
            if !wide && !matches!(character, '.' | '!' | '?' | '…') {
                continue;
            }
            let mut end = at + character.len_utf8();
            while let Some(&(next, follower)) = characters.peek() {
                if !matches!(follower, '.' | '!' | '?' | '…' | '。' | '！' | '？' | '"' | '”' | '’' | '\'' | ')' | '」')
                {
                    break;
                }
                end = next + follower.len_utf8();
                characters.next();
            }
            let ends = wide || characters.peek().is_none_or(|&(_, next)| next.is_whitespace());
            if ends && !is_in_date(text, at, end) {
                return Some(end);
            }
        }
        None
    })
}

/// Whether the sign between these offsets is the full stop of a German date: "am 4. Juni".
fn is_in_date(text: &str, at: usize, end: usize) -> bool {
    const MONTHS: [&str; 12] = [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ];
    let (Some(before), Some(after)) = (text.get(..at), text.get(end..)) else { return false };
    let after = after.trim_start();
    before.ends_with(|c: char| c.is_ascii_digit()) && MONTHS.iter().any(|month| after.starts_with(month))
}

/// The first `count` sentences. A small model that does not stop repeats itself from there on.
fn sentences(text: &str, count: usize) -> &str {
    // "Dr. Lee" and "No. 5" end no sentence: a first sentence of a dozen characters is joined to the next, but for
    // scripts that say much in a dozen characters and whose full stop has no other use.
    let long_enough = |end: &usize| {
        text.get(..*end).is_some_and(|head| head.chars().count() > 12 || head.ends_with(['。', '！', '？', '」']))
    };
    let end = sentence_ends(text).filter(long_enough).nth(count - 1);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Drops an unfinished last sentence, if a finished one stands before it.
fn whole_sentences(text: &str) -> &str {
    sentence_ends(text).last().and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Cuts at a word boundary, with an ellipsis within the limit.
fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let head: String = text.chars().take(characters - 1).collect();
    let cut = head.rfind(char::is_whitespace).filter(|&at| at > head.len() / 2);
    let kept = cut.and_then(|at| head.get(..at)).unwrap_or(&head);
    format!("{}…", kept.trim_end_matches([' ', ',', ';', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_answer_becomes_one_clean_line() {
        assert_eq!(first_line("\n  \"A fine day.\"  \nText: next"), "A fine day.");
        assert_eq!(first_line("He said \"no\" and \"yes\""), "He said \"no\" and \"yes\"");
        assert_eq!(first_line(" \n "), "");
    }

    #[test]
    fn sentences_end_where_people_end_them() {
        let first_sentence = |text| sentences(text, 1);
        assert_eq!(first_sentence("Well done, 3.5 stars! And more."), "Well done, 3.5 stars!");
        assert_eq!(
            sentences("It rained all day. We danced. We danced. We danced.", 2),
            "It rained all day. We danced."
        );
        assert_eq!(first_sentence("Dr. Lee will help you with this. Bye."), "Dr. Lee will help you with this.");
        assert_eq!(
            first_sentence("よく頑張りましたね、本当にすごいです。次も楽しみです。"),
            "よく頑張りましたね、本当にすごいです。"
        );
        assert_eq!(first_sentence("お疲れさま。ゆっくり休んでください。"), "お疲れさま。");
        assert_eq!(first_sentence("Am 4. Juni wird alles gut. Ja."), "Am 4. Juni wird alles gut.");
        assert_eq!(first_sentence("no end in sight"), "no end in sight");
        assert_eq!(whole_sentences("All is well. But then he"), "All is well.");
        assert_eq!(whole_sentences("Never finished"), "Never finished");
    }

    #[test]
    fn long_replies_are_cut_at_a_word_within_the_limit() {
        let long = "word ".repeat(60);
        let short = shorten(&long, REPLY_CHARACTERS);
        assert!(short.chars().count() <= REPLY_CHARACTERS && short.ends_with("word…"), "{short}");
        let unbroken = shorten(&"字".repeat(300), REPLY_CHARACTERS);
        assert_eq!(unbroken.chars().count(), REPLY_CHARACTERS);
    }

    #[test]
    fn seeds_differ_by_text_task_and_attempt() {
        let base = seed("a", Task::Reply, 1);
        assert_eq!(base, seed("a", Task::Reply, 1));
        for other in
            [seed("b", Task::Reply, 1), seed("a", Task::Express(Polarity::Positive), 1), seed("a", Task::Reply, 2)]
        {
            assert_ne!(base, other);
        }
    }
}
