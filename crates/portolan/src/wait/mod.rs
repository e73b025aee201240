//! Waiting: how long, for what, and who is woken.
//!
//! | file | what it has |
//! |---|---|
//! | `deadline` | how long a call may wait |
//! | `patience` | how long a thread looks before it sleeps |
//! | `set` | wait sets, and [`Waitable`]: what they wait for |
//! | `bell` | a descriptor that tokio watches for a word that changes |
//! | `lookout` | a thread that waits for many descriptors |

#[cfg(feature = "tokio")]
mod bell;
mod deadline;
mod error;
pub(crate) mod lookout;
mod patience;
mod set;

#[cfg(feature = "tokio")]
pub(crate) use bell::Bell;
pub use deadline::Deadline;
pub use error::NoDescriptor;
pub use patience::Waiting;
pub(crate) use patience::{Backoff, Looking, Patience, waiting_beside};
pub(crate) use set::Guest;
pub(crate) use set::raise_link;
pub use set::{AddError, Ready, Token, WaitError, WaitSet, WaitSetError, Waitable, WhyNoPlace};
