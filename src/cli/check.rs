//! `dichroic check`: a doctor that tries every part the server stands on, and says what is wrong with it. With
//! `--bundle` it looks at an unpacked bundle instead, and loads nothing of it.

use std::{
    io::{self, Write as _},
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use time::OffsetDateTime;

use super::{
    compose::{Composer, placed},
    progress::Bar,
    serve::workers,
};
use crate::{
    access::{KeyStore, RedisOptions, probe_redis},
    config::{Config, ConfigError, ServeFlags},
    domain::Device,
    http::Tls,
    registry::{Hashing, Registry, Release},
    runtime::Runtime,
    service::Services,
    telemetry::Metrics,
};

/// Arguments of `dichroic check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Verify this unpacked bundle and nothing else: every file against its SHA256SUMS, none missing, none beside
    #[arg(long, value_name = "DIR")]
    pub(super) bundle: Option<PathBuf>,
    /// The minisign public key that the bundle's SHA256SUMS must be signed with
    #[arg(long, value_name = "FILE", requires = "bundle")]
    pub(super) public_key: Option<PathBuf>,
    #[command(flatten)]
    pub(super) flags: ServeFlags,
}

/// One row of the table.
struct Finding {
    part: String,
    ok: bool,
    detail: String,
}

/// Collects findings; a failed part makes the exit code 1.
#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add<T, E: std::fmt::Display>(
        &mut self,
        part: &str,
        result: Result<T, E>,
        detail: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match result {
            Ok(value) => {
                self.0.push(Finding { part: part.into(), ok: true, detail: detail(&value) });
                Some(value)
            }
            Err(error) => {
                self.0.push(Finding { part: part.into(), ok: false, detail: format!("{error:#}") });
                None
            }
        }
    }

    /// Prints the table; the exit code is 1 when any part failed.
    fn conclude(&self) -> anyhow::Result<ExitCode> {
        self.print()?;
        Ok(if self.0.iter().all(|finding| finding.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn print(&self) -> io::Result<()> {
        let width = self.0.iter().map(|finding| finding.part.chars().count()).max().unwrap_or(0);
        let mut out = io::stdout().lock();
        for Finding { part, ok, detail } in &self.0 {
            let mark = if *ok { "ok  " } else { "FAIL" };
            writeln!(out, "{mark}  {part:<width$}  {detail}")?;
        }
        Ok(())
    }
}

/// Checks and prints; the exit code is 1 when any part failed.
///
/// # Errors
/// Only a closed standard output: findings are rows of the table.
pub(super) fn run(config: Result<Config, ConfigError>) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    if let Some(config) = report.add("configuration", config, |config| format!("listen on {}", config.listen)) {
        examine(&config, &mut report);
    }
    report.conclude()
}

/// Verifies an unpacked bundle: who made its list of hashes, when a key is given, and the files on that list.
///
/// # Errors
/// As [`run`].
pub(super) fn bundle(dir: &Path, key: Option<&Path>) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    if let Some(release) = report.add("list", Release::open(dir), |release| format!("{} files", release.len())) {
        if let Some(key) = key {
            report.add("signature", release.verify_signature(key), |comment| format!("of this key: {comment}"));
        }
        report.add("files", release.verify_files(&Bar::new("comparing files")), |()| {
            let unjudged = "; who signed was not asked: name a key with --public-key";
            format!("each as listed, none beside{}", if key.is_none() { unjudged } else { "" })
        });
    }
    report.conclude()
}

/// Whether there is a key; an error where `serve` would refuse to start.
fn usable_keys(config: &Config) -> anyhow::Result<bool> {
    let keys = KeyStore::open(Some(&config.keys_file), config.api_key.clone(), config.usage_limit)?;
    config.require_key_for_public_listen(keys.is_empty())?;
    Ok(!keys.is_empty())
}

/// How long Redis takes to be connected to and to decide. A server starts without it, too.
fn redis_answers(options: &RedisOptions) -> anyhow::Result<Duration> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(tokio.block_on(probe_redis(options))?)
}

/// What the certificate says of itself; an error where `serve` would refuse to start or clients would refuse it.
fn usable_certificate(config: &Config) -> anyhow::Result<String> {
    let Some(files) = &config.tls else {
        let end = if config.talks_in_clear() {
            "none: end it before this server"
        } else {
            "none: only this machine can connect"
        };
        return Ok(end.into());
    };
    let tls = Tls::open(&files.certificate, &files.key, files.client_ca.as_deref())?;
    tls.in_force(OffsetDateTime::now_utc())?;
    let clients = if tls.asks_for_client_certificates() { ", clients must show one" } else { "" };
    Ok(format!("certificate {}{clients}", tls.validity()))
}

fn examine(config: &Config, report: &mut Report) {
    report.add("keys", usable_keys(config), |usable| {
        let none = "none yet; run `dichroic keys create` or set DICHROIC_API_KEY";
        if *usable { "at least one usable key".into() } else { none.into() }
    });
    if let Some(options) = &config.redis {
        report.add("redis", redis_answers(options), |time| {
            format!("{} answered in {:.1} ms, connecting included", options.server, time.as_secs_f64() * 1000.0)
        });
    }
    report.add("TLS", usable_certificate(config), String::clone);
    let runtime = report.add("runtime", Runtime::load(&config.runtime_library, config.threads.get()), |runtime| {
        format!("{} threads, {}", config.threads, runtime.build_info())
    });
    let runtime = runtime.and_then(|runtime| {
        report.add("device", placed(runtime, config.device), |(runtime, passed_over)| match passed_over {
            Some(error) => format!("{}, because {error}", runtime.device()),
            None => runtime.device().to_string(),
        })
    });
    let device = runtime.as_ref().map_or(Device::Cpu, |(runtime, _)| runtime.device());
    let start = Instant::now();
    let bar = Bar::new("comparing files");
    let hashing = Hashing { threads: config.threads, progress: &bar };
    let registry = Registry::open_for(device, &config.models_dir, &config.models, hashing);
    drop(bar);
    let registry = report.add("checksums", registry, |registry| {
        format!("{} models verified in {:.1} s", registry.iter().count(), start.elapsed().as_secs_f32())
    });
    let (Some((runtime, _)), Some(registry)) = (runtime, registry) else { return };
    // As `serve` has it: how many models are opened at a time is how much memory that takes.
    let pool = workers(config.threads.get()).build_global();
    let Some(()) = report.add("pool", pool, |()| format!("{} threads", config.threads)) else { return };
    let Some(metrics) = report.add("metrics", Metrics::new(), |_| "registered".into()) else { return };
    let services = Composer::new(config, runtime, Arc::clone(&metrics)).services(&registry);
    let Some(services) = report.add("models", services, |_| "loaded".into()) else { return };
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Some(tokio) = report.add("threads", tokio, |_| "started".into()) else { return };
    let readiness = tokio.block_on(services.readiness());
    if !readiness.ready {
        // A model that hangs would be waited for, and nobody told which one it is.
        let _: ManuallyDrop<Services> = ManuallyDrop::new(services);
    }
    for status in readiness.models {
        let inference = if status.ready { Ok(()) } else { Err("no answer; look at the log of `dichroic serve`") };
        report.add(&format!("{} {}", status.id, status.component), inference, |()| {
            format!("answered on {}, {}", status.device, status.sha256.get(..12).unwrap_or_default())
        });
    }
}
