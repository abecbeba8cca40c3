//! The languages that answers are written in.

/// A language that the fixed answers exist in, and that gamma-1.5-flash writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// English; also stands for every language that is none of the others.
    #[default]
    English,
    /// Japanese.
    Japanese,
    /// Korean.
    Korean,
    /// Spanish.
    Spanish,
    /// French.
    French,
    /// German.
    German,
    /// Chinese.
    Chinese,
    /// Portuguese.
    Portuguese,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::English,
        Self::Japanese,
        Self::Korean,
        Self::Spanish,
        Self::French,
        Self::German,
        Self::Chinese,
        Self::Portuguese,
    ];

    /// Its code in ISO 639-1.
    pub const fn code(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Japanese => "ja",
            Self::Korean => "ko",
            Self::Spanish => "es",
            Self::French => "fr",
            Self::German => "de",
            Self::Chinese => "zh",
            Self::Portuguese => "pt",
        }
    }
}
