//! A bounded queue between async callers and the OS threads of an engine.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::EngineError;
use crate::telemetry::ModelMetrics;

/// Bounded, closable, all-or-nothing on submission. Senders never wait.
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    capacity: usize,
}

struct State<T> {
    queue: VecDeque<T>,
    closed: bool,
    /// Workers that wait. To wake nobody is a call of the system, too, so it is left out where there is nobody.
    waiting: usize,
}

/// The queue, held exclusively by one worker.
pub(super) struct Held<'a, T> {
    inbox: &'a Inbox<T>,
    guard: MutexGuard<'a, State<T>>,
}

impl<T> Inbox<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State { queue: VecDeque::new(), closed: false, waiting: 0 }),
            arrived: Condvar::new(),
            capacity,
        }
    }

    /// Queues all items or none. Before it refuses, those in the queue make room that `wanted` does not give back. That
    /// is called under the lock.
    pub(super) fn push(&self, items: Vec<T>, wanted: impl FnMut(T) -> Option<T>) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        let fit = |queue: &VecDeque<T>| queue.len() + items.len() <= self.capacity;
        if !fit(&state.queue) {
            sift(&mut state.queue, wanted);
            if !fit(&state.queue) {
                return Err(EngineError::Overloaded);
            }
        }
        self.extend(state, items);
        Ok(())
    }

    /// Queues all items, however many there are: what goes with something that was let in.
    pub(super) fn add(&self, items: Vec<T>) -> Result<(), EngineError> {
        let state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        self.extend(state, items);
        Ok(())
    }

    fn extend(&self, mut state: MutexGuard<'_, State<T>>, items: Vec<T>) {
        state.queue.extend(items);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.arrived.notify_all();
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Refuses further items and wakes every worker. What is queued can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Why a reply was dropped unsent: its worker was stopped, or died of it.
    pub(super) fn unanswered(&self) -> EngineError {
        if self.lock().closed { EngineError::ShuttingDown } else { EngineError::Failed }
    }

    /// Has every waiting worker look around: something other than an item is there for it.
    pub(super) fn wake(&self) {
        // Taken and let go, so that no worker is between its last look and its wait.
        drop(self.lock());
        self.arrived.notify_all();
    }

    pub(super) fn hold(&self) -> Held<'_, T> {
        Held { inbox: self, guard: self.lock() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that can panic runs under the lock, and a queue has no invariant that a panic could break.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Held<'_, T> {
    pub(super) fn queue(&mut self) -> &mut VecDeque<T> {
        &mut self.guard.queue
    }

    /// Keeps, in order, the items that `wanted` gives back.
    pub(super) fn sift(&mut self, wanted: impl FnMut(T) -> Option<T>) {
        sift(&mut self.guard.queue, wanted);
    }

    pub(super) fn closed(&self) -> bool {
        self.guard.closed
    }

    /// Lets go until something arrives, the inbox closes, or the timeout passes.
    pub(super) fn wait(self, timeout: Option<Duration>) -> Self {
        let Self { inbox, mut guard } = self;
        guard.waiting += 1;
        let mut guard = match timeout {
            None => inbox.arrived.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => inbox.arrived.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        };
        guard.waiting -= 1;
        Self { inbox, guard }
    }
}

fn sift<T>(queue: &mut VecDeque<T>, mut wanted: impl FnMut(T) -> Option<T>) {
    // Each item once round: to take them out of the middle would move the others again for each.
    for _ in 0..queue.len() {
        if let Some(item) = queue.pop_front().and_then(&mut wanted) {
            queue.push_back(item);
        }
    }
}

/// The way back to an item's caller, while somebody waits there. Who has left is counted; whose time is up is told so.
pub(super) fn awaited<O>(
    reply: oneshot::Sender<Result<O, EngineError>>,
    deadline: Instant,
    now: Instant,
    metrics: &ModelMetrics,
) -> Option<oneshot::Sender<Result<O, EngineError>>> {
    if reply.is_closed() {
        metrics.abandoned.inc();
        return None;
    }
    if deadline <= now {
        let _ = reply.send(Err(EngineError::Deadline));
        return None;
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_up_to_its_capacity() {
        let inbox = Inbox::new(3);
        inbox.push(vec![1, 2], Some).unwrap();
        assert_eq!(inbox.push(vec![3, 4], Some), Err(EngineError::Overloaded));
        inbox.push(vec![3], Some).unwrap();
        assert_eq!(inbox.hold().queue().drain(..).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn only_a_full_one_lets_go_of_what_nobody_wants() {
        let inbox = Inbox::new(4);
        let odd = |item: i32| (item % 2 == 1).then_some(item);
        inbox.push(vec![1, 2, 3], odd).unwrap();
        inbox.push(vec![5], odd).unwrap();
        assert_eq!(inbox.len(), 4, "there was room");
        inbox.push(vec![7], odd).unwrap();
        assert_eq!(inbox.push(vec![9], odd), Err(EngineError::Overloaded), "all of them are wanted");
        assert_eq!(inbox.hold().queue().drain(..).collect::<Vec<_>>(), [1, 3, 5, 7]);
    }

    #[test]
    fn a_closed_inbox_refuses_but_keeps_what_it_has() {
        let inbox = Inbox::new(3);
        inbox.push(vec![1], Some).unwrap();
        inbox.close();
        assert_eq!(inbox.push(vec![2], Some), Err(EngineError::ShuttingDown));
        assert_eq!(inbox.len(), 1);
    }
}
