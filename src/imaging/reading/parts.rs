//! A closer look at a page that the detector sees only reduced: which parts of it are worth one, and what it finds.

use std::ops::Range;

use super::{
    super::{
        Frame,
        geometry::{Point, TextBox, real},
    },
    page::padded,
};

/// Longest side of a part, without its margins.
const LONGEST: u32 = 960;
/// What the detector is shown of the page around a part, where there is any: its map is unsure at the rim.
const MARGIN: u32 = 64;
/// A box of the whole page gives way to those that a closer look finds in its place, if they cover this share of it.
const COVERED: f32 = 0.5;
/// What is found in place of a box that stays is a line of its own if it is this many times as long as high, as where
/// the reduced page showed text that is none. Else it is a scrap of letters that are too large for a part.
const LINE: f32 = 3.0;

/// A part of a page, in its pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    columns: Range<u32>,
    rows: Range<u32>,
    /// The same with its margins.
    seen_columns: Range<u32>,
    seen_rows: Range<u32>,
}

impl Part {
    /// The parts of a page of this size on which, or near which, one of these signs is, boxes in its pixels.
    pub fn with_signs(size: (u32, u32), signs: &[TextBox]) -> Vec<Self> {
        let columns = cut(size.0);
        cut(size.1)
            .iter()
            .flat_map(|rows| columns.iter().map(|columns| Self::new(size, columns.clone(), rows.clone())))
            .filter(|part| signs.iter().any(|sign| part.is_near(sign)))
            .collect()
    }

    fn new(size: (u32, u32), columns: Range<u32>, rows: Range<u32>) -> Self {
        let around = |span: &Range<u32>, length: u32| {
            span.start.saturating_sub(MARGIN)..span.end.saturating_add(MARGIN).min(length)
        };
        Self { seen_columns: around(&columns, size.0), seen_rows: around(&rows, size.1), columns, rows }
    }

    /// Whether the detector would be shown some of the sign.
    fn is_near(&self, sign: &TextBox) -> bool {
        let reach = |along: f32, across: f32| sign.width / 2.0 * along.abs() + sign.height / 2.0 * across.abs();
        let touches = |span: &Range<u32>, middle: f32, reach: f32| {
            middle + reach >= real(span.start as usize) && middle - reach <= real(span.end as usize)
        };
        let TextBox { centre, axis, .. } = *sign;
        touches(&self.seen_columns, centre.x, reach(axis.x, axis.y))
            && touches(&self.seen_rows, centre.y, reach(axis.y, axis.x))
    }

    /// What the detector is shown of it: from the upper left corner, its last pixels repeated to a multiple.
    pub(super) fn of(&self, frame: &Frame, multiple: u32) -> Frame {
        let row_bytes = frame.width() as usize * 3;
        let bytes = self.seen_columns.start as usize * 3..self.seen_columns.end as usize * 3;
        let mut rgb = Vec::with_capacity(bytes.len() * self.seen_rows.len());
        for row in
            frame.rgb().chunks_exact(row_bytes.max(1)).skip(self.seen_rows.start as usize).take(self.seen_rows.len())
        {
            rgb.extend_from_slice(row.get(bytes.clone()).unwrap_or_default());
        }
        let (width, height) = (self.seen_columns.len(), self.seen_rows.len());
        let part = Frame::new(u32::try_from(width).unwrap_or(0), u32::try_from(height).unwrap_or(0), rgb);
        // A part lies within its page, so the bytes fit.
        part.map_or_else(|| frame.clone(), |part| padded(&part, multiple.max(1)))
    }
}

/// Equal lengths, but for the last, that are short enough.
fn cut(length: u32) -> Vec<Range<u32>> {
    let each = length.div_ceil(length.div_ceil(LONGEST).max(1)).max(1);
    (0..length).step_by(each as usize).map(|start| start..start.saturating_add(each).min(length)).collect()
}

/// The detector's map of a whole page at its own size, put together from those of its parts; 0 elsewhere.
pub struct PageMap {
    width: usize,
    probabilities: Vec<f32>,
}

impl PageMap {
    /// An empty map for a page of this size.
    pub fn new((width, height): (u32, u32)) -> Self {
        Self { width: width as usize, probabilities: vec![0.0; width as usize * height as usize] }
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// `[height, width]`.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Takes a part's map `[height, width]` over, without its margins.
    pub fn take(&mut self, part: &Part, map: &[f32], width: usize) {
        let across = (part.columns.start - part.seen_columns.start) as usize;
        let down = (part.rows.start - part.seen_rows.start) as usize;
        let columns = part.columns.start as usize..part.columns.end as usize;
        let targets = self.probabilities.chunks_exact_mut(self.width.max(1)).skip(part.rows.start as usize);
        let sources = map.chunks_exact(width.max(1)).skip(down);
        for (target, source) in targets.zip(sources).take(part.rows.len()) {
            if let Some(target) = target.get_mut(columns.clone())
                && let Some(source) = source.get(across..across + target.len())
            {
                target.copy_from_slice(source);
            }
        }
    }
}

/// The boxes of a page: those of a closer look, and those of the whole page where that found nothing or scraps.
pub fn closer(whole_page: &[TextBox], parts: Vec<TextBox>) -> Vec<TextBox> {
    let mut kept = Vec::new();
    let mut scraps = vec![false; parts.len()];
    for text_box in whole_page {
        let inside: Vec<usize> = (0..parts.len())
            .filter(|&at| {
                parts.get(at).is_some_and(|part| holds(text_box, part.centre) || holds(part, text_box.centre))
            })
            .collect();
        let covered: f32 = inside.iter().filter_map(|&at| parts.get(at)).map(TextBox::area).sum();
        if covered < text_box.area() * COVERED {
            kept.push(*text_box);
            for (at, scrap) in scraps.iter_mut().enumerate().filter(|(at, _)| inside.contains(at)) {
                *scrap |= parts.get(at).is_some_and(|part| part.length() < part.width.min(part.height) * LINE);
            }
        }
    }
    kept.extend(parts.into_iter().zip(scraps).filter(|(_, scrap)| !scrap).map(|(part, _)| part));
    kept
}

fn holds(text_box: &TextBox, place: Point) -> bool {
    let off = place - text_box.centre;
    off.along(text_box.axis).abs() <= text_box.width / 2.0
        && off.along(text_box.axis.across()).abs() <= text_box.height / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(left: f32, top: f32, width: f32, height: f32) -> TextBox {
        let centre = Point { x: left + width / 2.0, y: top + height / 2.0 };
        TextBox { centre, axis: Point { x: 1.0, y: 0.0 }, width, height }
    }

    /// Every pixel its own colour, as far as bytes go.
    fn frame(width: u32, height: u32) -> Frame {
        let pixel = |row: u32, column: u32| [row % 251, column % 251, (row / 251) * 16 + column / 251];
        let rgb = (0..height).flat_map(|row| (0..width).flat_map(move |column| pixel(row, column)));
        Frame::new(width, height, rgb.map(|value| u8::try_from(value).expect("a byte")).collect()).expect("they fit")
    }

    #[test]
    fn a_page_is_cut_into_equal_parts_that_cover_it() {
        let everywhere = [level(0.0, 0.0, 2560.0, 1440.0)];
        let parts = Part::with_signs((2560, 1440), &everywhere);
        let places: Vec<_> = parts.iter().map(|part| (part.columns.clone(), part.rows.clone())).collect();
        let columns = [0..854, 854..1708, 1708..2560];
        let expected: Vec<_> =
            [0..720, 720..1440].iter().flat_map(|rows| columns.iter().map(|c| (c.clone(), rows.clone()))).collect();
        assert_eq!(places, expected);
        assert_eq!((parts[0].seen_columns.clone(), parts[0].seen_rows.clone()), (0..918, 0..784));
        assert_eq!((parts[4].seen_columns.clone(), parts[4].seen_rows.clone()), (790..1772, 656..1440));
        assert_eq!(Part::with_signs((1, 16_384), &[level(0.0, 0.0, 1.0, 16_384.0)]).len(), 18);
    }

    #[test]
    fn only_parts_near_a_sign_are_looked_at() {
        let looked_at = |sign: TextBox| Part::with_signs((2000, 1000), &[sign]).len();
        assert_eq!(Part::with_signs((2000, 1000), &[]), []);
        assert_eq!(looked_at(level(100.0, 100.0, 50.0, 20.0)), 1);
        // Across a border, and within the margins of four.
        assert_eq!(looked_at(level(600.0, 100.0, 200.0, 20.0)), 2);
        assert_eq!(looked_at(level(660.0, 495.0, 10.0, 10.0)), 4);
        let slanted = TextBox { axis: Point { x: 0.6, y: 0.8 }, ..level(0.0, 300.0, 600.0, 20.0) };
        assert_eq!(looked_at(slanted), 2, "it reaches from the upper to the lower part");
    }

    #[test]
    fn a_map_of_parts_is_the_map_of_the_page() {
        let (width, height) = (1000, 1930);
        let page = frame(width, height);
        let mut map = PageMap::new((width, height));
        for part in Part::with_signs((width, height), &[level(0.0, 0.0, 1000.0, 1930.0)]) {
            let shown = part.of(&page, 32);
            assert!(shown.width() % 32 == 0 && shown.height() % 32 == 0);
            let green = |pixel: &[u8]| f32::from(pixel[1]) + f32::from(pixel[0]) * 256.0;
            let said: Vec<f32> = shown.rgb().chunks(3).map(green).collect();
            map.take(&part, &said, shown.width() as usize);
        }
        assert_eq!(map.width(), 1000);
        let expected = page.rgb().chunks(3).map(|pixel| f32::from(pixel[1]) + f32::from(pixel[0]) * 256.0);
        assert!(map.probabilities().iter().copied().eq(expected));
    }

    #[test]
    fn a_closer_look_replaces_what_it_finds_again_but_scraps_of_large_letters_do_not() {
        let (line, headline, lost) =
            (level(0.0, 0.0, 400.0, 40.0), level(0.0, 200.0, 900.0, 300.0), level(0.0, 600.0, 100.0, 20.0));
        let words = [level(0.0, 5.0, 180.0, 30.0), level(200.0, 5.0, 200.0, 30.0)];
        let scrap = level(300.0, 250.0, 60.0, 90.0);
        let fresh = level(700.0, 700.0, 90.0, 14.0);
        let within = level(100.0, 300.0, 200.0, 20.0);
        let found = closer(&[line, headline, lost], vec![words[0], scrap, words[1], fresh, within]);
        assert_eq!(found, [headline, lost, words[0], words[1], fresh, within]);
        // One line where the whole page showed two ends of it.
        let long = level(0.0, 0.0, 500.0, 20.0);
        assert_eq!(closer(&[level(0.0, 0.0, 200.0, 20.0), level(320.0, 0.0, 180.0, 20.0)], vec![long]), [long]);
        assert_eq!(closer(&[], Vec::new()), []);
    }
}
