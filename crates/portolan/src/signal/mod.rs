//! Address-valued signals tell interested threads "look at this address".
//!
//! An interested thread makes a [`Listener`] and gives it handlers, each for a
//! range of addresses. [`Domain::signal`] tells every handler whose range holds the
//! address, in every space: none, one or many. What it costs does not depend on how many
//! ranges there are, nor on members that are not interested.
//!
//! Signals carry no data and protect none: the writer and the reader of the address
//! agree about its content ([`crate::Segment`]). What was written before a signal is
//! seen by the handler.
//!
//! How a handler's thread is told is chosen for each handler ([`Delivery`]): it polls, has
//! the processor wait, sleeps (also in a [`WaitSet`](crate::WaitSet)), or is interrupted.
//! Descriptors, timers and Unix signals can be bound to an address
//! ([`Domain::bind_address`]), so that one wait serves all. Only the table of ranges
//! says who is interested, so there is nothing to prune: a signal is unhandled only at a listener
//! that has just given a handler away or up.
//!
//! The model is Cheriton and Kutter's (*Optimized Memory-Based Messaging*, section 2.1):
//! `SignalHandler` is [`Listener::on`], `Signal` is [`Domain::signal`], `SigWait` is
//! [`Listener::wait`].

mod delivery;
mod give;
mod handlers;
mod inbox;
mod intake;
mod listener;
mod lock;
mod options;
mod source;
mod tell;
mod upcall;

pub use delivery::{Delivery, Note};
pub use give::Outbox;
pub use listener::{HandlerId, Listener};
pub use options::ListenerOptions;

pub use source::{Origin, Source};
use tell::signal;
pub(crate) use tell::tell_each;

use crate::space::Member;
use crate::space::counters;
use crate::space::record::About;
use crate::wait::raise_link;
use crate::{Disowned, Domain, EventKind};
use portolan_abi::limits::MAX_FIFOS;
use portolan_shm::mark;
use portolan_shm::signal::{Crowded, Fifo, FifoControl, Pushed};
use portolan_sys::futex;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Why a signal, or a handler, was refused; why an address was not bound, or a handler not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// The caller's: the address is not in memory that the domain's members share.
    #[error(
        "{address:#x} is not in the domain's shared memory, {shared:x?}: signal an address in a segment or an extent"
    )]
    NotShared {
        /// The address.
        address: usize,
        /// What is shared.
        shared: Range<usize>,
    },
    /// The caller's: a range without a byte.
    #[error("the range {start:#x}..{end:#x} is empty")]
    Empty {
        /// Where it starts.
        start: usize,
        /// Where it ends.
        end: usize,
    },
    /// The state's: all threads that may listen do.
    #[error("the domain's {MAX_FIFOS} signal FIFOs are all in use: drop listeners")]
    NoFifo,
    /// The state's: no handler can be added.
    #[error("the domain has no room for another handler: drop some")]
    NoHandler,
    /// The state's: the range needs more blocks than are left.
    #[error(transparent)]
    Crowded(#[from] Crowded),
    /// The caller's: upcalls come by real-time signals, which carry an address.
    #[error("signal {signal} is not a real-time signal: take one from SIGRTMIN to SIGRTMAX")]
    NotRealTime {
        /// The number.
        signal: i32,
    },
    /// The caller's: an address is bound to the Unix signal, so each upcall would call for the
    /// next one.
    #[error("an address is bound to Unix signal {signal}: take another one for upcalls")]
    Bound {
        /// The number.
        signal: i32,
    },
    /// The system's: a signal handler, or a thread, could not be had for upcalls.
    #[error("no upcalls ({}): wait for signals instead", std::io::Error::from_raw_os_error(*.errno))]
    Upcall {
        /// The system's error number.
        errno: i32,
    },
    /// The caller's: of what an address is to be bound to, nothing is ever new, as of a plain file.
    #[error("the descriptor cannot be waited for: take a socket, a pipe or the like")]
    NotWaitable,
    /// The caller's: it ends the process, or does not exist.
    #[error("Unix signal {signal} cannot be caught")]
    NotCaught {
        /// Its number.
        signal: i32,
    },
    /// The caller's: by this Unix signal upcalls come, so each would call for the next one.
    #[error("Unix signal {signal} is the one that upcalls come by: bind another")]
    UpcallSignal {
        /// Its number.
        signal: i32,
    },
    /// The system's.
    #[error("the address could not be bound ({}): close some descriptors, or end some threads", std::io::Error::from_raw_os_error(*.errno))]
    NotBound {
        /// The system's error number.
        errno: i32,
    },
    /// The caller's: this listener has no such handler.
    #[error("this listener has no handler {0:?}")]
    UnknownHandler(HandlerId),
    /// The other listener's: it is gone. The handler stays here.
    #[error("the listener that was to have the handler is gone")]
    ListenerGone,
    /// The caller's: the other listener is of another domain, whose signals are others. The
    /// handler stays here.
    #[error("the other listener belongs to another domain: give it to one of this domain")]
    OtherDomain,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl Domain {
    /// Signals an address: tells every handler whose range holds it, in the order in which
    /// this thread signals. How many listeners it reached, none of which is no error; one of
    /// which several handlers want the address is reached once, and calls each of them (its
    /// upcalls, which have a FIFO of their own, count as another). A FIFO that is full counts
    /// what it drops ([`Listener::dropped`]).
    ///
    /// # Errors
    ///
    /// [`SignalError::NotShared`].
    ///
    /// ```
    /// use portolan::Domain;
    ///
    /// let domain = Domain::private()?;
    /// let segment = domain.make_segment(None, 4096)?;
    /// assert_eq!(domain.signal(segment.address())?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn signal(&self, address: usize) -> Result<usize, SignalError> {
        let member = self.member();
        member.present()?;
        let offset = offset(member, address)?;
        Ok(send(member, offset))
    }
}

/// Signals an offset; how many listeners that reached.
#[inline]
pub(crate) fn send(member: &Member, offset: u64) -> usize {
    counters::signalled(member);
    let Some(begun) = member.begins(EventKind::Signal) else {
        return signal(member, offset);
    };
    let reached = signal(member, offset);
    member.record(begun, About::byte(offset, 0));
    reached
}

/// Pushes a signal to one FIFO, and wakes its reader if need be; `false` if it is full.
#[inline]
fn push(member: &Member, index: u32, offset: u64) -> bool {
    let Some(fifo) = member.tables().fifo(index) else {
        return false;
    };
    match fifo.push(offset) {
        Pushed::Done => true,
        Pushed::Full => false,
        Pushed::Wake => {
            wake(member, &fifo, index, offset);
            true
        }
    }
}

/// Wakes a reader that sleeps, or interrupts it.
#[cold]
fn wake(member: &Member, fifo: &Fifo<'_>, index: u32, offset: u64) {
    fifo.rouse(|control| {
        mark!("signal.before_wake");
        if control.thread.load(Ordering::Relaxed) == 0
            || !upcall::call(member, index, control, offset)
        {
            wake_reader(member, control);
        }
    });
}

/// Wakes a FIFO's reader: by its doorbell, or by the wait set that it is in.
fn wake_reader(member: &Member, control: &FifoControl) {
    control.doorbell.fetch_add(1, Ordering::SeqCst);
    // SeqCst: pairs with the reader, which changes the link before it reads the doorbell and
    // arms (W2 of wait sets).
    let link = control.wait_set.load(Ordering::SeqCst);
    if !raise_link(member, link, About::NOTHING) {
        member.during(EventKind::Wake, About::NOTHING, || {
            futex::wake(&control.doorbell, u32::MAX)
        });
    }
}

/// A byte's address here.
#[inline]
fn address_of(member: &Member, offset: u64) -> usize {
    member.region.base() + usize::try_from(offset).unwrap_or(0)
}

/// What the domain's members share, as addresses.
#[inline]
fn shared(member: &Member) -> Range<usize> {
    let pages = member.tables().alloc.pages();
    member.region.address(0)
        ..member
            .region
            .address(u32::try_from(pages).unwrap_or(u32::MAX))
}

/// The offset of a shared address.
#[inline]
fn offset(member: &Member, address: usize) -> Result<u64, SignalError> {
    let shared = shared(member);
    if !shared.contains(&address) {
        return Err(SignalError::NotShared { address, shared });
    }
    Ok((address - member.region.base()) as u64)
}

/// Ends the handlers and FIFOs of a dead space. For the host.
pub(crate) fn reclaim(member: &Member, space: u8) {
    let tables = member.tables();
    let held = lock::release_of(member, space);
    tables.ranges().disown(space, held);
    for entry in tables.used_fifos() {
        let owner = u64::from(space);
        // Release: nothing of the old owner's comes after it.
        let _ = entry
            .control
            .owner
            .compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        mark!("host.reclaim.fifo");
    }
    // Only tidiness: the next holder of the lock does it too.
    lock::tidy(member);
    mark!("host.reclaim.signals");
}

/// Wakes every reader that sleeps: one of those that the dead signalled may be among them.
pub(crate) fn wake_all(member: &Member) {
    for entry in member.tables().used_fifos() {
        if entry.control.owner.load(Ordering::Acquire) != 0 {
            wake_reader(member, &entry.control);
        }
    }
}
