//! Pages with the boxes of their lines, lines cut out, and what is read put back in order.
//!
//! Plain functions of what they are given: which lines are read, which way up a page is, and what is written on it. Run on
//! the rayon pool.

use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;

use crate::{
    domain::reading,
    imaging::{
        TextBox,
        reading::{Page, Strip, StripRules, passages},
    },
    runtime::LinePixels,
};

/// Most lines that are read in a picture, all its frames together: the longest.
const MOST_LINES: usize = 200;
/// How far the votes of a page's lines may be from half before they decide which way up it is.
const UNDECIDED: f32 = 0.2;

/// What is written on one page. Cannot be printed for debugging: a user's text must not reach a log.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct PageText {
    /// Its lines in reading order, by passage.
    pub passages: Vec<Vec<String>>,
}

impl PageText {
    /// The lines joined: a passage is running text, and each begins a line.
    pub fn joined(&self) -> String {
        let passages = self.passages.iter().map(|lines| reading::join(lines.iter().map(String::as_str)));
        passages.collect::<Vec<_>>().join("\n")
    }
}

/// A page with the boxes of its lines.
pub(super) struct Sheet {
    pub(super) page: Arc<Page>,
    pub(super) boxes: Vec<TextBox>,
}

/// A line cut out.
pub(super) struct Line {
    /// Which sheet it is of.
    pub(super) sheet: usize,
    pub(super) text_box: TextBox,
    pub(super) strip: Strip,
}

/// A line with what its networks say.
pub(super) struct Read {
    pub(super) text_box: TextBox,
    pub(super) text: String,
}

impl Sheet {
    /// About how many letters there is room for in its lines.
    pub(super) fn extent(&self) -> f32 {
        self.boxes.iter().map(TextBox::letters).sum()
    }

    /// Whether most of its text runs from top to bottom.
    pub(super) fn lies(&self) -> bool {
        let standing = self.boxes.iter().filter(|text_box| text_box.is_standing());
        standing.map(TextBox::letters).sum::<f32>() > self.extent() / 2.0
    }
}

/// The longest lines of all sheets, cut out; and the sizes of the sheets.
pub(super) fn cut(sheets: &[Sheet], rules: &StripRules) -> (Vec<(u32, u32)>, Vec<Line>) {
    let mut boxes: Vec<(usize, TextBox)> = Vec::new();
    for (sheet, found) in sheets.iter().enumerate() {
        boxes.extend(found.boxes.iter().map(|text_box| (sheet, *text_box)));
    }
    boxes.sort_by(|(_, a), (_, b)| b.length().total_cmp(&a.length()));
    boxes.truncate(MOST_LINES);
    let line = |(sheet, text_box): (usize, TextBox)| {
        let strip = Strip::cut(&sheets.get(sheet)?.page, &text_box, rules)?;
        Some(Line { sheet, text_box, strip })
    };
    let lines = boxes.into_par_iter().filter_map(line).collect();
    (sheets.iter().map(|sheet| sheet.page.size()).collect(), lines)
}

/// Counts the votes: a line's weighs by its width.
pub(super) fn counted(lines: Vec<Line>, votes: &[f32], sheets: usize) -> (Vec<bool>, Vec<(Line, bool)>) {
    let mut sums = vec![(0.0_f64, 0.0_f64); sheets];
    for (line, vote) in lines.iter().zip(votes) {
        if let Some((over, all)) = sums.get_mut(line.sheet) {
            let weight = f64::from(line.strip.width());
            *over += weight * f64::from(*vote);
            *all += weight;
        }
    }
    let shares: Vec<f64> = sums.into_iter().map(|(over, all)| if all > 0.0 { over / all } else { 0.0 }).collect();
    let share = |sheet: usize| shares.get(sheet).copied().unwrap_or(0.0);
    let lines = lines
        .into_iter()
        .zip(votes)
        .map(|(line, vote)| {
            let share = share(line.sheet);
            let both = (share - 0.5).abs() < f64::from(UNDECIDED) || (*vote > 0.5) != (share > 0.5);
            (line, both)
        })
        .collect();
    (shares.iter().map(|share| *share > 0.5).collect(), lines)
}

pub(super) fn pixels(strip: &Strip, turned_over: bool, rules: &StripRules) -> LinePixels {
    let (width, rgb) = if turned_over { strip.turned_over().canvas(rules) } else { strip.canvas(rules) };
    LinePixels { width, rgb }
}

/// The lines of every sheet in reading order; sheets on which nothing was read are left out.
pub(super) fn arranged(found: Vec<Vec<Read>>, sizes: &[(u32, u32)], turned_over: &[bool]) -> Vec<PageText> {
    let sheets = found.into_iter().zip(sizes).zip(turned_over);
    let page = |((lines, size), over): ((Vec<Read>, &(u32, u32)), &bool)| {
        let boxes: Vec<TextBox> =
            lines.iter().map(|line| if *over { line.text_box.turned_over(*size) } else { line.text_box }).collect();
        let text = |place: usize| lines.get(place).map(|line| line.text.trim().to_owned());
        let passages = passages(&boxes)
            .into_iter()
            .map(|places| places.into_iter().filter_map(text).filter(|line| !line.is_empty()).collect::<Vec<_>>());
        PageText { passages: passages.filter(|lines| !lines.is_empty()).collect() }
    };
    sheets.map(page).filter(|page| !page.passages.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imaging::{
        Frame,
        reading::{RegionRules, text_boxes},
    };

    const RULES: RegionRules = RegionRules { threshold: 0.3, box_threshold: 0.5, unclip: 1.6 };
    const STRIPS: StripRules = StripRules { height: 8, least_width: 16, width_step: 8, most_width: 64 };

    /// The boxes of level lines of these heights, 40 wide, one below the other with room between them.
    fn boxes(heights: &[usize]) -> Vec<TextBox> {
        let mut map = Vec::new();
        for &height in heights {
            map.extend([0.0; 60].repeat(20));
            map.extend([[0.0; 10].as_slice(), &[0.9; 40], &[0.0; 10]].concat().repeat(height));
        }
        text_boxes(&map, 60, 1.0, &RULES)
    }

    fn lines(count: usize) -> Vec<Line> {
        let page = Page::new(Frame::new(60, 60, vec![0; 60 * 60 * 3]).expect("the bytes fit"), 1);
        let text_box = boxes(&[8])[0];
        (0..count)
            .map(|_| Line { sheet: 0, text_box, strip: Strip::cut(&page, &text_box, &STRIPS).expect("it is cut") })
            .collect()
    }

    #[test]
    fn a_blot_does_not_lay_a_page_on_its_side() {
        // A level line of 60 by 8, and a blot of 24 by 70: longer, but with room for fewer letters.
        let row =
            |line: f32, blot: f32| [[0.0; 5].as_slice(), &[line; 60], &[0.0; 15], &[blot; 24], &[0.0; 6]].concat();
        let map =
            [row(0.0, 0.0).repeat(10), row(0.9, 0.9).repeat(8), row(0.0, 0.9).repeat(62), row(0.0, 0.0).repeat(10)];
        let page = Arc::new(Page::new(Frame::new(110, 90, vec![0; 110 * 90 * 3]).expect("the bytes fit"), 1));
        let mut sheet = Sheet { page, boxes: text_boxes(&map.concat(), 110, 1.0, &RULES) };
        let standing: Vec<_> = sheet.boxes.iter().map(|text_box| (text_box.is_standing(), text_box.length())).collect();
        assert!(matches!(standing[..], [(true, blot), (false, line)] if blot > line), "{standing:?}");
        assert!(!sheet.lies());
        sheet.boxes.truncate(1);
        assert!(sheet.lies());
    }

    #[test]
    fn of_all_pages_together_the_longest_lines_are_read() {
        let long = boxes(&[8])[0];
        // Half as long.
        let short = {
            let mut map = [0.0; 60].repeat(20);
            map.extend([[0.0; 10].as_slice(), &[0.9; 20], &[0.0; 30]].concat().repeat(8));
            map.extend([0.0; 60].repeat(20));
            text_boxes(&map, 60, 1.0, &RULES)[0]
        };
        let sheet = |shorts: usize, longs: usize| Sheet {
            page: Arc::new(Page::new(Frame::new(60, 60, vec![0; 60 * 60 * 3]).expect("the bytes fit"), 2)),
            boxes: [vec![short; shorts], vec![long; longs]].concat(),
        };
        let (sizes, lines) = cut(&[sheet(60, 60), sheet(50, 120)], &STRIPS);
        assert_eq!(sizes.len(), 2);
        assert_eq!(lines.len(), MOST_LINES);
        let of = |sheet: usize| lines.iter().filter(|line| line.sheet == sheet && line.text_box == long).count();
        assert_eq!((of(0), of(1)), (60, 120));
    }

    #[test]
    fn a_decided_page_is_read_its_way_and_a_dissenting_line_both_ways() {
        let both = |votes: &[f32]| {
            let (turned_over, lines) = counted(lines(votes.len()), votes, 1);
            (turned_over[0], lines.iter().map(|(_, both)| *both).collect::<Vec<_>>())
        };
        assert_eq!(both(&[0.1, 0.0, 0.2]), (false, vec![false, false, false]));
        assert_eq!(both(&[1.0, 0.9, 0.9]), (true, vec![false, false, false]));
        assert_eq!(both(&[0.0, 0.1, 0.1, 0.9]), (false, vec![false, false, false, true]));
        assert_eq!(both(&[0.55, 0.4]), (false, vec![true, true]));
    }

    #[test]
    fn lines_are_joined_in_the_order_of_their_page() {
        let found = boxes(&[8, 8]);
        let (upper, lower) = if found[0] == boxes(&[8])[0] { (found[0], found[1]) } else { (found[1], found[0]) };
        let page = |turned_over: bool| {
            let read = |text_box, text: &str| Read { text_box, text: text.into() };
            let sheets = vec![vec![read(lower, " second "), read(upper, "first"), read(lower, " ")], Vec::new()];
            arranged(sheets, &[(60, 56), (60, 56)], &[turned_over, false])
        };
        let joined = |pages: Vec<PageText>| pages.iter().map(PageText::joined).collect::<Vec<_>>();
        let words =
            |turned_over| joined(page(turned_over))[0].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(joined(page(false)).len(), 1, "a page on which nothing is read is left out");
        assert_eq!(words(false), ["first", "second"]);
        assert_eq!(words(true), ["second", "first"]);
    }
}
