//! The start with several models: they are loaded side by side, and told in the order of the identifiers.

use std::{fs, path::Path};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Server, install, put_beside, run, stderr, stdout};

/// Puts a graph in place of a component's, which its manifest then names.
fn replace(dir: &Path, graph: &[u8]) {
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let sha256: Vec<String> = Sha256::digest(graph).iter().map(|byte| format!("{byte:02x}")).collect();
    let files = manifest["files"].as_array_mut().unwrap();
    let listed = files.iter_mut().find(|file| file["path"] == "model.onnx").unwrap();
    *listed = json!({"path": "model.onnx", "bytes": graph.len(), "sha256": sha256.concat()});
    fs::write(path, manifest.to_string()).unwrap();
    fs::write(dir.join("model.onnx"), graph).unwrap();
}

#[test]
fn every_model_is_loaded_and_answers_and_a_shared_one_for_each_of_its_identifiers() {
    let folder = tempfile::tempdir().unwrap();
    // From the smallest to the largest, which is loaded first.
    let installed = [
        ("tiny-image", "alpha-4o-mini", "image"),
        ("tiny-text", "beta-3-haiku", "text"),
        ("tiny-generator", "delta-3.1", "generator"),
        ("tiny-text", "delta-3.1", "text"),
        ("tiny-reader", "delta-3.1", "ocr"),
    ];
    for (fixture, id, component) in installed {
        install(folder.path(), fixture, &format!("{id}/build/{component}"));
    }
    let expected: Vec<Value> = installed.iter().map(|(_, id, component)| json!([id, component])).collect();
    let server = Server::start(folder.path(), &[]);
    let log = server.start.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let told: Vec<Value> = log
        .filter(|line| line["message"] == "model loaded")
        .map(|line| json!([line["id"], line["component"]]))
        .collect();
    assert_eq!(told, expected);
    let ready: Value = serde_json::from_str(&server.get("/readyz")).unwrap();
    assert_eq!((&ready["status"], ready["models"].as_array().unwrap().len()), (&"ready".into(), 5), "{ready}");
    let metrics = server.get("/metrics");
    assert_eq!(metrics.lines().filter(|line| line.starts_with("dichroic_model_info{")).count(), 5, "{metrics}");
}

#[test]
fn what_a_classifier_doubts_is_read_again_unless_the_settings_say_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let edit = |dir: &Path, edit: &dyn Fn(&mut Value)| {
        let path = dir.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut manifest["text_classifier"]);
        fs::write(path, manifest.to_string()).unwrap();
    };
    let alpha = install(folder.path(), "tiny-text", "alpha-4o-mini/build/text");
    let other = install(folder.path(), "tiny-text", "apart");
    edit(&other, &|spec| spec["calibration"][1]["point"] = 2.0.into());
    put_beside(&alpha, "delta-3.1", &other);
    let hate = |from: f64, settings: &[(&str, &str)]| {
        edit(&alpha, &|spec| {
            spec.as_object_mut().unwrap().remove("elsewhere");
            spec["ensemble"]["from"] = from.into();
        });
        let server = Server::start(folder.path(), settings);
        let body = json!({"model": "alpha-4o-mini", "text": "this is a text like any other"});
        let answer = server.ask("/v1/guardians/text", &body);
        let hate = answer["category_scores"]["hate"].as_f64().unwrap();
        (hate, server.get("/metrics").contains("model=\"delta-3.1\""))
    };
    let (alone, loaded) = hate(1.0, &[]);
    assert!(loaded);
    let (both, _) = hate(0.0, &[]);
    assert!((both - alone).abs() > 0.01, "{both} {alone}");
    // Whom nobody asks, nobody loads.
    assert_eq!(hate(0.0, &[("DICHROIC_SECOND_READING", "false")]), (alone, false));
    edit(&alpha, &|spec| spec["ensemble"]["from"] = 1.5.into());
    let refused = run(folder.path(), &["models", "verify"]);
    assert!(stdout(&refused).contains("its ensemble is asked from no probability on"), "{refused:?}");
}

#[test]
fn an_ensemble_answers_with_the_mean_of_its_members_and_a_damaged_member_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let says = |server: &Server, id: &str, text: &str| {
        let body = json!({"model": id, "text": text});
        server.ask("/v1/guardians/text", &body)["category_scores"]["hate"].as_f64().unwrap()
    };
    let hate = |server: &Server, id: &str| says(server, id, "this is a text like any other");
    // The same network with another operating point, as its own and beside the other.
    let alpha = install(folder.path(), "tiny-text", "alpha-4o-mini/build/text");
    let path = alpha.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["text_classifier"]["calibration"][1]["point"] = 2.0.into();
    fs::write(path, manifest.to_string()).unwrap();
    let delta = install(folder.path(), "tiny-text", "delta-3.1/build/text");
    let beta = install(folder.path(), "tiny-text", "beta-3-haiku/build/text");
    put_beside(&delta, "alpha-4o-mini", &alpha);
    let server = Server::start(folder.path(), &[]);
    let odds = |p: f64| (p / (1.0 - p)).ln();
    let (one, other, both) =
        (hate(&server, "alpha-4o-mini"), hate(&server, "beta-3-haiku"), hate(&server, "delta-3.1"));
    assert!((odds(one) - odds(other)).abs() > 0.5, "{one} {other}");
    assert!((odds(both) - f64::midpoint(odds(one), odds(other))).abs() < 0.01, "{both} of {one} and {other}");
    let german = "das hier ist ein Text wie jeder andere";
    let [one, other, elsewhere] = ["alpha-4o-mini", "beta-3-haiku", "delta-3.1"].map(|id| says(&server, id, german));
    assert!((one - other).abs() > 0.01 && (one - elsewhere).abs() < f64::EPSILON, "{elsewhere} of {one} and {other}");
    drop(server);

    // Where another model has its identifier, both run, and are told apart.
    let replaced = folder.path().join("models/alpha-4o-mini/build/text/manifest.json");
    let listed = fs::read_to_string(&replaced).unwrap().replace("\"point\":2.0", "\"point\":3.0");
    fs::write(&replaced, listed).unwrap();
    let server = Server::start(folder.path(), &[]);
    assert!((hate(&server, "delta-3.1") - both).abs() < f64::EPSILON);
    let metrics = server.get("/metrics");
    for name in ["alpha-4o-mini", "beta-3-haiku", "delta-3.1/alpha-4o-mini"] {
        let series = format!("dichroic_batch_size_count{{component=\"text\",model=\"{name}\"}}");
        assert!(metrics.contains(&series), "no {series} in {metrics}");
    }
    drop(server);

    // It needs nothing beside it.
    fs::remove_dir_all(folder.path().join("models/alpha-4o-mini")).unwrap();
    fs::remove_dir_all(beta).unwrap();
    let alone = Server::start(folder.path(), &[]);
    assert!((hate(&alone, "delta-3.1") - both).abs() < f64::EPSILON);
    drop(alone);

    let graph = delta.join("alpha-4o-mini/model.onnx");
    let mut bytes = fs::read(&graph).unwrap();
    bytes[100] ^= 1;
    fs::write(graph, bytes).unwrap();
    let refused = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("delta-3.1/build/text/alpha-4o-mini/model.onnx does not match"), "{refused:?}");
    // Another classifier in its place, whole as it is, is not the one that was calibrated.
    install(folder.path(), "tiny-text", "delta-3.1/build/text/alpha-4o-mini");
    let refused = run(folder.path(), &["models", "verify"]);
    assert!(stdout(&refused).contains("lists no such alpha-4o-mini/manifest.json"), "{refused:?}");
}

#[test]
fn of_several_models_that_cannot_be_loaded_the_first_is_told() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "tiny-text", "alpha-4o-mini/build/text");
    replace(&install(folder.path(), "tiny-image", "beta-3-haiku/build/image"), b"no graph");
    // The larger of the two, so that it is begun before the other.
    let large = "no graph either ".repeat(10_000);
    replace(&install(folder.path(), "tiny-generator", "delta-3.1/build/generator"), large.as_bytes());
    let refused = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let told = stderr(&refused).lines().find(|line| line.starts_with("dichroic: "));
    let expected = "dichroic: cannot load the image model of beta-3-haiku: ";
    assert!(told.is_some_and(|line| line.starts_with(expected)), "{refused:?}");
    let remedy = "name an ONNX Runtime that knows its operators as runtime_library";
    assert!(told.is_some_and(|line| line.contains(remedy)), "{refused:?}");
    let checked = run(folder.path(), &["check"]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let row = stdout(&checked).lines().find(|line| line.starts_with("FAIL")).unwrap();
    assert!(row.contains("cannot load the image model of beta-3-haiku: "), "{checked:?}");
}
