//! The closed list of model identifiers of the interface.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One of the four identifiers that a request may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ModelId {
    /// `alpha-4o-mini`, used when a request names none.
    #[default]
    #[serde(rename = "alpha-4o-mini")]
    Alpha,
    /// `beta-3-haiku`, the fastest.
    #[serde(rename = "beta-3-haiku")]
    Beta,
    /// `gamma-1.5-flash`, the multilingual one.
    #[serde(rename = "gamma-1.5-flash")]
    Gamma,
    /// `delta-3.1`, the most capable.
    #[serde(rename = "delta-3.1")]
    Delta,
}

/// The name matched none of the four identifiers (the comparison is exact and case-sensitive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model must be one of alpha-4o-mini, beta-3-haiku, gamma-1.5-flash, delta-3.1")]
pub struct UnknownModel;

impl ModelId {
    /// All identifiers, the default first.
    pub const ALL: [Self; 4] = [Self::Alpha, Self::Beta, Self::Gamma, Self::Delta];

    /// The identifier as it stands in requests, folders and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "alpha-4o-mini",
            Self::Beta => "beta-3-haiku",
            Self::Gamma => "gamma-1.5-flash",
            Self::Delta => "delta-3.1",
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ModelId {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|id| id.as_str() == name).ok_or(UnknownModel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_exactly_and_only_exactly() {
        for id in ModelId::ALL {
            assert_eq!(id.as_str().parse(), Ok(id));
        }
        for near in ["", "Alpha-4o-mini", "alpha-4o-mini ", "delta-3.10", "gpt-4o-mini"] {
            assert_eq!(near.parse::<ModelId>(), Err(UnknownModel), "{near:?}");
        }
    }

    #[test]
    fn the_default_is_the_first() {
        assert_eq!(ModelId::default(), ModelId::ALL[0]);
    }
}
