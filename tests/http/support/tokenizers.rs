//! Bundles with a tokenizer whose tokens are bytes, so that a double can read what it is given.

use std::path::{Path, PathBuf};

use dichroic::registry::manifest::Beforehand;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Ends an answer; also opens a classifier's window.
pub(super) const STOP: u32 = 256;
/// Ends a prompt; also closes a classifier's window.
pub(super) const END: u32 = 257;
pub(super) const POSITIVE: u32 = 258;
pub(super) const NEGATIVE: u32 = 259;
pub(super) const REPLY: u32 = 260;
/// Of a reply's first logits, the one that tells bad news.
pub(super) const BAD_NEWS: u32 = NEGATIVE;
pub(super) const VOCABULARY: usize = 261;
/// Tokens of the longest sequence: a text of 500 four-byte characters and its answer.
pub(super) const WINDOW: usize = 2304;

pub(super) fn text_bundle(folder: &Path) -> PathBuf {
    let calibration = json!({"point": 0.0, "below": 1.0, "above": 1.0});
    let spec = json!({
        "window": 256, "stride": 192, "cls_id": STOP, "sep_id": END, "pad_id": STOP,
        "categories": ["sexual", "hate", "self_harm", "violence", "defamation"],
        "calibration": [calibration, calibration, calibration, calibration, calibration],
        "expressibility": {
            "classes": ["statement", "acknowledgement", "agreement", "meaningless", "formula"],
            "threshold": 0.5,
        },
    });
    bundle(&folder.join("text"), "text_classifier", spec)
}

/// `beforehand` is which part answers have that people wrote.
pub(super) fn generator_bundle(folder: &Path, beforehand: Option<Beforehand>) -> PathBuf {
    let task = |prefix: &str| {
        let mut task = json!({"prefix": prefix, "suffix": "<end>", "most_doubt": 1.0, "least_right": 0.5});
        if let Some(part) = beforehand {
            task["beforehand"] = json!(part);
        }
        task
    };
    let spec = json!({
        "layers": 1, "kv_heads": 1, "head_dim": 1, "vocab": VOCABULARY, "window": WINDOW, "stop_ids": [STOP],
        "tasks": {"positive": task("<positive>"), "negative": task("<negative>"), "reply": task("<reply>")},
        "mood": {"tokens": [BAD_NEWS], "weights": [[-9], [9], [0]], "bias": [0, 0, -9]},
    });
    bundle(&folder.join("generator"), "generator", spec)
}

pub(super) fn judge_bundle(folder: &Path) -> PathBuf {
    let spec = json!({
        "cls_id": STOP, "sep_id": END, "pad_id": STOP, "text_tokens": 120, "answer_tokens": 120,
        "verdicts": ["positive", "negative", "reply", "good", "bad", "plain"], "situations": "situations.json",
    });
    bundle(&folder.join("judge"), "answer_judge", spec)
}

/// What people wrote: a reply for a text of one of two situations, and sentences that are chosen one by one, of which the last of each kind is
/// flagged; one reply has a place for a name.
fn situations() -> Value {
    json!({
        "least": 0.5, "names": ["late", "odd"],
        "naming": {"en": [["violin", "drum"], ["", "How nice about {}!", ""]]},
        "particular": {"en": [[[["tram", "night train"], "Trams and trains, what a pity!"]], []]},
        "attitudes": {
            "de": [["Das ist am Ende für mich ganz gut.", "Das freut mich.", "Gut! hate=0.9"], ["Nicht gut.", "Das ist schade.", "Weg! hate=0.9"], ["Na ja.", "Schön!", "Ha! hate=0.9"]],
            "en": [["Quite good.", "I'm glad.", "Good! hate=0.9"], ["Not good.", "It's a pity.", "Away! hate=0.9"], ["Well.", "How nice!", "Ha! hate=0.9"]],
        },
    })
}

fn bundle(dir: &Path, kind: &str, spec: Value) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    let files = [
        ("model.onnx", "no graph: a double stands in".to_owned()),
        ("tokenizer.json", tokenizer().to_string()),
        ("situations.json", situations().to_string()),
    ];
    let listed = files.map(|(name, content)| {
        std::fs::write(dir.join(name), &content).unwrap();
        let sha256: Vec<String> = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"path": name, "bytes": content.len(), "sha256": sha256.concat()})
    });
    let mut manifest = json!({
        "format": 1, "kind": kind, "name": "double", "source": "test", "licence": "Apache-2.0",
        "fingerprint": "0", "files": listed,
    });
    manifest[kind] = spec;
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    dir.to_owned()
}

/// Byte-level, without merges: token 0 is byte 0.
fn tokenizer() -> Value {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let vocabulary: Map<String, Value> = (0..=255).map(|byte| (shown(byte).to_string(), json!(byte))).collect();
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [
            special(STOP, "<stop>"), special(END, "<end>"), special(POSITIVE, "<positive>"),
            special(NEGATIVE, "<negative>"), special(REPLY, "<reply>"),
        ],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

/// The character that stands for a byte in a byte-level vocabulary: itself if it is visible, else one from U+0100 on.
fn shown(byte: u8) -> char {
    let visible = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if visible(&byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|byte| !visible(byte)).count();
    char::from_u32(256 + u32::try_from(place).unwrap()).unwrap()
}
