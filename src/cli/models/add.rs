//! `dichroic models add`: a model of one's own becomes an identifier's text classifier or generator.
//!
//! The bundle is written beside its place, loaded and asked once, and only then moved there: what does not answer is
//! never installed.

mod classifier;
mod generator;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;

use super::super::{progress::Bar, table::printable};
use crate::{
    config::Config,
    domain::{Category, ModelId},
    registry::{
        Bundle, ComponentName, Unverified,
        export::{Export, Origin, Part, Task},
        folder,
    },
};

/// Arguments of `dichroic models add`.
#[derive(Debug, Args)]
#[command(
    after_help = "DIR holds config.json, tokenizer.json and model.onnx or onnx/model.onnx, as `optimum-cli export\n\
    onnx` writes them with --task text-classification or --task text-generation-with-past, or what\n\
    scripts/import of the sources makes of a GGUF file. config.json says which of the two it is.\n\
    A category that no label is mapped onto scores 0, also in the checks on what the server generates.\n\
    A generator is asked in its own chat template, with two English examples, unless --prompts has others.\n\n\
    Examples:\n  dichroic models add ./toxic-bert --id delta-3.1 --licence Apache-2.0 \\\n    \
    --map toxic=hate --map identity_hate=hate --map threat=violence --map obscene=sexual\n  \
    dichroic models add ./my-llama --id beta-3-haiku --licence Apache-2.0 --replace\n  \
    dichroic models add ./my-llama --id beta-3-haiku --prompts my-prompts.json\n  \
    dichroic models add ./toxic-int8 --id delta-3.1 --graph model_quantized.onnx --map toxic=hate"
)]
pub(super) struct AddArgs {
    /// Folder of the model
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Its graph, in DIR [default: onnx/model.onnx, or else model.onnx]
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Identifier whose text classifier or generator it becomes
    #[arg(long, value_name = "IDENTIFIER")]
    id: ModelId,
    /// Of a classifier: which category a label stands for; once for each label that counts
    #[arg(long, value_name = "LABEL=CATEGORY", value_parser = mapping)]
    map: Vec<(String, Category)>,
    /// Of a generator: its prompts, in the form of the prompts.json of an identifier
    #[arg(long, value_name = "FILE", conflicts_with = "map")]
    prompts: Option<PathBuf>,
    /// What to call the model [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// Licence of its weights, as an SPDX identifier
    #[arg(long, default_value = "not stated")]
    licence: String,
    /// Put it in the place of the one that is installed
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
    let component = component(args)?;
    let target = folder(&config.models_dir, args.id, component);
    if target.exists() && !args.replace {
        bail!("{} has a model in {} already; --replace puts this one in its place", args.id, target.display());
    }
    let (export, part) = match component {
        ComponentName::Generator => generator::understood(args, config)?,
        _ => classifier::understood(args)?,
    };
    let build = target.parent().context("a model's folder has no parent")?;
    fs::create_dir_all(build).with_context(|| format!("cannot make {}; check --models-dir", build.display()))?;
    // On the same file system as its place, and gone whatever happens below.
    let staging = tempfile::Builder::new()
        .prefix(&format!(".{component}."))
        .tempdir_in(build)
        .with_context(|| format!("cannot write into {}; run this as the owner of the models", build.display()))?;
    let fresh = staging.path().join("new");
    export.write(&fresh, origin(args)?, part, &Bar::new("copying files"))?;
    let bundle = Unverified::read(&fresh)?.verified(&Bar::new("comparing files"))?;
    let remarks = match component {
        ComponentName::Generator => generator::trial(&bundle, config),
        _ => classifier::trial(args, &bundle, config),
    }
    .with_context(|| {
        format!("{} is not added, because it does not answer as it must; try another export of it", args.dir.display())
    })?;
    let swapped = swap(&fresh, &target, &staging.path().join("old")).and_then(|()| fs::File::open(build)?.sync_all());
    swapped.with_context(|| {
        format!("cannot move the model to {}; run this as the owner of the models", target.display())
    })?;
    tell(args.id, component, &bundle, &target, &remarks)?;
    Ok(())
}

/// What the model becomes. Where the configuration names no architecture, labels tell a classifier.
fn component(args: &AddArgs) -> anyhow::Result<ComponentName> {
    let mapped = !args.map.is_empty();
    match (Task::of(&args.dir)?, mapped) {
        (Some(Task::Classification), _) | (None, true) => {
            if args.prompts.is_some() {
                bail!("{} is a classifier, which takes no --prompts", args.dir.display());
            }
            Ok(ComponentName::Text)
        }
        (Some(Task::Generation), false) => Ok(ComponentName::Generator),
        (Some(Task::Generation), true) => {
            bail!("{} generates text and has no labels; leave --map out", args.dir.display())
        }
        (None, false) => bail!(
            "{} names no architectures, so nobody can tell what the model is for; export it anew",
            args.dir.join("config.json").display()
        ),
    }
}

fn origin(args: &AddArgs) -> anyhow::Result<Origin> {
    let called = args.dir.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let called = called.unwrap_or_else(|| "unnamed".to_owned());
    Ok(Origin {
        source: format!("added from the folder {called}"),
        name: args.name.clone().unwrap_or(called),
        licence: args.licence.clone(),
    })
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

fn tell(id: ModelId, component: ComponentName, bundle: &Bundle, target: &Path, remarks: &[String]) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{id}  {component}  {}  {}", printable(&bundle.manifest().name), bundle.digest())?;
    let mut told = io::stderr().lock();
    writeln!(told, "Installed in {}. {}", target.display(), remarks.join("\n"))?;
    writeln!(told, "Restart the server to load it. `make models` would build the identifier's own model over it.")
}

/// The files of a model, and how to drive it.
type Understood = (Export, Part);

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
