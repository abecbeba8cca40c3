//! Live sequences in the rows of a KV cache, kept together from row 0. Pure.
//!
//! A decode step covers rows `0..n`, so its cost follows the live rows: when a sequence ends, the last one moves
//! into its row.

/// Rows `0..capacity`, the first of them live.
pub(super) struct Slots<T> {
    live: Vec<T>,
    capacity: usize,
}

/// The cache rows to copy after a sequence left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl<T> Slots<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { live: Vec::with_capacity(capacity), capacity }
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Sequences that still find a row.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.live.len())
    }

    /// The row the next sequence will get.
    pub(super) fn next_row(&self) -> usize {
        self.live.len()
    }

    pub(super) fn push(&mut self, sequence: T) {
        self.live.push(sequence);
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.live.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.live.iter_mut()
    }

    pub(super) fn drain(&mut self) -> std::vec::Drain<'_, T> {
        self.live.drain(..)
    }

    /// Takes the first sequence that `ended` names, with the move that closes the gap. Call until `None`.
    pub(super) fn retire(&mut self, ended: impl Fn(&T) -> bool) -> Option<(T, Option<Move>)> {
        let row = self.live.iter().position(ended)?;
        let last = self.live.len() - 1;
        let sequence = self.live.swap_remove(row);
        Some((sequence, (row != last).then_some(Move { from: last, to: row })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_rows_stay_together() {
        let mut slots = Slots::new(4);
        for name in ["a", "b", "c", "d"] {
            assert_ne!(slots.room(), 0);
            slots.push(name);
        }
        assert_eq!(slots.room(), 0);
        assert_eq!(slots.retire(|name| *name == "b"), Some(("b", Some(Move { from: 3, to: 1 }))));
        assert_eq!(slots.retire(|name| *name == "c"), Some(("c", None)));
        assert_eq!(slots.iter().copied().collect::<Vec<_>>(), ["a", "d"]);
        assert_eq!(slots.next_row(), 2);
        assert_eq!(slots.retire(|_| false), None);
    }
}
