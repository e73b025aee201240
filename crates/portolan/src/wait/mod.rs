//! Threads wait until a deadline, for ports, channels and listeners, and are woken.
//!
//! | file | what it has |
//! |---|---|
//! | `deadline` | how long a call may wait |
//! | `patience` | how long a thread looks before it sleeps |
//! | `set` | wait sets, and [`Waitable`]: what they wait for |
//! | `bell` | a descriptor that tokio watches for a word that changes |
//! | `poller` | a thread that waits for many descriptors |

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
pub(crate) use set::Armable;
pub(crate) use set::raise_link;
pub use set::{Armed, Ready, Token, WaitSet, WaitSetError, Waitable};
