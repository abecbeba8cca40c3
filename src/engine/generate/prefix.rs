//! Which prompt prefixes are already in the cache, in rows of their own. Pure.

use std::sync::Arc;

/// Prefixes kept in rows `first..first + capacity`; the one used longest ago makes room.
pub(super) struct PrefixRows {
    first: usize,
    capacity: usize,
    /// Least recently used first.
    known: Vec<(usize, Arc<[u32]>)>,
}

/// Where a prefix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// In this row.
    Hit(usize),
    /// Nowhere; compute it into this row, then call [`PrefixRows::stored`].
    Miss(usize),
}

impl PrefixRows {
    pub(super) fn new(first: usize, capacity: usize) -> Self {
        Self { first, capacity, known: Vec::with_capacity(capacity) }
    }

    pub(super) fn find(&mut self, prefix: &Arc<[u32]>) -> Lookup {
        if let Some(place) = self.known.iter().position(|(_, known)| known == prefix) {
            let entry = self.known.remove(place);
            let row = entry.0;
            self.known.push(entry);
            return Lookup::Hit(row);
        }
        if self.known.len() < self.capacity {
            return Lookup::Miss(self.first + self.known.len());
        }
        // Forgotten before it is overwritten, so that a failed prefill leaves no false entry.
        Lookup::Miss(self.known.remove(0).0)
    }

    pub(super) fn stored(&mut self, row: usize, prefix: Arc<[u32]>) {
        self.known.push((row, prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_prefix_makes_room() {
        let [a, b, c]: [Arc<[u32]>; 3] = [Arc::from([1]), Arc::from([2]), Arc::from([3])];
        let mut rows = PrefixRows::new(8, 2);
        assert_eq!(rows.find(&a), Lookup::Miss(8));
        rows.stored(8, Arc::clone(&a));
        assert_eq!(rows.find(&b), Lookup::Miss(9));
        rows.stored(9, Arc::clone(&b));
        assert_eq!(rows.find(&a), Lookup::Hit(8));
        assert_eq!(rows.find(&c), Lookup::Miss(9));
        rows.stored(9, Arc::clone(&c));
        assert_eq!(rows.find(&a), Lookup::Hit(8));
        assert_eq!(rows.find(&b), Lookup::Miss(9));
    }
}
