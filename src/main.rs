//! The `dichroic` binary. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    dichroic::cli::run()
}
