//! A writer sends parcels to the readers that are registered with it.

use super::super::{Channel, ChannelError, Writer};
use super::{Parcel, ParcelError, Stamp, registry_name};
use crate::port::{ReceiveRight, Right, SendError, SendRight};
use crate::{Access, Deadline, Extent, Message, PortOptions, Refused, SharedExtent, WhenFull};
use portolan_shm::mark;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Readers that can wait at a registry at a time.
const REGISTRY: usize = 256;

/// So many that come at once may have kept others away.
const CROWDED: usize = REGISTRY / 2;

/// How long a writer waits at its registry before it looks whether a reader has died.
const SLICE: Duration = Duration::from_millis(20);

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
    registry: ReceiveRight,
    writer: Writer,
    readers: Vec<Known>,
    /// The stamp of the last note.
    stamp: Stamp,
}

/// A reader that the writer knows.
struct Known {
    inbox: SendRight,
    /// Its entry in the channel, if it has one.
    entry: Option<u8>,
    /// The writer waits for it.
    is_waited_for: bool,
}

impl Known {
    /// Whether it may still take parcels: it has not gone, and was not dropped.
    fn takes(&self, is_read_by: impl Fn(u8) -> bool) -> bool {
        self.inbox.is_live() && self.entry.is_none_or(is_read_by)
    }
}

impl Channel {
    /// Makes this space the one that writes, with parcels. Its readers are then all bound
    /// by [`Self::bind_parcel_reader`].
    ///
    /// # Errors
    ///
    /// [`ChannelError`], also if many write to the channel.
    pub fn bind_parcel_writer(&self) -> Result<ParcelWriter, ChannelError> {
        if self.has_many_writers() {
            let wrong = ("of many writers", "one of one writer for parcels");
            return Err(ChannelError::WrongKind(wrong.0, wrong.1));
        }
        let writer = self.bind_writer()?;
        let registry = PortOptions::named(&registry_name(self)).queue(REGISTRY);
        let registry = crate::port::bind_port(self.member(), &registry)?;
        // P5.
        writer.ring_readers();
        let writers = writer.writers_before();
        Ok(ParcelWriter {
            registry,
            writer,
            readers: Vec::new(),
            stamp: Stamp { writers, number: 0 },
        })
    }
}

impl ParcelWriter {
    /// Writes a note, with a parcel or without; its position. Waits for room, and for
    /// readers of the last writer, until the deadline.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the parcel if there was one; no reader was told.
    pub fn send(
        &mut self,
        note: &[u8],
        parcel: Option<Parcel>,
        deadline: impl Into<Deadline>,
    ) -> Result<u64, Refused<Option<Parcel>, ParcelError>> {
        let deadline = deadline.into();
        if parcel.as_ref().is_some_and(|p| !self.is_of_ours(p)) {
            return Err(Refused::new(parcel, SendError::Foreign));
        }
        if let Some(what) = &parcel
            && let Err(why) = self.meet(what, deadline)
        {
            return Err(Refused::new(parcel, why));
        }
        // Room first: a refused parcel was sent to no reader.
        let claim = match self.writer.claim(Stamp::BYTES + note.len(), deadline) {
            Ok(claim) => claim,
            Err(error) => return Err(Refused::new(parcel, error)),
        };
        // To make room is to drop those who lag and have chosen so.
        self.readers.retain(|r| r.takes(|e| claim.is_read_by(e)));
        if matches!(parcel, Some(Parcel::Moved(_))) && self.readers.is_empty() {
            drop(claim);
            let readers = 0;
            return Err(Refused::new(parcel, ParcelError::NotOneReader { readers }));
        }
        self.stamp.number += 1;
        let stamp = self.stamp.encode(parcel.is_some());
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

    /// Whether a parcel is of the channel's domain.
    fn is_of_ours(&self, parcel: &Parcel) -> bool {
        let ours = &self.registry.at().member;
        match parcel {
            Parcel::Moved(extent) => extent.is_of(ours),
            Parcel::Shared(shared) => Arc::ptr_eq(&shared.segment().right().to.member, ours),
        }
    }

    /// How many get parcels.
    pub fn readers(&mut self) -> usize {
        self.enrol();
        self.readers.len()
    }

    /// Waits until every reader that must get this parcel is known (P4).
    fn meet(&mut self, parcel: &Parcel, deadline: Deadline) -> Result<(), ParcelError> {
        loop {
            self.enrol();
            let known = |entry| {
                let mut readers = self.readers.iter();
                readers.any(|r| r.is_waited_for && r.entry == Some(entry))
            };
            let readers = self.writer.waited_for().filter(|e| !known(*e)).count();
            if readers == 0 {
                break;
            }
            if deadline.has_passed() {
                return Err(ParcelError::Unknown { readers });
            }
            let end = Instant::now() + SLICE;
            let end = deadline.instant().map_or(end, |at| at.min(end));
            if let Ok(message) = self.registry.receive(Access::Later, end) {
                self.admit(message);
            }
        }
        if matches!(parcel, Parcel::Moved(_)) {
            if !self.writer.is_reliable() {
                return Err(ParcelError::NotReliable);
            }
            if self.readers.len() != 1 {
                let readers = self.readers.len();
                return Err(ParcelError::NotOneReader { readers });
            }
        }
        Ok(())
    }

    /// Takes in who has come, and leaves out who has gone.
    fn enrol(&mut self) {
        let mut came = 0;
        while let Ok(message) = self.registry.receive(Access::Later, Deadline::NOW) {
            self.admit(message);
            came += 1;
        }
        if came >= CROWDED {
            // P5.
            self.writer.ring_readers();
        }
        let writer = &self.writer;
        self.readers.retain(|r| r.takes(|e| writer.is_read_by(e)));
    }

    fn admit(&mut self, mut message: Message) {
        let place = message.header().first_chunk::<2>().copied();
        for right in message.take_rights() {
            if let Right::Send(inbox) = right {
                let welcome = Message::new(&self.stamp.encode(false)).unwrap_or_default();
                // Empty, or of no reader that we know.
                if inbox.send(welcome, WhenFull::Fail).is_ok() {
                    self.readers.push(Known {
                        inbox,
                        entry: place.map(|[entry, _]| entry),
                        is_waited_for: place.is_some_and(|[_, waits]| waits != 0),
                    });
                }
            }
        }
    }
}

/// Who may miss some, and is full, misses this one: it is freed.
fn move_to(
    readers: &[Known],
    stamp: &[u8],
    extent: Extent,
    deadline: Deadline,
) -> Result<(), Refused<Option<Parcel>, ParcelError>> {
    let mut message = Message::new(stamp).unwrap_or_default();
    // A message holds an extent at least.
    drop(message.push(extent));
    let sent = match readers.first() {
        Some(reader) => {
            let when_full = when_full(reader, deadline);
            match reader.inbox.send_from(&mut message, when_full) {
                Err(SendError::Full { .. }) if !reader.is_waited_for => Ok(()),
                sent => sent,
            }
        }
        None => Err(SendError::DeadName),
    };
    sent.map_err(|error| Refused::new(message.remove(0).map(Parcel::Moved), error))
}

/// A reader that is dead, or has gone, is left out; one that may miss some, and is full, misses
/// this one.
fn share_with(
    readers: &[Known],
    stamp: &[u8],
    shared: SharedExtent,
    deadline: Deadline,
) -> Result<(), Refused<Option<Parcel>, ParcelError>> {
    for reader in readers {
        let mut message = Message::new(stamp).unwrap_or_default();
        // A message holds a right at least.
        drop(message.attach(shared.clone()));
        match reader
            .inbox
            .send_from(&mut message, when_full(reader, deadline))
        {
            Ok(()) | Err(SendError::DeadName) => {}
            Err(error) if reader.is_waited_for => {
                return Err(Refused::new(Some(Parcel::Shared(shared)), error));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn when_full(reader: &Known, deadline: Deadline) -> WhenFull {
    if reader.is_waited_for {
        WhenFull::Wait(deadline)
    } else {
        WhenFull::Fail
    }
}

impl std::fmt::Debug for ParcelWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParcelWriter")
            .field("readers", &self.readers.len())
            .finish_non_exhaustive()
    }
}
