//! What the work of one request came to: where it waited, how long models worked on it, what was found in it.
//!
//! Owns a task-local, so that engines and use cases note their part without every signature between them passing it on.
//! Refuses texts: times and fixed words are all it takes. Filled on the tokio threads while a request is served, taken
//! when its log line is written. Work outside of a request notes nothing.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Stages that are kept one by one. The longest request has hundreds; beyond these they only count in the sums.
const MOST_STAGES: usize = 64;

tokio::task_local! {
    static RECORD: Arc<Record>;
}

/// The record of one request, in the making.
#[derive(Debug, Default)]
pub struct Record(Mutex<Work>);

/// What a record holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Time in queues. Stages that ran side by side all count.
    pub queue: Duration,
    /// Time from where a stage's first item was taken up to its end. Stages that ran side by side all count.
    pub inference: Duration,
    /// The stages, in the order in which they ended.
    pub stages: Vec<Stage>,
    /// Names of what was found; none where nothing was judged.
    pub found: Option<Vec<&'static str>>,
}

/// One submission to an engine: its items waited, then models ran over them.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Which kind of model.
    pub component: Arc<str>,
    /// Items submitted together.
    pub items: usize,
    /// When they joined the queue.
    pub queued: Instant,
    /// When the first of them was taken up; none if none was.
    pub started: Option<Instant>,
    /// When the last was answered, or the submission was given up.
    pub ended: Instant,
}

impl Record {
    /// Runs a request, whose work is noted here.
    pub async fn during<F: Future>(self: Arc<Self>, request: F) -> F::Output {
        RECORD.scope(self, request).await
    }

    /// What was noted; the record is empty afterwards.
    pub fn take(&self) -> Work {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Work> {
        // No code that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that something was judged, and what was found in it.
pub fn judged(found: &[&'static str]) {
    let _ = RECORD.try_with(|record| {
        let mut work = record.lock();
        let all = work.found.get_or_insert_default();
        for name in found {
            if !all.contains(name) {
                all.push(name);
            }
        }
    });
}

/// What the items of a submission carry, so that whoever takes the first one up can say when.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<OnceLock<Instant>>);

impl Ticket {
    /// An item was taken up. The first one counts.
    pub fn taken(&self, at: Instant) {
        self.0.get_or_init(|| at);
    }

    /// Whether both are of one submission.
    pub fn is_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A stage under way. Notes itself when it is dropped, also when its caller leaves.
#[derive(Debug)]
pub struct Submission {
    record: Option<Arc<Record>>,
    component: Arc<str>,
    items: usize,
    queued: Instant,
    ticket: Ticket,
}

impl Submission {
    /// Items that have joined a queue, with clones of the ticket.
    pub fn new(component: &Arc<str>, items: usize, queued: Instant, ticket: Ticket) -> Self {
        let record = RECORD.try_with(Arc::clone).ok();
        Self { record, component: Arc::clone(component), items, queued, ticket }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let Some(record) = &self.record else { return };
        let ended = Instant::now();
        let started = self.ticket.0.get().copied();
        let mut work = record.lock();
        work.queue += started.unwrap_or(ended).saturating_duration_since(self.queued);
        work.inference += ended.saturating_duration_since(started.unwrap_or(ended));
        if work.stages.len() < MOST_STAGES {
            let (component, items, queued) = (Arc::clone(&self.component), self.items, self.queued);
            work.stages.push(Stage { component, items, queued, started, ended });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(queued: Instant, taken: &[Instant]) {
        let ticket = Ticket::default();
        let _submission = Submission::new(&"text".into(), 3, queued, ticket.clone());
        for at in taken {
            ticket.taken(*at);
        }
    }

    #[tokio::test]
    async fn a_stage_waits_until_its_first_item_is_taken_up() {
        let record = Arc::new(Record::default());
        let queued = Instant::now().checked_sub(Duration::from_secs(9)).unwrap();
        let [second, fifth] = [2, 5].map(|seconds| queued + Duration::from_secs(seconds));
        Arc::clone(&record).during(async { submission(queued, &[second, fifth]) }).await;
        let work = record.take();
        assert_eq!(work.queue, Duration::from_secs(2));
        assert!(work.inference >= Duration::from_secs(7));
        let stage = &work.stages[0];
        assert_eq!((&*stage.component, stage.items, stage.started), ("text", 3, Some(second)));
        assert_eq!(record.take(), Work::default());
    }

    #[tokio::test]
    async fn what_never_ran_waited_all_the_time_also_when_its_caller_left() {
        let record = Arc::new(Record::default());
        let queued = Instant::now().checked_sub(Duration::from_secs(9)).unwrap();
        let request = Arc::clone(&record).during(async {
            let _waiting = Submission::new(&"text".into(), 1, queued, Ticket::default());
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), request).await.is_err());
        let work = record.take();
        assert!(work.queue >= Duration::from_secs(9) && work.inference == Duration::ZERO, "{work:?}");
    }

    #[tokio::test]
    async fn findings_are_joined_and_nothing_judged_is_not_nothing_found() {
        let record = Arc::new(Record::default());
        let judge = |findings: &'static [&'static [&'static str]]| {
            let record = Arc::clone(&record);
            async move {
                let judging = async {
                    for found in findings {
                        judged(found);
                    }
                };
                Arc::clone(&record).during(judging).await;
                record.take().found
            }
        };
        assert_eq!(judge(&[]).await, None);
        assert_eq!(judge(&[&[]]).await, Some(vec![]));
        assert_eq!(judge(&[&["hate"], &[], &["hate", "violence"]]).await, Some(vec!["hate", "violence"]));
    }

    #[tokio::test]
    async fn the_sums_are_whole_where_the_stages_are_too_many() {
        let record = Arc::new(Record::default());
        let queued = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let many = async {
            for _ in 0..MOST_STAGES + 6 {
                submission(queued, &[]);
            }
        };
        Arc::clone(&record).during(many).await;
        let work = record.take();
        assert_eq!(work.stages.len(), MOST_STAGES);
        assert!(work.queue >= Duration::from_secs(70));
    }

    #[test]
    fn work_outside_of_a_request_notes_nothing() {
        judged(&["hate"]);
        submission(Instant::now(), &[]);
    }
}
