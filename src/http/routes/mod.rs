//! The operations: wire types beside their handlers. A handler translates; `service` decides.

pub(super) mod guardians;
pub(super) mod moderations;
pub(super) mod prisms;
pub(super) mod sunshines;

use utoipa::{
    ToSchema,
    openapi::schema::{Object, ObjectBuilder, SchemaType, Type},
};

use super::{
    error::{ApiError, Param},
    extract::{Payload, TEXT_BODY_BYTES},
    fields::Fields,
};
use crate::domain::{ModelId, ValidText};

/// A text, and the model that is to work on it.
#[derive(ToSchema)]
pub(super) struct TextRequest {
    /// 1 to 500 characters, counted as Unicode scalar values. Not only white space.
    #[schema(value_type = String, min_length = 1, max_length = 500, pattern = r"\S")]
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

/// The schema of a `model` field.
fn model_schema() -> Object {
    model_schema_with("The model to use. Null is the same as leaving it out.", &[])
}

/// The same, with names that are accepted besides ours.
fn model_schema_with(description: &str, foreign: &[&str]) -> Object {
    let names = ModelId::ALL.iter().map(|id| id.as_str()).chain(foreign.iter().copied()).map(Some);
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some(description))
        .enum_values(Some(names.chain([None])))
        .default(Some(ModelId::default().as_str().into()))
        .build()
}

/// A picture of eight by eight pixels, for the documentation.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAdklEQVR42g3JoQEEIQwAsB+HIRiCIRgi+nQ1uhpdjWasJza/5janqWY32awmmu/X3e501e0uu9VFfzHc4Qw17CGHNcR4Md3pTDXtKac1xXzB5VBskkV4EW44ocIOGVaIeJFuOqnSTplWinxRbjmlyi5ZVony/QEfRGLB4iT3qwAAAABJRU5ErkJggg==";
