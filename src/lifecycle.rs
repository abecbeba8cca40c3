//! How the server stops: softly, then hard.
//!
//! Owns the two stop tokens, the tracker of tasks to wait for, and the process signals. A soft stop means: not
//! ready, accept nothing new, finish what is under way. A hard stop means: let go now. Refuses to exit the process;
//! that is `cli`'s and `main`'s. Runs on the tokio runtime.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long tasks get to notice a hard stop.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

/// The stop tokens and the tasks that a stop waits for. Clones share them.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    soft: CancellationToken,
    hard: CancellationToken,
    tasks: TaskTracker,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every tracked task finished by itself.
    Finished,
    /// The grace ended, or a second signal came, with tasks still running.
    Cut {
        /// How many were still running; 0 when all heeded a hard stop at once.
        tasks: usize,
    },
}

impl Default for Lifecycle {
    fn default() -> Self {
        let hard = CancellationToken::new();
        // A child: a hard stop is always a soft stop too.
        Self { soft: hard.child_token(), hard, tasks: TaskTracker::new() }
    }
}

impl Lifecycle {
    /// A lifecycle in which nothing stops yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a stop has begun: readiness is gone, nothing new is accepted.
    pub fn stopping(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Cancelled when the server shall finish what it has and stop.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Cancelled when the server shall stop at once.
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Spawns a task that a drain waits for.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Listens to SIGTERM and SIGINT from this call on. The returned future, to be spawned, turns the first signal
    /// into a soft stop and the second into a hard one, and ends after it.
    ///
    /// # Errors
    /// The system refused a handler.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn signals(&self) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let lifecycle = self.clone();
        Ok(async move {
            lifecycle
                .obey(|context| {
                    if terminate.poll_recv(context).is_ready() {
                        Poll::Ready("SIGTERM")
                    } else {
                        interrupt.poll_recv(context).map(|_| "SIGINT")
                    }
                })
                .await;
        })
    }

    /// The policy of [`signals`](Self::signals), for any source of them.
    async fn obey(&self, mut next: impl FnMut(&mut Context<'_>) -> Poll<&'static str>) {
        let signal = poll_fn(&mut next).await;
        tracing::info!(signal, "stopping: finishing what is under way, another signal stops at once");
        self.soft.cancel();
        let signal = poll_fn(&mut next).await;
        tracing::warn!(signal, "stopping at once");
        self.hard.cancel();
    }

    /// Stops softly (if that has not begun), waits for the tracked tasks until the grace ends or a hard stop comes,
    /// then stops hard. When it returns, no tracked task is left that heeds the hard token.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.soft.cancel();
        self.tasks.close();
        let finished = tokio::select! {
            // In order: work that let go because of a hard stop did not finish, work that ended in time was not cut.
            biased;
            () = self.hard.cancelled() => false,
            () = self.tasks.wait() => true,
            () = tokio::time::sleep(grace) => false,
        };
        let outcome = if finished { Drained::Finished } else { Drained::Cut { tasks: self.tasks.len() } };
        self.hard.cancel();
        if !finished {
            // Whether they heeded it or not, the server goes.
            let _ = tokio::time::timeout(LAST_MOMENTS, self.tasks.wait()).await;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::mpsc, time::Instant};

    use super::*;

    const GRACE: Duration = Duration::from_secs(25);

    #[tokio::test(start_paused = true)]
    async fn the_first_signal_is_soft_and_the_second_hard() {
        let lifecycle = Lifecycle::new();
        let (send, mut signals) = mpsc::unbounded_channel();
        let obeying = tokio::spawn({
            let lifecycle = lifecycle.clone();
            async move { lifecycle.obey(|context| signals.poll_recv(context).map(Option::unwrap)).await }
        });
        tokio::task::yield_now().await;
        assert!(!lifecycle.stopping());
        send.send("SIGTERM").unwrap();
        lifecycle.soft().cancelled().await;
        assert!(lifecycle.stopping() && !lifecycle.hard().is_cancelled());
        send.send("SIGINT").unwrap();
        lifecycle.hard().cancelled().await;
        obeying.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_when_the_work_does() {
        let lifecycle = Lifecycle::new();
        lifecycle.spawn(tokio::time::sleep(Duration::from_secs(3)));
        lifecycle.spawn(tokio::time::sleep(Duration::from_secs(7)));
        let start = Instant::now();
        assert_eq!(lifecycle.drain(GRACE).await, Drained::Finished);
        assert_eq!(start.elapsed().as_secs(), 7);
        assert!(lifecycle.stopping() && lifecycle.hard().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_grace_the_work_is_cut() {
        let lifecycle = Lifecycle::new();
        let hard = lifecycle.hard().clone();
        let heeding = lifecycle.spawn(async move { hard.cancelled().await });
        let deaf = lifecycle.spawn(std::future::pending::<()>());
        let start = Instant::now();
        assert_eq!(lifecycle.drain(GRACE).await, Drained::Cut { tasks: 2 });
        assert_eq!(start.elapsed(), GRACE + LAST_MOMENTS, "a deaf task cannot hold the exit up");
        assert!(heeding.is_finished() && !deaf.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hard_stop_cuts_the_grace_short() {
        let lifecycle = Lifecycle::new();
        let hard = lifecycle.hard().clone();
        lifecycle.spawn({
            let hard = hard.clone();
            async move { hard.cancelled().await }
        });
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            hard.cancel();
        });
        let start = Instant::now();
        assert_eq!(lifecycle.drain(GRACE).await, Drained::Cut { tasks: 0 });
        assert_eq!(start.elapsed().as_secs(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_to_wait_for_takes_no_time() {
        let start = Instant::now();
        assert_eq!(Lifecycle::new().drain(GRACE).await, Drained::Finished);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn the_handlers_can_be_installed() {
        let watching = tokio::spawn(Lifecycle::new().signals().unwrap());
        watching.abort();
    }
}
