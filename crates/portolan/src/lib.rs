//! Portolan hands memory over between processes instead of copying it.
//!
//! Placeholder of the crate's documentation.

mod deadline;
mod domain;
mod extent;
mod guard;
mod member;
mod message;
mod port;
mod region;
mod survey;
#[cfg(feature = "tokio")]
mod tokio;
mod wait;
mod wait_set;

pub use deadline::Deadline;
#[cfg(feature = "marks")]
pub use domain::sabotage;
pub use domain::{Builder, Domain, JoinError, LeaveError};
pub use extent::{AllocateError, Extent, OutOfPages, RawExtent};
pub use message::{ComposeError, INLINE_HEADER, Message, MessageError, Notice, Refused, Urgency};
pub use port::{
    Access, BindError, ConnectError, PendingReply, PortOptions, ReceiveError, ReceiveRight, ReplyError, Request, RequestError, Right, SendError,
    SendOnceRight, SendRight, SharedReceiver, Unsent, WatchError, WhenFull,
};
pub use portolan_shm::owner::OwnerError;
pub use survey::{MemorySurvey, PortKind, PortState, PortSurvey, SpaceState, SpaceSurvey, Survey};
pub use wait::Waiting;
pub use wait_set::{AddError, Ready, Token, WaitError, WaitSet, WaitSetError};

/// What happens to the sender's access to an extent that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// The handle is consumed and the owner word changes; page tables stay as they are.
    #[default]
    Trusted,
    /// An extent is accessible only in the space that owns it; a stray access is reported.
    Guarded,
    /// The receiver gets a copy of its own.
    Copied,
}

/// Why this process may not use its membership any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disowned {
    /// The caller's: this process was forked from a member. It is not a member itself.
    #[error("this process was forked from a member and is not one itself: join the domain, or exec, before using it")]
    Forked,
    /// The caller's: this process closed the descriptors that tie it to its host.
    #[error("this process has lost its connection to the domain's host (did it close all descriptors?): leave and join again")]
    Disconnected,
}

/// The system's: no descriptor to wait with, for an async call or a wait set. Most often the
/// process has too many of them open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no descriptor to wait with ({}): close some, or raise the process's limit", std::io::Error::from_raw_os_error(*.errno))]
pub struct NoDescriptor {
    /// The system's error number.
    pub errno: i32,
}

impl From<std::io::Error> for NoDescriptor {
    fn from(error: std::io::Error) -> Self {
        Self { errno: error.raw_os_error().unwrap_or(0) }
    }
}
