//! Topics: publish and subscribe, typed, over message-consistent channels.
//!
//! ```text
//! topic "position"                      segments
//! publisher 0 ---> subscribers          position#0   a channel each, found by name
//! publisher 1 ---> subscribers          position#1
//! newcomers announce themselves on      position#    of many writers
//! ```
//!
//! A publisher writes each sample once, whoever subscribes, and never waits. A subscriber
//! sleeps in a wait set over all of these channels. A sample takes one unit of its
//! publisher's channel: its bytes, if they are few, or a note of where they lie.
//!
//! | file | holds |
//! |---|---|
//! | `payload` | what a sample may be made of |
//! | `publisher` | publishing, and loans |
//! | `sample` | what a subscriber gets |
//! | `store` | samples that do not lie in the ring |
//! | `subscriber` | subscribing |

mod payload;
mod publisher;
mod sample;
mod store;
mod subscriber;

pub use payload::Payload;
pub use publisher::{Loan, Publisher};
pub use sample::Sample;
pub use subscriber::Subscriber;

use super::{
    BindChannelError, Channel, ChannelOptions, FindChannelError, MakeChannelError, ReadError,
    WriteError,
};
use crate::port::BindError;
use crate::rpc::Hash;
use crate::segment::SegmentError;
use crate::wait_set::{AddReaderError, WaitError, WaitSetError};
use crate::{Deadline, Domain};
use portolan_abi::channel::{MAX_UNIT, MIN_UNITS, UNIT_HEAD_WORDS};
use portolan_abi::limits::{LINE, PAGE};
use sample::COPY_ALIGN;
use store::{Form, Note, TAG};

/// Tries to find what another one is making, or to make what another one is dropping.
const TRIES: u32 = 100;

/// How a topic is to be; the first one who publishes or subscribes decides for all, but for
/// the history, which each publisher keeps, and each subscriber asks for, as it says itself.
#[derive(Clone, Copy, Debug)]
pub struct TopicOptions {
    history: u64,
    publishers: u8,
    subscribers: u64,
    copied: usize,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self {
            history: 1,
            publishers: 8,
            subscribers: 32,
            copied: PAGE,
        }
    }
}

impl TopicOptions {
    /// How many samples of each publisher a late subscriber gets, and at least how many one
    /// may lag behind.
    pub fn history(mut self, samples: u64) -> Self {
        self.history = samples;
        self
    }

    /// How many may publish at a time.
    pub fn publishers(mut self, publishers: u8) -> Self {
        self.publishers = publishers;
        self
    }

    /// How many may subscribe at a time.
    pub fn subscribers(mut self, subscribers: u64) -> Self {
        self.subscribers = subscribers;
        self
    }

    /// Samples of up to so many bytes are copied into the topic's ring, and out of it by each
    /// subscriber; 4 KiB if not said. A longer one lies in memory of its own: it is filled
    /// there, and read there by all.
    pub fn copied(mut self, bytes: usize) -> Self {
        self.copied = bytes;
        self
    }

    fn channel<T: Payload + ?Sized>(&self, name: &str) -> ChannelOptions {
        let holds = match T::SIZE {
            Some(size) if size <= self.copied && T::ALIGN <= COPY_ALIGN => size,
            Some(_) => Note::BYTES,
            None => self.copied.saturating_add(TAG).max(Note::BYTES),
        };
        // What is too large is refused with the rest of the shape.
        let unit = (holds.min(MAX_UNIT) + 8 * UNIT_HEAD_WORDS).next_multiple_of(LINE);
        // A channel keeps three quarters of its units for those who come late.
        let units = self.history.saturating_mul(4).div_ceil(3).saturating_add(1);
        let units = units.checked_next_power_of_two().unwrap_or(u64::MAX);
        ChannelOptions::named(name)
            .unit(unit)
            .units(units.max(4 * MIN_UNITS))
            .readers(self.subscribers)
            .content(content_of::<T>())
    }
}

/// Why there is no publisher, or subscriber.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The caller's, or the others': they use another type, or another version of it.
    #[error(
        "the topic {topic:?} is of another type than {wanted}, or of another version (content {found:#x} instead of {expected:#x}): use the same, or another topic"
    )]
    OtherType {
        /// The topic.
        topic: String,
        /// The type that was asked for.
        wanted: &'static str,
        /// Its content word.
        expected: u64,
        /// The topic's.
        found: u64,
    },
    /// The state's.
    #[error("the topic has its {publishers} publishers: let one go, or make it for more")]
    TooManyPublishers {
        /// How many.
        publishers: u8,
    },
    /// See [`MakeChannelError`].
    #[error(transparent)]
    Make(#[from] MakeChannelError),
    /// See [`FindChannelError`].
    #[error(transparent)]
    Find(#[from] FindChannelError),
    /// See [`BindChannelError`].
    #[error(transparent)]
    Bind(#[from] BindChannelError),
    /// See [`WaitSetError`].
    #[error(transparent)]
    WaitSet(#[from] WaitSetError),
    /// The state's: it has as many subscribers as it was made for.
    #[error(transparent)]
    Subscribe(#[from] AddReaderError),
    /// It could not be announced.
    #[error(transparent)]
    Announce(#[from] WriteError),
}

/// Why a sample was not published; nobody was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// No memory of its own for a long sample.
    #[error(transparent)]
    NoMemory(#[from] SegmentError),
    /// See [`WriteError`].
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why no sample came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The state's: nothing came before the deadline.
    #[error("no sample came before the deadline")]
    TimedOut,
    /// A publisher's: see [`ReadError`].
    #[error("publisher {publisher}: {why}")]
    Read {
        /// Which publisher.
        publisher: u8,
        /// Why.
        #[source]
        why: ReadError,
    },
    /// See [`WaitError`].
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A new publisher could not be followed.
    #[error(transparent)]
    Topic(#[from] TopicError),
}

impl Domain {
    /// Publishes samples of `T` under `topic`: a type, or a slice of one. Any number of subscribers, before and after,
    /// now and later, in this process and others, get them. Samples that no subscriber has
    /// begun to follow are gone when their publisher is dropped; a subscriber that sleeps is
    /// woken by a new publisher, and follows it in its next [`Subscriber::receive`].
    ///
    /// # Errors
    ///
    /// [`TopicError`].
    ///
    /// ```
    /// use portolan::channel::TopicOptions;
    /// use portolan::{Deadline, Domain};
    ///
    /// let domain = Domain::private()?;
    /// let options = TopicOptions::default().history(2);
    /// let mut publisher = domain.publisher::<[f64; 3]>("position", options)?;
    /// for x in 0..5 {
    ///     publisher.publish(&[f64::from(x), 0.0, 0.0])?;
    /// }
    /// // Late, it gets the last two.
    /// let mut subscriber = domain.subscriber::<[f64; 3]>("position", options)?;
    /// let sample = subscriber.receive(Deadline::NEVER)?;
    /// assert_eq!((sample[0], sample.publisher(), sample.missed()), (3.0, 0, 0));
    /// assert_eq!(subscriber.receive(Deadline::NEVER)?[0], 4.0);
    ///
    /// let mut loan = publisher.loan()?;
    /// loan[0] = 6.0;
    /// loan.publish()?;
    /// assert_eq!(subscriber.receive(Deadline::NEVER)?[0], 6.0);
    /// assert!(domain.subscriber::<[f32; 6]>("position", options).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Of a slice each sample has a length of its own. What is long is neither copied nor
    /// written twice:
    ///
    /// ```
    /// use portolan::channel::TopicOptions;
    /// use portolan::{Deadline, Domain};
    ///
    /// let domain = Domain::private()?;
    /// let mut publisher = domain.publisher::<[u8]>("pictures", TopicOptions::default())?;
    /// let mut subscriber = domain.subscriber::<[u8]>("pictures", TopicOptions::default())?;
    /// publisher.publish(b"a small one")?;
    /// assert_eq!(*subscriber.receive(Deadline::NEVER)?, *b"a small one");
    ///
    /// let mut loan = publisher.loan(8 << 20)?;
    /// loan.fill(7);
    /// let filled_at = loan.as_ptr();
    /// loan.publish()?;
    /// let picture = subscriber.receive(Deadline::NEVER)?;
    /// assert_eq!((picture.len(), picture[9], picture.as_ptr()), (8 << 20, 7, filled_at));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publisher<T: Payload + ?Sized>(
        &self,
        topic: &str,
        options: TopicOptions,
    ) -> Result<Publisher<T>, TopicError> {
        let lobby = lobby::<T>(self, topic, &options)?;
        for id in 0..options.publishers {
            let name = format!("{topic}#{id}");
            let channel = open::<T>(self, topic, &options.channel::<T>(&name), &name)?;
            let writer = match channel.bind_writer() {
                Ok(writer) => writer,
                Err(BindChannelError::Written { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            lobby
                .bind_writer()?
                .write(&[id], std::time::Duration::from_secs(5))?;
            return Ok(Publisher::new(self, &options, (writer, channel), lobby, id));
        }
        let publishers = options.publishers;
        Err(TopicError::TooManyPublishers { publishers })
    }

    /// Subscribes to the samples of `T` under `topic`, of all who publish there now and later.
    ///
    /// # Errors
    ///
    /// [`TopicError`].
    pub fn subscriber<T: Payload + ?Sized>(
        &self,
        topic: &str,
        options: TopicOptions,
    ) -> Result<Subscriber<T>, TopicError> {
        let lobby = lobby::<T>(self, topic, &options)?;
        Subscriber::new(self, topic, options, &lobby)
    }
}

/// The channel on which the topic's publishers announce themselves.
fn lobby<T: Payload + ?Sized>(
    domain: &Domain,
    topic: &str,
    options: &TopicOptions,
) -> Result<Channel, TopicError> {
    let name = format!("{topic}#");
    let lobby = ChannelOptions::named(&name)
        .many_writers()
        .units(16)
        .readers(options.subscribers)
        .content(content_of::<T>());
    open::<T>(domain, topic, &lobby, &name)
}

/// The channel of this name; made, if it is not there.
fn open<T: Payload + ?Sized>(
    domain: &Domain,
    topic: &str,
    options: &ChannelOptions,
    name: &str,
) -> Result<Channel, TopicError> {
    let mut tries = 0;
    loop {
        if let Ok(channel) = domain.find_channel(name, Deadline::NOW) {
            check::<T>(topic, &channel)?;
            return Ok(channel);
        }
        tries += 1;
        match domain.make_channel(options) {
            Ok(channel) => return Ok(channel),
            // Made meanwhile; or the last right on it is just being dropped.
            Err(MakeChannelError::Segment(SegmentError::Bind(BindError::NameTaken { .. })))
                if tries < TRIES =>
            {
                std::thread::yield_now();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn check<T: Payload + ?Sized>(topic: &str, channel: &Channel) -> Result<(), TopicError> {
    let (expected, found) = (content_of::<T>(), channel.content());
    if expected == found {
        return Ok(());
    }
    Err(TopicError::OtherType {
        topic: topic.to_owned(),
        wanted: std::any::type_name::<T>(),
        expected,
        found,
    })
}

/// How the samples in a topic's channel lie, which the one who made it has decided.
fn form_of<T: Payload + ?Sized>(channel: &Channel) -> Form {
    match T::SIZE {
        Some(size) if size <= channel.unit_payload() && T::ALIGN <= COPY_ALIGN => Form::Bare,
        _ => Form::Tagged,
    }
}

/// What tells a type from another: what its parts mean, its size and alignment.
fn content_of<T: Payload + ?Sized>() -> u64 {
    let size = T::SIZE.map_or(u64::MAX, |size| size as u64);
    let hash = Hash::new().text("topic").word(T::HASH);
    hash.word(size).word(T::ALIGN as u64).finish()
}
