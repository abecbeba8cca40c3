//! The operations, as scopes, metric labels and limits know them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `POST /v1/prisms/text`
    PrismText,
    /// `POST /v1/sunshines/text`
    SunshineText,
    /// `POST /v1/guardians/text`
    GuardianText,
    /// `POST /v1/guardians/image`
    GuardianImage,
    /// `POST /v1/moderations`. It does what the two before it do, yet their scopes do not open it: a key was given to
    /// someone for the paths that it names.
    Moderation,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::PrismText, Self::SunshineText, Self::GuardianText, Self::GuardianImage, Self::Moderation];

    /// The name used in key scopes and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrismText => "prism_text",
            Self::SunshineText => "sunshine_text",
            Self::GuardianText => "guardian_text",
            Self::GuardianImage => "guardian_image",
            Self::Moderation => "moderation",
        }
    }

    /// The path of the operation.
    pub const fn path(self) -> &'static str {
        match self {
            Self::PrismText => "/v1/prisms/text",
            Self::SunshineText => "/v1/sunshines/text",
            Self::GuardianText => "/v1/guardians/text",
            Self::GuardianImage => "/v1/guardians/image",
            Self::Moderation => "/v1/moderations",
        }
    }

    /// The operation at a path, if any.
    pub fn at_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.path() == path)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name is no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation is one of prism_text, sunshine_text, guardian_text, guardian_image, moderation")]
pub struct UnknownOperation;

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == name).ok_or(UnknownOperation)
    }
}
