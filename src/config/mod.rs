//! The server's settings, merged and validated.
//!
//! Owns the order file < environment < flags, the defaults and the bounds. A [`Config`] holds only values that make
//! sense together; every refusal is one sentence that names the setting, where it was written and what to do.
//! Refuses to show the API key or a credential for Redis: not in errors, not in `Debug`. Runs on the starting thread.

mod error;
mod raw;
mod validator;

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use figment::{
    Figment,
    error::Kind as Fault,
    providers::{Format, Toml},
};
use secrecy::SecretString;

pub use error::ConfigError;
pub use raw::{Auto, Kind, NumberOrAuto, PREFIX, SECRETS, SETTINGS, ServeFlags, Setting};

use crate::{
    access::RedisOptions,
    domain::{ModelId, UsageLimit},
};
use raw::{Environment, RawConfig, origin};
use validator::{Validator, rule};

/// Read when no other file is named, if it exists.
pub const DEFAULT_FILE: &str = "dichroic.toml";

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For eyes.
    Text,
}

/// How generators guess tokens ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// From what followed the same words in the prompt, where no answer changes by it.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// From the prompt, also where verifying rounds otherwise than a step does.
    Lookup,
}

/// What models are to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The CPU. The default, because a device that is merely there should not change answers: they differ in their
    /// last digits, and replicas of one service would differ from one another.
    #[default]
    Cpu,
    /// A GPU; without one nothing starts.
    Cuda,
    /// A GPU where one can be used, the CPU where not.
    Auto,
}

/// Where the files of TLS are. Their contents are judged by who reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates, if clients have to show one.
    pub client_ca: Option<PathBuf>,
}

/// How much a cache holds, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Most entries.
    pub entries: usize,
    /// How long each stays.
    pub age: Duration,
}

/// Validated settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the server listens.
    pub listen: SocketAddr,
    /// Where certificate and key are; plain HTTP without them.
    pub tls: Option<TlsFiles>,
    /// Folder of the models.
    pub models_dir: PathBuf,
    /// The ONNX Runtime shared library.
    pub runtime_library: PathBuf,
    /// What models are to compute on.
    pub device: DeviceChoice,
    /// Identifiers to serve; those not installed answer 501.
    pub models: Vec<ModelId>,
    /// File of the API keys.
    pub keys_file: PathBuf,
    /// The bootstrap key.
    pub api_key: Option<SecretString>,
    /// Limit of keys that have none of their own.
    pub usage_limit: UsageLimit,
    /// Where limits are counted for all replicas; in this process alone without it.
    pub redis: Option<RedisOptions>,
    /// Threads for inference, already resolved.
    pub threads: NonZeroUsize,
    /// Time a request may take.
    pub request_timeout: Duration,
    /// Time to finish requests under way.
    pub shutdown_grace: Duration,
    /// Text windows that may wait for classification.
    pub text_queue: usize,
    /// Most tokens in a batch, padding counted; left to the device where none is set.
    pub batch_tokens: Option<usize>,
    /// How long a batch waits for company.
    pub batch_wait: Duration,
    /// Whether heavier classifiers judge what a light one has doubts about, where a bundle has such.
    pub second_reading: bool,
    /// What is remembered of moderated texts, if anything.
    pub moderation_cache: Option<CacheBounds>,
    /// Texts generated side by side by one model.
    pub generator_slots: usize,
    /// Generations that may wait.
    pub generator_queue: usize,
    /// Most tokens of a prompt computed between two steps of other generations.
    pub prefill_tokens: usize,
    /// How generators guess tokens ahead.
    pub speculation: Speculation,
    /// Images that may wait.
    pub image_queue: usize,
    /// Connections open at once.
    pub max_connections: usize,
    /// Time for a request's headers.
    pub header_timeout: Duration,
    /// Whether `/` serves the playground.
    pub playground: bool,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// What is logged, as a `tracing` filter (the rest of its syntax is judged by the subscriber).
    pub log: String,
    /// The collector that traces are sent to, `http://HOST:PORT`.
    pub otlp_endpoint: Option<String>,
}

impl Config {
    /// Reads the named file (or `dichroic.toml` if there is one), the process's environment and the flags.
    /// Relative paths, in whichever of them, are relative to the working directory.
    ///
    /// # Errors
    /// The first [`ConfigError`] found.
    pub fn load(file: Option<&Path>, flags: &ServeFlags) -> Result<Self, ConfigError> {
        let default = Path::new(DEFAULT_FILE);
        let file = file.or_else(|| default.is_file().then_some(default));
        Self::from_sources(file, std::env::vars_os(), flags)
    }

    /// As [`load`](Self::load), with the environment given.
    ///
    /// # Errors
    /// The first [`ConfigError`] found.
    pub fn from_sources(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &ServeFlags,
    ) -> Result<Self, ConfigError> {
        let mut sources = Figment::new();
        if let Some(path) = file {
            // Looked at first: figment takes a missing file for an empty one.
            fs::File::open(path)
                .map_err(|error| ConfigError::UnreadableFile { path: path.to_owned(), reason: error.to_string() })?;
            sources = sources.merge(Toml::file_exact(path));
        }
        let sources = sources.merge(Environment::read(environment)?).merge(flags);
        let raw = sources.extract::<RawConfig>().map_err(|error| refuse(&error, file))?;
        Validator { sources: &sources }.config(raw)
    }

    /// Refuses to listen where other machines can connect while nobody could authenticate.
    ///
    /// # Errors
    /// [`ConfigError::PublicWithoutKey`].
    pub fn require_key_for_public_listen(&self, keys_are_empty: bool) -> Result<(), ConfigError> {
        if keys_are_empty && self.listens_publicly() {
            return Err(ConfigError::PublicWithoutKey { listen: self.listen });
        }
        Ok(())
    }

    /// Whether keys and texts cross a network as they are.
    pub fn talks_in_clear(&self) -> bool {
        self.tls.is_none() && self.listens_publicly()
    }

    fn listens_publicly(&self) -> bool {
        // An IPv4 address may come in IPv6 clothes.
        !self.listen.ip().to_canonical().is_loopback()
    }
}

/// Cores that this process may use: the least of the machine's, the affinity mask and the container's processor
/// quota (cgroup v2 `cpu.max` and v1 `cpu.cfs_quota_us`, of this group and those above it, rounded down). The
/// standard library reads all of these on Linux; where it cannot tell, one.
pub fn available_cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Turns figment's error into ours. Values are never quoted: one of them may be the key.
fn refuse(error: &figment::Error, file: Option<&Path>) -> ConfigError {
    let metadata = error.metadata.as_ref();
    if let Fault::UnknownField(setting, _) = &error.kind {
        return ConfigError::UnknownSetting { place: origin(setting, metadata), setting: setting.clone() };
    }
    let setting = error.path.first().and_then(|name| SETTINGS.iter().find(|setting| setting.name == name));
    if let Some(setting) = setting {
        return ConfigError::Invalid {
            setting: setting.name,
            place: origin(setting.name, metadata),
            rule: rule(setting),
        };
    }
    // Only a whole file can be wrong without a setting being so. Of the parser's report, which quotes the line, the
    // first line tells where and the last what.
    let report = error.kind.to_string();
    let mut lines = report.lines().filter(|line| !line.trim().is_empty());
    let place = lines.next().unwrap_or_default().to_owned();
    let reason = lines.next_back().map_or_else(|| place.clone(), |cause| format!("{place}: {cause}"));
    ConfigError::NotToml { path: file.unwrap_or(Path::new(DEFAULT_FILE)).to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser};
    use secrecy::ExposeSecret;

    use super::*;

    #[derive(Parser)]
    struct Serve {
        #[command(flatten)]
        flags: ServeFlags,
    }

    fn load(toml: Option<&str>, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = toml.map(|content| {
            let path = folder.path().join("dichroic.toml");
            fs::write(&path, content).unwrap();
            path
        });
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        let flags = Serve::try_parse_from([&["serve"], flags].concat()).unwrap().flags;
        Config::from_sources(file.as_deref(), environment, &flags)
            .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "DIR"))
    }

    fn refusal(toml: Option<&str>, environment: &[(&str, &str)], flags: &[&str]) -> String {
        load(toml, environment, flags).unwrap_err()
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let config = load(None, &[], &[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.tls, None);
        assert_eq!(config.models_dir, Path::new("models"));
        assert_eq!(config.runtime_library, Path::new("runtime/libonnxruntime.so"));
        assert_eq!(config.device, DeviceChoice::Cpu);
        assert_eq!(config.models, ModelId::ALL);
        assert_eq!(config.keys_file, Path::new("keys.json"));
        assert!(config.api_key.is_none());
        assert_eq!(config.usage_limit, UsageLimit::DEFAULT);
        assert!(config.redis.is_none());
        assert_eq!(config.threads, available_cores());
        assert_eq!(config.request_timeout, Duration::from_secs(30));
        assert_eq!(config.shutdown_grace, Duration::from_secs(25));
        assert_eq!(config.batch_wait, Duration::from_micros(500));
        assert_eq!((config.text_queue, config.batch_tokens), (1024, None));
        assert!(config.second_reading);
        let cache = CacheBounds { entries: 10_000, age: Duration::from_mins(1) };
        assert_eq!(config.moderation_cache, Some(cache));
        assert_eq!((config.generator_slots, config.generator_queue, config.image_queue), (8, 64, 32));
        assert_eq!((config.prefill_tokens, config.speculation), (32, Speculation::Auto));
        assert_eq!((config.max_connections, config.header_timeout), (1024, Duration::from_secs(10)));
        assert!(config.playground);
        assert_eq!((config.log_format, config.log.as_str()), (LogFormat::Json, "info"));
        assert_eq!(config.otlp_endpoint, None);
    }

    #[test]
    fn a_switch_is_turned_off_by_file_environment_or_flag() {
        assert!(!load(Some("playground = false"), &[], &[]).unwrap().playground);
        assert!(!load(None, &[("DICHROIC_PLAYGROUND", "false")], &[]).unwrap().playground);
        let config = load(Some("playground = true"), &[("DICHROIC_PLAYGROUND", "true")], &["--playground", "false"]);
        assert!(!config.unwrap().playground);
        assert_eq!(
            refusal(None, &[("DICHROIC_PLAYGROUND", "off")], &[]),
            "playground, set by the environment variable DICHROIC_PLAYGROUND, must be true or false; correct or \
             remove it"
        );
    }

    #[test]
    fn a_batch_is_measured_unless_a_number_is_set() {
        let tokens = |toml, environment: &[(&str, &str)], flags: &[&str]| {
            load(toml, environment, flags).map(|config| config.batch_tokens)
        };
        assert_eq!(tokens(Some("batch_tokens = 'auto'"), &[], &[]), Ok(None));
        assert_eq!(tokens(Some("batch_tokens = 128"), &[], &[]), Ok(Some(128)));
        assert_eq!(tokens(Some("batch_tokens = 256"), &[("DICHROIC_BATCH_TOKENS", "auto")], &[]), Ok(None));
        assert_eq!(tokens(None, &[("DICHROIC_BATCH_TOKENS", "512")], &[]), Ok(Some(512)));
        let flags = ["--batch-tokens", "1048576"];
        assert_eq!(tokens(None, &[("DICHROIC_BATCH_TOKENS", "512")], &flags), Ok(Some(1_048_576)));
        assert_eq!(tokens(Some("batch_tokens = 300"), &[], &["--batch-tokens", "auto"]), Ok(None));
        for wrong in ["127", "1048577", "-1", "1.5", "'512'", "'Auto'", "''", "true"] {
            assert_eq!(
                refusal(Some(&format!("batch_tokens = {wrong}")), &[], &[]),
                "batch_tokens, set by the file DIR/dichroic.toml, must be auto or a whole number from 128 to 1048576; \
                 correct or remove it",
                "{wrong}"
            );
        }
        assert!(refusal(None, &[("DICHROIC_BATCH_TOKENS", "many")], &[]).contains("must be auto or a whole number"));
    }

    #[test]
    fn scores_are_remembered_within_bounds_or_not_at_all() {
        let cache = |toml, flags: &[&str]| load(Some(toml), &[], flags).map(|config| config.moderation_cache);
        assert_eq!(cache("moderation_cache = false", &[]), Ok(None));
        assert_eq!(cache("", &["--moderation-cache", "false"]), Ok(None));
        let bounds = CacheBounds { entries: 5, age: Duration::from_secs(2) };
        assert_eq!(cache("moderation_cache_entries = 5", &["--moderation-cache-seconds", "2"]), Ok(Some(bounds)));
        assert!(cache("moderation_cache = false\nmoderation_cache_entries = 0", &[]).is_err());
    }

    #[test]
    fn the_device_is_one_of_three_words() {
        let device = |toml: &str, flags: &[&str]| load(Some(toml), &[], flags).map(|config| config.device);
        assert_eq!(device("device = 'auto'", &[]), Ok(DeviceChoice::Auto));
        assert_eq!(device("device = 'auto'", &["--device", "cuda"]), Ok(DeviceChoice::Cuda));
        assert_eq!(device("device = 'cuda'", &["--device", "cpu"]), Ok(DeviceChoice::Cpu));
        for wrong in ["gpu", "CUDA", "cuda:1", ""] {
            assert_eq!(
                refusal(None, &[], &["--device", wrong]),
                "device, set by the flag --device, must be cpu, cuda or auto; correct or remove it"
            );
        }
    }

    #[test]
    fn a_collector_is_a_host_with_a_port_and_nothing_else() {
        let endpoint = |value: &str| load(None, &[], &["--otlp-endpoint", value]).map(|config| config.otlp_endpoint);
        for address in ["127.0.0.1:4318", "[::1]:4318", "collector:4318", "otel-collector.monitoring.svc:80"] {
            let url = format!("http://{address}");
            assert_eq!(endpoint(&url), Ok(Some(url.clone())));
            assert_eq!(endpoint(&format!("{url}/")), Ok(Some(url)));
        }
        assert_eq!(endpoint(""), Ok(None));
        for wrong in [
            "https://collector:4318",
            "collector:4318",
            "http://collector",
            "http://collector:",
            "http://collector:0",
            "http://collector:99999",
            "http://:4318",
            "http://collector:4318/v1/traces",
            "http://user@collector:4318",
            "http://a b:4318",
            "http://[::1:4318",
            "http://::1:4318",
        ] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            refusal(None, &[("DICHROIC_OTLP_ENDPOINT", "collector")], &[]),
            "otlp_endpoint, set by the environment variable DICHROIC_OTLP_ENDPOINT, must be http://HOST:PORT, such as \
             http://127.0.0.1:4318, or empty; correct or remove it"
        );
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let toml = Some("usage_limit = 1\ntext_queue = 1\nimage_queue = 1\nmodels = ['delta-3.1']");
        let environment = [("DICHROIC_USAGE_LIMIT", "2"), ("DICHROIC_TEXT_QUEUE", "2")];
        let config = load(toml, &environment, &["--usage-limit", "3"]).unwrap();
        assert_eq!((config.usage_limit.per_minute, config.text_queue, config.image_queue), (3, 2, 1));
        assert_eq!(config.models, [ModelId::Delta]);
    }

    #[test]
    fn lists_are_separated_by_commas_in_environment_and_flags() {
        let both = [ModelId::Beta, ModelId::Alpha];
        let environment = [("DICHROIC_MODELS", "beta-3-haiku, alpha-4o-mini")];
        assert_eq!(load(None, &environment, &[]).unwrap().models, both);
        assert_eq!(load(None, &[], &["--models", "beta-3-haiku,alpha-4o-mini"]).unwrap().models, both);
    }

    #[test]
    fn the_files_of_tls_come_together_or_not_at_all() {
        let (certificate, key, client_ca) =
            ("tls_certificate_file = 'a'", "tls_key_file = 'b'", "tls_client_ca_file = 'c'");
        let pair = format!("{certificate}\n{key}");
        let files = |client_ca: Option<&str>| {
            Some(TlsFiles { certificate: "a".into(), key: "b".into(), client_ca: client_ca.map(Into::into) })
        };
        assert_eq!(load(Some(&pair), &[], &[]).unwrap().tls, files(None));
        assert_eq!(load(Some(&pair), &[("DICHROIC_TLS_CLIENT_CA_FILE", "c")], &[]).unwrap().tls, files(Some("c")));
        assert_eq!(load(Some(certificate), &[], &["--tls-key-file", "b"]).unwrap().tls, files(None));
        for (alone, missing) in
            [(certificate, "tls_key_file"), (key, "tls_certificate_file"), (client_ca, "tls_certificate_file")]
        {
            let setting = alone.split(' ').next().unwrap();
            assert_eq!(
                refusal(Some(alone), &[], &[]),
                format!("{setting}, set by the file DIR/dichroic.toml, needs {missing} beside it; set both or neither")
            );
        }
    }

    #[test]
    fn only_other_machines_and_no_certificate_make_it_talk_in_clear() {
        let pair = ["--tls-certificate-file", "a", "--tls-key-file", "b"];
        for (listen, clear) in [("127.0.0.1:1", false), ("[::ffff:127.0.0.1]:1", false), ("0.0.0.0:1", true)] {
            assert_eq!(load(None, &[], &["--listen", listen]).unwrap().talks_in_clear(), clear, "{listen}");
            assert!(!load(None, &[], &[&["--listen", listen], &pair[..]].concat()).unwrap().talks_in_clear());
        }
    }

    #[test]
    fn the_usage_limit_brings_its_burst() {
        for (limit, burst) in [("600", 60), ("5", 1), ("1000000", 100_000)] {
            let config = load(None, &[("DICHROIC_USAGE_LIMIT", limit)], &[]).unwrap();
            assert_eq!(config.usage_limit.burst, burst);
        }
        assert!(load(None, &[("DICHROIC_USAGE_LIMIT", "0")], &[]).unwrap().usage_limit.is_unlimited());
    }

    #[test]
    fn redis_is_asked_when_it_has_an_address() {
        let redis = load(Some("redis_url = 'redis://10.0.0.5'"), &[], &[]).unwrap().redis.unwrap();
        assert_eq!((redis.server.to_string().as_str(), redis.prefix.as_str()), ("10.0.0.5:6379", "dichroic:"));
        assert_eq!((redis.timeout, redis.replicas.get(), redis.ca_file), (Duration::from_millis(10), 1, None));
        let environment = [("DICHROIC_REDIS_URL", "rediss://redis.internal:6380/3"), ("DICHROIC_REPLICAS", "2")];
        let flags =
            ["--redis-ca-file", "ca.pem", "--redis-prefix", "team:", "--redis-timeout-ms", "5", "--replicas", "3"];
        let redis = load(None, &environment, &flags).unwrap().redis.unwrap();
        assert_eq!((redis.server.to_string().as_str(), redis.prefix.as_str()), ("redis.internal:6380", "team:"));
        assert_eq!((redis.timeout, redis.replicas.get()), (Duration::from_millis(5), 3));
        assert_eq!(redis.ca_file.as_deref(), Some(Path::new("ca.pem")));
    }

    #[test]
    fn what_belongs_to_redis_needs_its_address() {
        let plain = "redis_url = 'redis://h'";
        for (toml, setting) in [
            ("redis_url = ''".to_owned(), "redis_url"),
            ("redis_url = 'h:6379'".to_owned(), "redis_url"),
            ("redis_url = 'rediss://h#insecure'".to_owned(), "redis_url"),
            ("redis_password = 'open sesame'".to_owned(), "redis_password"),
            (format!("{plain}\nredis_password = ''"), "redis_password"),
            (format!("{plain}\nredis_ca_file = 'ca.pem'"), "redis_ca_file"),
            ("redis_url = 'rediss://h'\nredis_ca_file = ''".to_owned(), "redis_ca_file"),
            ("redis_prefix = ''".to_owned(), "redis_prefix"),
            ("redis_prefix = 'two words'".to_owned(), "redis_prefix"),
            ("replicas = 2".to_owned(), "replicas"),
        ] {
            let error = refusal(Some(&toml), &[], &[]);
            assert!(error.starts_with(&format!("{setting}, set by the file")), "{toml}: {error}");
        }
        assert_eq!(
            refusal(None, &[("DICHROIC_REPLICAS", "4")], &[]),
            "replicas, set by the environment variable DICHROIC_REPLICAS, must be a whole number from 1 to 10000, and \
             more than 1 only beside a redis_url; correct or remove it"
        );
        assert!(load(Some("replicas = 1\nredis_timeout_ms = 5\nredis_prefix = 'team:'"), &[], &[]).is_ok());
    }

    #[test]
    fn a_level_that_is_none_is_refused_and_does_not_silence_the_log() {
        for sound in [
            "off",
            "warn",
            "INFO",
            "Debug",
            "info,",
            "warn,dichroic::http=debug",
            "info,dichroic::http::observe=warn",
            "dichroic=trace",
            "[request]=debug",
            "[request],info",
        ] {
            let config = load(None, &[("DICHROIC_LOG", sound)], &[]).unwrap();
            assert_eq!(config.log, sound);
        }
        for wrong in [
            "",
            ",",
            " ",
            "warning",
            "inof",
            " info",
            "info ",
            "info, debug",
            "info,inof",
            "dichroic",
            "dichroic=loud",
            "info,[a",
        ] {
            assert_eq!(
                refusal(None, &[], &["--log", wrong]),
                "log, set by the flag --log, must be off, error, warn, info, debug, trace, or a filter such as \
                 info,dichroic::engine=debug; correct or remove it",
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_credential_for_redis_is_never_shown() {
        let url = "redis://limits:open-sesame@h:6379";
        let environment = [("DICHROIC_REDIS_URL", url), ("DICHROIC_REDIS_PASSWORD", "abracadabra")];
        let shown = format!("{:?}", load(None, &environment, &[]).unwrap());
        assert!(shown.contains("h:6379") && !shown.contains("sesame") && !shown.contains("abracadabra"), "{shown}");
        for bad in [format!("redis_url = '{url}/x'"), format!("redis_url = ['{url}']"), format!("redis_url = {url}")] {
            let error = refusal(Some(&bad), &[], &[]);
            assert!(!error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let config = load(None, &[("DICHROIC_API_KEY", ""), ("DICHROIC_LISTEN", "")], &[]).unwrap();
        assert!(config.api_key.is_none());
    }

    #[test]
    fn variables_of_the_scripts_and_of_others_do_not_matter() {
        let environment = [
            ("DICHROIC_CACHE", "/tmp"),
            ("DICHROIC_SOURCE_ALPHA", "/a.gguf"),
            ("DICHROIC_URL", "http://127.0.0.1:8080"),
            ("DICHROIC_KEY", "dk_1"),
            ("DICHROIC_TEST_BROWSER", "/usr/bin/chromium"),
            ("LISTEN", "x"),
        ];
        assert!(load(None, &environment, &[]).is_ok());
        assert_eq!(
            refusal(None, &[("DICHROIC_USAGE_LIMITS", "5")], &[]),
            "the environment variable DICHROIC_USAGE_LIMITS is no setting; correct or unset it \
             (`dichroic serve --help` lists them)"
        );
    }

    #[test]
    fn a_refusal_names_setting_place_and_rule() {
        assert_eq!(
            refusal(None, &[("DICHROIC_USAGE_LIMIT", "many")], &[]),
            "usage_limit, set by the environment variable DICHROIC_USAGE_LIMIT, must be a whole number from 0 to \
             1000000; correct or remove it"
        );
        assert_eq!(
            refusal(None, &[], &["--generator-slots", "0"]),
            "generator_slots, set by the flag --generator-slots, must be a whole number from 1 to 256; correct or \
             remove it"
        );
        assert_eq!(
            refusal(None, &[], &["--generator-queue", "7"]),
            "generator_queue, set by the flag --generator-queue, must be a whole number from 8 to 65536; correct or \
             remove it"
        );
        assert_eq!(
            refusal(Some("log_format = 'xml'"), &[], &[]),
            "log_format, set by the file DIR/dichroic.toml, must be json or text; correct or remove it"
        );
        assert_eq!(
            refusal(Some("speculation = 'draft'"), &[], &[]),
            "speculation, set by the file DIR/dichroic.toml, must be auto, lookup or off; correct or remove it"
        );
        assert_eq!(load(None, &[("DICHROIC_SPECULATION", "lookup")], &[]).unwrap().speculation, Speculation::Lookup);
        assert_eq!(
            refusal(Some("[server]\nlisten = 1"), &[], &[]),
            "server in the file DIR/dichroic.toml is no setting; `dichroic serve --help` lists them"
        );
    }

    #[test]
    fn senseless_values_are_refused_wherever_they_stand() {
        for toml in [
            "listen = 'localhost:8080'",
            "listen = '127.0.0.1'",
            "listen = 8080",
            "models = []",
            "models = ['gpt']",
            "models = 'alpha-4o-mini'",
            "models = ['beta-3-haiku', 'beta-3-haiku']",
            "models_dir = ''",
            "tls_certificate_file = ''\ntls_key_file = 'b'",
            "tls_certificate_file = 'a'\ntls_key_file = 'b'\ntls_client_ca_file = ''",
            "tls_key_file = 5",
            "text_queue = -1",
            "text_queue = 1.5",
            "text_queue = '5'",
            "text_queue = 99999999999999999999",
            "playground = 'false'",
            "playground = 0",
            "log = 5",
        ] {
            assert!(load(Some(toml), &[], &[]).is_err(), "{toml}");
        }
        for setting in SETTINGS {
            let Kind::Number { default, min, max } = setting.kind else { continue };
            for good in [default, min, max] {
                // Many replicas are nothing without it.
                let toml = format!("redis_url = 'redis://h'\n{} = {good}", setting.name);
                assert!(load(Some(&toml), &[], &[]).is_ok(), "{}", setting.name);
            }
            let below = min.checked_sub(1);
            for bad in [below, Some(max + 1)].into_iter().flatten() {
                let error = refusal(None, &[(&setting.variable(), &bad.to_string())], &[]);
                assert!(error.contains(&format!("from {min} to {max}")), "{error}");
            }
        }
    }

    #[test]
    fn the_key_is_never_shown() {
        let key = "3141592653589793";
        let config = load(None, &[("DICHROIC_API_KEY", key)], &[]).unwrap();
        assert_eq!(config.api_key.as_ref().unwrap().expose_secret(), key, "digits stay a text");
        assert!(!format!("{config:?}").contains(key));
        let rule = "must be a text of at least 16 visible ASCII characters without spaces; correct or remove it";
        for bad in ["fifteen-letters", "a long key but with spaces", "key-from-a-file-read-with-its-end\n"] {
            let error = refusal(None, &[("DICHROIC_API_KEY", bad)], &[]);
            assert_eq!(error, format!("api_key, set by the environment variable DICHROIC_API_KEY, {rule}"));
        }
        for toml in [format!("api_key = {key}"), format!("api_key = k{key}"), format!("api_key = ['{key}']")] {
            let error = refusal(Some(&toml), &[], &[]);
            assert!(!error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_broken_or_missing_file_is_named() {
        assert!(refusal(Some("listen = "), &[], &[]).starts_with(
            "the configuration file DIR/dichroic.toml is not TOML (TOML parse error at line 1, column 10"
        ));
        let error = Config::from_sources(Some(Path::new("/nonexistent.toml")), [], &ServeFlags::default()).unwrap_err();
        assert!(error.to_string().starts_with("the configuration file /nonexistent.toml cannot be read ("), "{error}");
    }

    #[test]
    fn a_public_address_needs_a_key() {
        for (listen, public) in [
            ("127.0.0.1:1", false),
            ("127.8.8.8:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            let config = load(None, &[], &["--listen", listen]).unwrap();
            assert_eq!(config.require_key_for_public_listen(true).is_err(), public, "{listen}");
            assert!(config.require_key_for_public_listen(false).is_ok());
        }
        let config = load(None, &[], &["--listen", "0.0.0.0:80"]).unwrap();
        assert_eq!(
            config.require_key_for_public_listen(true).unwrap_err().to_string(),
            "listening on 0.0.0.0:80 without any API key is refused; run `dichroic keys create`, set \
             DICHROIC_API_KEY, or listen on 127.0.0.1"
        );
    }

    #[test]
    fn the_help_tells_every_setting_with_its_default_and_variable() {
        let command = ServeFlags::augment_args(clap::Command::new("serve"));
        for setting in SETTINGS {
            let argument = command.get_arguments().find(|argument| argument.get_id().as_str() == setting.name);
            if SECRETS.contains(&setting.name) {
                assert!(argument.is_none(), "command lines are visible to others");
                continue;
            }
            let help = argument.and_then(clap::Arg::get_help).unwrap().to_string();
            assert!(help.contains(&format!("[env: {}]", setting.variable())), "{help}");
            if let Kind::Number { default, .. } = setting.kind {
                assert!(help.contains(&format!("[default: {default}]")), "{help}");
            }
            assert!(help.contains("[default: "), "{help}");
            assert_eq!(argument.and_then(clap::Arg::get_long), setting.flag().strip_prefix("--"));
        }
        assert_eq!(command.get_arguments().count(), SETTINGS.len() - SECRETS.len());
    }
}
