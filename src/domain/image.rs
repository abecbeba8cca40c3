//! Pictures in requests: Base64 in its many spellings, to bytes within the size limit.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// Largest accepted picture, in decoded bytes: 10 MiB.
pub const MAX_BYTES: usize = 10 * 1024 * 1024;

/// Decoded bytes of a picture: at least one, at most [`MAX_BYTES`]. Whether they are a picture is for
/// `imaging` to say.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageBytes(Vec<u8>);

/// Why a field holds no bytes of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageFieldError {
    /// The field is not Base64, or it is empty.
    #[error("image must be Base64-encoded image data")]
    InvalidBase64,
    /// More than [`MAX_BYTES`].
    #[error("image must be at most 10 MiB when decoded")]
    TooLarge,
    /// An address where a picture may be had, instead of the picture.
    #[error("an image url must be a data: URL")]
    NotDataUrl,
}

const INDIFFERENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

impl ImageBytes {
    /// Decodes standard or URL-safe Base64, with or without padding, white space, and a `data:*;base64,` prefix.
    ///
    /// # Errors
    /// [`ImageFieldError`]; the size is known from the length before anything is allocated.
    pub fn from_base64(field: &str) -> Result<Self, ImageFieldError> {
        let encoded = strip_data_prefix(field)?;
        let mut compact: Vec<u8> = Vec::with_capacity(encoded.len());
        let mut url_safe = false;
        for byte in encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
            url_safe |= byte == b'-' || byte == b'_';
            compact.push(byte);
        }
        if compact.len() / 4 * 3 > MAX_BYTES + 3 {
            return Err(ImageFieldError::TooLarge);
        }
        let alphabet = if url_safe { alphabet::URL_SAFE } else { alphabet::STANDARD };
        let bytes =
            GeneralPurpose::new(&alphabet, INDIFFERENT).decode(&compact).map_err(|_| ImageFieldError::InvalidBase64)?;
        match bytes.len() {
            0 => Err(ImageFieldError::InvalidBase64),
            length if length > MAX_BYTES => Err(ImageFieldError::TooLarge),
            _ => Ok(Self(bytes)),
        }
    }

    /// As [`from_base64`](Self::from_base64), but the prefix must be there: any other URL would have to be fetched.
    ///
    /// # Errors
    /// [`ImageFieldError`].
    pub fn from_data_url(url: &str) -> Result<Self, ImageFieldError> {
        if is_data_url(url) { Self::from_base64(url) } else { Err(ImageFieldError::NotDataUrl) }
    }

    /// The decoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Shows the length only: a user's picture must not reach a log.
impl std::fmt::Debug for ImageBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageBytes({} bytes)", self.0.len())
    }
}

const SCHEME: &str = "data:";

fn is_data_url(url: &str) -> bool {
    url.trim_ascii_start().get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

fn strip_data_prefix(field: &str) -> Result<&str, ImageFieldError> {
    let field = field.trim_ascii_start();
    if !is_data_url(field) {
        return Ok(field);
    }
    let rest = &field[SCHEME.len()..];
    let (header, data) = rest.split_once(',').ok_or(ImageFieldError::InvalidBase64)?;
    let is_base64 = header.len() >= 7
        && header.is_char_boundary(header.len() - 7)
        && header[header.len() - 7..].eq_ignore_ascii_case(";base64");
    if is_base64 { Ok(data) } else { Err(ImageFieldError::InvalidBase64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = &[0xFB, 0xFF, 0xFE, 0x01];

    fn decode(field: &str) -> Result<Vec<u8>, ImageFieldError> {
        ImageBytes::from_base64(field).map(|image| image.as_bytes().to_vec())
    }

    #[test]
    fn every_spelling_of_the_same_bytes_is_accepted() {
        for field in [
            "+//+AQ==",
            "+//+AQ",
            "-__-AQ==",
            "-__-AQ",
            " +//+\n\tAQ== ",
            "data:image/png;base64,+//+AQ==",
            "data:;base64,-__-AQ",
            "DATA:text/html;charset=x;BASE64,+//+AQ",
            "\n data:image/gif;base64, +// +AQ",
        ] {
            assert_eq!(decode(field).as_deref(), Ok(BYTES), "{field:?}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for field in
            ["", " ", "=", "A", "*abc", "+//-AQ", "data:image/png,abcd", "data:image/png;base64", "é", "data:é,AAAA"]
        {
            assert_eq!(decode(field), Err(ImageFieldError::InvalidBase64), "{field:?}");
        }
    }

    #[test]
    fn a_url_must_hold_the_picture() {
        let read = |url: &str| ImageBytes::from_data_url(url).map(|image| image.as_bytes().to_vec());
        assert_eq!(read(" Data:image/png;base64,+//+AQ==").as_deref(), Ok(BYTES));
        assert_eq!(read("data:image/png,+//+AQ=="), Err(ImageFieldError::InvalidBase64));
        for url in ["https://example.com/a.png", "HTTP://a", "file:///etc/passwd", "+//+AQ==", "data", "", "dat\u{e9}:"]
        {
            assert_eq!(read(url), Err(ImageFieldError::NotDataUrl), "{url:?}");
        }
    }

    #[test]
    fn the_size_limit_is_exact() {
        let engine = base64::engine::general_purpose::STANDARD;
        assert_eq!(decode(&engine.encode(vec![0; MAX_BYTES])).map(|bytes| bytes.len()), Ok(MAX_BYTES));
        assert_eq!(decode(&engine.encode(vec![0; MAX_BYTES + 1])), Err(ImageFieldError::TooLarge));
        assert_eq!(decode(&"A".repeat(MAX_BYTES * 2)), Err(ImageFieldError::TooLarge));
    }
}
