//! Every route on one screen.
//!
//! Owns which paths exist, which of them need a credential, and the layers around them all. Refuses to let a route
//! in that is neither an operation nor on the public list. Runs once, at start-up.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware::from_fn_with_state,
    routing::{MethodRouter, get},
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt},
    routes,
};

use super::{
    App, Shared, SharedState,
    auth::guard,
    error::ApiError,
    extract::turn_away,
    health,
    observe::observe,
    openapi, playground,
    routes::{guardians, moderations, prisms, sunshines},
};

/// The routes with their part of the document. `guard` goes around every operation, and around nothing else.
pub(super) fn api(
    guard: impl Fn(MethodRouter<SharedState>) -> MethodRouter<SharedState>,
) -> OpenApiRouter<SharedState> {
    let operations = [
        routes!(prisms::express_text),
        routes!(sunshines::reply_to_text),
        routes!(guardians::moderate_text),
        routes!(guardians::moderate_image),
        routes!(moderations::moderate),
    ];
    let public = [routes!(health::livez), routes!(health::readyz), routes!(health::metrics), routes!(openapi::json)];

    let guarded = operations.into_iter().map(|route| route.map(&guard));
    guarded.chain(public).fold(OpenApiRouter::with_openapi(openapi::head()), OpenApiRouter::routes)
}

/// The whole interface as one service: routes, credentials, limits, errors, access log.
pub fn router(app: App) -> Router {
    let shared = Shared::new(app, openapi::document());
    let guard = from_fn_with_state(Arc::clone(&shared), guard);
    // Around the method, not the path: a wrong method is told so before anyone asks for a credential.
    let mut routes = Router::from(api(|method| method.route_layer(guard.clone())))
        .route("/docs", get(openapi::docs_root))
        .route("/docs/", get(openapi::docs_index))
        .route("/docs/{file}", get(openapi::docs_file));
    if shared.app.playground {
        routes = routes.route("/", get(playground::page));
    }
    routes
        .fallback(|request: Request| turn_away(request, ApiError::NotFound))
        .method_not_allowed_fallback(|request: Request| turn_away(request, ApiError::MethodNotAllowed))
        .layer(from_fn_with_state(Arc::clone(&shared), observe))
        .with_state(shared)
}
