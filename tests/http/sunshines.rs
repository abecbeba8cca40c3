//! `POST /v1/sunshines/text`

use serde_json::json;

use crate::support::{PRISMS, SUNSHINES, Server};

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

#[tokio::test]
async fn a_person_in_distress_gets_care_and_nothing_that_was_generated() {
    let server = Server::new();
    for score in ["0.3", "0.9"] {
        let text = format!("self_harm={score} scribe:panic");
        let answer = server.post(SUNSHINES, &json!({"text": text})).await;
        answer.assert_ok();
        let reply = answer.json()["text"].as_str().unwrap().to_owned();
        assert!(reply.contains("someone you trust") && reply.contains("crisis line"), "{reply}");
        assert!(reply.chars().count() <= 200);

        let answer = server.post(PRISMS, &json!({"text": text})).await;
        answer.assert_ok();
        assert!(answer.json()["positive"].as_str().unwrap().contains("towards help"));
        assert!(answer.json()["negative"].as_str().unwrap().contains("hard moment"));
    }
    let answer = server.post(SUNSHINES, &json!({"text": "self_harm=0.2"})).await;
    assert!(answer.json()["text"].as_str().unwrap().starts_with("Well said"));
}
