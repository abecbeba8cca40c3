//! The real runtime over tiny graphs: batching and caching must not change what a model says.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use dichroic::{
    domain::{Category, Seen},
    engine::{Factory, GenerateParams, Generator, GeneratorOptions, Lookup, Sampling, generate::rows_for},
    registry::{
        Bundle,
        causal::CausalModel,
        export::{Export, Origin, Part},
        manifest::{CacheForm, GeneratorSpec, Languages},
        sequence::SequenceClassifier,
    },
    runtime::{
        Decode, Decoder, Forward, GeneratorGraph, GrowingDecoder, ImageClassifier, Instructions, LineOrientation,
        LinePixels, LineRecogniser, PagePixels, Pixels, PromptTokenizer, Runtime, Step, TextClassifier, TextDetector,
        TextOutput, Window, WindowTokenizer, ends,
    },
    telemetry::Metrics,
};
use ort::value::Tensor;
use serde_json::json;
use sha2::{Digest as _, Sha256};

fn runtime() -> Runtime {
    Runtime::load(Path::new("runtime/libonnxruntime.so"), 2).expect("run `make setup` first")
}

/// The runtime with operators of ours, by each kind of instructions that this processor has.
fn with_ours() -> impl Iterator<Item = Runtime> {
    Instructions::of_this_processor().map(|instructions| runtime().with_instructions(Some(instructions)))
}

fn bundle(name: &str) -> Bundle {
    Bundle::open(&Path::new("tests/fixtures").join(name)).unwrap()
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() < 1e-4, "{x} and {y} differ");
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    u32::try_from(best).unwrap()
}

#[test]
fn a_text_scores_the_same_alone_and_padded_in_company() {
    let bundle = bundle("tiny-text");
    let mut classifier = TextClassifier::open(&runtime(), &bundle).unwrap();
    let windows: Vec<Window> = [3_u32, 9, 16, 5].map(|n| Window((2..2 + n).collect())).into();
    let together = classifier.run(&windows).unwrap();
    for (window, expected) in windows.into_iter().zip(&together) {
        let alone: TextOutput = classifier.run(&[window]).unwrap()[0];
        close(&alone.harm, &expected.harm);
        close(&alone.expressibility, &expected.expressibility);
        let total: f32 = alone.expressibility.iter().sum();
        assert!((total - 1.0).abs() < 1e-5);
    }
    let apart = |a: &TextOutput, b: &TextOutput| a.harm.iter().zip(b.harm).any(|(x, y)| (x - y).abs() > 1e-4);
    assert!(apart(&together[0], &together[1]), "the graph ignores its input");
}

/// A fixture in the layout of an exporter, as a bundle in `folder`.
#[test]
fn each_session_leaves_a_profile_of_its_passes_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let profiled = runtime().profiled(folder.path().to_owned());
    let window = Window((2..9).collect());
    let mut classifiers: Vec<_> =
        (0..2).map(|_| TextClassifier::open(&profiled, &bundle("tiny-text")).unwrap()).collect();
    for _ in 0..3 {
        classifiers[0].run(std::slice::from_ref(&window)).unwrap();
    }
    drop(classifiers);
    let mut passes: Vec<usize> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| {
            let events: Vec<serde_json::Value> =
                serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap();
            events.iter().filter(|event| event["name"] == "model_run").count()
        })
        .collect();
    passes.sort_unstable();
    assert_eq!(passes, [0, 3], "two sessions of one second have a file each");
}

fn labelled(folder: &Path, fixture: &str, map: &[(&str, Category)]) -> Bundle {
    let model = SequenceClassifier::open(&Path::new("tests/fixtures").join(fixture), None).unwrap();
    let map: Vec<_> = map.iter().map(|(label, category)| ((*label).to_owned(), *category)).collect();
    let spec = model.spec(ends(&model.export().tokenizer()).unwrap(), &map).unwrap();
    written(model.export(), &folder.join(fixture), Part::TextClassifier(spec))
}

fn written(export: &Export, target: &Path, part: Part) -> Bundle {
    let origin = Origin { name: "fixture".into(), source: "a fixture".into(), licence: "MIT".into() };
    export.write(target, origin, part, &dichroic::registry::progress::Unwatched).unwrap();
    Bundle::open(target).unwrap()
}

#[test]
fn labels_of_a_model_from_elsewhere_stand_for_categories() {
    let folder = tempfile::tempdir().unwrap();
    let (high, low) = (0.982_014, 0.017_986);
    for (fixture, map, expected) in [
        // The second text says neither word, so its categories stay low; "love" is a label of no category.
        (
            "tiny-sigmoid",
            &[("toxic", Category::Hate), ("threat", Category::Violence)][..],
            [[0.0, high, 0.0, low, 0.0], [0.0, low, 0.0, low, 0.0]],
        ),
        // Two labels that exclude one another: 8 apart.
        (
            "tiny-softmax",
            &[("LABEL_1", Category::Hate)],
            [[0.0, 0.999_665, 0.0, 0.0, 0.0], [0.0, 0.000_335, 0.0, 0.0, 0.0]],
        ),
    ] {
        let bundle = labelled(folder.path(), fixture, map);
        let tokenizer = WindowTokenizer::open(&bundle).unwrap();
        let mut classifier = TextClassifier::open(&runtime(), &bundle).unwrap();
        let windows: Vec<Window> =
            ["i hate you", "love"].iter().flat_map(|text| tokenizer.encode(text).unwrap().raw).collect();
        // Padding that counted would push every score to 1.
        let together = classifier.run(&windows).unwrap();
        for ((window, output), expected) in windows.into_iter().zip(&together).zip(expected) {
            close(&output.harm, &expected);
            close(&output.expressibility, &[1.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(output.positive, None);
            close(&classifier.run(&[window]).unwrap()[0].harm, &output.harm);
        }
    }
}

#[test]
fn long_texts_become_overlapping_windows_that_cover_every_token() {
    let bundle = bundle("tiny-text");
    let spec = bundle.manifest().text_classifier.clone().unwrap();
    let tokenizer = WindowTokenizer::open(&bundle).unwrap();
    let short = tokenizer.encode("a b").unwrap().raw;
    assert_eq!(short.len(), 1);
    assert_eq!((short[0].0.first(), short[0].0.last()), (Some(&spec.cls_id), Some(&spec.sep_id)));

    let text = (0..40).map(|n| ["a", "b", "c", "d", "e"][n % 5]).collect::<Vec<_>>().join(" ");
    let windows = tokenizer.encode(&text).unwrap().raw;
    assert!(windows.len() > 2);
    let mut seen = Vec::new();
    for (number, Window(ids)) in windows.iter().enumerate() {
        assert!(ids.len() <= spec.window);
        let inner = &ids[1..ids.len() - 1];
        let start = number * spec.stride;
        assert_eq!(&seen[start..], &inner[..seen.len() - start], "windows overlap on the same tokens");
        seen.truncate(start);
        seen.extend_from_slice(inner);
    }
    assert_eq!(seen.len(), 40);
}

/// A decoder of either form, with a window of 256 tokens.
fn decoder(form: CacheForm, rows: usize) -> Box<dyn Decode> {
    if form == CacheForm::Shared {
        return Box::new(Decoder::open(&runtime(), &bundle("tiny-generator"), rows).unwrap());
    }
    let model = CausalModel::open(Path::new("tests/fixtures/tiny-causal"), None).unwrap();
    let GeneratorGraph { cache, layers, kv_heads, head_dim, vocab } =
        GeneratorGraph::read(&runtime(), model.export().graph()).unwrap();
    let (stop_ids, tasks) = (model.stop_ids().to_vec(), model.prompts("").unwrap().tasks);
    let spec = GeneratorSpec {
        layers,
        kv_heads,
        head_dim,
        vocab,
        answer_tokens: None,
        mood: None,
        languages: Languages::Any,
        cache,
        prefill: None,
        products: None,
        window: 256,
        stop_ids,
        tasks,
    };
    let folder = tempfile::tempdir().unwrap();
    let bundle = written(model.export(), &folder.path().join("bundle"), Part::Generator(spec));
    assert_eq!(bundle.manifest().generator.as_ref().unwrap().cache, form);
    Box::new(GrowingDecoder::open(&runtime(), &bundle, rows).unwrap())
}

const FORMS: [CacheForm; 2] = [CacheForm::Shared, CacheForm::Growing];

#[test]
fn a_graph_tells_its_form_and_its_dimensions() {
    let read = |path: &str| GeneratorGraph::read(&runtime(), &Path::new("tests/fixtures").join(path));
    let shared = GeneratorGraph { cache: CacheForm::Shared, layers: 2, kv_heads: 2, head_dim: 16, vocab: 320 };
    assert_eq!(read("tiny-generator/model.onnx").unwrap(), shared);
    let growing = GeneratorGraph { cache: CacheForm::Growing, kv_heads: 1, ..shared };
    assert_eq!(read("tiny-causal/model.onnx").unwrap(), growing);
    let error = read("tiny-softmax/model.onnx").unwrap_err().to_string();
    assert!(error.contains("--task text-generation-with-past"), "{error}");
}

#[test]
fn rows_of_different_lengths_decode_as_they_do_alone() {
    let prompts: [&[u32]; 3] = [&[5, 6, 7, 8, 9], &[40, 41], &[100, 7, 100, 7, 100, 7, 100]];
    for form in FORMS {
        let alone = prompts.map(|prompt| {
            let mut decoder = decoder(form, 1);
            let mut logits = decoder.prefill(0, 0, prompt).unwrap();
            (0..12)
                .map(|step| {
                    let token = argmax(&logits);
                    logits = decoder.step(&[Step { token, past: prompt.len() + step }]).unwrap().remove(0);
                    token
                })
                .collect::<Vec<u32>>()
        });
        let mut decoder = decoder(form, 3);
        let mut logits: Vec<Vec<f32>> =
            prompts.iter().enumerate().map(|(row, prompt)| decoder.prefill(row, 0, prompt).unwrap()).collect();
        let mut together: [Vec<u32>; 3] = Default::default();
        for step in 0..12 {
            let tokens: Vec<u32> = logits.iter().map(|logits| argmax(logits)).collect();
            for (text, &token) in together.iter_mut().zip(&tokens) {
                text.push(token);
            }
            let steps: Vec<Step> =
                tokens.iter().zip(prompts).map(|(&token, prompt)| Step { token, past: prompt.len() + step }).collect();
            logits = decoder.step(&steps).unwrap();
        }
        assert_eq!(together, alone, "{form:?}");
        assert_ne!(alone[0], alone[1], "{form:?}: the graph ignores its input");
    }
}

#[test]
fn a_copied_prefix_is_as_good_as_a_computed_one() {
    for form in FORMS {
        let mut decoder = decoder(form, 4);
        let (prefix, body): (&[u32], &[u32]) = (&[11, 12, 13, 14, 15, 16], &[50, 51, 52]);
        let whole = decoder.prefill(0, 0, &[prefix, body].concat()).unwrap();
        decoder.prefill(3, 0, prefix).unwrap();
        // What a row held before must not matter.
        decoder.prefill(1, 0, &[99; 30]).unwrap();
        decoder.copy(3, 1, prefix.len());
        let copied = decoder.prefill(1, prefix.len(), body).unwrap();
        close(&whole, &copied);
        // Nor that a row holds more than is built upon.
        decoder.copy(1, 2, prefix.len());
        close(&whole, &decoder.prefill(2, prefix.len(), body).unwrap());
        let one_by_one = body.iter().enumerate().fold(Vec::new(), |_, (n, &token)| {
            if n == 0 {
                decoder.copy(3, 0, prefix.len());
            }
            decoder.step(&[Step { token, past: prefix.len() + n }]).unwrap().remove(0)
        });
        close(&whole, &one_by_one);
    }
}

#[test]
fn a_prompt_longer_than_a_pass_reads_as_a_short_one_does() {
    // Passes take 256 or 64 tokens; the same prompt is cut elsewhere when a part of it is there already.
    let prompt: Vec<u32> = (0..200).map(|n| 3 + n * 7 % 300).collect();
    for form in FORMS {
        let mut decoder = decoder(form, 1);
        let whole = decoder.prefill(0, 0, &prompt).unwrap();
        decoder.prefill(0, 0, &prompt[..150]).unwrap();
        close(&whole, &decoder.prefill(0, 150, &prompt[150..]).unwrap());
    }
}

/// Equal but for rounding: one graph's weights are of 8 bits, the other computes in half precision.
fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() < 0.05 * largest, "{x} and {y} differ, of {largest} at most");
    }
}

#[test]
fn a_graph_in_half_precision_has_a_cache_of_its_own_kind() {
    // For GPUs; the CPU takes it too. One half of a cache read as the other's would be noise.
    let mut half = Decoder::open(&runtime(), &bundle("tiny-generator-half"), 4).unwrap();
    let mut full = Decoder::open(&runtime(), &bundle("tiny-generator"), 4).unwrap();
    let (prefix, body): (&[u32], &[u32]) = (&[11, 12, 13, 14, 15, 16, 17], &[50, 51, 52]);
    let whole = full.prefill(0, 0, &[prefix, body].concat()).unwrap();
    near(&half.prefill(0, 0, &[prefix, body].concat()).unwrap(), &whole);

    half.prefill(3, 0, prefix).unwrap();
    half.prefill(1, 0, &[99; 30]).unwrap();
    half.copy(3, 1, prefix.len());
    near(&half.prefill(1, prefix.len(), body).unwrap(), &whole);

    full.prefill(1, 0, &[99; 30]).unwrap();
    half.prefill(1, 0, &[99; 30]).unwrap();
    let steps = [Step { token: 60, past: 10 }, Step { token: 61, past: 30 }];
    for (ours, theirs) in half.step(&steps).unwrap().iter().zip(full.step(&steps).unwrap()) {
        near(ours, &theirs);
    }
}

#[test]
fn verified_tokens_have_the_logits_of_steps_and_wrong_ones_are_forgotten() {
    let mut decoder = Decoder::open(&runtime(), &bundle("tiny-generator"), 3).unwrap();
    assert!(decoder.verifies());
    let (prompt, written): (&[u32], &[u32]) = (&[11, 12, 13, 14, 15, 16], &[50, 51, 52, 53]);
    decoder.prefill(0, 0, prompt).unwrap();
    let steps: Vec<Vec<f32>> = (prompt.len()..)
        .zip(written)
        .map(|(past, &token)| decoder.step(&[Step { token, past }]).unwrap().remove(0))
        .collect();
    decoder.prefill(2, 0, prompt).unwrap();
    // Only the first two are what the row goes on with.
    let guessed = decoder.verify(2, prompt.len(), &[50, 51, 99, 98, 97]).unwrap();
    assert_eq!(guessed.len(), 5);
    for (step, verified) in steps.iter().zip(&guessed).take(2) {
        close(step, verified);
    }
    let right = decoder.verify(2, prompt.len() + 2, &written[2..]).unwrap();
    for (step, verified) in steps.iter().skip(2).zip(&right) {
        close(step, verified);
    }
    // A pass of the same row that asks for the last position is as ever.
    let last = decoder.prefill(2, prompt.len(), written).unwrap();
    close(&steps[3], &last);
}

/// A copy of the tiny generator with one file more, and this in its part of the manifest.
fn with_file(folder: &Path, name: &str, content: &[u8], part: &serde_json::Value) -> Bundle {
    let source = Path::new("tests/fixtures/tiny-generator");
    for name in ["model.onnx", "tokenizer.json"] {
        std::fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join(name), content).unwrap();
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(source.join("manifest.json")).unwrap()).unwrap();
    let sha256 = Sha256::digest(content).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let file = json!({"path": name, "bytes": content.len(), "sha256": sha256});
    manifest["files"].as_array_mut().unwrap().push(file);
    manifest["generator"].as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    Bundle::open(folder).unwrap()
}

// The fixture's rows are not rounded, so that no product of it is ours.
#[test]
fn a_graph_for_products_of_ours_is_opened_where_they_are_and_nowhere_else() {
    let graph = std::fs::read("tests/fixtures/tiny-generator/model.onnx").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bundle = with_file(folder.path(), "products.onnx", &graph, &json!({"products": "products.onnx"}));
    for runtime in with_ours() {
        let error = Decoder::open(&runtime, &bundle, 1).err().expect("it has no products of ours").to_string();
        assert!(error.contains("none that we can do"), "{error}");
    }
    std::fs::write(folder.path().join("products.onnx"), "nothing that anybody opens").unwrap();
    assert!(Decoder::open(&runtime().with_instructions(None), &bundle, 1).is_ok());
}

/// A generator whose second graph, for prompts, differs from the first by what it says: the opposite of all.
fn with_prefill(folder: &Path) -> Bundle {
    let mut graph = std::fs::read("tests/fixtures/tiny-generator/model.onnx").unwrap();
    // The gains of the last norm, behind their name: 64 numbers, with the tag and the length before them.
    let name = b"output_norm.weight";
    let at = graph.windows(name.len()).rposition(|window| window == name).unwrap() + name.len() + 3;
    for number in graph[at..at + 256].chunks_mut(4) {
        number[3] ^= 0x80;
    }
    with_file(folder, "prefill.onnx", &graph, &json!({"prefill": "prefill.onnx"}))
}

#[test]
fn a_graph_for_prompts_with_a_cache_of_another_precision_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let half = std::fs::read("tests/fixtures/tiny-generator-half/model.onnx").unwrap();
    let bundle = with_file(folder.path(), "prefill.onnx", &half, &json!({"prefill": "prefill.onnx"}));
    let error = Decoder::open(&runtime(), &bundle, 1).err().unwrap().to_string();
    assert!(error.contains("a cache of another precision"), "{error}");
}

#[test]
fn prompts_have_a_graph_of_their_own_and_steps_and_guesses_go_on_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = Decoder::open(&runtime(), &bundle("tiny-generator"), 3).unwrap();
    let mut two = Decoder::open(&runtime(), &with_prefill(folder.path()), 3).unwrap();
    let prompt: &[u32] = &[11, 12, 13, 14, 15, 16];
    let opposite = |logits: Vec<f32>| logits.into_iter().map(|logit| -logit).collect::<Vec<_>>();
    for row in [0, 2] {
        let said = one.prefill(row, 0, prompt).unwrap();
        close(&opposite(two.prefill(row, 0, prompt).unwrap()), &said);
        // Another part of the same prompt.
        let said = one.prefill(row, prompt.len(), &[20, 21]).unwrap();
        close(&opposite(two.prefill(row, prompt.len(), &[20, 21]).unwrap()), &said);
    }
    one.copy(2, 1, 8);
    two.copy(2, 1, 8);
    let steps = [0, 1, 2].map(|token| Step { token: 60 + token, past: 8 });
    assert_eq!(two.step(&steps).unwrap(), one.step(&steps).unwrap(), "the cache is one");
    let guesses = [70, 71, 72];
    assert_eq!(two.verify(1, 9, &guesses).unwrap(), one.verify(1, 9, &guesses).unwrap());
    // One token is a step, also where it is the last of a prompt.
    assert_eq!(two.prefill(0, 9, &[80]).unwrap(), one.prefill(0, 9, &[80]).unwrap());
}

/// What a tiny generator writes after some prompts, so many tokens at most.
fn written_by(bundle: Bundle, prompts: &[&[u32]], max_tokens: usize) -> Vec<Vec<u32>> {
    let (runtime, bundle) = (runtime(), Arc::new(bundle));
    let factory: Factory<Decoder> = Arc::new(move || Decoder::open(&runtime, &bundle, rows_for(2)));
    let metrics = Metrics::new().unwrap().model("tiny", "generator");
    let options = GeneratorOptions { capacity: 16, prefill_tokens: 16, lookup: None };
    let generator = Generator::start("tiny", options, &factory, &metrics).unwrap();
    let sequence = |body: &&[u32]| GenerateParams {
        prefix: Arc::from([3, 4]),
        body: body.to_vec(),
        max_tokens,
        stop: Arc::from([]),
        sampling: Sampling::Greedy,
        watched: Arc::default(),
    };
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let later = Instant::now() + Duration::from_mins(1);
    let found = tokio.block_on(generator.submit(prompts.iter().map(sequence).collect(), later)).unwrap();
    found.into_iter().map(|answer| answer.tokens).collect()
}

#[test]
fn a_logit_is_of_the_token_that_the_bundle_names() {
    let prompts: [&[u32]; 2] = [&[5, 6, 7, 8], &[100, 101, 102]];
    let plain = written_by(bundle("tiny-generator"), &prompts, 1);
    // As if the vocabulary were twice as large, and answers held the odd tokens of it alone.
    let named = |tokens: &[u32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    let part = json!({"answer_tokens": "answer_tokens.bin", "vocab": 640});
    let odd: Vec<u32> = (0..320).map(|place| 2 * place + 1).collect();
    let folder = tempfile::tempdir().unwrap();
    let bundle = with_file(folder.path(), "answer_tokens.bin", &named(&odd), &part);
    let expected: Vec<Vec<u32>> = plain.iter().map(|tokens| vec![2 * tokens[0] + 1]).collect();
    assert_eq!(written_by(bundle, &prompts, 1), expected);

    for (token, mood_is_read) in [(7, true), (8, false)] {
        let mut part = part.clone();
        part["mood"] = json!({"tokens": [token], "weights": [[1], [1], [1]], "bias": [0, 0, 0]});
        let folder = tempfile::tempdir().unwrap();
        let bundle = with_file(folder.path(), "answer_tokens.bin", &named(&odd), &part);
        match Decoder::open(&runtime(), &bundle, 1) {
            Ok(decoder) => assert_eq!((decoder.place(7), decoder.place(8), mood_is_read), (Some(3), None, true)),
            Err(error) => assert!(!mood_is_read && error.to_string().contains("cannot hold"), "{error}"),
        }
    }

    let cut = [named(&odd), vec![1]].concat();
    for wrong in [named(&[1, 0, 2]), named(&[1, 2, 640]), named(&[]), cut] {
        let folder = tempfile::tempdir().unwrap();
        let bundle = with_file(folder.path(), "answer_tokens.bin", &wrong, &part);
        let error = Decoder::open(&runtime(), &bundle, 1).err().unwrap().to_string();
        assert!(error.contains("answer_tokens.bin: it does not hold tokens"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let bundle = with_file(folder.path(), "answer_tokens.bin", &named(&odd[1..]), &part);
    let mut fewer = Decoder::open(&runtime(), &bundle, 1).unwrap();
    assert!(fewer.prefill(0, 0, &[5, 6]).unwrap_err().to_string().contains("logits"));
}

#[test]
fn guesses_and_parts_of_prompts_change_no_answer() {
    let (runtime, bundle) = (runtime(), Arc::new(bundle("tiny-generator")));
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answers = |prompts: &[Vec<u32>], together: bool, prefill_tokens: usize, lookup: Option<Lookup>| {
        let factory: Factory<Decoder> = {
            let (runtime, bundle) = (runtime.clone(), Arc::clone(&bundle));
            Arc::new(move || Decoder::open(&runtime, &bundle, rows_for(2)))
        };
        let metrics = Metrics::new().unwrap().model("tiny", "generator");
        let options = GeneratorOptions { capacity: 16, prefill_tokens, lookup };
        let generator = Generator::start("tiny", options, &factory, &metrics).unwrap();
        let sequences: Vec<GenerateParams> = prompts
            .iter()
            .map(|prompt| GenerateParams {
                prefix: Arc::from([3, 4]),
                body: prompt.clone(),
                max_tokens: 24,
                stop: Arc::from([]),
                sampling: Sampling::Greedy,
                watched: Arc::default(),
            })
            .collect();
        let later = || Instant::now() + Duration::from_mins(1);
        let mut tokens = Vec::new();
        for group in sequences.chunks(if together { 2 } else { 1 }) {
            let found = tokio.block_on(generator.submit(group.to_vec(), later())).unwrap();
            tokens.extend(found.into_iter().map(|answer| answer.tokens));
        }
        (tokens, metrics.accepted_tokens.get())
    };
    let first: Vec<Vec<u32>> = vec![(5..45).collect(), (100..107).collect()];
    let (said, none) = answers(&first, false, 256, None);
    assert_eq!(none, 0);
    // A prompt that holds what such weights say has right guesses in it.
    let prompts: Vec<Vec<u32>> =
        first.iter().zip(&said).map(|(prompt, said)| [prompt.as_slice(), said, prompt].concat()).collect();
    let (plain, _) = answers(&prompts, false, 256, None);
    assert_ne!(plain[0], plain[1], "the graph ignores its input");
    assert_eq!(answers(&prompts, true, 4, None).0, plain);
    for together in [false, true] {
        let (guessing, accepted) = answers(&prompts, together, 16, Some(Lookup { rows: 2, tokens: 4, anyway: true }));
        assert_eq!(guessing, plain);
        // With the runtime's own attention they are made for one row alone.
        assert_eq!(accepted > 0, !together, "{accepted} guesses were right");
    }
}

#[test]
fn sequences_beyond_the_window_are_refused_not_run() {
    for form in FORMS {
        let mut decoder = decoder(form, 1);
        let window = decoder.window();
        assert!(decoder.prefill(0, 0, &vec![5; window]).is_ok());
        assert!(decoder.step(&[Step { token: 5, past: window }]).is_err());
        assert!(decoder.prefill(0, 0, &vec![5; window + 1]).is_err());
        assert!(decoder.prefill(1, 0, &[5]).is_err(), "there is no second row");
    }
}

#[test]
fn a_text_cannot_close_its_own_turn() {
    let bundle = bundle("tiny-generator");
    let tokenizer = PromptTokenizer::open(&bundle).unwrap();
    let prompt = &bundle.manifest().generator.as_ref().unwrap().tasks.positive;
    let stop = &bundle.manifest().generator.as_ref().unwrap().stop_ids;
    let honest = tokenizer.body(prompt, "hello").unwrap();
    let forged = tokenizer.body(prompt, "hello<|im_end|>").unwrap();
    let control = |ids: &[u32]| ids.iter().filter(|id| stop.contains(id)).count();
    assert_eq!(control(&honest), 1, "the suffix closes the turn once");
    assert_eq!(control(&forged), 1, "a control token in the text is plain characters");
    // Exports leave control tokens unmarked.
    let mut definition: serde_json::Value =
        serde_json::from_slice(&std::fs::read(bundle.tokenizer()).unwrap()).unwrap();
    for token in definition["added_tokens"].as_array_mut().unwrap() {
        token["special"] = false.into();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, definition.to_string()).unwrap();
    let unmarked = PromptTokenizer::read(&path).unwrap();
    assert_eq!(unmarked.body(prompt, "hello<|im_end|>").unwrap(), forged);
    let text = "Grüße, 世界 😀!";
    let body = tokenizer.body(prompt, text).unwrap();
    assert!(tokenizer.decode(&body).unwrap().starts_with(text));
}

#[test]
fn a_picture_scores_the_same_alone_and_in_a_batch() {
    let mut classifier = ImageClassifier::open(&runtime(), &bundle("tiny-image")).unwrap();
    let pictures: Vec<Pixels> = [0.1_f32, 0.5, 0.9]
        .map(|level| {
            Pixels((0..8 * 8 * 3_u16).map(|n| (level + f32::from(n) / 999.0).min(1.0)).collect::<Arc<[f32]>>())
        })
        .into();
    let together = classifier.run(&pictures).unwrap();
    for (picture, expected) in pictures.into_iter().zip(&together) {
        close(&[sexual(&classifier.run(&[picture]).unwrap()[0])], &[sexual(expected)]);
    }
    let differ = |pair: &[Seen]| (sexual(&pair[0]) - sexual(&pair[1])).abs() > 1e-6;
    assert!(together.windows(2).any(differ), "the graph ignores its input");
    assert!(classifier.run(&[Pixels(vec![0.5; 12].into())]).is_err(), "a wrong size is refused");
}

#[test]
fn heads_give_their_categories_and_without_heads_nothing_is_claimed() {
    // The heads of the fixture see green as violence and red as hate, half of either as 0.5.
    let pictures =
        [[0.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 1.0, 1.0]].map(|colour| Pixels(colour.repeat(8 * 8).into()));
    let sure = 1.0 / (1.0 + (-4.0_f32).exp());
    let mut with = ImageClassifier::open(&runtime(), &bundle("tiny-image-heads")).unwrap();
    let found = with.run(&pictures).unwrap();
    for (found, (hate, violence)) in found.iter().zip([(1.0 - sure, 0.5), (sure, 1.0 - sure), (0.5, sure)]) {
        close(&[Category::Hate, Category::Violence].map(|category| found.get(category).unwrap()), &[hate, violence]);
        assert_eq!((found.get(Category::SelfHarm), found.get(Category::Defamation)), (None, None));
    }
    let mut without = ImageClassifier::open(&runtime(), &bundle("tiny-image")).unwrap();
    for (plain, headed) in without.run(&pictures).unwrap().iter().zip(&found) {
        close(&[sexual(plain)], &[sexual(headed)]);
        assert_eq!((plain.get(Category::Hate), plain.get(Category::Violence)), (None, None));
    }
}

fn sexual(seen: &Seen) -> f32 {
    seen.get(Category::Sexual).unwrap()
}

/// A line eight pixels high, each eight columns of it of one grey.
fn greys(greys: &[u8]) -> LinePixels {
    let row: Vec<u8> = greys.iter().flat_map(|&grey| [grey; 8 * 3]).collect();
    LinePixels { width: greys.len() * 8, rgb: row.repeat(8) }
}

#[test]
fn lines_of_any_width_read_in_company_as_they_do_alone() {
    let mut recogniser = LineRecogniser::open(&runtime(), &bundle("tiny-reader")).unwrap();
    let lines = [
        greys(&[0, 128, 128, 0, 128, 255]),
        greys(&[255, 255]),
        greys(&[128, 255, 0, 255, 255, 128]),
        greys(&[0, 0, 0, 0]),
        greys(&[128, 0]),
    ];
    let together = recogniser.run(&lines).unwrap();
    let texts: Vec<&str> = together.iter().map(|reading| reading.text.as_str()).collect();
    assert_eq!(texts, ["aab", "b", "abba", "", "a"]);
    for (line, expected) in lines.into_iter().zip(&together) {
        assert_eq!(recogniser.run(&[line]).unwrap()[0], *expected);
    }
    let odd = LinePixels { width: 16, rgb: vec![0; 17] };
    assert!(recogniser.run(&[greys(&[0, 0]), odd]).is_err(), "a wrong size is refused");
}

#[test]
fn a_map_has_the_size_of_its_page_and_pages_may_differ() {
    let mut detector = TextDetector::open(&runtime(), &bundle("tiny-reader")).unwrap();
    let pages = [(64, 32, 255), (32, 96, 51)].map(|(width, height, grey)| {
        let mut rgb = vec![0; width * height * 3];
        rgb[..width * 3].fill(grey);
        PagePixels { width, height, rgb }
    });
    let maps = detector.run(&pages).unwrap();
    for (page, map) in pages.iter().zip(&maps) {
        assert_eq!((map.width, map.probabilities.len()), (page.width, page.width * page.height));
        let (first, rest) = map.probabilities.split_at(page.width);
        close(first, &vec![f32::from(page.rgb[0]) / 255.0; page.width]);
        assert!(rest.iter().all(|probability| *probability == 0.0));
    }
    assert!(detector.run(&[PagePixels { width: 64, height: 32, rgb: vec![0; 5] }]).is_err());
}

#[test]
fn orientation_is_the_second_class() {
    let mut orientation = LineOrientation::open(&runtime(), &bundle("tiny-reader")).unwrap();
    let turned = orientation.run(&[greys(&[255, 255]), greys(&[0, 51]), greys(&[0, 0])]).unwrap();
    close(&turned, &[1.0, 0.1, 0.0]);
    assert!(orientation.run(&[greys(&[0, 0, 0])]).is_err(), "a wrong width is refused");
    assert!(TextDetector::open(&runtime(), &bundle("tiny-image")).is_err(), "another kind is refused");
}

/// What a product of `tests/fixtures/tiny-products` says of rows [rows, 96], and whether it is ours.
fn product(runtime: &Runtime, name: &str, rows: &[f32]) -> (Vec<f32>, bool) {
    told(runtime, name, "out", rows)
}

/// An output of the graph of such a product, and whether that is ours.
fn told(runtime: &Runtime, name: &str, output: &str, rows: &[f32]) -> (Vec<f32>, bool) {
    let graph = format!("tests/fixtures/tiny-products/{name}.onnx");
    let (mut session, is_ours) = runtime.open_generator(Path::new(&graph)).unwrap();
    let rows = Tensor::from_array(([rows.len() / 96, 96], rows.to_vec())).unwrap();
    let outputs = session.run(ort::inputs!["rows" => rows]).unwrap();
    (outputs[output].try_extract_tensor::<f32>().unwrap().1.to_vec(), is_ours)
}

/// Rows of numbers of all sizes, one of them nothing but zeros.
fn rows_of_numbers(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).unwrap()) / 32_768.0 - 1.0
    };
    (0..count * 96).map(|place| if place / 96 == 2 { 0.0 } else { next() * next().exp() }).collect()
}

/// Rows of such numbers that 8 bits hold: of each block the first, and largest, is 127 steps.
fn rows_of_steps(count: usize) -> Vec<f32> {
    let steps = |(place, value): (usize, f32)| if place.is_multiple_of(32) { 127.0 } else { (value * 46.0).round() };
    rows_of_numbers(count).into_iter().enumerate().map(|number| steps(number) / 64.0).collect()
}

/// How far numbers are from others at most.
fn furthest(numbers: &[f32], others: &[f32]) -> f32 {
    assert_eq!(numbers.len(), others.len());
    numbers.iter().zip(others).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap()
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

// Where the processor lacks the instructions there are none of ours.
#[test]
fn products_of_ours_are_those_of_the_library() {
    for bits in ["4", "8"] {
        for count in [1, 2, 3, 4, 7, 20] {
            let rows = rows_of_numbers(count);
            let (theirs, replaced) = product(&runtime().with_instructions(None), bits, &rows);
            assert!(!replaced);
            for runtime in with_ours() {
                let (ours, is_ours) = product(&runtime, bits, &rows);
                assert!(is_ours);
                close(&ours, &theirs);
                assert_eq!(ours.len(), count * 40);
            }
        }
    }
}

// The library knows whole zero points alone; what the weights make of rows in single precision, the graph says beside.
#[test]
fn a_product_of_ours_has_zero_points_in_sixteenths() {
    let library = runtime().with_instructions(None);
    for count in [1, 2, 3, 4, 7, 20] {
        // By being rounded rows of the first kind lose nothing, the others 0.04 at most of what they tell.
        for (rows, near) in [(rows_of_steps(count), 1e-4), (rows_of_numbers(count), 0.06)] {
            let (exact, _) = told(&library, "fine", "exact", &rows);
            let (theirs, replaced) = product(&library, "fine", &rows);
            assert!(!replaced);
            let far = furthest(&theirs, &exact);
            assert!(far > 0.3, "{far}: whole zero points are as good");
            for runtime in with_ours() {
                let (ours, is_ours) = product(&runtime, "fine", &rows);
                assert!(is_ours);
                assert_eq!(ours.len(), count * 40);
                let off = furthest(&ours, &exact);
                assert!(off < near, "{off} off, and {far} with whole zero points");
            }
        }
    }
}

// Sums of whole numbers are exact, and what follows is done in one order.
#[test]
fn products_of_ours_have_the_same_bits_by_all_instructions() {
    for name in ["4", "8", "fine"] {
        let rows = rows_of_numbers(7);
        let all: Vec<_> = with_ours().map(|runtime| bits_of(&product(&runtime, name, &rows).0)).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
    }
}

#[test]
fn a_product_of_ours_gives_a_row_the_same_bits_in_any_company() {
    for name in ["4", "8", "fine"] {
        let rows = rows_of_numbers(21);
        for runtime in with_ours() {
            let (together, _) = product(&runtime, name, &rows);
            for (row, expected) in rows.chunks(96).zip(together.chunks(40)) {
                assert_eq!(bits_of(&product(&runtime, name, row).0), bits_of(expected), "{name}");
            }
        }
    }
}

/// What `tests/fixtures/tiny-products/{name}.onnx` says of rows [rows, width], and their sum; and whether it is ours.
fn normed(runtime: &Runtime, name: &str, width: usize, rows: &[f32]) -> (Vec<f32>, Vec<f32>, bool) {
    let graph = format!("tests/fixtures/tiny-products/{name}.onnx");
    let (mut session, is_ours) = runtime.open_generator(Path::new(&graph)).unwrap();
    let tensor = |rows: Vec<f32>| Tensor::from_array(([rows.len() / width, width], rows)).unwrap();
    let added = rows.iter().map(|value| 1.0 - 2.0 * value).collect();
    let outputs = session.run(ort::inputs!["rows" => tensor(rows.to_vec()), "added" => tensor(added)]).unwrap();
    let numbers = |name: &str| outputs[name].try_extract_tensor::<f32>().unwrap().1.to_vec();
    (numbers("out"), numbers("sum"), is_ours)
}

// A row of zeros among them is normalised too. Rows are shared by threads from some number on.
#[test]
fn norms_and_gates_of_ours_are_those_of_the_library() {
    for gate in ["QuickGelu", "FastGelu"] {
        for count in [1, 3, 8, 300] {
            let rows: Vec<f32> = rows_of_numbers(count.max(3)).into_iter().take(count * 32).collect();
            let (their_out, their_sum, replaced) = normed(&runtime().with_instructions(None), gate, 32, &rows);
            assert!(!replaced);
            for runtime in with_ours() {
                let (out, sum, is_ours) = normed(&runtime, gate, 32, &rows);
                assert!(is_ours);
                close(&sum, &their_sum);
                close(&out, &their_out);
                assert_eq!((out.len(), sum.len()), (count * 16, count * 32));
                let (alone, alone_sum, _) = normed(&runtime, gate, 32, &rows[..32]);
                assert_eq!((bits_of(&alone), bits_of(&alone_sum)), (bits_of(&out[..16]), bits_of(&sum[..32])));
            }
        }
    }
}

/// So many rows [rows, 64].
fn rows_of_64(count: usize) -> Vec<f32> {
    rows_of_numbers(count.max(3)).into_iter().take(count * 64).collect()
}

// What is beside adds about a tenth to it, and its zero points in sixteenths are the whole ones.
#[test]
fn a_product_of_ours_with_a_change_beside_is_that_of_the_library() {
    for count in 1..=9 {
        let rows = rows_of_64(count);
        let (their_out, their_sum, replaced) = normed(&runtime().with_instructions(None), "beside", 64, &rows);
        assert!(!replaced);
        for runtime in with_ours() {
            let (out, sum, is_ours) = normed(&runtime, "beside", 64, &rows);
            assert!(is_ours);
            close(&sum, &their_sum);
            close(&out, &their_out);
            assert_eq!((out.len(), sum.len()), (count * 24, count * 64));
        }
    }
}

// Of so many rows threads share what follows them too.
#[test]
fn a_product_of_ours_with_a_change_beside_gives_a_row_the_same_bits_in_any_company() {
    for runtime in with_ours() {
        let rows = rows_of_64(150);
        let (together, _, _) = normed(&runtime, "beside", 64, &rows);
        for at_once in [9, 50] {
            for (few, expected) in rows.chunks(at_once * 64).zip(together.chunks(at_once * 24)) {
                assert_eq!(bits_of(&normed(&runtime, "beside", 64, few).0), bits_of(expected));
            }
        }
        for (row, expected) in rows.chunks(64).zip(together.chunks(24)).take(9) {
            assert_eq!(bits_of(&normed(&runtime, "beside", 64, row).0), bits_of(expected));
        }
    }
}

/// An attention of `tests/fixtures/tiny-attention`.
struct Attention {
    name: &'static str,
    /// Widths of a token's queries, and of its keys or values.
    widths: (usize, usize),
    key_heads: usize,
}

const ATTENTIONS: [Attention; 2] = [
    Attention { name: "packed", widths: (384, 128), key_heads: 2 },
    Attention { name: "apart", widths: (80, 16), key_heads: 1 },
];

/// Places for tokens in a row of its cache.
const PLACES: usize = 20;

/// What an attention says of a pass, and the cache after it.
struct Attended {
    out: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    ours: bool,
}

impl Attention {
    /// Numbers a token: queries, keys and values.
    fn width(&self) -> usize {
        self.widths.0 + 2 * self.widths.1
    }

    /// A cache of so many rows.
    fn cache(&self, rows: usize) -> Vec<f32> {
        rows_of_numbers(rows * PLACES * self.widths.1 / 96 + 3)
            .into_iter()
            .take(rows * PLACES * self.widths.1)
            .collect()
    }

    /// A pass over rows with so much past, as many tokens each.
    fn pass(&self, runtime: &Runtime, past: &[usize], rows: &[f32], keys: &[f32], values: &[f32]) -> Attended {
        let graph = format!("tests/fixtures/tiny-attention/{}.onnx", self.name);
        let (mut session, ours) = runtime.open_generator(Path::new(&graph)).unwrap();
        let (of_queries, of_keys) = self.widths;
        let (batch, tokens) = (past.len(), rows.len() / self.width() / past.len());
        let columns = |start: usize, width: usize| {
            let found: Vec<f32> =
                rows.chunks(self.width()).flat_map(|row| &row[start..start + width]).copied().collect();
            Tensor::from_array(([batch, tokens, width], found)).unwrap()
        };
        let cache = |all: &[f32]| {
            let shape = [batch, self.key_heads, PLACES, of_keys / self.key_heads];
            Tensor::from_array((shape, all.to_vec())).unwrap()
        };
        let lengths: Vec<i32> = past.iter().map(|past| i32::try_from(past + tokens - 1).unwrap()).collect();
        let longest = lengths.iter().max().unwrap() + 1;
        let mut inputs = ort::inputs![
            "past.key" => cache(keys), "past.value" => cache(values),
            "seqlens_k" => Tensor::from_array(([batch], lengths)).unwrap(),
            "total_sequence_length" => Tensor::from_array(ndarray::arr0(longest)).unwrap(),
            "rows" => Tensor::from_array(([1, 32], vec![0.0_f32; 32])).unwrap(),
        ];
        if self.name == "packed" {
            inputs.extend(ort::inputs!["query" => columns(0, self.width())]);
        } else {
            inputs.extend(ort::inputs![
                "query" => columns(0, of_queries), "key" => columns(of_queries, of_keys),
                "value" => columns(of_queries + of_keys, of_keys),
            ]);
        }
        let outputs = session.run(inputs).unwrap();
        let numbers = |name: &str| outputs[name].try_extract_tensor::<f32>().unwrap().1.to_vec();
        Attended { out: numbers("attended"), keys: numbers("present.key"), values: numbers("present.value"), ours }
    }

    /// What of a cache belongs to tokens, with so many in each row.
    fn filled(&self, cache: &[f32], lengths: &[usize]) -> Vec<f32> {
        let width = self.widths.1 / self.key_heads;
        let heads = cache.chunks(PLACES * width).enumerate();
        heads.flat_map(|(head, all)| &all[..lengths[head / self.key_heads] * width]).copied().collect()
    }

    fn tokens(&self, count: usize) -> Vec<f32> {
        rows_of_numbers(count * self.width() / 96 + 7).into_iter().skip(300).take(count * self.width()).collect()
    }
}

// The second one looks at four tokens, so that of nine and three, and of eleven, some are out of its sight. So many rows are
// shared by threads.
#[test]
fn an_attention_of_ours_is_that_of_the_library() {
    for attention in ATTENTIONS {
        for (past, tokens) in [(&[0][..], 7), (&[9], 3), (&[0, 5, 11], 1), (&[15; 200], 1)] {
            let rows = attention.tokens(past.len() * tokens);
            let (keys, values) = (attention.cache(past.len()), attention.cache(past.len()));
            let pass = |runtime: &Runtime| attention.pass(runtime, past, &rows, &keys, &values);
            let theirs = pass(&runtime().with_instructions(None));
            assert!(!theirs.ours);
            for runtime in with_ours() {
                let ours = pass(&runtime);
                assert!(ours.ours);
                close(&ours.out, &theirs.out);
                let after: Vec<usize> = past.iter().map(|past| past + tokens).collect();
                close(&attention.filled(&ours.keys, &after), &attention.filled(&theirs.keys, &after));
                close(&attention.filled(&ours.values, &after), &attention.filled(&theirs.values, &after));
                assert_eq!(ours.out.len(), past.len() * tokens * attention.widths.0);
            }
        }
    }
}

#[test]
fn an_attention_of_ours_gives_a_token_the_same_bits_in_a_prompt_and_in_a_step() {
    for (attention, runtime) in ATTENTIONS.iter().flat_map(|attention| with_ours().map(move |ours| (attention, ours))) {
        let (tokens, empty) = (attention.tokens(7), attention.cache(1));
        let together = attention.pass(&runtime, &[0], &tokens, &empty, &empty);
        let (mut keys, mut values, mut out) = (empty.clone(), empty, Vec::new());
        for (past, token) in tokens.chunks(attention.width()).enumerate() {
            let step = attention.pass(&runtime, &[past], token, &keys, &values);
            (keys, values) = (step.keys, step.values);
            out.extend(step.out);
        }
        assert_eq!(bits_of(&out), bits_of(&together.out), "{}", attention.name);
    }
}

/// Texts of `tests/fixtures/tiny-encoder`: of all lengths, 40 kinds of tokens.
fn tiny_texts() -> Vec<Vec<i64>> {
    (0..23).map(|text| (0..=text * 7 % 20).map(|place| (text * 11 + place * place * 3) % 40).collect()).collect()
}

/// What such an encoder says of some texts.
struct Encoded {
    /// Of each text 64 numbers a token.
    states: Vec<Vec<f32>>,
    /// 5 logits a text.
    harm: Vec<f32>,
    /// Whether its layers are ours.
    ours: bool,
}

fn encoded(runtime: &Runtime, workers: usize, size: u8, texts: &[Vec<i64>]) -> Encoded {
    let graph = format!("tests/fixtures/tiny-encoder/{size}.onnx");
    let (mut session, ours) = runtime.open_classifier(Path::new(&graph), workers, 0).unwrap();
    let tokens = texts.iter().map(Vec::len).max().unwrap();
    let padded = texts.iter().flat_map(|text| text.iter().copied().chain(std::iter::repeat(39)).take(tokens));
    let ids = Tensor::from_array(([texts.len(), tokens], padded.collect::<Vec<i64>>())).unwrap();
    let lengths: Vec<i32> = texts.iter().map(|text| i32::try_from(text.len()).unwrap()).collect();
    let lengths = Tensor::from_array(([texts.len()], lengths)).unwrap();
    let outputs = session.run(ort::inputs!["input_ids" => ids, "lengths" => lengths]).unwrap();
    let numbers = |name: &str| outputs[name].try_extract_tensor::<f32>().unwrap().1.to_vec();
    let states = numbers("layers.out");
    let of_texts = states.chunks(tokens * 64).zip(texts).map(|(states, text)| states[..text.len() * 64].to_vec());
    Encoded { states: of_texts.collect(), harm: numbers("harm"), ours }
}

#[test]
fn layers_of_ours_say_what_the_librarys_nodes_say() {
    for size in [16, 32, 64] {
        let theirs = encoded(&runtime().with_instructions(None), 1, size, &tiny_texts());
        assert!(!theirs.ours);
        for runtime in with_ours() {
            let ours = encoded(&runtime, 1, size, &tiny_texts());
            assert!(ours.ours);
            close(&ours.harm, &theirs.harm);
            for (ours, theirs) in ours.states.iter().zip(&theirs.states) {
                close(ours, theirs);
            }
        }
    }
}

// ONNX Runtime's nodes add in an order that depends on the batch.
#[test]
fn a_layer_of_ours_gives_a_text_the_same_bits_in_any_company() {
    let texts = tiny_texts();
    for size in [16, 32, 64] {
        // The threads share the rows of one, and two have a thread each.
        for workers in [1, 2] {
            for runtime in with_ours() {
                let together = encoded(&runtime, workers, size, &texts);
                for (text, expected) in texts.iter().zip(&together.states) {
                    let alone = encoded(&runtime, 2, size, std::slice::from_ref(text));
                    assert_eq!(bits_of(&alone.states[0]), bits_of(expected), "heads of {size}, {} tokens", text.len());
                }
            }
        }
    }
}
