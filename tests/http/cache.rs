//! Texts that were moderated a moment ago: answered from memory, where that is on.

use std::time::Duration;

use dichroic::{domain::UsageLimit, service::ScoreCacheOptions};
use serde_json::{Value, json};

use crate::support::{
    GUARD_IMAGE, GUARD_TEXT, MODERATIONS, PRISMS, SUNSHINES, Server, Setup,
    doubles::SLOW,
    pictures::{RED, encoded, line},
};

fn remembering(entries: usize, age: Duration) -> Setup {
    Setup { cache: Some(ScoreCacheOptions { entries, age }), ..Setup::default() }
}

fn server() -> Server {
    Server::with(remembering(1000, Duration::from_mins(1)))
}

/// Hits, misses and evictions of a classifier, as `/metrics` tells them.
async fn counts(server: &Server, model: &str) -> [u64; 3] {
    let metrics = server.get("/metrics").await;
    ["hits", "misses", "evictions"].map(|series| {
        let name = format!("dichroic_moderation_cache_{series}_total{{component=\"text\",model=\"{model}\"}} ");
        let value = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    })
}

async fn judge(server: &Server, body: &Value) -> Value {
    let answer = server.post(GUARD_TEXT, body).await;
    answer.assert_ok();
    answer.json()
}

#[tokio::test]
async fn the_same_text_has_the_same_answer_without_an_inference() {
    let server = server();
    let text = "hate=0.51236 violence=0.2 said twice";
    let first = server.post(GUARD_TEXT, &json!({"text": text})).await;
    let tokens = server.metrics.model("double", "text").input_tokens.get();
    let second = server.post(GUARD_TEXT, &json!({"text": text})).await;
    assert_eq!(first.text(), second.text());
    assert_eq!(first.json()["category_scores"]["hate"], 0.5124);
    assert_eq!(counts(&server, "double").await, [1, 1, 0]);
    assert_eq!(server.metrics.model("double", "text").input_tokens.get(), tokens);
    // Every finding counts, and is judged by the threshold of its own request.
    assert_eq!(server.metrics.flagged.with_label_values(&["guardian_text", "hate"]).get(), 2);
    assert_eq!(judge(&server, &json!({"text": text, "score_threshold": 0.6})).await["flagged"], false);
    assert_eq!(judge(&server, &json!({"text": text, "score_threshold": 0.2})).await["categories"]["violence"], true);
    assert_eq!(counts(&server, "double").await, [3, 1, 0]);
}

#[tokio::test]
async fn another_text_and_another_classifier_are_asked() {
    let server = Server::with(Setup { apart: true, ..remembering(1000, Duration::from_mins(1)) });
    for (text, model) in [
        ("hate=0.7", "alpha-4o-mini"),
        ("hate=0.7 ", "alpha-4o-mini"),
        ("Hate=0.7", "alpha-4o-mini"),
        ("hate=0.7", "beta-3-haiku"),
    ] {
        judge(&server, &json!({"text": text, "model": model})).await;
    }
    assert_eq!((counts(&server, "double").await, counts(&server, "other").await), ([0, 3, 0], [0, 1, 0]));
    judge(&server, &json!({"text": "hate=0.7", "model": "beta-3-haiku"})).await;
    assert_eq!((counts(&server, "double").await, counts(&server, "other").await), ([0, 3, 0], [1, 1, 0]));
    // Identifiers that share a classifier share what it said.
    let server = self::server();
    for model in ["alpha-4o-mini", "beta-3-haiku"] {
        judge(&server, &json!({"text": "hate=0.7", "model": model})).await;
    }
    assert_eq!(counts(&server, "double").await, [1, 1, 0]);
}

#[tokio::test]
async fn every_operation_profits() {
    let server = server();
    let text = "The meeting was moved to Friday.";
    judge(&server, &json!({"text": text})).await;
    assert_eq!(counts(&server, "double").await, [0, 1, 0]);
    let input = json!([text, "hate=0.8", text, "hate=0.8"]);
    let answer = server.post(MODERATIONS, &json!({"input": input})).await.json();
    let hates: Vec<&Value> =
        answer["results"].as_array().unwrap().iter().map(|result| &result["category_scores"]["hate"]).collect();
    assert_eq!(hates, [0.0, 0.8, 0.0, 0.8]);
    assert_eq!(counts(&server, "double").await, [3, 2, 0]);
    // Text and answers of the second time are those of the first.
    for path in [PRISMS, SUNSHINES] {
        let first = server.post(path, &json!({"text": text})).await;
        let [hits, misses, _] = counts(&server, "double").await;
        let second = server.post(path, &json!({"text": text})).await;
        assert_eq!(first.text(), second.text());
        let [more_hits, as_many_misses, _] = counts(&server, "double").await;
        assert!(more_hits > hits && as_many_misses == misses, "{path}");
    }
    let image = json!({"image": encoded(&line(RED, RED))});
    let first = server.post(GUARD_IMAGE, &image).await;
    let [_, misses, _] = counts(&server, "double").await;
    assert_eq!(server.post(GUARD_IMAGE, &image).await.text(), first.text());
    assert_eq!(first.json()["category_scores"]["hate"], 0.9);
    assert_eq!(counts(&server, "double").await[1], misses);
}

#[tokio::test]
async fn texts_under_way_at_the_same_time_share_one_inference() {
    let server = server();
    let body = json!({"text": "reader:slow hate=0.6"});
    let answers = futures_util::future::join_all((0..5).map(|_| server.post(GUARD_TEXT, &body))).await;
    for answer in &answers {
        answer.assert_ok();
        assert_eq!(answer.json()["category_scores"]["hate"], 0.6);
    }
    assert_eq!(counts(&server, "double").await, [4, 1, 0]);
    assert_eq!(server.metrics.model("double", "text").batch_size.get_sample_count(), 1);
}

#[tokio::test]
async fn a_failure_is_not_remembered() {
    let server = server();
    for _ in 0..2 {
        server.post(GUARD_TEXT, &json!({"text": "reader:fail"})).await.assert_error(500, "internal_error");
    }
    assert_eq!(counts(&server, "double").await, [0, 2, 0]);
    let impatient = Setup { timeout: SLOW / 4, ..remembering(1000, Duration::from_mins(1)) };
    let server = Server::with(impatient);
    server.post(GUARD_TEXT, &json!({"text": "reader:slow"})).await.assert_error(500, "deadline_exceeded");
    assert_eq!(counts(&server, "double").await, [0, 1, 0]);
}

#[tokio::test]
async fn limits_count_answers_from_memory_too() {
    let limit = UsageLimit { per_minute: 1, burst: 2 };
    let server = Server::with(Setup { limit, ..remembering(1000, Duration::from_mins(1)) });
    let body = json!({"text": "A quiet day."});
    judge(&server, &body).await;
    judge(&server, &body).await;
    server.post(GUARD_TEXT, &body).await.assert_error(429, "rate_limit_exceeded");
}

#[tokio::test]
async fn what_is_old_is_asked_again_and_let_go() {
    let age = Duration::from_millis(300);
    let server = Server::with(remembering(1000, age));
    let body = json!({"text": "A quiet day."});
    judge(&server, &body).await;
    tokio::time::sleep(age + Duration::from_millis(100)).await;
    judge(&server, &body).await;
    // Given up for its age, which is no eviction.
    server.services.forget_expired();
    assert_eq!(counts(&server, "double").await, [0, 2, 0]);
}

#[tokio::test]
async fn a_full_cache_gives_up_what_was_asked_for_longest_ago() {
    let server = Server::with(remembering(10, Duration::from_mins(1)));
    for number in 0..50 {
        judge(&server, &json!({"text": format!("text {number}")})).await;
        server.services.forget_expired();
    }
    assert_eq!(counts(&server, "double").await, [0, 50, 40]);
    judge(&server, &json!({"text": "text 49"})).await;
    judge(&server, &json!({"text": "text 0"})).await;
    let [hits, misses, _] = counts(&server, "double").await;
    assert_eq!((hits, misses), (1, 51));
}

#[tokio::test]
async fn switched_off_every_text_is_classified() {
    let server = Server::new();
    for _ in 0..3 {
        judge(&server, &json!({"text": "A quiet day."})).await;
    }
    assert_eq!(counts(&server, "double").await, [0, 0, 0]);
    assert_eq!(server.metrics.model("double", "text").batch_size.get_sample_count(), 3);
}

#[tokio::test]
async fn a_canary_asks_the_model_and_leaves_nothing_in_memory() {
    let server = server();
    server.get("/readyz").await.assert_ok();
    assert_eq!(server.metrics.model("double", "text").batch_size.get_sample_count(), 1);
    assert_eq!(counts(&server, "double").await, [0, 0, 0]);
    judge(&server, &json!({"text": "ready"})).await;
    assert_eq!(counts(&server, "double").await, [0, 1, 0]);
}
