//! A proxied port is received by a member on behalf of a port on another node. Its senders learn
//! what cannot travel there, and that the node is silent.

use super::message::{Message, from_monotonic_nanos, monotonic_nanos};
use super::request::ReplyPorts;
use super::rights::is_live;
use super::send::SendError;
use super::watches::tell_reach;
use super::{BindError, ReceiveError, ReceiveRight, Request, Right, SendRight};
use crate::Deadline;
use crate::space::region::Attached;
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::name::is_name;
use portolan_abi::port::{ANY_BYTES, PortStatus};
use portolan_abi::slot::Kind;
use portolan_shm::mark;
use portolan_shm::queue::{Home, PortEntry, Proxied};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Whether a message may go to another machine: structures mean this one's addresses, some receive
/// rights stay ([`ReceiveRight::stays_here`]), and of segments only channels and shared extents travel.
pub(crate) fn may_travel(message: &Message) -> Result<(), SendError> {
    if message.structure {
        return Err(SendError::Structure);
    }
    let stays = message.rights().iter().find_map(|right| match right {
        Right::Receive(port) => port.stays_here(),
        Right::Segment(segment) if segment.as_channel().is_err() => Some("a segment"),
        _ => None,
    });
    match stays {
        Some(what) => Err(SendError::StaysHere { what }),
        None => Ok(()),
    }
}

/// Whether a proxied port's node is not silent, as things are.
pub(super) fn is_reachable(to: &Attached) -> Result<(), SendError> {
    let entry = to.queue().port;
    loop {
        // Acquire: where its home is comes before.
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        if !status.unreachable || !is_live(status, to.port) {
            return Ok(());
        }
        // While it changes the port does not say that it is unreachable: see `ReceiveRight::proxy_for`.
        if let Some(home) = entry.home() {
            return Err(SendError::Unreachable {
                node: text_of(&home.node),
                since: from_monotonic_nanos(home.silent_since),
            });
        }
    }
}

/// The node of a proxied port's home, and since when it is silent; without a name, while that
/// changes.
pub(crate) fn node_of(entry: &PortEntry) -> (String, Option<Instant>) {
    let home = entry.home();
    let silent = home.as_ref().map_or(0, |home| home.silent_since);
    (
        home.map_or_else(String::new, |home| text_of(&home.node)),
        (silent != 0).then(|| from_monotonic_nanos(silent)),
    )
}

fn text_of(node: &[u8]) -> String {
    let end = node.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&node[..end.unwrap_or(node.len())]).into_owned()
}

/// Whether this is a node's name.
pub(crate) fn check_node(node: &str) -> Result<(), BindError> {
    match is_name(node, MAX_NODE_NAME) {
        true => Ok(()),
        false => Err(BindError::BadNode {
            name: node.to_owned(),
        }),
    }
}

impl SendRight {
    /// The same right, for requests whose answers go on to this node, whose name was
    /// [checked](check_node).
    pub(crate) fn for_node(mut self, node: &str) -> Self {
        self.replies = Arc::new(ReplyPorts::for_node(node));
        self
    }
}

impl ReceiveRight {
    /// Has the port say that it is received on behalf of one on this node, whose name was
    /// [checked](check_node), silent since then.
    pub(crate) fn proxy_for(&self, node: &str, silent_since: Option<Instant>) {
        let mut home = Home {
            node: [0; MAX_NODE_NAME],
            // 0 says that it is not.
            silent_since: silent_since.map_or(0, |since| monotonic_nanos(since).max(1)),
        };
        home.node[..node.len()].copy_from_slice(node.as_bytes());
        let (entry, port) = (self.at().queue().port, self.at().port);
        // First: a sender that is told that the node is silent finds out which, and since when.
        entry.set_proxied(port, Proxied::Yes);
        mark!("proxy.changing");
        entry.set_home(&home);
        mark!("proxy.changed");
        if silent_since.is_some() {
            entry.set_proxied(port, Proxied::Unreachable);
        }
        mark!("proxy.reach");
        tell_reach(&self.at().member, port);
    }

    /// The next that comes, of any kind, waiting for it: a message, a request, a notice, or what has
    /// become of a send-once right.
    pub(crate) fn get_any(&mut self, deadline: Deadline) -> Result<(Kind, Request), ReceiveError> {
        let mut message = Message::default();
        let origin = self.next(&mut message, deadline)?;
        Ok((origin.kind(), self.request_of(origin, message)))
    }

    /// Whether it takes requests.
    pub(crate) fn is_synchronous(&self) -> bool {
        // Relaxed: it never changes.
        let status = &self.at().queue().port.control.status;
        PortStatus::unpack(status.load(Ordering::Relaxed)).synchronous
    }

    /// What it is, if it cannot move to another machine: there the port has a queue of its own,
    /// which is of the usual kind.
    fn stays_here(&self) -> Option<&'static str> {
        let control = &self.at().queue().port.control;
        // Relaxed: they never change.
        let status = PortStatus::unpack(control.status.load(Ordering::Relaxed));
        if status.by_urgency {
            Some("the receive right of a port by urgency")
        } else if status.copied {
            Some("the receive right of a port that gives copies")
        } else if control.most.load(Ordering::Relaxed) != ANY_BYTES {
            Some("the receive right of a port whose messages go to another domain")
        } else {
            None
        }
    }

    /// Has it say so no more.
    pub(crate) fn proxy_no_more(&self) {
        let at = self.at();
        at.queue().port.set_proxied(at.port, Proxied::No);
        tell_reach(&at.member, at.port);
    }
}
