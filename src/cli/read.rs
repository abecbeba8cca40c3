//! `dichroic read`: what the text reader of an identifier reads in picture files, one JSON object a line.
//!
//! For measuring the reader, which no operation shows the text of; hidden from the help. Runs on the main thread.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::compose::Composer;
use crate::{
    config::Config,
    domain::ModelId,
    registry::{Bundle, ComponentName},
    runtime::Runtime,
    service::PageText,
    telemetry::Metrics,
};

/// Arguments of `dichroic read`.
#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    /// Pictures
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Whose reader
    #[arg(long, value_name = "ID", default_value = "alpha-4o-mini")]
    model: ModelId,
}

/// Reads every file. One that cannot be judged is told in its line.
pub(super) fn run(args: &ReadArgs, config: &Config) -> anyhow::Result<()> {
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    let build = config.models_dir.join(args.model.as_str()).join("build");
    let bundle = Arc::new(Bundle::open(&build.join(ComponentName::Ocr.as_str()))?);
    let metrics = Metrics::new().context("cannot set up metrics")?;
    let reader = Composer::new(config, runtime, metrics).reader(args.model, &bundle)?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut out = io::stdout().lock();
    for file in &args.files {
        let name = file.display().to_string();
        let bytes = fs::read(file).with_context(|| format!("cannot read {name}"))?;
        let line = match tokio.block_on(reader.read_file(bytes, config.request_timeout)) {
            Ok(pages) => {
                let text: Vec<String> = pages.iter().map(PageText::joined).collect();
                json!({"file": name, "text": text.join("\n"), "pages": pages})
            }
            Err(error) => json!({"file": name, "error": error.to_string()}),
        };
        writeln!(out, "{line}")?;
    }
    Ok(())
}
