//! Usage limits counted in this process.
//!
//! Owns one token bucket (the generic cell rate algorithm) a key. Memory is bounded: idle buckets, which are full
//! and so the same as none, are dropped when room is needed. Never waits: a check is a short critical section on
//! the request's tokio thread.

use std::{
    collections::HashMap,
    fmt,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};

use super::{Decision, Limiter};
use crate::{
    access::Caller,
    domain::{LimitDecision, UsageLimit},
};

/// Most buckets held at once; about 10 MiB when all are in use.
const CAPACITY: usize = 65_536;

type Governor<C> = RateLimiter<NotKeyed, InMemoryState, C, StateInformationMiddleware>;

struct Bucket<C: Clock> {
    limit: UsageLimit,
    interval: Duration,
    governor: Governor<C>,
    /// From when on the bucket is certainly full again.
    full_at: C::Instant,
}

/// A [`Limiter`] over one process's memory.
pub struct MemoryLimiter<C: Clock = DefaultClock> {
    clock: C,
    capacity: usize,
    buckets: Mutex<HashMap<Box<str>, Bucket<C>>>,
}

impl<C: Clock> fmt::Debug for MemoryLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimiter").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Default for MemoryLimiter {
    fn default() -> Self {
        Self::with_clock(DefaultClock::default(), CAPACITY)
    }
}

impl<C: Clock + Clone> MemoryLimiter<C> {
    /// A limiter that reads the given clock and holds at most `capacity` buckets.
    pub fn with_clock(clock: C, capacity: usize) -> Self {
        Self { clock, capacity, buckets: Mutex::default() }
    }

    /// Counts one request. Synchronous, for callers that need no shared limiter.
    pub fn decide(&self, caller: &Caller) -> LimitDecision {
        self.count(caller.key_id(), caller.limit())
    }

    /// Counts one request of a key against a limit that may be another than the caller's own.
    pub(super) fn count(&self, key_id: &str, limit: UsageLimit) -> LimitDecision {
        // A burst of 0 would refuse everything; the nearest limit that means something is 1.
        let limit = UsageLimit { burst: limit.burst.max(1), ..limit };
        let Some(per_minute) = NonZeroU32::new(limit.per_minute) else { return LimitDecision::Unlimited };
        let now = self.clock.now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.get(key_id).is_none_or(|bucket| bucket.limit != limit) {
            // A key whose limit changed starts with a full bucket of the new size.
            self.make_room(&mut buckets, now);
            buckets.insert(key_id.into(), self.bucket(limit, per_minute, now));
        }
        match buckets.get_mut(key_id) {
            Some(bucket) => bucket.decide(now),
            // Unreachable: inserted above, under the same lock.
            None => LimitDecision::Unlimited,
        }
    }

    fn bucket(&self, limit: UsageLimit, per_minute: NonZeroU32, now: C::Instant) -> Bucket<C> {
        let burst = NonZeroU32::new(limit.burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_minute(per_minute).allow_burst(burst);
        let governor = RateLimiter::direct_with_clock(quota, self.clock.clone()).with_middleware();
        Bucket { limit, interval: quota.replenish_interval(), governor, full_at: now }
    }

    fn make_room(&self, buckets: &mut HashMap<Box<str>, Bucket<C>>, now: C::Instant) {
        if buckets.len() < self.capacity {
            return;
        }
        buckets.retain(|_, bucket| bucket.full_at > now);
        if buckets.len() >= self.capacity {
            // All are in use: the one nearest to full gives away least.
            let nearest = buckets.iter().min_by_key(|(_, bucket)| bucket.full_at).map(|(id, _)| id.clone());
            if let Some(id) = nearest {
                buckets.remove(&id);
            }
        }
    }
}

impl<C: Clock> Bucket<C> {
    fn decide(&mut self, now: C::Instant) -> LimitDecision {
        match self.governor.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let reset = self.interval * self.limit.burst.saturating_sub(remaining);
                self.full_at = now + reset.into();
                LimitDecision::Allowed { limit: self.limit, remaining, reset }
            }
            Err(until) => LimitDecision::Refused { limit: self.limit, retry_after: until.wait_time_from(now) },
        }
    }
}

impl<C> Limiter for MemoryLimiter<C>
where
    C: Clock + Clone + Send + Sync + 'static,
{
    fn check<'a>(&'a self, caller: &'a Caller) -> Decision<'a> {
        Box::pin(std::future::ready(self.decide(caller)))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::access::keys::file::MOST_REQUESTS;

    fn limiter(capacity: usize) -> (MemoryLimiter<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (MemoryLimiter::with_clock(clock.clone(), capacity), clock)
    }

    fn allowed(decision: LimitDecision) -> bool {
        !matches!(decision, LimitDecision::Refused { .. })
    }

    #[test]
    fn the_default_lets_sixty_pass_at_once_and_ten_a_second() {
        let (limiter, clock) = limiter(8);
        let limit = UsageLimit::per_minute(600);
        let caller = Caller::for_test("a", limit);
        for left in (0..60).rev() {
            let reset = Duration::from_millis(100 * u64::from(60 - left));
            assert_eq!(limiter.decide(&caller), LimitDecision::Allowed { limit, remaining: left, reset });
        }
        let refused = LimitDecision::Refused { limit, retry_after: Duration::from_millis(100) };
        assert_eq!(limiter.decide(&caller), refused);
        assert_eq!(limiter.decide(&caller), refused, "a refused request takes nothing");
        clock.advance(Duration::from_millis(40));
        assert_eq!(limiter.decide(&caller), LimitDecision::Refused { limit, retry_after: Duration::from_millis(60) });
        clock.advance(Duration::from_millis(60));
        let reset = Duration::from_secs(6);
        assert_eq!(limiter.decide(&caller), LimitDecision::Allowed { limit, remaining: 0, reset });
        assert!(!allowed(limiter.decide(&caller)));
        clock.advance(Duration::from_hours(1));
        let reset = Duration::from_millis(100);
        assert_eq!(
            limiter.decide(&caller),
            LimitDecision::Allowed { limit, remaining: 59, reset },
            "a bucket never holds more than its burst"
        );
    }

    #[test]
    fn a_small_limit_still_lets_one_pass() {
        let (limiter, clock) = limiter(8);
        let limit = UsageLimit::per_minute(3);
        let caller = Caller::for_test("a", limit);
        let reset = Duration::from_secs(20);
        assert_eq!(limiter.decide(&caller), LimitDecision::Allowed { limit, remaining: 0, reset });
        assert_eq!(limiter.decide(&caller), LimitDecision::Refused { limit, retry_after: reset });
        clock.advance(reset);
        assert!(allowed(limiter.decide(&caller)));
    }

    #[test]
    fn a_burst_of_zero_is_one_and_not_a_fresh_bucket_each_time() {
        let (limiter, _clock) = limiter(8);
        let caller = Caller::for_test("a", UsageLimit { per_minute: 60, burst: 0 });
        assert!(allowed(limiter.decide(&caller)));
        assert!(!allowed(limiter.decide(&caller)));
    }

    #[test]
    fn zero_is_no_limit_and_takes_no_memory() {
        let (limiter, _clock) = limiter(8);
        let caller = Caller::for_test("a", UsageLimit::per_minute(0));
        for _ in 0..1000 {
            assert_eq!(limiter.decide(&caller), LimitDecision::Unlimited);
        }
        assert!(limiter.buckets.lock().unwrap().is_empty());
    }

    #[test]
    fn the_largest_limits_of_a_key_file_are_counted() {
        let (limiter, _clock) = limiter(8);
        for per_minute in [1, MOST_REQUESTS] {
            let limit = UsageLimit { per_minute, burst: MOST_REQUESTS };
            let reset = Duration::from_mins(1) / per_minute;
            let caller = Caller::for_test("a", limit);
            assert_eq!(limiter.decide(&caller), LimitDecision::Allowed { limit, remaining: MOST_REQUESTS - 1, reset });
        }
    }

    #[test]
    fn keys_do_not_share_a_bucket_and_a_new_limit_applies_at_once() {
        let (limiter, _clock) = limiter(8);
        let one = UsageLimit { per_minute: 1, burst: 1 };
        let [a, b] = ["a", "b"].map(|id| Caller::for_test(id, one));
        assert!(allowed(limiter.decide(&a)));
        assert!(!allowed(limiter.decide(&a)));
        assert!(allowed(limiter.decide(&b)));
        let limit = UsageLimit { per_minute: 60, burst: 2 };
        let widened = Caller::for_test("a", limit);
        let reset = Duration::from_secs(1);
        assert_eq!(limiter.decide(&widened), LimitDecision::Allowed { limit, remaining: 1, reset });
    }

    #[test]
    fn memory_is_bounded_and_a_busy_bucket_is_not_forgotten_for_idle_ones() {
        let (limiter, clock) = limiter(4);
        let slow = Caller::for_test("slow", UsageLimit { per_minute: 1, burst: 1 });
        assert!(allowed(limiter.decide(&slow)));
        for round in 0..100 {
            assert!(allowed(limiter.decide(&Caller::for_test(&format!("k{round}"), UsageLimit::DEFAULT))));
            assert!(limiter.buckets.lock().unwrap().len() <= 4);
            if round % 2 == 0 {
                clock.advance(Duration::from_millis(100));
            }
        }
        assert!(!allowed(limiter.decide(&slow)), "its minute is not over");
    }

    #[test]
    fn parallel_callers_get_exactly_the_burst() {
        let (limiter, _clock) = limiter(4);
        let caller = Caller::for_test("a", UsageLimit { per_minute: 60, burst: 25 });
        let passed = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        if allowed(limiter.decide(&caller)) {
                            passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 25);
    }

    #[test]
    fn the_limiter_can_be_shared_behind_its_trait() {
        let shared: std::sync::Arc<dyn Limiter> = std::sync::Arc::new(MemoryLimiter::default());
        let caller = Caller::for_test("a", UsageLimit::DEFAULT);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(allowed(runtime.block_on(shared.check(&caller))));
    }
}
