//! Upcalls run the handlers of a thread's own FIFO by interrupting that thread.
//!
//! ```text
//! sender:  push; is it asleep? --> a Unix signal to the thread --> handler: empties the
//!                             \                               /     FIFO, marks it
//!                              doorbell --> upcall thread ---/      as asleep
//! ```
//!
//! A handler that has emptied the FIFO marks itself as asleep, as a sleeping reader does (S3 of
//! `shm/signal`), and then the thread goes on. So a sender owes a call exactly when it would owe a
//! wake, and a burst costs one Unix signal, and one more for each signal that is sent before the
//! first sender has made its call. A sender that cannot call a foreign thread wakes the *upcall
//! thread* of the receiver's process, which sleeps on the doorbell, and then calls. So does the
//! host after a death.
//!
//! When the interrupted thread has ended, the upcall thread wakes the listener, which takes the
//! handlers over.
//!
//! An upcall ends the wait of its listener, which sleeps on another FIFO's doorbell:
//!
//! ```text
//! handler:   counts; is the listener asleep? --> wakes it     each side's first step is
//! listener:  says asleep; has the count changed? --> sleeps       before its second
//! ```
//!
//! Hand-written `unsafe` is here once, where the promise that was made for the handlers
//! (`Delivery::upcall`) becomes the promise for what the Unix signal's handler runs.

#![allow(unsafe_code)]

use super::handlers::Handling;
use super::intake::{Intake, give_back};
use super::{SignalError, address_of, wake_reader};
use crate::space::counters;
use crate::space::{Member, Part};
use portolan_shm::mark;
use portolan_shm::signal::FifoControl;
use portolan_sys::futex;
use portolan_sys::process::{self, ThreadFd};
use portolan_sys::upcall::{self, Callee, Caller, Upcall};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two attempts to call a thread that has too many signals pending.
const AGAIN: Duration = Duration::from_millis(1);

/// The handlers of one thread that interrupt it.
pub(super) struct Upcalls {
    /// First, so that it is ended before what it calls.
    upcall_thread: UpcallThread,
    upcall: Upcall<Interrupted>,
    member: Arc<Member>,
    pub(super) index: u32,
    ran: Arc<Ran>,
    /// What of `ran` the listener's last wait knew when it ended.
    known: u64,
}

/// What runs in the signal handler.
struct Interrupted {
    intake: Intake,
    /// The FIFO that the listener itself waits for.
    listener: u32,
    ran: Arc<Ran>,
    /// Signals stay in the FIFO: one of the handlers is being given away.
    paused: bool,
}

/// What the handlers tell the listener that they belong to.
#[derive(Debug, Default)]
struct Ran {
    /// Signals that handlers have been called for.
    count: AtomicU64,
    /// The listener sleeps on its doorbell, or is about to.
    asleep: AtomicBool,
    /// Their thread has ended: nothing runs on it any more.
    ended: AtomicBool,
}

impl Interrupted {
    /// Ends the listener's wait. Async-signal-safe: atomics and a system call.
    fn tell(&self) {
        // SeqCst, both: in the order of all such, either this addition comes before the
        // listener's last look at it, or its word that it sleeps before our look at that.
        self.ran.count.fetch_add(1, Ordering::SeqCst);
        if !self.ran.asleep.load(Ordering::SeqCst) {
            return;
        }
        if let Some(entry) = self
            .intake
            .member
            .tables()
            .fifos
            .get(self.listener as usize)
        {
            // Also where it was interrupted itself, between its last look and its sleep.
            entry.control.doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(&entry.control.doorbell, u32::MAX);
        }
    }
}

impl Callee for Interrupted {
    fn left(&mut self) {
        self.ran.ended.store(true, Ordering::SeqCst);
        // The upcall thread tells the listener: this thread can hardly use the library any more.
        if let Some(entry) = self
            .intake
            .member
            .tables()
            .fifos
            .get(self.intake.index as usize)
        {
            entry.control.doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(&entry.control.doorbell, u32::MAX);
        }
    }

    fn run(&mut self) {
        if self.paused {
            // The thread that paused us calls again.
            return;
        }
        if let Some(fifo) = self.intake.fifo() {
            // Senders need not call as long as it runs.
            fifo.disarm();
        }
        loop {
            while let Some(signal) = self.intake.next() {
                mark!("signal.interrupted");
                counters::delivered_by_upcall(&self.intake.member);
                if self.intake.dispatch(signal) {
                    self.tell();
                }
            }
            let intake = &mut self.intake;
            // Armed, and still empty; or there is no FIFO any more.
            if intake.arm().is_some() || intake.fifo().is_none() {
                return;
            }
        }
    }
}

impl Upcalls {
    /// Makes the calling thread one that can be interrupted, for the listener whose own FIFO
    /// is `listener`.
    pub(super) fn new(
        member: &Arc<Member>,
        listener: u32,
        depth: usize,
        signal: Option<i32>,
    ) -> Result<Self, SignalError> {
        let signal = signal.unwrap_or_else(upcall::default_signal);
        if !upcall::is_real_time(signal) {
            return Err(SignalError::NotRealTime { signal });
        }
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => SignalError::Bound { signal },
            _ => SignalError::Upcall {
                errno: error.raw_os_error().unwrap_or(0),
            },
        };
        // From here on this thread may be interrupted, and count.
        counters::prepare();
        let intake = Intake::open(member, depth)?;
        let index = intake.index;
        let ran = Arc::<Ran>::default();
        let interrupted = Interrupted {
            intake,
            listener,
            ran: Arc::clone(&ran),
            paused: false,
        };
        // SAFETY:
        // - `Interrupted` uses atomics, a queue that it takes from, a futex that it wakes, and
        //   calls handlers, whose owner has promised as much (`Delivery::upcall`).
        let upcall = unsafe { Upcall::register(signal, interrupted) };
        let upcall = upcall.inspect_err(|_| give_back(member, index));
        let mut upcall = upcall.map_err(failed)?;
        let route = Route {
            index,
            listener,
            caller: upcall.caller(),
            ran: Arc::clone(&ran),
        };
        let upcall_thread = UpcallThread::start(member, route);
        let upcall_thread = upcall_thread.inspect_err(|_| upcall.with(|it| it.intake.close()));
        let upcall_thread = upcall_thread.map_err(failed)?;
        if let Some(entry) = member.tables().fifos.get(index as usize) {
            let caller = upcall.caller();
            entry
                .control
                .signal
                .store(caller.signal().unsigned_abs(), Ordering::Relaxed);
            // Release: with it goes the signal's number.
            entry
                .control
                .thread
                .store(caller.thread(), Ordering::Release);
        }
        // Empties what is there, which is nothing, and says that it is asleep.
        upcall.with(Callee::run);
        Ok(Self {
            upcall_thread,
            upcall,
            member: Arc::clone(member),
            index,
            ran,
            known: 0,
        })
    }

    /// Whether a handler has run since the listener's last wait ended.
    #[inline]
    pub(super) fn have_run(&self) -> bool {
        // SeqCst: as in `tell`. With it comes what the handler did.
        self.ran.count.load(Ordering::SeqCst) != self.known
    }

    /// The listener's wait ends, and its caller sees all that handlers have done.
    #[inline]
    pub(super) fn wait_ends(&mut self) {
        self.known = self.ran.count.load(Ordering::SeqCst);
    }

    /// Whether the thread has ended that the handlers interrupted.
    #[inline]
    pub(super) fn have_ended(&self) -> bool {
        // SeqCst: a thread that goes to sleep has read the doorbell before this changes it.
        self.ran.ended.load(Ordering::SeqCst)
    }

    /// The listener goes to sleep, if it then finds that none [has run](Self::have_run); or it
    /// is awake again.
    pub(super) fn set_asleep(&self, asleep: bool) {
        // SeqCst: as in `tell`.
        self.ran.asleep.store(asleep, Ordering::SeqCst);
    }

    pub(super) fn add(&mut self, handling: Handling) {
        self.upcall.with(|it| it.intake.handlers.add(handling));
    }

    pub(super) fn remove(&mut self, id: u16) -> Option<Handling> {
        self.upcall.with(|it| it.intake.handlers.remove(id))
    }

    /// What reached us for a handler that has left.
    pub(super) fn part_with(&mut self, id: u16, range: &std::ops::Range<u64>) -> Vec<u64> {
        self.upcall.with(|it| it.intake.part_with(id, range))
    }

    /// From now on signals wait in the FIFO: those for a handler that is being given away
    /// would find none here.
    pub(super) fn pause(&mut self) {
        self.upcall.with(|it| it.paused = true);
    }

    /// Goes on with what has come.
    pub(super) fn go_on(&mut self) {
        let left = self.upcall.with(|it| {
            it.paused = false;
            // Armed, if nothing is there.
            it.intake.arm().is_none()
        });
        if left {
            // Only the thread itself may handle it.
            let _ = self.upcall.caller().call();
        }
    }

    /// The numbers of the handlers.
    pub(super) fn ids(&mut self) -> Vec<u16> {
        self.upcall.with(|it| it.intake.handlers.ids().collect())
    }

    pub(super) fn unhandled(&mut self) -> u64 {
        self.upcall.with(|it| it.intake.unhandled())
    }

    pub(super) fn dropped(&self) -> u64 {
        let fifo = self.member.tables().fifo(self.index);
        fifo.map_or(0, |fifo| fifo.dropped())
    }

    /// Ends it. No range leads to its FIFO any more.
    pub(super) fn close(mut self) {
        if let Some(entry) = self.member.tables().fifos.get(self.index as usize) {
            entry.control.thread.store(0, Ordering::Release);
        }
        self.upcall_thread.end();
        give_back(&self.member, self.index);
    }
}

/// The thread that calls for senders that cannot.
struct UpcallThread {
    over: Arc<AtomicBool>,
    member: Arc<Member>,
    index: u32,
    thread: Option<JoinHandle<()>>,
}

impl UpcallThread {
    fn start(member: &Arc<Member>, route: Route) -> std::io::Result<Self> {
        let index = route.index;
        let over = Arc::new(AtomicBool::new(false));
        let (its_member, its_over) = (Arc::clone(member), Arc::clone(&over));
        let thread = thread::Builder::new()
            .name("portolan-upcall".to_owned())
            .spawn(move || carry(&its_member, &route, &its_over))?;
        Ok(Self {
            over,
            member: Arc::clone(member),
            index,
            thread: Some(thread),
        })
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.over.store(true, Ordering::SeqCst);
        if let Some(entry) = self.member.tables().fifos.get(self.index as usize) {
            entry.control.doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(&entry.control.doorbell, u32::MAX);
        }
        let _ = thread.join();
    }
}

impl Drop for UpcallThread {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.member.present().is_ok() {
            self.end();
        }
    }
}

/// What an upcall thread serves.
struct Route {
    /// The FIFO of the upcalls.
    index: u32,
    /// The listener's own.
    listener: u32,
    caller: Caller,
    ran: Arc<Ran>,
}

/// Calls whenever the doorbell has changed. Once there is no thread to call, tells the
/// listener, which takes the handlers over.
fn carry(member: &Member, route: &Route, over: &AtomicBool) {
    let fifos = member.tables().fifos;
    let entry = |index: u32| fifos.get(index as usize);
    let (Some(own), Some(listener)) = (entry(route.index), entry(route.listener)) else {
        return;
    };
    let bell = &own.control.doorbell;
    // One call more than is needed, rather than one less.
    let mut heard = bell.load(Ordering::SeqCst).wrapping_sub(1);
    while !over.load(Ordering::SeqCst) {
        let now = bell.load(Ordering::SeqCst);
        if now == heard {
            let _ = futex::wait(bell, heard, None);
            continue;
        }
        match route.caller.call() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                thread::sleep(AGAIN);
                continue;
            }
            // Also of a thread that has ended as threads do not.
            Err(_) => route.ran.ended.store(true, Ordering::SeqCst),
            Ok(()) => {}
        }
        heard = now;
        if route.ran.ended.load(Ordering::SeqCst) {
            wake_reader(member, &listener.control);
        }
    }
}

/// Calls the thread that reads a FIFO; `false` if the caller must wake its reader instead. Also in an
/// upcall.
#[cold]
pub(super) fn call(member: &Member, index: u32, control: &FifoControl, offset: u64) -> bool {
    // A part is not made in an upcall, where no memory can be had.
    let threads = if upcall::is_running() {
        member.parts.made::<Threads>()
    } else {
        Some(member.part::<Threads>())
    };
    threads.is_some_and(|threads| threads.call(member, index, control, offset))
}

/// The threads of this and other processes that we have interrupted.
#[derive(Default)]
struct Threads {
    /// By FIFO.
    known: RwLock<HashMap<u32, Known>>,
}

struct Known {
    thread: u32,
    /// `None`: it cannot be called from here.
    way: Option<ThreadFd>,
}

impl Part for Threads {}

impl Threads {
    /// Calls the thread that reads a FIFO; `false` if the caller must wake its reader instead.
    fn call(&self, member: &Member, index: u32, control: &FifoControl, offset: u64) -> bool {
        // Acquire: with it comes the number of the signal.
        let thread = control.thread.load(Ordering::Acquire);
        let signal = control.signal.load(Ordering::Relaxed).cast_signed();
        if thread == 0 || !upcall::is_real_time(signal) {
            return false;
        }
        let address = address_of(member, offset);
        let mut gone = false;
        // In an upcall the lock may be held by whom it has interrupted.
        if let Ok(known) = self.known.try_read()
            && let Some(known) = known.get(&index).filter(|k| k.thread == thread)
        {
            let Some(way) = &known.way else { return false };
            match way.send(signal, address) {
                Ok(()) => return true,
                Err(error) => gone = error.raw_os_error() == Some(ESRCH),
            }
            if !gone {
                return false;
            }
        }
        if upcall::is_running() {
            // Neither files nor memory can be had there.
            return false;
        }
        let way = if gone {
            None
        } else {
            find(member, control, thread)
        };
        let sent = way
            .as_ref()
            .is_some_and(|way| way.send(signal, address).is_ok());
        let way = way.filter(|_| sent);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(index, Known { thread, way });
        sent
    }
}

const ESRCH: i32 = 3;

/// A reference to the thread `tid`, if it belongs to the process that the FIFO's space is.
fn find(member: &Member, control: &FifoControl, tid: u32) -> Option<ThreadFd> {
    let owner = usize::try_from(control.owner.load(Ordering::Acquire)).ok()?;
    let space = member.tables().spaces.get(owner)?;
    let pid = u32::try_from(space.pid.load(Ordering::Relaxed)).ok()?;
    let started = space.start_time.load(Ordering::Relaxed);
    let thread = ThreadFd::open(tid).ok()?;
    // Held by the reference, so if it still lives afterwards the answers are about it.
    let theirs = process::has_thread(pid, tid) && process::start_time(pid) == Some(started);
    (theirs && !thread.is_gone()).then_some(thread)
}

impl fmt::Debug for Upcalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caller = self.upcall.caller();
        f.debug_struct("Upcalls")
            .field("thread", &caller.thread())
            .field("signal", &caller.signal())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delivery, Domain, ListenerOptions};
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    #[test]
    fn a_sender_that_cannot_call_rings_and_the_upcall_thread_calls() {
        let domain = Domain::private().unwrap();
        let segment = domain.make_segment(None, 4096).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let notes = Arc::clone(&seen);
        // SAFETY:
        // - An addition to an atomic.
        let delivery = unsafe { Delivery::upcall() };
        let note = move |_| {
            notes.fetch_add(1, Ordering::SeqCst);
        };
        listener.on_by(delivery, at..at + 64, note).unwrap();
        // As for a thread of another user's.
        let tables = domain.member().tables();
        let index = 1;
        let thread = tables.fifos[1].control.thread.load(Ordering::SeqCst);
        assert_eq!(thread, process::thread());
        let known = Known { thread, way: None };
        let threads = &domain.member().part::<Threads>();
        threads.known.write().unwrap().insert(index, known);
        let end = Instant::now() + Duration::from_secs(60);
        for sent in 1..50 {
            assert_eq!(domain.signal(at).unwrap(), 1);
            while seen.load(Ordering::SeqCst) < sent {
                assert!(Instant::now() < end);
                thread::yield_now();
            }
        }
        assert!(threads.known.read().unwrap()[&index].way.is_none());
    }

    #[test]
    fn a_thread_is_called_only_in_the_process_that_it_says() {
        let domain = Domain::private().unwrap();
        let _listener = domain.listen(ListenerOptions::default()).unwrap();
        let member = domain.member();
        let control = &member.tables().fifos[0].control;
        let Some(found) = find(member, control, process::thread()) else {
            // Before Linux 6.9 no thread is.
            assert!(ThreadFd::open(process::thread()).is_err());
            return;
        };
        assert!(!found.is_gone());
        // Our parent's thread, which is none of this process.
        assert!(find(member, control, std::os::unix::process::parent_id()).is_none());
    }
}
