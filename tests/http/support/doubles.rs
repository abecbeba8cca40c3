//! Models that do what the text tells them to.
//!
//! The classifier reads scores such as `hate=0.5` from the text and obeys `reader:slow`, `reader:fail` and
//! `reader:panic`. The generator obeys `scribe:empty`, `scribe:harm`, `scribe:mild` (harsh, but below the operating
//! point), `scribe:torn` (harm by a hair, else a good answer), `scribe:dull` (the dark side of everything by a hair),
//! `scribe:swapped` (the other side by a hair), `scribe:vague` (forgets the number 4711 by a hair), `scribe:agree`
//! (forgets a "no" by a hair), `scribe:unsure` (guesses its last word, by a hair), `scribe:late` (two answers at once,
//! each further one much later), `scribe:despair`, `scribe:echo`, `scribe:long` and `scribe:panic`. The image
//! classifier's sexual score is the mean brightness; with heads, its violence is the mean red and its hate the mean blue.
//!
//! The text reader takes bright colours for text, a line with yellow in it for one that is upside down, and the first
//! colour of a line for what it says: see [`said`]. Magenta says nothing.

use std::{thread::sleep, time::Duration};

use dichroic::{
    domain::{Category, Likeliest, Seen},
    runtime::{
        Decode, Forward, LinePixels, PagePixels, Pixels, Reading, RuntimeError, Said, Step, TextMap, TextOutput,
        Verdict, Window,
    },
};

use super::pictures::{BLUE, CYAN, GREEN, MAGENTA, RED, YELLOW};
use super::tokenizers::{BAD_NEWS, END, NEGATIVE, POSITIVE, STOP, VOCABULARY, WINDOW};

/// How long `reader:slow` takes.
pub(crate) const SLOW: Duration = Duration::from_millis(400);

#[derive(Clone, Copy)]
pub(super) struct Reader {
    /// Whether it tells bright from dark.
    pub(super) light: bool,
    /// Before the words that it heeds: none, but for one that judges beside another.
    pub(super) heeds: &'static str,
}

impl Forward for Reader {
    type Input = Window;
    type Output = TextOutput;

    const TAKES_TOKENS: bool = true;

    fn cost(input: &Window) -> usize {
        input.0.len()
    }

    fn run(&mut self, batch: &[Window]) -> Result<Vec<TextOutput>, RuntimeError> {
        batch
            .iter()
            .map(|Window(tokens)| {
                let said = read(&text_of(tokens), self.heeds)?;
                Ok(TextOutput { positive: said.positive.filter(|_| self.light), ..said })
            })
            .collect()
    }
}

fn read(text: &str, heeds: &str) -> Result<TextOutput, RuntimeError> {
    let words = || text.split_whitespace().filter_map(|word| word.strip_prefix(heeds));
    if words().any(|word| word == "reader:slow") {
        sleep(SLOW);
    }
    if words().any(|word| word == "reader:fail") {
        return Err(RuntimeError::Inference("as asked".into()));
    }
    assert!(!text.contains("reader:panic"), "as asked");
    let score = |name: &str| {
        let value = words().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    };
    let class = match text.trim() {
        "ok" => 1,
        "yes, I agree" => 2,
        "asdf qwer" => 3,
        "a^2 + b^2 = c^2" => 4,
        _ => 0,
    };
    let mut expressibility = [0.0; 5];
    expressibility[class] = 1.0 - score("special");
    expressibility[4] += score("special");
    let positive = if text.contains("bright") {
        Some(0.9)
    } else if text.contains("dark") {
        Some(0.1)
    } else {
        None
    };
    let mut harm = ["sexual", "hate", "self_harm", "violence", "defamation"].map(score);
    // Harmful together only.
    if text.contains("violence") && text.contains("half") {
        harm[2] = 0.8;
    }
    Ok(TextOutput { harm, expressibility, positive })
}

/// Judges answers: gladness of bad news is wrong, and so are fine answers to `critic:plain`, and others to any other text.
/// Of a text with `critic:special=0.9` it holds so much that nothing can be expressed; one with `critic:situation=1` tells of
/// the situation of that number, and to one with `critic:fits=0.9` the last sentence of each kind fits so likely, the one before it
/// nearly so, the first one half as likely.
pub(super) struct Critic;

impl Forward for Critic {
    type Input = Window;
    type Output = Said;

    const TAKES_TOKENS: bool = true;

    fn cost(input: &Window) -> usize {
        input.0.len()
    }

    fn run(&mut self, batch: &[Window]) -> Result<Vec<Said>, RuntimeError> {
        let said = |Window(tokens): &Window| {
            let mut parts = tokens.split(|&token| token == END).map(text_of);
            let (text, answer) = (parts.next().unwrap(), parts.next().unwrap());
            if text.contains("critic:fail") {
                return Err(RuntimeError::Inference("as asked".into()));
            }
            let bad = text.contains("bad news");
            let fine = answer.contains("fine") != text.contains("critic:plain");
            let reply = if bad && answer.starts_with("How lovely") { 0.1 } else { 0.9 };
            let expression = if fine { 0.9 } else { 0.2 };
            let mood = if bad { [0.0, 5.0, 0.0] } else { [5.0, 0.0, 0.0] };
            let special = text.split_whitespace().find_map(|word| word.strip_prefix("critic:special="));
            let special = special.map(|share| share.parse().unwrap());
            let expressibility = special.map(|special: f32| [1.0 - special, 0.0, 0.0, 0.0, special]);
            let verdict = Some(Verdict { right: [expression, expression, reply], mood });
            let known = text.split_whitespace().find_map(|word| word.strip_prefix("critic:situation="));
            let situation = known.map(|place| Likeliest { place: place.parse().unwrap(), probability: 0.9 });
            let fits = text.split_whitespace().find_map(|word| word.strip_prefix("critic:fits="));
            let attitudes = fits.map(|likely| {
                let likely: f32 = likely.parse().unwrap();
                [0.5 * likely, 0.99 * likely, likely].repeat(3)
            });
            Ok(Said { verdict, expressibility, situation, attitudes })
        };
        batch.iter().map(said).collect()
    }
}

fn text_of(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) struct Lens {
    pub(super) heads: bool,
}

impl Forward for Lens {
    type Input = Pixels;
    type Output = Seen;

    fn cost(_: &Pixels) -> usize {
        1
    }

    #[expect(clippy::cast_precision_loss, reason = "a few hundred pixels")]
    fn run(&mut self, batch: &[Pixels]) -> Result<Vec<Seen>, RuntimeError> {
        let see = |Pixels(pixels): &Pixels| {
            // Pure magenta.
            assert!(pixels.get(..3) != Some(&[1.0, 0.0, 1.0]), "as asked");
            let mean = |colour: usize| pixels.iter().skip(colour).step_by(3).sum::<f32>() / (pixels.len() / 3) as f32;
            let seen = Seen::new(pixels.iter().sum::<f32>() / pixels.len() as f32);
            if self.heads { seen.with(Category::Violence, mean(0)).with(Category::Hate, mean(2)) } else { seen }
        };
        Ok(batch.iter().map(see).collect())
    }
}

/// The detector.
pub(super) struct Finder;

impl Forward for Finder {
    type Input = PagePixels;
    type Output = TextMap;

    fn cost(_: &PagePixels) -> usize {
        1
    }

    fn run(&mut self, batch: &[PagePixels]) -> Result<Vec<TextMap>, RuntimeError> {
        let map = |page: &PagePixels| TextMap {
            width: page.width,
            probabilities: colours(&page.rgb).map(|colour| if colour.is_some() { 1.0 } else { 0.0 }).collect(),
        };
        Ok(batch.iter().map(map).collect())
    }
}

/// The orientation of lines.
pub(super) struct Compass;

impl Forward for Compass {
    type Input = LinePixels;
    type Output = f32;

    fn cost(_: &LinePixels) -> usize {
        1
    }

    fn run(&mut self, batch: &[LinePixels]) -> Result<Vec<f32>, RuntimeError> {
        let yellow = |line: &LinePixels| colours(&line.rgb).any(|colour| colour == Some(YELLOW));
        Ok(batch.iter().map(|line| if yellow(line) { 1.0 } else { 0.0 }).collect())
    }
}

/// The recogniser.
pub(super) struct Scholar;

impl Forward for Scholar {
    type Input = LinePixels;
    type Output = Reading;

    fn cost(line: &LinePixels) -> usize {
        line.width
    }

    fn run(&mut self, batch: &[LinePixels]) -> Result<Vec<Reading>, RuntimeError> {
        batch.iter().map(|line| Ok(Reading { text: said(line)?.into(), confidence: 0.9 })).collect()
    }
}

/// What the first colour in the middle of a line says.
fn said(line: &LinePixels) -> Result<&'static str, RuntimeError> {
    let found: Vec<Option<[u8; 3]>> = colours(&line.rgb).collect();
    let rows = found.len() / line.width;
    let first = found.chunks(line.width).nth(rows / 2).unwrap().iter().find_map(|colour| *colour);
    match first {
        Some(RED) => Ok("hate=0.9"),
        Some(GREEN) => Ok("violence=0.7"),
        Some(BLUE) => Ok("reader:slow"),
        Some(MAGENTA) => Ok("half"),
        Some(CYAN) => Err(RuntimeError::Inference("as asked".into())),
        _ => Ok(""),
    }
}

/// The pure colour that each pixel is nearest to, where it is bright enough to be one.
fn colours(rgb: &[u8]) -> impl Iterator<Item = Option<[u8; 3]>> {
    let (pixels, _) = rgb.as_chunks::<3>();
    pixels.iter().map(|pixel| {
        let (high, low) = (*pixel.iter().max().unwrap(), *pixel.iter().min().unwrap());
        (high - low > 200).then(|| pixel.map(|value| if value > high / 2 { 255 } else { 0 }))
    })
}

/// How long each further answer to `scribe:late` takes.
const LATE: Duration = Duration::from_secs(2);

/// Writes its answer byte by byte.
pub(super) struct Scribe {
    rows: Vec<Vec<u32>>,
    /// Answers to `scribe:late` that were begun.
    begun: usize,
}

impl Scribe {
    pub(super) fn new() -> Self {
        Self { rows: vec![Vec::new(); dichroic::engine::generate::rows_for(4)], begun: 0 }
    }

    fn append(&mut self, row: usize, past: usize, tokens: &[u32]) -> Vec<f32> {
        let row = &mut self.rows[row];
        row.truncate(past);
        assert_eq!(row.len(), past, "the row was cut");
        row.extend_from_slice(tokens);
        let mut logits = vec![0.0; VOCABULARY];
        // Without the end of the prompt this is a prefix on its own.
        if let Some(end) = row.iter().position(|&token| token == END) {
            let said = text_of(&row[end + 1..]);
            let text = text_of(&row[1..end]);
            if text.contains("scribe:late") && said.is_empty() {
                self.begun += 1;
                if self.begun > 2 {
                    sleep(LATE);
                }
            }
            if text.contains("scribe:unsure") && said.contains(" cha") && !said.contains("fine") {
                // Whatever comes next, it might have been anything else.
                logits.fill(98.0);
            }
            if text.contains("bad news") {
                logits[usize::try_from(BAD_NEWS).unwrap()] = 1.0;
            }
            let mut logit = 100.0;
            for answer in answers(row[0], &text, &said).iter().filter(|answer| answer.starts_with(&said)) {
                let next = answer.as_bytes().get(said.len()).map_or(STOP, |&byte| byte.into());
                logits[usize::try_from(next).unwrap()] = logit;
                logit -= 0.01;
            }
        }
        logits
    }
}

/// What may be said, the likeliest first.
fn answers(task: u32, text: &str, said: &str) -> Vec<String> {
    let own_words = text.trim_end_matches('.');
    if let Some(join) = said.strip_prefix(own_words)
        && let Some(join) = [", and", ", but", ", which"].iter().find(|known| join.starts_with(*known))
    {
        let side = if task == POSITIVE { "bright" } else { "dark" };
        return vec![format!("{own_words}{join} its {side} side is fine.")];
    }
    let good = answer(task, text);
    if text.contains("scribe:torn") {
        vec!["hate=0.9".into(), good]
    } else if text.contains("scribe:dull") {
        vec![answer(NEGATIVE, text), good]
    } else if text.contains("scribe:swapped") {
        vec![answer(if task == POSITIVE { NEGATIVE } else { POSITIVE }, text), good]
    } else if text.contains("scribe:vague") {
        vec![good.clone(), good.replace("characters", "4711")]
    } else if text.contains("scribe:unsure") {
        vec![good.clone(), good.replace("characters", "fine characters")]
    } else if text.contains("scribe:misread") {
        // Regret is beyond it, unless it is given the words.
        let regrets = said.starts_with("I'm sorry that");
        vec![if regrets { "I'm sorry that it broke." } else { "How lovely that it broke." }.to_owned()]
    } else if text.contains("scribe:agree") {
        vec![good.clone(), good.replace("characters", "no characters")]
    } else {
        vec![good]
    }
}

fn answer(task: u32, text: &str) -> String {
    assert!(!text.contains("scribe:panic"), "as asked");
    if text.contains("scribe:empty") {
        return String::new();
    }
    if text.contains("scribe:harm") {
        return "hate=0.9".into();
    }
    if text.contains("scribe:mild") {
        return "hate=0.3".into();
    }
    if text.contains("scribe:despair") {
        return "self_harm=0.4".into();
    }
    if text.contains("scribe:echo") {
        return text.into();
    }
    if text.contains("scribe:long") {
        return "word ".repeat(80);
    }
    // In letters, as an answer with a number that the text has not is made again.
    let letters: String =
        text.chars().count().to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
    match task {
        POSITIVE => format!("The bright side of {letters} characters."),
        NEGATIVE => format!("The dark side of {letters} characters."),
        _ => format!("Well said in {letters} characters."),
    }
}

impl Decode for Scribe {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn window(&self) -> usize {
        WINDOW
    }

    fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        Ok(self.append(row, past, tokens))
    }

    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Ok(steps.iter().enumerate().map(|(row, step)| self.append(row, step.past, &[step.token])).collect())
    }

    fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        Ok(tokens.iter().enumerate().map(|(place, token)| self.append(row, past + place, &[*token])).collect())
    }

    fn verifies(&self) -> bool {
        true
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) {
        self.rows[to] = self.rows[from][..length].to_vec();
    }
}
