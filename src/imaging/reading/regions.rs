//! From a detector's map to boxes around lines of text.
//!
//! The post-processing of differentiable binarisation (Liao et al., "Real-time Scene Text Detection with Differentiable
//! Binarization", AAAI 2020): regions above a threshold, the smallest rectangle around each, its mean probability, and
//! the rectangle grown again by what the network was trained to shrink it.

use super::super::geometry::{Point, TextBox, real, whole};

/// Most regions that are looked at, the largest first: a map of noise must not cost more than a page of text.
const MOST_REGIONS: usize = 1000;
/// Shortest side of a region, in pixels of the map.
const LEAST_SIDE: f32 = 3.0;
/// Shortest side of a grown box, in pixels of the map.
const LEAST_GROWN_SIDE: f32 = 5.0;
/// Mean probability from which a region of a reduced page is a sign of text: small letters leave a pale spot there.
const SIGN_MEAN: f32 = 0.4;
/// Shorter side, in pixels of the map, up to which a region of any shape is a sign. A larger one is only if it is
/// `SIGN_LENGTH` times as long as high: the detector also takes blurred things for text, and these whole.
const SIGN_SIDE: f32 = 64.0;
const SIGN_LENGTH: f32 = 2.0;
/// Up to this slope a side counts as level: nothing is divided by it.
const LEVEL: f32 = 1e-4;

/// What counts as text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionRules {
    /// A pixel belongs to a region above this probability.
    pub threshold: f32,
    /// A region is text from this mean probability on.
    pub box_threshold: f32,
    /// Area over perimeter, times this, is how far each side of a box moves out.
    pub unclip: f32,
}

/// Consecutive pixels of a row that are above the threshold, and so are their neighbours in the region.
#[derive(Clone, Copy)]
struct Run {
    row: usize,
    start: usize,
    end: usize,
}

/// The boxes in a map `[height, width]` of probabilities, in pixels of the page, where `scale` is pixels of the map for
/// a pixel of the page. Values beyond the last whole row are ignored.
pub fn text_boxes(map: &[f32], width: usize, scale: f32, rules: &RegionRules) -> Vec<TextBox> {
    if width == 0 || scale.is_nan() || scale <= 0.0 {
        return Vec::new();
    }
    let mut regions = regions(map, width, rules.threshold);
    regions.sort_by_cached_key(|runs| std::cmp::Reverse(runs.iter().map(|run| run.end - run.start).sum::<usize>()));
    let boxes = regions.iter().take(MOST_REGIONS).filter_map(|runs| {
        let tight = smallest_box(&hull(corners(runs)))?;
        if tight.width.min(tight.height) < LEAST_SIDE || mean(map, width, &tight) < rules.box_threshold {
            return None;
        }
        let perimeter = 2.0 * (tight.width + tight.height);
        let grown = tight.grown(tight.area() * rules.unclip / perimeter);
        (grown.width.min(grown.height) >= LEAST_GROWN_SIDE).then(|| grown.scaled(1.0 / scale))
    });
    boxes.collect()
}

/// Whether a map `[height, width]` of a reduced page shows signs of text, so that it is worth being looked at in full.
/// Generous where `text_boxes` is strict: a region may be small and pale.
pub fn shows_signs(map: &[f32], width: usize, threshold: f32) -> bool {
    let is_line = |around: &TextBox| {
        let (short, long) = (around.width.min(around.height), around.width.max(around.height));
        short <= SIGN_SIDE || long >= short * SIGN_LENGTH
    };
    places(map, width, threshold).iter().any(is_line)
}

/// Boxes around whatever of a reduced page could be text, of any size and shape, in pixels of the page, where `scale` is
/// pixels of the map for a pixel of the page: the detector melts lines that are too small for it into what is near them.
pub fn signs(map: &[f32], width: usize, scale: f32, threshold: f32) -> Vec<TextBox> {
    if scale.is_nan() || scale <= 0.0 {
        return Vec::new();
    }
    places(map, width, threshold).into_iter().map(|around| around.scaled(1.0 / scale)).collect()
}

/// Boxes, in pixels of the map, around its regions that are not too pale.
fn places(map: &[f32], width: usize, threshold: f32) -> Vec<TextBox> {
    if width == 0 {
        return Vec::new();
    }
    let regions = regions(map, width, threshold);
    let dark = regions.iter().filter(|runs| mean_of(map, width, runs) >= SIGN_MEAN);
    dark.filter_map(|runs| smallest_box(&hull(corners(runs)))).collect()
}

/// The mean of the map over a region's own pixels.
fn mean_of(map: &[f32], width: usize, runs: &[Run]) -> f32 {
    let values = runs.iter().filter_map(|run| map.get(run.row * width + run.start..run.row * width + run.end));
    let (sum, count) =
        values.fold((0.0, 0), |(sum, count), values| (sum + values.iter().sum::<f32>(), count + values.len()));
    sum / real(count.max(1))
}

/// The regions of pixels above the threshold that touch, corners included, as their runs from the top.
fn regions(map: &[f32], width: usize, threshold: f32) -> Vec<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut parents: Vec<usize> = Vec::new();
    let mut above = 0..0;
    for (row, values) in map.chunks_exact(width).enumerate() {
        let first = runs.len();
        let mut start = 0;
        for stretch in values.chunk_by(|a, b| (*a > threshold) == (*b > threshold)) {
            let end = start + stretch.len();
            if stretch.first().is_some_and(|value| *value > threshold) {
                parents.push(runs.len());
                runs.push(Run { row, start, end });
            }
            start = end;
        }
        let (mut upper, mut lower) = (above.start, first);
        while upper < above.end {
            let (Some(over), Some(under)) = (runs.get(upper), runs.get(lower)) else { break };
            if over.start <= under.end && under.start <= over.end {
                unite(&mut parents, upper, lower);
            }
            if over.end < under.end {
                upper += 1;
            } else {
                lower += 1;
            }
        }
        above = first..runs.len();
    }
    let mut regions: Vec<Vec<Run>> = Vec::new();
    regions.resize_with(runs.len(), Vec::new);
    for (place, run) in runs.into_iter().enumerate() {
        if let Some(region) = regions.get_mut(root(&mut parents, place)) {
            region.push(run);
        }
    }
    regions.retain(|runs| !runs.is_empty());
    regions
}

/// The first run of the region that the run at `place` belongs to, as far as it is known.
fn root(parents: &mut [usize], mut place: usize) -> usize {
    while let Some(&parent) = parents.get(place)
        && parent != place
    {
        // Halves the way for the next one who asks.
        let grandparent = parents.get(parent).copied().unwrap_or(parent);
        if let Some(mine) = parents.get_mut(place) {
            *mine = grandparent;
        }
        place = grandparent;
    }
    place
}

fn unite(parents: &mut [usize], one: usize, other: usize) {
    let (one, other) = (root(parents, one), root(parents, other));
    if let Some(parent) = parents.get_mut(one.max(other)) {
        *parent = one.min(other);
    }
}

/// The corners of the pixels at the ends of each run.
fn corners(runs: &[Run]) -> Vec<Point> {
    let of = |run: &Run| {
        let (left, right) = (real(run.start), real(run.end));
        let (top, bottom) = (real(run.row), real(run.row) + 1.0);
        [(left, top), (right, top), (left, bottom), (right, bottom)].map(|(x, y)| Point { x, y })
    };
    runs.iter().flat_map(of).collect()
}

/// The corners of the convex hull, in order around it: Andrew's monotone chain.
fn hull(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    points.dedup();
    let mut corners = chain(points.iter().copied());
    let mut back = chain(points.iter().rev().copied());
    // The ends of one chain are those of the other.
    corners.pop();
    back.pop();
    corners.extend(back);
    corners
}

/// One side of the hull: only turns the same way are kept.
fn chain(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut chain: Vec<Point> = Vec::new();
    for point in points {
        while let [.., before, last] = *chain.as_slice()
            && (last - before).across().along(point - last) <= 0.0
        {
            chain.pop();
        }
        chain.push(point);
    }
    chain
}

/// The rectangle of the smallest area around a convex hull: one of its sides lies on a side of the hull.
fn smallest_box(hull: &[Point]) -> Option<TextBox> {
    let nexts = hull.iter().cycle().skip(1);
    let boxes = hull.iter().zip(nexts).filter_map(|(&from, &to)| {
        let way = to - from;
        let length = way.x.hypot(way.y);
        (length > 0.0).then(|| box_along(hull, way * (1.0 / length)))
    });
    boxes.min_by(|a, b| a.area().total_cmp(&b.area()))
}

/// The rectangle around points with a side along `way`.
fn box_along(points: &[Point], way: Point) -> TextBox {
    let level = if way.x.abs() < way.y.abs() { way.across() } else { way };
    let axis = if level.x < 0.0 { level * -1.0 } else { level };
    let span = |way: Point| {
        let ends = (f32::INFINITY, f32::NEG_INFINITY);
        points.iter().map(|point| point.along(way)).fold(ends, |(low, high), at| (low.min(at), high.max(at)))
    };
    let ((left, right), (top, bottom)) = (span(axis), span(axis.across()));
    let centre = axis * f32::midpoint(left, right) + axis.across() * f32::midpoint(top, bottom);
    TextBox { centre, axis, width: right - left, height: bottom - top }
}

/// The mean of the map over the pixels whose middle lies in the box; 0 where there is none.
fn mean(map: &[f32], width: usize, text_box: &TextBox) -> f32 {
    let TextBox { centre, axis, .. } = *text_box;
    let (half_width, half_height) = (text_box.width / 2.0, text_box.height / 2.0);
    // How far the box reaches up and down.
    let reach = half_width * axis.y.abs() + half_height * axis.x;
    let top = whole(centre.y - reach);
    let rows = whole(2.0 * reach).saturating_add(2);
    let mut sum = 0.0_f64;
    let mut count = 0_usize;
    for (row, values) in map.chunks_exact(width).enumerate().skip(top).take(rows) {
        let down = real(row) + 0.5 - centre.y;
        // Between the two ends of the line; `axis.x` is at least 0.7.
        let mut from = (-half_width - down * axis.y) / axis.x;
        let mut to = (half_width - down * axis.y) / axis.x;
        // And between its upper and its lower side.
        let off = down * axis.x;
        if axis.y.abs() > LEVEL {
            let (one, other) = ((off - half_height) / axis.y, (off + half_height) / axis.y);
            from = from.max(one.min(other));
            to = to.min(one.max(other));
        } else if off.abs() > half_height {
            continue;
        }
        let first = whole((centre.x + from - 0.5).ceil());
        // Behind the last middle that is inside.
        let end = whole((centre.x + to + 0.5).floor());
        let inside = values.get(first..end.min(width)).unwrap_or_default();
        sum += inside.iter().map(|&value| f64::from(value)).sum::<f64>();
        count += inside.len();
    }
    #[expect(clippy::cast_possible_truncation, reason = "a mean of probabilities")]
    let sum = sum as f32;
    sum / real(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: RegionRules = RegionRules { threshold: 0.3, box_threshold: 0.5, unclip: 1.6 };

    /// A map of 100 by 60 that is 0.9 where `inside` holds for a pixel's middle.
    fn map(inside: impl Fn(f32, f32) -> bool) -> Vec<f32> {
        let pixel = |row: usize, column: usize| if inside(real(column) + 0.5, real(row) + 0.5) { 0.9 } else { 0.01 };
        (0..60)
            .flat_map(|row| (0..100).map(move |column| (row, column)))
            .map(|(row, column)| pixel(row, column))
            .collect()
    }

    fn within(x: f32, low: f32, high: f32) -> bool {
        (low..high).contains(&x)
    }

    #[test]
    fn a_line_becomes_a_grown_box() {
        let map = map(|x, y| within(x, 20.0, 60.0) && within(y, 10.0, 20.0));
        let found = text_boxes(&map, 100, 1.0, &RULES);
        assert_eq!(found.len(), 1);
        // 40 × 10 / 100 × 1.6 on each side.
        let TextBox { centre, axis, width, height } = found[0];
        assert_eq!((centre, axis), (Point { x: 40.0, y: 15.0 }, Point { x: 1.0, y: 0.0 }));
        assert!((width - 52.8).abs() < 1e-3 && (height - 22.8).abs() < 1e-3, "{width} {height}");
        let halved = text_boxes(&map, 100, 2.0, &RULES);
        assert_eq!(halved, [found[0].scaled(0.5)]);
    }

    #[test]
    fn lines_apart_are_apart_and_corners_hold_together() {
        let two = map(|x, y| within(x, 5.0, 90.0) && (within(y, 5.0, 12.0) || within(y, 20.0, 30.0)));
        let found = text_boxes(&two, 100, 1.0, &RULES);
        assert_eq!(found.iter().map(|text_box| text_box.centre.y).collect::<Vec<_>>(), [25.0, 8.5]);
        let stairs = map(|x, y| {
            (within(x, 5.0, 20.0) && within(y, 5.0, 15.0)) || (within(x, 20.0, 35.0) && within(y, 15.0, 25.0))
        });
        assert_eq!(regions(&stairs, 100, 0.3).len(), 1);
    }

    #[test]
    fn branches_that_meet_late_are_one_region() {
        // A comb: five teeth that touch only in their last rows.
        let comb = map(|x, y| within(x, 10.0, 55.0) && within(y, 10.0, 50.0) && (y > 45.0 || x % 10.0 < 5.0));
        let found = regions(&comb, 100, 0.3);
        assert_eq!(found.len(), 1);
        let pixels: usize = found[0].iter().map(|run| run.end - run.start).sum();
        assert_eq!(pixels, comb.iter().filter(|value| **value > 0.3).count());
    }

    #[test]
    fn a_slanted_line_has_a_slanted_box() {
        let (sin, cos) = 20.0_f32.to_radians().sin_cos();
        let map = map(|x, y| {
            let (x, y) = (x - 50.0, y - 30.0);
            (x * cos + y * sin).abs() < 30.0 && (y * cos - x * sin).abs() < 5.0
        });
        let found = text_boxes(&map, 100, 1.0, &RULES);
        assert_eq!(found.len(), 1);
        let text_box = found[0];
        let angle = text_box.axis.y.atan2(text_box.axis.x).to_degrees();
        assert!((angle - 20.0).abs() < 3.0, "{angle}");
        assert!((text_box.centre - Point { x: 50.0, y: 30.0 }).x.abs() < 1.5);
        assert!((text_box.width - 74.0).abs() < 5.0 && (text_box.height - 24.0).abs() < 5.0, "{text_box:?}");
    }

    #[test]
    fn a_standing_line_is_taller_than_wide() {
        let map = map(|x, y| within(x, 20.0, 28.0) && within(y, 5.0, 55.0));
        let found = text_boxes(&map, 100, 1.0, &RULES);
        assert!(found.len() == 1 && found[0].is_standing() && found[0].axis.x > 0.9);
    }

    #[test]
    fn specks_frames_and_doubtful_regions_are_no_text() {
        assert_eq!(text_boxes(&map(|x, y| within(x, 5.0, 50.0) && within(y, 5.0, 7.0)), 100, 1.0, &RULES), []);
        let frame =
            map(|x, y| within(x, 5.0, 95.0) && within(y, 5.0, 55.0) && !(within(x, 9.0, 91.0) && within(y, 9.0, 51.0)));
        assert_eq!(text_boxes(&frame, 100, 1.0, &RULES), []);
        let pale: Vec<f32> = map(|_, y| within(y, 10.0, 20.0)).iter().map(|value| value / 2.0).collect();
        assert_eq!(text_boxes(&pale, 100, 1.0, &RULES), []);
    }

    #[test]
    fn signs_are_not_too_pale_and_for_a_glance_small_or_long() {
        let shows = |map: &[f32]| shows_signs(map, 100, RULES.threshold);
        let paler = |map: Vec<f32>, by: f32| map.iter().map(|value| value * by).collect::<Vec<_>>();
        let small = |x: f32, y: f32| within(x, 20.0, 24.0) && within(y, 10.0, 12.0);
        assert_eq!(text_boxes(&map(small), 100, 1.0, &RULES), [], "too small to be found");
        assert!(shows(&map(small)) && shows(&paler(map(small), 0.5)));
        assert!(!shows(&paler(map(small), 0.4)), "0.36");
        // A face, and a headline as high.
        let block = |long: usize| {
            let row = |row: usize| (0..200).map(move |column| if row < 80 && column < long { 0.9 } else { 0.0 });
            let map = (0..100).flat_map(row).collect::<Vec<f32>>();
            assert_eq!(signs(&map, 200, 1.0, RULES.threshold).len(), 1, "of any shape");
            shows_signs(&map, 200, RULES.threshold)
        };
        assert!(!block(100) && block(180));
        assert!(!shows(&map(|_, _| false)) && !shows_signs(&[], 0, 0.3) && !shows_signs(&[f32::NAN; 100], 10, 0.3));
        for (map, width, scale) in [(vec![], 0, 1.0), (vec![f32::NAN; 100], 10, 1.0), (vec![0.9; 100], 10, 0.0)] {
            assert_eq!(signs(&map, width, scale, 0.3), []);
        }
        let half = signs(&map(small), 100, 0.5, RULES.threshold);
        assert_eq!(half.iter().map(|sign| sign.centre).collect::<Vec<_>>(), [Point { x: 44.0, y: 22.0 }]);
    }

    #[test]
    fn no_map_is_too_odd() {
        for (map, width) in [(Vec::<f32>::new(), 0), (vec![], 7), (vec![0.9; 5], 7), (vec![0.9; 70], 0)] {
            assert_eq!(text_boxes(&map, width, 1.0, &RULES), []);
        }
        assert_eq!(text_boxes(&[f32::NAN; 100], 10, 1.0, &RULES), []);
        assert_eq!(text_boxes(&[0.9; 100], 10, 1.0, &RULES).len(), 1);
        for scale in [0.0, -1.0, f32::NAN] {
            assert_eq!(text_boxes(&[0.9; 100], 10, scale, &RULES), []);
        }
        // As many regions as there can be.
        let dots: Vec<f32> = (0..10_000).map(|at| if at % 2 == 0 && at / 100 % 2 == 0 { 0.9 } else { 0.0 }).collect();
        assert_eq!(text_boxes(&dots, 100, 1.0, &RULES), []);
    }
}
