//! The script on Lua itself, against the limiter in memory; and the limiter against a small stand-in for Redis.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use governor::clock::FakeRelativeClock;
use proptest::prelude::*;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::*;

fn secret(text: &str) -> SecretString {
    SecretString::from(text.to_owned())
}

fn options(url: &str) -> RedisOptions {
    RedisOptions {
        server: RedisServer::new(&secret(url), None).unwrap(),
        ca_file: None,
        prefix: "dichroic:".into(),
        timeout: Duration::from_millis(200),
        replicas: NonZeroU32::new(4).unwrap(),
    }
}

// --- the script --------------------------------------------------------------

/// What the script sees of Redis: a clock, and keys that go when their time is up.
#[derive(Default)]
struct FakeRedis {
    micros: u64,
    keys: HashMap<String, (String, u64)>,
}

impl FakeRedis {
    fn call(&mut self, lua: &mlua::Lua, arguments: &[String]) -> mlua::Result<mlua::Value> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match words[..] {
            ["TIME"] => {
                let time = [self.micros / 1_000_000, self.micros % 1_000_000].map(|part| part.to_string());
                Ok(mlua::Value::Table(lua.create_sequence_from(time)?))
            }
            ["GET", key] => match self.keys.get(key) {
                Some((value, until)) if *until > self.micros => Ok(mlua::Value::String(lua.create_string(value)?)),
                _ => Ok(mlua::Value::Boolean(false)),
            },
            ["SET", key, value, "PX", milliseconds] => {
                // As Redis does: digits alone are a number to it, and an expiry is at least 1.
                let life: u64 = milliseconds.parse().unwrap();
                assert!(life > 0 && value.bytes().all(|byte| byte.is_ascii_digit()), "{words:?}");
                self.keys.insert(key.into(), (value.into(), self.micros + life * 1_000));
                Ok(mlua::Value::Boolean(true))
            }
            _ => panic!("the script asks for {words:?}"),
        }
    }
}

/// Runs the script as Redis would, on Lua 5.1.
struct Shared {
    lua: mlua::Lua,
    redis: Arc<Mutex<FakeRedis>>,
}

impl Shared {
    fn new() -> Self {
        let lua = mlua::Lua::new();
        // A time of today, so that its digits are as many as Redis would have.
        let redis = Arc::new(Mutex::new(FakeRedis { micros: 1_790_000_000_123_457, ..FakeRedis::default() }));
        let table = lua.create_table().unwrap();
        let seen = Arc::clone(&redis);
        let call = lua.create_function(move |lua, arguments: mlua::Variadic<mlua::Value>| {
            let texts: Vec<String> = arguments.iter().map(|value| value.to_string().unwrap()).collect();
            seen.lock().unwrap().call(lua, &texts)
        });
        table.set("call", call.unwrap()).unwrap();
        lua.globals().set("redis", table).unwrap();
        Self { lua, redis }
    }

    fn advance(&self, time: Duration) {
        self.redis.lock().unwrap().micros += u64::try_from(time.as_micros()).unwrap();
    }

    fn decide(&self, key_id: &str, limit: UsageLimit) -> LimitDecision {
        let bucket = Bucket::of(limit);
        let globals = self.lua.globals();
        globals.set("KEYS", [key_name("dichroic:", key_id, limit)]).unwrap();
        globals.set("ARGV", [bucket.interval.to_string(), bucket.capacity.to_string()]).unwrap();
        let [passes, micros]: [f64; 2] = self.lua.load(include_str!("gcra.lua")).eval().unwrap();
        assert!(micros >= 0.0 && micros.fract() == 0.0, "Redis would cut {micros}");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative, as shown")]
        bucket.decision(limit, passes > 0.0, micros as u64)
    }
}

proptest! {
    /// Whatever comes when, the decision, what remains and the times are those of the limiter in memory.
    #[test]
    fn the_script_and_the_limiter_in_memory_decide_alike(
        per_minute in prop::sample::select(vec![1_u32, 6, 60, 600, 1_200, 60_000, 1_000_000]),
        burst in 1_u32..30,
        pauses in prop::collection::vec(prop_oneof![Just(0_u64), 0..200_000_u64, 0..70_000_000_u64], 1..80),
    ) {
        let limit = UsageLimit { per_minute, burst };
        let caller = Caller::for_test("a", limit);
        let clock = FakeRelativeClock::default();
        let (memory, shared) = (MemoryLimiter::with_clock(clock.clone(), 8), Shared::new());
        for pause in pauses {
            let pause = Duration::from_micros(pause);
            clock.advance(pause);
            shared.advance(pause);
            prop_assert_eq!(shared.decide("a", limit), memory.decide(&caller));
        }
    }
}

#[test]
fn a_bucket_is_forgotten_when_it_is_full_and_no_sooner() {
    let (shared, limit) = (Shared::new(), UsageLimit { per_minute: 60, burst: 3 });
    for _ in 0..3 {
        shared.decide("a", limit);
    }
    assert_eq!(shared.redis.lock().unwrap().keys.len(), 1);
    let until = |redis: &FakeRedis| redis.keys.values().map(|(_, until)| until - redis.micros).max().unwrap();
    assert_eq!(until(&shared.redis.lock().unwrap()), 3_000_000);
    shared.advance(Duration::from_secs(3));
    let full = LimitDecision::Allowed { limit, remaining: 2, reset: Duration::from_secs(1) };
    assert_eq!(shared.decide("a", limit), full);
}

#[test]
fn keys_do_not_share_a_bucket_and_a_new_limit_applies_at_once() {
    let (shared, one) = (Shared::new(), UsageLimit { per_minute: 1, burst: 1 });
    let refused = LimitDecision::Refused { limit: one, retry_after: Duration::from_mins(1) };
    shared.decide("a", one);
    assert_eq!(shared.decide("a", one), refused);
    assert_ne!(shared.decide("b", one), refused);
    let limit = UsageLimit { per_minute: 60, burst: 2 };
    let reset = Duration::from_secs(1);
    assert_eq!(shared.decide("a", limit), LimitDecision::Allowed { limit, remaining: 1, reset });
}

#[test]
fn a_clock_that_is_set_back_costs_one_empty_bucket_at_most() {
    let (shared, limit) = (Shared::new(), UsageLimit { per_minute: 60, burst: 5 });
    shared.decide("a", limit);
    shared.redis.lock().unwrap().micros -= 3_600_000_000;
    let refused = LimitDecision::Refused { limit, retry_after: Duration::from_secs(1) };
    assert_eq!(shared.decide("a", limit), refused);
}

// --- arithmetic --------------------------------------------------------------

#[test]
fn a_share_is_a_part_of_the_limit_and_never_nothing() {
    for (limit, replicas, per_minute, burst) in
        [((600, 60), 1, 600, 60), ((600, 60), 4, 150, 15), ((100, 10), 3, 33, 3), ((2, 1), 50, 1, 1)]
    {
        let limit = UsageLimit { per_minute: limit.0, burst: limit.1 };
        let share = share(limit, NonZeroU32::new(replicas).unwrap());
        assert_eq!(share, UsageLimit { per_minute, burst }, "{limit:?} over {replicas}");
    }
}

#[test]
fn limits_of_every_size_have_a_bucket() {
    for (per_minute, interval) in [(1, 60_000_000), (7, 8_571_429), (600, 100_000), (999_999, 60), (u32::MAX, 1)] {
        let bucket = Bucket::of(UsageLimit { per_minute, burst: u32::MAX });
        assert_eq!(bucket, Bucket { interval, capacity: interval * u64::from(u32::MAX) });
    }
}

// --- addresses ---------------------------------------------------------------

#[test]
fn an_address_shows_host_and_port_and_never_its_credential() {
    let url = secret("rediss://limits:from-the-url@redis.internal:6380/2");
    for password in [None, Some(secret("from-the-setting"))] {
        let server = RedisServer::new(&url, password.as_ref()).unwrap();
        let settings = server.0.redis_settings();
        let wanted = if password.is_some() { "from-the-setting" } else { "from-the-url" };
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("limits"), Some(wanted), 2));
        assert!(server.encrypts());
        let options = RedisOptions { server, ..options("redis://127.0.0.1") };
        let shown = format!("{} {options:?}", options.server);
        assert!(shown.contains("redis.internal:6380") && !shown.contains("from-the"), "{shown}");
    }
}

#[test]
fn of_what_a_server_says_only_known_words_are_repeated() {
    for (answer, told) in [
        ("-NOPERM this user has no permissions to run 'open-sesame'", "it answered with the error NOPERM"),
        ("-OPEN-SESAME is what you sent", "extension error"),
        ("-ERR unknown command 'AUTH', with args beginning with: 'open-sesame'", "response error"),
    ] {
        let value = redis::parse_redis_value(format!("{answer}\r\n").as_bytes()).unwrap();
        let error = value.extract_error().unwrap_err();
        assert!(error.to_string().to_lowercase().contains("sesame"), "nothing to hide in {error}");
        assert_eq!(link::describe(&error), told);
    }
}

#[test]
fn other_addresses_are_refused() {
    for url in [
        "",
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "unix:///run/redis.sock",
        "redis://",
        "redis://0.0.0.0",
        "redis://127.0.0.1/first",
        "redis://127.0.0.1:port",
        // Would switch off the check of certificates.
        "rediss://127.0.0.1#insecure",
    ] {
        assert!(RedisServer::new(&secret(url), None).is_none(), "{url}");
    }
    assert!(!RedisServer::new(&secret("redis://[::1]:6379/0"), None).unwrap().encrypts());
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let options = RedisOptions { ca_file: Some(path.clone()), ..options("rediss://127.0.0.1:1") };
    let error = RedisLimiter::start(options.clone(), |_| ()).await.unwrap_err();
    assert!(matches!(error, RedisSetupError::Certificates { .. }), "{error}");
    fs::write(&path, "no certificate").unwrap();
    let error = RedisLimiter::start(options, |_| ()).await.unwrap_err();
    assert!(matches!(error, RedisSetupError::NotCertificates { .. }), "{error}");
}

// --- without Redis, and with one that falls silent ----------------------------

/// Answers what the limiter asks, until it is told to be silent.
#[derive(Clone, Default)]
struct StandIn {
    silent: Arc<AtomicBool>,
    decisions: Arc<AtomicUsize>,
}

impl StandIn {
    async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(this.clone().serve(stream));
            }
        });
        url
    }

    async fn serve(self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let words = words(&mut stream).await?;
            let answer = match words[0].as_str() {
                "EVALSHA" if words[3] == "dichroic:trial" => "*2\r\n:1\r\n:1\r\n".to_owned(),
                "EVALSHA" => {
                    self.decisions.fetch_add(1, Ordering::SeqCst);
                    "*2\r\n:1\r\n:100000\r\n".to_owned()
                }
                _ => "+OK\r\n".to_owned(),
            };
            if !self.silent.load(Ordering::SeqCst) {
                stream.write_all(answer.as_bytes()).await.ok()?;
            }
        }
    }
}

/// One command: an array of texts.
async fn words(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream, '*').await? {
        let mut word = vec![0; number(stream, '$').await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8(word).unwrap().trim_end().to_owned());
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.strip_prefix(mark)?.trim_end().parse().ok()
}

type Reasons = Arc<Mutex<Vec<Fallback>>>;

async fn limiter(url: &str, timeout: Duration) -> (RedisLimiter, Reasons) {
    let reasons = Reasons::default();
    let told = Arc::clone(&reasons);
    let options = RedisOptions { timeout, ..options(url) };
    let limiter = RedisLimiter::start(options, move |why| told.lock().unwrap().push(why)).await.unwrap();
    (limiter, reasons)
}

#[tokio::test]
async fn without_redis_a_replica_allows_its_share() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    drop(listener);
    let (limiter, reasons) = limiter(&url, Duration::from_secs(10)).await;
    let caller = Caller::for_test("a", UsageLimit { per_minute: 4, burst: 8 });
    let share = UsageLimit { per_minute: 1, burst: 2 };
    let reset = Duration::from_mins(1);
    assert_eq!(limiter.check(&caller).await, LimitDecision::Allowed { limit: share, remaining: 1, reset });
    assert!(matches!(limiter.check(&caller).await, LimitDecision::Allowed { remaining: 0, .. }));
    assert!(matches!(limiter.check(&caller).await, LimitDecision::Refused { .. }));
    assert_eq!(*reasons.lock().unwrap(), [Fallback::Away; 3], "nobody waited for a connection");
}

#[tokio::test]
async fn a_caller_without_a_limit_is_nobodys_business() {
    let stand_in = StandIn::default();
    let (limiter, reasons) = limiter(&stand_in.listen().await, Duration::from_secs(10)).await;
    let caller = Caller::for_test("a", UsageLimit::per_minute(0));
    assert_eq!(limiter.check(&caller).await, LimitDecision::Unlimited);
    assert_eq!((stand_in.decisions.load(Ordering::SeqCst), reasons.lock().unwrap().len()), (0, 0));
}

#[tokio::test]
async fn a_redis_that_falls_silent_is_left_alone_until_it_answers_again() {
    let stand_in = StandIn::default();
    let (limiter, reasons) = limiter(&stand_in.listen().await, Duration::from_millis(200)).await;
    let limit = UsageLimit { per_minute: 600, burst: 60 };
    let caller = Caller::for_test("a", limit);
    let shared = LimitDecision::Allowed { limit, remaining: 59, reset: Duration::from_millis(100) };
    assert_eq!(limiter.check(&caller).await, shared);

    stand_in.silent.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let decision = limiter.check(&caller).await;
        let LimitDecision::Allowed { limit, .. } = decision else { panic!("{decision:?}") };
        assert_eq!(limit, UsageLimit { per_minute: 150, burst: 15 }, "the share of one of four");
        if reasons.lock().unwrap().contains(&Fallback::Away) {
            break;
        }
    }
    let late = reasons.lock().unwrap().iter().filter(|why| **why == Fallback::Timeout).count();
    assert_eq!(late, 5, "that many waited for an answer, and nobody after them");
    assert_eq!(stand_in.decisions.load(Ordering::SeqCst), 1 + late);

    stand_in.silent.store(false, Ordering::SeqCst);
    let patience = Instant::now() + Duration::from_secs(30);
    while limiter.check(&caller).await != shared {
        assert!(Instant::now() < patience, "Redis is back, and nobody has noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
