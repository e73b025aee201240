//! Why there is no channel, or no process was bound to one.

use super::NotAChannel;
use crate::{BindError, ConnectError, Disowned};
use portolan_abi::channel::ShapeError;
use portolan_abi::limits::LINE;

/// Why a channel was not made or found, or why no writer or reader was bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The caller's: no channel has such a shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The caller's: no channel has such a signalling unit.
    #[error("a signal at every {bytes} bytes is at no multiple of a cache line, {LINE}")]
    Signal {
        /// What was asked for.
        bytes: u32,
    },
    /// The caller's: a reliable channel has one writer.
    #[error("a reliable channel has one writer: make one for each, or leave out `reliable`")]
    ManyReliable,
    /// The caller's: a raw channel has one writer, which waits for no reader.
    #[error("a raw channel has one writer and no flow control: leave out the rest, or `raw`")]
    RawReliable,
    /// The channel's memory, or a port for parcels, was not to be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There is no channel of this name.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A member's: the segment of this name is none.
    #[error("{name:?} is a segment, and no channel: {why}")]
    NotAChannel {
        /// The name; empty, if it has none.
        name: String,
        /// Why not.
        why: NotAChannel,
    },
    /// The state's: the channel has one writer, and another space is it.
    #[error(
        "space {space} writes to the channel: wait until it has gone, or make a channel of many writers"
    )]
    Written {
        /// Who writes.
        space: u8,
    },
    /// The state's: a reliable channel has so many readers already.
    #[error("the channel was made for {entries} readers, and has them: make it for more")]
    NoEntry {
        /// How many there are.
        entries: u64,
    },
    /// The state's: the channel was made with `Signalling::Never`.
    #[error("the channel's writers signal nobody: make it with another `Signalling`")]
    NeverSignals,
    /// The caller's: a raw channel takes frames, another one messages.
    #[error("the channel is {0}: use {1}")]
    WrongKind(&'static str, &'static str),
    /// The state's: no writer sends parcels on this channel.
    #[error("nobody sends parcels on this channel: {0}")]
    NoWriter(#[source] ConnectError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}
