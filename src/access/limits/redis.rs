//! Usage limits counted in one Redis for all replicas.
//!
//! Owns the names of the keys, the arithmetic around the script (`redis/gcra.lua`, one step and one round trip a
//! request) and what happens when no answer comes in time: this replica's share of the limit, counted in memory.
//! Refuses to keep a request waiting longer than the time-out, and to show a credential. A check runs on the
//! request's tokio thread; connections are made and given up by a task of their own (`link`).

mod link;
#[cfg(test)]
mod tests;

use std::{
    fmt, fs, io,
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use secrecy::{ExposeSecret, SecretString};

use super::{Decision, Limiter, MemoryLimiter};
use crate::{
    access::Caller,
    domain::{LimitDecision, UsageLimit},
};
use link::Link;

/// Address and credential of a Redis that connections can be made to.
#[derive(Clone)]
pub struct RedisServer(ConnectionInfo);

impl RedisServer {
    /// Reads `redis://` or `rediss://` (TLS), `user:password@`, host, port and database. A password beside it wins
    /// over one in it. `None` if the address is not of that form; why is not told, as it may hold a password.
    pub fn new(url: &SecretString, password: Option<&SecretString>) -> Option<Self> {
        let text = url.expose_secret();
        // Fragments are left to no reader: one of them would switch off the check of certificates.
        let ours = text.starts_with("redis://") || text.starts_with("rediss://");
        if !ours || text.contains('#') {
            return None;
        }
        let info = text.into_connection_info().ok()?;
        let Some(password) = password else { return Some(Self(info)) };
        let settings = info.redis_settings().clone().set_password(password.expose_secret());
        Some(Self(info.set_redis_settings(settings)))
    }

    /// Whether connections are made with TLS.
    pub fn encrypts(&self) -> bool {
        matches!(self.0.addr(), ConnectionAddr::TcpTls { .. })
    }
}

/// Host and port, without the credential.
impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.addr().fmt(f)
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisServer({self})")
    }
}

/// Where and how limits are counted.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where Redis is.
    pub server: RedisServer,
    /// Certificates, as PEM, that a server with TLS must descend from; without it, those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// How the name of every key begins.
    pub prefix: String,
    /// How long a request waits for a decision before it is judged here.
    pub timeout: Duration,
    /// Replicas that share the limits: each may allow that part of a limit while Redis does not answer.
    pub replicas: NonZeroU32,
}

/// Why limits cannot be counted in Redis as the settings want it.
#[derive(Debug, thiserror::Error)]
pub enum RedisSetupError {
    /// The file with certificates is not there or cannot be read.
    #[error("the certificates in {path} cannot be read ({cause}); check redis_ca_file", path = path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The file holds no certificates.
    #[error("{path} holds no certificates as PEM; check redis_ca_file", path = path.display())]
    NotCertificates {
        /// The file.
        path: PathBuf,
    },
    /// No usable answer. Only from [`probe`]: a limiter goes on without Redis.
    #[error("{server} does not answer ({cause}); check redis_url, redis_password and redis_ca_file")]
    Away {
        /// Host and port.
        server: String,
        /// What happened.
        cause: String,
    },
}

/// Why a request was judged by this replica's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Redis was not asked: it has failed lately, and its return is looked for in the background.
    Away,
    /// It was asked and gave no answer in time.
    Timeout,
    /// It was asked and answered with an error, or the connection broke.
    Error,
}

impl Fallback {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::Away, Self::Timeout, Self::Error];

    /// The word for it in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }
}

/// A [`Limiter`] whose counts all replicas share.
pub struct RedisLimiter {
    link: Link,
    prefix: String,
    timeout: Duration,
    replicas: NonZeroU32,
    local: MemoryLimiter,
    fell_back: Box<dyn Fn(Fallback) + Send + Sync>,
}

impl fmt::Debug for RedisLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisLimiter {
    /// Connects, for about a second at most, and goes on without when Redis is away. `fell_back` is told of each
    /// request that was judged by the local share. Must be called on a tokio runtime, whose I/O and time it uses.
    ///
    /// # Errors
    /// [`RedisSetupError`] for certificates that cannot be used.
    pub async fn start(
        options: RedisOptions,
        fell_back: impl Fn(Fallback) + Send + Sync + 'static,
    ) -> Result<Self, RedisSetupError> {
        let client = client(&options)?;
        Ok(Self {
            link: Link::start(client, options.server.to_string(), &options.prefix, options.timeout).await,
            prefix: options.prefix,
            timeout: options.timeout,
            replicas: options.replicas,
            local: MemoryLimiter::default(),
            fell_back: Box::new(fell_back),
        })
    }

    async fn decide(&self, caller: &Caller) -> LimitDecision {
        // A burst of 0 would refuse everything; the nearest limit that means something is 1.
        let limit = UsageLimit { burst: caller.limit().burst.max(1), ..caller.limit() };
        if limit.is_unlimited() {
            return LimitDecision::Unlimited;
        }
        match self.ask(caller.key_id(), limit).await {
            Ok(decision) => decision,
            Err(why) => {
                (self.fell_back)(why);
                self.local.count(caller.key_id(), share(limit, self.replicas))
            }
        }
    }

    async fn ask(&self, key_id: &str, limit: UsageLimit) -> Result<LimitDecision, Fallback> {
        let line = self.link.line().ok_or(Fallback::Away)?;
        let bucket = Bucket::of(limit);
        let mut call = self.link.script().key(key_name(&self.prefix, key_id, limit));
        call.arg(bucket.interval).arg(bucket.capacity);
        let mut connection = line.connection();
        match tokio::time::timeout(self.timeout, call.invoke_async(&mut connection)).await {
            Ok(Ok((passes, micros))) => {
                self.link.answered();
                Ok(bucket.decision(limit, passes, micros))
            }
            Ok(Err(error)) => {
                self.link.failed(&line, &error);
                Err(Fallback::Error)
            }
            Err(_) => {
                self.link.late(&line);
                Err(Fallback::Timeout)
            }
        }
    }
}

impl Limiter for RedisLimiter {
    fn check<'a>(&'a self, caller: &'a Caller) -> Decision<'a> {
        Box::pin(self.decide(caller))
    }
}

/// Connects once and has a decision made; how long that took. For `dichroic check`.
///
/// # Errors
/// [`RedisSetupError`].
pub async fn probe(options: &RedisOptions) -> Result<Duration, RedisSetupError> {
    let start = Instant::now();
    match link::try_out(&client(options)?, &options.prefix).await {
        Ok(()) => Ok(start.elapsed()),
        Err(cause) => Err(RedisSetupError::Away { server: options.server.to_string(), cause }),
    }
}

fn client(options: &RedisOptions) -> Result<Client, RedisSetupError> {
    // Names the one provider of cryptography, whatever else is linked in. An error says that one is named already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let info = options.server.0.clone().set_tcp_settings(link::tcp_settings());
    let Some(path) = &options.ca_file else {
        return Client::open(info).map_err(|error| away(options, &error));
    };
    let pem = fs::read(path).map_err(|cause| RedisSetupError::Certificates { path: path.clone(), cause })?;
    if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        return Err(RedisSetupError::NotCertificates { path: path.clone() });
    }
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem) })
        .map_err(|_| RedisSetupError::NotCertificates { path: path.clone() })
}

fn away(options: &RedisOptions, error: &redis::RedisError) -> RedisSetupError {
    RedisSetupError::Away { server: options.server.to_string(), cause: link::describe(error) }
}

/// The limit is part of the name: a key whose limit changed starts with a full bucket, as it does in memory.
fn key_name(prefix: &str, key_id: &str, limit: UsageLimit) -> String {
    format!("{prefix}{key_id}:{}:{}", limit.per_minute, limit.burst)
}

/// What one replica may allow by itself: a limit over the number of replicas, though always something.
fn share(limit: UsageLimit, replicas: NonZeroU32) -> UsageLimit {
    UsageLimit { per_minute: (limit.per_minute / replicas).max(1), burst: (limit.burst / replicas).max(1) }
}

/// A limit in the script's terms: microseconds, whole ones, which the numbers of Lua hold exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Time in which one request is given back.
    interval: u64,
    /// Time in which an empty bucket fills.
    capacity: u64,
}

impl Bucket {
    /// The bucket of a limit that is not unlimited. The interval is rounded to the nearest microsecond: of a million
    /// requests a minute, the largest default there is, less than one in a hundred is gained or lost by that.
    fn of(limit: UsageLimit) -> Self {
        let per_minute = u64::from(limit.per_minute.max(1));
        let interval = ((60_000_000 + per_minute / 2) / per_minute).max(1);
        Self { interval, capacity: interval * u64::from(limit.burst) }
    }

    /// What the script's answer means, in the same terms as the limiter in memory.
    fn decision(self, limit: UsageLimit, passes: bool, micros: u64) -> LimitDecision {
        if !passes {
            return LimitDecision::Refused { limit, retry_after: Duration::from_micros(micros) };
        }
        let left = self.capacity.saturating_sub(micros) / self.interval;
        let remaining = u32::try_from(left).map_or(limit.burst, |left| left.min(limit.burst));
        let reset = Duration::from_micros(self.interval * u64::from(limit.burst - remaining));
        LimitDecision::Allowed { limit, remaining, reset }
    }
}
