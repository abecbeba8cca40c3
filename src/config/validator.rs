//! Whether values make sense, each alone and all together, and what is accepted in words.
//!
//! Owns the bounds and the defaults that no setting's entry has. Refuses to quote a value: one of them may be a key.
//!
//! One file, because each setting's rule in words is changed with its check.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use figment::Figment;
use secrecy::{ExposeSecret, SecretString};
use tracing_subscriber::EnvFilter;

use super::{
    CacheBounds, Config, ConfigError, DeviceChoice, LogFormat, Speculation, TlsFiles, available_cores,
    raw::{Kind, NumberOrAuto, RawConfig, SETTINGS, Setting, origin},
};
use crate::{
    access::{RedisOptions, RedisServer, keys::MIN_BOOTSTRAP_CHARACTERS},
    domain::{ModelId, UsageLimit},
};

/// What may stand in `log` by itself, in any case.
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Most characters before the names of keys in Redis.
const MAX_PREFIX_CHARACTERS: usize = 64;

/// What a setting accepts, in words that end a sentence.
pub(super) fn rule(setting: &Setting) -> String {
    match (setting.kind, setting.name) {
        (Kind::Number { min, max, .. }, "replicas") => {
            format!("a whole number from {min} to {max}, and more than 1 only beside a redis_url")
        }
        (Kind::Number { min, max, .. }, _) => format!("a whole number from {min} to {max}"),
        (Kind::NumberOrAuto { min, max }, _) => format!("auto or a whole number from {min} to {max}"),
        (Kind::Switch, _) => "true or false".to_owned(),
        (_, "listen") => "an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080".to_owned(),
        (_, "models") => {
            let names: Vec<_> = ModelId::ALL.iter().map(|id| id.as_str()).collect();
            format!("a list of one or more of {}, each once", names.join(", "))
        }
        (_, "api_key") => {
            format!("a text of at least {MIN_BOOTSTRAP_CHARACTERS} visible ASCII characters without spaces")
        }
        (_, "redis_url") => {
            "an address such as redis://10.0.0.5:6379 or rediss://user@redis.internal:6379/0".to_owned()
        }
        (_, "redis_password") => "a text that is not empty, beside a redis_url".to_owned(),
        (_, "redis_ca_file") => "the path of a file, beside a redis_url that begins with rediss://".to_owned(),
        (_, "redis_prefix") => {
            format!("a text of 1 to {MAX_PREFIX_CHARACTERS} visible ASCII characters without spaces")
        }
        (_, "speculation") => "auto, lookup or off".to_owned(),
        (_, "device") => "cpu, cuda or auto".to_owned(),
        (_, "log_format") => "json or text".to_owned(),
        (_, "log") => format!("{}, or a filter such as info,dichroic::engine=debug", LOG_LEVELS.join(", ")),
        (_, "otlp_endpoint") => "http://HOST:PORT, such as http://127.0.0.1:4318, or empty".to_owned(),
        _ => "a text that is not empty".to_owned(),
    }
}

/// Judges values, and knows where each came from.
pub(super) struct Validator<'a> {
    pub(super) sources: &'a Figment,
}

impl Validator<'_> {
    pub(super) fn config(&self, mut raw: RawConfig) -> Result<Config, ConfigError> {
        let redis = self.redis(&mut raw)?;
        let moderation_cache = self.moderation_cache(&raw)?;
        let threads = self.number("threads", raw.threads)?;
        Ok(Config {
            listen: self.listen(raw.listen)?,
            tls: self.tls(raw.tls_certificate_file, raw.tls_key_file, raw.tls_client_ca_file)?,
            models_dir: self.path("models_dir", raw.models_dir, "models")?,
            runtime_library: self.path("runtime_library", raw.runtime_library, "runtime/libonnxruntime.so")?,
            device: self.device(raw.device.as_deref())?,
            models: self.models(raw.models)?,
            keys_file: self.path("keys_file", raw.keys_file, "keys.json")?,
            api_key: self.api_key(raw.api_key)?,
            usage_limit: UsageLimit::per_minute(self.number("usage_limit", raw.usage_limit)?),
            redis,
            threads: NonZeroUsize::new(threads).unwrap_or_else(available_cores),
            request_timeout: Duration::from_millis(self.number("request_timeout_ms", raw.request_timeout_ms)?),
            shutdown_grace: Duration::from_millis(self.number("shutdown_grace_ms", raw.shutdown_grace_ms)?),
            text_queue: self.number("text_queue", raw.text_queue)?,
            batch_tokens: self.number_or_auto("batch_tokens", raw.batch_tokens)?,
            batch_wait: Duration::from_micros(self.number("batch_wait_us", raw.batch_wait_us)?),
            second_reading: raw.second_reading.unwrap_or(true),
            moderation_cache,
            generator_slots: self.number("generator_slots", raw.generator_slots)?,
            generator_queue: self.number("generator_queue", raw.generator_queue)?,
            prefill_tokens: self.number("prefill_tokens", raw.prefill_tokens)?,
            speculation: self.speculation(raw.speculation.as_deref())?,
            image_queue: self.number("image_queue", raw.image_queue)?,
            max_connections: self.number("max_connections", raw.max_connections)?,
            header_timeout: Duration::from_millis(self.number("header_timeout_ms", raw.header_timeout_ms)?),
            playground: raw.playground.unwrap_or(true),
            log_format: self.log_format(raw.log_format.as_deref())?,
            log: self.log(raw.log)?,
            otlp_endpoint: self.otlp_endpoint(raw.otlp_endpoint)?,
        })
    }

    fn invalid(&self, name: &'static str) -> ConfigError {
        let rule = SETTINGS.iter().find(|setting| setting.name == name).map(rule).unwrap_or_default();
        ConfigError::Invalid { setting: name, place: origin(name, self.sources.find_metadata(name)), rule }
    }

    /// The value or its default, within the bounds of [`SETTINGS`].
    fn number<N: TryFrom<u64>>(&self, name: &'static str, value: Option<u64>) -> Result<N, ConfigError> {
        let kind = SETTINGS.iter().find(|setting| setting.name == name).map(|setting| setting.kind);
        let Some(Kind::Number { default, min, max }) = kind else { return Err(self.invalid(name)) };
        let value = value.unwrap_or(default);
        if !(min..=max).contains(&value) {
            return Err(self.invalid(name));
        }
        N::try_from(value).map_err(|_| self.invalid(name))
    }

    /// The number, within the bounds of [`SETTINGS`]; none for `auto`, which is the default.
    fn number_or_auto(&self, name: &'static str, value: Option<NumberOrAuto>) -> Result<Option<usize>, ConfigError> {
        let Some(NumberOrAuto::Number(number)) = value else { return Ok(None) };
        match SETTINGS.iter().find(|setting| setting.name == name).map(|setting| setting.kind) {
            Some(Kind::NumberOrAuto { min, max }) if (min..=max).contains(&number) => {
                usize::try_from(number).map(Some).map_err(|_| self.invalid(name))
            }
            _ => Err(self.invalid(name)),
        }
    }

    /// The bounds are judged also where they bound nothing.
    fn moderation_cache(&self, raw: &RawConfig) -> Result<Option<CacheBounds>, ConfigError> {
        let entries = self.number("moderation_cache_entries", raw.moderation_cache_entries)?;
        let age = Duration::from_secs(self.number("moderation_cache_seconds", raw.moderation_cache_seconds)?);
        Ok(raw.moderation_cache.unwrap_or(true).then_some(CacheBounds { entries, age }))
    }

    fn path(&self, name: &'static str, value: Option<PathBuf>, default: &str) -> Result<PathBuf, ConfigError> {
        Ok(self.optional_path(name, value)?.unwrap_or_else(|| default.into()))
    }

    fn optional_path(&self, name: &'static str, value: Option<PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
        match value {
            Some(path) if path.as_os_str().is_empty() => Err(self.invalid(name)),
            other => Ok(other),
        }
    }

    fn tls(
        &self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> Result<Option<TlsFiles>, ConfigError> {
        let certificate = self.optional_path("tls_certificate_file", certificate)?;
        let key = self.optional_path("tls_key_file", key)?;
        let client_ca = self.optional_path("tls_client_ca_file", client_ca)?;
        let incomplete = |setting, missing| {
            let place = origin(setting, self.sources.find_metadata(setting));
            Err(ConfigError::TlsIncomplete { setting, place, missing })
        };
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key, client_ca })),
            (Some(_), None) => incomplete("tls_certificate_file", "tls_key_file"),
            (None, Some(_)) => incomplete("tls_key_file", "tls_certificate_file"),
            // Silently ignored, everybody would be let in who was to be kept out.
            (None, None) if client_ca.is_some() => incomplete("tls_client_ca_file", "tls_certificate_file"),
            (None, None) => Ok(None),
        }
    }

    fn listen(&self, value: Option<String>) -> Result<SocketAddr, ConfigError> {
        let value = value.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        value.parse().map_err(|_| self.invalid("listen"))
    }

    fn models(&self, value: Option<Vec<String>>) -> Result<Vec<ModelId>, ConfigError> {
        let Some(names) = value else { return Ok(ModelId::ALL.to_vec()) };
        let mut models = Vec::with_capacity(names.len());
        for name in &names {
            let id = name.parse().map_err(|_| self.invalid("models"))?;
            if models.contains(&id) {
                return Err(self.invalid("models"));
            }
            models.push(id);
        }
        if models.is_empty() { Err(self.invalid("models")) } else { Ok(models) }
    }

    fn api_key(&self, value: Option<SecretString>) -> Result<Option<SecretString>, ConfigError> {
        // A space or a line's end, easily read along from a file, could never arrive in a header.
        let fits = |key: &str| key.len() >= MIN_BOOTSTRAP_CHARACTERS && key.bytes().all(|byte| byte.is_ascii_graphic());
        match value {
            Some(key) if !fits(key.expose_secret()) => Err(self.invalid("api_key")),
            other => Ok(other),
        }
    }

    fn redis(&self, raw: &mut RawConfig) -> Result<Option<RedisOptions>, ConfigError> {
        let prefix = raw.redis_prefix.take().unwrap_or_else(|| "dichroic:".to_owned());
        let fits = (1..=MAX_PREFIX_CHARACTERS).contains(&prefix.len());
        if !fits || !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(self.invalid("redis_prefix"));
        }
        let timeout = Duration::from_millis(self.number("redis_timeout_ms", raw.redis_timeout_ms)?);
        let replicas =
            NonZeroU32::new(self.number("replicas", raw.replicas)?).ok_or_else(|| self.invalid("replicas"))?;
        let (password, ca_file) = (raw.redis_password.take(), raw.redis_ca_file.take());
        let url = raw.redis_url.take();
        let server = url.map(|url| RedisServer::new(&url, password.as_ref()).ok_or_else(|| self.invalid("redis_url")));
        let server = server.transpose()?;
        // What is given for a Redis that nobody asks is a mistake: limits would silently not be shared.
        if password.is_some_and(|password| password.expose_secret().is_empty() || server.is_none()) {
            return Err(self.invalid("redis_password"));
        }
        // Each of several would allow the whole limit. One is true without Redis, too, so it may be written.
        if replicas > NonZeroU32::MIN && server.is_none() {
            return Err(self.invalid("replicas"));
        }
        let encrypts = server.as_ref().is_some_and(RedisServer::encrypts);
        if ca_file.as_ref().is_some_and(|path| path.as_os_str().is_empty() || !encrypts) {
            return Err(self.invalid("redis_ca_file"));
        }
        Ok(server.map(|server| RedisOptions { server, ca_file, prefix, timeout, replicas }))
    }

    fn speculation(&self, value: Option<&str>) -> Result<Speculation, ConfigError> {
        match value {
            None | Some("auto") => Ok(Speculation::Auto),
            Some("off") => Ok(Speculation::Off),
            Some("lookup") => Ok(Speculation::Lookup),
            Some(_) => Err(self.invalid("speculation")),
        }
    }

    fn device(&self, value: Option<&str>) -> Result<DeviceChoice, ConfigError> {
        match value {
            None | Some("cpu") => Ok(DeviceChoice::Cpu),
            Some("cuda") => Ok(DeviceChoice::Cuda),
            Some("auto") => Ok(DeviceChoice::Auto),
            Some(_) => Err(self.invalid("device")),
        }
    }

    fn log_format(&self, value: Option<&str>) -> Result<LogFormat, ConfigError> {
        match value {
            None | Some("json") => Ok(LogFormat::Json),
            Some("text") => Ok(LogFormat::Text),
            Some(_) => Err(self.invalid("log_format")),
        }
    }

    /// tracing takes a word that is no level for the only part of the program to be logged: a mistyped level would
    /// silence the server.
    fn log(&self, value: Option<String>) -> Result<String, ConfigError> {
        let Some(value) = value else { return Ok("info".to_owned()) };
        let sound = |directive: &str| {
            directive.contains(['=', '[']) || LOG_LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive))
        };
        // Empty ones are passed over, as tracing does; spaces around a level are not.
        let mut directives = value.split(',').filter(|directive| !directive.is_empty()).peekable();
        let sound = directives.peek().is_some() && directives.all(sound) && EnvFilter::try_new(&value).is_ok();
        if sound { Ok(value) } else { Err(self.invalid("log")) }
    }

    /// An empty one is none, so that a template may always write the setting.
    fn otlp_endpoint(&self, value: Option<String>) -> Result<Option<String>, ConfigError> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
        let address = value.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let parts = address.and_then(|address| address.rsplit_once(':'));
        let named = |host: &str| match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
        };
        match parts {
            Some((host, port)) if named(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok(Some(format!("http://{host}:{port}")))
            }
            _ => Err(self.invalid("otlp_endpoint")),
        }
    }
}
