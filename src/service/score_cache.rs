//! What a text classifier said of texts a moment ago, so that the same text again costs a look and no inference.
//!
//! Owns, for one classifier, a bounded number of answers, each for a short time, by a keyed hash of their text. Refuses
//! texts, which stay out of it, and verdicts, which depend on a caller's threshold. A text that is being judged already
//! is waited for, but not for long. Runs on the async threads.

use std::{collections::HashMap, sync::Arc, time::Duration};

use moka::{notification::RemovalCause, policy::EvictionPolicy, sync::Cache};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, timeout_at},
};

use super::{ServiceError, guardian_text::Judgement, text_model::INLINE_BYTES};
use crate::telemetry::ModelMetrics;

/// How long a request waits for what others are judging: longer than a pass and a short queue take, so that in a burst
/// one judges for all; and far less than a request may take, as those others' request may be long or run out of time,
/// and enough must be left to judge the text here.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreCacheOptions {
    /// Answers of one classifier that are kept; those asked for longest ago make room.
    pub entries: usize,
    /// How long an answer is given out again.
    pub age: Duration,
}

/// The answers of one classifier.
pub struct ScoreCache {
    /// Random, of this cache alone: without it nobody can make two texts of one hash, nor try texts against a hash.
    key: [u8; 16],
    slots: Cache<u128, Slot>,
    metrics: ModelMetrics,
}

/// Where an answer is or will be. Locked by whoever judges the text.
type Slot = Arc<Mutex<Option<Judgement>>>;

/// What is known of one text of a request.
enum Place {
    Known(Judgement),
    /// This request judges it.
    Mine(OwnedMutexGuard<Option<Judgement>>),
    /// This request does, and takes long: others need not wait for it.
    Open(Slot),
    /// Another request does, or this one for an equal text.
    Awaited(Slot),
    /// Whoever was to judge it failed, left or takes too long.
    Left,
}

impl ScoreCache {
    /// An empty cache; `metrics` are of its classifier.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new(options: ScoreCacheOptions, metrics: &ModelMetrics) -> Result<Self, getrandom::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        let evictions = metrics.cache_evictions.clone();
        let slots = Cache::builder()
            .max_capacity(options.entries.try_into().unwrap_or(u64::MAX))
            .time_to_live(options.age)
            // The default asks how often a text came before it is let in, which within a short window says nothing.
            .eviction_policy(EvictionPolicy::lru())
            .eviction_listener(move |_, _, cause| {
                if cause == RemovalCause::Size {
                    evictions.inc();
                }
            })
            .build();
        Ok(Self { key, slots, metrics: metrics.clone() })
    }

    /// Answers each text, in order: from here where it can, by `classify` for all others together.
    pub(super) async fn judge<F>(
        &self,
        texts: &[String],
        deadline: std::time::Instant,
        classify: impl Fn(Vec<String>) -> F,
    ) -> Result<Vec<Judgement>, ServiceError>
    where
        F: Future<Output = Result<Vec<Judgement>, ServiceError>>,
    {
        let long = texts.iter().map(String::len).sum::<usize>() > INLINE_BYTES;
        let mut places: Vec<Place> = texts.iter().map(|text| self.place(text, long)).collect();
        // Before anybody is waited for: two requests that wait for each other's texts would wait for ever.
        let mine = chosen(texts, &places, |place| matches!(place, Place::Mine(_) | Place::Open(_)));
        let mut judged = self.classified(mine, &classify).await?.into_iter();
        for place in &mut places {
            if !matches!(place, Place::Mine(_) | Place::Open(_)) {
                continue;
            }
            let judgement = judged.next().ok_or(ServiceError::Internal)?;
            match std::mem::replace(place, Place::Known(judgement)) {
                Place::Mine(mut slot) => *slot = Some(judgement),
                Place::Open(slot) => {
                    if let Ok(mut free) = slot.try_lock() {
                        *free = Some(judgement);
                    }
                }
                _ => {}
            }
        }
        // Enough is left to judge here what nobody answers.
        let now = Instant::now();
        let patience = now + PATIENCE.min(deadline.saturating_duration_since(now.into_std()) / 2);
        for place in &mut places {
            if let Place::Awaited(slot) = place {
                let found = timeout_at(patience, slot.lock()).await.ok().and_then(|judged| *judged);
                self.metrics.cache_hits.inc_by(u64::from(found.is_some()));
                *place = found.map_or(Place::Left, Place::Known);
            }
        }
        let left = chosen(texts, &places, |place| matches!(place, Place::Left));
        let mut judged = self.classified(left, &classify).await?.into_iter();
        places
            .into_iter()
            .map(|place| match place {
                Place::Known(judgement) => Ok(judgement),
                _ => judged.next().ok_or(ServiceError::Internal),
            })
            .collect()
    }

    /// Lets go of answers that are too old. They are not given out in any case; work on the cache frees them too.
    pub(super) fn forget_expired(&self) {
        self.slots.run_pending_tasks();
    }

    fn place(&self, text: &str, long: bool) -> Place {
        let slot = self.slots.get_with(self.hash(text), Slot::default);
        match Arc::clone(&slot).try_lock_owned() {
            Ok(held) => match *held {
                Some(judgement) => {
                    self.metrics.cache_hits.inc();
                    Place::Known(judgement)
                }
                None if long => Place::Open(slot),
                None => Place::Mine(held),
            },
            Err(_) => Place::Awaited(slot),
        }
    }

    async fn classified<F>(
        &self,
        texts: Vec<String>,
        classify: &impl Fn(Vec<String>) -> F,
    ) -> Result<Vec<Judgement>, ServiceError>
    where
        F: Future<Output = Result<Vec<Judgement>, ServiceError>>,
    {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        // Those of a long request may be equal, as nobody waits for them.
        let mut places = HashMap::new();
        let mut unique = Vec::new();
        let of_texts: Vec<usize> = texts
            .into_iter()
            .map(|text| {
                *places.entry(text).or_insert_with_key(|text| {
                    unique.push(text.clone());
                    unique.len() - 1
                })
            })
            .collect();
        self.metrics.cache_misses.inc_by(unique.len() as u64);
        self.metrics.cache_hits.inc_by((of_texts.len() - unique.len()) as u64);
        let judged = classify(unique).await?;
        of_texts.into_iter().map(|place| judged.get(place).copied().ok_or(ServiceError::Internal)).collect()
    }

    /// Half of a SHA-256 over key and text. What is cut off keeps it from being continued to that of a longer text.
    fn hash(&self, text: &str) -> u128 {
        let sha256: [u8; 32] = Sha256::new().chain_update(self.key).chain_update(text).finalize().into();
        u128::from_le_bytes(sha256.first_chunk().copied().unwrap_or_default())
    }
}

/// The texts whose places are of a kind, in order.
fn chosen(texts: &[String], places: &[Place], kind: impl Fn(&Place) -> bool) -> Vec<String> {
    texts.iter().zip(places).filter(|(_, place)| kind(place)).map(|(text, _)| text.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::{domain::Scores, telemetry::Metrics};

    fn cache(entries: usize) -> ScoreCache {
        let metrics = Metrics::new().unwrap().model("double", "text");
        ScoreCache::new(ScoreCacheOptions { entries, age: Duration::from_mins(1) }, &metrics).unwrap()
    }

    /// A classifier that says how long a text is, keeps what it was asked, and waits for leave.
    #[derive(Clone)]
    struct Classifier {
        asked: Arc<StdMutex<Vec<Vec<String>>>>,
        leave: Arc<Semaphore>,
    }

    impl Classifier {
        fn new(leave: usize) -> Self {
            Self { asked: Arc::default(), leave: Arc::new(Semaphore::new(leave)) }
        }

        async fn classify(self, texts: Vec<String>) -> Result<Vec<Judgement>, ServiceError> {
            self.asked.lock().unwrap().push(texts.clone());
            self.leave.acquire().await.unwrap().forget();
            if texts.iter().any(|text| text == "broken") {
                return Err(ServiceError::Internal);
            }
            Ok(texts.iter().map(|text| judgement(text)).collect())
        }

        fn asked(&self) -> Vec<Vec<String>> {
            self.asked.lock().unwrap().clone()
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a short text")]
    fn judgement(text: &str) -> Judgement {
        let scores = Scores::new([text.len() as f32 / 100.0; 5]);
        Judgement { scores, lean: None, positive: None }
    }

    fn all(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    type Answer = Result<Vec<Judgement>, ServiceError>;

    async fn ask(cache: &ScoreCache, classifier: &Classifier, texts: &[&str]) -> Answer {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        cache.judge(&all(texts), deadline, |texts| classifier.clone().classify(texts)).await
    }

    fn counted(cache: &ScoreCache) -> (u64, u64) {
        (cache.metrics.cache_hits.get(), cache.metrics.cache_misses.get())
    }

    /// Lets the tasks that were spawned get as far as they can.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_what_is_new_is_classified_and_every_answer_is_in_its_place() {
        let (cache, classifier) = (cache(100), Classifier::new(9));
        let first = ask(&cache, &classifier, &["one", "three"]).await.unwrap();
        assert_eq!(first, [judgement("one"), judgement("three")]);
        let second = ask(&cache, &classifier, &["seventh", "three", "fifteen", "one", "seventh"]).await.unwrap();
        assert_eq!(second, ["seventh", "three", "fifteen", "one", "seventh"].map(judgement));
        assert_eq!(classifier.asked(), [all(&["one", "three"]), all(&["seventh", "fifteen"])]);
        assert_eq!(counted(&cache), (3, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_text_under_way_is_waited_for() {
        let (cache, classifier) = (Arc::new(cache(100)), Classifier::new(0));
        let spawn = |texts: &'static [&'static str]| {
            let (cache, classifier) = (Arc::clone(&cache), classifier.clone());
            tokio::spawn(async move { ask(&cache, &classifier, texts).await })
        };
        let first = spawn(&["same"]);
        settle().await;
        let second = spawn(&["same", "other"]);
        settle().await;
        assert_eq!(classifier.asked(), [all(&["same"]), all(&["other"])]);
        classifier.leave.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap(), [judgement("same")]);
        assert_eq!(second.await.unwrap().unwrap(), ["same", "other"].map(judgement));
        assert_eq!(counted(&cache), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_text_that_another_takes_long_over_is_judged_again() {
        let (cache, slow, quick) = (Arc::new(cache(100)), Classifier::new(0), Classifier::new(9));
        let first = {
            let (cache, slow) = (Arc::clone(&cache), slow.clone());
            tokio::spawn(async move { ask(&cache, &slow, &["hello", "or", "else"]).await })
        };
        settle().await;
        let asked = Instant::now();
        let answers = ask(&cache, &quick, &["hello", "else", "other"]).await.unwrap();
        assert_eq!(answers, ["hello", "else", "other"].map(judgement));
        let waited = asked.elapsed();
        assert!((PATIENCE..2 * PATIENCE).contains(&waited), "once for all of them: {waited:?}");
        assert_eq!(quick.asked(), [all(&["other"]), all(&["hello", "else"])]);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let asked = Instant::now();
        for _ in 0..2 {
            assert_eq!(ask(&cache, &quick, &["hello"]).await.unwrap(), [judgement("hello")]);
        }
        assert_eq!(asked.elapsed(), Duration::ZERO, "who left holds nothing up");
        assert_eq!(quick.asked().len(), 3, "and what is judged then is remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_long_request() {
        let (cache, slow, quick) = (Arc::new(cache(100)), Classifier::new(0), Classifier::new(9));
        let long: &'static str = "long ".repeat(INLINE_BYTES / 5 + 1).leak();
        let first = {
            let (cache, slow) = (Arc::clone(&cache), slow.clone());
            tokio::spawn(async move { ask(&cache, &slow, &["hello", "again", long, long]).await })
        };
        settle().await;
        let asked = Instant::now();
        assert_eq!(ask(&cache, &quick, &["hello"]).await.unwrap(), [judgement("hello")]);
        assert_eq!(asked.elapsed(), Duration::ZERO);
        slow.leave.add_permits(1);
        assert_eq!(first.await.unwrap().unwrap(), ["hello", "again", long, long].map(judgement));
        assert_eq!(slow.asked(), [all(&["hello", "again", long])]);
        assert_eq!(ask(&cache, &quick, &["again"]).await.unwrap(), [judgement("again")]);
        assert_eq!(quick.asked(), [all(&["hello"])], "and what it says is remembered");
    }

    #[tokio::test]
    async fn a_caller_that_leaves_or_fails_takes_nobody_along() {
        let (cache, classifier) = (Arc::new(cache(100)), Classifier::new(0));
        let spawn = |texts: &'static [&'static str]| {
            let (cache, classifier) = (Arc::clone(&cache), classifier.clone());
            tokio::spawn(async move { ask(&cache, &classifier, texts).await })
        };
        let first = spawn(&["same", "broken"]);
        settle().await;
        let second = spawn(&["same"]);
        settle().await;
        classifier.leave.add_permits(1);
        assert_eq!(first.await.unwrap(), Err(ServiceError::Internal));
        settle().await;
        assert_eq!(classifier.asked().len(), 2, "who waited judges by itself");
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        classifier.leave.add_permits(1);
        assert_eq!(ask(&cache, &classifier, &["same"]).await.unwrap(), [judgement("same")]);
        assert_eq!(cache.metrics.cache_hits.get(), 0, "a failure is never remembered");
    }

    #[tokio::test]
    async fn the_least_recently_asked_make_room() {
        let (cache, classifier) = (cache(2), Classifier::new(99));
        for text in ["a", "b", "c", "d"] {
            ask(&cache, &classifier, &[text]).await.unwrap();
            cache.forget_expired();
        }
        assert_eq!((cache.slots.entry_count(), cache.metrics.cache_evictions.get()), (2, 2));
        ask(&cache, &classifier, &["c", "d"]).await.unwrap();
        assert_eq!(counted(&cache), (2, 4));
        ask(&cache, &classifier, &["a"]).await.unwrap();
        assert_eq!(counted(&cache), (2, 5));
    }

    #[test]
    fn hashes_differ_by_text_and_by_cache() {
        let (one, other) = (cache(2), cache(2));
        assert_eq!(one.hash("a text"), one.hash("a text"));
        assert_ne!(one.hash("a text"), one.hash("a text "));
        assert_ne!(one.hash("a text"), other.hash("a text"));
    }
}
