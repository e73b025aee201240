//! This process's tie to its host: one thread, and leaving.
//!
//! The thread (the *keeper*) holds the membership only for the moments in which it
//! acts, so that dropping the last handle leaves the domain:
//!
//! - in the thread of the program, which then stops the keeper first and goes on with
//!   what it was keeping;
//! - in the keeper itself, if the last handle was dropped while it acted. Whoever
//!   dropped that handle waits for it ([`Settled`]).

use super::descriptor::Descriptor;
use super::host::me;
use super::member::Member;
use super::{Disowned, LeaveError, entry};
use portolan_abi::space::SpaceStatus;
use portolan_sys::process::EventFd;
use portolan_sys::socket::Address;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long whoever leaves waits for clients and servers that were dropped, at most: longer
/// than they wait for anything but a method that runs.
const ENDING: Duration = Duration::from_secs(20);
/// Looks so often whether they have ended, or whether a lock is free.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that watches the host, or hosts; and what it shares with the membership.
pub(crate) struct Link {
    ties: Arc<Ties>,
}

/// Stops the keeper, and leaves the domain with what it was keeping. In the thread that drops the
/// membership.
pub(crate) type Depart = Box<dyn FnOnce(&Member) -> Result<(), LeaveError> + Send>;

/// What keeper and membership share.
pub(crate) struct Ties {
    /// `None` in a private domain.
    pub(crate) rope: Option<Rope>,
    /// What stops the keeper.
    thread: Mutex<Option<Depart>>,
    // The last field: when it rings, the region is unmapped and the rope let go.
    bell: Bell,
}

/// What handles know of keeper and membership, also when these are gone.
#[derive(Default)]
struct Latch {
    /// Held by the keeper while it keeps the membership alive for a moment.
    turn: Mutex<()>,
    keeper: OnceLock<ThreadId>,
    outcome: OnceLock<Result<(), LeaveError>>,
    gone: (Mutex<bool>, Condvar),
}

/// Says, when dropped, that all is gone.
struct Bell(Arc<Latch>);

impl Drop for Bell {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever, and nobody waits.
        if !portolan_sys::fork::in_child() {
            *lock(&self.0.gone.0) = true;
            self.0.gone.1.notify_all();
        }
    }
}

/// The descriptors that every member of a domain with a socket has, and where it is.
pub(crate) struct Rope {
    /// The fallback socket, likewise shared. It closes before the other one, so whoever finds
    /// that name free finds this one free, too, or about to be.
    pub(crate) fallback: Descriptor,
    /// The host's listening socket, shared by all (D4).
    pub(crate) listener: Descriptor,
    /// Readable when the keeper is to look what we offer, or to stop.
    pub(crate) prompt: Descriptor<EventFd>,
    /// To stop, it is.
    pub(crate) stopping: AtomicBool,
    pub(crate) address: Address,
    pub(crate) fallback_address: Address,
    /// Whose domain it is.
    pub(crate) owner: u32,
    /// How long leaving may take.
    pub(crate) patience: Duration,
}

impl Rope {
    /// Whether our descriptors are what they were.
    pub(crate) fn is_whole(&self) -> bool {
        self.prompt.is_ours() && self.listener.is_ours() && self.fallback.is_ours()
    }

    /// Takes the sockets' files away, while nobody can take their place. For the last to leave.
    pub(crate) fn remove_files(&self) {
        let Address::Path(path) = &self.address else {
            return;
        };
        // Without the lock they stay, and the next newcomer replaces them.
        let until = Instant::now() + self.patience;
        if let Ok(Some(_directory)) = lock_directory(path, until) {
            for address in [&self.fallback_address, &self.address] {
                if let Address::Path(path) = address {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }

    /// Takes a prompt; whether it says to stop.
    pub(crate) fn is_told_to_stop(&self) -> bool {
        let _ = self.prompt.drain();
        // Acquire pairs with the Release in `depart`. It was stored before the prompt.
        self.stopping.load(Ordering::Acquire)
    }
}

/// Keeps others from replacing a socket's file, until the answer is dropped. `None`: somebody else
/// does so until the deadline.
pub(crate) fn lock_directory(socket: &Path, until: Instant) -> io::Result<Option<File>> {
    let directory = File::open(socket.parent().unwrap_or(Path::new("/")))?;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(Some(directory)),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that these protect can be left half done by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// A tie to the members that share `rope`; without one the domain is our own.
    pub(crate) fn new(rope: Option<Rope>) -> Self {
        Self {
            ties: Arc::new(Ties {
                rope,
                thread: Mutex::default(),
                bell: Bell(Arc::default()),
            }),
        }
    }

    /// Has `spawn` start the keeper's thread. It gives back the thread's id, and what stops the
    /// thread and then leaves in its place.
    pub(crate) fn start(
        &self,
        spawn: impl FnOnce(&Arc<Ties>) -> io::Result<(ThreadId, Depart)>,
    ) -> io::Result<()> {
        // Locked until the handle is there, for the case that the thread is faster.
        let mut thread = lock(&self.ties.thread);
        let (id, depart) = spawn(&self.ties)?;
        let _ = self.ties.bell.0.keeper.set(id);
        *thread = Some(depart);
        Ok(())
    }

    /// What ties us to other processes; `None` in a private domain.
    pub(crate) fn rope(&self) -> Option<&Rope> {
        self.ties.rope.as_ref()
    }

    /// Has the keeper look at what we offer.
    pub(crate) fn prompt(&self) {
        if let Some(rope) = &self.ties.rope {
            // Fails only in a process that has lost its descriptors, and is told so elsewhere.
            let _ = rope.prompt.notify();
        }
    }

    pub(crate) fn settled(&self) -> Settled {
        Settled(Arc::clone(&self.ties.bell.0))
    }

    /// Whether this process can still reach the others: for operations of control, since
    /// it asks the kernel.
    pub(crate) fn connected(&self) -> Result<(), Disowned> {
        match &self.ties.rope {
            Some(rope) if !rope.is_whole() => Err(Disowned::Disconnected),
            _ => Ok(()),
        }
    }
}

impl Ties {
    /// Held by the keeper while it keeps the membership alive for a moment.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.bell.0.turn)
    }

    /// The keeper has left, for the last handle was dropped while it acted.
    pub(crate) fn left(&self, outcome: Result<(), LeaveError>) {
        let _ = self.bell.0.outcome.set(outcome);
        // Detached: otherwise what the thread leaves behind and the ties hold one another.
        drop(lock(&self.thread).take());
    }
}

/// Waits, when dropped, until the keeper does not hold the membership.
#[derive(Clone)]
pub(crate) struct Settled(Arc<Latch>);

/// Tells when the membership is wholly gone, and waits only when asked.
#[derive(Clone)]
pub(crate) struct Ending(Arc<Latch>);

impl Ending {
    /// Waits until the membership is wholly gone; `false` if that does not come by `deadline`.
    pub(crate) fn gone_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let (gone, told) = &self.0.gone;
        let waited = told.wait_timeout_while(lock(gone), left, |gone| !*gone);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Settled {
    pub(crate) fn ending(&self) -> Ending {
        Ending(Arc::clone(&self.0))
    }

    /// Waits until the keeper does not hold the membership.
    fn wait(&self) {
        // A forked child has no keeper, and its lock may be held for ever.
        let by_keeper = || self.0.keeper.get() == Some(&std::thread::current().id());
        if !portolan_sys::fork::in_child() && !by_keeper() {
            drop(lock(&self.0.turn));
        }
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Leaves, if this is the last handle; waits for those of clients and servers that were
/// dropped, which nobody but their own threads can drop.
pub(crate) fn leave(member: Arc<Member>, settled: Settled) -> Result<(), LeaveError> {
    if portolan_sys::fork::in_child() {
        return Err(LeaveError::Forked);
    }
    let (others, endings) = (Arc::downgrade(&member), member.endings.clone());
    let end = Instant::now() + ENDING;
    drop(member);
    loop {
        if let Some(member) = others.upgrade() {
            member.parts.leaving(&member);
        }
        // Asked before: who ends meanwhile has left, or the keeper has.
        let ending = endings.any();
        settled.wait();
        if let Some(outcome) = settled.0.outcome.get() {
            return *outcome;
        }
        if !ending || Instant::now() >= end {
            let handles = others.strong_count().max(1);
            return Err(LeaveError::StillHeld { handles });
        }
        std::thread::sleep(LOOK);
    }
}

/// What the drop of a membership does first: leaves the domain.
pub(crate) fn depart(member: &Member) {
    let ties = &member.link.ties;
    if portolan_sys::fork::in_child() || ties.bell.0.outcome.get().is_some() {
        return;
    }
    // Taken out in any case: what the thread leaves behind holds the ties.
    let thread = lock(&ties.thread).take();
    let outcome = match &ties.rope {
        None => Ok(()),
        // Nothing would reach the keeper. It finds out when it wakes, or never does.
        Some(rope) if !rope.is_whole() => {
            disconnect(member);
            Err(LeaveError::Disconnected)
        }
        Some(rope) => {
            rope.stopping.store(true, Ordering::Release);
            let _ = rope.prompt.notify();
            // Never started: nobody knows of us yet.
            thread.map_or(Ok(()), |depart| depart(member))
        }
    };
    let _ = ties.bell.0.outcome.set(outcome);
}

/// Notes that we have lost our descriptors.
pub(crate) fn disconnect(member: &Member) {
    let us = me(member);
    let (domain, space) = (member.domain.as_str(), us.space);
    tracing::warn!(
        domain,
        space,
        "this process has lost its descriptors, and with them its host"
    );
    if let Some(entry) = member.tables().spaces.get(usize::from(us.space)) {
        entry::change(entry, us.incarnation, |s| {
            Some(SpaceStatus {
                disconnected: true,
                ..s
            })
        });
    }
}
