//! The command line: the clap tree, dispatch, and exit codes.
//!
//! May import anything; the only room that knows `anyhow`. Exit codes: 0 for success, 1 for a failure told in one
//! sentence on standard error, 2 for a command line that cannot be understood.

pub mod check;
mod compose;
pub mod keys;
mod read;
mod serve;

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::config::{Config, ServeFlags};

/// Text expression, replies and content moderation from local ONNX models.
#[derive(Debug, Parser)]
#[command(name = "dichroic", version, propagate_version = true, arg_required_else_help = true)]
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
    /// Verify configuration, certificate, checksums, the runtime library and one inference per model
    Check(Box<ServeFlags>),
    /// Create, list and revoke API keys
    Keys(keys::KeysArgs),
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
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr().lock(), "dichroic: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let file = cli.config.as_deref();
    match cli.command {
        Command::Serve(flags) => serve::run(&Config::load(file, &flags)?).map(|()| ExitCode::SUCCESS),
        Command::Check(flags) => check::run(Config::load(file, &flags)),
        Command::Keys(args) => {
            keys::run(args, &Config::load(file, &ServeFlags::default())?).map(|()| ExitCode::SUCCESS)
        }
        Command::Read(args) => {
            read::run(&args, &Config::load(file, &ServeFlags::default())?).map(|()| ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }
}
