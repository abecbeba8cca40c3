//! `POST /v1/guardians/text` and `/v1/guardians/image`

use std::time::Duration;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};
use image::ImageFormat;
use serde_json::{Value, json};

use crate::corpus::pictures;
use crate::support::{
    Answer, GUARD_IMAGE, GUARD_TEXT, Server, Setup,
    doubles::SLOW,
    pictures::{
        BLACK, BLUE, CYAN, GREEN, MAGENTA, RED, WHITE, YELLOW, animated_colours, animated_lines, clear, encoded, line,
        picture, png, small_line, standing_line,
    },
};

async fn judge(text: &str, threshold: Option<f64>) -> Answer {
    let server = Server::new();
    let answer = server.post(GUARD_TEXT, &json!({"text": text, "score_threshold": threshold})).await;
    answer.assert_ok();
    answer
}

#[tokio::test]
async fn five_keys_in_order_in_both_objects() {
    let answer = judge("sexual=0.1 hate=0.9 self_harm=0.5 violence=0.4999 defamation=1", None).await;
    assert_eq!(
        answer.text(),
        concat!(
            r#"{"flagged":true,"#,
            r#""categories":{"sexual":false,"hate":true,"self_harm":true,"violence":false,"defamation":true},"#,
            r#""category_scores":{"sexual":0.1,"hate":0.9,"self_harm":0.5,"violence":0.4999,"defamation":1.0}}"#,
        )
    );
}

#[tokio::test]
async fn nothing_found_is_still_five_keys() {
    let answer = judge("A quiet day.", None).await;
    assert_eq!(
        answer.text(),
        concat!(
            r#"{"flagged":false,"#,
            r#""categories":{"sexual":false,"hate":false,"self_harm":false,"violence":false,"defamation":false},"#,
            r#""category_scores":{"sexual":0.0,"hate":0.0,"self_harm":0.0,"violence":0.0,"defamation":0.0}}"#,
        )
    );
}

#[tokio::test]
async fn a_score_equal_to_the_threshold_is_found() {
    for (score, threshold, found) in
        [(1.0, 1.0, true), (0.9999, 1.0, false), (0.1, 0.1, true), (0.0999, 0.1, false), (0.3, 0.3, true)]
    {
        let answer = judge(&format!("violence={score}"), Some(threshold)).await.json();
        assert_eq!(answer["flagged"], found, "{score} at {threshold}");
        assert_eq!(answer["categories"]["violence"], found, "{score} at {threshold}");
        assert_eq!(answer["categories"]["hate"], false);
    }
}

#[tokio::test]
async fn scores_are_rounded_before_they_are_compared() {
    let answer = judge("hate=0.49996 violence=0.49994", None).await.json();
    assert_eq!(answer["category_scores"]["hate"], 0.5);
    assert_eq!(answer["categories"]["hate"], true);
    assert_eq!(answer["category_scores"]["violence"], 0.4999);
    assert_eq!(answer["categories"]["violence"], false);
}

#[tokio::test]
async fn the_whole_of_a_long_text_counts() {
    // Behind the first window of the double, which has room for 254 bytes.
    let answer = judge(&format!("{} hate=0.8", "😀 ".repeat(200)), None).await.json();
    assert_eq!(answer["category_scores"]["hate"], 0.8);
}

#[tokio::test]
async fn a_disguised_word_counts_as_the_word_it_reads_as() {
    // A Cyrillic letter, a hidden sign, wide letters, spaced letters; the double knows the plain word only.
    for text in ["h\u{430}te=.9", "ha\u{200b}te=.9", "ｈａｔｅ＝．９", "h a t e=.9"] {
        let answer = judge(text, None).await.json();
        assert_eq!(answer["category_scores"]["hate"], 0.9, "{text}");
    }
    // What reads as harmless is still judged as it was written.
    let answer = judge("hate=.9 h\u{430}te=.2", None).await.json();
    assert_eq!(answer["category_scores"]["hate"], 0.9);
}

#[tokio::test]
async fn findings_are_counted() {
    let server = Server::new();
    server.post(GUARD_TEXT, &json!({"text": "hate=0.9"})).await.assert_ok();
    assert_eq!(server.metrics.flagged.with_label_values(&["guardian_text", "hate"]).get(), 1);
    assert_eq!(server.metrics.flagged.with_label_values(&["guardian_text", "sexual"]).get(), 0);
}

async fn look(server: &Server, image: impl Into<Value>) -> Answer {
    server.post(GUARD_IMAGE, &json!({"image": image.into()})).await
}

#[tokio::test]
async fn every_format_is_known_by_its_first_bytes() {
    let server = Server::new();
    for format in
        [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff]
    {
        for (color, flagged) in [(BLACK, false), (WHITE, true)] {
            let answer = look(&server, encoded(&picture(color, format))).await;
            answer.assert_ok();
            let answer = answer.json();
            assert_eq!(answer["flagged"], flagged, "{format:?}");
            assert_eq!(answer["categories"]["sexual"], flagged, "{format:?}");
            assert_eq!(answer["categories"]["hate"], false, "{format:?}");
        }
    }
    let lying = format!("data:image/jpeg;base64,{}", encoded(&png(WHITE)));
    assert_eq!(look(&server, lying).await.json()["flagged"], true);
}

#[tokio::test]
async fn an_image_answer_has_the_shape_of_a_text_answer() {
    let answer = look(&Server::new(), encoded(&png(WHITE))).await;
    assert_eq!(
        answer.text(),
        concat!(
            r#"{"flagged":true,"#,
            r#""categories":{"sexual":true,"hate":false,"self_harm":false,"violence":false,"defamation":false},"#,
            r#""category_scores":{"sexual":1.0,"hate":0.0,"self_harm":0.0,"violence":0.0,"defamation":0.0}}"#,
        )
    );
}

#[tokio::test]
async fn base64_in_every_spelling() {
    let server = Server::new();
    let bytes = png(WHITE);
    let standard = STANDARD.encode(&bytes);
    let mut lines = String::new();
    for (at, character) in standard.chars().enumerate() {
        if at % 64 == 0 {
            lines.push_str("\r\n");
        }
        lines.push(character);
    }
    for image in [
        standard.clone(),
        STANDARD_NO_PAD.encode(&bytes),
        URL_SAFE.encode(&bytes),
        URL_SAFE_NO_PAD.encode(&bytes),
        format!(" \t{standard}\n"),
        lines.clone(),
        format!("data:image/png;base64,{standard}"),
        format!("DATA:;Base64,{lines}"),
    ] {
        let answer = look(&server, image.as_str()).await;
        answer.assert_ok();
        assert_eq!(answer.json()["flagged"], true);
    }
    for image in ["", "  ", "====", "not base64!", "aGk", "data:image/png,aGVsbG8=", "é"] {
        let answer = look(&server, image).await;
        let code = if image == "aGk" { "unsupported_image" } else { "invalid_base64" };
        answer.assert_field_error(code, "image");
    }
}

#[tokio::test]
async fn what_is_no_picture_is_refused() {
    let server = Server::new();
    look(&server, encoded(b"hello, this is text")).await.assert_field_error("unsupported_image", "image");
    look(&server, encoded(b"%PDF-1.7 and so on")).await.assert_field_error("unsupported_image", "image");
    let whole = picture(WHITE, ImageFormat::Png);
    look(&server, encoded(&whole[..whole.len() - 30])).await.assert_field_error("corrupt_image", "image");
}

#[tokio::test]
async fn a_picture_of_10_mib_is_decoded_and_one_byte_more_is_refused() {
    let server = Server::new();
    let mut bytes = png(BLACK);
    // What stands behind the end of a PNG is no part of the picture.
    bytes.resize(10 * 1024 * 1024, 0);
    let escaped_lines = |bytes: &[u8]| {
        let text = encoded(bytes);
        let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
        lines.join("\r\n")
    };
    look(&server, escaped_lines(&bytes)).await.assert_ok();
    bytes.push(0);
    look(&server, encoded(&bytes)).await.assert_field_error("image_too_large", "image");
}

#[tokio::test]
async fn a_side_beyond_16384_pixels_is_refused_from_the_header() {
    let server = Server::new();
    let bytes = std::fs::read("tests/fixtures/images/bomb-side.png").unwrap();
    look(&server, encoded(&bytes)).await.assert_field_error("image_too_large", "image");
}

#[tokio::test]
async fn every_picture_of_the_corpus_gets_a_verdict_or_the_code_of_its_fault() {
    let server = Server::new();
    let pictures = pictures();
    assert!(pictures.len() >= 60);
    for (name, (bytes, wanted)) in pictures {
        let answer = look(&server, encoded(&bytes)).await;
        let code = match wanted["error"].as_str() {
            None => None,
            Some(_) if bytes.is_empty() => Some("invalid_base64"),
            Some("unsupported") => Some("unsupported_image"),
            Some("too_large") => Some("image_too_large"),
            Some("corrupt") => Some("corrupt_image"),
            Some(other) => panic!("{name} expects {other}"),
        };
        match code {
            None => {
                assert_eq!(answer.json()["category_scores"].as_object().map(serde_json::Map::len), Some(5), "{name}");
            }
            Some(code) => assert_eq!(
                (answer.status.as_u16(), &answer.json()["error"]["code"], &answer.json()["error"]["param"]),
                (400, &json!(code), &json!("image")),
                "{name}"
            ),
        }
    }
}

#[tokio::test]
async fn a_failing_image_model_is_a_500_and_is_replaced() {
    let server = Server::new();
    look(&server, encoded(&png(MAGENTA))).await.assert_error(500, "internal_error");
    look(&server, encoded(&png(BLACK))).await.assert_ok();
}

#[tokio::test]
async fn a_threshold_applies_to_pictures() {
    let server = Server::new();
    let image = encoded(&png([128, 128, 128]));
    for (threshold, flagged) in [(0.1, true), (0.5, true), (0.51, false), (1.0, false)] {
        let answer = server.post(GUARD_IMAGE, &json!({"image": image, "score_threshold": threshold})).await;
        answer.assert_ok();
        assert_eq!(answer.json()["flagged"], flagged, "{threshold}");
    }
}

/// The scores of a picture that is accepted.
async fn scores(server: &Server, picture: &[u8]) -> Value {
    let answer = look(server, encoded(picture)).await;
    answer.assert_ok();
    answer.json()["category_scores"].clone()
}

#[tokio::test]
async fn text_in_a_picture_is_judged_as_text() {
    let server = Server::new();
    let answer = look(&server, encoded(&line(RED, GREEN))).await.json();
    assert_eq!((&answer["flagged"], &answer["categories"]["hate"]), (&json!(true), &json!(true)));
    assert_eq!(answer["category_scores"]["hate"], 0.9);
    assert_eq!(scores(&server, &line(GREEN, RED)).await["violence"], 0.7);
    assert_eq!(server.metrics.flagged.with_label_values(&["guardian_image", "hate"]).get(), 1);
    // What the picture shows still counts.
    assert!(answer["category_scores"]["sexual"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn the_worst_of_what_a_picture_may_show_is_judged() {
    let server = Server::new();
    // Harmless over black, harmful over white.
    assert_eq!(look(&server, encoded(&clear())).await.json()["categories"]["sexual"], true);
    let mut frames = [BLACK; 5];
    assert_eq!(look(&server, encoded(&animated_colours(&frames))).await.json()["flagged"], false);
    frames[3] = WHITE;
    assert_eq!(look(&server, encoded(&animated_colours(&frames))).await.json()["categories"]["sexual"], true);
    // Text in one frame.
    let said = scores(&server, &animated_lines(&[BLACK, BLACK, RED])).await;
    assert_eq!((&said["hate"], &said["violence"]), (&json!(0.9), &json!(0.0)));
}

#[tokio::test]
async fn words_spread_over_frames_are_also_read_together() {
    let server = Server::new();
    for apart in [GREEN, MAGENTA] {
        assert_eq!(scores(&server, &animated_lines(&[apart, apart])).await["self_harm"], 0.0);
    }
    let together = scores(&server, &animated_lines(&[GREEN, BLACK, MAGENTA])).await;
    assert_eq!((&together["self_harm"], &together["violence"]), (&json!(0.8), &json!(0.7)));
}

#[tokio::test]
async fn lines_are_turned_until_they_can_be_read() {
    let server = Server::new();
    // With yellow in it a line is upside down, and its end is its beginning.
    assert_eq!(scores(&server, &line(YELLOW, RED)).await["hate"], 0.9);
    assert_eq!(scores(&server, &standing_line(RED, GREEN)).await["hate"], 0.9);
    assert_eq!(scores(&server, &standing_line(YELLOW, GREEN)).await["violence"], 0.7);
}

#[tokio::test]
async fn nothing_is_recognised_where_no_text_is_found() {
    let server = Server::new();
    look(&server, encoded(&png(WHITE))).await.assert_ok();
    assert_passes(&server, [1, 0, 0]).await;
    look(&server, encoded(&line(RED, RED))).await.assert_ok();
    assert_passes(&server, [2, 1, 1]).await;
}

#[tokio::test]
async fn a_small_line_in_a_large_picture_is_found_by_a_closer_look() {
    let server = Server::new();
    assert_eq!(scores(&server, &small_line(RED)).await["hate"], 0.9);
    // The whole, and the one of twelve parts that the line is in.
    assert_passes(&server, [2, 1, 1]).await;
}

#[tokio::test]
async fn a_first_look_spares_pictures_without_text_the_second_and_changes_no_score() {
    let server = Server::with(Setup { glance: Some(0.5), ..Setup::default() });
    look(&server, encoded(&png(BLACK))).await.assert_ok();
    assert_passes(&server, [1, 0, 0]).await;
    let picture = line(RED, GREEN);
    let answer = scores(&server, &picture).await;
    assert_passes(&server, [3, 1, 1]).await;
    assert_eq!(answer["hate"], 0.9);
    assert_eq!(answer, scores(&Server::new(), &picture).await);
}

/// How often the detector, the orientation and the recogniser have run.
async fn assert_passes(server: &Server, counts: [u32; 3]) {
    let metrics = server.get("/metrics").await;
    for (stage, count) in ["detector", "orientation", "recogniser"].into_iter().zip(counts) {
        let line = format!("dichroic_batch_size_count{{component=\"{stage}\",model=\"double\"}} {count}");
        assert!(metrics.text().lines().any(|found| found == line), "no {line} in\n{}", metrics.text());
    }
}

#[tokio::test]
async fn without_a_reader_a_picture_is_only_seen() {
    let server = Server::with(Setup { reads: false, ..Setup::default() });
    assert_eq!(scores(&server, &line(RED, RED)).await["hate"], 0.0);
    assert_eq!(look(&server, encoded(&png(WHITE))).await.json()["categories"]["sexual"], true);
}

#[tokio::test]
async fn what_heads_see_counts_with_what_is_read() {
    let server = Server::with(Setup { heads: true, ..Setup::default() });
    let seen = scores(&server, &png([153, 102, 102])).await;
    assert_eq!(seen, json!({"sexual": 0.4667, "hate": 0.4, "self_harm": 0.0, "violence": 0.6, "defamation": 0.0}));
    // Read are hate 0.9 and violence 0; red is seen in the line.
    let line = scores(&server, &line(RED, RED)).await;
    assert_eq!(line["hate"], 0.9);
    assert!(line["violence"].as_f64().unwrap() > 0.0, "{line}");
    assert_eq!(scores(&Server::new(), &png([153, 102, 102])).await["violence"], 0.0);
}

#[tokio::test]
async fn a_failing_reader_is_a_500_never_a_low_score() {
    let server = Server::new();
    look(&server, encoded(&line(CYAN, CYAN))).await.assert_error(500, "internal_error");
    assert_eq!(scores(&server, &line(RED, RED)).await["hate"], 0.9);
}

#[tokio::test]
async fn the_deadline_holds_for_what_is_read() {
    let server = Server::with(Setup { timeout: SLOW / 4, ..Setup::default() });
    look(&server, encoded(&line(BLUE, BLUE))).await.assert_error(500, "deadline_exceeded");
    tokio::time::sleep(SLOW + Duration::from_millis(100)).await;
    look(&server, encoded(&png(BLACK))).await.assert_ok();
}
