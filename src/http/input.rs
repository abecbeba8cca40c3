//! The `input` field of a moderation request, from what came to what is judged.
//!
//! Owns its three forms: one text, texts for themselves, parts of one whole. Refuses mixtures of them, and addresses
//! of pictures: this server fetches nothing. Pure; runs on the thread that calls it.

use super::{
    error::{ApiError, Param},
    fields::{Field, InputObject},
};
use crate::domain::{Grouping, ImageBytes, ModerationInput, Part};

/// Checks the field and decodes its pictures.
pub(super) fn read(field: Field<'_>) -> Result<ModerationInput, ApiError> {
    match field {
        Field::Absent | Field::Null => Err(ApiError::MissingField(Param::Input)),
        Field::Text(text) => Ok(ModerationInput::new(vec![Part::Text(text.into_owned())], Grouping::Each)?),
        Field::Items(items) => {
            // The first item says which of the two arrays this is.
            let grouping = if let Some(Field::Object(_)) = items.first() { Grouping::Together } else { Grouping::Each };
            let parts = items.into_iter().map(|item| item_of(item, grouping)).collect::<Result<_, _>>()?;
            Ok(ModerationInput::new(parts, grouping)?)
        }
        Field::Number(_) | Field::Object(_) | Field::Other => Err(ApiError::InvalidType(Param::Input)),
    }
}

fn item_of(item: Field<'_>, grouping: Grouping) -> Result<Part, ApiError> {
    match (item, grouping) {
        (Field::Text(text), Grouping::Each) => Ok(Part::Text(text.into_owned())),
        (Field::Object(part), Grouping::Together) => part_of(*part),
        _ => Err(ApiError::InvalidType(Param::Input)),
    }
}

/// Whatever else stands in a part is ignored, also the content of another kind.
fn part_of(part: InputObject<'_>) -> Result<Part, ApiError> {
    let Field::Text(kind) = part.kind else { return Err(ApiError::InvalidInputPart) };
    match (kind.as_ref(), part.text, part.image_url) {
        ("text", Field::Text(text), _) => Ok(Part::Text(text.into_owned())),
        ("image_url", _, Field::Object(image_url)) => image_of(&image_url.url),
        _ => Err(ApiError::InvalidInputPart),
    }
}

fn image_of(url: &Field<'_>) -> Result<Part, ApiError> {
    let Field::Text(url) = url else { return Err(ApiError::InvalidInputPart) };
    let image = ImageBytes::from_data_url(url);
    Ok(Part::Image(image.map_err(|error| ApiError::from(error).about(Param::Input))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::Fields;

    fn read_json(input: &str) -> Result<(Vec<Part>, Grouping), ApiError> {
        let body = format!(r#"{{"input":{input}}}"#);
        Fields::parse(body.as_bytes(), &[Param::Input])?.input().map(ModerationInput::into_parts)
    }

    /// What is read, in short: texts as they are, pictures by their size.
    fn shape(input: &str) -> Result<String, ApiError> {
        let (parts, grouping) = read_json(input)?;
        let parts: Vec<String> = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Image(image) => format!("<{}>", image.as_bytes().len()),
            })
            .collect();
        Ok(format!("{grouping:?} {}", parts.join("|")))
    }

    #[test]
    fn three_forms() {
        assert_eq!(shape(r#""a\u0062""#).as_deref(), Ok("Each ab"));
        assert_eq!(shape(r#"["a","b"]"#).as_deref(), Ok("Each a|b"));
        let parts = r#"[
            {"type":"text","text":"a","other":[{"type":1}]},
            {"image_url":{"detail":"low","url":"data:image/png;base64,AAAA"},"type":"image_url","text":7},
            {"typ\u0065":"text","text":"b"}
        ]"#;
        assert_eq!(shape(parts).as_deref(), Ok("Together a|<3>|b"));
    }

    #[test]
    fn what_is_no_form_is_an_invalid_type() {
        let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for input in [
            "1",
            "true",
            "{}",
            r#"{"type":"text","text":"a"}"#,
            "[null]",
            "[1]",
            r#"["a",["b"]]"#,
            r#"["a",{"type":"text","text":"b"}]"#,
            r#"[{"type":"text","text":"b"},"a"]"#,
            &nested,
        ] {
            assert_eq!(shape(input), Err(ApiError::InvalidType(Param::Input)), "{input}");
        }
        for input in ["null", "null "] {
            assert_eq!(shape(input), Err(ApiError::MissingField(Param::Input)));
        }
    }

    #[test]
    fn what_is_no_part_is_named_as_such() {
        for part in [
            "{}",
            r#"{"text":"a"}"#,
            r#"{"type":null,"text":"a"}"#,
            r#"{"type":"Text","text":"a"}"#,
            r#"{"type":"input_audio","text":"a"}"#,
            r#"{"type":"text"}"#,
            r#"{"type":"text","text":null}"#,
            r#"{"type":"text","text":["a"]}"#,
            r#"{"type":"text","text":"a","text":"b"}"#,
            r#"{"type":"image_url","image_url":"data:image/png;base64,AAAA"}"#,
            r#"{"type":"image_url","image_url":{}}"#,
            r#"{"type":"image_url","image_url":{"url":7}}"#,
            r#"{"type":"image_url","image_url":{"url":{"url":"data:;base64,AAAA"}}}"#,
            r#"{"type":"image_url","image_url":{"url":"data:;base64,AAAA","url":"https://example.com"}}"#,
            r#"{"type":"image_url","url":"data:;base64,AAAA"}"#,
        ] {
            assert_eq!(shape(&format!("[{part}]")), Err(ApiError::InvalidInputPart), "{part}");
        }
    }

    #[test]
    fn no_more_is_kept_than_may_come() {
        let many = |count: usize| format!("[{}]", vec![r#""a""#; count].join(","));
        assert!(shape(&many(32)).is_ok());
        assert_eq!(shape("[]"), Err(ApiError::InputEmpty));
        for count in [33, 34, 100_000] {
            assert_eq!(shape(&many(count)), Err(ApiError::TooManyInputs));
        }
        // Also what is dropped must be JSON.
        let broken = many(100_000).replace(r#""a"]"#, "]");
        assert_eq!(shape(&broken), Err(ApiError::InvalidJson));
    }
}
