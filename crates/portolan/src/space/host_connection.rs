//! A host connection ties this process to its domain's host, by sockets and one thread, and leaves
//! the domain.
//!
//! The *membership thread* holds the membership only for the moments in which it acts. So the drop
//! of the last handle leaves the domain, in one of two threads:
//!
//! - the program's thread, which stops the membership thread first and takes over its state;
//! - the membership thread, if the last handle was dropped while that thread acted. Then the
//!   program's thread waits for the membership thread ([`Settled`]).

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

/// How long `leave` waits at most for dropped clients and servers to drain: longer than they
/// wait for anything but a method that runs.
const DRAIN: Duration = Duration::from_secs(20);
/// The pause between two looks at the drains, or at a lock.
const LOOK: Duration = Duration::from_millis(1);

/// A membership's connection to the host: the state that it shares with its thread.
pub(crate) struct HostConnection {
    shared: Arc<Shared>,
}

/// Stops the membership thread, takes over its state and leaves the domain. Runs in the thread that
/// drops the membership.
pub(crate) type Depart = Box<dyn FnOnce(&Member) -> Result<(), LeaveError> + Send>;

/// What the membership thread and the membership share.
pub(crate) struct Shared {
    /// `None` in a private domain.
    pub(crate) sockets: Option<HostSockets>,
    /// What stops the membership thread.
    thread: Mutex<Option<Depart>>,
    // The last field: when it is notified, the region is unmapped and the sockets are closed.
    bell: Bell,
}

/// What handles know of the membership thread and the membership, also after both are gone.
#[derive(Default)]
struct Latch {
    /// Held by the membership thread while it keeps the membership alive for a moment.
    turn: Mutex<()>,
    thread_id: OnceLock<ThreadId>,
    outcome: OnceLock<Result<(), LeaveError>>,
    gone: (Mutex<bool>, Condvar),
}

/// Announces, when dropped, that membership thread and membership are gone.
struct Bell(Arc<Latch>);

impl Drop for Bell {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever, and no thread waits.
        if !portolan_sys::fork::in_child() {
            *lock(&self.0.gone.0) = true;
            self.0.gone.1.notify_all();
        }
    }
}

/// The sockets that every member of a domain shares, their addresses, and the prompt of the
/// membership thread.
pub(crate) struct HostSockets {
    /// The host's fallback socket, shared by all. It closes before the listening socket: a
    /// process that finds that name free finds this one free, too, or about to be.
    pub(crate) fallback: Descriptor,
    /// The host's listening socket, shared by all (D4).
    pub(crate) listener: Descriptor,
    /// Readable when the membership thread must look at our offers, or stop.
    pub(crate) prompt: Descriptor<EventFd>,
    /// Whether a prompt means that it must stop.
    pub(crate) stopping: AtomicBool,
    /// Whether this process is to host: it asks each host that knows it for the role.
    pub(crate) prefers: AtomicBool,
    pub(crate) address: Address,
    pub(crate) fallback_address: Address,
    /// The user who owns the domain.
    pub(crate) owner: u32,
    /// How long leaving may take.
    pub(crate) patience: Duration,
}

impl HostSockets {
    /// Whether our descriptors still refer to our files.
    pub(crate) fn is_whole(&self) -> bool {
        self.prompt.is_ours() && self.listener.is_ours() && self.fallback.is_ours()
    }

    /// Removes the sockets' files, while no process can replace them. For the last member to leave.
    pub(crate) fn remove_files(&self) {
        let Address::Path(path) = &self.address else {
            return;
        };
        // Without the lock the files stay, and the next newcomer replaces them.
        let until = Instant::now() + self.patience;
        if let Ok(Some(_directory)) = lock_directory(path, until) {
            for address in [&self.fallback_address, &self.address] {
                if let Address::Path(path) = address {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }

    /// Takes a prompt. Returns whether the membership thread must stop.
    pub(crate) fn is_told_to_stop(&self) -> bool {
        let _ = self.prompt.drain();
        // Acquire pairs with the Release in `depart`. It was stored before the prompt.
        self.stopping.load(Ordering::Acquire)
    }
}

/// Keeps other processes from replacing a socket's file until the result is dropped. `None`:
/// another process held the lock until the deadline.
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
    // A panic leaves nothing half done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostConnection {
    /// A connection to the members that share `sockets`; without sockets the domain is private.
    pub(crate) fn new(sockets: Option<HostSockets>) -> Self {
        Self {
            shared: Arc::new(Shared {
                sockets,
                thread: Mutex::default(),
                bell: Bell(Arc::default()),
            }),
        }
    }

    /// Has `spawn` start the membership thread. It gives back the thread's id, and the closure that
    /// stops the thread and then leaves in its place.
    pub(crate) fn start(
        &self,
        spawn: impl FnOnce(&Arc<Shared>) -> io::Result<(ThreadId, Depart)>,
    ) -> io::Result<()> {
        // Locked until the handle is there, for the case that the thread is faster.
        let mut thread = lock(&self.shared.thread);
        let (id, depart) = spawn(&self.shared)?;
        let _ = self.shared.bell.0.thread_id.set(id);
        *thread = Some(depart);
        Ok(())
    }

    /// The sockets that we share with the other members; `None` in a private domain.
    pub(crate) fn sockets(&self) -> Option<&HostSockets> {
        self.shared.sockets.as_ref()
    }

    /// Has the membership thread look at our offers.
    pub(crate) fn prompt(&self) {
        if let Some(sockets) = &self.shared.sockets {
            // Fails only in a process that has lost its descriptors; other calls report that.
            let _ = sockets.prompt.notify();
        }
    }

    /// Has the membership thread ask for the host's role from now on.
    pub(crate) fn prefer_to_host(&self) {
        if let Some(sockets) = &self.shared.sockets {
            // Release: before the prompt. Nothing else goes with it.
            sockets.prefers.store(true, Ordering::Release);
        }
        self.prompt();
    }

    pub(crate) fn settled(&self) -> Settled {
        Settled(Arc::clone(&self.shared.bell.0))
    }

    /// Whether this process can still reach the others: for operations of control, since
    /// it asks the kernel.
    pub(crate) fn connected(&self) -> Result<(), Disowned> {
        match &self.shared.sockets {
            Some(sockets) if !sockets.is_whole() => Err(Disowned::Disconnected),
            _ => Ok(()),
        }
    }
}

impl Shared {
    /// Held by the membership thread while it keeps the membership alive for a moment.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.bell.0.turn)
    }

    /// The membership thread has left, because the last handle was dropped while it acted.
    pub(crate) fn left(&self, outcome: Result<(), LeaveError>) {
        let _ = self.bell.0.outcome.set(outcome);
        // Detached: the closure and the shared state would otherwise own each other.
        drop(lock(&self.thread).take());
    }
}

/// Waits, when dropped, until the membership thread does not hold the membership.
#[derive(Clone)]
pub(crate) struct Settled(Arc<Latch>);

/// Tells whether the membership is wholly gone, and waits only in [`gone_by`](Self::gone_by).
#[derive(Clone)]
pub(crate) struct Departure(Arc<Latch>);

impl Departure {
    /// Waits until the membership is wholly gone; `false` if that does not come by `deadline`.
    pub(crate) fn gone_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let (gone, told) = &self.0.gone;
        let waited = told.wait_timeout_while(lock(gone), left, |gone| !*gone);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Settled {
    pub(crate) fn departure(&self) -> Departure {
        Departure(Arc::clone(&self.0))
    }

    /// Waits until the membership thread does not hold the membership.
    fn wait(&self) {
        // A forked child has no membership thread, and its lock may be held for ever.
        let is_membership_thread = || self.0.thread_id.get() == Some(&std::thread::current().id());
        if !portolan_sys::fork::in_child() && !is_membership_thread() {
            drop(lock(&self.0.turn));
        }
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Leaves the domain, if this is the last handle. Waits for the handles of dropped clients and
/// servers, which only the library's own threads can drop.
pub(crate) fn leave(member: Arc<Member>, settled: Settled) -> Result<(), LeaveError> {
    if portolan_sys::fork::in_child() {
        return Err(LeaveError::Disowned(Disowned::Forked));
    }
    let (others, drains) = (Arc::downgrade(&member), member.drains.clone());
    let end = Instant::now() + DRAIN;
    drop(member);
    loop {
        if let Some(member) = others.upgrade() {
            member.parts.leaving(&member);
        }
        // Read first: if the last drain ends after this, the next round sees that it left.
        let draining = drains.any();
        settled.wait();
        if let Some(outcome) = settled.0.outcome.get() {
            return *outcome;
        }
        if !draining || Instant::now() >= end {
            let handles = others.strong_count().max(1);
            return Err(LeaveError::StillHeld { handles });
        }
        std::thread::sleep(LOOK);
    }
}

/// Leaves the domain: the first step of a membership's drop.
pub(crate) fn depart(member: &Member) {
    let shared = &member.host_connection.shared;
    if portolan_sys::fork::in_child() || shared.bell.0.outcome.get().is_some() {
        return;
    }
    // Taken out in any case: the closure owns the shared state.
    let thread = lock(&shared.thread).take();
    let outcome = match &shared.sockets {
        None => Ok(()),
        // No prompt would reach the membership thread. It finds out when it wakes, or never wakes.
        Some(sockets) if !sockets.is_whole() => {
            disconnect(member);
            Err(LeaveError::Disowned(Disowned::Disconnected))
        }
        Some(sockets) => {
            sockets.stopping.store(true, Ordering::Release);
            let _ = sockets.prompt.notify();
            // The membership thread never started: no process knows of us yet.
            thread.map_or(Ok(()), |depart| depart(member))
        }
    };
    let _ = shared.bell.0.outcome.set(outcome);
}

/// Publishes that this process has lost its descriptors.
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
