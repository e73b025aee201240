//! A span: the node's side of a domain that reaches over several machines.
//!
//! ```text
//!   program                          the domain                         node
//!   Domain::connect("upper") --1--> a port named "upper"?
//!            2  none                                        Span::begin: the port "@node"
//!            +------------------ request: "who has upper?" -----------> Span::take -> Query
//!            <---- answer: a right on the proxy port of it ------------ Query::found
//! ```
//!
//! The local way reads nothing new: only who finds no port of the name looks whether there is a
//! node. It waits for either, on one futex word: the one that says that a name has appeared, which a
//! node changes as well when it has answered, and the host when a member has died.
//!
//! # Invariants
//!
//! - **P1** A domain has one node: its port has a name, which one port has. Programs cannot give it.
//! - **P2** A name is found from other nodes only if the port that has it was bound
//!   [`spanned`](crate::PortOptions::spanned), or its name is in the [list](Span::set_ports).
//! - **P3** A program that asks waits for nothing but its deadline: whether the node is stopped,
//!   killed, full or lies. What it holds of a query ends with the call, and the node can
//!   [tell](Query::is_wanted).
//! - **P4** What the node answers is read whole or not at all.
//! - **P5** What the node [lends](Span::lend) is forgotten before its port closes, or by the node that
//!   comes after it: no bit of one node's is another one's.

mod connect;
mod lent;
mod nodes;
mod query;
#[cfg(test)]
mod tests;

pub use lent::LentNotice;
pub use nodes::Node;
pub use query::Query;

use super::ProxyPort;
use crate::port::{
    bind_port, check_node, look_for_port, name_changes, node_of, shown_names, taken_name,
};
use crate::space::Member;
use crate::space::entry::has_died;
use crate::wait::Armable;
use crate::{BindError, Deadline, Domain, PortOptions, ReceiveError, ReceiveRight, SendRight};
use lent::Lent;
use portolan_abi::codec::Record;
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::node::{Asks, NODE_PORT, NamesQuestion};
use portolan_abi::port::PortStatus;
use portolan_shm::atomic::Ordering;
use portolan_shm::queue::Home;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Questions that wait for the node, at the most; who finds no room asks again.
const QUESTIONS: usize = 255;
/// Questions that are not about ports, which one call takes if it may not wait.
const AT_ONCE: usize = 64;
/// How long a dead node may keep its place: until the host has seen that it died.
const RECLAIM: Duration = Duration::from_secs(10);
/// The pause between two looks at that.
const LOOK: Duration = Duration::from_millis(2);

/// The node's side of a domain that it spans: what programs of the domain ask for and do not find
/// there, it is asked. It can be [waited for](crate::WaitSet::add).
///
/// Dropped, the domain has no node any more: programs wait for local names only.
///
/// ```
/// use portolan::proxy::Span;
/// use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};
/// use std::time::Duration;
/// # let name = format!("doc-span-{}", std::process::id());
/// let domain = Domain::join(&name)?;
/// let mut span = Span::begin(&domain, "roof")?;
/// let program = std::thread::spawn(move || {
///     let domain = Domain::join(&name).unwrap();
///     domain.connect("upper", Duration::from_secs(10)).map(|right| {
///         right.begin_request(Message::new(b"hello").unwrap(), WhenFull::Fail).is_ok()
///     })
/// });
/// let query = span.take(Duration::from_secs(10))?;
/// assert_eq!((query.name(), query.node()), ("upper", None));
/// // Here it asks the other nodes. "hall" has it: synchronous, with a queue of 63.
/// let options = PortOptions::unnamed().synchronous().queue(63);
/// let proxy = span.bind("upper", "hall", options)?;
/// query.found(proxy.make_send(), "hall")?;
/// assert!(program.join().expect("it ends")?);
/// assert_eq!(proxy.depth(), 1); // the request, to be carried to "hall"
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Span {
    lent: Lent,
    port: ReceiveRight,
    node: String,
    ports: BTreeSet<String>,
    nodes: Vec<Node>,
}

/// A port of this machine whose name is let out.
#[derive(Debug)]
pub struct SpannedPort {
    /// A right on it.
    pub right: SendRight,
    /// Whether it takes requests.
    pub synchronous: bool,
    /// Slots of its queue: one more than the messages that it holds, or so.
    pub slots: usize,
}

impl Span {
    /// Makes this member the domain's node, by this name. If the one before it has died, waits until
    /// the host knows.
    ///
    /// # Errors
    ///
    /// [`BindError::Spanned`] while there is another; and as [`Domain::bind`].
    ///
    /// ```
    /// use portolan::BindError;
    /// use portolan::proxy::Span;
    /// let domain = portolan::Domain::private()?;
    /// let span = Span::begin(&domain, "roof")?;
    /// let other = Span::begin(&domain, "cellar");
    /// assert!(matches!(other, Err(BindError::Spanned { node, .. }) if node == "roof"));
    /// # drop(span);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(domain: &Domain, node: &str) -> Result<Self, BindError> {
        check_node(node)?;
        let mut home = Home {
            node: [0; MAX_NODE_NAME],
            silent_since: 0,
        };
        home.node[..node.len()].copy_from_slice(node.as_bytes());
        let (member, options) = (domain.member(), PortOptions::of_node(home).queue(QUESTIONS));
        let until = Instant::now() + RECLAIM;
        let port = loop {
            match bind_port(member, &options) {
                Ok(port) => break port,
                Err(BindError::NameTaken { .. }) => {}
                Err(error) => return Err(error),
            }
            if let Some(error) = other_node(member, Instant::now() >= until) {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        };
        Ok(Self {
            lent: Lent::new(member, port.at().port),
            port,
            node: node.to_owned(),
            ports: BTreeSet::new(),
            nodes: Vec::new(),
        })
    }

    /// The node's own name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What a program asks next: who has a port that it has not found in its domain. That the nodes
    /// are asked for is answered on the way.
    ///
    /// A query can be kept for as long as it [is wanted](Query::is_wanted): a name that nobody has
    /// may come.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; nothing is lost. Where many ask at once, [`ReceiveError::TimedOut`] with
    /// more to come: a wait set names it again.
    pub fn take(&mut self, deadline: impl Into<Deadline>) -> Result<Query, ReceiveError> {
        let deadline = deadline.into();
        let mut others = 0;
        loop {
            let (_, request) = self.port.get_any(deadline)?;
            let (message, answer) = request.into_parts();
            let question = NamesQuestion::of_bytes(message.header());
            match (question, answer) {
                (Ok(question), Some(answer)) if question.asks == Asks::Port => {
                    if let Some(query) = Query::new(&message, question, answer) {
                        return Ok(query);
                    }
                }
                (Ok(question), Some(answer)) => nodes::tell(&self.nodes, question.from, answer),
                // None of this library's: it is told that it was dropped.
                _ => {}
            }
            others += 1;
            // So many that a thread with other things to do would be kept from them.
            if others >= AT_ONCE && deadline.has_passed() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    /// A port of this domain that is to be found by this name from other nodes (P2), with a new right
    /// on it. Not a proxy of a port elsewhere: a port is found where its home is.
    ///
    /// ```
    /// use portolan::proxy::Span;
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let mut span = Span::begin(&domain, "hall")?;
    /// let upper = domain.bind(PortOptions::named("upper").synchronous().spanned())?;
    /// let lower = domain.bind(PortOptions::named("lower"))?;
    /// assert!(span.find("upper").is_some_and(|port| port.synchronous));
    /// assert!(span.find("lower").is_none());
    /// span.set_ports(["lower"]);
    /// assert!(span.find("lower").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find(&self, name: &str) -> Option<SpannedPort> {
        let found = self.find_any(name)?;
        (!found.right.status().proxied).then_some(found)
    }

    /// The same of a port whose home is elsewhere, and which has kept its name here: its receive right was
    /// given to another node.
    ///
    /// ```
    /// use portolan::proxy::{ProxyPort, Span};
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let span = Span::begin(&domain, "hall")?;
    /// let upper = domain.bind(PortOptions::named("upper").spanned())?;
    /// assert!(span.find("upper").is_some() && span.find_left("upper").is_none());
    /// let upper = ProxyPort::new(upper, "roof").map_err(|refused| refused.why)?;
    /// assert!(span.find("upper").is_none() && span.find_left("upper").is_some());
    /// # drop(upper);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find_left(&self, name: &str) -> Option<SpannedPort> {
        let found = self.find_any(name)?;
        found.right.status().proxied.then_some(found)
    }

    fn find_any(&self, name: &str) -> Option<SpannedPort> {
        let right = look_for_port(self.member(), name)?;
        // Of this very port, because a right on it is there.
        let status = right.status();
        let is_out = status.spanned || self.ports.contains(name);
        // The node's own port has no name that another one can ask for.
        let is_out = is_out && name != NODE_PORT;
        let slots = right.to.queue().slots();
        is_out.then_some(SpannedPort {
            right,
            synchronous: status.synchronous,
            slots,
        })
    }

    /// The names of all ports that [`find`](Self::find) finds, in no order.
    ///
    /// ```
    /// use portolan::proxy::Span;
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let mut span = Span::begin(&domain, "hall")?;
    /// let before = span.names_changed();
    /// let upper = domain.bind(PortOptions::named("upper").spanned())?;
    /// let lower = domain.bind(PortOptions::named("lower"))?;
    /// assert_eq!(span.names(), ["upper"]);
    /// assert_ne!(span.names_changed(), before);
    /// span.set_ports(["lower"]);
    /// drop(upper);
    /// assert_eq!(span.names(), ["lower"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn names(&self) -> Vec<String> {
        let shown = shown_names(self.member()).into_iter();
        let out = shown.filter(|(name, status)| {
            let is_out = status.spanned || self.ports.contains(name);
            is_out && name != NODE_PORT && !status.proxied && !status.shared
        });
        out.map(|(name, _)| name).collect()
    }

    /// A number that changes whenever a name appears in the domain, and sometimes when none has. Names
    /// that go do not change it.
    pub fn names_changed(&self) -> u32 {
        // Acquire: what is looked for after this was there when the number was this one.
        name_changes(self.member()).load(Ordering::Acquire)
    }

    /// Names that are let out as if their ports had been bound
    /// [`spanned`](crate::PortOptions::spanned); those of before are not any more.
    pub fn set_ports(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.ports = names.into_iter().map(Into::into).collect();
    }

    /// What [`Domain::nodes`] says from now on, in this order.
    pub fn set_nodes(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.nodes = nodes.into_iter().collect();
    }

    /// Binds the proxy of a port of this name on that node, of this shape. It is not found by its
    /// name: the name is shown to observers, as `upper -> hall`.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn bind(
        &self,
        name: &str,
        node: &str,
        options: PortOptions,
    ) -> Result<ProxyPort, BindError> {
        let port = bind_port(self.member(), &options.titled(name))?;
        ProxyPort::new(port, node).map_err(|refused| refused.why)
    }

    fn member(&self) -> &Arc<Member> {
        &self.port.at().member
    }
}

/// That another node spans the domain; `None` if it does not any more, or has died and, unless it is
/// `late`, may be reclaimed soon.
fn other_node(member: &Member, late: bool) -> Option<BindError> {
    let (entry, _) = taken_name(member, NODE_PORT)?;
    let status = entry.control.status.load(Ordering::Acquire);
    let space = PortStatus::unpack(status).owner;
    let (node, _) = node_of(entry);
    if has_died(member, space) && !late {
        return None;
    }
    // Nobody else's by now, and the name was its.
    let same = entry.control.status.load(Ordering::Acquire) == status;
    (same || late).then_some(BindError::Spanned { node, space })
}

impl Drop for Span {
    fn drop(&mut self) {
        let at = self.port.at();
        if at.member.present().is_ok() {
            Lent::end(&at.member, at.port);
        }
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Span")
            .field("node", &self.node)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Armable for Span {
    fn kind(&self) -> &'static str {
        "the span"
    }

    fn membership(&self) -> u64 {
        Armable::membership(&self.port)
    }

    fn may_have(&mut self) -> bool {
        self.port.may_have() || self.lent.may_have(self.member())
    }

    fn arm_for(&mut self, link: u64) -> bool {
        // Armed, then looked at: a change that is not seen here finds the port armed.
        self.port.arm_for(link) && (link == 0 || !self.lent.may_have(self.member()))
    }
}
