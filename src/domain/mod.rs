//! What the service is about, as pure types: identifiers, validated texts, scores and verdicts.
//!
//! Owns every rule that needs no I/O. Refuses tokio, axum, ort, image, the clock and the file system.
//! Runs on whichever thread calls it.

pub mod attitude;
pub mod device;
pub mod expression;
pub mod fixed;
pub mod image;
pub mod input;
pub mod language;
pub mod likeness;
pub mod model_id;
pub mod moderation;
pub mod mood;
pub mod naming;
pub mod negation;
pub mod operation;
pub mod reading;
pub mod situation;
pub mod text;
pub mod usage;

pub use self::image::{ImageBytes, ImageFieldError};
pub use attitude::{Attitudes, Kind};
pub use device::Device;
pub use expression::{Expressibility, Polarity, Prism};
pub use fixed::Fixed;
pub use input::{Grouping, InputError, ModerationInput, Part};
pub use language::Language;
pub use model_id::{ModelId, UnknownModel};
pub use moderation::{
    Category, Finding, Judged, Modality, Scores, Seen, Threshold, ThresholdOutOfRange, UnknownCategory, Verdict,
};
pub use mood::Moods;
pub use naming::Naming;
pub use operation::Operation;
pub use situation::{Likeliest, Particular, Situations};
pub use text::{TextError, ValidText};
pub use usage::{LimitDecision, UsageLimit};
