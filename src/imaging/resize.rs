//! Frames to network input, by the resize the image classifiers were trained with.
//!
//! Bilinear with aligned corners: output corner pixels are input corner pixels, and nothing is averaged on the way
//! down. That aliases, but it is what nsfwjs does (`resizeBilinear(.., alignCorners = true)`) and so what its weights
//! know; a better filter would measure worse. Reads the source in place, without an enlarged or float copy.

use super::Frame;

/// Where an output row or column lies between two of the source.
#[derive(Clone, Copy)]
struct Tap {
    low: usize,
    high: usize,
    /// Weight of `high`.
    part: f32,
}

/// `[size, size, 3]`, RGB in 0..1.
pub fn to_tensor(frame: &Frame, size: u32) -> Vec<f32> {
    let row_bytes = frame.width() as usize * 3;
    let columns = taps(frame.width(), size);
    let rows = taps(frame.height(), size);
    let mut tensor = Vec::with_capacity(rows.len() * columns.len() * 3);
    for row in rows {
        let top = line(frame, row.low, row_bytes);
        let bottom = line(frame, row.high, row_bytes);
        for column in &columns {
            let upper = mix(pixel(top, column.low), pixel(top, column.high), column.part);
            let lower = mix(pixel(bottom, column.low), pixel(bottom, column.high), column.part);
            tensor.extend(mix(upper, lower, row.part));
        }
    }
    tensor
}

/// One tap an output position. Positions are computed in f64: in f32 the last one can fall beyond the last pixel.
fn taps(length: u32, size: u32) -> Vec<Tap> {
    let last = length.saturating_sub(1);
    let steps = size.saturating_sub(1);
    let ratio = if steps == 0 { 0.0 } else { f64::from(last) / f64::from(steps) };
    (0..size)
        .map(|index| {
            let at = f64::from(index) * ratio;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positions lie between 0 and the source length"
            )]
            let (low, high) = (at.floor() as usize, at.ceil() as usize);
            #[expect(clippy::cast_possible_truncation, reason = "a weight between 0 and 1")]
            let part = (at - at.floor()) as f32;
            Tap { low: low.min(last as usize), high: high.min(last as usize), part }
        })
        .collect()
}

fn line(frame: &Frame, row: usize, row_bytes: usize) -> &[[u8; 3]] {
    let bytes = frame.rgb().get(row * row_bytes..(row + 1) * row_bytes).unwrap_or_default();
    bytes.as_chunks().0
}

/// A pixel in 0..1. Taps lie inside the line by construction; black stands in where that would fail.
fn pixel(line: &[[u8; 3]], column: usize) -> [f32; 3] {
    line.get(column).map_or([0.0; 3], |rgb| rgb.map(|value| f32::from(value) / 255.0))
}

fn mix(from: [f32; 3], to: [f32; 3], part: f32) -> [f32; 3] {
    let mut mixed = from;
    for (value, end) in mixed.iter_mut().zip(to) {
        *value += (end - *value) * part;
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(width: u32, height: u32, rgb: &[u8]) -> Frame {
        Frame::new(width, height, rgb.to_vec()).expect("the bytes fit the size")
    }

    #[test]
    fn corners_stay_corners_and_the_middle_is_between() {
        let source = frame(2, 2, &[0, 0, 0, 255, 0, 0, 0, 255, 0, 255, 255, 255]);
        let tensor = to_tensor(&source, 3);
        let at = |y: usize, x: usize| tensor[(y * 3 + x) * 3..][..3].to_vec();
        assert_eq!(at(0, 0), [0.0, 0.0, 0.0]);
        assert_eq!(at(0, 2), [1.0, 0.0, 0.0]);
        assert_eq!(at(2, 0), [0.0, 1.0, 0.0]);
        assert_eq!(at(2, 2), [1.0, 1.0, 1.0]);
        assert_eq!(at(1, 1), [0.5, 0.5, 0.25]);
        assert_eq!(at(0, 1), [0.5, 0.0, 0.0]);
    }

    #[test]
    fn equal_size_copies() {
        let bytes: Vec<u8> = (0..75).collect();
        let tensor = to_tensor(&frame(5, 5, &bytes), 5);
        for (value, byte) in tensor.iter().zip(bytes) {
            assert!((value - f32::from(byte) / 255.0).abs() < 1e-7);
        }
    }

    #[test]
    fn a_single_pixel_and_a_single_output_work() {
        assert!(to_tensor(&frame(1, 1, &[51, 102, 204]), 4).chunks(3).all(|rgb| rgb == [0.2, 0.4, 0.8]));
        assert_eq!(to_tensor(&frame(2, 1, &[255, 0, 0, 0, 0, 0]), 1), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_last_tap_is_the_last_pixel_for_every_length() {
        for length in 1..2_000 {
            for size in [224, 299] {
                let last = taps(length, size).pop().expect("there are taps");
                assert!(last.low.max(last.high) == length as usize - 1, "{length}");
                assert!(last.part < 1e-6 || last.low < last.high, "{length}");
            }
        }
    }
}
