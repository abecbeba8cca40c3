//! A decoded picture as viewers may show it: one frame for each way that differs.
//!
//! A transparent picture is given over white and over black, because what it hides depends on the page it is shown on.
//! What some viewers leave out, transparency in BMP and TIFF, and what most apply, the gamma of PNG, gives further
//! frames: whoever judges them takes the worst. All frames of a still together have at most twice the pixels of one.

use image::{ColorType, DynamicImage, RgbImage, Rgba, RgbaImage, metadata::Orientation};

use super::{Frame, ImageError, Limits, area};

/// The gamma that pictures without one are shown with.
const USUAL_GAMMA: f64 = 1.0 / 2.2;
/// How far from it another has to be, in parts of it, to make a difference.
const NOTICEABLE: f64 = 0.1;

/// What the fourth channel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alpha {
    /// How much of the colour is seen.
    Straight,
    /// The same, or nothing: some viewers do without.
    Doubtful,
    /// How much of the ground is seen; the colour is multiplied by it already.
    Associated,
}

/// How the pixels of a file are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Showing {
    pub(super) alpha: Alpha,
    /// The power that most viewers raise the colours to, where it makes a difference.
    pub(super) exponent: Option<f64>,
}

impl Showing {
    /// As the pixels say.
    pub(super) const PLAIN: Self = Self { alpha: Alpha::Straight, exponent: None };

    /// With what a PNG says of its gamma, in parts of 100,000. It counts even where a profile or a rendering intent
    /// stands beside it and should take precedence: browsers fall back to it where they cannot read those.
    pub(super) fn with_gamma(gamma: Option<u32>) -> Self {
        let gamma = gamma.map(|parts| f64::from(parts) / 100_000.0).filter(|gamma| *gamma > 0.0);
        let exponent =
            gamma.filter(|gamma| (gamma / USUAL_GAMMA - 1.0).abs() > NOTICEABLE).map(|gamma| USUAL_GAMMA / gamma);
        Self { exponent, ..Self::PLAIN }
    }

    /// Frames that a picture may become for each that it would become as the pixels say.
    pub(super) fn versions(&self) -> usize {
        1 + usize::from(self.exponent.is_some())
    }
}

/// The frames of a still picture.
pub(super) fn still(
    picture: DynamicImage,
    orientation: Orientation,
    showing: Showing,
    limits: &Limits,
) -> Result<Vec<Frame>, ImageError> {
    let grounds = if picture.color().has_alpha() { 2 } else { 1 };
    let most = grounds * showing.versions() + usize::from(showing.alpha == Alpha::Doubtful && grounds == 2);
    let share = limits.max_pixels.saturating_mul(2) / most as u64;
    let picture = match reduced((picture.width(), picture.height()), share) {
        Some((width, height)) => picture.thumbnail_exact(width, height),
        None => picture,
    };
    frames(picture, orientation, showing)
}

/// Turns a picture upright and makes it opaque.
pub(super) fn frames(
    mut picture: DynamicImage,
    orientation: Orientation,
    showing: Showing,
) -> Result<Vec<Frame>, ImageError> {
    picture.apply_orientation(orientation);
    // First, so that no more is held at once than for the frames themselves.
    let corrected = match showing.exponent {
        Some(exponent) => opaque(corrected(&picture, exponent).ok_or(ImageError::Corrupt)?, showing.alpha)?,
        None => Vec::new(),
    };
    let mut frames = opaque(picture, showing.alpha)?;
    frames.extend(corrected);
    Ok(frames)
}

fn opaque(picture: DynamicImage, alpha: Alpha) -> Result<Vec<Frame>, ImageError> {
    if picture.color().has_alpha() {
        return grounds(&picture.into_rgba8(), alpha);
    }
    let rgb = picture.into_rgb8();
    let (width, height) = rgb.dimensions();
    Ok(vec![frame(width, height, rgb.into_raw())?])
}

/// The picture over white and over black, or once where every pixel is opaque.
fn grounds(picture: &RgbaImage, alpha: Alpha) -> Result<Vec<Frame>, ImageError> {
    let bare = |Rgba([red, green, blue, _]): Rgba<u8>| [red, green, blue];
    let white = |pixel| blend(pixel, u8::MAX);
    let black = |pixel| blend(pixel, 0);
    if picture.pixels().all(|Rgba([.., alpha])| *alpha == u8::MAX) {
        return Ok(vec![drawn(picture, bare)?]);
    }
    match alpha {
        Alpha::Straight => Ok(vec![drawn(picture, white)?, drawn(picture, black)?]),
        Alpha::Doubtful => Ok(vec![drawn(picture, white)?, drawn(picture, black)?, drawn(picture, bare)?]),
        // Over black nothing is added.
        Alpha::Associated => Ok(vec![drawn(picture, |pixel| lay(pixel, u8::MAX))?, drawn(picture, bare)?]),
    }
}

fn drawn(picture: &RgbaImage, colour: impl Fn(Rgba<u8>) -> [u8; 3]) -> Result<Frame, ImageError> {
    let mut rgb = Vec::with_capacity(picture.as_raw().len() / 4 * 3);
    picture.pixels().for_each(|pixel| rgb.extend_from_slice(&colour(*pixel)));
    frame(picture.width(), picture.height(), rgb)
}

fn blend(Rgba([red, green, blue, alpha]): Rgba<u8>, ground: u8) -> [u8; 3] {
    let alpha = u16::from(alpha);
    [red, green, blue].map(|value| {
        let mixed = (u16::from(value) * alpha + u16::from(ground) * (255 - alpha) + 127) / 255;
        u8::try_from(mixed).unwrap_or(u8::MAX)
    })
}

fn lay(Rgba([red, green, blue, alpha]): Rgba<u8>, ground: u8) -> [u8; 3] {
    let seen = (u16::from(ground) * (255 - u16::from(alpha)) + 127) / 255;
    [red, green, blue].map(|value| value.saturating_add(u8::try_from(seen).unwrap_or(u8::MAX)))
}

fn frame(width: u32, height: u32, rgb: Vec<u8>) -> Result<Frame, ImageError> {
    Frame::new(width, height, rgb).ok_or(ImageError::Corrupt)
}

/// The colours raised to a power, from all the bits they have: what lies in the lowest may become the whole picture.
/// Of 8 bits a channel.
fn corrected(picture: &DynamicImage, exponent: f64) -> Option<DynamicImage> {
    let (width, height, clear) = (picture.width(), picture.height(), picture.color().has_alpha());
    let bytes = match picture.as_flat_samples_u16() {
        Some(deep) => raised(deep.samples, picture.color(), u16::MAX.into(), exponent),
        None => raised(picture.as_bytes(), picture.color(), u8::MAX.into(), exponent),
    };
    if clear {
        RgbaImage::from_raw(width, height, bytes).map(DynamicImage::ImageRgba8)
    } else {
        RgbImage::from_raw(width, height, bytes).map(DynamicImage::ImageRgb8)
    }
}

fn raised<T: Copy + Into<u32>>(samples: &[T], kind: ColorType, last: u32, exponent: f64) -> Vec<u8> {
    let part = |value: u32| f64::from(value) / f64::from(last);
    let table: Vec<u8> = (0..=last).map(|value| rounded(part(value).powf(exponent))).collect();
    let raise = |sample: T| table.get(sample.into() as usize).copied().unwrap_or(u8::MAX);
    let channels = 3 + usize::from(kind.has_alpha());
    let mut bytes = Vec::with_capacity(samples.len() / usize::from(kind.channel_count()) * channels);
    for pixel in samples.chunks_exact(kind.channel_count().into()) {
        let (colours, alpha) = match *pixel {
            [grey] => ([grey; 3], None),
            [grey, alpha] => ([grey; 3], Some(alpha)),
            [red, green, blue] => ([red, green, blue], None),
            [red, green, blue, alpha, ..] => ([red, green, blue], Some(alpha)),
            [] => continue,
        };
        bytes.extend(colours.map(raise));
        bytes.extend(alpha.map(|alpha| rounded(part(alpha.into()))));
    }
    bytes
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as it should")]
fn rounded(part: f64) -> u8 {
    (part * 255.0 + 0.5) as u8
}

/// The sides of a picture that has more pixels than this, reduced to so many.
pub(super) fn reduced((width, height): (u32, u32), most: u64) -> Option<(u32, u32)> {
    let area = area((width, height));
    #[expect(clippy::cast_precision_loss, reason = "a few millionths of a side do not matter")]
    let factor = (most as f64 / area as f64).sqrt();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than the side itself")]
    let side = |side: u32| ((f64::from(side) * factor) as u32).max(1);
    (area > most).then(|| (side(width), side(height)))
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn pixels(picture: DynamicImage, showing: Showing) -> Vec<Vec<u8>> {
        let frames = still(picture, Orientation::NoTransforms, showing, &Limits::default()).expect("it is valid");
        frames.into_iter().map(Frame::into_rgb).collect()
    }

    fn rgba(pixel: [u8; 4]) -> DynamicImage {
        DynamicImage::ImageRgba8(RgbaImage::from_pixel(1, 1, Rgba(pixel)))
    }

    #[test]
    fn doubtful_transparency_is_also_left_out_and_associated_not_applied_twice() {
        let with = |alpha| Showing { alpha, ..Showing::PLAIN };
        let clear = || rgba([100, 50, 0, 51]);
        assert_eq!(pixels(clear(), with(Alpha::Straight)), [[224, 214, 204], [20, 10, 0]]);
        assert_eq!(pixels(clear(), with(Alpha::Doubtful)), [[224, 214, 204], [20, 10, 0], [100, 50, 0]]);
        assert_eq!(pixels(clear(), with(Alpha::Associated)), [[255, 254, 204], [100, 50, 0]]);
        for alpha in [Alpha::Doubtful, Alpha::Associated] {
            assert_eq!(pixels(rgba([1, 2, 3, 255]), with(alpha)), [[1, 2, 3]]);
        }
    }

    #[test]
    fn gamma_counts_where_it_makes_a_difference() {
        let exponent = |parts| Showing::with_gamma(Some(parts)).exponent;
        for parts in [0, 45_455, 41_000, 49_900] {
            assert_eq!(exponent(parts), None, "{parts}");
        }
        for (parts, wanted) in [(40_800, 1.114), (50_100, 0.907), (100_000, 0.4545), (2_000, 22.73)] {
            assert!(exponent(parts).is_some_and(|found| (found - wanted).abs() < 0.005), "{parts}");
        }
    }

    #[test]
    fn gamma_is_applied_to_colours_over_either_ground() {
        let linear = Showing::with_gamma(Some(100_000));
        let half = DynamicImage::ImageRgb8(RgbImage::from_pixel(1, 1, Rgb([0, 55, 255])));
        assert_eq!(pixels(half, linear), [[0, 55, 255], [0, 127, 255]]);
        assert_eq!(
            pixels(rgba([55, 55, 55, 0]), linear),
            [[255; 3], [0; 3], [255; 3], [0; 3]],
            "what is not seen is not made to be"
        );
        let grey = DynamicImage::ImageLumaA8(image::ImageBuffer::from_pixel(1, 1, image::LumaA([55, 255])));
        assert_eq!(pixels(grey, linear), [[55; 3], [127; 3]]);
        // All that 16 bits hold below the first step of 8.
        let dark = image::ImageBuffer::from_pixel(1, 1, Rgb([100_u16, 0, 65_535]));
        let frames = pixels(DynamicImage::ImageRgb16(dark), Showing::with_gamma(Some(400_000)));
        assert_eq!(frames, [[0, 0, 255], [122, 0, 255]]);
    }

    #[test]
    fn more_versions_have_no_more_pixels() {
        let limits = Limits { max_pixels: 64, ..Limits::default() };
        let clear = || DynamicImage::ImageRgba8(RgbaImage::from_pixel(8, 8, Rgba([9, 9, 9, 9])));
        let of = |showing| still(clear(), Orientation::NoTransforms, showing, &limits).expect("it is valid");
        let sides = |frames: Vec<Frame>| frames.iter().map(|frame| (frame.width(), frame.height())).collect::<Vec<_>>();
        assert_eq!(sides(of(Showing::PLAIN)), [(8, 8); 2]);
        assert_eq!(sides(of(Showing::with_gamma(Some(1)))), [(5, 5); 4]);
        assert_eq!(sides(of(Showing { alpha: Alpha::Doubtful, exponent: None })), [(6, 6); 3]);
    }
}
