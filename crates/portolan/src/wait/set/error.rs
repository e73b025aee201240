//! Errors say why a wait set refuses to add something or to wait.

use crate::space::Disowned;
use crate::wait::NoDescriptor;

/// Why there is no wait set, why something was not added to one, or why a wait failed. A wait
/// that fails loses nothing: the next one names what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitSetError {
    /// The state's: all of the domain's wait sets are in use.
    #[error("the domain's {limit} wait sets are all in use: put more ports into each")]
    NoRoom {
        /// How many there are.
        limit: usize,
    },
    /// The caller's.
    #[error("{what} belongs to another domain than the wait set: make a wait set there")]
    OtherDomain {
        /// What was to be added.
        what: &'static str,
    },
    /// The state's.
    #[error("the wait set has no place left for {what}: make another one")]
    Full {
        /// What was to be added.
        what: &'static str,
    },
    /// The state's: when a reader of a channel was bound, all entries for readers were taken.
    #[error(
        "the reader could not be added: its channel has too few entries: make it for more readers"
    )]
    NoEntry,
    /// The caller's: a reader's channel must signal.
    #[error(
        "the reader could not be added: its channel does not signal, so nobody would raise it: make one that does, or poll"
    )]
    NotSignalled,
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}
