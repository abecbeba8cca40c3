//! What a layer computes, for instructions of either kind: written once, compiled by each with its own vectors.
//!
//! A module that calls [`kernels`] has a `Vector` of 16 numbers, what can be done with one or two of them, and a tile's
//! product; each function is compiled with the instructions that it names, as one that had others would not be inlined.

use super::{
    PANEL, TILE,
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};

/// What a layer calls, compiled for some instructions.
pub(in crate::runtime) struct Kernels {
    /// Rounds a row into its place of a tile.
    pub(super) round: fn(&Rounding, &[f32], usize, &mut [Fours]),
    /// The rows times the weights, into `[rows, columns]`.
    pub(super) multiply: fn(&Product, &Rounded, &mut [f32]),
    /// The rows times the weights, bent by the Gaussian error linear unit and rounded for the next product.
    pub(super) multiply_for_next: fn(&Product, &Rounded, &Product, &mut Rounded),
    /// The sum of two rows, its mean 0 and its variance 1 before the norm's scale and shift.
    pub(super) normalise: fn(&[f32], &[f32], &Norm, f32, &mut [f32]),
    /// What the heads gather for some queries of a text, into `[queries, width]`.
    pub(super) attend: fn(&Asked<'_>, &mut Attention, &mut [f32]),
}

/// What a tile of rows gives with a panel.
pub(super) type Block = [[f32; PANEL]; TILE];

/// A tile of rows and a panel.
pub(super) struct Tile<'a> {
    pub(super) product: &'a Product,
    pub(super) lines: &'a [[u8; 2 * size_of::<Line>()]],
    pub(super) codes: &'a [Fours],
    /// Of each row the unrounded channels.
    pub(super) exact: &'a [f32],
    /// The panel's first column.
    pub(super) at: usize,
}

/// [`Kernels`] for the instructions named.
macro_rules! kernels {
    ($features:literal) => {
        pub(super) const KERNELS: Kernels = Kernels { round, multiply, multiply_for_next, normalise, attend };

        fn round(rounding: &Rounding, row: &[f32], place: usize, codes: &mut [Fours]) {
            // SAFETY: `KERNELS` is given to those only whose processor has the instructions.
            unsafe { rounded_row(rounding, row, place, codes) }
        }

        fn multiply(product: &Product, rows: &Rounded, out: &mut [f32]) {
            each_block(product, rows, |tile, at, block| {
                let out = out.chunks_mut(product.columns).skip(tile * TILE);
                for (values, out) in block.iter().zip(out) {
                    out[at..at + PANEL].copy_from_slice(values);
                }
            });
        }

        fn multiply_for_next(product: &Product, rows: &Rounded, next: &Product, out: &mut Rounded) {
            each_block(product, rows, |tile, at, block| {
                let fours = next.depth / 4;
                let codes = &mut out.codes[tile * fours + at / 4..][..PANEL / 4];
                let count = (rows.rows - tile * TILE).min(TILE);
                // SAFETY: as for `round`.
                unsafe { bend(block, count, &next.rounding, at, codes) };
                for (index, chosen) in next.exact.chosen.iter().enumerate() {
                    if (at..at + PANEL).contains(chosen) {
                        for (row, values) in block.iter().take(count).enumerate() {
                            out.exact[(tile * TILE + row) * out.chosen + index] = values[chosen - at];
                        }
                    }
                }
            });
        }

        /// Calls a function with what each tile of the rows gives with each panel: the tile's number, the panel's first
        /// column, and the block.
        fn each_block(product: &Product, rows: &Rounded, mut take: impl FnMut(usize, usize, &mut Block)) {
            let fours = product.depth / 4;
            let mut block = [[0.0; PANEL]; TILE];
            for panel in 0..product.columns / PANEL {
                let (lines, at) = (product.panel(panel), panel * PANEL);
                for (tile, codes) in rows.codes.chunks_exact(fours).enumerate() {
                    let exact = &rows.exact[tile * TILE * rows.chosen..];
                    let what = Tile { product, lines, codes, exact, at };
                    // SAFETY: as for `round`.
                    unsafe { of_tile(&what, rows.rows - tile * TILE, &mut block) };
                    take(tile, at, &mut block);
                }
            }
        }

        /// What the sums of rows from `first` on with the columns from `from` on are worth, with what their unrounded
        /// channels add, into the block from column `at` on.
        #[target_feature(enable = $features)]
        fn valued<const ROWS: usize>(
            tile: &Tile<'_>,
            first: usize,
            from: usize,
            sums: &[Vector; ROWS],
            block: &mut Block,
            at: usize,
        ) {
            let Tile { product, .. } = tile;
            let (factors, bias) = (numbers(&product.factors[from..]), numbers(&product.bias[from..]));
            let mut values = [splat(0.0); ROWS];
            for (value, sum) in values.iter_mut().zip(sums) {
                *value = times_and(*sum, factors, bias);
            }
            let chosen = product.exact.chosen.len();
            for (index, weights) in product.exact.weights.chunks_exact(product.columns).enumerate() {
                let weights = numbers(&weights[from..]);
                for (row, value) in values.iter_mut().enumerate() {
                    let exact = tile.exact.get((first + row) * chosen + index).copied().unwrap_or_default();
                    *value = times_and(splat(exact), weights, *value);
                }
            }
            for (value, row) in values.iter().zip(&mut block[first..first + ROWS]) {
                store(&mut row[at..], *value);
            }
        }

        /// Bends the first rows of a block and rounds them for the next product, of which this is what it takes from
        /// channel `at` on; the block then holds what was rounded.
        #[target_feature(enable = $features)]
        fn bend(block: &mut Block, rows: usize, rounding: &Rounding, at: usize, codes: &mut [Fours]) {
            let codes = codes.as_chunks_mut::<4>().0;
            for (row, values) in block.iter_mut().enumerate().take(rows) {
                let halves = values.as_chunks_mut::<LANES>().0.iter_mut().zip(codes.iter_mut());
                for (half, (values, codes)) in halves.enumerate() {
                    let even = even(rounding, at + half * LANES, gelu(numbers(values)));
                    store(values, even);
                    put(codes_of(rounding, even), row, codes);
                }
            }
        }

        #[target_feature(enable = $features)]
        fn rounded_row(rounding: &Rounding, row: &[f32], place: usize, codes: &mut [Fours]) {
            let vectors = row.as_chunks::<LANES>().0.iter().zip(codes.as_chunks_mut::<4>().0);
            for (index, (values, codes)) in vectors.enumerate() {
                let even = even(rounding, index * LANES, numbers(values));
                put(codes_of(rounding, even), place, codes);
            }
        }

        /// What is rounded for inputs from channel `at` on.
        #[inline]
        #[target_feature(enable = $features)]
        fn even(rounding: &Rounding, at: usize, values: Vector) -> Vector {
            match &rounding.spread {
                Some((by, less)) => minus(times(values, numbers(&by[at..])), numbers(&less[at..])),
                None => values,
            }
        }

        fn normalise(one: &[f32], other: &[f32], norm: &Norm, epsilon: f32, out: &mut [f32]) {
            // SAFETY: as for `round`.
            unsafe { normalised(one, other, norm, epsilon, out) }
        }

        #[target_feature(enable = $features)]
        fn normalised(one: &[f32], other: &[f32], (scale, shift): &Norm, epsilon: f32, out: &mut [f32]) {
            #[expect(clippy::cast_precision_loss, reason = "a width is small")]
            let share = 1.0 / out.len() as f32;
            let out = out.as_chunks_mut::<LANES>().0;
            let mut all = splat(0.0);
            for ((out, one), other) in out.iter_mut().zip(one.chunks_exact(LANES)).zip(other.chunks_exact(LANES)) {
                let both = add(numbers(one), numbers(other));
                all = add(all, both);
                store(out, both);
            }
            let mean = splat(sum(all) * share);
            let mut squares = splat(0.0);
            for out in out.iter() {
                let off = minus(numbers(out), mean);
                squares = times_and(off, off, squares);
            }
            let by = splat(1.0 / (sum(squares) * share + epsilon).sqrt());
            for ((out, scale), shift) in out.iter_mut().zip(scale.chunks_exact(LANES)).zip(shift.chunks_exact(LANES)) {
                let off = times(minus(numbers(out), mean), by);
                store(out, times_and(off, numbers(scale), numbers(shift)));
            }
        }

        fn attend(asked: &Asked<'_>, space: &mut Attention, out: &mut [f32]) {
            // SAFETY: as for `round`.
            unsafe {
                match asked.width / asked.heads / LANES {
                    1 => all_heads::<1>(asked, space, out),
                    2 => all_heads::<2>(asked, space, out),
                    _ => all_heads::<4>(asked, space, out),
                }
            }
        }

        /// With heads of `VECTORS` vectors.
        #[target_feature(enable = $features)]
        fn all_heads<const VECTORS: usize>(asked: &Asked<'_>, space: &mut Attention, out: &mut [f32]) {
            let size = VECTORS * LANES;
            let tokens = asked.packed.len() / (3 * asked.width);
            let long = tokens.next_multiple_of(LANES);
            space.keys.resize(size * long, 0.0);
            space.scores.resize(QUERIES * long, 0.0);
            for head in 0..asked.heads {
                let at = head * size;
                for (token, row) in asked.packed.chunks_exact(3 * asked.width).enumerate() {
                    let key = &row[asked.width + at..][..size];
                    for (place, number) in space.keys[token..].iter_mut().step_by(long).zip(key) {
                        *place = *number;
                    }
                }
                let mut query = 0;
                while query < asked.queries.len() {
                    query += match asked.queries.len() - query {
                        left if left >= QUERIES && VECTORS <= 2 => {
                            some_queries::<VECTORS, QUERIES>(asked, head, query, long, space, out)
                        }
                        // Twice as wide, half as many.
                        left if left >= 4 && QUERIES > 4 => {
                            some_queries::<VECTORS, 4>(asked, head, query, long, space, out)
                        }
                        left if left >= 2 => some_queries::<VECTORS, 2>(asked, head, query, long, space, out),
                        _ => some_queries::<VECTORS, 1>(asked, head, query, long, space, out),
                    };
                }
            }
        }

        /// So many of the queries that are asked, from `first` on, by one head; tells how many that were.
        #[target_feature(enable = $features)]
        fn some_queries<const VECTORS: usize, const COUNT: usize>(
            asked: &Asked<'_>,
            head: usize,
            first: usize,
            long: usize,
            space: &mut Attention,
            out: &mut [f32],
        ) -> usize {
            let (size, width) = (VECTORS * LANES, asked.width);
            let Attention { keys, scores } = space;
            let mut queries: [&[f32]; COUNT] = [&[]; COUNT];
            for (index, query) in queries.iter_mut().enumerate() {
                *query = &asked.packed[(asked.queries.start + first + index) * 3 * width + head * size..][..size];
            }
            let mut from = 0;
            while from < long {
                from += match (long - from) / LANES {
                    1 => scored::<COUNT, 1>(&queries, keys, long, from, scores),
                    _ => scored::<COUNT, 2>(&queries, keys, long, from, scores),
                };
            }
            #[expect(clippy::cast_precision_loss, reason = "a head is small")]
            let scale = 1.0 / (size as f32).sqrt();
            let tokens = asked.packed.len() / (3 * width);
            let mut totals = [0.0; COUNT];
            for (index, (scores, total)) in scores.chunks_exact_mut(long).zip(&mut totals).enumerate() {
                let distances = asked.distances.map(|distances| {
                    let query = asked.queries.start + first + index;
                    &distances[(head * asked.padded + query) * asked.padded..][..tokens]
                });
                *total = softmax(&mut scores[..], tokens, scale, distances);
            }
            let mut sums = [[splat(0.0); VECTORS]; COUNT];
            for (token, row) in asked.packed.chunks_exact(3 * width).enumerate() {
                let value = row[2 * width + head * size..][..size].as_chunks::<LANES>().0;
                let mut vectors = [splat(0.0); VECTORS];
                for (vector, value) in vectors.iter_mut().zip(value) {
                    *vector = numbers(value);
                }
                for query in 0..COUNT {
                    let weight = splat(scores[query * long + token]);
                    for vector in 0..VECTORS {
                        sums[query][vector] = times_and(weight, vectors[vector], sums[query][vector]);
                    }
                }
            }
            for query in 0..COUNT {
                let total = splat(totals[query]);
                let out = &mut out[(first + query) * width + head * size..][..size];
                for (vector, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                    store(out, over(sums[query][vector], total));
                }
            }
            COUNT
        }

        /// The products of some queries with the keys of `KEYS` vectors of tokens from `from` on, into `scores`
        /// `[queries, long]`; tells how many tokens that were.
        #[inline]
        #[target_feature(enable = $features)]
        fn scored<const COUNT: usize, const KEYS: usize>(
            queries: &[&[f32]; COUNT],
            keys: &[f32],
            long: usize,
            from: usize,
            scores: &mut [f32],
        ) -> usize {
            let mut sums = [[splat(0.0); KEYS]; COUNT];
            for (channel, keys) in keys.chunks_exact(long).enumerate() {
                let tokens = keys[from..from + KEYS * LANES].as_chunks::<LANES>().0;
                let mut vectors = [splat(0.0); KEYS];
                for (vector, tokens) in vectors.iter_mut().zip(tokens) {
                    *vector = numbers(tokens);
                }
                for query in 0..COUNT {
                    let number = splat(queries[query][channel]);
                    for key in 0..KEYS {
                        sums[query][key] = times_and(number, vectors[key], sums[query][key]);
                    }
                }
            }
            for query in 0..COUNT {
                for key in 0..KEYS {
                    store(&mut scores[query * long + from + key * LANES..], sums[query][key]);
                }
            }
            KEYS * LANES
        }

        /// Scores of so many tokens as weights that are not yet divided by their sum, which it tells; what lies behind them
        /// weighs nothing.
        #[inline]
        #[target_feature(enable = $features)]
        fn softmax(scores: &mut [f32], tokens: usize, scale: f32, distances: Option<&[f32]>) -> f32 {
            scores[tokens..].fill(f32::NEG_INFINITY);
            let mut highest = splat(f32::NEG_INFINITY);
            for (index, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let mut value = times(numbers(scores), splat(scale));
                if let Some(distances) = distances.map(|distances| &distances[index * LANES..]) {
                    let mut added = [0.0; LANES];
                    match distances.first_chunk() {
                        Some(distances) => added = *distances,
                        None => added[..distances.len()].copy_from_slice(distances),
                    }
                    value = add(value, numbers(&added));
                }
                highest = larger(highest, value);
                store(scores, value);
            }
            let highest = splat(largest(highest));
            let mut all = splat(0.0);
            for scores in scores.as_chunks_mut::<LANES>().0 {
                let weight = power_of_two(times(minus(numbers(scores), highest), splat(LOG2_E)));
                all = add(all, weight);
                store(scores, weight);
            }
            sum(all)
        }

        /// x Φ(x), Φ the distribution function of the normal distribution.
        ///
        /// The binary logarithm of Φ(-|x|) is a polynomial, fitted by least squares so that the largest error of Φ between 0
        /// and 5.94, where it falls below 10⁻⁸, is smallest: it is 5 × 10⁻⁸.
        #[inline]
        #[target_feature(enable = $features)]
        fn gelu(x: Vector) -> Vector {
            let far = smaller(magnitude(x), splat(5.94));
            let mut all = splat(2.834_858_8e-6);
            for factor in [
                -3.937_682_8e-5,
                1.861_754e-4,
                1.369_493e-4,
                -7.063_437_7e-3,
                5.249_619e-2,
                4.592_082_2e-1,
                1.151_105_3,
                1.0,
            ] {
                all = times_and(all, far, splat(factor));
            }
            let beyond = power_of_two(minus(splat(0.0), all));
            times(x, by_sign(x, beyond, minus(splat(1.0), beyond)))
        }

        /// 2^x for x up to 0: a power of two, times the first terms of the series for what is left, at most a half.
        #[inline]
        #[target_feature(enable = $features)]
        fn power_of_two(x: Vector) -> Vector {
            // Below that lies no normal number.
            let x = larger(x, splat(-126.0));
            let power = nearest(x);
            let left = minus(x, power);
            let mut all = splat(1.540_353e-4);
            for factor in [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, LN_2, 1.0] {
                all = times_and(all, left, splat(factor));
            }
            scaled(all, power)
        }

        /// Puts the codes of 16 channels into a row's places of a tile.
        #[inline]
        fn put(fours: [[u8; 4]; 4], row: usize, codes: &mut [Fours; 4]) {
            let [first, second, third, fourth] = codes;
            if row < TILE {
                [first[row], second[row], third[row], fourth[row]] = fours;
            }
        }
    };
}

pub(super) use kernels;

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::runtime::{
        encoder::{LANES, avx2, avx512, weights::Exact},
        kv::Room,
    };

    /// All that this processor has the instructions for.
    fn all() -> Vec<(&'static str, &'static Kernels)> {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl");
        let both = [(avx2, "AVX2", &avx2::KERNELS), (avx512, "AVX-512", &avx512::KERNELS)];
        both.into_iter().filter(|(there, ..)| *there).map(|(_, name, kernels)| (name, kernels)).collect()
    }

    /// Numbers between -1 and 1.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).unwrap()) / 32_768.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[expect(clippy::cast_possible_truncation, reason = "between -64 and 64")]
    fn product(depth: usize, columns: usize, chosen: &[i64], spread: bool) -> Product {
        let codes: Vec<i8> = numbers(depth * columns, 3).iter().map(|number| (number * 64.0) as i8).collect();
        let scales: Vec<f32> = numbers(columns, 5).iter().map(|number| 0.01 + 0.005 * number).collect();
        let spread = spread.then(|| (numbers(depth, 7).iter().map(|by| by + 2.0).collect(), numbers(depth, 9)));
        let exact = (!chosen.is_empty()).then(|| (chosen.to_vec(), numbers(chosen.len() * columns, 11)));
        Product::new(&codes, &scales, numbers(columns, 13), (0.02, 117), spread, exact, &mut Room::default()).unwrap()
    }

    fn rounded(kernels: &Kernels, product: &Product, rows: &[f32]) -> Rounded {
        let mut rounded = Rounded::default();
        rounded.fill(kernels, product, rows.chunks_exact(product.depth));
        rounded
    }

    fn close(found: &[f32], wanted: &[f64], what: &str) {
        assert_eq!(found.len(), wanted.len());
        for (place, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let off = (f64::from(*found) - wanted).abs();
            assert!(off < 1e-5 * wanted.abs().max(1.0), "{what}, {place}: {found} instead of {wanted}");
        }
    }

    /// What a product gives, number by number.
    fn plainly(product: &Product, codes: &[i8], rows: &[f32]) -> Vec<f64> {
        let mut out = Vec::new();
        for row in rows.chunks_exact(product.depth) {
            let even = |channel: usize| product.rounding.even(channel, row[channel]);
            let steps = |channel| (even(channel) * product.rounding.steps).round_ties_even().clamp(-117.0, 138.0);
            for column in 0..product.columns {
                let rounded = (0..product.depth)
                    .map(|channel| f64::from(steps(channel)) * f64::from(codes[channel * product.columns + column]));
                let Exact { chosen, weights } = &product.exact;
                let exact = chosen.iter().zip(weights.chunks_exact(product.columns));
                let exact = exact.map(|(channel, weights)| f64::from(even(*channel)) * f64::from(weights[column]));
                let scaled = rounded.sum::<f64>() * f64::from(product.factors[column]);
                out.push(scaled + f64::from(product.bias[column]) + exact.sum::<f64>());
            }
        }
        out
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "between -64 and 64")]
    fn products_are_those_of_whole_numbers() {
        let codes: Vec<i8> = numbers(64 * 96, 3).iter().map(|number| (number * 64.0) as i8).collect();
        for (name, kernels) in all() {
            for count in [1, 2, 3, 4, 5, 8, 9, 12, 13, 29] {
                for (chosen, spread) in [(&[][..], false), (&[0, 17, 63][..], true)] {
                    let product = product(64, 96, chosen, spread);
                    // Some lie beyond what is rounded.
                    let mut rows: Vec<f32> = numbers(count * 64, 17).iter().map(|number| number * 3.0).collect();
                    // And some beyond all whole numbers, of channels that are not multiplied as they are.
                    [rows[1], rows[2]] = [1e12, -1e12];
                    let mut found = vec![f32::NAN; count * 96];
                    (kernels.multiply)(&product, &rounded(kernels, &product, &rows), &mut found);
                    close(&found, &plainly(&product, &codes, &rows), &format!("{name}, {count} rows"));
                }
            }
        }
    }

    /// x Φ(x), by Simpson's rule.
    fn gelu(x: f64) -> f64 {
        const PIECES: u32 = 2_000;
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let piece = x / f64::from(PIECES);
        let inner = (1..PIECES).map(|at| f64::from(2 + at % 2 * 2) * density(piece * f64::from(at)));
        x * (0.5 + piece / 3.0 * (density(0.0) + density(x) + inner.sum::<f64>()))
    }

    #[test]
    fn what_is_bent_follows_the_normal_distribution_and_is_rounded_for_the_next() {
        // The biases alone are bent, as the rows are nothing.
        let mut inner = product(32, 64, &[], false);
        inner.bias = (0_u16..64).map(|place| f32::from(place) * 0.25 - 8.0).collect();
        let all_channels: Vec<i64> = (0..64).collect();
        for spread in [false, true] {
            let down = product(64, 32, &all_channels, spread);
            let wanted: Vec<f64> = inner.bias.iter().map(|x| gelu(f64::from(*x))).collect();
            let wanted: Vec<f64> = (wanted.iter().enumerate())
                .map(|(channel, bent)| match &down.rounding.spread {
                    Some((by, less)) => bent * f64::from(by[channel]) - f64::from(less[channel]),
                    None => *bent,
                })
                .collect();
            for (name, kernels) in all() {
                let rows = rounded(kernels, &inner, &[0.0; 32 * 5]);
                let mut out = Rounded::default();
                out.resize(5, &down);
                (kernels.multiply_for_next)(&inner, &rows, &down, &mut out);
                for (row, exact) in out.exact.chunks_exact(64).enumerate() {
                    close(exact, &wanted, name);
                    for (channel, even) in exact.iter().enumerate() {
                        let steps = (even * down.rounding.steps).round_ties_even().clamp(-117.0, 138.0);
                        let code = f32::from(out.codes[channel / 4][row][channel % 4]);
                        assert!((code - steps - 117.0).abs() < 0.5, "{name}, {even}: {code}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_normalised_row_has_no_mean_and_one_variance() {
        let (one, other) = (numbers(96, 19), numbers(96, 21));
        let norm = (numbers(96, 23), numbers(96, 25));
        let both: Vec<f64> = one.iter().zip(&other).map(|(one, other)| f64::from(*one) + f64::from(*other)).collect();
        let mean = both.iter().sum::<f64>() / 96.0;
        let variance = both.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 96.0;
        let scaled = norm.0.iter().zip(&norm.1).zip(&both);
        let wanted: Vec<f64> = scaled
            .map(|((scale, shift), value)| {
                (value - mean) / (variance + 1e-3).sqrt() * f64::from(*scale) + f64::from(*shift)
            })
            .collect();
        for (name, kernels) in all() {
            let mut found = [f32::NAN; 96];
            (kernels.normalise)(&one, &other, &norm, 1e-3, &mut found);
            close(&found, &wanted, name);
        }
    }

    #[test]
    fn a_head_gathers_values_by_how_its_queries_meet_the_keys() {
        for (size, heads, tokens) in [(16, 2, 1), (16, 2, 37), (32, 1, 16), (32, 3, 5), (64, 1, 70)] {
            let (width, padded) = (size * heads, tokens + 3);
            let packed: Vec<f32> = numbers(tokens * 3 * width, 27).iter().map(|number| number * 2.0).collect();
            let distances = numbers(heads * padded * padded, 29);
            for distances in [None, Some(&distances[..])] {
                let queries = tokens / 3..tokens;
                let mut wanted = vec![0.0_f64; queries.len() * width];
                for (query, out) in queries.clone().zip(wanted.chunks_exact_mut(width)) {
                    let at = |token: usize, place: usize| f64::from(packed[token * 3 * width + place]);
                    for head in 0..heads {
                        let channels = head * size..(head + 1) * size;
                        let weight = |token: usize| {
                            let met: f64 = channels.clone().map(|n| at(query, n) * at(token, width + n)).sum();
                            let far = distances.map_or(0.0, |all| all[(head * padded + query) * padded + token]);
                            #[expect(clippy::cast_precision_loss, reason = "a head is small")]
                            let scale = (size as f64).sqrt();
                            (met / scale + f64::from(far)).exp()
                        };
                        let total: f64 = (0..tokens).map(weight).sum();
                        for n in channels.clone() {
                            out[n] = (0..tokens).map(|token| weight(token) / total * at(token, 2 * width + n)).sum();
                        }
                    }
                }
                for (name, kernels) in all() {
                    // What an earlier text left behind is no key of this one.
                    let mut space = Attention { keys: vec![f32::NAN; 9 * LANES], scores: vec![f32::NAN; LANES] };
                    let mut found = vec![f32::NAN; queries.len() * width];
                    let asked = Asked { packed: &packed, queries: queries.clone(), distances, padded, heads, width };
                    (kernels.attend)(&asked, &mut space, &mut found);
                    close(&found, &wanted, &format!("{name}, {heads} heads of {size}, {tokens} tokens"));
                }
            }
        }
    }
}
