//! Which token budget suits this machine: shapes to run, and what follows from the times they took. Pure: times are
//! arguments.
//!
//! A larger batch makes larger products, which run faster until their numbers no longer fit in the caches near a core.
//! Where that is depends on model and machine, so it is measured; why so and not otherwise, docs/performance.md says.

use std::{fmt, time::Duration};

/// The budgets to choose from, padded tokens.
pub const BUDGETS: [usize; 5] = [128, 256, 512, 1024, 2048];
/// Tokens of a row: of a short text, and of a longer one.
const LENGTHS: [usize; 2] = [16, 64];
/// All passes of a measurement end within this time; what does not fit in is not tried.
const ALL: Duration = Duration::from_millis(800);
/// A shape is run again until it has had this time, or this many passes. The fastest counts.
const ONE: Duration = Duration::from_millis(40);
const PASSES: u32 = 5;
/// Of the best rate: a budget that reaches this share is as good, and the smaller one answers sooner.
const AS_GOOD: f64 = 0.97;

/// A batch to measure: rows of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) tokens: usize,
}

impl Shape {
    /// What fits in a budget.
    fn within(budget: usize, items: usize, tokens: usize) -> Self {
        Self { rows: (budget / tokens).min(items).max(1), tokens }
    }

    /// Seconds that a token takes when the whole shape takes `time`.
    fn pace(self, time: Duration) -> f64 {
        time.as_secs_f64() / f64::from(u32::try_from(self.rows * self.tokens).unwrap_or(u32::MAX))
    }

    fn at(self, pace: f64) -> Duration {
        Duration::from_secs_f64(pace * f64::from(u32::try_from(self.rows * self.tokens).unwrap_or(u32::MAX)))
    }
}

/// A shape and the times it took.
struct Trial {
    shape: Shape,
    passes: u32,
    spent: Duration,
    fastest: Option<Duration>,
}

impl Trial {
    fn over(&self) -> bool {
        self.passes >= PASSES || self.spent >= ONE
    }
}

/// A measurement under way.
pub(super) struct Plan {
    items: usize,
    lengths: Vec<usize>,
    /// Each shape once, small budgets first.
    trials: Vec<Trial>,
    spent: Duration,
    /// The best seconds a token of any pass so far.
    pace: Option<f64>,
}

impl Plan {
    /// For batches of at most `items` rows of at most `longest` tokens.
    pub(super) fn new(items: usize, longest: usize) -> Self {
        let mut lengths = LENGTHS.map(|length| length.min(longest).max(1)).to_vec();
        lengths.dedup();
        let mut trials: Vec<Trial> = Vec::new();
        for budget in BUDGETS {
            for &length in &lengths {
                let shape = Shape::within(budget, items, length);
                if trials.iter().all(|trial| trial.shape != shape) {
                    trials.push(Trial { shape, passes: 0, spent: Duration::ZERO, fastest: None });
                }
            }
        }
        Self { items, lengths, trials, spent: Duration::ZERO, pace: None }
    }

    /// The shape to run now; none when all is measured or the time is used up.
    pub(super) fn next(&self) -> Option<Shape> {
        let shape = self.trials.iter().find(|trial| !trial.over())?.shape;
        let expected = self.pace.map_or(Duration::ZERO, |pace| shape.at(pace));
        (self.spent + expected <= ALL).then_some(shape)
    }

    /// Takes the time of a pass over the shape that [`next`](Self::next) gave. One that was not alone says how long
    /// this took and nothing else; nor does the first, in which a session sets itself up.
    pub(super) fn record(&mut self, time: Duration, alone: bool) {
        self.spent += time;
        let first = self.pace.is_none();
        let Some(trial) = self.trials.iter_mut().find(|trial| !trial.over()) else { return };
        let pace = trial.shape.pace(time);
        self.pace = Some(self.pace.map_or(pace, |best| best.min(pace)));
        if alone && !first {
            trial.passes += 1;
            trial.spent += time;
            trial.fastest = Some(trial.fastest.map_or(time, |fastest| fastest.min(time)));
        }
    }

    /// The smallest budget that is as good as the best; none where none was measured at every length.
    pub(super) fn conclusion(&self) -> Option<Calibrated> {
        let rates: Vec<(usize, f64)> =
            BUDGETS.into_iter().filter_map(|budget| Some((budget, self.rate(budget)?))).collect();
        let best = rates.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let &(budget, _) = rates.iter().find(|&&(_, rate)| rate >= AS_GOOD * best)?;
        Some(Calibrated { budget, rates })
    }

    /// Tokens a second of batches that fill a budget, over as many tokens of each length.
    fn rate(&self, budget: usize) -> Option<f64> {
        let mut seconds = 0.0;
        let mut lengths = 0.0;
        for &length in &self.lengths {
            let shape = Shape::within(budget, self.items, length);
            let trial = self.trials.iter().find(|trial| trial.shape == shape)?;
            seconds += shape.pace(trial.fastest?);
            lengths += 1.0;
        }
        Some(lengths / seconds.max(f64::MIN_POSITIVE))
    }
}

/// What a measurement found.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// The chosen budget, padded tokens.
    pub budget: usize,
    /// Every budget that was measured, and the tokens a second that it reached.
    pub rates: Vec<(usize, f64)>,
}

/// `128: 9120/s, 256: 9870/s`
impl fmt::Display for Calibrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (budget, rate)) in self.rates.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{budget}: {rate:.0}/s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a plan on a machine that needs `micros` for so many padded tokens; gives the shapes that were run.
    fn run(plan: &mut Plan, micros: impl Fn(usize) -> usize) -> Vec<Shape> {
        let mut shapes = Vec::new();
        while let Some(shape) = plan.next() {
            shapes.push(shape);
            let micros = micros(shape.rows * shape.tokens);
            plan.record(Duration::from_micros(micros.try_into().unwrap()), true);
        }
        shapes
    }

    fn chosen(micros: impl Fn(usize) -> usize) -> Option<usize> {
        let mut plan = Plan::new(1000, 256);
        run(&mut plan, micros);
        plan.conclusion().map(|found| found.budget)
    }

    #[test]
    fn the_smallest_budget_that_is_nearly_the_fastest_is_chosen() {
        // Every pass costs the same beside its tokens: the larger, the better.
        assert_eq!(chosen(|tokens| 5_000 + tokens), Some(2048));
        // A token costs the same in any company: nothing is gained by waiting for more.
        assert_eq!(chosen(|tokens| 20 * tokens), Some(128));
        // 256 is a tenth slower than 512, and above that the caches overflow.
        assert_eq!(chosen(|tokens| 1_000 + if tokens > 512 { 30 * tokens } else { 20 * tokens }), Some(512));
        // 2.5 % behind the best counts as equal to it, 4 % does not.
        let slow_start = |at_256: usize| {
            move |tokens: usize| match tokens {
                128 => 5_000,
                256 => at_256,
                _ => 20 * tokens,
            }
        };
        assert_eq!(chosen(slow_start(5_250)), Some(256));
        assert_eq!(chosen(slow_start(5_330)), Some(512));
    }

    #[test]
    fn the_first_pass_and_those_in_company_say_nothing() {
        let mut plan = Plan::new(1000, 256);
        let mut passes = 0;
        while let Some(shape) = plan.next() {
            let time = Duration::from_micros((1_000 + 2 * shape.rows * shape.tokens).try_into().unwrap());
            passes += 1;
            let disturbed = passes == 1 || passes % 4 == 0;
            plan.record(if disturbed { time * 3 } else { time }, !disturbed || passes == 1);
        }
        let mut quiet = Plan::new(1000, 256);
        run(&mut quiet, |tokens| 1_000 + 2 * tokens);
        assert_eq!(plan.conclusion(), quiet.conclusion());
        assert_eq!(quiet.conclusion().unwrap().rates.len(), BUDGETS.len());
    }

    #[test]
    fn a_measurement_ends_in_time_whatever_the_machine() {
        for micros_a_token in [1, 10, 100, 300, 1_000, 2_000] {
            let mut plan = Plan::new(64, 256);
            let shapes = run(&mut plan, |tokens| micros_a_token * tokens);
            assert!(plan.spent <= ALL, "{:?} at {micros_a_token}", plan.spent);
            assert!(shapes.len() <= 1 + 9 * 5, "{shapes:?}");
            assert_eq!(plan.conclusion().map(|found| found.budget), Some(128), "{micros_a_token}");
        }
        // One that is slower still is asked once, and stays as it was.
        let mut plan = Plan::new(64, 256);
        assert_eq!(run(&mut plan, |tokens| 5_000 * tokens).len(), 1);
        assert_eq!(plan.conclusion(), None);
        // So does one that is never alone.
        let mut plan = Plan::new(64, 256);
        while plan.next().is_some() {
            plan.record(Duration::from_millis(10), false);
        }
        assert!(plan.spent <= ALL + Duration::from_millis(10));
        assert_eq!(plan.conclusion(), None);
    }

    #[test]
    fn shapes_keep_to_the_rows_of_a_batch_and_to_the_window() {
        let shapes = |items, longest| {
            let plan = Plan::new(items, longest);
            plan.trials.iter().map(|trial| (trial.shape.rows, trial.shape.tokens)).collect::<Vec<_>>()
        };
        assert_eq!(
            shapes(64, 256),
            [(8, 16), (2, 64), (16, 16), (4, 64), (32, 16), (8, 64), (64, 16), (16, 64), (32, 64)]
        );
        assert_eq!(shapes(8, 256), [(8, 16), (2, 64), (4, 64), (8, 64)]);
        assert_eq!(shapes(4, 12), [(4, 12)]);
        // A budget that fills no more rows is never better than the one below it.
        let mut plan = Plan::new(8, 256);
        run(&mut plan, |tokens| 5_000 + tokens);
        assert_eq!(plan.conclusion().unwrap().budget, 512);
    }
}
