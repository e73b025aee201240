//! Domains: who is in one, who hosts it, and what becomes of the dead.
//!
//! ```text
//!                 bind and listen first                     leave: all returned
//! a process ----------------------------> space 1, host ----------------------> gone
//!     |                                        | dies: its pidfd is readable
//!     | hello, welcome, arrived                v
//!     +-----------------------> a space --- takes the host word over
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `settings` | how a domain is to be: the builder |
//! | `place` | this process's memberships |
//! | `rendezvous` | finding the host, or becoming the first |
//! | `create` | making a region |
//! | `observe` | reading a region without being in the domain |
//! | `link` | this process's tie to its host: one thread, and leaving |
//! | `watch` | a member's thread: waits for the host's death, and succeeds it; admits newcomers while the host is stopped |
//! | `host` | the host's thread: newcomers, deaths |
//! | `admit` | one newcomer's admission, by the host or by another member |
//! | `introduce` | the host's side of visits |
//! | `mediate` | the host's threads that copy to and from what members entrust to it |
//! | `permissions` | who may visit what a member offers |
//! | `offer` | what this process offers to visitors |
//! | `visit` | asking for what is offered, from outside or inside |
//! | `reclaim` | returning what a dead space held |
//!
//! # Invariants
//!
//! - **D1** At most one living space has the host word, and only it writes the entries of other
//!   spaces that are live or dead. What becomes of free entries and of newcomers' says D7.
//! - **D2** The host word is taken from nobody, or from a space whose pidfd is readable, or
//!   which has executed another program and so cannot touch the region any more.
//! - **D3** A space's entry is handed out again only after its reclaim has finished; its
//!   incarnation then goes up.
//! - **D4** The two listening sockets, the host's and the fallback one, are made once and shared by
//!   every member: the domain's name lives exactly as long as a member does, and is never bound a
//!   second time meanwhile.
//! - **D5** Every step of a reclaim may be repeated, by another host, after the one that began
//!   it was killed.
//! - **D6** A space is live only if the host watches it, or a connection by which it makes itself
//!   known lies in the backlog of the host's socket. So a host that was stopped wakes for each
//!   newcomer that others have admitted; it then watches every entry of the region that is in use,
//!   and buries who has died meanwhile.
//! - **D7** The host and any other member admit at the same time. Each claims a free entry by
//!   compare-exchange, and no admission undoes what another one has claimed (A1 to A4 of
//!   `portolan_shm::space`).
//! - **D8** A member that does not answer is not taken for dead, the host neither: a stopped host
//!   stays host, and nobody else buries, introduces or hosts meanwhile.

mod admit;
mod create;
mod descriptor;
mod error;
mod host;
mod introduce;
mod link;
mod mediate;
mod observe;
mod offer;
mod permissions;
mod place;
mod reclaim;
mod rendezvous;
mod settings;
mod space;
#[cfg(test)]
mod tests;
mod visit;
mod watch;

pub(crate) use descriptor::Descriptor;
pub use error::{JoinError, LeaveError};
pub(crate) use link::{Link, depart};
pub use observe::{Observer, Over};
pub use offer::OfferError;
pub(crate) use offer::{Desk, Offer, OfferKind, Visitor, entrust, offer};
pub use permissions::{AccessToken, GrantError, Permissions};
pub use settings::Builder;
pub(crate) use space::has_died;
pub use visit::VisitError;
#[cfg(test)]
pub(crate) use visit::visit_own;
pub(crate) use visit::{Entrance, Introduction, PendingVisit, visit};

use crate::member::Member;
use crate::{Disowned, Protection};
use portolan_abi::space::HostWord;
use portolan_shm::atomic::Ordering;
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
    settled: link::Settled,
}

impl Domain {
    /// Joins the domain `name` of this process's user, and creates it if it is not there.
    ///
    /// # Errors
    ///
    /// [`JoinError`], after 5 seconds at the latest.
    pub fn join(name: &str) -> Result<Self, JoinError> {
        Self::builder(name).join()
    }

    /// How to join the domain `name`, and what to create if it is not there.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    /// A domain that only this process is in, without socket and thread. For tests.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn private() -> Result<Self, JoinError> {
        Self::builder("private").private()
    }

    fn new(member: Arc<Member>) -> Self {
        let settled = member.link.settled();
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
        hosting(&self.member) == me(&self.member)
    }

    /// How extents are protected in this domain.
    pub fn protection(&self) -> Protection {
        self.member.protection
    }

    /// Whether every page of the domain is open to this process, whoever owns it: in a
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
        self.member.link.connected()
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
        link::leave(self.member, self.settled)
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

/// What this process's keeper does.
enum Role {
    /// It watches the host.
    Member(watch::Control),
    /// It hosts.
    Host(Box<host::Host>),
}

/// Who hosts.
fn hosting(member: &Member) -> HostWord {
    // Acquire: what the host did before it took the role is seen.
    HostWord::unpack(member.tables().header.host.word.load(Ordering::Acquire))
}

/// Whether whoever hosts, or `host`, may have a descriptor of all of this process's memory: it
/// is of the same user, or root, who could have it anyway.
pub(crate) fn trusts_host(member: &Member, host: Option<HostWord>) -> bool {
    let host = host.unwrap_or_else(|| hosting(member));
    let entry = member.tables().spaces.get(usize::from(host.space));
    // Relaxed: written before the space was live, so before it could host.
    let its_user = entry.map(|entry| entry.user.load(Ordering::Relaxed));
    its_user.is_some_and(|its| its == 0 || its == u64::from(portolan_sys::process::user()))
}

/// Our own host word.
fn me(member: &Member) -> HostWord {
    HostWord {
        space: member.space,
        incarnation: member.incarnation,
    }
}
