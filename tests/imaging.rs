//! Every picture under `tests/fixtures/images` against `expected.json`, and what the refusals cost.
//!
//! A binary of its own, because it counts allocations: each thread's, so tests may run side by side.

#![expect(unsafe_code, reason = "a counting allocator cannot be written without it")]
#![expect(clippy::expect_used, reason = "a helper that cannot read its fixture fails the test that called it")]

mod corpus;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use dichroic::imaging::{Frame, ImageError, Limits, decode, to_tensor};
use serde_json::Value;

const MIB: usize = 1024 * 1024;

thread_local! {
    /// Bytes now held and the most ever held by this thread since the last measurement began.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(taken: usize, returned: usize) {
    // Memory may be freed on another thread than it came from, or while the thread ends.
    let _ = HELD.try_with(|cell| {
        let (held, peak) = cell.get();
        let held = held.saturating_add(taken);
        cell.set((held.saturating_sub(returned), peak.max(held)));
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The result, the most bytes allocated on the way, and the time it took.
fn measured(bytes: &[u8], limits: &Limits) -> (Result<Vec<Frame>, ImageError>, usize, Duration) {
    HELD.set((0, 0));
    let started = Instant::now();
    let result = decode(bytes, limits);
    let elapsed = started.elapsed();
    let (_, peak) = HELD.get();
    (result, peak, elapsed)
}

fn folder(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

fn word(error: ImageError) -> &'static str {
    match error {
        ImageError::Unsupported => "unsupported",
        ImageError::TooLarge => "too_large",
        ImageError::Corrupt => "corrupt",
    }
}

fn corner(frame: &Frame, index: usize) -> [u8; 3] {
    let x = if index.is_multiple_of(2) { 0 } else { frame.width() as usize - 1 };
    let y = if index < 2 { 0 } else { frame.height() as usize - 1 };
    let at = (y * frame.width() as usize + x) * 3;
    frame.rgb()[at..at + 3].try_into().expect("three bytes")
}

/// What is wrong with the frames, if anything.
fn mismatch(frames: &[Frame], expected: &Value) -> Option<String> {
    let sizes: Vec<[u64; 2]> = frames.iter().map(|frame| [frame.width().into(), frame.height().into()]).collect();
    let wanted: Vec<[u64; 2]> = serde_json::from_value(expected["frames"].clone()).ok()?;
    if sizes != wanted {
        return Some(format!("frames {sizes:?}, expected {wanted:?}"));
    }
    let Ok(corners) = serde_json::from_value::<Vec<[[u8; 3]; 4]>>(expected["corners"].clone()) else {
        return None;
    };
    if corners.len() != frames.len() {
        return Some(format!("{} frames, corners for {}", frames.len(), corners.len()));
    }
    let near = expected["near"].as_u64().unwrap_or(0);
    for (number, (frame, wanted)) in frames.iter().zip(corners).enumerate() {
        for (index, wanted) in wanted.into_iter().enumerate() {
            let found = corner(frame, index);
            let apart = found.iter().zip(wanted).map(|(a, b)| u64::from(a.abs_diff(b))).max();
            if apart > Some(near) {
                return Some(format!("frame {number}, corner {index}: {found:?}, expected {wanted:?}"));
            }
        }
    }
    None
}

#[test]
fn every_fixture_decodes_or_is_refused_as_expected() {
    let fixtures = corpus::pictures();
    assert!(fixtures.len() >= 60);
    let mut wrong = Vec::new();
    for (name, (bytes, expected)) in &fixtures {
        let result = decode(bytes, &Limits::default());
        match (&result, expected["error"].as_str()) {
            (Err(error), Some(wanted)) if word(*error) == wanted => {}
            (Ok(frames), None) => {
                if let Some(what) = mismatch(frames, expected) {
                    wrong.push(format!("{name}: {what}"));
                }
            }
            _ => wrong.push(format!("{name}: {result:?}, expected {expected}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hostile_files_cost_little() {
    for (name, (bytes, expected)) in corpus::pictures() {
        if !name.starts_with("bomb-") && expected["error"].is_null() {
            continue;
        }
        let runs: Vec<_> = (0..5).map(|_| measured(&bytes, &Limits::default())).collect();
        let peak = runs.iter().map(|(_, peak, _)| *peak).max().expect("it ran");
        assert!(peak <= 50 * MIB, "{name} took {} MiB", peak / MIB);
        // The best of a few runs: what the file costs, not what else the machine was doing.
        let elapsed = runs.iter().map(|(.., elapsed)| *elapsed).min().expect("it ran");
        assert!(elapsed < Duration::from_millis(100), "{name} took {elapsed:?}");
    }
}

#[test]
fn damage_anywhere_is_an_answer_not_a_panic() {
    // Small limits, so that a size that was hit by chance does not take long.
    let limits = Limits { max_pixels: 1_000_000, max_side: 2_000, ..Limits::default() };
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("it is below a usize")
    };
    for (name, (bytes, _)) in corpus::pictures() {
        if bytes.is_empty() || bytes.len() > 20_000 {
            continue;
        }
        for round in 0..150 {
            let mut damaged = bytes.clone();
            if round % 5 == 0 {
                damaged.truncate(random(bytes.len()));
            }
            // The front holds most of what is believed.
            let reach = if round % 2 == 0 { damaged.len().min(64) } else { damaged.len() };
            for _ in 0..=random(4) {
                if reach > 0 {
                    damaged[random(reach)] = [0, 1, 0x7F, 0x80, 0xFF, 0x42][random(6)];
                }
            }
            let (_, peak, elapsed) = measured(&damaged, &limits);
            assert!(peak <= 64 * MIB, "{name}, round {round}: {} MiB", peak / MIB);
            assert!(elapsed < Duration::from_secs(5), "{name}, round {round}: {elapsed:?}");
        }
    }
}

#[test]
fn tensors_equal_those_of_the_reference() {
    let folder = folder("golden/images");
    let text = fs::read_to_string(folder.join("golden.json")).expect("golden.json is committed");
    let golden: Value = serde_json::from_str(&text).expect("it is JSON");
    let pictures = golden["pictures"].as_object().expect("there are pictures");
    assert!(pictures.len() >= 10);
    for (name, picture) in pictures {
        let bytes = fs::read(folder.join(name)).expect("every golden picture is committed");
        let frames = decode(&bytes, &Limits::default()).expect("it decodes");
        for (size, tensor) in picture["tensors"].as_object().expect("there are tensors") {
            let side: usize = size.parse().expect("a number");
            let ours = to_tensor(&frames[0], u32::try_from(side).expect("small"));
            assert_eq!(ours.len(), side * side * 3);
            let samples: Vec<[f64; 5]> =
                serde_json::from_value(tensor["samples"].clone()).expect("rows of y, x, r, g, b");
            for [y, x, rgb @ ..] in samples {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]
                let at = (y as usize * side + x as usize) * 3;
                for (ours, theirs) in ours[at..at + 3].iter().zip(rgb) {
                    assert!((f64::from(*ours) - theirs).abs() < 1e-3, "{name} at {size}: row {y}, column {x}");
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
            let mean = ours.iter().map(|value| f64::from(*value)).sum::<f64>() / ours.len() as f64;
            assert!((mean - tensor["mean"].as_f64().expect("a mean")).abs() < 1e-3, "{name} at {size}");
        }
    }
}
