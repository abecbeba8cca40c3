//! Dual expression and the checks on everything that is generated.

use std::time::Instant;

use futures_util::future::join;

use super::{
    AnswerJudge, ServiceError, TextGuardian, Writer,
    guardian_text::Judgement,
    language,
    manners::manners,
    writer::{Manner, Task, Try, Written, seed},
};
use crate::{
    domain::{
        Fixed, Language, Moods, Polarity, Prism, Sentences, Threshold, ValidText, fixed, likeness, mood, negation,
        situation,
    },
    telemetry::Metrics,
};

/// The score from which an answer is not given out. An answer to a text that is itself flagged is held to a stricter
/// one: it may carry a part of the harm on in milder words.
const STRICT: f64 = 0.2;

/// An answer that is less surely in the light that was asked for is made again, however clear the other one of the
/// pair is.
const LEAST_LIGHT: f64 = 0.35;

/// What a judge holds of an answer, against what the other checks say of it.
const JUDGE_WEIGHT: f64 = 8.0;

/// What writes, and what judges what was written.
#[derive(Clone, Copy)]
pub(super) struct Desk<'a> {
    pub(super) writer: &'a Writer,
    pub(super) guardian: &'a TextGuardian,
    /// Tells the light of an answer where the guardian cannot.
    pub(super) light: Option<&'a TextGuardian>,
    pub(super) judge: Option<&'a AnswerJudge>,
    /// Tells the situation of a text, and what people wrote for it.
    pub(super) situations: Option<&'a AnswerJudge>,
    pub(super) metrics: &'a Metrics,
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

/// Whether an answer may be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fitness {
    Fit,
    /// Empty, or flagged by our own moderation at the bound.
    Unfit,
    /// As an input it would be answered with care.
    Despairing,
}

/// Why an answer is made again.
pub(super) const FAILURES: [&str; 8] = ["unfit", "copy", "language", "polarity", "broken", "facts", "judged", "doubt"];

/// What the checks say of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quality {
    fitness: Fitness,
    /// It says the input over again.
    repeats: bool,
    /// It is surely in another language than the input.
    foreign: bool,
    /// It ends where a sentence ends, does not go on behind one, and says nothing twice.
    whole: bool,
    /// Share of the input's names and numbers that it keeps, from 0 to 1. Replies need none.
    facts: f64,
    /// Names and numbers that the input does not have.
    invented: usize,
    /// 0 where the input denies something and it nothing, else 1.
    denial: f64,
    /// Words of the input that it loses where it says that over.
    slips: usize,
    /// Probability that it is said in the light that was asked for; of a reply 0 where it is glad of what the text tells, and
    /// should not be ([`Moods::instead_of_gladness`]). 1 where nothing is asked for, or no model tells.
    light: f64,
    /// How much the model doubts it; above 1 it is made again.
    doubt: f64,
    /// What the judge holds of it, where one is asked.
    right: Option<Right>,
}

/// How right an answer is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Right {
    /// That a reader finds it right.
    probability: f64,
    /// Below this it is made again.
    least: f64,
}

impl Right {
    /// The probability in view of the model's own doubt: either sees what the other does not. How far that counts is of 248
    /// texts whose answers readers had judged.
    fn doubted(self, doubt: f64) -> f64 {
        let against = (1.0 - self.probability) * (0.5 * doubt.clamp(0.0, 2.0)).exp();
        self.probability / (self.probability + against)
    }
}

impl Quality {
    fn fit(self) -> bool {
        self.fitness == Fitness::Fit
    }

    /// From 0, unfit, to 14.5, or 18.5 where a judge tells. A copy or another language is below any other answer that may
    /// be given out: it says nothing new, however right its light and its facts. Of the rest, the wrong light is worse than
    /// a broken sentence or a fact lost or invented, and a lost "not" weighs least: it may be there in other words. What a
    /// judge holds of it weighs more than any of these, as it sees what they do not: an attitude that does not fit, a
    /// sentence without sense. Without a judge the model's own doubt tells of those, where nothing is wrong by these
    /// checks.
    fn score(self) -> f64 {
        if !self.fit() {
            return 0.0;
        }
        let invented = match self.invented {
            0 => 0.0,
            1 => 1.0,
            _ => 1.5,
        };
        let facts = 1.5 * self.facts + 0.5 * self.denial;
        let kept = self.facts >= 1.0 && self.denial >= 1.0 && self.invented == 0 && self.slips == 0;
        let flawless = self.whole && kept && self.light >= LEAST_LIGHT;
        let trusted = match self.right {
            Some(right) => JUDGE_WEIGHT * right.doubted(self.doubt),
            None if flawless => 4.0 - 2.0 * self.doubt.clamp(0.0, 2.0),
            None => 0.0,
        };
        // From 0 to 11, or 15.
        let said = if self.whole { 1.5 } else { 0.0 } + 2.0 * self.light + facts + 1.5 - invented + trusted;
        if self.repeats || self.foreign { 1.0 + 0.15 * said } else { 3.5 + said }
    }

    /// The check that it failed first, one of [`FAILURES`] in their order; none where it passed all.
    fn failure(self, pair: Pair) -> Option<&'static str> {
        if !self.fit() {
            Some("unfit")
        } else if self.repeats || pair == Pair::Alike {
            Some("copy")
        } else if self.foreign {
            Some("language")
        } else if pair == Pair::NotTurned || self.light < LEAST_LIGHT {
            Some("polarity")
        } else if !self.whole {
            Some("broken")
        } else if self.facts < 1.0 || self.invented > 0 || self.denial < 1.0 || self.slips > 0 {
            Some("facts")
        } else {
            match self.right {
                Some(right) => (right.probability < right.least).then_some("judged"),
                None => (self.doubt > 1.0).then_some("doubt"),
            }
        }
    }
}

/// How the two answers of a pair stand to each other; one alone is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// The positive one is more positive than the negative one, and neither the other over again.
    ///
    /// A model that errs in one text of five on its own errs in one pair of fourteen.
    Right,
    NotTurned,
    Alike,
}

impl Pair {
    fn of(answers: &[&Candidate]) -> Self {
        let [(one, first), (other, second)] = answers else { return Self::Right };
        if likeness::repeats(first, second) {
            Self::Alike
        } else if one.light + other.light <= 1.0 {
            Self::NotTurned
        } else {
            Self::Right
        }
    }

    /// What it takes from the scores of both.
    fn price(self) -> f64 {
        match self {
            Self::Right => 0.0,
            Self::NotTurned => 1.5,
            Self::Alike => 7.0,
        }
    }
}

type Candidate = (Quality, String);

/// The candidates, one of each task, that do best together: first, that they may be given out at all.
fn best(tasks: &[Vec<Candidate>]) -> Vec<&Candidate> {
    let worth = |answers: &[&Candidate]| {
        let fit = answers.iter().filter(|(quality, _)| quality.fit()).count();
        let scores: f64 = answers.iter().map(|(quality, _)| quality.score()).sum();
        // What is not given out has no light to match.
        let price = if fit == answers.len() { Pair::of(answers).price() } else { 0.0 };
        (fit, scores - price)
    };
    let mut choices: Vec<Vec<&Candidate>> = vec![Vec::new()];
    for candidates in tasks {
        let longer = |chosen: &Vec<_>| candidates.iter().map(|next| [chosen.as_slice(), &[next]].concat()).collect();
        choices = choices.iter().flat_map::<Vec<Vec<&Candidate>>, _>(longer).collect();
    }
    // Of equals the first one: what was written greedily.
    let valued = choices.into_iter().rev().map(|choice| (worth(&choice), choice));
    let best = valued.max_by(|((fit, score), _), ((others_fit, others_score), _)| {
        fit.cmp(others_fit).then(score.total_cmp(others_score))
    });
    best.map(|(_, choice)| choice).unwrap_or_default()
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
    let outcome = checked(desk, &text, &tasks, judgement, deadline).await?;
    outcome.or_fixed(judgement, language, Fixed::prism, |answers| {
        let [positive, negative] = <[String; 2]>::try_from(answers).ok()?;
        Some(Prism::Expressed { positive, negative })
    })
}

/// Answers what people wrote for the situation of the text, where that comes first, is known and passes the checks. Else
/// generates each task greedily, checks the answers, and makes those that fail once more: by sampling, or from beginnings that
/// fit what the text tells; beside these stands what people wrote.
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
    let bound = bound(input);
    // Friendly words for whatever may be said in a situation are none for a threat in that.
    let known = if is_suspect(input) { None } else { known_situation(desk, text, tasks, deadline).await };
    let mut ready = None;
    if let Some(known) = known.as_ref().filter(|known| known.comes_first()) {
        let candidates = known.candidates(desk, text, tasks, None, bound, deadline).await?;
        let best = best(&candidates);
        let pair = Pair::of(&best);
        // A judge that learned from what models write picks among them, and holds nearly all for too little.
        let fails = |quality: Quality| Quality { right: None, ..quality }.failure(pair).is_some();
        if !best.iter().any(|(quality, _)| fails(*quality)) {
            return Ok(Outcome::Answers(best.into_iter().map(|(_, answer)| answer.clone()).collect()));
        }
        ready = Some(candidates);
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
        let made = tokio::time::timeout_at(until.into(), assessed(desk, text, &attempts, moods, bound, until));
        let beforehand = tokio::time::timeout_at(until.into(), async {
            match (ready, &known) {
                (None, Some(known)) => known.candidates(desk, text, tasks, moods, bound, until).await,
                (ready, _) => Ok(ready.unwrap_or_default()),
            }
        });
        let (made, beforehand) = join(made, beforehand).await;
        let made = made.unwrap_or(Err(ServiceError::Deadline));
        for ((place, _), candidate) in retries.into_iter().zip(made.as_ref().map_or(&[][..], |(made, _)| made)) {
            if let Some(written) = written.get_mut(place) {
                written.push(candidate.clone());
            }
        }
        // Without it there is what was generated.
        let beforehand = beforehand.ok().and_then(Result::ok).unwrap_or_default();
        for ((place, ready), written) in beforehand.into_iter().enumerate().zip(&mut written) {
            // Of whom only despair is written, friendly words are no answer to.
            if again.iter().any(|(failed, ..)| *failed == place) && !despairs(written) {
                written.extend(ready);
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

/// Whether none of the answers may be given out, and some because of despair.
fn despairs(answers: &[Candidate]) -> bool {
    let any = |fitness| answers.iter().any(|(quality, _)| quality.fitness == fitness);
    !any(Fitness::Fit) && any(Fitness::Despairing)
}

/// The situation of a text, as far as that matters for its answers.
struct Known<'a> {
    sentences: &'a Sentences,
    language: Language,
    probability: f32,
    /// For each task, the probability from which what people wrote comes first; none where it has no part.
    bounds: Vec<Option<f32>>,
}

/// The situation that a text tells of, where that matters for the answer to some task and is known. Whoever cannot tell it, or
/// not in time, leaves the answers to the generator.
async fn known_situation<'a>(desk: Desk<'a>, text: &ValidText, tasks: &[Task], deadline: Instant) -> Option<Known<'a>> {
    let english = language::is_answered_in_english(text.as_str());
    let bounds: Vec<Option<f32>> = tasks.iter().map(|&task| desk.writer.beforehand(task, english)).collect();
    let judge = desk.situations.filter(|_| bounds.iter().any(Option::is_some))?;
    let language = language::of(text.as_str());
    // English stands for every language that is none of ours.
    if !english && language == Language::English {
        return None;
    }
    let until = sooner(deadline);
    let found = tokio::time::timeout_at(until.into(), judge.sentences(text.as_str(), language, until)).await;
    let (sentences, probability) = found.ok()?.ok()??;
    Some(Known { sentences, language, probability, bounds })
}

impl Known<'_> {
    /// Whether what people wrote is tried before anything is generated.
    fn comes_first(&self) -> bool {
        self.bounds.iter().all(|bound| bound.is_some_and(|bound| self.probability >= bound))
    }

    /// What people wrote, for each task in which that has a part, assessed as if it had been generated.
    async fn candidates(
        &self,
        desk: Desk<'_>,
        text: &ValidText,
        tasks: &[Task],
        moods: Option<Moods>,
        bound: Threshold,
        deadline: Instant,
    ) -> Result<Vec<Vec<Candidate>>, ServiceError> {
        let (mut of_tasks, mut answers, mut counts) = (Vec::new(), Vec::new(), Vec::with_capacity(tasks.len()));
        for (&task, has_part) in tasks.iter().zip(&self.bounds) {
            let said = match has_part {
                Some(_) => answers_of(text.as_str(), self.language, self.sentences, task),
                None => Vec::new(),
            };
            counts.push(said.len());
            of_tasks.extend(said.iter().map(|_| task));
            answers.extend(said.into_iter().map(|text| Written { text, whole: true, doubt: 0.0, moods: None }));
        }
        let mut candidates = weighed(desk, text, (&of_tasks, answers), moods, bound, deadline).await?.0.into_iter();
        Ok(counts.into_iter().map(|count| candidates.by_ref().take(count).collect()).collect())
    }
}

/// What was written, as answers to a text: first the one that its words point to, which among equals is taken, so that texts of
/// one situation do not all get the same.
fn answers_of(text: &str, language: Language, sentences: &Sentences, task: Task) -> Vec<String> {
    let mut answers: Vec<String> = match task {
        Task::Express(light) => {
            sentences.attitudes(light).iter().map(|attitude| situation::joined(text, attitude, language)).collect()
        }
        Task::Reply => sentences.reply.clone(),
    };
    let first = seed(text, task, 0) % answers.len().max(1) as u64;
    answers.rotate_left(usize::try_from(first).unwrap_or_default());
    answers
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

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Quality = Quality {
        fitness: Fitness::Fit,
        repeats: false,
        foreign: false,
        whole: true,
        facts: 1.0,
        invented: 0,
        denial: 1.0,
        slips: 0,
        light: 1.0,
        doubt: 0.0,
        right: None,
    };

    #[test]
    fn a_copy_is_below_every_other_answer_that_may_be_given_out() {
        assert!((RIGHT.score() - 14.5).abs() < 1e-9);
        let worst = Quality { whole: false, facts: 0.0, invented: 3, denial: 0.0, light: 0.0, doubt: 9.0, ..RIGHT };
        let unfit = Quality { fitness: Fitness::Unfit, ..RIGHT };
        for copy in [Quality { repeats: true, ..RIGHT }, Quality { foreign: true, ..RIGHT }] {
            assert!(unfit.score() < copy.score() && copy.score() < worst.score());
        }
    }

    #[test]
    fn two_answers_are_chosen_together() {
        let said = |light: f64, said: &str| (Quality { light, ..RIGHT }, said.to_owned());
        let chosen = |tasks: &[Vec<Candidate>]| -> Vec<String> {
            best(tasks).into_iter().map(|(_, answer)| answer.clone()).collect()
        };
        let (won, hurts) = ("I won the race on Sunday and I am glad.", "I won on Sunday, but my knee has hurt since.");
        assert_eq!(Pair::of(&[&said(0.9, won), &said(0.9, won)]), Pair::Alike);
        assert_eq!(Pair::of(&[&said(0.2, won), &said(0.7, hurts)]), Pair::NotTurned);
        assert_eq!(Pair::of(&[&said(0.4, won), &said(0.7, hurts)]), Pair::Right);
        // An expression that is clearer by itself is not taken beside one that says the same.
        assert_eq!(chosen(&[vec![said(0.9, won)], vec![said(0.9, won), said(0.6, hurts)]]), [won, hurts]);
        // Of answers that lose facts, one fact less is no loss where it turns the pair the right way round; but what
        // loses none comes first.
        let less = |facts: f64, light: f64, said: &str| (Quality { facts, light, ..RIGHT }, said.to_owned());
        let (clear, clearer) = (less(0.8, 0.85, hurts), less(0.5, 0.95, "My knee has hurt since."));
        assert_eq!(chosen(&[vec![said(0.1, won)], vec![clear, clearer.clone()]]), [won, "My knee has hurt since."]);
        assert_eq!(chosen(&[vec![said(0.1, won)], vec![said(0.85, hurts), clearer]]), [won, hurts]);
        // What may not be given out is no way out of that.
        let copy = |words: &str| (Quality { repeats: true, ..RIGHT }, words.to_owned());
        let unfit = (Quality { fitness: Fitness::Unfit, ..RIGHT }, hurts.to_owned());
        assert_eq!(chosen(&[vec![copy(won)], vec![unfit, copy(won)]]), [won, won]);
        // What the model doubts is made again, and loses against what it is surer of.
        let doubted = |doubt: f64, words: &str| (Quality { doubt, ..RIGHT }, words.to_owned());
        assert_eq!(doubted(1.1, won).0.failure(Pair::Right), Some("doubt"));
        assert_eq!(doubted(0.9, won).0.failure(Pair::Right), None);
        // A judge's verdict counts instead, and the doubt in the choice alone.
        let judged = |probability: f64, doubt: f64, words: &str| {
            (Quality { right: Some(Right { probability, least: 0.7 }), doubt, ..RIGHT }, words.to_owned())
        };
        assert_eq!(judged(0.71, 9.0, won).0.failure(Pair::Right), None);
        assert_eq!(judged(0.69, 0.0, won).0.failure(Pair::Right), Some("judged"));
        assert_eq!(chosen(&[vec![judged(0.6, 0.5, won), judged(0.8, 0.9, hurts)]]), [hurts]);
        assert_eq!(chosen(&[vec![judged(0.79, 0.1, won), judged(0.8, 0.9, hurts)]]), [won]);
        let lossy = (Quality { facts: 0.0, denial: 0.0, ..judged(0.8, 0.0, won).0 }, won.to_owned());
        assert_eq!(chosen(&[vec![lossy, judged(0.7, 0.0, hurts)]]), [hurts]);
        // What loses a word loses, too.
        let slipped = |words: &str| (Quality { slips: 1, ..RIGHT }, words.to_owned());
        assert_eq!(slipped(won).0.failure(Pair::Right), Some("facts"));
        assert_eq!(chosen(&[vec![slipped(won), doubted(1.1, hurts)]]), [hurts]);
        assert_eq!(chosen(&[vec![doubted(1.1, won), doubted(1.2, hurts), doubted(0.7, hurts)]]), [hurts]);
        // Of equals, what was written greedily.
        assert_eq!(chosen(&[vec![said(0.9, won), said(0.9, hurts)]]), [won]);
    }
}
