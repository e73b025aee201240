//! Why a wait set refuses.

use crate::channel::{FrameReader, ParcelReader, Reader, Subscriber};
use crate::vmmc::Notifications;
use crate::{Disowned, Listener, NoDescriptor, ReceiveRight};

/// Why there is no wait set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitSetError {
    /// The state's: all of the domain's wait sets are in use.
    #[error("the domain's {limit} wait sets are all in use: put more ports into each")]
    NoRoom {
        /// How many there are.
        limit: usize,
    },
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// The caller's: the port belongs to another domain than the set. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the port belongs to another domain than the wait set: make a wait set there")]
pub struct AddError {
    /// The port.
    pub port: Box<ReceiveRight>,
}

/// Why a listener was not added. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the listener was not added: {why}")]
pub struct AddListenerError {
    /// The listener.
    pub listener: Box<Listener>,
    /// Why not.
    #[source]
    pub why: WhyNoPlace,
}

/// Why an export's notifications were not added. They are the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the notifications were not added: {why}")]
pub struct AddNotificationsError {
    /// The notifications.
    pub notifications: Box<Notifications>,
    /// Why not.
    #[source]
    pub why: WhyNoPlace,
}

/// Why a subscriber was not added. It is the caller's again.
#[derive(thiserror::Error)]
#[error("the subscriber was not added: {why}")]
pub struct AddSubscriberError<T: ?Sized> {
    /// The subscriber.
    pub subscriber: Box<Subscriber<T>>,
    /// Why not.
    #[source]
    pub why: WhyNoPlace,
}

impl<T: ?Sized> std::fmt::Debug for AddSubscriberError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddSubscriberError")
            .field("subscriber", &self.subscriber)
            .field("why", &self.why)
            .finish()
    }
}

/// See [`AddListenerError`], [`AddNotificationsError`] and [`AddSubscriberError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyNoPlace {
    /// The caller's.
    #[error("it belongs to another domain than the wait set: make a wait set there")]
    OtherDomain,
    /// The state's.
    #[error("the wait set has no place left: make another one")]
    Full,
}

/// Why a reader was not added. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the reader was not added: {why}")]
pub struct AddReaderError {
    /// The reader.
    pub reader: Box<Reader>,
    /// Why not.
    #[source]
    pub why: WhyNoReader,
}

/// Why a reader of parcels was not added. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the reader of parcels was not added: {why}")]
pub struct AddParcelReaderError {
    /// The reader.
    pub reader: Box<ParcelReader>,
    /// Why not.
    #[source]
    pub why: WhyNoReader,
}

/// Why a reader of a raw channel was not added. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("the reader of frames was not added: {why}")]
pub struct AddFrameReaderError {
    /// The reader.
    pub reader: Box<FrameReader>,
    /// Why not.
    #[source]
    pub why: WhyNoReader,
}

/// See [`AddReaderError`], [`AddParcelReaderError`] and [`AddFrameReaderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyNoReader {
    /// The caller's.
    #[error("it belongs to another domain than the wait set: make a wait set there")]
    OtherDomain,
    /// The state's: when it was bound, all entries for readers were taken.
    #[error("its channel has too few entries: make it for more readers")]
    NoEntry,
    /// The caller's.
    #[error("its channel does not signal, so nobody would raise it: make one that does, or poll")]
    NotSignalled,
    /// The state's.
    #[error("the wait set has no place left: make another one")]
    Full,
}

/// Why a wait failed. Nothing is lost: the next one names what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}
