//! Runs calls in the server's threads, and tells each call about itself.

use super::link;
use super::method::NotDispatched;
use super::room::{Full, Room, Turn};
use super::serve::Concurrency;
use super::task::{Running, Spawner};
use crate::Deadline;
use portolan_proto::{Incoming, Status, Time};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Instant;

/// Bytes of what a panic said that its client is told, at most.
const MOST_SAID: usize = 16 << 10;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Those who run calls.
pub(super) enum Crew {
    Caller,
    Threads(Arc<Room>),
    Pool {
        jobs: Sender<(Job, Turn)>,
        /// For those that run and those that wait for a thread.
        room: Arc<Room>,
    },
    Tasks {
        spawner: Spawner,
        room: Arc<Room>,
    },
}

impl Crew {
    pub(super) fn new(concurrency: Concurrency, queue: usize) -> io::Result<Self> {
        Ok(match concurrency {
            Concurrency::Client => Self::Caller,
            Concurrency::Call => Self::Threads(Room::of(queue.max(1))),
            Concurrency::Pool(threads) => {
                let threads = threads.max(1);
                let room = Room::of(queue.saturating_add(threads));
                let (jobs, queue) = channel();
                let queue = Arc::new(Mutex::new(queue));
                for _ in 0..threads {
                    let queue = Arc::clone(&queue);
                    // It ends when the last sender has gone.
                    thread::Builder::new()
                        .name("portolan-rpc-pool".to_owned())
                        .spawn(move || while work(&queue) {})?;
                }
                Self::Pool { jobs, room }
            }
        })
    }

    pub(super) fn of_tasks(spawner: &Spawner, queue: usize) -> Self {
        Self::Tasks {
            spawner: Arc::clone(spawner),
            room: Room::of(queue.max(1)),
        }
    }

    /// Whether calls run as tasks ([`Self::spawn`]).
    pub(super) fn has_tasks(&self) -> bool {
        matches!(self, Self::Tasks { .. })
    }

    /// Hands a call to the runtime, if there is room for it by then.
    pub(super) fn spawn(
        &self,
        until: Deadline,
        call: impl FnOnce() -> Running,
    ) -> Result<(), Full> {
        let Self::Tasks { spawner, room } = self else {
            return Err(Full);
        };
        let turn = room.take(until)?;
        let call = call();
        spawner(Box::pin(async move {
            call.await;
            drop(turn);
        }));
        Ok(())
    }

    /// Whether calls run in the thread that reads them.
    #[inline]
    pub(super) fn is_caller(&self) -> bool {
        matches!(self, Self::Caller)
    }

    /// Has a call run, if there is room for it by then.
    pub(super) fn run(&self, until: Deadline, job: Job) -> Result<(), Full> {
        match self {
            Self::Caller => job(),
            Self::Threads(room) => {
                let turn = room.take(until)?;
                if let Err(job) = in_a_thread(job, turn) {
                    // The system has none left. What may wait runs here instead.
                    if until.is_now() {
                        return Err(Full);
                    }
                    job();
                }
            }
            Self::Tasks { .. } => return Err(Full),
            Self::Pool { jobs, room } => {
                let turn = room.take(until)?;
                jobs.send((job, turn)).map_err(|_| Full)?;
            }
        }
        Ok(())
    }
}

/// Runs a job in a thread of its own; the job, if there is none to be had.
fn in_a_thread(job: Job, turn: Turn) -> Result<(), Job> {
    let job = Arc::new(Mutex::new(Some(job)));
    let theirs = Arc::clone(&job);
    let spawned = thread::Builder::new().spawn(move || {
        if let Some(job) = link::lock(&theirs).take() {
            job();
        }
        drop(turn);
    });
    let back = spawned.err().and_then(|_| link::lock(&job).take());
    back.map_or(Ok(()), Err)
}

fn work(queue: &Mutex<Receiver<(Job, Turn)>>) -> bool {
    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
    match job {
        Ok((job, turn)) => {
            job();
            drop(turn);
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
    number: u64,
    deadline: Option<Time>,
    /// None for what runs in the thread that would hear of it: it is never told.
    given_up: Option<Arc<GivenUp>>,
}

/// Whether a client has given its call up, and who is to know.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    yes: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Wakes a task. What its runtime does then is its own affair, but must not end this thread.
pub(super) fn wake(waker: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        let said = said(&*panic);
        tracing::error!(
            said,
            "a waker panicked: its task is not told what it waits for"
        );
    }
}

impl GivenUp {
    /// It has.
    pub(super) fn set(&self) {
        self.yes.store(true, Ordering::Release);
        let waker = self.waker().take();
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that a thread runs.
#[derive(Clone, Copy)]
struct Runs {
    number: u64,
    deadline: Option<Time>,
    /// What tells that it was given up is in [`GIVEN_UP`].
    is_told: bool,
}

thread_local! {
    /// Without a destructor, so that it costs a load and a store.
    static CURRENT: Cell<Option<Runs>> = const { Cell::new(None) };
    static GIVEN_UP: RefCell<Option<Arc<GivenUp>>> = const { RefCell::new(None) };
}

impl Context {
    #[inline]
    pub(super) fn new(call: &Incoming, given_up: Option<Arc<GivenUp>>) -> Self {
        Self {
            number: call.number,
            deadline: call.deadline,
            given_up,
        }
    }

    /// The call's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Of the call that this thread runs.
    pub fn current() -> Option<Self> {
        let runs = CURRENT.get()?;
        let given_up = match runs.is_told {
            true => GIVEN_UP.with_borrow(Clone::clone),
            false => None,
        };
        Some(Self {
            number: runs.number,
            deadline: runs.deadline,
            given_up,
        })
    }

    /// Until when its client waits, to about a millisecond.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.map(link::instant)
    }

    /// Whether its client waits no more: it has given up, its deadline has passed, or it has
    /// gone. No client wants the result any more.
    pub fn is_given_up(&self) -> bool {
        let told = |given_up: &Arc<GivenUp>| given_up.yes.load(Ordering::Acquire);
        self.given_up.as_ref().is_some_and(told) || self.deadline.is_some_and(|d| d < link::now())
    }

    /// Whether it was given up; if not, `waker` is woken when it is.
    pub(super) fn wake_if_given_up(&self, waker: &Waker) -> bool {
        let Some(given_up) = &self.given_up else {
            return false;
        };
        let mut known = given_up.waker();
        if !known.as_ref().is_some_and(|k| k.will_wake(waker)) {
            *known = Some(waker.clone());
        }
        drop(known);
        // After it was noted: `GivenUp::set` looks for it afterwards. The lock is their pair.
        given_up.yes.load(Ordering::Acquire)
    }

    /// Runs a method.
    #[inline]
    pub(super) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        /// What was there before: a method may run within another one's call.
        struct After {
            runs: Option<Runs>,
            given_up: Option<Option<Arc<GivenUp>>>,
        }
        impl Drop for After {
            fn drop(&mut self) {
                CURRENT.set(self.runs);
                if let Some(given_up) = self.given_up.take() {
                    GIVEN_UP.replace(given_up);
                }
            }
        }
        let runs = Runs {
            number: self.number,
            deadline: self.deadline,
            is_told: self.given_up.is_some(),
        };
        let tells = |given_up| GIVEN_UP.replace(Some(Arc::clone(given_up)));
        let _after = After {
            given_up: self.given_up.as_ref().map(tells),
            runs: CURRENT.replace(Some(runs)),
        };
        run()
    }
}

/// How a call is answered whose method ended like this; what a panic said is put to `result`.
#[inline(always)]
pub(super) fn answer_of(
    ended: thread::Result<Result<(), NotDispatched>>,
    result: &mut Vec<u8>,
) -> Status {
    match ended {
        Ok(Ok(())) => Status::Returned,
        other => answer_of_failed(other, result),
    }
}

#[cold]
#[inline(never)]
fn answer_of_failed(
    ended: thread::Result<Result<(), NotDispatched>>,
    result: &mut Vec<u8>,
) -> Status {
    match ended {
        Ok(Ok(())) => Status::Returned,
        Ok(Err(NotDispatched::UnknownMethod)) => Status::UnknownMethod,
        Ok(Err(NotDispatched::Unreadable)) => Status::Unreadable,
        Ok(Err(NotDispatched::GivenUp)) => Status::Dropped,
        Ok(Err(NotDispatched::Unwritable)) => {
            result.clear();
            Status::Unwritable
        }
        Err(panic) => {
            let said = said(&*panic);
            result.clear();
            let end = (0..=said.len().min(MOST_SAID)).rfind(|end| said.is_char_boundary(*end));
            result.extend_from_slice(&said.as_bytes()[..end.unwrap_or(0)]);
            Status::Panicked
        }
    }
}

/// What a panic said.
pub(super) fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: u64, given_up: Option<Arc<GivenUp>>) -> Context {
        Context {
            number,
            deadline: Some(Time(number)),
            given_up,
        }
    }

    /// The number of the call that this thread runs, and whether it is told that it is given up.
    fn now() -> Option<(u64, bool)> {
        let now = Context::current()?;
        assert_eq!(now.deadline, Some(Time(now.number)));
        let yes = |given_up: &Arc<GivenUp>| given_up.yes.load(Ordering::Acquire);
        Some((now.number, now.given_up.as_ref().is_some_and(yes)))
    }

    #[test]
    fn a_call_within_a_call_has_its_own_context_and_leaves_the_other_ones() {
        let gone = Arc::new(GivenUp::default());
        gone.set();
        let stays = Arc::<GivenUp>::default();
        assert_eq!(now(), None);
        context(1, Some(Arc::clone(&gone))).during(|| {
            assert_eq!(now(), Some((1, true)));
            // One that is never told is not told of the one around it.
            context(2, None).during(|| {
                assert_eq!(now(), Some((2, false)));
                context(3, Some(stays)).during(|| assert_eq!(now(), Some((3, false))));
                assert_eq!(now(), Some((2, false)));
            });
            let panics = || context(4, None).during(|| panic!("within {:?}", now()));
            let panicked = catch_unwind(AssertUnwindSafe(panics)).map(drop);
            assert!(said(&*panicked.unwrap_err()).contains("4"));
            assert_eq!(now(), Some((1, true)));
        });
        assert_eq!(now(), None);
        // This, and what the thread had: nothing of it is kept.
        assert_eq!(Arc::strong_count(&gone), 1);
    }
}
