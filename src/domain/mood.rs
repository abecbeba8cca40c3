//! What a text tells, as its writer means it, whether a glad reply fits that, and how answers go on from it.
//!
//! A reply that is glad of a loss is worse than none; small models write such replies, because they go by words. So what a
//! text tells is read apart from its reply, and gladness is compared with it here. Where no judge of whole answers is asked,
//! that is, and only gladness: regret that is out of place
//! hurts less, and where a model is sorry against such a reading, it is the model that is right more often. Gladness is told
//! in English alone: in other languages replies begin in too many ways.

use super::{Language, Polarity};

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

/// How answers in a language begin or go on, by what a text tells.
struct Phrases {
    to_good: [&'static str; 2],
    to_bad: [&'static str; 2],
    to_plain: [&'static str; 2],
    to_question: [&'static str; 2],
    /// Between the own words of a text and an attitude that agrees with it, one that does not, and one to what is no news.
    and: &'static str,
    but: &'static str,
    which: &'static str,
}

/// Of the 9,000 English replies that readers found right or wrong and that begin so, right were 74 and 72 of 100 to good news,
/// 45 and 66 to bad news, 42 and 37 to what is no news, 71 and 75 to questions; of "Well done on" to good news 24. Of the
/// expressions that are joined so to good news, bad news and neither, right were 93, 81 and 88 of 100 positive ones and 54, 88
/// and 78 negative ones; of good news joined by "but", and bad news by "and", 15 and 17 positive ones.
const ENGLISH: Phrases = Phrases {
    to_good: ["How lovely that", "How good that"],
    to_bad: ["I'm sorry that", "How annoying that"],
    to_plain: ["I hope the", "I hope you"],
    to_question: ["I hope you", "I hope someone"],
    and: ", and",
    but: ", but",
    which: ", which",
};

/// Those of the other languages are chosen by how the lines go that were written in them, and are not counted. A comma alone
/// leaves open what follows.
fn phrases(language: Language) -> &'static Phrases {
    match language {
        Language::English => &ENGLISH,
        Language::German => &Phrases {
            to_good: ["Wie schön, dass", "Was für ein"],
            to_bad: ["Oh nein,", "Das tut mir leid,"],
            to_plain: ["Ich hoffe,", "Danke für"],
            to_question: ["Ich hoffe,", "Hoffentlich"],
            and: ", und",
            but: ", aber",
            which: ",",
        },
        Language::Spanish => &Phrases {
            to_good: ["Qué alegría que", "Qué bueno que"],
            to_bad: ["Qué rabia que", "Siento mucho que"],
            to_plain: ["Espero que", "Ojalá"],
            to_question: ["Espero que", "Ojalá"],
            and: ", y",
            but: ", pero",
            which: ",",
        },
        Language::French => &Phrases {
            to_good: ["Quelle belle", "Bravo pour"],
            to_bad: ["Oh non,", "Je suis désolé"],
            to_plain: ["J'espère que", "Merci pour"],
            to_question: ["J'espère que", "J'espère"],
            and: ", et",
            but: ", mais",
            which: ",",
        },
        Language::Portuguese => &Phrases {
            to_good: ["Que bom que", "Que alegria,"],
            to_bad: ["Que pena que", "Sinto muito"],
            to_plain: ["Espero que", "Tomara que"],
            to_question: ["Espero que", "Tomara que"],
            and: ", e",
            but: ", mas",
            which: ",",
        },
        Language::Chinese => &Phrases {
            to_good: ["真好，", "太好了，"],
            to_bad: ["太可惜了，", "真让人心疼，"],
            to_plain: ["希望", "愿"],
            to_question: ["希望", "愿"],
            and: "，",
            but: "，不过",
            which: "，",
        },
        Language::Japanese => &Phrases {
            to_good: ["それはよかったですね、", "素敵ですね、"],
            to_bad: ["それは残念でしたね、", "それはつらいですね、"],
            to_plain: ["どうか", "きっと"],
            to_question: ["どうか", "きっと"],
            and: "、",
            but: "けど、",
            which: "、",
        },
        Language::Korean => &Phrases {
            to_good: ["정말 잘됐네요,", "축하해요,"],
            to_bad: ["정말 속상하셨겠어요,", "아이고,"],
            to_plain: ["부디", "꼭"],
            to_question: ["부디", "꼭"],
            and: ", 정말",
            but: ", 그래도",
            which: ",",
        },
    }
}

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
    pub fn openings(self, language: Language, asks: bool) -> [&'static str; 3] {
        let phrases = phrases(language);
        let to_plain = if asks { phrases.to_question } else { phrases.to_plain };
        let [[first, second], [third, _]] = self.likeliest([phrases.to_good, phrases.to_bad, to_plain]);
        [first, second, third]
    }

    /// How an attitude of this polarity is joined to the own words of a text of this mood: by the likeliest mood, and by the
    /// next.
    pub fn joins(self, language: Language, polarity: Polarity) -> [&'static str; 2] {
        let Phrases { and, but, which, .. } = *phrases(language);
        self.likeliest(match polarity {
            Polarity::Positive => [and, but, which],
            Polarity::Negative => [but, and, which],
        })
    }

    /// Of what there is for good news, bad news and neither, that for the likeliest and for the next.
    fn likeliest<T: Copy>(self, [to_good, to_bad, to_plain]: [T; 3]) -> [T; 2] {
        let mut moods = [(self.good, to_good), (self.bad, to_bad), (self.plain, to_plain)];
        moods.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let [(_, first), (_, next), _] = moods;
        [first, next]
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
        let openings = |logits, asks| Moods::of_logits(logits).openings(Language::English, asks);
        assert_eq!(openings([0.0, 2.0, 1.0], false), ["I'm sorry that", "How annoying that", "I hope the"]);
        assert_eq!(openings([2.0, 0.0, 1.0], true), ["How lovely that", "How good that", "I hope you"]);
        assert_eq!(openings([1.0, 0.0, 2.0], true), ["I hope you", "I hope someone", "How lovely that"]);
        assert_eq!(openings([f32::NAN; 3], false), ["How lovely that", "How good that", "I'm sorry that"]);
    }

    #[test]
    fn an_attitude_is_joined_to_a_text_by_what_that_tells() {
        let joins = |logits, polarity| Moods::of_logits(logits).joins(Language::English, polarity);
        assert_eq!(joins([2.0, 0.0, 1.0], Polarity::Positive), [", and", ", which"]);
        assert_eq!(joins([2.0, 0.0, 1.0], Polarity::Negative), [", but", ", which"]);
        assert_eq!(joins([0.0, 2.0, -1.0], Polarity::Positive), [", but", ", and"]);
        assert_eq!(joins([0.0, 2.0, -1.0], Polarity::Negative), [", and", ", but"]);
    }

    #[test]
    fn every_language_has_beginnings_of_its_own_for_each_mood() {
        for language in Language::ALL {
            let [good, bad] = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]].map(Moods::of_logits);
            let begun = [good, bad].map(|moods| moods.openings(language, false));
            assert_ne!(begun[0][0], begun[1][0], "{language:?}");
            let agree = [good.joins(language, Polarity::Positive)[0], bad.joins(language, Polarity::Negative)[0]];
            let differ = [bad.joins(language, Polarity::Positive)[0], good.joins(language, Polarity::Negative)[0]];
            assert!(agree[0] == agree[1] && differ[0] == differ[1] && agree != differ, "{language:?}");
            let english = begun[0].iter().any(|opening| ENGLISH.to_good.contains(opening));
            assert_eq!(english, language == Language::English);
        }
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
