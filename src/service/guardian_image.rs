//! Image moderation: every frame of a picture, what it shows and what is written in it; the highest score wins.
//!
//! Where a text reader is installed, and a text classifier to judge by, both are asked at the same time. What was looked
//! for in a picture, [`Judged`] says.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Models, ServiceError, TextGuardian, TextReader,
    pool::{Task, on_pool},
    reading::{PageText, Picture},
};
use crate::{
    domain::{ImageBytes, Judged, Scores, Seen, reading},
    engine::Batcher,
    imaging::{self, Frame, Limits},
    runtime::Pixels,
    telemetry::Metrics,
};

/// Most inputs of one picture: the moments of an animation, each over two grounds. The queue has room for as many.
const MOST_INPUTS: usize = 16;

/// An image classifier behind its batcher.
pub struct ImageGuardian {
    size: u32,
    batcher: Batcher<Pixels, Seen>,
    digest: String,
    metrics: Arc<Metrics>,
    glance: Option<f32>,
}

impl ImageGuardian {
    /// `size` is the side of the model's square input; `digest` identifies its bundle.
    pub fn new(size: u32, batcher: Batcher<Pixels, Seen>, digest: String, metrics: Arc<Metrics>) -> Self {
        Self { size, batcher, digest, metrics, glance: None }
    }

    /// Has pictures searched for text only where a first look, at this share of their size, finds signs of it.
    #[must_use]
    pub fn with_glance(self, glance: Option<f32>) -> Self {
        Self { glance, ..self }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Scores a plain grey picture: proof that the model answers.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        let side = usize::try_from(self.size).unwrap_or(0);
        let grey = Pixels(vec![0.5; side * side * 3].into());
        self.see(vec![grey], Instant::now() + time).await.map(drop)
    }

    /// Category by category, the score of the frame that has the highest.
    async fn see(&self, frames: Vec<Pixels>, deadline: Instant) -> Result<Seen, ServiceError> {
        let seen = self.batcher.submit(frames, deadline).await?;
        seen.into_iter().reduce(Seen::max).ok_or(ServiceError::Internal)
    }
}

/// Why a picture is not judged where the model for it is absent: what is wrong with the picture, if anything, comes first.
pub(super) async fn refusal(image: ImageBytes, permit: OwnedSemaphorePermit, metrics: &Metrics) -> ServiceError {
    let decode = move || {
        let _permit = permit;
        imaging::decode(image.as_bytes(), &Limits::default()).map(drop)
    };
    match on_pool(Task::Picture, metrics, decode).await {
        Ok(Ok(())) => ServiceError::ModelNotInstalled,
        Ok(Err(fault)) => fault.into(),
        Err(error) => error,
    }
}

/// Judges a picture. The permit is held until nothing of the decoded picture is left, also when the caller has left.
pub(super) async fn judge(
    models: &Models,
    image: ImageBytes,
    permit: OwnedSemaphorePermit,
    metrics: &Metrics,
    deadline: Instant,
) -> Result<Judged, ServiceError> {
    let Some(guardian) = &models.image else { return Err(refusal(image, permit, metrics).await) };
    let reader = models.reader.as_deref().zip(models.text.as_deref());
    let (pixels, picture) = prepare(guardian, image, permit, reader.is_some()).await?;
    match (reader, picture) {
        (Some((reader, text)), Some(picture)) => {
            let said = read(reader, text, picture, guardian.glance, deadline);
            let (seen, read) = tokio::try_join!(guardian.see(pixels, deadline), said)?;
            Ok(Judged::picture(seen).with_text(read))
        }
        _ => Ok(Judged::picture(guardian.see(pixels, deadline).await?)),
    }
}

/// The picture for the classifier, and for the reader where one is asked.
async fn prepare(
    guardian: &ImageGuardian,
    image: ImageBytes,
    permit: OwnedSemaphorePermit,
    to_read: bool,
) -> Result<(Vec<Pixels>, Option<Picture>), ServiceError> {
    let (size, metrics) = (guardian.size, Arc::clone(&guardian.metrics));
    let prepared = on_pool(Task::Picture, &guardian.metrics, move || {
        let timer = metrics.image_seconds.start_timer();
        let prepared = imaging::decode(image.as_bytes(), &Limits::default()).map(|frames| {
            let pixels = inputs(&frames, size);
            // Otherwise the permit is free from here on: the caller may come with the next picture at once.
            (pixels, to_read.then(|| Picture::new(frames, Some(permit))))
        });
        timer.observe_duration();
        prepared
    });
    Ok(prepared.await??)
}

/// What the classifier is shown. Where there is no room for both versions of a frame, it is the one that people see.
fn inputs(frames: &[Frame], size: u32) -> Vec<Pixels> {
    let mut room = MOST_INPUTS.saturating_sub(frames.len());
    let mut inputs = Vec::with_capacity(frames.len());
    for frame in frames {
        let mut versions = imaging::to_tensors(frame, size);
        if versions.len() > 1 {
            match room.checked_sub(1) {
                Some(left) => room = left,
                None => drop(versions.remove(0)),
            }
        }
        inputs.extend(versions.into_iter().map(|version| Pixels(version.into())));
    }
    inputs
}

/// The highest scores of the texts that are written in a picture.
async fn read(
    reader: &TextReader,
    guardian: &TextGuardian,
    picture: Picture,
    glance: Option<f32>,
    deadline: Instant,
) -> Result<Scores, ServiceError> {
    let pages = reader.read(picture, glance, deadline).await?;
    // The frames of an animation, and a picture over two grounds, mostly say the same.
    let mut texts: Vec<String> = Vec::with_capacity(pages.len() + 1);
    for text in pages.iter().map(PageText::joined) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    // What is said one word a frame is harmless word by word.
    if texts.len() > 1 {
        texts.push(texts.join("\n"));
    }
    let windows = texts.iter().flat_map(|text| reading::windows(text)).collect();
    let judgements = guardian.judge_all(windows, deadline).await?;
    Ok(judgements.into_iter().map(|judgement| judgement.scores).fold(Scores::default(), Scores::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_animation_of_crafted_frames_has_no_more_inputs_than_the_queue_has_room_for() {
        // What is sampled is red, in a picture that is green to people.
        let side = 1_000_u32;
        let sampled = |at: u32| (0..224).any(|tap| at.abs_diff(tap * (side - 1) / 223) <= 1);
        let kept: Vec<bool> = (0..side).map(sampled).collect();
        let pixel = |at: usize| if kept[at / 1_000] && kept[at % 1_000] { [255, 0, 0] } else { [0, 255, 0] };
        let crafted = Frame::new(side, side, (0..1_000_000).flat_map(pixel).collect()).unwrap();
        let plain = Frame::new(1, 1, vec![0; 3]).unwrap();
        assert_eq!(inputs(&[plain, crafted.clone()], 224).len(), 3);
        let many = vec![crafted; 12];
        let inputs = inputs(&many, 224);
        assert_eq!(inputs.len(), MOST_INPUTS);
        let green = |Pixels(pixels): &Pixels| pixels[1] > pixels[0];
        assert!(inputs[8..].iter().all(green), "what people see is judged of every frame");
    }
}
