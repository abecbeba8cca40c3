//! Text classifiers with company: one beside them, one for other languages.

use std::time::Duration;

use dichroic::{engine::batch::BUDGETS, service::ScoreCacheOptions};
use serde_json::json;

use crate::support::{Answer, GUARD_TEXT, MODERATIONS, PRISMS, Server, Setup};

const NAMES: [&str; 3] = ["other", "second", "third"];

fn server() -> Server {
    Server::with(Setup { ensemble: true, ..Setup::default() })
}

async fn ask(server: &Server, text: &str) -> Answer {
    server.post(GUARD_TEXT, &json!({"model": "beta-3-haiku", "text": text})).await
}

async fn hate(server: &Server, text: &str) -> f64 {
    let answer = ask(server, text).await;
    answer.assert_ok();
    answer.json()["category_scores"]["hate"].as_f64().unwrap()
}

/// How many batches each of them has run.
async fn batches(server: &Server) -> [u64; 3] {
    let metrics = server.get("/metrics").await;
    NAMES.map(|model| {
        let name = format!("dichroic_batch_size_count{{component=\"text\",model=\"{model}\"}} ");
        metrics.text().lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    })
}

#[tokio::test]
async fn english_is_judged_by_the_mean_of_the_log_odds() {
    let server = server();
    for (scores, expected) in [
        // Odds of 9 and 1, whose geometric mean is 3.
        ("hate=0.9 second:hate=0.5", 0.75),
        ("hate=0.5 second:hate=0.9", 0.75),
        // One against one.
        ("hate=0.2 second:hate=0.8", 0.5),
        // No more than 9,999 to 1 counts, either way.
        ("hate=1 second:hate=0", 0.5),
        ("hate=0.9", 0.0291),
        ("third:hate=0.9", 0.0001),
    ] {
        let found = hate(&server, &format!("I think that this is {scores}")).await;
        assert!((found - expected).abs() < 1e-9, "{scores}: {found}");
    }
}

#[tokio::test]
async fn of_a_long_text_they_say_together_what_is_in_one_place() {
    let server = server();
    let between = " and we talked about it for a while".repeat(30);
    let texts = [
        format!("I think that this is hate=0.9{between} and that this is second:hate=0.9"),
        format!("I think that this is so{between} and that this is hate=0.9 second:hate=0.9"),
        // What lies between the letters is longer than a piece.
        format!("I think that this is ha{0}te=.9 sec{0}ond:hate=.9", "\u{200b}".repeat(600)),
    ];
    let answer = server.post(MODERATIONS, &json!({"model": "beta-3-haiku", "input": texts})).await;
    answer.assert_ok();
    let answer = answer.json();
    for (place, expected) in [0.0291, 0.9, 0.9].into_iter().enumerate() {
        let found = answer["results"][place]["category_scores"]["hate"].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-4, "{}: {found}", texts[place]);
    }
}

#[tokio::test]
async fn other_languages_are_judged_by_who_reads_them_also_in_one_request() {
    let server = server();
    let (english, german) = ("I think that this is", "Ich glaube, das hier ist wirklich gar nicht so gemeint gewesen");
    let texts = [
        format!("{german} third:hate=0.7 hate=0.1 second:hate=0.2"),
        format!("{english} hate=0.9 second:hate=0.5"),
        format!("{german} hate=0.9 second:hate=0.9"),
        format!("{english} hate=1 second:hate=1"),
        "私はこれを third:hate=0.6 だと思います".into(),
    ];
    let answer = server.post(MODERATIONS, &json!({"model": "beta-3-haiku", "input": texts})).await;
    answer.assert_ok();
    let answer = answer.json();
    let found = [0, 1, 2, 3, 4].map(|place| &answer["results"][place]["category_scores"]["hate"]);
    assert_eq!(found.map(ToString::to_string), ["0.7", "0.75", "0.0", "0.9999", "0.6"]);
    assert_eq!(batches(&server).await, [1, 1, 1]);

    // So long that another thread looks at it.
    let long = format!("{} third:hate=0.7", "Das hier ist ein sehr langer Text, in dem nichts steht. ".repeat(100));
    let answer = server.post(MODERATIONS, &json!({"model": "beta-3-haiku", "input": long})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["results"][0]["category_scores"]["hate"], 0.7);
}

#[tokio::test]
async fn without_one_of_them_there_is_no_answer() {
    let server = server();
    for text in
        ["This is hate=0.9 and second:reader:fail", "This is hate=0.9 and reader:fail", "Das ist es third:reader:fail"]
    {
        ask(&server, text).await.assert_error(500, "internal_error");
    }
    // Who is not asked cannot fail.
    hate(&server, "This is hate=0.9 and third:reader:fail").await;
    let hurried = Server::with(Setup { ensemble: true, timeout: Duration::from_millis(100), ..Setup::default() });
    ask(&hurried, "This is for second:reader:slow").await.assert_error(500, "deadline_exceeded");
}

#[tokio::test]
async fn a_foreign_sentence_in_an_english_text_is_judged_by_who_reads_it_too() {
    let server = server();
    let german = "Ich glaube, das ist nicht so gemeint";
    let english = "Thank you for your letter of last week, which we have read with care and will answer soon. I think that this is";
    for (text, expected) in [
        // The higher counts: that of both who read English, or of the one for other languages.
        (format!("{english} hate=0.5 second:hate=0.5\n{german} third:hate=0.9"), 0.9),
        (format!("{english} hate=0.9 second:hate=0.5\n{german} third:hate=0.1"), 0.75),
        // Nobody asks it of English alone.
        (format!("{english} hate=0.5 second:hate=0.5\n{english} third:hate=0.9"), 0.5),
    ] {
        let found = hate(&server, &text).await;
        assert!((found - expected).abs() < 1e-4, "{text}: {found}");
    }
    assert_eq!(batches(&server).await, [3, 3, 2]);
    // One that judges alone has it asked as well.
    let text = format!("{english} hate=0.1\n{german} third:hate=0.9");
    let answer = server.post(GUARD_TEXT, &json!({"model": "gamma-1.5-flash", "text": text})).await;
    assert!((answer.json()["category_scores"]["hate"].as_f64().unwrap() - 0.9).abs() < 1e-4);
}

#[tokio::test]
async fn who_has_not_worked_of_late_gets_a_canary() {
    let server = server();
    hate(&server, "I think that this is a quiet day").await;
    assert_eq!(batches(&server).await, [1, 1, 0]);
    server.get("/readyz").await.assert_ok();
    assert_eq!(batches(&server).await, [1, 1, 1]);
}

#[tokio::test]
async fn each_opinion_has_its_own_weight() {
    let server = Server::with(Setup { ensemble: true, weights: [3.0, 1.0], ..Setup::default() });
    // Odds of 9 and three times even ones: 9 to the power of a quarter; the other way round of three quarters.
    for (scores, odds) in
        [("hate=0.5 second:hate=0.9", 9.0_f64.powf(0.25)), ("hate=0.9 second:hate=0.5", 9.0_f64.powf(0.75))]
    {
        let found = hate(&server, &format!("I think that this is {scores}")).await;
        assert!((found - odds / (1.0 + odds)).abs() < 1e-4, "{scores}: {found}");
    }
}

#[tokio::test]
async fn their_answer_is_remembered_as_one_and_each_is_measured() {
    let cache = Some(ScoreCacheOptions { entries: 10, age: Duration::from_mins(1) });
    let server = Server::with(Setup { ensemble: true, cache, ..Setup::default() });
    for _ in 0..3 {
        let found = hate(&server, "I think that this is hate=0.9 second:hate=0.5").await;
        assert!((found - 0.75).abs() < 1e-9, "{found}");
    }
    assert_eq!(batches(&server).await, [1, 1, 0]);

    server.services.calibrate().await;
    let metrics = server.get("/metrics").await;
    for model in NAMES {
        let name = format!("dichroic_batch_tokens{{component=\"text\",model=\"{model}\"}} ");
        let told = metrics.text().lines().find_map(|line| line.strip_prefix(&name)).unwrap();
        assert!(BUDGETS.contains(&told.parse().unwrap()), "{told}");
    }
}

#[tokio::test]
async fn doubts_alone_are_read_again() {
    let server = Server::with(Setup { ensemble: true, from: Some(0.25), ..Setup::default() });
    let german = "Das hier ist ein Text, den hier niemand sonst versteht:";
    let english = "Thank you for your letter of last week, which we have read with care and will answer soon. I think that this is";
    let texts = [
        // Nor is what the others do not read.
        format!("{german} hate=0.9 second:hate=0.9 third:hate=0.7"),
        // Plainly harmless: nobody else is asked.
        "I think that this is hate=0.2 second:hate=0.9".into(),
        // Any category makes them ask, and then all are judged anew.
        "I think that this is hate=0.5 second:hate=0.9".into(),
        format!("{english} hate=0.2 second:hate=0.9\n{german} third:hate=0.6"),
        "I think that this is violence=0.25 hate=0.2 second:hate=0.8".into(),
        format!("{english} hate=0.5 second:hate=0.5\n{german} third:hate=0.8"),
    ];
    let expected = [0.7, 0.2, 0.75, 0.6, 0.5, 0.8];
    let answer = server.post(MODERATIONS, &json!({"model": "beta-3-haiku", "input": texts})).await;
    answer.assert_ok();
    let answer = answer.json();
    for (place, expected) in expected.into_iter().enumerate() {
        let found = answer["results"][place]["category_scores"]["hate"].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-4, "{}: {found}", texts[place]);
    }
    let [other, second, third] = batches(&server).await;
    assert_eq!([other, second], [1, 1]);
    // Whole texts and foreign sentences of others, which may meet in the queue.
    assert!((1..=2).contains(&third), "{third}");
    let metrics = server.get("/metrics").await;
    let told = "dichroic_read_again_total{component=\"text\",model=\"other\"} 3";
    assert!(metrics.text().lines().any(|line| line == told), "{}", metrics.text());

    // Each alone, as in company.
    for (text, expected) in texts.iter().zip(expected) {
        let found = hate(&server, text).await;
        assert!((found - expected).abs() < 1e-4, "{text}: {found}");
    }
    // Without the second reader there is no answer to what needs one.
    ask(&server, "This is hate=0.3 and second:reader:fail").await.assert_error(500, "internal_error");
    hate(&server, "This is hate=0.2 and second:reader:fail").await;
}

/// Whether nothing can be expressed, by what `model` answers.
async fn inexpressible(server: &Server, model: &str, text: &str) -> bool {
    let answer = server.post(PRISMS, &json!({"model": model, "text": text})).await;
    answer.assert_ok();
    answer.json() == json!({"positive": "false", "negative": "false"})
}

#[tokio::test]
async fn whether_anything_can_be_expressed_is_told_by_all_who_look() {
    let server = server();
    for (model, scores, expected) in [
        // Both judge: the mean of their log-odds decides.
        ("beta-3-haiku", "special=0.8 second:special=0.7", true),
        ("beta-3-haiku", "special=0.4 second:special=0.9", true),
        ("beta-3-haiku", "special=0.8 second:special=0.1", false),
        ("beta-3-haiku", "special=0.8", false),
        ("beta-3-haiku", "special=0.4 second:special=0.4 third:special=0.99", false),
        // One judges, and the one for other languages is asked as well.
        ("gamma-1.5-flash", "special=0.8 third:special=0.7", true),
        ("gamma-1.5-flash", "special=0.4 third:special=0.9", true),
        ("gamma-1.5-flash", "special=0.8 third:special=0.1", false),
        ("gamma-1.5-flash", "special=1 third:special=0.1", true),
    ] {
        let found = inexpressible(&server, model, &format!("I think that this is {scores}")).await;
        assert_eq!(found, expected, "{model}: {scores}");
    }
    // Also where the others are asked for harm in cases of doubt alone.
    let server = Server::with(Setup { ensemble: true, from: Some(0.25), ..Setup::default() });
    for (scores, expected) in [
        ("special=0.8 second:special=0.7 third:special=0.5", true),
        ("special=0.8 second:special=0.1 third:special=0.5", false),
        ("special=0.4 second:special=0.5 third:special=0.9", true),
        // What is doubted is no less special for it: others are not asked twice.
        ("special=0.8 second:special=0.3 third:special=0.5 hate=0.4", true),
    ] {
        let found = inexpressible(&server, "beta-3-haiku", &format!("I think that this is {scores}")).await;
        assert_eq!(found, expected, "{scores}");
    }
    // Of one that reads more languages than the others.
    for (text, expected) in [
        ("I think that this is special=0.8 second:special=0.1", false),
        ("Das hier ist ein Text, den niemand sonst versteht: special=0.8 second:special=0.1", true),
    ] {
        assert_eq!(inexpressible(&server, "delta-3.1", text).await, expected, "{text}");
    }
}

#[tokio::test]
async fn a_second_look_is_for_short_texts_and_not_for_moderation() {
    let server = server();
    let looks = async || batches(&server).await[2];
    let text = "I think that this is special=0.9 third:special=0.05";
    server.post(GUARD_TEXT, &json!({"model": "gamma-1.5-flash", "text": text})).await.assert_ok();
    assert_eq!(looks().await, 0);
    assert!(!inexpressible(&server, "gamma-1.5-flash", text).await);
    assert_eq!(looks().await, 1);
    let long = format!("{} third:special=0.9", "I think that this is a long text. ".repeat(4));
    assert!(!inexpressible(&server, "gamma-1.5-flash", &long).await);
    assert_eq!(looks().await, 1);
    // Without the second one there is no answer.
    let failing = "I think that this is third:reader:fail";
    let answer = server.post(PRISMS, &json!({"model": "gamma-1.5-flash", "text": failing})).await;
    answer.assert_error(500, "internal_error");
}
