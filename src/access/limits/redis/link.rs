//! The connections to Redis: a few, shared by all requests, that are given up and made anew as one.
//!
//! Owns whether Redis is asked at all. Connections are lent out while Redis answers; after a broken one, or several
//! failures in a row, all are dropped, nobody waits for Redis any more, and a task of its own tries again, at ever
//! longer intervals, until Redis decides over a bucket of nobody's within the time that a request would grant it. So
//! no request pays for a trial, and what would fail every request is not tried on one. Each outage is logged when it
//! begins and when it ends. Refuses to repeat what a server says: a stranger at the address might send the password
//! back.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, RedisError, Script,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Connections held. Each serves many requests at once; one lost packet delays only those on its own.
const CONNECTIONS: usize = 4;
/// Failures in a row, of requests that run at the same time too, after which Redis is not asked for a while.
const PATIENCE: u32 = 5;
/// Time for making one connection, names, TLS and password included.
const CONNECT: Duration = Duration::from_secs(1);
/// Pause before the first trial of an outage; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after which a connection is given up whose other end acknowledges nothing.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
const LATE: &str = "no answer in time";
/// Errors of Redis that an operator can do something about.
const ERROR_CODES: [&str; 10] =
    ["NOAUTH", "NOPERM", "OOM", "READONLY", "LOADING", "BUSY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "MOVED"];

/// Hands out connections while Redis answers.
pub(super) struct Link {
    shared: Arc<Shared>,
    /// Ends with the link.
    _keeper: JoinSet<()>,
}

/// One request's hold on the connections.
pub(super) struct Line {
    lines: Lines,
    turn: usize,
}

type Lines = Arc<[MultiplexedConnection; CONNECTIONS]>;

struct Shared {
    trial: Trial,
    live: RwLock<Option<Lines>>,
    turn: AtomicUsize,
    failures: AtomicU32,
    hung_up: Notify,
}

impl Link {
    /// Connects, or says that it could not; from then on a task keeps the connections.
    pub(super) async fn start(client: Client, server: String, prefix: &str, limit: Duration) -> Self {
        let shared = Arc::new(Shared {
            trial: Trial::new(prefix),
            live: RwLock::default(),
            turn: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            hung_up: Notify::new(),
        });
        match connect(&client, &shared.trial, limit).await {
            Ok(lines) => {
                shared.restore(lines);
                tracing::info!(server, "usage limits are counted in Redis");
            }
            Err(cause) => {
                warn(&cause);
                shared.hung_up.notify_one();
            }
        }
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(Arc::clone(&shared), client, limit));
        Self { shared, _keeper: keeper }
    }

    pub(super) fn script(&self) -> &Script {
        &self.shared.trial.script
    }

    /// A connection, if Redis is to be asked.
    pub(super) fn line(&self) -> Option<Line> {
        let lines = self.shared.live.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        Some(Line { lines, turn })
    }

    /// A request was answered in time.
    pub(super) fn answered(&self) {
        // Read first: while all is well nobody writes, and processors need not pass the counter around.
        if self.shared.failures.load(Ordering::Relaxed) != 0 {
            self.shared.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A request was not answered in time.
    pub(super) fn late(&self, line: &Line) {
        self.count(line, || LATE.to_owned());
    }

    /// A request was answered by an error, or its connection broke.
    pub(super) fn failed(&self, line: &Line, error: &RedisError) {
        if error.is_unrecoverable_error() {
            self.shared.hang_up(&line.lines, &describe(error));
        } else {
            self.count(line, || describe(error));
        }
    }

    fn count(&self, line: &Line, cause: impl FnOnce() -> String) {
        if self.shared.failures.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
            self.shared.hang_up(&line.lines, &cause());
        }
    }
}

impl Line {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.lines[self.turn].clone()
    }
}

impl Shared {
    /// Lends out nothing any more. Only the first to notice does this: failures of connections that were given up
    /// before say nothing about those in use now.
    fn hang_up(&self, lines: &Lines, cause: &str) {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|current| Arc::ptr_eq(current, lines)) {
            *live = None;
            drop(live);
            warn(cause);
            self.hung_up.notify_one();
        }
    }

    fn restore(&self, lines: Lines) {
        self.failures.store(0, Ordering::Relaxed);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(lines);
    }
}

/// The beginning of an outage.
fn warn(cause: &str) {
    tracing::warn!(cause, "Redis does not answer: this replica allows its share of the usage limits");
}

async fn keep(shared: Arc<Shared>, client: Client, limit: Duration) {
    loop {
        shared.hung_up.notified().await;
        let lost = Instant::now();
        let mut pause = FIRST_PAUSE;
        let lines = loop {
            sleep(pause).await;
            match connect(&client, &shared.trial, limit).await {
                Ok(lines) => break lines,
                Err(cause) => tracing::debug!(cause, "Redis is still away"),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        shared.restore(lines);
        let seconds = lost.elapsed().as_secs_f32();
        tracing::info!(seconds, "Redis answers again: usage limits are counted in it");
    }
}

/// All connections, or why not.
async fn connect(client: &Client, trial: &Trial, limit: Duration) -> Result<Lines, String> {
    let mut lines = [open(client).await?, open(client).await?, open(client).await?, open(client).await?];
    trial.run(&mut lines[0], limit).await?;
    Ok(Arc::new(lines))
}

async fn open(client: &Client) -> Result<MultiplexedConnection, String> {
    // How long an answer may take is each request's business.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(|error| describe(&error))
}

/// One connection, and a decision over it.
pub(super) async fn try_out(client: &Client, prefix: &str) -> Result<(), String> {
    Trial::new(prefix).run(&mut open(client).await?, CONNECT).await
}

/// The script, and a bucket of nobody's to try it on.
struct Trial {
    script: Script,
    key: String,
}

impl Trial {
    fn new(prefix: &str) -> Self {
        Self { script: Script::new(include_str!("gcra.lua")), key: format!("{prefix}trial") }
    }

    /// Has Redis decide, which loads the script where it is not known yet. The bucket is forgotten after a millisecond.
    async fn run(&self, connection: &mut MultiplexedConnection, limit: Duration) -> Result<(), String> {
        let mut call = self.script.key(&self.key);
        call.arg(1).arg(1);
        match timeout(limit, call.invoke_async::<(bool, u64)>(connection)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(LATE.to_owned()),
        }
    }
}

/// Small messages that somebody waits for; and a connection that a firewall forgot is noticed before it is needed, or
/// soon after: by itself the system sends again and again for a quarter of an hour what nobody acknowledges.
pub(super) fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(UNACKNOWLEDGED)
}

/// An error in words that are the system's, the library's or ours, never those of the server: of what it says, only
/// a first word that we know.
pub(super) fn describe(error: &RedisError) -> String {
    if error.is_io_error() {
        return error.to_string();
    }
    match ERROR_CODES.iter().find(|code| error.code() == Some(*code)) {
        Some(code) => format!("it answered with the error {code}"),
        None => error.category().to_owned(),
    }
}
