//! Settings as they are written: file, environment and flags, merged but not judged.
//!
//! Owns the list of settings ([`SETTINGS`]), the flags and their help, and which environment variables are ours.
//! Refuses unknown settings and unknown `DICHROIC_*` variables: a mistyped limit must not silently be no limit.
//! Runs on the starting thread.
//!
//! Long, because each setting stands in its three places one below the other: its bounds, its field and its flag's help.

use std::{ffi::OsString, fmt, path::PathBuf, str::FromStr};

use figment::{
    Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize};

use super::ConfigError;

/// Every environment variable of the project begins so.
pub const PREFIX: &str = "DICHROIC_";

/// Variables of the set-up scripts and of the examples, which may share an environment with the server.
const SCRIPTS: [&str; 3] = ["DICHROIC_CACHE", "DICHROIC_URL", "DICHROIC_KEY"];

/// What those of the tests begin with.
const TESTS: &str = "DICHROIC_TEST_";

/// What those begin with that name a source's own copy for the set-up.
const SOURCES: &str = "DICHROIC_SOURCE_";

/// What kind of value a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text, judged later.
    Text,
    /// A list; separated by commas in the environment and on the command line.
    List,
    /// `true` or `false`.
    Switch,
    /// A whole number within bounds, or the word `auto`, which is the default.
    NumberOrAuto {
        /// Smallest accepted.
        min: u64,
        /// Largest accepted.
        max: u64,
    },
    /// A whole number within bounds.
    Number {
        /// Used when the setting is absent.
        default: u64,
        /// Smallest accepted.
        min: u64,
        /// Largest accepted.
        max: u64,
    },
}

/// One setting: its name in the file, and with dashes or in capitals its flag and its environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name in the file.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
}

impl Setting {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// The flag that sets it; those of [`SECRETS`] have none.
    pub fn flag(&self) -> String {
        flag(self.name)
    }
}

fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_ascii_uppercase())
}

fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

const fn text(name: &'static str) -> Setting {
    Setting { name, kind: Kind::Text }
}

const fn number(name: &'static str, default: u64, min: u64, max: u64) -> Setting {
    Setting { name, kind: Kind::Number { default, min, max } }
}

const fn number_or_auto(name: &'static str, min: u64, max: u64) -> Setting {
    Setting { name, kind: Kind::NumberOrAuto { min, max } }
}

/// Settings that hold or may hold a secret. They have no flag: command lines are visible to every user of the machine.
pub const SECRETS: [&str; 3] = ["api_key", "redis_url", "redis_password"];

/// Every setting, in the order of the help.
pub const SETTINGS: [Setting; 38] = [
    text("listen"),
    text("tls_certificate_file"),
    text("tls_key_file"),
    text("tls_client_ca_file"),
    text("models_dir"),
    text("runtime_library"),
    text("device"),
    Setting { name: "models", kind: Kind::List },
    text("keys_file"),
    text("api_key"),
    number("usage_limit", 600, 0, 1_000_000),
    text("redis_url"),
    text("redis_password"),
    text("redis_ca_file"),
    text("redis_prefix"),
    number("redis_timeout_ms", 10, 1, 1_000),
    number("replicas", 1, 1, 10_000),
    number("threads", 0, 0, 1_024),
    number("request_timeout_ms", 30_000, 100, 600_000),
    number("shutdown_grace_ms", 25_000, 0, 600_000),
    number("text_queue", 1_024, 1, 65_536),
    // A smaller one would take hardly more than one text at a time.
    number_or_auto("batch_tokens", 128, 1_048_576),
    number("batch_wait_us", 500, 0, 1_000_000),
    Setting { name: "second_reading", kind: Kind::Switch },
    Setting { name: "moderation_cache", kind: Kind::Switch },
    number("moderation_cache_entries", 10_000, 1, 1_000_000),
    number("moderation_cache_seconds", 60, 1, 3_600),
    number("generator_slots", 8, 1, 256),
    // A prism is made again by up to eight at once, and what asks for more than the queue holds is always refused.
    number("generator_queue", 64, 8, 65_536),
    // A prompt is not cut into single tokens, nor into more than the decoder computes at once.
    number("prefill_tokens", 32, 4, 256),
    text("speculation"),
    number("image_queue", 32, 1, 65_536),
    number("max_connections", 1_024, 1, 1_000_000),
    number("header_timeout_ms", 10_000, 100, 600_000),
    Setting { name: "playground", kind: Kind::Switch },
    text("log_format"),
    text("log"),
    text("otlp_endpoint"),
];

/// The merged settings. Absent ones get their defaults in [`Config`](super::Config).
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) listen: Option<String>,
    pub(super) tls_certificate_file: Option<PathBuf>,
    pub(super) tls_key_file: Option<PathBuf>,
    pub(super) tls_client_ca_file: Option<PathBuf>,
    pub(super) models_dir: Option<PathBuf>,
    pub(super) runtime_library: Option<PathBuf>,
    pub(super) device: Option<String>,
    pub(super) models: Option<Vec<String>>,
    pub(super) keys_file: Option<PathBuf>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) api_key: Option<SecretString>,
    pub(super) usage_limit: Option<u64>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) redis_url: Option<SecretString>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) redis_password: Option<SecretString>,
    pub(super) redis_ca_file: Option<PathBuf>,
    pub(super) redis_prefix: Option<String>,
    pub(super) redis_timeout_ms: Option<u64>,
    pub(super) replicas: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) request_timeout_ms: Option<u64>,
    pub(super) shutdown_grace_ms: Option<u64>,
    pub(super) text_queue: Option<u64>,
    pub(super) batch_tokens: Option<NumberOrAuto>,
    pub(super) batch_wait_us: Option<u64>,
    pub(super) second_reading: Option<bool>,
    pub(super) moderation_cache: Option<bool>,
    pub(super) moderation_cache_entries: Option<u64>,
    pub(super) moderation_cache_seconds: Option<u64>,
    pub(super) generator_slots: Option<u64>,
    pub(super) generator_queue: Option<u64>,
    pub(super) prefill_tokens: Option<u64>,
    pub(super) speculation: Option<String>,
    pub(super) image_queue: Option<u64>,
    pub(super) max_connections: Option<u64>,
    pub(super) header_timeout_ms: Option<u64>,
    pub(super) playground: Option<bool>,
    pub(super) log_format: Option<String>,
    pub(super) log: Option<String>,
    pub(super) otlp_endpoint: Option<String>,
}

/// The value of a setting of [`Kind::NumberOrAuto`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum NumberOrAuto {
    /// A number, not yet held against its bounds.
    Number(u64),
    /// A word.
    Word(Auto),
}

/// The one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// The server chooses.
    Auto,
}

impl FromStr for NumberOrAuto {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Word(Auto::Auto)),
            number => number.parse().map(Self::Number).map_err(|_| "neither a whole number nor the word auto"),
        }
    }
}

fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(SecretString::from))
}

/// The flags of `dichroic serve`, which win over the environment, which wins over the file.
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which shows no mark-up")]
#[derive(Clone, Debug, Default, clap::Args, Serialize)]
pub struct ServeFlags {
    /// Address and port to listen on; port 0 takes a free one. An address other machines can reach needs a key
    /// [default: 127.0.0.1:8080] [env: DICHROIC_LISTEN]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Certificate for TLS, PEM, followed by those between it and its authority; reloaded when it changes. Without it
    /// the server speaks plain HTTP [default: none] [env: DICHROIC_TLS_CERTIFICATE_FILE]
    #[arg(long, value_name = "PATH")]
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM and not encrypted; reloaded when it changes
    /// [default: none] [env: DICHROIC_TLS_KEY_FILE]
    #[arg(long, value_name = "PATH")]
    pub tls_key_file: Option<PathBuf>,
    /// Authorities of client certificates, PEM. With it, a client must show one that they signed, beside its key;
    /// reloaded when it changes [default: none] [env: DICHROIC_TLS_CLIENT_CA_FILE]
    #[arg(long, value_name = "PATH")]
    pub tls_client_ca_file: Option<PathBuf>,
    /// Folder of the models [default: models] [env: DICHROIC_MODELS_DIR]
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// The ONNX Runtime shared library
    /// [default: runtime/libonnxruntime.so] [env: DICHROIC_RUNTIME_LIBRARY]
    #[arg(long, value_name = "PATH")]
    pub runtime_library: Option<PathBuf>,
    /// What models compute on: cpu; cuda, a GPU, without which nothing starts; or auto, a GPU where one can be used and
    /// the CPU where not. GPUs need the runtime library and the models of `make setup DEVICE=cuda`
    /// [default: cpu] [env: DICHROIC_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Identifiers to serve, separated by commas [default: every installed one] [env: DICHROIC_MODELS]
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub models: Option<Vec<String>>,
    /// File of the API keys, reloaded when it changes. One more key may be given in DICHROIC_API_KEY, which has no
    /// flag because command lines are visible to every user of a machine
    /// [default: keys.json] [env: DICHROIC_KEYS_FILE]
    #[arg(long, value_name = "PATH")]
    pub keys_file: Option<PathBuf>,
    /// Requests a minute of a key that has no limit of its own, a tenth of them at once; 0 for no limit
    /// [default: 600] [env: DICHROIC_USAGE_LIMIT]
    #[arg(long, value_name = "N")]
    pub usage_limit: Option<u64>,
    /// Certificates, as PEM, for a Redis with TLS; none for those that the system trusts. Limits are counted in Redis
    /// for all replicas together when DICHROIC_REDIS_URL names one; it and DICHROIC_REDIS_PASSWORD have no flag
    /// [default: none] [env: DICHROIC_REDIS_CA_FILE]
    #[arg(long, value_name = "PATH")]
    pub redis_ca_file: Option<PathBuf>,
    /// How the names of keys in Redis begin [default: dichroic:] [env: DICHROIC_REDIS_PREFIX]
    #[arg(long, value_name = "TEXT")]
    pub redis_prefix: Option<String>,
    /// How long a request waits for Redis, in milliseconds, before this replica decides by its share
    /// [default: 10] [env: DICHROIC_REDIS_TIMEOUT_MS]
    #[arg(long, value_name = "MS")]
    pub redis_timeout_ms: Option<u64>,
    /// Number of replicas that share limits in Redis; while Redis is away, each allows a limit divided by this number.
    /// More than 1 needs DICHROIC_REDIS_URL [default: 1] [env: DICHROIC_REPLICAS]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u64>,
    /// Threads for inference; 0 for as many as the processor affinity and the container's quota grant
    /// [default: 0] [env: DICHROIC_THREADS]
    #[arg(long, value_name = "N")]
    pub threads: Option<u64>,
    /// Time a request may take, waiting included, in milliseconds
    /// [default: 30000] [env: DICHROIC_REQUEST_TIMEOUT_MS]
    #[arg(long, value_name = "MS")]
    pub request_timeout_ms: Option<u64>,
    /// Time to finish requests under way after SIGTERM or SIGINT, in milliseconds
    /// [default: 25000] [env: DICHROIC_SHUTDOWN_GRACE_MS]
    #[arg(long, value_name = "MS")]
    pub shutdown_grace_ms: Option<u64>,
    /// Text windows that may wait for classification before requests are refused with 429
    /// [default: 1024] [env: DICHROIC_TEXT_QUEUE]
    #[arg(long, value_name = "N")]
    pub text_queue: Option<u64>,
    /// Most tokens, padding counted, that a text classifier takes at once; auto measures it on this machine, after the
    /// start and while nothing waits, and is 16384 on a GPU [default: auto] [env: DICHROIC_BATCH_TOKENS]
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<NumberOrAuto>,
    /// How long a batch waits for company, in microseconds; 0 for not at all
    /// [default: 500] [env: DICHROIC_BATCH_WAIT_US]
    #[arg(long, value_name = "US")]
    pub batch_wait_us: Option<u64>,
    /// Whether an English text to which the classifier of alpha-4o-mini, beta-3-haiku or gamma-1.5-flash gives 0.1 or more
    /// (alpha: 0.03) in any category is judged by others of its bundle, too; these also have a say in whether a short English text has
    /// something to express: true or false [default: true] [env: DICHROIC_SECOND_READING]
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    pub second_reading: Option<bool>,
    /// Whether a text that was moderated a moment ago is answered from memory, which holds a keyed hash of it and its
    /// scores: true or false [default: true] [env: DICHROIC_MODERATION_CACHE]
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    pub moderation_cache: Option<bool>,
    /// Texts whose scores are kept for each identifier [default: 10000] [env: DICHROIC_MODERATION_CACHE_ENTRIES]
    #[arg(long, value_name = "N")]
    pub moderation_cache_entries: Option<u64>,
    /// How long scores are kept, in seconds [default: 60] [env: DICHROIC_MODERATION_CACHE_SECONDS]
    #[arg(long, value_name = "S")]
    pub moderation_cache_seconds: Option<u64>,
    /// Texts generated side by side by one model; each takes memory for its context
    /// [default: 8] [env: DICHROIC_GENERATOR_SLOTS]
    #[arg(long, value_name = "N")]
    pub generator_slots: Option<u64>,
    /// Generations that may wait for a slot before requests are refused with 429
    /// [default: 64] [env: DICHROIC_GENERATOR_QUEUE]
    #[arg(long, value_name = "N")]
    pub generator_queue: Option<u64>,
    /// Most tokens of a new text that a generator takes in at once while others are being answered: less delays those
    /// less, and the new one more [default: 32] [env: DICHROIC_PREFILL_TOKENS]
    #[arg(long, value_name = "N")]
    pub prefill_tokens: Option<u64>,
    /// Whether generators guess their next words from the text and verify several at once: auto (where no answer
    /// changes by it), lookup or off [default: auto] [env: DICHROIC_SPECULATION]
    #[arg(long, value_name = "KIND")]
    pub speculation: Option<String>,
    /// Images that may wait before requests are refused with 429 [default: 32] [env: DICHROIC_IMAGE_QUEUE]
    #[arg(long, value_name = "N")]
    pub image_queue: Option<u64>,
    /// Connections open at once; more wait to be accepted [default: 1024] [env: DICHROIC_MAX_CONNECTIONS]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u64>,
    /// Time a client may take for the TLS handshake, to send a request's headers, and before it takes more of an answer
    /// that waits for it, in milliseconds [default: 10000] [env: DICHROIC_HEADER_TIMEOUT_MS]
    #[arg(long, value_name = "MS")]
    pub header_timeout_ms: Option<u64>,
    /// Whether / serves a page on which people try the operations with a key of theirs: true or false
    /// [default: true] [env: DICHROIC_PLAYGROUND]
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    pub playground: Option<bool>,
    /// How log lines are written: json or text [default: json] [env: DICHROIC_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What is logged: off, error, warn, info, debug, trace, or a filter such as info,dichroic::engine=debug
    /// [default: info] [env: DICHROIC_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// OpenTelemetry collector that traces are sent to over OTLP (HTTP, protobuf, no TLS), such as
    /// http://127.0.0.1:4318; without one there are none [default: none] [env: DICHROIC_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// Where a setting came from, as figment's metadata names its provider.
const COMMAND_LINE: &str = "command line";
const ENVIRONMENT: &str = "environment";

impl Provider for ServeFlags {
    fn metadata(&self) -> Metadata {
        Metadata::named(COMMAND_LINE)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut dict = Value::serialize(self)?.into_dict().unwrap_or_default();
        // Flags that were not given must not hide what the environment or the file says.
        dict.retain(|_, value| !matches!(value, Value::Empty(..)));
        Ok(Profile::Default.collect(dict))
    }
}

/// The settings of an environment.
pub(super) struct Environment(Dict);

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// Picks the settings out of an environment. A variable that is empty counts as not set.
    ///
    /// figment's own reader is not used because it guesses types: a key of digits would become a number.
    pub(super) fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let mut dict = Dict::new();
        for (variable, value) in variables {
            let Some(variable) = variable.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            if SCRIPTS.contains(&variable) || [SOURCES, TESTS].iter().any(|begins| variable.starts_with(begins)) {
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == variable) else {
                return Err(ConfigError::UnknownVariable { variable: variable.to_owned() });
            };
            let Ok(value) = value.into_string() else {
                return Err(ConfigError::NotUnicode { variable: variable.to_owned() });
            };
            if value.is_empty() {
                continue;
            }
            dict.insert(setting.name.to_owned(), typed(setting.kind, value));
        }
        Ok(Self(dict))
    }
}

fn typed(kind: Kind, value: String) -> Value {
    match kind {
        Kind::Text => Value::from(value),
        Kind::List => value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect::<Vec<_>>().into(),
        // What is no switch or no number stays a text, which is then refused by its type.
        Kind::Switch => value.trim().parse::<bool>().map_or_else(|_| Value::from(value), Value::from),
        Kind::Number { .. } | Kind::NumberOrAuto { .. } => {
            value.trim().parse::<u64>().map_or_else(|_| Value::from(value), Value::from)
        }
    }
}

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        Metadata::named(ENVIRONMENT)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

/// Names the place where a setting was written, so that an error says what to edit.
pub(super) fn origin(name: &str, metadata: Option<&Metadata>) -> String {
    match metadata {
        Some(metadata) if metadata.name == ENVIRONMENT => format!("the environment variable {}", variable(name)),
        Some(metadata) if metadata.name == COMMAND_LINE => format!("the flag {}", flag(name)),
        Some(metadata) => match metadata.source.as_ref().and_then(figment::Source::file_path) {
            Some(path) => format!("the file {}", path.display()),
            None => metadata.name.clone().into_owned(),
        },
        None => "its default".to_owned(),
    }
}
