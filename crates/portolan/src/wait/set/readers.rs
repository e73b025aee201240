//! Readers of channels in a wait set, with parcels and without, of frames and of topics.

use super::error::{
    AddFrameReaderError, AddParcelReaderError, AddReaderError, AddSubscriberError, WhyNoPlace,
    WhyNoReader,
};
use super::guest::Guest;
use super::{Token, WaitSet};
use crate::channel::Ring;
use crate::channel::{
    FrameReader, ParcelReader, Payload, Reader, Signalling, Subscriber, Subscribes,
};
use portolan_shm::channel::Reading;
use std::any::Any;

impl WaitSet {
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
        match self.why_no(reader.at()) {
            None => Ok(self.seat(Guest::Reader(reader))),
            Some(why) => {
                let reader = Box::new(reader);
                Err(AddReaderError { reader, why })
            }
        }
    }

    /// A reader of the set, for what needs no reading; `None` if it is not in the set.
    pub fn reader(&self, token: Token) -> Option<&Reader> {
        match self.guest(token)? {
            Guest::Reader(reader) => Some(reader),
            _ => None,
        }
    }

    /// A reader of the set, to read; `None` if it is not in the set.
    ///
    /// Any reading call is fine, also one that waits.
    pub fn reader_mut(&mut self, token: Token) -> Option<&mut Reader> {
        match self.guest_mut(token)? {
            Guest::Reader(reader) => Some(reader),
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

    /// Adds a reader of parcels: as [`add_reader`](Self::add_reader), also while nobody writes.
    /// It makes itself known to the next writer as soon as that is there.
    ///
    /// # Errors
    ///
    /// The reader comes back.
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, Parcel, ReaderOptions};
    /// use portolan::{Deadline, Domain, WaitSet};
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable())?;
    /// let mut writer = channel.bind_parcel_writer()?;
    /// let reader = channel.bind_parcel_reader(ReaderOptions::default(), Deadline::NOW)?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add_parcel_reader(reader)?;
    ///
    /// let extent = domain.allocate(1 << 20)?;
    /// writer.send(b"large", Some(Parcel::Moved(extent)), Deadline::NOW)?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token));
    /// let reader = set.parcel_reader_mut(token).ok_or("not in the set")?;
    /// assert!(reader.receive(Deadline::NOW)?.parcel.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_parcel_reader(
        &mut self,
        reader: ParcelReader,
    ) -> Result<Token, AddParcelReaderError> {
        let reader = Box::new(reader);
        match self.why_no(reader.reader().at()) {
            None => Ok(self.seat(Guest::Parcels(reader))),
            Some(why) => Err(AddParcelReaderError { reader, why }),
        }
    }

    /// A reader of parcels of the set, to read; `None` if it is not in the set.
    ///
    /// Any reading call is fine, also one that waits.
    pub fn parcel_reader_mut(&mut self, token: Token) -> Option<&mut ParcelReader> {
        match self.guest_mut(token)? {
            Guest::Parcels(reader) => Some(reader),
            _ => None,
        }
    }

    /// Gives a reader of parcels back; `None` if it is not in the set.
    pub fn remove_parcel_reader(&mut self, token: Token) -> Option<ParcelReader> {
        self.parcel_reader_mut(token)?;
        match self.unseat(token) {
            Some(Guest::Parcels(reader)) => Some(*reader),
            _ => None,
        }
    }

    /// Adds a reader of a raw channel. The next wait names it if something was put since its
    /// last [`FrameReader::wait`], or the writer has gone; it is named again until it has
    /// waited, which is how it takes note. Its channel must signal.
    ///
    /// # Errors
    ///
    /// The reader comes back.
    ///
    /// ```
    /// use portolan::channel::ChannelOptions;
    /// use portolan::{Deadline, Domain, WaitSet};
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed().raw())?;
    /// let mut camera = channel.bind_frame_writer()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add_frame_reader(channel.bind_frame_reader()?)?;
    ///
    /// camera.put(0, b"a line")?;
    /// camera.show()?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token));
    /// let screen = set.frame_reader_mut(token).ok_or("not in the set")?;
    /// assert_eq!(screen.wait(Deadline::NOW)?, 1);
    /// assert!(set.wait(Deadline::NOW)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_frame_reader(&mut self, reader: FrameReader) -> Result<Token, AddFrameReaderError> {
        match self.why_no(reader.at()) {
            None => Ok(self.seat(Guest::Frames(reader))),
            Some(why) => {
                let reader = Box::new(reader);
                Err(AddFrameReaderError { reader, why })
            }
        }
    }

    /// A reader of a raw channel of the set, to look; `None` if it is not in the set.
    ///
    /// Any call is fine, also one that waits.
    pub fn frame_reader_mut(&mut self, token: Token) -> Option<&mut FrameReader> {
        match self.guest_mut(token)? {
            Guest::Frames(reader) => Some(reader),
            _ => None,
        }
    }

    /// Gives a reader of a raw channel back; `None` if it is not in the set.
    pub fn remove_frame_reader(&mut self, token: Token) -> Option<FrameReader> {
        self.frame_reader_mut(token)?;
        match self.unseat(token) {
            Some(Guest::Frames(reader)) => Some(reader),
            _ => None,
        }
    }

    /// Adds a subscriber of a topic, with all publishers that it follows and will follow: one
    /// token is named when one of them has written, or a new one has come. Arming it costs as
    /// much as it has publishers.
    ///
    /// # Errors
    ///
    /// The subscriber comes back.
    ///
    /// ```
    /// use portolan::channel::TopicOptions;
    /// use portolan::{Deadline, Domain, WaitSet};
    /// let domain = Domain::private()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let subscriber = domain.subscriber::<u64>("height", TopicOptions::default())?;
    /// let token = set.add_subscriber(subscriber)?;
    ///
    /// let mut publisher = domain.publisher::<u64>("height", TopicOptions::default())?;
    /// publisher.publish(&8848)?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token));
    /// let subscriber = set.subscriber_mut::<u64>(token).ok_or("not in the set")?;
    /// assert_eq!(*subscriber.receive(Deadline::NOW)?, 8848);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_subscriber<T: Payload + ?Sized>(
        &mut self,
        subscriber: Subscriber<T>,
    ) -> Result<Token, AddSubscriberError<T>> {
        let subscriber = Box::new(subscriber);
        match self.why_no_place(subscriber.member()) {
            None => Ok(self.seat(Guest::Subscriber(subscriber))),
            Some(why) => Err(AddSubscriberError { subscriber, why }),
        }
    }

    /// A subscriber of the set, to receive; `None` if it is not in the set, or gets samples of
    /// another type.
    ///
    /// Any call is fine, also one that waits. After [`SubscribeError::TimedOut`] there was no
    /// sample: it may have been a new publisher that was named.
    ///
    /// [`SubscribeError::TimedOut`]: crate::channel::SubscribeError::TimedOut
    pub fn subscriber_mut<T: Payload + ?Sized>(
        &mut self,
        token: Token,
    ) -> Option<&mut Subscriber<T>> {
        match self.guest_mut(token)? {
            Guest::Subscriber(subscriber) => (&mut **subscriber as &mut dyn Any).downcast_mut(),
            _ => None,
        }
    }

    /// Gives a subscriber back; `None` if it is not in the set, or gets samples of another
    /// type.
    pub fn remove_subscriber<T: Payload + ?Sized>(
        &mut self,
        token: Token,
    ) -> Option<Subscriber<T>> {
        self.subscriber_mut::<T>(token)?;
        match self.unseat(token) {
            Some(Guest::Subscriber(subscriber)) => {
                let subscriber: Box<dyn Any> = subscriber;
                subscriber.downcast().ok().map(|subscriber| *subscriber)
            }
            _ => None,
        }
    }

    /// Why a reader that stands here is not added.
    fn why_no(&self, (ring, reading): (&Ring, &Reading)) -> Option<WhyNoReader> {
        let channel = ring.channel();
        match self.why_no_place(&ring.segment().right().to.member) {
            Some(WhyNoPlace::OtherDomain) => Some(WhyNoReader::OtherDomain),
            _ if !channel.has_entry(reading) => Some(WhyNoReader::NoEntry),
            _ if channel.mode().signalling == Signalling::Never => Some(WhyNoReader::NotSignalled),
            full => full.map(|_| WhyNoReader::Full),
        }
    }
}
