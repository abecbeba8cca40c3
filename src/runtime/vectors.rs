//! What operators of ours do with 16 numbers at once, by AVX-512 F.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::arch::x86_64::{
    __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_roundscale_ps,
    _mm512_scalef_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Numbers of single precision in a vector.
pub(super) const LANES: usize = 16;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(values: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 numbers are there.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(places: &mut [f32; LANES], values: __m512) {
    // SAFETY: there is place for 16 numbers.
    unsafe { _mm512_storeu_ps(places.as_mut_ptr(), values) };
}

/// 2 to the power of each, to some units in the last place; infinite from 128 on, 0 below -150.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn power_of_two(powers: __m512) -> __m512 {
    // ln 2 to the power of k, by k!, from 6 on down.
    const TERMS: [f32; 7] =
        [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_41e-2, 2.402_265e-1, std::f32::consts::LN_2, 1.0];
    let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(powers);
    let rest = _mm512_sub_ps(powers, whole);
    let mut result = _mm512_setzero_ps();
    for term in TERMS {
        result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(term));
    }
    _mm512_scalef_ps(result, whole)
}
