//! The dependency rule: rooms import inwards only, and each third-party library has its rooms.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Rooms from the inside out, each with what it may import of ours.
const ROOMS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("telemetry", &[]),
    ("lifecycle", &[]),
    ("access", &["domain"]),
    ("imaging", &["domain"]),
    ("registry", &["domain"]),
    ("runtime", &["domain", "registry"]),
    ("engine", &["domain", "runtime", "telemetry"]),
    // The registry's prompts and the picture decoder feed the engines that a service composes.
    ("service", &["domain", "engine", "imaging", "registry", "runtime", "telemetry"]),
    ("http", &["access", "domain", "lifecycle", "service", "telemetry"]),
    ("config", &["access", "domain"]),
    (
        "cli",
        &["access", "config", "domain", "engine", "http", "lifecycle", "registry", "runtime", "service", "telemetry"],
    ),
];

/// Third-party libraries that only these rooms may name.
const KEEPERS: &[(&str, &[&str])] = &[
    ("ort", &["runtime"]),
    ("tokenizers", &["runtime"]),
    ("ndarray", &["runtime"]),
    ("image", &["imaging"]),
    ("gif", &["imaging"]),
    ("zune_jpeg", &["imaging"]),
    ("axum", &["http"]),
    // `bench` is a client.
    ("hyper", &["cli", "http", "telemetry"]),
    ("hyper_util", &["cli", "http", "telemetry"]),
    // What calls out: nothing but the exporter of traces, and `bench`.
    ("hyper::client", &["cli", "telemetry"]),
    // The same in a group of imports.
    ("client", &["cli", "telemetry"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_http", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("rustls", &["access", "http"]),
    ("tokio_rustls", &["http"]),
    ("x509_parser", &["http"]),
    ("utoipa", &["http"]),
    ("utoipa_axum", &["http"]),
    ("utoipa_swagger_ui", &["http"]),
    ("anyhow", &["cli"]),
    ("clap", &["cli", "config"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("figment", &["config"]),
    ("governor", &["access"]),
    ("indicatif", &["cli"]),
    ("minijinja", &["registry"]),
    ("minijinja_contrib", &["registry"]),
    ("minisign_verify", &["registry"]),
    ("moka", &["service"]),
    ("prometheus", &["telemetry"]),
    ("rayon", &["cli", "service"]),
    ("redis", &["access"]),
    // Ends the process on the spot.
    ("signal_hook", &["cli"]),
    ("tokio", &["access", "cli", "engine", "http", "lifecycle", "service", "telemetry"]),
    ("tokio_util", &["http", "lifecycle"]),
    ("whichlang", &["service"]),
];

/// All the pure room may name besides itself: no I/O, no clock, no threads.
const PURE: &[&str] = &["std", "core", "serde", "thiserror", "base64", "super", "crate", "self"];

#[test]
fn rooms_import_inwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.iter().copied().collect();
    let mut breaches = Vec::new();
    for (file, room, source) in sources() {
        let rooms = allowed.get(room.as_str()).unwrap_or_else(|| panic!("{room} is not in ROOMS"));
        for named in paths_after(&source, "crate::") {
            if named != room && allowed.contains_key(named.as_str()) && !rooms.contains(&named.as_str()) {
                breaches.push(format!("{} imports {named}", file.display()));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn third_party_libraries_stay_in_their_rooms() {
    let mut breaches = Vec::new();
    for (file, room, source) in sources() {
        for (library, rooms) in KEEPERS {
            if !rooms.contains(&room.as_str()) && names(&source, library) {
                breaches.push(format!("{} names {library}", file.display()));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn the_domain_is_pure() {
    let mut breaches = Vec::new();
    for (file, _, source) in sources().into_iter().filter(|(_, room, _)| room == "domain") {
        for line in source.lines().map(str::trim) {
            let imported = line.strip_prefix("use ").or_else(|| line.strip_prefix("pub use "));
            let root = imported.and_then(|path| path.split("::").next());
            // Re-exports of the room's own modules start with their names.
            let own = |root: &str| Path::new("src/domain").join(format!("{root}.rs")).exists();
            if root.is_some_and(|root| !PURE.contains(&root) && !own(root)) {
                breaches.push(format!("{}: {line}", file.display()));
            }
        }
        for forbidden in ["std::fs", "std::net", "std::thread", "std::env", "Instant::now", "SystemTime"] {
            if source.contains(forbidden) {
                breaches.push(format!("{} names {forbidden}", file.display()));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn unsafe_code_has_few_places() {
    let holders: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(_, _, source)| source.contains("unsafe {") || source.contains("unsafe fn"))
        .map(|(file, _, _)| file)
        .collect();
    let known = [
        "attention/avx2.rs",
        "attention/kernels.rs",
        "encoder/avx2.rs",
        "encoder/avx512.rs",
        "encoder/kernels.rs",
        "kv.rs",
        "products/avx2.rs",
        "products/avx512.rs",
        "products/kernels.rs",
        "vectors/avx2.rs",
        "vectors/avx512.rs",
    ];
    assert_eq!(holders, known.map(|file| Path::new("src/runtime").join(file)));
}

#[test]
fn every_module_says_what_it_is() {
    let silent: Vec<PathBuf> =
        sources().into_iter().filter(|(_, _, source)| !source.starts_with("//!")).map(|(file, _, _)| file).collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// File, room and code (tests included, comments left out) of everything below `src`.
fn sources() -> Vec<(PathBuf, String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    let sources: Vec<_> = files
        .into_iter()
        .filter(|file| !matches!(file.to_str(), Some("src/lib.rs" | "src/main.rs")))
        .map(|file| {
            let room = file.iter().nth(1).unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&file).unwrap();
            let head = text.lines().next().filter(|line| line.starts_with("//!")).unwrap_or_default().to_owned();
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            (file, room, format!("{head}\n{}", code.join("\n")))
        })
        .collect();
    assert!(sources.len() > 30, "the walk found only {} files", sources.len());
    sources
}

/// The first path segments after each `prefix`, also of grouped imports.
fn paths_after(source: &str, prefix: &str) -> Vec<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut found = Vec::new();
    for (at, _) in source.match_indices(prefix) {
        let rest = &source[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => found.push(word(rest)),
            Some(group) => {
                let mut depth = 0_usize;
                let mut segment = true;
                for (place, character) in group.char_indices() {
                    match character {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => segment = true,
                        c if depth == 0 && segment && !c.is_whitespace() => {
                            found.push(word(&group[place..]));
                            segment = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

/// Whether the source uses a path that starts with the library's name.
fn names(source: &str, library: &str) -> bool {
    let path = format!("{library}::");
    source.match_indices(&path).any(|(at, _)| {
        let before = source[..at].chars().next_back();
        // `crate::image::` or `domain::image::` is ours; a bare `image::` is the library.
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

#[test]
fn the_readers_of_this_test_see_what_they_should() {
    let source = "use crate::{\n    domain::{A, B},\n    engine::C,\n};\nuse crate::http::D; x(crate::access::E)";
    assert_eq!(paths_after(source, "crate::"), ["domain", "engine", "http", "access"]);
    assert!(names("use image::Rgb;", "image") && names("let x = ort::info();", "ort"));
    assert!(!names("use crate::domain::image::X;", "image") && !names("export::y()", "ort"));
}
