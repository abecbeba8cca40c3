//! Image moderation: every frame of a picture, the highest score wins.
//!
//! What is looked for in a picture, [`Modality::categories`] says.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::ServiceError;
use crate::{
    domain::{ImageBytes, Modality, Scores},
    engine::Batcher,
    imaging::{self, ImageError, Limits},
    runtime::Pixels,
    telemetry::Metrics,
};

/// An image classifier behind its batcher.
pub struct ImageGuardian {
    size: u32,
    batcher: Batcher<Pixels, f32>,
    digest: String,
    metrics: Arc<Metrics>,
}

impl ImageGuardian {
    /// `size` is the side of the model's square input; `digest` identifies its bundle.
    pub fn new(size: u32, batcher: Batcher<Pixels, f32>, digest: String, metrics: Arc<Metrics>) -> Self {
        Self { size, batcher, digest, metrics }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.batcher.answered_within(span)
    }

    /// Scores a picture. The permit is held until the picture is decoded, also when the caller has left.
    pub(super) async fn judge(
        &self,
        image: ImageBytes,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<Scores, ServiceError> {
        let frames = self.prepare(image, permit).await?;
        self.score(frames, deadline).await
    }

    /// Scores a plain grey picture: proof that the model answers.
    pub(super) async fn probe(&self, time: Duration) -> Result<(), ServiceError> {
        let side = usize::try_from(self.size).unwrap_or(0);
        let grey = Pixels(vec![0.5; side * side * 3].into());
        self.score(vec![grey], Instant::now() + time).await.map(drop)
    }

    async fn prepare(&self, image: ImageBytes, permit: OwnedSemaphorePermit) -> Result<Vec<Pixels>, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let (size, metrics) = (self.size, Arc::clone(&self.metrics));
        rayon::spawn(move || {
            if reply.is_closed() {
                return;
            }
            let timer = metrics.image_seconds.start_timer();
            let frames = imaging::decode(image.as_bytes(), &Limits::default())
                .map(|frames| frames.iter().map(|frame| Pixels(imaging::to_tensor(frame, size).into())).collect());
            timer.observe_duration();
            // Before the answer: the caller may come with the next picture at once.
            drop(permit);
            // The caller may have left meanwhile.
            let _ = reply.send(frames);
        });
        // The reply is dropped unsent only when decoding panicked.
        let frames = answer.await.map_err(|_| ServiceError::Internal)?;
        frames.map_err(|error| match error {
            ImageError::Unsupported => ServiceError::UnsupportedImage,
            ImageError::TooLarge => ServiceError::ImageTooLarge,
            ImageError::Corrupt => ServiceError::CorruptImage,
        })
    }

    async fn score(&self, frames: Vec<Pixels>, deadline: Instant) -> Result<Scores, ServiceError> {
        let scores = self.batcher.submit(frames, deadline).await?;
        Ok(Scores::of(Modality::Image, scores.into_iter().fold(0.0, f32::max)))
    }
}
