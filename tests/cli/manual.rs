//! Help, completions, manual pages, colours and exit codes.

use std::{fs, path::Path, process::Command};

use crate::support::{dichroic, run, stderr, stdout};

/// Commands that a user sees.
const COMMANDS: &[&str] = &[
    "serve",
    "check",
    "keys",
    "models",
    #[cfg(feature = "bench")]
    "bench",
    "completions",
    "man",
];

/// A folder whose settings are refused: what needs none must not care.
fn broken() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("dichroic.toml"), "no_such_setting = 1\n").unwrap();
    folder
}

#[test]
fn the_help_has_every_command_the_exit_codes_and_examples() {
    let output = run(broken().path(), &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in COMMANDS.iter().chain(&["Exit codes:", "Examples:", "NO_COLOR"]) {
        assert!(help.contains(part), "no {part} in\n{help}");
    }
    assert!(!help.contains("read in pictures"), "a hidden command is shown");
}

#[test]
fn exit_codes_are_as_the_help_says() {
    let folder = broken();
    for (arguments, code) in [
        (&["--version"][..], 0),
        (&["keys", "list"], 1),
        (&["check"], 1),
        (&["no-such-command"], 2),
        (&["serve", "--no-such-flag"], 2),
        (&["completions", "tcsh"], 2),
    ] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    }
    let output = run(folder.path(), &["keys", "list"]);
    assert!(stderr(&output).contains("no_such_setting") && stderr(&output).contains("serve --help"), "{output:?}");
}

#[test]
fn every_shell_is_told_every_command() {
    let folder = broken();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(folder.path(), &["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}: {output:?}");
        for command in COMMANDS {
            assert!(stdout(&output).contains(command), "{shell} knows no {command}");
        }
        assert!(stdout(&output).contains("keys-file"), "{shell} knows no flags");
    }
}

#[test]
fn bash_completes_a_command() {
    let folder = broken();
    let output = run(folder.path(), &["completions", "bash"]);
    fs::write(folder.path().join("dichroic.bash"), &output.stdout).unwrap();
    let script = "source dichroic.bash; COMP_WORDS=(dichroic models ver); COMP_CWORD=2; \
                  _dichroic dichroic ver models; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["-c", script]).current_dir(folder.path()).output().unwrap();
    assert_eq!(stdout(&bash), "verify\n", "{}", stderr(&bash));
}

fn page(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join("pages").join(name)).unwrap()
}

#[test]
fn there_is_a_page_for_every_command() {
    let folder = broken();
    let first = run(folder.path(), &["man"]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    assert!(stdout(&first).contains(".TH dichroic 1") && stdout(&first).contains("Exit codes:"), "{first:?}");
    let all = run(folder.path(), &["man", "--out", "pages"]);
    assert_eq!(all.status.code(), Some(0), "{all:?}");
    for command in COMMANDS {
        assert!(page(folder.path(), &format!("dichroic-{command}.1")).contains("Examples:"), "{command}");
    }
    assert!(page(folder.path(), "dichroic-models-add.1").contains("LABEL=CATEGORY"));
    assert!(!folder.path().join("pages/dichroic-read.1").exists(), "a hidden command has a page");
}

#[test]
fn no_color_wins_over_every_wish_for_colour() {
    let folder = broken();
    let coloured = dichroic(folder.path()).arg("--help").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(stdout(&coloured).contains('\u{1b}'), "there is no colour to turn off");
    let plain = dichroic(folder.path()).arg("--help").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!stdout(&plain).contains('\u{1b}'));
}
