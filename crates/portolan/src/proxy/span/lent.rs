//! Ports of the domain on which other nodes have rights: which of them have closed, and whose receivers
//! want to know when no sender is left.
//!
//! A domain keeps two bits for each port ([`portolan_shm::lent`]), so a node may lend as many as there
//! are, and what one change costs does not grow with their number.

use super::Span;
use crate::proxy::KnownPort;
use crate::space::Member;
use portolan_abi::port::{PortName, RightKind, RightWord, event};
use portolan_shm::lent::{Change, look};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What a node is told of a port that it [lends](Span::lend).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LentNotice {
    /// It has closed, for good: it is not lent any more.
    Closed {
        /// The token that it was lent with.
        token: u64,
    },
    /// Its receiver wants to know when no sender is left
    /// ([`ReceiveRight::request_no_more_senders`](crate::ReceiveRight::request_no_more_senders)). It may
    /// be said more than once.
    WantsSenders {
        /// The token that it was lent with.
        token: u64,
    },
}

/// What a node has lent.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// By entry, which may have had several ports since the node looked: generation and token of each.
    ports: Vec<SmallVec<[(u32, u64); 1]>>,
    /// Those that are to be looked at.
    due: VecDeque<PortName>,
}

impl Lent {
    /// Nothing, in a domain whose node is asked at this port.
    pub(super) fn new(member: &Member, port: PortName) -> Self {
        member.tables().lent.begin(bell(port));
        Self::default()
    }

    /// Forgets all. Before the port closes, and another node begins.
    pub(super) fn end(member: &Member, port: PortName) {
        member.tables().lent.end(bell(port));
    }

    /// What is lent of an entry.
    fn of_entry(&self, index: u16) -> &[(u32, u64)] {
        let ports = self.ports.get(usize::from(index));
        ports.map_or(&[], |ports| ports)
    }

    fn note(&mut self, port: PortName, token: u64) {
        let index = usize::from(port.index);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, SmallVec::new);
        }
        let ports = &mut self.ports[index];
        ports.retain(|(generation, _)| *generation != port.generation);
        ports.push((port.generation, token));
    }

    /// A port is not lent any more.
    fn forget(&mut self, member: &Member, port: PortName) {
        let Some(ports) = self.ports.get_mut(usize::from(port.index)) else {
            return;
        };
        ports.retain(|(generation, _)| *generation != port.generation);
        if ports.is_empty() {
            member.tables().lent.take_back(port.index);
        }
    }

    /// The token that a port is lent with.
    fn token(&self, port: PortName) -> Option<u64> {
        let mut ports = self.of_entry(port.index).iter();
        let its = ports.find(|(generation, _)| *generation == port.generation);
        its.map(|(_, token)| *token)
    }

    /// All ports of an entry are to be looked at.
    fn look_at(&mut self, index: u16) {
        let ports = self.ports.get(usize::from(index));
        let names = ports.into_iter().flatten().map(|(generation, _)| PortName {
            index,
            generation: *generation,
        });
        self.due.extend(names);
    }

    /// Whether there may be something to say.
    pub(super) fn may_have(&self, member: &Member) -> bool {
        !self.due.is_empty() || member.tables().lent.has_changed()
    }
}

/// A node's port, as the words of lent ports name it.
fn bell(port: PortName) -> u64 {
    let kind = RightKind::Send;
    RightWord { kind, port, tag: 0 }.pack()
}

impl Span {
    /// From now on this node [is told](Self::changed) when the port closes, and when its receiver wants to
    /// know its senders, with this token. If either is so already, it is told at once.
    ///
    /// ```
    /// use portolan::proxy::{KnownPort, LentNotice, Span};
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let mut span = Span::begin(&domain, "hall")?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// span.lend(&KnownPort::of(&right), 7);
    /// assert_eq!(span.changed(), None);
    /// port.request_no_more_senders();
    /// assert_eq!(span.changed(), Some(LentNotice::WantsSenders { token: 7 }));
    /// drop(port);
    /// assert_eq!(span.changed(), Some(LentNotice::Closed { token: 7 }));
    /// assert_eq!(span.changed(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lend(&mut self, port: &KnownPort, token: u64) {
        let member = self.port.at().member.clone();
        if !port.is_of(&member) || member.present().is_err() {
            return;
        }
        let name = port.name();
        self.lent.note(name, token);
        member.tables().lent.lend(name.index);
        // L1: after the bit.
        if port.change().is_some() {
            self.lent.due.push_back(name);
        }
    }

    /// Nothing more is told of a port.
    pub fn take_back(&mut self, port: &KnownPort) {
        let member = self.port.at().member.clone();
        if port.is_of(&member) && member.present().is_ok() {
            self.lent.forget(&member, port.name());
        }
    }

    /// What has changed of the ports that are lent, one after another; `None` if nothing has. A wait set
    /// names the span when there is something.
    pub fn changed(&mut self) -> Option<LentNotice> {
        let member = self.port.at().member.clone();
        member.present().ok()?;
        let tables = member.tables();
        let at = self.port.at();
        let sleep = &at.queue().port.sleep;
        if sleep.events_of(at.port.generation) & event::LENT != 0 {
            // Before the look: what changes after it raises the event again.
            sleep.take_event(event::LENT);
        }
        loop {
            if self.lent.due.is_empty() && tables.lent.has_changed() {
                tables.lent.drain(|index| self.lent.look_at(index));
            }
            let port = self.lent.due.pop_front()?;
            // It was taken back meanwhile.
            let Some(token) = self.lent.token(port) else {
                continue;
            };
            let entry = tables.ports.get(usize::from(port.index))?;
            match look(entry, port) {
                None => {}
                Some(Change::WantsSenders) => return Some(LentNotice::WantsSenders { token }),
                Some(Change::Closed) => {
                    self.lent.forget(&member, port);
                    return Some(LentNotice::Closed { token });
                }
            }
        }
    }
}
