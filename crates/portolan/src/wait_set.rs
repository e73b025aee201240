//! Wait sets: one place to wait for any number of ports.
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
//! of ringing the port's own doorbell. A port that was reported is *loose*: it is used as
//! if it were in no set, until a wait finds it empty and arms it again.
//!
//! # Invariants
//!
//! - **W1** A port that is not armed is in `loose`, and every wait looks at all of those.
//!   So a port that was not drained is reported again.
//! - **W2** A port is linked before it is armed, and unlinked after it is disarmed. So a
//!   sender that finds sleep marks of the set finds the link, and one that finds those of
//!   the port's own receiver finds none.
//! - **W3** Nobody sleeps, and no descriptor is armed, before all ports are armed and the
//!   set's bits were found empty after that was announced.
//! - **W4** The descriptor is readable, unless the last wait found nothing, and nothing
//!   has come since.
//! - **W5** A bit may be raised late, by a sender that found a link which is gone: for
//!   another member, another set, or another space's set. Bits are hints, and the port
//!   itself is looked at before it is reported.

use crate::channel::Reader;
use crate::member::Member;
use crate::tally;
use crate::trace::About;
use crate::wait::{Patience, Waiting, pause};
use crate::{Deadline, Disowned, Domain, EventKind, NoDescriptor, ReceiveRight};
use portolan_abi::limits::{MAX_PORTS, MAX_WAIT_SETS};
use portolan_abi::thread::{At, Wait};
use portolan_shm::atomic::Ordering;
use portolan_shm::mark;
use portolan_shm::wait_set::WaitSetEntry;
use portolan_sys::bell::FutexFd;
use portolan_sys::futex;
use smallvec::SmallVec;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Idle ports that stay loose for a while, because they were busy lately: a wait that
/// spins looks at them, and their senders need not raise anything.
const WARM: usize = 4;

/// Waits for any number of ports at a cost that does not grow with their number.
///
/// The set owns its ports: [`add`](Self::add) takes one and gives a [`Token`] for it,
/// [`port_mut`](Self::port_mut) lends it out, [`remove`](Self::remove) gives it back.
/// Dropping the set closes them.
///
/// [`wait`](Self::wait) names the ports where something is: a message, a request, a
/// notice, or that the port was closed. A port that still has something is named again by
/// the next wait.
///
/// # With epoll or mio
///
/// The set is a descriptor ([`AsFd`]) that is readable while a wait may find something.
/// Whenever it is readable, call `wait(Deadline::NOW)` and serve what it names. Until such
/// a wait has found nothing the descriptor stays readable, so whoever is told of changes
/// only (`EPOLLET`, mio) goes on until then. `epoll_wait` may return `EINTR` when it
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
/// let port = set.port_mut(other).ok_or("not in the set")?;
/// assert_eq!(port.try_receive(Access::Later)?.header(), b"hello");
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
    bell: FutexFd,
    /// The value of the doorbell for which the bell is armed; `None` while it is readable (W4).
    quiet: Option<u32>,
    /// Somebody has asked for the descriptor.
    watched: AtomicBool,
    /// What an async wait waits with.
    #[cfg(feature = "tokio")]
    async_bell: Option<crate::tokio::Bell>,
}

/// Room for one port, or one reader of a channel.
#[derive(Default)]
struct Place {
    /// Goes up when a port leaves, so that its token names nothing.
    generation: u32,
    guest: Option<Guest>,
    armed: bool,
}

/// What is waited for.
enum Guest {
    Port(ReceiveRight),
    Reader(Reader),
}

impl Guest {
    fn may_have(&mut self) -> bool {
        match self {
            Self::Port(port) => port.may_have(),
            Self::Reader(reader) => reader.may_have(),
        }
    }

    /// Arms it, also if it is armed; `false` if something is there.
    fn arm(&mut self, link: u64) -> bool {
        match self {
            Self::Port(port) => {
                port.disarm();
                port.settle();
                // W2. SeqCst: pairs with the look at the link in `wake`.
                let sleep = &port.at().queue().port.sleep;
                sleep.wait_set.store(link, Ordering::SeqCst);
                port.arm()
            }
            Self::Reader(reader) => reader.arm_for(link),
        }
    }

    fn disarm(&mut self) {
        match self {
            Self::Port(port) => {
                port.disarm();
                // W2. SeqCst: as above, and before the port's receiver reads its doorbell.
                let sleep = &port.at().queue().port.sleep;
                sleep.wait_set.store(0, Ordering::SeqCst);
            }
            Self::Reader(reader) => {
                reader.arm_for(0);
            }
        }
    }

    fn member(&self) -> &Arc<Member> {
        match self {
            Self::Port(port) => &port.at().member,
            Self::Reader(reader) => reader.member(),
        }
    }
}

/// Names one port of one [`WaitSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    index: u32,
    generation: u32,
}

/// The ports where something is, each once.
///
/// ```
/// # let domain = portolan::Domain::private()?;
/// # let mut set = portolan::WaitSet::new(&domain)?;
/// let ready = set.wait(portolan::Deadline::NOW)?;
/// assert_eq!(ready.len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "the ports that it names wait to be served"]
pub struct Ready {
    /// The next one is the last.
    tokens: SmallVec<[Token; 8]>,
}

/// Why there is no wait set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitSetError {
    /// The state's: all of the domain's wait sets are in use.
    #[error("the domain's {limit} wait sets are all in use: put more ports into each")]
    NoRoom {
        /// How many there are.
        limit: usize,
    },
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// The caller's: the port belongs to another domain than the set. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the port belongs to another domain than the wait set: make a wait set there")]
pub struct AddError {
    /// The port.
    pub port: Box<ReceiveRight>,
}

/// Why a reader was not added. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the reader was not added: {why}")]
pub struct AddReaderError {
    /// The reader.
    pub reader: Box<Reader>,
    /// Why not.
    #[source]
    pub why: WhyNoReader,
}

/// See [`AddReaderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyNoReader {
    /// The caller's.
    #[error("it belongs to another domain than the wait set: make a wait set there")]
    OtherDomain,
    /// The state's: when it was bound, all entries for readers were taken.
    #[error("its channel has too few entries: make it for more readers")]
    NoEntry,
    /// The caller's.
    #[error("its channel does not signal, so nobody would raise it: make one that does, or poll")]
    NotSignalled,
    /// The state's.
    #[error("the wait set has no place left: make another one")]
    Full,
}

/// Why a wait failed. Nothing is lost: the next one names what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
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
            bell,
            quiet: None,
            watched: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            async_bell: None,
        };
        armed.map_err(NoDescriptor::from)?;
        Ok(set)
    }

    /// Adds a port. If something is there already, the next wait names it.
    ///
    /// # Errors
    ///
    /// The port comes back if it belongs to another domain.
    pub fn add(&mut self, port: ReceiveRight) -> Result<Token, AddError> {
        if !Arc::ptr_eq(&port.at().member, &self.member) {
            let port = Box::new(port);
            return Err(AddError { port });
        }
        Ok(self.seat(Guest::Port(port)))
    }

    /// Adds a reader of a channel. If something is there already, the next wait names it: a
    /// message, a piece of one, units that were missed, or that the writer has gone.
    ///
    /// Its channel must signal: with [`Signalling::Never`](crate::channel::Signalling::Never)
    /// nobody would raise it.
    ///
    /// # Errors
    ///
    /// The reader comes back.
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, ReaderOptions};
    /// use portolan::{Deadline, Domain, WaitSet};
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
    /// let mut writer = channel.bind_writer()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add_reader(channel.bind_reader(ReaderOptions::default())?)?;
    ///
    /// writer.write(b"news", Deadline::NOW)?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token));
    /// let reader = set.reader_mut(token).ok_or("not in the set")?;
    /// assert_eq!(*reader.receive(Deadline::NOW)?, *b"news");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_reader(&mut self, reader: Reader) -> Result<Token, AddReaderError> {
        let why = if !Arc::ptr_eq(reader.member(), &self.member) {
            WhyNoReader::OtherDomain
        } else if !reader.can_be_linked() {
            WhyNoReader::NoEntry
        } else if !reader.is_signalled() {
            WhyNoReader::NotSignalled
        } else if self.vacant.is_empty() && self.places.len() >= MAX_PORTS {
            WhyNoReader::Full
        } else {
            return Ok(self.seat(Guest::Reader(reader)));
        };
        let reader = Box::new(reader);
        Err(AddReaderError { reader, why })
    }

    fn seat(&mut self, guest: Guest) -> Token {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            // There are no more ports than that, and readers are counted.
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[index as usize];
        place.guest = Some(guest);
        let token = Token {
            index,
            generation: place.generation,
        };
        self.loose.push(index);
        self.stir();
        token
    }

    /// Gives a port back; `None` if it is not in the set.
    pub fn remove(&mut self, token: Token) -> Option<ReceiveRight> {
        self.port(token)?;
        match self.unseat(token) {
            Some(Guest::Port(port)) => Some(port),
            _ => None,
        }
    }

    /// Gives a reader back; `None` if it is not in the set.
    pub fn remove_reader(&mut self, token: Token) -> Option<Reader> {
        self.reader(token)?;
        match self.unseat(token) {
            Some(Guest::Reader(reader)) => Some(reader),
            _ => None,
        }
    }

    fn unseat(&mut self, token: Token) -> Option<Guest> {
        let place = self.place(token)?;
        place.loosen();
        let guest = place.guest.take();
        place.generation = place.generation.wrapping_add(1);
        self.loose.retain(|i| *i != token.index);
        self.vacant.push(token.index);
        guest
    }

    /// A port of the set, for what needs no receiving; `None` if it is not in the set.
    pub fn port(&self, token: Token) -> Option<&ReceiveRight> {
        match self.guest(token)? {
            Guest::Port(port) => Some(port),
            Guest::Reader(_) => None,
        }
    }

    /// A reader of the set, for what needs no reading; `None` if it is not in the set.
    pub fn reader(&self, token: Token) -> Option<&Reader> {
        match self.guest(token)? {
            Guest::Reader(reader) => Some(reader),
            Guest::Port(_) => None,
        }
    }

    fn guest(&self, token: Token) -> Option<&Guest> {
        let place = self.places.get(token.index as usize)?;
        place
            .guest
            .as_ref()
            .filter(|_| place.generation == token.generation)
    }

    /// A port of the set, to receive from it; `None` if it is not in the set.
    ///
    /// Any receiving call is fine, also one that waits.
    pub fn port_mut(&mut self, token: Token) -> Option<&mut ReceiveRight> {
        match self.guest_mut(token)? {
            Guest::Port(port) => Some(port),
            Guest::Reader(_) => None,
        }
    }

    /// A reader of the set, to read; `None` if it is not in the set.
    ///
    /// Any reading call is fine, also one that waits.
    pub fn reader_mut(&mut self, token: Token) -> Option<&mut Reader> {
        match self.guest_mut(token)? {
            Guest::Reader(reader) => Some(reader),
            Guest::Port(_) => None,
        }
    }

    fn guest_mut(&mut self, token: Token) -> Option<&mut Guest> {
        if self.place(token)?.loosen() {
            self.loose.push(token.index);
            self.stir();
        }
        self.place(token)?.guest.as_mut()
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

    /// Waits until something is at one of the ports; which of them, or none if the
    /// deadline came first.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Ready, WaitError> {
        self.member.present()?;
        let deadline = deadline.into();
        let mut ready = Ready::default();
        self.entry().awake();
        self.look(&mut ready);
        if ready.is_empty() {
            if !deadline.is_now() {
                tally::waits(&self.member, Wait::Spinning(self.waiting_at()));
                self.spin(&mut ready, deadline);
                tally::waits(&self.member, Wait::Nothing);
            } else if !self.is_watched() {
                return Ok(ready);
            }
        }
        while ready.is_empty() {
            match self.round() {
                Ok(found) => ready = found,
                Err(bell) if deadline.has_passed() => {
                    self.hush(bell)?;
                    return Ok(ready);
                }
                Err(bell) => {
                    tally::waits(&self.member, Wait::Sleeping(self.waiting_at()));
                    mark!("sleep.before_futex");
                    let _ = self.member.during(EventKind::Sleep, About::NOTHING, || {
                        futex::wait(&self.entry().doorbell, bell, deadline.instant())
                    });
                    tally::waits(&self.member, Wait::Nothing);
                    self.entry().awake();
                }
            }
        }
        Ok(self.named(ready))
    }

    /// Where its waiters wait, for people.
    fn waiting_at(&self) -> At {
        At::Set(u16::try_from(self.index).unwrap_or(u16::MAX))
    }

    /// Arms everything: what is ready, or that the set sleeps (W3), and the value of its
    /// doorbell until something comes.
    pub(crate) fn round(&mut self) -> Result<Ready, u32> {
        let mut ready = Ready::default();
        self.entry().awake();
        loop {
            self.arm(&mut ready);
            self.gather(&mut ready);
            if !ready.is_empty() {
                return Ok(ready);
            }
            if let Some(bell) = self.entry().sleep() {
                return Err(bell);
            }
        }
    }

    /// About to be given out.
    pub(crate) fn named(&mut self, mut ready: Ready) -> Ready {
        self.stir();
        ready.tokens.reverse();
        ready
    }

    /// Looks at the loose ports, arms all but a few of those where nothing is, and takes
    /// what was raised.
    fn look(&mut self, ready: &mut Ready) {
        let Self {
            index: set,
            places,
            loose,
            ..
        } = self;
        let mut warm = 0;
        loose.retain(|index| {
            let place = &mut places[*index as usize];
            if place.may_have() {
                ready.push(*index, place);
                return true;
            }
            warm += 1;
            if warm <= WARM || place.arm(link(*set, *index)) {
                return warm <= WARM;
            }
            ready.push(*index, place);
            true
        });
        self.gather(ready);
    }

    /// Arms the loose ports, or finds that something is there.
    fn arm(&mut self, ready: &mut Ready) {
        let Self {
            index: set,
            places,
            loose,
            ..
        } = self;
        loose.retain(|index| {
            let place = &mut places[*index as usize];
            let armed = place.arm(link(*set, *index));
            if !armed {
                ready.push(*index, place);
            }
            !armed
        });
    }

    /// Takes what was raised, and looks at each of those ports.
    fn gather(&mut self, ready: &mut Ready) {
        let Self {
            member,
            index: set,
            places,
            loose,
            ..
        } = self;
        let entry = &member.tables().wait_sets[*set as usize];
        if !entry.is_raised() {
            return;
        }
        entry.drain(|member| {
            let Ok(index) = u32::try_from(member) else {
                return;
            };
            // W5: nobody's; or loose, and looked at as such.
            let Some(place) = places.get_mut(member).filter(|p| p.armed) else {
                return;
            };
            if !place.arm(link(*set, index)) {
                loose.push(index);
                ready.push(index, place);
            }
        });
    }

    /// Looks again and again, for as long as that has paid lately.
    fn spin(&mut self, ready: &mut Ready, deadline: Deadline) {
        let polls = self.waiting == Waiting::Poll;
        let looks = if self.waiting == Waiting::Adaptive {
            self.patience.looks()
        } else {
            0
        };
        let mut look = 0;
        while polls || look < looks {
            let Self { places, loose, .. } = self;
            let busy = loose.iter().any(|i| places[*i as usize].may_have());
            if busy || self.entry().is_raised() {
                self.look(ready);
            }
            if !ready.is_empty() {
                self.patience.paid(look);
                return;
            }
            if look % 256 == 255 && deadline.has_passed() {
                return;
            }
            pause(look);
            look = look.wrapping_add(1);
        }
        if looks > 0 {
            self.patience.in_vain();
        }
    }

    /// Nothing is there: the descriptor is not readable until something comes (W4).
    fn hush(&mut self, bell: u32) -> Result<(), NoDescriptor> {
        if !self.is_watched() {
            self.entry().awake();
            return Ok(());
        }
        // It may have rung for no reason as well.
        let rung = self.bell.drain()?;
        if rung || self.quiet != Some(bell) {
            self.quiet = None;
            let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
            self.bell.arm(doorbell, bell)?;
            self.quiet = Some(bell);
        }
        // And `asleep` stays set: senders, and the host after a death, ring the doorbell.
        Ok(())
    }

    /// Something may be there: the descriptor becomes readable (W4).
    fn stir(&mut self) {
        if self.quiet.take().is_some() && self.member.present().is_ok() {
            let doorbell = &self.entry().doorbell;
            // A change, for a helper thread that has not fallen asleep on it yet.
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, u32::MAX);
        }
    }

    fn is_watched(&self) -> bool {
        // Relaxed: a descriptor that was asked for only now is readable still.
        self.watched.load(Ordering::Relaxed)
    }

    fn place(&mut self, token: Token) -> Option<&mut Place> {
        let place = self.places.get_mut(token.index as usize)?;
        (place.generation == token.generation && place.guest.is_some()).then_some(place)
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
        &mut Option<crate::tokio::Bell>,
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

impl Place {
    fn may_have(&mut self) -> bool {
        self.guest.as_mut().is_some_and(Guest::may_have)
    }

    /// Arms the guest, also if it is armed; `false` if something is there, and it is loose.
    fn arm(&mut self, link: u64) -> bool {
        let Some(guest) = &mut self.guest else {
            return true;
        };
        self.armed = true;
        if guest.arm(link) {
            return true;
        }
        self.loosen();
        false
    }

    /// Disarms the guest; `false` if it was not armed.
    fn loosen(&mut self) -> bool {
        let was = std::mem::take(&mut self.armed);
        if let Some(guest) = self
            .guest
            .as_mut()
            .filter(|g| was && g.member().present().is_ok())
        {
            guest.disarm();
        }
        was
    }
}

/// What a port's entry says about its wait set.
fn link(set: u32, place: u32) -> u64 {
    u64::from(set + 1) | u64::from(place) << 32
}

/// Takes a wait set of the domain that nobody uses.
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

impl Ready {
    fn push(&mut self, index: u32, place: &Place) {
        let generation = place.generation;
        self.tokens.push(Token { index, generation });
    }

    /// How many ports are ready.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl Iterator for Ready {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.tokens.pop()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.tokens.len(), Some(self.tokens.len()))
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.store(true, Ordering::Relaxed);
        self.bell.as_fd()
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
