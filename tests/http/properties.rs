//! Whatever is sent, nothing breaks.

use std::sync::OnceLock;

use axum::{
    body::Body,
    http::{HeaderValue, Request, header},
};
use proptest::{collection, prelude::*, test_runner::TestCaseError};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::support::{Answer, OPERATIONS, Server, pictures, post};

/// One server for all cases, with threads of its own.
fn bench() -> &'static (Runtime, Server) {
    static BENCH: OnceLock<(Runtime, Server)> = OnceLock::new();
    BENCH.get_or_init(|| (Runtime::new().unwrap(), Server::new()))
}

fn send(request: Request<Body>) -> Answer {
    let (runtime, server) = bench();
    runtime.block_on(server.send(request))
}

/// An answer to an authenticated request is a success, a refusal of the body, or an absent model.
fn check(answer: &Answer) -> Result<(), TestCaseError> {
    match answer.status.as_u16() {
        200 => {
            answer.json();
        }
        400 | 501 => {
            answer.error();
        }
        other => return Err(TestCaseError::fail(format!("{other}: {}", answer.text()))),
    }
    Ok(())
}

/// Any JSON value.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A body that is nearly right: known fields with right, nearly right and wrong values.
fn nearly_right() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        3 => any::<String>().prop_map(Value::from),
        1 => (0..600_usize).prop_map(|length| json!("字".repeat(length))),
        1 => any_json(),
    ];
    let model = prop_oneof![
        3 => prop::sample::select(vec!["alpha-4o-mini", "beta-3-haiku", "gamma-1.5-flash", "delta-3.1", "other"])
            .prop_map(Value::from),
        1 => any_json(),
    ];
    let threshold = prop_oneof![3 => (0.0..1.2).prop_map(Value::from), 1 => any_json()];
    let image = prop_oneof![
        2 => collection::vec(any::<u8>(), 0..200).prop_map(|bytes| json!(pictures::encoded(&bytes))),
        2 => damaged_picture().prop_map(|bytes| json!(pictures::encoded(&bytes))),
        1 => "[A-Za-z0-9+/=_ -]{0,80}".prop_map(Value::from),
        1 => any_json(),
    ];
    let image = image.boxed();
    let input = prop_oneof![
        1 => any::<String>().prop_map(Value::from),
        1 => collection::vec(any::<String>(), 0..40).prop_map(Value::from),
        2 => collection::vec(nearly_a_part(image.clone()), 0..5).prop_map(Value::from),
        1 => any_json(),
    ];
    let maybe = |field: BoxedStrategy<Value>| prop::option::weighted(0.8, field);
    (maybe(text.boxed()), maybe(model.boxed()), maybe(threshold.boxed()), maybe(image), maybe(input.boxed())).prop_map(
        |(text, model, score_threshold, image, input)| {
            let fields = [
                ("text", text),
                ("model", model),
                ("score_threshold", score_threshold),
                ("image", image),
                ("input", input),
            ];
            let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(present.collect())
        },
    )
}

/// A part of an input, with right, nearly right and wrong values.
fn nearly_a_part(image: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let url = image.prop_map(|image| match image.as_str() {
        Some(image) => json!(format!("data:image/png;base64,{image}")),
        None => image,
    });
    prop_oneof![
        3 => any::<String>().prop_map(|text| json!({"type": "text", "text": text})),
        3 => url.prop_map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
        1 => any_json().prop_map(|value| json!({"type": "text", "text": value})),
        1 => any_json().prop_map(|value| json!({"type": "image_url", "image_url": value})),
        1 => any_json(),
    ]
}

/// A picture of some format with a few bytes changed, or cut short.
fn damaged_picture() -> impl Strategy<Value = Vec<u8>> {
    use image::ImageFormat::{Bmp, Gif, Jpeg, Png, Tiff, WebP};
    let format = prop::sample::select(vec![Bmp, Gif, Jpeg, Png, Tiff, WebP]);
    let damage = collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (format, damage, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(format, damage, end, cut)| {
        let mut bytes = pictures::picture([90, 60, 30], format);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_json_body_breaks_anything(body in any_json(), path in prop::sample::select(OPERATIONS.to_vec())) {
        check(&send(post(path, body.to_string())))?;
    }

    #[test]
    fn no_nearly_right_body_breaks_anything(body in nearly_right(), path in prop::sample::select(OPERATIONS.to_vec())) {
        check(&send(post(path, body.to_string())))?;
    }

    #[test]
    fn no_bytes_break_anything(
        body in collection::vec(any::<u8>(), 0..300),
        path in prop::sample::select(OPERATIONS.to_vec()),
    ) {
        let answer = send(post(path, body));
        prop_assert_eq!(answer.status.as_u16(), 400);
        answer.error();
    }

    #[test]
    fn no_broken_json_breaks_anything(
        body in nearly_right(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        path in prop::sample::select(OPERATIONS.to_vec()),
    ) {
        let mut body = body.to_string().into_bytes();
        let place = place.index(body.len());
        body[place] = byte;
        check(&send(post(path, body)))?;
    }

    #[test]
    fn no_credential_but_a_key_opens_anything(
        value in collection::vec(any::<u8>(), 0..80),
        scheme in prop::sample::select(vec!["", "Bearer ", "Bearer dk_", "Basic "]),
        path in prop::sample::select(OPERATIONS.to_vec()),
    ) {
        let Ok(value) = HeaderValue::from_bytes(&[scheme.as_bytes(), &value].concat()) else { return Ok(()) };
        let request = Request::post(path).header(header::AUTHORIZATION, value).body(Body::empty()).unwrap();
        let answer = send(request);
        prop_assert_eq!(answer.error().0, 401);
    }

    #[test]
    fn a_client_can_derive_every_boolean(
        scores in prop::array::uniform5(0.0_f64..=1.0),
        threshold in 0.1_f64..=1.0,
    ) {
        let names = ["sexual", "hate", "self_harm", "violence", "defamation"];
        let text: Vec<String> = names.iter().zip(scores).map(|(name, score)| format!("{name}={score:.5}")).collect();
        let body = json!({"text": text.join(" "), "score_threshold": threshold});
        let answer = send(post(OPERATIONS[2], body.to_string())).json();
        let mut any = false;
        for name in names {
            let score = answer["category_scores"][name].as_f64().unwrap();
            prop_assert_eq!(score.to_bits(), ((score * 1e4).round() / 1e4).to_bits());
            prop_assert_eq!(answer["categories"][name].as_bool().unwrap(), score >= threshold);
            any |= score >= threshold;
        }
        prop_assert_eq!(answer["flagged"].as_bool().unwrap(), any);
    }
}
