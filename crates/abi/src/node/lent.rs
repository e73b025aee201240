//! Ports that are lent: asked for by their names, found or not, and gone.

use super::node_id::NodeId;
use crate::codec::{DecodeError, Reader};
use crate::limits::{MAX_DOMAIN_NAME, MAX_NAME};
use crate::name::is_name;
use crate::{codes, record};

/// Bytes of the secret in a port's reference.
pub const PORT_SECRET: usize = 16;

record! {
    /// The name of a port for its whole life, wherever it moves.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct PortId {
        /// The node that made it.
        pub origin: NodeId,
        /// Which of its ports.
        pub serial: u64,
    }
}

record! {
    /// A port that is lent to a borrower: a right to send to it goes by the flow that asked.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Lent {
        /// Which port.
        pub port: PortId,
        /// A node that knows it may be lent the port too.
        pub secret: [u8; PORT_SECRET],
        /// Known to this borrower and to the port's homes, and to nobody else: by it they know one another
        /// when the borrower asks where the port is.
        pub key: [u8; PORT_SECRET],
        /// It takes requests, and not messages.
        pub synchronous: bool,
        _: 7,
    }
}

impl std::fmt::Debug for Lent {
    /// Without the secret and the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent")
            .field("port", &self.port)
            .field("synchronous", &self.synchronous)
            .finish_non_exhaustive()
    }
}

codes! {
    /// Why a name was not resolved.
    pub enum ResolveFailure: u32 {
        /// There is no such port, or its name is let out to no node.
        NoSuchPort = 1,
        /// The node does not span the domain.
        NoSuchDomain = 2,
        /// The borrower may not have it.
        Denied = 3,
        /// The home has no room for another borrower.
        Full = 4,
        /// Another reason.
        Other = 5,
    }
    unknown => Other
}

codes! {
    /// Whether a name was resolved.
    enum ResolvedTag: u32 {
        Lent = 1,
        Failed = 2,
    }
}

codes! {
    /// Why a flow leads nowhere any more.
    pub enum DeadReason: u32 {
        /// The port's receiver has closed it, or died.
        Closed = 1,
        /// The node has stopped to span the domain.
        Unspanned = 2,
        /// Another reason.
        Other = 3,
    }
    unknown => Other
}

record! {
    /// The end of a flow: its port is gone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dead {
        /// Which flow.
        pub flow: u32,
        /// Why.
        pub reason: DeadReason,
        /// All messages with lower numbers were put into the port.
        pub next: u64,
    }
}

/// A question for a port by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve<'a> {
    /// The flow that will lead to the port.
    pub flow: u32,
    /// The name that the domain has among nodes.
    pub domain: &'a str,
    /// The port's.
    pub name: &'a str,
}

record! {
    struct ResolveBody {
        pub flow: u32,
        pub domain: u8,
        pub name: u8,
        _: 2,
    }
}

/// Writes what a name, or a reference, leads to.
pub(super) fn put(lent: &Result<Lent, ResolveFailure>, out: &mut Vec<u8>) {
    match lent {
        Ok(lent) => {
            out.extend((ResolvedTag::Lent as u32).to_le_bytes());
            out.extend(lent.encode());
        }
        Err(failure) => {
            out.extend((ResolvedTag::Failed as u32).to_le_bytes());
            out.extend((*failure as u32).to_le_bytes());
        }
    }
}

pub(super) fn get(from: &mut Reader<'_>) -> Result<Result<Lent, ResolveFailure>, DecodeError> {
    Ok(match from.field("tag")? {
        ResolvedTag::Lent => Ok(from.field("lent")?),
        ResolvedTag::Failed => Err(from.field("failure")?),
    })
}

impl<'a> Resolve<'a> {
    /// Whether names are names.
    fn can_be(&self) -> bool {
        is_name(self.domain, MAX_DOMAIN_NAME) && is_name(self.name, MAX_NAME)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let length = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        let body = ResolveBody {
            flow: self.flow,
            domain: length(self.domain),
            name: length(self.name),
        };
        out.extend(body.encode());
        out.extend(self.domain.as_bytes());
        out.extend(self.name.as_bytes());
    }

    pub(super) fn get(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let body: ResolveBody = from.field("resolve")?;
        let domain = text(from.bytes(usize::from(body.domain))?, "domain")?;
        let name = text(from.bytes(usize::from(body.name))?, "name")?;
        let flow = body.flow;
        let resolve = Self { flow, domain, name };
        let record = "Resolve";
        let valid = resolve.can_be().then_some(resolve);
        valid.ok_or(DecodeError::Check { record })
    }
}

fn text<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Value { field })
}
