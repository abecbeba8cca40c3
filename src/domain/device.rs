//! What models compute on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// The processor's cores.
    #[default]
    Cpu,
    /// A GPU, through CUDA.
    Cuda,
}

impl Device {
    /// Its name in `/readyz`, in metrics and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
