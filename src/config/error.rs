//! Why settings are refused: one sentence each, which names the setting, where it was written and what to do.

use std::{net::SocketAddr, path::PathBuf};

/// Why the settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file named on the command line is not there or not readable.
    #[error("the configuration file {path} cannot be read ({reason}); check --config", path = path.display())]
    UnreadableFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("the configuration file {path} is not TOML ({reason}); correct that line", path = path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// Line and cause, without the line's text: it may hold the API key.
        reason: String,
    },
    /// The file sets something that does not exist.
    #[error("{setting} in {place} is no setting; `dichroic serve --help` lists them")]
    UnknownSetting {
        /// The name found.
        setting: String,
        /// Where it was written.
        place: String,
    },
    /// The environment sets something that does not exist.
    #[error(
        "the environment variable {variable} is no setting; correct or unset it (`dichroic serve --help` lists them)"
    )]
    UnknownVariable {
        /// The variable.
        variable: String,
    },
    /// A variable holds bytes that are no text.
    #[error("the environment variable {variable} is not UTF-8; correct or unset it")]
    NotUnicode {
        /// The variable.
        variable: String,
    },
    /// A value is out of bounds or of the wrong kind.
    #[error("{setting}, set by {place}, must be {rule}; correct or remove it")]
    Invalid {
        /// The setting.
        setting: &'static str,
        /// Where it was written.
        place: String,
        /// What is accepted.
        rule: String,
    },
    /// One part of TLS is set without another that it needs.
    #[error("{setting}, set by {place}, needs {missing} beside it; set both or neither")]
    TlsIncomplete {
        /// The setting found.
        setting: &'static str,
        /// Where it was written.
        place: String,
        /// The setting that is absent.
        missing: &'static str,
    },
    /// Other machines could connect, yet nobody could authenticate.
    #[error(
        "listening on {listen} without any API key is refused; run `dichroic keys create`, set DICHROIC_API_KEY, \
         or listen on 127.0.0.1"
    )]
    PublicWithoutKey {
        /// The address.
        listen: SocketAddr,
    },
}
