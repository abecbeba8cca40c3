//! Pictures: compressed bytes to upright RGB frames, frames to network input, and where text is on them.
//!
//! Owns every decoder and is the only room that imports `image`, `gif` and `zune_jpeg`. Judges by magic bytes, whatever a
//! request claims, and refuses by what the header says before pixels are allocated. Knows nothing of moderation.
//! Pure functions without state, run on whichever thread calls them: they take milliseconds, so not on one that
//! serves sockets.

mod animation;
mod decode;
mod geometry;
mod jpeg;
mod moments;
pub mod reading;
mod resize;
mod scan;
mod views;

use std::fmt;

pub use decode::decode;
pub use geometry::TextBox;
pub use resize::{to_tensor, to_tensors};

/// What a picture may cost. Checked from headers, before anything is allocated for pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most pixels of a picture. All frames taken from an animation together have as many, or up to twice as many where
    /// a transparent canvas is so large that no more than two moments are taken.
    pub max_pixels: u64,
    /// Most pixels a side.
    pub max_side: u32,
    /// Most compressed bytes.
    pub max_bytes: usize,
    /// Most moments taken from an animation.
    pub max_frames: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_pixels: 40_000_000, max_side: 16_384, max_bytes: 10 * 1024 * 1024, max_frames: 8 }
    }
}

/// An upright picture, 8 bits a channel, without transparency.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Frame {
    /// Takes rows of RGB bytes from the top; `None` unless there are `width * height * 3` of them, and at least one
    /// pixel.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Option<Self> {
        let bytes = u64::from(width) * u64::from(height) * 3;
        (bytes > 0 && u64::try_from(rgb.len()) == Ok(bytes)).then_some(Self { width, height, rgb })
    }

    /// Pixels a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// `[height, width, 3]`, rows from the top.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The same bytes, taken out.
    pub fn into_rgb(self) -> Vec<u8> {
        self.rgb
    }
}

/// Shows the size only: a user's picture must not reach a log.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({}x{})", self.width, self.height)
    }
}

/// Pixels of a picture with these sides.
fn area((width, height): (u32, u32)) -> u64 {
    u64::from(width) * u64::from(height)
}

/// Why bytes are no picture that can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Another format, or a variant of one of the six that no decoder here knows.
    #[error("the image must be a JPEG, PNG, WebP, GIF, BMP or TIFF of a common kind")]
    Unsupported,
    /// Beyond [`Limits`] in bytes, pixels or sides, or an animation that would take too long to unpack.
    #[error("the image is larger than the limits on bytes, pixels, sides and frames allow")]
    TooLarge,
    /// Cut off or damaged.
    #[error("the image is truncated or damaged")]
    Corrupt,
}
