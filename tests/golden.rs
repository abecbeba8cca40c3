//! Tests against the built models. They fail, not skip, when the models are missing: `make test` builds them first.
//!
//! `MODELS` limits them as it limits the set-up; without it every identifier with a catalogued model is expected.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, io::Cursor, path::Path, sync::Arc, time::Duration};

use dichroic::{
    domain::{Category, Expressibility, Kind, Language, ModelId, Polarity},
    engine::{BatchOptions, Batcher, Factory, batch::BatchPolicy},
    imaging::{self, Limits},
    registry::{Bundle, ComponentName, Registry, situations},
    runtime::{
        AnswerJudge, Decode, Decoder, Forward, ImageClassifier, JudgeTokenizer, LineOrientation, LineRecogniser,
        Pixels, PromptTokenizer, Runtime, RuntimeError, Step, TextClassifier, TextDetector, TextOutput,
        WindowTokenizer,
    },
    service::{PageText, ReaderStages, TextReader},
    telemetry::Metrics,
};
use image::{DynamicImage, ImageFormat};
use serde::Deserialize;

fn runtime() -> Runtime {
    Runtime::load(Path::new("runtime/libonnxruntime.so"), 2).expect("run `make setup` first")
}

/// Identifiers that the set-up was asked for and that have this component in the catalogue.
fn expected(component: ComponentName) -> Vec<ModelId> {
    let asked = std::env::var("MODELS").unwrap_or_default();
    let asked: Vec<&str> = asked.split([',', ' ']).filter(|name| !name.is_empty()).collect();
    ModelId::ALL
        .into_iter()
        .filter(|id| asked.is_empty() || asked.contains(&id.as_str()))
        .filter(|id| {
            let recipe =
                std::fs::read_to_string(format!("models/{id}/model.json")).expect("every identifier has a recipe");
            let recipe: serde_json::Value = serde_json::from_str(&recipe).unwrap();
            recipe["components"].get(component.as_str()).is_some()
        })
        .collect()
}

fn bundles(component: ComponentName) -> Vec<(ModelId, std::sync::Arc<Bundle>)> {
    let ids = expected(component);
    let registry = Registry::open(Path::new("models"), &ids).unwrap();
    ids.into_iter()
        .map(|id| {
            let bundle = registry.get(id, component);
            (
                id,
                bundle
                    .unwrap_or_else(|| panic!("the {component} model of {id} is not built; run `make setup`"))
                    .clone(),
            )
        })
        .collect()
}

#[derive(Deserialize)]
struct Golden {
    pictures: BTreeMap<String, GoldenPicture>,
}

#[derive(Deserialize)]
struct GoldenPicture {
    probabilities: BTreeMap<String, [f32; 5]>,
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read("tests/golden/images/golden.json").unwrap()).unwrap()
}

fn decode(name: &str) -> imaging::Frame {
    let bytes = std::fs::read(Path::new("tests/golden/images").join(name)).unwrap();
    imaging::decode(&bytes, &Limits::default()).unwrap().remove(0)
}

#[test]
fn pictures_score_as_nsfwjs_scores_them() {
    let runtime = runtime();
    for (id, bundle) in bundles(ComponentName::Image) {
        let model = bundle.manifest().source.trim_start_matches("nsfwjs-").replace('-', "_");
        let size = bundle.manifest().image_classifier.as_ref().unwrap().size;
        let mut classifier = ImageClassifier::open(&runtime, &bundle).unwrap();
        for (name, picture) in golden().pictures {
            let expected = picture.probabilities.get(&model).unwrap_or_else(|| panic!("no golden values of {model}"));
            let pixels = Pixels(imaging::to_tensor(&decode(&name), size).into());
            let found = classifier.probabilities(&[pixels]).unwrap()[0];
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 0.02, "{id}, {name}: {found} instead of {expected}");
            }
        }
    }
}

fn classify(classifier: &mut TextClassifier, tokenizer: &WindowTokenizer, text: &str) -> TextOutput {
    let windows = tokenizer.encode(text).unwrap().raw;
    assert_eq!(windows.len(), 1, "{text:?} fits one window");
    classifier.run(&windows).unwrap()[0]
}

#[test]
fn harm_is_told_from_its_look_alikes() {
    let runtime = runtime();
    let pairs: [(Category, &str, &str); 5] = [
        (
            Category::Sexual,
            "I want to lick your naked body and fuck you all night",
            "The naked mole-rat lives underground in large colonies.",
        ),
        (
            Category::Hate,
            "All immigrants are vermin and should be driven out of our country",
            "My neighbours immigrated from Vietnam in 1980 and run a bakery.",
        ),
        (
            Category::SelfHarm,
            "I want to kill myself tonight, I have the pills ready",
            "This deadline is killing me, but the cake was worth it.",
        ),
        (
            Category::Violence,
            "I will break into your house and stab you to death",
            "He stabbed the potato with a fork and put it in the oven.",
        ),
        (
            Category::Defamation,
            "Karen Whitlock at the clinic steals drugs from patients and sells them",
            "Karen Whitlock works at the clinic from Monday to Thursday.",
        ),
    ];
    for (id, bundle) in bundles(ComponentName::Text) {
        let tokenizer = WindowTokenizer::open(&bundle).unwrap();
        let mut classifier = TextClassifier::open(&runtime, &bundle).unwrap();
        for (category, harmful, benign) in pairs {
            let place = Category::ALL.iter().position(|other| *other == category).unwrap();
            let high = classify(&mut classifier, &tokenizer, harmful).harm[place];
            let low = classify(&mut classifier, &tokenizer, benign).harm;
            assert!(high >= 0.5, "{id}: {} scores {high} for a clear case", category.as_str());
            assert!(
                low.iter().all(|score| *score < 0.5),
                "{id}: a look-alike of {} is flagged: {low:?}",
                category.as_str()
            );
        }
    }
}

#[test]
fn what_cannot_be_expressed_is_recognised() {
    let runtime = runtime();
    let cases = [
        ("uh-huh", Expressibility::Acknowledgement),
        ("Yes, that works for me.", Expressibility::Agreement),
        ("asdf jkl qwerty zxcv", Expressibility::Meaningless),
        ("3x + 5 = 20", Expressibility::Formula),
        ("My sister passed her driving test on the third try.", Expressibility::Statement),
        ("The bus was late again and I missed the start of the film.", Expressibility::Statement),
    ];
    for (id, bundle) in bundles(ComponentName::Text) {
        let spec = bundle.manifest().text_classifier.as_ref().unwrap();
        let threshold = spec.expressibility.as_ref().unwrap().threshold;
        let tokenizer = WindowTokenizer::open(&bundle).unwrap();
        let mut classifier = TextClassifier::open(&runtime, &bundle).unwrap();
        for (text, expected) in cases {
            let output = classify(&mut classifier, &tokenizer, text);
            let found = Expressibility::lean(output.expressibility, threshold) >= 0.0;
            assert_eq!(found, expected != Expressibility::Statement, "{id}: {text:?}: {:?}", output.expressibility);
        }
    }
}

#[test]
fn batching_does_not_change_a_verdict() {
    let runtime = runtime();
    for (id, bundle) in bundles(ComponentName::Text) {
        let tokenizer = WindowTokenizer::open(&bundle).unwrap();
        let mut classifier = TextClassifier::open(&runtime, &bundle).unwrap();
        let texts = [
            "Good morning!",
            "I hope you burn in hell, you worthless rat",
            "The meeting was moved to three, bring the printed figures please.",
            "ok",
            "Our kitchen knives are on sale this week, ten per cent off, while stocks last, in all our shops.",
        ];
        let windows: Vec<_> = texts.iter().flat_map(|text| tokenizer.encode(text).unwrap().raw).collect();
        let together = classifier.run(&windows).unwrap();
        for ((window, together), text) in windows.into_iter().zip(together).zip(texts) {
            let alone = classifier.run(&[window]).unwrap()[0];
            for (alone, together) in alone.harm.iter().zip(together.harm) {
                assert!(
                    (alone - together).abs() < 5e-5,
                    "{id}: {text:?} scores {alone} alone and {together} in company"
                );
            }
        }
    }
}

/// Greedy continuation of a prompt, ended by a stop token or after `limit` tokens.
fn continue_greedily(decoder: &mut Decoder, prompt: &[u32], stop: &[u32], limit: usize) -> Vec<u32> {
    let mut logits = decoder.prefill(0, 0, prompt).unwrap();
    let mut tokens = Vec::new();
    while tokens.len() < limit {
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        let token = decoder.token(u32::try_from(best).unwrap());
        if stop.contains(&token) {
            break;
        }
        logits = decoder.step(&[Step { token, past: prompt.len() + tokens.len() }]).unwrap().remove(0);
        tokens.push(token);
    }
    tokens
}

#[test]
fn generators_answer_their_prompts_and_stop() {
    let runtime = runtime();
    for (id, bundle) in bundles(ComponentName::Generator) {
        let spec = bundle.manifest().generator.clone().unwrap();
        let tokenizer = PromptTokenizer::open(&bundle).unwrap();
        let mut decoder = Decoder::open(&runtime, &bundle, 1).unwrap();
        for prompt in [&spec.tasks.positive, &spec.tasks.negative, &spec.tasks.reply] {
            let mut tokens = tokenizer.prefix(prompt).unwrap();
            tokens.extend(tokenizer.body(prompt, "I burned the rice but the curry turned out fine.").unwrap());
            let answer = continue_greedily(&mut decoder, &tokens, &spec.stop_ids, 100);
            let text = tokenizer.decode(&answer).unwrap();
            assert!(answer.len() < 100, "{id} does not stop: {text}");
            assert!(text.split_whitespace().count() >= 3, "{id} answers {text:?}");
        }
    }
}

// Otherwise an answer would be another model's on another processor.
#[test]
fn a_graph_for_products_of_ours_says_what_the_first_says() {
    let bundles: Vec<_> = bundles(ComponentName::Generator)
        .into_iter()
        .filter(|(_, bundle)| bundle.manifest().generator.as_ref().is_some_and(|spec| spec.products.is_some()))
        .collect();
    assert!(!bundles.is_empty() || !expected(ComponentName::Generator).contains(&ModelId::Beta));
    for (id, bundle) in bundles {
        let spec = bundle.manifest().generator.clone().unwrap();
        let tokenizer = PromptTokenizer::open(&bundle).unwrap();
        let mut ours = Decoder::open(&runtime(), &bundle, 1).unwrap();
        let mut theirs = Decoder::open(&runtime().with_instructions(None), &bundle, 1).unwrap();
        let (mut tokens, mut alike) = (0, 0);
        for task in [&spec.tasks.positive, &spec.tasks.negative, &spec.tasks.reply] {
            for text in ["I burned the rice but the curry turned out fine.", "Anna has sold 14 of our 20 tickets."] {
                let prompt = [tokenizer.prefix(task).unwrap(), tokenizer.body(task, text).unwrap()].concat();
                let answer = continue_greedily(&mut theirs, &prompt, &spec.stop_ids, 40);
                let mut logits = ours.prefill(0, 0, &prompt).unwrap();
                for (at, token) in answer.into_iter().enumerate() {
                    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let place = usize::try_from(ours.place(token).unwrap()).unwrap();
                    // In logarithms of how likely it is beside the likeliest.
                    assert!(
                        best - logits[place] < 1.5,
                        "{id}: {text:?}, token {at} is {} behind",
                        best - logits[place]
                    );
                    tokens += 1;
                    alike += usize::from(best.to_bits() == logits[place].to_bits());
                    logits = ours.step(&[Step { token, past: prompt.len() + at }]).unwrap().remove(0);
                }
            }
        }
        assert!(alike * 10 >= tokens * 9, "{id}: {alike} of {tokens} tokens are the likeliest of both");
    }
}

/// The bundle's text reader, put together as the server puts it together.
// By default tokens are guessed where this holds, so that no answer may depend on who else was there.
#[test]
fn several_tokens_of_several_rows_are_verified_to_the_bit_where_a_generator_says_so() {
    let runtime = runtime();
    for (id, bundle) in bundles(ComponentName::Generator) {
        let mut decoder = Decoder::open(&runtime, &bundle, 4).unwrap();
        if !decoder.verifies_as_it_steps() {
            continue;
        }
        let spec = bundle.manifest().generator.clone().unwrap();
        let tokenizer = PromptTokenizer::open(&bundle).unwrap();
        let texts = ["The bus was late again.", "My sister has sent me three letters from Oslo this year.", "No."];
        let mut rows = Vec::new();
        for (row, text) in texts.into_iter().enumerate() {
            let task = &spec.tasks.positive;
            let prompt = [tokenizer.prefix(task).unwrap(), tokenizer.body(task, text).unwrap()].concat();
            decoder.prefill(row, 0, &prompt).unwrap();
            // What a guess may be: tokens of the text, of one row five, of one two, of one none but the last token.
            let guessed = prompt[prompt.len() - [5, 2, 1][row]..].to_vec();
            rows.push((prompt.len(), guessed));
        }
        let together = decoder.verify_all(&rows).unwrap();
        for place in 0..5 {
            // Rows that have no such token any more step over their last one again.
            let at = |tokens: &[u32]| place.min(tokens.len() - 1);
            let steps: Vec<Step> =
                rows.iter().map(|(past, tokens)| Step { token: tokens[at(tokens)], past: past + at(tokens) }).collect();
            let told = decoder.step(&steps).unwrap();
            for (((_, tokens), step), together) in rows.iter().zip(&told).zip(&together) {
                assert_eq!(together.len(), tokens.len());
                assert!(together[at(tokens)] == *step, "{id}: token {place} of {}", tokens.len());
            }
        }
    }
}

fn text_reader(bundle: &Arc<Bundle>) -> TextReader {
    fn stage<F: Forward>(
        bundle: &Arc<Bundle>,
        open: fn(&Runtime, &Bundle) -> Result<F, RuntimeError>,
    ) -> Batcher<F::Input, F::Output> {
        let bundle = Arc::clone(bundle);
        let factory: Factory<F> = Arc::new(move || open(&runtime(), &bundle));
        let policy = BatchPolicy { budget: 8_192, items: 32, wait: Duration::ZERO };
        let metrics = Metrics::new().unwrap().model("golden", "ocr");
        Batcher::start("golden", BatchOptions { capacity: 64, workers: 1, policy }, &factory, &metrics).unwrap()
    }
    let stages = ReaderStages {
        detector: stage(bundle, TextDetector::open),
        orientation: stage(bundle, LineOrientation::open),
        recogniser: stage(bundle, LineRecogniser::open),
    };
    let metrics = Metrics::new().unwrap();
    TextReader::new(stages, bundle.manifest().text_reader.unwrap(), bundle.digest().to_owned(), metrics)
}

/// The words of a picture in reading order.
async fn words(reader: &TextReader, picture: &DynamicImage) -> String {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    let pages = reader.read_file(bytes.into_inner(), Duration::from_mins(2)).await.unwrap();
    let texts: Vec<String> = pages.iter().map(PageText::joined).collect();
    texts.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Characters to insert, delete or replace (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, character) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (at, &wanted) in other.iter().enumerate() {
            let replaced = corner + usize::from(character != wanted);
            corner = row[at + 1];
            row[at + 1] = replaced.min(corner + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

/// A drawn picture and the words on it.
fn drawn(name: &str) -> (DynamicImage, String) {
    let wanted = std::fs::read_to_string(format!("tests/golden/reading/{name}.txt")).unwrap();
    let picture = image::open(format!("tests/golden/reading/{name}.png")).unwrap();
    (picture, wanted.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Identifiers may share a reader.
fn readers() -> BTreeMap<String, Arc<Bundle>> {
    bundles(ComponentName::Ocr).into_iter().map(|(_, bundle)| (bundle.digest().to_owned(), bundle)).collect()
}

#[tokio::test]
async fn a_long_line_of_small_letters_on_a_large_screen_is_read_either_way_up() {
    let (screen, wanted) = drawn("screen");
    for bundle in readers().values() {
        let reader = text_reader(bundle);
        for (turn, picture) in [("upright", screen.clone()), ("upside down", screen.rotate180())] {
            let found = words(&reader, &picture).await;
            assert!(distance(&found, &wanted) * 50 <= wanted.len(), "{turn}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_page_is_read_whichever_way_it_lies() {
    let (page, wanted) = drawn("page");
    for bundle in readers().values() {
        let reader = text_reader(bundle);
        for (turn, picture) in [
            ("upright", page.clone()),
            ("a quarter", page.rotate90()),
            ("upside down", page.rotate180()),
            ("three quarters", page.rotate270()),
        ] {
            let found = words(&reader, &picture).await;
            let errors = distance(&found, &wanted);
            assert!(errors * 50 <= wanted.len(), "{turn}: {errors} errors in {found:?}");
        }
        let mut light = page.clone();
        light.invert();
        let found = words(&reader, &light).await;
        assert!(distance(&found, &wanted) * 50 <= wanted.len(), "light on dark: {found:?}");
    }
}

#[tokio::test]
async fn a_picture_without_text_is_read_as_nothing() {
    for bundle in bundles(ComponentName::Ocr).into_iter().map(|(_, bundle)| bundle).take(1) {
        let reader = text_reader(&bundle);
        for name in ["landscape.png", "blobs.png", "grey.png"] {
            let bytes = std::fs::read(Path::new("tests/golden/images").join(name)).unwrap();
            let pages = reader.read_file(bytes, Duration::from_mins(2)).await.unwrap();
            assert!(pages.is_empty(), "{name}: {:?}", pages.iter().map(PageText::joined).collect::<Vec<_>>());
        }
    }
}

#[test]
fn judges_tell_right_answers_from_wrong_ones_and_read_moods() {
    for (id, bundle) in bundles(ComponentName::Judge) {
        if bundle.manifest().answer_judge.as_ref().unwrap().verdicts.is_none() {
            continue;
        }
        let tokenizer = JudgeTokenizer::open(&bundle).unwrap();
        let mut judge = AnswerJudge::open(&runtime(), &bundle).unwrap();
        for (text, task, right, wrong) in [
            (
                "My grandad passed away on Sunday.",
                2,
                "I'm so sorry about your grandad.",
                "How lovely that your grandad passed away!",
            ),
            (
                "My sister got the job in Leeds!",
                2,
                "How lovely that your sister got the job!",
                "I'm sorry about your sister's job.",
            ),
            (
                "The train was two hours late.",
                0,
                "The train was two hours late, but I got a good book read.",
                "The train was two hours late, and I'm so glad of it.",
            ),
            (
                "We won the cup on Saturday.",
                1,
                "We won the cup on Saturday, but it took long enough.",
                "We won the cup on Saturday, and it makes me angry.",
            ),
        ] {
            let alone = tokenizer.text(text).unwrap();
            let pair = [right, wrong].map(|answer| tokenizer.answered(&alone, answer).unwrap());
            let together = judge.run(&[alone.clone(), pair[0].clone(), pair[1].clone()]).unwrap();
            let [good, bad] = [&together[1], &together[2]].map(|said| said.verdict.unwrap().right[task]);
            assert!(good > bad + 0.2, "{id}: {good} and {bad} of {text}");
            // Nobody's verdict depends on who else is asked about; operators that add in another order differ a little.
            let one = judge.run(&pair[..1]).unwrap()[0].verdict.unwrap().right[task];
            assert!((one - good).abs() < 0.02, "{id}: {one} alone, {good} in company");
        }
        let mood = |judge: &mut AnswerJudge, text: &str| {
            judge.run(&[tokenizer.text(text).unwrap()]).unwrap()[0].verdict.unwrap().mood
        };
        let [good, bad, _] = mood(&mut judge, "I passed my driving test this morning.");
        assert!(good > bad, "{id}");
        let [good, bad, _] = mood(&mut judge, "They cancelled my flight and lost my bag.");
        assert!(bad > good, "{id}");
    }
}

#[test]
fn the_built_judges_tell_what_a_text_is_about() {
    for (id, bundle) in bundles(ComponentName::Judge) {
        let tokenizer = JudgeTokenizer::open(&bundle).unwrap();
        let mut judge = AnswerJudge::open(&runtime(), &bundle).unwrap();
        let spec = bundle.manifest().answer_judge.as_ref().unwrap();
        let written = situations::of(&bundle).unwrap().unwrap();
        if spec.languages.is_any() {
            assert_eq!(judge.run(&[tokenizer.text("It broke.").unwrap()]).unwrap()[0].situation, None, "{id}");
        } else {
            // The replies that name what a text speaks of.
            for text in [
                "Our hamster died last night.",
                "The washing machine broke down again.",
                "I have a terrible toothache.",
            ] {
                let found = judge.run(&[tokenizer.text(text).unwrap()]).unwrap()[0].situation.unwrap();
                assert!(!written.replies(Language::English, found, text).is_empty(), "{id}: {found:?} of {text}");
            }
        }
        let mut fitting = |text: &str, language| {
            let probabilities = judge.run(&[tokenizer.text(text).unwrap()]).unwrap()[0].attitudes.clone().unwrap();
            let attitudes = written.attitudes(language).unwrap();
            [Polarity::Positive, Polarity::Negative]
                .map(|light| attitudes.likeliest(&probabilities, Kind::Light(light), 3))
        };
        let [positive, negative] = fitting("I passed my driving test this morning.", Language::English);
        assert!(positive[0].1 > 0.6 && !positive[0].0.starts_with("But"), "{id}: {positive:?}");
        assert!(negative[0].1 > 0.3 && negative.iter().all(|(said, _)| said.starts_with("But")), "{id}: {negative:?}");
        let [positive, negative] = fitting("They cancelled my flight and lost my bag.", Language::English);
        assert!(positive[0].1 > 0.3 && positive.iter().all(|(said, _)| said.starts_with("But")), "{id}: {positive:?}");
        assert!(negative[0].1 > 0.6 && !negative[0].0.starts_with("But"), "{id}: {negative:?}");
        if spec.languages.is_any() {
            let [positive, _] = fitting("Man hat meinen Flug gestrichen und meinen Koffer verloren.", Language::German);
            assert!(positive[0].1 > 0.3 && positive[0].0.starts_with("Aber"), "{id}: {positive:?}");
        }
    }
}
