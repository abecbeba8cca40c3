//! What a query gathers, with the instructions AVX-512 F.
#![expect(unsafe_code, reason = "only a processor with the instructions may run them")]

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_fmadd_ps, _mm512_mask_blend_ps, _mm512_max_ps,
    _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_sub_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use crate::runtime::vectors::{LANES, load, power_of_two, store};

/// What queries `[queries, width]` gather of the values of some tokens, `[tokens, width]` as their keys are, into `out`
/// `[queries, width]`; `weights` is written to. A query's product with a key is the binary logarithm of its weight. `width` is
/// one of [`super::WIDTHS`], and there is a token.
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
    // SAFETY: the operator is made for processors with AVX-512 alone.
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

#[target_feature(enable = "avx512f")]
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
        // As many sums as registers hold with the values of a token.
        let count = match out.len() / width {
            left if left >= 4 && VECTORS <= 4 => sum_up::<VECTORS, 4>(weights, values, out),
            left if left >= 2 && VECTORS <= 8 => sum_up::<VECTORS, 2>(weights, values, out),
            _ => sum_up::<VECTORS, 1>(weights, values, out),
        };
        (weights, out) = (&weights[count * padded..], &mut out[count * width..]);
    }
}

/// The shares of the keys in what a query gathers, 0 from behind the last key on.
#[inline]
#[target_feature(enable = "avx512f")]
fn weigh<const VECTORS: usize>(query: &[f32], keys: &[f32], weights: &mut [f32]) {
    let (query, keys) = (query.as_chunks::<LANES>().0, keys.as_chunks::<LANES>().0);
    let count = keys.len() / VECTORS;
    let mut highest = _mm512_set1_ps(f32::NEG_INFINITY);
    for (block, weights) in weights.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let first = block * LANES;
        let mut products = [_mm512_setzero_ps(); LANES];
        for (index, product) in products.iter_mut().enumerate() {
            // Behind the last key it again.
            let key = &keys[(first + index).min(count - 1) * VECTORS..][..VECTORS];
            for part in 0..VECTORS {
                *product = _mm512_fmadd_ps(load(&query[part]), load(&key[part]), *product);
            }
        }
        let mut sums = across(&products);
        if count - first < LANES {
            let present = (1_u16 << (count - first)) - 1;
            sums = _mm512_mask_blend_ps(present, _mm512_set1_ps(f32::NEG_INFINITY), sums);
        }
        highest = _mm512_max_ps(highest, sums);
        store(weights, sums);
    }
    let highest = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
    let mut all = _mm512_setzero_ps();
    for weights in weights.as_chunks_mut::<LANES>().0.iter_mut() {
        let powers = power_of_two(_mm512_sub_ps(load(weights), highest));
        all = _mm512_add_ps(all, powers);
        store(weights, powers);
    }
    let share = _mm512_set1_ps(1.0 / _mm512_reduce_add_ps(all));
    for weights in weights.as_chunks_mut::<LANES>().0.iter_mut() {
        store(weights, _mm512_mul_ps(load(weights), share));
    }
}

/// The values by their weights, for so many queries; tells how many.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_up<const VECTORS: usize, const QUERIES: usize>(weights: &[f32], values: &[f32], out: &mut [f32]) -> usize {
    let values = values.as_chunks::<LANES>().0;
    let padded = (values.len() / VECTORS).next_multiple_of(LANES);
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; QUERIES];
    for (token, value) in values.chunks_exact(VECTORS).enumerate() {
        let mut parts = [_mm512_setzero_ps(); VECTORS];
        for (part, value) in parts.iter_mut().zip(value) {
            *part = load(value);
        }
        for (query, sums) in sums.iter_mut().enumerate() {
            let weight = _mm512_set1_ps(weights[query * padded + token]);
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = _mm512_fmadd_ps(weight, part, *sum);
            }
        }
    }
    for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums.as_flattened()) {
        store(out, *sum);
    }
    QUERIES
}

/// The sum of each of 16 vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn across(vectors: &[__m512; LANES]) -> __m512 {
    // Of two vectors, then of four, the sums within each quarter of a vector.
    let mut fours = [_mm512_setzero_ps(); 4];
    for (four, vectors) in fours.iter_mut().zip(vectors.as_chunks::<4>().0) {
        let [first, second, third, fourth] = *vectors;
        let one = _mm512_add_ps(_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second));
        let other = _mm512_add_ps(_mm512_unpacklo_ps(third, fourth), _mm512_unpackhi_ps(third, fourth));
        let (one, other) = (_mm512_castps_pd(one), _mm512_castps_pd(other));
        let (low, high) = (_mm512_unpacklo_pd(one, other), _mm512_unpackhi_pd(one, other));
        *four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    }
    let [first, second, third, fourth] = fours;
    quarters(quarters(first, second), quarters(third, fourth))
}

/// The sums of neighbouring quarters of both.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(one: __m512, other: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(one, other), _mm512_shuffle_f32x4::<0xdd>(one, other))
}
