//! 16 numbers, with the instructions AVX2 and FMA.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::arch::x86_64::{
    __m256, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_max_ps,
    _mm_max_ss, _mm_movehdup_ps, _mm_movehl_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_andnot_ps, _mm256_blendv_ps,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{LANES, TERMS};

/// Numbers of a half of a vector.
pub(in crate::runtime) const HALF: usize = LANES / 2;

/// 16 numbers.
#[derive(Clone, Copy)]
pub(in crate::runtime) struct Vector(pub(in crate::runtime) __m256, pub(in crate::runtime) __m256);

/// The first 16 numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn load(values: &[f32]) -> Vector {
    let values = &values[..LANES];
    // SAFETY: there are 16 numbers.
    unsafe { Vector(_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(HALF))) }
}

/// Into the first 16 places.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn store(places: &mut [f32], values: Vector) {
    let places = &mut places[..LANES];
    // SAFETY: there is place for 16 numbers.
    unsafe {
        _mm256_storeu_ps(places.as_mut_ptr(), values.0);
        _mm256_storeu_ps(places.as_mut_ptr().add(HALF), values.1);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn splat(number: f32) -> Vector {
    Vector(_mm256_set1_ps(number), _mm256_set1_ps(number))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn add(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_add_ps(one.0, other.0), _mm256_add_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn minus(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_sub_ps(one.0, other.0), _mm256_sub_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn times(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_mul_ps(one.0, other.0), _mm256_mul_ps(one.1, other.1))
}

/// The product of the first two, and the third.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn times_and(one: Vector, other: Vector, and: Vector) -> Vector {
    Vector(_mm256_fmadd_ps(one.0, other.0, and.0), _mm256_fmadd_ps(one.1, other.1, and.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn over(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_div_ps(one.0, other.0), _mm256_div_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn larger(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_max_ps(one.0, other.0), _mm256_max_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn smaller(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_min_ps(one.0, other.0), _mm256_min_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn magnitude(x: Vector) -> Vector {
    let sign = _mm256_set1_ps(-0.0);
    Vector(_mm256_andnot_ps(sign, x.0), _mm256_andnot_ps(sign, x.1))
}

/// The first where `x` is negative, elsewhere the second.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn by_sign(x: Vector, negative: Vector, other: Vector) -> Vector {
    Vector(_mm256_blendv_ps(other.0, negative.0, x.0), _mm256_blendv_ps(other.1, negative.1, x.1))
}

/// The nearest whole number.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn nearest(x: Vector) -> Vector {
    Vector(
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x.0),
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x.1),
    )
}

/// `x` times 2 to so many, whole and from -126 to 128.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn scaled(x: Vector, power: Vector) -> Vector {
    Vector(half_scaled(x.0, power.0), half_scaled(x.1, power.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn half_scaled(x: __m256, power: __m256) -> __m256 {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
    _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn sum(x: Vector) -> f32 {
    let all = _mm256_add_ps(x.0, x.1);
    let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn largest(x: Vector) -> f32 {
    let all = _mm256_max_ps(x.0, x.1);
    let four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// 2 to the power of each, to some units in the last place; infinite from 127.5 on, as good as nothing below -126.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::runtime) fn power_of_two(powers: Vector) -> Vector {
    let powers = larger(smaller(powers, splat(128.0)), splat(-126.0));
    let whole = nearest(powers);
    let rest = minus(powers, whole);
    let mut result = splat(0.0);
    for term in TERMS {
        result = times_and(result, rest, splat(term));
    }
    scaled(result, whole)
}
