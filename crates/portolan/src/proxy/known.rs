//! Ports that a node knows, and has no right on.

use super::SpannedPort;
use crate::space::Member;
use crate::space::region::Attached;
use crate::{Domain, Message, ReceiveRight, Right, SendRight};
use portolan_abi::port::{PortName, event};
use portolan_shm::atomic::Ordering;
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

    /// The port that is received at.
    pub fn at(port: &ReceiveRight) -> Self {
        Self(port.at().clone())
    }

    /// The port of this [number](Self::number), as another process of this machine has told it; `None` if no
    /// port of the domain can have it. It may be dead.
    ///
    /// ```
    /// use portolan::proxy::KnownPort;
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let number = KnownPort::at(&port).number();
    /// let known = KnownPort::with_number(&domain, number).ok_or("it can be")?;
    /// assert!(known.right().is_some_and(|right| right.is_live()));
    /// drop(port);
    /// assert!(known.right().is_none());
    /// assert!(KnownPort::with_number(&domain, u64::MAX).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_number(domain: &Domain, number: u64) -> Option<Self> {
        let port = PortName {
            index: u16::try_from(number & 0xffff).ok()?,
            generation: u32::try_from(number >> 16).ok()?,
        };
        Attached::new(domain.member(), port).map(Self)
    }

    /// The ports whose receive rights are in a message.
    ///
    /// ```
    /// use portolan::proxy::KnownPort;
    /// use portolan::{Domain, Message, PortOptions};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let number = KnownPort::at(&port).number();
    /// let mut message = Message::default();
    /// message.attach(port.make_send()).map_err(|refused| refused.why)?;
    /// message.attach(port).map_err(|refused| refused.why)?;
    /// let numbers: Vec<_> = KnownPort::moved_by(&message).map(|it| it.number()).collect();
    /// assert_eq!(numbers, [number]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn moved_by(message: &Message) -> impl Iterator<Item = Self> {
        message.rights().iter().filter_map(|right| match right {
            Right::Receive(port) => Some(Self::at(port)),
            _ => None,
        })
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

    /// Asks that on behalf of its receiver, who has asked it where the port was before.
    pub fn request_no_more_senders(&self) {
        if let Some(right) = self.right() {
            // Of this very port, because a right on it is there. If it is the only one its drop tells.
            let wanted = &right.to.queue().port.sleep.wanted;
            wanted.fetch_or(event::NO_MORE_SENDERS, Ordering::SeqCst);
        }
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
