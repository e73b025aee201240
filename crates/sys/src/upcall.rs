//! Makes upcalls: a Unix signal interrupts a chosen thread, and a function runs there.
//!
//! A thread registers a [`Callee`]. When that thread gets the signal, the signal's handler calls
//! it. It never runs twice at once, and never beside a change that its owner makes: a signal that
//! comes meanwhile has it called afterwards.
//!
//! ```text
//! gate:   open <---> busy ---> busy, and called meanwhile ---> (run again, or raise again)
//! ```
//!
//! # Invariants
//!
//! - **U1** Only the holder of a callee's gate touches the callee. The handler takes the gate by
//!   one exchange and never waits; the owner waits for it, with the signal blocked in its own
//!   thread. So the handler never waits for the thread that it interrupted.
//! - **U2** A handler that finds the gate busy leaves a note there, and the gate's holder acts on
//!   it when it leaves. So no call is lost.
//! - **U3** A node is never freed, only used again: the handler walks the list of nodes
//!   without a lock.
//! - **U4** When a thread ends its nodes belong to no thread: another thread that gets its id does
//!   not run them. Their callees are told.
//!
//! The handler is installed once for each number and never taken out; an earlier handler of that
//! signal is still called (`signal-hook-registry`).

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{fork, process, watch};

/// What runs in the signal handler.
pub trait Callee: Send + 'static {
    /// Runs on the thread that registered it, wherever that was interrupted. It may do what
    /// a signal handler may: no allocation, no lock, nothing that is not async-signal-safe.
    /// A panic ends the process.
    fn run(&mut self);

    /// The thread that registered it ends: it does not run any more. Called there, not in a
    /// signal handler, and late: most thread-locals are gone.
    fn left(&mut self) {}
}

/// A callee, registered for one thread and one signal until it is dropped.
///
/// # Examples
///
/// ```
/// use portolan_sys::upcall::{Callee, Upcall, default_signal};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// struct Count(Arc<AtomicU32>);
/// impl Callee for Count {
///     fn run(&mut self) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// let count = Arc::new(AtomicU32::new(0));
/// // SAFETY: an addition is async-signal-safe.
/// let upcall = unsafe { Upcall::register(default_signal(), Count(Arc::clone(&count))) }?;
/// upcall.caller().call()?;
/// // The signal is ours: it has run when the call returns.
/// assert_eq!(count.load(Ordering::Relaxed), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Upcall<C: Callee> {
    node: &'static Node,
    caller: Caller,
    callee: PhantomData<fn(C) -> C>,
}

/// Calls an upcall of this process.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    thread: u32,
    signal: i32,
}

/// One registration, or room for one.
#[derive(Debug)]
struct Node {
    /// The thread, [`FREE`] or [`NOBODY`].
    thread: AtomicU32,
    /// What it is called by.
    signal: AtomicI32,
    gate: AtomicU32,
    /// Touched by the gate's holder alone (U1).
    callee: UnsafeCell<Option<NonNull<dyn Callee>>>,
    /// Written before the node is reachable.
    next: AtomicPtr<Node>,
}

// SAFETY:
// - Only the gate's holder touches the callee, which is `Send` (U1).
unsafe impl Sync for Node {}

const FREE: u32 = 0;
/// Taken, and no thread's.
const NOBODY: u32 = u32::MAX;

const OPEN: u32 = 0;
const BUSY: u32 = 1;
const CALLED: u32 = 2;

/// All nodes there are (U3).
static NODES: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Whether an upcall runs on this thread.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// Ends the thread's registrations with it (U4).
    static LEAVING: Leaving = const { Leaving };
}

struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let own = process::thread();
        for node in nodes() {
            // In a forked child who had the gate may not be there.
            if node.thread.load(Ordering::Relaxed) == own && !fork::in_child() {
                node.part(own);
            }
        }
    }
}

/// Whether the caller runs in an upcall, where little is allowed.
pub fn is_running() -> bool {
    RUNNING.with(Cell::get)
}

/// The signal that is used unless asked otherwise: the last real-time signal but one.
pub fn default_signal() -> i32 {
    libc::SIGRTMAX() - 1
}

/// Whether `signal` makes upcalls in this process, or would if nothing else were asked for.
pub fn is_used(signal: i32) -> bool {
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    signal == default_signal() || installed.contains(&signal)
}

/// Whether `signal` is a real-time signal, which can carry a value.
pub fn is_real_time(signal: i32) -> bool {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal)
}

impl<C: Callee> Upcall<C> {
    /// Has `callee` run on the calling thread whenever that gets `signal`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such signal, or one that cannot be handled. `EBUSY`: it is caught by a
    /// [`UnixSignal`](crate::watch::UnixSignal).
    ///
    /// # Safety
    ///
    /// [`Callee::run`] does only what is async-signal-safe.
    pub unsafe fn register(signal: i32, callee: C) -> io::Result<Self> {
        // So that a forked child knows that it is one.
        fork::generation();
        install(signal)?;
        LEAVING.with(|_| {});
        let node = vacant();
        let callee: Box<dyn Callee> = Box::new(callee);
        // A handler of the thread that had it before may be looking in.
        while !node.enter() {
            thread::yield_now();
        }
        // SAFETY:
        // - We have the gate (U1).
        unsafe { *node.callee.get() = NonNull::new(Box::into_raw(callee)) };
        node.signal.store(signal, Ordering::Relaxed);
        node.gate.store(OPEN, Ordering::Release);
        let thread = process::thread();
        node.thread.store(thread, Ordering::Release);
        Ok(Self {
            node,
            caller: Caller { thread, signal },
            callee: PhantomData,
        })
    }

    /// What calls it.
    pub fn caller(&self) -> Caller {
        self.caller
    }

    /// Lends the callee out. A call that comes meanwhile is made up for. From within the
    /// callee itself this never returns.
    pub fn with<T>(&mut self, change: impl FnOnce(&mut C) -> T) -> T {
        let held = Held::take(self.node, self.caller);
        // SAFETY:
        // - We have the gate (U1).
        let callee = unsafe { *self.node.callee.get() };
        let callee = callee.expect("there until it is dropped").cast::<C>();
        // SAFETY:
        // - `register` made it of a `C`, and no other code has it while we have the gate.
        let outcome = change(unsafe { &mut *callee.as_ptr() });
        drop(held);
        outcome
    }
}

impl<C: Callee> Drop for Upcall<C> {
    fn drop(&mut self) {
        if fork::in_child() {
            // The thread is not here, and who had the gate may not be either.
            return;
        }
        let held = Held::take(self.node, self.caller);
        self.node.thread.store(NOBODY, Ordering::Release);
        // SAFETY:
        // - We have the gate (U1).
        let callee = unsafe { (*self.node.callee.get()).take() };
        drop(held);
        self.node.thread.store(FREE, Ordering::Release);
        if let Some(callee) = callee {
            // SAFETY:
            // - Made by `Box::into_raw`, and taken out of the node.
            drop(unsafe { Box::from_raw(callee.as_ptr()) });
        }
    }
}

impl Caller {
    /// The thread that it runs on.
    pub fn thread(self) -> u32 {
        self.thread
    }

    /// Its signal.
    pub fn signal(self) -> i32 {
        self.signal
    }

    /// Has it run. If its thread is the calling one it has run when this returns.
    ///
    /// # Errors
    ///
    /// `ESRCH`: the thread has ended. `EAGAIN`: too many signals are pending.
    pub fn call(self) -> io::Result<()> {
        let process = std::process::id();
        // SAFETY:
        // - Takes no pointers; the handler is installed.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, self.signal) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// The owner's hold of a gate, with the signal blocked.
struct Held {
    node: &'static Node,
    mask: libc::sigset_t,
}

impl Held {
    fn take(node: &'static Node, caller: Caller) -> Self {
        let mask = block(caller.signal);
        while !node.enter() {
            thread::yield_now();
        }
        Self { node, mask }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Release: the next one sees what we did.
        self.node.leave();
        unblock(&self.mask);
    }
}

impl Node {
    /// Takes the gate, if it is open.
    fn enter(&self) -> bool {
        self.gate
            .compare_exchange(OPEN, BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the gate, or leaves a note (U2).
    fn enter_or_note(&self) -> bool {
        loop {
            if self.enter() {
                return true;
            }
            let noted =
                self.gate
                    .compare_exchange(BUSY, CALLED, Ordering::Relaxed, Ordering::Relaxed);
            if matches!(noted, Ok(_) | Err(CALLED)) {
                return false;
            }
        }
    }

    /// Opens the gate again, in no signal handler.
    fn leave(&self) {
        // Release: the next one sees what we did.
        if self.gate.swap(OPEN, Ordering::AcqRel) != CALLED {
            return;
        }
        let thread = self.thread.load(Ordering::Acquire);
        let signal = self.signal.load(Ordering::Relaxed);
        if ![FREE, NOBODY].contains(&thread) {
            // U2. It fails if the thread has ended.
            let _ = Caller { thread, signal }.call();
        }
    }

    /// Its thread, which is `own` and the caller's, ends (U4).
    fn part(&self, own: u32) {
        while !self.enter() {
            thread::yield_now();
        }
        // Its owner may have dropped it meanwhile.
        if self.thread.load(Ordering::Acquire) == own {
            self.thread.store(NOBODY, Ordering::Release);
            // SAFETY:
            // - We have the gate (U1).
            let callee = unsafe { *self.callee.get() };
            if let Some(callee) = callee {
                // SAFETY:
                // - Alive while it is in the node, and ours while we have the gate.
                unsafe { &mut *callee.as_ptr() }.left();
            }
        }
        self.leave();
    }

    /// Runs the callee, in the signal handler of its thread, which is `own`.
    fn run(&self, own: u32) {
        if !self.enter_or_note() {
            return;
        }
        loop {
            // SAFETY:
            // - We have the gate (U1).
            let callee = unsafe { *self.callee.get() };
            // It may be another thread's by now. Relaxed: it changes to ours in our thread.
            let ours = self.thread.load(Ordering::Relaxed) == own;
            if let Some(callee) = callee.filter(|_| ours) {
                // SAFETY:
                // - Alive while it is in the node, and ours while we have the gate.
                unsafe { &mut *callee.as_ptr() }.run();
            }
            let left = self
                .gate
                .compare_exchange(BUSY, OPEN, Ordering::Release, Ordering::Relaxed);
            if left.is_ok() {
                return;
            }
            self.gate.store(BUSY, Ordering::Relaxed);
        }
    }
}

fn nodes() -> impl Iterator<Item = &'static Node> {
    // Acquire: pairs with the release that made it reachable.
    let mut next = NODES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY:
        // - Null, or a node, which is never freed (U3).
        let node = unsafe { next.as_ref() }?;
        next = node.next.load(Ordering::Relaxed);
        Some(node)
    })
}

/// A node that is taken and no thread's.
fn vacant() -> &'static Node {
    let take = |node: &&'static Node| {
        node.thread
            .compare_exchange(FREE, NOBODY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    };
    if let Some(node) = nodes().find(take) {
        return node;
    }
    let node = Box::leak(Box::new(Node {
        thread: AtomicU32::new(NOBODY),
        signal: AtomicI32::new(0),
        gate: AtomicU32::new(OPEN),
        callee: UnsafeCell::new(None),
        next: AtomicPtr::new(ptr::null_mut()),
    }));
    let mut head = NODES.load(Ordering::Relaxed);
    loop {
        node.next.store(head, Ordering::Relaxed);
        // Release: a handler that finds the node finds what is in it.
        match NODES.compare_exchange(head, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return node,
            Err(now) => head = now,
        }
    }
}

/// Numbers whose handler was installed.
static INSTALLED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Installs the handler of a number, once.
fn install(signal: i32) -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.contains(&signal) {
        return Ok(());
    }
    if signal_hook_registry::FORBIDDEN.contains(&signal) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if watch::is_caught(signal) {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY:
    // - `on_signal` does what is async-signal-safe: atomics, a system call, a thread-local
    //   without destructor; and callees, whose registrar promised as much.
    unsafe { signal_hook_registry::register(signal, on_signal) }?;
    installed.push(signal);
    Ok(())
}

/// What the handler does: runs what this thread has registered.
fn on_signal() {
    let own = process::thread();
    for node in nodes() {
        // Acquire: pairs with the release in `register`.
        if node.thread.load(Ordering::Acquire) == own {
            let before = RUNNING.replace(true);
            node.run(own);
            RUNNING.set(before);
        }
    }
}

/// Blocks `signal` in this thread; what was blocked before.
fn block(signal: i32) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY:
    // - Room for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY:
    // - As above; it is a set now.
    unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY:
    // - One set to be read, and room for another.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) };
    // SAFETY:
    // - Zeroed, and then filled.
    unsafe { before.assume_init() }
}

fn unblock(before: &libc::sigset_t) {
    // SAFETY:
    // - A set to be read; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}
