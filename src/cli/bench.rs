//! `dichroic bench`: a bounded load run against a server, with latency percentiles.
//!
//! Owns the only client of the project, which is why a cargo feature can leave it out. Speaks HTTP/1.1 without TLS over
//! a fixed number of kept connections, one request at a time on each. Refuses to run without an end: the number of
//! requests and the time are both bounded. Runs on the main thread, which sends and waits.

mod bodies;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, StatusCode, Uri,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use indicatif::{ProgressBar, ProgressStyle};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use tokio::{net::TcpStream, task::LocalSet, time::timeout};

use crate::{
    config::Config,
    domain::{ModelId, Operation},
};

use bodies::Bodies;

/// A request that has no answer after this long counts as failed.
const PATIENCE: Duration = Duration::from_mins(2);

/// Arguments of `dichroic bench`.
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which shows no mark-up")]
#[derive(Debug, Args)]
#[command(after_help = "The key comes from --key-file or DICHROIC_API_KEY. A key's own usage limit counts here too: \
    take one without,\n`dichroic keys create --limit 0`, and revoke it afterwards. Ends with 1 when any answer is not \
    200.\n\nExamples:\n  dichroic bench --key-file team.key\n  \
    dichroic bench --operation prism_text --requests 50 --connections 8\n  \
    dichroic bench --operation guardian_image --image photo.jpg --json > run.json")]
pub(super) struct BenchArgs {
    /// The server; http only, so ask it behind whatever ends TLS
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: Uri,
    /// Operation to ask: prism_text, sunshine_text, guardian_text, guardian_image or moderation
    #[arg(long, value_name = "OPERATION", default_value = "guardian_text")]
    operation: Operation,
    /// Identifier to ask [default: the server's]
    #[arg(long, value_name = "ID")]
    model: Option<ModelId>,
    /// Requests to send
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: u64,
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    connections: u16,
    /// Time after which no more requests are sent
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Texts to send, one a line, in turn [default: six of our own]. Each one to moderate gets a number at its end, so
    /// that no two are alike: a server answers what it was asked a moment ago from memory
    #[arg(long, value_name = "FILE", conflicts_with = "image")]
    texts: Option<PathBuf>,
    /// Picture to send; guardian_image needs one
    #[arg(long, value_name = "FILE", required_if_eq("operation", "guardian_image"))]
    image: Option<PathBuf>,
    /// File that holds the key and nothing else
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
}

/// Where requests go and what they hold.
struct Target {
    address: String,
    path: &'static str,
    bodies: Bodies,
    key: SecretString,
}

/// Why a request has no answer. The number of each is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    Connection,
    Timeout,
}

impl Failure {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection failed",
            Self::Timeout => "no answer in time",
        }
    }
}

/// What became of the requests.
#[derive(Debug, Default)]
struct Tally {
    statuses: BTreeMap<u16, u64>,
    failures: BTreeMap<Failure, u64>,
    /// Of the answers with 200.
    latencies: Vec<Duration>,
    elapsed: Duration,
}

impl Tally {
    fn add(&mut self, outcome: Result<StatusCode, Failure>, latency: Duration) {
        match outcome {
            Ok(status) => {
                *self.statuses.entry(status.as_u16()).or_default() += 1;
                if status == StatusCode::OK {
                    self.latencies.push(latency);
                }
            }
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }

    fn merge(&mut self, other: Self) {
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.latencies.extend(other.latencies);
    }

    fn sent(&self) -> u64 {
        self.statuses.values().chain(self.failures.values()).sum()
    }

    fn answered(&self) -> u64 {
        self.statuses.get(&200).copied().unwrap_or(0)
    }

    #[expect(clippy::cast_precision_loss, reason = "no run has 2^52 requests")]
    fn per_second(&self) -> f64 {
        self.answered() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// Sends the load and prints what came back.
///
/// # Errors
/// A server that cannot be reached or does not answer the first request with 200, a file that cannot be read, a closed
/// output.
pub(super) fn run(args: &BenchArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let target = Rc::new(target(args, config)?);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A bar draws itself only where standard error is a terminal.
    let bar = ProgressBar::new(args.requests).with_style(ProgressStyle::with_template(
        "{bar:40} {pos}/{len}  {per_sec}  {elapsed_precise} of at most {msg}",
    )?);
    bar.set_message(format!("{} s", args.seconds));
    let mut tally = LocalSet::new().block_on(&tokio, async {
        first_answer(&target).await?;
        load(&target, args, &bar).await
    })?;
    bar.finish_and_clear();
    tally.latencies.sort_unstable();
    let text = if args.json { report_json(args, &tally)? } else { report(args, &tally) };
    io::stdout().lock().write_all(text.as_bytes())?;
    if tally.statuses.contains_key(&429) {
        let remedy = "take a key without a limit (`dichroic keys create --limit 0`), or fewer connections";
        writeln!(io::stderr().lock(), "Some requests were refused with 429, a usage limit or a full queue: {remedy}.")?;
    }
    Ok(if tally.answered() == tally.sent() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn target(args: &BenchArgs, config: &Config) -> anyhow::Result<Target> {
    ensure!(args.url.scheme_str() == Some("http"), "--url must begin with http://; TLS is not spoken here");
    let host = args.url.host().context("--url names no host; write http://HOST:PORT")?;
    let key = match &args.key_file {
        Some(path) => SecretString::from(read(path, "--key-file")?.trim().to_owned()),
        None => config.api_key.clone().context("no key is given; set DICHROIC_API_KEY or --key-file")?,
    };
    let address = format!("{host}:{}", args.url.port_u16().unwrap_or(80));
    Ok(Target { address, path: args.operation.path(), bodies: Bodies::of(args)?, key })
}

/// The text in the file that `option` names.
fn read(path: &Path, option: &str) -> anyhow::Result<String> {
    let wrong = || format!("cannot read {} as text; check {option}, and who may read the file", path.display());
    fs::read_to_string(path).with_context(wrong)
}

/// One request before the load: what is wrong with the address, the key or the model is told at once.
async fn first_answer(target: &Target) -> anyhow::Result<()> {
    let mut line = None;
    let status = match ask(&mut line, target, 0).await {
        Ok(status) => status,
        Err(failure) => {
            bail!("{}: {}; is the server running there, without TLS?", target.address, failure.as_str())
        }
    };
    let remedy = match status.as_u16() {
        200 => return Ok(()),
        401 => "give a key of this server in DICHROIC_API_KEY or --key-file, with a scope for the operation",
        404 => "check --url",
        429 => "the key's usage limit is used up; take one without: `dichroic keys create --limit 0`",
        501 => "the identifier has no model for it there; choose another with --model",
        _ => "look at the server's log",
    };
    bail!("{} answers {} to {}; {remedy}", target.address, status.as_u16(), target.path)
}

/// Every connection takes the next request until there is none, or no time.
async fn load(target: &Rc<Target>, args: &BenchArgs, bar: &ProgressBar) -> anyhow::Result<Tally> {
    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds);
    let next = Rc::new(Cell::new(0));
    let workers: Vec<_> = (0..u64::from(args.connections).min(args.requests))
        .map(|_| {
            let (target, next, bar, all) = (Rc::clone(target), Rc::clone(&next), bar.clone(), args.requests);
            tokio::task::spawn_local(async move {
                let (mut tally, mut line) = (Tally::default(), None);
                while next.get() < all && Instant::now() < end {
                    let number = next.replace(next.get() + 1);
                    let sent = Instant::now();
                    // The first one of all was sent before the load.
                    let outcome = ask(&mut line, &target, number + 1).await;
                    tally.add(outcome, sent.elapsed());
                    bar.inc(1);
                }
                tally
            })
        })
        .collect();
    let mut tally = Tally::default();
    for worker in workers {
        tally.merge(worker.await.context("a connection of the run panicked")?);
    }
    tally.elapsed = start.elapsed();
    Ok(tally)
}

type Line = SendRequest<Full<Bytes>>;

/// Sends request `number` over the connection, which is made where there is none, and reads the whole answer.
async fn ask(line: &mut Option<Line>, target: &Target, number: u64) -> Result<StatusCode, Failure> {
    let outcome = timeout(PATIENCE, exchange(line, target, number)).await;
    let outcome = outcome.unwrap_or(Err(Failure::Timeout));
    if outcome.is_err() {
        // The rest of a late answer must not be taken for the next.
        *line = None;
    }
    outcome
}

async fn exchange(line: &mut Option<Line>, target: &Target, number: u64) -> Result<StatusCode, Failure> {
    let mut sender = match line.take().filter(|sender| !sender.is_closed()) {
        Some(sender) => sender,
        None => connect(&target.address).await?,
    };
    sender.ready().await.map_err(|_| Failure::Connection)?;
    let request = Request::post(target.path)
        .header(HOST, &target.address)
        .header(CONTENT_TYPE, "application/json")
        .header(AUTHORIZATION, format!("Bearer {}", target.key.expose_secret()))
        .body(Full::new(target.bodies.get(number)))
        .map_err(|_| Failure::Connection)?;
    let answer = sender.send_request(request).await.map_err(|_| Failure::Connection)?;
    let status = answer.status();
    answer.into_body().collect().await.map_err(|_| Failure::Connection)?;
    *line = Some(sender);
    Ok(status)
}

async fn connect(address: &str) -> Result<Line, Failure> {
    let stream = TcpStream::connect(address).await.map_err(|_| Failure::Connection)?;
    stream.set_nodelay(true).map_err(|_| Failure::Connection)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Connection)?;
    // It ends with its sender; what broke it is told by the request that it broke.
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// The value below or at which `share` of a hundred of the sorted values lie (nearest rank).
fn percentile(sorted: &[Duration], share: usize) -> Duration {
    let rank = (sorted.len() * share).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// The percentiles that are reported; 100 is the longest.
const SHARES: [(&str, usize); 5] = [("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)];

fn report(args: &BenchArgs, tally: &Tally) -> String {
    let outcomes: Vec<String> = tally
        .statuses
        .iter()
        .map(|(status, count)| format!("{count} with {status}"))
        .chain(tally.failures.iter().map(|(failure, count)| format!("{count} {}", failure.as_str())))
        .collect();
    let latencies =
        SHARES.map(|(name, share)| format!("{name} {:.1} ms", percentile(&tally.latencies, share).as_secs_f64() * 1e3));
    format!(
        "{} at {}, {} connections\nrequests  {} in {:.1} s, {:.1} a second answered\nanswers   {}\nlatency   {}\n",
        args.operation,
        args.url,
        args.connections,
        tally.sent(),
        tally.elapsed.as_secs_f64(),
        tally.per_second(),
        outcomes.join(", "),
        latencies.join("  "),
    )
}

fn report_json(args: &BenchArgs, tally: &Tally) -> anyhow::Result<String> {
    let latencies: serde_json::Map<_, _> = SHARES
        .map(|(name, share)| (name.to_owned(), json!(percentile(&tally.latencies, share).as_secs_f64() * 1e3)))
        .into_iter()
        .collect();
    let failures: BTreeMap<_, _> = tally.failures.iter().map(|(failure, count)| (failure.as_str(), count)).collect();
    let report = json!({
        "operation": args.operation, "url": args.url.to_string(), "model": args.model,
        "connections": args.connections, "requests": tally.sent(), "seconds": tally.elapsed.as_secs_f64(),
        "answers_per_second": tally.per_second(), "statuses": tally.statuses, "failures": failures,
        "latency_ms": latencies,
    });
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let sorted: Vec<Duration> = (1..=10).map(Duration::from_millis).collect();
        for (share, expected) in [(50, 5), (90, 9), (91, 10), (99, 10), (100, 10)] {
            assert_eq!(percentile(&sorted, share), Duration::from_millis(expected), "{share}");
        }
        assert_eq!(percentile(&sorted[..1], 50), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn only_answers_with_200_count_as_answered() {
        let mut tally = Tally::default();
        tally.add(Ok(StatusCode::OK), Duration::from_millis(3));
        tally.add(Ok(StatusCode::TOO_MANY_REQUESTS), Duration::from_millis(1));
        tally.add(Err(Failure::Timeout), PATIENCE);
        let mut all = Tally { elapsed: Duration::from_secs(2), ..Tally::default() };
        all.merge(tally);
        assert_eq!((all.sent(), all.answered(), all.latencies.len()), (3, 1, 1));
        assert!((all.per_second() - 0.5).abs() < 1e-9);
    }
}
