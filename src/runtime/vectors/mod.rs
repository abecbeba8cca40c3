//! What operators of ours do with 16 numbers at once: the same names for instructions of either kind, so that what is
//! written once can be compiled by each.
//!
//! A [`avx512::Vector`] is one register, a [`avx2::Vector`] two.

pub(super) mod avx2;
pub(super) mod avx512;

/// Numbers of single precision in a vector.
pub(super) const LANES: usize = 16;

/// ln 2 to the power of k, by k!, from 6 on down: the terms of 2 to a power of at most a half.
const TERMS: [f32; 7] =
    [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0];
