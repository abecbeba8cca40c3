//! The order in which the lines of a page are read: columns, rows, passages.
//!
//! A page is cut along its white space (Nagy and Seth's recursive X-Y cut): along a gutter with lines side by side, or
//! else between the rows that are farthest apart. What cannot be cut is read in rows.

use super::super::geometry::{Point, TextBox};

/// What a box has more than its letters on each side, for its height: detectors give a line room, in which
/// neighbouring lines overlap.
const MARGIN: f32 = 0.3;
/// Least width of a gutter, for the height of a line with its room.
const GUTTER: f32 = 0.8;
/// Least gap between two passages, for the height of a line with its room.
const PARAGRAPH: f32 = 1.0;

/// Where the letters of a line are, on a page turned so that lines are level.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Which line.
    place: usize,
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

/// The places of `boxes` in reading order, in passages: lines that follow each other closely in one column.
pub fn passages(boxes: &[TextBox]) -> Vec<Vec<usize>> {
    if boxes.is_empty() {
        return Vec::new();
    }
    let axis = boxes.iter().max_by(|a, b| a.width.total_cmp(&b.width)).map_or(Point { x: 1.0, y: 0.0 }, |b| b.axis);
    let blocks: Vec<Block> = boxes.iter().enumerate().map(|(place, text_box)| block(place, text_box, axis)).collect();
    let line = median(boxes.iter().map(TextBox::thickness).collect());
    let mut passages = Vec::new();
    arrange(blocks, line, true, &mut passages);
    passages
}

/// `axis` is the way of the page's longest line.
fn block(place: usize, text_box: &TextBox, axis: Point) -> Block {
    let (x, y) = (text_box.centre.along(axis), text_box.centre.along(axis.across()));
    let margin = text_box.thickness() * MARGIN;
    let (wide, high) = ((text_box.width / 2.0 - margin).max(0.0), (text_box.height / 2.0 - margin).max(0.0));
    Block { place, left: x - wide, right: x + wide, top: y - high, bottom: y + high }
}

fn median(mut values: Vec<f32>) -> f32 {
    values.sort_by(f32::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Appends the blocks in reading order; `fresh` says that they begin a passage. Each cut leaves two smaller parts, so
/// the depth is at most the number of lines.
fn arrange(mut blocks: Vec<Block>, line: f32, fresh: bool, passages: &mut Vec<Vec<usize>>) {
    blocks.sort_by(|a, b| a.left.total_cmp(&b.left));
    for (at, gap) in gaps(&blocks, |block| (block.left, block.right)) {
        if gap < line * GUTTER {
            break;
        }
        let (left, right) = blocks.split_at(at);
        if side_by_side(left, right) {
            let right = blocks.split_off(at);
            arrange(blocks, line, fresh, passages);
            arrange(right, line, true, passages);
            return;
        }
    }
    blocks.sort_by(|a, b| a.top.total_cmp(&b.top));
    if let Some(&(at, gap)) = gaps(&blocks, |block| (block.top, block.bottom)).first() {
        let below = blocks.split_off(at);
        arrange(blocks, line, fresh, passages);
        arrange(below, line, gap > line * PARAGRAPH, passages);
        return;
    }
    if fresh || passages.is_empty() {
        passages.push(Vec::new());
    }
    if let Some(passage) = passages.last_mut() {
        passage.extend(rows(blocks, line));
    }
}

/// Where nothing of what comes before reaches what comes after: the place of the first block after it and the width of
/// the gap, the widest first and of equals the first. `blocks` are sorted by the start of their `span`.
fn gaps(blocks: &[Block], span: impl Fn(&Block) -> (f32, f32)) -> Vec<(usize, f32)> {
    let mut reached = f32::INFINITY;
    let mut gaps = Vec::new();
    for (at, (start, end)) in blocks.iter().map(span).enumerate() {
        if start > reached {
            gaps.push((at, start - reached));
        }
        reached = if at == 0 { end } else { reached.max(end) };
    }
    // The sort is stable.
    gaps.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    gaps
}

/// Whether at least half the lines of the smaller side have one of the other beside them. Lines that only stand on
/// different sides, one below the other, are no columns: a chat, or the two lines of a meme.
fn side_by_side(left: &[Block], right: &[Block]) -> bool {
    let (few, many) = if left.len() <= right.len() { (left, right) } else { (right, left) };
    let beside = |one: &&Block| {
        many.iter().any(|other| {
            let shared = one.bottom.min(other.bottom) - one.top.max(other.top);
            shared > 0.5 * (one.bottom - one.top).min(other.bottom - other.top)
        })
    };
    few.iter().filter(beside).count() * 2 >= few.len()
}

/// Rows from the top, each from the left: a block whose middle is within half a line of a row's first belongs to it.
fn rows(mut blocks: Vec<Block>, line: f32) -> Vec<usize> {
    let middle = |block: &Block| f32::midpoint(block.top, block.bottom);
    blocks.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
    let mut order = Vec::with_capacity(blocks.len());
    let mut row: Vec<Block> = Vec::new();
    for block in blocks {
        if row.first().is_some_and(|first| middle(&block) - middle(first) > line / 2.0) {
            order.extend(from_left(&mut row));
        }
        row.push(block);
    }
    order.extend(from_left(&mut row));
    order
}

/// Empties a row.
fn from_left(row: &mut Vec<Block>) -> Vec<usize> {
    row.sort_by(|a, b| a.left.total_cmp(&b.left));
    row.drain(..).map(|block| block.place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of letters 16 high in a box of 40, as the detector gives it.
    fn line(left: f32, right: f32, y: f32) -> TextBox {
        let centre = Point { x: f32::midpoint(left, right), y };
        TextBox { centre, axis: Point { x: 1.0, y: 0.0 }, width: right - left + 24.0, height: 40.0 }
    }

    #[test]
    fn rows_go_from_the_top_and_from_the_left() {
        let boxes = [line(0.0, 300.0, 80.0), line(160.0, 300.0, 41.0), line(0.0, 150.0, 40.0), line(0.0, 300.0, 0.0)];
        assert_eq!(passages(&boxes), [[3, 2, 1, 0]]);
        assert!(passages(&[]).is_empty());
    }

    #[test]
    fn columns_are_read_one_after_the_other_below_their_heading() {
        let mut boxes = vec![line(50.0, 750.0, 0.0)];
        for row in 0..4_u8 {
            let y = 80.0 + f32::from(row) * 34.0;
            boxes.push(line(0.0, 380.0, y));
            boxes.push(line(430.0, 800.0, y + 3.0));
        }
        assert_eq!(passages(&boxes), [vec![0], vec![1, 3, 5, 7], vec![2, 4, 6, 8]]);
    }

    #[test]
    fn the_two_sides_of_a_chat_are_no_columns() {
        let boxes =
            [line(0.0, 300.0, 0.0), line(400.0, 700.0, 60.0), line(0.0, 300.0, 120.0), line(400.0, 700.0, 180.0)];
        assert_eq!(passages(&boxes).concat(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_wide_gap_begins_a_passage() {
        let boxes = [line(0.0, 300.0, 0.0), line(0.0, 200.0, 34.0), line(0.0, 300.0, 120.0), line(0.0, 300.0, 154.0)];
        assert_eq!(passages(&boxes), [[0, 1], [2, 3]]);
    }

    #[test]
    fn a_slanted_page_is_read_along_its_lines() {
        let (sin, cos) = (-6.0_f32).to_radians().sin_cos();
        let axis = Point { x: cos, y: sin };
        let slanted = |text_box: TextBox| TextBox {
            centre: axis * text_box.centre.x + axis.across() * text_box.centre.y,
            axis,
            ..text_box
        };
        let mut boxes = Vec::new();
        for row in 0..5_u8 {
            let y = f32::from(row) * 34.0;
            boxes.push(slanted(line(500.0, 1000.0, y)));
            boxes.push(slanted(line(0.0, 440.0, y)));
        }
        assert_eq!(passages(&boxes).concat(), [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]);
    }

    #[test]
    fn every_line_comes_once_whatever_the_boxes_are() {
        let odd = |at: u16| {
            let value = f32::from(at.wrapping_mul(40_503)) / 100.0;
            let centre = Point { x: value, y: value % 97.0 };
            TextBox { centre, axis: Point { x: 1.0, y: 0.0 }, width: value % 61.0, height: value % 23.0 }
        };
        let mut boxes: Vec<TextBox> = (0..200).map(odd).collect();
        boxes.push(TextBox { centre: Point { x: f32::NAN, y: f32::INFINITY }, width: f32::NAN, ..odd(1) });
        let mut places = passages(&boxes).concat();
        places.sort_unstable();
        assert_eq!(places, (0..201).collect::<Vec<_>>());
    }
}
