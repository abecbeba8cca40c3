//! `dichroic models`: what is installed, whether it is intact, and how a model of one's own is added.
//!
//! Owns what is printed: lists and findings on standard output, remarks on standard error. Runs on the main thread.

mod add;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    progress::Bar,
    table::{aligned, printable},
};
use crate::{
    config::Config,
    domain::ModelId,
    registry::{BundleError, ComponentName, INSTALL, Unverified, installed},
};

/// Arguments of `dichroic models`.
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which shows no mark-up")]
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Folder of the models [default: models] [env: DICHROIC_MODELS_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) models_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// Show what is installed, without reading the models themselves
    #[command(after_help = "Examples:\n  dichroic models list\n  \
        dichroic models list --json | jq -r '.[] | [.model, .licence] | @tsv'")]
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Compare every file with the size and SHA-256 in its manifest; ends with 1 when one differs
    #[command(after_help = "Examples:\n  dichroic models verify\n  dichroic models verify alpha-4o-mini delta-3.1")]
    Verify {
        /// Identifiers [default: every installed one]
        #[arg(value_name = "ID")]
        ids: Vec<ModelId>,
    },
    /// Install a text classifier or generator of your own, in the layout that Hugging Face's Optimum exports
    Add(Box<add::AddArgs>),
}

/// Runs `dichroic models`.
///
/// # Errors
/// No model at all to verify, a folder that cannot be added, a closed output.
pub fn run(args: ModelsArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let models = config.models_dir.as_path();
    match args.command {
        ModelsCommand::List { json } => list(models, json),
        ModelsCommand::Verify { ids } => verify(models, &ids),
        ModelsCommand::Add(args) => add::run(&args, config).map(|()| ExitCode::SUCCESS),
    }
}

/// One installed model, as it is shown.
#[derive(Debug, Serialize)]
struct Row {
    id: ModelId,
    component: &'static str,
    model: String,
    licence: String,
    source: String,
    bytes: u64,
    manifest_sha256: String,
}

type Found = Result<Unverified, BundleError>;

/// What is installed of `ids`, in their order.
fn found(models: &Path, ids: &[ModelId]) -> Vec<(ModelId, ComponentName, Found)> {
    ids.iter()
        .flat_map(|&id| ComponentName::ALL.map(|component| (id, component)))
        .filter_map(|(id, component)| installed(models, id, component).transpose().map(|found| (id, component, found)))
        .collect()
}

fn list(models: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for (id, component, found) in found(models, &ModelId::ALL) {
        match found {
            Ok(model) => {
                let manifest = model.manifest();
                rows.push(Row {
                    id,
                    component: component.as_str(),
                    model: manifest.name.clone(),
                    licence: manifest.licence.clone(),
                    source: manifest.source.clone(),
                    // Without its company, which other identifiers have too.
                    bytes: manifest.alone().bytes(),
                    manifest_sha256: model.digest().to_owned(),
                });
            }
            Err(fault) => faults.push(fault),
        }
    }
    let text = if json { serde_json::to_string_pretty(&rows)? + "\n" } else { table(&rows) };
    io::stdout().lock().write_all(text.as_bytes())?;
    let mut remarks = io::stderr().lock();
    for fault in &faults {
        writeln!(remarks, "dichroic: {fault}")?;
    }
    if rows.is_empty() && faults.is_empty() && !json {
        writeln!(remarks, "No model in {}; check --models-dir, or {INSTALL}.", models.display())?;
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(rows: &[Row]) -> String {
    let heading = ["ID", "COMPONENT", "MODEL", "LICENCE", "SIZE", "MANIFEST"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        [
            row.id.to_string(),
            row.component.to_owned(),
            printable(&row.model),
            printable(&row.licence),
            megabytes(row.bytes),
            row.manifest_sha256.chars().take(12).collect(),
        ]
    });
    aligned(&std::iter::once(heading).chain(cells).collect::<Vec<_>>())
}

/// Of a million bytes each, with one decimal, rounded up: nothing has no size.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(100_000);
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

/// Tells each finding as soon as it is there: large models take their time.
fn verify(models: &Path, ids: &[ModelId]) -> anyhow::Result<ExitCode> {
    let named = !ids.is_empty();
    let ids = if named { ids } else { &ModelId::ALL[..] };
    let found = found(models, ids);
    let remedy = format!("in {}; check --models-dir, or {INSTALL}", models.display());
    // Whoever names an identifier wants it there.
    if let Some(absent) = ids.iter().find(|id| named && !found.iter().any(|(found, _, _)| found == *id)) {
        bail!("no model of {absent} is installed {remedy}");
    }
    if found.is_empty() {
        bail!("no model is installed {remedy}");
    }
    let mut out = io::stdout().lock();
    let mut intact = true;
    for (id, component, found) in found {
        let (detail, faults) = match found {
            Ok(model) => {
                let bar = Bar::new(format!("{id} {component}"));
                (
                    format!("{} files, {}", model.manifest().files.len(), megabytes(model.manifest().bytes())),
                    model.faults(&bar).collect(),
                )
            }
            Err(fault) => (String::new(), vec![fault]),
        };
        intact &= faults.is_empty();
        let name = format!("{:<15}  {:<9}", id.as_str(), component.as_str());
        if faults.is_empty() {
            writeln!(out, "ok    {name}  {detail}")?;
        }
        for fault in faults {
            writeln!(out, "FAIL  {name}  {fault}")?;
        }
    }
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_megabytes_rounded_up() {
        for (bytes, expected) in [(0, "0.0 MB"), (1, "0.1 MB"), (37_000_000, "37.0 MB"), (577_950_001, "578.0 MB")] {
            assert_eq!(megabytes(bytes), expected);
        }
    }
}
