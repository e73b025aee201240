//! Options set up a channel, and its readers.

use super::ChannelError;
use portolan_abi::channel::{Purpose, Shape};
use portolan_abi::limits::LINE;
use portolan_shm::channel::{Lagging, Mode, Signalling, Since};

/// How a channel is to be; message-consistent, of 1,024 units of a cache line, if nothing
/// else is said.
///
/// ```
/// use portolan::channel::{ChannelOptions, Signalling};
/// let pictures = ChannelOptions::named("pictures").unit(4096).units(512);
/// let log = ChannelOptions::named("log").reliable().readers(2);
/// let polled = ChannelOptions::unnamed().signal(Signalling::Never);
/// let calls = ChannelOptions::named("who is there?").many_writers();
/// # let domain = portolan::Domain::private()?;
/// # for options in [pictures, log, polled, calls] { domain.make_channel(&options)?; }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    name: Option<String>,
    unit: usize,
    units: u64,
    readers: u64,
    mode: Mode,
    content: u64,
    purpose: Purpose,
}

impl ChannelOptions {
    /// A channel that is found by its name.
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::unnamed()
        }
    }

    /// A channel that is passed on as a right.
    pub fn unnamed() -> Self {
        Self {
            name: None,
            unit: LINE,
            units: 1024,
            readers: 8,
            mode: Mode {
                reliable: false,
                many_writers: false,
                raw: false,
                signalling: Signalling::Message,
            },
            content: 0,
            purpose: Purpose::Messages,
        }
    }

    /// Newest data wins: the writer never waits, and readers learn what they missed.
    pub fn message_consistent(mut self) -> Self {
        self.mode.reliable = false;
        self
    }

    /// The writer waits for the slowest reader, but for those that choose otherwise
    /// ([`Lagging`]).
    pub fn reliable(mut self) -> Self {
        self.mode.reliable = true;
        self
    }

    /// Bytes of a unit: a multiple of a cache line; 16 of them are its head. A message takes
    /// whole units, so one of most messages' size is best.
    pub fn unit(mut self, bytes: usize) -> Self {
        self.unit = bytes;
        self
    }

    /// Units of the ring, a power of two: what a reader may lag behind, or, in a reliable
    /// channel, the flow-control window.
    pub fn units(mut self, units: u64) -> Self {
        self.units = units;
        self
    }

    /// When sleeping readers are woken, and handlers signalled ([`Reader::enable`](super::Reader::enable)). The writer does
    /// not see it, and writes the same.
    pub fn signal(mut self, signalling: Signalling) -> Self {
        self.mode.signalling = signalling;
        self
    }

    /// How many readers can have an entry: all there can be of a reliable channel; of a
    /// message-consistent or raw one those that can be in wait sets.
    pub fn readers(mut self, readers: u64) -> Self {
        self.readers = readers;
        self
    }

    /// Any number of spaces write, each message in a unit of its own, whole or rejected.
    /// For channels with a well-known name, on which one calls.
    pub fn many_writers(mut self) -> Self {
        self.mode.many_writers = true;
        self
    }

    /// No messages: units have fixed places, and the reader sees what was last put there, or
    /// some of it. A unit that is not put leaves the old content: a frame buffer. See
    /// [`FrameWriter`](super::FrameWriter).
    pub fn raw(mut self) -> Self {
        self.mode.raw = true;
        self
    }

    /// A number that says what the channel contains, for readers to compare
    /// ([`Channel::content`](super::Channel::content)).
    pub fn content(mut self, content: u64) -> Self {
        self.content = content;
        self
    }

    /// What it is used for, as observers are told.
    pub(crate) fn used_for(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub(super) fn content_word(&self) -> u64 {
        self.content
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn check(&self) -> Result<(Shape, Mode), ChannelError> {
        let shape = Shape::new(self.unit, self.units, self.readers)?;
        if let Signalling::Bytes(bytes) = self.mode.signalling
            && (bytes == 0 || !(bytes as usize).is_multiple_of(LINE))
        {
            return Err(ChannelError::Signal { bytes });
        }
        if self.mode.reliable && self.mode.many_writers {
            return Err(ChannelError::ManyReliable);
        }
        if self.mode.raw && (self.mode.reliable || self.mode.many_writers) {
            return Err(ChannelError::RawReliable);
        }
        Ok((shape, self.mode))
    }
}

/// How a reader is to be.
///
/// ```
/// use portolan::channel::{ChannelOptions, Lagging, ReadError, ReaderOptions, Since};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().units(4).reliable())?;
/// let mut writer = channel.bind_writer()?;
/// writer.write(b"old", Deadline::NOW)?;
/// let options = ReaderOptions::default().lagging(Lagging::Skip).since(Since::Last(1));
/// let mut reader = channel.bind_reader(options)?;
/// assert_eq!(*reader.receive(Deadline::NOW)?, *b"old");
/// for i in 0..9 {
///     writer.write(&[i], Deadline::NOW)?;
/// }
/// let Err(ReadError::Missed(missed)) = reader.receive(Deadline::NOW) else { panic!() };
/// assert_eq!((missed.from, missed.to), (1, 7));
/// assert_eq!(*reader.receive(Deadline::NOW)?, [6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderOptions {
    pub(super) lagging: Lagging,
    pub(super) since: Since,
    pub(super) aside: bool,
}

impl ReaderOptions {
    /// It has no entry: it takes no other reader's place, and misses what is overwritten.
    pub(crate) fn aside(mut self) -> Self {
        self.aside = true;
        self
    }

    /// On a reliable channel, what becomes of it if it lags; a message-consistent channel
    /// waits for no reader.
    pub fn lagging(mut self, lagging: Lagging) -> Self {
        self.lagging = lagging;
        self
    }

    /// How much of the past it wants.
    pub fn since(mut self, since: Since) -> Self {
        self.since = since;
        self
    }
}
