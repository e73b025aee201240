//! Lays out how a program asks the node of its machine to span a domain, at the node's socket for
//! programs (sequenced packets: a record is a packet).
//!
//! ```text
//! program -> node   SpanRequest, the domain's name, the directory of its socket
//! node -> program   SpanAnswer, a reason for people
//! ```

use crate::codec::{DecodeError, Reader, Record};
use crate::limits::MAX_DOMAIN_NAME;
use crate::{FORMAT_VERSION, codes, record};

/// The version of this exchange.
pub const PROGRAMS_VERSION: u32 = 1;
/// Longest directory of a domain's socket, in bytes: longer ones fit no socket's address.
pub const MAX_DIRECTORY: usize = 107;
/// Longest reason in an answer, in bytes.
pub const MAX_REASON: usize = 512;

/// First bytes of both.
const MAGIC: u32 = 0x5350_5450;

record! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct RequestHead {
        magic MAGIC,
        pub version: u32,
        pub format: u32,
        pub owner: u32,
        pub domain: u16,
        pub directory: u16,
    }
}

/// "Span this domain."
///
/// ```
/// use portolan_abi::node::SpanRequest;
/// let request = SpanRequest::new("cameras", 1000, None);
/// assert_eq!(SpanRequest::decode(&request.encode()), Ok(request));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRequest {
    /// The program's [`PROGRAMS_VERSION`].
    pub version: u32,
    /// The program's [`FORMAT_VERSION`], which is the domain's.
    pub format: u32,
    /// The user who owns the domain.
    pub owner: u32,
    /// The domain's name.
    pub domain: String,
    /// The directory of its socket, if that is not an abstract one.
    pub directory: Option<Vec<u8>>,
}

impl SpanRequest {
    /// Bytes of one, at the most.
    pub const MOST: usize = RequestHead::BYTES + MAX_DOMAIN_NAME + MAX_DIRECTORY;

    /// The request of a program of this version.
    pub fn new(domain: &str, owner: u32, directory: Option<&[u8]>) -> Self {
        Self {
            version: PROGRAMS_VERSION,
            format: FORMAT_VERSION,
            owner,
            domain: domain.to_owned(),
            directory: directory.map(<[u8]>::to_vec),
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let directory = self.directory.as_deref().unwrap_or_default();
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let head = RequestHead {
            version: self.version,
            format: self.format,
            owner: self.owner,
            domain: length(self.domain.as_bytes()),
            directory: length(directory),
        };
        [&head.to_bytes(), self.domain.as_bytes(), directory].concat()
    }

    /// Reads it, whole or not at all. Whether the domain can have this name is for its reader to
    /// judge, who builds the name of a socket of it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WRONG: DecodeError = DecodeError::Check {
            record: "SpanRequest",
        };
        let mut reader = Reader::new(bytes);
        let head: RequestHead = reader.field("request")?;
        let (domain, directory) = (usize::from(head.domain), usize::from(head.directory));
        if !(1..=MAX_DOMAIN_NAME).contains(&domain) || directory > MAX_DIRECTORY {
            return Err(WRONG);
        }
        let wanted = RequestHead::BYTES + domain + directory;
        if bytes.len() != wanted {
            let found = bytes.len();
            return Err(DecodeError::Length { found, wanted });
        }
        let domain = std::str::from_utf8(reader.bytes(domain)?).map_err(|_| WRONG)?;
        let directory = reader.bytes(directory)?;
        if domain.contains('\0') || directory.contains(&0) {
            return Err(WRONG);
        }
        Ok(Self {
            version: head.version,
            format: head.format,
            owner: head.owner,
            domain: domain.to_owned(),
            directory: (!directory.is_empty()).then(|| directory.to_vec()),
        })
    }
}

codes! {
    /// What became of a request to span a domain.
    pub enum SpanOutcome: u8 {
        /// The node spans it.
        Spans = 1,
        /// The program's user may not have this node span anything, or the node may not join the
        /// domain.
        NotPermitted = 2,
        /// The node cannot span it now: the reason says why.
        Failed = 3,
        /// The node was built for another format of regions: its own is the answer's.
        Format = 4,
        /// The node speaks another version of this exchange.
        Version = 5,
        /// Another node spans the domain.
        Spanned = 6,
        /// Too many programs ask.
        Busy = 7,
    }
}

record! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct AnswerHead {
        magic MAGIC,
        pub version: u32,
        pub format: u32,
        pub outcome: SpanOutcome,
        _: 1,
        pub reason: u16,
    }
}

/// The node's answer.
///
/// ```
/// use portolan_abi::node::{SpanAnswer, SpanOutcome};
/// let answer = SpanAnswer::new(SpanOutcome::Failed, "it shuts down");
/// assert_eq!(SpanAnswer::decode(&answer.encode()), Ok(answer));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanAnswer {
    /// The node's [`PROGRAMS_VERSION`].
    pub version: u32,
    /// The node's [`FORMAT_VERSION`].
    pub format: u32,
    /// What became of the request.
    pub outcome: SpanOutcome,
    /// Why, for people.
    pub reason: String,
}

impl SpanAnswer {
    /// Bytes of one, at the most.
    pub const MOST: usize = AnswerHead::BYTES + MAX_REASON;

    /// The answer of a node of this version.
    pub fn new(outcome: SpanOutcome, reason: &str) -> Self {
        Self {
            version: PROGRAMS_VERSION,
            format: FORMAT_VERSION,
            outcome,
            reason: reason.to_owned(),
        }
    }

    /// Its bytes; a reason that is longer than [`MAX_REASON`] is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.reason.len().min(MAX_REASON);
        while !self.reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = self.reason.get(..end).unwrap_or_default().as_bytes();
        let head = AnswerHead {
            version: self.version,
            format: self.format,
            outcome: self.outcome,
            reason: u16::try_from(reason.len()).unwrap_or(u16::MAX),
        };
        [&head.to_bytes(), reason].concat()
    }

    /// Reads it, whole or not at all.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let head: AnswerHead = reader.field("answer")?;
        let (found, wanted) = (bytes.len(), AnswerHead::BYTES + usize::from(head.reason));
        if found != wanted {
            return Err(DecodeError::Length { found, wanted });
        }
        let reason = std::str::from_utf8(reader.bytes(usize::from(head.reason))?);
        let wrong = DecodeError::Check {
            record: "SpanAnswer",
        };
        match reason {
            Ok(reason) if reason.len() <= MAX_REASON => Ok(Self {
                version: head.version,
                format: head.format,
                outcome: head.outcome,
                reason: reason.to_owned(),
            }),
            _ => Err(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_read_whole_or_not_at_all() {
        let request = SpanRequest::new("cameras", 1000, Some(b"/run/user/1000")).encode();
        let answer = SpanAnswer::new(SpanOutcome::Failed, "no memory").encode();
        assert!(SpanRequest::decode(&request).is_ok() && SpanAnswer::decode(&answer).is_ok());
        for cut in 0..request.len() {
            assert!(SpanRequest::decode(&request[..cut]).is_err(), "{cut}");
        }
        for cut in 0..answer.len() {
            assert!(SpanAnswer::decode(&answer[..cut]).is_err(), "{cut}");
        }
        assert!(SpanRequest::decode(&[&request[..], b"x"].concat()).is_err());
        assert!(SpanAnswer::decode(&[&answer[..], b"x"].concat()).is_err());
        for domain in ["", &"d".repeat(MAX_DOMAIN_NAME + 1), "a\0b"] {
            let request = SpanRequest::new(domain, 1000, None);
            assert!(SpanRequest::decode(&request.encode()).is_err(), "{domain}");
        }
        let far = SpanRequest::new("cameras", 1000, Some(&[b'/'; MAX_DIRECTORY + 1]));
        assert!(SpanRequest::decode(&far.encode()).is_err());
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let answer = SpanAnswer::new(SpanOutcome::Failed, &"é".repeat(MAX_REASON));
        let read = SpanAnswer::decode(&answer.encode()).unwrap();
        assert_eq!(read.reason, "é".repeat(MAX_REASON / 2));
    }
}
