//! `dichroic serve`: the composition root, from configuration to a listening server and its orderly end.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::compose::{Composer, placed, text_budget};
use crate::{
    access::{Fallback, KeyStore, Limiter, MemoryLimiter, RedisLimiter, Reload},
    config::{Config, LogFormat},
    domain::Device,
    http::{self, App, BodyLimits, ServeOptions, Tls, TlsReload},
    lifecycle::Lifecycle,
    registry::{Hashing, Registry},
    runtime::{Runtime, give_back_what_is_free},
    service::Services,
    telemetry::{Metrics, Traces, subscriber},
};

/// How often the key file and the files of TLS are looked at, and what was kept too long is let go.
const RELOAD: Duration = Duration::from_secs(2);
/// How long a stop waits for the last traces.
const LAST_TRACES: Duration = Duration::from_secs(1);

/// Serves until a signal.
pub(super) fn run(config: Config) -> anyhow::Result<()> {
    let format = match config.log_format {
        LogFormat::Json => subscriber::Format::Json,
        LogFormat::Text => subscriber::Format::Text,
    };
    subscriber::install(format, &config.log)?;
    // Half of the threads: what they do about a request takes a tenth of its passes, and each that wakes pushes one of
    // those off a core.
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads.get().div_ceil(2))
        .thread_name("sockets")
        .enable_all()
        .build()
        .context("cannot start the network threads")?;
    let lifecycle = Lifecycle::new();
    {
        let _inside = tokio.enter();
        // Before all that takes time: to the first process of a container, a signal without a handler is lost.
        tokio.spawn(lifecycle.signals().context("cannot listen for signals")?);
    }
    let config = Arc::new(config);
    let loading = {
        let config = Arc::clone(&config);
        tokio.spawn_blocking(move || load(&config))
    };
    let loaded = tokio.block_on(unless_stopped(&lifecycle, loading)).context("the start panicked")??;
    let traces = match &config.otlp_endpoint {
        Some(endpoint) => {
            Traces::to(endpoint, &loaded.metrics, tokio.handle().clone()).context("cannot set up traces")?
        }
        None => Traces::default(),
    };
    let result = tokio.block_on(serve(&config, &loaded, &traces, &lifecycle));
    traces.shutdown(LAST_TRACES);
    // Tasks that ignore the hard stop must not keep the process.
    tokio.shutdown_timeout(Duration::from_secs(1));
    if let Err(error) = result {
        super::tell(&error);
        leave(1);
    }
    tracing::info!("stopped");
    leave(0)
}

/// What is made before the socket is opened.
struct Loaded {
    keys: Arc<KeyStore>,
    tls: Option<Arc<Tls>>,
    metrics: Arc<Metrics>,
    device: Device,
    services: Arc<Services>,
}

/// Reads, hashes and loads, for as long as that takes: on a thread of its own, beside which signals are heard.
fn load(config: &Config) -> anyhow::Result<Loaded> {
    let keys = Arc::new(open_keys(config)?);
    let tls = open_tls(config)?;
    let metrics = Metrics::new().context("cannot set up metrics")?;
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    tracing::info!(threads = config.threads, library = runtime.build_info(), "runtime loaded");
    let (runtime, passed_over) = placed(runtime, config.device)?;
    if let Some(error) = passed_over {
        tracing::warn!(%error, "device = auto: the models compute on the CPU");
    }
    let device = runtime.device();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %device, "device chosen");
    let hashing = Hashing::unwatched(config.threads);
    let registry = Registry::open_for(device, &config.models_dir, &config.models, hashing)?;
    workers(config.threads.get()).build_global().context("cannot start the pool")?;
    let services = Arc::new(Composer::new(config, runtime, Arc::clone(&metrics)).services(&registry)?);
    Ok(Loaded { keys, tls, metrics, device, services })
}

/// From the open socket to the end of the last request.
async fn serve(config: &Config, loaded: &Loaded, traces: &Traces, lifecycle: &Lifecycle) -> anyhow::Result<()> {
    let Loaded { keys, tls, metrics, device, services } = loaded;
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        let hint = "is the port taken, or below 1024 and for root alone?";
        format!("cannot listen on {}; {hint}", config.listen)
    })?;
    let readiness = unless_stopped(lifecycle, services.readiness()).await;
    anyhow::ensure!(readiness.ready, "a model does not answer; run `dichroic check`");
    // Now that every model has answered once: what they need from here on stays.
    give_back_what_is_free();
    let limiter = unless_stopped(lifecycle, limiter(config, Arc::clone(metrics))).await?;
    every_round(lifecycle, metrics, "keys", {
        let (keys, refused) = (Arc::clone(keys), metrics.reload_refused.with_label_values(&["keys"]));
        move || match keys.reload_if_changed() {
            Reload::Unchanged => {}
            Reload::Loaded { .. } => refused.set(0),
            Reload::Kept => refused.set(1),
        }
    });
    if let Some(tls) = tls.clone() {
        let (refused, expiry) =
            (metrics.reload_refused.with_label_values(&["tls"]), metrics.certificate_expiry.clone());
        expiry.set(tls.validity().until.unix_timestamp());
        every_round(lifecycle, metrics, "tls", move || match tls.reload_if_changed() {
            TlsReload::Unchanged => {}
            TlsReload::Loaded => {
                refused.set(0);
                expiry.set(tls.validity().until.unix_timestamp());
            }
            TlsReload::Kept => refused.set(1),
        });
    }
    if text_budget(config, *device).is_none() {
        let (services, soft) = (Arc::clone(services), lifecycle.soft().clone());
        lifecycle.spawn(async move { _ = soft.run_until_cancelled(services.calibrate()).await });
    }
    if config.moderation_cache.is_some() {
        let services = Arc::clone(services);
        every_round(lifecycle, metrics, "cache", move || services.forget_expired());
    }
    let app = App {
        services: Arc::clone(services),
        keys: Arc::clone(keys),
        limiter,
        metrics: Arc::clone(metrics),
        traces: traces.clone(),
        lifecycle: lifecycle.clone(),
        bodies: BodyLimits { deadline: config.request_timeout, ..BodyLimits::default() },
        playground: config.playground,
    };
    let options = ServeOptions {
        max_connections: config.max_connections,
        header_read_timeout: config.header_timeout,
        grace: config.shutdown_grace,
        tls: tls.clone(),
    };
    http::serve(listener, http::router(app), options, lifecycle.clone()).await?;
    Ok(())
}

/// A part of the start. A signal ends it, and the process with it: nobody has asked anything yet.
async fn unless_stopped<T>(lifecycle: &Lifecycle, part: impl Future<Output = T>) -> T {
    let Some(done) = lifecycle.soft().run_until_cancelled(part).await else {
        tracing::info!("stopped before it served");
        leave(0)
    };
    done
}

/// Ends the process. What still loads, measures or hangs in a model's library is not waited for; nor do that library's own
/// last acts run, which must not happen under those threads.
fn leave(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

/// The pool that loads the models, and then decodes pictures, cuts out what is written in them, and tokenises long
/// texts. A panic of that work ends where it was handed over, in `service`; one in loading ends the start. The handler
/// is for work that a library hands over by itself: without one, rayon would end the process.
pub(super) fn workers(threads: usize) -> rayon::ThreadPoolBuilder {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|number| format!("pixels-{number}"))
        .panic_handler(|_| tracing::error!("a task of the pool panicked that belongs to no request"))
}

fn open_keys(config: &Config) -> anyhow::Result<KeyStore> {
    let path: &Path = &config.keys_file;
    let keys = KeyStore::open(Some(path), config.api_key.clone(), config.usage_limit)?;
    config.require_key_for_public_listen(keys.is_empty())?;
    if keys.is_empty() {
        tracing::warn!("there is no API key yet: every request is answered 401; run `dichroic keys create`");
    }
    Ok(keys)
}

/// Counts in Redis where there is one, in this process otherwise.
async fn limiter(config: &Config, metrics: Arc<Metrics>) -> anyhow::Result<Arc<dyn Limiter>> {
    let Some(options) = config.redis.clone() else { return Ok(Arc::new(MemoryLimiter::default())) };
    for why in Fallback::ALL {
        // A series that is there from the start: a rate over one that appears with its first event would miss it.
        metrics.limit_fallbacks.with_label_values(&[why.as_str()]);
    }
    let counted = move |why: Fallback| metrics.limit_fallbacks.with_label_values(&[why.as_str()]).inc();
    Ok(Arc::new(RedisLimiter::start(options, counted).await?))
}

/// Certificate and key if the settings name them, and a warning where they are missed.
fn open_tls(config: &Config) -> anyhow::Result<Option<Arc<Tls>>> {
    if config.talks_in_clear() {
        tracing::warn!(
            listen = %config.listen,
            "without TLS, keys and texts cross the network readable; set tls_certificate_file and tls_key_file, or \
             end TLS before this server"
        );
    }
    let Some(files) = &config.tls else { return Ok(None) };
    Ok(Some(Arc::new(Tls::open(&files.certificate, &files.key, files.client_ca.as_deref())?)))
}

/// Looks at files, or at what was kept, again and again until the server stops. A failure is logged by `look` itself, a
/// panic by the process's hook, and counted as one of that task.
fn every_round(lifecycle: &Lifecycle, metrics: &Metrics, task: &'static str, look: impl Fn() + Send + Sync + 'static) {
    let (soft, look) = (lifecycle.soft().clone(), Arc::new(look));
    let panics = metrics.task_panics.with_label_values(&[task]);
    lifecycle.spawn(async move {
        let mut ticks = tokio::time::interval(RELOAD);
        loop {
            tokio::select! {
                () = soft.cancelled() => return,
                _ = ticks.tick() => {
                    let look = Arc::clone(&look);
                    // Reading a file blocks, and letting go of many scores takes its time.
                    let looked = tokio::task::spawn_blocking(move || look()).await;
                    panics.inc_by(u64::from(looked.is_err_and(|error| error.is_panic())));
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_panics_leaves_the_pool_and_the_process_alive() {
        let pool = workers(1).build().expect("a pool of one thread");
        pool.spawn(|| std::panic::resume_unwind(Box::new("broken picture")));
        let (reply, answer) = std::sync::mpsc::channel();
        pool.spawn(move || reply.send(7).expect("the test still waits"));
        assert_eq!(answer.recv_timeout(Duration::from_secs(10)), Ok(7));
    }
}
