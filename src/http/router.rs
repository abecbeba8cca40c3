//! Every route on one screen.
//!
//! Owns which paths exist, which of them need a credential, and the layers around them. A route that is not in
//! `PUBLIC` is guarded; there is no third list. Runs once, at start-up.

use axum::{
    Router,
    middleware::{from_fn, from_fn_with_state},
    routing::MethodRouter,
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt},
    routes,
};

use super::{
    App, Shared, SharedState,
    auth::guard,
    error::ApiError,
    health,
    observe::observe,
    openapi,
    routes::{guardians, prisms, sunshines},
};

/// The whole interface as a service: routes, guard, limits, errors, access log.
pub fn router(app: App) -> Router {
    let shared = Shared::new(app);
    let (routes, document) = api(&shared).split_for_parts();
    routes
        .merge(openapi::routes(document))
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .layer(from_fn_with_state(Arc::clone(&shared), observe))
        .with_state(shared)
}
