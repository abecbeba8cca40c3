//! Reading the text in a picture: pages to the detector, lines to the other two networks, and back to running text.
//!
//! What is cut, turned and put in order runs on the rayon pool; at most one such task of a picture is queued at a
//! time. A picture without text costs the detector's pass and nothing more; where a first look at a smaller picture is
//! asked for, only that. What is done with pages and lines between two passes is in [`sheets`].

mod sheets;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rayon::prelude::*;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    ServiceError, in_portions,
    pool::{Task, on_pool},
    readiness::gravest,
};
use crate::{
    engine::Batcher,
    imaging::{
        self, Frame, Limits,
        reading::{
            OverviewLimits, Page, PageMap, Part, RegionRules, StripRules, closer, shows_signs, signs, text_boxes,
        },
    },
    registry::manifest::TextReaderSpec,
    runtime::{LinePixels, PagePixels, Reading, TextMap},
    telemetry::Metrics,
};

pub use sheets::PageText;
use sheets::{Line, Read, Sheet, arranged, counted, cut, pixels};

/// The pages of one picture share this many times the pixels that a single one may have for the detector.
const PAGES_AT_FULL_SIZE: u32 = 4;
/// Parts of a page that are shown to the detector before the next are cut.
const PARTS_AT_ONCE: usize = 4;
/// A page that was laid on its side is read so if this share of its text is found there.
const FOUND_AGAIN: f32 = 0.5;

/// The three networks behind their batchers.
pub struct ReaderStages {
    /// Where text is.
    pub detector: Batcher<PagePixels, TextMap>,
    /// Whether a line is upside down.
    pub orientation: Batcher<LinePixels, f32>,
    /// What a line says.
    pub recogniser: Batcher<LinePixels, Reading>,
}

/// A text reader.
pub struct TextReader {
    stages: ReaderStages,
    spec: TextReaderSpec,
    digest: String,
    metrics: Arc<Metrics>,
}

/// Shared by every task that holds pages of one picture: it may outlive the request.
type Permit = Arc<Option<OwnedSemaphorePermit>>;

/// The pages of one picture, and its place in the queue, which is free again when the last task is done with them.
pub(super) struct Picture {
    pages: Vec<Arc<Page>>,
    permit: Permit,
}

impl Picture {
    pub(super) fn new(frames: Vec<Frame>, permit: Option<OwnedSemaphorePermit>) -> Self {
        let count = frames.len();
        let pages = frames.into_iter().map(|frame| Arc::new(Page::new(frame, count))).collect();
        Self { pages, permit: Arc::new(permit) }
    }
}

impl TextReader {
    /// `spec` and `digest` come from the bundle whose networks are behind the batchers.
    pub fn new(stages: ReaderStages, spec: TextReaderSpec, digest: String, metrics: Arc<Metrics>) -> Self {
        Self { stages, spec, digest, metrics }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether all three networks have answered of late.
    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.stages.detector.answered_within(span)
            && self.stages.orientation.answered_within(span)
            && self.stages.recogniser.answered_within(span)
    }

    /// Shows each network that has not answered within this span a plain grey picture: proof that it answers. On
    /// pictures without text only the detector works, and what waits for it must not make the others seem dead.
    pub(super) async fn probe(&self, span: Duration, time: Duration) -> Result<(), ServiceError> {
        let deadline = Instant::now() + time;
        let ReaderStages { detector, orientation, recogniser } = &self.stages;
        let grey = |width: u32, height: u32| vec![128; width as usize * height as usize * 3];
        let line = |width: u32, height: u32| LinePixels { width: width as usize, rgb: grey(width, height) };
        let side = self.spec.detector.multiple;
        let page = || PagePixels { width: side as usize, height: side as usize, rgb: grey(side, side) };
        let (turned, read) = (self.spec.orientation, self.spec.recogniser);
        // One after the other, whatever became of the one before: each is to prove itself.
        gravest([
            proven(detector, span, deadline, page).await,
            proven(orientation, span, deadline, || line(turned.width, turned.height)).await,
            proven(recogniser, span, deadline, || line(read.least_width, read.height)).await,
        ])
    }

    /// Reads a picture's file: one text for each frame that has any.
    ///
    /// # Errors
    /// [`ServiceError`]
    pub async fn read_file(&self, bytes: Vec<u8>, time: Duration) -> Result<Vec<PageText>, ServiceError> {
        let decode = move || imaging::decode(&bytes, &Limits::default()).map(|frames| Picture::new(frames, None));
        let picture = on_pool(Task::Picture, &self.metrics, decode).await??;
        self.read(picture, None, Instant::now() + time).await
    }

    /// Reads a picture: one text for each page that has any. With a `glance`, pages are searched only if they show signs
    /// of text at that share of their size.
    pub(super) async fn read(
        &self,
        picture: Picture,
        glance: Option<f32>,
        deadline: Instant,
    ) -> Result<Vec<PageText>, ServiceError> {
        let Picture { pages, permit } = picture;
        let pages = match glance {
            Some(share) => self.with_signs(pages, share, &permit, deadline).await?,
            None => pages,
        };
        let sheets = self.sheets(pages, &permit, deadline).await?;
        if sheets.is_empty() {
            return Ok(Vec::new());
        }
        let rules = self.strip_rules();
        let (sizes, lines) = self.holding(&permit, move || cut(&sheets, &rules)).await?;
        let (turned_over, lines) = self.turned_over(lines, sizes.len(), &permit, deadline).await?;
        let found = self.recognise(lines, &turned_over, &permit, deadline).await?;
        self.holding(&permit, move || arranged(found, &sizes, &turned_over)).await
    }

    /// The pages on which there is text, those that lie on their sides turned.
    async fn sheets(
        &self,
        pages: Vec<Arc<Page>>,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Vec<Sheet>, ServiceError> {
        let mut sheets = self.detect(pages, permit, deadline).await?;
        // Pages without text are let go of before anything else is waited for. What takes a sheet's place has text.
        sheets.retain(|sheet| !sheet.boxes.is_empty());
        let lying: Vec<usize> = (0..sheets.len()).filter(|&at| sheets.get(at).is_some_and(Sheet::lies)).collect();
        if !lying.is_empty() {
            let pages: Vec<_> =
                lying.iter().filter_map(|&at| sheets.get(at)).map(|sheet| Arc::clone(&sheet.page)).collect();
            let turned = self
                .holding(permit, move || pages.iter().map(|page| Arc::new(page.turned())).collect::<Vec<_>>())
                .await?;
            let turned = self.detect(turned, permit, deadline).await?;
            for (at, turned) in lying.into_iter().zip(turned) {
                if let Some(sheet) = sheets.get_mut(at)
                    && turned.extent() >= sheet.extent() * FOUND_AGAIN
                {
                    *sheet = turned;
                }
            }
        }
        Ok(sheets)
    }

    /// The pages with signs of text at a share of their size.
    async fn with_signs(
        &self,
        pages: Vec<Arc<Page>>,
        share: f32,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Vec<Arc<Page>>, ServiceError> {
        let limits = OverviewLimits { share, ..self.overview_limits(pages.len()) };
        let (pages, _, maps) = self.maps(pages, limits, permit, deadline).await?;
        let threshold = self.spec.detector.threshold;
        self.holding(permit, move || {
            let shows = |map: &TextMap| shows_signs(&map.probabilities, map.width, threshold);
            pages.into_iter().zip(maps).filter(|(_, map)| shows(map)).map(|(page, _)| page).collect()
        })
        .await
    }

    /// Finds the boxes of every page: on the whole of it, and once more where there are signs of text on parts that
    /// were reduced for that.
    async fn detect(
        &self,
        pages: Vec<Arc<Page>>,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Vec<Sheet>, ServiceError> {
        let limits = self.overview_limits(pages.len());
        let (pages, scales, maps) = self.maps(pages, limits, permit, deadline).await?;
        let rules = self.region_rules();
        let found: Vec<_> = self
            .holding(permit, move || {
                let found = pages.into_iter().zip(maps).zip(scales);
                let sheet = |((page, map), scale): ((Arc<Page>, TextMap), f32)| {
                    let boxes = text_boxes(&map.probabilities, map.width, scale, &rules);
                    let parts = if scale < 1.0 {
                        Part::with_signs(page.size(), &signs(&map.probabilities, map.width, scale, rules.threshold))
                    } else {
                        Vec::new()
                    };
                    (Sheet { page, boxes }, parts)
                };
                found.map(sheet).collect()
            })
            .await?;
        let mut sheets = Vec::with_capacity(found.len());
        for (sheet, parts) in found {
            sheets.push(if parts.is_empty() { sheet } else { self.closer(sheet, parts, permit, deadline).await? });
        }
        Ok(sheets)
    }

    /// The sheet with what is found on these parts of its page at its own size.
    async fn closer(
        &self,
        mut sheet: Sheet,
        parts: Vec<Part>,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Sheet, ServiceError> {
        let multiple = self.spec.detector.multiple;
        let mut whole = PageMap::new(sheet.page.size());
        // A few at a time: all of them together are as large as the page.
        for some in parts.chunks(PARTS_AT_ONCE) {
            let (page, parts) = (Arc::clone(&sheet.page), some.to_vec());
            let shown = move || parts.iter().map(|part| detected(page.part(part, multiple))).collect();
            let inputs = self.holding(permit, shown).await?;
            let maps = in_portions(&self.stages.detector, inputs, deadline).await?;
            for (part, map) in some.iter().zip(maps) {
                whole.take(part, &map.probabilities, map.width);
            }
        }
        let rules = self.region_rules();
        self.holding(permit, move || {
            let found = text_boxes(whole.probabilities(), whole.width(), 1.0, &rules);
            sheet.boxes = closer(&sheet.boxes, found);
            sheet
        })
        .await
    }

    /// Each page again, with its scale before the detector and what the detector says of it.
    async fn maps(
        &self,
        pages: Vec<Arc<Page>>,
        limits: OverviewLimits,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<(Vec<Arc<Page>>, Vec<f32>, Vec<TextMap>), ServiceError> {
        let (pages, overviews) = self
            .holding(permit, move || {
                let overviews: Vec<_> = pages.par_iter().map(|page| page.overview(&limits)).collect();
                (pages, overviews)
            })
            .await?;
        let scales: Vec<f32> = overviews.iter().map(|overview| overview.scale).collect();
        let inputs = overviews.into_iter().map(|overview| detected(overview.frame));
        let maps = in_portions(&self.stages.detector, inputs.collect(), deadline).await?;
        Ok((pages, scales, maps))
    }

    /// Which sheets are upside down, by the votes of their lines; and each line with the ways it should be read: that
    /// of its sheet, and the other too where the votes are undecided or the line's own is against them.
    async fn turned_over(
        &self,
        lines: Vec<Line>,
        sheets: usize,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<(Vec<bool>, Vec<(Line, bool)>), ServiceError> {
        let orientation = self.spec.orientation;
        let (lines, inputs) = self
            .holding(permit, move || {
                let input = |line: &Line| LinePixels {
                    width: orientation.width as usize,
                    rgb: line.strip.squeezed(orientation.width, orientation.height),
                };
                let inputs: Vec<_> = lines.par_iter().map(input).collect();
                (lines, inputs)
            })
            .await?;
        let votes = in_portions(&self.stages.orientation, inputs, deadline).await?;
        Ok(counted(lines, &votes, sheets))
    }

    /// Reads every line, and keeps what is read with confidence.
    async fn recognise(
        &self,
        lines: Vec<(Line, bool)>,
        turned_over: &[bool],
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Vec<Vec<Read>>, ServiceError> {
        let rules = self.strip_rules();
        let sheets = turned_over.to_vec();
        let (lines, inputs) = self
            .holding(permit, move || {
                let inputs: Vec<Vec<LinePixels>> = lines
                    .par_iter()
                    .map(|(line, both)| {
                        let over = sheets.get(line.sheet).copied().unwrap_or(false);
                        let mut ways = vec![pixels(&line.strip, over, &rules)];
                        if *both {
                            ways.push(pixels(&line.strip, !over, &rules));
                        }
                        ways
                    })
                    .collect();
                (lines, inputs)
            })
            .await?;
        let counts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let readings = in_portions(&self.stages.recogniser, inputs.into_iter().flatten().collect(), deadline).await?;
        let mut readings = readings.into_iter();
        let mut found: Vec<Vec<Read>> = Vec::new();
        found.resize_with(turned_over.len(), Vec::new);
        for ((line, _), count) in lines.into_iter().zip(counts) {
            let best = readings.by_ref().take(count).max_by(|a, b| a.confidence.total_cmp(&b.confidence));
            if let Some(reading) = best
                && reading.confidence >= self.spec.recogniser.threshold
                && let Some(sheet) = found.get_mut(line.sheet)
            {
                sheet.push(Read { text_box: line.text_box, text: reading.text });
            }
        }
        Ok(found)
    }

    /// Runs work on the pool that holds what belongs to a picture.
    async fn holding<T: Send + 'static>(
        &self,
        permit: &Permit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let permit = Arc::clone(permit);
        let work = move || {
            let _permit = permit;
            work()
        };
        on_pool(Task::Picture, &self.metrics, work).await
    }

    fn overview_limits(&self, pages: usize) -> OverviewLimits {
        let detector = self.spec.detector;
        let pages = u32::try_from(pages.max(1)).unwrap_or(u32::MAX);
        let shared = detector.most_pixels.saturating_mul(PAGES_AT_FULL_SIZE) / pages;
        let most_pixels = detector.most_pixels.min(shared);
        OverviewLimits {
            multiple: detector.multiple,
            least_pixels: detector.least_pixels.min(most_pixels),
            most_pixels,
            most_side: detector.most_side,
            share: 1.0,
        }
    }

    fn region_rules(&self) -> RegionRules {
        let detector = self.spec.detector;
        RegionRules { threshold: detector.threshold, box_threshold: detector.box_threshold, unclip: detector.unclip }
    }

    fn strip_rules(&self) -> StripRules {
        let recogniser = self.spec.recogniser;
        StripRules {
            height: recogniser.height,
            least_width: recogniser.least_width,
            width_step: recogniser.width_step,
            most_width: recogniser.most_width,
        }
    }
}

/// What the detector is shown.
fn detected(frame: Frame) -> PagePixels {
    PagePixels { width: frame.width() as usize, height: frame.height() as usize, rgb: frame.into_rgb() }
}

/// Shows a network something plain, unless it has answered within this span.
async fn proven<I: Send + 'static, O: Send + 'static>(
    stage: &Batcher<I, O>,
    span: Duration,
    deadline: Instant,
    plain: impl FnOnce() -> I,
) -> Result<(), ServiceError> {
    if !stage.answered_within(span) {
        stage.submit(vec![plain()], deadline).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_picture_does_not_grow_with_its_frames() {
        let frame = Frame::new(1250, 1250, vec![0; 1250 * 1250 * 3]).expect("the bytes fit");
        let kept = |frames: usize| -> u32 {
            let picture = Picture::new(vec![frame.clone(); frames], None);
            picture.pages.iter().map(|page| page.size()).map(|(width, height)| width * height).sum()
        };
        assert_eq!(kept(1), 1_562_500);
        assert_eq!(kept(16), 16_000_000);
    }
}
