//! A thread that is told.

use super::{SignalError, lock, offset, push, shared};
use crate::member::Member;
use crate::wait::{Patience, Waiting};
use crate::{Deadline, Domain};
use portolan_abi::signal::DEFAULT_DEPTH;
use portolan_shm::mark;
use portolan_shm::signal::{Fifo, FifoEntry, Head};
use portolan_sys::futex;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How a listener is made.
///
/// ```
/// use portolan::{Domain, ListenerOptions};
/// let domain = Domain::private()?;
/// let listener = domain.listen(ListenerOptions::default().depth(500))?;
/// assert_eq!(listener.depth(), 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ListenerOptions {
    depth: usize,
    waiting: Waiting,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            depth: DEFAULT_DEPTH,
            waiting: Waiting::default(),
        }
    }
}

impl ListenerOptions {
    /// Signals that the FIFO holds, rounded up to a power of two, 512 at most; 128 if not
    /// said. One that finds it full is dropped and counted.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// How the thread waits: by polling, by sleeping, or first the one and then the other,
    /// which is the default.
    #[must_use]
    pub fn waiting(self, waiting: Waiting) -> Self {
        Self { waiting, ..self }
    }
}

/// Names a handler of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandlerId(u16);

type Run = Box<dyn FnMut(usize) + Send>;

struct Handling {
    id: u16,
    range: Range<u64>,
    run: Run,
}

/// Where handlers can be given to a listener, by those of its space ([`Listener::give`]).
#[derive(Clone)]
pub struct Outbox {
    fifo: u32,
    sender: mpsc::Sender<Handling>,
    posted: Arc<AtomicBool>,
}

/// A handler that was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Given {
    /// The caller's: no such handler here.
    #[error("this listener has no handler {0:?}")]
    Unknown(HandlerId),
    /// The other listener's: it is gone. The handler stays here.
    #[error("the listener that was to have the handler is gone")]
    Gone,
}

/// The one thread that handles signals, with its FIFO and its handlers.
///
/// Handlers run where [`Listener::wait`] or [`Listener::poll`] is called, one after
/// another, at that thread's priority: for ranges of different priority, give each a
/// thread. A handler may signal, also itself; that is handled after it. If one panics the
/// panic goes to the caller, and the next call goes on with the next signal.
///
/// ```
/// use portolan::{Domain, ListenerOptions};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let domain = Domain::private()?;
/// let segment = domain.make_segment(None, 4096)?;
/// let (seen, sees) = mpsc::channel();
/// let mut listener = domain.listen(ListenerOptions::default())?;
/// let start = segment.address();
/// listener.on(start..start + 1024, move |address| seen.send(address).unwrap())?;
///
/// assert_eq!(domain.signal(start + 100)?, 1);
/// assert_eq!(domain.signal(start + 1024)?, 0);
/// let left = listener.wait(Duration::from_secs(5)).expect("a signal is there");
/// assert!(left <= Duration::from_secs(5));
/// assert_eq!(sees.recv()?, start + 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listener {
    member: Arc<Member>,
    index: u32,
    head: Head,
    handlers: Vec<Handling>,
    inbox: mpsc::Receiver<Handling>,
    sender: mpsc::Sender<Handling>,
    /// Something is in the inbox: a look at that alone is cheap.
    posted: Arc<AtomicBool>,
    /// Signals taken out of the FIFO and not handled yet.
    taken: VecDeque<u64>,
    strays: u64,
    patience: Patience,
    waiting: Waiting,
}

impl Domain {
    /// A FIFO for the signals that the calling thread wants to handle.
    ///
    /// # Errors
    ///
    /// [`SignalError::NoFifo`].
    pub fn listen(&self, options: ListenerOptions) -> Result<Listener, SignalError> {
        let member = self.member();
        member.present()?;
        let tables = member.tables();
        let ours = u64::from(member.space);
        let used = &tables.header.fifos.value;
        let claimed = |(index, entry): &(usize, &FifoEntry)| {
            let owner = &entry.control.owner;
            if owner.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // Before it is ours: the host frees, and wakes, those that were ever used.
            used.fetch_max(*index as u64 + 1, Ordering::SeqCst);
            owner
                .compare_exchange(0, ours, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let (index, entry) = tables
            .fifos
            .iter()
            .enumerate()
            .find(claimed)
            .ok_or(SignalError::NoFifo)?;
        mark!("signal.fifo_taken");
        let (_, head) = Fifo::open(entry, options.depth);
        let (sender, inbox) = mpsc::channel();
        Ok(Listener {
            member: Arc::clone(member),
            index: u32::try_from(index).map_err(|_| SignalError::NoFifo)?,
            head,
            handlers: Vec::new(),
            inbox,
            sender,
            posted: Arc::default(),
            taken: VecDeque::new(),
            strays: 0,
            patience: Patience::default(),
            waiting: options.waiting,
        })
    }
}

impl Listener {
    /// Our FIFO. Opened when the listener was made, so it is there, unless another member
    /// wrote where it may not: then no signal comes any more.
    fn fifo(&self) -> Option<Fifo<'_>> {
        self.member.tables().fifo(self.index)
    }

    /// Calls `run` with every address of `range` that is signalled from now on.
    ///
    /// # Errors
    ///
    /// See [`SignalError`]; nothing is left behind.
    pub fn on(
        &mut self,
        range: Range<usize>,
        run: impl FnMut(usize) + Send + 'static,
    ) -> Result<HandlerId, SignalError> {
        let member = Arc::clone(&self.member);
        member.present()?;
        if range.is_empty() {
            let Range { start, end } = range;
            return Err(SignalError::Empty { start, end });
        }
        let start = offset(&member, range.start)?;
        let end = offset(&member, range.end - 1)? + 1;
        let locked = lock::lock(&member)?;
        let ranges = member.tables().ranges();
        let index = ranges.free_handler().ok_or(SignalError::NoHandler)?;
        ranges.add(index, member.space, (start, end), self.index, 0)?;
        drop(locked);
        self.handlers.push(Handling {
            id: index,
            range: start..end,
            run: Box::new(run),
        });
        Ok(HandlerId(index))
    }

    /// Takes a handler away; `false` if it is not here. A signal that was on its way to it
    /// is a stray.
    ///
    /// # Errors
    ///
    /// [`SignalError::Locked`]; it is still here then.
    pub fn off(&mut self, handler: HandlerId) -> Result<bool, SignalError> {
        self.adopt();
        let Some(at) = self.handlers.iter().position(|h| h.id == handler.0) else {
            return Ok(false);
        };
        let locked = lock::lock(&self.member)?;
        let ranges = self.member.tables().ranges();
        ranges.remove(handler.0, self.member.space);
        drop(locked);
        self.handlers.remove(at);
        Ok(true)
    }

    /// Where other listeners of this space can give handlers to this one.
    pub fn outbox(&self) -> Outbox {
        Outbox {
            fifo: self.index,
            sender: self.sender.clone(),
            posted: Arc::clone(&self.posted),
        }
    }

    /// Gives a handler to another thread's listener. No signal is lost; one that is signalled
    /// meanwhile may be handled twice.
    ///
    /// # Errors
    ///
    /// [`Given`]; the handler stays where it is.
    pub fn give(&mut self, handler: HandlerId, to: &Outbox) -> Result<(), Given> {
        self.adopt();
        let at = self.handlers.iter().position(|h| h.id == handler.0);
        let at = at.ok_or(Given::Unknown(handler))?;
        let range = self.handlers[at].range.clone();
        // First the function, so that it is there when the first signal is.
        if let Err(mpsc::SendError(back)) = to.sender.send(self.handlers.swap_remove(at)) {
            self.handlers.push(back);
            return Err(Given::Gone);
        }
        // Release: whoever sees it finds the function.
        to.posted.store(true, Ordering::Release);
        if let Some(entry) = self
            .member
            .tables()
            .ranges()
            .handlers()
            .get(usize::from(handler.0))
        {
            entry.move_to(to.fifo);
        }
        mark!("signal.moved");
        // S5: what reached us before the move goes on.
        let fifo = self.member.tables().fifo(self.index);
        while let Some(offset) = fifo.and_then(|f| f.pop(&mut self.head)) {
            if range.contains(&offset) {
                push(&self.member, to.fifo, offset);
            }
            if self.handlers.iter().any(|h| h.range.contains(&offset)) {
                self.taken.push_back(offset);
            }
        }
        Ok(())
    }

    /// Takes in what was given to us.
    #[inline]
    fn adopt(&mut self) {
        // Acquire: pairs with the release in `give`.
        if self.posted.load(Ordering::Acquire) {
            self.take_in();
        }
    }

    #[cold]
    fn take_in(&mut self) {
        // First, so that what is posted meanwhile is not forgotten.
        self.posted.store(false, Ordering::SeqCst);
        self.handlers.extend(self.inbox.try_iter());
    }

    /// Waits for a signal and handles it; the time that is left then ([`Duration::MAX`] with
    /// no deadline), or `None` if none came in time.
    #[inline]
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Option<Duration> {
        let deadline = deadline.into();
        loop {
            if self.handle_one() {
                let left = deadline.instant().map_or(Duration::MAX, |i| {
                    i.saturating_duration_since(Instant::now())
                });
                return Some(left);
            }
            if deadline.has_passed() {
                return None;
            }
            self.rest(deadline);
        }
    }

    /// Handles what is there; how many signals.
    pub fn poll(&mut self) -> usize {
        let mut handled = 0;
        while self.handle_one() {
            handled += 1;
        }
        handled
    }

    /// Spins, then sleeps, until a signal may be there.
    fn rest(&mut self, deadline: Deadline) {
        let looks = match self.waiting {
            Waiting::Poll => u32::MAX,
            Waiting::Sleep => 0,
            Waiting::Adaptive => self.patience.looks(),
        };
        let Some(fifo) = self.member.tables().fifo(self.index) else {
            return;
        };
        if self.waiting == Waiting::Poll {
            // So that the deadline is looked at now and then.
            fifo.spin(&mut self.head, 10_000);
            return;
        }
        if looks > 0 {
            if fifo.spin(&mut self.head, looks) {
                self.patience.paid(looks);
                return;
            }
            self.patience.in_vain();
        }
        if let Some(bell) = fifo.arm(&mut self.head) {
            mark!("signal.before_sleep");
            let _ = futex::wait(&fifo.entry().control.doorbell, bell, deadline.instant());
        }
        fifo.disarm(&self.head);
    }

    /// Handles one signal, if there is one that a handler wants.
    #[inline]
    fn handle_one(&mut self) -> bool {
        loop {
            let fifo = self.member.tables().fifo(self.index);
            let next = self.taken.pop_front();
            let Some(offset) = next.or_else(|| fifo.and_then(|f| f.pop(&mut self.head))) else {
                return false;
            };
            if self.dispatch(offset) {
                return true;
            }
        }
    }

    #[inline]
    fn dispatch(&mut self, offset: u64) -> bool {
        self.adopt();
        let address = self.member.region.base() + usize::try_from(offset).unwrap_or(0);
        let mut wanted = false;
        for handling in &mut self.handlers {
            if handling.range.contains(&offset) {
                wanted = true;
                (handling.run)(address);
            }
        }
        self.strays += u64::from(!wanted);
        wanted
    }

    /// Signals that the FIFO holds.
    pub fn depth(&self) -> usize {
        self.fifo().map_or(0, |fifo| fifo.depth())
    }

    /// Signals that found the FIFO full, and were dropped.
    pub fn dropped(&self) -> u64 {
        self.fifo().map_or(0, |fifo| fifo.dropped())
    }

    /// Signals that came for no handler of ours: for one that was taken away, most likely.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// What may be signalled, as addresses.
    pub fn shared(&self) -> Range<usize> {
        shared(&self.member)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.member.present().is_err() {
            return;
        }
        self.adopt();
        // If somebody has held the lock for too long, they stay until we leave the domain:
        // their signals go to a FIFO that nobody reads, which is then kept.
        let Ok(locked) = lock::lock(&self.member) else {
            return;
        };
        for handling in &self.handlers {
            let ranges = self.member.tables().ranges();
            ranges.remove(handling.id, self.member.space);
        }
        drop(locked);
        if let Some(entry) = self.member.tables().fifos.get(self.index as usize) {
            // Release: nothing of ours comes after it.
            entry.control.owner.store(0, Ordering::Release);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers = self.handlers.iter().map(|h| HandlerId(h.id));
        f.debug_struct("Listener")
            .field("fifo", &self.index)
            .field("handlers", &handlers.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outbox").field(&self.fifo).finish()
    }
}
