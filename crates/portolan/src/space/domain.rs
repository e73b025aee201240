//! A domain handle gives a program its membership.

use super::host::{host_of, me};
use super::host_connection::{self, Settled};
use super::member::Member;
use super::settings::Builder;
use super::{Disowned, LeaveError, Protection};
use std::sync::Arc;

/// This process's membership in a domain. Cheap to clone; the process leaves when the
/// last clone, port, right, extent and message of it is dropped.
///
/// # Examples
///
/// ```
/// let domain = portolan::Domain::private()?;
/// assert_eq!(domain.space(), 1);
/// assert!(domain.is_host());
/// # Ok::<(), portolan::JoinError>(())
/// ```
#[derive(Clone)]
pub struct Domain {
    // In this order: the drop of the last member leaves the domain, and the second waits
    // until that has happened, should the host's thread be doing it.
    member: Arc<Member>,
    settled: Settled,
}

impl Domain {
    /// How to join the domain `name`, and what to create if it is not there.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    pub(crate) fn new(member: Arc<Member>) -> Self {
        let settled = member.host_connection.settled();
        Self { member, settled }
    }

    /// The domain's name.
    pub fn name(&self) -> &str {
        &self.member.domain
    }

    /// This process's number in the domain, from 1 on.
    pub fn space(&self) -> u8 {
        self.member.space
    }

    /// Whether this process hosts the domain now.
    pub fn is_host(&self) -> bool {
        host_of(&self.member) == me(&self.member)
    }

    /// Has this process host the domain from now on, as a daemon does that outlives programs: the member
    /// that hosts hands its role over, unless it prefers to host itself. Does not wait:
    /// [`is_host`](Self::is_host) says when it has happened. Members go on meanwhile, and newcomers are let
    /// in. If another member takes over, because this process did not answer, it is asked too.
    ///
    /// When this process leaves or dies another member hosts, as ever.
    ///
    /// ```
    /// let domain = portolan::Domain::private()?;
    /// domain.prefer_to_host();
    /// assert!(domain.is_host());
    /// # Ok::<(), portolan::JoinError>(())
    /// ```
    pub fn prefer_to_host(&self) {
        if self.member.present().is_ok() {
            self.member.host_connection.prefer_to_host();
        }
    }

    /// How extents are protected in this domain.
    pub fn protection(&self) -> Protection {
        self.member.protection
    }

    /// Whether every page of the domain is open to this process, also those of other owners: in a
    /// trusted domain always, in a guarded one if it joined with [`Builder::always_open`].
    pub fn is_always_open(&self) -> bool {
        self.member.always_open()
    }

    /// Whether this process still is a member that the others can reach. Asks the kernel,
    /// so it is for now and then, not for every message.
    ///
    /// # Errors
    ///
    /// [`Disowned`]: why it is none.
    pub fn check(&self) -> Result<(), Disowned> {
        self.member.present()?;
        self.member.host_connection.connected()
    }

    /// Leaves the domain: when this returns, everything that this process held in it has
    /// been returned and its place is free. Dropping the last handle does the same. It waits for
    /// threads of clients and servers ([`crate::rpc`]) that were dropped, and for what was sent to
    /// another domain ([`Self::connect_to`]) by a right that is: 20 s at most, if a method runs
    /// or the other domain does not read.
    ///
    /// # Errors
    ///
    /// [`LeaveError`]: what stands in the way, and when it will have happened.
    pub fn leave(self) -> Result<(), LeaveError> {
        host_connection::leave(self.member, self.settled)
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Member { domain, space, .. } = &*self.member;
        write!(f, "Domain({domain:?}, space {space})")
    }
}
