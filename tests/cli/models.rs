//! `dichroic models`.

use std::{fs, path::Path, process::Output, thread};

use serde_json::{Value, json};

use crate::support::{Server, checkout, install, run, stderr, stdout};

const TEXT: &str = "alpha-4o-mini/build/text";
const IMAGE: &str = "beta-3-haiku/build/image";

fn listed(folder: &Path) -> Value {
    let output = run(folder, &["models", "list", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str(stdout(&output)).unwrap()
}

/// Adds the fixture as alpha's text classifier.
fn add(folder: &Path, fixture: &str, more: &[&str]) -> Output {
    let dir = checkout("tests/fixtures").join(fixture);
    run(folder, &[&["models", "add", dir.to_str().unwrap(), "--id", "alpha-4o-mini"], more].concat())
}

/// What lies in the folder that holds the components of alpha.
fn components(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder.join("models/alpha-4o-mini/build")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn list_tells_what_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "tiny-text", TEXT);
    install(folder.path(), "tiny-image", IMAGE);
    let list = listed(folder.path());
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[0]["id"], "alpha-4o-mini");
    assert_eq!(list[0]["component"], "text");
    assert_eq!(list[0]["model"], "tiny text classifier");
    assert_eq!(list[0]["licence"], "MIT");
    assert_eq!(list[0]["bytes"], 7504 + 1621);
    let hash = list[1]["manifest_sha256"].as_str().unwrap();
    assert_eq!(hash.len(), 64);
    let table = run(folder.path(), &["models", "list"]);
    let lines: Vec<_> = stdout(&table).lines().collect();
    assert!(lines[0].starts_with("ID             COMPONENT  MODEL"), "{lines:?}");
    assert!(lines[1].starts_with("alpha-4o-mini  text       tiny text classifier   MIT      0.1 MB  "), "{lines:?}");
    assert!(lines[2].starts_with("beta-3-haiku") && lines[2].ends_with(&hash[..12]), "{lines:?}");
}

#[test]
fn a_damaged_manifest_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let text = install(folder.path(), "tiny-text", TEXT);
    install(folder.path(), "tiny-image", IMAGE);
    fs::write(text.join("manifest.json"), "{").unwrap();
    let output = run(folder.path(), &["models", "list"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("tiny image classifier"));
    assert!(stderr(&output).contains("alpha-4o-mini/build/text/manifest.json is not a manifest"), "{output:?}");
}

#[test]
fn verify_names_every_file_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let text = install(folder.path(), "tiny-text", TEXT);
    install(folder.path(), "tiny-image", IMAGE);
    let intact = run(folder.path(), &["models", "verify"]);
    assert_eq!(intact.status.code(), Some(0), "{intact:?}");
    assert_eq!(stdout(&intact).lines().filter(|line| line.starts_with("ok    ")).count(), 2, "{intact:?}");

    // The first keeps its size and the second does not.
    let mut graph = fs::read(text.join("model.onnx")).unwrap();
    graph[100] ^= 1;
    fs::write(text.join("model.onnx"), graph).unwrap();
    fs::write(text.join("tokenizer.json"), "{}").unwrap();
    let damaged = run(folder.path(), &["models", "verify"]);
    assert_eq!(damaged.status.code(), Some(1));
    let lines: Vec<_> = stdout(&damaged).lines().collect();
    assert!(lines[0].starts_with("FAIL  alpha-4o-mini    text") && lines[0].contains("model.onnx"), "{lines:?}");
    assert!(lines[1].contains("tokenizer.json") && lines[1].contains("found 2 bytes"), "{lines:?}");
    assert!(lines[2].starts_with("ok    beta-3-haiku     image"), "{lines:?}");
    let named = run(folder.path(), &["models", "verify", "beta-3-haiku"]);
    assert_eq!(named.status.code(), Some(0), "{named:?}");
}

#[test]
fn nothing_to_verify_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["models", "verify"]);
    assert_eq!(output.status.code(), Some(1));
    let remedy = "check --models-dir, or run `make build`, unpack the bundle, or, for a model of your own, run \
                  `dichroic models add --replace`";
    assert_eq!(stderr(&output), format!("dichroic: no model is installed in models; {remedy}\n"));
    assert_eq!(stderr(&run(folder.path(), &["models", "list"])), format!("No model in models; {remedy}.\n"));
    install(folder.path(), "tiny-text", TEXT);
    let named = run(folder.path(), &["models", "verify", "delta-3.1"]);
    assert_eq!(named.status.code(), Some(1));
    assert!(stderr(&named).contains("no model of delta-3.1"), "{named:?}");
    let unknown = run(folder.path(), &["models", "verify", "delta"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_classifier_of_ones_own_answers_through_the_interface() {
    let folder = tempfile::tempdir().unwrap();
    let map = ["--map", "toxic=hate", "--map", "threat=violence"];
    let output = add(folder.path(), "tiny-sigmoid", &[&map[..], &["--licence", "Apache-2.0"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let remark = stderr(&output);
    assert!(remark.contains("No label stands for sexual, self_harm, defamation"), "{remark}");
    assert_eq!(components(folder.path()), ["text"], "nothing is left beside it");
    let list = listed(folder.path());
    assert_eq!((list[0]["model"].as_str(), list[0]["licence"].as_str()), (Some("tiny-sigmoid"), Some("Apache-2.0")));
    assert!(stdout(&output).contains(list[0]["manifest_sha256"].as_str().unwrap()));
    assert_eq!(run(folder.path(), &["models", "verify"]).status.code(), Some(0));

    let server = Server::start(folder.path(), &[]);
    for (text, hate, violence) in [
        ("i hate you", 0.982, 0.018),
        ("kill", 0.018, 0.982),
        ("you are nice", 0.018, 0.018),
        // Longer than a window of 32 tokens: the word stands in the last.
        (&format!("{} kill", "the day ".repeat(30)), 0.018, 0.982),
    ] {
        let scores = &server.ask("/v1/guardians/text", &json!({"text": text}))["category_scores"];
        let score = |category: &str| scores[category].as_f64().unwrap();
        assert!((score("hate") - hate).abs() < 0.001, "{text}: {scores}");
        assert!((score("violence") - violence).abs() < 0.001, "{text}: {scores}");
        for bare in ["sexual", "self_harm", "defamation"] {
            assert!(score(bare).abs() < f64::EPSILON, "{text}: {scores}");
        }
    }
}

#[test]
fn an_installed_classifier_is_replaced_only_when_told_to() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "tiny-text", TEXT);
    let map = ["--map", "LABEL_1=defamation", "--name", "mine"];
    let refused = add(folder.path(), "tiny-softmax", &map);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("--replace puts this one in its place"), "{refused:?}");
    assert_eq!(listed(folder.path())[0]["model"], "tiny text classifier");
    let replaced = add(folder.path(), "tiny-softmax", &[&map[..], &["--replace"]].concat());
    assert_eq!(replaced.status.code(), Some(0), "{}", stderr(&replaced));
    assert_eq!(listed(folder.path())[0]["model"], "mine");
    assert_eq!(components(folder.path()), ["text"]);
}

#[test]
fn what_gives_no_answer_is_not_installed() {
    let folder = tempfile::tempdir().unwrap();
    // Our own graph in an exporter's clothes: it takes other inputs.
    let dir = folder.path().join("odd");
    fs::create_dir(&dir).unwrap();
    for (fixture, name) in
        [("tiny-text", "model.onnx"), ("tiny-sigmoid", "config.json"), ("tiny-sigmoid", "tokenizer.json")]
    {
        fs::copy(checkout("tests/fixtures").join(fixture).join(name), dir.join(name)).unwrap();
    }
    let arguments = ["models", "add", "odd", "--id", "alpha-4o-mini", "--map", "toxic=hate"];
    let output = run(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("odd is not added") && stderr(&output).contains("input_ids, lengths"),
        "{output:?}"
    );
    assert_eq!(components(folder.path()), [""; 0]);

    // One that puts nothing around a text was not trained as our windows are cut.
    fs::copy(checkout("tests/fixtures/tiny-text/tokenizer.json"), dir.join("tokenizer.json")).unwrap();
    let output = run(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("puts 0 tokens around a text"), "{output:?}");
}

#[test]
fn wrong_labels_and_categories_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let label = add(folder.path(), "tiny-sigmoid", &["--map", "rude=hate"]);
    assert_eq!(label.status.code(), Some(1));
    let expected = "the label \"rude\" does not exist; the model's labels are toxic, threat, friendly";
    assert!(stderr(&label).contains(expected), "{label:?}");
    for wrong in [&["--map", "toxic=rude"][..], &["--map", "toxic"], &["--map", "toxic=hate", "--prompts", "p.json"]] {
        assert_eq!(add(folder.path(), "tiny-sigmoid", wrong).status.code(), Some(2), "{wrong:?}");
    }
    let bare = add(folder.path(), "tiny-sigmoid", &[]);
    assert_eq!(bare.status.code(), Some(1));
    let expected = "--map LABEL=CATEGORY: the model's labels are toxic, threat, friendly";
    assert!(stderr(&bare).contains(expected), "{bare:?}");
    let generator = add(folder.path(), "tiny-generator", &["--map", "toxic=hate"]);
    assert_eq!(generator.status.code(), Some(1));
    assert!(stderr(&generator).contains("config.json"), "{generator:?}");
}

/// Copies the causal fixture to `folder/odd`, changed as `change` says.
fn odd(folder: &Path, change: impl FnOnce(&Path)) {
    let dir = folder.join("odd");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(checkout("tests/fixtures/tiny-causal")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    change(&dir);
}

/// Sets one value of a JSON file.
fn set(path: &Path, pointer: &str, value: Value) {
    let mut tree: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    *tree.pointer_mut(pointer).unwrap() = value;
    fs::write(path, tree.to_string()).unwrap();
}

#[test]
fn a_generator_of_ones_own_answers_alone_as_in_company() {
    let folder = tempfile::tempdir().unwrap();
    let classifier = add(folder.path(), "tiny-sigmoid", &["--map", "toxic=hate", "--map", "threat=violence"]);
    assert_eq!(classifier.status.code(), Some(0), "{}", stderr(&classifier));
    let output = add(folder.path(), "tiny-causal", &["--licence", "MIT", "--name", "mine"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("it begins its reply with"), "{output:?}");
    let list = listed(folder.path());
    assert_eq!((list[0]["component"].as_str(), list[0]["model"].as_str()), (Some("generator"), Some("mine")));
    assert!(stdout(&output).contains(list[0]["manifest_sha256"].as_str().unwrap()));
    let mut found = components(folder.path());
    found.sort();
    assert_eq!(found, ["generator", "text"], "nothing is left beside them");

    let server = Server::start(folder.path(), &[]);
    let ask = |text: &str| {
        let body = json!({"text": text});
        (server.ask("/v1/prisms/text", &body), server.ask("/v1/sunshines/text", &body))
    };
    let texts = ["It rained all day.", "We won the match.", "My sister Anna has a job in Leeds."];
    let alone = texts.map(ask);
    for (prism, sunshine) in &alone {
        for said in [&prism["positive"], &prism["negative"], &sunshine["text"]] {
            let said = said.as_str().unwrap();
            assert!(said != "false" && said.chars().any(char::is_alphanumeric), "{said:?}");
        }
    }
    assert_ne!(alone[0], alone[1], "the answers heed the text");
    let together = thread::scope(|scope| {
        let asked = texts.map(|text| scope.spawn(move || ask(text)));
        asked.map(|answer| answer.join().unwrap())
    });
    assert_eq!(together, alone);
}

#[test]
fn prompts_of_ones_own_replace_the_default_ones() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.json");
    fs::copy(checkout("models/beta-3-haiku/prompts.json"), &prompts).unwrap();
    // What a judge asks of our own models.
    let positive = json!({"prefix": "<|im_start|>user\n", "suffix": "<|im_end|>\n", "least_right": 0.75});
    set(&prompts, "/tasks/positive", positive);
    let output = add(folder.path(), "tiny-causal", &["--prompts", prompts.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let manifest = fs::read(folder.path().join("models/alpha-4o-mini/build/generator/manifest.json")).unwrap();
    let part = &serde_json::from_slice::<Value>(&manifest).unwrap()["generator"];
    assert_eq!(part["tasks"]["reply"]["suffix"], "<|im_end|>\n<|im_start|>reply\n");
    assert_eq!(part["tasks"]["positive"].get("least_right"), None);
    assert_eq!((&part["cache"], &part["stop_ids"]), (&json!("growing"), &json!([0, 2])));
}

/// What the refusal must say, and what is odd about the folder.
type Odd<'a> = (&'a str, &'a dyn Fn(&Path));

#[test]
fn a_generator_that_cannot_work_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = |path: &str| checkout("tests/fixtures").join(path);
    let cases: &[Odd<'_>] = &[
        ("--task text-generation-with-past", &|dir| {
            fs::copy(fixture("tiny-softmax/model.onnx"), dir.join("model.onnx")).unwrap();
        }),
        ("tokenizer.json of a model that generates text", &|dir| {
            fs::copy(fixture("tiny-sigmoid/tokenizer.json"), dir.join("tokenizer.json")).unwrap();
        }),
        ("the tokenizer has 401 tokens and the model 320", &|dir| {
            set(&dir.join("tokenizer.json"), "/model/vocab/A", json!(400));
        }),
        ("token 5000, which", &|dir| set(&dir.join("generation_config.json"), "/eos_token_id", json!([0, 5000]))),
        ("only models for sequence classification", &|dir| {
            set(&dir.join("config.json"), "/architectures/0", json!("T5ForConditionalGeneration"));
        }),
        ("names no architectures", &|dir| set(&dir.join("config.json"), "/architectures", json!([]))),
        ("shorter prompts with --prompts", &|dir| {
            set(&dir.join("config.json"), "/max_position_embeddings", json!(512));
        }),
        ("prompts of your own with --prompts", &|dir| {
            set(&dir.join("tokenizer_config.json"), "/chat_template", json!("{{ raise_exception('no') }}"));
        }),
        ("tokenizer.json", &|dir| fs::remove_file(dir.join("tokenizer.json")).unwrap()),
    ];
    for (remedy, change) in cases {
        odd(folder.path(), change);
        let output = run(folder.path(), &["models", "add", "odd", "--id", "alpha-4o-mini"]);
        assert_eq!(output.status.code(), Some(1), "{remedy}: {output:?}");
        assert!(stderr(&output).contains(remedy), "{remedy}: {output:?}");
        assert_eq!(components(folder.path()), [""; 0], "{remedy}");
    }
    let labelled = add(folder.path(), "tiny-causal", &["--map", "toxic=hate"]);
    assert_eq!(labelled.status.code(), Some(1));
    assert!(stderr(&labelled).contains("has no labels; leave --map out"), "{labelled:?}");
}
