//! 16 numbers, with the instructions AVX-512 F.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::arch::x86_64::{
    __m512, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_abs_ps, _mm512_add_ps, _mm512_cmp_ps_mask,
    _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{LANES, TERMS};

/// 16 numbers.
pub(in crate::runtime) type Vector = __m512;

/// The first 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn load(values: &[f32]) -> Vector {
    let values = &values[..LANES];
    // SAFETY: there are 16 numbers.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Into the first 16 places.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn store(places: &mut [f32], values: Vector) {
    let places = &mut places[..LANES];
    // SAFETY: there is place for 16 numbers.
    unsafe { _mm512_storeu_ps(places.as_mut_ptr(), values) };
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn splat(number: f32) -> Vector {
    _mm512_set1_ps(number)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn add(one: Vector, other: Vector) -> Vector {
    _mm512_add_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn minus(from: Vector, what: Vector) -> Vector {
    _mm512_sub_ps(from, what)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn times(one: Vector, other: Vector) -> Vector {
    _mm512_mul_ps(one, other)
}

/// The product of the first two, and the third.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn times_and(one: Vector, other: Vector, and: Vector) -> Vector {
    _mm512_fmadd_ps(one, other, and)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn over(what: Vector, by: Vector) -> Vector {
    _mm512_div_ps(what, by)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn larger(one: Vector, other: Vector) -> Vector {
    _mm512_max_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn smaller(one: Vector, other: Vector) -> Vector {
    _mm512_min_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn magnitude(x: Vector) -> Vector {
    _mm512_abs_ps(x)
}

/// The first where `x` is negative, elsewhere the second.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn by_sign(x: Vector, negative: Vector, other: Vector) -> Vector {
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps()), other, negative)
}

/// The nearest whole number.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn nearest(x: Vector) -> Vector {
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `x` times 2 to so many, whole and from -126 to 128.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn scaled(x: Vector, power: Vector) -> Vector {
    _mm512_scalef_ps(x, power)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn sum(x: Vector) -> f32 {
    _mm512_reduce_add_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn largest(x: Vector) -> f32 {
    _mm512_reduce_max_ps(x)
}

/// 2 to the power of each, to some units in the last place; infinite from 128 on, as good as nothing below -126.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::runtime) fn power_of_two(powers: Vector) -> Vector {
    let whole = nearest(powers);
    let rest = minus(powers, whole);
    let mut result = splat(0.0);
    for term in TERMS {
        result = times_and(result, rest, splat(term));
    }
    scaled(result, whole)
}
