//! Threads wait: until a deadline, for ports, channels and listeners, and are woken.

#[cfg(feature = "tokio")]
mod bell;
mod deadline;
mod error;
mod patience;
pub(crate) mod poller;
mod set;

#[cfg(feature = "tokio")]
pub(crate) use bell::Bell;
pub use deadline::Deadline;
pub use error::NoDescriptor;
pub use patience::Waiting;
pub(crate) use patience::{Backoff, Looking, Patience, waiting_beside};
pub(crate) use set::raise_link;
pub use set::{
    AddError, AddFrameReaderError, AddListenerError, AddNotificationsError, AddParcelReaderError,
    AddReaderError, AddSubscriberError, Ready, Token, WaitError, WaitSet, WaitSetError, WhyNoPlace,
    WhyNoReader,
};
