//! A frame as a page to read: bounded in memory, turned when it lies on its side, and shown to the detector.

use super::{
    super::{
        Frame,
        geometry::{real, whole},
    },
    parts::Part,
    resample::resample,
};

/// Pixels a page keeps. Lines are found at a fifth of this and cut out at 48 pixels' height: what the detector can
/// find is still large enough to read here, and a queue of pages stays within memory.
const MOST_PIXELS: u32 = 8_000_000;
/// The pages of one picture share this many times as much: room for a still picture over two grounds. The moments of an
/// animation become smaller than that, but the detector is shown them smaller yet.
const PAGES_AT_FULL_SIZE: f32 = 2.0;

/// How much a small picture is enlarged at most.
const MOST_ENLARGED: f32 = 2.0;

/// A frame prepared for reading.
#[derive(Clone, Debug)]
pub struct Page {
    pub(super) frame: Frame,
}

/// The size of a detector's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverviewLimits {
    /// Both sides are multiples of this.
    pub multiple: u32,
    /// A page with fewer pixels is enlarged up to as many, at most twice over.
    pub least_pixels: u32,
    /// A page with more pixels is reduced to as many.
    pub most_pixels: u32,
    /// Most pixels of a side.
    pub most_side: u32,
    /// Of the sides that follow from the above, this much is shown; 1 for all.
    pub share: f32,
}

/// A page as the detector sees it: from the upper left corner, its last pixels repeated to the full size.
pub struct Overview {
    /// The input.
    pub frame: Frame,
    /// Pixels of the input for a pixel of the page.
    pub scale: f32,
}

impl Page {
    /// Takes one of a picture's frames, of which there are `frames`: the more, the smaller a large one is kept.
    pub fn new(frame: Frame, frames: usize) -> Self {
        let most = real(MOST_PIXELS as usize);
        let share = most * PAGES_AT_FULL_SIZE / real(frames.max(1));
        let scale = (most.min(share) / area(&frame)).sqrt();
        if scale >= 1.0 {
            return Self { frame };
        }
        let (width, height) = scaled(&frame, scale);
        Self { frame: resample(&frame, width, height) }
    }

    /// Columns and rows.
    pub fn size(&self) -> (u32, u32) {
        (self.frame.width(), self.frame.height())
    }

    /// The page after a quarter turn counter-clockwise: what ran downwards now runs to the right. Columns of Japanese
    /// or Chinese then follow each other in the order they are read.
    #[must_use]
    pub fn turned(&self) -> Self {
        let (width, height) = self.size();
        let pixels = self.frame.rgb().as_chunks::<3>().0;
        let mut rgb = Vec::with_capacity(self.frame.rgb().len());
        for column in (0..width as usize).rev() {
            rgb.extend(pixels.iter().skip(column).step_by((width as usize).max(1)).flatten());
        }
        // As many pixels as before, so the bytes fit.
        Self { frame: Frame::new(height, width, rgb).unwrap_or_else(|| self.frame.clone()) }
    }

    /// The page as the detector sees it.
    pub fn overview(&self, limits: &OverviewLimits) -> Overview {
        let area = area(&self.frame);
        let (least, most) = (real(limits.least_pixels as usize), real(limits.most_pixels as usize));
        let wanted =
            if area < least { (least / area).sqrt().min(MOST_ENLARGED) } else { (most / area).sqrt().min(1.0) };
        let longest = self.frame.width().max(self.frame.height());
        let scale = wanted.min(real(limits.most_side as usize) / real(longest as usize)) * limits.share;
        let (width, height) = scaled(&self.frame, scale);
        Overview { frame: padded(&resample(&self.frame, width, height), limits.multiple.max(1)), scale }
    }

    /// One of its parts as the detector sees it, both sides multiples of this.
    pub fn part(&self, part: &Part, multiple: u32) -> Frame {
        part.of(&self.frame, multiple)
    }
}

fn area(frame: &Frame) -> f32 {
    real(frame.width() as usize) * real(frame.height() as usize)
}

/// The frame's sides at a scale, at least 1.
fn scaled(frame: &Frame, scale: f32) -> (u32, u32) {
    let side = |length: u32| u32::try_from(whole(real(length as usize) * scale + 0.5)).unwrap_or(u32::MAX).max(1);
    (side(frame.width()), side(frame.height()))
}

/// The frame with its last column and row repeated until both sides are multiples.
pub(super) fn padded(frame: &Frame, multiple: u32) -> Frame {
    let full = |length: u32| length.checked_next_multiple_of(multiple).unwrap_or(length);
    let (width, height) = (full(frame.width()), full(frame.height()));
    if (width, height) == (frame.width(), frame.height()) {
        return frame.clone();
    }
    let row_bytes = frame.width() as usize * 3;
    let full_bytes = width as usize * 3;
    let mut rgb = Vec::with_capacity(full_bytes * height as usize);
    for row in frame.rgb().chunks_exact(row_bytes) {
        rgb.extend_from_slice(row);
        let last = row.last_chunk::<3>().copied().unwrap_or_default();
        for _ in frame.width()..width {
            rgb.extend(last);
        }
    }
    let last = rgb.get(rgb.len().saturating_sub(full_bytes)..).unwrap_or_default().to_vec();
    for _ in frame.height()..height {
        rgb.extend_from_slice(&last);
    }
    // Every row is full and there are as many as asked for, so the bytes fit.
    Frame::new(width, height, rgb).unwrap_or_else(|| frame.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: OverviewLimits =
        OverviewLimits { multiple: 32, least_pixels: 10_000, most_pixels: 40_000, most_side: 512, share: 1.0 };

    fn frame(width: u32, height: u32) -> Frame {
        Frame::new(width, height, vec![9; width as usize * height as usize * 3]).expect("the bytes fit")
    }

    fn page(width: u32, height: u32) -> Page {
        Page::new(frame(width, height), 1)
    }

    fn seen(width: u32, height: u32) -> (u32, u32, f32) {
        let overview = page(width, height).overview(&LIMITS);
        (overview.frame.width(), overview.frame.height(), overview.scale)
    }

    #[test]
    fn small_pages_are_enlarged_at_most_twice_and_large_ones_reduced() {
        assert_eq!(seen(20, 10), (64, 32, 2.0));
        assert_eq!(seen(80, 80), (128, 128, 1.25));
        assert_eq!(seen(200, 100), (224, 128, 1.0));
        assert_eq!(seen(400, 400), (224, 224, 0.5));
        // Long before it is large.
        assert_eq!(seen(1024, 4), (512, 32, 0.5));
        assert_eq!(seen(16_384, 1), (512, 32, 0.031_25));
    }

    #[test]
    fn a_share_of_a_page_is_a_share_of_what_would_be_shown() {
        let limits = OverviewLimits { share: 0.5, ..LIMITS };
        let seen = |width, height| {
            let overview = page(width, height).overview(&limits);
            (overview.frame.width(), overview.frame.height(), overview.scale)
        };
        assert_eq!(seen(80, 80), (64, 64, 0.625));
        assert_eq!(seen(400, 400), (128, 128, 0.25));
    }

    #[test]
    fn pages_are_bounded() {
        assert_eq!(page(4000, 2000).size(), (4000, 2000));
        let (width, height) = page(8000, 2000).size();
        assert!(width * height <= 8_010_000 && width.abs_diff(height * 4) <= 4, "{width}x{height}");
    }

    #[test]
    fn the_pages_of_a_picture_share_their_bound_and_the_detector_sees_no_less() {
        assert_eq!(Page::new(frame(4000, 2000), 2).size(), (4000, 2000));
        let one_of_16 = Page::new(frame(1250, 1250), 16);
        assert_eq!(one_of_16.size(), (1000, 1000));
        assert_eq!(Page::new(frame(1000, 1000), 16).size(), (1000, 1000));
        // What a detector of 1.6 megapixels is shown of each of 16.
        let limits = OverviewLimits { least_pixels: 400_000, most_pixels: 400_000, most_side: 4096, ..LIMITS };
        let (shared, alone) = (one_of_16.overview(&limits), page(1250, 1250).overview(&limits));
        assert_eq!((shared.frame.width(), shared.frame.height()), (alone.frame.width(), alone.frame.height()));
        assert!(shared.scale < 1.0);
    }

    #[test]
    fn the_rim_is_repeated() {
        let frame = Frame::new(2, 1, vec![1, 2, 3, 4, 5, 6]).expect("the bytes fit");
        let full = padded(&frame, 4);
        assert_eq!((full.width(), full.height()), (4, 4));
        assert!(full.rgb().chunks(12).all(|row| row == [1, 2, 3, 4, 5, 6, 4, 5, 6, 4, 5, 6]));
    }

    #[test]
    fn a_turned_page_reads_its_columns_downwards_from_the_last() {
        let values: Vec<u8> = (1..=6).flat_map(|value| [value; 3]).collect();
        let page = Page::new(Frame::new(3, 2, values).expect("the bytes fit"), 1);
        let turned = page.turned();
        assert_eq!(turned.size(), (2, 3));
        let found: Vec<u8> = turned.frame.rgb().iter().copied().step_by(3).collect();
        assert_eq!(found, [3, 6, 2, 5, 1, 4]);
    }
}
