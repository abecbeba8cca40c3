//! Every metric series, once, as a field. Labels are closed sets: never a key, a text or a path from a caller.

use std::{sync::Arc, time::Duration};

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder, process_collector::ProcessCollector,
};

/// All series of the process.
pub struct Metrics {
    registry: Registry,
    /// Memory, processor time and files of the process, under the names that every exporter gives them.
    process: Registry,
    /// Answered requests by operation, model and status.
    pub requests: IntCounterVec,
    /// Seconds from the request line to the answer, by operation.
    pub request_seconds: HistogramVec,
    /// Requests in flight.
    pub in_flight: IntGauge,
    /// Answers from 400 to 499, by the code of the error (`overloaded`, `rate_limit_exceeded`, `invalid_api_key`, …).
    pub rejected: IntCounterVec,
    /// Requests whose usage limit was judged by this replica's share, because Redis gave no decision, by reason.
    pub limit_fallbacks: IntCounterVec,
    /// Found categories by operation and category.
    pub flagged: IntCounterVec,
    /// Generated answers that were thrown away and made again, by reason.
    pub regenerated: IntCounterVec,
    /// Answers given that people wrote beforehand, by what they are.
    pub beforehand: IntCounterVec,
    /// Panics outside of the models' workers, by what was being done, one of [`TASKS`]. Each failed its own request;
    /// the server goes on.
    pub task_panics: IntCounterVec,
    /// Batches of spans posted to the collector, by outcome, one of [`OUTCOMES`]; each attempt counts.
    pub trace_posts: IntCounterVec,
    /// 1, with the version of the server.
    pub build_info: IntGaugeVec,
    /// 1 while a file that changed cannot be used and what it held before stays in force, by file, one of [`FILES`].
    pub reload_refused: IntGaugeVec,
    /// When the certificate that is served ends, in seconds since 1970; 0 without one.
    pub certificate_expiry: IntGauge,
    /// 1 for every loaded model, with its hash and device.
    pub model_info: IntGaugeVec,
    /// 1 for every model that had answered of late when readiness was last asked for; 0 where it had not, or the answer
    /// is still out.
    pub ready: IntGaugeVec,
    /// Seconds spent on turning texts into tokens.
    pub tokenization_seconds: Histogram,
    /// Seconds spent on decoding and resizing a picture.
    pub image_seconds: Histogram,
    queue_seconds: HistogramVec,
    inference_seconds: HistogramVec,
    batch_size: HistogramVec,
    padding_ratio: HistogramVec,
    abandoned: IntCounterVec,
    failures: IntCounterVec,
    panics: IntCounterVec,
    input_tokens: IntCounterVec,
    generated_tokens: IntCounterVec,
    prefix_hits: IntCounterVec,
    shared_tokens: IntCounterVec,
    guessed_tokens: IntCounterVec,
    accepted_tokens: IntCounterVec,
    batch_tokens: IntGaugeVec,
    cache_hits: IntCounterVec,
    cache_misses: IntCounterVec,
    cache_evictions: IntCounterVec,
    read_again: IntCounterVec,
}

/// The series of one loaded model, resolved once so that workers do no label look-ups.
#[derive(Clone)]
pub struct ModelMetrics {
    /// Which kind of model, as its label says.
    pub component: Arc<str>,
    /// Seconds an item waited for its batch.
    pub queue_seconds: Histogram,
    /// Seconds a pass took.
    pub inference_seconds: Histogram,
    /// Items or rows in a pass.
    pub batch_size: Histogram,
    /// Share of a batch that was padding, 0 to 1.
    pub padding_ratio: Histogram,
    /// Items whose caller had left before they ran.
    pub abandoned: IntCounter,
    /// Passes that failed.
    pub failures: IntCounter,
    /// Passes that panicked; the worker was replaced.
    pub panics: IntCounter,
    /// Tokens given to it: of texts, or of prompts with their prefixes.
    pub input_tokens: IntCounter,
    /// Tokens generated.
    pub generated_tokens: IntCounter,
    /// Prompts whose prefix was found in the cache.
    pub prefix_hits: IntCounter,
    /// Prompt tokens taken over from a sequence of the same submission.
    pub shared_tokens: IntCounter,
    /// Tokens guessed by prompt lookup.
    pub guessed_tokens: IntCounter,
    /// Guessed tokens that the model would have written.
    pub accepted_tokens: IntCounter,
    /// Most tokens that a pass of a text classifier takes, padding counted; 0 until they are set or measured.
    pub batch_tokens: IntGauge,
    /// Texts answered by what was said of the same text a moment ago, or is being said.
    pub cache_hits: IntCounter,
    /// Texts that were looked for in the cache and then classified.
    pub cache_misses: IntCounter,
    /// Answers that the cache gave up before their time, for want of room.
    pub cache_evictions: IntCounter,
    /// Texts that others judged as well, as the first classifier found a trace of harm.
    pub read_again: IntCounter,
}

/// What may panic outside of the models' workers: an async thread, a large body being parsed, a long text being
/// tokenised, a picture being decoded or read, the key file or the files of TLS being read, old scores being let go.
pub const TASKS: [&str; 7] = ["request", "body", "text", "picture", "keys", "tls", "cache"];
/// Refusals that somebody is called for: too much work, too many requests, a key that is missing, wrong or not for this,
/// and callers who did not wait. The other values of that label are the codes of all other errors.
pub const REFUSALS: [&str; 6] =
    ["overloaded", "rate_limit_exceeded", "missing_api_key", "invalid_api_key", "insufficient_scope", "caller_left"];
/// What is read again while the server runs: the key file, and the files of TLS together.
pub const FILES: [&str; 2] = ["keys", "tls"];
/// How a batch of spans may fare.
pub const OUTCOMES: [&str; 2] = ["sent", "failed"];

const MODEL: &[&str] = &["model", "component"];
const SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Finer where people give up, and one behind the default deadline.
const REQUEST_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 35.0,
];
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
const SHARES: &[f64] = &[0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0];

impl Metrics {
    /// Registers all series.
    ///
    /// # Errors
    /// [`prometheus::Error`] for two series of one name, which would be a mistake in this file.
    pub fn new() -> Result<Arc<Self>, prometheus::Error> {
        let registry = Registry::new_custom(Some("dichroic".into()), None)?;
        let process = Registry::new();
        process.register(Box::new(ProcessCollector::for_self()))?;
        let make = Maker { registry: &registry };
        let metrics = Self {
            requests: make.counters("requests_total", "Answered requests.", &["operation", "model", "status"])?,
            request_seconds: make.histograms(
                "request_duration_seconds",
                "Seconds from the request line to the answer.",
                &["operation"],
                REQUEST_SECONDS,
            )?,
            in_flight: make.gauge("requests_in_flight", "Requests being answered.")?,
            rejected: make.counters(
                "rejected_total",
                "Answers from 400 to 499, by the code of the error.",
                &["reason"],
            )?,
            limit_fallbacks: make.counters(
                "limit_fallbacks_total",
                "Requests whose usage limit was judged without Redis.",
                &["reason"],
            )?,
            flagged: make.counters("flagged_total", "Categories found.", &["operation", "category"])?,
            regenerated: make.counters("regenerated_total", "Generated answers made again.", &["reason"])?,
            beforehand: make.counters(
                "beforehand_total",
                "Answers given that were written beforehand.",
                &["answer"],
            )?,
            task_panics: make.counters("task_panics_total", "Panics outside of the models' workers.", &["task"])?,
            trace_posts: make.counters("trace_posts_total", "Batches of spans posted.", &["outcome"])?,
            build_info: make.gauges("build_info", "The server's version.", &["version"])?,
            reload_refused: make.gauges("reload_refused", "Changed files that cannot be used.", &["file"])?,
            certificate_expiry: make.gauge(
                "certificate_expiry_seconds",
                "When the served certificate ends, in seconds since 1970; 0 without one.",
            )?,
            model_info: make.gauges("model_info", "Loaded models.", &["model", "component", "sha256", "device"])?,
            ready: make.gauges("ready", "Models that answer, when readiness was last asked for.", MODEL)?,
            tokenization_seconds: make.histogram("tokenization_duration_seconds", "Seconds to tokenise a text.")?,
            image_seconds: make
                .histogram("image_decode_duration_seconds", "Seconds to decode and resize a picture.")?,
            queue_seconds: make.histograms("queue_duration_seconds", "Seconds in a queue.", MODEL, SECONDS)?,
            inference_seconds: make.histograms("inference_duration_seconds", "Seconds of a pass.", MODEL, SECONDS)?,
            batch_size: make.histograms("batch_size", "Items in a pass.", MODEL, SIZES)?,
            padding_ratio: make.histograms("batch_padding_ratio", "Share of padding in a batch.", MODEL, SHARES)?,
            abandoned: make.counters("abandoned_total", "Items whose caller left.", MODEL)?,
            failures: make.counters("inference_failures_total", "Passes that failed.", MODEL)?,
            panics: make.counters("worker_panics_total", "Workers replaced after a panic.", MODEL)?,
            input_tokens: make.counters("input_tokens_total", "Tokens of texts and prompts.", MODEL)?,
            generated_tokens: make.counters("generated_tokens_total", "Tokens generated.", MODEL)?,
            prefix_hits: make.counters("prefix_cache_hits_total", "Prompt prefixes found in the cache.", MODEL)?,
            shared_tokens: make.counters(
                "shared_prompt_tokens_total",
                "Prompt tokens computed once for several answers of one request.",
                MODEL,
            )?,
            guessed_tokens: make.counters("guessed_tokens_total", "Tokens guessed by prompt lookup.", MODEL)?,
            accepted_tokens: make.counters("accepted_tokens_total", "Guessed tokens that were right.", MODEL)?,
            batch_tokens: make.gauges("batch_tokens", "Most tokens in a pass, padding counted.", MODEL)?,
            cache_hits: make.counters("moderation_cache_hits_total", "Texts answered from memory.", MODEL)?,
            cache_misses: make.counters("moderation_cache_misses_total", "Texts not found in memory.", MODEL)?,
            cache_evictions: make.counters(
                "moderation_cache_evictions_total",
                "Answers given up for want of room.",
                MODEL,
            )?,
            read_again: make.counters("read_again_total", "Texts that others judged as well.", MODEL)?,
            registry,
            process,
        };
        // At 0 from the start: no increase can be told of a series that appears with its first event.
        for task in TASKS {
            metrics.task_panics.with_label_values(&[task]);
        }
        for refusal in REFUSALS {
            metrics.rejected.with_label_values(&[refusal]);
        }
        for outcome in OUTCOMES {
            metrics.trace_posts.with_label_values(&[outcome]);
        }
        for file in FILES {
            metrics.reload_refused.with_label_values(&[file]).set(0);
        }
        metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Arc::new(metrics))
    }

    /// The series of one model.
    pub fn model(&self, model: &str, component: &str) -> ModelMetrics {
        let labels = &[model, component];
        ModelMetrics {
            component: component.into(),
            queue_seconds: self.queue_seconds.with_label_values(labels),
            inference_seconds: self.inference_seconds.with_label_values(labels),
            batch_size: self.batch_size.with_label_values(labels),
            padding_ratio: self.padding_ratio.with_label_values(labels),
            abandoned: self.abandoned.with_label_values(labels),
            failures: self.failures.with_label_values(labels),
            panics: self.panics.with_label_values(labels),
            input_tokens: self.input_tokens.with_label_values(labels),
            generated_tokens: self.generated_tokens.with_label_values(labels),
            prefix_hits: self.prefix_hits.with_label_values(labels),
            shared_tokens: self.shared_tokens.with_label_values(labels),
            guessed_tokens: self.guessed_tokens.with_label_values(labels),
            accepted_tokens: self.accepted_tokens.with_label_values(labels),
            batch_tokens: self.batch_tokens.with_label_values(labels),
            cache_hits: self.cache_hits.with_label_values(labels),
            cache_misses: self.cache_misses.with_label_values(labels),
            cache_evictions: self.cache_evictions.with_label_values(labels),
            read_again: self.read_again.with_label_values(labels),
        }
    }

    /// The exposition text, format 0.0.4.
    ///
    /// # Errors
    /// [`prometheus::Error`] when a series cannot be encoded.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        for registry in [&self.registry, &self.process] {
            TextEncoder::new().encode(&registry.gather(), &mut text)?;
        }
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

impl ModelMetrics {
    /// Records one pass over a batch; costs are in tokens (or pictures).
    pub fn observe_batch(&self, items: usize, cost: usize, padded: usize, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
        let (items, cost, padded) = (items as f64, cost as f64, padded.max(1) as f64);
        self.inference_seconds.observe(time.as_secs_f64());
        self.batch_size.observe(items);
        self.padding_ratio.observe(1.0 - cost / padded);
    }
}

struct Maker<'a> {
    registry: &'a Registry,
}

impl Maker<'_> {
    fn add<C: prometheus::core::Collector + Clone + 'static>(&self, series: C) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(series.clone()))?;
        Ok(series)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::new(name, help)?)
    }

    fn histogram(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Prometheus' own clients call these, so that dashboards for any process show this one too.
    const PROCESS: [(&str, &str); 7] = [
        ("counter", "process_cpu_seconds_total"),
        ("gauge", "process_max_fds"),
        ("gauge", "process_open_fds"),
        ("gauge", "process_resident_memory_bytes"),
        ("gauge", "process_start_time_seconds"),
        ("gauge", "process_threads"),
        ("gauge", "process_virtual_memory_bytes"),
    ];

    #[test]
    fn the_process_is_among_the_series() {
        let text = Metrics::new().unwrap().render().unwrap();
        let told: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE process_")).collect();
        assert_eq!(told, PROCESS.map(|(kind, name)| format!("# TYPE {name} {kind}")));
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap().parse().unwrap()
        };
        // More than a mebibyte, and less than there is.
        assert!(value("process_resident_memory_bytes") > 1_048_576.0);
        assert!(value("process_resident_memory_bytes") < value("process_virtual_memory_bytes"));
        assert!(value("process_threads") >= 1.0 && value("process_open_fds") >= 3.0);
    }
}
