//! Where calls run, and what they can ask about themselves.

use super::link;
use super::serve::Concurrency;
use portolan_proto::Time;
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// No thread is free, and the queue is full.
pub(super) struct Full;

/// Those who run calls.
pub(super) enum Crew {
    Caller,
    Threads {
        running: Arc<AtomicUsize>,
        most: usize,
    },
    Pool(SyncSender<Job>),
}

impl Crew {
    pub(super) fn new(concurrency: Concurrency, queue: usize) -> io::Result<Self> {
        Ok(match concurrency {
            Concurrency::Client => Self::Caller,
            Concurrency::Call => Self::Threads {
                running: Arc::default(),
                most: queue.max(1),
            },
            Concurrency::Pool(threads) => {
                let (jobs, queue) = sync_channel(queue);
                let queue = Arc::new(Mutex::new(queue));
                for _ in 0..threads.max(1) {
                    let queue = Arc::clone(&queue);
                    // It ends when the last sender has gone.
                    thread::Builder::new()
                        .name("portolan-rpc-pool".to_owned())
                        .spawn(move || while work(&queue) {})?;
                }
                Self::Pool(jobs)
            }
        })
    }

    /// Whether calls run in the thread that reads them.
    pub(super) fn is_caller(&self) -> bool {
        matches!(self, Self::Caller)
    }

    pub(super) fn run(&self, job: Job) -> Result<(), Full> {
        match self {
            Self::Caller => job(),
            Self::Threads { running, most } => {
                // Relaxed: a bound, and nothing else hangs on it.
                if running.fetch_add(1, Ordering::Relaxed) >= *most {
                    running.fetch_sub(1, Ordering::Relaxed);
                    return Err(Full);
                }
                let count = Arc::clone(running);
                let run = move || {
                    job();
                    count.fetch_sub(1, Ordering::Relaxed);
                };
                if thread::Builder::new().spawn(run).is_err() {
                    running.fetch_sub(1, Ordering::Relaxed);
                    return Err(Full);
                }
            }
            Self::Pool(jobs) => jobs.try_send(job).map_err(|_| Full)?,
        }
        Ok(())
    }
}

fn work(queue: &Mutex<Receiver<Job>>) -> bool {
    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
    match job {
        Ok(job) => {
            job();
            true
        }
        Err(_) => false,
    }
}

/// What a method can ask about the call that it runs for.
///
/// ```
/// use portolan::rpc::Context;
/// assert!(Context::current().is_none(), "this is no method of a service");
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    deadline: Option<Time>,
    given_up: Arc<AtomicBool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

impl Context {
    pub(super) fn new(deadline: Option<Time>, given_up: Arc<AtomicBool>) -> Self {
        Self { deadline, given_up }
    }

    /// Of the call that this thread runs.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Until when its client waits, to about a millisecond.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.map(link::instant)
    }

    /// Whether its client waits no more: it has given up, its deadline has passed, or it has
    /// gone. What is done from now on is for nobody.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.deadline.is_some_and(|d| d < link::now())
    }

    /// Runs a method.
    pub(super) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        struct After(Option<Context>);
        impl Drop for After {
            fn drop(&mut self) {
                CURRENT.replace(self.0.take());
            }
        }
        let _after = After(CURRENT.replace(Some(self.clone())));
        run()
    }
}
