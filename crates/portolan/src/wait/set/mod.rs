//! A wait set lets one thread wait for any number of ports, answers to requests, room in ports,
//! readers of channels, listeners, subscribers of topics and notifications of importers. This text
//! says *port* for all of them.
//!
//! ```text
//!              wait: nothing there                  a sender raises its bit
//!   loose ---------------------------> armed ----------------------------> reported
//!     ^                                                                       |
//!     +------------------- disarmed and unlinked -----------------------------+
//! ```
//!
//! A port of a set is *armed* while it is idle: its senders find its sleep marks, as those
//! of any sleeping receiver, and its *link*, which says to raise a bit of the set instead
//! of waking the port's own receiver. A port that was reported is *loose*: it is used as
//! if it were in no set, until a wait finds it empty and arms it again.
//!
//! # Invariants
//!
//! - **W1** A port that is not armed is in `loose`, and every wait looks at all of those.
//!   So a port that was not drained is reported again.
//! - **W2** A port is linked before it is armed, and unlinked after it is disarmed. So a
//!   sender that finds sleep marks of the set finds the link, and one that finds those of
//!   the port's own receiver finds none.
//! - **W3** No thread sleeps, and no descriptor is armed, before all ports are armed and the
//!   set's bits were found empty after that was announced.
//! - **W4** The descriptor is readable, unless the last wait found nothing, and nothing
//!   has come since.
//! - **W5** A bit may be raised late, by a sender that found a link which is gone: for
//!   another member, another set, or another space's set. Bits are hints, and the port
//!   itself is looked at before it is reported.
//! - **W7** What is due at some time, or is told of by a word and not by a bit, is found through
//!   the set's alarms (`alarms`). A thread that sleeps while a port has a word sleeps on the bell,
//!   which then waits for the doorbell too.
//! - **W6** A subscriber waits in a set of its own. While the subscriber is armed in another
//!   set, so are all members of its own one, under the subscriber's link there; when it is
//!   loose none of them is linked there any more, and its own set finds them loose (`nested`).

mod alarms;
#[cfg(feature = "tokio")]
mod awaited;
mod error;
mod nested;
mod place;
mod raise;
mod ready;
mod wait;
mod waitable;

pub use error::WaitSetError;
pub(crate) use raise::raise_link;
pub use ready::{Ready, Token};
pub(crate) use waitable::Armable;
pub use waitable::Waitable;

#[cfg(feature = "tokio")]
use crate::Disowned;
use crate::Refused;
use crate::space::Domain;
use crate::space::Member;
use crate::wait::NoDescriptor;
use crate::wait::{Patience, Waiting};
use alarms::Alarms;
use place::Place;
use portolan_abi::limits::{MAX_PORTS, MAX_WAIT_SETS};
use portolan_shm::atomic::Ordering;
use portolan_shm::wait_set::WaitSetEntry;
use portolan_sys::bell::FutexFd;
use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Waits for any number of things ([`Waitable`]): ports, readers of channels, subscribers, listeners
/// and notifications of exports, at a cost that does not grow with their number.
///
/// The set owns its ports: [`add`](Self::add) takes one and gives a [`Token`] for it,
/// [`get_mut`](Self::get_mut) lends it out, [`remove`](Self::remove) gives it back.
/// Dropping the set closes them. What is said of ports here holds for the others too.
///
/// [`wait`](Self::wait) names the ports where something is: a message, a request, a
/// notice, or that the port was closed. A port that still has something is named again by
/// the next wait.
///
/// # With epoll or mio
///
/// The set is a descriptor ([`AsFd`]) that is readable while a wait may find something.
/// Whenever it is readable, call `wait(Deadline::NOW)` and serve what it names. Until such
/// a wait has found nothing the descriptor stays readable, so a program that is told of changes
/// only (`EPOLLET`, mio) must go on until then. `epoll_wait` may return `EINTR` when it
/// becomes readable; call it again. For tokio there is `wait_async`, with the feature
/// `tokio`.
///
/// # Examples
///
/// ```
/// use portolan::{Access, Deadline, Domain, Message, PortOptions, WaitSet, WhenFull};
/// let domain = Domain::private()?;
/// let mut set = WaitSet::new(&domain)?;
/// let one = domain.bind(PortOptions::unnamed())?;
/// let other = domain.bind(PortOptions::unnamed())?;
/// let right = other.make_send();
/// let _idle = set.add(one)?;
/// let other = set.add(other)?;
///
/// right.send(Message::new(b"hello")?, WhenFull::Fail)?;
/// let ready: Vec<_> = set.wait(Deadline::NEVER)?.collect();
/// assert_eq!(ready, [other]);
/// let port = set.get_mut(other).ok_or("not in the set")?;
/// assert_eq!(port.receive(Access::Later, Deadline::NOW)?.header(), b"hello");
/// assert!(set.wait(Deadline::NOW)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WaitSet {
    member: Arc<Member>,
    /// Which of the domain's wait sets it is.
    index: u32,
    places: Vec<Place>,
    /// Places without a port.
    vacant: Vec<u32>,
    /// Places whose port is not armed (W1).
    loose: Vec<u32>,
    patience: Patience,
    waiting: Waiting,
    alarms: Alarms,
    /// The value of the doorbell, and the time, for which the bell is armed; `None` while it is
    /// readable (W4).
    quiet: Option<(u32, Option<Instant>)>,
    /// The program has asked for the descriptor.
    watched: AtomicBool,
    /// What an async wait waits with.
    #[cfg(feature = "tokio")]
    async_bell: Option<crate::wait::Bell>,
    /// The same, of a set with words.
    #[cfg(feature = "tokio")]
    async_ring: Option<awaited::AsyncRing>,
}

impl WaitSet {
    /// A wait set without ports.
    ///
    /// # Errors
    ///
    /// [`WaitSetError`].
    pub fn new(domain: &Domain) -> Result<Self, WaitSetError> {
        let member = domain.member();
        member.present()?;
        let mut bell = FutexFd::new().map_err(NoDescriptor::from)?;
        let (index, entry) = take_entry(member)?;
        entry.reset();
        // For another value than there is: readable from the first (W4).
        let other = entry.doorbell.load(Ordering::Relaxed).wrapping_sub(1);
        let armed = bell.arm(&entry.doorbell, other);
        let set = Self {
            member: Arc::clone(member),
            index,
            places: Vec::new(),
            vacant: Vec::new(),
            loose: Vec::new(),
            patience: Patience::default(),
            waiting: Waiting::default(),
            alarms: Alarms::new(bell),
            quiet: None,
            watched: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            async_bell: None,
            #[cfg(feature = "tokio")]
            async_ring: None,
        };
        armed.map_err(NoDescriptor::from)?;
        Ok(set)
    }

    /// Adds something. If something is there already, the next wait names it.
    ///
    /// # Errors
    ///
    /// It comes back if it belongs to another domain, or cannot be waited for.
    pub fn add<T: Waitable>(&mut self, it: T) -> Result<Token<T>, Refused<T, WaitSetError>> {
        let item = Box::new(it);
        if let Some(why) = self.why_no_place(&*item) {
            return Err(Refused { why, item });
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            // No more than `MAX_PORTS`.
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        if item.word().is_some() {
            // Its bell is armed and drained in waits, so the descriptor is not left as it was made.
            self.watched.store(true, Ordering::Relaxed);
        }
        let place = &mut self.places[index as usize];
        place.has_alarms = item.has_alarms();
        place.waitable = Some(item);
        let token = Token::new(index, place.generation);
        self.loose.push(index);
        self.stir();
        Ok(token)
    }

    fn why_no_place(&self, it: &dyn Waitable) -> Option<WaitSetError> {
        if it.membership() != self.member.number {
            return Some(WaitSetError::OtherDomain { what: it.kind() });
        }
        let full = self.vacant.is_empty() && self.places.len() >= MAX_PORTS;
        it.why_not()
            .or_else(|| full.then_some(WaitSetError::Full { what: it.kind() }))
    }

    /// Gives it back; `None` if it is not in the set.
    pub fn remove<T: Waitable>(&mut self, token: Token<T>) -> Option<T> {
        self.get(token)?;
        let place = &mut self.places[token.index as usize];
        // What is armed is not among the loose, which may be very many.
        if !place.loosen() {
            self.loose.retain(|i| *i != token.index);
        }
        let place = &mut self.places[token.index as usize];
        if self.alarms.forget(token.index, place) {
            self.ring();
        }
        let place = &mut self.places[token.index as usize];
        let waitable: Box<dyn Any> = place.waitable.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(token.index);
        waitable.downcast().ok().map(|it| *it)
    }

    /// What is in the set, for what needs no receiving; `None` if it is not in the set.
    pub fn get<T: Waitable>(&self, token: Token<T>) -> Option<&T> {
        let place = self.places.get(token.index as usize)?;
        let waitable = place.waitable.as_deref()?;
        let waitable = (place.generation == token.generation).then_some(waitable)?;
        (waitable as &dyn Any).downcast_ref()
    }

    /// What is in the set, to receive from it, read it or handle its signals; `None` if it is
    /// not in the set.
    ///
    /// Any call is fine, also one that waits.
    #[inline]
    pub fn get_mut<T: Waitable>(&mut self, token: Token<T>) -> Option<&mut T> {
        let place = self.place(token.any())?;
        if place.armed {
            self.loosen(token.any());
        }
        let place = self.places.get_mut(token.index as usize)?;
        (place.waitable.as_deref_mut()? as &mut dyn Any).downcast_mut()
    }

    /// Disarms what is in the set, because it is about to be used.
    #[cold]
    #[inline(never)]
    fn loosen(&mut self, token: Token) {
        if self.place(token).is_some_and(Place::loosen) {
            self.loose.push(token.index);
            self.stir();
        }
    }

    /// How many ports are in the set.
    ///
    /// ```
    /// # use portolan::{Domain, PortOptions, WaitSet};
    /// # let domain = Domain::private()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// assert!(set.is_empty());
    /// let token = set.add(domain.bind(PortOptions::unnamed())?)?;
    /// assert_eq!(set.len(), 1);
    /// assert!(set.remove(token).is_some());
    /// assert!(set.remove(token).is_none(), "it is not in the set any more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// Whether no port is in the set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Chooses how the set waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    #[inline]
    fn place(&mut self, token: Token) -> Option<&mut Place> {
        let place = self.places.get_mut(token.index as usize)?;
        (place.generation == token.generation && place.waitable.is_some()).then_some(place)
    }

    /// Refuses a forked child.
    #[cfg(feature = "tokio")]
    pub(crate) fn present(&self) -> Result<(), Disowned> {
        self.member.present()
    }

    /// The bell of async waits, and the word that changes when something comes.
    #[cfg(feature = "tokio")]
    pub(crate) fn bell_and_word(
        &mut self,
    ) -> (
        &mut Option<crate::wait::Bell>,
        &std::sync::atomic::AtomicU32,
    ) {
        (
            &mut self.async_bell,
            &self.member.tables().wait_sets[self.index as usize].doorbell,
        )
    }

    fn entry(&self) -> &WaitSetEntry {
        &self.member.tables().wait_sets[self.index as usize]
    }
}

/// Takes a wait set of the domain that no space uses.
fn take_entry(member: &Member) -> Result<(u32, &WaitSetEntry), WaitSetError> {
    let ours = 1 << 32 | u64::from(member.space);
    // From the first on: entries that were never touched have no memory yet.
    for (index, entry) in (0..).zip(member.tables().wait_sets) {
        // Acquire: what the last owner did comes before.
        if entry
            .owner
            .compare_exchange(0, ours, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Ok((index, entry));
        }
    }
    Err(WaitSetError::NoRoom {
        limit: MAX_WAIT_SETS,
    })
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.store(true, Ordering::Relaxed);
        self.alarms.bell.as_fd()
    }
}

impl AsRawFd for WaitSet {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        if self.member.present().is_err() {
            return;
        }
        for place in &mut self.places {
            place.loosen();
        }
        self.places.clear();
        self.entry().awake();
        // Release: nothing of ours comes after it.
        self.entry().owner.store(0, Ordering::Release);
    }
}

impl std::fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ports, loose) = (self.len(), self.loose.len());
        f.debug_struct("WaitSet")
            .field("ports", &ports)
            .field("loose", &loose)
            .finish()
    }
}
