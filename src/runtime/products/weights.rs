//! Matrices of block-quantised weights as a graph holds them.

use super::{BLOCK, refused};

/// Bits of a weight's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bits {
    Four,
    Eight,
}

impl Bits {
    /// In what parts of a code's step zero points are.
    pub(super) fn parts(self) -> f32 {
        match self {
            Self::Four => 1.0 / 16.0,
            Self::Eight => 1.0,
        }
    }
}

impl TryFrom<usize> for Bits {
    type Error = ort::Error;

    fn try_from(bits: usize) -> Result<Self, ort::Error> {
        match bits {
            4 => Ok(Self::Four),
            8 => Ok(Self::Eight),
            _ => Err(refused("number of bits")),
        }
    }
}

/// The shape of a matrix of weights: `columns` outputs, each of `depth` codes in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) bits: Bits,
    /// Whether zero points are of sixteenths, a byte each; of 4 bits only.
    pub(super) fine: bool,
    pub(super) depth: usize,
    pub(super) columns: usize,
}

impl Layout {
    /// Blocks of a column.
    pub(super) fn blocks(&self) -> usize {
        self.depth / BLOCK
    }

    /// Lines of 64 bytes that hold the codes of a block of 16 columns.
    pub(super) fn lines_of_a_block(&self) -> usize {
        match self.bits {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }

    /// Bytes of a column's codes.
    pub(super) fn code_bytes(&self) -> usize {
        match self.bits {
            Bits::Four => self.depth / 2,
            Bits::Eight => self.depth,
        }
    }

    /// Bytes of a column's zero points.
    pub(super) fn zero_bytes(&self) -> usize {
        match self.bits {
            Bits::Four if !self.fine => self.blocks().div_ceil(2),
            Bits::Four | Bits::Eight => self.blocks(),
        }
    }
}

/// A matrix of weights as the graph holds it.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) layout: Layout,
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [f32],
    pub(super) zeros: &'a [u8],
    pub(super) bias: Option<&'a [f32]>,
    /// Whether rows are rounded for codes of 4 bits, of each eight values the even ones first, and these are of 8.
    pub(super) evens_first: bool,
}

/// What belongs to one output.
pub(super) struct Column<'a> {
    layout: Layout,
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [f32],
    pub(super) zeros: &'a [u8],
}

impl<'a> Weights<'a> {
    /// Refuses tensors whose lengths are not those of the layout.
    pub(super) fn new(
        layout: Layout,
        codes: &'a [u8],
        scales: &'a [f32],
        zeros: &'a [u8],
        bias: Option<&'a [f32]>,
    ) -> Result<Self, ort::Error> {
        let Layout { columns, .. } = layout;
        let fits = codes.len() == columns * layout.code_bytes()
            && scales.len() == columns * layout.blocks()
            && zeros.len() == columns * layout.zero_bytes()
            && bias.is_none_or(|bias| bias.len() == columns);
        if fits { Ok(Self { layout, codes, scales, zeros, bias, evens_first: false }) } else { Err(refused("shape")) }
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = Column<'a>> {
        let layout = self.layout;
        let codes = self.codes.chunks_exact(self.layout.code_bytes());
        let scales = self.scales.chunks_exact(self.layout.blocks());
        let zeros = self.zeros.chunks_exact(self.layout.zero_bytes());
        codes.zip(scales).zip(zeros).map(move |((codes, scales), zeros)| Column { layout, codes, scales, zeros })
    }
}

impl Column<'_> {
    /// The zero point of a block, in parts of [`Bits::parts`].
    pub(super) fn zero(&self, block: usize) -> u8 {
        match self.layout.bits {
            Bits::Four if !self.layout.fine => (self.zeros[block / 2] >> (block % 2 * 4)) << 4,
            Bits::Four | Bits::Eight => self.zeros[block],
        }
    }
}
