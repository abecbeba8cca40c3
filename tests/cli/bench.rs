//! `dichroic bench` against a server that runs.

use std::{fs, net::TcpListener, path::Path, process::Output};

use serde_json::Value;

use crate::support::{KEY, Server, dichroic, install, stderr, stdout};

const UNLIMITED: [(&str, &str); 1] = [("DICHROIC_USAGE_LIMIT", "0")];

/// A folder with a server over a tiny classifier.
fn serving(environment: &[(&str, &str)]) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "tiny-text", "alpha-4o-mini/build/text");
    let server = Server::start(folder.path(), environment);
    (folder, server)
}

fn bench(folder: &Path, server: &Server, key: &str, more: &[&str]) -> Output {
    let url = format!("http://{}", server.address);
    dichroic(folder).args(["bench", "--url", &url]).args(more).env("DICHROIC_API_KEY", key).output().unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_str(stdout(output)).unwrap_or_else(|_| panic!("no report: {output:?}"))
}

#[test]
fn a_run_sends_what_was_asked_for_and_reports_it() {
    let (folder, server) = serving(&UNLIMITED);
    let output = bench(folder.path(), &server, KEY, &["--requests", "40", "--connections", "3", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    assert_eq!(report["requests"], 40);
    assert_eq!(report["statuses"], serde_json::json!({"200": 40}));
    assert_eq!(report["failures"], serde_json::json!({}));
    let latency = |name: &str| report["latency_ms"][name].as_f64().unwrap();
    assert!(0.0 < latency("p50") && latency("p50") <= latency("p99") && latency("p99") <= latency("max"), "{report}");
    assert!(latency("max") <= report["seconds"].as_f64().unwrap() * 1e3, "{report}");

    fs::write(folder.path().join("key"), format!("{KEY}\n")).unwrap();
    fs::write(folder.path().join("texts"), "a nice day\n\ni love you\n").unwrap();
    let options = ["--key-file", "key", "--texts", "texts", "--operation", "moderation", "--requests", "5"];
    let lines = bench(folder.path(), &server, "", &options);
    assert_eq!(lines.status.code(), Some(0), "{lines:?}");
    assert!(stdout(&lines).contains("requests  5 in ") && stdout(&lines).contains("answers   5 with 200"), "{lines:?}");
    assert!(!stderr(&lines).contains('\r'), "a progress bar is drawn where nobody looks");
}

#[test]
fn nothing_that_is_measured_comes_from_memory() {
    let (folder, server) = serving(&UNLIMITED);
    let count = |series: &str| -> u64 {
        let labels = r#"{component="text",model="alpha-4o-mini"}"#;
        let metrics = server.get("/metrics");
        let name = format!("dichroic_moderation_cache_{series}_total{labels} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    for operation in ["guardian_text", "moderation"] {
        let output = bench(folder.path(), &server, KEY, &["--requests", "30", "--operation", operation]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert_eq!((count("hits"), count("misses")), (0, 62));
    // The server does remember.
    let body = serde_json::json!({"text": "a nice day"});
    assert_eq!(server.ask("/v1/guardians/text", &body), server.ask("/v1/guardians/text", &body));
    assert_eq!((count("hits"), count("misses")), (1, 63));
}

#[test]
fn time_ends_a_run() {
    let (folder, server) = serving(&UNLIMITED);
    let output = bench(folder.path(), &server, KEY, &["--requests", "1000000", "--seconds", "1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    let seconds = report["seconds"].as_f64().unwrap();
    assert!((1.0..30.0).contains(&seconds) && report["requests"].as_u64().unwrap() < 1_000_000, "{report}");
}

#[test]
fn a_usage_limit_is_reported_and_fails_the_run() {
    // A tenth of them at once: one is the first request, three are answered, the rest is refused.
    let (folder, server) = serving(&[("DICHROIC_USAGE_LIMIT", "40")]);
    let output = bench(folder.path(), &server, KEY, &["--requests", "20", "--connections", "1", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let statuses = &report(&output)["statuses"];
    assert!(statuses["429"].as_u64().unwrap() >= 10 && statuses["200"].as_u64().unwrap() >= 3, "{statuses}");
    assert!(stderr(&output).contains("dichroic keys create --limit 0"), "{output:?}");
}

#[test]
fn what_is_wrong_is_told_before_the_load() {
    let (folder, server) = serving(&UNLIMITED);
    fs::write(folder.path().join("long"), "a".repeat(501)).unwrap();
    for (key, more, expected) in [
        ("another-key-than-the-servers", &[][..], "answers 401 to /v1/guardians/text; give a key of this server"),
        (KEY, &["--model", "delta-3.1"], "answers 501 to /v1/guardians/text; the identifier has no model"),
        (KEY, &["--operation", "prism_text"], "answers 501 to /v1/prisms/text"),
        ("", &[], "no key is given; set DICHROIC_API_KEY or --key-file"),
        (KEY, &["--texts", "absent"], "cannot read absent as text; check --texts"),
        (KEY, &["--key-file", "absent"], "cannot read absent as text; check --key-file"),
        (KEY, &["--operation", "guardian_image", "--image", "absent"], "cannot read absent; check --image"),
        (KEY, &["--texts", "long"], "line 1 cannot be sent; shorten it or leave it out: text must be at most 500"),
    ] {
        let output = bench(folder.path(), &server, key, more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains(expected) && output.stdout.is_empty(), "{output:?}");
    }
    for more in [&["--requests", "0"][..], &["--operation", "guardian_image"], &["--seconds", "3601"]] {
        assert_eq!(bench(folder.path(), &server, KEY, more).status.code(), Some(2), "{more:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = |url: &str| {
        dichroic(folder.path()).args(["bench", "--url", url]).env("DICHROIC_API_KEY", KEY).output().unwrap()
    };
    let output = run(&format!("http://{free}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is the server running there, without TLS?"), "{output:?}");
    let output = run(&format!("https://{free}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--url must begin with http://"), "{output:?}");
}
