//! A layer with the instructions AVX-512 F, BW, VL and VNNI.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::{
    arch::x86_64::{
        __m512, __m512i, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T1, _mm_prefetch,
        _mm_storeu_si128, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_ps,
        _mm512_cvtps_epi32, _mm512_cvtusepi32_epi8, _mm512_div_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_max_epi32, _mm512_max_ps, _mm512_min_ps,
        _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_roundscale_ps, _mm512_scalef_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps, _mm512_sub_ps,
    },
    f32::consts::{LN_2, LOG2_E},
};

use super::{
    LANES, MOST_STEPS, PANEL, TILE,
    kernels::{Block, Kernels, Tile, kernels},
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};

/// Bytes ahead of what is read that are asked for, into the second-level cache.
const AHEAD: usize = 4096;

/// Queries that an attention takes together: with two vectors of keys or values for each, half of the registers hold sums.
const QUERIES: usize = 8;

/// 16 numbers.
type Vector = __m512;

kernels!("avx512f,avx512bw,avx512vl,avx512vnni");

/// The first rows of a block, as many as there are; the others are undefined.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn of_tile(tile: &Tile<'_>, rows: usize, block: &mut Block) {
    match rows {
        1 => multiply_rows::<1>(tile, block),
        2 => multiply_rows::<2>(tile, block),
        3 | 4 => multiply_rows::<4>(tile, block),
        5..=8 => multiply_rows::<8>(tile, block),
        _ => multiply_rows::<TILE>(tile, block),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiply_rows<const ROWS: usize>(tile: &Tile<'_>, block: &mut Block) {
    let Tile { product, at, .. } = *tile;
    let (low, high) = (whole(&product.starts[at..]), whole(&product.starts[at + LANES..]));
    // Vectors are put in arrays by loops: a closure given to a function without these instructions is not inlined.
    let (mut lows, mut highs) = ([low; ROWS], [high; ROWS]);
    for (line, fours) in tile.lines.iter().zip(tile.codes) {
        let (low, high) = (codes(line), codes(&line[size_of::<Line>()..]));
        soon(line);
        for row in 0..ROWS {
            let four = _mm512_set1_epi32(i32::from_ne_bytes(fours[row]));
            lows[row] = _mm512_dpbusd_epi32(lows[row], four, low);
            highs[row] = _mm512_dpbusd_epi32(highs[row], four, high);
        }
    }
    for (half, whole) in [lows, highs].iter().enumerate() {
        let mut sums = [splat(0.0); ROWS];
        for (sum, whole) in sums.iter_mut().zip(whole) {
            *sum = _mm512_cvtepi32_ps(*whole);
        }
        valued(tile, 0, at + half * LANES, &sums, block, half * LANES);
    }
}

/// Codes of the first 16 numbers, rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn codes_of(rounding: &Rounding, values: Vector) -> [[u8; 4]; 4] {
    // What a whole number cannot hold would come out as the smallest.
    let steps = _mm512_cvtps_epi32(smaller(times(values, splat(rounding.steps)), splat(MOST_STEPS)));
    let codes = _mm512_add_epi32(steps, _mm512_set1_epi32(rounding.zero));
    let mut fours = [[0; 4]; 4];
    // SAFETY: there is place for 16 bytes.
    unsafe {
        let bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(codes, _mm512_setzero_si512()));
        _mm_storeu_si128(fours.as_mut_ptr().cast(), bytes);
    }
    fours
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn splat(number: f32) -> Vector {
    _mm512_set1_ps(number)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add(one: Vector, other: Vector) -> Vector {
    _mm512_add_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn minus(from: Vector, what: Vector) -> Vector {
    _mm512_sub_ps(from, what)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn times(one: Vector, other: Vector) -> Vector {
    _mm512_mul_ps(one, other)
}

/// The product of the first two, and the third.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn times_and(one: Vector, other: Vector, and: Vector) -> Vector {
    _mm512_fmadd_ps(one, other, and)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn over(what: Vector, by: Vector) -> Vector {
    _mm512_div_ps(what, by)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn larger(one: Vector, other: Vector) -> Vector {
    _mm512_max_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn smaller(one: Vector, other: Vector) -> Vector {
    _mm512_min_ps(one, other)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn magnitude(x: Vector) -> Vector {
    _mm512_abs_ps(x)
}

/// The first where `x` is negative, elsewhere the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn by_sign(x: Vector, negative: Vector, other: Vector) -> Vector {
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps()), other, negative)
}

/// The nearest whole number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn nearest(x: Vector) -> Vector {
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `x` times 2 to so many, whole and from -126 to 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn scaled(x: Vector, power: Vector) -> Vector {
    _mm512_scalef_ps(x, power)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sum(x: Vector) -> f32 {
    _mm512_reduce_add_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn largest(x: Vector) -> f32 {
    _mm512_reduce_max_ps(x)
}

/// The first 16 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn numbers(values: &[f32]) -> Vector {
    let values = &values[..LANES];
    // SAFETY: there are 16 numbers.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// The first 16 whole numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn whole(values: &[i32]) -> __m512i {
    let values = &values[..LANES];
    // SAFETY: there are 16 numbers.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// The first 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn codes(line: &[u8]) -> __m512i {
    let line = &line[..size_of::<Line>()];
    // SAFETY: there are 64 bytes.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

/// Asks for what comes some lines later: with one tile of rows the weights come from memory as fast as they are asked for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn soon(line: &[u8; 2 * size_of::<Line>()]) {
    _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(AHEAD).cast());
    _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(AHEAD + size_of::<Line>()).cast());
}

/// Into the first 16 places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn store(places: &mut [f32], values: Vector) {
    let places = &mut places[..LANES];
    // SAFETY: there is place for 16 numbers.
    unsafe { _mm512_storeu_ps(places.as_mut_ptr(), values) };
}
