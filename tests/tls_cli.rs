//! What `dichroic check` and `dichroic serve` say of TLS, run as a user runs them. No model is here, so that neither
//! gets as far as listening.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helper may panic as its test may")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

/// Runs a subcommand in a folder, with a key and no other setting from outside.
fn dichroic(folder: &Path, arguments: &[&str], api_key: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dichroic"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DICHROIC_") {
            command.env_remove(name);
        }
    }
    command.env("DICHROIC_API_KEY", api_key).args(arguments).current_dir(folder).output().unwrap()
}

const API_KEY: &str = "a-key-for-these-tests";
const PUBLIC: [&str; 3] = ["serve", "--listen", "0.0.0.0:0"];
const FILES: [&str; 4] = ["--tls-certificate-file", "tls.crt", "--tls-key-file", "tls.key"];

/// Writes a certificate that ends in a year, and its key.
fn issue(folder: &Path, year: i32) {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(year, 1, 31);
    let key = KeyPair::generate().unwrap();
    fs::write(folder.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
}

/// The row of the table that is about TLS, its columns joined by single spaces.
fn finding(folder: &Path, arguments: &[&str]) -> String {
    let output = dichroic(folder, &[&["check"], arguments].concat(), API_KEY);
    let table = String::from_utf8(output.stdout).unwrap();
    let row = table.lines().find(|line| line.split_whitespace().nth(1) == Some("TLS"));
    row.unwrap_or_else(|| panic!("no row for TLS in {table}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn check_tells_how_long_the_certificate_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    issue(folder.path(), 2999);
    let valid = "ok TLS certificate valid until 2999-01-31T00:00:00Z";
    assert_eq!(finding(folder.path(), &FILES), valid);
    let mutual = [&FILES[..], &["--tls-client-ca-file", "tls.crt"]].concat();
    assert_eq!(finding(folder.path(), &mutual), format!("{valid}, clients must show one"));
}

#[test]
fn check_fails_over_a_certificate_that_cannot_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(finding(path, &FILES).starts_with("FAIL TLS the TLS file tls.crt cannot be read ("));
    issue(path, 2001);
    assert_eq!(finding(path, &FILES), "FAIL TLS the certificate tls.crt expired at 2001-01-31T00:00:00Z; renew it");
    fs::copy(path.join("tls.crt"), path.join("old.crt")).unwrap();
    issue(path, 2999);
    let mixed = ["--tls-certificate-file", "old.crt", "--tls-key-file", "tls.key"];
    assert!(finding(path, &mixed).starts_with("FAIL TLS the certificate old.crt does not belong to the key tls.key"));
}

#[test]
fn check_says_when_there_is_no_tls() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(finding(folder.path(), &[]), "ok TLS none: only this machine can connect");
    assert_eq!(finding(folder.path(), &["--listen", "0.0.0.0:0"]), "ok TLS none: end it before this server");
}

#[test]
fn serve_warns_when_other_machines_would_talk_to_it_in_clear() {
    let folder = tempfile::tempdir().unwrap();
    issue(folder.path(), 2999);
    let said = |arguments: &[&str]| {
        let output = dichroic(folder.path(), arguments, API_KEY);
        assert!(!output.status.success(), "no model is installed here");
        String::from_utf8(output.stderr).unwrap()
    };
    let clear = said(&PUBLIC);
    assert!(clear.contains("\"WARN\"") && clear.contains("without TLS, keys and texts cross the network"), "{clear}");
    assert!(!said(&["serve", "--listen", "127.0.0.1:0"]).contains("without TLS"));
    let encrypted = said(&[&PUBLIC[..], &FILES].concat());
    assert!(encrypted.contains("TLS certificate loaded") && !encrypted.contains("without TLS"), "{encrypted}");
}

#[test]
fn serve_warns_of_an_expired_certificate_and_stops_over_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let stderr = || String::from_utf8(dichroic(folder.path(), &[&["serve"], &FILES[..]].concat(), API_KEY).stderr);
    issue(folder.path(), 2001);
    let expired = stderr().unwrap();
    assert!(expired.contains("\"WARN\"") && expired.contains("expired at 2001-01-31T00:00:00Z"), "{expired}");
    fs::write(folder.path().join("tls.crt"), "-----BEGIN CERTIFICATE-----").unwrap();
    let damaged = stderr().unwrap();
    assert!(damaged.contains("dichroic: the TLS file tls.crt cannot be used: it is damaged"), "{damaged}");
}

#[test]
fn serve_does_not_listen_for_other_machines_without_a_key_not_even_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    issue(folder.path(), 2999);
    for arguments in [PUBLIC.to_vec(), [&PUBLIC[..], &FILES].concat()] {
        let output = dichroic(folder.path(), &arguments, "");
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("listening on 0.0.0.0:0 without any API key is refused"), "{said}");
    }
}
