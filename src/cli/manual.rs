//! `dichroic completions` and `dichroic man`: what shells and `man` want to know of the command line.
//!
//! Both are made from the clap tree, so they say what `--help` says. Neither reads any setting.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// Arguments of `dichroic completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    dichroic completions bash > ~/.local/share/bash-completion/completions/dichroic\n  \
    dichroic completions zsh > ~/.zfunc/_dichroic\n  \
    dichroic completions fish > ~/.config/fish/completions/dichroic.fish")]
pub(super) struct CompletionsArgs {
    /// Shell to write for
    shell: Shell,
}

/// Arguments of `dichroic man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  dichroic man | man -l -\n  dichroic man --out ~/.local/share/man/man1")]
pub(super) struct ManArgs {
    /// Write the page of every command into this folder instead of the first one to standard output
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes the completions of `command`.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    // The generator panics where it cannot write, and a pipe may be closed: memory takes everything.
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// Writes the pages of `command`.
pub(super) fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    if let Some(folder) = &args.out {
        return pages(folder, command)
            .with_context(|| format!("cannot write the pages into {}; name a folder of yours", folder.display()));
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    io::stdout().lock().write_all(&page)?;
    Ok(())
}

fn pages(folder: &Path, command: Command) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)?;
    Ok(())
}
