//! Channels carry streams of messages in memory that a writer and its readers share.
//!
//! A [`Channel`] is a right to a segment that holds a ring of units. One space writes
//! ([`Channel::bind_writer`]), any number read ([`Channel::bind_reader`]), each at its own
//! pace. The writer writes a message once for all readers; each reader copies it out.
//!
//! ```
//! use portolan::channel::{ChannelOptions, ReaderOptions};
//! use portolan::{Deadline, Domain};
//!
//! let domain = Domain::private()?;
//! let channel = domain.make_channel(&ChannelOptions::named("temperature"))?;
//! let found = domain.find_channel("temperature", Deadline::NOW)?;
//! let mut reader = found.bind_reader(ReaderOptions::default())?;
//! let mut writer = channel.bind_writer()?;
//!
//! writer.write(b"21.5", Deadline::NOW)?;
//! assert_eq!(*reader.receive(Deadline::NEVER)?, *b"21.5");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two kinds
//!
//! | | message-consistent | reliable |
//! |---|---|---|
//! | the writer waits | never | for the slowest reader that asks for it ([`Lagging`]) |
//! | a reader that is overtaken | is told which units it missed | as it chose: is waited for, dropped, or told |
//! | readers | any number | as many as it was made for |
//! | for | what is new: prices, positions, pictures | what must not get lost |
//! | what is large | goes beside it, shared ([`Parcel`]) | the same; with one reader also by move |
//!
//! # Setting up, in the paper's steps
//!
//! | *Optimized Memory-Based Messaging*, Table 3 | here |
//! |---|---|
//! | create segment | [`Domain::make_channel`] |
//! | bind | [`Channel::bind_writer`], [`Channel::bind_reader`] |
//! | enable | [`Listener::on`](crate::Listener::on) of [`Channel::addresses`] and [`Reader::enable`]: a write signals its unit's address to the handler. Or [`WaitSet::add`](crate::WaitSet::add): it wakes the set's thread |
//! | disable | [`Reader::disable`], [`Listener::off`](crate::Listener::off); [`WaitSet::remove`](crate::WaitSet::remove) |
//! | unbind | [`Reader::unbind`], [`Writer::unbind`], or their drop |
//! | release | the drop of the [`Channel`]: the last right frees the memory |
//!
//! # Signals on write
//!
//! The writer does nothing but write. A reader that has enabled the channel's signals gets the
//! *address* of each signalling unit, by the handlers that its space has for it: of each message's
//! last unit, or of the unit that ends every so many bytes ([`ChannelOptions::signal`]); of a frame
//! buffer, of the unit that was put. One write is one signal to each listener, however many
//! readers there are; while no reader has enabled them the writer does what it does otherwise.
//!
//! ```
//! use portolan::channel::{ChannelOptions, ReaderOptions};
//! use portolan::{Deadline, Domain, ListenerOptions};
//! use std::sync::{Arc, Mutex};
//!
//! let domain = Domain::private()?;
//! let channel = domain.make_channel(&ChannelOptions::named("temperature"))?;
//! let mut reader = channel.bind_reader(ReaderOptions::default())?;
//!
//! let written = Arc::new(Mutex::new(Vec::new()));
//! let mut listener = domain.listen(ListenerOptions::default())?;
//! let notes = Arc::clone(&written);
//! listener.on(channel.addresses(), move |address| notes.lock().unwrap().push(address))?;
//! reader.enable()?;
//!
//! let mut writer = channel.bind_writer()?;
//! writer.write(b"21.5", Deadline::NOW)?;
//! writer.write(b"21.6", Deadline::NOW)?;
//! listener.wait(Deadline::NEVER);
//! listener.poll();
//! let places: Vec<_> = written.lock().unwrap().iter().map(|at| channel.place_of(*at)).collect();
//! assert_eq!(places, [Some(0), Some(1)]);
//! assert_eq!(*reader.receive(Deadline::NOW)?, *b"21.5");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Deaths
//!
//! The host frees the entries and the writer's place of a space that died; a writer that
//! waited for it goes on, readers are told ([`ReadError::WriterGone`]), and the next writer
//! goes on at the position where the dead one stopped. A message that it had begun and not
//! ended is never handed out as whole. Each handler of a channel's addresses is then signalled
//! once: of the last unit, if its range holds that, for the writer may have owed it a signal.

mod error;
mod frame;
mod handled;
mod interrupt;
mod options;
mod parcel;
mod reader;
mod ring;
mod stream;
#[cfg(feature = "tokio")]
mod tokio;
mod topic;
mod writer;

pub use error::ChannelError;
pub use frame::{FrameReader, FrameWriter};
pub use interrupt::Interrupter;
pub use options::{ChannelOptions, ReaderOptions};
pub use parcel::{Delivery, Parcel, ParcelError, ParcelReader, ParcelWriter};
pub(crate) use portolan_abi::channel::Purpose;
pub use portolan_shm::channel::{Garbled, Lagging, NotAChannel, Signalling, Since};
pub use reader::{Missed, ReadError, Reader, Received};
pub use stream::{StreamReader, StreamWriter};
pub(crate) use topic::Draft;
#[doc(hidden)]
pub use topic::fields;
pub use topic::{
    Flat, Loan, Payload, Plain, PublishError, Publisher, PublisherGone, Sample, StructureLoan,
    SubscribeError, Subscriber, TopicError, TopicOptions,
};
pub use writer::{Claim, WriteError, Writer, WriterCounts};

use crate::port::segment::Segment;
use crate::port::{Right, shared_entries};
use crate::space::Member;
use crate::space::record::About;
use crate::wait::raise_link;
use crate::{Deadline, Domain, Refused};
use portolan_shm::channel::Channel as Units;
use portolan_shm::mark;
use portolan_sys::futex;
pub(crate) use ring::Ring;

/// A right to a channel. A clone is another right; it travels in messages as the
/// [`Segment`] that it is.
///
/// ```
/// use portolan::channel::{Channel, ChannelOptions};
/// use portolan::{Deadline, Domain, Message, PortOptions, Right, WhenFull};
///
/// let domain = Domain::private()?;
/// let mut port = domain.bind(PortOptions::unnamed())?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
/// let mut message = Message::default();
/// message.attach(channel)?;
/// port.make_send().send(message, WhenFull::Fail)?;
///
/// let mut message = port.receive(Default::default(), Deadline::NOW)?;
/// let Some(Right::Segment(segment)) = message.take_rights().pop() else { panic!() };
/// let channel = Channel::try_from(segment)?;
/// assert_eq!(channel.unit(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Channel {
    ring: Ring,
}

impl Domain {
    /// Makes a channel.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing is left behind.
    pub fn make_channel(&self, options: &ChannelOptions) -> Result<Channel, ChannelError> {
        let (shape, mode) = options.check()?;
        let bytes = usize::try_from(shape.len()).unwrap_or(usize::MAX);
        let image = Units::image(shape, mode, options.content_word(), options.purpose());
        let segment = self.make_segment_with(options.name(), bytes, |memory| {
            for (word, at) in image.iter().zip(memory.chunks_exact_mut(8)) {
                at.copy_from_slice(&word.to_le_bytes());
            }
        })?;
        let ring = Ring::open(segment).map_err(|refused| ChannelError::NotAChannel {
            name: options.name().unwrap_or_default().to_owned(),
            why: refused.1,
        })?;
        Ok(Channel { ring })
    }

    /// A right on the channel of this name, waiting until there is one.
    ///
    /// # Errors
    ///
    /// [`ChannelError`].
    pub fn find_channel(
        &self,
        name: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<Channel, ChannelError> {
        let segment = self.find_segment(name, deadline)?;
        let ring = Ring::open(segment).map_err(|refused| ChannelError::NotAChannel {
            name: name.to_owned(),
            why: refused.1,
        })?;
        Ok(Channel { ring })
    }
}

impl Channel {
    /// Makes this space the one that writes; on a channel of many writers, one of them.
    ///
    /// It goes on where the last writer stopped.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Written`] names the space that writes. One that has died is in
    /// the way only until the host has noticed.
    pub fn bind_writer(&self) -> Result<Writer, ChannelError> {
        Writer::bind(self.ring.clone())
    }

    /// A reader of its own pace.
    ///
    /// # Errors
    ///
    /// [`ChannelError::NoEntry`] on a reliable channel that has as many readers as it
    /// was made for.
    pub fn bind_reader(&self, options: ReaderOptions) -> Result<Reader, ChannelError> {
        Reader::bind(self.ring.clone(), options)
    }

    /// The space that writes, if one does. `None` for a channel of many writers, and in a forked
    /// child.
    pub fn writer(&self) -> Option<u8> {
        self.ring.segment().right().to.member.present().ok()?;
        Some(self.ring.channel().writer().space).filter(|space| *space != 0)
    }

    /// Bytes of a unit, its 16 bytes of head included.
    pub fn unit(&self) -> usize {
        self.ring.channel().shape().unit
    }

    /// Units of the ring.
    pub fn units(&self) -> u64 {
        self.ring.channel().shape().units
    }

    /// Readers that can have an entry.
    pub(crate) fn entries(&self) -> u64 {
        self.ring.channel().shape().readers
    }

    /// Payload bytes of a unit.
    pub fn unit_payload(&self) -> usize {
        self.ring.channel().shape().payload()
    }

    /// Bytes that one message may have.
    pub fn longest(&self) -> usize {
        self.ring.channel().longest()
    }

    /// Whether the writer waits for readers.
    pub fn is_reliable(&self) -> bool {
        self.ring.channel().mode().reliable
    }

    /// Whether several may write.
    pub fn has_many_writers(&self) -> bool {
        self.ring.channel().mode().many_writers
    }

    /// When a sleeping reader is woken.
    pub fn signalling(&self) -> Signalling {
        self.ring.channel().mode().signalling
    }

    /// Whether its units have fixed places ([`ChannelOptions::raw`]).
    pub fn is_raw(&self) -> bool {
        self.ring.channel().mode().raw
    }

    /// What its maker says of its content ([`ChannelOptions::content`]).
    pub fn content(&self) -> u64 {
        self.ring.channel().content()
    }

    /// Makes this space the one that puts units to a raw channel.
    ///
    /// # Errors
    ///
    /// As [`Self::bind_writer`], and if the channel is not raw.
    pub fn bind_frame_writer(&self) -> Result<FrameWriter, ChannelError> {
        FrameWriter::bind(self.ring.clone())
    }

    /// One who looks at a raw channel.
    ///
    /// # Errors
    ///
    /// [`ChannelError`], if it is not raw.
    pub fn bind_frame_reader(&self) -> Result<FrameReader, ChannelError> {
        FrameReader::bind(self.ring.clone())
    }

    /// The memory, as which the right travels.
    pub fn segment(&self) -> &Segment {
        self.ring.segment()
    }
}

impl TryFrom<Segment> for Channel {
    type Error = Refused<Segment, NotAChannel>;

    fn try_from(segment: Segment) -> Result<Self, Self::Error> {
        match Ring::open(segment) {
            Ok(ring) => Ok(Self { ring }),
            Err(refused) => {
                let (segment, why) = *refused;
                Err(Refused::new(segment, why))
            }
        }
    }
}

impl From<Channel> for Segment {
    fn from(channel: Channel) -> Self {
        channel.ring.into_segment()
    }
}

impl From<Channel> for Right {
    fn from(channel: Channel) -> Self {
        Self::Segment(channel.into())
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("unit", &self.unit())
            .field("units", &self.units())
            .field("mode", &self.ring.channel().mode())
            .finish()
    }
}

impl Ring {
    /// Wakes readers that sleep or wait in sets.
    #[cold]
    fn wake_readers(&self) {
        let right = self.segment().right();
        wake_readers(&right.to.member, self.channel(), right.to.port.index);
    }
}

/// Wakes the readers of the channel in the segment `port`.
pub(crate) fn wake_readers(member: &Member, channel: &Units<'_>, port: u16) {
    let raise = |link| {
        raise_link(member, link, About::port(port));
    };
    channel.rouse(raise, |doorbell| {
        futex::wake(doorbell, u32::MAX);
    });
}

/// Wakes the writer that waits for room.
#[cold]
pub(crate) fn wake_writer(channel: &Units<'_>) {
    channel.rouse_writer(|room| {
        futex::wake(room, u32::MAX);
    });
}

/// Takes a dead space out of every channel, and wakes every process to which it may have owed a
/// wake. Only the host calls it.
pub(crate) fn reclaim(member: &Member, space: u8) {
    shared_entries::for_each_channel(member, |port, start, channel| {
        channel.reclaim(space);
        mark!("host.reclaim.channel");
        // It may have written, and been about to signal.
        handled::tell_each(member, channel, start);
        // It may have been about to wake them, of any channel that it had a right on.
        wake_readers(member, channel, port);
        wake_writer(channel);
    });
    mark!("host.reclaim.channels");
}
