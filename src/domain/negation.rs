//! Whether an English answer drops the "not" of its text: "can't even see" said over as "can still see".

use super::Language;

/// Words that deny by themselves.
const DENYING: [&str; 11] =
    ["not", "no", "never", "nobody", "nothing", "nowhere", "none", "neither", "nor", "cannot", "without"];
/// What "n't" stands behind, often without its apostrophe: "cant", "isnt".
const DENIED: [&str; 21] = [
    "is", "are", "was", "were", "do", "does", "did", "have", "has", "had", "ca", "wo", "could", "would", "should",
    "must", "need", "ai", "sha", "might", "ought",
];

/// Whether the text denies something and the answer nothing; told of English, and of what is taken for it.
///
/// Of answers that a reader had put right one in twenty says it in other words ("I'll miss the bus"), so this weighs
/// little. The other way round means nothing: "I can't stop smiling".
pub fn drops(text: &str, answer: &str, language: Language) -> bool {
    language == Language::English && denies(text) && !denies(answer)
}

fn denies(text: &str) -> bool {
    let plain = |word: &str| word.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && !matches!(c, '\'' | '’'))
        .map(plain)
        .filter(|word| !word.is_empty())
        .collect();
    words.iter().enumerate().any(|(at, word)| {
        let before = at.checked_sub(1).and_then(|before| words.get(before)).map_or("", String::as_str);
        let counts = words.get(at + 1).is_some_and(|next| next.starts_with(|c: char| c.is_ascii_digit()));
        // "Oh no", "No. 5".
        let idle = word == "no" && (before == "oh" || counts);
        (DENYING.contains(&word.as_str()) && !idle)
            || word.strip_suffix("nt").is_some_and(|verb| DENIED.contains(&verb))
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
            ("Oh no, platform No. 5 again.", "Platform 5 again.", false),
            ("No buses run.", "Buses run.", true),
            ("We won.", "We won, and I can't stop smiling.", false),
            ("I want a plant, it's important.", "A plant would be lovely.", false),
            ("", "", false),
        ] {
            assert_eq!(drops(text, answer, Language::English), dropped, "{text} {answer}");
        }
        assert!(!drops("No me gusta", "Me gusta", Language::Spanish));
    }
}
