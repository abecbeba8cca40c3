//! Continuous batching as a state machine: sequences join and leave between two steps.
//!
//! One call of [`Scheduler::advance`] computes parts of newcomers' prompts, and then decodes for every live row. There
//! are as many parts as newcomers wait for each live row, at least one: a newcomer, however long its prompt, delays the
//! others by one such part at a time, and many that come at once do not each wait for a step of the few before them.

use std::sync::Arc;

use super::{
    GenerateParams,
    lookup::{self, Lookup},
    prefix::PrefixRows,
    sampler,
    slots::Slots,
};
use crate::runtime::{Decode, RuntimeError, Step};

/// Rows kept for prompt prefixes: one a task.
pub(super) const PREFIX_ROWS: usize = 3;

/// Fewest tokens that a part of a prompt has: a single one is a step, by another graph or another path of the runtime,
/// which rounds otherwise, and a text would depend on who else was there when its prompt was cut.
const LEAST_PART: usize = 2;

/// Most tokens of a part while nobody waits for it. Between two parts it is seen whether the caller left.
const MOST_ALONE: usize = 256;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so.
    Stop,
    /// The token limit was reached.
    Length,
}

/// A generated answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Token ids without the stop token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// How unlikely the model finds what it wrote where it was least sure: the mean of −ln p, in nats, over its three
    /// least likely tokens, the stop token among them. Of a shorter answer the missing ones count as sure.
    pub doubt: f32,
    /// The logit of each token that was to be watched where the first token was chosen; not a number for one that the model
    /// cannot write.
    pub watched: Vec<f32>,
}

/// Tokens that [`Generation::doubt`] is the mean of. Where an answer goes wrong it does so in a word or two: a mean over
/// all tokens hides them in a long one, the highest alone is often a name.
const DOUBTED: usize = 3;

/// How the work is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Most tokens of a prompt computed between two steps of others.
    pub(super) prefill_tokens: usize,
    /// Whether tokens are guessed; none decodes one after the other.
    pub(super) lookup: Option<Lookup>,
}

/// A sequence and whom to tell.
struct Sequence<R> {
    params: GenerateParams,
    /// Prefix and body.
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// Tokens in the cache row. Of a live sequence all but the last one.
    past: usize,
    finish: Option<Finish>,
    /// How surprising the least likely tokens are, the most surprising first.
    surprises: [f32; DOUBTED],
    watched: Vec<f32>,
    reply: R,
}

/// A sequence whose prompt is being computed, in a row behind the live ones.
struct Newcomer<R> {
    sequence: Sequence<R>,
    row: usize,
}

/// Who waits for a sequence: the production one is a channel, tests use a plain value.
pub(super) trait Waiting {
    /// Whether nobody waits any more, or the time is up.
    fn is_gone(&self) -> bool;

    /// Whether both belong to one submission. Only then may one take over what was computed for the other: how long an
    /// answer takes must not tell a caller what another one's text is.
    fn is_with(&self, other: &Self) -> bool;
}

/// The rows of one model and their sequences.
pub(super) struct Scheduler<D: Decode, R> {
    decoder: D,
    pace: Pace,
    slots: Slots<Sequence<R>>,
    newcomer: Option<Newcomer<R>>,
    prefixes: PrefixRows,
}

/// What calls of `advance` did.
pub(super) struct Progress<R> {
    /// Ended sequences.
    pub(super) finished: Vec<(R, Generation)>,
    /// Sequences whose caller left.
    pub(super) gone: Vec<R>,
    /// Tokens generated.
    pub(super) tokens: usize,
    /// Admitted prompts whose prefix was in the cache.
    pub(super) prefix_hits: usize,
    /// Tokens of admitted prompts that were taken over from a sequence of the same submission.
    pub(super) shared: usize,
    /// Tokens guessed, and how many of them the model would have written.
    pub(super) guessed: usize,
    pub(super) accepted: usize,
}

impl<R> Default for Progress<R> {
    fn default() -> Self {
        Self { finished: Vec::new(), gone: Vec::new(), tokens: 0, prefix_hits: 0, shared: 0, guessed: 0, accepted: 0 }
    }
}

impl<D: Decode, R: Waiting> Scheduler<D, R> {
    /// Uses the last [`PREFIX_ROWS`] rows of the decoder for prefixes and the others for sequences.
    pub(super) fn new(decoder: D, pace: Pace) -> Self {
        let slots = decoder.rows().saturating_sub(PREFIX_ROWS);
        let prefixes = PrefixRows::new(slots, PREFIX_ROWS);
        Self { slots: Slots::new(slots), newcomer: None, prefixes, pace, decoder }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.live() == 0
    }

    /// Sequences being served.
    pub(super) fn live(&self) -> usize {
        self.slots.len() + usize::from(self.newcomer.is_some())
    }

    /// Admits sequences from `next`, computes parts of their prompts, and decodes for every live row. `waiting` says how
    /// many `next` has to give. What ended is in `progress` also when a later part fails.
    ///
    /// # Errors
    /// The decoder's error; every live sequence is then lost, and [`Scheduler::abandon`] gives their callers back.
    pub(super) fn advance(
        &mut self,
        waiting: usize,
        mut next: impl FnMut() -> Option<(GenerateParams, R)>,
        progress: &mut Progress<R>,
    ) -> Result<(), RuntimeError> {
        let newcomers = (waiting + usize::from(self.newcomer.is_some())).min(self.slots.room());
        for _ in 0..(newcomers / self.slots.len().max(1)).max(1) {
            if self.newcomer.is_none()
                && self.slots.room() > 0
                && let Some((params, reply)) = next()
            {
                self.admit(params, reply, progress);
            }
            if self.newcomer.is_none() {
                break;
            }
            self.prefill(progress)?;
        }
        self.decode(progress)?;
        self.collect(progress);
        Ok(())
    }

    /// Gives back everybody who was being served.
    pub(super) fn abandon(&mut self) -> Vec<R> {
        let newcomer = self.newcomer.take().map(|newcomer| newcomer.sequence);
        self.slots.drain().chain(newcomer).map(|sequence| sequence.reply).collect()
    }

    /// Gives a sequence its row, with what of its prompt is in the cache already.
    fn admit(&mut self, params: GenerateParams, reply: R, progress: &mut Progress<R>) {
        let row = self.slots.next_row();
        let known = self.prefixes.find(&params.prefix);
        progress.prefix_hits += usize::from(known.is_some());
        let twins = self.slots.iter().enumerate().filter(|(_, other)| other.reply.is_with(&reply));
        let shared = twins.map(|(twin, other)| (other.shares(&params), twin)).max().filter(|&(shared, _)| shared > 0);
        let mut past = 0;
        if let Some((shared, twin)) = shared {
            past = params.prefix.len() + shared;
            progress.shared += shared;
            self.decoder.copy(twin, row, past);
        } else if let Some(known) = known {
            past = params.prefix.len();
            self.decoder.copy(known, row, past);
        }
        let prompt = [&*params.prefix, &params.body].concat();
        let sequence = Sequence::new(params, prompt, past, reply);
        self.newcomer = Some(Newcomer { sequence, row });
    }

    /// Computes the next part of the newcomer's prompt; after the last one it is live.
    fn prefill(&mut self, progress: &mut Progress<R>) -> Result<(), RuntimeError> {
        if let Some(left) = self.newcomer.take_if(|newcomer| newcomer.sequence.reply.is_gone()) {
            progress.gone.push(left.sequence.reply);
        }
        // It stays where `abandon` finds it until nothing can fail any more.
        let Some(Newcomer { sequence, row }) = &mut self.newcomer else { return Ok(()) };
        let most = if self.slots.len() == 0 { MOST_ALONE } else { self.pace.prefill_tokens };
        let part = sequence.next_part(most);
        let length = part.len();
        let logits = self.decoder.prefill(*row, sequence.past, part)?;
        sequence.past += length;
        if sequence.past == sequence.params.prefix.len() {
            let kept = self.prefixes.store(Arc::clone(&sequence.params.prefix));
            self.decoder.copy(*row, kept, sequence.past);
        }
        if sequence.past < sequence.prompt.len() {
            return Ok(());
        }
        progress.tokens += sequence.accept(&logits, &self.decoder)?;
        if let Some(Newcomer { sequence, row }) = self.newcomer.take() {
            // Others may have left since it was given its row.
            if row != self.slots.next_row() {
                self.decoder.copy(row, self.slots.next_row(), sequence.past);
            }
            self.slots.push(sequence);
            self.collect(progress);
        }
        Ok(())
    }

    /// Decodes one token or more for every live row.
    fn decode(&mut self, progress: &mut Progress<R>) -> Result<(), RuntimeError> {
        let guesses: Vec<Vec<u32>> = match self.pace.lookup {
            Some(lookup) if self.slots.len() <= lookup.rows => {
                self.slots.iter().map(|sequence| sequence.guess(lookup.tokens)).collect()
            }
            _ => Vec::new(),
        };
        if guesses.iter().any(|guess| !guess.is_empty()) {
            return self.verify(guesses, progress);
        }
        let steps: Vec<Step> = self
            .slots
            .iter()
            .filter_map(|sequence| Some(Step { token: *sequence.tokens.last()?, past: sequence.past }))
            .collect();
        if steps.is_empty() {
            return Ok(());
        }
        let logits = self.decoder.step(&steps)?;
        for (sequence, logits) in self.slots.iter_mut().zip(&logits) {
            sequence.past += 1;
            progress.tokens += sequence.accept(logits, &self.decoder)?;
        }
        Ok(())
    }

    /// Passes each row's last token and what was guessed to follow. Of that, all is taken that the row would have written
    /// anyway, and one token more; the rest is written over by later passes.
    fn verify(&mut self, guesses: Vec<Vec<u32>>, progress: &mut Progress<R>) -> Result<(), RuntimeError> {
        let rows: Vec<(usize, Vec<u32>)> = (self.slots.iter().zip(&guesses))
            .map(|(sequence, guess)| {
                (sequence.past, sequence.tokens.last().into_iter().chain(guess).copied().collect())
            })
            .collect();
        let told = self.decoder.verify_all(&rows)?;
        for ((sequence, guess), logits) in self.slots.iter_mut().zip(guesses).zip(told) {
            progress.guessed += guess.len();
            let following = guess.into_iter().map(Some).chain([None]);
            for (logits, next) in logits.iter().zip(following) {
                sequence.past += 1;
                progress.tokens += sequence.accept(logits, &self.decoder)?;
                if sequence.finish.is_some() || sequence.tokens.last().copied() != next {
                    break;
                }
                progress.accepted += 1;
            }
        }
        Ok(())
    }

    fn collect(&mut self, progress: &mut Progress<R>) {
        while let Some((sequence, moved)) =
            self.slots.retire(|sequence| sequence.finish.is_some() || sequence.reply.is_gone())
        {
            if let Some(moved) = moved
                && let Some(last) = self.slots.iter().nth(moved.to)
            {
                self.decoder.copy(moved.from, moved.to, last.past);
            }
            match sequence.finish {
                Some(finish) => {
                    let doubt = sequence.doubt();
                    let Sequence { tokens, watched, reply, .. } = sequence;
                    progress.finished.push((reply, Generation { tokens, finish, doubt, watched }));
                }
                None => progress.gone.push(sequence.reply),
            }
        }
    }
}

impl<R> Sequence<R> {
    fn new(params: GenerateParams, prompt: Vec<u32>, past: usize, reply: R) -> Self {
        let (tokens, surprises, watched) = (Vec::new(), [0.0; DOUBTED], Vec::new());
        Self { params, prompt, tokens, past, finish: None, surprises, watched, reply }
    }

    /// The next tokens of the prompt to compute, about `most` of them. A part ends where the prefix does, so that a
    /// prompt is cut there whether its prefix was known or not.
    fn next_part(&self, most: usize) -> &[u32] {
        let prefix = self.params.prefix.len();
        let end = if self.past < prefix { prefix } else { self.prompt.len() };
        let (left, most) = (end - self.past, most.max(2 * LEAST_PART));
        // What remains is no less than a part, either.
        let length = if left <= most { left } else { most.min(left - LEAST_PART) };
        self.prompt.get(self.past..self.past + length).unwrap_or_default()
    }

    /// Tokens at the beginning of both bodies that another sequence need not compute again. It computes the last of its
    /// own all the same: what they predict is kept nowhere.
    fn shares(&self, other: &GenerateParams) -> usize {
        if self.params.prefix != other.prefix {
            return 0;
        }
        let same = self.params.body.iter().zip(&other.body).take_while(|(ours, theirs)| ours == theirs).count();
        same.min(other.body.len().saturating_sub(LEAST_PART))
    }

    /// What may follow, at most as many tokens as leave room for one more.
    fn guess(&self, most: usize) -> Vec<u32> {
        let room = self.params.max_tokens.saturating_sub(self.tokens.len() + 1);
        lookup::guess(&self.prompt, &self.tokens, most.min(room)).to_vec()
    }

    /// Takes the next token from the logits; answers how many tokens that made.
    fn accept(&mut self, logits: &[f32], decoder: &impl Decode) -> Result<usize, RuntimeError> {
        let place = sampler::pick(logits, self.params.sampling, self.tokens.len())
            .ok_or_else(|| RuntimeError::Shape("no logit is a number".into()))?;
        if self.tokens.is_empty() {
            let logit = |&token: &u32| logits.get(usize::try_from(decoder.place(token)?).ok()?).copied();
            self.watched = self.params.watched.iter().map(|token| logit(token).unwrap_or(f32::NAN)).collect();
        }
        self.note(sampler::surprise(logits, place));
        let token = decoder.token(place);
        if self.params.stop.contains(&token) {
            self.finish = Some(Finish::Stop);
            return Ok(0);
        }
        self.tokens.push(token);
        if self.tokens.len() >= self.params.max_tokens {
            self.finish = Some(Finish::Length);
        }
        Ok(1)
    }

    fn note(&mut self, mut surprise: f32) {
        for highest in &mut self.surprises {
            if surprise > *highest {
                std::mem::swap(&mut surprise, highest);
            }
        }
    }

    fn doubt(&self) -> f32 {
        let [first, second, third] = self.surprises;
        (first + second + third) / 3.0
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;
    use crate::engine::generate::{
        Sampling,
        doubles::{Adder, Pass},
    };

    const STOP: u32 = 0;
    const PACE: Pace = Pace { prefill_tokens: 16, lookup: None };

    /// A name, up to the stroke that of the submission.
    #[derive(Debug)]
    struct Caller(&'static str, Rc<Cell<bool>>);

    impl Waiting for Caller {
        fn is_gone(&self) -> bool {
            self.1.get()
        }

        fn is_with(&self, other: &Self) -> bool {
            self.0.split('/').next() == other.0.split('/').next()
        }
    }

    fn caller(name: &'static str) -> Caller {
        Caller(name, Rc::default())
    }

    fn params(prefix: &[u32], body: &[u32], max_tokens: usize) -> GenerateParams {
        GenerateParams {
            prefix: prefix.into(),
            body: body.to_vec(),
            max_tokens,
            stop: Arc::from([STOP]),
            sampling: Sampling::Greedy,
            watched: Arc::default(),
        }
    }

    type Job = (GenerateParams, Caller);

    impl Scheduler<Adder, Caller> {
        fn turn(&mut self, waiting: usize, next: impl FnMut() -> Option<Job>) -> Progress<Caller> {
            let mut progress = Progress::default();
            self.advance(waiting, next, &mut progress).unwrap();
            progress
        }
    }

    fn scheduler(slots: usize, pace: Pace) -> Scheduler<Adder, Caller> {
        Scheduler::new(Adder::new(slots + PREFIX_ROWS, 128, 97), pace)
    }

    fn run(scheduler: &mut Scheduler<Adder, Caller>, mut waiting: Vec<Job>) -> Vec<(&'static str, Vec<u32>, Finish)> {
        let mut done = Vec::new();
        waiting.reverse();
        for _ in 0..400 {
            let progress = scheduler.turn(waiting.len(), || waiting.pop());
            done.extend(progress.finished.into_iter().map(|(who, text)| (who.0, text.tokens, text.finish)));
        }
        assert!(scheduler.is_idle() && waiting.is_empty());
        done.sort();
        done
    }

    /// The same jobs, each on a scheduler of its own.
    fn run_alone(jobs: Vec<Job>, pace: Pace) -> Vec<(&'static str, Vec<u32>, Finish)> {
        let mut alone: Vec<_> = jobs.into_iter().flat_map(|job| run(&mut scheduler(1, pace), vec![job])).collect();
        alone.sort();
        alone
    }

    impl PartialOrd for Finish {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Finish {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            (*self as u8).cmp(&(*other as u8))
        }
    }

    #[test]
    fn answers_are_the_same_alone_and_in_company() {
        let long: Vec<u32> = (1..60).collect();
        let jobs = || {
            vec![
                (params(&[1, 2], &[3], 9), caller("a")),
                (params(&[1, 2], &[4, 5], 3), caller("b")),
                (params(&[7], &long, 20), caller("c")),
                (params(&[], &[9, 9, 9], 5), caller("d")),
                (params(&[5], &[6], 1), caller("e")),
                (params(&long[..30], &long[..31], 4), caller("f/one")),
                (params(&long[..30], &long[..33], 7), caller("f/two")),
                (params(&[6], &[6], 7), caller("g")),
            ]
        };
        // Alone and with such a pace, a prompt is computed in at most two passes.
        let alone = run_alone(jobs(), Pace { prefill_tokens: 256, lookup: None });
        for prefill_tokens in [1, 4, 16] {
            let together = run(&mut scheduler(3, Pace { prefill_tokens, lookup: None }), jobs());
            assert_eq!(together, alone, "{prefill_tokens} tokens a part");
        }
        assert!(alone.iter().any(|(_, _, finish)| *finish == Finish::Length));
    }

    #[test]
    fn doubt_is_of_the_three_least_likely_tokens() {
        // Of 97 logits the chosen one is 1 and the others are 0.
        let surprise = (std::f32::consts::E + 96.0).ln() - 1.0;
        for (tokens, share) in [(1, 1.0 / 3.0), (2, 2.0 / 3.0), (3, 1.0), (9, 1.0)] {
            let mut scheduler = scheduler(1, PACE);
            let mut job = Some((params(&[1, 2], &[3], tokens), caller("a")));
            let mut finished = Vec::new();
            for _ in 0..20 {
                finished.extend(scheduler.turn(1, || job.take()).finished);
            }
            let (_, answer) = finished.pop().unwrap();
            assert_eq!(answer.tokens.len(), tokens);
            assert!((answer.doubt - share * surprise).abs() < 1e-4, "{tokens} tokens: {}", answer.doubt);
        }
        let (params, reply, prompt) = (params(&[], &[], 1), caller("a"), Vec::new());
        let mut sequence = Sequence::new(params, prompt, 0, reply);
        for surprise in [0.1, 2.0, 0.5, 4.0, 0.2] {
            sequence.note(surprise);
        }
        assert!((sequence.doubt() - 6.5 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_watched_is_told_of_the_first_token_alone() {
        let mut scheduler = scheduler(1, PACE);
        let watched: Vec<u32> = (0..98).collect();
        let mut job = Some((GenerateParams { watched: watched.into(), ..params(&[1, 2], &[3], 5) }, caller("a")));
        let mut finished = Vec::new();
        for _ in 0..20 {
            finished.extend(scheduler.turn(1, || job.take()).finished);
        }
        let (_, answer) = finished.pop().unwrap();
        let first = usize::try_from(answer.tokens[0]).unwrap();
        assert!(answer.watched[97].is_nan(), "there is no such token");
        let chosen: Vec<usize> = (0..97).filter(|&token| answer.watched[token] > 0.5).collect();
        assert_eq!(chosen, [first]);
        assert_ne!(answer.tokens[0], answer.tokens[4], "the last one would tell otherwise");
    }

    #[test]
    fn a_long_newcomer_delays_the_others_by_one_part_at_a_time() {
        let mut scheduler = scheduler(2, Pace { prefill_tokens: 8, lookup: None });
        let long = vec![3; 33];
        let mut jobs = vec![(params(&[1], &long, 5), caller("long")), (params(&[], &[2], 40), caller("short"))];
        for _ in 0..10 {
            scheduler.turn(1, || jobs.pop());
        }
        let parts = [1, 8, 8, 8, 7, 2].map(Pass::Prefill);
        // Nobody has to wait for the first, and after the last one both decode.
        let mut expected = vec![Pass::Prefill(1), Pass::Step(1)];
        expected.extend(parts.iter().flat_map(|&part| [part, Pass::Step(1)]));
        expected.truncate(expected.len() - 1);
        expected.extend([Pass::Step(2); 4]);
        assert_eq!(scheduler.decoder.passes, expected);
    }

    #[test]
    fn many_that_come_at_once_are_taken_in_before_the_few_go_on() {
        let mut scheduler = scheduler(4, Pace { prefill_tokens: 8, lookup: None });
        let mut jobs: Vec<Job> = ["a", "b", "c", "d", "e"].map(|name| (params(&[], &[3; 12], 40), caller(name))).into();
        // The fifth has no row: nobody waits for it. The first alone takes its prompt whole, the others take two parts.
        scheduler.turn(jobs.len(), || jobs.pop());
        let parts = [12, 8, 4, 8].map(Pass::Prefill);
        assert_eq!(scheduler.decoder.passes, [&parts[..], &[Pass::Step(2)]].concat());
        // Two live, two newcomers, one of them half taken in: a part for each two.
        scheduler.decoder.passes.clear();
        scheduler.turn(jobs.len(), || jobs.pop());
        assert_eq!(scheduler.decoder.passes, [Pass::Prefill(4), Pass::Step(3)]);
        assert_eq!(jobs.len(), 2);
    }

    #[test]
    fn a_newcomer_without_company_is_computed_at_once_unless_its_caller_leaves() {
        let gone = Rc::new(Cell::new(false));
        let body = vec![3; MOST_ALONE + 9];
        let mut scheduler = Scheduler::new(Adder::new(1 + PREFIX_ROWS, 512, 97), PACE);
        let mut job = Some((params(&[], &body, 5), Caller("leaves", Rc::clone(&gone))));
        scheduler.turn(1, || job.take());
        gone.set(true);
        assert_eq!(scheduler.live(), 1);
        let progress = scheduler.turn(0, || None);
        assert_eq!((progress.gone.len(), scheduler.live()), (1, 0));
        assert_eq!(scheduler.decoder.passes, [Pass::Prefill(MOST_ALONE)]);
        // Of a failure, it would have been told.
        scheduler.turn(1, || Some((params(&[], &body, 5), caller("half"))));
        assert_eq!((scheduler.abandon().len(), scheduler.live()), (1, 0));
    }

    #[test]
    fn a_prefix_is_computed_once() {
        let mut scheduler = scheduler(2, PACE);
        let mut hits = 0;
        for _ in 0..3 {
            let mut job = Some((params(&[4, 4, 4], &[1], 1), caller("x")));
            for _ in 0..2 {
                hits += scheduler.turn(1, || job.take()).prefix_hits;
            }
            assert!(scheduler.is_idle());
        }
        assert_eq!(hits, 2);
        // 3 tokens of prefix once, 1 token of body each time.
        assert_eq!(scheduler.decoder.prefilled(), 3 + 3);
    }

    #[test]
    fn answers_of_one_submission_share_their_text() {
        let text = [11, 12, 13, 14, 15, 16, 17];
        let body = |end: u32| [&text[..], &[50, end]].concat();
        let jobs = |first, second, third| {
            vec![
                (params(&[1], &body(51), 6), caller(first)),
                (params(&[1], &body(52), 6), caller(second)),
                (params(&[1], &body(51), 6), caller(third)),
            ]
        };
        let alone = run_alone(jobs("a", "b", "c"), PACE);
        // What follows the text has two tokens, and the last two of a prompt are computed in any case.
        for (names, computed) in [(["a", "b", "c"], 1 + 3 * 9), (["a/1", "a/2", "a/3"], 1 + 9 + 2 + 2)] {
            let mut scheduler = scheduler(3, PACE);
            let [first, second, third] = names;
            let together = run(&mut scheduler, jobs(first, second, third));
            assert_eq!(scheduler.decoder.prefilled(), computed, "{names:?}");
            let texts = |answers: &[(&str, Vec<u32>, Finish)]| -> Vec<Vec<u32>> {
                answers.iter().map(|(_, tokens, _)| tokens.clone()).collect()
            };
            assert_eq!(texts(&together), texts(&alone));
        }
        // Another prefix makes another text of the same words.
        let other = vec![(params(&[1], &body(51), 6), caller("a/1")), (params(&[2], &body(51), 6), caller("a/2"))];
        let mut scheduler = scheduler(2, PACE);
        run(&mut scheduler, other);
        assert_eq!(scheduler.decoder.prefilled(), 2 * (1 + 9));
    }

    #[test]
    fn a_caller_that_left_frees_its_row_and_the_others_go_on() {
        let mut scheduler = scheduler(2, PACE);
        let gone = Rc::new(Cell::new(false));
        let mut jobs = vec![
            (params(&[], &[2, 3], 12), caller("stays")),
            (params(&[], &[1, 1], 50), Caller("leaves", Rc::clone(&gone))),
        ];
        scheduler.turn(1, || jobs.pop());
        scheduler.turn(1, || jobs.pop());
        assert_eq!(scheduler.live(), 2);
        gone.set(true);
        let progress = scheduler.turn(0, || None);
        assert_eq!(progress.gone.len(), 1);
        let rest = run(&mut scheduler, Vec::new());
        assert_eq!(rest, run_alone(vec![(params(&[], &[2, 3], 12), caller("stays"))], PACE));
    }

    #[test]
    fn guesses_change_no_answer_and_right_ones_save_passes() {
        // So few tokens that answers often repeat pairs of their prompt, and as often go on otherwise.
        let prompts: [Vec<u32>; 5] =
            [1_u32, 2, 3, 5, 7].map(|step| (0..40).map(|place| 1 + place * place * step % 3).collect());
        let mut samplings = vec![Sampling::Greedy];
        samplings.extend((0..6).map(|seed| Sampling::Nucleus { temperature: 0.5, top_p: 0.95, seed }));
        for sampling in samplings {
            let jobs = || -> Vec<Job> {
                let each = ["a", "b", "c", "d/stops", "e/stops"].into_iter().zip(&prompts);
                let each = each.map(|(name, body)| {
                    let stop: Arc<[u32]> = if name.ends_with("stops") { Arc::from([STOP]) } else { Arc::from([]) };
                    (GenerateParams { stop, sampling, ..params(&[1], body, 30) }, caller(name))
                });
                each.collect()
            };
            let outcome = |slots: usize, lookup: Option<Lookup>| {
                let decoder = Adder::new(slots + PREFIX_ROWS, 128, 4);
                let mut scheduler = Scheduler::new(decoder, Pace { prefill_tokens: 8, lookup });
                let (mut waiting, mut done, mut guessed, mut accepted) = (jobs(), Vec::new(), 0, 0);
                while !(waiting.is_empty() && scheduler.is_idle()) {
                    let progress = scheduler.turn(waiting.len(), || waiting.pop());
                    done.extend(progress.finished.into_iter().map(|(who, text)| (who.0, text.tokens, text.finish)));
                    guessed += progress.guessed;
                    accepted += progress.accepted;
                }
                done.sort();
                let passes = scheduler.decoder.passes.iter().filter(|pass| !matches!(pass, Pass::Prefill(_))).count();
                (done, passes, guessed, accepted)
            };
            let (plain, steps, ..) = outcome(1, None);
            for (slots, rows, tokens) in [(1, 1, 4), (2, 2, 4), (4, 2, 6), (4, 4, 1)] {
                let (answers, passes, guessed, accepted) = outcome(slots, Some(Lookup { rows, tokens, anyway: true }));
                assert_eq!(answers, plain, "{slots} slots, {sampling:?}");
                if slots == rows {
                    assert!(accepted > 0 && guessed > accepted, "{accepted} of {guessed} were right");
                }
                if slots == 1 {
                    assert_eq!(passes + accepted, steps);
                }
            }
        }
    }
}
