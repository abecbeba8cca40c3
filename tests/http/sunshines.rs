//! `POST /v1/sunshines/text`

use serde_json::json;

use crate::support::{SUNSHINES, Server};

#[tokio::test]
async fn a_reply_is_one_text() {
    let server = Server::new();
    let answer = server.post(SUNSHINES, &json!({"text": "ok"})).await;
    answer.assert_ok();
    assert_eq!(answer.text(), r#"{"text":"Well said in 2 characters."}"#);
}

#[tokio::test]
async fn a_reply_has_at_most_200_characters() {
    let server = Server::new();
    let answer = server.post(SUNSHINES, &json!({"text": "scribe:long"})).await;
    answer.assert_ok();
    let length = answer.json()["text"].as_str().unwrap().chars().count();
    assert!((1..=200).contains(&length), "{length}");
}

#[tokio::test]
async fn no_acceptable_reply_is_an_error() {
    let server = Server::new();
    for text in ["scribe:empty", "scribe:harm"] {
        server.post(SUNSHINES, &json!({"text": text})).await.assert_error(500, "generation_rejected");
    }
}
