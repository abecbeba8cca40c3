//! Frames to network input, by the resize the image classifiers were trained with.
//!
//! Bilinear with aligned corners: output corner pixels are input corner pixels, and nothing is averaged on the way
//! down. That aliases, but it is what nsfwjs does (`resizeBilinear(.., alignCorners = true)`) and so what its weights
//! know; a better filter would measure worse. Reads the source in place, without an enlarged or float copy.
//!
//! So few pixels of a large picture are looked at that they can be made to show something else than what people see. A
//! picture is therefore also averaged, and where the two differ more than they do in ordinary pictures, both are judged.

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

/// How far apart the colours of a patch, averaged, may be in both versions, of 255. Of 4,747 photographs and pictures of
/// screens, reduced 2.5, 3.3 and 5 times, 0, 0 and 0.3 % differ by more in more than [`FEW`] of their patches.
const APART: f32 = 18.0;
/// One in so many patches.
const FEW: usize = 20;
/// Outputs a side of a patch: what is smaller than that does not decide what is seen.
const PATCH: usize = 8;

/// What the classifiers see: [`to_tensor`], and the average of all pixels around each sampled one where that shows
/// another picture.
pub fn to_tensors(frame: &Frame, size: u32) -> Vec<Vec<f32>> {
    let sampled = to_tensor(frame, size);
    // Up to here two neighbours each way leave nothing out.
    if frame.width().max(frame.height()) <= size.saturating_mul(2) {
        return vec![sampled];
    }
    let averaged = averages(frame, size);
    if differ(&sampled, &averaged, size as usize) { vec![sampled, averaged] } else { vec![sampled] }
}

/// The pixels around each output position: from one to before another.
fn spans(length: u32, size: u32) -> Vec<(usize, usize)> {
    let ratio = f64::from(length.saturating_sub(1)) / f64::from(size.saturating_sub(1).max(1));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as it should")]
    let place = |index: f64| ((index * ratio).ceil() as usize).min(length as usize);
    (0..size)
        .map(|index| {
            let (start, end) = (place(f64::from(index) - 0.5), place(f64::from(index) + 0.5));
            let start = start.min(length.saturating_sub(1) as usize);
            (start, end.max(start + 1))
        })
        .collect()
}

/// The mean of the pixels around each output position.
fn averages(frame: &Frame, size: u32) -> Vec<f32> {
    let row_bytes = frame.width() as usize * 3;
    let columns = spans(frame.width(), size);
    let mut tensor = Vec::with_capacity(columns.len() * columns.len() * 3);
    // A column's sum over the rows of one output.
    let mut sums = vec![0_u32; row_bytes];
    for (top, bottom) in spans(frame.height(), size) {
        sums.fill(0);
        for row in frame.rgb().chunks_exact(row_bytes).skip(top).take(bottom - top) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += u32::from(*value));
        }
        let sums = sums.as_chunks::<3>().0;
        for &(left, right) in &columns {
            let mut sum = [0_u32; 3];
            for pixel in sums.get(left..right).unwrap_or_default() {
                sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value);
            }
            #[expect(clippy::cast_precision_loss, reason = "a picture's few hundred pixels a side")]
            let scale = 1.0 / (255.0 * ((bottom - top) * (right - left)) as f32);
            #[expect(clippy::cast_precision_loss, reason = "an average of bytes needs no more")]
            tensor.extend(sum.map(|sum| sum as f32 * scale));
        }
    }
    tensor
}

fn differ(one: &[f32], other: &[f32], size: usize) -> bool {
    let across = size.div_ceil(PATCH);
    // The sums of the differences, and of how many pixels.
    let mut patches = vec![([0.0_f32; 3], 0.0_f32); across * across];
    for (index, (one, other)) in one.as_chunks::<3>().0.iter().zip(other.as_chunks::<3>().0).enumerate() {
        let patch = index / size / PATCH * across + index % size / PATCH;
        if let Some((sums, count)) = patches.get_mut(patch) {
            sums.iter_mut().zip(one.iter().zip(other)).for_each(|(sum, (one, other))| *sum += one - other);
            *count += 1.0;
        }
    }
    let apart =
        |(sums, count): &&([f32; 3], f32)| sums.iter().map(|sum| sum.abs()).sum::<f32>() / 3.0 * 255.0 > APART * count;
    patches.iter().filter(apart).count() * FEW > patches.len()
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

    /// A picture of which the classifier's samples show one colour and everything else another.
    fn crafted(length: u32, size: u32, seen: [u8; 3], sampled: [u8; 3]) -> Frame {
        let mut chosen = vec![false; length as usize];
        taps(length, size).iter().flat_map(|tap| [tap.low, tap.high]).for_each(|at| chosen[at] = true);
        let pixel =
            |at: usize| if chosen[at / length as usize] && chosen[at % length as usize] { sampled } else { seen };
        let rgb: Vec<u8> = (0..(length * length) as usize).flat_map(pixel).collect();
        frame(length, length, &rgb)
    }

    #[test]
    fn a_picture_whose_samples_show_something_else_is_also_averaged() {
        for (length, size) in [(2_000, 224), (2_000, 299), (1_300, 224)] {
            let tensors = to_tensors(&crafted(length, size, [220, 40, 40], [20, 200, 60]), size);
            let [sampled, averaged] = tensors.as_slice() else { panic!("{length} at {size}: {}", tensors.len()) };
            let greenest = |tensor: &[f32]| tensor.chunks(3).map(|rgb| rgb[0] - rgb[1]).fold(1.0, f32::min);
            let reddest = |tensor: &[f32]| tensor.chunks(3).map(|rgb| rgb[0] - rgb[1]).fold(-1.0, f32::max);
            assert!(reddest(sampled) < -0.7, "the samples are green, all of them");
            assert!(reddest(averaged) > 0.5 && greenest(averaged) > -0.2, "people see red, nearly everywhere");
        }
    }

    #[test]
    fn ordinary_pictures_are_seen_once() {
        let stripes = |width: u32, height: u32| {
            let pixel = |at: u32| [at % width / 7, at / width / 5, 90].map(|value| u8::try_from(value % 256).unwrap());
            frame(width, height, &(0..width * height).flat_map(pixel).collect::<Vec<u8>>())
        };
        for (width, height) in [(1_600, 1_200), (3_000, 60), (60, 3_000), (2_000, 1)] {
            assert_eq!(to_tensors(&stripes(width, height), 224).len(), 1, "{width}x{height}");
        }
        // Nothing is left out of a picture of this size, so nothing can be hidden.
        assert_eq!(to_tensors(&crafted(448, 224, [255; 3], [0; 3]), 224).len(), 1);
        // The average is that of every pixel, once.
        let even = averages(&frame(9, 9, &[51; 243]), 3);
        assert!(even.len() == 27 && even.iter().all(|value| (value - 0.2).abs() < 1e-6));
        assert_eq!(spans(9, 3), [(0, 2), (2, 6), (6, 9)]);
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
