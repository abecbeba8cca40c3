//! A generator with its prompts: from a task and a text to a clean line of prose.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use super::ServiceError;
use crate::{
    domain::{Moods, Polarity, ValidText, likeness},
    engine::{Finish, GenerateParams, Generation, Generator, Sampling},
    registry::manifest::{GeneratorSpec, Languages, MoodSpec, TaskPrompt},
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

impl Task {
    pub(super) const ALL: [Self; 3] =
        [Self::Express(Polarity::Positive), Self::Express(Polarity::Negative), Self::Reply];

    /// What it makes, as metrics call it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Express(Polarity::Positive) => "positive",
            Self::Express(Polarity::Negative) => "negative",
            Self::Reply => "reply",
        }
    }
}

/// One answer to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Try {
    pub(super) task: Task,
    pub(super) manner: Manner,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner {
    /// Greedily: the first answer to a task.
    First,
    /// Greedily behind a beginning: several tries of one task then differ by that.
    Begun(&'static str),
    /// Drawn at a temperature, with a seed that follows from the text, the task and this number.
    Drawn(f32, u64),
    /// The text's own words and this join, and an attitude behind that: greedily, or drawn as [`Self::Drawn`].
    Joined(&'static str, Option<(f32, u64)>),
}

impl Manner {
    /// What an answer to this text begins with.
    fn opening(self, text: &str) -> Cow<'static, str> {
        match self {
            Self::First | Self::Drawn(..) => "".into(),
            Self::Begun(opening) => opening.into(),
            Self::Joined(join, _) => (own_words(text) + join).into(),
        }
    }
}

/// An English text as a sentence that goes on: on one line, with its capitals, and without what closes it.
fn own_words(text: &str) -> String {
    let capital = |word: &'_ str| match word.strip_prefix('i') {
        Some(rest) if rest.is_empty() || rest.starts_with(['\'', '’']) => format!("I{rest}"),
        _ => word.to_owned(),
    };
    let line = text.split_whitespace().map(capital).collect::<Vec<_>>().join(" ");
    let mut rest = line.trim_end_matches(['.', '!', '…', ',', ';', ':', ' ']).chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

/// Most characters of a reply.
pub(super) const REPLY_CHARACTERS: usize = 200;

/// An expression's length follows its text's up to so many tokens, and from there on with room for an attitude alone: of some
/// scripts a few hundred characters are as many tokens.
const EXPRESSION_TOKENS: usize = 220;
const EXPRESSION_TOKENS_MORE: usize = 48;
/// Most tokens of any: what has more is made of emoji, and would hold a row too long.
const MOST_EXPRESSION_TOKENS: usize = 448;
/// Most tokens of an attitude behind the text's own words.
const ATTITUDE_TOKENS: usize = 32;
/// Sentences that an expression may have beyond those of its text: the attitude can be one of its own.
const EXPRESSION_SENTENCES_MORE: usize = 1;
const REPLY_TOKENS: usize = 72;

/// What was written for a task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written {
    /// A clean line.
    pub(super) text: String,
    /// Whether it ends where a sentence does, with nothing left open, and was not shortened inside one.
    pub(super) whole: bool,
    /// How much the model doubted what it wrote, whether it is given out or was cut off: 1 is the most that its manifest
    /// allows, 0 where that allows anything. See [`Generation::doubt`].
    pub(super) doubt: f32,
    /// Of a first reply: the mood of the text, where the model tells.
    pub(super) moods: Option<Moods>,
}

/// A generator behind its scheduler, with the prompts of its bundle.
pub struct Writer {
    tokenizer: PromptTokenizer,
    generator: Generator,
    prompts: [Prompt; 3],
    stop: Arc<[u32]>,
    mood: Option<MoodSpec>,
    /// The tokens by which it is read.
    watched: Arc<[u32]>,
    languages: Languages,
    digest: String,
}

struct Prompt {
    text: TaskPrompt,
    prefix: Arc<[u32]>,
    suffix: Vec<u32>,
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
            let (prefix, suffix) = (tokenizer.prefix(text)?.into(), tokenizer.suffix(text)?);
            Ok(Prompt { text: text.clone(), prefix, suffix })
        };
        let prompts = [prompt(&spec.tasks.positive)?, prompt(&spec.tasks.negative)?, prompt(&spec.tasks.reply)?];
        let (stop, mood) = (spec.stop_ids.clone().into(), spec.mood.clone());
        let watched = mood.as_ref().map(|mood| mood.tokens.as_slice().into()).unwrap_or_default();
        Ok(Self { tokenizer, generator, prompts, stop, mood, watched, languages: spec.languages, digest })
    }

    /// Whether it was taught to answer such texts, given whether they are in English.
    pub fn writes(&self, english: bool) -> bool {
        self.languages.include(english)
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.generator.answered_within(span)
    }

    /// Generates all of them as rows of one batch and answers what was written in order.
    pub(super) async fn write(
        &self,
        text: &ValidText,
        tries: &[Try],
        deadline: Instant,
    ) -> Result<Vec<Written>, ServiceError> {
        let broken = |error: RuntimeError| {
            tracing::error!(%error, "a prompt could not be tokenised");
            ServiceError::Internal
        };
        let tokens = self.tokenizer.text(text.as_str()).map_err(broken)?;
        let openings = tries.iter().map(|one| self.tokenizer.text(&one.manner.opening(text.as_str())));
        let openings = openings.collect::<Result<Vec<_>, _>>().map_err(broken)?;
        let sequences =
            tries.iter().zip(&openings).map(|(&one, opening)| self.params(text, &tokens, one, opening)).collect();
        let generations = self.generator.submit(sequences, deadline).await?;
        generations
            .iter()
            .zip(tries.iter().zip(openings))
            .map(|(generation, (one, opening))| {
                self.finish(&opening, generation, text.as_str(), one.task).map_err(broken)
            })
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
                    watched: Arc::default(),
                })
            })
            .collect::<Result<Vec<_>, RuntimeError>>()
            .map_err(|_| ServiceError::Internal)?;
        self.generator.submit(sequences, Instant::now() + time).await?;
        Ok(())
    }

    /// The probability of being right below which an answer to a task is made again; none where no judge is to be asked.
    pub(super) fn least_right(&self, task: Task) -> Option<f64> {
        self.prompt(task).text.least_right.map(f64::from)
    }

    /// How probable what people wrote for a text must be to come first, given whether that is in English; none where it has no
    /// part in the answers to a task.
    pub(super) fn beforehand(&self, task: Task, english: bool) -> Option<f32> {
        self.prompt(task).text.beforehand?.of(english)
    }

    fn prompt(&self, task: Task) -> &Prompt {
        let [positive, negative, reply] = &self.prompts;
        match task {
            Task::Express(Polarity::Positive) => positive,
            Task::Express(Polarity::Negative) => negative,
            Task::Reply => reply,
        }
    }

    /// `tokens` are those of the text, `opening` those that its answer begins with.
    fn params(&self, text: &ValidText, tokens: &[u32], one: Try, opening: &[u32]) -> GenerateParams {
        let Try { task, manner } = one;
        let prompt = self.prompt(task);
        let body = [tokens, &prompt.suffix, opening].concat();
        let wanted = match (task, manner) {
            (_, Manner::Joined(..)) => ATTITUDE_TOKENS,
            (Task::Express(_), _) => (32 + 2 * body.len())
                .min(EXPRESSION_TOKENS.max(body.len() + EXPRESSION_TOKENS_MORE))
                .min(MOST_EXPRESSION_TOKENS),
            (Task::Reply, _) => REPLY_TOKENS,
        };
        let room = self.generator.window().saturating_sub(prompt.prefix.len() + body.len());
        let sampling = match manner {
            Manner::First | Manner::Begun(_) | Manner::Joined(_, None) => Sampling::Greedy,
            Manner::Drawn(temperature, number) | Manner::Joined(_, Some((temperature, number))) => {
                Sampling::Nucleus { temperature, top_p: 0.9, seed: seed(text.as_str(), task, number) }
            }
        };
        let watches = task == Task::Reply && matches!(manner, Manner::First);
        GenerateParams {
            prefix: Arc::clone(&prompt.prefix),
            body,
            max_tokens: wanted.min(room),
            stop: Arc::clone(&self.stop),
            sampling,
            watched: if watches { Arc::clone(&self.watched) } else { Arc::default() },
        }
    }

    /// `opening` is what the model was given to go on from, and is not part of what it doubts.
    fn finish(
        &self,
        opening: &[u32],
        generation: &Generation,
        text: &str,
        task: Task,
    ) -> Result<Written, RuntimeError> {
        let tokens = [opening, &generation.tokens].concat();
        let said = finished(&self.tokenizer.decode(&tokens)?, generation.finish, text, task);
        let doubt = self.prompt(task).text.most_doubt.map_or(0.0, |most| generation.doubt / most);
        let mood = self.mood.as_ref().filter(|_| !generation.watched.is_empty());
        Ok(Written { doubt, moods: mood.map(|mood| read(mood, &generation.watched)), ..said })
    }
}

/// The mood of a text by the logits of the tokens that were watched.
fn read(mood: &MoodSpec, watched: &[f32]) -> Moods {
    let sum = |weights: &[f32]| -> f32 { weights.iter().zip(watched).map(|(weight, logit)| weight * logit).sum() };
    let [good, bad, plain] = &mood.weights;
    let [of_good, of_bad, of_plain] = mood.bias;
    Moods::of_logits([sum(good) + of_good, sum(bad) + of_bad, sum(plain) + of_plain])
}

/// A raw answer to `input` as it is given out, as if nothing about it were in doubt.
fn finished(raw: &str, finish: Finish, input: &str, task: Task) -> Written {
    let line = first_line(raw);
    let cut = finish == Finish::Length;
    let done = if cut { whole_sentences(line) } else { Some(line) };
    // Cut off behind a sentence, an expression may lack what its text goes on to say.
    let lacks = cut && task != Task::Reply && sentence_count(done.unwrap_or(line)) < sentence_count(input);
    let text = done.unwrap_or(line);
    let most = match task {
        Task::Express(_) => sentence_count(input) + EXPRESSION_SENTENCES_MORE,
        Task::Reply => 1,
    };
    let sentences = sentences(text, most);
    let text = if task == Task::Reply { shorten(sentences, REPLY_CHARACTERS) } else { sentences.to_owned() };
    let fits = text == sentences;
    // Half a character at the end of the tokens, or a quotation that was not closed; an inch in the text is none.
    let odd = |said: &str| said.matches('"').count() % 2 == 1;
    let open = text.contains(char::REPLACEMENT_CHARACTER) || odd(&text) && !odd(input);
    // "Well done! You finished it.": what says little alone was left with the next one.
    let more = task == Task::Reply && sentence_count(&text) > 1;
    Written { whole: done.is_some() && fits && !open && !lacks && !more, text, doubt: 0.0, moods: None }
}

/// A seed from the input, so that the same request gives the same answer (FNV-1a, 64 bit).
pub(super) fn seed(text: &str, task: Task, number: u64) -> u64 {
    let task = match task {
        Task::Express(Polarity::Positive) => 1,
        Task::Express(Polarity::Negative) => 2,
        Task::Reply => 3,
    };
    text.bytes()
        .chain([task])
        .chain(number.to_le_bytes())
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
            if ends && (wide || !goes_on(text, at, end)) {
                return Some(end);
            }
        }
        None
    })
}

/// The sentences of `text`, one that is not ended among them; at least one.
fn sentence_count(text: &str) -> usize {
    let text = text.trim_end();
    let (ended, last) = sentence_ends(text).fold((0, 0), |(count, _), end| (count + 1, end));
    if last < text.len() { ended + 1 } else { ended.max(1) }
}

/// Shortened words with a full stop of their own before a number, as titles have it before a name.
const BEFORE_NUMBERS: [&str; 3] = ["No", "Nr", "ca"];
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

/// Whether the sentence goes on behind the signs between these offsets: "Dr. Lee", "J. Smith", "at 5 p.m. on Monday",
/// "No. 5", "am 4. Juni", "She said \"Well done!\" and smiled".
fn goes_on(text: &str, at: usize, end: usize) -> bool {
    let (Some(before), Some(signs), Some(after)) = (text.get(..at), text.get(at..end), text.get(end..)) else {
        return false;
    };
    let after = after.trim_start();
    if after.is_empty() {
        return false;
    }
    if after.starts_with(char::is_lowercase) {
        return true;
    }
    if !signs.starts_with('.') {
        return false;
    }
    let word = before.rsplit(char::is_whitespace).next().unwrap_or(before);
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let number_follows = after.starts_with(|c: char| c.is_ascii_digit());
    let initial = word != "I" && word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    let in_letters = word.contains('.') && word.split('.').all(|part| part.chars().count() == 1);
    let day = word.len() <= 2 && !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    likeness::TITLES.contains(&word)
        || initial
        || in_letters
        || number_follows && BEFORE_NUMBERS.contains(&word)
        || day && MONTHS.iter().any(|month| after.starts_with(month))
}

/// The first `count` sentences. A small model that does not stop repeats itself from there on.
fn sentences(text: &str, count: usize) -> &str {
    // "Well done!" says little alone: what ends within a dozen characters is joined to the next sentence, but for
    // scripts that say much in a dozen characters.
    let long_enough = |end: &usize| {
        text.get(..*end).is_some_and(|head| head.chars().count() > 12 || head.ends_with(['。', '！', '？', '」']))
    };
    let end = sentence_ends(text).filter(long_enough).nth(count - 1);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// The text without an unfinished last sentence; none where no sentence is finished.
fn whole_sentences(text: &str) -> Option<&str> {
    sentence_ends(text).last().and_then(|end| text.get(..end))
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
    fn a_texts_own_words_go_on() {
        let opening = |text| Manner::Joined(", but", None).opening(text);
        assert_eq!(opening("the bus\nwas late again!!"), "The bus was late again, but");
        assert_eq!(opening("élan is gone, i think. so i'm off…"), "Élan is gone, I think. so I'm off, but");
        assert_eq!(opening("it isn't in"), "It isn't in, but");
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
        assert_eq!(whole_sentences("All is well. But then he"), Some("All is well."));
        assert_eq!(whole_sentences("Never finished"), None);
    }

    #[test]
    fn a_full_stop_that_ends_no_sentence_cuts_nothing() {
        for whole in [
            "I am glad that Mr. Brown was kind to you.",
            "It is good that J. Smith came.",
            "The train at 5 p.m. on Monday will wait for you.",
            "She said \"Well done!\" and smiled at all of you.",
            "You hoped… but the bus was late.",
            "Platform No. 5 is where help waits.",
        ] {
            assert_eq!(sentences(whole, 1), whole);
        }
        assert_eq!(
            sentences("The talk by Mr. Brown and Mrs. Green was a success. They came. More.", 2),
            "The talk by Mr. Brown and Mrs. Green was a success. They came."
        );
        assert_eq!(sentences("Surely nobody said no. You did well.", 1), "Surely nobody said no.");
        assert_eq!(sentences("You can do this as well as I. Go on.", 1), "You can do this as well as I.");
    }

    #[test]
    fn what_was_cut_short_is_known_to_be_broken() {
        let express = Task::Express(Polarity::Positive);
        let whole = |raw, finish, task| finished(raw, finish, "A text.", task).whole;
        assert!(whole("All is well. But then", Finish::Length, express), "the finished sentence stands alone");
        assert!(!whole("All is well and then", Finish::Length, express));
        assert!(whole("All is well", Finish::Stop, express), "the model ended it");
        assert!(!whole("今日は雨でしたが傘を", Finish::Length, Task::Reply));
        assert!(!whole("All is well \u{fffd}", Finish::Stop, express));
        assert!(!whole("She said \"well done", Finish::Stop, Task::Reply));
        assert!(!whole("Well done! You finished it.", Finish::Stop, Task::Reply), "a reply is one sentence");
        let of = |input, raw, finish| finished(raw, finish, input, express).whole;
        assert!(of(
            "My new 27\" monitor is broken.",
            "My new 27\" monitor is broken, but it can be mended.",
            Finish::Stop
        ));
        assert!(
            !of("She left. He stayed.", "She left. He stayed and", Finish::Length),
            "a sentence of the text is lost"
        );
        assert!(of("She left. He stayed.", "She left. He stayed. And", Finish::Length));
        // Of as many bytes when shortened as before.
        let long = format!("{}{} I.", "word ".repeat(39), "hah");
        assert_eq!(long.len(), 201);
        assert!(!whole(&long, Finish::Stop, Task::Reply), "it was shortened inside a sentence");
        assert!(whole(&long, Finish::Stop, express), "an expression may be as long");
    }

    #[test]
    fn an_expression_has_a_sentence_more_than_its_text_at_most() {
        let said = |input, raw| finished(raw, Finish::Stop, input, Task::Express(Polarity::Positive)).text;
        let raw = "It rained for hours. We danced all night. The band left. We stayed on. We stayed on.";
        assert_eq!(said("It rained for hours", raw), "It rained for hours. We danced all night.");
        let three = "It rained for hours. We danced. The band left";
        assert_eq!(said(three, raw), "It rained for hours. We danced all night. The band left. We stayed on.");
        assert_eq!(sentence_count("Dr. Lee came at 5 p.m. on Monday! Who knew?"), 2);
        assert_eq!((sentence_count("nobody came"), sentence_count("雨です。傘がない")), (1, 2));
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
