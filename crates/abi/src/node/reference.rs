//! Lays out how a right stands in a message to another node.

use super::lent::{PORT_SECRET, PortId};
use super::node_id::NodeId;
use crate::{codes, record};

codes! {
    /// What a right in a message allows.
    pub enum ReferenceKind: u8 {
        /// To send any number of messages to a port.
        Send = 1,
        /// To send one message: it goes to the giver, as the answer to the request.
        SendOnce = 2,
        /// To receive at a port, whose home is the giver.
        Receive = 3,
    }
}

record! {
    /// A right in a message. Its giver keeps a request open for it: of a send right, until the
    /// receiver's node has a loan of its own, or wants none; of a send-once right, until that is used or
    /// dropped; of a receive right, until the receiver's node has taken the port, or has not.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Reference {
        /// The request of the giver's node.
        pub request: u64,
        /// The port; of a send-once right none.
        pub port: PortId,
        /// A node that knows it may be lent the port. Of a receive right: the port's key, from which the secret
        /// follows, and which the port's homes know alone.
        pub secret: [u8; PORT_SECRET],
        /// The port's home.
        pub home: NodeId,
        /// The home's incarnation: another one has no such port.
        pub incarnation: u64,
        /// What it allows.
        pub kind: ReferenceKind,
        /// The port takes requests, and not messages.
        pub synchronous: bool,
        _: 2,
        /// Of a receive right: slots of the port's queue.
        pub slots: u32,
    }
    check |it| it.can_be()
}

const _: () = assert!(Reference::BYTES == 80);

impl Reference {
    /// A send-once right, which is used by answering this request.
    ///
    /// ```
    /// use portolan_abi::node::{Reference, ReferenceKind};
    /// let once = Reference::once(7);
    /// assert_eq!((once.request, once.kind), (7, ReferenceKind::SendOnce));
    /// assert_eq!(Reference::decode(&once.encode()), Ok(once));
    /// ```
    pub fn once(request: u64) -> Self {
        Self {
            request,
            port: PortId::default(),
            secret: [0; PORT_SECRET],
            home: NodeId::default(),
            incarnation: 0,
            kind: ReferenceKind::SendOnce,
            synchronous: false,
            slots: 0,
        }
    }

    fn can_be(&self) -> bool {
        let is_once = self.kind == ReferenceKind::SendOnce;
        let is_receive = self.kind == ReferenceKind::Receive;
        self.request != 0
            && (!is_once || *self == Self::once(self.request))
            && is_receive == (self.slots > 0)
    }
}

impl std::fmt::Debug for Reference {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference")
            .field("request", &self.request)
            .field("port", &self.port)
            .field("home", &self.home)
            .field("incarnation", &self.incarnation)
            .field("kind", &self.kind)
            .field("synchronous", &self.synchronous)
            .finish()
    }
}

record! {
    /// A borrower shows a port's home what it was given: lend me this port.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Claim {
        /// The flow that will lead to the port.
        pub flow: u32,
        _: 4,
        /// The port.
        pub port: PortId,
        /// Its secret.
        pub secret: [u8; PORT_SECRET],
    }
}

impl std::fmt::Debug for Claim {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim")
            .field("flow", &self.flow)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

record! {
    /// The old home of a port, whose receive right the new home has taken, opens a flow to it there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MoveRight {
        /// The flow by which the backlog comes.
        pub flow: u32,
        /// The port's receiver wants to know when no sender is left.
        pub wants_senders: bool,
        _: 3,
        /// The request that was open for the receive right.
        pub request: u64,
    }
    check |it| it.request != 0
}

record! {
    /// The end of the messages that were in a port's queue when its receive right was taken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Backlog {
        /// The flow by which they come.
        pub flow: u32,
        _: 4,
        /// Their numbers are below this one.
        pub end: u64,
    }
}

record! {
    /// Where the port of a flow is now.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Moved {
        /// Which flow.
        pub flow: u32,
        _: 4,
        /// All messages with lower numbers were put into the port: the new home receives them from the
        /// old one. The others are to be sent to the new home.
        pub next: u64,
        /// The new home.
        pub home: NodeId,
        /// The new home's incarnation.
        pub incarnation: u64,
    }
}
