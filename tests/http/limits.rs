//! Usage limits, full queues, deadlines.

use std::{sync::Arc, time::Duration};

use axum::http::Method;
use dichroic::{
    access::{Caller, Limiter, keys::NewKey, limits::Decision},
    domain::UsageLimit,
};
use serde_json::json;

use crate::support::{
    GUARD_IMAGE, GUARD_TEXT, OPERATIONS, PRISMS, Server, Setup, bare, doubles::SLOW, post, post_as, sound,
};

const THREE: UsageLimit = UsageLimit { per_minute: 6, burst: 3 };

#[tokio::test]
async fn every_authenticated_answer_says_what_is_left() {
    let server = Server::limited(THREE);
    for (body, status, left) in [
        (sound(GUARD_TEXT), 200, 2),
        (json!({"text": ""}), 400, 1),
        (json!({"text": "a", "model": "delta-3.1"}), 501, 0),
    ] {
        let answer = server.post(GUARD_TEXT, &body).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit-policy"), Some("\"key\";q=6;w=60"));
        let reset = (3 - left) * 10;
        let shown = answer.header("ratelimit").unwrap();
        assert_eq!(shown, format!("\"key\";r={left};t={reset}"));
        assert_eq!(answer.header("retry-after"), None);
    }
    let refused = server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await;
    refused.assert_error(429, "rate_limit_exceeded");
    assert_eq!(refused.header("ratelimit-policy"), Some("\"key\";q=6;w=60"));
    let wait = refused.header("retry-after").unwrap();
    let wait: u32 = wait.parse().unwrap();
    assert!((9..=10).contains(&wait), "{wait}");
    // As ever: when all three are there again.
    assert_eq!(refused.header("ratelimit").unwrap(), format!("\"key\";r=0;t={}", wait + 20));
    assert_eq!(server.metrics.rejected.with_label_values(&["rate_limit_exceeded"]).get(), 1);
}

#[tokio::test]
async fn the_default_limit_is_600_a_minute_with_a_burst_of_60() {
    let server = Server::limited(UsageLimit::DEFAULT);
    let answer = server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await;
    assert_eq!(answer.header("ratelimit-policy"), Some("\"key\";q=600;w=60"));
    assert_eq!(answer.header("ratelimit"), Some("\"key\";r=59;t=1"));
}

#[tokio::test]
async fn one_limit_for_all_operations_and_one_for_each_key() {
    let server = Server::limited(THREE);
    for path in &OPERATIONS[..3] {
        server.post(path, &sound(path)).await.assert_ok();
    }
    for path in OPERATIONS {
        server.post(path, &sound(path)).await.assert_error(429, "rate_limit_exceeded");
    }
    let own = server.issue(NewKey { limit: Some(UsageLimit { per_minute: 60, burst: 1 }), ..NewKey::default() });
    let answer = server.send(post_as(&own, GUARD_TEXT, &sound(GUARD_TEXT))).await;
    answer.assert_ok();
    assert_eq!(answer.header("ratelimit-policy"), Some("\"key\";q=60;w=60"));
    assert_eq!(answer.header("ratelimit"), Some("\"key\";r=0;t=1"));
}

#[tokio::test]
async fn what_is_refused_before_the_limit_takes_nothing() {
    let server = Server::limited(THREE);
    for _ in 0..10 {
        server.send(post_as("wrong", GUARD_TEXT, &sound(GUARD_TEXT))).await.assert_error(401, "invalid_api_key");
        server.send(bare(Method::GET, GUARD_TEXT)).await.assert_error(405, "method_not_allowed");
        server.send(post("/v1/other", "{}")).await.assert_error(404, "not_found");
    }
    let answer = server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await;
    assert_eq!(answer.header("ratelimit"), Some("\"key\";r=2;t=10"));
}

#[tokio::test]
async fn an_unlimited_key_has_no_limit_headers() {
    let server = Server::limited(UsageLimit { per_minute: 0, burst: 1 });
    for _ in 0..5 {
        let answer = server.post(GUARD_TEXT, &sound(GUARD_TEXT)).await;
        answer.assert_ok();
        assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
    }
}

#[tokio::test]
async fn a_full_queue_is_overloaded() {
    let limit = UsageLimit { burst: 4, ..THREE };
    let server = Server::with(Setup { queue: 0, image_queue: 0, limit, ..Setup::default() });
    for path in &OPERATIONS[1..] {
        let answer = server.post(path, &sound(path)).await;
        answer.assert_error(429, "overloaded");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(answer.header("ratelimit").is_some());
    }
    assert_eq!(server.metrics.rejected.with_label_values(&["overloaded"]).get(), 4);
}

#[tokio::test]
async fn a_queue_that_fills_up_refuses_the_surplus_and_answers_the_rest() {
    // Two texts, each as written and as it reads.
    let server = Arc::new(Server::with(Setup { queue: 4, ..Setup::default() }));
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.post(GUARD_TEXT, &json!({"text": "reader:slow hate=0.7"})).await })
        })
        .collect();
    let (mut answered, mut refused) = (0, 0);
    for call in calls {
        let answer = call.await.unwrap();
        if answer.status == 200 {
            assert_eq!(answer.json()["category_scores"]["hate"], 0.7);
            answered += 1;
        } else {
            answer.assert_error(429, "overloaded");
            refused += 1;
        }
    }
    assert!(answered >= 2 && refused >= 1, "{answered} answered, {refused} refused");
}

#[tokio::test]
async fn the_deadline_is_a_500() {
    let server = Server::with(Setup { timeout: SLOW / 4, ..Setup::default() });
    for path in [GUARD_TEXT, PRISMS] {
        let start = std::time::Instant::now();
        let answer = server.post(path, &json!({"text": "reader:slow"})).await;
        answer.assert_error(500, "deadline_exceeded");
        assert!(start.elapsed() < SLOW, "{:?}", start.elapsed());
        tokio::time::sleep(SLOW).await;
    }
    let server = Server::with(Setup { timeout: Duration::ZERO, ..Setup::default() });
    server.post(GUARD_IMAGE, &sound(GUARD_IMAGE)).await.assert_error(500, "deadline_exceeded");
}

/// Stands for a mistake anywhere on the way of a request.
struct Broken;

impl Limiter for Broken {
    fn check<'a>(&'a self, _: &'a Caller) -> Decision<'a> {
        Box::pin(async { panic!("quoting the caller: my secret text") })
    }
}

#[tokio::test]
async fn a_panic_is_one_failed_request() {
    let server = Server::with(Setup { limiter: Arc::new(Broken), ..Setup::default() });
    for path in OPERATIONS {
        let answer = server.post(path, &sound(path)).await;
        answer.assert_error(500, "internal_error");
        assert!(!answer.text().contains("secret"));
    }
    server.get("/livez").await.assert_ok();
    assert_eq!(server.metrics.in_flight.get(), 0);
}
