//! All moderation policy: categories, scores, thresholds, verdicts.

use std::collections::BTreeSet;

use serde::Serialize;

/// A harm category, in the order of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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

/// A kind of content that is moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Modality {
    /// What is written.
    Text,
    /// What a picture shows.
    Image,
}

impl Modality {
    /// The categories that are judged in it. In pictures nothing here sees the others: their scores are 0, and they
    /// are documented as not seen rather than guessed.
    pub const fn categories(self) -> &'static [Category] {
        match self {
            Self::Text => &Category::ALL,
            Self::Image => &[Category::Sexual],
        }
    }
}

/// Five independent probabilities in `[0, 1]`, rounded to four decimals, in the order of [`Category::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores([f64; 5]);

impl Scores {
    /// Rounds and clamps raw probabilities. A value that is not a number counts as 1: nothing passes because of a fault.
    pub fn new(raw: [f32; 5]) -> Self {
        Self(raw.map(|p| if p.is_nan() { 1.0 } else { (f64::from(p).clamp(0.0, 1.0) * 1e4).round() / 1e4 }))
    }

    /// The scores of content whose every judged category has the probability `raw`.
    pub fn of(modality: Modality, raw: f32) -> Self {
        Self::new(Category::ALL.map(|category| if modality.categories().contains(&category) { raw } else { 0.0 }))
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
    modalities: BTreeSet<Modality>,
}

impl Finding {
    /// Judges pieces of content as one: the highest score of a category counts.
    pub fn of(pieces: &[(Modality, Scores)], threshold: Threshold) -> Self {
        let scores = pieces.iter().map(|&(_, scores)| scores).fold(Scores::default(), Scores::max);
        let modalities = pieces.iter().map(|&(modality, _)| modality).collect();
        Self { verdict: threshold.judge(scores), modalities }
    }

    /// The verdict on all of it.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The kinds of content in which the category was looked for.
    pub fn judged_in(&self, category: Category) -> impl Iterator<Item = Modality> {
        self.modalities.iter().copied().filter(move |modality| modality.categories().contains(&category))
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
        let picture = (Modality::Image, Scores::of(Modality::Image, 0.7));
        let text = (Modality::Text, Scores::new([0.1, 0.6, 0.0, 0.0, 0.0]));
        let both = Finding::of(&[picture, text, picture], Threshold::default());
        assert_eq!(both.verdict().scores(), Scores::new([0.7, 0.6, 0.0, 0.0, 0.0]));
        let judged = |finding: &Finding, category| finding.judged_in(category).collect::<Vec<_>>();
        assert_eq!(judged(&both, Category::Sexual), [Modality::Text, Modality::Image]);
        assert_eq!(judged(&both, Category::Hate), [Modality::Text]);
        assert_eq!(judged(&Finding::of(&[picture], Threshold::default()), Category::Hate), []);
    }
}
