//! Request bodies as JSON: known fields picked out, everything else checked and dropped.
//!
//! Owns the strictness of the parser: the whole body must be valid JSON (also what is ignored), nested at most 127
//! levels, and a known field may come once. Refuses to build a tree of what a caller sends: fields nobody reads cost
//! no memory, and of an array no more is kept than may be in it. Pure; runs on the thread that calls it.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{
    error::{ApiError, Param},
    input,
};
use crate::domain::{ModelId, ModerationInput, Threshold, ValidText, input::MAX_ITEMS};

/// A JSON value as far as the interface cares.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Field<'a> {
    #[default]
    Absent,
    Null,
    Text(Cow<'a, str>),
    Number(f64),
    /// An array: at most one item more than it may have.
    Items(Vec<Field<'a>>),
    Object(Box<InputObject<'a>>),
    Other,
}

/// What counts in an object within `input`: a part, or its `image_url`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct InputObject<'a> {
    pub(super) kind: Field<'a>,
    pub(super) text: Field<'a>,
    pub(super) image_url: Field<'a>,
    pub(super) url: Field<'a>,
}

/// The known fields of one body.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    text: Field<'a>,
    model: Field<'a>,
    image: Field<'a>,
    input: Field<'a>,
    score_threshold: Field<'a>,
    duplicate: Option<Param>,
}

impl<'a> Fields<'a> {
    /// Reads a body, of which only the fields `known` matter.
    pub(super) fn parse(body: &'a [u8], known: &'static [Param]) -> Result<Self, ApiError> {
        // Checked for the whole body: the parser would not look at the bytes of what it skips.
        let body = str::from_utf8(body).map_err(|_| ApiError::InvalidJson)?;
        let mut parser = serde_json::Deserializer::from_str(body);
        if !body.trim_start().starts_with('{') {
            let value = Keep::Scalar.deserialize(&mut parser).and_then(|_| parser.end());
            return Err(value.map_or(ApiError::InvalidJson, |()| ApiError::NotAnObject));
        }
        let fields = parser.deserialize_map(Known(known)).and_then(|fields| parser.end().map(|()| fields));
        let fields = fields.map_err(|_| ApiError::InvalidJson)?;
        fields.duplicate.map_or(Ok(fields), |field| Err(ApiError::DuplicateField(field)))
    }

    /// The required text.
    pub(super) fn text(&mut self) -> Result<ValidText, ApiError> {
        Ok(ValidText::new(required(&mut self.text, Param::Text)?.into_owned())?)
    }

    /// The required image, still encoded.
    pub(super) fn image(&mut self) -> Result<Cow<'a, str>, ApiError> {
        required(&mut self.image, Param::Image)
    }

    /// The required input.
    pub(super) fn input(&mut self) -> Result<ModerationInput, ApiError> {
        input::read(std::mem::take(&mut self.input))
    }

    /// The model, or the default.
    pub(super) fn model(&self) -> Result<ModelId, ApiError> {
        self.model_or_default_for(&[])
    }

    /// The model, or the default, also for these names of models elsewhere.
    pub(super) fn model_or_default_for(&self, foreign: &[&str]) -> Result<ModelId, ApiError> {
        match &self.model {
            Field::Absent | Field::Null => Ok(ModelId::default()),
            Field::Text(name) if foreign.contains(&name.as_ref()) => Ok(ModelId::default()),
            Field::Text(name) => Ok(name.parse()?),
            _ => Err(ApiError::InvalidType(Param::Model)),
        }
    }

    /// The threshold, or the default.
    pub(super) fn score_threshold(&self) -> Result<Threshold, ApiError> {
        match &self.score_threshold {
            Field::Absent | Field::Null => Ok(Threshold::default()),
            Field::Number(value) => Ok(Threshold::new(*value)?),
            _ => Err(ApiError::InvalidType(Param::ScoreThreshold)),
        }
    }

    fn slot(&mut self, param: Param) -> &mut Field<'a> {
        match param {
            Param::Text => &mut self.text,
            Param::Model => &mut self.model,
            Param::Image => &mut self.image,
            Param::Input => &mut self.input,
            Param::ScoreThreshold => &mut self.score_threshold,
        }
    }
}

fn required<'a>(field: &mut Field<'a>, param: Param) -> Result<Cow<'a, str>, ApiError> {
    match std::mem::take(field) {
        Field::Absent | Field::Null => Err(ApiError::MissingField(param)),
        Field::Text(value) => Ok(value),
        _ => Err(ApiError::InvalidType(param)),
    }
}

/// Picks the fields of this list out of an object.
struct Known(&'static [Param]);

impl<'de> Visitor<'de> for Known {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key_seed(Keep::Scalar)? {
            let param = self.0.iter().copied().find(|param| name == Field::Text(param.as_str().into()));
            let keep = if param == Some(Param::Input) { Keep::Items } else { Keep::Scalar };
            let value = map.next_value_seed(keep)?;
            let Some(param) = param else { continue };
            let slot = fields.slot(param);
            if *slot == Field::Absent {
                *slot = value;
            } else {
                fields.duplicate.get_or_insert(param);
            }
        }
        Ok(fields)
    }
}

/// Takes any value. Arrays and objects are parsed, so that they are known to be valid, and dropped but for this:
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    /// Nothing of them.
    Scalar,
    /// The items of an array.
    Items,
    /// Of an object, what makes a part.
    Part,
    /// Of an object, what makes an `image_url`.
    ImageUrl,
}

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Field<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Field<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Field::Other)
    }

    #[expect(clippy::cast_precision_loss, reason = "an integer beyond 2^53 is out of any range here, rounded or not")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Field::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "an integer beyond 2^53 is out of any range here, rounded or not")]
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Field::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Field::Number(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Field::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Field::Text(Cow::Borrowed(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while self == Self::Items
            && items.len() <= MAX_ITEMS
            && let Some(item) = seq.next_element_seed(Self::Part)?
        {
            items.push(item);
        }
        while seq.next_element_seed(Self::Scalar)?.is_some() {}
        Ok(if self == Self::Items { Field::Items(items) } else { Field::Other })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut object, mut repeated) = (InputObject::default(), false);
        while let Some(name) = map.next_key_seed(Keep::Scalar)? {
            let Field::Text(name) = name else { return Err(Error::custom("a name is a string")) };
            let (slot, keep) = match (self, name.as_ref()) {
                (Self::Part, "type") => (&mut object.kind, Self::Scalar),
                (Self::Part, "text") => (&mut object.text, Self::Scalar),
                (Self::Part, "image_url") => (&mut object.image_url, Self::ImageUrl),
                (Self::ImageUrl, "url") => (&mut object.url, Self::Scalar),
                _ => {
                    map.next_value_seed(Self::Scalar)?;
                    continue;
                }
            };
            repeated |= *slot != Field::Absent;
            *slot = map.next_value_seed(keep)?;
        }
        Ok(match self {
            Self::Scalar | Self::Items => Field::Other,
            // Which of the two was meant is anyone's guess.
            Self::Part | Self::ImageUrl if repeated => Field::Object(Box::default()),
            Self::Part | Self::ImageUrl => Field::Object(Box::new(object)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Param] = &[Param::Text, Param::Model, Param::Image, Param::ScoreThreshold];

    fn refusal(body: impl AsRef<[u8]>) -> Option<ApiError> {
        Fields::parse(body.as_ref(), ALL).err()
    }

    #[test]
    fn what_is_skipped_must_be_json_as_well() {
        for body in [
            &b""[..],
            b" ",
            b"{",
            b"{}}",
            b"{} {}",
            b"{'text':1}",
            b"{\"other\":nul}",
            b"{\"other\":\"\xff\"}",
            b"{\"other\":\"\\ud800\"}",
            b"{\"\\ud800\":1}",
            b"{\"other\":[1,]}",
            b"{\"other\":01}",
            b"{\"other\":\"\n\"}",
            b"\xef\xbb\xbf{}",
            b"[1,2",
            b"NaN",
            b"{\"score_threshold\":NaN}",
            b"{\"score_threshold\":1e999}",
        ] {
            assert_eq!(refusal(body), Some(ApiError::InvalidJson), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn only_an_object_is_a_body() {
        for body in ["null", "true", "1", "-1", "0.5", "\"text\"", "[]", "[{\"text\":\"a\"}]", " [1]\n"] {
            assert_eq!(refusal(body), Some(ApiError::NotAnObject), "{body}");
        }
        assert_eq!(refusal(" {} \n"), None);
    }

    #[test]
    fn nesting_is_bounded_without_using_up_the_stack() {
        let nested = |levels: usize| format!("{{\"other\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert_eq!(refusal(nested(127)), None);
        assert_eq!(refusal(nested(128)), Some(ApiError::InvalidJson));
        assert_eq!(refusal("[".repeat(1_000_000)), Some(ApiError::InvalidJson));
        assert_eq!(refusal("{\"a\":".repeat(1_000_000)), Some(ApiError::InvalidJson));
    }

    #[test]
    fn a_known_field_comes_once_and_an_unknown_one_as_often_as_it_likes() {
        let twice = Some(ApiError::DuplicateField(Param::Text));
        assert_eq!(refusal(r#"{"text":"a","text":"b"}"#), twice);
        assert_eq!(refusal(r#"{"text":null,"te\u0078t":"b"}"#), twice);
        assert_eq!(refusal(r#"{"other":1,"other":2,"Text":3,"Text":4}"#), None);
        let image_unknown = Fields::parse(br#"{"image":1,"image":2}"#, &[Param::Text]);
        assert!(image_unknown.is_ok());
    }

    #[test]
    fn a_plain_string_is_not_copied() {
        let mut fields = Fields::parse(br#"{"image":"aGk="}"#, ALL).unwrap();
        assert!(matches!(fields.image(), Ok(Cow::Borrowed("aGk="))));
        let mut escaped = Fields::parse(br#"{"image":"aG\u006b="}"#, ALL).unwrap();
        assert_eq!(escaped.image(), Ok("aGk=".into()));
    }

    #[test]
    fn null_is_absent_and_any_other_type_is_named() {
        let mut fields = Fields::parse(br#"{"text":null,"model":null,"score_threshold":null}"#, ALL).unwrap();
        assert_eq!(fields.text(), Err(ApiError::MissingField(Param::Text)));
        assert_eq!(fields.image(), Err(ApiError::MissingField(Param::Image)));
        assert_eq!(fields.model(), Ok(ModelId::Alpha));
        assert_eq!(fields.score_threshold(), Ok(Threshold::default()));
        for value in ["true", "[]", "{}", "[\"a\"]"] {
            let body = format!(r#"{{"text":{value},"model":{value},"image":{value},"score_threshold":{value}}}"#);
            let mut fields = Fields::parse(body.as_bytes(), ALL).unwrap();
            assert_eq!(fields.text(), Err(ApiError::InvalidType(Param::Text)), "{value}");
            assert_eq!(fields.image(), Err(ApiError::InvalidType(Param::Image)), "{value}");
            assert_eq!(fields.model(), Err(ApiError::InvalidType(Param::Model)), "{value}");
            assert_eq!(fields.score_threshold(), Err(ApiError::InvalidType(Param::ScoreThreshold)), "{value}");
        }
    }

    #[test]
    fn a_number_just_outside_the_range_is_not_rounded_into_it() {
        let read = |number: &str| {
            let body = format!(r#"{{"score_threshold":{number}}}"#);
            Fields::parse(body.as_bytes(), ALL).unwrap().score_threshold()
        };
        for inside in ["0.1", "0.10000000000000001", "0.99999999999999989", "1", "1.0", "10e-1"] {
            assert!(read(inside).is_ok(), "{inside}");
        }
        // The neighbours of the bounds among the numbers of 64 bits.
        for outside in ["0.09999999999999999", "1.0000000000000002"] {
            assert_eq!(read(outside), Err(ApiError::ScoreThresholdOutOfRange), "{outside}");
        }
    }
}
