//! `dichroic models add`: a sequence classifier of one's own becomes an identifier's text classifier.
//!
//! The bundle is written beside its place, loaded and asked once, and only then moved there: what does not answer is
//! never installed. Refuses generators: their prompts and caches need the conversion of `scripts/`.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;

use super::super::table::printable;
use crate::{
    config::Config,
    domain::{Category, ModelId, Scores},
    registry::{
        Bundle, ComponentName, folder,
        sequence::{Origin, SequenceClassifier},
    },
    runtime::{Forward as _, Runtime, TextClassifier, TextOutput, WindowTokenizer, ends},
};

/// Texts of different lengths, so that the graph is seen to take a batch with padding.
const TRIAL: [&str; 2] =
    ["ready", "This is a longer text, which makes the batch wider than the first text alone would."];

/// Arguments of `dichroic models add`.
#[derive(Debug, Args)]
#[command(after_help = "DIR holds config.json (with id2label), tokenizer.json and model.onnx or onnx/model.onnx, as\n\
    `optimum-cli export onnx --task text-classification` writes them.\n\
    A category that no label is mapped onto scores 0, also in the checks on what the server generates.\n\
    Models that generate text cannot be added this way.\n\n\
    Examples:\n  dichroic models add ./toxic-bert --id delta-3.1 --licence Apache-2.0 \\\n    \
    --map toxic=hate --map identity_hate=hate --map threat=violence --map obscene=sexual")]
pub(super) struct AddArgs {
    /// Folder of the model
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Identifier whose text classifier it becomes
    #[arg(long, value_name = "IDENTIFIER")]
    id: ModelId,
    /// Which category a label stands for; once for each label that counts
    #[arg(long, value_name = "LABEL=CATEGORY", required = true, value_parser = mapping)]
    map: Vec<(String, Category)>,
    /// What to call the model [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// Licence of its weights, as an SPDX identifier
    #[arg(long, default_value = "not stated")]
    licence: String,
    /// Put it in the place of the text classifier that is installed
    #[arg(long)]
    replace: bool,
}

/// A label may hold an equals sign, a category does not.
fn mapping(text: &str) -> Result<(String, Category), String> {
    let (label, category) = text.rsplit_once('=').ok_or("write LABEL=CATEGORY, such as toxic=hate")?;
    let category = category.parse::<Category>().map_err(|error| error.to_string())?;
    Ok((label.to_owned(), category))
}

pub(super) fn run(args: &AddArgs, config: &Config) -> anyhow::Result<()> {
    let target = folder(&config.models_dir, args.id, ComponentName::Text);
    if target.exists() && !args.replace {
        bail!(
            "{} has a text classifier in {} already; --replace puts this one in its place",
            args.id,
            target.display()
        );
    }
    let model = SequenceClassifier::open(&args.dir)?;
    let spec = model.spec(ends(&model.tokenizer())?, &args.map)?;
    let called = args.dir.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let called = called.unwrap_or_else(|| "unnamed".to_owned());
    let origin = Origin {
        source: format!("added from the folder {called}"),
        name: args.name.clone().unwrap_or(called),
        licence: args.licence.clone(),
    };
    let build = target.parent().context("a model's folder has no parent")?;
    fs::create_dir_all(build).with_context(|| format!("cannot make {}; check --models-dir", build.display()))?;
    // On the same file system as its place, and gone whatever happens below.
    let staging = tempfile::Builder::new()
        .prefix(".text.")
        .tempdir_in(build)
        .with_context(|| format!("cannot write into {}; run this as the owner of the models", build.display()))?;
    let fresh = staging.path().join("new");
    model.write(&fresh, origin, spec)?;
    let bundle = Bundle::open(&fresh)?;
    let answer = trial(&bundle, config).with_context(|| {
        format!("{} is not added, because it gives no answer here; try another export of it", args.dir.display())
    })?;
    swap(&fresh, &target, &staging.path().join("old")).with_context(|| {
        format!("cannot move the model to {}; run this as the owner of the models", target.display())
    })?;
    tell(args, &bundle, &target, &answer)?;
    Ok(())
}

/// Puts `fresh` at `target`. What was there moves to `old`, and back when that fails.
fn swap(fresh: &Path, target: &Path, old: &Path) -> io::Result<()> {
    let replaced = target.exists();
    if replaced {
        fs::rename(target, old)?;
    }
    fs::rename(fresh, target).or_else(|error| {
        if replaced {
            fs::rename(old, target)?;
        }
        Err(error)
    })
}

/// What the model says of the first trial text.
fn trial(bundle: &Bundle, config: &Config) -> anyhow::Result<TextOutput> {
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    let tokenizer = WindowTokenizer::open(bundle)?;
    let mut classifier = TextClassifier::open(&runtime, bundle)?;
    let mut windows = Vec::new();
    for text in TRIAL {
        windows.extend(tokenizer.encode(text)?.raw);
    }
    let answers = classifier.run(&windows)?;
    answers.into_iter().next().context("it answered nothing")
}

fn tell(args: &AddArgs, bundle: &Bundle, target: &Path, answer: &TextOutput) -> io::Result<()> {
    let scores = Scores::new(answer.harm);
    let each: Vec<_> = Category::ALL.map(|category| format!("{} {}", category.as_str(), scores.get(category))).into();
    writeln!(io::stdout().lock(), "{}  text  {}  {}", args.id, printable(&bundle.manifest().name), bundle.digest())?;
    let mut remarks = io::stderr().lock();
    writeln!(remarks, "Installed in {}. It scores {:?}: {}.", target.display(), TRIAL[0], each.join(", "))?;
    let mapped: BTreeSet<&str> = args.map.iter().map(|(_, category)| category.as_str()).collect();
    let bare: Vec<_> =
        Category::ALL.iter().map(|category| category.as_str()).filter(|name| !mapped.contains(name)).collect();
    if !bare.is_empty() {
        writeln!(remarks, "No label stands for {}: scored 0, whatever the text.", bare.join(", "))?;
    }
    writeln!(remarks, "Restart the server to load it. `make models` would build the identifier's own model over it.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_ends_with_the_category() {
        assert_eq!(mapping("toxic=hate"), Ok(("toxic".into(), Category::Hate)));
        assert_eq!(mapping("a = b=self_harm"), Ok(("a = b".into(), Category::SelfHarm)));
        assert!(mapping("toxic").unwrap_err().contains("LABEL=CATEGORY"));
        assert!(mapping("toxic=rude").unwrap_err().contains("sexual, hate, self_harm, violence, defamation"));
    }
}
