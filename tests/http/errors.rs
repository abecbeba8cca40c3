//! Paths, methods, request ids, and what an error must not say.

use axum::{
    body::Body,
    http::{HeaderValue, Method, Request},
};
use serde_json::json;

use crate::support::{GUARD_IMAGE, KEY, OPERATIONS, Server, bare, post, post_as, sound};

#[tokio::test]
async fn unknown_paths_are_404_with_or_without_a_key() {
    let server = Server::new();
    for path in [
        "/v1",
        "/v1/",
        "/v1/prisms",
        "/v1/prisms/text/",
        "/v1/prisms/texts",
        "/V1/prisms/text",
        "/v1/Prisms/text",
        "//v1/prisms/text",
        "/v1/prisms%2Ftext",
        "/v1/prisms/image",
        "/v2/prisms/text",
        "/openapi",
        "/livez/",
        "/docs/nothing.js",
        "/docs/../Cargo.toml",
    ] {
        for method in [Method::GET, Method::POST] {
            let answer = server.send(bare(method.clone(), path)).await;
            if path.starts_with("/docs/n") && method == Method::POST {
                answer.assert_error(405, "method_not_allowed");
            } else {
                answer.assert_error(404, "not_found");
            }
            assert!(!answer.text().contains("prisms") && !answer.text().contains("Cargo"));
        }
        server.send(post(path, "{}")).await.error();
    }
}

#[tokio::test]
async fn a_query_does_not_change_the_path() {
    let server = Server::new();
    for path in OPERATIONS {
        server.post(&format!("{path}?verbose=1"), &sound(path)).await.assert_ok();
    }
}

#[tokio::test]
async fn a_wrong_method_is_405_and_names_the_right_one() {
    let server = Server::new();
    for path in OPERATIONS {
        for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
            let answer = server.send(bare(method.parse().unwrap(), path)).await;
            assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some("POST")), "{method} {path}");
            if method != "HEAD" {
                answer.assert_error(405, "method_not_allowed");
            }
        }
    }
    for path in ["/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs/"] {
        let answer = server.send(bare(Method::POST, path)).await;
        answer.assert_error(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some("GET,HEAD"), "{path}");
    }
}

#[tokio::test]
async fn a_request_id_is_kept_or_made_and_always_returned() {
    let server = Server::new();
    let longest = "x".repeat(128);
    let request = |id: Option<&[u8]>, path: &str, method: Method| {
        let mut request = bare(method, path);
        if let Some(id) = id {
            request.headers_mut().insert("x-request-id", HeaderValue::from_bytes(id).unwrap());
        }
        request
    };
    for (path, method) in [
        ("/nowhere", Method::GET),
        (OPERATIONS[0], Method::GET),
        (OPERATIONS[0], Method::POST),
        ("/livez", Method::GET),
        ("/docs", Method::GET),
    ] {
        for kept in ["a", "client-7/é".trim_end_matches('é'), "{\"!~", longest.as_str()] {
            let answer = server.send(request(Some(kept.as_bytes()), path, method.clone())).await;
            assert_eq!(answer.header("x-request-id"), Some(kept), "{path}");
        }
        let too_long = "x".repeat(129);
        for replaced in [None, Some(&b""[..]), Some(b"a b"), Some("é".as_bytes()), Some(too_long.as_bytes())] {
            let answer = server.send(request(replaced, path, method.clone())).await;
            let id = uuid::Uuid::parse_str(answer.header("x-request-id").unwrap()).unwrap();
            assert_eq!(id.get_version_num(), 7);
        }
    }
    let answer = server.post(OPERATIONS[2], &sound(OPERATIONS[2])).await;
    assert!(answer.header("x-request-id").is_some());
}

#[tokio::test]
async fn an_error_never_repeats_what_it_was_sent() {
    let server = Server::new();
    let secret = "zebra-4711";
    for path in OPERATIONS {
        for body in [
            json!({"text": secret.repeat(60), "image": secret, "input": [{secret: secret}]}),
            json!({"text": "a", "image": "AAAA", "input": "a", "model": secret}),
            json!({"text": "a", "image": "AAAA", "input": "a", "score_threshold": secret, "model": secret}),
            json!({secret: secret}),
            json!([secret]),
        ] {
            let answer = server.post(path, &body).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(!answer.text().contains("zebra"), "{}", answer.text());
        }
        let answer = server.send(post(path, format!("{{\"{secret}\" {secret}"))).await;
        answer.assert_error(400, "invalid_json");
        assert!(!answer.text().contains("zebra"));
        let answer = server.send(post_as(secret, path, &sound(path))).await;
        answer.assert_error(401, "invalid_api_key");
        assert!(!answer.text().contains("zebra") && !answer.text().contains(KEY));
    }
    let unknown = server.send(post(&format!("/v1/{secret}"), "{}")).await;
    unknown.assert_error(404, "not_found");
    assert!(!unknown.text().contains("zebra"));
}

#[tokio::test]
async fn the_error_body_has_its_fields_in_order() {
    let server = Server::new();
    let mut request = Request::post(GUARD_IMAGE).body(Body::empty()).unwrap();
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("seven"));
    let answer = server.send(request).await;
    assert_eq!(
        answer.text(),
        concat!(
            r#"{"error":{"type":"authentication_error","code":"missing_api_key","#,
            r#""message":"an API key is needed, in the header Authorization: Bearer KEY","#,
            r#""param":null,"request_id":"seven"}}"#,
        )
    );
}
