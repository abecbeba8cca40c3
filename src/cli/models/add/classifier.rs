//! A sequence classifier that is added: its labels, and one text scored by it.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};

use super::{AddArgs, Understood};
use crate::{
    config::Config,
    domain::{Category, Scores},
    registry::{Bundle, export::Part, sequence::SequenceClassifier},
    runtime::{Forward as _, Runtime, TextClassifier, WindowTokenizer, ends},
};

/// Texts of different lengths, so that the graph is seen to take a batch with padding.
const TRIAL: [&str; 2] =
    ["ready", "This is a longer text, which makes the batch wider than the first text alone would."];

pub(super) fn understood(args: &AddArgs) -> anyhow::Result<Understood> {
    let model = SequenceClassifier::open(&args.dir, args.graph.as_deref())?;
    if args.map.is_empty() {
        bail!(
            "no label stands for a category; say which do with --map LABEL=CATEGORY: the model's labels are {}",
            model.labels().join(", ")
        );
    }
    let spec = model.spec(ends(&model.export().tokenizer())?, &args.map)?;
    Ok((model.into_export(), Part::TextClassifier(spec)))
}

/// What the model says of the first trial text, and of what it says nothing.
pub(super) fn trial(args: &AddArgs, bundle: &Bundle, config: &Config) -> anyhow::Result<Vec<String>> {
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    let tokenizer = WindowTokenizer::open(bundle)?;
    let mut classifier = TextClassifier::open(&runtime, bundle)?;
    let mut windows = Vec::new();
    for text in TRIAL {
        windows.extend(tokenizer.encode(text)?.raw);
    }
    let answer = classifier.run(&windows)?.into_iter().next().context("it answered nothing")?;
    let scores = Scores::new(answer.harm);
    let each: Vec<_> = Category::ALL.map(|category| format!("{} {}", category.as_str(), scores.get(category))).into();
    let mut remarks = vec![format!("It scores {:?}: {}.", TRIAL[0], each.join(", "))];
    let mapped: BTreeSet<&str> = args.map.iter().map(|(_, category)| category.as_str()).collect();
    let bare: Vec<_> =
        Category::ALL.iter().map(|category| category.as_str()).filter(|name| !mapped.contains(name)).collect();
    if !bare.is_empty() {
        remarks.push(format!("No label stands for {}: scored 0, whatever the text.", bare.join(", ")));
    }
    Ok(remarks)
}
