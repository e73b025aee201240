//! Lays out the records that a client and a server exchange at the server's port to connect.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The client presents both channels; the channels are the rights of the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) service: String,
    pub(super) session: u64,
    pub(super) period: Duration,
    /// A send right for parcels comes with it, and is expected back.
    pub(super) moves: bool,
    pub(super) channels: Channels,
}

/// The channels on which a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Channels {
    /// The client presents channels of its own.
    Own,
    /// The server presents channels that clients share. The client sends a right on a port of its
    /// own, which lives as long as the client.
    Shared,
    /// The client called on shared channels, and presents channels of its own.
    Promoted,
}

/// The server's answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome {
        incarnation: u64,
    },
    OtherService {
        service: String,
    },
    /// It calls on shared channels as before: it is not known, or there is no thread.
    NotPromoted,
    /// There are no channels to share, and no memory or thread for them.
    NoRoom,
}

/// A server that moves: how many clients come with it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moving {
    pub(super) service: String,
    /// Under which it is served.
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) clients: usize,
    /// The channels that clients share come with it.
    pub(super) shared: bool,
}

/// One of them; its state is in the message's extent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MovingClient {
    pub(super) period: Duration,
    /// Of the next parcel to it, if parcels are sent.
    pub(super) parcel: Option<u64>,
    /// How many packets it was sent in the channel that it shares, if it does.
    pub(super) sent: Option<u64>,
}

/// Begins each, so that no other message is taken for one.
const MAGIC: u64 = u64::from_le_bytes(*b"portrpc\x02");

pub(super) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain structs into memory: there is nothing to fail.
    postcard::to_allocvec(&(MAGIC, value)).unwrap_or_default()
}

pub(super) fn from_bytes<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Option<T> {
    let (magic, value) = postcard::from_bytes::<(u64, T)>(bytes).ok()?;
    (magic == MAGIC).then_some(value)
}

impl Hello {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        from_bytes(bytes)
    }
}

impl Answer {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        from_bytes(bytes)
    }
}
