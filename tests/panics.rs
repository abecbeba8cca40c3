//! What a panic leaves in the log, in processes of their own: the hook is the process's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::File,
    io,
    process::Command,
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

#[test]
fn a_panic_whose_line_cannot_be_written_ends_its_thread_alone() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    // Captured, what is written to standard error would arrive after all.
    let one = ["--exact", "in_a_process_that_cannot_log_a_thread_panics", "--ignored", "--nocapture"];
    let done = again.args(one).stderr(full).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{:?} {said}", done.status);
}

#[test]
#[ignore = "the test above runs it with a standard error that takes nothing"]
fn in_a_process_that_cannot_log_a_thread_panics() {
    subscriber::install(subscriber::Format::Json, "info").unwrap();
    assert!(std::thread::spawn(|| panic!("and its line cannot be written")).join().is_err());
}
