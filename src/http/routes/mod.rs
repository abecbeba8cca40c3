//! The four operations: wire types beside their handlers. A handler translates; `service` decides.

pub(super) mod guardians;
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

/// The schema of every `model` field.
fn model_schema() -> Object {
    let names = ModelId::ALL.map(|id| Some(id.as_str()));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some("The model to use. Null is the same as leaving it out."))
        .enum_values(Some(names.into_iter().chain([None])))
        .default(Some(ModelId::default().as_str().into()))
        .build()
}
