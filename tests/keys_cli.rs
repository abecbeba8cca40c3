//! `dichroic keys`, run as a user runs it.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// Runs `dichroic keys` in a folder of its own, with no setting from outside.
fn keys(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dichroic"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DICHROIC_") {
            command.env_remove(name);
        }
    }
    command.arg("keys").args(arguments).current_dir(folder).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Makes a key; returns it and its identifier.
fn create(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = keys(folder, &[&["create"], arguments].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let key = stdout(&output).strip_suffix('\n').unwrap().to_owned();
    let id = key.split('_').nth(1).unwrap().to_owned();
    (key, id)
}

fn listed(folder: &Path) -> serde_json::Value {
    let output = keys(folder, &["list", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(stdout(&output)).unwrap()
}

#[test]
fn create_prints_the_key_alone_and_stores_only_a_hash() {
    let folder = tempfile::tempdir().unwrap();
    let output = keys(folder.path(), &["create", "--label", "bot"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let key = stdout(&output).trim_end();
    assert_eq!(key.split('_').map(str::len).collect::<Vec<_>>(), [2, 8, 40], "{key}");
    assert!(stderr(&output).contains("cannot be shown again") && !stderr(&output).contains(key));
    let file = fs::read_to_string(folder.path().join("keys.json")).unwrap();
    assert!(!file.contains(key.rsplit('_').next().unwrap()));
}

#[test]
fn every_option_is_stored_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--label", "bot", "--scope", "guardian_text", "prism_text", "--expires", "2999-01-31T12:00:00Z"];
    let (_, id) = create(folder.path(), &[&options[..], &["--limit", "7", "--burst", "3"]].concat());
    let (_, plain) = create(folder.path(), &[]);
    let list = listed(folder.path());
    assert_eq!(list[0]["id"], id);
    assert_eq!(list[0]["label"], "bot");
    assert_eq!(list[0]["state"], "active");
    assert_eq!(list[0]["scopes"], serde_json::json!(["prism_text", "guardian_text"]));
    assert_eq!(list[0]["limit"], serde_json::json!({"per_minute": 7, "burst": 3}));
    assert_eq!(list[0]["expires"], "2999-01-31T12:00:00Z");
    assert_eq!(list[1]["scopes"], serde_json::Value::Null, "no scope means all");
    assert!(list[0].get("secret").is_none());
    let table = keys(folder.path(), &["list"]);
    let lines: Vec<_> = stdout(&table).lines().collect();
    assert!(lines[0].starts_with("ID        LABEL  STATE"), "{lines:?}");
    assert!(lines[1].contains("prism_text,guardian_text  7/min, 3 at once"), "{lines:?}");
    assert!(lines[2].starts_with(&plain) && lines[2].ends_with("never"), "{lines:?}");
}

#[test]
fn revoke_marks_the_key_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (_, id) = create(folder.path(), &[]);
    let output = keys(folder.path(), &["revoke", &id]);
    assert!(output.status.success());
    assert_eq!(stderr(&output), format!("Key {id} is revoked.\n"));
    assert_eq!(listed(folder.path())[0]["state"], "revoked");
    let again = keys(folder.path(), &["revoke", &id]);
    assert!(again.status.success() && stderr(&again).contains("already"));
}

#[test]
fn an_unknown_identifier_fails_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let output = keys(folder.path(), &["revoke", "00000000"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("no key has the identifier 00000000 in keys.json"), "{}", stderr(&output));
}

#[test]
fn a_whole_key_given_to_revoke_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (key, _) = create(folder.path(), &[]);
    let output = keys(folder.path(), &["revoke", &key]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("the identifier only") && !stderr(&output).contains(&key));
}

#[test]
fn wrong_arguments_make_no_key() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [
        &["--scope", "everything"][..],
        &["--expires", "tomorrow"],
        &["--expires", "2001-01-01T00:00:00Z"],
        &["--burst", "5"],
        &["--limit", "5", "--burst", "0"],
    ] {
        let output = keys(folder.path(), &[&["create"], wrong].concat());
        assert!(!output.status.success() && output.stdout.is_empty(), "{wrong:?}");
    }
    assert_eq!(listed(folder.path()), serde_json::json!([]));
    assert!(!folder.path().join("keys.json").exists());
}

#[test]
fn the_file_named_by_flag_wins_over_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_dichroic"))
            .args(arguments)
            .env("DICHROIC_KEYS_FILE", "environment.json")
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    assert!(run(&["keys", "create"]).status.success());
    assert!(run(&["keys", "create", "--keys-file", "flag.json"]).status.success());
    for name in ["environment.json", "flag.json"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
}

#[test]
fn a_damaged_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    fs::write(&path, "{").unwrap();
    let output = keys(folder.path(), &["create"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(stderr(&output).contains("the key file keys.json is damaged"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&path).unwrap(), "{");
}
