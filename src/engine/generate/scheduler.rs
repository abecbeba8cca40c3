//! Continuous batching as a state machine: sequences join and leave between two steps.
//!
//! One call of [`Scheduler::advance`] admits at most one waiting sequence (its prefill is the only long pass) and
//! then decodes one token for every live row, so that a newcomer delays the others by one prefill at most.

use std::sync::Arc;

use super::{
    GenerateParams,
    prefix::{Lookup, PrefixRows},
    sampler,
    slots::Slots,
};
use crate::runtime::{Decode, RuntimeError, Step};

/// Rows kept for prompt prefixes: one a task.
pub(super) const PREFIX_ROWS: usize = 3;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so.
    Stop,
    /// The token limit was reached.
    Length,
}

/// A generated answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Token ids without the stop token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// A live sequence and whom to tell.
struct Sequence<R> {
    params: GenerateParams,
    tokens: Vec<u32>,
    /// Tokens in the cache row.
    past: usize,
    finish: Option<Finish>,
    reply: R,
}

/// Who waits for a sequence: the production one is a channel, tests use a plain value.
pub(super) trait Waiting {
    /// Whether nobody waits any more, or the time is up.
    fn is_gone(&self) -> bool;
}

/// The rows of one model and their sequences.
pub(super) struct Scheduler<D: Decode, R> {
    decoder: D,
    slots: Slots<Sequence<R>>,
    prefixes: PrefixRows,
}

/// What one call of `advance` did.
pub(super) struct Progress<R> {
    /// Ended sequences.
    pub(super) finished: Vec<(R, Generation)>,
    /// Sequences whose caller left.
    pub(super) gone: Vec<R>,
    /// Tokens generated.
    pub(super) tokens: usize,
    /// Whether an admitted prompt's prefix was in the cache.
    pub(super) prefix_hit: bool,
}

impl<D: Decode, R: Waiting> Scheduler<D, R> {
    /// Uses the last [`PREFIX_ROWS`] rows of the decoder for prefixes and the others for sequences.
    pub(super) fn new(decoder: D) -> Self {
        let slots = decoder.rows().saturating_sub(PREFIX_ROWS);
        Self { slots: Slots::new(slots), prefixes: PrefixRows::new(slots, PREFIX_ROWS), decoder }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.slots.len() == 0
    }

    pub(super) fn live(&self) -> usize {
        self.slots.len()
    }

    /// Admits at most one sequence from `next`, then decodes one token for every live row.
    ///
    /// # Errors
    /// The decoder's error; every live sequence is then lost, and [`Scheduler::abandon`] gives their callers back.
    pub(super) fn advance(
        &mut self,
        next: impl FnOnce() -> Option<(GenerateParams, R)>,
    ) -> Result<Progress<R>, RuntimeError> {
        let mut progress = Progress { finished: Vec::new(), gone: Vec::new(), tokens: 0, prefix_hit: false };
        if !self.slots.is_full()
            && let Some((params, reply)) = next()
        {
            let row = self.slots.next_row();
            // In the slots before the prefill, so that a failure finds the caller there.
            let past = params.prefix.len() + params.body.len();
            self.slots.push(Sequence { tokens: Vec::new(), past, finish: None, reply, params: params.clone() });
            let logits = self.prefill(row, &params, &mut progress.prefix_hit)?;
            if let Some(sequence) = self.slots.iter_mut().last() {
                progress.tokens += sequence.accept(&logits)?;
            }
            self.collect(&mut progress);
        }
        let steps: Vec<Step> = self
            .slots
            .iter()
            .filter_map(|sequence| Some(Step { token: *sequence.tokens.last()?, past: sequence.past }))
            .collect();
        if !steps.is_empty() {
            let logits = self.decoder.step(&steps)?;
            for (sequence, logits) in self.slots.iter_mut().zip(&logits) {
                sequence.past += 1;
                progress.tokens += sequence.accept(logits)?;
            }
            self.collect(&mut progress);
        }
        Ok(progress)
    }

    /// Gives back everybody who was being served.
    pub(super) fn abandon(&mut self) -> Vec<R> {
        self.slots.drain().map(|sequence| sequence.reply).collect()
    }

    fn prefill(&mut self, row: usize, params: &GenerateParams, hit: &mut bool) -> Result<Vec<f32>, RuntimeError> {
        let length = params.prefix.len();
        if length == 0 {
            return self.decoder.prefill(row, 0, &params.body);
        }
        let source = match self.prefixes.find(&params.prefix) {
            Lookup::Hit(source) => {
                *hit = true;
                source
            }
            Lookup::Miss(source) => {
                self.decoder.prefill(source, 0, &params.prefix)?;
                self.prefixes.stored(source, Arc::clone(&params.prefix));
                source
            }
        };
        self.decoder.copy(source, row, length);
        self.decoder.prefill(row, length, &params.body)
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
                    progress.finished.push((sequence.reply, Generation { tokens: sequence.tokens, finish }));
                }
                None => progress.gone.push(sequence.reply),
            }
        }
    }
}

impl<R> Sequence<R> {
    /// Takes the next token from the logits; answers how many tokens that made.
    fn accept(&mut self, logits: &[f32]) -> Result<usize, RuntimeError> {
        let token = sampler::pick(logits, self.params.sampling, self.tokens.len())
            .ok_or_else(|| RuntimeError::Shape("no logit is a number".into()))?;
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
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;
    use crate::engine::generate::{Sampling, doubles::Adder};

    const STOP: u32 = 0;

    #[derive(Debug)]
    struct Caller(&'static str, Rc<Cell<bool>>);

    impl Waiting for Caller {
        fn is_gone(&self) -> bool {
            self.1.get()
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
        }
    }

    fn run(
        scheduler: &mut Scheduler<Adder, Caller>,
        mut waiting: Vec<(GenerateParams, Caller)>,
    ) -> Vec<(&'static str, Vec<u32>, Finish)> {
        let mut done = Vec::new();
        waiting.reverse();
        for _ in 0..200 {
            let progress = scheduler.advance(|| waiting.pop()).unwrap();
            done.extend(progress.finished.into_iter().map(|(who, text)| (who.0, text.tokens, text.finish)));
        }
        assert!(scheduler.is_idle());
        done.sort();
        done
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
        let jobs = || {
            vec![
                (params(&[1, 2], &[3], 9), caller("a")),
                (params(&[1, 2], &[4, 5], 3), caller("b")),
                (params(&[7], &[8], 20), caller("c")),
                (params(&[], &[9, 9, 9], 5), caller("d")),
                (params(&[5], &[6], 1), caller("e")),
                (params(&[6], &[6], 7), caller("f")),
            ]
        };
        let mut alone = Vec::new();
        for job in jobs() {
            alone.extend(run(&mut Scheduler::new(Adder::new(2 + PREFIX_ROWS, 64, 97)), vec![job]));
        }
        alone.sort();
        let together = run(&mut Scheduler::new(Adder::new(3 + PREFIX_ROWS, 64, 97)), jobs());
        assert_eq!(together, alone);
        assert!(together.iter().any(|(_, _, finish)| *finish == Finish::Length));
    }

    #[test]
    fn a_prefix_is_computed_once() {
        let mut scheduler = Scheduler::new(Adder::new(2 + PREFIX_ROWS, 64, 97));
        let mut hits = Vec::new();
        for _ in 0..3 {
            let mut job = Some((params(&[4, 4, 4], &[1], 1), caller("x")));
            hits.push(scheduler.advance(|| job.take()).unwrap().prefix_hit);
        }
        assert_eq!(hits, [false, true, true]);
        // 3 tokens of prefix once, 1 token of body each time.
        assert_eq!(scheduler.decoder.prefilled, 3 + 3);
    }

    #[test]
    fn a_caller_that_left_frees_its_row_and_the_others_go_on() {
        let mut scheduler = Scheduler::new(Adder::new(2 + PREFIX_ROWS, 64, 97));
        let gone = Rc::new(Cell::new(false));
        let mut jobs = vec![
            (params(&[2], &[3], 6), caller("stays")),
            (params(&[1], &[1], 50), Caller("leaves", Rc::clone(&gone))),
        ];
        scheduler.advance(|| jobs.pop()).unwrap();
        scheduler.advance(|| jobs.pop()).unwrap();
        assert_eq!(scheduler.live(), 2);
        gone.set(true);
        let progress = scheduler.advance(|| None).unwrap();
        assert_eq!(progress.gone.len(), 1);
        let rest = run(&mut scheduler, Vec::new());
        let alone = run(
            &mut Scheduler::new(Adder::new(1 + PREFIX_ROWS, 64, 97)),
            vec![(params(&[2], &[3], 6), caller("stays"))],
        );
        assert_eq!(rest, alone);
    }
}
