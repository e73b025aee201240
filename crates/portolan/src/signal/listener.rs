//! A listener receives signals and runs its handlers on one thread.

use super::delivery::{How, Rest, rest_for};
use super::handlers::Handling;
use super::inbox::{Inbox, Parting};
use super::intake::Intake;
use super::options::ListenerOptions;
use super::upcall::Upcalls;
use super::{Delivery, Note, SignalError, lock, offset, shared};
use crate::space::Member;
use crate::space::counters;
use crate::wait::Armable;
use crate::wait::{Patience, Waiting};
use crate::{Deadline, Domain};
use portolan_shm::mark;
use portolan_shm::signal::Fifo;
use portolan_sys::futex;
use portolan_sys::monitor::Monitor;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const POLLS: u32 = 10_000;
/// The same, of one that sleeps sooner or later.
const AT_ONCE: u32 = 64;

/// Names a handler of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandlerId(pub(super) u16);

/// The one thread that handles signals, with its FIFO and its handlers.
///
/// Handlers run where [`Listener::wait`] or [`Listener::poll`] is called, one after
/// another, at that thread's priority: for ranges of different priority, give each a
/// thread. Which of several handlers of one address is the first is not said. A handler may
/// signal, also itself; that is handled after it. If one panics the panic goes to the caller,
/// and the next call goes on with the next handler.
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
///
/// A [`WaitSet`](crate::WaitSet) names it when a signal is there; its handlers run when
/// [`poll`](Self::poll) is called, in the thread that calls it. Handlers that interrupt a thread
/// do so there as anywhere.
///
/// ```
/// use portolan::{Deadline, Domain, ListenerOptions, WaitSet};
/// let domain = Domain::private()?;
/// let segment = domain.make_segment(None, 4096)?;
/// let at = segment.address();
/// let mut listener = domain.listen(ListenerOptions::default())?;
/// listener.on(at..at + 64, |address| println!("{address:x}"))?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(listener)?;
///
/// domain.signal(at)?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let listener = set.get_mut(token).ok_or("not in the set")?;
/// assert_eq!(listener.poll(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listener {
    pub(super) intake: Intake,
    /// Handlers that interrupt a thread; they have a FIFO of their own.
    pub(super) upcalls: Option<Upcalls>,
    /// Signals that upcalls dropped, and the unhandled ones, whose thread has ended.
    pub(super) inherited: (u64, u64),
    /// What others give to it.
    pub(super) inbox: Arc<Inbox>,
    patience: Patience,
    options: ListenerOptions,
    /// How the thread waits, for the handlers that it has now.
    rest: Rest,
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
        let intake = Intake::open(member, options.depth)?;
        let mut listener = Listener {
            intake,
            upcalls: None,
            inherited: (0, 0),
            inbox: Arc::default(),
            patience: Patience::default(),
            options,
            rest: Rest::Sleep,
        };
        listener.choose_rest();
        Ok(listener)
    }
}

impl Listener {
    /// Calls `run` with every address of `range` that is signalled from now on. The thread
    /// waits for it as the listener's options say.
    ///
    /// # Errors
    ///
    /// See [`SignalError`]; nothing is left behind.
    pub fn on(
        &mut self,
        range: Range<usize>,
        run: impl FnMut(usize) + Send + 'static,
    ) -> Result<HandlerId, SignalError> {
        self.on_by(Delivery(How::Listened), range, run)
    }

    /// As [`on`](Self::on), and says how its thread is to be told.
    ///
    /// Upcalls interrupt the thread that adds the listener's first one, also if the
    /// listener is then waited on by another thread. Once that thread has ended they are
    /// handled where the listener waits, or is polled, and what had come for them ends its
    /// wait; upcalls that are added afterwards have a new first one.
    ///
    /// # Errors
    ///
    /// See [`SignalError`]; nothing is left behind.
    ///
    /// ```
    /// use portolan::{Delivery, Domain, ListenerOptions};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let domain = Domain::private()?;
    /// let segment = domain.make_segment(None, 4096)?;
    /// let at = segment.address();
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// let seen = Arc::new(AtomicUsize::new(0));
    /// let sees = Arc::clone(&seen);
    /// // SAFETY: a store into an atomic is async-signal-safe.
    /// let upcall = unsafe { Delivery::upcall() };
    /// listener.on_by(upcall, at..at + 64, move |address| sees.store(address, Ordering::Relaxed))?;
    ///
    /// domain.signal(at + 7)?;
    /// // No thread waits: the handler interrupts this one.
    /// while seen.load(Ordering::Relaxed) != at + 7 {
    ///     std::hint::spin_loop();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_by(
        &mut self,
        delivery: Delivery,
        range: Range<usize>,
        run: impl FnMut(usize) + Send + 'static,
    ) -> Result<HandlerId, SignalError> {
        let member = Arc::clone(&self.intake.member);
        member.present()?;
        if range.is_empty() {
            let Range { start, end } = range;
            return Err(SignalError::Empty { start, end });
        }
        let start = offset(&member, range.start)?;
        let end = offset(&member, range.end - 1)? + 1;
        let how = delivery.0;
        let fifo = match how {
            How::Upcall => self.upcalls(&member)?.index,
            _ => self.intake.index,
        };
        let ranges = member.tables().ranges();
        let locked = lock::lock(&member);
        let id = ranges.claim(member.space).ok_or(SignalError::NoHandler)?;
        // Before it is told of anything.
        self.take_on(Handling {
            id,
            range: start..end,
            how,
            run: Mutex::new(Box::new(run)),
        });
        let added = if locked.is_some() {
            ranges.add(id, member.space, (start, end), fifo, how.code())
        } else {
            // Who has the lock is stopped, perhaps.
            ranges.add_unlisted(id, (start, end), fifo, how.code())
        };
        if added.is_err() {
            ranges.unclaim(id, member.space);
        }
        if locked.is_none() {
            lock::tidy(&member);
        }
        drop(locked);
        if let Err(crowded) = added {
            self.let_go(id);
            return Err(crowded.into());
        }
        Ok(HandlerId(id))
    }

    /// Notes what is signalled in `range` by interrupting the calling thread: an upcall
    /// that cannot break the rules of [`Delivery::upcall`].
    ///
    /// # Errors
    ///
    /// See [`SignalError`]; nothing is left behind.
    ///
    /// ```
    /// use portolan::{Domain, ListenerOptions};
    /// let domain = Domain::private()?;
    /// let segment = domain.make_segment(None, 4096)?;
    /// let at = segment.address();
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// let (_handler, note) = listener.note(at..at + 64)?;
    /// domain.signal(at + 5)?;
    /// while note.count() == 0 {
    ///     std::hint::spin_loop();
    /// }
    /// assert_eq!(note.address(), at + 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note(&mut self, range: Range<usize>) -> Result<(HandlerId, Arc<Note>), SignalError> {
        let note = Arc::new(Note::default());
        let (delivery, take) = note.taker();
        Ok((self.on_by(delivery, range, take)?, note))
    }

    fn upcalls(&mut self, member: &Arc<Member>) -> Result<&Upcalls, SignalError> {
        // Of a thread that has ended: there is another one now.
        self.adopt();
        let ListenerOptions {
            depth,
            upcall_signal,
            ..
        } = self.options;
        match &mut self.upcalls {
            Some(upcalls) => Ok(upcalls),
            none => Ok(none.insert(Upcalls::new(
                member,
                self.intake.index,
                depth,
                upcall_signal,
            )?)),
        }
    }

    pub(super) fn take_on(&mut self, handling: Handling) {
        match &mut self.upcalls {
            Some(upcalls) if handling.how == How::Upcall => upcalls.add(handling),
            _ => self.intake.handlers.add(handling),
        }
        self.choose_rest();
    }

    pub(super) fn let_go(&mut self, id: u16) -> Option<Handling> {
        let interrupted = |upcalls: &mut Upcalls| upcalls.remove(id);
        let gone = self
            .intake
            .handlers
            .remove(id)
            .or_else(|| self.upcalls.as_mut().and_then(interrupted));
        self.choose_rest();
        gone
    }

    pub(super) fn choose_rest(&mut self) {
        let deliveries = self.intake.handlers.hows();
        self.rest = rest_for(deliveries, self.options.waiting, Monitor::probe());
    }

    /// Takes a handler away; `false` if it is not here. A signal that was on its way to it
    /// is unhandled.
    ///
    /// # Errors
    ///
    /// [`Disowned`](crate::Disowned).
    ///
    /// ```
    /// # use portolan::{Domain, ListenerOptions};
    /// # let domain = Domain::private()?;
    /// # let segment = domain.make_segment(None, 4096)?;
    /// # let at = segment.address();
    /// # let mut listener = domain.listen(ListenerOptions::default())?;
    /// let handler = listener.on(at..at + 64, |_| {})?;
    /// domain.signal(at)?;
    /// assert!(listener.off(handler)?);
    /// assert_eq!(domain.signal(at)?, 0);
    /// assert_eq!((listener.poll(), listener.unhandled()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn off(&mut self, handler: HandlerId) -> Result<bool, SignalError> {
        self.intake.member.present()?;
        self.adopt();
        let known = self.intake.handlers.place(handler.0).is_some()
            || self
                .upcalls
                .as_mut()
                .is_some_and(|u| u.ids().contains(&handler.0));
        if !known {
            return Ok(false);
        }
        let member = Arc::clone(&self.intake.member);
        remove(&member, std::iter::once(handler.0));
        self.let_go(handler.0);
        Ok(true)
    }

    /// Waits for a signal and handles it; the time that is left then ([`Duration::MAX`] with
    /// no deadline), or `None` if none came in time, and at once in a forked child, where none
    /// comes.
    ///
    /// An upcall of this listener ends it too, also one that has run since the last wait
    /// ended: what runs between a look at what it writes and the wait is not slept through.
    /// Several end one wait.
    ///
    /// ```
    /// # use portolan::{Domain, ListenerOptions};
    /// # use std::time::Duration;
    /// # let domain = Domain::private()?;
    /// # let segment = domain.make_segment(None, 4096)?;
    /// # let at = segment.address();
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// let (_handler, note) = listener.note(at..at + 64)?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| domain.signal(at).unwrap());
    ///     while note.count() == 0 {
    ///         listener.wait(Duration::from_secs(60)).expect("a signal comes");
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Option<Duration> {
        self.intake.member.present().ok()?;
        let deadline = deadline.into();
        loop {
            if self.handle_one() || self.was_interrupted() {
                if let Some(upcalls) = &mut self.upcalls {
                    upcalls.wait_ends();
                }
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

    /// Whether an upcall has run since the last wait ended.
    #[inline]
    fn was_interrupted(&self) -> bool {
        self.upcalls.as_ref().is_some_and(Upcalls::have_run)
    }

    /// Handles what is there; how many signals.
    pub fn poll(&mut self) -> usize {
        let mut handled = 0;
        if self.intake.member.present().is_err() {
            return 0;
        }
        while self.handle_one() {
            handled += 1;
        }
        handled
    }

    /// Whether something is there to be handled.
    pub(crate) fn may_have(&self) -> bool {
        self.intake.is_ready() || self.inbox.has_signals() || self.is_heir()
    }

    /// Arms it for the wait set that `link` names, 0 for none, in which case it is disarmed;
    /// `false` if a signal is there.
    pub(crate) fn arm_for(&mut self, link: u64) -> bool {
        let Some(fifo) = self.intake.fifo_if_present() else {
            return true;
        };
        let wait_set = &fifo.entry().control.wait_set;
        if link == 0 {
            fifo.disarm();
            // SeqCst: as in `ring`.
            wait_set.store(0, Ordering::SeqCst);
            return true;
        }
        wait_set.store(link, Ordering::SeqCst);
        self.intake.arm().is_some() && !self.inbox.has_signals() && !self.is_heir()
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.intake.member
    }

    /// Waits as the handlers want it, until a signal may be there or an upcall has run.
    fn rest(&mut self, deadline: Deadline) {
        let (upcalls, inbox) = (self.upcalls.as_ref(), &self.inbox);
        let Intake {
            member,
            index,
            head,
            ..
        } = &mut self.intake;
        let Some(fifo) = member.tables().fifo(*index) else {
            return;
        };
        let waiting = match self.rest {
            // So that the deadline is looked at now and then.
            Rest::Poll => {
                fifo.spin(head, POLLS);
                return;
            }
            Rest::Monitor(monitor) => {
                if let Some((word, empty)) = fifo.watch(head) {
                    monitor.wait(word, empty);
                }
                return;
            }
            Rest::Sleep => Waiting::Sleep,
            Rest::Adaptive => Waiting::Adaptive,
        };
        let mut looking = self.patience.begin(waiting);
        while looking.again_after(AT_ONCE) {
            if fifo.spin(head, AT_ONCE) {
                self.patience.paid(&looking);
                return;
            }
            if upcalls.is_some_and(Upcalls::have_run) {
                return;
            }
        }
        let begun = looking.begun();
        if let Some(upcalls) = upcalls {
            // Before the doorbell is read.
            upcalls.set_asleep(true);
        }
        if let Some(bell) = fifo.arm(head)
            && !upcalls.is_some_and(Upcalls::have_run)
            && !upcalls.is_some_and(Upcalls::have_ended)
            && !inbox.has_signals()
        {
            mark!("signal.before_sleep");
            let _ = futex::wait(&fifo.entry().control.doorbell, bell, deadline.instant());
        }
        if let Some(upcalls) = upcalls {
            upcalls.set_asleep(false);
        }
        self.patience.slept(&looking, begun.elapsed());
        fifo.disarm();
    }

    /// Handles one signal, if there is one that a handler wants.
    #[inline]
    fn handle_one(&mut self) -> bool {
        loop {
            if let Some(signal) = self.intake.next_taken() {
                counters::delivered(&self.intake.member);
                if self.intake.dispatch(signal) {
                    return true;
                }
                continue;
            }
            let new = self.intake.next_new();
            // After the signal was taken: what was given to us before it came is seen.
            if self.inbox.is_posted() || self.is_heir() {
                self.take_in();
                if let Some(signal) = new {
                    self.intake.put_back(signal);
                }
                continue;
            }
            let Some(signal) = new else {
                return false;
            };
            counters::delivered(&self.intake.member);
            if self.intake.dispatch(signal) {
                return true;
            }
        }
    }

    /// Signals that the FIFO holds, the one that is being handled included.
    pub fn depth(&self) -> usize {
        let depth = |fifo: Fifo<'_>| fifo.depth();
        self.intake.fifo_if_present().map_or(0, depth)
    }

    /// Signals that found the FIFO full, or that of the upcalls, and were dropped.
    ///
    /// ```
    /// # use portolan::{Domain, ListenerOptions};
    /// # let domain = Domain::private()?;
    /// # let segment = domain.make_segment(None, 4096)?;
    /// # let at = segment.address();
    /// let mut listener = domain.listen(ListenerOptions::default().depth(2))?;
    /// listener.on(at..at + 64, |_| {})?;
    /// assert_eq!([at, at + 1, at + 2].map(|a| domain.signal(a).unwrap()), [1, 1, 0]);
    /// assert_eq!((listener.poll(), listener.dropped()), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dropped(&self) -> u64 {
        let Some(fifo) = self.intake.fifo_if_present() else {
            return self.inherited.0;
        };
        let upcalls = self.upcalls.as_ref().map_or(0, Upcalls::dropped);
        fifo.dropped() + upcalls + self.inherited.0
    }

    /// Signals that came for no handler of ours: for one that was taken away, most likely.
    pub fn unhandled(&mut self) -> u64 {
        let upcalls = match (&mut self.upcalls, self.intake.member.present()) {
            (Some(upcalls), Ok(())) => upcalls.unhandled(),
            _ => 0,
        };
        self.intake.unhandled() + upcalls + self.inherited.1
    }

    /// What may be signalled, as addresses.
    pub fn shared(&self) -> Range<usize> {
        shared(&self.intake.member)
    }
}

/// Takes handlers out of the table, or leaves that to the holder of the lock.
fn remove(member: &Member, handlers: impl Iterator<Item = u16>) {
    let ranges = member.tables().ranges();
    if let Some(locked) = lock::lock(member) {
        handlers.for_each(|id| ranges.remove(id, member.space));
        drop(locked);
    } else {
        handlers.for_each(|id| ranges.orphan(id, member.space));
        lock::tidy(member);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.intake.member.present().is_err() {
            return;
        }
        // Whatever was given is here with its range; nothing is given any more.
        let given = self.inbox.lock().close();
        for Parting { handling, had } in given {
            self.intake.take_in(handling, had);
        }
        let member = Arc::clone(&self.intake.member);
        let upcalls = self.upcalls.as_mut().map_or_else(Vec::new, Upcalls::ids);
        let own = self.intake.handlers.ids();
        remove(&member, own.chain(upcalls));
        if let Some(upcalls) = self.upcalls.take() {
            upcalls.close();
        }
        self.intake.close();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers = self.intake.handlers.ids().map(HandlerId);
        f.debug_struct("Listener")
            .field("fifo", &self.intake.index)
            .field("upcalls", &self.upcalls)
            .field("handlers", &handlers.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Armable for Listener {
    fn kind(&self) -> &'static str {
        "the listener"
    }

    fn membership(&self) -> u64 {
        self.member().number
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        Self::arm_for(self, link)
    }
}
