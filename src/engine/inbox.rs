//! A bounded queue between async callers and the OS threads of an engine.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::EngineError;

/// Bounded, closable, all-or-nothing on submission. Senders never wait.
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    capacity: usize,
}

struct State<T> {
    queue: VecDeque<T>,
    closed: bool,
}

/// The queue, held exclusively by one worker.
pub(super) struct Held<'a, T> {
    inbox: &'a Inbox<T>,
    guard: MutexGuard<'a, State<T>>,
}

impl<T> Inbox<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { state: Mutex::new(State { queue: VecDeque::new(), closed: false }), arrived: Condvar::new(), capacity }
    }

    /// Queues all items or none.
    pub(super) fn push(&self, items: Vec<T>) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        if state.queue.len() + items.len() > self.capacity {
            return Err(EngineError::Overloaded);
        }
        state.queue.extend(items);
        drop(state);
        self.arrived.notify_all();
        Ok(())
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Refuses further items and wakes every worker. What is queued can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
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

    pub(super) fn closed(&self) -> bool {
        self.guard.closed
    }

    /// Lets go until something arrives, the inbox closes, or the timeout passes.
    pub(super) fn wait(self, timeout: Option<Duration>) -> Self {
        let Self { inbox, guard } = self;
        let guard = match timeout {
            None => inbox.arrived.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => inbox.arrived.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        };
        Self { inbox, guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_up_to_its_capacity() {
        let inbox = Inbox::new(3);
        inbox.push(vec![1, 2]).unwrap();
        assert_eq!(inbox.push(vec![3, 4]), Err(EngineError::Overloaded));
        inbox.push(vec![3]).unwrap();
        assert_eq!(inbox.hold().queue().drain(..).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_closed_inbox_refuses_but_keeps_what_it_has() {
        let inbox = Inbox::new(3);
        inbox.push(vec![1]).unwrap();
        inbox.close();
        assert_eq!(inbox.push(vec![2]), Err(EngineError::ShuttingDown));
        assert_eq!(inbox.len(), 1);
    }
}
