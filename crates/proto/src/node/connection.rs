//! A connection to a peer, from the greeting to the farewell.
//!
//! ```text
//! greeting ---Hello there and here---> resuming ---Resumed---> carrying ---Bye, silence, cut---> closed
//! ```

use super::types::Authenticated;
use crate::Time;
use portolan_abi::node::{
    AssociationId, Bye, ByeReason, Hello, Member, NodeId, Ping, Record, RecordFlags, Sent,
};

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) with: Authenticated,
    /// What is said first, as things stood when it was opened.
    pub(super) hello: Hello,
    is_hello_sent: bool,
    /// The peer's greeting was taken: the connection carries the association, or did.
    pub(super) met: bool,
    /// All that has arrived here is to be said, and then that all was said.
    pub(super) resuming: bool,
    /// The peer has said so.
    pub(super) resumed: bool,
    pub(super) heard: Time,
    said: Time,
    /// The clock of the peer's last ping, and when it came, if it was not echoed.
    pub(super) echo: Option<(u64, Time)>,
    /// A ping is due.
    pub(super) ping: bool,
    /// It asks for a certificate with this, and answers with that.
    pub(super) renew: Option<Vec<u8>>,
    pub(super) renewed: Option<Vec<u8>>,
    /// It asks this about the peer, and answers with that: the last of each.
    pub(super) inspect: Option<Vec<u8>>,
    pub(super) inspected: Option<Vec<u8>>,
    /// It answers with this record where ports are.
    pub(super) located: Option<Vec<u8>>,
    /// So many of the node's statements were said on it.
    pub(super) stated: usize,
    /// It says which members the node knows.
    pub(super) tell: bool,
    /// It says how many bytes a second are taken from the peer; 0 is as many as come.
    pub(super) takes: Option<u64>,
    /// It says this, and then nothing.
    pub(super) bye: Option<ByeReason>,
    is_bye_sent: bool,
}

impl Connection {
    pub(super) fn new(now: Time, with: Authenticated, hello: Hello) -> Self {
        Self {
            with,
            hello,
            is_hello_sent: false,
            met: false,
            resuming: false,
            resumed: false,
            heard: now,
            said: now,
            echo: None,
            ping: false,
            renew: None,
            renewed: None,
            inspect: None,
            inspected: None,
            located: None,
            stated: 0,
            tell: false,
            takes: None,
            bye: None,
            is_bye_sent: false,
        }
    }

    /// What the connection itself says, before all that it carries.
    pub(super) fn next_record(
        &mut self,
        now: Time,
        clock: u64,
        members: &[(NodeId, String)],
    ) -> Option<Vec<u8>> {
        let sent = Sent::default();
        if !std::mem::replace(&mut self.is_hello_sent, true) {
            return Some(Record::Hello(self.hello.clone()).with(sent));
        }
        if let Some(reason) = self.bye {
            let is_first = !std::mem::replace(&mut self.is_bye_sent, true);
            return is_first.then(|| Record::Bye(Bye { reason }).with(sent));
        }
        if self.met && std::mem::take(&mut self.ping) {
            let echo = self.echo.take();
            let held = echo.map_or(0, |(_, at)| now.0.saturating_sub(at.0));
            let ping = Ping {
                clock,
                echo: echo.map(|(clock, _)| clock),
                held,
            };
            return Some(Record::Ping(ping).with(sent));
        }
        // A build that does not know these goes on without.
        let sent = Sent {
            flags: RecordFlags::OPTIONAL,
            ..sent
        };
        if self.met
            && let Some(bytes) = self.takes.take()
        {
            return Some(Record::Rate { bytes }.with(sent));
        }
        if self.met
            && let Some(request) = self.renew.take()
        {
            return Some(Record::Renew(&request).with(sent));
        }
        if self.met
            && let Some(certificate) = self.renewed.take()
        {
            return Some(Record::Renewed(&certificate).with(sent));
        }
        if self.met
            && let Some(question) = self.inspect.take()
        {
            return Some(Record::Inspect(&question).with(sent));
        }
        if self.met
            && let Some(answer) = self.inspected.take()
        {
            return Some(Record::Inspected(&answer).with(sent));
        }
        if self.met
            && let Some(record) = self.located.take()
        {
            return Some(record);
        }
        if self.met && std::mem::take(&mut self.tell) {
            let members = members.iter().map(|(node, address)| Member {
                node: *node,
                address,
            });
            return Some(Record::Members(members.collect()).with(sent));
        }
        None
    }

    /// The next of the node's statements that was not said on it.
    pub(super) fn next_statement(&mut self, all: &[Vec<u8>]) -> Option<Vec<u8>> {
        let statement = all.get(self.stated).filter(|_| self.carries())?;
        self.stated += 1;
        // A build that does not know them goes on without.
        let sent = Sent {
            flags: RecordFlags::OPTIONAL,
            ..Sent::default()
        };
        Some(Record::Statement(statement).with(sent))
    }

    /// It carries what an association says.
    pub(super) fn carries(&self) -> bool {
        self.met && self.bye.is_none()
    }

    pub(super) fn has_said(&mut self, now: Time) {
        self.said = now;
    }

    /// When it has been silent for so long.
    pub(super) fn ping_at(&self, after: core::time::Duration) -> Time {
        self.said.after(after)
    }
}

/// The association that two greetings agree on. Both nodes come to the same result, because both
/// know both greetings.
///
/// A node says which association it has, and what its part of the next one's id will be. If both
/// have the same one, they go on. If one has an association to which the other one's *next*
/// proposal belongs, then the other has not heard of it yet, and enters it. If neither, there is a
/// new one. Proposals are never used twice, also not by another incarnation.
pub(super) fn agreed(ours: &Hello, theirs: &Hello) -> AssociationId {
    let (ours, theirs) = (&ours.body, &theirs.body);
    let is_smaller = ours.node < theirs.node;
    let part = |id: AssociationId, of_smaller: bool| {
        if of_smaller { id.smaller } else { id.larger }
    };
    if let Some(id) = ours.association
        && (theirs.association == Some(id) || part(id, !is_smaller) == theirs.proposal)
    {
        return id;
    }
    if let Some(id) = theirs.association
        && part(id, is_smaller) == ours.proposal
    {
        return id;
    }
    let (smaller, larger) = if is_smaller {
        (ours.proposal, theirs.proposal)
    } else {
        (theirs.proposal, ours.proposal)
    };
    AssociationId { smaller, larger }
}

/// Our part of an association's id.
pub(super) fn own_part(id: AssociationId, own: NodeId, peer: NodeId) -> u64 {
    if own < peer { id.smaller } else { id.larger }
}
