//! What a text tells, as its writer means it, whether a glad reply fits that, and how answers go on from it.
//!
//! A reply that is glad of a loss is worse than none; small models write such replies, because they go by words. So what a
//! text tells is read apart from its reply, and gladness is compared with it here. Where no judge of whole answers is asked,
//! that is, and only gladness: regret that is out of place
//! hurts less, and where a model is sorry against such a reading, it is the model that is right more often. English alone: in
//! other languages replies begin in too many ways to be told by that.

use super::Polarity;

/// A reading goes against gladness where it gives good news less than [`DOUBTFUL`] and something else at least this.
const SURE: f64 = 0.5;
const DOUBTFUL: f64 = 0.35;

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

/// Ways to begin a reply that is not glad, those that differ most first.
const REGRET: [&str; 4] = ["I'm sorry that", "I'm sorry about", "I'm so sorry that", "I'm sorry"];
const HOPE: [&str; 4] = ["I hope you", "I hope the", "I hope it", "I hope"];

/// How replies begin to good news, to bad news, to what is no news and to a question. Of the 9,000 replies to such texts that
/// readers found right or wrong and that begin so, right were 74 and 72 of 100, 45 and 66, 42 and 37, 71 and 75; of "Well done
/// on" to good news 24.
const TO_GOOD: [&str; 2] = ["How lovely that", "How good that"];
const TO_BAD: [&str; 2] = ["I'm sorry that", "How annoying that"];
const TO_PLAIN: [&str; 2] = ["I hope the", "I hope you"];
const TO_QUESTION: [&str; 2] = ["I hope you", "I hope someone"];

/// How the own words of a text that tells good news, bad news or neither are joined to an attitude. Of the expressions that
/// readers found right or wrong and that are joined so, right were 93, 81 and 88 of 100 positive ones and 54, 88 and 78 negative
/// ones; of good news joined by "but", and bad news by "and", 15 and 17 positive ones.
const POSITIVE_JOINS: [&str; 3] = [", and", ", but", ", which"];
const NEGATIVE_JOINS: [&str; 3] = [", but", ", and", ", which"];

/// How likely it is that a text tells good news, bad news, or neither (a fact, a plan, a question, a request).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moods {
    good: f64,
    bad: f64,
    plain: f64,
}

impl Moods {
    /// From the logits of good, bad and neither. Where one is not a number nothing is told: all are as likely.
    pub fn of_logits(logits: [f32; 3]) -> Self {
        let highest = logits.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let [good, bad, plain] = logits.map(|logit| f64::from(logit - highest).exp());
        let sum = good + bad + plain;
        if sum.is_finite() {
            Self { good: good / sum, bad: bad / sum, plain: plain / sum }
        } else {
            Self { good: 1.0 / 3.0, bad: 1.0 / 3.0, plain: 1.0 / 3.0 }
        }
    }

    /// How replies to a text of this mood begin: two ways for the likeliest mood, and one for the next. What is no news may
    /// be a question.
    pub fn openings(self, asks: bool) -> [&'static str; 3] {
        let to_plain = if asks { TO_QUESTION } else { TO_PLAIN };
        let mut moods = [(self.good, TO_GOOD), (self.bad, TO_BAD), (self.plain, to_plain)];
        moods.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let [(_, [first, second]), (_, [third, _]), _] = moods;
        [first, second, third]
    }

    /// How an attitude of this polarity is joined to the own words of a text of this mood: by the likeliest mood, and by the
    /// next.
    pub fn joins(self, polarity: Polarity) -> [&'static str; 2] {
        let [of_good, of_bad, of_plain] = match polarity {
            Polarity::Positive => POSITIVE_JOINS,
            Polarity::Negative => NEGATIVE_JOINS,
        };
        let mut moods = [(self.good, of_good), (self.bad, of_bad), (self.plain, of_plain)];
        moods.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let [(_, first), (_, second), _] = moods;
        [first, second]
    }

    /// How a reply may begin, where a glad one is out of place.
    pub fn instead_of_gladness(self) -> Option<[&'static str; 4]> {
        let out_of_place = self.good < DOUBTFUL && self.bad.max(self.plain) >= SURE;
        out_of_place.then_some(if self.bad >= self.plain { REGRET } else { HOPE })
    }
}

/// Whether how a reply begins shows that it is glad.
pub fn is_glad(reply: &str) -> bool {
    let start: String = reply.chars().take(32).flat_map(char::to_lowercase).collect();
    let mut rests = GLAD.iter().filter_map(|opening| start.strip_prefix(opening));
    rests.any(|rest| !rest.starts_with(char::is_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_by_its_beginning_that_it_is_glad() {
        for glad in ["How lovely that your sister called!", "Congratulations on the draw!", "WELL DONE, you!"] {
            assert!(is_glad(glad), "{glad}");
        }
        let others =
            ["I’m so sorry about your cat.", "I hope you find your keys.", "How long was it?", "How nicely put.", ""];
        for other in others.iter().chain(&REGRET).chain(&HOPE) {
            assert!(!is_glad(other), "{other}");
        }
    }

    #[test]
    fn a_reply_is_begun_by_the_likeliest_mood_and_by_the_next() {
        let openings = |logits, asks| Moods::of_logits(logits).openings(asks);
        assert_eq!(openings([0.0, 2.0, 1.0], false), ["I'm sorry that", "How annoying that", "I hope the"]);
        assert_eq!(openings([2.0, 0.0, 1.0], true), ["How lovely that", "How good that", "I hope you"]);
        assert_eq!(openings([1.0, 0.0, 2.0], true), ["I hope you", "I hope someone", "How lovely that"]);
        assert_eq!(openings([f32::NAN; 3], false), ["How lovely that", "How good that", "I'm sorry that"]);
    }

    #[test]
    fn an_attitude_is_joined_to_a_text_by_what_that_tells() {
        let joins = |logits, polarity| Moods::of_logits(logits).joins(polarity);
        assert_eq!(joins([2.0, 0.0, 1.0], Polarity::Positive), [", and", ", which"]);
        assert_eq!(joins([2.0, 0.0, 1.0], Polarity::Negative), [", but", ", which"]);
        assert_eq!(joins([0.0, 2.0, -1.0], Polarity::Positive), [", but", ", and"]);
        assert_eq!(joins([0.0, 2.0, -1.0], Polarity::Negative), [", and", ", but"]);
    }

    #[test]
    fn gladness_is_out_of_place_where_something_else_is_surely_told() {
        let instead = |logits| Moods::of_logits(logits).instead_of_gladness();
        assert_eq!(instead([0.0, 2.0, 0.0]), Some(REGRET));
        assert_eq!(instead([0.0, 0.0, 2.0]), Some(HOPE));
        // Good news, what might be, and what is any of the three.
        for allowed in [[2.0, 0.0, 0.0], [0.9, 1.0, -2.0], [0.0; 3], [f32::NAN, 1.0, 0.0], [f32::INFINITY, 1.0, 0.0]] {
            assert_eq!(instead(allowed), None, "{allowed:?}");
        }
    }
}
