//! Lays out the records that a client, the host and an acceptor (the process that made an offer)
//! exchange.
//!
//! ```text
//! client -> host      ConnectRequest               "connect me to this offer"
//! host -> client      ConnectAnswer                "wait", "which of these?", or why not
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

record! {
    /// A member that makes offers, as the domain's tables describe it; or a pattern, which leaves
    /// out what is zero.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Maker {
        /// Its space.
        pub space: u8,
        _: 3,
        /// Its process, by the id that the host sees.
        pub process: u32,
        /// What it calls itself, padded with at least one zero.
        pub name: [u8; MAX_NAME + 1],
    }
    check |it| {
        let end = it.name.iter().position(|b| *b == 0);
        let (text, padding) = it.name.split_at(end.unwrap_or(it.name.len()));
        std::str::from_utf8(text).is_ok() && end.is_some() && padding.iter().all(|b| *b == 0)
    }
}

impl Maker {
    /// A pattern that every member fits.
    pub const ANY: Self = Self {
        space: 0,
        process: 0,
        name: [0; MAX_NAME + 1],
    };

    /// The same of this name, if a member can have it.
    ///
    /// ```
    /// use portolan_abi::connect::Maker;
    /// let left = Maker::ANY.named("left").ok_or("too long")?;
    /// assert_eq!(left.name(), "left");
    /// assert!(Maker::ANY.named("").is_none() && Maker::ANY.named(&"x".repeat(64)).is_none());
    /// # Ok::<(), &str>(())
    /// ```
    pub fn named(self, text: &str) -> Option<Self> {
        let fits = (1..=MAX_NAME).contains(&text.len()) && !text.contains('\0');
        let mut name = [0; MAX_NAME + 1];
        let place = name.get_mut(..text.len()).filter(|_| fits)?;
        place.copy_from_slice(text.as_bytes());
        Some(Self { name, ..self })
    }

    /// What it calls itself; nothing, if it has no name or the pattern says none.
    pub fn name(&self) -> &str {
        let text = self.name.split(|b| *b == 0).next().unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Whether `member` has everything that this pattern says.
    pub fn fits(&self, member: &Self) -> bool {
        (self.space == 0 || self.space == member.space)
            && (self.process == 0 || self.process == member.process)
            && (self.name().is_empty() || self.name == member.name)
    }
}

impl std::fmt::Debug for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (space, process) = (self.space, self.process);
        write!(f, "Maker({space}, process {process}, {:?})", self.name())
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
        /// Which members' offers the client means.
        pub maker: Maker,
    }
}

impl std::fmt::Debug for ConnectRequest {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectRequest({} {:?})", self.kind, self.name)
    }
}

/// The host's answer, or the acceptor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectAnswer {
    /// There is no such offer yet: the host keeps the connection until a member makes it.
    Wait,
    /// The offer exists, and its acceptor takes no client just now: the host keeps the connection.
    Queue,
    /// From here on the connection leads to the acceptor.
    Accepted,
    /// Several members make such an offer, and these are the first of them: at least two, and at
    /// most [`MAX_CANDIDATES`].
    Ambiguous(Vec<Maker>),
    /// The host refuses, and says why.
    Refused(Refusal),
}

/// Most members that a [`ConnectAnswer::Ambiguous`] names.
pub const MAX_CANDIDATES: usize = 8;

codes! {
    /// What a client hears that is not refused.
    enum Progress: u32 {
        Wait = 1,
        Accepted = 2,
        Queue = 3,
        Ambiguous = 4,
    }
}

record! {
    /// How far a connection to an offer is.
    struct Notice {
        opens ANSWER_MAGIC,
        pub progress: Progress,
        /// How many makers follow, where the offer is ambiguous.
        pub makers: u8,
        _: 27,
    }
    check |it| match it.progress {
        Progress::Ambiguous => (2..=MAX_CANDIDATES).contains(&usize::from(it.makers)),
        _ => it.makers == 0,
    }
}

impl ConnectAnswer {
    /// Bytes of the longest one.
    pub const MAX_BYTES: usize = Notice::BYTES + MAX_CANDIDATES * Maker::BYTES;

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (progress, makers) = match self {
            Self::Wait => (Progress::Wait, [].as_slice()),
            Self::Accepted => (Progress::Accepted, [].as_slice()),
            Self::Queue => (Progress::Queue, [].as_slice()),
            Self::Ambiguous(makers) => (Progress::Ambiguous, makers.as_slice()),
            Self::Refused(refusal) => return hello::Answer::Refused(*refusal).encode(),
        };
        let makers = makers.iter().take(MAX_CANDIDATES);
        let count = u8::try_from(makers.len()).unwrap_or(0);
        let notice = Notice {
            progress,
            makers: count,
        };
        let mut out = notice.encode().to_vec();
        out.extend(makers.flat_map(Maker::encode));
        out
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
        let mut from = Reader::new(bytes);
        let notice: Notice = from.field("notice")?;
        let makers = from.list("makers", notice.makers.into())?;
        if !from.is_empty() {
            let (found, left) = (bytes.len(), from.rest().len());
            let wanted = found - left;
            return Err(DecodeError::Length { found, wanted });
        }
        Ok(match notice.progress {
            Progress::Wait => Self::Wait,
            Progress::Accepted => Self::Accepted,
            Progress::Queue => Self::Queue,
            Progress::Ambiguous => Self::Ambiguous(makers),
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
            maker: Maker::ANY,
        };
        assert!(!format!("{request:?}").contains('7'));
    }

    #[test]
    fn a_pattern_says_what_a_maker_has() {
        let maker = |space, process, name| {
            let maker = Maker {
                space,
                process,
                ..Maker::ANY
            };
            maker.named(name).unwrap_or(maker)
        };
        let left = maker(3, 4711, "left");
        for fits in [
            Maker::ANY,
            maker(3, 0, ""),
            maker(0, 4711, ""),
            maker(0, 0, "left"),
            left,
        ] {
            assert!(fits.fits(&left), "{fits:?}");
        }
        for other in [
            maker(4, 0, ""),
            maker(0, 4712, ""),
            maker(0, 0, "lef"),
            maker(0, 0, "left2"),
            maker(3, 4711, "right"),
            maker(4, 4711, "left"),
        ] {
            assert!(!other.fits(&left), "{other:?}");
        }
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
            maker: Maker::ANY,
        };
        let good = request.encode();
        // An empty name, text after its end, no end, a kind and a flag that are none.
        for (at, byte) in [(32, 0), (35, b'c'), (33, 0xff), (8, 9), (9, 2), (0, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(ConnectRequest::decode(&bad).is_err(), "byte {at}");
        }
        for name in [32..32 + 64, 104..168] {
            let mut endless = good;
            endless[name].fill(b'x');
            assert!(ConnectRequest::decode(&endless).is_err());
        }
        assert!(ConnectRequest::decode(&good[1..]).is_err());
    }
}
