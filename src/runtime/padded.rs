//! Sequences of tokens side by side, as text encoders take them.

use std::borrow::Cow;

use ort::{session::SessionInputValue, value::Tensor};

use super::{RuntimeError, Window};

/// Windows of a batch, filled up to the longest.
pub(super) struct Padded {
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// `[rows, tokens]`.
    pub(super) ids: Vec<i64>,
    /// Tokens of each row that are not padding.
    pub(super) lengths: Vec<usize>,
}

impl Padded {
    /// Each filled up with the token `pad`.
    pub(super) fn of(windows: &[Window], pad: u32) -> Self {
        let lengths: Vec<usize> = windows.iter().map(|Window(ids)| ids.len()).collect();
        let tokens = lengths.iter().copied().max().unwrap_or(0);
        let mut ids = Vec::with_capacity(windows.len() * tokens);
        for Window(window) in windows {
            ids.extend(window.iter().map(|&id| i64::from(id)));
            ids.resize(ids.len() + tokens - window.len(), i64::from(pad));
        }
        Self { rows: windows.len(), tokens, ids, lengths }
    }

    /// The inputs of our own encoders: `input_ids` int64 `[rows, tokens]` and `lengths` int32 `[rows]`.
    pub(super) fn into_inputs(self) -> Result<Vec<(Cow<'static, str>, SessionInputValue<'static>)>, RuntimeError> {
        let Self { rows, tokens, ids, lengths } = self;
        let lengths: Vec<i32> = lengths.into_iter().map(|length| i32::try_from(length).unwrap_or(i32::MAX)).collect();
        Ok(ort::inputs![
            "input_ids" => Tensor::from_array(([rows, tokens], ids))?,
            "lengths" => Tensor::from_array(([rows], lengths))?,
        ])
    }
}
