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
        __m256i, _mm_storeu_si128, _mm256_add_epi32, _mm256_adds_epi16, _mm256_castsi256_si128, _mm256_cvtepi32_ps,
        _mm256_cvtps_epi32, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
        _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_storeu_si256,
    },
    f32::consts::LOG2_E,
    ops::Range,
};

use super::{
    FOUR, LANES, MOST_STEPS, PANEL, TILE,
    kernels::{Block, FARTHEST, Kernels, TAIL, Tile, kernels},
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};
use crate::runtime::vectors::avx2::{
    HALF, Vector, add, by_sign, larger, load, magnitude, minus, over, power_of_two, smaller, splat, store, sum, times,
    times_and,
};

/// Queries that an attention takes together: with two vectors of keys or values for each, half of the registers hold sums.
const QUERIES: usize = 2;

/// Keys whose sums with the queries an attention adds up together.
const KEYS: usize = 4;

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
