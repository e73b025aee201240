//! Tells the user what a command waits for, and how long, once that takes longer than a moment.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// What takes longer than this is told.
const MOMENT: Duration = Duration::from_secs(1);

/// While it lives, something is waited for.
pub(super) struct Waiting {
    /// Dropped when the wait is over.
    over: Option<Sender<()>>,
    teller: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Tells on standard error what is waited for and for how long (`None`: for ever), unless
    /// the wait is over within a moment. `what` is not asked before that.
    pub(super) fn start(
        quiet: bool,
        seconds: Option<f64>,
        what: impl FnOnce() -> String + Send + 'static,
    ) -> Self {
        let limit = seconds.map(Duration::from_secs_f64);
        if quiet || limit.is_some_and(|limit| limit <= MOMENT) {
            return Self {
                over: None,
                teller: None,
            };
        }
        let (over, wait) = mpsc::channel();
        let tell = move || {
            if wait.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
                let how_long = seconds.map_or_else(
                    || "until it comes (Ctrl-C ends this)".to_owned(),
                    |seconds| format!("for up to {seconds} s"),
                );
                tell!("portolan: waiting for {}, {how_long}", what());
            }
        };
        Self {
            over: Some(over),
            // Without a thread the wait is silent, and goes on.
            teller: std::thread::Builder::new().spawn(tell).ok(),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.over.take());
        // What it began to say, it has said when the next message follows.
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
    }
}
