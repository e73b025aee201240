//! Tells programs which nodes there are.

use super::connect::{message_of, node_here};
use crate::port::{ConnectError, from_monotonic_nanos, look_for_port, monotonic_nanos};
use crate::{Access, Deadline, Domain, Message, RequestError, SendOnceRight};
use portolan_abi::node::{Asks, NODE_PORT, NamesAnswer, NamesQuestion, NodeEntry, NodeName, Says};
use std::time::Instant;

/// Nodes that a program asks for, at the most.
const MOST: usize = 65_536;

/// A node, as this machine's node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Since when it is silent; `None` while it is not.
    pub unreachable_since: Option<Instant>,
}

impl Domain {
    /// The nodes that span this domain, as this machine's node sees them.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoNode`]; [`ConnectError::NoAnswer`] if it does not answer in time, for it is
    /// stopped; [`ConnectError::BadAnswer`].
    ///
    /// ```
    /// use portolan::Domain;
    /// use portolan::proxy::{Node, Span};
    /// use std::time::{Duration, Instant};
    /// # let name = format!("doc-nodes-{}", std::process::id());
    /// let domain = Domain::join(&name)?;
    /// let mut span = Span::begin(&domain, "hall")?;
    /// let since = Some(Instant::now());
    /// span.set_nodes([
    ///     Node { name: "hall".to_owned(), unreachable_since: None },
    ///     Node { name: "roof".to_owned(), unreachable_since: since },
    /// ]);
    /// let program = std::thread::spawn(move || domain.nodes(Duration::from_secs(10)));
    /// # while !program.is_finished() {
    /// let nothing_asked = span.take(Duration::from_millis(10));
    /// # assert!(nothing_asked.is_err());
    /// # }
    /// let nodes = program.join().expect("it ends")?;
    /// assert_eq!((nodes[0].name.as_str(), nodes[0].unreachable_since), ("hall", None));
    /// assert!(nodes[1].unreachable_since.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodes(&self, deadline: impl Into<Deadline>) -> Result<Vec<Node>, ConnectError> {
        let (member, deadline) = (self.member(), deadline.into());
        member.present()?;
        member.host_connection.connected()?;
        let mut nodes = Vec::new();
        loop {
            let own = look_for_port(member, NODE_PORT).ok_or(ConnectError::NoNode)?;
            let node = node_here(member).unwrap_or_default();
            let question = NamesQuestion {
                asks: Asks::Nodes,
                from: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
                name: None,
                node: None,
            };
            let answer = own.request_reply(message_of(&question.encode()), Access::Later, deadline);
            let answer = match answer {
                Ok(answer) => NamesAnswer::decode(answer.header()),
                Err(RequestError::Disowned(why)) => return Err(why.into()),
                // It has ended since; perhaps another one has begun.
                Err(RequestError::ServerDead) if !own.is_live() && !deadline.has_passed() => {
                    continue;
                }
                Err(_) => return Err(ConnectError::NoAnswer { node }),
            };
            let Some(answer) = answer.ok().filter(|answer| answer.says == Says::Nodes) else {
                return Err(ConnectError::BadAnswer { node });
            };
            nodes.extend(answer.entries.iter().map(node_of_entry));
            let all = usize::try_from(answer.all).unwrap_or(MOST).min(MOST);
            if answer.entries.is_empty() || nodes.len() >= all {
                return Ok(nodes);
            }
        }
    }
}

fn node_of_entry(entry: &NodeEntry) -> Node {
    let NodeEntry { name, silent_since } = entry;
    Node {
        name: name.as_str().to_owned(),
        unreachable_since: (*silent_since != 0).then(|| from_monotonic_nanos(*silent_since)),
    }
}

/// Tells a program of the nodes from this one on. A node whose name is none is not told of.
pub(super) fn tell(nodes: &[Node], from: u32, to: SendOnceRight) {
    let entry = |node: &Node| {
        Some(NodeEntry {
            name: NodeName::new(&node.name)?,
            // 0 says that it is not.
            silent_since: node
                .unreachable_since
                .map_or(0, |since| monotonic_nanos(since).max(1)),
        })
    };
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let told = nodes.iter().filter_map(entry);
    let answer = NamesAnswer {
        says: Says::Nodes,
        all: u32::try_from(told.clone().count()).unwrap_or(u32::MAX),
        entries: told.skip(from).take(NamesAnswer::MOST).collect(),
    };
    // A program that is gone, or no memory for a long answer: then it hears that it was dropped.
    let _ = Message::new(&answer.encode()).map(|message| to.send(message));
}
