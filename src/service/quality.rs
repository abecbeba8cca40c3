//! What the checks say of answers, and which of them do best together.
//!
//! Owns the scores and why an answer is made again. Refuses to ask anything: it is told.

use crate::domain::likeness;

/// An answer that is less surely in the light that was asked for is made again, however clear the other one of the
/// pair is.
const LEAST_LIGHT: f64 = 0.35;

/// What a judge holds of an answer, against what the other checks say of it.
const JUDGE_WEIGHT: f64 = 8.0;

/// Whether an answer may be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fitness {
    Fit,
    /// Empty, or flagged by our own moderation at the bound.
    Unfit,
    /// As an input it would be answered with care.
    Despairing,
}

/// Why an answer is made again.
pub(super) const FAILURES: [&str; 8] = ["unfit", "copy", "language", "polarity", "broken", "facts", "judged", "doubt"];

/// What the checks say of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quality {
    pub(super) fitness: Fitness,
    /// It says the input over again.
    pub(super) repeats: bool,
    /// It is surely in another language than the input.
    pub(super) foreign: bool,
    /// It ends where a sentence ends, does not go on behind one, and says nothing twice.
    pub(super) whole: bool,
    /// Share of the input's names and numbers that it keeps, from 0 to 1. Replies need none.
    pub(super) facts: f64,
    /// Names and numbers that the input does not have.
    pub(super) invented: usize,
    /// 0 where the input denies something and it nothing, else 1.
    pub(super) denial: f64,
    /// Words of the input that it loses where it says that over.
    pub(super) slips: usize,
    /// Probability that it is said in the light that was asked for; of a reply 0 where it is glad of what the text tells, and
    /// should not be ([`Moods::instead_of_gladness`]). 1 where nothing is asked for, or no model tells.
    pub(super) light: f64,
    /// How much the model doubts it; above 1 it is made again.
    pub(super) doubt: f64,
    /// What the judge holds of it, where one is asked.
    pub(super) right: Option<Right>,
}

/// How right an answer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Right {
    /// That a reader finds it right.
    pub(super) probability: f64,
    /// Below this it is made again.
    pub(super) least: f64,
}

impl Right {
    /// The probability in view of the model's own doubt: either sees what the other does not. How far that counts is of 248
    /// texts whose answers readers had judged.
    fn doubted(self, doubt: f64) -> f64 {
        let against = (1.0 - self.probability) * (0.5 * doubt.clamp(0.0, 2.0)).exp();
        self.probability / (self.probability + against)
    }
}

impl Quality {
    pub(super) fn fit(self) -> bool {
        self.fitness == Fitness::Fit
    }

    /// From 0, unfit, to 14.5, or 18.5 where a judge tells. A copy or another language is below any other answer that may
    /// be given out: it says nothing new, however right its light and its facts. Of the rest, the wrong light is worse than
    /// a broken sentence or a fact lost or invented, and a lost "not" weighs least: it may be there in other words. What a
    /// judge holds of it weighs more than any of these, as it sees what they do not: an attitude that does not fit, a
    /// sentence without sense. Without a judge the model's own doubt tells of those, where nothing is wrong by these
    /// checks.
    fn score(self) -> f64 {
        if !self.fit() {
            return 0.0;
        }
        let invented = match self.invented {
            0 => 0.0,
            1 => 1.0,
            _ => 1.5,
        };
        let facts = 1.5 * self.facts + 0.5 * self.denial;
        let kept = self.facts >= 1.0 && self.denial >= 1.0 && self.invented == 0 && self.slips == 0;
        let flawless = self.whole && kept && self.light >= LEAST_LIGHT;
        let trusted = match self.right {
            Some(right) => JUDGE_WEIGHT * right.doubted(self.doubt),
            None if flawless => 4.0 - 2.0 * self.doubt.clamp(0.0, 2.0),
            None => 0.0,
        };
        // From 0 to 11, or 15.
        let said = if self.whole { 1.5 } else { 0.0 } + 2.0 * self.light + facts + 1.5 - invented + trusted;
        if self.repeats || self.foreign { 1.0 + 0.15 * said } else { 3.5 + said }
    }

    /// The check that it failed first, one of [`FAILURES`] in their order; none where it passed all.
    pub(super) fn failure(self, pair: Pair) -> Option<&'static str> {
        if !self.fit() {
            Some("unfit")
        } else if self.repeats || pair == Pair::Alike {
            Some("copy")
        } else if self.foreign {
            Some("language")
        } else if pair == Pair::NotTurned || self.light < LEAST_LIGHT {
            Some("polarity")
        } else if !self.whole {
            Some("broken")
        } else if self.facts < 1.0 || self.invented > 0 || self.denial < 1.0 || self.slips > 0 {
            Some("facts")
        } else {
            match self.right {
                Some(right) => (right.probability < right.least).then_some("judged"),
                None => (self.doubt > 1.0).then_some("doubt"),
            }
        }
    }
}

/// How the two answers of a pair stand to each other; one alone is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair {
    /// The positive one is more positive than the negative one, and neither the other over again.
    ///
    /// A model that errs in one text of five on its own errs in one pair of fourteen.
    Right,
    NotTurned,
    Alike,
}

impl Pair {
    pub(super) fn of(answers: &[&Candidate]) -> Self {
        let [(one, first), (other, second)] = answers else { return Self::Right };
        if likeness::repeats(first, second) {
            Self::Alike
        } else if one.light + other.light <= 1.0 {
            Self::NotTurned
        } else {
            Self::Right
        }
    }

    /// What it takes from the scores of both.
    fn price(self) -> f64 {
        match self {
            Self::Right => 0.0,
            Self::NotTurned => 1.5,
            Self::Alike => 7.0,
        }
    }
}

pub(super) type Candidate = (Quality, String);

/// The candidates, one of each task, that do best together: first, that they may be given out at all.
pub(super) fn best(tasks: &[Vec<Candidate>]) -> Vec<&Candidate> {
    let worth = |answers: &[&Candidate]| {
        let fit = answers.iter().filter(|(quality, _)| quality.fit()).count();
        let scores: f64 = answers.iter().map(|(quality, _)| quality.score()).sum();
        // What is not given out has no light to match.
        let price = if fit == answers.len() { Pair::of(answers).price() } else { 0.0 };
        (fit, scores - price)
    };
    let mut choices: Vec<Vec<&Candidate>> = vec![Vec::new()];
    for candidates in tasks {
        let longer = |chosen: &Vec<_>| candidates.iter().map(|next| [chosen.as_slice(), &[next]].concat()).collect();
        choices = choices.iter().flat_map::<Vec<Vec<&Candidate>>, _>(longer).collect();
    }
    // Of equals the first one: what was written greedily.
    let valued = choices.into_iter().rev().map(|choice| (worth(&choice), choice));
    let best = valued.max_by(|((fit, score), _), ((others_fit, others_score), _)| {
        fit.cmp(others_fit).then(score.total_cmp(others_score))
    });
    best.map(|(_, choice)| choice).unwrap_or_default()
}

/// Whether none of the answers may be given out, and some because of despair.
pub(super) fn despairs(answers: &[Candidate]) -> bool {
    let any = |fitness| answers.iter().any(|(quality, _)| quality.fitness == fitness);
    !any(Fitness::Fit) && any(Fitness::Despairing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Quality = Quality {
        fitness: Fitness::Fit,
        repeats: false,
        foreign: false,
        whole: true,
        facts: 1.0,
        invented: 0,
        denial: 1.0,
        slips: 0,
        light: 1.0,
        doubt: 0.0,
        right: None,
    };

    #[test]
    fn a_copy_is_below_every_other_answer_that_may_be_given_out() {
        assert!((RIGHT.score() - 14.5).abs() < 1e-9);
        let worst = Quality { whole: false, facts: 0.0, invented: 3, denial: 0.0, light: 0.0, doubt: 9.0, ..RIGHT };
        let unfit = Quality { fitness: Fitness::Unfit, ..RIGHT };
        for copy in [Quality { repeats: true, ..RIGHT }, Quality { foreign: true, ..RIGHT }] {
            assert!(unfit.score() < copy.score() && copy.score() < worst.score());
        }
    }

    #[test]
    fn two_answers_are_chosen_together() {
        let said = |light: f64, said: &str| (Quality { light, ..RIGHT }, said.to_owned());
        let chosen = |tasks: &[Vec<Candidate>]| -> Vec<String> {
            best(tasks).into_iter().map(|(_, answer)| answer.clone()).collect()
        };
        let (won, hurts) = ("I won the race on Sunday and I am glad.", "I won on Sunday, but my knee has hurt since.");
        assert_eq!(Pair::of(&[&said(0.9, won), &said(0.9, won)]), Pair::Alike);
        assert_eq!(Pair::of(&[&said(0.2, won), &said(0.7, hurts)]), Pair::NotTurned);
        assert_eq!(Pair::of(&[&said(0.4, won), &said(0.7, hurts)]), Pair::Right);
        // An expression that is clearer by itself is not taken beside one that says the same.
        assert_eq!(chosen(&[vec![said(0.9, won)], vec![said(0.9, won), said(0.6, hurts)]]), [won, hurts]);
        // Of answers that lose facts, one fact less is no loss where it turns the pair the right way round; but what
        // loses none comes first.
        let less = |facts: f64, light: f64, said: &str| (Quality { facts, light, ..RIGHT }, said.to_owned());
        let (clear, clearer) = (less(0.8, 0.85, hurts), less(0.5, 0.95, "My knee has hurt since."));
        assert_eq!(chosen(&[vec![said(0.1, won)], vec![clear, clearer.clone()]]), [won, "My knee has hurt since."]);
        assert_eq!(chosen(&[vec![said(0.1, won)], vec![said(0.85, hurts), clearer]]), [won, hurts]);
        // What may not be given out is no way out of that.
        let copy = |words: &str| (Quality { repeats: true, ..RIGHT }, words.to_owned());
        let unfit = (Quality { fitness: Fitness::Unfit, ..RIGHT }, hurts.to_owned());
        assert_eq!(chosen(&[vec![copy(won)], vec![unfit, copy(won)]]), [won, won]);
        // What the model doubts is made again, and loses against what it is surer of.
        let doubted = |doubt: f64, words: &str| (Quality { doubt, ..RIGHT }, words.to_owned());
        assert_eq!(doubted(1.1, won).0.failure(Pair::Right), Some("doubt"));
        assert_eq!(doubted(0.9, won).0.failure(Pair::Right), None);
        // A judge's verdict counts instead, and the doubt in the choice alone.
        let judged = |probability: f64, doubt: f64, words: &str| {
            (Quality { right: Some(Right { probability, least: 0.7 }), doubt, ..RIGHT }, words.to_owned())
        };
        assert_eq!(judged(0.71, 9.0, won).0.failure(Pair::Right), None);
        assert_eq!(judged(0.69, 0.0, won).0.failure(Pair::Right), Some("judged"));
        assert_eq!(chosen(&[vec![judged(0.6, 0.5, won), judged(0.8, 0.9, hurts)]]), [hurts]);
        assert_eq!(chosen(&[vec![judged(0.79, 0.1, won), judged(0.8, 0.9, hurts)]]), [won]);
        let lossy = (Quality { facts: 0.0, denial: 0.0, ..judged(0.8, 0.0, won).0 }, won.to_owned());
        assert_eq!(chosen(&[vec![lossy, judged(0.7, 0.0, hurts)]]), [hurts]);
        // What loses a word loses, too.
        let slipped = |words: &str| (Quality { slips: 1, ..RIGHT }, words.to_owned());
        assert_eq!(slipped(won).0.failure(Pair::Right), Some("facts"));
        assert_eq!(chosen(&[vec![slipped(won), doubted(1.1, hurts)]]), [hurts]);
        assert_eq!(chosen(&[vec![doubted(1.1, won), doubted(1.2, hurts), doubted(0.7, hurts)]]), [hurts]);
        // Of equals, what was written greedily.
        assert_eq!(chosen(&[vec![said(0.9, won), said(0.9, hurts)]]), [won]);
    }
}
