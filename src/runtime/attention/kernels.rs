//! What a query gathers, for instructions of either kind: written once, compiled by each with its own vectors.
//!
//! A module that calls [`kernels`] has a `Vector` of 16 numbers, what can be done with one or two of them, the sums of
//! `KEYS` vectors, and how many vectors of sums its registers hold; each function is compiled with the instructions that it
//! names, as one that had others would not be inlined.

/// `gather` for the instructions named.
macro_rules! kernels {
    ($features:literal) => {
        /// What queries `[queries, width]` gather of the values of some tokens, `[tokens, width]` as their keys are, into
        /// `out` `[queries, width]`; `weights` is written to. A query's product with a key is the binary logarithm of its
        /// weight. `width` is one of [`super::WIDTHS`], and there is a token.
        ///
        /// A query's numbers do not depend on the others.
        pub(super) fn gather(
            queries: &[f32],
            keys: &[f32],
            values: &[f32],
            width: usize,
            weights: &mut Vec<f32>,
            out: &mut [f32],
        ) {
            // SAFETY: `Instructions` are those of this processor.
            unsafe {
                match width / LANES {
                    1 => of_width::<1>(queries, keys, values, weights, out),
                    2 => of_width::<2>(queries, keys, values, weights, out),
                    4 => of_width::<4>(queries, keys, values, weights, out),
                    8 => of_width::<8>(queries, keys, values, weights, out),
                    _ => of_width::<16>(queries, keys, values, weights, out),
                }
            }
        }

        #[target_feature(enable = $features)]
        fn of_width<const VECTORS: usize>(
            queries: &[f32],
            keys: &[f32],
            values: &[f32],
            weights: &mut Vec<f32>,
            out: &mut [f32],
        ) {
            let width = VECTORS * LANES;
            let padded = (keys.len() / width).next_multiple_of(LANES);
            weights.resize(queries.len() / width * padded, 0.0);
            for (query, weights) in queries.chunks_exact(width).zip(weights.chunks_exact_mut(padded)) {
                weigh::<VECTORS>(query, keys, weights);
            }
            let (mut weights, mut out) = (&weights[..], out);
            while !out.is_empty() {
                let count = match out.len() / width {
                    left if left >= 4 && VECTORS * 4 <= SUMS => sum_up::<VECTORS, 4, VECTORS>(weights, values, out),
                    left if left >= 2 && VECTORS * 2 <= SUMS => sum_up::<VECTORS, 2, VECTORS>(weights, values, out),
                    _ if VECTORS <= SUMS => sum_up::<VECTORS, 1, VECTORS>(weights, values, out),
                    _ => sum_up::<VECTORS, 1, SUMS>(weights, values, out),
                };
                (weights, out) = (&weights[count * padded..], &mut out[count * width..]);
            }
        }

        /// The shares of the keys in what a query gathers, 0 from behind the last key on.
        #[inline]
        #[target_feature(enable = $features)]
        fn weigh<const VECTORS: usize>(query: &[f32], keys: &[f32], weights: &mut [f32]) {
            let (query, keys) = (query.as_chunks::<LANES>().0, keys.as_chunks::<LANES>().0);
            let count = keys.len() / VECTORS;
            for (block, weights) in weights.as_chunks_mut::<KEYS>().0.iter_mut().enumerate() {
                let mut products = [splat(0.0); KEYS];
                for (index, product) in products.iter_mut().enumerate() {
                    // Behind the last key it again.
                    let key = &keys[(block * KEYS + index).min(count - 1) * VECTORS..][..VECTORS];
                    for part in 0..VECTORS {
                        *product = times_and(load(&query[part]), load(&key[part]), *product);
                    }
                }
                across(&products, weights);
            }
            weights[count..].fill(f32::NEG_INFINITY);
            let mut highest = splat(f32::NEG_INFINITY);
            for weights in weights.as_chunks::<LANES>().0 {
                highest = larger(highest, load(weights));
            }
            let highest = splat(largest(highest));
            let mut all = splat(0.0);
            for weights in weights.as_chunks_mut::<LANES>().0.iter_mut() {
                let powers = power_of_two(minus(load(weights), highest));
                all = add(all, powers);
                store(weights, powers);
            }
            let share = splat(1.0 / sum(all));
            for weights in weights.as_chunks_mut::<LANES>().0.iter_mut() {
                let shares = times(load(weights), share);
                store(weights, shares);
            }
            weights[count..].fill(0.0);
        }

        /// The values by their weights, for so many queries and so many vectors of a value at once; tells how many queries.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum_up<const VECTORS: usize, const QUERIES: usize, const PARTS: usize>(
            weights: &[f32],
            values: &[f32],
            out: &mut [f32],
        ) -> usize {
            let (values, out) = (values.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
            let padded = (values.len() / VECTORS).next_multiple_of(LANES);
            for first in (0..VECTORS).step_by(PARTS) {
                let mut sums = [[splat(0.0); PARTS]; QUERIES];
                for (token, value) in values.chunks_exact(VECTORS).enumerate() {
                    let mut parts = [splat(0.0); PARTS];
                    for (part, value) in parts.iter_mut().zip(&value[first..]) {
                        *part = load(value);
                    }
                    for (query, sums) in sums.iter_mut().enumerate() {
                        let weight = splat(weights[query * padded + token]);
                        for (sum, part) in sums.iter_mut().zip(parts) {
                            *sum = times_and(weight, part, *sum);
                        }
                    }
                }
                for (out, sums) in out.chunks_exact_mut(VECTORS).zip(&sums) {
                    for (out, sum) in out[first..].iter_mut().zip(sums) {
                        store(out, *sum);
                    }
                }
            }
            QUERIES
        }
    };
}

pub(super) use kernels;
