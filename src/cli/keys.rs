//! `dichroic keys`: issue, list and revoke API keys.
//!
//! Owns what is printed: the key itself, once and alone, on standard output, so that it can be piped; every remark
//! on standard error. A running server notices the change by itself. Runs on the main thread.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use secrecy::ExposeSecret;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::table::{aligned, printable};
use crate::{
    access::keys::{
        KeyRecord, NewKey, Revocation,
        file::{self, Timestamp},
    },
    config::Config,
    domain::{Operation, UsageLimit},
};

/// Arguments of `dichroic keys`.
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which shows no mark-up")]
#[derive(Debug, Args)]
pub struct KeysArgs {
    /// File of the API keys [default: keys.json] [env: DICHROIC_KEYS_FILE]
    #[arg(long, global = true, value_name = "PATH")]
    keys_file: Option<PathBuf>,
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key and print it. It is stored only as a hash: this is the one time it can be seen
    #[command(after_help = "Examples:\n  \
        dichroic keys create --label \"web team\" --scope guardian_text --expires 90d\n  \
        dichroic keys create --limit 1200 --burst 100 > team.key")]
    Create(CreateArgs),
    /// Show every key ever made, without the keys themselves
    #[command(after_help = "Examples:\n  dichroic keys list\n  \
        dichroic keys list --json | jq -r '.[] | select(.state == \"active\") | .id'")]
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key for good
    #[command(after_help = "Examples:\n  dichroic keys revoke 1a2b3c4d")]
    Revoke {
        /// The identifier: the eight characters after dk_
        id: String,
    },
}

#[expect(clippy::doc_markdown, reason = "these comments are the help text, which shows no mark-up")]
#[derive(Debug, Args)]
struct CreateArgs {
    /// What to call the key
    #[arg(long)]
    label: Option<String>,
    /// Operations the key may use: prism_text, sunshine_text, guardian_text, guardian_image, moderation [default: all]
    #[arg(long = "scope", value_name = "OPERATION", num_args = 1.., value_delimiter = ',')]
    scopes: Vec<Operation>,
    /// When the key ends: a span such as 90m, 12h, 30d or 4w, or a time such as 2030-01-31T12:00:00Z
    /// [default: never]
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Requests a minute, 0 for no limit [default: the server's usage limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    limit: Option<u32>,
    /// Requests at once [default: a tenth of --limit, at least 1]
    #[arg(long, value_name = "N", requires = "limit", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: Option<u32>,
}

/// Runs `dichroic keys`.
///
/// # Errors
/// A key file that cannot be used, an identifier that does not exist, a time that is not one, a closed output.
pub fn run(args: KeysArgs, config: &Config) -> anyhow::Result<()> {
    let path = args.keys_file.as_deref().unwrap_or(&config.keys_file);
    let now = OffsetDateTime::now_utc();
    match args.command {
        KeysCommand::Create(create) => self::create(create, path, now),
        KeysCommand::List { json } => list(path, json, now),
        KeysCommand::Revoke { id } => revoke(&id, path, now),
    }
}

fn create(args: CreateArgs, path: &Path, now: OffsetDateTime) -> anyhow::Result<()> {
    let mut scopes = args.scopes;
    scopes.sort_unstable();
    scopes.dedup();
    let limit = args.limit.map(|per_minute| {
        let limit = UsageLimit::per_minute(per_minute);
        UsageLimit { burst: args.burst.unwrap_or(limit.burst), ..limit }
    });
    let new = NewKey {
        label: args.label,
        scopes: (!scopes.is_empty()).then_some(scopes),
        expires: args.expires.as_deref().map(|text| expiry(text, now)).transpose()?,
        limit,
    };
    let issued = file::create(path, new, now)?;
    let told = writeln!(io::stdout().lock(), "{}", issued.key.expose_secret());
    if let Err(error) = told {
        // A key that nobody has seen must not stay in force.
        file::revoke(path, &issued.id, now)?;
        return Err(error).context("the key could not be printed, so it was revoked");
    }
    writeln!(
        io::stderr().lock(),
        "Key {} is stored in {} as a hash only: keep the line above, it cannot be shown again.",
        issued.id,
        path.display()
    )?;
    Ok(())
}

fn list(path: &Path, json: bool, now: OffsetDateTime) -> anyhow::Result<()> {
    let keys = file::list(path)?;
    let text = if json { json_list(&keys, now)? } else { table(&keys, now) };
    io::stdout().lock().write_all(text.as_bytes())?;
    if keys.is_empty() && !json {
        writeln!(io::stderr().lock(), "No keys in {}; `dichroic keys create` makes one.", path.display())?;
    }
    Ok(())
}

fn revoke(id: &str, path: &Path, now: OffsetDateTime) -> anyhow::Result<()> {
    // Whoever pastes a whole key means that key; the error must not repeat it.
    if id.starts_with("dk_") {
        bail!("revoke takes the identifier only, the eight characters after dk_");
    }
    let remark = match file::revoke(path, id, now)? {
        Revocation::Done => format!("Key {id} is revoked."),
        Revocation::Already(since) => format!("Key {id} was revoked at {} already.", Timestamp(since)),
    };
    writeln!(io::stderr().lock(), "{remark}")?;
    Ok(())
}

/// Parses a span from now on (`30d`) or a moment (RFC 3339), which must be to come.
fn expiry(text: &str, now: OffsetDateTime) -> anyhow::Result<OffsetDateTime> {
    let moment = if let Ok(moment) = OffsetDateTime::parse(text, &Rfc3339) {
        moment.checked_to_offset(time::UtcOffset::UTC)
    } else {
        span(text).and_then(|span| now.checked_add(span))
    };
    let moment = moment.with_context(|| {
        format!("{text:?} is no time; write a span such as 30d or a time such as 2030-01-31T12:00:00Z")
    })?;
    if moment <= now {
        bail!("{text} is over already; give a time to come");
    }
    Ok(moment)
}

fn span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    let number = i64::from(number.parse::<u32>().ok()?);
    Some(Duration::seconds(number * seconds))
}

fn state(key: &KeyRecord, now: OffsetDateTime) -> &'static str {
    if key.revoked.is_some() {
        "revoked"
    } else if key.expires.is_some_and(|at| at.0 <= now) {
        "expired"
    } else {
        "active"
    }
}

fn json_list(keys: &[KeyRecord], now: OffsetDateTime) -> anyhow::Result<String> {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| {
            // Hashes are left out: a list is for showing around.
            serde_json::json!({
                "id": key.id, "label": key.label, "state": state(key, now), "scopes": key.scopes,
                "limit": key.limit, "created": key.created, "expires": key.expires, "revoked": key.revoked,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&keys)? + "\n")
}

fn table(keys: &[KeyRecord], now: OffsetDateTime) -> String {
    let heading = ["ID", "LABEL", "STATE", "SCOPES", "LIMIT", "CREATED", "EXPIRES"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(heading)
        .chain(keys.iter().map(|key| {
            [
                key.id.clone(),
                key.label.as_deref().map_or_else(|| "-".to_owned(), printable),
                state(key, now).to_owned(),
                key.scopes.as_ref().map_or_else(
                    || "all".to_owned(),
                    |scopes| scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(","),
                ),
                key.limit.map_or_else(
                    || "default".to_owned(),
                    |limit| match limit.per_minute {
                        0 => "none".to_owned(),
                        per_minute => format!("{per_minute}/min, {} at once", limit.burst),
                    },
                ),
                key.created.to_string(),
                key.expires.map_or_else(|| "never".to_owned(), |at| at.to_string()),
            ]
        }))
        .collect();
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> OffsetDateTime {
        OffsetDateTime::parse("2030-01-01T12:00:00Z", &Rfc3339).unwrap()
    }

    #[test]
    fn expiry_takes_spans_and_times_to_come() {
        for (text, expected) in [
            ("90m", noon() + Duration::minutes(90)),
            ("12h", noon() + Duration::hours(12)),
            ("30d", noon() + Duration::days(30)),
            ("4w", noon() + Duration::weeks(4)),
            ("2030-01-31T12:00:00Z", noon() + Duration::days(30)),
            ("2030-01-31T13:00:00+01:00", noon() + Duration::days(30)),
        ] {
            assert_eq!(expiry(text, noon()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn expiry_refuses_the_past_and_nonsense() {
        // The last is a moment beyond the last year when told in UTC.
        let never = "9999-12-31T23:59:59-08:00";
        for text in ["", "d", "30", "30y", "-1d", "1.5d", "30\u{e9}", "tomorrow", "2030-01-31", "4294967295w", never] {
            let error = expiry(text, noon()).unwrap_err().to_string();
            assert!(error.contains("is no time; write a span such as 30d"), "{error}");
        }
        for text in ["0d", "2029-12-31T12:00:00Z"] {
            let error = expiry(text, noon()).unwrap_err().to_string();
            assert_eq!(error, format!("{text} is over already; give a time to come"));
        }
    }
}
