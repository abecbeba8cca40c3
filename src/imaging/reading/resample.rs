//! Frames made larger or smaller for reading.
//!
//! A triangle filter that is as wide as an output pixel, so that a stroke thinner than that fades instead of
//! vanishing. (`imaging::resize` lets it vanish: its networks were trained so.)

use super::super::{
    Frame,
    geometry::{byte, real, whole},
};

/// The source pixels that make an output pixel, and their weights, which sum to 1.
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

/// The frame at another size; itself where the size is its own. A side of 0 counts as 1.
pub(super) fn resample(frame: &Frame, width: u32, height: u32) -> Frame {
    let (width, height) = (width.max(1), height.max(1));
    if (width, height) == (frame.width(), frame.height()) {
        return frame.clone();
    }
    let columns = taps(frame.width(), width);
    let rows = taps(frame.height(), height);
    let row_bytes = frame.width() as usize * 3;
    let mut rgb = Vec::with_capacity(rows.len() * columns.len() * 3);
    // One output row before its columns are mixed. Rows are mixed first: they lie together in memory.
    let mut mixed = vec![0.0_f32; row_bytes];
    for row in &rows {
        mixed.fill(0.0);
        for (source, weight) in frame.rgb().chunks_exact(row_bytes).skip(row.first).zip(&row.weights) {
            for (sum, &value) in mixed.iter_mut().zip(source) {
                *sum += weight * f32::from(value);
            }
        }
        let (pixels, _) = mixed.as_chunks::<3>();
        for column in &columns {
            let mut sum = [0.0_f32; 3];
            for (pixel, weight) in pixels.iter().skip(column.first).zip(&column.weights) {
                for (sum, value) in sum.iter_mut().zip(pixel) {
                    *sum += weight * value;
                }
            }
            rgb.extend(sum.map(byte));
        }
    }
    // Rows and columns are as many as asked for, so the bytes fit.
    Frame::new(width, height, rgb).unwrap_or_else(|| frame.clone())
}

fn taps(length: u32, size: u32) -> Vec<Taps> {
    let (length, size) = (length as usize, size as usize);
    let scale = real(length) / real(size.max(1));
    let reach = scale.max(1.0);
    let last = length.saturating_sub(1);
    (0..size)
        .map(|index| {
            let centre = (real(index) + 0.5) * scale;
            let first = whole(centre - reach).min(last);
            let end = whole(centre + reach).min(last);
            let weight = |at: usize| (1.0 - (real(at) + 0.5 - centre).abs() / reach).max(0.0);
            let mut weights: Vec<f32> = (first..=end).map(weight).collect();
            let total: f32 = weights.iter().sum();
            for weight in &mut weights {
                *weight /= total.max(f32::EPSILON);
            }
            Taps { first, weights }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: u32, height: u32, values: &[u8]) -> Frame {
        Frame::new(width, height, values.iter().flat_map(|&value| [value; 3]).collect()).expect("the bytes fit")
    }

    fn row(frame: &Frame) -> Vec<u8> {
        frame.rgb().iter().copied().step_by(3).collect()
    }

    #[test]
    fn equal_size_copies_and_even_colours_stay() {
        let frame = grey(3, 2, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(resample(&frame, 3, 2), frame);
        for (width, height) in [(1, 1), (2, 5), (7, 3), (40, 1)] {
            let even = resample(&grey(5, 4, &[77; 20]), width, height);
            assert_eq!((even.width(), even.height()), (width, height));
            assert!(even.rgb().iter().all(|&value| value == 77));
        }
    }

    #[test]
    fn a_thin_stroke_fades_but_stays() {
        let mut values = [255; 64];
        values[30] = 0;
        let small = row(&resample(&grey(64, 1, &values), 16, 1));
        assert!(small.iter().any(|&value| value < 230) && small.iter().all(|&value| value > 128), "{small:?}");
    }

    #[test]
    fn enlarging_is_smooth_and_symmetric() {
        let large = row(&resample(&grey(2, 1, &[0, 200]), 8, 1));
        assert!(large.is_sorted() && large[0] == 0 && large[7] == 200);
        assert!(large.iter().zip(large.iter().rev()).all(|(a, b)| a.abs_diff(200 - b) <= 1), "{large:?}");
    }
}
