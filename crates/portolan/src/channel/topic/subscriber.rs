//! A subscriber gets the samples of all publishers of its topic.

use super::payload::Payload;
use super::plain::{Held, NotHeld};
use super::retry::Retry;
use super::sample::Few;
use super::store::{Form, SampleReference};
use super::{
    NotASample, PublisherGone, RendezvousChannel, Sample, SubscribeError, TopicError, check,
    form_of,
};
use crate::channel::{ReadError, Reader, ReaderOptions, Since};
use crate::space::Member;
use crate::space::record::About;
use crate::wait::Armable;
use crate::wait::{Token, WaitSet};
use crate::{Deadline, Domain, EventKind, Waiting};
use portolan_abi::port::PortName;
use portolan_shm::bulk;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Gets the samples of a topic. See [`Domain::subscriber`].
///
/// A [`WaitSet`](crate::WaitSet) has it with all publishers that it follows and will follow: one
/// token is named when one of them has written, or a new one has come. Arming it costs as
/// much as it has publishers. After [`SubscribeError::TimedOut`] there was no sample: it may have
/// been a new publisher that was named, or one that could not be followed and is tried again.
///
/// ```
/// use portolan::channel::TopicOptions;
/// use portolan::{Deadline, Domain, WaitSet};
/// let domain = Domain::private()?;
/// let mut set = WaitSet::new(&domain)?;
/// let subscriber = domain.subscriber::<u64>("height", TopicOptions::default())?;
/// let token = set.add(subscriber)?;
///
/// let mut publisher = domain.publisher::<u64>("height", TopicOptions::default())?;
/// publisher.publish(&8848)?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let subscriber = set.get_mut(token).ok_or("not in the set")?;
/// assert_eq!(*subscriber.receive(Deadline::NOW)?, 8848);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Subscriber<T: ?Sized> {
    domain: Domain,
    topic: String,
    /// How many may publish.
    publishers: u8,
    set: WaitSet,
    /// Where publishers announce themselves.
    newcomers: Token<Reader>,
    sources: Vec<Source>,
    /// Publishers that could not be followed, and were told of.
    refused: Vec<u8>,
    /// In the set while there are any.
    retry: Option<Token<Retry>>,
    /// Channels that were garbled: not read again.
    garbled: Vec<PortName>,
    /// Whose turn it is.
    next: usize,
    /// Publishers that have gone are told of ([`Self::take_gone`]).
    tells_gone: bool,
    of: PhantomData<fn(&T)>,
}

struct Source {
    publisher: u8,
    channel: PortName,
    token: Token<Reader>,
    form: Form,
    missed: u64,
    /// A publisher has gone, all of whose samples were read.
    gone: bool,
}

impl<T: Payload + ?Sized> Subscriber<T> {
    pub(super) fn new(
        domain: &Domain,
        topic: &str,
        history: u64,
        rendezvous: &RendezvousChannel,
    ) -> Result<Self, TopicError> {
        let mut set = WaitSet::new(domain)?;
        let newcomers = set
            .add(rendezvous.channel.bind_reader(ReaderOptions::default())?)
            .map_err(|refused| refused.why)?;
        let mut subscriber = Self {
            domain: domain.clone(),
            topic: topic.to_owned(),
            publishers: rendezvous.publishers,
            set,
            newcomers,
            sources: Vec::new(),
            refused: Vec::new(),
            retry: None,
            garbled: Vec::new(),
            next: 0,
            tells_gone: false,
            of: PhantomData,
        };
        subscriber.follow(history)?;
        Ok(subscriber)
    }

    /// The next sample of any publisher, waiting for it until the deadline. Each publisher's
    /// samples come in order.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`].
    #[inline]
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Sample<T>, SubscribeError> {
        match self.take_straight() {
            Some(taken) => taken,
            None => self.receive_any(deadline.into()),
        }
    }

    /// The straight line: what comes next of the publisher whose turn it is, if its bytes were
    /// written in a few words, while nobody traces. `None`: [`Self::receive_any`] looks further.
    #[inline(always)]
    fn take_straight(&mut self) -> Option<Result<Sample<T>, SubscribeError>> {
        let member = self.domain.member();
        // The first of these before our own lines are looked at: a forked child has none.
        if member.present().is_err() || member.traces(EventKind::Take) {
            return None;
        }
        let turn = self.next;
        let index = if turn < self.sources.len() { turn } else { 0 };
        let source = self.sources.get_mut(index)?;
        let reader = self.set.get_mut(source.token)?;
        let (form, mut few): (_, Few) = (source.form, [0; 4]);
        let taken = reader.take_with(|words: &[AtomicU64], len: usize| {
            let (words, len) = form.own_bytes(words, len)?;
            bulk::load(words, bytemuck::cast_slice_mut(&mut few).get_mut(..len)?);
            Some(len)
        });
        let Some((position, len)) = taken else {
            let told = Self::take_told(reader, source, member)?;
            self.next = index + 1;
            return told.transpose();
        };
        self.next = index + 1;
        match T::hold_few(&few, len) {
            Ok(held) => {
                let missed = std::mem::take(&mut source.missed);
                Some(Ok(Sample::new(held, source.publisher, position, missed)))
            }
            // As in `next_of`.
            Err(NotHeld::Shape) => {
                source.missed += 1;
                None
            }
            Err(NotHeld::Value) => {
                let (publisher, why) = (source.publisher, NotASample::Value);
                let error = SubscribeError::not_a_sample::<T>(publisher, position, why);
                Some(Err(error))
            }
        }
    }

    /// The same, of a sample of this publisher's that lies elsewhere, and of which a few words tell.
    #[inline(never)]
    fn take_told(
        reader: &mut Reader,
        source: &mut Source,
        member: &Arc<Member>,
    ) -> Option<Result<Option<Sample<T>>, SubscribeError>> {
        if source.form == Form::Bare {
            return None;
        }
        let mut few: Few = [0; 4];
        let (position, len) = reader.take_with(|words: &[AtomicU64], len: usize| {
            bulk::load(words, bytemuck::cast_slice_mut(&mut few).get_mut(..len)?);
            Some(len)
        })?;
        let message = &bytemuck::cast_slice(&few)[..len];
        let held = match source.form.reference(message) {
            Some(reference) => hold_told::<T>(reference, reader, position, member),
            None => T::hold(source.form, message, member),
        };
        match held {
            Ok(Some(held)) => {
                let missed = std::mem::take(&mut source.missed);
                let sample = Sample::new(held, source.publisher, position, missed);
                Some(Ok(Some(sample)))
            }
            // As in `next_of`.
            Ok(None) => {
                source.missed += 1;
                Some(Ok(None))
            }
            Err(why) => {
                let publisher = source.publisher;
                let error = SubscribeError::not_a_sample::<T>(publisher, position, why);
                Some(Err(error))
            }
        }
    }

    /// The same, of any sample, waiting for it.
    #[inline(never)]
    fn receive_any(&mut self, deadline: Deadline) -> Result<Sample<T>, SubscribeError> {
        self.domain.member().present()?;
        let mut over = false;
        loop {
            if let Some(sample) = self.look()? {
                return Ok(sample);
            }
            let came = self.greet()?;
            if over || self.has_gone() {
                return Err(SubscribeError::TimedOut);
            }
            over = deadline.has_passed();
            if came {
                continue;
            }
            if self.set.wait(deadline)?.is_empty() && (over || deadline.has_passed()) {
                return Err(SubscribeError::TimedOut);
            }
        }
    }

    /// As [`Self::receive`], without blocking the thread. A future that is dropped loses no
    /// sample.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`], but not [`SubscribeError::TimedOut`]: for a deadline, put the future
    /// into `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and in one without its I/O driver.
    ///
    /// ```
    /// use portolan::Domain;
    /// use portolan::channel::TopicOptions;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut subscriber = domain.subscriber::<u64>("height", TopicOptions::default())?;
    /// let mut publisher = domain.publisher::<u64>("height", TopicOptions::default())?;
    /// tokio::spawn(async move { publisher.publish(&8848) });
    /// assert_eq!(*subscriber.receive_async().await?, 8848);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&mut self) -> Result<Sample<T>, SubscribeError> {
        loop {
            match self.receive(Deadline::NOW) {
                Err(SubscribeError::TimedOut) => {}
                other => return other,
            }
            self.something().await?;
        }
    }

    /// Waits until the next look may find something.
    #[cfg(feature = "tokio")]
    pub(crate) async fn something(&mut self) -> Result<(), SubscribeError> {
        // Names what it sleeps for; the next look takes it.
        let _ = self.set.wait_async().await?;
        Ok(())
    }

    /// From now on it remembers publishers that have gone, until [`Self::take_gone`]. A receive that
    /// waits ends as if its deadline had passed when one goes.
    pub(crate) fn tell_of_gone(&mut self) {
        self.tells_gone = true;
        for source in &self.sources {
            if let Some(reader) = self.set.get_mut(source.token) {
                reader.tell_of_each_writer();
            }
        }
    }

    /// Whether a publisher has gone that was not taken note of.
    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        self.tells_gone && self.sources.iter().any(|source| source.gone)
    }

    /// A publisher that has gone, told of once.
    #[inline]
    pub(crate) fn take_gone(&mut self) -> Option<PublisherGone> {
        if !self.has_gone() {
            return None;
        }
        let source = self.sources.iter_mut().find(|source| source.gone)?;
        source.gone = false;
        Some(PublisherGone {
            publisher: source.publisher,
            next: self.set.get(source.token).map_or(0, Reader::position),
            missed: std::mem::take(&mut source.missed),
        })
    }

    /// How many publishers there are now.
    pub(crate) fn live_publishers(&self) -> usize {
        let readers = self.sources.iter().map(|source| self.set.get(source.token));
        readers
            .flatten()
            .filter(|reader| reader.has_writer())
            .count()
    }

    /// How many have published so far, and may again.
    pub fn publishers(&self) -> usize {
        self.sources.len()
    }

    /// Chooses how it waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.set.set_waiting(waiting);
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
            let Some(reader) = self.set.get_mut(source.token) else {
                continue;
            };
            if !reader.may_have() {
                continue;
            }
            match next_of(reader, source, self.domain.member()) {
                Ok(None) => {}
                Ok(sample) => {
                    self.next = index + 1;
                    return Ok(sample);
                }
                Err(Amiss::Sample(position, why)) => {
                    self.next = index + 1;
                    let publisher = self.sources[index].publisher;
                    return Err(SubscribeError::not_a_sample::<T>(publisher, position, why));
                }
                Err(Amiss::Read(why)) => return Err(self.refuse(index, why)),
            }
        }
        Ok(None)
    }

    /// What a publisher wrote cannot be read. If no more of it ever can, the others are read
    /// without it.
    #[cold]
    fn refuse(&mut self, index: usize, why: ReadError) -> SubscribeError {
        let Source {
            publisher,
            channel,
            token,
            ..
        } = self.sources[index];
        if matches!(why, ReadError::Garbled(_) | ReadError::Dropped) {
            self.sources.remove(index);
            self.set.remove(token);
            self.garbled.retain(|other| other.index != channel.index);
            self.garbled.push(channel);
        }
        SubscribeError::Read { publisher, why }
    }

    /// Whether a publisher has announced itself: then the subscriber looks for all.
    fn greet(&mut self) -> Result<bool, SubscribeError> {
        let Some(rendezvous) = self.set.get_mut(self.newcomers) else {
            return Ok(false);
        };
        let mut came = false;
        while rendezvous.may_have() {
            match rendezvous.receive(Deadline::NOW) {
                Ok(_) | Err(ReadError::Missed(_)) => came = true,
                Err(why @ (ReadError::Garbled(_) | ReadError::Dropped)) => {
                    self.set.remove(self.newcomers);
                    return Err(SubscribeError::Newcomers(why));
                }
                Err(_) => break,
            }
        }
        if came || !self.refused.is_empty() {
            // Of a publisher that came after us, all samples that are there.
            self.follow(u64::MAX)?;
        }
        Ok(came)
    }

    /// Reads the channels of publishers that it does not read yet, from so many samples ago.
    /// Of one that it cannot read it tells once, and a retry is due.
    fn follow(&mut self, history: u64) -> Result<(), TopicError> {
        let followed = self.follow_all(history);
        match self.retry {
            Some(token) if self.refused.is_empty() => {
                self.set.remove(token);
                self.retry = None;
            }
            Some(token) => self.set.get_mut(token).into_iter().for_each(Retry::renew),
            None if self.refused.is_empty() => {}
            None => {
                let retry = Retry::new(self.domain.member().number);
                let added = self.set.add(retry).map_err(|refused| refused.why);
                self.retry = Some(added?);
            }
        }
        followed
    }

    fn follow_all(&mut self, history: u64) -> Result<(), TopicError> {
        for publisher in 0..self.publishers {
            if self.sources.iter().any(|s| s.publisher == publisher) {
                continue;
            }
            let followed = self.follow_one(publisher, history);
            let told = self.refused.iter().position(|other| *other == publisher);
            match (followed, told) {
                (Ok(()), Some(told)) => _ = self.refused.swap_remove(told),
                (Err(error), None) => {
                    self.refused.push(publisher);
                    return Err(error);
                }
                (Ok(()), None) | (Err(_), Some(_)) => {}
            }
        }
        Ok(())
    }

    fn follow_one(&mut self, publisher: u8, history: u64) -> Result<(), TopicError> {
        let name = format!("{}#{publisher}", self.topic);
        let Ok(channel) = self.domain.find_channel(&name, Deadline::NOW) else {
            return Ok(());
        };
        let port = channel.segment().right().to.port;
        if self.garbled.contains(&port) {
            return Ok(());
        }
        check::<T>(&self.topic, &channel, 0)?;
        let since = ReaderOptions::default().since(Since::Last(history));
        let mut reader = channel.bind_reader(since)?;
        if self.tells_gone {
            reader.tell_of_each_writer();
            // The channel is younger than the subscription, which would have followed it.
            reader.tell_of_earlier_writers();
        }
        let token = self.set.add(reader).map_err(|refused| refused.why)?;
        self.sources.push(Source {
            publisher,
            channel: port,
            token,
            form: form_of::<T>(&channel),
            missed: 0,
            gone: false,
        });
        Ok(())
    }
}

impl<T: Payload + ?Sized> Armable for Subscriber<T> {
    fn kind(&self) -> &'static str {
        "the subscriber"
    }

    fn membership(&self) -> u64 {
        self.domain.member().number
    }

    fn may_have(&mut self) -> bool {
        self.set.may_have()
    }

    fn has_alarms(&self) -> bool {
        true
    }

    fn due(&self) -> Option<Instant> {
        self.set.get(self.retry?)?.due()
    }

    fn arm_for(&mut self, link: u64) -> bool {
        self.set.arm_for(link)
    }
}

impl<T: ?Sized> std::fmt::Debug for Subscriber<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber")
            .field("topic", &self.topic)
            .field("publishers", &self.sources.len())
            .finish_non_exhaustive()
    }
}

/// Why what a publisher wrote is no sample.
enum Amiss {
    /// It cannot be read.
    Read(ReadError),
    /// It is no value of the topic's type.
    Sample(u64, NotASample),
}

/// The sample in a buffer of which `reader` has read at `position`; nothing, if it is gone, or was
/// never one.
#[inline]
fn hold_told<T: Payload + ?Sized>(
    reference: SampleReference,
    reader: &Reader,
    position: u64,
    member: &Arc<Member>,
) -> Result<Option<Held<T>>, NotASample> {
    let bytes = reference.take(member, reader, position);
    bytes.map_or(Ok(None), T::hold_shared)
}

/// A sample that one publisher has written, and how many of its were missed.
#[inline]
fn next_of<T: Payload + ?Sized>(
    reader: &mut Reader,
    source: &mut Source,
    member: &Arc<Member>,
) -> Result<Option<Sample<T>>, Amiss> {
    loop {
        match reader.receive(Deadline::NOW) {
            Ok(received) => {
                let position = received.position();
                let held = match source.form.reference(&received) {
                    Some(reference) => hold_told::<T>(reference, reader, position, member),
                    None => T::hold(source.form, &received, member),
                };
                match held {
                    Ok(Some(held)) => {
                        // A forked child has come no further than the wait set.
                        if member.traces(EventKind::Take) {
                            let bytes = held.bytes() as u64;
                            let about = About::message(source.channel.index, position, bytes);
                            member.happened(EventKind::Take, about);
                        }
                        let missed = std::mem::take(&mut source.missed);
                        return Ok(Some(Sample::new(held, source.publisher, position, missed)));
                    }
                    // Its memory is used for a later one; or it was not written by a publisher
                    // of ours.
                    Ok(None) => source.missed += 1,
                    Err(why) => return Err(Amiss::Sample(position, why)),
                }
            }
            Err(ReadError::Missed(range)) => source.missed += range.units(),
            Err(ReadError::TimedOut) => return Ok(None),
            // The next one to publish here goes on.
            Err(ReadError::WriterGone) => source.gone = true,
            Err(why) => return Err(Amiss::Read(why)),
        }
    }
}
