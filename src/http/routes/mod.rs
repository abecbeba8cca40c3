//! The operations: wire types beside their handlers. A handler translates; `service` decides.

pub(super) mod guardians;
pub(super) mod moderations;
pub(super) mod prisms;
pub(super) mod sunshines;

use utoipa::{
    ToSchema,
    openapi::{
        Ref,
        schema::{Object, ObjectBuilder, OneOfBuilder, Schema, Type},
    },
};

use super::{
    error::{ApiError, Param},
    extract::{Payload, TEXT_BODY_BYTES},
    fields::Fields,
};
use crate::domain::{ModelId, ValidText, text::MAX_CHARACTERS};

/// A text, and the model that is to work on it.
#[derive(ToSchema)]
pub(super) struct TextRequest {
    #[schema(schema_with = text_schema)]
    text: ValidText,
    #[schema(schema_with = model_schema, required = false)]
    model: ModelId,
}

impl Payload for TextRequest {
    const MAX_BYTES: usize = TEXT_BODY_BYTES;

    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, &[Param::Text, Param::Model])?;
        Ok(Self { text: fields.text()?, model: fields.model()? })
    }

    fn model(&self) -> ModelId {
        self.model
    }
}

/// A character that is not white space, as Unicode defines it. The shorter `\S` is another set in each language.
const NOT_BLANK: &str = r"[^\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]";

/// A string with such a character, of 1 to `max_length` characters.
fn string_schema(max_length: usize) -> ObjectBuilder {
    let string = ObjectBuilder::new().schema_type(Type::String).pattern(Some(NOT_BLANK));
    string.min_length(Some(1)).max_length(Some(max_length))
}

/// The schema of a `text` field.
fn text_schema() -> Object {
    let description = "1 to 500 characters, counted as Unicode scalar values. Not only white space.";
    string_schema(MAX_CHARACTERS).description(Some(description)).build()
}

/// The schema of a `model` field.
fn model_schema() -> Schema {
    optional_model("ModelId", "The model to use. Null is the same as leaving it out.")
}

/// A `model` field with the names of the named schema.
fn optional_model(names: &str, description: &str) -> Schema {
    OneOfBuilder::new()
        .description(Some(description))
        .default(Some(ModelId::default().as_str().into()))
        .item(Ref::from_schema_name(names))
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .into()
}

/// The schema `ModelId`. It has a name so that the clients made from the document have one type for it.
pub(super) fn model_names() -> Object {
    model_names_with("An identifier of models.", &[])
}

/// The same, with names that are accepted besides ours.
fn model_names_with(description: &str, foreign: &[&str]) -> Object {
    let names = ModelId::ALL.iter().map(|id| id.as_str()).chain(foreign.iter().copied());
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    schema.enum_values(Some(names)).build()
}

/// A picture of eight by eight pixels, for the documentation.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAdklEQVR42g3JoQEEIQwAsB+HIRiCIRgi+nQ1uhpdjWasJza/5janqWY32awmmu/X3e501e0uu9VFfzHc4Qw17CGHNcR4Md3pTDXtKac1xXzB5VBskkV4EW44ocIOGVaIeJFuOqnSTplWinxRbjmlyi5ZVony/QEfRGLB4iT3qwAAAABJRU5ErkJggg==";

#[cfg(test)]
mod tests {
    use super::NOT_BLANK;

    #[test]
    fn the_pattern_of_texts_is_what_is_checked() {
        let blank = |code: u32| char::from_u32(code).is_some_and(char::is_whitespace);
        let escaped = |code: u32| format!("\\u{code:04x}");
        let mut class = String::from("[^");
        for first in (0..=u32::from(char::MAX)).filter(|&code| blank(code) && (code == 0 || !blank(code - 1))) {
            let last = (first..=u32::from(char::MAX)).take_while(|&code| blank(code)).last().unwrap();
            class += &escaped(first);
            if last > first {
                class += if last == first + 1 { "" } else { "-" };
                class += &escaped(last);
            }
        }
        assert_eq!(NOT_BLANK, class + "]");
    }
}
