//! Animations to the frames of a few moments.
//!
//! Frames build on those before them, so everything up to the last moment taken is unpacked. Frames of a large canvas are reduced as they are taken,
//! so that all of them together have no more pixels than one picture may. Refuses an animation whose unpacking would
//! exceed a budget of pixels, counted before it begins. GIF and WebP are composed here, on one canvas in place: a frame
//! costs its own rectangle, not the canvas, and is taken away again where the file says so. (The decoder of WebP leaves
//! such frames where they are, and takes a frame's word for the size of its picture.)

use std::{io::Cursor, num::NonZeroU64};

use image::{
    AnimationDecoder, DynamicImage, ImageDecoder, RgbaImage,
    codecs::{png::PngDecoder, webp::WebPDecoder},
    imageops,
    metadata::Orientation,
};

use super::{
    Frame, ImageError, Limits, area,
    decode::{admit, orientation, prepare},
    moments::moments,
    scan,
    views::{self, Showing, reduced},
};

/// Pixels that may be unpacked for one animation, in multiples of those allowed for a still picture. The message of
/// `image_too_large` says this bound and the next.
const BUDGET: u64 = 4;
/// Frames an animation may have: each costs something however small it is.
pub(super) const MOST_FRAMES: usize = 4_096;
/// What a moment becomes where the canvas is not wholly covered: a frame over white and one over black.
const GROUNDS: u64 = 2;

/// What is left to each of so many frames, over either ground, of the pixels allowed.
fn share(frames: usize, limits: &Limits) -> u64 {
    limits.max_pixels / (frames.max(1) as u64 * GROUNDS)
}

/// A copy of what is shown, reduced where it has more than its share of the pixels allowed.
fn moment(picture: &RgbaImage, share: u64) -> DynamicImage {
    DynamicImage::ImageRgba8(match reduced(picture.dimensions(), share) {
        Some((width, height)) => imageops::thumbnail(picture, width, height),
        None => picture.clone(),
    })
}

/// Refuses an animation of no frames, of too many, or of more pixels than the budget.
fn afford(frames: usize, pixels: u64, limits: &Limits) -> Result<(), ImageError> {
    match frames {
        0 => Err(ImageError::Corrupt),
        1..=MOST_FRAMES if pixels <= limits.max_pixels.saturating_mul(BUDGET) => Ok(()),
        _ => Err(ImageError::TooLarge),
    }
}

pub(super) fn png(
    mut decoder: PngDecoder<Cursor<&[u8]>>,
    frames: usize,
    moments: &[usize],
    showing: Showing,
    limits: &Limits,
) -> Result<Vec<Frame>, ImageError> {
    let orientation = begin(&mut decoder, frames, limits)?;
    let share = share(moments.len() * showing.versions(), limits);
    let mut taken = Vec::new();
    let mut wanted = moments.iter().copied().peekable();
    for (index, frame) in decoder.apng()?.into_frames().enumerate() {
        if wanted.peek().is_none() {
            break;
        }
        let frame = frame?;
        if wanted.next_if_eq(&index).is_some() {
            taken.extend(views::frames(moment(frame.buffer(), share), orientation, showing)?);
        }
    }
    // Fewer frames than the container listed: the rest is damaged.
    if wanted.peek().is_some() { Err(ImageError::Corrupt) } else { Ok(taken) }
}

pub(super) fn webp(
    mut decoder: WebPDecoder<Cursor<&[u8]>>,
    bytes: &[u8],
    frames: usize,
    limits: &Limits,
) -> Result<Vec<Frame>, ImageError> {
    let orientation = begin(&mut decoder, frames, limits)?;
    let frames = scan::webp_frames(bytes);
    let mut canvas = Canvas::new(decoder.dimensions());
    let (columns, rows) = decoder.dimensions();
    let mut taken = Vec::new();
    let delays: Vec<u64> = frames.iter().map(|frame| frame.delay).collect();
    let moments = moments(&delays, limits.max_frames);
    let share = share(moments.len(), limits);
    let mut wanted = moments.iter().copied().peekable();
    for (index, frame) in frames.iter().enumerate() {
        if wanted.peek().is_none() {
            break;
        }
        let (left, top) = (i64::from(frame.left), i64::from(frame.top));
        if frame.left + frame.width > columns || frame.top + frame.height > rows {
            return Err(ImageError::Corrupt);
        }
        let picture = unpacked(frame)?;
        if frame.blends {
            imageops::overlay(&mut canvas.picture, &picture, left, top);
        } else {
            imageops::replace(&mut canvas.picture, &picture, left, top);
        }
        if wanted.next_if_eq(&index).is_some() {
            taken.extend(views::frames(moment(&canvas.picture, share), orientation, Showing::PLAIN)?);
        }
        if frame.disposed {
            let side = |side: u32| side as usize;
            canvas.clear(&Region {
                left: side(frame.left),
                top: side(frame.top),
                width: side(frame.width),
                height: side(frame.height),
            });
        }
    }
    Ok(taken)
}

/// A frame's own picture, unpacked as a still of its own: the decoder then holds the picture to its rectangle.
fn unpacked(frame: &scan::WebpFrame<'_>) -> Result<RgbaImage, ImageError> {
    let transparent = !frame.chunks.starts_with(b"VP8 ");
    let side = |side: u32| (side - 1).to_le_bytes();
    let ([w0, w1, w2, _], [h0, h1, h2, _]) = (side(frame.width), side(frame.height));
    let flags = if transparent { 0x10 } else { 0 };
    let length = u32::try_from(frame.chunks.len() + 22).map_err(|_| ImageError::TooLarge)?;
    let mut file = Vec::with_capacity(frame.chunks.len() + 31);
    file.extend(*b"RIFF");
    file.extend(length.next_multiple_of(2).to_le_bytes());
    file.extend(*b"WEBPVP8X\x0a\0\0\0");
    file.extend([flags, 0, 0, 0, w0, w1, w2, h0, h1, h2]);
    file.extend_from_slice(frame.chunks);
    if frame.chunks.len() % 2 == 1 {
        file.push(0);
    }
    let decoder = WebPDecoder::new(Cursor::new(file))?;
    Ok(DynamicImage::from_decoder(decoder)?.into_rgba8())
}

/// Checks what every frame over the whole canvas would cost; answers which way is up.
fn begin(decoder: &mut impl ImageDecoder, frames: usize, limits: &Limits) -> Result<Orientation, ImageError> {
    prepare(decoder, limits)?;
    afford(frames, area(decoder.dimensions()).saturating_mul(frames as u64), limits)?;
    Ok(orientation(decoder))
}

pub(super) fn gif(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, ImageError> {
    let survey = scan::gif(bytes).ok_or(ImageError::Corrupt)?;
    admit(survey.canvas, limits)?;
    if survey.largest > limits.max_pixels {
        return Err(ImageError::TooLarge);
    }
    afford(survey.frames, survey.pixels, limits)?;

    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let most = limits.max_pixels.saturating_mul(4);
    options.set_memory_limit(NonZeroU64::new(most).map_or(gif::MemoryLimit::Unlimited, gif::MemoryLimit::Bytes));
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(|_| ImageError::Corrupt)?;
    let mut canvas = Canvas::new(survey.canvas);
    let mut taken = Vec::new();
    let moments = moments(&survey.delays, limits.max_frames);
    let share = share(moments.len(), limits);
    let mut wanted = moments.iter().copied().peekable();
    for index in 0..survey.frames {
        if wanted.peek().is_none() {
            break;
        }
        let frame = decoder.read_next_frame().ok().flatten().ok_or(ImageError::Corrupt)?;
        let region = canvas.clip(frame);
        let hidden = (frame.dispose == gif::DisposalMethod::Previous).then(|| canvas.copy(&region));
        canvas.draw(&region, &frame.buffer, usize::from(frame.width));
        if wanted.next_if_eq(&index).is_some() {
            let shown = moment(&canvas.picture, share);
            taken.extend(views::frames(shown, Orientation::NoTransforms, Showing::PLAIN)?);
        }
        match (frame.dispose, hidden) {
            (gif::DisposalMethod::Background, _) => canvas.clear(&region),
            (_, Some(hidden)) => canvas.restore(&region, &hidden),
            _ => {}
        }
    }
    Ok(taken)
}

/// What is shown of a GIF or a WebP, as large as viewers make it. Starts transparent: they ignore the background colour.
struct Canvas {
    picture: RgbaImage,
}

/// The part of a frame that lies on the canvas, in pixels.
struct Region {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

impl Canvas {
    fn new((width, height): (u32, u32)) -> Self {
        Self { picture: RgbaImage::new(width, height) }
    }

    fn clip(&self, frame: &gif::Frame<'_>) -> Region {
        let (width, height) = (self.picture.width() as usize, self.picture.height() as usize);
        let (left, top) = (usize::from(frame.left).min(width), usize::from(frame.top).min(height));
        Region {
            left,
            top,
            width: usize::from(frame.width).min(width - left),
            height: usize::from(frame.height).min(height - top),
        }
    }

    /// The region's rows as RGBA pixels.
    fn rows<'a>(&'a mut self, region: &Region) -> impl Iterator<Item = &'a mut [[u8; 4]]> + use<'a> {
        let columns = region.left..region.left + region.width;
        let width = self.picture.width() as usize;
        let pixels = self.picture.as_chunks_mut::<4>().0;
        pixels
            .chunks_exact_mut(width)
            .skip(region.top)
            .take(region.height)
            .filter_map(move |row| row.get_mut(columns.clone()))
    }

    fn draw(&mut self, region: &Region, rgba: &[u8], frame_width: usize) {
        let source = rgba.as_chunks::<4>().0.chunks_exact(frame_width.max(1));
        for (row, source) in self.rows(region).zip(source) {
            for (pixel, new) in row.iter_mut().zip(source) {
                let [.., alpha] = *new;
                if alpha != 0 {
                    *pixel = *new;
                }
            }
        }
    }

    fn copy(&mut self, region: &Region) -> Vec<[u8; 4]> {
        self.rows(region).flat_map(|row| row.iter().copied()).collect()
    }

    fn restore(&mut self, region: &Region, hidden: &[[u8; 4]]) {
        for (row, old) in self.rows(region).zip(hidden.chunks_exact(region.width.max(1))) {
            row.copy_from_slice(old);
        }
    }

    fn clear(&mut self, region: &Region) {
        self.rows(region).for_each(|row| row.fill([0; 4]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_counts_pixels_and_frames() {
        let limits = Limits { max_pixels: 100, ..Limits::default() };
        assert_eq!(afford(1, 400, &limits), Ok(()));
        assert_eq!(afford(1, 401, &limits), Err(ImageError::TooLarge));
        assert_eq!(afford(MOST_FRAMES + 1, 1, &limits), Err(ImageError::TooLarge));
        assert_eq!(afford(0, 0, &limits), Err(ImageError::Corrupt));
    }

    /// A GIF of two colours; each frame is a rectangle of one of them, or transparent.
    fn gif_of(canvas: (u16, u16), frames: &[(u16, u16, u16, u16, u8, gif::DisposalMethod)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = gif::Encoder::new(&mut bytes, canvas.0, canvas.1, &[255, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0])
            .expect("a header");
        for &(left, top, width, height, colour, dispose) in frames {
            let area = usize::from(width) * usize::from(height);
            let frame = gif::Frame {
                left,
                top,
                width,
                height,
                dispose,
                transparent: Some(2),
                buffer: vec![colour; area].into(),
                ..gif::Frame::default()
            };
            encoder.write_frame(&frame).expect("a frame");
        }
        drop(encoder);
        bytes
    }

    #[test]
    fn gif_frames_are_laid_over_each_other_and_disposed() {
        use gif::DisposalMethod::{Background, Keep, Previous};
        let bytes = gif_of(
            (3, 1),
            &[
                (0, 0, 3, 1, 0, Keep),
                (1, 0, 1, 1, 1, Previous),
                (2, 0, 1, 1, 1, Background),
                // Reaches beyond the canvas.
                (0, 0, 9, 1, 2, Keep),
            ],
        );
        let frames = gif(&bytes, &Limits::default()).expect("it decodes");
        let rows: Vec<&[u8]> = frames.iter().map(Frame::rgb).collect();
        let (red, green, white, black) = ([255, 0, 0], [0, 255, 0], [255; 3], [0; 3]);
        assert_eq!(rows[0], [red, red, red].concat());
        assert_eq!(rows[1], [red, green, red].concat());
        assert_eq!(rows[2], [red, red, green].concat());
        // The last moment is transparent where the third frame was taken away.
        assert_eq!(rows[3], [red, red, white].concat());
        assert_eq!(rows[4], [red, red, black].concat());
        assert_eq!(frames.len(), 5);
    }

    /// A chunk of a WebP.
    fn chunk(name: &str, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        let padding = if payload.len() % 2 == 1 { &[0][..] } else { &[] };
        [name.as_bytes(), &length.to_le_bytes(), payload, padding].concat()
    }

    /// An animated WebP of three columns and one row; each frame is a rectangle of one colour, with its flags.
    fn webp_of(frames: &[(u32, u32, [u8; 4], u8)]) -> Vec<u8> {
        let mut chunks = chunk("VP8X", &[0x12, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
        chunks.extend(chunk("ANIM", &[0; 6]));
        for &(left, width, colour, flags) in frames {
            let mut still = Vec::new();
            let picture = RgbaImage::from_pixel(width, 1, image::Rgba(colour));
            picture.write_to(&mut Cursor::new(&mut still), image::ImageFormat::WebP).unwrap();
            let (x, side) = (u8::try_from(left / 2).unwrap(), u8::try_from(width - 1).unwrap());
            let rectangle = [x, 0, 0, 0, 0, 0, side, 0, 0, 0, 0, 0, 9, 0, 0, flags];
            chunks.extend(chunk("ANMF", &[&rectangle, &still[12..]].concat()));
        }
        let size = u32::try_from(chunks.len() + 4).unwrap();
        [b"RIFF", &size.to_le_bytes()[..], b"WEBP", &chunks].concat()
    }

    fn seen(webp: &[u8]) -> Result<Vec<Vec<u8>>, ImageError> {
        let frames = crate::imaging::decode(webp, &Limits::default())?;
        Ok(frames.iter().map(|frame| frame.rgb().to_vec()).collect())
    }

    #[test]
    fn webp_frames_are_laid_over_each_other_and_disposed() {
        const DISPOSE: u8 = 1;
        const REPLACE: u8 = 2;
        let (red, green, white, black) = ([255, 0, 0], [0, 255, 0], [255; 3], [0; 3]);
        let (opaque, clear) = (|[r, g, b]: [u8; 3]| [r, g, b, 255], [0; 4]);
        let bytes = webp_of(&[
            (0, 3, opaque(red), 0),
            (2, 1, opaque(green), DISPOSE),
            (0, 1, clear, 0),
            (0, 1, clear, REPLACE),
        ]);
        let rows = seen(&bytes).expect("it decodes");
        assert_eq!(rows[0], [red, red, red].concat());
        assert_eq!(rows[1], [red, red, green].concat());
        // What was disposed is gone, and what lay under it; nothing is hidden by a frame that a viewer has taken away.
        assert_eq!(rows[2..4], [[red, red, white].concat(), [red, red, black].concat()]);
        assert_eq!(rows[4..], [[white, red, white].concat(), [black, red, black].concat()]);
    }

    #[test]
    fn a_webp_frame_of_another_size_than_its_rectangle_is_refused() {
        let sound = webp_of(&[(0, 3, [255; 4], 0)]);
        assert!(seen(&sound).is_ok());
        let at = sound.windows(4).position(|name| name == b"ANMF").unwrap();
        let mut short = sound;
        short[at + 8 + 6] = 1;
        assert_eq!(seen(&short), Err(ImageError::Corrupt));
        // The decoder looks for the transparency of each pixel of the picture, of which the rectangle has fewer.
        let lossy = &include_bytes!("../../tests/fixtures/images/clear.webp")[30..];
        assert!(lossy.starts_with(b"ALPH"));
        let mut larger = chunk("VP8X", &[0x12, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
        larger.extend(chunk("ANIM", &[0; 6]));
        larger.extend(chunk("ANMF", &[&[0; 16], lossy].concat()));
        let size = u32::try_from(larger.len() + 4).unwrap();
        let larger = [b"RIFF", &size.to_le_bytes()[..], b"WEBP", &larger].concat();
        assert_eq!(seen(&larger), Err(ImageError::Corrupt));
    }

    #[test]
    fn all_moments_of_a_large_canvas_are_seen_smaller() {
        use gif::DisposalMethod::Keep;
        let whole = |colour| (0, 0, 40, 10, colour, Keep);
        let specks = [whole(0), whole(0), whole(1), whole(0), (0, 0, 1, 1, 2, Keep)];
        let bytes = gif_of((40, 10), &specks);
        let seen = |max_pixels| -> Vec<(u32, u32)> {
            let frames = gif(&bytes, &Limits { max_pixels, ..Limits::default() }).expect("it decodes");
            let greens: Vec<bool> = frames.iter().map(|frame| frame.rgb().starts_with(&[0, 255, 0])).collect();
            assert_eq!(greens, [false, false, true, false, false], "the third moment is judged too");
            frames.iter().map(|frame| (frame.width(), frame.height())).collect()
        };
        assert_eq!(seen(4000), [(40, 10); 5]);
        // Each moment may need both grounds: a tenth of what one picture may have.
        assert_eq!(seen(1000), [(20, 5); 5]);
    }

    #[test]
    fn the_first_frame_enlarges_the_canvas_and_later_ones_do_not() {
        use gif::DisposalMethod::Keep;
        let (red, green, white, black) = ([255_u8, 0, 0], [0_u8, 255, 0], [255; 3], [0; 3]);
        let bytes = gif_of((1, 1), &[(1, 0, 2, 1, 0, Keep), (0, 0, 9, 9, 1, Keep)]);
        let frames = gif(&bytes, &Limits::default()).expect("it decodes");
        assert!(frames.iter().all(|frame| (frame.width(), frame.height()) == (3, 1)), "{frames:?}");
        let rows: Vec<&[u8]> = frames.iter().map(Frame::rgb).collect();
        assert_eq!(rows, [[white, red, red].concat(), [black, red, red].concat(), [green; 3].concat()]);
        // The limits are those of what is shown, not of the screen or the frame alone.
        let first = gif_of((1, 1), &[(1, 0, 2, 1, 0, Keep)]);
        let small = Limits { max_pixels: 2, ..Limits::default() };
        assert_eq!(gif(&first, &small), Err(ImageError::TooLarge));
    }

    #[test]
    fn a_frame_outside_the_canvas_draws_nothing() {
        use gif::DisposalMethod::{Background, Keep, Previous};
        let bytes = gif_of((2, 2), &[(0, 0, 2, 2, 0, Keep), (5, 5, 3, 3, 1, Previous), (2, 0, 1, 1, 1, Background)]);
        let frames = gif(&bytes, &Limits::default()).expect("it decodes");
        assert!(frames.iter().all(|frame| frame.rgb() == [255, 0, 0].repeat(4)));
    }
}
