//! How far the reading of large files is, told to whoever shows it.
//!
//! Owns no display. Called on whichever thread reads.

use std::num::NonZeroUsize;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};

/// Is told of bytes as they are hashed or copied.
pub trait Progress: Sync {
    /// So many are to come.
    fn begin(&self, bytes: u64);
    /// So many more are done.
    fn advance(&self, bytes: u64);
}

/// Nobody looks.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn begin(&self, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}

/// How the files of several bundles are hashed.
#[derive(Clone, Copy)]
pub struct Hashing<'a> {
    /// As many files are read side by side.
    pub threads: NonZeroUsize,
    /// Who is told of it.
    pub progress: &'a dyn Progress,
}

impl Hashing<'static> {
    /// On so many threads, while nobody looks.
    pub fn unwatched(threads: NonZeroUsize) -> Self {
        Self { threads, progress: &Unwatched }
    }
}

/// Adds up what it is told.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Sums {
    announced: AtomicU64,
    done: AtomicU64,
}

#[cfg(test)]
impl Sums {
    /// The bytes that were announced, and those that were done.
    pub(super) fn get(&self) -> [u64; 2] {
        [&self.announced, &self.done].map(|sum| sum.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
impl Progress for Sums {
    fn begin(&self, bytes: u64) {
        self.announced.fetch_add(bytes, Ordering::SeqCst);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::SeqCst);
    }
}
