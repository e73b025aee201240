//! Lays out what a member of a domain asks the node that spans it, and how that answers.
//!
//! Both are headers of messages: the question of a request to the port [`NODE_PORT`], the answer of
//! its reply. A right on the port that was found is attached to the answer.

use crate::codec::{DecodeError, Field, Reader, Record, Writer};
use crate::connect::OfferName;
use crate::limits::{MAX_HEADER, MAX_NODE_NAME};
use crate::name::is_name;
use crate::{codes, record};

/// The port at which the node of a domain is asked. No program can bind it: no name has an `@`.
pub const NODE_PORT: &str = "@node";

/// A node's name in a record: padded with zero bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeName([u8; MAX_NODE_NAME]);

impl NodeName {
    /// The name `text`, if it is one.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; MAX_NODE_NAME];
        let fits = is_name(text, MAX_NODE_NAME);
        bytes
            .get_mut(..text.len())
            .filter(|_| fits)?
            .copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0);
        let text = &self.0[..end.unwrap_or(MAX_NODE_NAME)];
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl Field for NodeName {
    const BYTES: usize = MAX_NODE_NAME;

    fn put(&self, to: &mut Writer<'_>) {
        to.bytes(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = from.bytes(Self::BYTES)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let (text, padding) = bytes.split_at(end.unwrap_or(bytes.len()));
        let padded = padding.iter().all(|byte| *byte == 0);
        let name = std::str::from_utf8(text).ok().and_then(Self::new);
        name.filter(|_| padded).ok_or(from.invalid())
    }
}

impl std::fmt::Debug for NodeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

codes! {
    /// What a member asks.
    pub enum Asks: u8 {
        /// Who has a port of this name.
        Port = 1,
        /// Which nodes there are.
        Nodes = 2,
    }
}

record! {
    /// A member's question.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NamesQuestion {
        /// What it asks.
        pub asks: Asks,
        _: 3,
        /// Of nodes: from which one on, in the node's order.
        pub from: u32,
        has name,
        /// Of a port: its name.
        pub name: Option<OfferName>,
        has node,
        /// Of a port: the node that it is on, if the member says which.
        pub node: Option<NodeName>,
    }
    check |it| match it.asks {
        Asks::Port => it.name.is_some() && it.from == 0,
        Asks::Nodes => it.name.is_none() && it.node.is_none(),
    }
}

codes! {
    /// What the node says.
    pub enum Says: u8 {
        /// It is on this node; the right on it is attached.
        Found = 1,
        /// Several nodes have a port of this name: these, and perhaps more.
        Ambiguous = 2,
        /// No node of this name is known.
        NoSuchNode = 3,
        /// The nodes are these.
        Nodes = 4,
        /// The node that was named is this one, which is silent.
        Unreachable = 5,
    }
}

record! {
    /// The head of an answer; so many entries follow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct AnswerHead {
        pub says: Says,
        _: 1,
        pub entries: u16,
        pub all: u32,
    }
}

record! {
    /// A node, in an answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NodeEntry {
        /// Its name.
        pub name: NodeName,
        /// Since when it is silent, nanoseconds of the machine's monotonic clock; 0 while it is not.
        pub silent_since: u64,
    }
}

/// A node's answer.
///
/// ```
/// use portolan_abi::node::{NamesAnswer, NodeEntry, NodeName, Says};
/// let hall = NodeEntry { name: NodeName::new("hall").unwrap(), silent_since: 0 };
/// let answer = NamesAnswer { says: Says::Nodes, all: 1, entries: vec![hall] };
/// assert_eq!(NamesAnswer::decode(&answer.encode()), Ok(answer));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesAnswer {
    /// What it says.
    pub says: Says,
    /// Of nodes: how many there are in all.
    pub all: u32,
    /// The nodes that it names.
    pub entries: Vec<NodeEntry>,
}

impl NamesAnswer {
    /// Entries in one answer, at the most.
    pub const MOST: usize = (MAX_HEADER - AnswerHead::BYTES) / NodeEntry::BYTES;

    /// Its bytes: of [`MOST`](Self::MOST) entries at the most, and no others.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.entries.iter().take(Self::MOST);
        let head = AnswerHead {
            says: self.says,
            entries: u16::try_from(entries.len()).unwrap_or(u16::MAX),
            all: self.all,
        };
        let mut bytes = head.to_bytes();
        bytes.extend(entries.flat_map(Record::to_bytes));
        bytes
    }

    /// Reads it, whole or not at all.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let AnswerHead { says, entries, all } = reader.field("answer")?;
        let wanted = AnswerHead::BYTES + usize::from(entries) * NodeEntry::BYTES;
        if bytes.len() != wanted {
            let found = bytes.len();
            return Err(DecodeError::Length { found, wanted });
        }
        let entries = (0..entries)
            .map(|_| reader.field("node"))
            .collect::<Result<Vec<NodeEntry>, _>>()?;
        let names_as_it_should = match says {
            Says::Found => entries.len() == 1,
            Says::Unreachable => entries.len() == 1 && entries[0].silent_since != 0,
            Says::NoSuchNode => entries.is_empty(),
            Says::Ambiguous => entries.len() > 1,
            Says::Nodes => true,
        };
        match names_as_it_should {
            true => Ok(Self { says, all, entries }),
            false => Err(DecodeError::Check { record: "answer" }),
        }
    }
}

const _: () = assert!(NamesAnswer::MOST <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> NodeEntry {
        NodeEntry {
            name: NodeName::new(name).unwrap(),
            silent_since: 7,
        }
    }

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let answer = NamesAnswer {
            says: Says::Ambiguous,
            all: 0,
            entries: vec![entry("hall"), entry(&"r".repeat(MAX_NODE_NAME))],
        };
        let bytes = answer.encode();
        assert_eq!(NamesAnswer::decode(&bytes), Ok(answer.clone()));
        for cut in 0..bytes.len() {
            assert!(NamesAnswer::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(NamesAnswer::decode(&[&bytes[..], &[0]].concat()).is_err());
        // A name with an '@', one with a byte after its end, and none at all.
        for (at, byte) in [(8, b'@'), (8 + 20, b'x'), (8, 0), (8, 0xff)] {
            let mut other = bytes.clone();
            other[at] = byte;
            assert!(NamesAnswer::decode(&other).is_err(), "{at} {byte}");
        }
        for (says, entries) in [
            (Says::Found, vec![]),
            (Says::Found, vec![entry("hall"), entry("roof")]),
            (Says::NoSuchNode, vec![entry("hall")]),
            (Says::Ambiguous, vec![entry("hall")]),
            (Says::Unreachable, vec![]),
            (
                Says::Unreachable,
                vec![NodeEntry {
                    silent_since: 0,
                    ..entry("hall")
                }],
            ),
        ] {
            let wrong = NamesAnswer {
                says,
                all: 0,
                entries,
            };
            assert!(NamesAnswer::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_fits_a_header_whatever_it_names() {
        let many = NamesAnswer {
            says: Says::Nodes,
            all: 1000,
            entries: vec![entry("hall"); 1000],
        };
        let bytes = many.encode();
        assert!(bytes.len() <= MAX_HEADER);
        let read = NamesAnswer::decode(&bytes).unwrap();
        assert_eq!((read.entries.len(), read.all), (NamesAnswer::MOST, 1000));
    }

    #[test]
    fn a_question_says_what_it_asks_for() {
        let question = NamesQuestion {
            asks: Asks::Port,
            from: 0,
            name: OfferName::new("upper"),
            node: NodeName::new("hall"),
        };
        assert_eq!(
            NamesQuestion::decode(&question.encode()),
            Ok(question.clone())
        );
        for wrong in [
            NamesQuestion {
                name: None,
                ..question.clone()
            },
            NamesQuestion {
                asks: Asks::Nodes,
                ..question
            },
        ] {
            assert!(NamesQuestion::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }
}
