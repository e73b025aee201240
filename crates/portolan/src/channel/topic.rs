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
//! sleeps in a wait set over all of these channels.

use super::{
    BindChannelError, Channel, ChannelOptions, Claim, FindChannelError, MakeChannelError,
    ReadError, Reader, ReaderOptions, Since, WriteError, Writer,
};
use crate::port::BindError;
use crate::segment::SegmentError;
use crate::wait_set::{AddReaderError, Token, WaitError, WaitSet, WaitSetError};
use crate::{Deadline, Domain};
use bytemuck::Pod;
use portolan_abi::channel::{MIN_UNITS, UNIT_HEAD_WORDS};
use portolan_abi::limits::LINE;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

/// Tries to find what another one is making, or to make what another one is dropping.
const TRIES: u32 = 100;

/// How a topic is to be; the first one who publishes or subscribes decides for all.
#[derive(Clone, Copy, Debug)]
pub struct TopicOptions {
    history: u64,
    publishers: u8,
    subscribers: u64,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self {
            history: 1,
            publishers: 8,
            subscribers: 32,
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

    fn channel<T: Pod>(&self, name: &str) -> ChannelOptions {
        let unit = (size_of::<T>() + 8 * UNIT_HEAD_WORDS).next_multiple_of(LINE);
        // A channel keeps three quarters of its units for those who come late.
        let units = self.history.saturating_mul(4).div_ceil(3).saturating_add(1);
        let units = units.checked_next_power_of_two().unwrap_or(u64::MAX);
        ChannelOptions::named(name)
            .unit(unit.max(LINE))
            .units(units.max(4 * MIN_UNITS))
            .readers(self.subscribers)
            .content(content_of::<T>())
    }
}

/// Why there is no publisher, or subscriber.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The caller's, or the others': they use another type.
    #[error(
        "the topic {topic:?} is of another type than {wanted} (content {found:#x} instead of {expected:#x})"
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
    /// Publishes samples of `T` under `topic`. Any number of subscribers, before and after,
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
    /// let loan = publisher.loan()?;
    /// loan.fill(0, &6f64.to_le_bytes());
    /// loan.publish();
    /// assert_eq!(subscriber.receive(Deadline::NEVER)?[0], 6.0);
    /// assert!(domain.subscriber::<u32>("position", options).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publisher<T: Pod>(
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
            return Ok(Publisher {
                writer,
                channel,
                _lobby: lobby,
                id,
                of: PhantomData,
            });
        }
        let publishers = options.publishers;
        Err(TopicError::TooManyPublishers { publishers })
    }

    /// Subscribes to the samples of `T` under `topic`, of all who publish there now and later.
    ///
    /// # Errors
    ///
    /// [`TopicError`].
    pub fn subscriber<T: Pod>(
        &self,
        topic: &str,
        options: TopicOptions,
    ) -> Result<Subscriber<T>, TopicError> {
        let lobby = lobby::<T>(self, topic, &options)?;
        let mut set = WaitSet::new(self)?;
        let newcomers = set.add_reader(lobby.bind_reader(ReaderOptions::default())?)?;
        let mut subscriber = Subscriber {
            domain: self.clone(),
            topic: topic.to_owned(),
            options,
            set,
            newcomers,
            sources: Vec::new(),
            next: 0,
            of: PhantomData,
        };
        subscriber.follow(options.history)?;
        Ok(subscriber)
    }
}

/// Publishes samples of `T`. See [`Domain::publisher`].
pub struct Publisher<T> {
    writer: Writer,
    channel: Channel,
    /// Keeps it, for whoever comes.
    _lobby: Channel,
    id: u8,
    of: PhantomData<fn(T)>,
}

impl<T: Pod> Publisher<T> {
    /// Publishes a sample; its position. Never waits for anybody.
    ///
    /// # Errors
    ///
    /// [`WriteError::Disowned`].
    pub fn publish(&mut self, sample: &T) -> Result<u64, WriteError> {
        self.writer.write(bytemuck::bytes_of(sample), Deadline::NOW)
    }

    /// Room for a sample, to be filled in place.
    ///
    /// # Errors
    ///
    /// [`WriteError::Disowned`].
    pub fn loan(&mut self) -> Result<Loan<'_, T>, WriteError> {
        let claim = self.writer.claim(size_of::<T>(), Deadline::NOW)?;
        Ok(Loan {
            claim,
            of: PhantomData,
        })
    }

    /// Which of the topic's publishers it is.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// The channel that it writes to.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl<T> std::fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Room for a sample in the channel itself; given up if it is dropped instead of published.
///
/// It holds an older sample, or zeros, until it is filled.
#[derive(Debug)]
#[must_use = "a loan that is not published writes nothing"]
pub struct Loan<'p, T> {
    claim: Claim<'p>,
    of: PhantomData<fn(T)>,
}

impl<T: Pod> Loan<'_, T> {
    /// Writes the whole sample.
    pub fn write(&self, sample: &T) {
        self.claim.fill(0, bytemuck::bytes_of(sample));
    }

    /// Writes some of its bytes, from `offset` on.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.claim.fill(offset, bytes);
    }

    /// Its words; the last one may reach beyond it.
    pub fn words(&self) -> &[AtomicU64] {
        &self.claim.words(0)[..size_of::<T>().div_ceil(8)]
    }

    /// Publishes it; its position.
    pub fn publish(self) -> u64 {
        self.claim.commit()
    }
}

/// A sample, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<T> {
    value: T,
    publisher: u8,
    position: u64,
    missed: u64,
}

impl<T> Sample<T> {
    /// The sample itself.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Who published it.
    pub fn publisher(&self) -> u8 {
        self.publisher
    }

    /// Its number among that publisher's samples.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Samples of that publisher that were missed just before it.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl<T> Deref for Sample<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Gets the samples of a topic. See [`Domain::subscriber`].
pub struct Subscriber<T> {
    domain: Domain,
    topic: String,
    options: TopicOptions,
    set: WaitSet,
    /// Where publishers announce themselves.
    newcomers: Token,
    sources: Vec<Source>,
    /// Whose turn it is.
    next: usize,
    of: PhantomData<fn() -> T>,
}

struct Source {
    publisher: u8,
    token: Token,
    missed: u64,
}

impl<T: Pod> Subscriber<T> {
    /// The next sample of any publisher, waiting for it until the deadline. Each publisher's
    /// samples come in order.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`].
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Sample<T>, SubscribeError> {
        let deadline = deadline.into();
        loop {
            if let Some(sample) = self.look()? {
                return Ok(sample);
            }
            if self.greet()? {
                continue;
            }
            if self.set.wait(deadline)?.is_empty() {
                return Err(SubscribeError::TimedOut);
            }
        }
    }

    /// How many have published so far, and may again.
    pub fn publishers(&self) -> usize {
        self.sources.len()
    }

    /// The wait set that it sleeps in, as a descriptor for epoll: readable while
    /// [`Self::receive`] may find something.
    pub fn wait_set(&self) -> &WaitSet {
        &self.set
    }

    /// A sample that is there, of each publisher in turn.
    fn look(&mut self) -> Result<Option<Sample<T>>, SubscribeError> {
        let count = self.sources.len();
        for step in 0..count {
            let index = (self.next + step) % count;
            let source = &mut self.sources[index];
            let Some(reader) = self.set.reader_mut(source.token) else {
                continue;
            };
            if let Some(sample) = next_of(reader, source)? {
                self.next = index + 1;
                return Ok(Some(sample));
            }
        }
        Ok(None)
    }

    /// Whether somebody has announced itself: then all are looked for.
    fn greet(&mut self) -> Result<bool, SubscribeError> {
        let mut came = false;
        let Some(lobby) = self.set.reader_mut(self.newcomers) else {
            return Ok(false);
        };
        while let Ok(_) | Err(ReadError::Missed(_)) = lobby.receive(Deadline::NOW) {
            came = true;
        }
        if came {
            // Of somebody who came after us, all that is there.
            self.follow(u64::MAX)?;
        }
        Ok(came)
    }

    /// Reads the channels of publishers that it does not read yet, from so many samples ago.
    fn follow(&mut self, history: u64) -> Result<(), TopicError> {
        for publisher in 0..self.options.publishers {
            if self.sources.iter().any(|s| s.publisher == publisher) {
                continue;
            }
            let name = format!("{}#{publisher}", self.topic);
            let Ok(channel) = self.domain.find_channel(&name, Deadline::NOW) else {
                continue;
            };
            check::<T>(&self.topic, &channel)?;
            let since = ReaderOptions::default().since(Since::Last(history));
            let token = self.set.add_reader(channel.bind_reader(since)?)?;
            self.sources.push(Source {
                publisher,
                token,
                missed: 0,
            });
        }
        Ok(())
    }
}

impl<T> std::fmt::Debug for Subscriber<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber")
            .field("topic", &self.topic)
            .field("publishers", &self.sources.len())
            .finish_non_exhaustive()
    }
}

/// A sample that one publisher has written, and how many of its were missed.
fn next_of<T: Pod>(
    reader: &mut Reader,
    source: &mut Source,
) -> Result<Option<Sample<T>>, SubscribeError> {
    let publisher = source.publisher;
    loop {
        match reader.receive(Deadline::NOW) {
            Ok(received) if received.len() == size_of::<T>() => {
                return Ok(Some(Sample {
                    value: bytemuck::pod_read_unaligned(&received),
                    publisher,
                    position: received.position(),
                    missed: std::mem::take(&mut source.missed),
                }));
            }
            // Of another length: not written by a publisher of ours.
            Ok(_) => source.missed += 1,
            Err(ReadError::Missed(range)) => source.missed += range.units(),
            Err(ReadError::TimedOut) => return Ok(None),
            // The next one to publish here goes on.
            Err(ReadError::WriterGone) => {}
            Err(why) => return Err(SubscribeError::Read { publisher, why }),
        }
    }
}

/// The channel on which the topic's publishers announce themselves.
fn lobby<T: Pod>(
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
fn open<T: Pod>(
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

fn check<T: Pod>(topic: &str, channel: &Channel) -> Result<(), TopicError> {
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

/// What tells a type from another: its name, size and alignment, as FNV-1a.
fn content_of<T>() -> u64 {
    let name = std::any::type_name::<T>().bytes();
    let shape = [size_of::<T>(), align_of::<T>()].map(usize::to_le_bytes);
    name.chain(shape.into_iter().flatten())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
