//! Which frames of an animation are judged: as many moments as are allowed, spread over the time it is shown.
//!
//! By time and not by number, as otherwise a frame that stands for a minute among others that flash by may be left out.
//! But whoever lets one frame stand for minutes gains no moments for hiding the others: it is taken once, and the
//! moments left are spread over the rest.

/// What browsers make of a delay that is at most [`LEAST_DELAY`], in milliseconds.
const DEFAULT_DELAY: u64 = 100;
/// Milliseconds.
const LEAST_DELAY: u64 = 10;

/// How long browsers show a frame that asks for so many milliseconds.
pub(super) fn shown(asked: u64) -> u64 {
    if asked <= LEAST_DELAY { DEFAULT_DELAY } else { asked }
}

/// At most `most` frames, ascending: all of them, or the first, the last, the longest shown and those at evenly spaced
/// moments of the rest. `delays` are the frames' times, none of them 0.
pub(super) fn moments(delays: &[u64], most: usize) -> Vec<usize> {
    let last = delays.len().saturating_sub(1);
    let mut taken = vec![delays.len() <= most; delays.len()];
    let mut left = most.min(delays.len());
    let longest = delays.iter().enumerate().rev().max_by_key(|(_, delay)| **delay).map_or(0, |(index, _)| index);
    for index in [0, last, longest] {
        if let Some(taken) = taken.get_mut(index)
            && left > 0
            && !*taken
        {
            *taken = true;
            left -= 1;
        }
    }
    while left > 0 && taken.contains(&false) {
        let count = left as u64;
        let total: u64 = delays.iter().zip(&taken).filter(|(_, taken)| !**taken).map(|(delay, _)| delay).sum();
        let (mut end, mut moment) = (0, 0);
        for (delay, taken) in delays.iter().zip(&mut taken).filter(|(_, taken)| !**taken) {
            end += delay;
            // The middle of each of so many equal spans of time.
            while moment < count && (2 * moment + 1) * total < end * 2 * count {
                moment += 1;
                left -= usize::from(!*taken);
                *taken = true;
            }
        }
    }
    taken.iter().enumerate().filter(|(_, taken)| **taken).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_frames_are_taken_evenly_and_both_ends_among_them() {
        assert_eq!(moments(&[100], 8), [0]);
        assert_eq!(moments(&[100; 3], 8), [0, 1, 2]);
        assert_eq!(moments(&[100; 15], 8), [0, 2, 4, 6, 8, 10, 12, 14]);
        assert_eq!(moments(&[100; 100], 2), [0, 99]);
        assert_eq!((moments(&[100; 5], 0), moments(&[], 8)), (vec![], vec![]));
        assert_eq!(moments(&[100; 5], 1), [0]);
    }

    #[test]
    fn what_is_shown_long_is_taken_and_hides_nothing() {
        let mut delays = [100; 100];
        delays[37] = 60_000;
        let taken = moments(&delays, 8);
        assert!(taken.contains(&37) && taken.len() == 8, "{taken:?}");
        // Five moments remain for the others, none further than a fifth of them from the next.
        assert!(taken.windows(2).all(|pair| pair[1] - pair[0] <= 22), "{taken:?}");
        delays[38] = 59_000;
        delays[90] = 30_000;
        let taken = moments(&delays, 8);
        assert!(taken.contains(&38) && taken.contains(&90) && taken.len() == 8, "{taken:?}");
    }

    #[test]
    fn short_delays_count_as_browsers_count_them() {
        assert_eq!([0, 10, 11, 20, 5000].map(shown), [100, 100, 11, 20, 5000]);
    }
}
