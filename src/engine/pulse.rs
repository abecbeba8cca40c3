//! When an engine last answered. Real work proves a model fit as well as a canary does, and a canary sent into a busy
//! queue would only wait there.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The moment of the last success, shared by an engine's handle and its workers.
pub(super) struct Pulse {
    origin: Instant,
    /// Milliseconds after `origin`, plus one; 0 before the first success.
    last: AtomicU64,
}

impl Pulse {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin, last: AtomicU64::new(0) }
    }

    pub(super) fn beat(&self, now: Instant) {
        self.last.store(self.millis(now).saturating_add(1), Ordering::Relaxed);
    }

    /// Whether the last success is at most this long ago.
    pub(super) fn within(&self, span: Duration, now: Instant) -> bool {
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        match self.last.load(Ordering::Relaxed).checked_sub(1) {
            Some(last) => self.millis(now).saturating_sub(last) <= span,
            None => false,
        }
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_recent_success_counts() {
        let origin = Instant::now();
        let at = |seconds| origin + Duration::from_secs(seconds);
        let pulse = Pulse::new(origin);
        assert!(!pulse.within(Duration::from_secs(10), origin), "nothing has succeeded yet");
        pulse.beat(at(5));
        assert!(pulse.within(Duration::from_secs(10), at(15)));
        assert!(!pulse.within(Duration::from_secs(10), at(16)));
        pulse.beat(at(16));
        assert!(pulse.within(Duration::from_secs(10), at(20)));
    }
}
