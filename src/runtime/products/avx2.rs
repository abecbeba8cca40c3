//! Products and rounding with the instructions AVX2, FMA and F16C.
//!
//! Half a panel is a vector of four bytes of eight columns. Products of bytes are added by pairs in 16 bits, which hold a
//! block's if the codes are below 16: what has 8 bits is multiplied by halves. Of finite rows the
//! products are those of `avx512`, to the bit.
#![expect(
    unsafe_code,
    reason = "loads and stores take pointers, and only a processor with the instructions may run them"
)]

use std::{
    arch::{
        asm,
        x86_64::{
            __m256, __m256i, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T1, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch,
            _mm_storeu_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_cvtepi32_ps,
            _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_fmadd_ps,
            _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
            _mm256_mul_ps, _mm256_packs_epi16, _mm256_packs_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi8,
            _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi8, _mm256_setr_epi32,
            _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sqrt_ps, _mm256_srli_epi16,
            _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps,
        },
    },
    f32::consts::LOG2_E,
};

use super::{
    AHEAD, BLOCK, Bits, Bounds, Gate, MIDDLE, PANEL, VARIANCE,
    activations::Activations,
    kernels::{Kernels, Measured, Norm, Rounded, Share, Told, kernels, tile_of},
    packed::{Halves, Line, Panel},
};
use crate::runtime::vectors::avx2::{
    HALF, Vector, add, larger, largest, load, magnitude, over, power_of_two, splat, store, sum, times, times_and,
};

/// Halves of a panel.
const BOTH: usize = 2;

kernels!("avx2,fma");

/// The products of a tile of rows with a panel.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile(bits: Bits, panel: Panel<'_>, rows: &Activations, first: usize, at: usize, pieces: &mut [&mut [f32]]) {
    match (bits, pieces.len()) {
        (Bits::Four, 1) => product::<4, 1, BOTH>(panel, rows, first, at, 0, pieces),
        (Bits::Four, 2) => product::<4, 2, BOTH>(panel, rows, first, at, 0, pieces),
        (Bits::Four, _) => product::<4, 4, BOTH>(panel, rows, first, at, 0, pieces),
        (Bits::Eight, 1) => product::<8, 1, BOTH>(panel, rows, first, at, 0, pieces),
        (Bits::Eight, 2) => product::<8, 2, BOTH>(panel, rows, first, at, 0, pieces),
        (Bits::Eight, _) => {
            product::<8, 4, 1>(panel, rows, first, at, 0, pieces);
            product::<8, 4, 1>(panel, rows, first, at, 1, pieces);
        }
    }
}

/// The same of codes of which the upper halves are read, for two rows at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_tile(
    panel: Panel<'_>,
    rows: Measured<'_>,
    first: usize,
    at: usize,
    pieces: &mut [&mut [f32]],
    told: Told<'_>,
) {
    let Told { least, most, panels } = told;
    for (index, pieces) in pieces.chunks_mut(2).enumerate() {
        for half in 0..BOTH {
            let (least, most) = (&mut least[index * 2..], &mut most[index * 2 * panels..]);
            let (first, told) = (first + index * 2, Told { least, most, panels });
            match pieces.len() {
                1 => upper_product::<1>(panel, rows, first, at, half, pieces, told),
                _ => upper_product::<2>(panel, rows, first, at, half, pieces, told),
            }
        }
    }
}

/// Rows as products take them.
#[derive(Clone, Copy)]
struct Taken<'a> {
    /// Fours of codes, by block.
    codes: &'a [[[i8; 4]; 8]],
    scales: &'a [f32],
    sums: &'a [f32],
}

/// A row's first blocks.
fn taken(rows: &Activations, row: usize, blocks: usize) -> Taken<'_> {
    // Behind these a row may have more.
    let from = row * rows.blocks();
    let fours = rows.codes[from * BLOCK..].as_chunks().0;
    Taken {
        codes: &fours.as_chunks().0[..blocks],
        scales: &rows.scales[from..][..blocks],
        sums: &rows.sums[from..][..blocks],
    }
}

/// The product of `ROWS` rows from `first` on with `HALVES` halves, from the given one on, of a panel whose blocks have
/// `LINES` lines, into place `at` of each one's piece.
#[target_feature(enable = "avx2,fma,f16c")]
fn product<const LINES: usize, const ROWS: usize, const HALVES: usize>(
    panel: Panel<'_>,
    rows: &Activations,
    first: usize,
    at: usize,
    half: usize,
    pieces: &mut [&mut [f32]],
) {
    let (fifteens, ones, sixteens) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1), _mm256_set1_epi16(16));
    let blocks = panel.scales.len();
    // All of one length, so that what is at a block is found without looking whether it is there.
    let (lines, of_panel, zeros) =
        (&panel.codes.as_chunks::<LINES>().0[..blocks], panel.scales, &panel.zeros[..blocks]);
    let mut taken_rows = [taken(rows, first, blocks); ROWS];
    for (row, place) in taken_rows.iter_mut().enumerate() {
        *place = taken(rows, first + row, blocks);
    }
    // Vectors are put in arrays by loops: a closure given to a function without these instructions is not inlined.
    let mut totals = [[_mm256_setzero_ps(); HALVES]; ROWS];
    for block in 0..blocks {
        let mut lows = [[_mm256_setzero_si256(); HALVES]; ROWS];
        let mut highs = [[_mm256_setzero_si256(); HALVES]; ROWS];
        for (index, line) in lines[block].iter().enumerate() {
            let (mut low, mut high) = ([_mm256_setzero_si256(); HALVES], [_mm256_setzero_si256(); HALVES]);
            for part in 0..HALVES {
                let line = loaded(line, half + part);
                low[part] = _mm256_and_si256(line, fifteens);
                high[part] = _mm256_and_si256(_mm256_srli_epi16::<4>(line), fifteens);
            }
            for row in 0..ROWS {
                let fours = &taken_rows[row].codes[block];
                let (one, other) =
                    if LINES == 4 { (fours[index * 2], fours[index * 2 + 1]) } else { (fours[index], fours[index]) };
                let (one, other) = (same(one), same(other));
                for part in 0..HALVES {
                    let (one, other) = (_mm256_maddubs_epi16(low[part], one), _mm256_maddubs_epi16(high[part], other));
                    if LINES == 4 {
                        lows[row][part] = in_order(_mm256_add_epi16(lows[row][part], _mm256_add_epi16(one, other)));
                    } else {
                        lows[row][part] = in_order(_mm256_add_epi16(lows[row][part], one));
                        highs[row][part] = in_order(_mm256_add_epi16(highs[row][part], other));
                    }
                }
            }
        }
        for part in 0..HALVES {
            let of_panel = half_numbers(&of_panel[block], half + part);
            let zeros = small_numbers(&zeros[block], half + part);
            for row in 0..ROWS {
                let mut product = _mm256_madd_epi16(lows[row][part], ones);
                if LINES == 8 {
                    product = _mm256_add_epi32(product, _mm256_madd_epi16(highs[row][part], sixteens));
                }
                // Whole numbers below 2²⁴, which single precision holds.
                let product = _mm256_cvtepi32_ps(product);
                let product = _mm256_fnmadd_ps(zeros, _mm256_set1_ps(taken_rows[row].sums[block]), product);
                let scale = _mm256_mul_ps(of_panel, _mm256_set1_ps(taken_rows[row].scales[block]));
                totals[row][part] = _mm256_fmadd_ps(product, scale, totals[row][part]);
            }
        }
    }
    for (row, piece) in pieces.iter_mut().enumerate().take(ROWS) {
        for (part, total) in totals[row].iter().enumerate() {
            finish(panel, half + part, *total, &mut piece[at..]);
        }
    }
}

/// The product of a row with a panel whose codes are in halves, as it is of whole ones.
#[target_feature(enable = "avx2,fma,f16c")]
fn whole_product(panel: Panel<'_>, rows: &Activations, row: usize, out: &mut [f32]) {
    let (fifteens, ones, sixteens) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1), _mm256_set1_epi16(16));
    let blocks = panel.scales.len();
    let row = taken(rows, row, blocks);
    for half in 0..BOTH {
        let mut total = _mm256_setzero_ps();
        let both = panel.codes.as_chunks::<4>().0.iter().zip(panel.lower.as_chunks::<4>().0);
        for (block, (upper, lower)) in both.enumerate() {
            let mut products = [_mm256_setzero_si256(); 2];
            for (product, lines) in products.iter_mut().zip([upper, lower]) {
                *product = by_halves(lines, half, &row.codes[block], fifteens);
            }
            let [upper, lower] = products;
            let product = _mm256_add_epi32(_mm256_madd_epi16(upper, sixteens), _mm256_madd_epi16(lower, ones));
            let product = _mm256_cvtepi32_ps(product);
            let zeros = small_numbers(&panel.zeros[block], half);
            let product = _mm256_fnmadd_ps(zeros, _mm256_set1_ps(row.sums[block]), product);
            let scale = _mm256_mul_ps(half_numbers(&panel.scales[block], half), _mm256_set1_ps(row.scales[block]));
            total = _mm256_fmadd_ps(product, scale, total);
        }
        finish(panel, half, total, out);
    }
}

/// Of a block whose lines have codes below 16 two by two, the products with a row, in 16 bits by pairs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_halves(lines: &[Line; 4], half: usize, fours: &[[i8; 4]; 8], fifteens: __m256i) -> __m256i {
    let mut product = _mm256_setzero_si256();
    for (line, fours) in lines.iter().zip(fours.as_chunks::<2>().0) {
        let line = loaded(line, half);
        let low = _mm256_and_si256(line, fifteens);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(line), fifteens);
        product = _mm256_add_epi16(product, _mm256_maddubs_epi16(low, same(fours[0])));
        product = _mm256_add_epi16(product, _mm256_maddubs_epi16(high, same(fours[1])));
    }
    product
}

/// As [`product`], of half a panel of which the upper halves of codes are read. Of each row it raises the first bound to what
/// the largest number is at least, and one of its panels' to what it is at most, but for errors that are more than three times
/// what they are in the mean.
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_product<const ROWS: usize>(
    panel: Panel<'_>,
    Measured { rows, energies }: Measured<'_>,
    first: usize,
    at: usize,
    half: usize,
    pieces: &mut [&mut [f32]],
    Told { least, most, panels }: Told<'_>,
) {
    let (fifteens, sixteens) = (_mm256_set1_epi8(15), _mm256_set1_epi16(16));
    let blocks = panel.scales.len();
    let (lines, zeros) = (&panel.codes.as_chunks::<4>().0[..blocks], &panel.zeros[..blocks]);
    let mut taken_rows = [taken(rows, first, blocks); ROWS];
    let mut squares = [&[][..]; ROWS];
    for (row, (place, squares)) in taken_rows.iter_mut().zip(&mut squares).enumerate() {
        *place = taken(rows, first + row, blocks);
        *squares = &energies[(first + row) * blocks..][..blocks];
    }
    let (mut totals, mut variances) = ([_mm256_setzero_ps(); ROWS], [_mm256_setzero_ps(); ROWS]);
    for block in 0..blocks {
        let of_panel = half_numbers(&panel.scales[block], half);
        let zeros = _mm256_sub_ps(small_numbers(&zeros[block], half), _mm256_set1_ps(MIDDLE));
        for row in 0..ROWS {
            let product = by_halves(&lines[block], half, &taken_rows[row].codes[block], fifteens);
            let product = _mm256_cvtepi32_ps(_mm256_madd_epi16(product, sixteens));
            let product = _mm256_fnmadd_ps(zeros, _mm256_set1_ps(taken_rows[row].sums[block]), product);
            let scale = _mm256_mul_ps(of_panel, _mm256_set1_ps(taken_rows[row].scales[block]));
            totals[row] = _mm256_fmadd_ps(product, scale, totals[row]);
            let square = _mm256_mul_ps(scale, scale);
            variances[row] = _mm256_fmadd_ps(square, _mm256_set1_ps(squares[row][block]), variances[row]);
        }
    }
    for (row, piece) in pieces.iter_mut().enumerate().take(ROWS) {
        let total = with_bias(panel, half, totals[row]);
        let variance = _mm256_mul_ps(variances[row], _mm256_set1_ps(panel.unit * panel.unit * VARIANCE));
        let out = &mut piece[at..];
        // Of errors to either side those above raise a probability by more than those below lower it: in the mean by half of
        // the variance, which is taken off.
        fill(out, half, _mm256_fnmadd_ps(variance, _mm256_set1_ps(0.5), total));
        let off = _mm256_mul_ps(_mm256_sqrt_ps(variance), _mm256_set1_ps(3.0));
        let there = out.len().saturating_sub(half * HALF).min(HALF);
        let (lowest, highest) = (eight(_mm256_sub_ps(total, off)), eight(_mm256_add_ps(total, off)));
        for (lowest, highest) in lowest.iter().zip(&highest).take(there) {
            least[row] = least[row].max(*lowest);
            most[row * panels] = most[row * panels].max(*highest);
        }
    }
}

/// A sum in units of the panel, as it is written.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish(panel: Panel<'_>, half: usize, total: __m256, out: &mut [f32]) {
    fill(out, half, with_bias(panel, half, total));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_bias(panel: Panel<'_>, half: usize, total: __m256) -> __m256 {
    let total = _mm256_mul_ps(total, _mm256_set1_ps(panel.unit));
    match panel.bias {
        Some(bias) => _mm256_add_ps(total, halved(&bias.0, half)),
        None => total,
    }
}

#[target_feature(enable = "avx2,fma")]
fn rounded(bits: Bits, row: &[f32], Rounded { codes, scales, sums }: &mut Rounded<'_>) {
    let blocks = row.as_chunks::<BLOCK>().0.iter().zip(codes.as_chunks_mut::<BLOCK>().0);
    for ((values, codes), (scale_out, sum_out)) in blocks.zip(scales.iter_mut().zip(sums.iter_mut())) {
        let (first, second) = (load(values), load(&values[PANEL..]));
        let scale = largest(larger(magnitude(first), magnitude(second))) / 127.0;
        let steps = splat(if scale == 0.0 { 0.0 } else { 1.0 / scale });
        let (first, second) = (times(first, steps), times(second, steps));
        *scale_out = scale;
        let words = [first.0, first.1, second.0, second.1];
        let mut whole = [_mm256_setzero_si256(); 4];
        for (whole, words) in whole.iter_mut().zip(words) {
            *whole = _mm256_cvtps_epi32(words);
        }
        let [a, b, c, d] = whole;
        let all = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
        // At most 32 × 127, whole numbers that single precision holds in any order.
        *sum_out = sum(Vector(_mm256_cvtepi32_ps(all), _mm256_setzero_ps()));
        // Each half of a register is packed by itself.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let mut rounded = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
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

#[target_feature(enable = "avx2,fma,f16c")]
fn rounded_to_halves(values: &[f32; PANEL]) -> Halves {
    let mut halves = [0; size_of::<Halves>()];
    for (half, out) in halves.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(halved(values, half));
        // SAFETY: there are 16 bytes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), rounded) };
    }
    halves
}

/// A sum that is not to be taken apart: the compiler would add in another order, for which all that is added is kept, in
/// memory, as there are sixteen registers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn in_order(mut sum: __m256i) -> __m256i {
    // SAFETY: it does nothing.
    unsafe { asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

/// Half a line of codes, and one that will soon be wanted is asked for.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn loaded(line: &Line, half: usize) -> __m256i {
    let codes = &line.as_chunks::<{ size_of::<Line>() / 2 }>().0[half];
    // SAFETY: 32 bytes are there. A prefetch reads nothing, wherever it points.
    unsafe {
        if half == 0 {
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(AHEAD).cast());
        }
        _mm256_loadu_si256(codes.as_ptr().cast())
    }
}

/// Four bytes, for each column the same.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn same(four: [i8; 4]) -> __m256i {
    _mm256_set1_epi32(i32::from_ne_bytes(four.map(i8::cast_unsigned)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn halved(numbers: &[f32; PANEL], half: usize) -> __m256 {
    let numbers = &numbers.as_chunks::<HALF>().0[half];
    // SAFETY: 8 numbers are there.
    unsafe { _mm256_loadu_ps(numbers.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_numbers(halves: &Halves, half: usize) -> __m256 {
    let halves = &halves.as_chunks::<16>().0[half];
    // SAFETY: 16 bytes are there.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn small_numbers(bytes: &[u8; PANEL], half: usize) -> __m256 {
    let bytes = &bytes.as_chunks::<HALF>().0[half];
    // SAFETY: 8 bytes are there.
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight(numbers: __m256) -> [f32; HALF] {
    let mut out = [0.0; HALF];
    // SAFETY: there is place for 8 numbers.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), numbers) };
    out
}

/// As many of the numbers of half a panel as there is place for.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn fill(place: &mut [f32], half: usize, numbers: __m256) {
    let place = place.get_mut(half * HALF..).unwrap_or_default();
    if let Some(place) = place.first_chunk_mut::<HALF>() {
        *place = eight(numbers);
    } else {
        place.iter_mut().zip(eight(numbers)).for_each(|(place, number)| *place = number);
    }
}
