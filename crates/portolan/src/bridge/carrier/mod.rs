//! A carrier is the one thread of a membership that runs all its connections with other domains.
//!
//! ```text
//!           launch                nothing to do            its socket, a word, its time
//!  program --------> task: loose ---------------> armed ------------------------------> loose
//!                      |  ^                                                               |
//!                      |  +---- polled in turn, each time a bounded amount --------------+
//!                      +--> over: dropped
//! ```
//!
//! A connection is a *task*: a future that the carrier polls. A task never waits in the thread. It
//! looks for what it waits for ([`Context::until`]); while nothing is there for any task, the carrier
//! looks for a while, then has each task *arm* what it waits for, and sleeps in epoll. The thread
//! begins with the first task and ends with the last.
//!
//! # Invariants
//!
//! - **C1** A task that is not armed is in `loose`, and each round polls all of those. A task that is
//!   armed has said at which descriptors and words, and by what time, it is to be polled again.
//! - **C2** A task is armed in a poll that arms first and looks afterwards, and finds nothing. So
//!   what comes before the sleep is found, or ends it. A word that rings while others are armed is
//!   asked for once more before the sleep.
//! - **C3** A poll does a bounded amount ([`Context::turn`]), so a busy peer delays the others by
//!   that: at most 1 MiB that is copied, or one extent that is allocated, or one message that is sealed.
//! - **C4** A task that panics is dropped, and ends its own connection.

mod context;
#[cfg(test)]
mod tests;

pub(super) use context::{Context, Word};

use super::error::Over;
use crate::space::{Member, Part};
use crate::wait::{Patience, waiting_beside};
use context::Hub;
use portolan_sys::bell::FutexFd;
use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::watch::Watch;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::Instant;

/// The thread's name.
const THREAD: &str = "portolan-bridge";
/// Enough for loops and logs.
const STACK: usize = 256 << 10;
/// Threads that are busy with one stream of messages: sender, two carriers and receiver. A thread
/// that spins takes the processor from another, unless there are as many processors.
const BUSY: usize = 4;
/// Rounds in which a task does nothing before it is armed alone, while others are busy.
const IDLE: u32 = 64;
/// Rounds between two looks at descriptors, each a system call, while a task is busy.
const LOOK_AROUND: u32 = 32;

/// The epoll number of the bell that the program rings.
const BELL: u64 = 0;
/// That of the futex words. Those of tasks begin behind it: two each.
const WORDS: u64 = 1;
/// The number of the first task.
const FIRST: u64 = 1;

/// What a task runs.
type Work = Pin<Box<dyn Future<Output = ()>>>;
/// Makes a task, on the carrier's thread.
type Job = Box<dyn FnOnce(Rc<Context>) -> Work + Send>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The carrier of a membership, if it runs.
#[derive(Default)]
pub(crate) struct Carrier(Mutex<Option<Arc<Shared>>>);

impl Part for Carrier {}

/// What the program shares with a carrier's thread.
struct Shared {
    watch: Watch,
    bell: EventFd,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    jobs: Vec<Job>,
    /// The thread takes no more.
    over: bool,
}

impl Shared {
    fn new() -> io::Result<Self> {
        let shared = Self {
            watch: Watch::new()?,
            bell: EventFd::new()?,
            inbox: Mutex::default(),
        };
        shared.watch.add(&shared.bell, BELL)?;
        Ok(shared)
    }

    /// Has the thread run a task; it comes back if the thread takes no more.
    fn take(&self, job: Job) -> Result<(), Job> {
        let mut inbox = lock(&self.inbox);
        if inbox.over {
            return Err(job);
        }
        inbox.jobs.push(job);
        drop(inbox);
        self.ring();
        Ok(())
    }

    /// Has all tasks polled.
    fn ring(&self) {
        // It can only fail for a counter that is readable already.
        let _ = self.bell.notify();
    }
}

/// Has the carrier of a membership run a task, until it ends.
///
/// # Errors
///
/// The machine's: no thread, or no descriptor.
pub(super) fn launch<F: Future<Output = ()> + 'static>(
    member: &Member,
    task: impl FnOnce(Rc<Context>) -> F + Send + 'static,
) -> io::Result<()> {
    let mut current = lock(&member.part::<Carrier>().0);
    let mut job: Job = Box::new(move |context| Box::pin(task(context)));
    if let Some(shared) = &*current {
        match shared.take(job) {
            Ok(()) => return Ok(()),
            Err(again) => job = again,
        }
    }
    let shared = Arc::new(Shared::new()?);
    let words = FutexFd::new()?;
    shared.watch.add(&words, WORDS)?;
    // A new shared takes it.
    let _ = shared.take(job);
    let its_own = Arc::clone(&shared);
    spawn_quiet(THREAD, STACK, move || Tasks::new(its_own, words).run())?;
    *current = Some(shared);
    Ok(())
}

/// Has all tasks of a membership polled: one of them was told something.
pub(super) fn ring(member: &Member) {
    if let Some(shared) = &*lock(&member.part::<Carrier>().0) {
        shared.ring();
    }
}

/// Ends tasks from outside, and waits until they have ended.
#[derive(Default)]
pub(super) struct Stop {
    asked: AtomicBool,
    /// How many tasks may be under way.
    running: Mutex<usize>,
    ended: Condvar,
}

impl Stop {
    /// Whether the tasks are to end.
    pub(super) fn is_asked(&self) -> bool {
        // Acquire: pairs with `end`.
        self.asked.load(Ordering::Acquire)
    }

    /// How many tasks have not ended.
    pub(super) fn running(&self) -> usize {
        *lock(&self.running)
    }

    /// Counts a task until what this returns is dropped, as the last thing of the task.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        *lock(&self.running) += 1;
        Running(Arc::clone(self))
    }

    /// Ends the tasks, which are of this membership, and waits until they have ended.
    pub(super) fn end(&self, member: &Member) {
        // Release: pairs with `is_asked`. The bell comes after it.
        self.asked.store(true, Ordering::Release);
        ring(member);
        let mut running = lock(&self.running);
        while *running > 0 {
            running = self
                .ended
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs `work` until it ends or is to end; in the second case it is dropped where it waits.
    pub(super) async fn or(&self, work: impl Future<Output = Over>) -> Over {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| match self.is_asked() {
            true => Poll::Ready(Over::Stopped),
            false => work.as_mut().poll(context),
        })
        .await
    }
}

/// A task that counts.
pub(super) struct Running(Arc<Stop>);

impl Drop for Running {
    fn drop(&mut self) {
        *lock(&self.0.running) -= 1;
        self.0.ended.notify_all();
    }
}

/// Runs both until one ends, which ends the other. They are polled first in turn, because one of them
/// may use up what a poll may do (C3).
pub(super) async fn either(
    one: impl Future<Output = Over>,
    other: impl Future<Output = Over>,
) -> Over {
    let mut one = std::pin::pin!(one);
    let mut other = std::pin::pin!(other);
    let mut other_first = true;
    std::future::poll_fn(|context| {
        other_first = !other_first;
        if other_first && let Poll::Ready(over) = other.as_mut().poll(context) {
            return Poll::Ready(over);
        }
        match one.as_mut().poll(context) {
            Poll::Pending if !other_first => other.as_mut().poll(context),
            polled => polled,
        }
    })
    .await
}

struct Task {
    work: Work,
    context: Rc<Context>,
    armed: bool,
    /// Rounds in which it did nothing.
    idle: u32,
}

/// The tasks of a carrier, on its thread.
struct Tasks {
    shared: Arc<Shared>,
    hub: Rc<Hub>,
    tasks: BTreeMap<u64, Task>,
    /// Tasks that are not armed (C1).
    loose: Vec<u64>,
    last: u64,
    patience: Patience,
}

impl Tasks {
    fn new(shared: Arc<Shared>, words: FutexFd) -> Self {
        Self {
            hub: Rc::new(Hub::new(words)),
            shared,
            tasks: BTreeMap::new(),
            loose: Vec::new(),
            last: FIRST - 1,
            patience: Patience::default(),
        }
    }

    fn run(mut self) {
        let (mut looking, mut busy) = (None, 0_u32);
        loop {
            let goes_on = self.round(false);
            if self.tasks.is_empty() && self.has_ended() {
                return;
            }
            if goes_on {
                if let Some(looking) = looking.take() {
                    self.patience.paid(&looking);
                }
                busy = busy.wrapping_add(1);
                if busy.is_multiple_of(LOOK_AROUND) {
                    self.hear(Some(Instant::now()));
                }
                continue;
            }
            let look = looking.get_or_insert_with(|| self.patience.begin(waiting_beside(BUSY)));
            if look.again() {
                continue;
            }
            let begun = look.begun();
            // C2.
            if !self.round(true) {
                self.hear(self.due());
            }
            if let Some(looking) = looking.take() {
                self.patience.slept(&looking, begun.elapsed());
            }
        }
    }

    /// Polls all loose tasks once; whether any did something.
    fn round(&mut self, arms: bool) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(number) = self.loose.get(at).copied() {
            let Some(task) = self.tasks.get_mut(&number) else {
                self.loose.swap_remove(at);
                continue;
            };
            let arms = arms || task.idle >= IDLE;
            task.context.begin(arms);
            let mut waker = task::Context::from_waker(Waker::noop());
            let poll = AssertUnwindSafe(|| task.work.as_mut().poll(&mut waker));
            // C4.
            let is_over = catch_unwind(poll).map_or(true, |poll| poll.is_ready());
            if is_over {
                self.loose.swap_remove(at);
                self.tasks.remove(&number);
                any = true;
            } else if task.context.goes_on() {
                task.idle = 0;
                any = true;
                at += 1;
            } else if arms {
                task.armed = true;
                self.loose.swap_remove(at);
            } else {
                task.idle = task.idle.saturating_add(1);
                at += 1;
            }
        }
        any
    }

    /// When an armed task is to be polled in any case.
    fn due(&self) -> Option<Instant> {
        let tasks = self.tasks.values();
        tasks.filter_map(|task| task.context.due()).min()
    }

    /// Waits until something is new, at most until then, and loosens the tasks that it is for.
    fn hear(&mut self, by: Option<Instant>) {
        // What has fired by now needs no wait.
        let fired = self.hub.fired();
        let by = match fired.is_empty() {
            true => by,
            false => Some(Instant::now()),
        };
        let news = match self.shared.watch.wait_by(by) {
            Ok(news) => news,
            Err(error) => {
                // The program has closed our descriptors: no task would ever hear of anything.
                tracing::warn!(%error, "connections with other domains end: their descriptors are gone");
                self.tasks.clear();
                return;
            }
        };
        for number in news {
            match number {
                BELL => self.take_jobs(),
                WORDS => {}
                other => {
                    if let Some(task) = self.tasks.get(&(other / 2)) {
                        task.context.tell(other % 2 == 1);
                    }
                    self.loosen(other / 2);
                }
            }
        }
        for number in fired.into_iter().chain(self.hub.fired()) {
            self.loosen(number);
        }
        let now = Instant::now();
        let tasks = self.tasks.iter();
        let due = tasks.filter(|(_, task)| task.context.due().is_some_and(|due| due <= now));
        let due: Vec<u64> = due.map(|(number, _)| *number).collect();
        due.into_iter().for_each(|number| self.loosen(number));
    }

    fn loosen(&mut self, number: u64) {
        if let Some(task) = self.tasks.get_mut(&number)
            && std::mem::take(&mut task.armed)
        {
            task.idle = 0;
            self.loose.push(number);
        }
    }

    /// Begins new tasks, and loosens all others: they may be to end.
    fn take_jobs(&mut self) {
        let _ = self.shared.bell.drain();
        let jobs = std::mem::take(&mut lock(&self.shared.inbox).jobs);
        let all: Vec<u64> = self.tasks.keys().copied().collect();
        all.into_iter().for_each(|number| self.loosen(number));
        for job in jobs {
            self.last += 1;
            let number = self.last;
            let context = Rc::new(Context::new(
                Arc::clone(&self.shared),
                Rc::clone(&self.hub),
                number,
            ));
            let task = Task {
                work: job(Rc::clone(&context)),
                context,
                armed: false,
                idle: 0,
            };
            self.tasks.insert(number, task);
            self.loose.push(number);
        }
    }

    /// Whether there is nothing more to do, and never will be.
    fn has_ended(&self) -> bool {
        let mut inbox = lock(&self.shared.inbox);
        inbox.over = inbox.jobs.is_empty();
        inbox.over
    }
}
