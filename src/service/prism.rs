//! Dual expression and the checks on everything that is generated.

use std::time::Instant;

use super::{
    AnswerJudge, ServiceError, TextGuardian, Writer,
    guardian_text::Judgement,
    judge::Reading,
    language,
    manners::manners,
    quality::{Candidate, Fitness, Pair, Quality, Right, best, despairs},
    writer::{Manner, Task, Try, Written, seed},
};
use crate::{
    domain::{
        Fixed, Kind, Language, Moods, Polarity, Prism, Threshold, ValidText, attitude, fixed, likeness, mood, negation,
    },
    telemetry::Metrics,
};

/// The score from which an answer is not given out. An answer to a text that is itself flagged is held to a stricter
/// one: it may carry a part of the harm on in milder words.
const STRICT: f64 = 0.2;

/// Of what people wrote for a text, so much is checked.
const CHECKED: usize = 4;

/// What writes, and what judges what was written.
#[derive(Clone, Copy)]
pub(super) struct Desk<'a> {
    pub(super) writer: &'a Writer,
    pub(super) guardian: &'a TextGuardian,
    /// Tells the light of an answer where the guardian cannot.
    pub(super) light: Option<&'a TextGuardian>,
    pub(super) judge: Option<&'a AnswerJudge>,
    /// Tells what people wrote for a text: attitudes and replies that fit, and replies that name what it speaks of.
    pub(super) situations: Option<&'a AnswerJudge>,
    pub(super) metrics: &'a Metrics,
}

impl Desk<'_> {
    /// For these tasks an answer is given that people wrote.
    fn count_beforehand(&self, tasks: impl Iterator<Item = Task>) {
        for task in tasks {
            self.metrics.beforehand.with_label_values(&[task.as_str()]).inc();
        }
    }
}

/// What became of a text's answers.
pub(super) enum Outcome {
    /// One for each task, in order.
    Answers(Vec<String>),
    /// None may be given out for one of the tasks.
    Unfit {
        /// Whether that is because what was written speaks of harming oneself.
        despairs: bool,
    },
}

impl Outcome {
    /// The answers; where there are none, what is said instead for a text of this judgement: care where despair was
    /// written of it, and sober sentences where it was flagged itself.
    pub(super) fn or_fixed<T>(
        self,
        judgement: Judgement,
        language: Language,
        instead: impl FnOnce(Fixed) -> T,
        answers: impl FnOnce(Vec<String>) -> Option<T>,
    ) -> Result<T, ServiceError> {
        match self {
            Self::Answers(found) => answers(found).ok_or(ServiceError::Internal),
            Self::Unfit { despairs: true } => Ok(instead(fixed::care(language))),
            Self::Unfit { .. } if Threshold::default().judge(judgement.scores).flagged() => {
                Ok(instead(fixed::sober(language)))
            }
            Self::Unfit { .. } => Err(ServiceError::GenerationRejected),
        }
    }
}

/// Whether a text has a trace of harm: more than an answer to a flagged one may have.
fn is_suspect(input: Judgement) -> bool {
    Threshold::new(STRICT).unwrap_or_default().judge(input.scores).flagged()
}

fn bound(input: Judgement) -> Threshold {
    if Threshold::default().judge(input.scores).flagged() {
        Threshold::new(STRICT).unwrap_or_default()
    } else {
        Threshold::default()
    }
}

pub(super) async fn express(desk: Desk<'_>, text: ValidText, deadline: Instant) -> Result<Prism, ServiceError> {
    let judgement = desk.guardian.judge(text.as_str().to_owned(), deadline).await?;
    let language = language::of(text.as_str());
    if let Some(fixed) = fixed::due(judgement.scores, language) {
        return Ok(fixed.prism());
    }
    if desk.guardian.inexpressible(text.as_str(), judgement, desk.judge, deadline).await? {
        return Ok(Prism::Inexpressible);
    }
    let tasks = [Task::Express(Polarity::Positive), Task::Express(Polarity::Negative)];
    // Friendly words for whatever may be said are none for a threat.
    if !is_suspect(judgement)
        && let Some((reading, bounds)) = read(desk, &text, tasks, sooner(deadline)).await
        && let Some([positive, negative]) = fitting(desk, &reading, tasks, bounds, deadline).await?
    {
        return Ok(Prism::Expressed { positive, negative });
    }
    let outcome = checked(desk, &text, &tasks, judgement, deadline).await?;
    outcome.or_fixed(judgement, language, Fixed::prism, |answers| {
        let [positive, negative] = <[String; 2]>::try_from(answers).ok()?;
        Some(Prism::Expressed { positive, negative })
    })
}

/// Answers with a reply that people wrote: one that names what the text speaks of, where it passes the checks, else the one
/// likeliest to fit. Else generates each task greedily, checks the answers, and makes those that fail once more: by sampling,
/// or from beginnings that fit what the text tells.
///
/// The candidates that do best together win: see [`best`].
///
/// # Errors
/// Those of the engines; but where the first answers may be given out, they stand although no better ones could be
/// made.
pub(super) async fn checked(
    desk: Desk<'_>,
    text: &ValidText,
    tasks: &[Task],
    input: Judgement,
    deadline: Instant,
) -> Result<Outcome, ServiceError> {
    let (bound, until) = (bound(input), sooner(deadline));
    // As in [`express`], and of expressions nothing but attitudes is written beforehand.
    if tasks == [Task::Reply]
        && !is_suspect(input)
        && let Some(reply) = ready(desk, text, bound, until, deadline).await?
    {
        return Ok(Outcome::Answers(vec![reply]));
    }
    let first: Vec<Try> = tasks.iter().map(|&task| Try { task, manner: Manner::First }).collect();
    let (first, moods) = assessed(desk, text, &first, None, bound, deadline).await?;
    let pair = Pair::of(&first.iter().collect::<Vec<_>>());
    let again: Vec<(usize, &'static str, bool)> = first
        .iter()
        .enumerate()
        .filter_map(|(place, (quality, _))| Some((place, quality.failure(pair)?, quality.right.is_some())))
        .collect();
    let mut written: Vec<Vec<Candidate>> = first.into_iter().map(|answer| vec![answer]).collect();
    if !again.is_empty() {
        let retries: Vec<(usize, Try)> = again
            .iter()
            .filter_map(|&(place, reason, judged)| Some((place, *tasks.get(place)?, reason, judged)))
            .flat_map(|(place, task, reason, judged)| {
                let manners = manners(text, task, reason, moods, judged);
                manners.into_iter().map(move |manner| (place, Try { task, manner }))
            })
            .collect();
        for (_, reason, _) in &again {
            desk.metrics.regenerated.with_label_values(&[*reason]).inc();
        }
        let attempts: Vec<_> = retries.iter().map(|&(_, attempt)| attempt).collect();
        // Held to it here: what waits in a queue is not told before a row is free.
        let until = sooner(deadline);
        let made = tokio::time::timeout_at(until.into(), assessed(desk, text, &attempts, moods, bound, until)).await;
        let made = made.unwrap_or(Err(ServiceError::Deadline));
        for ((place, _), candidate) in retries.into_iter().zip(made.as_ref().map_or(&[][..], |(made, _)| made)) {
            if let Some(written) = written.get_mut(place) {
                written.push(candidate.clone());
            }
        }
        if let Err(error) = made
            && written.iter().any(|answers| !answers.iter().any(|(quality, _)| quality.fit()))
        {
            return Err(error);
        }
    }
    let best = best(&written);
    if best.iter().all(|(quality, _)| quality.fit()) {
        return Ok(Outcome::Answers(best.into_iter().map(|(_, answer)| answer.clone()).collect()));
    }
    Ok(Outcome::Unfit { despairs: written.iter().any(|answers| despairs(answers)) })
}

/// A reply that people wrote: one for the situation of the text that passes the checks, else the one likeliest to fit. None where
/// none of them is for this text.
async fn ready(
    desk: Desk<'_>,
    text: &ValidText,
    bound: Threshold,
    until: Instant,
    deadline: Instant,
) -> Result<Option<String>, ServiceError> {
    let Some((reading, bounds)) = read(desk, text, [Task::Reply], until).await else { return Ok(None) };
    let mut of_situation = reading.of_situation();
    if !of_situation.is_empty() {
        // Among equals the first is taken, so they begin with the one that the words of the text point to: texts of one kind do not
        // all get the same.
        let first = seed(text.as_str(), Task::Reply, 0) % of_situation.len() as u64;
        of_situation.rotate_left(usize::try_from(first).unwrap_or_default());
    }
    of_situation.truncate(CHECKED);
    if !of_situation.is_empty() {
        let tasks = vec![Task::Reply; of_situation.len()];
        let written = |text: &str| Written { text: text.to_owned(), whole: true, doubt: 0.0, moods: None };
        let written = of_situation.into_iter().map(written).collect();
        let weighed = weighed(desk, text, (&tasks, written), None, bound, deadline).await?.0;
        // A judge that learned from what models write picks among them, and holds nearly all for too little.
        let passes = |quality: Quality| Quality { right: None, ..quality }.failure(Pair::Right).is_none();
        if let [(quality, answer)] = best(std::slice::from_ref(&weighed))[..]
            && passes(*quality)
        {
            desk.count_beforehand([Task::Reply].into_iter());
            return Ok(Some(answer.clone()));
        }
    }
    let fitting = fitting(desk, &reading, [Task::Reply], bounds, deadline).await?;
    Ok(fitting.map(|[reply]| reply))
}

/// The text as the judge reads it that tells what people wrote, and how likely that must be for each task. None where nobody can
/// tell that for all of them, or not by `until`: then the answers are left to the generator.
async fn read<'a, const TASKS: usize>(
    desk: Desk<'a>,
    text: &'a ValidText,
    tasks: [Task; TASKS],
    until: Instant,
) -> Option<(Reading<'a>, [f32; TASKS])> {
    let english = language::is_answered_in_english(text.as_str());
    let language = language_of(text, english)?;
    let bounds = tasks.map(|task| desk.writer.beforehand(task, english));
    let judge = desk.situations.filter(|_| bounds.iter().all(Option::is_some))?;
    let read = judge.read(text.as_str(), language, until);
    let reading = tokio::time::timeout_at(until.into(), read).await.ok()?.ok()??;
    Some((reading, bounds.map(Option::unwrap_or_default)))
}

/// The likeliest of what people wrote for each task, where for all of them one fits likely enough and may be given out.
///
/// These sentences have the light that they were written for, and lose and invent nothing; so moderation alone has a say in them.
async fn fitting<const TASKS: usize>(
    desk: Desk<'_>,
    reading: &Reading<'_>,
    tasks: [Task; TASKS],
    bounds: [f32; TASKS],
    deadline: Instant,
) -> Result<Option<[String; TASKS]>, ServiceError> {
    let kinds = tasks.map(|task| match task {
        Task::Express(light) => Kind::Light(light),
        Task::Reply => Kind::Reply,
    });
    let Some(found) = reading.fitting(kinds, CHECKED) else { return Ok(None) };
    let (text, language) = (reading.text(), reading.language());
    let whole = |kind: Kind, sentence: &str| match kind {
        Kind::Light(_) => attitude::joined(text, sentence, language),
        Kind::Reply => reading.named(sentence).unwrap_or_else(|| sentence.to_owned()),
    };
    let mut said = Vec::with_capacity(TASKS);
    for ((kind, sentences), least) in kinds.into_iter().zip(found).zip(bounds) {
        let likely = sentences.into_iter().filter(|(_, probability)| *probability >= least);
        let mut likely: Vec<_> = likely.map(|(sentence, _)| whole(kind, sentence)).collect();
        if matches!(kind, Kind::Light(_)) {
            // A long text with few words behind it is hardly more than itself: one with more of them comes before.
            likely.sort_by_key(|answer| likeness::repeats(text, answer));
        }
        said.push(likely);
    }
    if said.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    let mut judgements = desk.guardian.judge_all(said.concat(), deadline).await?.into_iter();
    let first_fit = |answers: Vec<String>| {
        let judgements: Vec<Judgement> = judgements.by_ref().take(answers.len()).collect();
        let fit = |judgement: &Judgement| {
            !Threshold::default().judge(judgement.scores).flagged() && !fixed::is_distress(judgement.scores, language)
        };
        answers.into_iter().zip(judgements).find(|(_, judgement)| fit(judgement)).map(|(answer, _)| answer)
    };
    let chosen: Option<Vec<String>> = said.into_iter().map(first_fit).collect();
    let chosen = chosen.and_then(|chosen| chosen.try_into().ok());
    if chosen.is_some() {
        desk.count_beforehand(tasks.into_iter());
    }
    Ok(chosen)
}

/// The language that a text is answered in; none for one that is none of ours, which English otherwise stands for.
fn language_of(text: &ValidText, english: bool) -> Option<Language> {
    if english {
        return Some(Language::English);
    }
    Some(language::of(text.as_str())).filter(|language| *language != Language::English)
}

/// Where a second try ends: before the request does, so that there is time to give out what the first one made.
fn sooner(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) * 3 / 4
}

/// What was written, judged, and the mood of the text: `moods`, unless these answers are the first to tell.
async fn assessed(
    desk: Desk<'_>,
    text: &ValidText,
    tries: &[Try],
    moods: Option<Moods>,
    bound: Threshold,
    deadline: Instant,
) -> Result<(Vec<Candidate>, Option<Moods>), ServiceError> {
    let answers = desk.writer.write(text, tries, deadline).await?;
    let tasks: Vec<Task> = tries.iter().map(|one| one.task).collect();
    weighed(desk, text, (&tasks, answers), moods, bound, deadline).await
}

/// Answers to tasks, judged, and the mood of the text: `moods`, unless these are the first to tell.
async fn weighed(
    desk: Desk<'_>,
    text: &ValidText,
    (tasks, answers): (&[Task], Vec<Written>),
    moods: Option<Moods>,
    bound: Threshold,
    deadline: Instant,
) -> Result<(Vec<Candidate>, Option<Moods>), ServiceError> {
    let judgements = judged(desk, answers.iter().map(|answer| answer.text.clone()).collect(), deadline).await?;
    // It was learned of English texts, as was how replies begin.
    let english = language::is_answered_in_english(text.as_str());
    let least_right = |&task: &Task| desk.writer.least_right(task).filter(|_| english);
    let bounds: Vec<Option<f64>> = tasks.iter().map(least_right).collect();
    let opinion = match desk.judge.filter(|_| bounds.iter().any(Option::is_some)) {
        Some(judge) => {
            let answered = tasks.iter().zip(&answers).zip(&bounds).filter(|(_, bound)| bound.is_some());
            let answered = answered.map(|((&task, answer), _)| (task, answer.text.as_str()));
            judge.opinion(text.as_str(), answered, deadline).await?
        }
        None => None,
    };
    let read = opinion.as_ref().map(|opinion| opinion.moods);
    let moods = moods.or(read).or_else(|| answers.iter().find_map(|answer| answer.moods));
    let moods = moods.filter(|_| language::is_english(text.as_str()));
    let mut verdicts = opinion.map_or_else(Vec::new, |opinion| opinion.right).into_iter();
    let right = bounds.into_iter().map(|least| Some(Right { least: least?, probability: verdicts.next()? }));
    let candidates =
        tasks.iter().zip(answers).zip(judgements).zip(right).map(|(((&task, answer), judgement), right)| {
            // A judge has the mood in view, and more.
            let moods = moods.filter(|_| right.is_none());
            let quality = assess(text.as_str(), task, &answer, moods, judgement, bound);
            (Quality { right, ..quality }, answer.text)
        });
    Ok((candidates.collect(), moods))
}

/// What the guardian says of answers, and where it does not tell their light, who does.
async fn judged(desk: Desk<'_>, said: Vec<String>, deadline: Instant) -> Result<Vec<Judgement>, ServiceError> {
    let mut judgements = desk.guardian.judge_all(said.clone(), deadline).await?;
    if let Some(light) = desk.light
        && judgements.iter().any(|judgement| judgement.positive.is_none())
    {
        let seen = light.judge_all(said, deadline).await?;
        for (judgement, seen) in judgements.iter_mut().zip(seen) {
            judgement.positive = judgement.positive.or(seen.positive);
        }
    }
    Ok(judgements)
}

fn assess(
    text: &str,
    task: Task,
    answer: &Written,
    moods: Option<Moods>,
    judgement: Judgement,
    bound: Threshold,
) -> Quality {
    let Written { text: said, whole, doubt, .. } = answer;
    let language = language::of(text);
    let positive = judgement.positive.map(f64::from);
    let kept = || likeness::facts_kept(text, said, language);
    let (light, facts) = match task {
        Task::Express(Polarity::Positive) => (positive, kept()),
        Task::Express(Polarity::Negative) => (positive.map(|positive| 1.0 - positive), kept()),
        Task::Reply => {
            let out_of_place = moods.and_then(Moods::instead_of_gladness).is_some() && mood::is_glad(said);
            (out_of_place.then_some(0.0), 1.0)
        }
    };
    let drops_not = task != Task::Reply && negation::drops(text, said, language);
    let fitness = if fixed::is_distress(judgement.scores, language) {
        Fitness::Despairing
    } else if !said.chars().any(char::is_alphanumeric) || bound.judge(judgement.scores).flagged() {
        Fitness::Unfit
    } else {
        Fitness::Fit
    };
    Quality {
        fitness,
        repeats: likeness::repeats(text, said),
        foreign: language::differs(text, said),
        whole: *whole && !likeness::loops(text, said) && !likeness::runs_on(text, said),
        facts,
        invented: likeness::facts_invented(text, said, language),
        denial: if drops_not { 0.0 } else { 1.0 },
        slips: if task == Task::Reply { 0 } else { likeness::slips(text, said) },
        light: light.unwrap_or(1.0),
        doubt: f64::from(*doubt),
        right: None,
    }
}
