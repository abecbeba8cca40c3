//! A layer with the instructions AVX-512 F, BW, VL and VNNI.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::{
    arch::x86_64::{
        __m128, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_loadu_ps, _mm_prefetch, _mm_storeu_si128, _mm512_adds_epi16,
        _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512, _mm512_castps128_ps512, _mm512_castsi512_si128,
        _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_dpbusd_epi32, _mm512_extracti32x4_epi32, _mm512_insertf32x4,
        _mm512_loadu_si512, _mm512_packs_epi32, _mm512_packus_epi16, _mm512_permutex2var_ps, _mm512_set1_epi16,
        _mm512_set1_epi32, _mm512_storeu_si512, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
        _mm512_unpacklo_ps,
    },
    f32::consts::LOG2_E,
    ops::Range,
    ptr,
    sync::LazyLock,
};

use super::{
    FOUR, LANES, MOST_STEPS, PANEL, TILE,
    kernels::{Block, FARTHEST, Kernels, TAIL, Tile, kernels},
    layer::{Asked, Attention, Fours, Rounded},
    weights::{Line, Norm, Product, Rounding},
};
use crate::runtime::vectors::avx512::{
    Vector, add, by_sign, larger, load, magnitude, minus, over, power_of_two, smaller, splat, store, sum, times,
    times_and,
};

/// Pairs of lines ahead of what is read that are asked for, into the first-level cache.
const AHEAD: usize = 8;

/// Queries that an attention takes together: with two vectors of keys or values for each, half of the registers hold sums.
const QUERIES: usize = 8;

/// Keys whose sums with the queries an attention adds up together: as many as a processor has additions under way.
const KEYS: usize = 8;

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
    let (low, high) = (whole(tile.starts), whole(&tile.starts[LANES..]));
    // Vectors are put in arrays by loops: a closure given to a function without these instructions is not inlined.
    let (mut lows, mut highs) = ([low; ROWS], [high; ROWS]);
    let mut ahead = tile.ahead;
    for (index, (line, fours)) in tile.lines.iter().zip(tile.codes).enumerate() {
        let (low, high) = (codes(line), codes(&line[size_of::<Line>()..]));
        // A panel and the tiles fill the first cache, so that the panel is read from the second one again and again.
        ask::<_MM_HINT_T0>(ptr::from_ref(line).wrapping_add(AHEAD));
        if index & (tile.every - 1) == 0 {
            ask::<_MM_HINT_T1>(ahead);
            ahead = ahead.wrapping_add(1);
        }
        for row in 0..ROWS {
            let four = _mm512_set1_epi32(i32::from_ne_bytes(fours[row]));
            lows[row] = _mm512_dpbusd_epi32(lows[row], four, low);
            highs[row] = _mm512_dpbusd_epi32(highs[row], four, high);
        }
    }
    for (sums, (low, high)) in block.iter_mut().zip(lows.into_iter().zip(highs)) {
        keep(sums, low);
        keep(&mut sums[LANES..], high);
    }
}

/// Puts the codes of 16 channels of four rows, so many steps from `zero`, into their places of a tile, the first, second or
/// third four of it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn put(steps: [Vector; FOUR], zero: i16, place: usize, into: &mut [Fours; 4]) {
    let [first, second, third, fourth] = steps;
    // Whole numbers too small or too large become the smallest or largest code. Each quarter of a vector is packed by
    // itself, which leaves in it four codes of each row: what a tile holds side by side.
    let words = _mm512_packs_epi32(_mm512_cvtps_epi32(first), _mm512_cvtps_epi32(second));
    let others = _mm512_packs_epi32(_mm512_cvtps_epi32(third), _mm512_cvtps_epi32(fourth));
    let zero = _mm512_set1_epi16(zero);
    let bytes = _mm512_packus_epi16(_mm512_adds_epi16(words, zero), _mm512_adds_epi16(others, zero));
    let quarters = [
        _mm512_castsi512_si128(bytes),
        _mm512_extracti32x4_epi32::<1>(bytes),
        _mm512_extracti32x4_epi32::<2>(bytes),
        _mm512_extracti32x4_epi32::<3>(bytes),
    ];
    for (fours, quarter) in into.iter_mut().zip(quarters) {
        let fours = &mut fours[place * FOUR..][..FOUR];
        // SAFETY: there is place for 16 bytes.
        unsafe { _mm_storeu_si128(fours.as_mut_ptr().cast(), quarter) };
    }
}

/// The Gaussian error linear unit for what is rounded to a code next: a polynomial of the fourth degree in each of 32 pieces,
/// the first of which is 0 and the last the number itself. Off by 10⁻⁶ at most, where a step between two codes is some
/// hundredths.
struct Bend {
    /// Of the first 16 pieces and the others, by power.
    factors: [[Vector; 2]; TERMS],
}

/// How wide a piece is; the middle of piece 16 is at 0.
const PIECE: f32 = 0.375;

/// Terms of a piece's polynomial.
const TERMS: usize = 5;

/// [`Bend::factors`], by power.
static PIECES: LazyLock<[[f32; 2 * LANES]; TERMS]> = LazyLock::new(pieces);

impl Bend {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new() -> Self {
        let mut factors = [[splat(0.0); 2]; TERMS];
        for (factors, pieces) in factors.iter_mut().zip(&*PIECES) {
            *factors = [load(pieces), load(&pieces[LANES..])];
        }
        Self { factors }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn bent(&self, x: Vector) -> Vector {
        // Added to a number of this size, which has no place for a fraction, the lowest bits count the pieces.
        const WHOLE: f32 = 12_582_912.0;
        let within = larger(smaller(x, splat(14.9 * PIECE)), splat(-16.0 * PIECE));
        let piece = _mm512_castps_si512(times_and(within, splat(1.0 / PIECE), splat(WHOLE + 16.0)));
        let mut all = splat(0.0);
        for [low, high] in self.factors.into_iter().rev() {
            all = times_and(all, x, _mm512_permutex2var_ps(low, piece, high));
        }
        all
    }
}

/// The polynomials that meet the unit at five places of each piece (Chebyshev's), by power.
#[expect(clippy::cast_possible_truncation, reason = "single precision is what is wanted")]
fn pieces() -> [[f32; 2 * LANES]; TERMS] {
    let unit = |x: f64| {
        let far = x.abs().min(FARTHEST.into());
        let beyond = (-TAIL.iter().fold(0.0, |all, factor| all * far + f64::from(*factor))).exp2();
        if x < 0.0 { x * beyond } else { x * (1.0 - beyond) }
    };
    let width = f64::from(PIECE);
    let mut pieces = [[0.0; 2 * LANES]; TERMS];
    // All of the last one.
    pieces[1][2 * LANES - 1] = 1.0;
    let mut middle = -15.0 * width;
    for piece in 1..2 * LANES - 1 {
        let places =
            [1.0_f64, 3.0, 5.0, 7.0, 9.0].map(|odd| middle + width / 2.0 * (odd * std::f64::consts::PI / 10.0).cos());
        for (pieces, factor) in pieces.iter_mut().zip(through(places, places.map(unit))) {
            pieces[piece] = factor as f32;
        }
        middle += width;
    }
    pieces
}

/// The factors, by power, of the polynomial through some points, by Newton's divided differences.
fn through(places: [f64; TERMS], mut values: [f64; TERMS]) -> [f64; TERMS] {
    for order in 1..TERMS {
        for at in (order..TERMS).rev() {
            values[at] = (values[at] - values[at - 1]) / (places[at] - places[at - order]);
        }
    }
    let mut factors = [0.0; TERMS];
    for (place, value) in places.into_iter().zip(values).rev() {
        // What there is so far times (x - place), and the value.
        for power in (1..TERMS).rev() {
            factors[power] = factors[power - 1] - place * factors[power];
        }
        factors[0] = value - place * factors[0];
    }
    factors
}

/// Rows as columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn transpose(rows: [&[f32; LANES]; LANES], into: &mut [[f32; LANES]; LANES]) {
    for (quarter, into) in into.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut parts = [splat(0.0); 4];
        for (index, part) in parts.iter_mut().enumerate() {
            // A fourth of row 0, of row 4, of row 8 and of row 12, and so on.
            *part = _mm512_castps128_ps512(four(rows[index], quarter));
            *part = _mm512_insertf32x4::<1>(*part, four(rows[index + 4], quarter));
            *part = _mm512_insertf32x4::<2>(*part, four(rows[index + 8], quarter));
            *part = _mm512_insertf32x4::<3>(*part, four(rows[index + 12], quarter));
        }
        let [first, second, third, fourth] = parts;
        let (low, high) = (_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second));
        let (other_low, other_high) = (_mm512_unpacklo_ps(third, fourth), _mm512_unpackhi_ps(third, fourth));
        let pairs = [(low, other_low), (high, other_high)];
        for (into, (one, other)) in into.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            let (one, other) = (_mm512_castps_pd(one), _mm512_castps_pd(other));
            store(&mut into[0], _mm512_castpd_ps(_mm512_unpacklo_pd(one, other)));
            store(&mut into[1], _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
        }
    }
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

/// A fourth of the numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn four(values: &[f32; LANES], quarter: usize) -> __m128 {
    let values = &values.as_chunks::<4>().0[quarter];
    // SAFETY: there are four numbers.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

/// The first 16 whole numbers, as numbers with a fraction.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn converted(values: &[i32]) -> Vector {
    _mm512_cvtepi32_ps(whole(values))
}

/// Asks for a line, and for the one beside it, into the first- or second-level cache.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn ask<const CACHE: i32>(lines: *const [u8; 2 * size_of::<Line>()]) {
    _mm_prefetch::<CACHE>(lines.cast());
    _mm_prefetch::<CACHE>(lines.cast::<i8>().wrapping_add(size_of::<Line>()));
}

/// Into the first 16 places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn keep(places: &mut [i32], values: __m512i) {
    let places = &mut places[..LANES];
    // SAFETY: there is place for 16 numbers.
    unsafe { _mm512_storeu_si512(places.as_mut_ptr().cast(), values) };
}
