//! `POST /v1/prisms/text`

use std::time::Duration;

use dichroic::registry::manifest::Beforehand;
use serde_json::json;

use crate::support::{PRISMS, SUNSHINES, Server, Setup};

#[tokio::test]
async fn a_statement_is_said_two_ways() {
    let server = Server::new();
    let answer = server.post(PRISMS, &json!({"text": "It rains."})).await;
    answer.assert_ok();
    assert_eq!(
        answer.text(),
        r#"{"positive":"The bright side of j characters.","negative":"The dark side of j characters."}"#
    );
}

#[tokio::test]
async fn what_cannot_be_expressed_is_the_string_false_twice() {
    let server = Server::new();
    for text in ["ok", "yes, I agree", "asdf qwer", "a^2 + b^2 = c^2"] {
        let answer = server.post(PRISMS, &json!({"text": text})).await;
        answer.assert_ok();
        assert_eq!(answer.text(), r#"{"positive":"false","negative":"false"}"#, "{text}");
    }
}

#[tokio::test]
async fn false_is_never_the_answer_to_a_failure() {
    let server = Server::new();
    for text in ["scribe:empty", "scribe:harm"] {
        server.post(PRISMS, &json!({"text": text})).await.assert_error(500, "generation_rejected");
    }
    for text in ["scribe:panic", "reader:panic", "reader:fail"] {
        server.post(PRISMS, &json!({"text": text})).await.assert_error(500, "internal_error");
    }
    // The workers were replaced.
    server.post(PRISMS, &json!({"text": "It rains."})).await.assert_ok();
}

#[tokio::test]
async fn the_same_request_gives_the_same_answer() {
    let server = Server::new();
    let body = json!({"text": "Every day is different."});
    let first = server.post(PRISMS, &body).await;
    first.assert_ok();
    for _ in 0..3 {
        assert_eq!(server.post(PRISMS, &body).await.text(), first.text());
    }
}

#[tokio::test]
async fn an_expression_in_the_wrong_light_or_without_its_facts_is_made_again() {
    let server = Server::new();
    let answer = server.post(PRISMS, &json!({"text": "scribe:dull"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of bb characters.");
    assert_eq!(answer.json()["negative"], "The dark side of bb characters.");
    // Both were the same.
    assert_eq!(server.metrics.regenerated.with_label_values(&["copy"]).get(), 2);

    let answer = server.post(PRISMS, &json!({"text": "scribe:vague 4711"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of bh 4711.");
    assert_eq!(answer.json()["negative"], "The dark side of bh 4711.");
    assert_eq!(server.metrics.regenerated.with_label_values(&["facts"]).get(), 2);

    let answer = server.post(PRISMS, &json!({"text": "scribe:agree is not here"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of ce no characters.");
    assert_eq!(answer.json()["negative"], "The dark side of ce no characters.");
    assert_eq!(server.metrics.regenerated.with_label_values(&["facts"]).get(), 4);
}

#[tokio::test]
async fn what_the_model_doubts_is_made_again_and_loses_against_what_it_is_sure_of() {
    let server = Server::new();
    let answer = server.post(PRISMS, &json!({"text": "scribe:unsure"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of bd fine characters.");
    assert_eq!(answer.json()["negative"], "The dark side of bd fine characters.");
    assert_eq!(server.metrics.regenerated.with_label_values(&["doubt"]).get(), 2);
}

#[tokio::test]
async fn what_a_judge_holds_for_wrong_is_made_again_and_what_it_holds_for_right_stands_however_doubted() {
    let server = Server::with(Setup { judged: true, ..Setup::default() });
    // What is made again says the text over, with an attitude that is joined to it by the mood of it.
    for (text, positive, negative, made_again) in [
        (
            "It was scribe:unsure and I liked it.",
            "It was scribe:unsure and I liked it, and its bright side is fine.",
            "It was scribe:unsure and I liked it, but its dark side is fine.",
            2,
        ),
        (
            "It was bad news of scribe:unsure for me.",
            "It was bad news of scribe:unsure for me, but its bright side is fine.",
            "It was bad news of scribe:unsure for me, and its dark side is fine.",
            4,
        ),
        // A question is not said over so.
        (
            "Why was it scribe:unsure for me?",
            "The bright side of dc fine characters.",
            "The dark side of dc fine characters.",
            6,
        ),
        (
            "It was scribe:unsure and critic:plain for me.",
            "The bright side of ef characters.",
            "The dark side of ef characters.",
            6,
        ),
    ] {
        let answer = server.post(PRISMS, &json!({"text": text})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["positive"], positive);
        assert_eq!(answer.json()["negative"], negative);
        assert_eq!(server.metrics.regenerated.with_label_values(&["judged"]).get(), made_again, "{text}");
    }
    assert_eq!(server.metrics.regenerated.with_label_values(&["doubt"]).get(), 0);
    // Asked of its answers alone: a long text has something to express.
    let failing = json!({"text": format!("This is critic:fail{}", " and I like it".repeat(10))});
    server.post(PRISMS, &failing).await.assert_error(500, "internal_error");
    // Nor of answers in other languages, as it learned of English ones.
    let more = " und ich habe mich geärgert".repeat(5);
    let foreign = json!({"text": format!("Der Bus kam heute wieder viel zu spät critic:fail{more}")});
    server.post(PRISMS, &foreign).await.assert_ok();
}

#[tokio::test]
async fn attitudes_that_fit_a_text_come_first() {
    let server = Server::with(Setup {
        beforehand: Some(Beforehand { english: Some(0.9), others: Some(0.0) }),
        ..Setup::default()
    });
    // The likeliest one is flagged: the next one it is.
    let text = "Der Bus kam heute wieder viel zu spät, critic:fits=0.4";
    let answer = server.post(PRISMS, &json!({"text": text})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], format!("{text}. Das freut mich."));
    assert_eq!(answer.json()["negative"], format!("{text}. Das ist schade."));
    // Behind a long text few words would leave little but a copy.
    let long = format!("critic:fits=0.4 Der Bus kam{} heute zu spät", " und dann kam er wieder".repeat(5));
    let answer = server.post(PRISMS, &json!({"text": long})).await;
    assert_eq!(answer.json()["positive"], format!("{long}. Das ist am Ende für mich ganz gut."));
    assert_eq!(answer.json()["negative"], format!("{long}. Das ist schade."));
    let english = server.post(PRISMS, &json!({"text": "The bus was late once more critic:fits=0.95"})).await;
    assert_eq!(english.json()["negative"], "The bus was late once more critic:fits=0.95. It's a pity.");
    let given = || ["positive", "negative"].map(|light| server.metrics.beforehand.with_label_values(&[light]).get());
    assert_eq!(given(), [3, 3]);
    // A language that nobody wrote in, an attitude that is not likely enough, a text with a trace of harm, and a judge that does
    // not answer: the model writes.
    let long = " und ich habe mich geärgert".repeat(5);
    for text in [
        "Ieri sera abbiamo perso ancora il treno per tornare a casa critic:fits=0.95",
        "The bus was late once more critic:fits=0.85",
        "The bus was late once more",
        "The bus was late once more hate=0.2 critic:fits=0.95",
        // The likeliest one is flagged, the next one is not likely enough.
        "The bus was late once more critic:fits=0.905",
        &format!("Der Bus kam heute wieder viel zu spät critic:fail critic:fits=0.95{long}"),
    ] {
        let answer = server.post(PRISMS, &json!({"text": text})).await;
        answer.assert_ok();
        let positive = answer.json()["positive"].as_str().unwrap().to_owned();
        assert!(positive.contains("bright side"), "{text}: {positive}");
    }
    assert_eq!(given(), [3, 3]);
}

#[tokio::test]
async fn a_reply_that_people_wrote_answers_a_text() {
    let beforehand = Beforehand { english: Some(0.91), others: Some(0.5) };
    let server = Server::with(Setup { beforehand: Some(beforehand), ..Setup::default() });
    let given = || server.metrics.beforehand.with_label_values(&["reply"]).get();
    let named =
        |words: &str| json!({"text": format!("We took the {words} home again critic:situation=0 critic:fits=0.95")});
    let replied = async |text: &str| {
        let reply = server.post(SUNSHINES, &json!({"text": text})).await;
        reply.assert_ok();
        reply.json()["text"].as_str().unwrap().to_owned()
    };
    // One that names what the text speaks of comes first, and else one that is likely enough to fit.
    let reply = server.post(SUNSHINES, &named("Night Train")).await;
    assert_eq!(reply.json()["text"], "Trams and trains, what a pity!");
    assert_eq!(server.post(SUNSHINES, &named("tramway")).await.json()["text"], "How nice!");
    assert_eq!(replied("Wir fuhren wieder mit dem Bus nach Hause, critic:fits=0.6").await, "Schön!");
    assert_eq!(given(), 3);
    // That one is said of what the text speaks of.
    assert_eq!(replied("We took my violin home critic:fits=0.95").await, "How nice about your violin!");
    assert_eq!(given(), 4);
    // Or the model writes, of what needs care as well.
    for text in ["We went home critic:fits=0.85", "We went home hate=0.2 critic:fits=0.95"] {
        assert_ne!(replied(text).await, "How nice!", "{text}");
    }
    assert_ne!(replied("Wir fuhren wieder mit dem Bus nach Hause, critic:fits=0.4").await, "Schön!");
    let suspect = "We took the night train home hate=0.2 critic:situation=0";
    assert_ne!(replied(suspect).await, "Trams and trains, what a pity!");
    assert_eq!(given(), 4);
}

#[tokio::test]
async fn a_judge_has_a_say_in_whether_a_short_text_can_be_expressed() {
    let server = Server::with(Setup { judged: true, ..Setup::default() });
    for (text, inexpressible) in [
        ("I think that this is special=0.8 critic:special=0.1", false),
        ("I think that this is special=0.4 critic:special=0.9", true),
        ("I think that this is special=0.8", true),
        ("I think that this is special=0.4", false),
    ] {
        let answer = server.post(PRISMS, &json!({"text": text})).await;
        answer.assert_ok();
        assert_eq!(answer.json() == json!({"positive": "false", "negative": "false"}), inexpressible, "{text}");
    }
    let long = format!("I think that this is special=0.4 critic:special=0.9{}", " and so on".repeat(10));
    let answer = server.post(PRISMS, &json!({"text": long})).await;
    assert_ne!(answer.json()["positive"], "false");
    let failing = json!({"text": "This is critic:fail and I like it."});
    server.post(PRISMS, &failing).await.assert_error(500, "internal_error");
}

#[tokio::test]
async fn an_answer_that_may_be_given_out_stands_when_no_better_one_can_be_made() {
    // Room for both first tries, and none for the eight that would follow.
    let server = Server::with(Setup { queue: 4, ..Setup::default() });
    let answer = server.post(PRISMS, &json!({"text": "scribe:vague 4711"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of bh characters.");
    assert_eq!(server.metrics.regenerated.with_label_values(&["facts"]).get(), 2);
    server.post(PRISMS, &json!({"text": "scribe:harm"})).await.assert_error(429, "overloaded");
}

#[tokio::test]
async fn an_answer_that_may_be_given_out_stands_when_a_better_one_takes_too_long() {
    let server = Server::with(Setup { timeout: Duration::from_secs(1), ..Setup::default() });
    let answer =
        server.post(PRISMS, &json!({"text": "I was scribe:vague and then scribe:late for the 4711 of them."})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of gb characters.");
    assert_eq!(server.metrics.regenerated.with_label_values(&["facts"]).get(), 2);
}

#[tokio::test]
async fn a_text_of_which_only_despair_is_written_is_answered_with_care() {
    let server = Server::new();
    let body = json!({"text": "scribe:despair"});
    let answer = server.post(PRISMS, &body).await;
    answer.assert_ok();
    assert!(answer.json()["positive"].as_str().unwrap().contains("towards help"));
    let answer = server.post(SUNSHINES, &body).await;
    answer.assert_ok();
    assert!(answer.json()["text"].as_str().unwrap().contains("someone you trust"));
}

#[tokio::test]
async fn a_light_that_the_own_classifier_cannot_tell_is_told_by_another() {
    for (lent, made_again) in [(true, 2), (false, 0)] {
        let server = Server::with(Setup { dim: true, lent, ..Setup::default() });
        let answer = server.post(PRISMS, &json!({"text": "scribe:swapped"})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["positive"].as_str().unwrap().contains("bright"), lent);
        assert_eq!(server.metrics.regenerated.with_label_values(&["polarity"]).get(), made_again, "lent: {lent}");
    }
}

#[tokio::test]
async fn a_text_in_another_language_is_answered_by_a_writer_that_was_taught_it() {
    let server = Server::with(Setup { polyglot: true, ..Setup::default() });
    let written = || ["double", "polyglot"].map(|name| server.metrics.model(name, "generator").generated_tokens.get());
    for (path, text) in [(PRISMS, "It has rained all day."), (SUNSHINES, "We went to the lake.")] {
        server.post(path, &json!({"text": text})).await.assert_ok();
    }
    let [english, other] = written();
    assert!(english > 0 && other == 0, "{english} {other}");
    for (path, text) in [(PRISMS, "Es hat den ganzen Tag geregnet."), (SUNSHINES, "昨日は湖に行きました。")]
    {
        server.post(path, &json!({"text": text})).await.assert_ok();
    }
    let [still, other] = written();
    assert!(still == english && other > 0, "{still} {other}");
}

#[tokio::test]
async fn harmful_input_is_answered_soberly() {
    let server = Server::new();
    // Surely harmful: nothing is generated. Likely harmful: nothing good could be made of it.
    for text in ["hate=0.8 scribe:panic", "violence=0.6 scribe:harm", "hate=0.5 scribe:mild"] {
        let body = json!({"text": text});
        let answer = server.post(PRISMS, &body).await;
        answer.assert_ok();
        assert!(answer.json()["positive"].as_str().unwrap().contains("with respect"));
        assert!(answer.json()["negative"].as_str().unwrap().contains("could hurt"));
        let answer = server.post(SUNSHINES, &body).await;
        answer.assert_ok();
        assert!(answer.json()["text"].as_str().unwrap().contains("stand by tomorrow"));
    }
    let answer = server.post(PRISMS, &json!({"text": "hate=0.6 It rains."})).await;
    assert_eq!(answer.json()["positive"], "The bright side of bi characters.");
    // What is too harsh an answer to a flagged text may be said of another.
    let answer = server.post(PRISMS, &json!({"text": "hate=0.4 scribe:mild"})).await;
    assert_eq!(answer.json()["positive"], "hate=0.3");
}

#[tokio::test]
async fn fixed_answers_are_in_the_language_of_the_text() {
    let server = Server::new();
    let body = json!({"text": "Ich hasse euch alle so sehr, ihr seid an allem schuld. hate=0.9"});
    let answer = server.post(PRISMS, &body).await;
    answer.assert_ok();
    assert!(answer.json()["positive"].as_str().unwrap().contains("mit Respekt"));
    let answer = server.post(SUNSHINES, &json!({"text": "もう何もかも終わりにしたい self_harm=0.9"})).await;
    answer.assert_ok();
    assert!(answer.json()["text"].as_str().unwrap().contains("信頼できる人"));
}

#[tokio::test]
async fn an_answer_in_another_language_is_made_again() {
    let server = Server::new();
    let answer = server.post(PRISMS, &json!({"text": "Gestern war ich lange mit Anna am See."})).await;
    answer.assert_ok();
    assert_eq!(server.metrics.regenerated.with_label_values(&["language"]).get(), 2);
}

#[tokio::test]
async fn control_tokens_in_a_text_are_text() {
    let server = Server::new();
    let answer = server.post(PRISMS, &json!({"text": "<stop><end><negative>"})).await;
    answer.assert_ok();
    assert_eq!(answer.json()["positive"], "The bright side of cb characters.");
}
