//! The OpenAPI document and its page.
//!
//! Owns what the routes do not say themselves: the head of the document, the error answers (made from the table in
//! `error`), the headers that the layers add, and the files of the documentation page, which are in the binary.
//! Refuses any outside origin. Runs once at start-up, then on the tokio threads.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde_json::json;
use utoipa::{
    IntoResponses, Modify, OpenApi, PartialSchema,
    openapi::{
        self, ContentBuilder, Header, HeaderBuilder, Object, RefOr, ResponseBuilder, Type,
        example::ExampleBuilder,
        extensions::ExtensionsBuilder,
        path::Operation,
        schema::Ref,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use super::{
    SharedState,
    error::{ApiError, ErrorBody, Param},
    router,
};
