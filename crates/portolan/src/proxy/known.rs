//! Ports that a node knows, and has no right on.

use super::SpannedPort;
use crate::SendRight;
use crate::space::Member;
use crate::space::region::Attached;
use portolan_abi::port::PortName;
use portolan_shm::lent::{Change, look};
use std::sync::Arc;

/// A port of a domain that is remembered: nobody counts it as a right, and as long as the port lives a
/// right on it can be made.
///
/// ```
/// use portolan::proxy::KnownPort;
/// use portolan::{Domain, PortOptions};
/// let domain = Domain::private()?;
/// let port = domain.bind(PortOptions::unnamed())?;
/// let right = port.make_send();
/// let known = KnownPort::of(&right);
/// assert_eq!(known.number(), KnownPort::of(&right.clone()).number());
/// drop(right);
/// assert_eq!(port.senders(), 0);
/// assert!(known.right().is_some_and(|right| right.is_live()));
/// assert!(!known.wants_no_more_senders());
/// drop(port);
/// assert!(known.right().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KnownPort(Attached);

impl KnownPort {
    /// The port that a right leads to.
    pub fn of(right: &SendRight) -> Self {
        Self(right.to.clone())
    }

    /// Its number in its domain: no other port there, of now or of later, has the same.
    pub fn number(&self) -> u64 {
        u64::from(self.0.port.generation) << 16 | u64::from(self.0.port.index)
    }

    /// A right on it, if it lives.
    pub fn right(&self) -> Option<SendRight> {
        SendRight::make(self.0.clone())
    }

    /// Whether its receiver has asked to be told when no sender is left
    /// ([`ReceiveRight::request_no_more_senders`](crate::ReceiveRight::request_no_more_senders)), and
    /// was not told since.
    pub fn wants_no_more_senders(&self) -> bool {
        self.change() == Some(Change::WantsSenders)
    }

    /// What a node that has lent it wants to know, as things are.
    pub(super) fn change(&self) -> Option<Change> {
        self.0.member.present().ok()?;
        look(self.0.queue().port, self.0.port)
    }

    pub(super) fn name(&self) -> PortName {
        self.0.port
    }

    pub(super) fn is_of(&self, member: &Arc<Member>) -> bool {
        Arc::ptr_eq(&self.0.member, member)
    }
}

impl SpannedPort {
    /// The port that a right leads to, as it is let out with a message.
    pub fn of(right: SendRight) -> Self {
        let synchronous = right.status().synchronous;
        let slots = right.to.queue().slots();
        Self {
            right,
            synchronous,
            slots,
        }
    }
}

impl std::fmt::Debug for KnownPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KnownPort").field(&self.0.port).finish()
    }
}
