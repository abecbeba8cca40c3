//! `--device`, with the runtime library for the CPU that a plain set-up installs.

use std::path::Path;

use serde_json::Value;

use crate::support::{Server, install, run, stderr, stdout};

/// What that library says of CUDA.
const REASON: &str = "CUDA execution provider is";

fn with_a_classifier() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "tiny-text", "alpha-4o-mini/build/text");
    folder
}

fn serve(folder: &Path, device: &str) -> std::process::Output {
    run(folder, &["serve", "--listen", "127.0.0.1:0", "--device", device])
}

#[test]
fn a_gpu_that_is_demanded_and_absent_stops_the_start() {
    let folder = with_a_classifier();
    let output = serve(folder.path(), "cuda");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = stderr(&output).lines().last().unwrap();
    assert!(told.starts_with("dichroic: no GPU can be used: ") && told.contains(REASON), "{told}");
    assert!(told.contains("make setup DEVICE=cuda") && told.contains("device = \"cpu\""), "{told}");
}

#[test]
fn what_is_no_device_is_refused() {
    let folder = with_a_classifier();
    let output = serve(folder.path(), "gpu");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("device, set by the flag --device, must be cpu, cuda or auto"), "{output:?}");
}

#[test]
fn auto_serves_on_the_cpu_and_says_so() {
    let folder = with_a_classifier();
    let server = Server::start(folder.path(), &[("DICHROIC_DEVICE", "auto")]);
    let log: Vec<Value> = server.start.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let passed_over = log.iter().find(|line| line["level"] == "WARN" && line["error"].is_string());
    assert!(passed_over.is_some_and(|line| line["error"].as_str().unwrap().contains(REASON)), "{log:#?}");
    assert!(log.iter().any(|line| line["message"] == "device chosen" && line["device"] == "cpu"), "{log:#?}");

    let ready: Value = serde_json::from_str(&server.get("/readyz")).unwrap();
    assert_eq!((&ready["status"], &ready["models"][0]["device"]), (&"ready".into(), &"cpu".into()));
    let metrics = server.get("/metrics");
    let told = metrics.lines().find(|line| line.starts_with("dichroic_model_info{")).unwrap();
    assert!(told.contains("device=\"cpu\""), "{told}");
}

#[test]
fn check_tells_the_device_or_why_there_is_none() {
    let folder = with_a_classifier();
    for (device, code, row) in [("cpu", 0, "ok    device"), ("auto", 0, "ok    device"), ("cuda", 1, "FAIL  device")] {
        let output = run(folder.path(), &["check", "--device", device]);
        let line = stdout(&output).lines().find(|line| line.starts_with(row));
        assert!(line.is_some_and(|line| line.contains(REASON) == (device != "cpu")), "{output:?}");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}
