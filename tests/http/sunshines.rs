//! `POST /v1/sunshines/text`

use serde_json::json;

use crate::support::{PRISMS, SUNSHINES, Server, Setup};

#[tokio::test]
async fn a_reply_is_one_text() {
    let server = Server::new();
    let answer = server.post(SUNSHINES, &json!({"text": "ok"})).await;
    answer.assert_ok();
    assert_eq!(answer.text(), r#"{"text":"Well said in c characters."}"#);
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
async fn a_flagged_answer_is_made_again_and_a_good_one_is_given_if_there_is_one() {
    let server = Server::new();
    let mut given = 0;
    // The seeds of the second try come from the text, so some texts have luck and some have not, always the same.
    for number in 0..64 {
        let body = json!({"text": format!("scribe:torn {number:02}")});
        let answer = server.post(SUNSHINES, &body).await;
        if answer.status == 200 {
            assert_eq!(answer.json()["text"], "Well said in be characters.");
            given += 1;
        } else {
            answer.assert_error(500, "generation_rejected");
        }
        assert_eq!(server.post(SUNSHINES, &body).await.status, answer.status);
    }
    assert!((48..64).contains(&given), "{given} of 64; each has four tries at about a half");
    assert_eq!(server.metrics.regenerated.with_label_values(&["unfit"]).get(), 128);
}

#[tokio::test]
async fn a_long_text_gets_fewer_tries() {
    let server = Server::new();
    let mut given = 0;
    for number in 0..64 {
        let text = format!("scribe:torn {number:02} {}", "word ".repeat(32));
        assert!(text.chars().count() > 160);
        given += u32::from(server.post(SUNSHINES, &json!({"text": text})).await.status == 200);
    }
    assert!((40..=56).contains(&given), "{given} of 64; each has two tries at about a half");
}

#[tokio::test]
async fn an_answer_that_repeats_the_text_is_made_again_and_given_only_for_want_of_a_better_one() {
    let server = Server::new();
    let answer = server.post(SUNSHINES, &json!({"text": "scribe:echo"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["text"], "scribe:echo");
    assert_eq!(server.metrics.regenerated.with_label_values(&["copy"]).get(), 1);
    server.post(SUNSHINES, &json!({"text": "plain"})).await.assert_ok();
    assert_eq!(server.metrics.regenerated.with_label_values(&["copy"]).get(), 1, "a good answer is made once");
}

#[tokio::test]
async fn a_reply_that_is_glad_of_bad_news_is_begun_anew_as_regret() {
    let server = Server::new();
    for (text, reply, made_again) in [
        ("scribe:misread The news about my car is out and I have read it", "How lovely that it broke.", 0),
        ("scribe:misread There is bad news about my car and I have read it", "I'm sorry that it broke.", 1),
        // No mood was learned of other languages.
        ("scribe:misread bad news; das ist leider sehr schade für uns alle", "How lovely that it broke.", 1),
    ] {
        let answer = server.post(SUNSHINES, &json!({"text": text})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["text"], reply, "{text}");
        assert_eq!(server.metrics.regenerated.with_label_values(&["polarity"]).get(), made_again, "{text}");
    }
}

#[tokio::test]
async fn a_reply_that_a_judge_holds_for_wrong_is_begun_anew_by_the_mood_that_it_reads() {
    let server = Server::with(Setup { judged: true, ..Setup::default() });
    for (text, reply, made_again) in [
        ("scribe:misread The news about my car is out and I have read it", "How lovely that it broke.", 0),
        ("scribe:misread There is bad news about my car and I have read it", "I'm sorry that it broke.", 1),
        // It has learned of English texts alone.
        ("scribe:misread das ist leider sehr schade für uns alle", "How lovely that it broke.", 1),
    ] {
        let answer = server.post(SUNSHINES, &json!({"text": text})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["text"], reply, "{text}");
        assert_eq!(server.metrics.regenerated.with_label_values(&["judged"]).get(), made_again, "{text}");
    }
}

#[tokio::test]
async fn a_person_in_distress_gets_care_and_nothing_that_was_generated() {
    let server = Server::new();
    for score in ["0.2", "0.9"] {
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
    let answer = server.post(SUNSHINES, &json!({"text": "self_harm=0.19"})).await;
    assert!(answer.json()["text"].as_str().unwrap().starts_with("Well said"));
}
