//! Work on the rayon pool: what would hold up an async thread.
//!
//! Owns where such work ends: with its answer, with a caller who left, or with a panic. Refuses to let a panic pass
//! that: rayon would end the process over one that nobody caught. Called on the async threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use super::ServiceError;
use crate::telemetry::Metrics;

/// What the work is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// A picture is decoded, or what is written in it is cut out and put in order.
    Picture,
    /// Long texts are tokenised, or their language is told.
    Text,
}

impl Task {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Picture => "picture",
            Self::Text => "text",
        }
    }
}

/// Runs work on the pool. Work whose caller has left before it begins is not done; work that panics fails its own
/// request.
///
/// What the work holds is dropped before its answer arrives.
pub(super) async fn on_pool<T: Send + 'static>(
    task: Task,
    metrics: &Metrics,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServiceError> {
    let (reply, answer) = oneshot::channel();
    let panics = metrics.task_panics.with_label_values(&[task.as_str()]);
    let span = tracing::Span::current();
    rayon::spawn(move || {
        if reply.is_closed() {
            return;
        }
        // Nothing of the work outlives it, so there is no state that a panic could leave broken. In the request's
        // span, so that the line about a panic has its id.
        match span.in_scope(|| catch_unwind(AssertUnwindSafe(work))) {
            Ok(value) => {
                let _ = reply.send(value);
            }
            // What the panic said is not looked at: it may quote the caller's text. Its place has been logged.
            Err(_) => panics.inc(),
        }
    });
    answer.await.map_err(|_| ServiceError::Internal)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rayon::prelude::*;

    use super::*;

    /// The pool of the tests has no handler for panics: one that came through would end the process.
    #[tokio::test]
    async fn a_panic_fails_its_own_work_is_counted_and_lets_the_process_live() {
        let metrics = Metrics::new().unwrap();
        let said = Arc::new("as asked");
        let decoding = {
            let said = Arc::clone(&said);
            move || -> u32 { panic!("{said}") }
        };
        let (broken, sound) =
            tokio::join!(on_pool(Task::Picture, &metrics, decoding), on_pool(Task::Picture, &metrics, || 7));
        assert_eq!((broken, sound), (Err(ServiceError::Internal), Ok(7)));
        assert_eq!(Arc::strong_count(&said), 1, "what the work held is free again");
        let among_many = || (0..64).into_par_iter().for_each(|number| assert_ne!(number, 40, "as asked"));
        assert_eq!(on_pool(Task::Text, &metrics, among_many).await, Err(ServiceError::Internal));
        let counted = |task| metrics.task_panics.with_label_values(&[task]).get();
        assert_eq!((counted("picture"), counted("text")), (1, 1));
        assert_eq!(on_pool(Task::Text, &metrics, || 8).await, Ok(8));
    }
}
