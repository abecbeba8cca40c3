//! Moderation of several texts and pictures: the texts in one call, then picture after picture.

use std::{sync::Arc, time::Instant};

use tokio::sync::Semaphore;

use super::{Models, ServiceError, guardian_image, image_permit};
use crate::{
    domain::{ImageBytes, Judged, Modality, Part},
    telemetry::Metrics,
};

/// Scores every part, in order. One request holds one place of `places`, for each picture when its turn comes: the first
/// is refused where all are taken, the others wait, as to refuse them would waste what was done and have it asked again.
/// Where a model is absent nothing is scored, and a picture that cannot be read is told first.
pub(super) async fn score(
    models: &Models,
    parts: Vec<Part>,
    places: &Arc<Semaphore>,
    metrics: &Metrics,
    deadline: Instant,
) -> Result<Vec<Judged>, ServiceError> {
    let order: Vec<Modality> = parts.iter().map(Part::modality).collect();
    let (texts, pictures) = sorted(parts);
    let absent = (!texts.is_empty() && models.text.is_none()) || (!pictures.is_empty() && models.image.is_none());

    let mut of_texts = Vec::new().into_iter();
    if let Some(guardian) = models.text.as_ref().filter(|_| !absent && !texts.is_empty()) {
        of_texts = guardian.judge_all(texts, deadline).await?.into_iter();
    }
    let mut of_pictures = Vec::with_capacity(pictures.len());
    for (index, picture) in pictures.into_iter().enumerate() {
        let place = if index == 0 {
            image_permit(places)?
        } else {
            Arc::clone(places).acquire_owned().await.map_err(|_| ServiceError::Internal)?
        };
        if !absent {
            of_pictures.push(guardian_image::judge(models, picture, place, metrics, deadline).await?);
            continue;
        }
        match guardian_image::refusal(picture, place, metrics).await {
            ServiceError::ModelNotInstalled => {}
            fault => return Err(fault),
        }
    }
    if absent {
        return Err(ServiceError::ModelNotInstalled);
    }
    let mut of_pictures = of_pictures.into_iter();
    let scored = order.into_iter().map(|modality| {
        let judged = match modality {
            Modality::Text => of_texts.next().map(|judgement| Judged::text(judgement.scores)),
            Modality::Image => of_pictures.next(),
        };
        judged.ok_or(ServiceError::Internal)
    });
    scored.collect()
}

fn sorted(parts: Vec<Part>) -> (Vec<String>, Vec<ImageBytes>) {
    let (mut texts, mut pictures) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) => texts.push(text),
            Part::Image(picture) => pictures.push(picture),
        }
    }
    (texts, pictures)
}
