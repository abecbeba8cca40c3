//! Whether an English answer drops the "not" of its text: "can't even see" said over as "can still see".

use super::Language;

/// Words that deny by themselves.
const DENYING: [&str; 11] =
    ["not", "no", "never", "nobody", "nothing", "nowhere", "none", "neither", "nor", "cannot", "without"];
/// What "n't" stands behind, often without its apostrophe: "cant", "isnt".
const DENIED: [&str; 18] = [
    "is", "are", "was", "were", "do", "does", "did", "have", "has", "had", "ca", "wo", "could", "would", "should", "must",
    "need", "ai",
];

/// Whether the text denies something and the answer nothing. Of other languages than English nothing is told.
///
/// Of answers that a reader had put right one in twenty says it in other words ("I'll miss the bus"), so this weighs
/// little. The other way round means nothing: "I can't stop smiling".
pub fn drops(text: &str, answer: &str, language: Language) -> bool {
    language == Language::English && denies(text) && !denies(answer)
}

fn denies(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '\'' | '’')).any(|word| {
        let word: String = word.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect();
        DENYING.contains(&word.as_str()) || word.strip_suffix("nt").is_some_and(|verb| DENIED.contains(&verb))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_denies_wants_an_answer_that_does() {
        for (text, answer, dropped) in [
            ("I can't even see the stage.", "I can still see the stage, and I'm glad.", true),
            ("cant taste a thing", "I taste so much more now.", true),
            ("Nobody shouted.", "Nobody shouted, and I was relieved.", false),
            ("We didn’t win", "We never won", false),
            ("We won.", "We won, and I can't stop smiling.", false),
            ("I want a plant, it's important.", "A plant would be lovely.", false),
            ("", "", false),
        ] {
            assert_eq!(drops(text, answer, Language::English), dropped, "{text} {answer}");
        }
        assert!(!drops("No me gusta", "Me gusta", Language::Spanish));
    }
}
