//! The pictures under `tests/fixtures/images`, each with what `expected.json` says of it.

#![expect(clippy::expect_used, reason = "a fixture that cannot be read fails the test that asked for it")]

use std::{collections::BTreeMap, fs, io::Read as _, path::Path};

use flate2::read::GzDecoder;
use serde_json::Value;

/// Every picture by its name; those that are kept packed are unpacked.
pub(crate) fn pictures() -> BTreeMap<String, (Vec<u8>, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    let text = fs::read_to_string(folder.join("expected.json")).expect("expected.json is committed");
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).expect("it is JSON");
    expected
        .into_iter()
        .map(|(name, value)| {
            let mut bytes = Vec::new();
            if let Ok(packed) = fs::File::open(folder.join(format!("{name}.gz"))) {
                GzDecoder::new(packed).read_to_end(&mut bytes).expect("it is a gzip file");
            } else {
                bytes = fs::read(folder.join(&name)).expect("every fixture is committed");
            }
            (name, (bytes, value))
        })
        .collect()
}
