//! The log subscriber of the process: JSON lines or plain text on standard error.

use tracing_subscriber::EnvFilter;

/// Form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start logging: {0}")]
pub struct SubscriberError(String);

/// Installs the subscriber, and a panic hook that logs through it, once a process.
///
/// # Errors
/// [`SubscriberError`] for a filter that does not parse, or a second call.
pub fn install(format: Format, filter: &str) -> Result<(), SubscriberError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| SubscriberError(error.to_string()))?;
    // A line that cannot be written, on a full disk or into a closed pipe, is lost. Otherwise that would be reported with
    // `eprintln!`, which panics there, and the hook's own line would panic again: the end of the process.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        Format::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
        Format::Text => builder.with_ansi(false).try_init(),
    }
    .map_err(|error| SubscriberError(error.to_string()))?;
    log_panics();
    Ok(())
}

/// Has every panic of the process logged by its place. Its message may quote what was being handled, so it is not told.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
    }));
}
