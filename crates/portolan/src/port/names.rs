//! Gives each name to one port without a lock ([`portolan_shm::names`]), and wakes the threads that
//! wait for a name.

use super::{BindError, SendRight};
use crate::space::Member;
use crate::space::region::Attached;
use crate::{Deadline, Disowned};
use portolan_abi::limits::{MAX_NAME, MAX_NODE_NAME};
use portolan_abi::name::{RULE, is_name};
use portolan_abi::port::{PortName, PortPhase, PortStatus};
use portolan_shm::atomic::{AtomicU32, AtomicU64};
use portolan_shm::mark;
use portolan_shm::names::{self, Lost, NameHash};
use portolan_shm::queue::PortEntry;
use portolan_shm::region::read_text;
use portolan_sys::futex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Why a name did not lead to a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The state's: no space has bound a port of this name (yet); of one on another node: or that
    /// node lets none of this name out.
    #[error("{}", no_such_port(.name))]
    NoSuchPort {
        /// The name.
        name: String,
    },
    /// The peer's: the node that was named is silent. It may come back.
    #[error(
        "no port named {name:?} could be asked for: node {node:?} has been silent for {:.1} s; wait longer, or look at that machine and at the network (`portolan node status`)",
        .since.elapsed().as_secs_f64()
    )]
    Unreachable {
        /// The name.
        name: String,
        /// The node.
        node: String,
        /// Since when it is silent.
        since: Instant,
    },
    /// The caller's: no port can have this name, so waiting for one would be in vain.
    #[error(
        "{name:?} is no port name: use 1 to {MAX_NAME} bytes {RULE}; a node's name has 1 to {MAX_NODE_NAME}"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The caller's: several nodes have a port of this name.
    #[error(
        "several nodes have a port named {name:?}: say which one, as in {}",
        .nodes.iter().map(|node| format!("{name}@{node}")).collect::<Vec<_>>().join(" or ")
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// The nodes, or many of them.
        nodes: Vec<String>,
    },
    /// The caller's: there is no such node.
    #[error(
        "no node named {node:?} spans this domain: `portolan node status` lists those that this machine's node knows"
    )]
    NoSuchNode {
        /// The name that was given.
        node: String,
    },
    /// The state's: a node was asked for, and no node spans this domain here.
    #[error(
        "no node spans this domain on this machine: run one (`portolan node up`) and have it span the domain (`portolan node span`, or Builder::spanning)"
    )]
    NoNode,
    /// The node's: it did not answer in time.
    #[error("this machine's node {node:?} did not answer before the deadline: is it stopped?")]
    NoAnswer {
        /// Its name.
        node: String,
    },
    /// The node's: its answer is none that this version knows.
    #[error(
        "this machine's node {node:?} answered what no node of this version says: run a node and programs of one version"
    )]
    BadAnswer {
        /// Its name.
        node: String,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`](crate::NoDescriptor); of calls that are awaited.
    #[error(transparent)]
    NoDescriptor(#[from] crate::NoDescriptor),
}

/// That there is no port of this name, and what to do. Whether a node has one that it does not let
/// out, it tells nobody.
fn no_such_port(name: &str) -> String {
    match name.split_once('@') {
        Some((port, node)) => format!(
            "node {node:?} lets out no port named {port:?}: the program that binds it asks for `.spanned()`, the command for `--spanned`; start it, or wait longer"
        ),
        None => format!(
            "no port named {name:?} in this domain: start the program that binds it, or wait longer; a port on another machine is found if it is bound `.spanned()` (the command: `--spanned`)"
        ),
    }
}

/// A send right on the port of this name, waiting until there is one.
pub(crate) fn connect(
    member: &Arc<Member>,
    name: &str,
    deadline: Deadline,
) -> Result<SendRight, ConnectError> {
    wait_for(member, name, deadline, |port, shared| {
        right_on(member, port, shared)
    })
}

/// A send right on the port of this name, if there is one; the port of its name that programs
/// cannot give, too.
pub(crate) fn look(member: &Arc<Member>, name: &str) -> Option<SendRight> {
    let (port, shared) = find(member, name)?;
    right_on(member, port, shared)
}

fn right_on(member: &Arc<Member>, port: PortName, shared: bool) -> Option<SendRight> {
    let attached = (!shared).then(|| Attached::new(member, port))??;
    SendRight::make(attached)
}

/// What `take` makes of the open port of this name (which may be a segment), waiting until
/// there is one of which it makes something.
pub(super) fn wait_for<R>(
    member: &Member,
    name: &str,
    deadline: Deadline,
    take: impl Fn(PortName, bool) -> Option<R>,
) -> Result<R, ConnectError> {
    if !is_name(name, MAX_NAME) {
        return Err(ConnectError::BadName {
            name: name.to_owned(),
        });
    }
    member.present()?;
    member.host_connection.connected()?;
    loop {
        let changes = changes(member);
        // Acquire: a name that appears after this changes the changes, and we do not sleep.
        let seen = changes.load(Ordering::Acquire);
        if let Some((port, shared)) = find(member, name)
            && let Some(taken) = take(port, shared)
        {
            return Ok(taken);
        }
        if deadline.has_passed() {
            return Err(ConnectError::NoSuchPort {
                name: name.to_owned(),
            });
        }
        let _ = futex::wait(changes, seen, deadline.instant());
    }
}

/// The open port of this name, and whether it is a segment.
fn find(member: &Member, name: &str) -> Option<(PortName, bool)> {
    let tables = member.tables();
    let hash = NameHash::of(name);
    tables.used_ports().find_map(|(index, entry)| {
        let shown = &tables.names[usize::from(index)];
        while hash.is_shown(shown) {
            let status = entry.control.status.load(Ordering::Acquire);
            let is_named = read_text(&entry.name.words) == name;
            // The port that showed the name may have been closed, and the entry be that of a
            // port of the same name that is not complete yet: it shows its name later.
            if !hash.is_shown(shown) || entry.control.status.load(Ordering::Acquire) != status {
                continue;
            }
            let status = PortStatus::unpack(status);
            let is_open = matches!(status.phase, PortPhase::Open | PortPhase::Moving);
            let port = PortName {
                index,
                generation: status.generation,
            };
            return (is_open && is_named).then_some((port, status.shared));
        }
        None
    })
}

/// The names that can be found, each with the status of its port.
pub(crate) fn shown(member: &Member) -> Vec<(String, PortStatus)> {
    let tables = member.tables();
    let shown = tables.used_ports().filter_map(|(index, entry)| {
        let load = || entry.control.status.load(Ordering::Acquire);
        let before = load();
        let status = PortStatus::unpack(before);
        if !matches!(status.phase, PortPhase::Open | PortPhase::Moving) {
            return None;
        }
        let name = read_text(&entry.name.words);
        // What is being written, or has gone meanwhile, is not shown, or not of this status.
        let is_shown = NameHash::of(&name).is_shown(&tables.names[usize::from(index)]);
        (!name.is_empty() && is_shown && load() == before).then_some((name, status))
    });
    shown.collect()
}

/// A port that has this name, or is about to; its owner's space.
fn owner(entry: &PortEntry, name: &str) -> Option<u8> {
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    let there = matches!(
        status.phase,
        PortPhase::Binding | PortPhase::Open | PortPhase::Moving
    );
    (there && read_text(&entry.name.words) == name).then_some(status.owner)
}

/// Makes sure that this is a name, and that no port has it. One that takes it from here on is
/// found by [`win`].
pub(super) fn check(member: &Member, name: &str) -> Result<(), BindError> {
    if !is_name(name, MAX_NAME) {
        return Err(BindError::BadName {
            name: name.to_owned(),
        });
    }
    check_free(member, name)
}

/// Makes sure that no port has this name.
pub(super) fn check_free(member: &Member, name: &str) -> Result<(), BindError> {
    taken(member, name).map_or(Ok(()), |(_, owner)| Err(taken_by(name, owner)))
}

/// The entry that has this name, or is about to, and its owner's space.
pub(crate) fn taken<'m>(member: &'m Member, name: &str) -> Option<(&'m PortEntry, u8)> {
    let (tables, hash) = (member.tables(), NameHash::of(name));
    tables.used_ports().find_map(|(index, entry)| {
        let taken = hash.is_taken(&tables.names[usize::from(index)]);
        Some((entry, taken.then(|| owner(entry, name)).flatten()?))
    })
}

fn taken_by(name: &str, owner: u8) -> BindError {
    let name = name.to_owned();
    BindError::NameTaken { name, owner }
}

/// Wins `name` for the port entry `index`, which is ours and has the name's text. Waits for
/// nobody: of those that bind one name at the same time one gets it (N1 of
/// [`portolan_shm::names`]).
pub(super) fn win<'m>(member: &'m Member, index: u16, name: &str) -> Result<Won<'m>, BindError> {
    let (tables, hash) = (member.tables(), NameHash::of(name));
    let used = || tables.used_ports().map(|(index, _)| usize::from(index));
    let owner = |other: usize| tables.ports.get(other).and_then(|e| owner(e, name));
    loop {
        let same = |other| owner(other).is_some();
        match names::win(tables.names, index.into(), hash, used(), same) {
            Ok(()) => break,
            Err(Lost::To(other)) => return Err(taken_by(name, owner(other).unwrap_or(0))),
            // Each time to another binder of a lower entry, which mostly wins.
            Err(Lost::Again) => {}
        }
    }
    Ok(Won {
        member,
        index,
        hash,
    })
}

/// A name that was won, and that no space can find yet. Given up when dropped.
#[must_use = "a name that is not shown is given up"]
pub(super) struct Won<'m> {
    member: &'m Member,
    index: u16,
    hash: NameHash,
}

impl Won<'_> {
    /// Lets others find the port, which is open, and wakes who waits for a name.
    pub(super) fn show(self) {
        names::show(self.word(), self.hash);
        mark!("bind.name_published");
        wake_waiters(self.member);
    }

    fn word(&self) -> &AtomicU64 {
        &self.member.tables().names[usize::from(self.index)]
    }
}

impl Drop for Won<'_> {
    fn drop(&mut self) {
        // Nothing, if it is shown.
        names::give_up(self.word(), self.hash);
    }
}

/// The word that changes when a name appears, and when a node has answered.
pub(crate) fn changes(member: &Member) -> &AtomicU32 {
    &member.tables().header.names.changes
}

/// Wakes all who wait for a name to appear.
pub(crate) fn wake_waiters(member: &Member) {
    let changes = changes(member);
    changes.fetch_add(1, Ordering::SeqCst);
    futex::wake(changes, u32::MAX);
}
