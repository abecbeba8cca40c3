//! What operators of ours are written for.
//!
//! Their kernels are run by whom [`super::session::Runtime`] has given instructions that the processor has, and by tests
//! that ask here.

/// Instructions that not every processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// AVX-512 F, BW and VL, with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Instructions {
    /// All that this processor has, the best first.
    pub fn of_this_processor() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2,
        ]
        .into_iter()
        .filter(|instructions: &Self| instructions.are_here())
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn are_here(self) -> bool {
        match self {
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn are_here(self) -> bool {
        match self {}
    }
}
