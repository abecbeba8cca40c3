//! Probes and metrics.

use std::time::Duration;

use axum::http::Method;
use dichroic::{
    domain::{Device, UsageLimit},
    engine::batch::BUDGETS,
};
use serde_json::json;

use crate::support::{GUARD_IMAGE, GUARD_TEXT, Server, Setup, bare, doubles::SLOW, sound};

#[tokio::test]
async fn alive_also_while_stopping() {
    let server = Server::new();
    let answer = server.get("/livez").await;
    answer.assert_ok();
    assert_eq!(answer.text(), r#"{"status":"alive"}"#);
    server.lifecycle.soft().cancel();
    server.get("/livez").await.assert_ok();
}

#[tokio::test]
async fn ready_lists_every_component() {
    let server = Server::with(Setup { judged: true, ..Setup::default() });
    let answer = server.get("/readyz").await;
    answer.assert_ok();
    let answer = answer.json();
    assert_eq!(answer["status"], "ready");
    let rows: Vec<_> = answer["models"].as_array().unwrap().iter().collect();
    let names: Vec<_> =
        rows.iter().map(|row| (row["id"].as_str().unwrap(), row["component"].as_str().unwrap())).collect();
    assert_eq!(
        names,
        [
            ("alpha-4o-mini", "generator"),
            ("alpha-4o-mini", "text"),
            ("alpha-4o-mini", "image"),
            ("alpha-4o-mini", "ocr"),
            ("alpha-4o-mini", "judge"),
            ("beta-3-haiku", "text"),
        ]
    );
    for row in rows {
        assert_eq!(row["ready"], true);
        assert_eq!(row["sha256"].as_str().unwrap().len(), 64);
        assert_eq!(row["device"], "cpu");
    }
}

#[tokio::test]
async fn ready_tells_what_the_models_compute_on() {
    let server = Server::with(Setup { device: Device::Cuda, ..Setup::default() });
    let answer = server.get("/readyz").await.json();
    let devices: Vec<_> = answer["models"].as_array().unwrap().iter().map(|row| &row["device"]).collect();
    assert!(!devices.is_empty() && devices.iter().all(|device| **device == "cuda"), "{devices:?}");
}

#[tokio::test]
async fn a_model_that_has_just_worked_is_ready_without_a_canary() {
    let server = Server::new();
    server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    server.get("/readyz").await.assert_ok();
    let metrics = server.get("/metrics").await;
    for (component, batches) in [("text", 1), ("image", 1)] {
        // The text classifier's one batch is the request, the image classifier's one is its canary.
        let line = format!("dichroic_batch_size_count{{component=\"{component}\",model=\"double\"}} {batches}");
        assert!(metrics.text().lines().any(|found| found == line), "no {line} in\n{}", metrics.text());
    }
}

#[tokio::test]
async fn a_model_whose_answer_is_out_counts_as_not_ready() {
    let server = Server::new();
    let told = async || {
        let metrics = server.get("/metrics").await;
        let found = metrics.text().lines().find(|line| line.starts_with("dichroic_ready{component=\"text\","));
        found.map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    assert_eq!(told().await, None, "nobody has asked");
    let busy = json!({"text": "reader:slow"});
    tokio::join!(async { server.post(GUARD_TEXT, &busy).await.assert_ok() }, async {
        tokio::time::sleep(SLOW / 4).await;
        // A prober that does not wait long enough to be told.
        assert!(tokio::time::timeout(SLOW / 4, server.get("/readyz")).await.is_err());
        assert_eq!(told().await.as_deref(), Some("0"));
    });
    server.get("/readyz").await.assert_ok();
    assert_eq!(told().await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_full_queue_is_no_proof_of_a_model_that_has_never_answered() {
    let server = Server::with(Setup { queue: 3, ..Setup::default() });
    let said = |number: usize| json!({"text": format!("reader:slow {number}")});
    let first = said(0);
    tokio::join!(async { server.post(GUARD_TEXT, &first).await.assert_ok() }, async {
        tokio::time::sleep(SLOW / 8).await;
        // Behind the one that is worked on: the queue is full.
        let waiting: Vec<_> = (1..=3).map(said).collect();
        let waiting = waiting.iter().map(|said| server.post(GUARD_TEXT, said));
        let asked = async {
            tokio::time::sleep(SLOW / 8).await;
            server.post(GUARD_TEXT, &said(4)).await.assert_error(429, "overloaded");
            let answer = server.get("/readyz").await;
            assert_eq!(answer.status, 503);
            let parts = answer.json();
            let text = parts["models"].as_array().unwrap().iter().find(|row| row["component"] == "text").unwrap();
            assert_eq!(text["ready"], false);
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(waiting), asked);
        for answer in answers {
            answer.assert_ok();
        }
    });
    // It has moved.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.get("/readyz").await.assert_ok();
}

#[tokio::test]
async fn of_the_text_reader_only_what_has_not_worked_gets_a_canary() {
    let server = Server::new();
    // A picture without text is the detector's work alone.
    server.post(GUARD_IMAGE, &sound(GUARD_IMAGE)).await.assert_ok();
    server.get("/readyz").await.assert_ok();
    let metrics = server.get("/metrics").await;
    for component in ["detector", "orientation", "recogniser"] {
        let counted = format!("dichroic_batch_size_count{{component=\"{component}\",");
        let line = metrics.text().lines().find(|line| line.starts_with(&counted));
        assert!(line.is_some_and(|line| line.ends_with(" 1")), "{component}: {line:?}");
    }
}

#[tokio::test]
async fn the_measured_size_of_a_batch_is_told() {
    let server = Server::with(Setup { apart: true, ..Setup::default() });
    let told = |metrics: &str, model: &str| -> usize {
        let name = format!("dichroic_batch_tokens{{component=\"text\",model=\"{model}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    let before = server.get("/metrics").await;
    assert_eq!([told(before.text(), "double"), told(before.text(), "other")], [0, 0]);
    server.services.calibrate().await;
    let after = server.get("/metrics").await;
    for model in ["double", "other"] {
        assert!(BUDGETS.contains(&told(after.text(), model)), "{}", after.text());
    }
    server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
}

#[tokio::test]
async fn not_ready_while_stopping() {
    let server = Server::new();
    server.lifecycle.soft().cancel();
    let answer = server.get("/readyz").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["status"], "stopping");
    // Those who are still connected are served to the end.
    server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
}

#[tokio::test]
async fn metrics_are_in_the_text_format_and_count_by_closed_labels() {
    let server = Server::limited(UsageLimit { per_minute: 6, burst: 3 });
    server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await.assert_ok();
    server.post(GUARD_TEXT, &json!({"text": "", "model": "zebra"})).await.assert_error(400, "text_blank");
    server.send(bare(Method::POST, GUARD_TEXT)).await.assert_error(401, "missing_api_key");
    server.get("/v1/zebra").await.assert_error(404, "not_found");
    let answer = server.get("/metrics").await;
    answer.assert_ok();
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    for line in [
        r#"dichroic_requests_total{model="alpha-4o-mini",operation="guardian_text",status="200"} 1"#,
        r#"dichroic_requests_total{model="none",operation="guardian_text",status="400"} 1"#,
        r#"dichroic_requests_total{model="none",operation="guardian_text",status="401"} 1"#,
        r#"dichroic_request_duration_seconds_count{operation="guardian_text"} 3"#,
        r#"dichroic_rejected_total{reason="text_blank"} 1"#,
        r#"dichroic_rejected_total{reason="missing_api_key"} 1"#,
        // This very request.
        "dichroic_requests_in_flight 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    assert!(!text.contains("zebra"));
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
    };
    // A byte is a token to these doubles.
    assert!(value(r#"dichroic_input_tokens_total{component="text",model="double"}"#) >= 32.0);
    assert!(value("process_resident_memory_bytes") > 0.0);
}

#[tokio::test]
async fn refusals_that_alerts_are_about_are_at_zero_before_the_first() {
    let answer = Server::new().get("/metrics").await;
    let reasons = [
        "overloaded",
        "rate_limit_exceeded",
        "missing_api_key",
        "invalid_api_key",
        "insufficient_scope",
        "caller_left",
    ];
    for reason in reasons {
        let line = format!("dichroic_rejected_total{{reason=\"{reason}\"}} 0");
        assert!(answer.text().lines().any(|found| found == line), "no {line} in\n{}", answer.text());
    }
}

#[tokio::test]
async fn probes_need_no_key_and_are_not_limited() {
    let server = Server::with(Setup { limit: UsageLimit { per_minute: 1, burst: 1 }, ..Setup::default() });
    for path in ["/livez", "/readyz", "/metrics", "/openapi.json"] {
        for _ in 0..3 {
            let answer = server.get(path).await;
            answer.assert_ok();
            assert_eq!(answer.header("ratelimit"), None);
            let head = server.send(bare(Method::HEAD, path)).await;
            assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
        }
    }
}
