//! Who may call, and what comes first.

use axum::http::{HeaderValue, Method, header};
use dichroic::{
    access::keys::NewKey,
    domain::{Operation, UsageLimit},
};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::support::{KEY, OPERATIONS, Server, bare, post, post_as, sound};

#[tokio::test]
async fn every_documented_path_needs_a_key_unless_it_is_named_public() {
    const PUBLIC: [&str; 4] = ["/livez", "/metrics", "/openapi.json", "/readyz"];
    let server = Server::new();
    let document = server.get("/openapi.json").await.json();
    let mut public = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = server.send(bare(method, path)).await;
            if answer.status == 401 {
                answer.assert_error(401, "missing_api_key");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            } else {
                assert!(answer.status.is_success(), "{path}: {}", answer.text());
                public.push(path.as_str());
            }
        }
    }
    public.sort_unstable();
    assert_eq!(public, PUBLIC);
    for path in OPERATIONS {
        assert!(document["paths"][path]["post"].is_object(), "{path} is not documented");
    }
}

#[tokio::test]
async fn the_header_in_its_spellings() {
    let server = Server::new();
    for path in OPERATIONS {
        let with = |value: &[u8]| {
            let mut request = post(path, sound(path).to_string());
            request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
            request
        };
        for scheme in ["Bearer", "bearer", "BEARER", "bEARER"] {
            server.send(with(format!("{scheme} {KEY}").as_bytes())).await.assert_ok();
        }
        let wrong = [
            KEY.to_owned(),
            format!("Basic {KEY}"),
            format!("Bearer{KEY}"),
            format!("Bearer {KEY}x"),
            format!("Bearer {}", KEY.to_uppercase()),
            format!("Bearer {KEY}, Bearer {KEY}"),
            "Bearer dk_aaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb".into(),
            "Bearer é".into(),
        ];
        for value in wrong {
            let answer = server.send(with(value.as_bytes())).await;
            answer.assert_error(401, "invalid_api_key");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert_eq!(answer.header("ratelimit"), None);
            assert!(!answer.text().contains(KEY));
        }
        for missing in ["", "Bearer", "Bearer "] {
            let (status, _) = server.send(with(missing.as_bytes())).await.error();
            assert_eq!(status, 401, "{missing:?}");
        }
        let mut two = post(path, sound(path).to_string());
        two.headers_mut().append(header::AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        server.send(two).await.assert_error(401, "invalid_api_key");
    }
}

#[tokio::test]
async fn a_key_covers_the_operations_of_its_scopes() {
    let server = Server::new();
    for allowed in Operation::ALL {
        let key = server.issue_for(allowed);
        for operation in Operation::ALL {
            let path = operation.path();
            let answer = server.send(post_as(&key, path, &sound(path))).await;
            if operation == allowed {
                answer.assert_ok();
            } else {
                answer.assert_error(401, "insufficient_scope");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            }
        }
    }
}

#[tokio::test]
async fn an_expired_or_revoked_key_is_not_accepted() {
    let server = Server::new();
    let path = OPERATIONS[2];
    let expired = OffsetDateTime::UNIX_EPOCH + Duration::days(1);
    let old = server.issue(NewKey { expires: Some(expired), ..NewKey::default() });
    server.send(post_as(&old, path, &sound(path))).await.assert_error(401, "invalid_api_key");

    let lasting = OffsetDateTime::now_utc() + Duration::days(1);
    let key = server.issue(NewKey { expires: Some(lasting), ..NewKey::default() });
    server.send(post_as(&key, path, &sound(path))).await.assert_ok();
    server.revoke(&key);
    server.send(post_as(&key, path, &sound(path))).await.assert_error(401, "invalid_api_key");
}

#[tokio::test]
async fn path_then_method_then_credential_then_limit_then_body_then_availability() {
    let server = Server::limited(UsageLimit { per_minute: 1, burst: 3 });
    for path in OPERATIONS {
        let other = server.issue(NewKey::default());
        let broken = json!({"text": 1, "image": 1, "input": 1});
        // Each request is wrong in everything that a later check would find.
        server.send(post_as("wrong", &format!("{path}/"), &broken)).await.assert_error(404, "not_found");
        server.send(bare(Method::PUT, path)).await.assert_error(405, "method_not_allowed");
        server.send(post_as("wrong", path, &broken)).await.assert_error(401, "invalid_api_key");
        // Refused bodies count against the limit.
        for _ in 0..2 {
            assert_eq!(server.send(post_as(&other, path, &broken)).await.status, 400);
        }
        let absent = sound(path);
        let absent = crate::support::sound_with(path, &json!({"model": "delta-3.1", "text": absent["text"]}));
        server.send(post_as(&other, path, &absent)).await.assert_error(501, "model_not_installed");
        server.send(post_as(&other, path, &broken)).await.assert_error(429, "rate_limit_exceeded");
    }
}
