//! What a query gathers, with the instructions AVX-512 F.
#![expect(unsafe_code, reason = "only a processor with the instructions may run them")]

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::kernels::kernels;
use crate::runtime::vectors::{
    LANES,
    avx512::{Vector, add, larger, largest, load, minus, power_of_two, splat, store, sum, times, times_and},
};

/// Keys that a query is multiplied with together.
const KEYS: usize = 16;

/// Vectors of sums that registers hold with the values of a token.
const SUMS: usize = 16;

kernels!("avx512f");

/// The sum of each of 16 vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn across(vectors: &[Vector; KEYS], sums: &mut [f32; KEYS]) {
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
    store(sums, quarters(quarters(first, second), quarters(third, fourth)));
}

/// The sums of neighbouring quarters of both.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(one: __m512, other: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(one, other), _mm512_shuffle_f32x4::<0xdd>(one, other))
}
