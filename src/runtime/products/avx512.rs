//! Products and rounding with the instructions AVX-512 F, BW, VL and VNNI.
//!
//! Codes are multiplied as they are, from zero up, and what their zero points amount to is taken off each block's sum.
//!
//! One long file, as few are to have unsafe code: all that is done with these instructions shares the loads below.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::{
    arch::x86_64::{
        __m512, __m512i, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0, _MM_HINT_T1, _mm_loadu_si128,
        _mm_prefetch, _mm256_loadu_si256, _mm256_set_m128i, _mm256_setr_epi8, _mm256_shuffle_epi8, _mm256_storeu_si256,
        _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps,
        _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_cvtps_epi32, _mm512_cvtps_ph, _mm512_dpbusd_epi32,
        _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_load_ps, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_mask_reduce_max_ps, _mm512_mask_storeu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_epi32,
        _mm512_reduce_max_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_setzero_si512, _mm512_slli_epi32, _mm512_sqrt_ps, _mm512_srli_epi16, _mm512_sub_ps,
    },
    f32::consts::LOG2_E,
};

use super::{
    AHEAD, BLOCK, Bits, Bounds, Gate, MIDDLE, PANEL, VARIANCE,
    activations::Activations,
    kernels::{Kernels, Measured, Norm, Rounded, Share, Told, kernels, tile_of},
    packed::{Halves, Lanes, Line, Panel},
};
use crate::runtime::vectors::avx512::{add, load, over, power_of_two, splat, store, sum, times, times_and};

kernels!("avx512f");

/// The products of a tile of rows with a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile(bits: Bits, panel: Panel<'_>, rows: &Activations, first: usize, at: usize, pieces: &mut [&mut [f32]]) {
    match (bits, pieces.len()) {
        (Bits::Four, 1) => product::<4, 1>(panel, rows, first, at, pieces),
        (Bits::Four, 2) => product::<4, 2>(panel, rows, first, at, pieces),
        (Bits::Four, _) => product::<4, 4>(panel, rows, first, at, pieces),
        (Bits::Eight, 1) => product::<8, 1>(panel, rows, first, at, pieces),
        (Bits::Eight, 2) => product::<8, 2>(panel, rows, first, at, pieces),
        (Bits::Eight, _) => product::<8, 4>(panel, rows, first, at, pieces),
    }
}

/// The same of codes of which the upper halves are read.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn upper_tile(
    panel: Panel<'_>,
    rows: Measured<'_>,
    first: usize,
    at: usize,
    pieces: &mut [&mut [f32]],
    told: Told<'_>,
) {
    match pieces.len() {
        1 => upper_product::<1>(panel, rows, first, at, pieces, told),
        2 => upper_product::<2>(panel, rows, first, at, pieces, told),
        _ => upper_product::<4>(panel, rows, first, at, pieces, told),
    }
}

/// The product of `ROWS` rows from `first` on with a panel whose blocks have `LINES` lines, into place `at` of each one's
/// piece.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn product<const LINES: usize, const ROWS: usize>(
    panel: Panel<'_>,
    rows: &Activations,
    first: usize,
    at: usize,
    pieces: &mut [&mut [f32]],
) {
    let half = _mm512_set1_epi8(15);
    let blocks = panel.scales.len();
    // All of one length, so that what is at a block is found without looking whether it is there.
    let (lines, of_panel, zeros) =
        (&panel.codes.as_chunks::<LINES>().0[..blocks], panel.scales, &panel.zeros[..blocks]);
    let mut codes: [&[[[i8; 4]; 8]]; ROWS] = [&[]; ROWS];
    let (mut scales, mut sums): ([&[f32]; ROWS], [&[f32]; ROWS]) = ([&[]; ROWS], [&[]; ROWS]);
    for row in 0..ROWS {
        // Behind what is multiplied here a row may have more.
        let from = (first + row) * rows.blocks();
        let fours = rows.codes[from * BLOCK..].as_chunks().0;
        codes[row] = &fours.as_chunks().0[..blocks];
        scales[row] = &rows.scales[from..][..blocks];
        sums[row] = &rows.sums[from..][..blocks];
    }
    // Vectors are put in arrays by loops: a closure given to a function without these instructions is not inlined.
    let mut totals = [_mm512_setzero_ps(); ROWS];
    for block in 0..blocks {
        let mut products = [_mm512_setzero_si512(); ROWS];
        for (index, line) in lines[block].iter().enumerate() {
            let line = loaded::<ROWS>(line);
            if LINES == 4 {
                let (low, high) = (_mm512_and_si512(line, half), _mm512_and_si512(_mm512_srli_epi16::<4>(line), half));
                for row in 0..ROWS {
                    products[row] = _mm512_dpbusd_epi32(products[row], low, same(codes[row][block][index * 2]));
                    products[row] = _mm512_dpbusd_epi32(products[row], high, same(codes[row][block][index * 2 + 1]));
                }
            } else {
                for row in 0..ROWS {
                    products[row] = _mm512_dpbusd_epi32(products[row], line, same(codes[row][block][index]));
                }
            }
        }
        let of_panel = half_numbers(&of_panel[block]);
        let zeros = small_numbers(&zeros[block]);
        for row in 0..ROWS {
            // Whole numbers below 2²⁴, which single precision holds.
            let product = _mm512_cvtepi32_ps(products[row]);
            let product = _mm512_fnmadd_ps(zeros, _mm512_set1_ps(sums[row][block]), product);
            let scale = _mm512_mul_ps(of_panel, _mm512_set1_ps(scales[row][block]));
            totals[row] = _mm512_fmadd_ps(product, scale, totals[row]);
        }
    }
    for (row, piece) in pieces.iter_mut().enumerate().take(ROWS) {
        let mut total = _mm512_mul_ps(totals[row], _mm512_set1_ps(panel.unit));
        if let Some(bias) = panel.bias {
            total = _mm512_add_ps(total, numbers(bias));
        }
        fill(&mut piece[at..], total);
    }
}

/// The product of a row with a panel whose codes are in halves, as it is of whole ones.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn whole_product(panel: Panel<'_>, rows: &Activations, row: usize, out: &mut [f32]) {
    let half = _mm512_set1_epi8(15);
    let blocks = panel.scales.len();
    let fours = rows.codes[row * blocks * BLOCK..].as_chunks::<4>().0.as_chunks::<8>().0;
    let (scales, sums) = (&rows.scales[row * blocks..], &rows.sums[row * blocks..]);
    let mut total = _mm512_setzero_ps();
    let halves = panel.codes.as_chunks::<4>().0.iter().zip(panel.lower.as_chunks::<4>().0);
    for (block, (upper, lower)) in halves.enumerate() {
        let mut products = [_mm512_setzero_si512(); 2];
        for (product, lines) in products.iter_mut().zip([upper, lower]) {
            for (line, fours) in lines.iter().zip(fours[block].as_chunks::<2>().0) {
                let line = loaded::<1>(line);
                let (low, high) = (_mm512_and_si512(line, half), _mm512_and_si512(_mm512_srli_epi16::<4>(line), half));
                *product = _mm512_dpbusd_epi32(*product, low, same(fours[0]));
                *product = _mm512_dpbusd_epi32(*product, high, same(fours[1]));
            }
        }
        let [upper, lower] = products;
        let product = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<4>(upper), lower));
        let zeros = small_numbers(&panel.zeros[block]);
        let product = _mm512_fnmadd_ps(zeros, _mm512_set1_ps(sums[block]), product);
        let scale = _mm512_mul_ps(half_numbers(&panel.scales[block]), _mm512_set1_ps(scales[block]));
        total = _mm512_fmadd_ps(product, scale, total);
    }
    total = _mm512_mul_ps(total, _mm512_set1_ps(panel.unit));
    if let Some(bias) = panel.bias {
        total = _mm512_add_ps(total, numbers(bias));
    }
    fill(out, total);
}

/// As [`product`], of a panel of which the upper halves of codes are read. Of each row it raises the first bound to what the
/// largest number is at least, and sets one of its panels' to what it is at most, but for errors that are more than three times
/// what they are in the mean.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn upper_product<const ROWS: usize>(
    panel: Panel<'_>,
    Measured { rows, energies }: Measured<'_>,
    first: usize,
    at: usize,
    pieces: &mut [&mut [f32]],
    Told { least, most, panels }: Told<'_>,
) {
    let half = _mm512_set1_epi8(15);
    let blocks = panel.scales.len();
    let (lines, zeros) = (&panel.codes.as_chunks::<4>().0[..blocks], &panel.zeros[..blocks]);
    let mut codes: [&[[[i8; 4]; 8]]; ROWS] = [&[]; ROWS];
    let (mut scales, mut sums, mut squares) = ([&[][..]; ROWS], [&[][..]; ROWS], [&[][..]; ROWS]);
    for row in 0..ROWS {
        let from = (first + row) * blocks;
        codes[row] = &rows.codes[from * BLOCK..].as_chunks::<4>().0.as_chunks().0[..blocks];
        scales[row] = &rows.scales[from..][..blocks];
        sums[row] = &rows.sums[from..][..blocks];
        squares[row] = &energies[from..][..blocks];
    }
    let (mut totals, mut variances) = ([_mm512_setzero_ps(); ROWS], [_mm512_setzero_ps(); ROWS]);
    for block in 0..blocks {
        let mut products = [_mm512_setzero_si512(); ROWS];
        for (index, line) in lines[block].iter().enumerate() {
            let line = loaded::<ROWS>(line);
            let (low, high) = (_mm512_and_si512(line, half), _mm512_and_si512(_mm512_srli_epi16::<4>(line), half));
            for row in 0..ROWS {
                products[row] = _mm512_dpbusd_epi32(products[row], low, same(codes[row][block][index * 2]));
                products[row] = _mm512_dpbusd_epi32(products[row], high, same(codes[row][block][index * 2 + 1]));
            }
        }
        let of_panel = half_numbers(&panel.scales[block]);
        let zeros = _mm512_sub_ps(small_numbers(&zeros[block]), _mm512_set1_ps(MIDDLE));
        for row in 0..ROWS {
            let product = _mm512_cvtepi32_ps(_mm512_slli_epi32::<4>(products[row]));
            let product = _mm512_fnmadd_ps(zeros, _mm512_set1_ps(sums[row][block]), product);
            let scale = _mm512_mul_ps(of_panel, _mm512_set1_ps(scales[row][block]));
            totals[row] = _mm512_fmadd_ps(product, scale, totals[row]);
            let square = _mm512_mul_ps(scale, scale);
            variances[row] = _mm512_fmadd_ps(square, _mm512_set1_ps(squares[row][block]), variances[row]);
        }
    }
    for (row, piece) in pieces.iter_mut().enumerate().take(ROWS) {
        let mut total = _mm512_mul_ps(totals[row], _mm512_set1_ps(panel.unit));
        let variance = _mm512_mul_ps(variances[row], _mm512_set1_ps(panel.unit * panel.unit * VARIANCE));
        if let Some(bias) = panel.bias {
            total = _mm512_add_ps(total, numbers(bias));
        }
        let out = &mut piece[at..];
        // Of errors to either side those above raise a probability by more than those below lower it: in the mean by half of
        // the variance, which is taken off.
        fill(out, _mm512_fnmadd_ps(variance, _mm512_set1_ps(0.5), total));
        let off = _mm512_mul_ps(_mm512_sqrt_ps(variance), _mm512_set1_ps(3.0));
        let there = columns_of(out);
        least[row] = least[row].max(_mm512_mask_reduce_max_ps(there, _mm512_sub_ps(total, off)));
        most[row * panels] = _mm512_mask_reduce_max_ps(there, _mm512_add_ps(total, off));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn rounded(bits: Bits, row: &[f32], Rounded { codes, scales, sums }: &mut Rounded<'_>) {
    let blocks = row.as_chunks::<BLOCK>().0.iter().zip(codes.as_chunks_mut::<BLOCK>().0);
    for ((values, codes), (scale_out, sum_out)) in blocks.zip(scales.iter_mut().zip(sums.iter_mut())) {
        let (first, second) = halves(values);
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
        let scale = largest / 127.0;
        let steps = _mm512_set1_ps(if scale == 0.0 { 0.0 } else { 1.0 / scale });
        let first = _mm512_cvtps_epi32(_mm512_mul_ps(first, steps));
        let second = _mm512_cvtps_epi32(_mm512_mul_ps(second, steps));
        *scale_out = scale;
        #[expect(clippy::cast_precision_loss, reason = "at most 32 × 127")]
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second)) as f32;
        *sum_out = sum;
        let mut rounded = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
        if bits == Bits::Four {
            let evens_first = _mm256_setr_epi8(
                0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13,
                15,
            );
            rounded = _mm256_shuffle_epi8(rounded, evens_first);
        }
        // SAFETY: there are 32 bytes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), rounded) };
    }
}

#[target_feature(enable = "avx512f")]
fn rounded_to_halves(values: &[f32; PANEL]) -> Halves {
    let mut halves = [0; size_of::<Halves>()];
    let rounded = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(load(values));
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), rounded) };
    halves
}

/// A line of codes, and one that will soon be wanted is asked for: by one row into the first cache, which else holds what
/// several rows come back to.
#[inline]
#[target_feature(enable = "avx512f")]
fn loaded<const ROWS: usize>(line: &Line) -> __m512i {
    let ahead = line.as_ptr().wrapping_add(AHEAD).cast();
    // SAFETY: 64 bytes are there. A prefetch reads nothing, wherever it points.
    unsafe {
        if ROWS == 1 {
            _mm_prefetch::<_MM_HINT_T0>(ahead);
        } else {
            _mm_prefetch::<_MM_HINT_T1>(ahead);
        }
        _mm512_loadu_si512(line.as_ptr().cast())
    }
}

/// Four bytes, for each column the same.
#[inline]
#[target_feature(enable = "avx512f")]
fn same(four: [i8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_ne_bytes(four.map(i8::cast_unsigned)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn numbers(lanes: &Lanes) -> __m512 {
    // SAFETY: 64 bytes are there, and aligned so by the type.
    unsafe { _mm512_load_ps(lanes.0.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half_numbers(halves: &Halves) -> __m512 {
    // SAFETY: 32 bytes are there.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn small_numbers(bytes: &[u8; PANEL]) -> __m512 {
    // SAFETY: 16 bytes are there.
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn halves(values: &[f32; BLOCK]) -> (__m512, __m512) {
    // SAFETY: twice 16 numbers are there.
    unsafe { (_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))) }
}

/// Which columns of a panel there is place for.
fn columns_of(place: &[f32]) -> u16 {
    if place.len() < PANEL { (1 << place.len()) - 1 } else { u16::MAX }
}

/// As many of the numbers as there is place for.
#[inline]
#[target_feature(enable = "avx512f")]
fn fill(place: &mut [f32], numbers: __m512) {
    let mask = columns_of(place);
    // SAFETY: what the mask leaves out is not written.
    unsafe { _mm512_mask_storeu_ps(place.as_mut_ptr(), mask, numbers) };
}
