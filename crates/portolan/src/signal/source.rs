//! Sources (descriptors, timers and Unix signals) signal an address without a call of
//! [`Domain::signal`].
//!
//! One thread of each membership waits for all sources of the process, and signals their addresses
//! as any thread could. So the signals reach every handler, in every process, by every delivery.
//! The thread exists as long as there are sources.

use super::{SignalError, offset, signal};
use crate::Domain;
use crate::space::{Member, Part};
use crate::wait::poller::{Entry, PollSet, Watched};
use portolan_sys::watch::{Timer, UnixSignal};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What an address can be bound to ([`Domain::bind_address`]).
#[derive(Debug)]
#[non_exhaustive]
pub enum Origin {
    /// A descriptor: signals when there is more to read, or to accept, or the other end has
    /// gone. The handler reads until nothing is left; it is told again only of what comes
    /// after.
    Descriptor(OwnedFd),
    /// A timer, by the monotonic clock.
    Timer {
        /// How long from now until it signals first.
        first: Duration,
        /// How long from then on, if not once.
        every: Option<Duration>,
    },
    /// A Unix signal of this process, by its number; not one that upcalls come by
    /// ([`crate::ListenerOptions::upcall_signal`]). Several that come together may signal
    /// once.
    UnixSignal(i32),
}

/// An address that is bound to something, until this is dropped.
#[must_use = "when dropped, the address is bound to nothing"]
pub struct Source {
    /// First: its thread is ended before the domain is left.
    _bound: Entry<Bound>,
    _member: Arc<Member>,
    address: usize,
}

impl Domain {
    /// Has an address signalled by a descriptor, a timer or a Unix signal, as if a thread
    /// called [`signal`](Self::signal) whenever something is new there. So one wait serves
    /// all: a [`Listener`](crate::Listener), or the wait set that it is in.
    ///
    /// # Errors
    ///
    /// [`SignalError`].
    ///
    /// ```
    /// use portolan::{Domain, ListenerOptions, Origin};
    /// use std::os::unix::net::UnixStream;
    /// use std::io::{Read, Write};
    /// use std::time::Duration;
    ///
    /// let domain = Domain::private()?;
    /// let segment = domain.make_segment(None, 4096)?;
    /// let (socket, tick) = (segment.address(), segment.address() + 64);
    /// let (mut ours, mut theirs) = UnixStream::pair()?;
    /// let every = Some(Duration::from_secs(3600));
    /// let first = Duration::from_millis(1);
    /// let _socket = domain.bind_address(socket, Origin::Descriptor(ours.try_clone()?.into()))?;
    /// let _timer = domain.bind_address(tick, Origin::Timer { first, every })?;
    ///
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// ours.set_nonblocking(true)?;
    /// listener.on(socket..socket + 1, move |_| {
    ///     let mut text = String::new();
    ///     let _ = ours.read_to_string(&mut text);
    ///     println!("{text}");
    /// })?;
    /// listener.on(tick..tick + 1, |_| println!("tick"))?;
    /// theirs.write_all(b"hello")?;
    /// listener.wait(Duration::from_secs(60)).expect("one of the two");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind_address(&self, address: usize, origin: Origin) -> Result<Source, SignalError> {
        let member = self.member();
        member.present()?;
        let offset = offset(member, address)?;
        let bound = Bound {
            member: Arc::downgrade(member),
            offset,
            what: What::new(origin)?,
        };
        let entered = PollSet::of(&member.part::<Sources>().0)
            .map_err(|error| not_bound(&error))?
            .enter(bound);
        let bound = entered.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => SignalError::NotWaitable,
            _ => not_bound(&error),
        })?;
        Ok(Source {
            _bound: bound,
            _member: Arc::clone(member),
            address,
        })
    }
}

impl Source {
    /// The address that it signals.
    pub fn address(&self) -> usize {
        self.address
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source")
            .field(&format_args!("{:#x}", self.address))
            .finish()
    }
}

fn not_bound(error: &io::Error) -> SignalError {
    SignalError::NotBound {
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// The sources of a membership, and the thread that waits for them, there as long as they are.
#[derive(Default)]
struct Sources(Mutex<Weak<PollSet<Bound>>>);

impl Part for Sources {}

/// A source as that thread knows it.
#[derive(Debug)]
struct Bound {
    member: Weak<Member>,
    offset: u64,
    what: What,
}

/// What is waited for.
#[derive(Debug)]
enum What {
    Descriptor(OwnedFd),
    Timer(Timer),
    UnixSignal(UnixSignal),
}

impl What {
    fn new(origin: Origin) -> Result<Self, SignalError> {
        Ok(match origin {
            Origin::Descriptor(fd) => Self::Descriptor(fd),
            Origin::Timer { first, every } => {
                Self::Timer(Timer::start(first, every).map_err(|error| not_bound(&error))?)
            }
            Origin::UnixSignal(signal) => Self::UnixSignal(UnixSignal::catch(signal).map_err(
                |error| match error.kind() {
                    io::ErrorKind::InvalidInput => SignalError::NotCaught { signal },
                    io::ErrorKind::ResourceBusy => SignalError::UpcallSignal { signal },
                    _ => not_bound(&error),
                },
            )?),
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Descriptor(fd) => fd.as_fd(),
            Self::Timer(timer) => timer.as_fd(),
            Self::UnixSignal(signal) => signal.as_fd(),
        }
    }

    /// Whether it is to be signalled. What is the caller's is the caller's to read.
    fn is_due(&self) -> bool {
        match self {
            Self::Descriptor(_) => true,
            Self::Timer(timer) => timer.ran_out().is_ok_and(|times| times > 0),
            Self::UnixSignal(signal) => signal.came().is_ok_and(|times| times > 0),
        }
    }
}

impl Watched for Bound {
    const THREAD: &str = "portolan-source";
    /// Enough to signal, and for the subscriber of the log.
    const STACK: usize = 512 << 10;

    fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.what.fd(), None)
    }

    fn look(&self, _second: bool) {
        if self.what.is_due()
            && let Some(member) = self.member.upgrade()
        {
            crate::space::counters::signalled(&member);
            signal(&member, self.offset);
        }
    }
}
