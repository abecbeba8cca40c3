//! Usage limits as numbers; who enforces them is `access`.

use std::time::Duration;

/// A token bucket: `per_minute` requests a minute on average, `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UsageLimit {
    /// Requests a minute. Zero means unlimited.
    pub per_minute: u32,
    /// Requests that may come at once.
    pub burst: u32,
}

impl UsageLimit {
    /// The limit of a key that names none.
    pub const DEFAULT: Self = Self { per_minute: 600, burst: 60 };

    /// A limit with the burst in the default's proportion (a tenth of a minute's requests, at least one).
    pub const fn per_minute(per_minute: u32) -> Self {
        let tenth = per_minute / 10;
        Self { per_minute, burst: if tenth == 0 { 1 } else { tenth } }
    }

    /// Time in which so many requests are restored.
    pub fn restores(self, requests: u32) -> Duration {
        Duration::from_mins(1).checked_div(self.per_minute).unwrap_or_default() * requests
    }

    /// Whether requests go uncounted.
    pub const fn is_unlimited(self) -> bool {
        self.per_minute == 0
    }
}

/// What a limiter says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitDecision {
    /// No limit applies to this caller.
    Unlimited,
    /// The request may go on.
    Allowed {
        /// The limit in force.
        limit: UsageLimit,
        /// Requests left at once.
        remaining: u32,
        /// Time until the bucket is full again.
        reset: Duration,
    },
    /// The request is refused.
    Refused {
        /// The limit in force.
        limit: UsageLimit,
        /// Time until one request would pass.
        retry_after: Duration,
    },
}
