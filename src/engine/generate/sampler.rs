//! From logits to the place of the next token among them. Pure: randomness is the seed and the step, so equal seeds give
//! equal text in any row and company.

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The likeliest token; of equals, the first.
    Greedy,
    /// Nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
    Nucleus {
        /// Divides the logits; above 0.
        temperature: f32,
        /// Share of the probability mass that is sampled from, 0 to 1.
        top_p: f32,
        /// Equal seeds draw equal tokens from equal logits.
        seed: u64,
    },
}

/// Tokens considered by nucleus sampling; the tail beyond them is noise for any useful `top_p`.
const NUCLEUS_TOKENS: usize = 64;

/// Picks the logit whose token is the answer's `step`-th (0-based). `None` when none is a number.
pub(super) fn pick(logits: &[f32], sampling: Sampling, step: usize) -> Option<u32> {
    match sampling {
        Sampling::Greedy => argmax(logits),
        Sampling::Nucleus { temperature, top_p, seed } => nucleus(logits, temperature, top_p, uniform(seed, step)),
    }
}

/// Logits this far below the highest, in nats, are left out of a sum of probabilities: all of a vocabulary of 100,000
/// together would add a hundredth to it.
const NEGLIGIBLE: f32 = 16.0;

/// How unlikely the model finds the token of this place, whatever the temperature: −ln p, in nats.
pub(super) fn surprise(logits: &[f32], place: u32) -> f32 {
    let value = |place: u32| logits.get(usize::try_from(place).ok()?).copied();
    let (Some(chosen), Some(highest)) = (value(place), argmax(logits).and_then(value)) else { return 0.0 };
    let least = highest - NEGLIGIBLE;
    let mut sum = 0.0_f32;
    // Most of a vocabulary is far below, and a part of it is told to be so at once.
    for some in logits.chunks(16) {
        if some.iter().copied().fold(f32::NEG_INFINITY, f32::max) > least {
            sum += some.iter().filter(|&&logit| logit > least).map(|&logit| (logit - highest).exp()).sum::<f32>();
        }
    }
    sum.ln() + (highest - chosen)
}

/// The place of the highest number, the first of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    // Side by side, so that the compiler compares many at once: a vocabulary is long, and this is done for every token.
    let mut lanes = [f32::NEG_INFINITY; 16];
    for some in logits.chunks(lanes.len()) {
        for (highest, &logit) in lanes.iter_mut().zip(some) {
            // False where it is not a number.
            if logit > *highest {
                *highest = logit;
            }
        }
    }
    let highest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    #[expect(clippy::float_cmp, reason = "the very number that was found above")]
    let place = logits.iter().position(|&logit| logit == highest)?;
    u32::try_from(place).ok()
}

fn nucleus(logits: &[f32], temperature: f32, top_p: f32, draw: f32) -> Option<u32> {
    let candidates = likeliest(logits);
    let highest = candidates.first()?.1;
    let weight = |logit: f32| ((logit - highest) / temperature).exp();
    let total: f32 = candidates.iter().map(|&(_, logit)| weight(logit)).sum();
    let mut kept = 0.0;
    let mut nucleus = 0;
    for &(_, logit) in &candidates {
        kept += weight(logit);
        nucleus += 1;
        if kept >= top_p * total {
            break;
        }
    }
    let mut left = draw * kept;
    for &(place, logit) in candidates.iter().take(nucleus) {
        left -= weight(logit);
        if left <= 0.0 {
            return u32::try_from(place).ok();
        }
    }
    // Rounding may leave a crumb after the last candidate.
    candidates.get(nucleus - 1).and_then(|&(place, _)| u32::try_from(place).ok())
}

/// The places of the [`NUCLEUS_TOKENS`] highest numbers and those numbers, the highest first and of equals the first.
fn likeliest(logits: &[f32]) -> Vec<(usize, f32)> {
    const TOGETHER: usize = 16;
    let by_logit = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let mut kept: Vec<(usize, f32)> = Vec::with_capacity(2 * NUCLEUS_TOKENS);
    let mut least = f32::NEG_INFINITY;
    for (number, some) in logits.chunks(TOGETHER).enumerate() {
        // Nearly all of a vocabulary is passed over so, and never copied: this is done for every token of every row.
        if some.iter().copied().fold(f32::NEG_INFINITY, f32::max) <= least {
            continue;
        }
        let places = number * TOGETHER..;
        kept.extend(places.zip(some.iter().copied()).filter(|&(_, logit)| logit > least));
        if kept.len() > 2 * NUCLEUS_TOKENS - TOGETHER {
            let (_, lowest, _) = kept.select_nth_unstable_by(NUCLEUS_TOKENS - 1, by_logit);
            least = lowest.1;
            kept.truncate(NUCLEUS_TOKENS);
        }
    }
    kept.sort_unstable_by(by_logit);
    kept.truncate(NUCLEUS_TOKENS);
    kept
}

/// A number in `[0, 1)` from seed and step: the finaliser of `SplitMix64` (Steele, Lea, Flood 2014).
fn uniform(seed: u64, step: usize) -> f32 {
    let mut z = seed.wrapping_add((step as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in an f32")]
    let mantissa = (z >> 40) as f32;
    mantissa / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_equals_and_skips_nan() {
        assert_eq!(pick(&[0.0, f32::NAN, 3.0, 3.0], Sampling::Greedy, 0), Some(2));
        assert_eq!(pick(&[f32::NAN], Sampling::Greedy, 0), None);
        let mut long: Vec<f32> = (0..100_u8).map(|n| f32::from(n % 50)).collect();
        assert_eq!(pick(&long, Sampling::Greedy, 0), Some(49));
        long.push(50.0);
        assert_eq!(pick(&long, Sampling::Greedy, 0), Some(100));
    }

    #[test]
    fn equal_seeds_draw_equal_tokens_and_other_seeds_differ() {
        let logits: Vec<f32> = (0..100_u8).map(|n| f32::from(n % 7)).collect();
        let draw = |seed| -> Vec<_> {
            (0..32).map(|step| pick(&logits, Sampling::Nucleus { temperature: 1.0, top_p: 0.95, seed }, step)).collect()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_nucleus_leaves_the_tail_out() {
        // Probabilities are about 0.66, 0.24, 0.09 and crumbs: 0.9 of the mass is the first two or three.
        let logits = [4.0, 3.0, 2.0, -20.0, -20.0];
        for seed in 0..200 {
            let token = pick(&logits, Sampling::Nucleus { temperature: 1.0, top_p: 0.9, seed }, 0);
            assert!(matches!(token, Some(0..=2)), "{token:?}");
        }
    }

    #[test]
    fn the_likeliest_are_those_that_a_whole_sort_finds() {
        for length in [0, 1, 63, 64, 65, 200, 5000] {
            // Many equals among them, and some that are no numbers.
            let logits: Vec<f32> = (0..length)
                .map(|step| if step % 97 == 5 { f32::NAN } else { (uniform(7, step) * 300.0).floor() })
                .collect();
            let mut sorted: Vec<(usize, f32)> = logits.iter().copied().enumerate().filter(|l| !l.1.is_nan()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            sorted.truncate(NUCLEUS_TOKENS);
            assert_eq!(likeliest(&logits), sorted, "{length}");
        }
    }

    #[test]
    fn surprise_is_what_a_token_was_expected_with() {
        let logits = [(0.75_f32).ln(), f32::NAN, (0.25_f32).ln(), -40.0];
        assert!((surprise(&logits, 0) + (0.75_f32).ln()).abs() < 1e-5);
        assert!((surprise(&logits, 2) + (0.25_f32).ln()).abs() < 1e-5);
        // Of the chosen token itself nothing is left out.
        assert!((surprise(&logits, 3) - 40.0).abs() < 1e-3);
        // Far from zero nothing overflows.
        assert!((surprise(&[500.0, 500.0], 1) - (2.0_f32).ln()).abs() < 1e-5);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [(0.75_f32).ln(), (0.25_f32).ln()];
        let firsts = (0..4000)
            .filter(|&seed| pick(&logits, Sampling::Nucleus { temperature: 1.0, top_p: 1.0, seed }, 3) == Some(0))
            .count();
        assert!((2850..3150).contains(&firsts), "{firsts} of 4000, expected about 3000");
    }
}
