//! This process's tie to its host: one thread, and leaving.
//!
//! The thread (the *keeper*) holds the membership only for the moments in which it
//! acts, so that dropping the last handle leaves the domain:
//!
//! - in the thread of the program, which then stops the keeper first and goes on with
//!   what it was keeping;
//! - in the keeper itself, if the last handle was dropped while it acted. Whoever
//!   dropped that handle waits for it ([`Settled`]).

use super::offer::Offers;
use super::watch::Control;
use super::{Role, host, me};
use crate::Disowned;
use crate::gate::Ferries;
use crate::space::LeaveError;
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::entry;
use portolan_abi::space::SpaceStatus;
use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::socket::Address;
use std::fs::{File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// Bytes of stack for the keeper: it drains queues and answers requests of the dead.
const STACK: usize = 512 << 10;
/// How long whoever leaves waits for clients and servers that were dropped, at most: longer
/// than they wait for anything but a method that runs.
const ENDING: Duration = Duration::from_secs(20);
/// Looks so often whether they have ended, or whether a lock is free.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that watches the host, or hosts; and what it shares with the membership.
pub(crate) struct Link {
    ties: Arc<Ties>,
}

/// What keeper and membership share.
pub(super) struct Ties {
    /// `None` in a private domain.
    pub(super) rope: Option<Rope>,
    /// What this process offers to visitors.
    pub(super) offers: Offers,
    thread: Mutex<Option<JoinHandle<Keeper>>>,
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
pub(super) struct Rope {
    /// The fallback socket, likewise shared. It closes before the other one, so whoever finds
    /// that name free finds this one free, too, or about to be.
    pub(super) fallback: Descriptor,
    /// The host's listening socket, shared by all (D4).
    pub(super) listener: Descriptor,
    /// Readable when the keeper is to look what we offer, or to stop.
    pub(super) prompt: Descriptor<EventFd>,
    /// To stop, it is.
    pub(super) stopping: AtomicBool,
    pub(super) address: Address,
    pub(super) fallback_address: Address,
    /// Whose domain it is.
    pub(super) owner: u32,
    /// How long leaving may take.
    pub(super) patience: Duration,
}

impl Rope {
    /// Whether our descriptors are what they were.
    pub(super) fn is_whole(&self) -> bool {
        self.prompt.is_ours() && self.listener.is_ours() && self.fallback.is_ours()
    }

    /// Takes the sockets' files away, while nobody can take their place. For the last to leave.
    pub(super) fn remove_files(&self) {
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
    pub(super) fn is_told_to_stop(&self) -> bool {
        let _ = self.prompt.drain();
        // Acquire pairs with the Release in `depart`. It was stored before the prompt.
        self.stopping.load(Ordering::Acquire)
    }
}

/// Keeps others from replacing a socket's file, until the answer is dropped. `None`: somebody else
/// does so until the deadline.
pub(super) fn lock_directory(socket: &Path, until: Instant) -> io::Result<Option<File>> {
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
    pub(super) fn new(rope: Option<Rope>) -> Self {
        Self {
            ties: Arc::new(Ties {
                rope,
                offers: Offers::default(),
                thread: Mutex::default(),
                bell: Bell(Arc::default()),
            }),
        }
    }

    /// Starts the keeper, in the role of host or of a member with a connection.
    pub(super) fn start(&self, member: &Arc<Member>, role: Role) -> io::Result<()> {
        let keeper = Keeper {
            ties: Arc::clone(&self.ties),
            member: Arc::downgrade(member),
            role,
        };
        // Locked until the handle is there, for the case that the thread is faster.
        let mut thread = lock(&self.ties.thread);
        let handle = spawn_quiet("portolan", STACK, move || keeper.run())?;
        let _ = self.ties.bell.0.keeper.set(handle.thread().id());
        *thread = Some(handle);
        Ok(())
    }

    /// What this process offers to visitors.
    pub(super) fn offers(&self) -> &Offers {
        &self.ties.offers
    }

    /// What ties us to other processes; `None` in a private domain.
    pub(super) fn rope(&self) -> Option<&Rope> {
        self.ties.rope.as_ref()
    }

    /// Has the keeper look at what we offer.
    pub(super) fn prompt(&self) {
        if let Some(rope) = &self.ties.rope {
            // Fails only in a process that has lost its descriptors, and is told so elsewhere.
            let _ = rope.prompt.notify();
        }
    }

    pub(super) fn settled(&self) -> Settled {
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

/// Waits, when dropped, until the keeper does not hold the membership.
#[derive(Clone)]
pub(super) struct Settled(Arc<Latch>);

/// Tells when the membership is wholly gone, and waits only when asked.
#[derive(Clone)]
pub(super) struct Ending(Arc<Latch>);

impl Ending {
    /// Waits until the membership is wholly gone; `false` if that does not come by `deadline`.
    pub(super) fn gone_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let (gone, told) = &self.0.gone;
        let waited = told.wait_timeout_while(lock(gone), left, |gone| !*gone);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Settled {
    pub(super) fn ending(&self) -> Ending {
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
pub(super) fn leave(member: Arc<Member>, settled: Settled) -> Result<(), LeaveError> {
    if portolan_sys::fork::in_child() {
        return Err(LeaveError::Forked);
    }
    let (others, endings) = (Arc::downgrade(&member), member.endings.clone());
    let end = Instant::now() + ENDING;
    drop(member);
    loop {
        if let Some(member) = others.upgrade() {
            Ferries::end_unused(&member);
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
            match thread.map(JoinHandle::join) {
                Some(Ok(mut keeper)) => keeper.leave(member),
                // Never started: nobody knows of us yet.
                _ => Ok(()),
            }
        }
    };
    let _ = ties.bell.0.outcome.set(outcome);
}

/// Notes that we have lost our descriptors.
pub(super) fn disconnect(member: &Member) {
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

/// The thread's state, which goes on after it in the hands of whoever stops it.
pub(super) struct Keeper {
    pub(super) ties: Arc<Ties>,
    member: Weak<Member>,
    pub(super) role: Role,
}

/// Why the keeper stops.
pub(super) enum Stop {
    /// It was told to, or the membership is gone.
    Told,
    /// Our descriptors are gone: we cannot host, nor be told of anything.
    Disconnected,
}

impl Keeper {
    fn run(mut self) -> Self {
        loop {
            // A panic in here is a mistake of ours. The others must not wait for a host
            // that lives and does nothing.
            let done = catch_unwind(AssertUnwindSafe(|| match &self.role {
                Role::Member(_) => self.watch(),
                Role::Host(_) => self.host(),
            }));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(Stop::Told)) => return self,
                Ok(Err(Stop::Disconnected)) | Err(_) => {
                    self.ties.offers.end();
                    self.attend(|keeper, member| {
                        disconnect(member);
                        keeper.stop_mediating();
                        host::resign(member);
                    });
                    // Closes what connections there are, after the role is vacant.
                    self.role = Role::Member(Control::default());
                    return self;
                }
            }
        }
    }

    /// Does something with the membership; `None` if it is gone, or went while we did it.
    pub(super) fn attend<R>(&mut self, act: impl FnOnce(&mut Self, &Member) -> R) -> Option<R> {
        let ties = Arc::clone(&self.ties);
        let _turn = lock(&ties.bell.0.turn);
        let member = self.member.upgrade()?;
        let result = act(self, &member);
        let Some(member) = Arc::into_inner(member) else {
            return Some(result);
        };
        // Every handle was dropped meanwhile, so it is on us to leave.
        let outcome = self.leave(&member);
        let _ = ties.bell.0.outcome.set(outcome);
        // Detached: otherwise what this thread leaves behind and the ties hold one another.
        drop(lock(&ties.thread).take());
        drop(member);
        None
    }

    /// Leaves in good order.
    fn leave(&mut self, member: &Member) -> Result<(), LeaveError> {
        let left = match self.role {
            Role::Member(_) => self.leave_as_member(member),
            Role::Host(_) => {
                self.leave_as_host(member);
                Ok(())
            }
        };
        let (domain, space) = (member.domain.as_str(), member.space);
        match &left {
            Ok(()) => tracing::info!(domain, space, "this process has left the domain"),
            Err(error) => {
                tracing::warn!(domain, space, %error, "this process has left the domain");
            }
        }
        left
    }
}
