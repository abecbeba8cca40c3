//! Points, rectangles at any angle, and the way between real numbers and places in a picture.

use std::ops::{Add, Mul, Sub};

/// A place, or a way, in pixels; y grows downwards. A pixel covers the unit square from its coordinates on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f32,
    pub(super) y: f32,
}

impl Point {
    /// The share of `self` along `other`, where that has the length 1.
    pub(super) fn along(self, other: Self) -> f32 {
        self.x * other.x + self.y * other.y
    }

    /// A quarter turn clockwise as seen: from pointing right to pointing down.
    pub(super) fn across(self) -> Self {
        Self { x: -self.y, y: self.x }
    }
}

impl Add for Point {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { x: self.x + other.x, y: self.y + other.y }
    }
}

impl Sub for Point {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { x: self.x - other.x, y: self.y - other.y }
    }
}

impl Mul<f32> for Point {
    type Output = Self;

    fn mul(self, factor: f32) -> Self {
        Self { x: self.x * factor, y: self.y * factor }
    }
}

/// How much longer than wide a rectangle is whose text runs from top to bottom.
const STANDING: f32 = 1.5;

/// A rectangle at any angle around a line of text, in pixels of its page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextBox {
    pub(super) centre: Point,
    /// The way, of length 1, of the two sides that are nearest to the horizontal; points right.
    pub(super) axis: Point,
    /// Length of those sides.
    pub(super) width: f32,
    /// Length of the other two.
    pub(super) height: f32,
}

impl TextBox {
    /// Length of the line of text.
    pub fn length(&self) -> f32 {
        self.width.max(self.height)
    }

    /// About how many letters there is room for: a line has more than a blot that is as long.
    pub fn letters(&self) -> f32 {
        self.length() / self.thickness().max(1.0)
    }

    /// Whether its text runs from top to bottom, or the page lies on its side.
    pub fn is_standing(&self) -> bool {
        self.height > self.width * STANDING
    }

    /// The same box once its page of this size is turned upside down.
    #[must_use]
    pub fn turned_over(self, page: (u32, u32)) -> Self {
        let size = Point { x: real(page.0 as usize), y: real(page.1 as usize) };
        Self { centre: size - self.centre, ..self }
    }

    /// Height of a letter with its space above and below.
    pub(super) fn thickness(&self) -> f32 {
        if self.is_standing() { self.width } else { self.height }
    }

    /// The same box in pixels of which one old one has this many.
    pub(super) fn scaled(self, factor: f32) -> Self {
        Self { centre: self.centre * factor, width: self.width * factor, height: self.height * factor, ..self }
    }

    /// With this much more on each side.
    pub(super) fn grown(self, margin: f32) -> Self {
        Self { width: self.width + 2.0 * margin, height: self.height + 2.0 * margin, ..self }
    }

    pub(super) fn area(&self) -> f32 {
        self.width * self.height
    }
}

/// A place or a count as a number to reckon with.
#[expect(clippy::cast_precision_loss, reason = "pictures have far fewer than 2^24 pixels a side")]
pub(super) fn real(value: usize) -> f32 {
    value as f32
}

/// The whole number at or below; 0 for what is negative or no number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as it should")]
pub(super) fn whole(value: f32) -> usize {
    value as usize
}

/// The nearest value of a colour.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as it should")]
pub(super) fn byte(value: f32) -> u8 {
    (value + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_saturate() {
        assert_eq!((whole(-3.5), whole(f32::NAN), whole(2.9)), (0, 0, 2));
        assert_eq!((byte(-1.0), byte(254.6), byte(999.0), byte(f32::NAN)), (0, 255, 255, 0));
        assert_eq!(whole(f32::INFINITY), usize::MAX);
    }

    #[test]
    fn a_box_turns_over_about_the_middle_of_its_page() {
        let axis = Point { x: 1.0, y: 0.0 };
        let text_box = TextBox { centre: Point { x: 10.0, y: 5.0 }, axis, width: 8.0, height: 4.0 };
        let turned = text_box.turned_over((100, 50));
        assert_eq!(turned.centre, Point { x: 90.0, y: 45.0 });
        assert_eq!(turned.turned_over((100, 50)), text_box);
    }

    #[test]
    fn only_what_is_clearly_taller_than_wide_stands() {
        let axis = Point { x: 1.0, y: 0.0 };
        let sized = |width, height| TextBox { centre: Point { x: 0.0, y: 0.0 }, axis, width, height };
        assert!(!sized(20.0, 30.0).is_standing() && sized(20.0, 31.0).is_standing());
        assert_eq!((sized(20.0, 40.0).thickness(), sized(20.0, 40.0).length()), (20.0, 40.0));
        assert_eq!((sized(20.0, 25.0).thickness(), sized(40.0, 20.0).length()), (25.0, 40.0));
    }
}
