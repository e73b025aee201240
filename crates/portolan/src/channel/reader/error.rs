//! Errors say why a reader has read nothing.

use super::super::Garbled;
use crate::Disowned;
use std::ops::Range;

/// The units that a reader missed: from one position to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The first one.
    pub from: u64,
    /// The first one that was not missed, or not yet.
    pub to: u64,
}

impl Missed {
    /// How many.
    pub fn units(&self) -> u64 {
        self.to - self.from
    }
}

impl From<Range<u64>> for Missed {
    fn from(range: Range<u64>) -> Self {
        Self {
            from: range.start,
            to: range.end,
        }
    }
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The state's: nothing whole came before the deadline.
    #[error("no message came before the deadline")]
    TimedOut,
    /// Another thread's: it ended the wait ([`Interrupter`](crate::channel::Interrupter)).
    #[error("another thread ended the wait")]
    Interrupted,
    /// The state's: these units were overwritten before they were read, or their writer did
    /// not finish them. Read on.
    #[error("units {} to {} were missed: read on, and faster", .0.from, .0.to - 1)]
    Missed(Missed),
    /// The caller's: it lagged, and has chosen to be dropped then. Bind another reader.
    #[error("the reader lagged behind, and was dropped: bind it again, and read faster")]
    Dropped,
    /// The writer's: it left, or died, and all that it wrote was read. Told once for each;
    /// read on to wait for the next one.
    #[error("the writer has gone: read on to wait for the next one")]
    WriterGone,
    /// The writer's: what it wrote no writer writes. The channel is of no use any more.
    #[error("the channel was scribbled over: {0}")]
    Garbled(#[from] Garbled),
    /// The writer's: a message is longer than [`Channel::longest`](crate::channel::Channel::longest); it comes in pieces.
    #[error("a message is longer than {most} bytes: read it piece by piece")]
    TooLong {
        /// Bytes that a message can have to be read whole.
        most: usize,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`](crate::NoDescriptor).
    #[error(transparent)]
    NoDescriptor(#[from] crate::NoDescriptor),
}
