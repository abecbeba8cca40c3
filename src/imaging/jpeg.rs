//! JPEG to pixels, or to a refusal where viewers may show something else than the decoder.
//!
//! The decoder is told to stop at damage instead of leaving the rest grey: browsers go on behind a bad code, and show
//! what was never judged. What it passes over in silence even so is looked for before, in one walk over the markers:
//! a file that is cut off, restart markers out of order (viewers skip parts of the picture by them), scans that it puts
//! together wrongly, and scans without number, each of which costs at least a row. Headers are read leniently: padding
//! between them hides nothing.

use image::{DynamicImage, GrayImage, RgbImage, metadata::Orientation};
use zune_jpeg::{
    JpegDecoder,
    errors::DecodeErrors,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{ImageError, Limits, decode::admit};

/// Scans a JPEG may have, as in the decoder, which unpacks a hundred of them before it refuses the next.
const MOST_SCANS: usize = 100;

/// The picture as stored, and which way is up.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<(DynamicImage, Orientation), ImageError> {
    let options = DecoderOptions::default().set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options.set_strict_mode(false));
    decoder.decode_headers()?;
    let (width, height) = decoder.info().map(|info| (info.width.into(), info.height.into())).unwrap_or_default();
    admit((width, height), limits)?;
    walk(bytes)?;

    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let out = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.set_strict_mode(true).jpeg_set_out_colorspace(out));
    let pixels = decoder.decode()?;
    let picture = if grey {
        GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8)
    } else {
        RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8)
    };
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    Ok((picture.ok_or(ImageError::Corrupt)?, orientation.unwrap_or(Orientation::NoTransforms)))
}

impl From<DecodeErrors> for ImageError {
    fn from(error: DecodeErrors) -> Self {
        match error {
            DecodeErrors::Unsupported(_) => Self::Unsupported,
            DecodeErrors::LargeDimensions(_) => Self::TooLarge,
            _ => Self::Corrupt,
        }
    }
}

/// Goes from marker to marker to the end of the picture: those inside metadata do not count.
fn walk(bytes: &[u8]) -> Result<(), ImageError> {
    let mut at = 2;
    let mut frame = None;
    let mut scans = 0;
    loop {
        match marker(bytes, &mut at).ok_or(ImageError::Corrupt)? {
            0xD9 => return Ok(()),
            // Stand-alone markers.
            0x01 | 0xD8 => {}
            kind => {
                let segment = segment(bytes, &mut at).ok_or(ImageError::Corrupt)?;
                match kind {
                    0xC0 | 0xC1 => frame = frame.or(Some(segment)),
                    0xDA => {
                        scans += 1;
                        if scans > MOST_SCANS {
                            return Err(ImageError::Corrupt);
                        }
                        if scans == 1 && frame.is_some_and(|frame| apart(frame, segment)) {
                            return Err(ImageError::Unsupported);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What follows a marker, without its length.
fn segment<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let [high, low] = *bytes.get(*at..)?.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([high, low]).max(2));
    let segment = bytes.get(*at + 2..*at + length)?;
    *at += length;
    Some(segment)
}

/// Whether the components of a baseline picture come in scans of their own. The decoder makes noise of a component that
/// is finer than another, of restarts, and of rows so plain that the end of a scan is in sight before they are read.
fn apart(frame: &[u8], scan: &[u8]) -> bool {
    scan.first() < frame.get(5)
}

/// The next marker; moves behind it. Skips fill bytes and entropy-coded data, in which 0xFF is followed by 0 or by a
/// restart marker, of which the first in a scan has the number 0 and each the next of eight; `None` for any other.
fn marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    let mut restart = 0xD0;
    loop {
        let rest = bytes.get(*at..)?;
        let found = rest.iter().position(|&byte| byte == 0xFF)?;
        let marker = *rest.get(found + 1)?;
        *at += found + if marker == 0xFF { 1 } else { 2 };
        match marker {
            0x00 | 0xFF => {}
            0xD0..=0xD7 if marker == restart => restart = 0xD0 | (restart + 1) & 7,
            0xD0..=0xD7 => return None,
            _ => return Some(marker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: &[u8] = b"\xFF\xDA\x00\x02\x12\xFF\x00\x34\xFF\xD0\x56\xFF\xFF\xD1\x78";

    #[test]
    fn a_jpeg_ends_with_its_own_marker_not_with_that_of_a_thumbnail() {
        let thumbnail = b"\xFF\xD8\xFF\xE1\x00\x06\xFF\xD8\xFF\xD9";
        assert_eq!(walk(thumbnail), Err(ImageError::Corrupt));
        let whole = [thumbnail.as_slice(), SCAN, b"\xFF\xD9"].concat();
        assert_eq!(walk(&whole), Ok(()));
        assert_eq!(walk(&whole[..whole.len() - 1]), Err(ImageError::Corrupt));
    }

    #[test]
    fn restart_markers_follow_each_other() {
        let scan = |restarts: &[u8]| {
            let mut bytes = b"\xFF\xD8\xFF\xDA\x00\x02".to_vec();
            bytes.extend(restarts.iter().flat_map(|number| [0x12, 0xFF, 0xD0 + number]));
            walk(&[&bytes, SCAN, b"\xFF\xD9"].concat()).is_ok()
        };
        assert!(scan(&[]) && scan(&[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]));
        assert!(!scan(&[1]) && !scan(&[0, 0]) && !scan(&[0, 2]) && !scan(&[0, 1, 2, 3, 4, 5, 6, 7, 7]));
    }

    #[test]
    fn scans_are_counted() {
        let of = |count| walk(&[b"\xFF\xD8", SCAN.repeat(count).as_slice(), b"\xFF\xD9"].concat());
        assert_eq!((of(MOST_SCANS), of(MOST_SCANS + 1)), (Ok(()), Err(ImageError::Corrupt)));
    }
}
