//! What a text tells, as its writer means it, and replies that fit that.
//!
//! A reply that is glad of a loss, or sorry for good news, is worse than none; small models write such replies, because
//! they go by words. So the mood of a text is told apart from its reply, and the two are compared here. English alone: in
//! other languages replies begin in too many ways to be told by that.

/// What a text tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mood {
    /// Good news, or something that pleases or relieves the writer: gladness fits.
    Good,
    /// A loss, trouble, worry or complaint: regret fits.
    Bad,
    /// A fact, a plan, a question, a request: neither fits.
    Plain,
}

/// A reading that gives a mood this probability goes against replies for one that has less than [`DOUBTFUL`].
const SURE: f64 = 0.5;
const DOUBTFUL: f64 = 0.35;

/// How likely each mood is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moods([f64; 3]);

impl Moods {
    /// From the logits of [`Mood::ALL`]. Where one is not a number nothing is told: all are as likely.
    pub fn of_logits(logits: [f32; 3]) -> Self {
        let highest = logits.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let shares = logits.map(|logit| f64::from(logit - highest).exp());
        let sum: f64 = shares.iter().sum();
        if sum.is_finite() { Self(shares.map(|share| share / sum)) } else { Self([1.0 / 3.0; 3]) }
    }

    /// The probability of one.
    pub fn of(self, mood: Mood) -> f64 {
        let [good, bad, plain] = self.0;
        match mood {
            Mood::Good => good,
            Mood::Bad => bad,
            Mood::Plain => plain,
        }
    }

    /// Whether a reply for this mood may stand, as 1 or 0: not where another is likelier than not and this one unlikely.
    pub fn allow(self, mood: Mood) -> f64 {
        let contradicted = self.of(mood) < DOUBTFUL && self.of(self.likeliest()) >= SURE;
        f64::from(u8::from(!contradicted))
    }

    /// The likeliest one.
    pub fn likeliest(self) -> Mood {
        let more = |one: &Mood, other: &Mood| self.of(*one).total_cmp(&self.of(*other));
        Mood::ALL.into_iter().max_by(more).unwrap_or(Mood::Plain)
    }
}

/// How replies begin that are glad; lower case.
const GLAD: [&str; 30] = [
    "how lovely",
    "how good",
    "how nice",
    "how wonderful",
    "how sweet",
    "how kind",
    "how great",
    "how exciting",
    "how touching",
    "how brilliant",
    "how beautiful",
    "how satisfying",
    "how funny",
    "congratulations",
    "well done",
    "hats off",
    "good for",
    "hooray",
    "bravo",
    "what good news",
    "what great news",
    "what lovely news",
    "what wonderful news",
    "what a lovely",
    "what a good",
    "what a great",
    "what a wonderful",
    "what a kind",
    "what a treat",
    "what a relief",
];

/// How replies begin that are sorry; lower case.
const SORRY: [&str; 28] = [
    "i'm sorry",
    "i'm so sorry",
    "i'm very sorry",
    "i am sorry",
    "i am so sorry",
    "how annoying",
    "how sad",
    "how awful",
    "how frustrating",
    "how maddening",
    "how painful",
    "how disappointing",
    "how horrible",
    "how tiresome",
    "how unfair",
    "how worrying",
    "oh no",
    "oh dear",
    "that sounds hard",
    "that sounds painful",
    "that sounds exhausting",
    "that's maddening",
    "that's annoying",
    "what a shame",
    "what a pity",
    "what bad luck",
    "what a mess",
    "what rotten luck",
];

impl Mood {
    /// All, in the order of a manifest.
    pub const ALL: [Self; 3] = [Self::Good, Self::Bad, Self::Plain];

    /// The mood that a reply is for, where how it begins shows that it is glad or sorry; none where it would do for any.
    pub fn answered(reply: &str) -> Option<Self> {
        let start: String = reply.chars().take(32).flat_map(char::to_lowercase).collect();
        let start = start.replace('’', "'");
        let begins = |openings: &[&str]| {
            let mut rests = openings.iter().filter_map(|opening| start.strip_prefix(opening));
            rests.any(|rest| !rest.starts_with(char::is_alphabetic))
        };
        if begins(&SORRY) {
            Some(Self::Bad)
        } else if begins(&GLAD) {
            Some(Self::Good)
        } else {
            None
        }
    }

    /// Ways to begin a reply that fits, those that differ most first.
    pub const fn openings(self) -> [&'static str; 4] {
        match self {
            Self::Good => ["How lovely that", "What good news", "How good that", "How nice"],
            Self::Bad => ["I'm sorry that", "I'm sorry about", "I'm so sorry that", "I'm sorry"],
            Self::Plain => ["I hope you", "I hope the", "I hope it", "I hope"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_by_its_beginning_what_it_is_for() {
        for (reply, mood) in [
            ("How lovely that your sister called!", Some(Mood::Good)),
            ("Congratulations on the draw!", Some(Mood::Good)),
            ("I’m so sorry about your cat.", Some(Mood::Bad)),
            ("OH NO, not again.", Some(Mood::Bad)),
            ("Oh normally they come on time.", None),
            ("I hope you find your keys.", None),
            ("How long was it?", None),
            ("", None),
        ] {
            assert_eq!(Mood::answered(reply), mood, "{reply}");
        }
    }

    #[test]
    fn a_reply_that_is_begun_for_a_mood_is_told_to_be_for_it() {
        for (mood, told) in [(Mood::Good, Some(Mood::Good)), (Mood::Bad, Some(Mood::Bad)), (Mood::Plain, None)] {
            for opening in mood.openings() {
                assert_eq!(Mood::answered(&format!("{opening} it rained.")), told, "{opening}");
            }
        }
    }

    #[test]
    fn a_reply_stands_unless_another_mood_is_surely_likelier() {
        let allowed = |moods: Moods| Mood::ALL.map(|mood| moods.allow(mood) > 0.5);
        let bad = Moods::of_logits([0.0, 2.0, 0.0]);
        assert!((bad.of(Mood::Bad) - 0.787).abs() < 1e-3 && bad.likeliest() == Mood::Bad);
        assert_eq!(allowed(bad), [false, true, false]);
        assert_eq!(allowed(Moods::of_logits([0.9, 1.0, -2.0])), [true, true, false]);
        for unclear in [[0.0; 3], [f32::NAN, 1.0, 0.0], [f32::INFINITY, 1.0, 0.0]] {
            assert_eq!(allowed(Moods::of_logits(unclear)), [true; 3]);
        }
    }
}
