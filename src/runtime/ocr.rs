//! The text reader's three networks: where text is, which way up a line is, and what it says.
//!
//! Pages and lines come as pixels in the size that the manifest states; what is made of a map, and of the answers of
//! many lines, is for others to decide.

use std::fmt;

use ort::{session::Session, value::Tensor};

use super::{Forward, Runtime, RuntimeError, finite};
use crate::registry::{
    Bundle, INSTALL,
    manifest::{RecogniserSpec, TextReaderSpec},
};

/// The class that stands for no character: what CTC sets between two equal ones.
const BLANK: i64 = 0;

/// A page for the detector: RGB, `[height, width, 3]`.
#[derive(Clone, Debug)]
pub struct PagePixels {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Rows from the top.
    pub rgb: Vec<u8>,
}

/// Where text is on a page.
#[derive(Clone, Debug)]
pub struct TextMap {
    /// Columns, as the page has.
    pub width: usize,
    /// Probabilities `[height, width]`.
    pub probabilities: Vec<f32>,
}

/// A line on its canvas: RGB, `[height, width, 3]`, the height being the network's.
#[derive(Clone, Debug)]
pub struct LinePixels {
    /// Columns.
    pub width: usize,
    /// Rows from the top.
    pub rgb: Vec<u8>,
}

/// What a line says.
#[derive(Clone, PartialEq)]
pub struct Reading {
    /// The characters; none where nothing was recognised.
    pub text: String,
    /// Mean probability of the characters, 0 without any.
    pub confidence: f32,
}

/// Shows the length only: a user's text must not reach a log.
impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reading({} characters at {})", self.text.chars().count(), self.confidence)
    }
}

/// A session of the detector: `pixels` uint8 `[1, height, width, 3]` → `probabilities` float32 `[1, 1, height, width]`.
pub struct TextDetector {
    session: Session,
}

impl TextDetector {
    /// Opens the detector of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no text reader or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        spec(bundle)?;
        Ok(Self { session: runtime.open(&bundle.file("detector.onnx"))? })
    }

    fn map(&mut self, page: &PagePixels) -> Result<TextMap, RuntimeError> {
        let &PagePixels { width, height, ref rgb } = page;
        check(rgb, width, height)?;
        let outputs = self.session.run(ort::inputs![
            "pixels" => Tensor::from_array(([1, height, width, 3], rgb.clone()))?,
        ])?;
        let output = outputs.get("probabilities").ok_or_else(|| RuntimeError::Shape("no probabilities".into()))?;
        let (_, probabilities) = output.try_extract_tensor::<f32>()?;
        if probabilities.len() == width * height {
            Ok(TextMap { width, probabilities: finite(probabilities)?.to_vec() })
        } else {
            Err(RuntimeError::Shape(format!("{} probabilities for {width} x {height}", probabilities.len())))
        }
    }
}

impl Forward for TextDetector {
    type Input = PagePixels;
    type Output = TextMap;

    fn cost(input: &PagePixels) -> usize {
        input.width.saturating_mul(input.height)
    }

    /// One page after the other: pages differ in size, and one fills the cores.
    fn run(&mut self, batch: &[PagePixels]) -> Result<Vec<TextMap>, RuntimeError> {
        batch.iter().map(|page| self.map(page)).collect()
    }
}

/// A session of the orientation: `pixels` uint8 `[batch, height, width, 3]` → `probabilities` float32 `[batch, 2]`.
pub struct LineOrientation {
    session: Session,
    height: usize,
    width: usize,
}

impl LineOrientation {
    /// Opens the orientation of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no text reader or its graph cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = spec(bundle)?.orientation;
        let session = runtime.open(&bundle.file("orientation.onnx"))?;
        Ok(Self { session, height: spec.height as usize, width: spec.width as usize })
    }
}

impl Forward for LineOrientation {
    type Input = LinePixels;
    /// The probability that the line is upside down.
    type Output = f32;

    fn cost(_: &LinePixels) -> usize {
        1
    }

    fn run(&mut self, batch: &[LinePixels]) -> Result<Vec<f32>, RuntimeError> {
        let pixels = stacked(batch.iter(), self.width, self.height)?;
        let outputs = self.session.run(ort::inputs![
            "pixels" => Tensor::from_array(([batch.len(), self.height, self.width, 3], pixels))?,
        ])?;
        let output = outputs.get("probabilities").ok_or_else(|| RuntimeError::Shape("no probabilities".into()))?;
        let (_, values) = output.try_extract_tensor::<f32>()?;
        let (pairs, _) = finite(values)?.as_chunks::<2>();
        if pairs.len() == batch.len() {
            Ok(pairs.iter().map(|[_, turned_over]| *turned_over).collect())
        } else {
            Err(RuntimeError::Shape(format!("{} probabilities for {} lines", values.len(), batch.len())))
        }
    }
}

/// A session of the recogniser: `pixels` uint8 `[batch, height, width, 3]` → `classes` int64 and `confidences` float32,
/// both `[batch, steps]`.
pub struct LineRecogniser {
    session: Session,
    spec: RecogniserSpec,
    characters: Vec<Box<str>>,
}

impl LineRecogniser {
    /// Opens the recogniser of `bundle`.
    ///
    /// # Errors
    /// [`RuntimeError`] when the bundle is no text reader, or its graph or its characters cannot be opened.
    pub fn open(runtime: &Runtime, bundle: &Bundle) -> Result<Self, RuntimeError> {
        let spec = spec(bundle)?.recogniser;
        let path = bundle.file("characters.json");
        let load = |error: &dyn fmt::Display| {
            RuntimeError::Load(format!("{} cannot be read ({error}); to install it again, {INSTALL}", path.display()))
        };
        let list = std::fs::read(&path).map_err(|error| load(&error))?;
        let characters = serde_json::from_slice(&list).map_err(|error| load(&error))?;
        Ok(Self { session: runtime.open(&bundle.file("recogniser.onnx"))?, spec, characters })
    }

    /// Reads lines of one width.
    fn read(&mut self, lines: &[&LinePixels], width: usize) -> Result<Vec<Reading>, RuntimeError> {
        let height = self.spec.height as usize;
        let pixels = stacked(lines.iter().copied(), width, height)?;
        let outputs = self.session.run(ort::inputs![
            "pixels" => Tensor::from_array(([lines.len(), height, width, 3], pixels))?,
        ])?;
        let output = |name: &str| outputs.get(name).ok_or_else(|| RuntimeError::Shape(format!("no output {name}")));
        let (_, classes) = output("classes")?.try_extract_tensor::<i64>()?;
        let (_, confidences) = output("confidences")?.try_extract_tensor::<f32>()?;
        let confidences = finite(confidences)?;
        let steps = classes.len() / lines.len().max(1);
        if steps == 0 || steps * lines.len() != classes.len() || confidences.len() != classes.len() {
            return Err(RuntimeError::Shape(format!("{} classes for {} lines", classes.len(), lines.len())));
        }
        let rows = classes.chunks(steps).zip(confidences.chunks(steps));
        let readings = rows.map(|(classes, confidences)| decode(classes, confidences, &self.characters));
        Ok(readings.collect())
    }
}

impl Forward for LineRecogniser {
    type Input = LinePixels;
    type Output = Reading;

    fn cost(input: &LinePixels) -> usize {
        input.width
    }

    /// Lines of equal width go together. Nothing is padded here, because what stands beside a line, and how much of
    /// it, changes what is read: a line would depend on its company.
    fn run(&mut self, batch: &[LinePixels]) -> Result<Vec<Reading>, RuntimeError> {
        let mut places: Vec<(usize, &LinePixels)> = batch.iter().enumerate().collect();
        places.sort_by_key(|(_, line)| line.width);
        let mut readings = Vec::with_capacity(batch.len());
        for group in places.chunk_by(|(_, a), (_, b)| a.width == b.width) {
            let lines: Vec<&LinePixels> = group.iter().map(|(_, line)| *line).collect();
            let width = lines.first().map_or(0, |line| line.width);
            readings.extend(group.iter().map(|(place, _)| *place).zip(self.read(&lines, width)?));
        }
        readings.sort_by_key(|(place, _)| *place);
        Ok(readings.into_iter().map(|(_, reading)| reading).collect())
    }
}

fn spec(bundle: &Bundle) -> Result<TextReaderSpec, RuntimeError> {
    bundle.manifest().text_reader.ok_or_else(|| RuntimeError::Load("the bundle is no text reader".into()))
}

fn check(rgb: &[u8], width: usize, height: usize) -> Result<(), RuntimeError> {
    if width > 0 && height > 0 && width.checked_mul(height).and_then(|area| area.checked_mul(3)) == Some(rgb.len()) {
        Ok(())
    } else {
        Err(RuntimeError::Shape(format!("{} bytes for {width} x {height} pixels", rgb.len())))
    }
}

/// Lines of one size behind each other.
fn stacked<'a>(
    lines: impl ExactSizeIterator<Item = &'a LinePixels>,
    width: usize,
    height: usize,
) -> Result<Vec<u8>, RuntimeError> {
    let mut pixels = Vec::with_capacity(lines.len().saturating_mul(width * height * 3));
    for line in lines {
        check(&line.rgb, width, height)?;
        pixels.extend_from_slice(&line.rgb);
    }
    Ok(pixels)
}

/// The likeliest characters of a line: connectionist temporal classification (Graves et al., ICML 2006), decoded
/// greedily. Equal classes without a blank between them are one character; its probability is that of its first step.
fn decode(classes: &[i64], confidences: &[f32], characters: &[Box<str>]) -> Reading {
    let mut text = String::new();
    let mut total = 0.0;
    let mut count = 0_u16;
    let mut before = BLANK;
    for (&class, &confidence) in classes.iter().zip(confidences) {
        if class != before
            && class != BLANK
            && let Some(character) = usize::try_from(class).ok().and_then(|class| characters.get(class.checked_sub(1)?))
        {
            text.push_str(character);
            total += confidence;
            count = count.saturating_add(1);
        }
        before = class;
    }
    Reading { text, confidence: total / f32::from(count.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(characters: &[&str]) -> Vec<Box<str>> {
        characters.iter().map(|&character| character.into()).collect()
    }

    fn read(classes: &[i64]) -> String {
        decode(classes, &vec![1.0; classes.len()], &listed(&["a", "b", "Ω", " "])).text
    }

    #[test]
    fn repeats_are_one_character_unless_a_blank_is_between() {
        assert_eq!(read(&[]), "");
        assert_eq!(read(&[0, 0, 0]), "");
        assert_eq!(read(&[1, 1, 0, 1, 2, 2, 2, 0, 0, 3, 4, 4, 1]), "aabΩ a");
        // Two equal ones with another between them need no blank.
        assert_eq!(read(&[1, 2, 1]), "aba");
    }

    #[test]
    fn classes_without_a_character_say_nothing() {
        assert_eq!(read(&[1, 5, -1, i64::MIN, i64::MAX, 2]), "ab");
    }

    #[test]
    fn confidence_is_the_mean_of_the_characters() {
        let characters = listed(&["a", "b"]);
        let reading = decode(&[0, 1, 1, 2], &[0.1, 0.8, 0.2, 0.4], &characters);
        assert_eq!(reading.text, "ab");
        assert!((reading.confidence - 0.6).abs() < 1e-6, "{}", reading.confidence);
        assert_eq!(decode(&[0], &[0.9], &characters), Reading { text: String::new(), confidence: 0.0 });
    }

    #[test]
    fn pixels_must_fit_their_size() {
        assert!(check(&[0; 24], 4, 2).is_ok());
        for (bytes, width, height) in [(23, 4, 2), (0, 0, 2), (0, 4, 0), (0, usize::MAX, 2)] {
            assert!(check(&vec![0; bytes], width, height).is_err());
        }
        let lines = [LinePixels { width: 4, rgb: vec![1; 24] }, LinePixels { width: 4, rgb: vec![2; 24] }];
        assert_eq!(stacked(lines.iter(), 4, 2).unwrap(), [vec![1; 24], vec![2; 24]].concat());
        assert!(stacked(lines.iter(), 5, 2).is_err());
    }
}
