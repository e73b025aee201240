//! Large payloads: extents that go beside a channel's messages, by move or shared.
//!
//! ```text
//! writer:  room in the ring --> parcel to each reader's inbox --> note committed
//!                                        (a port)                 (commit point)
//! ```
//!
//! A parcel does not lie in the ring. It goes to a port of the reader's, and then the
//! note that announces it is committed. So at every instant a parcel is somebody's by
//! the rules that hold for all extents and rights, whoever dies: what was sent and never
//! announced is dropped by its reader, and a dead reader's port is drained by the host.
//!
//! Readers make themselves known at the writer's *desk*, a port with a name made of the
//! channel's. What a parcel costs is a message by port for each reader, whatever its size.
//!
//! # Invariants
//!
//! - **P1** A parcel and its note carry one [`Stamp`], which no other has: the number of
//!   writers that had left before, and a number of this writer's.
//! - **P2** Who is known to the writer is *welcomed* before it is sent anything. What was
//!   announced before the first welcome is not missed; it was before the reader's time.
//! - **P3** A desk closes before its writer's place is free, and an inbox before its
//!   reader's entry. So who is told that the writer has gone looks for a new desk, and does
//!   not find the old one; and an entry that is known is this reader's.
//! - **P4** Nothing with a parcel is announced while a reader that the writer waits for is
//!   not known to it, by its entry.

use super::{
    BindChannelError, Channel, Missed, ReadError, Reader, ReaderOptions, WriteError, Writer,
};
use crate::member::Member;
use crate::port::{BindError, ConnectError, ReceiveRight, Right, SendRight, Unsent};
use crate::{Access, Deadline, Extent, Message, PortOptions, SharedExtent, WhenFull};
use portolan_shm::mark;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Readers that can stand at a desk at a time.
const DESK: usize = 256;

/// Parcels that an inbox holds at most; who lags further misses some.
const LARGEST_INBOX: usize = 4096;

/// How long a writer waits at its desk before it looks whether a reader has died.
const SLICE: Duration = Duration::from_millis(20);

/// A large payload.
#[derive(Debug)]
pub enum Parcel {
    /// An extent that changes its owner: for a reliable channel with one reader.
    Moved(Extent),
    /// Memory that all readers have at once, to read: freed when the last of them has let
    /// go, or died. [`crate::Domain::share_extent`] makes it of an extent.
    Shared(SharedExtent),
}

/// Writes notes with parcels.
///
/// ```
/// use portolan::channel::{ChannelOptions, Parcel, ReaderOptions};
/// use portolan::{Deadline, Domain};
///
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable())?;
/// let mut writer = channel.bind_parcel_writer()?;
/// let mut reader = channel.bind_parcel_reader(ReaderOptions::default(), Deadline::NOW)?;
///
/// let mut picture = domain.allocate(8 << 20)?;
/// picture[5] = 7;
/// writer.send(b"a picture", Some(Parcel::Moved(picture)), Deadline::NOW)?;
/// let delivery = reader.receive(Deadline::NEVER)?;
/// assert_eq!(delivery.note, b"a picture");
/// let Some(Parcel::Moved(picture)) = delivery.parcel else { panic!() };
/// assert_eq!(picture[5], 7);
///
/// // Several may have it at once.
/// let shared = domain.share_extent(picture)?;
/// writer.send(b"for all", Some(Parcel::Shared(shared)), Deadline::NOW)?;
/// let Some(Parcel::Shared(shared)) = reader.receive(Deadline::NEVER)?.parcel else { panic!() };
/// assert_eq!(shared[5], 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ParcelWriter {
    // Declared before the writer: it closes first (P3).
    /// Where readers make themselves known.
    desk: ReceiveRight,
    writer: Writer,
    readers: Vec<Known>,
    /// The stamp of the last note.
    stamp: Stamp,
}

/// A reader that the writer knows.
struct Known {
    inbox: SendRight,
    /// Its entry in the channel, if the writer waits for it.
    waits_at: Option<u8>,
}

/// Reads notes with parcels. See [`ParcelWriter`].
pub struct ParcelReader {
    // Declared before the reader: it closes first (P3).
    inbox: ReceiveRight,
    reader: Reader,
    /// The desk's name.
    desk: String,
    /// The writer that there is does not know of us.
    orphaned: bool,
    /// What comes after this one comes to us too: the first welcome.
    welcome: Option<Stamp>,
    /// Came early.
    next: Option<(Stamp, Message)>,
}

/// A note, and its parcel if it has one.
#[derive(Debug)]
#[must_use = "a dropped delivery frees its parcel"]
pub struct Delivery {
    /// What the writer wrote.
    pub note: Vec<u8>,
    /// What came with it.
    pub parcel: Option<Parcel>,
    /// The position of the note.
    pub position: u64,
}

/// Why nobody was bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParcelBindError {
    /// See [`BindChannelError`].
    #[error(transparent)]
    Channel(#[from] BindChannelError),
    /// No port.
    #[error(transparent)]
    Port(#[from] BindError),
    /// Nobody sends parcels on this channel.
    #[error("nobody sends parcels on this channel: {0}")]
    NoWriter(#[from] ConnectError),
}

/// Why a parcel was not sent; it is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ParcelError {
    /// Why.
    #[source]
    pub reason: NoParcel,
    /// The parcel.
    pub parcel: Option<Box<Parcel>>,
}

impl ParcelError {
    fn new(reason: impl Into<NoParcel>, parcel: Option<Parcel>) -> Self {
        Self {
            reason: reason.into(),
            parcel: parcel.map(Box::new),
        }
    }
}

/// See [`ParcelError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoParcel {
    /// The caller's: what is moved has one taker.
    #[error("{readers} readers cannot have one extent: share it")]
    NotOneReader {
        /// How many there are.
        readers: usize,
    },
    /// The caller's: a message-consistent channel may lose what is moved.
    #[error("the channel is not reliable: share the extent, or make a reliable one")]
    NotReliable,
    /// The readers': some are waited for, and have not made themselves known to this
    /// writer. Those of the last writer do so with their next call.
    #[error(
        "{readers} readers of the channel are not known to its writer: wait longer, and bind all by `bind_parcel_reader`"
    )]
    Unknown {
        /// How many.
        readers: usize,
    },
    /// See [`WriteError`].
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A reader's inbox did not take it.
    #[error(transparent)]
    Unsent(#[from] Unsent),
}

impl Channel {
    /// Makes this space the one that writes, with parcels. Its readers are then all bound
    /// by [`Self::bind_parcel_reader`].
    ///
    /// # Errors
    ///
    /// [`ParcelBindError`], also if many write to the channel.
    pub fn bind_parcel_writer(&self) -> Result<ParcelWriter, ParcelBindError> {
        if self.has_many_writers() {
            let wrong = ("of many writers", "one of one writer for parcels");
            return Err(BindChannelError::WrongKind(wrong.0, wrong.1).into());
        }
        let writer = self.bind_writer()?;
        let desk = PortOptions::named(&desk_name(self)).queue(DESK);
        let desk = crate::port::bind_port(self.member(), &desk)?;
        let epoch = writer.writers_before();
        Ok(ParcelWriter {
            desk,
            writer,
            readers: Vec::new(),
            stamp: Stamp { epoch, number: 0 },
        })
    }

    /// A reader that gets parcels, of the writer that there is before the deadline: those
    /// that are sent once that writer has learnt of it, which is when it next sends one.
    ///
    /// # Errors
    ///
    /// [`ParcelBindError`].
    pub fn bind_parcel_reader(
        &self,
        options: ReaderOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<ParcelReader, ParcelBindError> {
        let deadline = deadline.into();
        let member = self.member();
        let units = usize::try_from(self.units()).unwrap_or(usize::MAX);
        // As many as there can be announced and not read, a welcome, and one unannounced.
        let size = units.saturating_add(2).min(LARGEST_INBOX);
        let inbox = crate::port::bind_port(member, &PortOptions::unnamed().queue(size))?;
        let desk_name = desk_name(self);
        let desk = crate::port::connect_port(member, &desk_name, deadline)?;
        let mut reader = self.bind_reader(options)?;
        reader.tell_every_change();
        // If it closes later, we are told that its writer has gone (P3).
        let orphaned = introduce(&inbox, &reader, &desk, deadline).is_err();
        Ok(ParcelReader {
            inbox,
            reader,
            desk: desk_name,
            orphaned,
            welcome: None,
            next: None,
        })
    }

    fn member(&self) -> &Arc<Member> {
        &self.segment().right().to.member
    }
}

impl ParcelWriter {
    /// Writes a note, with a parcel or without; its position. Waits for room, and for
    /// readers of the last writer, until the deadline.
    ///
    /// # Errors
    ///
    /// [`ParcelError`]; nobody was told, and the parcel is the caller's again.
    pub fn send(
        &mut self,
        note: &[u8],
        parcel: Option<Parcel>,
        deadline: impl Into<Deadline>,
    ) -> Result<u64, ParcelError> {
        let deadline = deadline.into();
        if let Some(what) = &parcel
            && let Err(reason) = self.meet(what, deadline)
        {
            return Err(ParcelError::new(reason, parcel));
        }
        // Room first: what is refused was sent to nobody.
        let claim = match self.writer.claim(Stamp::BYTES + note.len(), deadline) {
            Ok(claim) => claim,
            Err(error) => return Err(ParcelError::new(error, parcel)),
        };
        self.stamp.number += 1;
        let stamp = self.stamp.pack(parcel.is_some());
        claim.fill(0, &stamp);
        claim.fill(Stamp::BYTES, note);
        match parcel {
            None => {}
            Some(Parcel::Moved(extent)) => move_to(&self.readers, &stamp, extent, deadline)?,
            Some(Parcel::Shared(shared)) => share_with(&self.readers, &stamp, shared, deadline)?,
        }
        mark!("channel.parcel_sent");
        Ok(claim.commit())
    }

    /// How many get parcels.
    pub fn readers(&mut self) -> usize {
        self.enrol();
        self.readers.len()
    }

    /// Sees to it that whoever must get this parcel is known (P4).
    fn meet(&mut self, parcel: &Parcel, deadline: Deadline) -> Result<(), NoParcel> {
        loop {
            self.enrol();
            let known = |entry| self.readers.iter().any(|r| r.waits_at == Some(entry));
            let readers = self.writer.waited_for().filter(|e| !known(*e)).count();
            if readers == 0 {
                break;
            }
            if deadline.has_passed() {
                return Err(NoParcel::Unknown { readers });
            }
            let end = Instant::now() + SLICE;
            let end = deadline.instant().map_or(end, |at| at.min(end));
            if let Ok(message) = self.desk.receive(Access::Later, end) {
                self.admit(message);
            }
        }
        if matches!(parcel, Parcel::Moved(_)) {
            if !self.writer.is_reliable() {
                return Err(NoParcel::NotReliable);
            }
            if self.readers.len() != 1 {
                let readers = self.readers.len();
                return Err(NoParcel::NotOneReader { readers });
            }
        }
        Ok(())
    }

    /// Takes in who has come, and leaves out who has gone.
    fn enrol(&mut self) {
        while let Ok(message) = self.desk.try_receive(Access::Later) {
            self.admit(message);
        }
        self.readers.retain(|reader| reader.inbox.is_live());
    }

    fn admit(&mut self, mut message: Message) {
        let waits_at = message.header().first().copied();
        for right in message.take_rights() {
            if let Right::Send(inbox) = right {
                let welcome = Message::new(&self.stamp.pack(false)).unwrap_or_default();
                // Empty, or nobody's that we know.
                if inbox.send(welcome, WhenFull::Fail).is_ok() {
                    self.readers.push(Known { inbox, waits_at });
                }
            }
        }
    }
}

fn move_to(
    readers: &[Known],
    stamp: &[u8],
    extent: Extent,
    deadline: Deadline,
) -> Result<(), ParcelError> {
    let mut message = Message::new(stamp).unwrap_or_default();
    // A message holds an extent at least.
    drop(message.push(extent));
    let sent = match readers.first() {
        Some(reader) => reader
            .inbox
            .send_from(&mut message, when_full(reader, deadline)),
        None => Err(Unsent::DeadName),
    };
    sent.map_err(|error| ParcelError::new(error, message.remove(0).map(Parcel::Moved)))
}

/// Who is dead, or has gone, is left out; who may miss some, and is full, misses this one.
fn share_with(
    readers: &[Known],
    stamp: &[u8],
    shared: SharedExtent,
    deadline: Deadline,
) -> Result<(), ParcelError> {
    for reader in readers {
        let mut message = Message::new(stamp).unwrap_or_default();
        // A message holds a right at least.
        drop(message.attach(shared.clone()));
        match reader
            .inbox
            .send_from(&mut message, when_full(reader, deadline))
        {
            Ok(()) | Err(Unsent::DeadName) => {}
            Err(error) if reader.waits_at.is_some() => {
                return Err(ParcelError::new(error, Some(Parcel::Shared(shared))));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn when_full(reader: &Known, deadline: Deadline) -> WhenFull {
    if reader.waits_at.is_some() {
        WhenFull::Wait(deadline)
    } else {
        WhenFull::Fail
    }
}

impl ParcelReader {
    /// The next note, with its parcel.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. A note whose parcel did not come to us is [`ReadError::Missed`].
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Delivery, ReadError> {
        let deadline = deadline.into();
        loop {
            if self.orphaned {
                self.change_desks(deadline)?;
            }
            let received = match self.reader.receive(deadline) {
                Ok(received) => received,
                Err(ReadError::WriterGone) => {
                    self.orphaned = true;
                    return Err(ReadError::WriterGone);
                }
                Err(other) => return Err(other),
            };
            let position = received.position();
            let parts = Stamp::split(&received);
            let read = parts.map(|(stamp, has_parcel, note)| (stamp, has_parcel, note.to_vec()));
            let to = self.reader.position();
            let missed = ReadError::Missed(Missed { from: position, to });
            let Some((stamp, has_parcel, note)) = read else {
                // Not written by a writer of parcels.
                return Err(missed);
            };
            let parcel = has_parcel.then(|| self.parcel(stamp)).flatten();
            if has_parcel && parcel.is_none() {
                if self.welcome.is_some_and(|last_before| stamp > last_before) {
                    return Err(missed);
                }
                // Before our time (P2).
                continue;
            }
            return Ok(Delivery {
                note,
                parcel,
                position,
            });
        }
    }

    /// The parcel of this stamp. It came before it was announced, or will not come.
    fn parcel(&mut self, stamp: Stamp) -> Option<Parcel> {
        loop {
            let (found, mut message) = match self.next.take() {
                Some(early) => early,
                None => {
                    let message = self.inbox.try_receive(Access::Later).ok()?;
                    let Some((found, has_parcel, _)) = Stamp::split(message.header()) else {
                        continue;
                    };
                    if !has_parcel {
                        self.welcome.get_or_insert(found);
                        continue;
                    }
                    (found, message)
                }
            };
            if found == stamp {
                if let Some(extent) = message.remove(0) {
                    return Some(Parcel::Moved(extent));
                }
                return match message.take_rights().pop() {
                    Some(Right::Shared(shared)) => Some(Parcel::Shared(shared)),
                    _ => None,
                };
            }
            if found > stamp {
                self.next = Some((found, message));
                return None;
            }
            // Sent, and never announced; or announced, and missed.
        }
    }

    /// Another space writes now, or will: it has to know of us.
    fn change_desks(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        loop {
            let member = &self.inbox.at().member;
            match crate::port::connect_port(member, &self.desk, deadline) {
                Ok(desk) => {
                    if introduce(&self.inbox, &self.reader, &desk, deadline).is_ok() {
                        self.orphaned = false;
                        return Ok(());
                    }
                }
                Err(ConnectError::Disowned(why)) => return Err(why.into()),
                // A desk was bound under this name, so it is one.
                Err(ConnectError::NoSuchPort { .. } | ConnectError::BadName { .. }) => {}
            }
            if deadline.has_passed() {
                return Err(ReadError::TimedOut);
            }
        }
    }
}

/// Makes a reader known at a desk.
fn introduce(
    inbox: &ReceiveRight,
    reader: &Reader,
    desk: &SendRight,
    deadline: Deadline,
) -> Result<(), Unsent> {
    let waits_at = reader.waited_for_at();
    let mut message = Message::new(waits_at.as_slice()).unwrap_or_default();
    // A message holds a right at least.
    drop(message.attach(inbox.make_send()));
    desk.send_from(&mut message, deadline)
}

/// The name of the port where readers of a channel make themselves known.
fn desk_name(channel: &Channel) -> String {
    let port = channel.segment().right().to.port;
    format!("parcels {}.{}", port.index, port.generation)
}

/// What joins a parcel and its note (P1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    /// How many writers of the channel had left before this one came.
    epoch: u32,
    /// Counts this one's notes; those that failed too.
    number: u64,
}

impl Stamp {
    const BYTES: usize = 16;

    fn pack(self, has_parcel: bool) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[12] = u8::from(has_parcel);
        bytes
    }

    /// The stamp in front of some bytes, whether a parcel comes with it, and the rest.
    fn split(bytes: &[u8]) -> Option<(Self, bool, &[u8])> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk::<4>()?;
        let stamp = Self {
            epoch: u32::from_le_bytes(*epoch),
            number: u64::from_le_bytes(*number),
        };
        Some((stamp, flags[0] != 0, rest))
    }
}

impl std::fmt::Debug for ParcelWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParcelWriter")
            .field("readers", &self.readers.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ParcelReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParcelReader")
            .field("position", &self.reader.position())
            .finish_non_exhaustive()
    }
}
