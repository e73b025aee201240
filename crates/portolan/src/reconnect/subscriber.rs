//! A subscriber that tells of publishers that left or died.

use crate::channel::{
    Payload, PublisherGone, Sample, SubscribeError, Subscriber, TopicError, TopicOptions,
};
use crate::wait::Armable;
use crate::{Deadline, Domain, WaitSet, Waiting};
use std::time::Instant;

/// Gets the samples of a topic, and is told of each publisher that left or died. See
/// [`Domain::reconnecting_subscriber`].
///
/// A [`WaitSet`](crate::WaitSet) names it as it names a
/// [`Subscriber`](crate::channel::Subscriber): when a publisher has written, has come, or has gone.
pub struct ReconnectingSubscriber<T: ?Sized> {
    subscriber: Subscriber<T>,
}

/// What a [`ReconnectingSubscriber`] receives.
#[non_exhaustive]
pub enum Update<T: ?Sized> {
    /// A sample.
    Sample(Sample<T>),
    /// A publisher left, or died.
    Gone(PublisherGone),
}

impl Domain {
    /// Subscribes to the samples of `T` under `topic`, as [`Domain::subscriber`] does, and is told of
    /// publishers that left or died.
    ///
    /// # Errors
    ///
    /// [`TopicError`].
    ///
    /// ```
    /// use portolan::channel::TopicOptions;
    /// use portolan::reconnect::Update;
    /// use portolan::{Deadline, Domain};
    ///
    /// let domain = Domain::private()?;
    /// let options = TopicOptions::default();
    /// let mut subscriber = domain.reconnecting_subscriber::<u64>("height", options)?;
    /// let mut publisher = domain.publisher::<u64>("height", options)?;
    /// publisher.publish(&8848)?;
    /// let Update::Sample(sample) = subscriber.receive(Deadline::NOW)? else { panic!() };
    /// assert_eq!(*sample, 8848);
    ///
    /// drop(publisher); // Or its process is killed.
    /// let Update::Gone(gone) = subscriber.receive(Deadline::NOW)? else { panic!() };
    /// assert_eq!((gone.publisher, gone.next, gone.missed), (0, 1, 0));
    ///
    /// let mut publisher = domain.publisher::<u64>("height", options)?;
    /// publisher.publish(&8849)?;
    /// let Update::Sample(sample) = subscriber.receive(Deadline::NOW)? else { panic!() };
    /// assert_eq!((*sample, sample.position()), (8849, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reconnecting_subscriber<T: Payload + ?Sized>(
        &self,
        topic: &str,
        options: TopicOptions,
    ) -> Result<ReconnectingSubscriber<T>, TopicError> {
        let mut subscriber = self.subscriber(topic, options)?;
        subscriber.tell_of_gone();
        Ok(ReconnectingSubscriber { subscriber })
    }
}

impl<T: Payload + ?Sized> ReconnectingSubscriber<T> {
    /// The next sample of any publisher, or that one has gone, waiting until the deadline: also for
    /// the publisher that comes after the last has gone.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`].
    #[inline]
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Update<T>, SubscribeError> {
        if let Some(gone) = self.subscriber.take_gone() {
            return Ok(Update::Gone(gone));
        }
        match self.subscriber.receive(deadline) {
            Ok(sample) => Ok(Update::Sample(sample)),
            // It stops waiting where one has gone.
            Err(SubscribeError::TimedOut) => match self.subscriber.take_gone() {
                Some(gone) => Ok(Update::Gone(gone)),
                None => Err(SubscribeError::TimedOut),
            },
            Err(why) => Err(why),
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
    /// use portolan::reconnect::Update;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let options = TopicOptions::default();
    /// let mut subscriber = domain.reconnecting_subscriber::<u64>("height", options)?;
    /// let publisher = domain.publisher::<u64>("height", options)?;
    /// tokio::spawn(async move { drop(publisher) });
    /// assert!(matches!(subscriber.receive_async().await?, Update::Gone(_)));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&mut self) -> Result<Update<T>, SubscribeError> {
        loop {
            match self.receive(Deadline::NOW) {
                Err(SubscribeError::TimedOut) => self.subscriber.something().await?,
                other => return other,
            }
        }
    }

    /// How many publishers there are now.
    pub fn live_publishers(&self) -> usize {
        self.subscriber.live_publishers()
    }

    /// Chooses how it waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.subscriber.set_waiting(waiting);
    }

    /// The wait set that it sleeps in, as a descriptor for epoll: readable while
    /// [`Self::receive`] may find something.
    pub fn wait_set(&self) -> &WaitSet {
        self.subscriber.wait_set()
    }
}

impl<T: Payload + ?Sized> Armable for ReconnectingSubscriber<T> {
    fn kind(&self) -> &'static str {
        "the reconnecting subscriber"
    }

    fn membership(&self) -> u64 {
        self.subscriber.membership()
    }

    fn may_have(&mut self) -> bool {
        self.subscriber.has_gone() || self.subscriber.may_have()
    }

    fn has_alarms(&self) -> bool {
        self.subscriber.has_alarms()
    }

    fn due(&self) -> Option<Instant> {
        self.subscriber.due()
    }

    fn arm_for(&mut self, link: u64) -> bool {
        let armed = self.subscriber.arm_for(link);
        link == 0 || armed && !self.subscriber.has_gone()
    }
}

impl<T: ?Sized> std::fmt::Debug for Update<T>
where
    Sample<T>: std::fmt::Debug,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sample(sample) => f.debug_tuple("Sample").field(sample).finish(),
            Self::Gone(gone) => f.debug_tuple("Gone").field(gone).finish(),
        }
    }
}

impl<T: ?Sized> std::fmt::Debug for ReconnectingSubscriber<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReconnectingSubscriber")
            .field(&self.subscriber)
            .finish()
    }
}
