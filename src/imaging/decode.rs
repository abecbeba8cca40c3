//! Compressed bytes to upright RGB frames.
//!
//! Owns the choice of decoder, the order of checks (bytes, then header, then pixels) and EXIF orientation. ICC profiles
//! are ignored. Of a multi-page TIFF the first page counts.

use std::io::Cursor;

use image::{
    DynamicImage, ImageDecoder, ImageFormat,
    codecs::{bmp::BmpDecoder, png::PngDecoder, tiff::TiffDecoder, webp::WebPDecoder},
    metadata::Orientation,
};

use super::{
    Frame, ImageError, Limits, animation, area, jpeg,
    moments::moments,
    scan,
    views::{self, Alpha, Showing},
};

/// Bytes a decoder may allocate for each pixel allowed: 8 for 16-bit RGBA and half as much again for what a
/// decoder keeps beside it. A second guard; sizes were checked before.
const BYTES_PER_PIXEL: u64 = 12;
/// Bytes the PNG reader may allocate for everything before pixels: colour profiles and texts come compressed.
const PNG_HEADER_BYTES: u64 = 16 * 1024 * 1024;

/// The picture's frames: one for an opaque still, two for a transparent one (over white, then over black), further ones
/// where viewers differ, and for an animation those of at most [`Limits::max_frames`] moments, the first among them.
///
/// # Errors
/// [`ImageError`], of which `Unsupported` and `TooLarge` are known before pixels are allocated.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    if bytes.len() > limits.max_bytes {
        return Err(ImageError::TooLarge);
    }
    match image::guess_format(bytes) {
        Ok(ImageFormat::Jpeg) => {
            let (picture, orientation) = jpeg::decode(bytes, limits)?;
            views::still(picture, orientation, Showing::PLAIN, limits)
        }
        Ok(ImageFormat::Png) => png(bytes, limits),
        Ok(ImageFormat::WebP) => webp(bytes, limits),
        Ok(ImageFormat::Gif) => animation::gif(bytes, limits),
        Ok(ImageFormat::Bmp) => bmp(bytes, limits),
        Ok(ImageFormat::Tiff) => tiff(bytes, limits),
        _ => Err(ImageError::Unsupported),
    }
}

fn png(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    let open = || -> Result<PngDecoder<Cursor<&[u8]>>, ImageError> {
        let decoder = PngDecoder::with_limits(Cursor::new(bytes), guard(limits, PNG_HEADER_BYTES))?;
        admit(decoder.dimensions(), limits)?;
        Ok(decoder)
    };
    let decoder = open()?;
    let survey = scan::png(bytes).ok_or(ImageError::Corrupt)?;
    let showing = Showing::with_gamma(survey.gamma);
    if survey.frames == 0 {
        return still(decoder, showing, limits);
    }
    // `image` does not animate 16-bit PNG, but browsers do: the still picture is not all that they show.
    if decoder.color_type().bytes_per_pixel() > decoder.color_type().channel_count() {
        return Err(ImageError::Unsupported);
    }
    // Where each moment is judged twice, half as many are.
    let most = limits.max_frames / showing.versions();
    let moments = moments(&survey.delays, most.saturating_sub(usize::from(survey.still_apart)));
    let moving = animation::png(decoder, survey.frames, &moments, showing, limits)?;
    // Viewers that know no animation show the still picture, so it is judged too.
    let mut frames = if survey.still_apart { still(open()?, showing, limits)? } else { Vec::new() };
    frames.extend(moving);
    Ok(frames)
}

fn webp(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    let survey = scan::webp(bytes).ok_or(ImageError::Corrupt)?;
    if survey.largest > limits.max_pixels {
        return Err(ImageError::TooLarge);
    }
    let decoder = WebPDecoder::new(Cursor::new(bytes))?;
    if decoder.has_animation() {
        animation::webp(decoder, bytes, survey.frames, limits)
    } else {
        still(decoder, Showing::PLAIN, limits)
    }
}

fn bmp(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    // Asked first because the decoder calls a size beyond its own limits a damaged file.
    admit(scan::bmp(bytes).ok_or(ImageError::Corrupt)?, limits)?;
    // Some viewers know no transparency in a BMP, others none where it would hide everything.
    still(BmpDecoder::new(Cursor::new(bytes))?, Showing { alpha: Alpha::Doubtful, ..Showing::PLAIN }, limits)
}

fn tiff(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    if !scan::tiff_is_credible(bytes) {
        return Err(ImageError::Corrupt);
    }
    if scan::tiff_tiles_are_planar(bytes) {
        return Err(ImageError::Unsupported);
    }
    let alpha = if scan::tiff_is_premultiplied(bytes) { Alpha::Associated } else { Alpha::Doubtful };
    still(TiffDecoder::new(Cursor::new(bytes))?, Showing { alpha, ..Showing::PLAIN }, limits)
}

fn still(mut decoder: impl ImageDecoder, showing: Showing, limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    prepare(&mut decoder, limits)?;
    let orientation = orientation(&mut decoder);
    views::still(DynamicImage::from_decoder(decoder)?, orientation, showing, limits)
}

/// Checks the size in the header and bounds what the decoder may allocate.
pub(super) fn prepare(decoder: &mut impl ImageDecoder, limits: &Limits) -> Result<(), ImageError> {
    admit(decoder.dimensions(), limits)?;
    let most = limits.max_pixels.saturating_mul(BYTES_PER_PIXEL);
    Ok(decoder.set_limits(guard(limits, most))?)
}

/// Which way is up; damaged metadata says nothing about it.
pub(super) fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    decoder.orientation().unwrap_or(Orientation::NoTransforms)
}

/// Whether a picture of this size is within the limits.
pub(super) fn admit((width, height): (u32, u32), limits: &Limits) -> Result<(), ImageError> {
    if width == 0 || height == 0 {
        return Err(ImageError::Corrupt);
    }
    let within = width.max(height) <= limits.max_side && area((width, height)) <= limits.max_pixels;
    if within { Ok(()) } else { Err(ImageError::TooLarge) }
}

fn guard(limits: &Limits, bytes: u64) -> image::Limits {
    let mut guard = image::Limits::no_limits();
    guard.max_image_width = Some(limits.max_side);
    guard.max_image_height = Some(limits.max_side);
    guard.max_alloc = Some(bytes);
    guard
}

impl From<image::ImageError> for ImageError {
    fn from(error: image::ImageError) -> Self {
        match error {
            image::ImageError::Limits(_) => Self::TooLarge,
            image::ImageError::Unsupported(_) => Self::Unsupported,
            _ => Self::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use image::ImageEncoder as _;

    use super::*;

    fn png_bytes(width: u32, height: u32, rgba: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        image::codecs::png::PngEncoder::new(&mut bytes)
            .write_image(rgba, width, height, image::ExtendedColorType::Rgba8)
            .expect("the picture is valid");
        bytes
    }

    #[test]
    fn transparency_is_shown_on_both_grounds() {
        let bytes = png_bytes(3, 1, &[200, 100, 0, 255, 200, 100, 0, 0, 200, 100, 0, 128]);
        let frames = decode(&bytes, &Limits::default()).expect("it decodes");
        let pixels: Vec<&[u8]> = frames.iter().map(Frame::rgb).collect();
        assert_eq!(pixels[0], [200, 100, 0, 255, 255, 255, 227, 177, 127]);
        assert_eq!(pixels[1], [200, 100, 0, 0, 0, 0, 100, 50, 0]);
        let opaque = png_bytes(1, 1, &[1, 2, 3, 255]);
        assert_eq!(decode(&opaque, &Limits::default()).expect("it decodes").len(), 1);
    }

    #[test]
    fn each_limit_is_inclusive() {
        let bytes = png_bytes(4, 3, &[9; 48]);
        let exact = Limits { max_pixels: 12, max_side: 4, max_bytes: bytes.len(), max_frames: 1 };
        assert!(decode(&bytes, &exact).is_ok());
        for limits in [
            Limits { max_pixels: 11, ..exact },
            Limits { max_side: 3, ..exact },
            Limits { max_bytes: bytes.len() - 1, ..exact },
        ] {
            assert_eq!(decode(&bytes, &limits), Err(ImageError::TooLarge), "{limits:?}");
        }
    }

    #[test]
    fn pictures_as_large_as_the_interface_says_are_taken() {
        let bounds = Limits::default();
        assert_eq!((bounds.max_pixels, bounds.max_side, bounds.max_bytes), (40_000_000, 16_384, 10 << 20));
        assert!(decode(&png_bytes(16_384, 1, &vec![9; 65_536]), &bounds).is_ok());
    }

    #[test]
    fn what_is_no_picture_is_unsupported_and_a_bare_signature_is_corrupt() {
        for bytes in [&b""[..], b"x", b"<svg/>", b"%PDF-1.7", b"RIFF\0\0\0\0WAVE"] {
            assert_eq!(decode(bytes, &Limits::default()), Err(ImageError::Unsupported), "{bytes:?}");
        }
        for bytes in [&b"\x89PNG\r\n\x1a\n"[..], b"GIF89a", b"BM", b"\xFF\xD8\xFF", b"II*\0", b"RIFF\0\0\0\0WEBP"] {
            assert_eq!(decode(bytes, &Limits::default()), Err(ImageError::Corrupt), "{bytes:?}");
        }
    }
}
