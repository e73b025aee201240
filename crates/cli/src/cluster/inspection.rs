//! What happens in a spanned domain, at a node and at its peers: `portolan_node::engine::Question` and its
//! answer.
//!
//! What a peer says comes through the node beside this command, which checks nothing of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Came, Node, WITHIN};
use crate::error::{CliError, Result};

/// What a node is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Question {
    /// Which questions belong together, and which of them it is.
    pub(crate) session: u64,
    pub(crate) number: u64,
    /// The domain's name among nodes.
    pub(crate) domain: String,
    /// Kinds of events of its members; all, if there is none.
    pub(crate) kinds: Vec<String>,
    /// All events before this one have been read.
    pub(crate) after: u64,
    /// The clocks of its peers are wanted.
    pub(crate) clocks: bool,
    /// Nothing is to be recorded from now on.
    pub(crate) end: bool,
}

#[derive(Serialize)]
struct Inspect<'a> {
    node: Option<&'a str>,
    question: &'a Question,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Ask<'a> {
    Inspect(Inspect<'a>),
}

#[derive(Serialize)]
struct Request<'a> {
    ask: Ask<'a>,
}

/// What the node beside this command says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Says {
    Answer(String),
    Pending,
    Unlinked,
}

/// What came of a question.
#[derive(Debug)]
pub(crate) enum Told {
    Page(Box<Page>),
    /// The peer has not answered yet: asked again, it is waited for on.
    Pending,
    /// There is no link with it.
    Unlinked,
    /// What it says cannot be read.
    Unreadable,
    /// The node beside this command has ended.
    NotRunning,
}

/// A part of what a node has recorded. All of it is what that node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Page {
    pub(crate) node: String,
    pub(crate) name: String,
    /// The node's process, and its thread, in which messages depart and arrive.
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// Why nothing is told.
    pub(crate) refused: Option<String>,
    /// Why there are no events of the domain's members.
    pub(crate) without_members: Option<String>,
    /// The number of the first event, and of the one behind the last.
    pub(crate) first: u64,
    pub(crate) next: u64,
    pub(crate) more: bool,
    /// Events that were lost: in the rings of members, and because they were not asked for in time.
    pub(crate) lost: (u64, u64),
    /// How far the clock that nodes measure is ahead of the one that events have.
    pub(crate) ahead: i64,
    pub(crate) clocks: Vec<Clock>,
    /// What spaces call themselves, by number and process.
    pub(crate) spaces: Vec<(u8, u32, String)>,
    pub(crate) ports: BTreeMap<u16, String>,
    pub(crate) events: Vec<Seen>,
}

/// How far the clock of a node is ahead, in nanoseconds, and by how much that is wrong at the most.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Clock {
    pub(crate) node: String,
    pub(crate) ahead: i64,
    pub(crate) error: u64,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Seen {
    /// A member of the domain did something.
    #[serde(rename = "m")]
    Member(MemberEvent),
    /// A message departed to a peer.
    #[serde(rename = "d")]
    Depart(Passage),
    /// A message of a peer arrived.
    #[serde(rename = "a")]
    Arrive(Passage),
}

/// What a member did, in the order in which a node says it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct MemberEvent {
    pub(crate) kind: String,
    pub(crate) began: u64,
    pub(crate) took: u64,
    pub(crate) space: u8,
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) port: Option<u16>,
    pub(crate) position: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) about: Option<(u8, u32)>,
}

/// A message that departs or arrives, in the order in which a node says it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Passage {
    pub(crate) began: u64,
    pub(crate) took: u64,
    /// Which message: both of its nodes say the same.
    pub(crate) key: u64,
    /// `message`, `request` or `answer`.
    pub(crate) what: String,
    /// The node at the other side.
    pub(crate) peer: String,
    pub(crate) port: String,
    pub(crate) bytes: u64,
}

impl Node {
    /// Asks what happens at this node, or at a peer of it.
    pub(crate) fn inspect(&self, peer: Option<&str>, question: &Question) -> Result<Told> {
        let node = peer;
        let request = Request {
            ask: Ask::Inspect(Inspect { node, question }),
        };
        let mut line = serde_json::to_vec(&request).map_err(|error| self.failed(error.into()))?;
        line.push(b'\n');
        let came = match self.hear(None, &line, WITHIN)? {
            Some(Came::Answer(came)) => came,
            Some(Came::Nothing) => return Ok(Told::NotRunning),
            Some(Came::Late(_)) | None => return Err(self.silent()),
        };
        let says = serde_json::from_slice(&came);
        Ok(match says.map_err(|error| self.failed(error.into()))? {
            Says::Pending => Told::Pending,
            Says::Unlinked => Told::Unlinked,
            Says::Answer(text) => match serde_json::from_str(&text) {
                Ok(page) => Told::Page(page),
                Err(_) if peer.is_some() => Told::Unreadable,
                Err(error) => {
                    return Err(CliError::NodeUnreadable {
                        state: self.state().to_owned(),
                        source: error.into(),
                    });
                }
            },
        })
    }
}
