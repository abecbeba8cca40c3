//! The bar of long work: on standard error, only where that is a terminal, and gone when the work ends.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::registry::Progress;

/// As narrow as a terminal of 80 columns, whichever model is named.
const LOOK: &str = "{msg}  {bar:24}  {decimal_bytes} of {decimal_total_bytes}";

/// How many bytes of some work are done. Dropping it clears its line.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// `work` says what is done. Nothing is drawn before the work begins.
    pub(super) fn new(work: impl Into<Cow<'static, str>>) -> Self {
        let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(0).with_style(style).with_message(work).with_finish(ProgressFinish::AndClear))
    }
}

impl Progress for Bar {
    fn begin(&self, bytes: u64) {
        self.0.set_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_look_is_one_that_can_be_drawn() {
        assert!(ProgressStyle::with_template(LOOK).is_ok());
    }
}
