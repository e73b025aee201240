//! Lays out how a right stands in a message to another node.

use super::node_id::NodeId;
use super::record::{PORT_SECRET, PortId};
use crate::{codes, record};

codes! {
    /// What a right in a message allows.
    pub enum ReferenceKind: u8 {
        /// To send any number of messages to a port.
        Send = 1,
        /// To send one message: it goes to the giver, as the answer to the request.
        SendOnce = 2,
    }
}

record! {
    /// A right in a message. Its giver keeps a request open for it: of a send right, until the
    /// receiver's node has a loan of its own, or wants none; of a send-once right, until that is used or
    /// dropped.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Reference {
        /// The request of the giver's node.
        pub request: u64,
        /// The port; of a send-once right none.
        pub port: PortId,
        /// A node that knows it may be lent the port.
        pub secret: [u8; PORT_SECRET],
        /// The port's home.
        pub home: NodeId,
        /// The home's incarnation: another one has no such port.
        pub incarnation: u64,
        /// What it allows.
        pub kind: ReferenceKind,
        /// The port takes requests, and not messages.
        pub synchronous: bool,
        _: 6,
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
        }
    }

    fn can_be(&self) -> bool {
        let is_once = self.kind == ReferenceKind::SendOnce;
        self.request != 0 && (!is_once || *self == Self::once(self.request))
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
