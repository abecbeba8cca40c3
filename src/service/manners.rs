//! How an answer that failed a check is made again: drawn, begun, or joined to the text's own words, by what that tells.

use super::writer::{Manner, Task};
use crate::domain::{Moods, ValidText};

/// Candidates of the one regeneration, as rows of one batch, beside those of a reply that are begun by the mood. They take as
/// long as the answers are: a text longer than [`LONG_TEXT`] gets fewer.
const CANDIDATES: u64 = 4;
const CANDIDATES_OF_LONG_TEXT: u64 = 2;
/// Characters.
const LONG_TEXT: usize = 160;

/// Sampling temperatures: a small model garbles what it draws too freely, and repeats its first answer where it draws
/// too timidly. So the first candidates are drawn close to it, the others further away; and all of them far away where a
/// judge tells which of them are right.
const CALM: f32 = 0.5;
const LIVELY: f32 = 0.75;
const FREE: f32 = 1.0;
const FREE_REPLY: f32 = 0.9;
const CALM_ATTEMPTS: u64 = 2;

/// Characters of the longest text that is said over word for word with an attitude behind it: of longer ones that would be a
/// copy, by the share of its words, and the generator would read them twice.
const LONGEST_JOINED: usize = 200;

/// How the answer to a task is made again, once a check has failed.
pub(super) fn manners(text: &ValidText, task: Task, reason: &str, moods: Option<Moods>, judged: bool) -> Vec<Manner> {
    let candidates = if text.characters() > LONG_TEXT { CANDIDATES_OF_LONG_TEXT } else { CANDIDATES };
    // Drawn close to it, a copy is one again, and what was flagged for its closing has that once more.
    let before = if matches!(reason, "copy" | "unfit") { CALM_ATTEMPTS } else { 0 };
    let temperature = |number| match number {
        _ if judged && task == Task::Reply => FREE_REPLY,
        _ if judged => FREE,
        1..=CALM_ATTEMPTS => CALM,
        _ => LIVELY,
    };
    let drawn = (before + 1..=before + candidates).map(|number| Manner::Drawn(temperature(number), number));
    // "Really?!" and "Is it late? :)" ask, too.
    let asks = text.as_str().trim_end_matches(|sign: char| !sign.is_alphanumeric() && sign != '?').ends_with('?');
    let begun = |openings: &[&'static str]| openings.iter().copied().map(Manner::Begun).collect::<Vec<_>>();
    match (task, moods) {
        (Task::Reply, Some(moods)) if judged => begun(&moods.openings(asks)).into_iter().chain(drawn).collect(),
        // What is glad of bad news is so again, however it is drawn.
        (Task::Reply, Some(moods)) if reason == "polarity" => {
            moods.instead_of_gladness().map_or_else(|| drawn.collect(), |openings| begun(&openings))
        }
        // Most that a judge refuses is an attitude that does not fit. A question is not said over with one.
        (Task::Express(polarity), Some(moods)) if judged && !asks && can_be_joined(text.as_str(), reason) => {
            let [likeliest, next] = moods.joins(polarity);
            let freely = Manner::Joined(likeliest, Some((FREE, 1)));
            let attitudes = [Manner::Joined(likeliest, None), freely, Manner::Joined(next, None)];
            attitudes.into_iter().chain(drawn.take(1)).collect()
        }
        _ => drawn.collect(),
    }
}

/// Whether a text can be said over as one sentence that goes on. What was a copy would be one again, and what may not be
/// given out has most of that from the text.
fn can_be_joined(text: &str, reason: &str) -> bool {
    let one_sentence = text.chars().any(char::is_alphanumeric) && !text.trim().contains(['\n', '\r']);
    one_sentence && text.chars().count() <= LONGEST_JOINED && !matches!(reason, "copy" | "unfit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Polarity;

    #[test]
    fn a_text_is_said_over_with_an_attitude_where_that_makes_one_sentence() {
        let bad_news = Moods::of_logits([0.0, 2.0, -1.0]);
        let joins = |text: &str, reason| -> Vec<&str> {
            let text = ValidText::new(text.into()).unwrap();
            let manners = manners(&text, Task::Express(Polarity::Positive), reason, Some(bad_news), true);
            assert!(manners.len() <= 4, "a pair is made again by eight at most");
            let join = |manner| if let Manner::Joined(join, _) = manner { Some(join) } else { None };
            manners.into_iter().filter_map(join).collect()
        };
        assert_eq!(joins("The bus was late.", "judged"), [", but", ", but", ", and"]);
        assert_eq!(joins("The bus was late.", "facts").len(), 3);
        let long = "The bus was late. ".repeat(12);
        for (text, reason) in [
            ("Was it late?!", "judged"),
            ("Is it late? :)", "judged"),
            ("It was\nlate.", "judged"),
            ("...", "judged"),
            ("The bus was late.", "copy"),
            ("The bus was late.", "unfit"),
            (&long, "judged"),
        ] {
            assert!(joins(text, reason).is_empty(), "{text}, {reason}");
        }
    }
}
