//! Which waiting items form the next batch. Pure: time is an argument.

use std::time::{Duration, Instant};

/// Bounds of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Padded cost of a batch: items × the costliest item. An item above the budget runs alone. A batcher that was
    /// calibrated has another one.
    pub budget: usize,
    /// Items in a batch.
    pub items: usize,
    /// How long the oldest item may wait for company.
    pub wait: Duration,
}

/// What a worker should do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gather {
    /// Run the items at these places of the queue, in increasing order.
    Run(Vec<usize>),
    /// There is room and time left: look again after at most this long.
    Wait(Duration),
}

impl BatchPolicy {
    /// Decides over a non-empty queue, oldest first, given each item's cost, for one of so many workers.
    pub(super) fn decide(&self, costs: &[usize], workers: usize, oldest: Instant, now: Instant) -> Gather {
        let chosen = self.choose(costs, self.items);
        let waited = now.saturating_duration_since(oldest);
        // When some had to stay behind, the batch is full and waiting would gain nothing.
        if chosen.len() < costs.len() || chosen.len() >= self.items || waited >= self.wait {
            // The next worker to be free takes another share, sooner than one that took all would be through with it.
            let share = costs.len().div_ceil(workers.max(1));
            Gather::Run(if chosen.len() > share { self.choose(costs, share) } else { chosen })
        } else {
            Gather::Wait(self.wait.saturating_sub(waited))
        }
    }

    /// The oldest item and those nearest to it in cost, so that little is spent on padding and nobody starves.
    fn choose(&self, costs: &[usize], items: usize) -> Vec<usize> {
        let mut sorted: Vec<usize> = (0..costs.len()).collect();
        let cost = |place: usize| costs.get(place).copied().unwrap_or(0);
        sorted.sort_by_key(|&place| (cost(place), place));
        let Some(first) = sorted.iter().position(|&place| place == 0) else {
            return Vec::new();
        };
        let (mut low, mut high) = (first, first + 1);
        while high - low < items {
            // Shorter neighbours first: they fill padding that is paid for anyway.
            let count = high - low + 1;
            let longest = sorted.get(high - 1).map_or(0, |&place| cost(place));
            if low > 0 && longest * count <= self.budget {
                low -= 1;
            } else if sorted.get(high).is_some_and(|&place| cost(place) * count <= self.budget) {
                high += 1;
            } else {
                break;
            }
        }
        let mut chosen = sorted.get(low..high).unwrap_or_default().to_vec();
        chosen.sort_unstable();
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BatchPolicy = BatchPolicy { budget: 100, items: 4, wait: Duration::from_millis(2) };

    #[test]
    fn waits_for_company_only_until_the_deadline() {
        let start = Instant::now();
        assert_eq!(POLICY.decide(&[10], 1, start, start), Gather::Wait(Duration::from_millis(2)));
        let later = start + Duration::from_millis(2);
        assert_eq!(POLICY.decide(&[10], 1, start, later), Gather::Run(vec![0]));
    }

    #[test]
    fn a_full_batch_runs_at_once() {
        let now = Instant::now();
        assert_eq!(POLICY.decide(&[10; 4], 1, now, now), Gather::Run(vec![0, 1, 2, 3]));
        assert_eq!(POLICY.decide(&[10; 9], 1, now, now), Gather::Run(vec![0, 1, 2, 3]));
    }

    #[test]
    fn padding_counts_against_the_budget() {
        let now = Instant::now();
        // 2 × 60 would exceed 100: the long one stays behind, the short ones go together.
        assert_eq!(POLICY.decide(&[20, 60, 20], 1, now, now), Gather::Run(vec![0, 2]));
        // The oldest always goes, with the neighbours that fit its length.
        assert_eq!(POLICY.decide(&[50, 10, 90], 1, now, now), Gather::Run(vec![0, 1]));
    }

    #[test]
    fn an_item_above_the_budget_runs_alone_instead_of_never() {
        let now = Instant::now();
        assert_eq!(POLICY.decide(&[500, 10], 1, now, now), Gather::Run(vec![0]));
    }

    #[test]
    fn a_worker_leaves_the_others_their_share() {
        let now = Instant::now();
        let late = now + POLICY.wait;
        // The oldest and its neighbours in length.
        assert_eq!(POLICY.decide(&[10, 30, 10, 30], 2, now, late), Gather::Run(vec![0, 2]));
        assert_eq!(POLICY.decide(&[10; 3], 2, now, late), Gather::Run(vec![0, 1]));
        assert_eq!(POLICY.decide(&[10], 2, now, late), Gather::Run(vec![0]));
        // Where more wait than a batch may hold, nothing is left to share.
        assert_eq!(POLICY.decide(&[10; 9], 2, now, now), Gather::Run(vec![0, 1, 2, 3]));
        // The wait for company is the same for any number of workers.
        assert_eq!(POLICY.decide(&[10; 2], 2, now, now), Gather::Wait(POLICY.wait));
    }
}
