//! What a request body may be, and the first four checks of every field.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::header,
};
use dichroic::http::BodyLimits;
use http_body_util::channel::Channel;
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};

use crate::support::{
    GUARD_IMAGE, GUARD_TEXT, MODERATIONS, OPERATIONS, PRISMS, SUNSHINES, Server, Setup, doubles::SLOW, pictures, post,
    required, sound, sound_with,
};

const TEXT_OPERATIONS: [&str; 3] = [PRISMS, SUNSHINES, GUARD_TEXT];

#[tokio::test]
async fn a_sound_body_is_answered() {
    let server = Server::new();
    for path in OPERATIONS {
        server.post(path, &sound(path)).await.assert_ok();
    }
}

#[tokio::test]
async fn characters_are_counted_as_scalar_values() {
    let server = Server::new();
    for path in TEXT_OPERATIONS {
        for character in ["a", "é", "字", "😀"] {
            server.post(path, &json!({"text": character.repeat(500)})).await.assert_ok();
            let refused = server.post(path, &json!({"text": character.repeat(501)})).await;
            refused.assert_field_error("text_too_long", "text");
        }
        // A letter with its accent as a character of its own counts as two.
        let combined = server.post(path, &json!({"text": "e\u{301}".repeat(251)})).await;
        combined.assert_field_error("text_too_long", "text");
    }
}

#[tokio::test]
async fn escapes_count_as_what_they_stand_for() {
    let server = Server::new();
    let escaped = |count: usize| format!(r#"{{"text":"{}"}}"#, r"\uD83D\uDE00".repeat(count));
    server.send(post(GUARD_TEXT, escaped(500))).await.assert_ok();
    server.send(post(GUARD_TEXT, escaped(501))).await.assert_field_error("text_too_long", "text");
}

#[tokio::test]
async fn a_blank_text_is_refused_and_an_untrimmed_one_is_not() {
    let server = Server::new();
    for path in TEXT_OPERATIONS {
        for blank in ["", " ", "\n\t\r", "\u{a0}\u{2003}\u{3000}"] {
            server.post(path, &json!({"text": blank})).await.assert_field_error("text_blank", "text");
        }
        server.post(path, &json!({"text": "  a  "})).await.assert_ok();
    }
    // Untrimmed: the generator saw five characters.
    let answer = server.post(SUNSHINES, &json!({"text": "  a  "})).await;
    assert_eq!(answer.json()["text"], "Well said in f characters.");
}

#[tokio::test]
async fn the_required_field_is_required() {
    let server = Server::new();
    for path in OPERATIONS {
        let field = required(path);
        for body in
            [json!({}), json!({field: null}), json!({field.to_uppercase(): "a"}), json!({"model": "beta-3-haiku"})]
        {
            server.post(path, &body).await.assert_field_error("missing_field", field);
        }
        for wrong in [json!(1), json!(true), json!([["a"]]), json!({"text": "a"})] {
            server.post(path, &json!({field: wrong})).await.assert_field_error("invalid_type", field);
        }
    }
}

#[tokio::test]
async fn a_model_is_one_of_four_or_left_out() {
    let server = Server::new();
    for path in OPERATIONS {
        for default in [json!("alpha-4o-mini"), Value::Null] {
            server.post(path, &sound_with(path, &json!({"model": default}))).await.assert_ok();
        }
        for wrong in ["", "Alpha-4o-mini", "alpha-4o-mini ", "gpt-4o-mini", "false", "delta-3.10"] {
            let answer = server.post(path, &sound_with(path, &json!({"model": wrong}))).await;
            answer.assert_field_error("unknown_model", "model");
        }
        for wrong in [json!(1), json!(true), json!([]), json!({})] {
            let answer = server.post(path, &sound_with(path, &json!({"model": wrong}))).await;
            answer.assert_field_error("invalid_type", "model");
        }
    }
}

#[tokio::test]
async fn a_listed_model_without_files_is_not_implemented() {
    let server = Server::new();
    for path in OPERATIONS {
        for model in ["beta-3-haiku", "gamma-1.5-flash", "delta-3.1"] {
            let answer = server.post(path, &sound_with(path, &json!({"model": model}))).await;
            if matches!(path, GUARD_TEXT | MODERATIONS) && model == "beta-3-haiku" {
                answer.assert_ok();
            } else {
                answer.assert_error(501, "model_not_installed");
                assert_eq!(answer.json()["error"]["param"], "model");
            }
        }
    }
}

#[tokio::test]
async fn validation_comes_before_availability() {
    let server = Server::new();
    for path in TEXT_OPERATIONS {
        let answer = server.post(path, &json!({"text": "", "model": "delta-3.1"})).await;
        answer.assert_field_error("text_blank", "text");
    }
    let answer = server.post(GUARD_IMAGE, &json!({"image": "!", "model": "delta-3.1"})).await;
    answer.assert_field_error("invalid_base64", "image");
    let answer = server.post(MODERATIONS, &json!({"input": [], "model": "delta-3.1"})).await;
    answer.assert_field_error("input_empty", "input");
    // What a picture is, only who decodes it can tell.
    let broken = pictures::encoded(b"some text");
    let answer = server.post(GUARD_IMAGE, &json!({"image": broken, "model": "delta-3.1"})).await;
    answer.assert_field_error("unsupported_image", "image");
    let url = format!("data:image/png;base64,{broken}");
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    for model in ["beta-3-haiku", "delta-3.1"] {
        let answer = server.post(MODERATIONS, &json!({"input": [part], "model": model})).await;
        answer.assert_field_error("unsupported_image", "input");
    }
}

#[tokio::test]
async fn thresholds_from_a_tenth_to_one() {
    let server = Server::new();
    for path in [GUARD_TEXT, GUARD_IMAGE, MODERATIONS] {
        for accepted in ["0.1", "0.10000", "1e-1", "0.5", "1", "1.0", "10e-1", "0.999999", "null"] {
            let answer = server.send(post(path, raw(path, accepted))).await;
            assert_eq!(answer.status, 200, "{accepted}: {}", answer.text());
        }
        for outside in ["0", "0.0999999", "-0.5", "1.0000001", "2", "-1", "50", "1e300", "18446744073709551616"] {
            let answer = server.send(post(path, raw(path, outside))).await;
            answer.assert_field_error("score_threshold_out_of_range", "score_threshold");
        }
        for wrong in [r#""0.5""#, r#""NaN""#, "true", "[0.5]", "{}", r#""""#] {
            let answer = server.send(post(path, raw(path, wrong))).await;
            answer.assert_field_error("invalid_type", "score_threshold");
        }
        for no_json in ["NaN", "Infinity", ".5", "0.5.", "+1", "1e999", "0x1"] {
            server.send(post(path, raw(path, no_json))).await.assert_error(400, "invalid_json");
        }
    }
}

/// A sound body with a threshold that `Value` could not hold.
fn raw(path: &str, threshold: &str) -> String {
    let body = sound(path).to_string();
    format!("{},\"score_threshold\":{threshold}}}", body.strip_suffix('}').unwrap())
}

#[tokio::test]
async fn fields_that_an_operation_does_not_know_are_ignored() {
    let server = Server::new();
    let extra = json!({"user": "x", "stream": true, "nested": {"a": [1, {"b": null}]}, "Text": 1, "": 0});
    for path in OPERATIONS {
        server.post(path, &sound_with(path, &extra)).await.assert_ok();
    }
    for path in [PRISMS, SUNSHINES] {
        let foreign = json!({"score_threshold": "high", "image": 5});
        server.post(path, &sound_with(path, &foreign)).await.assert_ok();
    }
    server.post(GUARD_IMAGE, &sound_with(GUARD_IMAGE, &json!({"text": 7}))).await.assert_ok();
}

#[tokio::test]
async fn a_field_given_twice_is_refused() {
    let server = Server::new();
    for path in TEXT_OPERATIONS {
        let answer = server.send(post(path, r#"{"text":"harmless","text":"other"}"#)).await;
        answer.assert_field_error("duplicate_field", "text");
    }
    let answer = server.send(post(MODERATIONS, r#"{"input":["harmless"],"input":"other"}"#)).await;
    answer.assert_field_error("duplicate_field", "input");
}

#[tokio::test]
async fn what_is_no_json_object_is_refused() {
    let server = Server::new();
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let hidden = format!(r#"{{"text":"a","image":"AAAA","input":"a","other":{deep}}}"#);
    for path in OPERATIONS {
        let broken: [&[u8]; 9] = [
            b"",
            b"{",
            b"{\"text\":\"a\"",
            b"{\"text\":\"a\"} x",
            b"text=a",
            b"{\"text\":\"\xff\"}",
            b"{\"text\":\"\\ud83d\"}",
            b"{\"other\":\"\\udc00 alone\",\"text\":\"a\"}",
            hidden.as_bytes(),
        ];
        for body in broken {
            let answer = server.send(post(path, body.to_vec())).await;
            answer.assert_error(400, "invalid_json");
            assert_eq!(answer.json()["error"]["param"], Value::Null);
        }
        for body in ["[]", "null", "\"text\"", "1", "[{\"text\":\"a\"}]"] {
            server.send(post(path, body)).await.assert_error(400, "invalid_type");
        }
    }
}

#[tokio::test]
async fn the_content_type_is_json() {
    let server = Server::new();
    for path in OPERATIONS {
        let with = |value: Option<&str>| {
            let mut request = post(path, sound(path).to_string());
            request.headers_mut().remove(header::CONTENT_TYPE);
            if let Some(value) = value {
                request.headers_mut().insert(header::CONTENT_TYPE, value.parse().unwrap());
            }
            request
        };
        for json in ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json"] {
            server.send(with(Some(json))).await.assert_ok();
        }
        for other in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("multipart/form-data")]
        {
            server.send(with(other)).await.assert_error(400, "unsupported_content_type");
        }
    }
}

#[tokio::test]
async fn any_accept_header_is_answered_in_json() {
    let server = Server::new();
    for accept in ["*/*", "application/json", "text/html", "image/png", "nonsense"] {
        let mut request = post(GUARD_TEXT, sound(GUARD_TEXT).to_string());
        request.headers_mut().insert(header::ACCEPT, accept.parse().unwrap());
        let answer = server.send(request).await;
        answer.assert_ok();
        answer.json();
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = Server::new();
    for path in OPERATIONS {
        let limit = if matches!(path, GUARD_IMAGE | MODERATIONS) { 16 << 20 } else { 64 << 10 };
        let padded = |length: usize| {
            let body = sound(path).to_string();
            format!("{body}{}", " ".repeat(length - body.len()))
        };
        server.send(post(path, padded(limit))).await.assert_ok();
        server.send(post(path, padded(limit + 1))).await.assert_error(400, "body_too_large");
    }
}

/// Sends `chunk` for ever, without saying how much is to come, and counts.
struct Endless {
    sent: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.sent.fetch_add(16 << 10, std::sync::atomic::Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; 16 << 10])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[tokio::test]
async fn an_endless_body_is_cut_off() {
    let server = Server::new();
    for path in OPERATIONS {
        let sent = std::sync::Arc::default();
        let body = Body::new(Endless { sent: std::sync::Arc::clone(&sent) });
        server.send(post(path, body)).await.assert_error(400, "body_too_large");
        // The limit, and what is read and dropped so that the answer gets through.
        assert!(sent.load(std::sync::atomic::Ordering::Relaxed) < 50 << 20);
    }
}

#[tokio::test]
async fn a_body_that_stalls_or_breaks_is_incomplete() {
    let bodies = BodyLimits { deadline: Duration::from_millis(50), ..BodyLimits::default() };
    let server = Server::with(Setup { bodies, ..Setup::default() });
    for path in OPERATIONS {
        let (mut sender, stalled) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from_static(b"{\"text\":")).await.unwrap();
        server.send(post(path, Body::new(stalled))).await.assert_error(400, "incomplete_body");

        let (mut sender, broken) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from_static(b"{\"text\":")).await.unwrap();
        sender.abort(std::io::ErrorKind::ConnectionReset.into());
        server.send(post(path, Body::new(broken))).await.assert_error(400, "incomplete_body");
    }
}

#[tokio::test]
async fn pictures_that_take_too_much_memory_together_are_told_to_come_back() {
    let bodies = BodyLimits { held_bytes: 1 << 20, deadline: Duration::from_secs(20) };
    let server = Server::with(Setup { bodies, ..Setup::default() });
    let (mut sender, held) = Channel::<Bytes, std::io::Error>::new(4);
    let router = server.router.clone();
    let first = tokio::spawn(tower::ServiceExt::oneshot(router, post(GUARD_IMAGE, Body::new(held))));
    sender.send_data(Bytes::from(vec![b' '; 1 << 20])).await.unwrap();
    // A second chunk is taken once the first is held.
    for _ in 0..5 {
        sender.send_data(Bytes::from_static(b" ")).await.unwrap();
    }
    let large = format!("{}{}", sound(GUARD_IMAGE), " ".repeat(200 << 10));
    let refused = server.send(post(GUARD_IMAGE, large.clone())).await;
    refused.assert_error(429, "overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Texts and small pictures need no account.
    server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    server.post(GUARD_IMAGE, &sound(GUARD_IMAGE)).await.assert_ok();
    drop(sender);
    assert_eq!(first.await.unwrap().unwrap().status(), 400);
    server.send(post(GUARD_IMAGE, large)).await.assert_ok();
}

#[tokio::test]
async fn pictures_take_their_memory_until_they_are_judged() {
    let bodies = BodyLimits { held_bytes: 256 << 10, ..BodyLimits::default() };
    let server = Server::with(Setup { bodies, ..Setup::default() });
    let large = |text: &str| {
        let picture = sound(GUARD_IMAGE)["image"].as_str().unwrap().to_owned();
        let parts = json!([
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{picture}")}},
        ]);
        format!("{}{}", json!({"input": parts}), " ".repeat(200 << 10))
    };
    let slow = server.send(post(MODERATIONS, large("reader:slow")));
    let (first, second) = tokio::join!(slow, async {
        tokio::time::sleep(SLOW / 4).await;
        server.send(post(MODERATIONS, large("quick"))).await
    });
    first.assert_ok();
    second.assert_error(429, "overloaded");
    server.send(post(MODERATIONS, large("quick"))).await.assert_ok();
}

#[tokio::test]
async fn chunks_and_trailers_make_a_body() {
    let server = Server::new();
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(16);
    tokio::spawn(async move {
        for byte in br#"{"text":"\u00e9t\u00e9"}"# {
            sender.send_data(Bytes::copy_from_slice(&[*byte])).await.unwrap();
        }
        sender.send_trailers([(header::ETAG, "\"x\"".parse().unwrap())].into_iter().collect()).await.unwrap();
    });
    let answer = server.send(post(SUNSHINES, Body::new(body))).await;
    answer.assert_ok();
    assert_eq!(answer.json()["text"], "Well said in d characters.");
}
