//! Which prompt prefixes are already in the cache, in rows of their own. Pure.

use std::sync::Arc;

/// Prefixes kept in rows `first..first + capacity`; the one used longest ago makes room.
pub(super) struct PrefixRows {
    first: usize,
    capacity: usize,
    /// Least recently used first.
    known: Vec<(usize, Arc<[u32]>)>,
}

impl PrefixRows {
    pub(super) fn new(first: usize, capacity: usize) -> Self {
        Self { first, capacity, known: Vec::with_capacity(capacity) }
    }

    /// The row that holds the prefix.
    pub(super) fn find(&mut self, prefix: &Arc<[u32]>) -> Option<usize> {
        let place = self.known.iter().position(|(_, known)| known == prefix)?;
        let entry = self.known.remove(place);
        let row = entry.0;
        self.known.push(entry);
        Some(row)
    }

    /// Makes room for a prefix that is nowhere; the caller copies it into the row before anything else happens.
    pub(super) fn store(&mut self, prefix: Arc<[u32]>) -> usize {
        let row = if self.known.len() < self.capacity { self.first + self.known.len() } else { self.known.remove(0).0 };
        self.known.push((row, prefix));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_prefix_makes_room() {
        let [a, b, c]: [Arc<[u32]>; 3] = [Arc::from([1]), Arc::from([2]), Arc::from([3])];
        let mut rows = PrefixRows::new(8, 2);
        assert_eq!(rows.find(&a), None);
        assert_eq!(rows.store(Arc::clone(&a)), 8);
        assert_eq!(rows.store(Arc::clone(&b)), 9);
        assert_eq!(rows.find(&a), Some(8));
        assert_eq!(rows.find(&c), None);
        assert_eq!(rows.store(Arc::clone(&c)), 9);
        assert_eq!((rows.find(&a), rows.find(&b), rows.find(&c)), (Some(8), None, Some(9)));
    }
}
