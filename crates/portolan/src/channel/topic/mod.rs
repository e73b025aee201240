//! A topic connects publishers and subscribers by a name and a type, over message-consistent
//! channels.
//!
//! ```text
//! topic "position"                      segments
//! publisher 0 ---> subscribers          position#0   a channel each, found by name
//! publisher 1 ---> subscribers          position#1
//! newcomers announce themselves on      position#    of many writers
//! ```
//!
//! The last is the topic's *rendezvous channel*: subscribers read it, so they learn of publishers.
//! A publisher writes each sample once for all subscribers, and never waits. A subscriber
//! sleeps in a wait set over all of these channels, or in another set that it was added to. A
//! sample takes one unit of its publisher's channel: its bytes, if they are few, or a
//! *sample reference* to the buffer where they lie.
//!
//! | file | holds |
//! |---|---|
//! | `payload` | what a sample may be made of |
//! | `plain` | values as bytes, and bytes as values |
//! | `publisher` | publishing, and loans |
//! | `retry` | following once more whom it could not follow |
//! | `sample` | what a subscriber gets |
//! | `store` | samples that do not lie in the ring |
//! | `structure` | publishing structures |
//! | `subscriber` | subscribing |

mod payload;
mod plain;
mod publisher;
mod retry;
mod sample;
mod store;
mod structure;
mod subscriber;

pub use payload::Payload;
pub use payload::sealed::Flat;
pub(crate) use plain::Draft;
pub use plain::{Plain, fields};
/// Implements [`trait@Payload`] (by [`Plain`]) for a struct with `#[repr(C)]` or
/// `#[repr(transparent)]`, or an enum with `#[repr(u8)]` or another number.
pub use portolan_derive::Payload;
pub use publisher::{Loan, Publisher};
pub use sample::{PublisherGone, Sample};
pub use structure::StructureLoan;
pub use subscriber::Subscriber;

use super::{Channel, ChannelError, ChannelOptions, Purpose, ReadError, WriteError};
use crate::port::BindError;
use crate::schema::Hash;
use crate::structure::{NoRoom, RootError};
use crate::wait::WaitSetError;
use crate::{Deadline, Disowned, Domain};
use portolan_abi::channel::{MAX_UNIT, MIN_UNITS, UNIT_HEAD_WORDS};
use portolan_abi::limits::{LINE, MAX_NAME, PAGE};
use portolan_abi::name::{RULE, is_name};
use sample::COPY_ALIGN;
use store::{Form, SampleReference, TAG};

/// Tries to find what another one is making, or to make what another one is dropping.
const TRIES: u32 = 100;

/// Bytes of a topic's name at most: its channels' are longer.
const MAX_TOPIC: usize = MAX_NAME - "#255".len();

/// How a topic is to be. How many publish and subscribe the first one who does either decides
/// for all; the rest each one says for itself.
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
    /// Of a publisher: how many of its samples a late subscriber can get, and at least how many
    /// one may lag behind. Of a subscriber: how many earlier ones it wants of each publisher.
    pub fn history(mut self, samples: u64) -> Self {
        self.history = samples;
        self
    }

    /// How many may publish at a time; the first one's word holds.
    pub fn publishers(mut self, publishers: u8) -> Self {
        self.publishers = publishers;
        self
    }

    /// How many may subscribe at a time; the first one's word holds.
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

    /// A publisher's channel.
    fn channel<T: Payload + ?Sized>(&self, name: &str, subscribers: u64) -> ChannelOptions {
        let holds = match T::SIZE {
            Some(size) if size <= self.copied && T::ALIGN <= COPY_ALIGN => size,
            Some(_) => SampleReference::BYTES,
            None if T::REFERENCE > 0 => T::REFERENCE,
            None => self.copied.saturating_add(TAG).max(SampleReference::BYTES),
        };
        // What is too large is refused with the rest of the shape.
        let unit = (holds.min(MAX_UNIT) + 8 * UNIT_HEAD_WORDS).next_multiple_of(LINE);
        ChannelOptions::named(name)
            .unit(unit)
            .units(self.units())
            .readers(subscribers)
            .content(T::content())
            .used_for(Purpose::Topic)
    }

    /// Units of a channel that keeps the history.
    fn units(&self) -> u64 {
        // A channel keeps three quarters of its units for those who come late.
        let units = self.history.saturating_mul(4).div_ceil(3).saturating_add(1);
        let units = units.checked_next_power_of_two().unwrap_or(u64::MAX);
        units.max(4 * MIN_UNITS)
    }
}

/// Why there is no publisher, or subscriber.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The caller's, or the others': they use another type, or another version of it.
    #[error(
        "the topic {topic:?} is of another type than {wanted}, or of another version or build of it (content {found:#x} instead of {expected:#x}): use the same, or another topic"
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
    /// The caller's.
    #[error("{topic:?} is no name of a topic: use 1 to {MAX_TOPIC} bytes {RULE}")]
    BadName {
        /// The name.
        topic: String,
    },
    /// The state's.
    #[error("the topic has its {publishers} publishers: let one go, or make it for more")]
    TooManyPublishers {
        /// How many.
        publishers: u8,
    },
    /// The state's: earlier publishers have left channels that keep less, and which subscribers
    /// still read.
    #[error(
        "the topic's free channels are made for a history of less than {history} samples: publish with a shorter one, subscribe anew, or make the topic for more publishers"
    )]
    ShortHistory {
        /// What was asked for.
        history: u64,
    },
    /// See [`ChannelError`].
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// See [`WaitSetError`]; [`WaitSetError::NoEntry`] of a topic that has as many subscribers as
    /// it was made for.
    #[error(transparent)]
    WaitSet(#[from] WaitSetError),
    /// It could not be announced.
    #[error(transparent)]
    Announce(#[from] WriteError),
}

/// Why a sample was not published; no subscriber was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// No memory to build a structure in.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The caller's, or a member's: the structure cannot be read.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The caller's: what is published is a structure, and nothing beside it.
    #[error(
        "the structure's message holds more than the structure (a header, rights, or further memory): take it out, or send the message to a port"
    )]
    NotAlone,
    /// The caller's: its memory is another domain's.
    #[error("the structure lies in another domain's memory: build it in the publisher's")]
    Foreign,
    /// No memory of its own for a long sample.
    #[error(transparent)]
    NoMemory(#[from] BindError),
    /// See [`WriteError`].
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why what a publisher wrote is no value of the topic's type.
#[derive(Debug)]
pub(crate) enum NotASample {
    /// Its bytes are none.
    Value,
    /// It is another structure, or none.
    Structure(RootError),
}

impl From<RootError> for NotASample {
    fn from(error: RootError) -> Self {
        Self::Structure(error)
    }
}

impl SubscribeError {
    #[cold]
    fn not_a_sample<T: ?Sized>(publisher: u8, position: u64, why: NotASample) -> Self {
        let wanted = std::any::type_name::<T>();
        match why {
            NotASample::Value => Self::NotAValue {
                publisher,
                position,
                wanted,
            },
            NotASample::Structure(why) => Self::NotAStructure {
                publisher,
                position,
                why,
            },
        }
    }
}

/// Why no sample came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The state's: nothing came before the deadline.
    #[error("no sample came before the deadline")]
    TimedOut,
    /// A publisher's: the bytes of a sample are no value of the type. It is left out; the next
    /// call goes on behind it.
    #[error(
        "sample {position} of publisher {publisher} is no {wanted}: its program wrote past its memory, or says of a type what it does not keep"
    )]
    NotAValue {
        /// Which publisher.
        publisher: u8,
        /// The sample's number.
        position: u64,
        /// The type.
        wanted: &'static str,
    },
    /// A publisher's: a structure cannot be read. It is left out; the next call goes on behind it.
    #[error("sample {position} of publisher {publisher}: {why}")]
    NotAStructure {
        /// Which publisher.
        publisher: u8,
        /// The sample's number.
        position: u64,
        /// Why.
        #[source]
        why: RootError,
    },
    /// A publisher's: see [`ReadError`]. One whose channel is garbled is followed no more; the
    /// next call goes on with the others.
    #[error("publisher {publisher}: {why}")]
    Read {
        /// Which publisher.
        publisher: u8,
        /// Why.
        #[source]
        why: ReadError,
    },
    /// See [`WaitSetError`].
    #[error(transparent)]
    WaitSet(#[from] WaitSetError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// A new publisher could not be followed. Told once; it is tried again.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// Another process's: where publishers announce themselves, it wrote something that no
    /// publisher writes. Told once; present publishers are followed still.
    #[error("new publishers are not heard of any more ({0}): subscribe to another topic")]
    Newcomers(#[source] ReadError),
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
        let rendezvous = RendezvousChannel::open::<T>(self, topic, &options)?;
        let mut short = false;
        for id in 0..rendezvous.publishers {
            let name = format!("{topic}#{id}");
            let wanted = options.channel::<T>(&name, rendezvous.subscribers());
            let channel = open(self, &wanted, &name)?;
            check::<T>(topic, &channel, 0)?;
            if channel.writer().is_some() {
                continue;
            }
            // Left by a publisher that kept less, and still read.
            if channel.units() < options.units() {
                short = true;
                continue;
            }
            let writer = match channel.bind_writer() {
                Ok(writer) => writer,
                Err(ChannelError::Written { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let announce = rendezvous.channel.bind_writer();
            announce?.write(&[id], std::time::Duration::from_secs(5))?;
            return Ok(Publisher::new(
                self,
                &options,
                (writer, channel),
                rendezvous.channel,
                id,
            ));
        }
        let (history, publishers) = (options.history, rendezvous.publishers);
        Err(match short {
            true => TopicError::ShortHistory { history },
            false => TopicError::TooManyPublishers { publishers },
        })
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
        let rendezvous = RendezvousChannel::open::<T>(self, topic, &options)?;
        Subscriber::new(self, topic, options.history, &rendezvous)
    }
}

/// A topic's rendezvous channel, on which its publishers announce themselves.
struct RendezvousChannel {
    channel: Channel,
    publishers: u8,
}

impl RendezvousChannel {
    /// The bits of its content that say how many may publish.
    const PUBLISHERS: u64 = u8::MAX as u64;

    fn open<T: Payload + ?Sized>(
        domain: &Domain,
        topic: &str,
        options: &TopicOptions,
    ) -> Result<Self, TopicError> {
        if !is_name(topic, MAX_TOPIC) {
            let topic = topic.to_owned();
            return Err(TopicError::BadName { topic });
        }
        let name = format!("{topic}#");
        let content = T::content() & !Self::PUBLISHERS | u64::from(options.publishers);
        let wanted = ChannelOptions::named(&name)
            .many_writers()
            .units(16)
            .readers(options.subscribers)
            .content(content)
            .used_for(Purpose::Publishers);
        let channel = open(domain, &wanted, &name)?;
        check::<T>(topic, &channel, Self::PUBLISHERS)?;
        let [publishers, ..] = channel.content().to_le_bytes();
        Ok(Self {
            channel,
            publishers,
        })
    }

    /// How many may subscribe.
    fn subscribers(&self) -> u64 {
        self.channel.entries()
    }
}

/// The channel of this name; made, if it is not there.
fn open(domain: &Domain, options: &ChannelOptions, name: &str) -> Result<Channel, TopicError> {
    let mut tries = 0;
    loop {
        if let Ok(channel) = domain.find_channel(name, Deadline::NOW) {
            return Ok(channel);
        }
        tries += 1;
        match domain.make_channel(options) {
            Ok(channel) => return Ok(channel),
            // Made meanwhile; or the last right on it is just being dropped.
            Err(ChannelError::Bind(BindError::NameTaken { .. })) if tries < TRIES => {
                std::thread::yield_now();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether it is a channel of `T`s, but for some bits of its content.
fn check<T: Payload + ?Sized>(
    topic: &str,
    channel: &Channel,
    but_for: u64,
) -> Result<(), TopicError> {
    let (expected, found) = (T::content() & !but_for, channel.content() & !but_for);
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
fn content_of_flat<T: payload::sealed::Payload + ?Sized>(hash: u64) -> u64 {
    let size = T::SIZE.map_or(u64::MAX, |size| size as u64);
    let hash = Hash::new().text("topic").word(hash);
    hash.word(size).word(T::ALIGN as u64).finish()
}
