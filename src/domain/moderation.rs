//! All moderation policy: categories, scores, thresholds, verdicts.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A harm category, in the order of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Sexually explicit content.
    Sexual,
    /// Attacks on people for who they are.
    Hate,
    /// Suicide and self-injury.
    SelfHarm,
    /// Threats, incitement or praise of violence.
    Violence,
    /// Damaging claims about, or public attacks on, an identifiable person or firm.
    Defamation,
}

impl Category {
    /// The five categories in wire order.
    pub const ALL: [Self; 5] = [Self::Sexual, Self::Hate, Self::SelfHarm, Self::Violence, Self::Defamation];

    /// The key in requests, answers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sexual => "sexual",
            Self::Hate => "hate",
            Self::SelfHarm => "self_harm",
            Self::Violence => "violence",
            Self::Defamation => "defamation",
        }
    }
}

/// The name is no category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a category is one of sexual, hate, self_harm, violence, defamation")]
pub struct UnknownCategory;

impl FromStr for Category {
    type Err = UnknownCategory;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|category| category.as_str() == name).ok_or(UnknownCategory)
    }
}

/// A kind of content that is moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modality {
    /// What is written.
    Text,
    /// What a picture shows, and what is written in it.
    Image,
}

impl Modality {
    /// Both, in wire order.
    pub const ALL: [Self; 2] = [Self::Text, Self::Image];
}

/// Five independent probabilities in `[0, 1]`, rounded to four decimals, in the order of [`Category::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores([f64; 5]);

impl Scores {
    /// Rounds and clamps raw probabilities. A value that is not a number counts as 1: nothing passes because of a fault.
    pub fn new(raw: [f32; 5]) -> Self {
        Self(raw.map(|p| if p.is_nan() { 1.0 } else { (f64::from(p).clamp(0.0, 1.0) * 1e4).round() / 1e4 }))
    }

    /// The score of one category.
    pub fn get(&self, category: Category) -> f64 {
        let [sexual, hate, self_harm, violence, defamation] = self.0;
        match category {
            Category::Sexual => sexual,
            Category::Hate => hate,
            Category::SelfHarm => self_harm,
            Category::Violence => violence,
            Category::Defamation => defamation,
        }
    }

    /// Category by category, the higher of two: how windows, frames, and text read in a picture are combined.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let mut highest = self.0;
        for (mine, theirs) in highest.iter_mut().zip(other.0) {
            *mine = mine.max(theirs);
        }
        Self(highest)
    }

    /// The highest of the five.
    pub fn highest(&self) -> f64 {
        self.0.into_iter().fold(0.0, f64::max)
    }
}

/// What a picture shows: a raw probability of each category that its model looks for. The others are documented as
/// not seen rather than guessed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen([Option<f32>; 5]);

impl Seen {
    /// Every model looks for this one.
    pub fn new(sexual: f32) -> Self {
        Self([Some(sexual), None, None, None, None])
    }

    /// The same with the probability of one category.
    #[must_use]
    pub fn with(mut self, category: Category, probability: f32) -> Self {
        for (slot, other) in self.0.iter_mut().zip(Category::ALL) {
            if other == category {
                *slot = Some(probability);
            }
        }
        self
    }

    /// The probability of a category, where it is looked for.
    pub fn get(&self, category: Category) -> Option<f32> {
        Category::ALL.into_iter().zip(self.0).find_map(|(other, found)| found.filter(|_| other == category))
    }

    /// Category by category, the higher of two: how frames are combined. Not a number is higher than any.
    #[must_use]
    pub fn max(mut self, other: Self) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = match (*mine, theirs) {
                (Some(mine), Some(theirs)) if mine >= theirs || mine.is_nan() => Some(mine),
                (mine, theirs) => theirs.or(mine),
            };
        }
        self
    }
}

/// One piece of content: its scores, and the categories that were looked for in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    modality: Modality,
    /// In the order of [`Category::ALL`].
    sought: [bool; 5],
    scores: Scores,
}

impl Judged {
    /// A text.
    pub fn text(scores: Scores) -> Self {
        Self { modality: Modality::Text, sought: [true; 5], scores }
    }

    /// What a picture shows. The score of what is not looked for is 0, until its text is read.
    pub fn picture(Seen(seen): Seen) -> Self {
        let scores = Scores::new(seen.map(Option::unwrap_or_default));
        Self { modality: Modality::Image, sought: seen.map(|probability| probability.is_some()), scores }
    }

    /// The same piece with the scores of the text that was read in it, all 0 where there was none to read. Every
    /// category has then been looked for, and the higher score of each counts.
    #[must_use]
    pub fn with_text(self, read: Scores) -> Self {
        Self { sought: [true; 5], scores: self.scores.max(read), ..self }
    }

    /// Its scores; 0 for a category that was not looked for.
    pub fn scores(&self) -> Scores {
        self.scores
    }

    fn sought(&self, category: Category) -> bool {
        Category::ALL.into_iter().zip(self.sought).any(|(other, sought)| sought && other == category)
    }
}

/// The score from which a category counts as found: 0.1 to 1 inclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold(f64);

/// The threshold was below 0.1, above 1 or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("score_threshold must be a number from 0.1 to 1")]
pub struct ThresholdOutOfRange;

impl Default for Threshold {
    fn default() -> Self {
        Self(0.5)
    }
}

impl Threshold {
    /// Checks the range.
    ///
    /// # Errors
    /// [`ThresholdOutOfRange`], also for NaN.
    pub fn new(value: f64) -> Result<Self, ThresholdOutOfRange> {
        if (0.1..=1.0).contains(&value) { Ok(Self(value)) } else { Err(ThresholdOutOfRange) }
    }

    /// Judges scores: a category is found from the threshold on (`>=`, so that a threshold of 1 can still flag).
    pub fn judge(self, scores: Scores) -> Verdict {
        Verdict { threshold: self, scores }
    }
}

/// Scores together with the threshold they are held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    threshold: Threshold,
    scores: Scores,
}

impl Verdict {
    /// Whether the category's score reaches the threshold.
    pub fn found(&self, category: Category) -> bool {
        self.scores.get(category) >= self.threshold.0
    }

    /// Whether any category is found.
    pub fn flagged(&self) -> bool {
        Category::ALL.into_iter().any(|category| self.found(category))
    }

    /// The scores that were judged.
    pub fn scores(&self) -> Scores {
        self.scores
    }
}

/// A verdict on content that may be of several kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    verdict: Verdict,
    pieces: Vec<Judged>,
}

impl Finding {
    /// Judges pieces of content as one: the highest score of a category counts.
    pub fn of(pieces: &[Judged], threshold: Threshold) -> Self {
        let scores = pieces.iter().map(Judged::scores).fold(Scores::default(), Scores::max);
        Self { verdict: threshold.judge(scores), pieces: pieces.to_vec() }
    }

    /// The verdict on all of it.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The kinds of content in which the category was looked for.
    pub fn judged_in(&self, category: Category) -> impl Iterator<Item = Modality> {
        let sought_in = move |modality: &Modality| {
            self.pieces.iter().any(|piece| piece.modality == *modality && piece.sought(category))
        };
        Modality::ALL.into_iter().filter(sought_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_equal_to_the_threshold_flags() {
        let scores = Scores::new([0.0, 0.5, 0.0, 0.0, 0.0]);
        let verdict = Threshold::new(0.5).unwrap().judge(scores);
        assert!(verdict.found(Category::Hate) && verdict.flagged());
        assert!(!verdict.found(Category::Sexual));
        assert!(Threshold::new(1.0).unwrap().judge(Scores::new([1.0; 5])).flagged());
    }

    #[test]
    fn rounding_comes_before_the_comparison() {
        // Shown to the client as 0.5, so the boolean must agree with what is shown.
        let verdict = Threshold::default().judge(Scores::new([0.499_96, 0.0, 0.0, 0.0, 0.0]));
        assert!((verdict.scores().get(Category::Sexual) - 0.5).abs() < f64::EPSILON);
        assert!(verdict.flagged());
        assert!(!Threshold::default().judge(Scores::new([0.499_94, 0.0, 0.0, 0.0, 0.0])).flagged());
    }

    #[test]
    fn thresholds_outside_the_range_are_refused() {
        for value in [0.1, 0.5, 1.0] {
            assert!(Threshold::new(value).is_ok(), "{value}");
        }
        for value in [0.0, 0.099_999, 1.000_001, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Threshold::new(value), Err(ThresholdOutOfRange), "{value}");
        }
    }

    #[test]
    fn scores_stay_in_range_and_combine_by_the_higher() {
        let wild = Scores::new([f32::NAN, -1.0, 2.0, 0.3, 0.4]);
        assert_eq!(wild, Scores::new([1.0, 0.0, 1.0, 0.3, 0.4]));
        assert_eq!(wild.max(Scores::new([0.2, 0.1, 0.9, 0.1, 0.6])), Scores::new([1.0, 0.1, 1.0, 0.3, 0.6]));
    }

    #[test]
    fn a_finding_says_where_each_category_was_looked_for() {
        let picture = Judged::picture(Seen::new(0.7));
        let text = Judged::text(Scores::new([0.1, 0.6, 0.0, 0.0, 0.0]));
        let both = Finding::of(&[picture, text, picture], Threshold::default());
        assert_eq!(both.verdict().scores(), Scores::new([0.7, 0.6, 0.0, 0.0, 0.0]));
        let judged = |finding: &Finding, category| finding.judged_in(category).collect::<Vec<_>>();
        assert_eq!(judged(&both, Category::Sexual), [Modality::Text, Modality::Image]);
        assert_eq!(judged(&both, Category::Hate), [Modality::Text]);
        assert_eq!(judged(&Finding::of(&[picture], Threshold::default()), Category::Hate), []);

        let violence = Judged::picture(Seen::new(0.7).with(Category::Violence, 0.0));
        let finding = Finding::of(&[violence], Threshold::default());
        assert_eq!(judged(&finding, Category::Violence), [Modality::Image]);
        assert_eq!(judged(&finding, Category::Hate), []);
    }

    #[test]
    fn text_read_in_a_picture_counts_in_every_category() {
        let read = Judged::picture(Seen::new(0.7)).with_text(Scores::new([0.2, 0.6, 0.0, 0.0, 0.0]));
        assert_eq!(read.scores(), Scores::new([0.7, 0.6, 0.0, 0.0, 0.0]));
        let finding = Finding::of(&[read], Threshold::default());
        for category in Category::ALL {
            assert_eq!(finding.judged_in(category).collect::<Vec<_>>(), [Modality::Image]);
        }
        let blank = Judged::picture(Seen::new(0.7)).with_text(Scores::default());
        assert_eq!(blank.scores(), Judged::picture(Seen::new(0.7)).scores());
    }

    #[test]
    fn of_what_is_seen_and_what_is_read_the_higher_counts() {
        let seen = Seen::new(0.1).with(Category::Violence, 0.8).with(Category::Hate, 0.3);
        let judged = Judged::picture(seen).with_text(Scores::new([0.0, 0.6, 0.2, 0.5, 0.0]));
        assert_eq!(judged.scores(), Scores::new([0.1, 0.6, 0.2, 0.8, 0.0]));
    }

    #[test]
    fn frames_combine_by_the_higher_and_a_fault_in_one_is_kept() {
        let (calm, fight) = (Seen::new(0.4), Seen::new(0.1).with(Category::Violence, 0.8));
        let whole = Seen::new(0.4).with(Category::Violence, 0.8);
        assert_eq!((calm.max(fight), fight.max(calm)), (whole, whole));
        for seen in [Seen::new(f32::NAN).max(calm), calm.max(Seen::new(f32::NAN))] {
            assert!(Threshold::new(1.0).unwrap().judge(Judged::picture(seen).scores()).found(Category::Sexual));
        }
    }
}
