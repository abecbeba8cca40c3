//! The command line: the clap tree, dispatch, and exit codes.
//!
//! May import anything; the only room that knows `anyhow`. Exit codes: 0 for success, 1 for a failure told in one
//! sentence on standard error, 2 for a command line that cannot be understood.

#[cfg(feature = "bench")]
mod bench;
pub mod check;
mod compose;
pub mod keys;
mod manual;
pub mod models;
mod progress;
mod read;
mod serve;
mod table;

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::config::{Config, ServeFlags};

/// Text expression, replies and content moderation from local ONNX models.
#[derive(Debug, Parser)]
#[command(
    name = "dichroic",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Exit codes:\n  \
        0  done; of `serve`, stopped by a signal as it should\n  \
        1  not done, or a fault was found: standard error or a FAIL line says what, and what to do\n  \
        2  the command line cannot be understood\n\n\
        NO_COLOR=1 turns colours off.\n\n\
        Examples:\n  dichroic keys create --label first\n  dichroic serve\n  dichroic check\n  dichroic models list"
)]
struct Cli {
    /// Configuration file [default: dichroic.toml, if it exists]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the operations over HTTP
    #[command(after_help = "Settings are read from the file, then the environment, then flags; the last one wins.\n\n\
        Examples:\n  DICHROIC_API_KEY=$(openssl rand -hex 24) dichroic serve\n  \
        dichroic serve --listen 127.0.0.1:9000 --models alpha-4o-mini")]
    Serve(Box<ServeFlags>),
    /// Verify configuration, certificate, checksums, the runtime library and one inference per model; or an unpacked bundle
    #[command(after_help = "Takes the settings of `dichroic serve`. Ends with 1 when a part fails.\n\n\
        Examples:\n  dichroic check --config /etc/dichroic/dichroic.toml\n  \
        dichroic check --bundle /srv/dichroic-0.1.0-linux-x86_64 --public-key minisign.pub")]
    Check(Box<check::CheckArgs>),
    /// Create, list and revoke API keys
    #[command(after_help = "A running server notices within seconds.\n\n\
        Examples:\n  dichroic keys create --label \"web team\" --expires 90d\n  dichroic keys list --json\n  \
        dichroic keys revoke 1a2b3c4d")]
    Keys(keys::KeysArgs),
    /// List, verify and add models
    #[command(after_help = "Examples:\n  dichroic models list\n  dichroic models verify\n  \
        dichroic models add ./toxic-bert --id delta-3.1 --map toxic=hate --map threat=violence\n  \
        dichroic models add ./my-llama --id beta-3-haiku --replace")]
    Models(models::ModelsArgs),
    /// Send a bounded load to a running server and report its latencies
    #[cfg(feature = "bench")]
    Bench(bench::BenchArgs),
    /// Print what a shell needs to complete the command line
    Completions(manual::CompletionsArgs),
    /// Print the manual page
    Man(manual::ManArgs),
    /// Print what is read in pictures
    #[command(hide = true)]
    Read(read::ReadArgs),
}

/// Parses the command line and runs it.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            tell(&error);
            ExitCode::FAILURE
        }
    }
}

fn tell(error: &anyhow::Error) {
    // A closed standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "dichroic: {error:#}");
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let file = cli.config.as_deref();
    let settings = || Config::load(file, &ServeFlags::default());
    match cli.command {
        Command::Serve(flags) => serve::run(Config::load(file, &flags)?)?,
        Command::Check(args) => {
            return match &args.bundle {
                Some(dir) => check::bundle(dir, args.public_key.as_deref()),
                None => check::run(Config::load(file, &args.flags)),
            };
        }
        Command::Keys(args) => keys::run(args, &settings()?)?,
        Command::Models(args) => {
            let flags = ServeFlags { models_dir: args.models_dir.clone(), ..ServeFlags::default() };
            return models::run(args, &Config::load(file, &flags)?);
        }
        #[cfg(feature = "bench")]
        Command::Bench(args) => return bench::run(&args, &settings()?),
        Command::Completions(args) => manual::completions(&args, Cli::command())?,
        Command::Man(args) => manual::man(&args, Cli::command())?,
        Command::Read(args) => read::run(&args, &settings()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_how_it_is_used() {
        let mut waiting = vec![Cli::command()];
        while let Some(command) = waiting.pop() {
            waiting.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  "), "{} has no example", command.get_name());
        }
    }
}
