//! What a panic leaves in the log, in a process of its own: the hook is the process's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io,
    sync::{Arc, Mutex},
};

use dichroic::telemetry::subscriber;
use serde_json::Value;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_is_logged_by_its_place_and_not_by_what_it_said() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt().json().with_writer(move || writer.clone()).init();
    subscriber::log_panics();
    let text = "zebra";
    let request = tracing::error_span!("request", request_id = "seven");
    let broken = std::thread::spawn(move || request.in_scope(|| panic!("cannot read {text}"))).join();
    assert!(broken.is_err());
    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(!logged.contains(text), "{logged}");
    let line: Value = serde_json::from_str(logged.trim()).unwrap();
    assert_eq!((&line["level"], &line["fields"]["message"]), (&"ERROR".into(), &"panic".into()));
    assert!(line["fields"]["place"].as_str().unwrap().starts_with("tests/panics.rs:"), "{logged}");
    assert_eq!(line["span"]["request_id"], "seven");
}
