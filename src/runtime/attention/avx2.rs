//! What a query gathers, with the instructions AVX2 and FMA.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::arch::x86_64::{
    _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_hadd_ps,
};

use super::kernels::kernels;
use crate::runtime::vectors::{
    LANES,
    avx2::{Vector, add, larger, largest, load, minus, power_of_two, splat, store, sum, times, times_and},
};

/// Keys that a query is multiplied with together.
const KEYS: usize = 4;

/// Vectors of sums that registers hold with the values of a token.
const SUMS: usize = 4;

kernels!("avx2,fma");

/// The sum of each of four vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn across(vectors: &[Vector; KEYS], sums: &mut [f32; KEYS]) {
    let [first, second, third, fourth] = *vectors;
    let one = _mm256_hadd_ps(_mm256_add_ps(first.0, first.1), _mm256_add_ps(second.0, second.1));
    let other = _mm256_hadd_ps(_mm256_add_ps(third.0, third.1), _mm256_add_ps(fourth.0, fourth.1));
    // Of each vector what either half of a register sums up to.
    let all = _mm256_hadd_ps(one, other);
    let all = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
    // SAFETY: there is place for four numbers.
    unsafe { _mm_storeu_ps(sums.as_mut_ptr(), all) };
}
