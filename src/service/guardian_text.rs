//! Text moderation: which classifiers judge a text, and what they say together.
//!
//! Owns that choice and the answers that are remembered. Refuses what its classifiers refuse: without one of them that was
//! asked there is no answer. Runs on the async threads; the language of long texts is told on the rayon pool.

use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{join_all, try_join, try_join_all, try_join3};

use super::{
    AnswerJudge, ScoreCache, ServiceError,
    language::{self, Tongue},
    pool::{Task, on_pool},
    readiness::gravest,
    text_model::{INLINE_BYTES, Opinion, TextModel},
};
use crate::{
    domain::{Scores, reading, text::MAX_CHARACTERS},
    registry::manifest::Calibration,
    runtime::{normalise, together},
    telemetry::ModelMetrics,
};

/// Characters up to which a text is looked at twice for whether anything can be expressed of it; what has nothing to
/// express is short.
const SHORT_TEXT: usize = 120;

/// The text classifier of an identifier, with the company that it has.
pub struct TextGuardian {
    own: Arc<TextModel>,
    company: Company,
    digest: String,
    cache: Option<ScoreCache>,
    metrics: ModelMetrics,
}

/// The classifiers that judge beside or instead of another.
#[derive(Default)]
pub struct Company {
    /// Those whose opinions count beside the first one's, of texts that all of them read.
    pub beside: Option<Beside>,
    /// Judges texts that the first one does not read, and such sentences of others.
    pub elsewhere: Option<Arc<TextModel>>,
}

/// Several classifiers whose opinions count as one.
#[derive(Clone)]
pub struct Beside {
    /// All but the first.
    pub models: Vec<Arc<TextModel>>,
    /// How much the opinion of the first and of each of those counts.
    pub weights: Vec<f32>,
    /// How the mean of all becomes a probability.
    pub calibration: [Calibration; 5],
    /// The probability of some category, by the first one alone, from which the others are asked; absent where they judge
    /// each text. They may be many times slower: what is plainly harmless, nearly all of what people write, need not wait
    /// for them.
    pub from: Option<f32>,
}

/// What the classifiers say of a whole text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judgement {
    pub(super) scores: Scores,
    /// How far they hold that nothing can be expressed: from 0 on it is so; none where no model tells.
    pub(super) lean: Option<f32>,
    /// Probability that the text is said in a positive light; none where no model tells.
    pub(super) positive: Option<f32>,
}

/// What was said by those who were asked, each about the texts that are its.
struct Heard {
    own: Vec<Opinion>,
    beside: Vec<Vec<Opinion>>,
    elsewhere: Vec<Opinion>,
    foreign: Vec<Opinion>,
}

/// Who judges a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bench {
    Own,
    Together,
    /// Its own first, then all where that finds a trace of harm.
    InTurn,
    Elsewhere,
}

impl TextGuardian {
    /// `digest` is that of the bundle from which all of them come.
    pub fn new(own: Arc<TextModel>, company: Company, digest: String) -> Self {
        let metrics = own.metrics().model(own.name(), "text");
        Self { own, company, digest, cache: None, metrics }
    }

    /// The same, which answers texts that were judged a moment ago from memory.
    #[must_use]
    pub fn with_cache(self, cache: ScoreCache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// Whether it tells in which light a text is said.
    pub fn tells_light(&self) -> bool {
        self.own.tells_light()
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// All that may have a part in an answer.
    pub(super) fn models(&self) -> impl Iterator<Item = &Arc<TextModel>> {
        iter::once(&self.own).chain(self.others())
    }

    /// Its company, each once.
    fn others(&self) -> impl Iterator<Item = &Arc<TextModel>> {
        let elsewhere = self.company.elsewhere.iter();
        self.beside().iter().chain(elsewhere.filter(|other| !self.beside().iter().any(|one| Arc::ptr_eq(one, other))))
    }

    fn beside(&self) -> &[Arc<TextModel>] {
        self.company.beside.as_ref().map_or(&[], |beside| &beside.models)
    }

    pub(super) fn answered_within(&self, span: Duration) -> bool {
        self.models().all(|model| model.answered_within(span))
    }

    /// Has every model that has not worked within `fresh` classify a word, which a remembered answer would not prove.
    pub(super) async fn probe(&self, fresh: Duration, time: Duration) -> Result<(), ServiceError> {
        gravest(join_all(self.models().map(|model| model.probe(fresh, time))).await)
    }

    pub(super) fn forget_expired(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_expired();
        }
    }

    /// Classifies a text of any length.
    pub(super) async fn judge(&self, text: String, deadline: Instant) -> Result<Judgement, ServiceError> {
        let mut judgements = self.judge_all(vec![text], deadline).await?;
        judgements.pop().ok_or(ServiceError::Internal)
    }

    /// Classifies several texts, those that are remembered without an inference.
    pub(super) async fn judge_all(
        &self,
        texts: Vec<String>,
        deadline: Instant,
    ) -> Result<Vec<Judgement>, ServiceError> {
        match &self.cache {
            Some(cache) => cache.judge(&texts, deadline, |texts| self.classify(texts, deadline)).await,
            None => self.classify(texts, deadline).await,
        }
    }

    /// Whether nothing can be expressed of a text that was judged so.
    ///
    /// Of a short one of which its own classifier alone has told so far, whether or not others judged its harm, all others that
    /// read it are asked too, and the judge of answers: they err in different places, and beside the work of a generator a
    /// second look costs nothing.
    ///
    /// # Errors
    /// Those of these classifiers and of the judge.
    pub(super) async fn inexpressible(
        &self,
        text: &str,
        judgement: Judgement,
        judge: Option<&AnswerJudge>,
        deadline: Instant,
    ) -> Result<bool, ServiceError> {
        let mut lean = judgement.lean;
        let english = language::is_english(text);
        if self.looks_again(text, english) {
            let readers = self.others().filter(|other| other.reads(english));
            let others = readers.map(async |other| {
                let mut opinions = other.opinions(vec![text.to_owned()], deadline).await?;
                Ok(opinions.pop().and_then(|opinion| opinion.lean))
            });
            let judged = async {
                // It decides nothing by itself.
                match judge.filter(|_| lean.is_some()) {
                    Some(judge) => judge.lean(text, deadline).await,
                    None => Ok(None),
                }
            };
            let (others, judged) = try_join(try_join_all(others), judged).await?;
            lean = mean_lean(others.into_iter().chain([lean, judged]));
        }
        Ok(lean.is_some_and(|lean| lean >= 0.0))
    }

    /// Whether others are asked as well, as to whether anything can be expressed of a text.
    fn looks_again(&self, text: &str, english: bool) -> bool {
        let short = text.chars().nth(SHORT_TEXT).is_none();
        short && matches!(self.bench(english), Bench::Own | Bench::InTurn)
    }

    /// Judges each text, a long one piece by piece: the highest scores count. What several classifiers say together is then of
    /// one place, and only pieces with a trace of harm are read again. Its normalised form has pieces of its own, as what was
    /// put between letters and words may be longer than one.
    async fn classify(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Judgement>, ServiceError> {
        let (mut pieces, mut counts) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
        for text in texts {
            let before = pieces.len();
            if text.chars().nth(MAX_CHARACTERS).is_some() {
                pieces.extend(reading::windows(&text));
                let form = normalise(&text);
                if form != text.as_str() {
                    pieces.extend(reading::windows(&form));
                }
            } else {
                pieces.push(text);
            }
            counts.push(pieces.len() - before);
        }
        let mut judged = self.classify_pieces(pieces, deadline).await?.into_iter();
        let whole = |count| {
            let mut pieces = judged.by_ref().take(count);
            let first = pieces.next()?;
            Some(pieces.fold(first, |all, piece| Judgement { scores: all.scores.max(piece.scores), ..all }))
        };
        counts.into_iter().map(whole).collect::<Option<_>>().ok_or(ServiceError::Internal)
    }

    /// Has each piece judged by those who read it, all of them at the same time; then what needs a second reading.
    async fn classify_pieces(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Judgement>, ServiceError> {
        let (texts, tongues) = self.told_apart(texts).await?;
        let mut benches: Vec<Bench> = tongues.iter().map(|tongue| self.bench(*tongue != Tongue::Other)).collect();
        let of = |benches: &[Bench], wanted: &[Bench]| -> Vec<String> {
            let chosen = texts.iter().zip(benches).filter(|(_, bench)| wanted.contains(bench));
            chosen.map(|(text, _)| text.clone()).collect()
        };
        let first = [Bench::Own, Bench::Together, Bench::InTurn];
        let own = self.own.opinions(of(&benches, &first), deadline);
        let beside = self.all_beside(of(&benches, &[Bench::Together]), deadline);
        let others =
            try_join(self.elsewhere(of(&benches, &[Bench::Elsewhere]), deadline), self.foreign(&tongues, deadline));
        let (own, mut beside, (elsewhere, foreign)) = try_join3(own, beside, others).await?;
        if benches.contains(&Bench::InTurn) {
            let judged = benches.iter_mut().filter(|bench| first.contains(bench)).zip(&own);
            for (bench, opinion) in judged.filter(|(bench, _)| **bench == Bench::InTurn) {
                *bench = if self.needs_others(opinion) { Bench::Together } else { Bench::Own };
            }
            let again = of(&benches, &[Bench::Together]);
            self.metrics.read_again.inc_by(again.len() as u64);
            beside = self.all_beside(again, deadline).await?;
        }
        self.put_together(&benches, &tongues, Heard { own, beside, elsewhere, foreign }).ok_or(ServiceError::Internal)
    }

    /// One judgement for each text, of what those said who were asked about it, in their order.
    fn put_together(&self, benches: &[Bench], tongues: &[Tongue], heard: Heard) -> Option<Vec<Judgement>> {
        let Heard { own, beside, elsewhere, foreign } = heard;
        let (mut own, mut elsewhere, mut foreign) = (own.into_iter(), elsewhere.into_iter(), foreign.into_iter());
        let mut beside: Vec<_> = beside.into_iter().map(Vec::into_iter).collect();
        let judgements = benches.iter().zip(tongues).map(|(bench, tongue)| {
            let mut found = match bench {
                Bench::Own | Bench::InTurn => own.next()?,
                Bench::Elsewhere => elsewhere.next()?,
                Bench::Together => {
                    let own = own.next()?;
                    let others = beside.iter_mut().map(Iterator::next);
                    let said = iter::once(Some(own)).chain(others).collect::<Option<Vec<_>>>()?;
                    let Beside { weights, calibration, from, .. } = self.company.beside.as_ref()?;
                    let harm: Vec<_> = said.iter().map(|opinion| opinion.harm).zip(weights.iter().copied()).collect();
                    // Whether there is something to express must not depend on whether harm was looked for twice.
                    let lean = match from {
                        Some(_) => own.lean,
                        None => mean_lean(said.iter().map(|opinion| opinion.lean)),
                    };
                    Opinion { harm: together(&harm, calibration), lean, ..own }
                }
            };
            if matches!(tongue, Tongue::Mixed(_)) && self.reads_all().is_some() {
                for (highest, p) in found.harm.iter_mut().zip(foreign.next()?.harm) {
                    *highest = highest.max(p);
                }
            }
            Some(Judgement::of(found))
        });
        judgements.collect()
    }

    /// What each of those beside it says.
    async fn all_beside(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Vec<Opinion>>, ServiceError> {
        try_join_all(self.beside().iter().map(|model| model.opinions(texts.clone(), deadline))).await
    }

    /// Whether the others are asked about what its own says this of.
    fn needs_others(&self, opinion: &Opinion) -> bool {
        let from = self.company.beside.as_ref().and_then(|beside| beside.from);
        // What is not a number is looked into as well.
        from.is_some_and(|from| !opinion.harm.iter().all(|p| *p < from))
    }

    async fn elsewhere(&self, texts: Vec<String>, deadline: Instant) -> Result<Vec<Opinion>, ServiceError> {
        match &self.company.elsewhere {
            Some(model) => model.opinions(texts, deadline).await,
            None => Ok(Vec::new()),
        }
    }

    /// What is said of the foreign sentences of each text that has some; nothing where nobody reads them.
    async fn foreign(&self, tongues: &[Tongue], deadline: Instant) -> Result<Vec<Opinion>, ServiceError> {
        let Some(reader) = self.reads_all() else { return Ok(Vec::new()) };
        let foreign = tongues.iter().filter_map(|tongue| match tongue {
            Tongue::Mixed(sentences) => Some(sentences.clone()),
            Tongue::English | Tongue::Other => None,
        });
        reader.opinions(foreign.collect(), deadline).await
    }

    /// Who reads what is in no language that those for English read.
    fn reads_all(&self) -> Option<&TextModel> {
        self.company.elsewhere.as_deref().or_else(|| self.own.reads(false).then_some(&*self.own))
    }

    /// The texts, and what each is in; not looked at where nothing depends on it.
    async fn told_apart(&self, texts: Vec<String>) -> Result<(Vec<String>, Vec<Tongue>), ServiceError> {
        let look = |texts: Vec<String>| {
            let tongues = texts.iter().map(|text| language::tongue(text)).collect();
            (texts, tongues)
        };
        if self.beside().is_empty() && self.company.elsewhere.is_none() {
            let tongues = vec![Tongue::English; texts.len()];
            Ok((texts, tongues))
        } else if texts.iter().map(String::len).sum::<usize>() <= INLINE_BYTES {
            Ok(look(texts))
        } else {
            let permit = self.own.leave_for_long()?;
            let told = on_pool(Task::Text, self.own.metrics(), move || {
                let _permit = permit;
                look(texts)
            });
            told.await
        }
    }

    /// Who judges a text, given whether it is in English.
    fn bench(&self, english: bool) -> Bench {
        if self.company.elsewhere.is_some() && !self.own.reads(english) {
            Bench::Elsewhere
        } else if !self.beside().is_empty()
            && iter::once(&self.own).chain(self.beside()).all(|model| model.reads(english))
        {
            match self.company.beside {
                Some(Beside { from: Some(_), .. }) => Bench::InTurn,
                _ => Bench::Together,
            }
        } else {
            Bench::Own
        }
    }
}

impl Judgement {
    fn of(Opinion { harm, lean, positive }: Opinion) -> Self {
        Self { scores: Scores::new(harm), lean, positive }
    }
}

/// The mean of what those say who have a head for it.
fn mean_lean(leans: impl Iterator<Item = Option<f32>>) -> Option<f32> {
    let leans: Vec<f32> = leans.flatten().collect();
    #[expect(clippy::cast_precision_loss, reason = "a handful of classifiers")]
    let count = leans.len() as f32;
    (!leans.is_empty()).then(|| leans.iter().sum::<f32>() / count)
}
