//! Small pictures.

use std::io::Cursor;

use base64::{Engine, engine::general_purpose::STANDARD};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

pub(crate) const BLACK: [u8; 3] = [0, 0, 0];
pub(crate) const WHITE: [u8; 3] = [255, 255, 255];
/// Makes the image double panic.
pub(crate) const MAGENTA: [u8; 3] = [255, 0, 255];

pub(crate) fn picture(color: [u8; 3], format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let picture = DynamicImage::ImageRgb8(RgbImage::from_pixel(16, 16, Rgb(color)));
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub(crate) fn png(color: [u8; 3]) -> Vec<u8> {
    picture(color, ImageFormat::Png)
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
