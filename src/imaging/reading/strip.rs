//! Lines of text cut out of a page: level, of one height, upright or turned over.

use super::{
    super::{
        Frame,
        geometry::{Point, TextBox, byte, real, whole},
    },
    page::Page,
    resample::resample,
};

/// What stands right of a line: mid-grey, 0 for the networks.
const GROUND: u8 = 128;
/// Most samples of the page across a pixel of a strip, each way. Larger letters are thinned out, which they can bear.
const MOST_SAMPLES: usize = 8;
/// How much longer a line may be than the canvas it is squeezed onto. Of drawn lines of 20 words, squeezed whole, the
/// orientation network takes four of ten for what they are not; of their left ends, squeezed to half, none.
const MOST_SQUEEZED: u32 = 2;

/// The shape of a line for the networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripRules {
    /// Pixels of every line's height.
    pub height: u32,
    /// Least pixels of a canvas.
    pub least_width: u32,
    /// A canvas is the least and a multiple of this wide, so that a line has the same canvas in any company.
    pub width_step: u32,
    /// Most pixels of a line; a longer one is squeezed.
    pub most_width: u32,
}

/// A line of text, cut out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strip {
    frame: Frame,
}

impl Strip {
    /// Cuts a box out of a page. A standing one is laid down as [`Page::turned`] would lay it. Beyond the page's rim
    /// its last pixels are repeated.
    pub fn cut(page: &Page, text_box: &TextBox, rules: &StripRules) -> Option<Self> {
        let thickness = text_box.thickness();
        let (along, length) = if text_box.is_standing() {
            (text_box.axis.across(), text_box.height)
        } else {
            (text_box.axis, text_box.width)
        };
        let height = rules.height.max(1) as usize;
        let wanted = whole((real(height) * length / thickness).ceil());
        let width = wanted.clamp(1, rules.most_width.max(1) as usize);
        // The way on the page from a pixel of the strip to the next.
        let right = along * (length / real(width));
        let down = along.across() * (thickness / real(height));
        let corner = text_box.centre - right * (real(width) / 2.0) - down * (real(height) / 2.0);

        let samples = |step: f32| whole(step.ceil()).clamp(1, MOST_SAMPLES);
        let (over, under) = (samples(length / real(width)), samples(thickness / real(height)));
        let mut rgb = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            for column in 0..width {
                let mut sum = [0.0_f32; 3];
                for sub_row in 0..under {
                    let y = real(row) + (real(sub_row) + 0.5) / real(under);
                    for sub_column in 0..over {
                        let x = real(column) + (real(sub_column) + 0.5) / real(over);
                        let sample = sample(&page.frame, corner + right * x + down * y);
                        for (sum, value) in sum.iter_mut().zip(sample) {
                            *sum += value;
                        }
                    }
                }
                rgb.extend(sum.map(|sum| byte(sum / real(over * under))));
            }
        }
        let frame = Frame::new(u32::try_from(width).ok()?, u32::try_from(height).ok()?, rgb)?;
        Some(Self { frame })
    }

    /// Pixels of its length.
    pub fn width(&self) -> u32 {
        self.frame.width()
    }

    /// The line turned upside down.
    #[must_use]
    pub fn turned_over(&self) -> Self {
        let (pixels, _) = self.frame.rgb().as_chunks::<3>();
        let rgb = pixels.iter().rev().flatten().copied().collect();
        let frame = Frame::new(self.frame.width(), self.frame.height(), rgb);
        // As many pixels as before, so the bytes fit.
        Self { frame: frame.unwrap_or_else(|| self.frame.clone()) }
    }

    /// The line at the left of a canvas of the width that the rules give it: width, and `[height, width, 3]`.
    pub fn canvas(&self, rules: &StripRules) -> (usize, Vec<u8>) {
        let beyond = self.width().saturating_sub(rules.least_width);
        let steps = beyond.div_ceil(rules.width_step.max(1));
        let width = rules.least_width.saturating_add(steps.saturating_mul(rules.width_step));
        let width = width.max(self.width()) as usize;
        (width, on_canvas(&self.frame, width))
    }

    /// The line at the left of a canvas of this size, squeezed where it is longer, but to no less than half: of a line
    /// that is longer yet, its left end. `[height, width, 3]`
    pub fn squeezed(&self, width: u32, height: u32) -> Vec<u8> {
        let shown = self.beginning(width.saturating_mul(MOST_SQUEEZED));
        on_canvas(&resample(&shown, shown.width().min(width), height), width.max(1) as usize)
    }

    /// As many of its columns, from the left.
    fn beginning(&self, columns: u32) -> Frame {
        let columns = columns.clamp(1, self.width());
        let rows = self.frame.rgb().chunks_exact(self.width() as usize * 3);
        let rgb = rows.flat_map(|row| row.iter().take(columns as usize * 3).copied()).collect();
        // As many bytes of every row.
        Frame::new(columns, self.frame.height(), rgb).unwrap_or_else(|| self.frame.clone())
    }
}

fn on_canvas(frame: &Frame, width: usize) -> Vec<u8> {
    let mut canvas = vec![GROUND; width * frame.height() as usize * 3];
    let row_bytes = frame.width() as usize * 3;
    for (row, line) in canvas.chunks_exact_mut(width * 3).zip(frame.rgb().chunks_exact(row_bytes)) {
        if let Some(row) = row.get_mut(..row_bytes) {
            row.copy_from_slice(line);
        }
    }
    canvas
}

/// The colour at a place, mixed from the four pixels whose middles are around it.
fn sample(frame: &Frame, place: Point) -> [f32; 3] {
    let (pixels, _) = frame.rgb().as_chunks::<3>();
    let (last_column, last_row) = (frame.width() as usize - 1, frame.height() as usize - 1);
    let x = (place.x - 0.5).clamp(0.0, real(last_column));
    let y = (place.y - 0.5).clamp(0.0, real(last_row));
    let (column, row) = (whole(x).min(last_column), whole(y).min(last_row));
    let (right, down) = (x - real(column), y - real(row));
    let at = |row: usize, column: usize| {
        let place = row.min(last_row) * (last_column + 1) + column.min(last_column);
        pixels.get(place).map_or([0.0; 3], |pixel| pixel.map(f32::from))
    };
    let upper = mix(at(row, column), at(row, column + 1), right);
    let lower = mix(at(row + 1, column), at(row + 1, column + 1), right);
    mix(upper, lower, down)
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

    const RULES: StripRules = StripRules { height: 8, least_width: 20, width_step: 10, most_width: 100 };

    /// A page of 40 by 30 whose red is the column and whose green is the row.
    fn page() -> Page {
        let pixels = (0..30_u8).flat_map(|row| (0..40_u8).map(move |column| [column, row, 0]));
        Page::new(Frame::new(40, 30, pixels.flatten().collect()).expect("the bytes fit"), 1)
    }

    fn level(x: f32, y: f32, width: f32, height: f32) -> TextBox {
        TextBox { centre: Point { x, y }, axis: Point { x: 1.0, y: 0.0 }, width, height }
    }

    fn pixel(strip: &Strip, row: usize, column: usize) -> [u8; 3] {
        strip.frame.rgb().as_chunks::<3>().0[row * strip.width() as usize + column]
    }

    #[test]
    fn a_level_box_at_its_own_height_is_copied() {
        let strip = Strip::cut(&page(), &level(20.0, 14.0, 16.0, 8.0), &RULES).expect("it is cut");
        assert_eq!(strip.width(), 16);
        assert_eq!((pixel(&strip, 0, 0), pixel(&strip, 7, 15)), ([12, 10, 0], [27, 17, 0]));
    }

    #[test]
    fn a_standing_box_is_laid_down_as_a_page_is() {
        let standing = Strip::cut(&page(), &level(10.0, 15.0, 8.0, 24.0), &RULES).expect("it is cut");
        assert_eq!(standing.width(), 24);
        // What was its upper right corner comes first.
        assert_eq!((pixel(&standing, 0, 0), pixel(&standing, 7, 23)), ([13, 3, 0], [6, 26, 0]));
        // The same box on the turned page: x becomes y, and y counts from the right.
        let turned = Strip::cut(&page().turned(), &level(15.0, 30.0, 24.0, 8.0), &RULES).expect("it is cut");
        assert_eq!(standing, turned);
    }

    #[test]
    fn a_slanted_box_follows_its_axis() {
        let axis = Point { x: 0.8, y: 0.6 };
        let slanted = TextBox { centre: Point { x: 20.0, y: 15.0 }, axis, width: 16.0, height: 8.0 };
        let strip = Strip::cut(&page(), &slanted, &RULES).expect("it is cut");
        let [left, right] = [pixel(&strip, 3, 0), pixel(&strip, 3, 15)];
        // Fifteen pixels along the axis.
        assert!(right[0].abs_diff(left[0] + 12) <= 1 && right[1].abs_diff(left[1] + 9) <= 1, "{left:?} {right:?}");
    }

    #[test]
    fn large_letters_are_averaged_and_long_lines_squeezed() {
        let stripes = (0..64_u8).flat_map(|at| [if at % 2 == 0 { 0 } else { 200 }; 3]);
        let rows: Vec<u8> = stripes.collect::<Vec<u8>>().repeat(64);
        let page = Page::new(Frame::new(64, 64, rows).expect("the bytes fit"), 1);
        let strip = Strip::cut(&page, &level(32.0, 32.0, 64.0, 64.0), &RULES).expect("it is cut");
        assert!(strip.frame.rgb().iter().all(|value| (95..=105).contains(value)));
        let long = Strip::cut(&page, &level(32.0, 32.0, 64.0, 1.0), &RULES).expect("it is cut");
        assert_eq!(long.width(), 100);
    }

    #[test]
    fn no_box_is_too_odd() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for odd in [
            level(1e9, -1e9, 10.0, 5.0),
            level(0.0, 0.0, 0.0, 0.0),
            level(nan, nan, nan, nan),
            level(inf, inf, inf, inf),
            level(5.0, 5.0, 1e30, 1e-30),
            level(5.0, 5.0, 1e-30, 1e30),
        ] {
            let strip = Strip::cut(&page(), &odd, &RULES).expect("it is cut");
            assert!((1..=100).contains(&strip.width()), "{odd:?}");
        }
        let nothing = StripRules { height: 0, least_width: 0, width_step: 0, most_width: 0 };
        let strip = Strip::cut(&page(), &level(5.0, 5.0, 4.0, 4.0), &nothing).expect("it is cut");
        assert_eq!(strip.canvas(&nothing), (1, strip.frame.rgb().to_vec()));
        assert_eq!(strip.squeezed(0, 0).len(), 3);
    }

    #[test]
    fn turning_over_twice_changes_nothing() {
        let strip = Strip::cut(&page(), &level(20.0, 14.0, 16.0, 8.0), &RULES).expect("it is cut");
        assert_eq!(pixel(&strip.turned_over(), 0, 0), pixel(&strip, 7, 15));
        assert_eq!(strip.turned_over().turned_over(), strip);
    }

    #[test]
    fn canvases_come_in_steps() {
        for (length, width) in [(6.0, 20), (20.0, 20), (21.0, 30), (30.0, 30), (31.0, 40), (100.0, 100)] {
            let strip = Strip::cut(&page(), &level(20.0, 14.0, length, 8.0), &RULES).expect("it is cut");
            let (found, pixels) = strip.canvas(&RULES);
            assert_eq!((found, pixels.len()), (width, width * 8 * 3), "{length}");
            let used = strip.width() as usize * 3;
            assert_eq!(pixels[..used], strip.frame.rgb()[..used]);
            assert!(pixels[used..width * 3].iter().all(|value| *value == GROUND));
        }
        let strip = Strip::cut(&page(), &level(20.0, 14.0, 30.0, 8.0), &RULES).expect("it is cut");
        assert_eq!(strip.squeezed(10, 4).len(), 10 * 4 * 3);
    }

    #[test]
    fn of_a_long_line_the_left_end_is_squeezed() {
        let values: Vec<u8> = (0..80_u8).flat_map(|at| [at * 3; 3]).collect::<Vec<u8>>().repeat(8);
        let page = Page::new(Frame::new(80, 8, values).expect("the bytes fit"), 1);
        let strip = Strip::cut(&page, &level(40.0, 4.0, 80.0, 8.0), &RULES).expect("it is cut");
        let right = |width: u32| strip.squeezed(width, 8).chunks(3).nth(width as usize - 1).map(|pixel| pixel[0]);
        // Columns 78 and 79; 38 and 39; 18 and 19.
        assert!(right(40).is_some_and(|value| value > 228), "{:?}", right(40));
        assert!(right(20).is_some_and(|value| (108..=120).contains(&value)), "{:?}", right(20));
        assert!(right(10).is_some_and(|value| (48..=60).contains(&value)), "{:?}", right(10));
        assert_eq!(right(100), Some(GROUND), "a short line is not stretched");
    }
}
