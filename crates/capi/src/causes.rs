//! Says which code an error of the library has: one cause, one code, whatever call it ends.

use crate::status::portolan_status::*;
use crate::status::{fail, portolan_status};
use portolan::channel::{
    ChannelError, PublishError, ReadError, SubscribeError, TopicError, WriteError,
};
use portolan::vmmc::{ExportError, ImportError, MappingError, NotificationError, UpdateError};
use portolan::{
    AllocateError, BindError, ConnectError, ConnectToError, Disowned, JoinError, LeaveError,
    MessageError, OfferConnectError, OfferError, OwnerError, ReceiveError, Refused, RequestError,
    SendError, SignalError, WaitSetError,
};
use std::fmt::Display;

/// An error that has a code.
pub(crate) trait Cause: Display {
    fn status(&self) -> portolan_status;
}

/// Keeps an error's text for this thread; its code.
#[cold]
#[inline(never)]
pub(crate) fn cause(error: impl Cause) -> portolan_status {
    fail(error.status(), format_args!("{error}"))
}

impl<T, E: Cause> Cause for Refused<T, E> {
    fn status(&self) -> portolan_status {
        self.why.status()
    }
}

impl Cause for Disowned {
    fn status(&self) -> portolan_status {
        PORTOLAN_DISOWNED
    }
}

impl Cause for AllocateError {
    fn status(&self) -> portolan_status {
        match self {
            Self::OutOfPages { .. } => PORTOLAN_OUT_OF_MEMORY,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for JoinError {
    fn status(&self) -> portolan_status {
        match self {
            Self::BadName { .. } => PORTOLAN_BAD_NAME,
            Self::BadSize { .. }
            | Self::BadProtection
            | Self::TooManyPermitted { .. }
            | Self::GuardedAlready => PORTOLAN_BAD_ARGUMENT,
            Self::ProtectionMismatch { .. } => PORTOLAN_WRONG_KIND,
            Self::Forked => PORTOLAN_DISOWNED,
            Self::OtherVersion { .. } => PORTOLAN_OTHER_VERSION,
            Self::NotPermitted { .. } | Self::Impostor { .. } | Self::StrangeNode { .. } => {
                PORTOLAN_NOT_PERMITTED
            }
            Self::Full { .. } => PORTOLAN_NO_ROOM,
            Self::NotRunning { .. } | Self::NoNode { .. } => PORTOLAN_NOT_FOUND,
            Self::Absent { .. } | Self::TimedOut { .. } | Self::NodeSilent { .. } => {
                PORTOLAN_UNANSWERED
            }
            Self::Occupied { .. } => PORTOLAN_NAME_TAKEN,
            Self::NotARegion(_) | Self::Garbled { .. } => PORTOLAN_GARBLED,
            Self::Memory(_) => PORTOLAN_OUT_OF_MEMORY,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for LeaveError {
    fn status(&self) -> portolan_status {
        match self {
            Self::StillHeld { .. } => PORTOLAN_BUSY,
            Self::Unanswered { .. } => PORTOLAN_UNANSWERED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for MessageError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Header { .. } | Self::TooLong { .. } => PORTOLAN_TOO_LONG,
            Self::Extents { .. } | Self::Sealed { .. } | Self::Rights { .. } => PORTOLAN_NO_ROOM,
            Self::HoldsSealed => PORTOLAN_WRONG_KIND,
            Self::Allocate(why) => why.status(),
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for OwnerError {
    fn status(&self) -> portolan_status {
        PORTOLAN_FOREIGN
    }
}

impl Cause for SendError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Full { .. } => PORTOLAN_FULL,
            Self::DeadName => PORTOLAN_DEAD_NAME,
            Self::WrongKind(..)
            | Self::IntoItself
            | Self::Structure
            | Self::StaysHere { .. }
            | Self::Rights { .. }
            | Self::Sealed => PORTOLAN_WRONG_KIND,
            Self::Foreign | Self::Owner(_) => PORTOLAN_FOREIGN,
            Self::Unreachable { .. } => PORTOLAN_UNREACHABLE,
            Self::TooLong { .. } => PORTOLAN_TOO_LONG,
            Self::Allocate(why) => why.status(),
            Self::Connect(why) => why.status(),
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for ReceiveError {
    fn status(&self) -> portolan_status {
        match self {
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::WrongKind(..) => PORTOLAN_WRONG_KIND,
            Self::Closed => PORTOLAN_CLOSED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for RequestError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Unsent(refused) => refused.why.status(),
            Self::NoReplyPort(why, _) => why.status(),
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::Dropped => PORTOLAN_DROPPED,
            Self::ServerDead | Self::NodeLost { .. } => PORTOLAN_PEER_DIED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for BindError {
    fn status(&self) -> portolan_status {
        match self {
            Self::BadName { .. } | Self::BadNode { .. } => PORTOLAN_BAD_NAME,
            Self::NameTaken { .. } | Self::Spanned { .. } => PORTOLAN_NAME_TAKEN,
            Self::Shape { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::NoRoom | Self::NoWatch { .. } => PORTOLAN_NO_ROOM,
            Self::OutOfMemory { .. } => PORTOLAN_OUT_OF_MEMORY,
            Self::Allocate(why) => why.status(),
            Self::Unsent(why) => why.status(),
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for ConnectError {
    fn status(&self) -> portolan_status {
        match self {
            Self::NoSuchPort { .. } | Self::NoSuchNode { .. } | Self::NoNode => PORTOLAN_NOT_FOUND,
            Self::Unreachable { .. } => PORTOLAN_UNREACHABLE,
            Self::BadName { .. } | Self::Ambiguous { .. } => PORTOLAN_BAD_NAME,
            Self::NoAnswer { .. } => PORTOLAN_UNANSWERED,
            Self::BadAnswer { .. } => PORTOLAN_GARBLED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for ChannelError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Shape(_) | Self::Signal { .. } | Self::ManyReliable | Self::RawReliable => {
                PORTOLAN_BAD_ARGUMENT
            }
            Self::Bind(why) => why.status(),
            Self::Connect(why) | Self::NoWriter(why) => why.status(),
            Self::NotAChannel { .. } | Self::NeverSignals | Self::WrongKind(..) => {
                PORTOLAN_WRONG_KIND
            }
            Self::Written { .. } => PORTOLAN_NAME_TAKEN,
            Self::NoEntry { .. } => PORTOLAN_NO_ROOM,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for WriteError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Full { .. } | Self::Contended => PORTOLAN_FULL,
            Self::TooLong { .. } => PORTOLAN_TOO_LONG,
            Self::ManyWriters => PORTOLAN_WRONG_KIND,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for ReadError {
    fn status(&self) -> portolan_status {
        match self {
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::Interrupted => PORTOLAN_CLOSED,
            Self::Missed(_) => PORTOLAN_MISSED,
            Self::Dropped => PORTOLAN_DROPPED,
            Self::WriterGone => PORTOLAN_WRITER_GONE,
            Self::Garbled(_) => PORTOLAN_GARBLED,
            Self::TooLong { .. } => PORTOLAN_TOO_LONG,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for WaitSetError {
    fn status(&self) -> portolan_status {
        match self {
            Self::NoRoom { .. } | Self::Full { .. } | Self::NoEntry => PORTOLAN_NO_ROOM,
            Self::OtherDomain { .. } => PORTOLAN_FOREIGN,
            Self::NotSignalled => PORTOLAN_WRONG_KIND,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for TopicError {
    fn status(&self) -> portolan_status {
        match self {
            Self::OtherType { .. } => PORTOLAN_WRONG_KIND,
            Self::BadName { .. } => PORTOLAN_BAD_NAME,
            Self::TooManyPublishers { .. } | Self::ShortHistory { .. } => PORTOLAN_NO_ROOM,
            Self::Channel(why) => why.status(),
            Self::WaitSet(why) => why.status(),
            Self::Announce(why) => why.status(),
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for PublishError {
    fn status(&self) -> portolan_status {
        match self {
            Self::NoRoom(_) => PORTOLAN_OUT_OF_MEMORY,
            Self::Foreign => PORTOLAN_FOREIGN,
            Self::NoMemory(why) => why.status(),
            Self::Write(why) => why.status(),
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for SubscribeError {
    fn status(&self) -> portolan_status {
        match self {
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::NotAValue { .. } | Self::NotAStructure { .. } | Self::Newcomers(_) => {
                PORTOLAN_GARBLED
            }
            Self::Read { why, .. } => why.status(),
            Self::WaitSet(why) => why.status(),
            Self::Topic(why) => why.status(),
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_OTHER,
        }
    }
}

impl Cause for SignalError {
    fn status(&self) -> portolan_status {
        match self {
            Self::NotShared { .. } => PORTOLAN_OUT_OF_BOUNDS,
            Self::Empty { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::NoFifo | Self::NoHandler | Self::Crowded(_) => PORTOLAN_NO_ROOM,
            Self::UnknownHandler(_) => PORTOLAN_NOT_FOUND,
            Self::ListenerGone => PORTOLAN_CLOSED,
            Self::OtherDomain => PORTOLAN_FOREIGN,
            Self::NotWaitable | Self::NotCaught { .. } | Self::UpcallSignal { .. } => {
                PORTOLAN_BAD_ARGUMENT
            }
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for OfferError {
    fn status(&self) -> portolan_status {
        match self {
            Self::BadName => PORTOLAN_BAD_NAME,
            Self::NameTaken => PORTOLAN_NAME_TAKEN,
            Self::TooMany { .. } => PORTOLAN_NO_ROOM,
            Self::Unanswered => PORTOLAN_UNANSWERED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            Self::NoDescriptor(_) => PORTOLAN_SYSTEM,
            _ => PORTOLAN_BAD_ARGUMENT,
        }
    }
}

impl Cause for OfferConnectError {
    fn status(&self) -> portolan_status {
        match self {
            Self::BadName { .. } | Self::Ambiguous { .. } | Self::NoSuchExporter { .. } => {
                PORTOLAN_BAD_NAME
            }
            Self::NotPermitted { .. } | Self::WrongToken { .. } => PORTOLAN_NOT_PERMITTED,
            Self::NotOffered { .. } | Self::NotRunning { .. } => PORTOLAN_NOT_FOUND,
            Self::NotMet { .. } => PORTOLAN_UNANSWERED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for ConnectToError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Connect(why) => why.status(),
            Self::Protection { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::Sealed => PORTOLAN_WRONG_KIND,
            Self::Full => PORTOLAN_NO_ROOM,
            Self::Over => PORTOLAN_CLOSED,
            Self::Resources | Self::Memory(_) => PORTOLAN_OUT_OF_MEMORY,
            Self::Version { .. } => PORTOLAN_OTHER_VERSION,
            Self::Garbled => PORTOLAN_GARBLED,
            Self::Unanswered(_) => PORTOLAN_UNANSWERED,
            Self::Bind(why) => why.status(),
            Self::TooLarge { .. } => PORTOLAN_TOO_LONG,
            Self::Channel(why) => why.status(),
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for ExportError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Empty { .. }
            | Self::NotWholePages { .. }
            | Self::NotReadOnly { .. }
            | Self::BadRanges { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::AlreadyExported | Self::Mapped { .. } | Self::UnderWay { .. } => PORTOLAN_BUSY,
            Self::OutOfMemory { .. } | Self::Private(_) => PORTOLAN_OUT_OF_MEMORY,
            Self::Offer(why) => why.status(),
            Self::Unanswered => PORTOLAN_UNANSWERED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for ImportError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Connect(why) => why.status(),
            Self::TimedOut { .. } => PORTOLAN_UNANSWERED,
            Self::TooLarge { .. } => PORTOLAN_TOO_LONG,
            Self::Full { .. } => PORTOLAN_NO_ROOM,
            Self::OtherVersion { .. } => PORTOLAN_OTHER_VERSION,
            Self::NoCopyBroker { .. } | Self::Unreachable(_) => PORTOLAN_NOT_PERMITTED,
            Self::NotShared(_) | Self::Garbled { .. } | Self::WrongKind(_) => PORTOLAN_GARBLED,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for UpdateError {
    fn status(&self) -> portolan_status {
        match self {
            Self::OutOfBounds { .. } | Self::OutOfRanges { .. } | Self::Unmapped { .. } => {
                PORTOLAN_OUT_OF_BOUNDS
            }
            Self::NotWritable | Self::NotReadable | Self::Protected { .. } => {
                PORTOLAN_NOT_PERMITTED
            }
            Self::Misaligned { .. } | Self::BadStride { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::NoWords => PORTOLAN_WRONG_KIND,
            Self::NoHost | Self::Unanswered => PORTOLAN_UNANSWERED,
            Self::OutOfMemory { .. } => PORTOLAN_OUT_OF_MEMORY,
            Self::Revoked | Self::Disconnected => PORTOLAN_CLOSED,
            Self::ExporterDied => PORTOLAN_PEER_DIED,
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for MappingError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Update(why) => why.status(),
            Self::NotWholePages { .. } | Self::Completion { .. } => PORTOLAN_BAD_ARGUMENT,
            Self::Mapped { .. } | Self::Exported => PORTOLAN_BUSY,
            _ => PORTOLAN_SYSTEM,
        }
    }
}

impl Cause for NotificationError {
    fn status(&self) -> portolan_status {
        match self {
            Self::Taken => PORTOLAN_BUSY,
            Self::Ended => PORTOLAN_CLOSED,
            Self::TimedOut => PORTOLAN_TIMED_OUT,
            Self::Disowned(_) => PORTOLAN_DISOWNED,
            _ => PORTOLAN_SYSTEM,
        }
    }
}
