pub struct Limits; impl Default for Limits { fn default()->Self{Limits} }
pub struct Frame;
pub enum ImageError { Unsupported, TooLarge, Corrupt }
pub fn decode(_: &[u8], _: &Limits) -> Result<Vec<Frame>, ImageError> { Err(ImageError::Corrupt) }
pub fn to_tensor(_: &Frame, _: u32) -> Vec<f32> { vec![] }
