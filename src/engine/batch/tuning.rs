//! The token budget that the workers of a model share, and the measurement that may set it.
//!
//! Owns the order to measure on its way from the handle to a worker, and the count of passes by which that worker sees
//! whether it was alone. Written by the callers and the workers' threads.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::oneshot;

use super::calibration::{Calibrated, Plan};

/// Shared by a batcher and its workers.
pub(super) struct Tuning<I> {
    budget: AtomicUsize,
    asked: Mutex<Option<Measurement<I>>>,
    begun: AtomicU64,
    ended: AtomicU64,
}

/// An order to measure, and what came of it so far.
pub(super) struct Measurement<I> {
    pub(super) plan: Plan,
    /// Makes an input of so many tokens.
    pub(super) sample: Box<dyn Fn(usize) -> I + Send>,
    pub(super) reply: oneshot::Sender<Option<Calibrated>>,
}

impl<I> Tuning<I> {
    pub(super) fn new(budget: usize) -> Self {
        let [begun, ended] = [0, 0].map(AtomicU64::new);
        Self { budget: AtomicUsize::new(budget), asked: Mutex::new(None), begun, ended }
    }

    pub(super) fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    pub(super) fn set_budget(&self, budget: usize) {
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// Leaves an order for the first worker that has nothing to do. A newer one takes its place.
    pub(super) fn ask(&self, measurement: Measurement<I>) {
        *self.lock() = Some(measurement);
    }

    /// Takes the order, so that one worker measures.
    pub(super) fn take(&self) -> Option<Measurement<I>> {
        self.lock().take()
    }

    pub(super) fn pass_begins(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn pass_ends(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Passes over requests so far; unchanged over a time in which none began.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Whether a pass over requests is under way.
    pub(super) fn busy(&self) -> bool {
        // In this order: a pass that ends in between makes it look busy, never idle.
        let ended = self.ended.load(Ordering::SeqCst);
        self.begun() != ended
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Measurement<I>>> {
        // No code that can panic runs under the lock.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
