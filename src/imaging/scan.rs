//! Containers walked without unpacking: how many frames, how large, and whether the file ends where it should.
//!
//! The decoders answer some of this themselves, but late (after allocating), leniently or not at all (the number of
//! frames of a GIF). One pass over headers that allocates nothing but the times of the
//! frames, and of no more frames than an animation may have; offsets
//! come from the file and are never trusted: every read is checked, and the walk only moves forward.

use super::{animation::MOST_FRAMES, moments::shown};

/// What the frames of a GIF claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gif {
    /// Columns and rows of what is shown: of the logical screen, or up to the first frame's edges where that reaches
    /// beyond it, as viewers enlarge the picture then. Later frames are clipped.
    pub(super) canvas: (u32, u32),
    pub(super) frames: usize,
    /// How long each is shown, in milliseconds.
    pub(super) delays: Vec<u64>,
    /// Pixels of all frames' own rectangles together: the work of unpacking.
    pub(super) pixels: u64,
    /// Pixels of the largest rectangle.
    pub(super) largest: u64,
}

/// What a PNG holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Png {
    /// Frames of the animation; 0 for a still.
    pub(super) frames: usize,
    /// How long each is shown, in milliseconds.
    pub(super) delays: Vec<u64>,
    /// Whether the still picture is not one of the animation's frames.
    pub(super) still_apart: bool,
    /// The gamma it was made with, in parts of 100,000.
    pub(super) gamma: Option<u32>,
}

/// What a WebP holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Webp {
    /// Frames of the animation; 0 for a still.
    pub(super) frames: usize,
    /// Pixels of the largest of canvas, frame rectangles and bitstreams, which may belie each other.
    pub(super) largest: u64,
}

/// `None` when the file is cut off inside a block, there is something between blocks that is none, or a frame has no pixels: some viewers show such a frame over the
/// whole screen, and the decoder passes over some of them in silence. A missing trailer is forgiven.
pub(super) fn gif(bytes: &[u8]) -> Option<Gif> {
    let screen = (u32::from(le16(bytes, 6)?), u32::from(le16(bytes, 8)?));
    let mut survey = Gif { canvas: screen, frames: 0, delays: Vec::new(), pixels: 0, largest: 0 };
    let mut delay = 0;
    let mut at = 13 + gif_table(*bytes.get(10)?);
    loop {
        match bytes.get(at) {
            Some(0x21) => {
                if bytes.get(at + 1..at + 3) == Some(&[0xF9, 4]) {
                    delay = u64::from(le16(bytes, at + 4)?) * 10;
                }
                at = gif_blocks(bytes, at + 2)?;
            }
            Some(0x2C) => {
                let value = |offset| le16(bytes, at + offset).map(u32::from);
                let (left, top, width, height) = (value(1)?, value(3)?, value(5)?, value(7)?);
                let area = u64::from(width) * u64::from(height);
                if area == 0 {
                    return None;
                }
                if survey.frames == 0 {
                    let (columns, rows) = survey.canvas;
                    survey.canvas = (columns.max(left + width), rows.max(top + height));
                }
                survey.frames += 1;
                if survey.frames <= MOST_FRAMES {
                    survey.delays.push(shown(delay));
                }
                delay = 0;
                survey.pixels += area;
                survey.largest = survey.largest.max(area);
                let table = gif_table(*bytes.get(at + 9)?);
                at = gif_blocks(bytes, at + 10 + table + 1)?;
            }
            None | Some(0x3B) => return Some(survey),
            // Behind anything else some viewers read on, and the decoder does not.
            Some(_) => return is_padding(bytes.get(at..)?).then_some(survey),
        }
    }
}

/// Whether nothing begins a block, up to the end or to the trailer.
fn is_padding(rest: &[u8]) -> bool {
    !rest.iter().take_while(|&&byte| byte != 0x3B).any(|byte| matches!(byte, 0x21 | 0x2C))
}

/// Bytes of the colour table that `flags` announce.
fn gif_table(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

/// The position behind a chain of sub-blocks.
fn gif_blocks(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    }
}

/// `None` when the file is cut off before its end chunk, or says its gamma twice: viewers do not all believe the same.
pub(super) fn png(bytes: &[u8]) -> Option<Png> {
    let (mut gamma, mut gammas) = (None, 0);
    let mut delays = Vec::new();
    let mut announced = 0_usize;
    let mut controls = 0;
    let mut controls_first = false;
    let mut pixels_seen = false;
    let mut at = 8;
    loop {
        let length = be32(bytes, at)? as usize;
        let kind = bytes.get(at + 4..at + 8)?;
        let next = at.checked_add(12)?.checked_add(length)?;
        if next > bytes.len() {
            return None;
        }
        match kind {
            // Of several, viewers do not all believe the same; the most that any may show is counted.
            b"acTL" if !pixels_seen => announced = announced.max(be32(bytes, at + 8)? as usize),
            b"gAMA" if !pixels_seen && length == 4 => {
                gamma = be32(bytes, at + 8);
                gammas += 1;
            }
            b"fcTL" => {
                controls += 1;
                if controls <= MOST_FRAMES && length >= 24 {
                    let (parts, whole) = (u64::from(be16(bytes, at + 28)?), u64::from(be16(bytes, at + 30)?));
                    delays.push(shown(parts * 1000 / if whole == 0 { 100 } else { whole }));
                }
                controls_first |= !pixels_seen;
            }
            b"IDAT" => pixels_seen = true,
            b"IEND" => {
                let frames = controls.min(announced);
                delays.truncate(frames);
                return (gammas <= 1).then_some(Png {
                    frames,
                    delays,
                    still_apart: frames > 0 && !controls_first,
                    gamma,
                });
            }
            _ => {}
        }
        at = next;
    }
}

/// `None` when the file is cut off inside a chunk.
pub(super) fn webp(bytes: &[u8]) -> Option<Webp> {
    let mut survey = Webp { frames: 0, largest: 0 };
    webp_chunks(webp_body(bytes)?, &mut survey, true)?;
    Some(survey)
}

/// The chunks: what follows them is no part of the picture.
fn webp_body(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(12..(le32(bytes, 4)? as usize).checked_add(8)?)
}

/// A frame of an animated WebP.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WebpFrame<'a> {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    /// How long it is shown, in milliseconds.
    pub(super) delay: u64,
    /// Whether it is laid over what is there, or takes its place.
    pub(super) blends: bool,
    /// Whether its rectangle is cleared after it was shown.
    pub(super) disposed: bool,
    /// The chunks of its picture.
    pub(super) chunks: &'a [u8],
}

/// The frames, of a file that [`webp`] found whole.
pub(super) fn webp_frames(bytes: &[u8]) -> Vec<WebpFrame<'_>> {
    let mut frames = Vec::new();
    let mut rest = webp_body(bytes).unwrap_or_default();
    while let Some((kind, payload)) = webp_chunk(&mut rest) {
        if kind == b"ANMF" {
            frames.extend(webp_frame(payload));
        }
    }
    frames
}

fn webp_frame(payload: &[u8]) -> Option<WebpFrame<'_>> {
    let flags = payload.get(15)?;
    Some(WebpFrame {
        left: le24(payload, 0)? * 2,
        top: le24(payload, 3)? * 2,
        width: le24(payload, 6)? + 1,
        height: le24(payload, 9)? + 1,
        delay: shown(u64::from(le24(payload, 12)?)),
        blends: flags & 2 == 0,
        disposed: flags & 1 != 0,
        chunks: payload.get(16..)?,
    })
}

/// The next chunk's name and payload.
fn webp_chunk<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let length = le32(rest, 4)? as usize;
    let chunk = (rest.get(..4)?, rest.get(8..length.checked_add(8)?)?);
    // Chunks are padded to an even length, the last one not always.
    *rest = rest.get(8 + length + length % 2..).unwrap_or_default();
    Some(chunk)
}

fn webp_chunks(mut bytes: &[u8], survey: &mut Webp, outer: bool) -> Option<()> {
    while bytes.len() >= 8 {
        let (kind, payload) = webp_chunk(&mut bytes)?;
        match kind {
            b"ANMF" if outer => {
                survey.frames += 1;
                let area = (u64::from(le24(payload, 6)?) + 1) * (u64::from(le24(payload, 9)?) + 1);
                survey.largest = survey.largest.max(area);
                webp_chunks(payload.get(16..)?, survey, false)?;
            }
            b"VP8X" if outer => {
                let area = (u64::from(le24(payload, 4)?) + 1) * (u64::from(le24(payload, 7)?) + 1);
                survey.largest = survey.largest.max(area);
            }
            b"VP8 " => {
                let area = u64::from(le16(payload, 6)? & 0x3FFF) * u64::from(le16(payload, 8)? & 0x3FFF);
                survey.largest = survey.largest.max(area);
            }
            b"VP8L" => {
                let packed = le32(payload, 1)?;
                let area = u64::from((packed & 0x3FFF) + 1) * u64::from((packed >> 14 & 0x3FFF) + 1);
                survey.largest = survey.largest.max(area);
            }
            _ => {}
        }
    }
    Some(())
}

/// Width and height, where a BMP header of a known length says them.
pub(super) fn bmp(bytes: &[u8]) -> Option<(u32, u32)> {
    if le32(bytes, 14)? == 12 {
        return Some((u32::from(le16(bytes, 18)?), u32::from(le16(bytes, 20)?)));
    }
    // Negative sides: rows from the top.
    let side = |at| le32(bytes, at).map(|value| value.cast_signed().unsigned_abs());
    Some((side(18)?, side(22)?))
}

/// Values a TIFF tag that shapes the picture may have: one a tile of 16 by 16 in the largest picture.
const MOST_TIFF_VALUES: u32 = 1 << 20;
/// The first tag of metadata that no decoder reads here: XMP.
const TIFF_METADATA: u16 = 700;

/// The tag that says what channels beyond the colours mean, its type, and the meaning "transparency that the colours
/// are multiplied by".
const TIFF_EXTRA_SAMPLES: u16 = 338;
const TIFF_SHORT: u16 = 3;
const TIFF_ASSOCIATED: u16 = 1;
/// The tag that says how channels lie, and the meaning "apart"; and one that only tiled pictures have.
const TIFF_PLANAR: u16 = 284;
const TIFF_APART: u16 = 2;
const TIFF_TILE_WIDTH: u16 = 322;

/// Whether the first directory is whole and its tags are of a credible length. The decoder reserves 32 bytes a value
/// on the word of a tag, up to 256 MiB, before it looks at the picture's size.
pub(super) fn tiff_is_credible(bytes: &[u8]) -> bool {
    let credible = |at| Some(tiff_short(bytes, at)? >= TIFF_METADATA || tiff_long(bytes, at + 4)? <= MOST_TIFF_VALUES);
    let all = || tiff_entries(bytes)?.try_fold(true, |all, at| Some(all && credible(at)?));
    all() == Some(true)
}

/// Whether the colours of a TIFF are multiplied by its transparency. Where the tag has an unusual form it counts as not.
pub(super) fn tiff_is_premultiplied(bytes: &[u8]) -> bool {
    let associated = |at| {
        let kind = (tiff_short(bytes, at)?, tiff_short(bytes, at + 2)?);
        // Up to two values lie in the entry itself.
        let inline = tiff_long(bytes, at + 4)? <= 2;
        let value = if inline { at + 8 } else { tiff_long(bytes, at + 8)? as usize };
        Some(kind == (TIFF_EXTRA_SAMPLES, TIFF_SHORT) && tiff_short(bytes, value)? == TIFF_ASSOCIATED)
    };
    tiff_entries(bytes).is_some_and(|mut entries| entries.any(|at| associated(at) == Some(true)))
}

/// Whether a TIFF is in tiles, each of one channel alone: the decoder panics where one reaches beyond the picture.
pub(super) fn tiff_tiles_are_planar(bytes: &[u8]) -> bool {
    let has = |wanted: u16, value: Option<u16>| {
        let fits =
            |at| Some(tiff_short(bytes, at)? == wanted && (value.is_none() || tiff_short(bytes, at + 8) == value));
        tiff_entries(bytes).is_some_and(|mut entries| entries.any(|at| fits(at) == Some(true)))
    };
    has(TIFF_PLANAR, Some(TIFF_APART)) && has(TIFF_TILE_WIDTH, None)
}

/// Where the entries of the first directory begin.
fn tiff_entries(bytes: &[u8]) -> Option<impl Iterator<Item = usize>> {
    let directory = tiff_long(bytes, 4)? as usize;
    let entries = usize::from(tiff_short(bytes, directory)?);
    Some((0..entries).map(move |entry| directory + 2 + entry * 12))
}

fn tiff_short(bytes: &[u8], at: usize) -> Option<u16> {
    if bytes.starts_with(b"MM") { be16(bytes, at) } else { le16(bytes, at) }
}

fn tiff_long(bytes: &[u8], at: usize) -> Option<u32> {
    if bytes.starts_with(b"MM") { be32(bytes, at) } else { le32(bytes, at) }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let [a, b] = *bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes([a, b]))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn le24(bytes: &[u8], at: usize) -> Option<u32> {
    let [a, b, c] = *bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("small");
        [&length.to_be_bytes(), kind.as_slice(), payload, &[0; 4]].concat()
    }

    fn png_of(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, payload) in chunks {
            bytes.extend(chunk(**kind, payload));
        }
        bytes
    }

    #[test]
    fn png_frames_are_those_both_announced_and_present() {
        let four = 4_u32.to_be_bytes();
        let still = png_of(&[(b"IHDR", &[0; 13]), (b"IDAT", &[]), (b"IEND", &[])]);
        assert_eq!(png(&still).map(|png| png.frames), Some(0));
        let apart = png_of(&[(b"acTL", &four), (b"IDAT", &[]), (b"fcTL", &[]), (b"fcTL", &[]), (b"IEND", &[])]);
        assert_eq!(png(&apart).map(|png| (png.frames, png.still_apart)), Some((2, true)));
        let within = png_of(&[(b"acTL", &four), (b"fcTL", &[]), (b"IDAT", &[]), (b"IEND", &[])]);
        assert_eq!(png(&within).map(|png| (png.frames, png.still_apart)), Some((1, false)));
        let late = png_of(&[(b"IDAT", &[]), (b"acTL", &four), (b"fcTL", &[]), (b"IEND", &[])]);
        assert_eq!(png(&late).map(|png| png.frames), Some(0));
        let none = [0; 4];
        for (first, second) in [(&four, &none), (&none, &four)] {
            let twice = png_of(&[(b"acTL", first), (b"acTL", second), (b"fcTL", &[]), (b"IDAT", &[]), (b"IEND", &[])]);
            assert_eq!(png(&twice).map(|png| png.frames), Some(1));
        }
    }

    #[test]
    fn every_prefix_of_a_png_is_cut_off() {
        let whole = png_of(&[(b"IHDR", &[0; 13]), (b"IDAT", &[7; 9]), (b"IEND", &[])]);
        for end in 0..whole.len() {
            assert_eq!(png(&whole[..end]), None, "{end}");
        }
        assert_eq!(png(&png_of(&[(b"IHDR", &[]), (b"IDAT", &[])])), None);
    }

    #[test]
    fn gif_rectangles_are_summed_and_sub_blocks_followed() {
        let mut bytes = b"GIF89a\x0a\x00\x0a\x00\x80\x00\x00".to_vec();
        bytes.extend([0; 6]);
        bytes.extend(b"\x21\xF9\x04\x00\x00\x00\x00\x00");
        bytes.extend(b"\x2C\x00\x00\x00\x00\x0a\x00\x0a\x00\x00\x02\x02\x4C\x01\x00");
        bytes.extend(b"\x21\xF9\x04\x00\x19\x00\x00\x00");
        bytes.extend(b"\x2C\x00\x00\x00\x00\x02\x00\x03\x00\x80\0\0\0\0\0\0\x02\x02\x4C\x01\x00");
        let whole = Gif { canvas: (10, 10), frames: 2, delays: vec![100, 250], pixels: 106, largest: 100 };
        assert_eq!(gif(&bytes).as_ref(), Some(&whole));
        bytes.push(0x3B);
        assert_eq!(gif(&bytes).as_ref(), Some(&whole));
        assert_eq!(gif(&bytes[..bytes.len() - 3]), None);
    }

    #[test]
    fn nothing_but_padding_stands_between_the_blocks_of_a_gif() {
        let of = |between: &[u8], end: &[u8]| {
            let frame = b"\x2C\0\0\0\0\x01\0\x01\0\0\x02\0";
            gif(&[b"GIF89a\x01\0\x01\0\0\0\0", &frame[..], between, end].concat()).map(|survey| survey.frames)
        };
        let frame = b"\x2C\0\0\0\0\x01\0\x01\0\0\x02\0;";
        assert_eq!((of(b"", frame), of(b"\0", frame), of(b"\x07", frame)), (Some(2), None, None));
        assert_eq!(
            (of(b"\0\0", b";"), of(b"junk", b""), of(b"", b";,"), of(b"junk", b",")),
            (Some(1), Some(1), Some(1), None)
        );
    }

    #[test]
    fn png_says_its_gamma_once_and_how_long_each_frame_is_shown() {
        let control =
            |parts: u16, whole: u16| [&[0; 20][..], &parts.to_be_bytes(), &whole.to_be_bytes(), &[0, 0]].concat();
        let (count, gamma) = (3_u32.to_be_bytes(), 100_000_u32.to_be_bytes());
        let (first, second, third) = (control(3, 2), control(4, 0), control(0, 1));
        let chunks: &[(&[u8; 4], &[u8])] = &[
            (b"acTL", &count),
            (b"gAMA", &gamma),
            (b"fcTL", &first),
            (b"IDAT", &[]),
            (b"gAMA", &count),
            (b"fcTL", &second),
            (b"fcTL", &third),
            (b"IEND", &[]),
        ];
        let survey = png(&png_of(chunks)).expect("it is whole");
        assert_eq!((survey.gamma, survey.delays), (Some(100_000), vec![1500, 40, 100]));
        assert_eq!(png(&png_of(&[(b"gAMA", &gamma), (b"gAMA", &gamma), (b"IDAT", &[]), (b"IEND", &[])])), None);
    }

    #[test]
    fn the_first_frame_of_a_gif_may_reach_beyond_the_screen_and_none_may_be_empty() {
        let of = |frames: &[[u8; 4]]| {
            let mut bytes = b"GIF89a\x05\0\x05\0\0\0\0".to_vec();
            for [left, top, width, height] in frames {
                bytes.extend([0x2C, *left, 0, *top, 0, *width, 0, *height, 0, 0, 2, 0]);
            }
            gif(&bytes)
        };
        let canvas = |frames: &[[u8; 4]]| of(frames).map(|survey| survey.canvas);
        assert_eq!(canvas(&[[0, 0, 3, 3]]), Some((5, 5)));
        assert_eq!(canvas(&[[3, 1, 4, 4], [0, 0, 9, 9]]), Some((7, 5)));
        assert_eq!(canvas(&[[0, 9, 1, 255]]), Some((5, 264)));
        assert_eq!(of(&[[0, 0, 5, 5], [0, 0, 5, 0]]), None);
        assert_eq!(of(&[[0, 0, 0, 5]]), None);
    }

    #[test]
    fn a_tiff_tag_that_claims_millions_of_values_is_not_credible() {
        let directory = |tag: u16, count: u32| {
            let mut bytes = b"II*\0\x08\0\0\0\x01\0".to_vec();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(b"\x01\0");
            bytes.extend(count.to_le_bytes());
            bytes.extend(b"\0\0\0\0");
            bytes
        };
        assert!(tiff_is_credible(&directory(273, 1 << 20)));
        assert!(!tiff_is_credible(&directory(273, (1 << 20) + 1)));
        assert!(tiff_is_credible(&directory(34_675, u32::MAX)));
        let whole = directory(273, 1);
        assert!(!tiff_is_credible(&whole[..whole.len() - 5]));
    }

    #[test]
    fn webp_sizes_come_from_the_bitstream_too() {
        let lossless = [&[0x2F_u8][..], &(99_u32 + (49 << 14)).to_le_bytes()].concat();
        let mut body = b"WEBPVP8L".to_vec();
        body.extend(u32::try_from(lossless.len()).expect("small").to_le_bytes());
        body.extend(&lossless);
        body.push(0);
        let mut bytes = b"RIFF".to_vec();
        bytes.extend(u32::try_from(body.len()).expect("small").to_le_bytes());
        bytes.extend(body);
        assert_eq!(webp(&bytes), Some(Webp { frames: 0, largest: 5_000 }));
        assert_eq!(webp(&bytes[..bytes.len() - 1]), None);
    }
}
