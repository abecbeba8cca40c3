//! What a layer computes, for instructions of either kind: written once, compiled by each with its own vectors.
//!
//! A module that calls [`kernels`] has a `Vector` of 16 numbers, what can be done with one or two of them, and a tile's
//! product; each function is compiled with the instructions that it names, as one that had others would not be inlined.
//! It is one long macro for that reason: what is to be inlined has to stand in the same module, of either kind.

use super::{
    FOUR, PANEL, TILE,
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};

/// What a layer calls, compiled for some instructions.
pub(in crate::runtime) struct Kernels {
    /// Rounds four rows into their places of a tile, the first, second or third four of it.
    pub(super) round: fn(&Rounding, &[&[f32]; FOUR], usize, &mut [Fours]),
    /// The rows times the weights, into `[rows, columns]`.
    pub(super) multiply: fn(&Product, &Rounded, &mut [f32]),
    /// The rows times the weights, bent by the Gaussian error linear unit and rounded for the next product.
    pub(super) multiply_for_next: fn(&Product, &Rounded, &Product, &mut Rounded),
    /// The sum of two rows, its mean 0 and its variance 1 before the norm's scale and shift.
    pub(super) normalise: fn(&[f32], &[f32], &Norm, f32, &mut [f32]),
    /// What the heads gather for some queries of a text, into `[queries, width]`.
    pub(super) attend: fn(&Asked<'_>, &mut Attention, &mut [f32]),
}

/// Sums of a tile of rows and a panel.
pub(super) type Block = [[i32; PANEL]; TILE];

/// A tile of rows and a panel.
pub(super) struct Tile<'a> {
    pub(super) lines: &'a [[u8; 2 * size_of::<Line>()]],
    pub(super) codes: &'a [Fours],
    /// What the sums begin with.
    pub(super) starts: &'a [i32],
    /// Lines that are to be asked for, a pair at every so many pairs of this panel, a power of two: this tile's share of the
    /// panel that follows.
    pub(super) ahead: *const [u8; 2 * size_of::<Line>()],
    pub(super) every: usize,
}

/// Minus the binary logarithm of Φ(-x), Φ the distribution function of the normal distribution, as a polynomial, the
/// highest power first. Fitted by least squares so that the largest error of Φ between 0 and 5.94, where it falls below
/// 10⁻⁸, is smallest: it is 5 × 10⁻⁸.
pub(super) const TAIL: [f32; 9] = [
    2.834_858_8e-6,
    -3.937_682_8e-5,
    1.861_754e-4,
    1.369_493e-4,
    -7.063_437_7e-3,
    5.249_619e-2,
    4.592_082_2e-1,
    1.151_105_3,
    1.0,
];

/// Up to where [`TAIL`] is fitted.
pub(super) const FARTHEST: f32 = 5.94;

/// [`Kernels`] for the instructions named.
macro_rules! kernels {
    ($features:literal) => {
        pub(super) const KERNELS: Kernels = Kernels { round, multiply, multiply_for_next, normalise, attend };

        fn round(rounding: &Rounding, rows: &[&[f32]; FOUR], place: usize, codes: &mut [Fours]) {
            // SAFETY: `KERNELS` is given to those only whose processor has the instructions.
            unsafe { rounded_rows(rounding, rows, place, codes) }
        }

        fn multiply(product: &Product, rows: &Rounded, out: &mut [f32]) {
            each_block(product, rows, |tile, at, block| {
                // SAFETY: as for `round`.
                unsafe { write(product, rows, tile, at, block, out) };
            });
        }

        fn multiply_for_next(product: &Product, rows: &Rounded, next: &Product, out: &mut Rounded) {
            each_block(product, rows, |tile, at, block| {
                // SAFETY: as for `round`.
                unsafe { write_bent(product, rows, tile, at, block, next, out) };
            });
        }

        /// Calls a function with the sums of each tile of the rows with each panel: the tile's number, the panel's first
        /// column, and the block.
        fn each_block(product: &Product, rows: &Rounded, mut take: impl FnMut(usize, usize, &Block)) {
            let tiles = rows.codes.chunks_exact(product.depth / 4);
            let (count, every) = (tiles.len(), 1 << tiles.len().max(1).ilog2());
            let mut block = [[0; PANEL]; TILE];
            for panel in 0..product.columns / PANEL {
                let (lines, at) = (product.panel(panel), panel * PANEL);
                for (tile, codes) in tiles.clone().enumerate() {
                    let ahead = lines.as_ptr().wrapping_add(lines.len() + lines.len() * tile / count);
                    let what = Tile { lines, codes, starts: &product.starts[at..], ahead, every };
                    // SAFETY: as for `round`.
                    unsafe { of_tile(&what, rows.rows - tile * TILE, &mut block) };
                    take(tile, at, &block);
                }
            }
        }

        /// Two vectors, from place `at` on.
        #[inline]
        #[target_feature(enable = $features)]
        fn both(values: &[f32], at: usize) -> [Vector; 2] {
            let values = &values[at..at + PANEL];
            [load(values), load(&values[LANES..])]
        }

        /// What the sums of a row with some columns are worth.
        #[inline]
        #[target_feature(enable = $features)]
        fn worth(sums: &[i32; PANEL], factors: [Vector; 2], bias: [Vector; 2]) -> [Vector; 2] {
            let (low, high) = (converted(sums), converted(&sums[LANES..]));
            [times_and(low, factors[0], bias[0]), times_and(high, factors[1], bias[1])]
        }

        /// With what the unrounded channels of a row add to its columns from `at` on.
        #[inline]
        #[target_feature(enable = $features)]
        fn with_exact(product: &Product, at: usize, exact: &[f32], mut values: [Vector; 2]) -> [Vector; 2] {
            for (exact, weights) in exact.iter().zip(product.exact.weights.chunks_exact(product.columns)) {
                let (exact, [low, high]) = (splat(*exact), both(weights, at));
                values = [times_and(exact, low, values[0]), times_and(exact, high, values[1])];
            }
            values
        }

        /// Writes what a block is worth into its rows of `[rows, columns]`.
        #[target_feature(enable = $features)]
        fn write(product: &Product, rows: &Rounded, tile: usize, at: usize, block: &Block, out: &mut [f32]) {
            let (factors, bias) = (both(&product.factors, at), both(&product.bias, at));
            let out = out[tile * TILE * product.columns..].chunks_exact_mut(product.columns);
            for (row, (sums, out)) in block.iter().zip(out).enumerate() {
                let mut values = worth(sums, factors, bias);
                if rows.chosen > 0 {
                    values = with_exact(product, at, rows.exact_of(tile * TILE + row), values);
                }
                let out = &mut out[at..at + PANEL];
                store(out, values[0]);
                store(&mut out[LANES..], values[1]);
            }
        }

        /// Bends what a block is worth and rounds it for the next product, of which this is what it takes from channel `at`
        /// on.
        #[target_feature(enable = $features)]
        fn write_bent(
            product: &Product,
            rows: &Rounded,
            tile: usize,
            at: usize,
            block: &Block,
            next: &Product,
            out: &mut Rounded,
        ) {
            let codes = &mut out.codes[tile * (next.depth / 4) + at / 4..][..PANEL / 4];
            let [low, high] = codes.as_chunks_mut::<FOUR>().0 else { return };
            let (factors, bias) = (both(&product.factors, at), both(&product.bias, at));
            let (scales, shifts) = (both(&next.rounding.scales, at), both(&next.rounding.shifts, at));
            let (bend, first) = (Bend::new(), tile * TILE);
            let count = (rows.rows - first).min(TILE);
            for (place, four) in block.as_chunks::<FOUR>().0.iter().enumerate().take(count.div_ceil(FOUR)) {
                let mut values = [[splat(0.0); 2]; FOUR];
                for row in 0..FOUR {
                    values[row] = worth(&four[row], factors, bias);
                }
                if rows.chosen > 0 {
                    for (row, values) in values.iter_mut().enumerate() {
                        let exact = rows.exact_of(first + place * FOUR + row);
                        *values = with_exact(product, at, exact, *values);
                    }
                }
                let (mut lows, mut highs) = ([splat(0.0); FOUR], [splat(0.0); FOUR]);
                for row in 0..FOUR {
                    lows[row] = steps(bend.bent(values[row][0]), scales[0], shifts[0]);
                    highs[row] = steps(bend.bent(values[row][1]), scales[1], shifts[1]);
                }
                put(lows, next.rounding.zero, place, low);
                put(highs, next.rounding.zero, place, high);
            }
            for (index, chosen) in next.exact.chosen.iter().enumerate() {
                if let Some(within) = chosen.checked_sub(at).filter(|within| *within < PANEL) {
                    for (row, sums) in block.iter().enumerate().take(count) {
                        let values = with_exact(product, at, rows.exact_of(first + row), worth(sums, factors, bias));
                        let mut exact = [0.0; LANES];
                        store(&mut exact, gelu(values[within / LANES]));
                        out.exact[(first + row) * out.chosen + index] =
                            next.rounding.even(*chosen, exact[within % LANES]);
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        fn rounded_rows(rounding: &Rounding, rows: &[&[f32]; FOUR], place: usize, codes: &mut [Fours]) {
            let factors = rounding.scales.as_chunks::<LANES>().0.iter().zip(rounding.shifts.as_chunks::<LANES>().0);
            let rows = rows.map(|row| row.as_chunks::<LANES>().0);
            for (index, (codes, (scales, shifts))) in
                codes.as_chunks_mut::<FOUR>().0.iter_mut().zip(factors).enumerate()
            {
                let (scales, shifts) = (load(scales), load(shifts));
                let mut rounded = [splat(0.0); FOUR];
                for row in 0..FOUR {
                    rounded[row] = steps(load(&rows[row][index]), scales, shifts);
                }
                put(rounded, rounding.zero, place, codes);
            }
        }

        /// Steps from zero before they are whole. None is above the largest, as what a whole number cannot hold would come out
        /// as the smallest.
        #[inline]
        #[target_feature(enable = $features)]
        fn steps(values: Vector, scales: Vector, shifts: Vector) -> Vector {
            smaller(times_and(values, scales, shifts), splat(MOST_STEPS))
        }

        fn normalise(one: &[f32], other: &[f32], norm: &Norm, epsilon: f32, out: &mut [f32]) {
            // SAFETY: as for `round`.
            unsafe { normalised(one, other, norm, epsilon, out) }
        }

        #[target_feature(enable = $features)]
        fn normalised(one: &[f32], other: &[f32], (scale, shift): &Norm, epsilon: f32, out: &mut [f32]) {
            #[expect(clippy::cast_precision_loss, reason = "a width is small")]
            let share = 1.0 / out.len() as f32;
            // Two sums at a time: one would wait for itself.
            let out = out.as_chunks_mut::<PANEL>().0;
            let mut all = [splat(0.0); 2];
            for ((out, one), other) in out.iter_mut().zip(one.chunks_exact(PANEL)).zip(other.chunks_exact(PANEL)) {
                for (half, all) in all.iter_mut().enumerate() {
                    let at = half * LANES;
                    let both = add(load(&one[at..]), load(&other[at..]));
                    *all = add(*all, both);
                    store(&mut out[at..], both);
                }
            }
            let mean = splat(sum(add(all[0], all[1])) * share);
            let mut squares = [splat(0.0); 2];
            for out in out.iter() {
                for (half, squares) in squares.iter_mut().enumerate() {
                    let off = minus(load(&out[half * LANES..]), mean);
                    *squares = times_and(off, off, *squares);
                }
            }
            let by = splat(1.0 / (sum(add(squares[0], squares[1])) * share + epsilon).sqrt());
            let out = out.as_flattened_mut().as_chunks_mut::<LANES>().0;
            for ((out, scale), shift) in out.iter_mut().zip(scale.chunks_exact(LANES)).zip(shift.chunks_exact(LANES)) {
                let off = times(minus(load(out), mean), by);
                store(out, times_and(off, load(scale), load(shift)));
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
            let tokens = asked.packed.len() / (3 * asked.width);
            space.queries.resize(VECTORS * LANES * LANES, 0.0);
            space.scores.resize(tokens * LANES, 0.0);
            for head in 0..asked.heads {
                let mut first = 0;
                while first < asked.queries.len() {
                    let count = (asked.queries.len() - first).min(LANES);
                    some_queries::<VECTORS>(asked, head, first..first + count, space, out);
                    first += count;
                }
            }
        }

        /// Up to 16 of the queries that are asked, by one head. Until what the head gathers is summed up, a vector holds a
        /// number of each query: so none waits for a maximum or a sum across a vector.
        #[target_feature(enable = $features)]
        fn some_queries<const VECTORS: usize>(
            asked: &Asked<'_>,
            head: usize,
            some: Range<usize>,
            space: &mut Attention,
            out: &mut [f32],
        ) {
            let (size, width) = (VECTORS * LANES, asked.width);
            let Attention { queries, scores } = space;
            let tokens = asked.packed.len() / (3 * width);
            // Where there are fewer than 16, the last one again.
            let mut of_some = [0; LANES];
            for (index, query) in of_some.iter_mut().enumerate() {
                *query = asked.queries.start + (some.start + index).min(some.end - 1);
            }
            for (part, queries) in queries.as_chunks_mut::<LANES>().0.as_chunks_mut::<LANES>().0.iter_mut().enumerate()
            {
                let mut rows = [&[0.0; LANES]; LANES];
                for (row, query) in rows.iter_mut().zip(of_some) {
                    *row = sixteen(&asked.packed[query * 3 * width + head * size + part * LANES..]);
                }
                transpose(rows, queries);
            }
            let keys = &asked.packed[width + head * size..];
            let mut token = 0;
            while token < tokens {
                let (keys, scores) = (&keys[token * 3 * width..], &mut scores[token * LANES..]);
                token += match tokens - token {
                    left if left >= KEYS => scored::<VECTORS, KEYS>(queries, keys, 3 * width, scores),
                    left if left >= 4 && KEYS > 4 => scored::<VECTORS, 4>(queries, keys, 3 * width, scores),
                    left if left >= 2 => scored::<VECTORS, 2>(queries, keys, 3 * width, scores),
                    _ => scored::<VECTORS, 1>(queries, keys, 3 * width, scores),
                };
            }
            #[expect(clippy::cast_precision_loss, reason = "a head is small")]
            let scale = splat(LOG2_E / (size as f32).sqrt());
            let mut highest = splat(f32::NEG_INFINITY);
            for (block, scores) in scores.chunks_mut(LANES * LANES).enumerate() {
                let far = asked.distances.map(|all| {
                    let of = of_some.map(|query| (head * asked.padded + query) * asked.padded);
                    nearby(of.map(|from| &all[from..from + tokens][block * LANES..]))
                });
                for (place, score) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                    let mut value = times(load(score), scale);
                    if let Some(far) = &far {
                        value = times_and(load(&far[place]), splat(LOG2_E), value);
                    }
                    highest = larger(highest, value);
                    store(score, value);
                }
            }
            let mut all = splat(0.0);
            for score in scores.as_chunks_mut::<LANES>().0 {
                let weight = power_of_two(minus(load(score), highest));
                all = add(all, weight);
                store(score, weight);
            }
            let mut share = [0.0; LANES];
            store(&mut share, over(splat(1.0), all));
            let values = &asked.packed[2 * width + head * size..];
            let mut index = 0;
            while index < some.len() {
                let out = &mut out[(some.start + index) * width + head * size..];
                index += match some.len() - index {
                    left if left >= QUERIES && VECTORS <= 2 => {
                        gathered::<VECTORS, QUERIES>(scores, &share, index, values, width, out)
                    }
                    // Twice as wide, half as many.
                    left if left >= 4 && QUERIES > 4 => {
                        gathered::<VECTORS, 4>(scores, &share, index, values, width, out)
                    }
                    left if left >= 2 => gathered::<VECTORS, 2>(scores, &share, index, values, width, out),
                    _ => gathered::<VECTORS, 1>(scores, &share, index, values, width, out),
                };
            }
        }

        /// The first 16 numbers of 16 rows, the first of all rows first; 0 where a row has none.
        #[inline]
        #[target_feature(enable = $features)]
        fn nearby(rows: [&[f32]; LANES]) -> [[f32; LANES]; LANES] {
            let mut near = [[0.0; LANES]; LANES];
            if rows[0].len() >= LANES {
                transpose(rows.map(sixteen), &mut near);
            } else {
                for (index, row) in rows.iter().enumerate() {
                    for (place, number) in near.iter_mut().zip(*row) {
                        place[index] = *number;
                    }
                }
            }
            near
        }

        /// The first 16.
        #[inline]
        fn sixteen(numbers: &[f32]) -> &[f32; LANES] {
            &numbers.as_chunks().0[0]
        }

        /// The products of 16 queries, channel by channel, with the first keys, one every `stride` numbers, into `scores`
        /// `[keys, 16]`; tells how many keys that were.
        #[inline]
        #[target_feature(enable = $features)]
        fn scored<const VECTORS: usize, const COUNT: usize>(
            queries: &[f32],
            keys: &[f32],
            stride: usize,
            scores: &mut [f32],
        ) -> usize {
            let queries = queries.as_chunks::<LANES>().0.as_chunks::<LANES>().0;
            let mut sums = [splat(0.0); COUNT];
            for part in 0..VECTORS {
                let mut rows = [&[0.0; LANES]; COUNT];
                for (key, row) in rows.iter_mut().enumerate() {
                    *row = sixteen(&keys[key * stride + part * LANES..]);
                }
                for (channel, queries) in queries[part].iter().enumerate() {
                    let queries = load(queries);
                    for (sum, row) in sums.iter_mut().zip(&rows) {
                        *sum = times_and(queries, splat(row[channel]), *sum);
                    }
                }
            }
            for (sum, scores) in sums.iter().zip(scores.chunks_exact_mut(LANES)) {
                store(scores, *sum);
            }
            COUNT
        }

        /// What queries gather from number `first` of 16 on: the sum of the values of all tokens by their weights
        /// `[tokens, 16]`, times a share each, into one row of `width` numbers a query; tells how many queries that were.
        #[inline]
        #[target_feature(enable = $features)]
        fn gathered<const VECTORS: usize, const COUNT: usize>(
            weights: &[f32],
            shares: &[f32; LANES],
            first: usize,
            values: &[f32],
            width: usize,
            out: &mut [f32],
        ) -> usize {
            let mut sums = [[splat(0.0); VECTORS]; COUNT];
            for (token, weights) in weights.as_chunks::<LANES>().0.iter().enumerate() {
                let values = values[token * 3 * width..][..VECTORS * LANES].as_chunks::<LANES>().0;
                let mut vectors = [splat(0.0); VECTORS];
                for (vector, value) in vectors.iter_mut().zip(values) {
                    *vector = load(value);
                }
                let weights = &weights[first..first + COUNT];
                for query in 0..COUNT {
                    let weight = splat(weights[query]);
                    for vector in 0..VECTORS {
                        sums[query][vector] = times_and(weight, vectors[vector], sums[query][vector]);
                    }
                }
            }
            for (query, sums) in sums.iter().enumerate() {
                let out = &mut out[query * width..][..VECTORS * LANES];
                for (sum, out) in sums.iter().zip(out.as_chunks_mut::<LANES>().0) {
                    store(out, times(*sum, splat(shares[first + query])));
                }
            }
            COUNT
        }

        /// x Φ(x), Φ the distribution function of the normal distribution.
        #[inline]
        #[target_feature(enable = $features)]
        fn gelu(x: Vector) -> Vector {
            let far = smaller(magnitude(x), splat(FARTHEST));
            let mut all = splat(0.0);
            for factor in TAIL {
                all = times_and(all, far, splat(factor));
            }
            let beyond = power_of_two(minus(splat(0.0), all));
            times(x, by_sign(x, beyond, minus(splat(1.0), beyond)))
        }
    };
}

pub(super) use kernels;

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::runtime::{
        encoder::{LANES, weights::Exact},
        instructions::Instructions,
        kv::Room,
    };

    /// All that this processor has the instructions for.
    fn all() -> impl Iterator<Item = (Instructions, &'static Kernels)> {
        Instructions::of_this_processor().map(|instructions| (instructions, Kernels::of(instructions)))
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

    /// Steps in a whole 1 of the products here.
    const STEPS: f32 = 50.0;

    #[expect(clippy::cast_possible_truncation, reason = "between -64 and 64")]
    fn product(depth: usize, columns: usize, chosen: &[i64], spread: bool) -> Product {
        let codes: Vec<i8> = numbers(depth * columns, 3).iter().map(|number| (number * 64.0) as i8).collect();
        let scales: Vec<f32> = numbers(columns, 5).iter().map(|number| 0.01 + 0.005 * number).collect();
        let spread = spread.then(|| (numbers(depth, 7).iter().map(|by| by + 2.0).collect(), numbers(depth, 9)));
        let exact = (!chosen.is_empty()).then(|| (chosen.to_vec(), numbers(chosen.len() * columns, 11)));
        Product::new(&codes, &scales, numbers(columns, 13), (1.0 / STEPS, 117), spread, exact, &mut Room::default())
            .unwrap()
    }

    fn rounded(kernels: &Kernels, product: &Product, rows: &[f32]) -> Rounded {
        let mut rounded = Rounded::default();
        rounded.fill(kernels, product, rows.chunks_exact(product.depth));
        rounded
    }

    fn close(found: &[f32], wanted: &[f64], what: impl std::fmt::Debug) {
        assert_eq!(found.len(), wanted.len());
        for (place, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let off = (f64::from(*found) - wanted).abs();
            assert!(off < 1e-5 * wanted.abs().max(1.0), "{what:?}, {place}: {found} instead of {wanted}");
        }
    }

    /// What a product gives, number by number.
    fn plainly(product: &Product, codes: &[i8], rows: &[f32]) -> Vec<f64> {
        let mut out = Vec::new();
        for row in rows.chunks_exact(product.depth) {
            let even = |channel: usize| product.rounding.even(channel, row[channel]);
            let steps = |channel| (even(channel) * STEPS).round_ties_even().clamp(-117.0, 138.0);
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
        for (instructions, kernels) in all() {
            for count in [1, 2, 3, 4, 5, 8, 9, 12, 13, 29] {
                for (chosen, spread) in [(&[][..], false), (&[0, 17, 63][..], true)] {
                    let product = product(64, 96, chosen, spread);
                    // Some lie beyond what is rounded.
                    let mut rows: Vec<f32> = numbers(count * 64, 17).iter().map(|number| number * 3.0).collect();
                    // And some beyond all whole numbers, of channels that are not multiplied as they are.
                    [rows[1], rows[2]] = [1e12, -1e12];
                    let mut found = vec![f32::NAN; count * 96];
                    (kernels.multiply)(&product, &rounded(kernels, &product, &rows), &mut found);
                    close(&found, &plainly(&product, &codes, &rows), format!("{instructions:?}, {count} rows"));
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
            for (instructions, kernels) in all() {
                let rows = rounded(kernels, &inner, &[0.0; 32 * 5]);
                let mut out = Rounded::default();
                out.resize(5, &down);
                (kernels.multiply_for_next)(&inner, &rows, &down, &mut out);
                for (row, exact) in out.exact.chunks_exact(64).enumerate() {
                    close(exact, &wanted, instructions);
                    for (channel, even) in exact.iter().enumerate() {
                        let code = f32::from(out.codes[channel / 4][row][channel % 4]);
                        let steps = (even * STEPS).clamp(-117.0, 138.0);
                        // Half a step, and a little, as what is bent for a code may be off by 10⁻⁶.
                        assert!((code - steps - 117.0).abs() < 0.5001, "{instructions:?}, {even}: {code}");
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
        for (instructions, kernels) in all() {
            let mut found = [f32::NAN; 96];
            (kernels.normalise)(&one, &other, &norm, 1e-3, &mut found);
            close(&found, &wanted, instructions);
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
                for (instructions, kernels) in all() {
                    // What an earlier text left behind is no key of this one.
                    let mut space = Attention { queries: vec![f32::NAN; 9 * LANES], scores: vec![f32::NAN; LANES] };
                    let mut found = vec![f32::NAN; queries.len() * width];
                    let asked = Asked { packed: &packed, queries: queries.clone(), distances, padded, heads, width };
                    (kernels.attend)(&asked, &mut space, &mut found);
                    close(&found, &wanted, format!("{instructions:?}, {heads} heads of {size}, {tokens} tokens"));
                }
            }
        }
    }
}
