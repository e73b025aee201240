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

use crate::hello::{Refusal, flag, word32};
use crate::limits::MAX_NAME;
use crate::name::is_name;

/// First bytes of a [`ConnectRequest`].
pub const CONNECT_MAGIC: u32 = 0x564c_5450;
/// First bytes of an answer that is no refusal.
const ANSWER_MAGIC: u32 = 0x414c_5450;

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OfferKind {
    /// A port.
    Port = 1,
    /// A channel.
    Channel = 2,
    /// An export.
    Export = 3,
    /// Ordinary memory that a member has delegated to the host, which copies for clients.
    Memory = 4,
}

impl OfferKind {
    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Port),
            2 => Some(Self::Channel),
            3 => Some(Self::Export),
            4 => Some(Self::Memory),
            _ => None,
        }
    }

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

    /// Reads a name, padded with zero bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|b| *b == 0)?;
        let (text, padding) = bytes.split_at(end);
        let name = Self::new(std::str::from_utf8(text).ok()?)?;
        padding.iter().all(|b| *b == 0).then_some(name)
    }

    /// The text, padded with zero bytes.
    pub(crate) fn bytes(&self) -> &[u8; MAX_NAME + 1] {
        &self.bytes
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let text = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
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

/// A client's first record: "connect me to this offer".
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The format that the client speaks.
    pub version: u32,
    /// What it wants.
    pub kind: OfferKind,
    /// Its name.
    pub name: OfferName,
    /// What it shows for it.
    pub token: Option<[u8; 16]>,
}

impl std::fmt::Debug for ConnectRequest {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ConnectRequest({} {:?}, version {})",
            self.kind, self.name, self.version
        )
    }
}

impl ConnectRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 32 + MAX_NAME + 1;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&CONNECT_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.version.to_le_bytes());
        out[8] = self.kind as u8;
        out[9] = self.token.is_some().into();
        out[16..32].copy_from_slice(&self.token.unwrap_or_default());
        out[32..].copy_from_slice(&self.name.bytes);
        out
    }

    /// Reads a record of this format's version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES || word32(bytes, 0)? != CONNECT_MAGIC {
            return None;
        }
        let token: [u8; 16] = bytes.get(16..32)?.try_into().ok()?;
        let token = flag(bytes, 9)?.then_some(token);
        Some(Self {
            version: word32(bytes, 4)?,
            kind: OfferKind::from_code(*bytes.get(8)?)?,
            name: OfferName::decode(bytes.get(32..)?)?,
            token,
        })
    }

    /// The version of a record of any format, of which only the first eight bytes are ours.
    pub fn version_of(bytes: &[u8]) -> Option<u32> {
        (word32(bytes, 0)? == CONNECT_MAGIC).then(|| word32(bytes, 4))?
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

impl ConnectAnswer {
    /// Bytes on the wire.
    pub const BYTES: usize = crate::hello::Answer::BYTES;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let code: u32 = match self {
            Self::Wait => 1,
            Self::Accepted => 2,
            Self::Queue => 3,
            Self::Refused(refusal) => return crate::hello::Answer::Refusal(*refusal).encode(),
        };
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&ANSWER_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&crate::FORMAT_VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&code.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        use crate::hello::Answer;
        if bytes.len() != Self::BYTES {
            return None;
        }
        if let Some(Answer::Refusal(refusal)) = Answer::decode(bytes) {
            return Some(Self::Refused(refusal));
        }
        match (word32(bytes, 0)?, word32(bytes, 8)?) {
            (ANSWER_MAGIC, 1) => Some(Self::Wait),
            (ANSWER_MAGIC, 2) => Some(Self::Accepted),
            (ANSWER_MAGIC, 3) => Some(Self::Queue),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Reason;

    #[test]
    fn records_survive_the_wire() {
        for token in [None, Some([7; 16])] {
            let request = ConnectRequest {
                version: 3,
                kind: OfferKind::Export,
                name: OfferName::new("samples").unwrap(),
                token,
            };
            assert_eq!(
                ConnectRequest::decode(&request.encode()),
                Some(request.clone())
            );
            assert_eq!(ConnectRequest::version_of(&request.encode()[..8]), Some(3));
            assert!(!format!("{request:?}").contains("[7"));
        }
        let refusal = Refusal {
            version: 2,
            reason: Reason::Permission,
            value: 5,
        };
        let answers = [
            ConnectAnswer::Wait,
            ConnectAnswer::Queue,
            ConnectAnswer::Accepted,
            ConnectAnswer::Refused(refusal),
        ];
        for answer in answers {
            assert_eq!(ConnectAnswer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn names_that_are_none() {
        for name in ["", "a\0b", &"x".repeat(64)] {
            assert_eq!(OfferName::new(name), None, "{name:?}");
        }
        assert_eq!(OfferName::new("é").unwrap().as_str(), "é");
        let request = ConnectRequest {
            version: 1,
            kind: OfferKind::Port,
            name: OfferName::new("ab").unwrap(),
            token: None,
        };
        let good = request.encode();
        // An empty name, text after its end, no end, a kind and a flag that are none.
        for (at, byte) in [(32, 0), (35, b'c'), (33, 0xff), (8, 9), (9, 2), (0, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(ConnectRequest::decode(&bad), None, "byte {at}");
        }
        let mut endless = good;
        endless[32..].fill(b'x');
        assert_eq!(ConnectRequest::decode(&endless), None);
        assert_eq!(ConnectRequest::decode(&good[1..]), None);
    }
}
