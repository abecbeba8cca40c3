//! Small pictures.

use std::io::Cursor;

use base64::{Engine, engine::general_purpose::STANDARD};
use image::{DynamicImage, Frame, ImageFormat, Rgb, RgbImage, codecs::gif::GifEncoder};

pub(crate) const BLACK: [u8; 3] = [0, 0, 0];
pub(crate) const WHITE: [u8; 3] = [255, 255, 255];
/// Makes the image double panic.
pub(crate) const MAGENTA: [u8; 3] = [255, 0, 255];
/// What these say to the double of the text reader, `doubles` tells.
pub(crate) const RED: [u8; 3] = [255, 0, 0];
pub(crate) const GREEN: [u8; 3] = [0, 255, 0];
pub(crate) const BLUE: [u8; 3] = [0, 0, 255];
pub(crate) const CYAN: [u8; 3] = [0, 255, 255];
pub(crate) const YELLOW: [u8; 3] = [255, 255, 0];

pub(crate) fn picture(color: [u8; 3], format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let picture = DynamicImage::ImageRgb8(RgbImage::from_pixel(16, 16, Rgb(color)));
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub(crate) fn png(color: [u8; 3]) -> Vec<u8> {
    picture(color, ImageFormat::Png)
}

/// A black PNG with a level line of text that is half of one colour and half of the other.
pub(crate) fn line(left: [u8; 3], right: [u8; 3]) -> Vec<u8> {
    bytes(line_picture(left, right))
}

fn line_picture(left: [u8; 3], right: [u8; 3]) -> RgbImage {
    RgbImage::from_fn(96, 48, |x, y| Rgb(half(x, y, left, right)))
}

/// A large black PNG with a level line of this colour that is a few pixels high.
pub(crate) fn small_line(colour: [u8; 3]) -> Vec<u8> {
    let is_line = |x, y| (1_700..2_100).contains(&x) && (1_200..1_206).contains(&y);
    bytes(RgbImage::from_fn(3_000, 2_000, |x, y| Rgb(if is_line(x, y) { colour } else { BLACK })))
}

/// A GIF of black frames, each with a level line of one colour.
pub(crate) fn animated_lines(colours: &[[u8; 3]]) -> Vec<u8> {
    animated(colours.iter().map(|&colour| line_picture(colour, colour)))
}

/// A GIF of frames of one colour each.
pub(crate) fn animated_colours(colours: &[[u8; 3]]) -> Vec<u8> {
    animated(colours.iter().map(|&colour| RgbImage::from_pixel(16, 16, Rgb(colour))))
}

fn animated(frames: impl Iterator<Item = RgbImage>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frames = frames.map(|frame| Frame::new(DynamicImage::ImageRgb8(frame).into_rgba8()));
    GifEncoder::new(&mut bytes).encode_frames(frames).unwrap();
    bytes
}

/// A PNG of which nothing is seen but its ground.
pub(crate) fn clear() -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::new_rgba8(16, 16).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// The same line from top to bottom.
pub(crate) fn standing_line(upper: [u8; 3], lower: [u8; 3]) -> Vec<u8> {
    bytes(RgbImage::from_fn(48, 96, |x, y| Rgb(half(y, x, upper, lower))))
}

fn half(along: u32, across: u32, first: [u8; 3], second: [u8; 3]) -> [u8; 3] {
    match along {
        16..48 if (16..32).contains(&across) => first,
        48..80 if (16..32).contains(&across) => second,
        _ => BLACK,
    }
}

fn bytes(picture: RgbImage) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(picture).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
