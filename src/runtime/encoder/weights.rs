//! The weights of a layer in the order in which products read them.
//!
//! A panel has 32 columns, two vectors of 16. It holds four codes of each column, then the next four, so that a vector of
//! codes times four bytes of a row, the same for all columns, adds to one whole number a column.

use super::{HEAD_SIZES, LANES, PANEL, refused};
use crate::runtime::kv::{Pages, Room};

/// Four codes of each of 16 columns, as long as a line of a cache.
pub(super) type Line = [[i8; 4]; LANES];

/// A product: rows `[.., depth]` times weights of whole numbers.
pub(super) struct Product {
    pub(super) depth: usize,
    pub(super) columns: usize,
    /// Lines [panels, depth / 4, 2].
    codes: Pages,
    /// What the zero of the rounded rows takes off each column's sum [columns].
    pub(super) starts: Vec<i32>,
    /// What a sum is worth, and what is added to it [columns].
    pub(super) factors: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) rounding: Rounding,
    pub(super) exact: Exact,
}

/// How the rows of a product are rounded to whole numbers from 0 to 255.
pub(super) struct Rounding {
    /// An input times the first, and the second, are so many steps, before they are made whole [depth].
    pub(super) scales: Vec<f32>,
    pub(super) shifts: Vec<f32>,
    /// The code of no step.
    pub(super) zero: i16,
    /// The input times the first, less the second [depth], is what is rounded; where none is there, the input.
    pub(super) spread: Option<(Vec<f32>, Vec<f32>)>,
}

impl Rounding {
    /// With so many steps in a whole 1, and the code of 0.
    fn new(depth: usize, steps: f32, zero: i16, spread: Option<(Vec<f32>, Vec<f32>)>) -> Self {
        let (scales, shifts) = match &spread {
            Some((by, less)) => {
                (by.iter().map(|by| by * steps).collect(), less.iter().map(|less| -less * steps).collect())
            }
            None => (vec![steps; depth], vec![0.0; depth]),
        };
        Self { scales, shifts, zero, spread }
    }

    /// What is rounded for an input.
    pub(super) fn even(&self, channel: usize, input: f32) -> f32 {
        match &self.spread {
            Some((by, less)) => input * by[channel] - less[channel],
            None => input,
        }
    }
}

/// Channels that are multiplied unrounded besides; none in most products.
#[derive(Default)]
pub(super) struct Exact {
    pub(super) chosen: Vec<usize>,
    /// [chosen, columns].
    pub(super) weights: Vec<f32>,
}

impl Product {
    /// `codes` `[depth, columns]`; `step` is what a step of the rounded rows is worth, with the code of their zero. They
    /// lie in `room`.
    ///
    /// # Errors
    /// [`ort::Error`] for tensors that do not fit each other, or without the memory.
    pub(super) fn new(
        codes: &[i8],
        scales: &[f32],
        bias: Vec<f32>,
        (step, zero): (f32, u8),
        spread: Option<(Vec<f32>, Vec<f32>)>,
        exact: Option<(Vec<i64>, Vec<f32>)>,
        room: &mut Room,
    ) -> Result<Self, ort::Error> {
        let columns = scales.len();
        let depth = codes.len().checked_div(columns).unwrap_or(0);
        let exact = match exact {
            None => Exact::default(),
            Some((chosen, weights)) => {
                let chosen: Option<Vec<usize>> = chosen.into_iter().map(|place| usize::try_from(place).ok()).collect();
                Exact { chosen: chosen.ok_or_else(|| refused("place"))?, weights }
            }
        };
        let fits = depth > 0
            && codes.len() == depth * columns
            && depth.is_multiple_of(PANEL)
            && columns.is_multiple_of(PANEL)
            && bias.len() == columns
            && spread.as_ref().is_none_or(|(by, less)| by.len() == depth && less.len() == depth)
            && exact.chosen.iter().all(|place| *place < depth)
            && exact.weights.len() == exact.chosen.len() * columns
            && step > 0.0;
        if !fits {
            return Err(refused("shape"));
        }
        let mut sums = vec![0_i32; columns];
        for row in codes.chunks_exact(columns) {
            sums.iter_mut().zip(row).for_each(|(sum, code)| *sum += i32::from(*code));
        }
        let mut packed =
            room.zeroed(codes.len()).map_err(|error| ort::Error::new(format!("no memory for weights ({error})")))?;
        for (panel, lines) in packed.chunks_exact_mut(depth * PANEL).enumerate() {
            let fours = lines.chunks_exact_mut(4 * PANEL).zip(codes.chunks_exact(4 * columns));
            for (lines, rows) in fours {
                for (within, row) in rows.chunks_exact(columns).enumerate() {
                    let of_panel = &row[panel * PANEL..][..PANEL];
                    for (four, code) in lines.as_chunks_mut::<4>().0.iter_mut().zip(of_panel) {
                        four[within] = code.cast_unsigned();
                    }
                }
            }
        }
        Ok(Self {
            depth,
            columns,
            codes: packed,
            starts: sums.into_iter().map(|sum| -sum * i32::from(zero)).collect(),
            factors: scales.iter().map(|scale| scale * step).collect(),
            bias,
            rounding: Rounding::new(depth, 1.0 / step, zero.into(), spread),
            exact,
        })
    }

    /// A panel's lines, two for every four codes of a column.
    pub(super) fn panel(&self, index: usize) -> &[[u8; 2 * size_of::<Line>()]] {
        let bytes = self.depth * PANEL;
        self.codes[index * bytes..][..bytes].as_chunks().0
    }
}

/// A normalisation over a row: its scale and its shift [width].
pub(super) type Norm = (Vec<f32>, Vec<f32>);

/// All weights of a layer.
pub(super) struct Layer {
    pub(super) packed: Product,
    pub(super) attended: Product,
    pub(super) inner: Product,
    pub(super) down: Product,
    pub(super) first: Norm,
    pub(super) second: Norm,
    pub(super) heads: usize,
    pub(super) epsilon: f32,
}

impl Layer {
    /// # Errors
    /// [`ort::Error`] for parts that do not fit each other.
    pub(super) fn new(
        [packed, attended, inner, down]: [Product; 4],
        [first, second]: [Norm; 2],
        heads: usize,
        epsilon: f32,
    ) -> Result<Self, ort::Error> {
        let width = packed.depth;
        let fits = packed.columns == 3 * width
            && (attended.depth, attended.columns) == (width, width)
            && inner.depth == width
            && (down.depth, down.columns) == (inner.columns, width)
            && [&first, &second].into_iter().all(|(scale, shift)| scale.len() == width && shift.len() == width)
            && heads > 0
            && width.is_multiple_of(heads)
            && HEAD_SIZES.contains(&(width / heads));
        if !fits {
            return Err(refused("width"));
        }
        Ok(Self { packed, attended, inner, down, first, second, heads, epsilon })
    }

    pub(super) fn width(&self) -> usize {
        self.packed.depth
    }
}
