//! Errors say why a wait set refuses to add something or to wait.

use super::waitable::Waitable;
use crate::space::Disowned;
use crate::wait::NoDescriptor;

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

/// Why something was not added to a wait set. It is the caller's again.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be added: {why}", .refused.kind())]
pub struct AddError<T: Waitable> {
    /// What was not added.
    pub refused: Box<T>,
    /// Why not.
    #[source]
    pub why: WhyNoPlace,
}

/// See [`AddError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyNoPlace {
    /// The caller's.
    #[error("it belongs to another domain than the wait set: make a wait set there")]
    OtherDomain,
    /// The state's.
    #[error("the wait set has no place left: make another one")]
    Full,
    /// The state's: when a reader of a channel was bound, all entries for readers were taken.
    #[error("its channel has too few entries: make it for more readers")]
    NoEntry,
    /// The caller's: a reader's channel must signal.
    #[error("its channel does not signal, so nobody would raise it: make one that does, or poll")]
    NotSignalled,
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
