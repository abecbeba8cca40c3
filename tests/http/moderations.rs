//! `POST /v1/moderations`

use std::time::Duration;

use dichroic::config::{Config, ServeFlags};
use image::ImageFormat;
use serde_json::{Value, json};

use crate::support::{
    Answer, GUARD_TEXT, MODERATIONS, Server, Setup,
    doubles::SLOW,
    pictures::{BLACK, MAGENTA, RED, WHITE, encoded, line, picture, png},
    post,
};

async fn ask(server: &Server, input: impl Into<Value>) -> Answer {
    server.post(MODERATIONS, &json!({"input": input.into()})).await
}

/// The results for an input that is accepted.
async fn results(server: &Server, input: impl Into<Value>) -> Vec<Value> {
    let answer = ask(server, input).await;
    answer.assert_ok();
    answer.json()["results"].as_array().unwrap().clone()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image(bytes: &[u8]) -> Value {
    image_url(&format!("data:image/png;base64,{}", encoded(bytes)))
}

fn image_url(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

#[tokio::test]
async fn the_answer_has_the_form_of_openai() {
    let server = Server::new();
    let answer = ask(&server, "hate=0.9 self_harm=0.5").await;
    answer.assert_ok();
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let unique = uuid::Uuid::parse_str(id.strip_prefix("modr-").unwrap()).unwrap();
    assert_eq!((id.len(), unique.get_version_num()), (37, 7));
    let rest = concat!(
        r#","model":"alpha-4o-mini","results":[{"flagged":true,"#,
        r#""categories":{"sexual":false,"hate":true,"self-harm":true,"violence":false,"defamation":false},"#,
        r#""category_scores":{"sexual":0.0,"hate":0.9,"self-harm":0.5,"violence":0.0,"defamation":0.0},"#,
        r#""category_applied_input_types":{"sexual":["text"],"hate":["text"],"self-harm":["text"],"#,
        r#""violence":["text"],"defamation":["text"]}}]}"#,
    );
    assert_eq!(answer.text(), format!(r#"{{"id":"{id}"{rest}"#));
    assert_ne!(ask(&server, "a").await.json()["id"], ask(&server, "a").await.json()["id"]);
}

#[tokio::test]
async fn each_string_has_a_result_in_its_place() {
    let server = Server::new();
    let long = format!("{} violence=0.7", "All is well. ".repeat(200));
    let results = results(&server, vec!["hate=0.9", "A quiet day.", &long, "sexual=0.6"]).await;
    let flagged: Vec<&Value> = results.iter().map(|result| &result["flagged"]).collect();
    assert_eq!(flagged, [true, false, true, true]);
    assert_eq!(results[0]["category_scores"]["hate"], 0.9);
    assert_eq!(results[1]["category_scores"]["hate"], 0.0);
    assert_eq!(results[2]["category_scores"]["violence"], 0.7);
    assert_eq!(results[3]["category_scores"]["sexual"], 0.6);
}

#[tokio::test]
async fn parts_are_one_input_and_the_highest_score_counts() {
    let server = Server::new();
    let grey = png([128, 128, 128]);
    let parts = vec![text("hate=0.3 sexual=0.2"), image(&grey), text("hate=0.8"), image(&png(BLACK))];
    let results = results(&server, parts).await;
    assert_eq!(results.len(), 1);
    assert_eq!(
        results[0]["category_scores"],
        json!({
            "sexual": 0.502, "hate": 0.8, "self-harm": 0.0, "violence": 0.0, "defamation": 0.0,
        })
    );
    assert_eq!(
        results[0]["category_applied_input_types"],
        json!({
            "sexual": ["text", "image"], "hate": ["text", "image"], "self-harm": ["text", "image"],
            "violence": ["text", "image"], "defamation": ["text", "image"],
        })
    );
}

#[tokio::test]
async fn text_in_a_picture_counts_and_is_named() {
    let found = results(&Server::new(), vec![text("self_harm=0.2"), image(&line(RED, RED))]).await;
    let scores = &found[0]["category_scores"];
    assert_eq!((&scores["hate"], &scores["self-harm"]), (&json!(0.9), &json!(0.2)));
    let found = results(&Server::new(), vec![image(&png(BLACK))]).await;
    let types = found[0]["category_applied_input_types"].as_object().unwrap();
    // Looked for, though there is nothing to read.
    assert!(types.len() == 5 && types.values().all(|kinds| *kinds == json!(["image"])), "{types:?}");
}

#[tokio::test]
async fn what_was_not_looked_for_in_a_picture_names_no_picture() {
    let server = Server::with(Setup { reads: false, ..Setup::default() });
    let results = results(&server, vec![image(&png(WHITE))]).await;
    assert_eq!(results[0]["categories"]["sexual"], true);
    assert_eq!(
        results[0]["category_applied_input_types"],
        json!({
            "sexual": ["image"], "hate": [], "self-harm": [], "violence": [], "defamation": [],
        })
    );
}

#[tokio::test]
async fn what_heads_look_for_in_a_picture_names_it() {
    let server = Server::with(Setup { reads: false, heads: true, ..Setup::default() });
    let results = results(&server, vec![image(&png(BLACK))]).await;
    assert_eq!(
        results[0]["category_applied_input_types"],
        json!({
            "sexual": ["image"], "hate": ["image"], "self-harm": [], "violence": ["image"], "defamation": [],
        })
    );
}

#[tokio::test]
async fn a_text_is_judged_as_text_moderation_judges_it() {
    let server = Server::new();
    let words = "sexual=0.31 hate=0.1 self_harm=0.29 violence=0.3 defamation=1";
    let body = json!({"input": words, "text": words, "score_threshold": 0.3});
    let here = server.post(MODERATIONS, &body).await.json();
    let there = server.post(GUARD_TEXT, &body).await.json();
    let renamed: Value = serde_json::from_str(&there.to_string().replace("self_harm", "self-harm")).unwrap();
    for field in ["flagged", "categories", "category_scores"] {
        assert_eq!(here["results"][0][field], renamed[field]);
    }
}

#[tokio::test]
async fn the_names_of_openai_stand_for_the_default() {
    let server = Server::new();
    for (asked, used) in [
        (json!("omni-moderation-latest"), "alpha-4o-mini"),
        (json!("omni-moderation-2024-09-26"), "alpha-4o-mini"),
        (json!("text-moderation-latest"), "alpha-4o-mini"),
        (json!("text-moderation-stable"), "alpha-4o-mini"),
        (Value::Null, "alpha-4o-mini"),
        (json!("alpha-4o-mini"), "alpha-4o-mini"),
        (json!("beta-3-haiku"), "beta-3-haiku"),
    ] {
        let answer = server.post(MODERATIONS, &json!({"input": "a", "model": asked})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["model"], used, "{asked}");
    }
    for other in ["omni-moderation", "Omni-Moderation-Latest", "gpt-4o"] {
        let answer = server.post(MODERATIONS, &json!({"input": "a", "model": other})).await;
        answer.assert_field_error("unknown_model", "model");
    }
    // Here only: elsewhere nobody sends them.
    let answer = server.post(GUARD_TEXT, &json!({"text": "a", "model": "omni-moderation-latest"})).await;
    answer.assert_field_error("unknown_model", "model");
}

#[tokio::test]
async fn what_is_no_input_is_refused_by_name() {
    let server = Server::new();
    for (input, code) in [
        (json!([]), "input_empty"),
        (json!(vec!["a"; 33]), "too_many_inputs"),
        (json!(vec![text("a"); 33]), "too_many_inputs"),
        (json!(7), "invalid_type"),
        (json!({"type": "text", "text": "a"}), "invalid_type"),
        (json!(["a", 1]), "invalid_type"),
        (json!([[1, 2], [3]]), "invalid_type"),
        (json!(["a", text("b")]), "invalid_type"),
        (json!([text("b"), "a"]), "invalid_type"),
        (json!([{"type": "input_audio"}]), "invalid_input_part"),
        (json!([{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]), "invalid_input_part"),
        (json!(" \n"), "text_blank"),
        (json!(["a", ""]), "text_blank"),
        (json!([text("\u{3000}")]), "text_blank"),
    ] {
        ask(&server, input).await.assert_field_error(code, "input");
    }
    let nested = format!(r#"{{"input":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    server.send(post(MODERATIONS, nested)).await.assert_error(400, "invalid_json");
}

#[tokio::test]
async fn an_address_is_not_fetched() {
    let server = Server::new();
    for url in ["https://example.com/a.png", "http://127.0.0.1/a.png", "file:///etc/passwd", "//a", "a.png", "", "AAAA"]
    {
        let answer = ask(&server, vec![text("a"), image_url(url)]).await;
        answer.assert_field_error("unsupported_image_url", "input");
    }
}

#[tokio::test]
async fn a_picture_that_cannot_be_judged_is_a_complaint_about_the_input() {
    let server = Server::new();
    let whole = picture(WHITE, ImageFormat::Png);
    for (part, code) in [
        (image_url("data:image/png;base64,!"), "invalid_base64"),
        (image_url("data:image/png;base64,"), "invalid_base64"),
        (image_url("data:image/png,abc"), "invalid_base64"),
        (image(b"hello, this is text"), "unsupported_image"),
        (image(&whole[..whole.len() - 30]), "corrupt_image"),
        (image(&vec![0; (10 << 20) + 1]), "image_too_large"),
        (image(&std::fs::read("tests/fixtures/images/bomb-side.png").unwrap()), "image_too_large"),
    ] {
        ask(&server, vec![image(&png(BLACK)), part]).await.assert_field_error(code, "input");
    }
    ask(&server, vec![image(&png(MAGENTA))]).await.assert_error(500, "internal_error");
    ask(&server, vec![image(&png(BLACK))]).await.assert_ok();
}

#[tokio::test]
async fn characters_are_counted_over_all_texts() {
    let server = Server::new();
    let half = "\u{5b57} ".repeat(4_000);
    for input in [json!([half, half]), json!([text(&half), image(&png(BLACK)), text(&half)])] {
        ask(&server, input).await.assert_ok();
    }
    for input in [
        json!("a".repeat(16_001)),
        json!([half, half, "a"]),
        json!([text(&half), text(&half), image(&png(BLACK)), text("a")]),
    ] {
        ask(&server, input).await.assert_field_error("text_too_long", "input");
    }
}

/// The longest input there is, in windows: few signs have longer names, and the tokenizer of the doubles spells each
/// name letter by letter. No tokenizer of a model needs half as many.
fn longest() -> String {
    format!("{} hate=0.9", "\u{1f502}".repeat(15_991))
}

#[tokio::test]
async fn the_longest_input_passes_a_queue_of_any_size() {
    let default = Config::from_sources(None, [], &ServeFlags::default()).unwrap().text_queue;
    for queue in [default, 1] {
        let server = Server::with(Setup { queue, timeout: Duration::from_mins(10), ..Setup::default() });
        let results = results(&server, longest()).await;
        assert_eq!(results[0]["category_scores"]["hate"], 0.9, "{queue}");
    }
}

#[tokio::test]
async fn a_long_input_leaves_room_in_the_queue() {
    let server = Server::new();
    // About 250 windows, a slow one among every 64.
    let slow = format!("reader:slow {}", "\u{5b57}".repeat(3_988)).repeat(4);
    let router = server.router.clone();
    let long = tokio::spawn(tower::ServiceExt::oneshot(router, post(MODERATIONS, json!({"input": slow}).to_string())));
    tokio::time::sleep(SLOW / 4).await;
    server.post(GUARD_TEXT, &json!({"text": "hello"})).await.assert_ok();
    assert!(!long.is_finished(), "the short text waited behind all of the long one");
    assert_eq!(long.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn thirty_two_of_everything() {
    let server = Server::new();
    let texts: Vec<String> = (0..32).map(|number| format!("hate=0.{number:02}")).collect();
    let found = results(&server, texts).await;
    assert_eq!(found.len(), 32);
    for (number, result) in (0_u32..).zip(&found) {
        assert_eq!(result["category_scores"]["hate"], f64::from(number) / 100.0);
    }
    let pictures: Vec<Value> = (0..32).map(|number| image(&png([number; 3]))).collect();
    let found = results(&server, pictures).await;
    assert_eq!((found.len(), &found[0]["category_scores"]["sexual"]), (1, &json!(0.1216)));
}

#[tokio::test]
async fn pictures_take_one_place_in_the_queue_after_another() {
    let server = Server::with(Setup { image_queue: 1, ..Setup::default() });
    ask(&server, vec![image(&png(BLACK)); 5]).await.assert_ok();
    let server = Server::with(Setup { image_queue: 0, ..Setup::default() });
    let refused = ask(&server, vec![text("a"), image(&png(BLACK))]).await;
    refused.assert_error(429, "overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    ask(&server, "a").await.assert_ok();
}

#[tokio::test]
async fn a_model_needs_what_the_input_needs() {
    let server = Server::new();
    let with = |input: Value, model: &str| json!({"input": input, "model": model});
    // The second model has no image classifier.
    server.post(MODERATIONS, &with(json!([text("a")]), "beta-3-haiku")).await.assert_ok();
    for (input, model) in [
        (json!([image(&png(BLACK))]), "beta-3-haiku"),
        (json!([text("reader:fail"), image(&png(BLACK))]), "beta-3-haiku"),
        (json!("a"), "gamma-1.5-flash"),
    ] {
        let answer = server.post(MODERATIONS, &with(input, model)).await;
        answer.assert_error(501, "model_not_installed");
        assert_eq!(answer.json()["error"]["param"], "model");
    }
}

#[tokio::test]
async fn one_deadline_holds_for_all_parts() {
    let server = Server::with(Setup { timeout: SLOW / 4, ..Setup::default() });
    let answer = ask(&server, vec![text("reader:slow"), image(&png(BLACK))]).await;
    answer.assert_error(500, "deadline_exceeded");
}

#[tokio::test]
async fn findings_are_counted_for_each_result() {
    let server = Server::new();
    ask(&server, vec!["hate=0.9", "hate=0.8", "a"]).await.assert_ok();
    ask(&server, vec![text("hate=0.9"), text("hate=0.8"), image(&png(WHITE))]).await.assert_ok();
    let counted = |category| server.metrics.flagged.with_label_values(&["moderation", category]).get();
    assert_eq!((counted("hate"), counted("sexual"), counted("violence")), (3, 1, 0));
    let requests = server.metrics.requests.with_label_values(&["moderation", "alpha-4o-mini", "200"]).get();
    assert_eq!(requests, 2);
}
