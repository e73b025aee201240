//! Lays out the records that a client, the host and an acceptor (the process that made an offer)
//! exchange.
//!
//! ```text
//! client -> host      ConnectRequest               "connect me to this offer"
//! host -> client      ConnectAnswer                "wait", or why not
//! acceptor -> client  ConnectAnswer                "accepted": the connection is ours now
//! ```
//!
//! The host and the acceptor do not trust a client.

use crate::codec::{DecodeError, Field, Reader, Writer};
use crate::hello::{self, Refusal};
use crate::limits::MAX_NAME;
use crate::name::is_name;
use crate::{codes, record};

/// First bytes of a [`ConnectRequest`].
pub const CONNECT_MAGIC: u32 = 0x564c_5450;
/// First bytes of an answer that is no refusal.
const ANSWER_MAGIC: u32 = 0x414c_5450;

codes! {
    /// What is offered.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum OfferKind: u8 {
        /// A port.
        Port = 1,
        /// A channel.
        Channel = 2,
        /// An export.
        Export = 3,
        /// Ordinary memory that a member has delegated to the host, which copies for clients.
        Memory = 4,
    }
}

impl OfferKind {
    /// What people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Channel => "channel",
            Self::Export => "export",
            Self::Memory => "memory",
        }
    }
}

impl std::fmt::Display for OfferKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An offer's name: 1 to [`MAX_NAME`] bytes of text without zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OfferName {
    bytes: [u8; MAX_NAME + 1],
    len: u8,
}

impl OfferName {
    /// The name `text`, if it is one.
    pub fn new(text: &str) -> Option<Self> {
        let len = u8::try_from(text.len()).ok()?;
        let fits = is_name(text, MAX_NAME);
        let mut bytes = [0; MAX_NAME + 1];
        bytes
            .get_mut(..text.len())
            .filter(|_| fits)?
            .copy_from_slice(text.as_bytes());
        Some(Self { bytes, len })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let text = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }
}

/// The text, padded with zero bytes.
impl Field for OfferName {
    const BYTES: usize = MAX_NAME + 1;

    fn put(&self, to: &mut Writer<'_>) {
        to.bytes(&self.bytes);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = from.bytes(Self::BYTES)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        let (text, padding) = bytes.split_at(end);
        let padded = !padding.is_empty() && padding.iter().all(|b| *b == 0);
        let name = std::str::from_utf8(text).ok().and_then(Self::new);
        name.filter(|_| padded).ok_or(from.invalid())
    }
}

impl std::fmt::Debug for OfferName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Which processes may connect to an offer.
#[derive(Clone, PartialEq, Eq)]
pub struct Grants {
    /// Everybody whose user is known.
    pub anyone: bool,
    /// These users.
    pub users: Vec<u32>,
    /// The members of these groups.
    pub groups: Vec<u32>,
    /// These processes: id and start time.
    pub processes: Vec<(u32, u64)>,
    /// What they must show in addition.
    pub token: Option<[u8; 16]>,
}

impl std::fmt::Debug for Grants {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants")
            .field("anyone", &self.anyone)
            .field("users", &self.users)
            .field("groups", &self.groups)
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}

record! {
    /// A client's first record: "connect me to this offer".
    #[derive(Clone, PartialEq, Eq)]
    pub struct ConnectRequest {
        opens CONNECT_MAGIC,
        /// What the client wants.
        pub kind: OfferKind,
        has token,
        _: 6,
        /// What it shows for it.
        pub token: Option<[u8; 16]>,
        /// The offer's name.
        pub name: OfferName,
    }
}

impl std::fmt::Debug for ConnectRequest {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectRequest({} {:?})", self.kind, self.name)
    }
}

/// The host's answer, or the acceptor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectAnswer {
    /// There is no such offer yet: the host keeps the connection until a member makes it.
    Wait,
    /// The offer exists, and its acceptor takes no client just now: the host keeps the connection.
    Queue,
    /// From here on the connection leads to the acceptor.
    Accepted,
    /// The host refuses, and says why.
    Refused(Refusal),
}

codes! {
    /// What a client hears that is not refused.
    enum Progress: u32 {
        Wait = 1,
        Accepted = 2,
        Queue = 3,
    }
}

record! {
    /// How far a connection to an offer is.
    struct Notice {
        opens ANSWER_MAGIC,
        pub progress: Progress,
        _: 28,
    }
}

impl ConnectAnswer {
    /// Bytes on the wire.
    pub const BYTES: usize = Notice::BYTES;

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let progress = match self {
            Self::Wait => Progress::Wait,
            Self::Accepted => Progress::Accepted,
            Self::Queue => Progress::Queue,
            Self::Refused(refusal) => return hello::Answer::Refused(*refusal).encode(),
        };
        Notice { progress }.encode().to_vec()
    }

    /// Reads a record.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if let Ok(hello::Answer::Refused(refusal)) = hello::Answer::decode(bytes) {
            return Ok(Self::Refused(refusal));
        }
        Ok(match Notice::decode(bytes)?.progress {
            Progress::Wait => Self::Wait,
            Progress::Accepted => Self::Accepted,
            Progress::Queue => Self::Queue,
        })
    }
}

const _: () = assert!(Notice::BYTES == hello::Answer::BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed() {
        let request = ConnectRequest {
            kind: OfferKind::Export,
            name: OfferName::new("samples").unwrap(),
            token: Some([7; 16]),
        };
        assert!(!format!("{request:?}").contains('7'));
    }

    #[test]
    fn names_that_are_none() {
        for name in ["", "a\0b", &"x".repeat(64)] {
            assert_eq!(OfferName::new(name), None, "{name:?}");
        }
        assert_eq!(OfferName::new("é").unwrap().as_str(), "é");
        let request = ConnectRequest {
            kind: OfferKind::Port,
            name: OfferName::new("ab").unwrap(),
            token: None,
        };
        let good = request.encode();
        // An empty name, text after its end, no end, a kind and a flag that are none.
        for (at, byte) in [(32, 0), (35, b'c'), (33, 0xff), (8, 9), (9, 2), (0, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(ConnectRequest::decode(&bad).is_err(), "byte {at}");
        }
        let mut endless = good;
        endless[32..].fill(b'x');
        assert!(ConnectRequest::decode(&endless).is_err());
        assert!(ConnectRequest::decode(&good[1..]).is_err());
    }
}
