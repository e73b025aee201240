//! What signals an address without anybody calling [`Domain::signal`]: descriptors, timers
//! and Unix signals.
//!
//! One thread a membership waits for all sources of this process, and signals their
//! addresses, as any thread could: whoever has a handler for one is told, in whatever
//! process, by whatever delivery. It is there as long as there are sources.

use super::{SignalError, offset, signal};
use crate::member::Member;
use crate::{Disowned, Domain};
use portolan_sys::process::EventFd;
use portolan_sys::watch::{Timer, UnixSignal, Watch};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
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
    sources: Arc<Sources>,
    member: Arc<Member>,
    number: u64,
    address: usize,
}

/// Why an address was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The caller's: see [`SignalError::NotShared`].
    #[error(transparent)]
    Address(SignalError),
    /// The caller's: nothing is ever new there, as of a plain file.
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
    Upcalls {
        /// Its number.
        signal: i32,
    },
    /// The system's.
    #[error("the address could not be bound ({}): close some descriptors, or end some threads", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// The system's error number.
        errno: i32,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> Self {
        Self::System {
            errno: error.raw_os_error().unwrap_or(0),
        }
    }
}

impl Domain {
    /// Has an address signalled by a descriptor, a timer or a Unix signal, as if somebody
    /// called [`signal`](Self::signal) whenever something is new there. So one wait serves
    /// all: a [`Listener`](crate::Listener), or the wait set that it is in.
    ///
    /// # Errors
    ///
    /// [`SourceError`].
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
    pub fn bind_address(&self, address: usize, origin: Origin) -> Result<Source, SourceError> {
        let member = self.member();
        member.present()?;
        let offset = offset(member, address).map_err(SourceError::Address)?;
        let what = What::new(origin)?;
        let sources = Sources::of(member)?;
        let number = sources.shared.add(offset, what)?;
        Ok(Source {
            member: Arc::clone(member),
            sources,
            number,
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

impl Drop for Source {
    fn drop(&mut self) {
        // What a forked child has is a copy, of which our thread knows nothing.
        if self.member.present().is_ok() {
            self.sources.shared.remove(self.number);
        }
    }
}

/// The sources of a membership.
#[derive(Debug)]
pub(crate) struct Sources {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    watch: Watch,
    /// Ends the thread.
    over: EventFd,
    bound: Mutex<Bound>,
}

#[derive(Debug, Default)]
struct Bound {
    /// Numbers given out.
    last: u64,
    by_number: HashMap<u64, (u64, What)>,
}

/// The number of [`Shared::over`].
const OVER: u64 = 0;

/// What is waited for.
#[derive(Debug)]
enum What {
    Descriptor(OwnedFd),
    Timer(Timer),
    UnixSignal(UnixSignal),
}

impl What {
    fn new(origin: Origin) -> Result<Self, SourceError> {
        Ok(match origin {
            Origin::Descriptor(fd) => Self::Descriptor(fd),
            Origin::Timer { first, every } => Self::Timer(Timer::start(first, every)?),
            Origin::UnixSignal(signal) => Self::UnixSignal(UnixSignal::catch(signal).map_err(
                |error| match error.kind() {
                    io::ErrorKind::InvalidInput => SourceError::NotCaught { signal },
                    io::ErrorKind::ResourceBusy => SourceError::Upcalls { signal },
                    _ => error.into(),
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

impl Sources {
    /// Those of this member, and the thread that waits for them.
    fn of(member: &Arc<Member>) -> io::Result<Arc<Self>> {
        let mut known = member
            .sources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(sources) = known.upgrade() {
            return Ok(sources);
        }
        let shared = Arc::new(Shared {
            watch: Watch::new()?,
            over: EventFd::new()?,
            bound: Mutex::default(),
        });
        shared.watch.add(&shared.over, OVER)?;
        let (its_member, its_shared) = (Arc::downgrade(member), Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("portolan-source".to_owned())
            .spawn(move || serve(&its_member, &its_shared))?;
        let sources = Arc::new(Self {
            shared,
            thread: Some(thread),
        });
        *known = Arc::downgrade(&sources);
        Ok(sources)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its descriptors are let go of.
        if portolan_sys::fork::in_child() {
            return;
        }
        let _ = self.shared.over.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread does: signals the addresses of whatever is due, until it is over.
fn serve(member: &Weak<Member>, shared: &Shared) {
    while let Ok(numbers) = shared.watch.wait() {
        for number in numbers {
            if number == OVER {
                return;
            }
            if let (Some(offset), Some(member)) = (shared.due(number), member.upgrade()) {
                signal(&member, offset);
            }
        }
    }
}

impl Shared {
    fn add(&self, offset: u64, what: What) -> Result<u64, SourceError> {
        let mut bound = self.bound();
        bound.last += 1;
        let number = bound.last;
        // Before it is watched: what is new at once is found.
        let (_, what) = bound
            .by_number
            .entry(number)
            .insert_entry((offset, what))
            .into_mut();
        let added = self.watch.add(what.fd(), number);
        added.map_err(|error| {
            bound.by_number.remove(&number);
            match error.kind() {
                io::ErrorKind::PermissionDenied => SourceError::NotWaitable,
                _ => error.into(),
            }
        })?;
        Ok(number)
    }

    fn remove(&self, number: u64) {
        let gone = self.bound().by_number.remove(&number);
        if let Some((_, what)) = gone {
            // Explicitly: the caller may have other descriptors of the same file.
            let _ = self.watch.remove(what.fd());
        }
    }

    /// The offset of a source that is due.
    fn due(&self, number: u64) -> Option<u64> {
        let bound = self.bound();
        let (offset, what) = bound.by_number.get(&number)?;
        what.is_due().then_some(*offset)
    }

    fn bound(&self) -> std::sync::MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
