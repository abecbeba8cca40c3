//! A layer with the instructions AVX2 and FMA.
//!
//! Two products of bytes are added in 16 bits first, for which the codes of weights keep to 64 either way
//! (`scripts/forge/encoder.py`).
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::{
    arch::x86_64::{
        __m256, __m256i, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32,
        _mm_movehdup_ps, _mm_movehl_ps, _mm_storeu_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_adds_epi16,
        _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
        _mm256_cvtepi32_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_extracti128_si256,
        _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_ps,
        _mm256_min_ps, _mm256_mul_ps, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_round_ps, _mm256_set1_epi16,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps,
    },
    f32::consts::{LN_2, LOG2_E},
    ops::Range,
};

use super::{
    FOUR, LANES, MOST_STEPS, PANEL, TILE,
    kernels::{Block, FARTHEST, Kernels, TAIL, Tile, kernels},
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};

/// Numbers of a half of a vector.
const HALF: usize = LANES / 2;

/// Queries that an attention takes together: with two vectors of keys or values for each, half of the registers hold sums.
const QUERIES: usize = 2;

/// Keys whose sums with the queries an attention adds up together.
const KEYS: usize = 4;

/// 16 numbers.
#[derive(Clone, Copy)]
struct Vector(__m256, __m256);

kernels!("avx2,fma");

/// The first rows of a block, as many as there are; the others are undefined.
#[target_feature(enable = "avx2,fma")]
fn of_tile(tile: &Tile<'_>, rows: usize, block: &mut Block) {
    let mut first = 0;
    while first < rows.min(TILE) {
        for half in 0..PANEL / LANES {
            match rows - first {
                1 => multiply_rows::<1>(tile, first, half, block),
                2 => multiply_rows::<2>(tile, first, half, block),
                _ => multiply_rows::<4>(tile, first, half, block),
            }
        }
        first += 4;
    }
}

/// Rows from `first` on times half a panel: their sums, the weights and what is between fill the sixteen registers.
#[target_feature(enable = "avx2,fma")]
fn multiply_rows<const ROWS: usize>(tile: &Tile<'_>, first: usize, half: usize, block: &mut Block) {
    let starts = &tile.starts[half * LANES..];
    let ones = _mm256_set1_epi16(1);
    let (low, high) = (whole(starts), whole(&starts[HALF..]));
    // Vectors are put in arrays by loops: a closure given to a function without these instructions is not inlined.
    let (mut lows, mut highs) = ([low; ROWS], [high; ROWS]);
    for (line, fours) in tile.lines.iter().zip(tile.codes) {
        let line = &line[half * size_of::<Line>()..][..size_of::<Line>()];
        let (low, high) = (codes(line), codes(&line[size_of::<Line>() / 2..]));
        for (row, four) in fours[first..first + ROWS].iter().enumerate() {
            let four = _mm256_set1_epi32(i32::from_ne_bytes(*four));
            let (pairs_low, pairs_high) = (_mm256_maddubs_epi16(four, low), _mm256_maddubs_epi16(four, high));
            lows[row] = _mm256_add_epi32(lows[row], _mm256_madd_epi16(pairs_low, ones));
            highs[row] = _mm256_add_epi32(highs[row], _mm256_madd_epi16(pairs_high, ones));
        }
    }
    for (sums, (low, high)) in block[first..].iter_mut().zip(lows.into_iter().zip(highs)) {
        keep(&mut sums[half * LANES..], low);
        keep(&mut sums[half * LANES + HALF..], high);
    }
}

/// Puts the codes of 16 channels of four rows, so many steps from `zero`, into their places of a tile, the first, second or
/// third four of it.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn put(steps: [Vector; FOUR], zero: i16, place: usize, into: &mut [Fours; 4]) {
    let [first, second, third, fourth] = steps;
    let zero = _mm256_set1_epi16(zero);
    let halves = [[first.0, second.0, third.0, fourth.0], [first.1, second.1, third.1, fourth.1]];
    for ([first, second, third, fourth], into) in halves.into_iter().zip(into.as_chunks_mut::<2>().0) {
        // Whole numbers too small or too large become the smallest or largest code. Each half of a vector is packed by
        // itself, which leaves in it four codes of each row: what a tile holds side by side.
        let words = _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second));
        let others = _mm256_packs_epi32(_mm256_cvtps_epi32(third), _mm256_cvtps_epi32(fourth));
        let bytes = _mm256_packus_epi16(_mm256_adds_epi16(words, zero), _mm256_adds_epi16(others, zero));
        let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        for (fours, half) in into.iter_mut().zip(halves) {
            let fours = &mut fours[place * FOUR..][..FOUR];
            // SAFETY: there is place for 16 bytes.
            unsafe { _mm_storeu_si128(fours.as_mut_ptr().cast(), half) };
        }
    }
}

/// The Gaussian error linear unit for what is rounded to a code next.
struct Bend;

impl Bend {
    fn new() -> Self {
        Self
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[expect(clippy::unused_self, reason = "others have tables")]
    fn bent(&self, x: Vector) -> Vector {
        gelu(x)
    }
}

/// Rows as columns.
fn transpose(rows: [&[f32; LANES]; LANES], into: &mut [[f32; LANES]; LANES]) {
    for (index, row) in rows.iter().enumerate() {
        for (place, number) in into.iter_mut().zip(*row) {
            place[index] = *number;
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn splat(number: f32) -> Vector {
    Vector(_mm256_set1_ps(number), _mm256_set1_ps(number))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_add_ps(one.0, other.0), _mm256_add_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn minus(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_sub_ps(one.0, other.0), _mm256_sub_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn times(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_mul_ps(one.0, other.0), _mm256_mul_ps(one.1, other.1))
}

/// The product of the first two, and the third.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn times_and(one: Vector, other: Vector, and: Vector) -> Vector {
    Vector(_mm256_fmadd_ps(one.0, other.0, and.0), _mm256_fmadd_ps(one.1, other.1, and.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn over(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_div_ps(one.0, other.0), _mm256_div_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn larger(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_max_ps(one.0, other.0), _mm256_max_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn smaller(one: Vector, other: Vector) -> Vector {
    Vector(_mm256_min_ps(one.0, other.0), _mm256_min_ps(one.1, other.1))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn magnitude(x: Vector) -> Vector {
    let sign = _mm256_set1_ps(-0.0);
    Vector(_mm256_andnot_ps(sign, x.0), _mm256_andnot_ps(sign, x.1))
}

/// The first where `x` is negative, elsewhere the second.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn by_sign(x: Vector, negative: Vector, other: Vector) -> Vector {
    Vector(_mm256_blendv_ps(other.0, negative.0, x.0), _mm256_blendv_ps(other.1, negative.1, x.1))
}

/// The nearest whole number.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn nearest(x: Vector) -> Vector {
    Vector(
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x.0),
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x.1),
    )
}

/// `x` times 2 to so many, whole and from -126 to 0.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn scaled(x: Vector, power: Vector) -> Vector {
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
fn sum(x: Vector) -> f32 {
    let all = _mm256_add_ps(x.0, x.1);
    let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The first 16 numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn numbers(values: &[f32]) -> Vector {
    let values = &values[..LANES];
    // SAFETY: there are 16 numbers.
    unsafe { Vector(_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(HALF))) }
}

/// The first 8 whole numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn whole(values: &[i32]) -> __m256i {
    let values = &values[..HALF];
    // SAFETY: there are 8 numbers.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// The first 16 whole numbers, as numbers with a fraction.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn converted(values: &[i32]) -> Vector {
    Vector(_mm256_cvtepi32_ps(whole(values)), _mm256_cvtepi32_ps(whole(&values[HALF..])))
}

/// Into the first 8 places.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn keep(places: &mut [i32], values: __m256i) {
    let places = &mut places[..HALF];
    // SAFETY: there is place for 8 numbers.
    unsafe { _mm256_storeu_si256(places.as_mut_ptr().cast(), values) };
}

/// The first 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn codes(line: &[u8]) -> __m256i {
    let line = &line[..size_of::<Line>() / 2];
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(line.as_ptr().cast()) }
}

/// Into the first 16 places.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(places: &mut [f32], values: Vector) {
    let places = &mut places[..LANES];
    // SAFETY: there is place for 16 numbers.
    unsafe {
        _mm256_storeu_ps(places.as_mut_ptr(), values.0);
        _mm256_storeu_ps(places.as_mut_ptr().add(HALF), values.1);
    }
}
