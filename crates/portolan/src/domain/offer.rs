//! What this process offers to visitors.
//!
//! ```text
//! offer() ---> new --announced--> open --drop--> gone
//!               |      ^           |
//!               |      +-----------+ another host
//!               v refused: the name is taken
//! ```
//!
//! # Invariants
//!
//! - **O1** Nothing of an offer lies in the region: this process keeps it, and the host
//!   knows of it for as long as our connection to it lasts.
//! - **O2** When the drop of an [`Offer`] has returned, its desk meets nobody any more.
//! - **O3** Who a visitor is, the kernel says to us; the host only says which offer it wants.
#![allow(dead_code, reason = "what is offered is built on this")]

use super::descriptor::Descriptor;
use super::permissions::{GrantError, Permissions, Verdict, judge};
use crate::member::Member;
use crate::{Deadline, Disowned};
use portolan_abi::limits::MAX_NAME;
pub(crate) use portolan_abi::visit::OfferKind;
use portolan_abi::visit::{Grants, OfferName, Visit};
use portolan_sys::process::{PidFd, start_time};
use portolan_sys::socket::{self, Peer};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Somebody who was introduced to an offer of ours, and whom its permissions admit.
/// Everything that it says is a stranger's.
pub(crate) struct Visitor {
    /// Leads to it. It may have said something already.
    pub(crate) connection: Descriptor,
    /// Who it is, as the kernel says: of the moment when it connected.
    pub(crate) peer: Peer,
    /// Its process; `None` if that is dead, or in another process namespace.
    pub(crate) pidfd: Option<Descriptor<PidFd>>,
}

impl Visitor {
    /// Who is at the other end of a connection.
    pub(super) fn new(connection: OwnedFd) -> Result<Self, socket::SocketError> {
        let connection = Descriptor::new(connection);
        Ok(Self {
            peer: socket::peer(&connection)?,
            pidfd: PidFd::of_peer(&connection).ok().map(Descriptor::new),
            connection,
        })
    }
}

/// Where the visitors of an offer are met.
pub(crate) trait Desk: Send + Sync {
    /// Takes a visitor over: queues it, and nothing that waits. It is called on the keeper's
    /// thread (in a private domain on the visitor's), with the offers locked: it must not
    /// make or drop one.
    fn meet(&self, visitor: Visitor);
}

/// Something that visitors may ask for by its name, until dropped.
#[must_use = "a dropped offer is withdrawn"]
pub(crate) struct Offer {
    member: Arc<Member>,
    number: u32,
}

/// Why something is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// The caller's: the name is too long, empty, or has a zero byte.
    #[error("no name for an offer: use 1 to {MAX_NAME} bytes without zero bytes")]
    BadName,
    /// The caller's: the permissions say something that cannot be granted.
    #[error(transparent)]
    Permissions(#[from] GrantError),
    /// The state's: somebody in the domain offers another by this name.
    #[error(
        "the domain has another offer of this name and kind: choose another name, or wait until that one is withdrawn"
    )]
    NameTaken,
    /// The caller's: this process offers too much, or the domain does.
    #[error("{most} things are offered, and there is no room for another: withdraw some")]
    TooMany {
        /// The most that there may be.
        most: usize,
    },
    /// The host's: it did not answer in time. The offer is withdrawn.
    #[error("the host did not answer in time; it may be stopped")]
    Unanswered,
    /// The caller's: this process is no member that the host knows.
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// Offers something to whoever `permissions` admit; visitors come to `desk`.
///
/// # Errors
///
/// [`OfferError`], until `deadline` at the latest.
pub(crate) fn offer(
    member: &Arc<Member>,
    kind: OfferKind,
    name: &str,
    permissions: &Permissions,
    desk: Arc<dyn Desk>,
    deadline: Deadline,
) -> Result<Offer, OfferError> {
    member.present()?;
    member.link.connected()?;
    let name = OfferName::new(name).ok_or(OfferError::BadName)?;
    let made = Made {
        kind,
        name,
        grants: permissions.grants()?,
        desk,
        state: State::New,
    };
    let offers = member.link.offers();
    let number = offers.enter(made)?;
    let offer = Offer {
        member: Arc::clone(member),
        number,
    };
    // Dropped by an error, and so withdrawn.
    offers.wait_open(number, deadline)?;
    Ok(offer)
}

impl Drop for Offer {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever, and nothing is offered.
        if !portolan_sys::fork::in_child() {
            self.member.link.offers().remove(self.number);
        }
    }
}

/// Most offers of one process.
const MOST: usize = 16_384;

/// Everything that this process offers.
#[derive(Default)]
pub(super) struct Offers {
    table: Mutex<Table>,
    /// An offer has been answered, or is open.
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    last: u32,
    made: BTreeMap<u32, Made>,
}

/// An offer.
struct Made {
    kind: OfferKind,
    name: OfferName,
    grants: Grants,
    desk: Arc<dyn Desk>,
    state: State,
}

/// What the host knows of an offer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing yet.
    New,
    /// Visitors are introduced to it.
    Open,
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // A desk that panics leaves the table as it was.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, made: Made) -> Result<u32, OfferError> {
        let mut table = self.lock();
        if table.made.len() >= MOST {
            return Err(OfferError::TooMany { most: MOST });
        }
        if table
            .made
            .values()
            .any(|m| (m.kind, m.name) == (made.kind, made.name))
        {
            return Err(OfferError::NameTaken);
        }
        let mut number = table.last.wrapping_add(1);
        while table.made.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        table.last = number;
        table.made.insert(number, made);
        Ok(number)
    }

    fn remove(&self, number: u32) {
        let made = self.lock().made.remove(&number);
        // Its desk is let go of here, and without the lock.
        drop(made);
    }

    fn wait_open(&self, number: u32, _deadline: Deadline) -> Result<(), OfferError> {
        // Nobody else is in a private domain.
        if let Some(made) = self.lock().made.get_mut(&number) {
            made.state = State::Open;
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Introduces ourselves to an offer of ours. `None`: there is none of that name.
    pub(super) fn visit_here(
        &self,
        visit: &Visit,
    ) -> Option<io::Result<Result<OwnedFd, (Verdict, u32)>>> {
        let table = self.lock();
        let wanted =
            |m: &&Made| (m.kind, m.name) == (visit.kind, visit.name) && m.state == State::Open;
        let made = table.made.values().find(wanted)?;
        Some(made.meet_own(visit))
    }

    /// Waits until an offer is made, or `deadline`.
    pub(super) fn wait_change(&self, visit: &Visit, deadline: Deadline) {
        let is_there = |table: &Table| {
            let mut made = table.made.values();
            made.any(|m| (m.kind, m.name) == (visit.kind, visit.name) && m.state == State::Open)
        };
        let mut table = self.lock();
        while !is_there(&table) && !deadline.has_passed() {
            table = match deadline.instant() {
                None => self
                    .changed
                    .wait(table)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    let waited = self.changed.wait_timeout(table, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Made {
    /// Meets this very process.
    fn meet_own(&self, visit: &Visit) -> io::Result<Result<OwnedFd, (Verdict, u32)>> {
        let (theirs, ours) = socket::pair().map_err(io::Error::other)?;
        let visitor = Visitor::new(ours).map_err(io::Error::other)?;
        let peer = &visitor.peer;
        let verdict = judge(
            &self.grants,
            peer,
            || start_time(peer.pid),
            visit.token.as_ref(),
        );
        if verdict != Verdict::Admitted {
            return Ok(Err((verdict, peer.uid)));
        }
        self.desk.meet(visitor);
        Ok(Ok(theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::super::visit::{VisitError, visit_own};
    use super::*;
    use crate::{AccessToken, Domain};
    use std::time::Duration;

    /// A desk that keeps whoever comes.
    #[derive(Default)]
    struct Queue(Mutex<Vec<Visitor>>);

    impl Desk for Queue {
        fn meet(&self, visitor: Visitor) {
            self.0.lock().unwrap().push(visitor);
        }
    }

    fn offered(domain: &Domain, name: &str, permissions: &Permissions) -> (Offer, Arc<Queue>) {
        let queue = Arc::new(Queue::default());
        let desk = Arc::clone(&queue) as Arc<dyn Desk>;
        let made = offer(
            domain.member(),
            OfferKind::Export,
            name,
            permissions,
            desk,
            long(),
        );
        (made.unwrap(), queue)
    }

    fn long() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    fn asked(
        domain: &Domain,
        name: &str,
        token: Option<&AccessToken>,
        by: Deadline,
    ) -> Result<super::super::Introduction, VisitError> {
        visit_own(domain.member(), OfferKind::Export, name, token, by)
    }

    #[test]
    fn a_private_domain_introduces_itself() {
        let domain = Domain::private().unwrap();
        let (offer, queue) = offered(&domain, "samples", &Permissions::default());
        let introduction = asked(&domain, "samples", None, Deadline::NOW).unwrap();
        socket::send(&introduction.connection, b"hello", &[]).unwrap();
        let visitor = queue.0.lock().unwrap().pop().unwrap();
        let mut buffer = [0; 8];
        let received = socket::receive(&visitor.connection, &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..received.len], b"hello");
        assert_eq!(visitor.peer.pid, std::process::id());
        assert!(visitor.pidfd.is_some_and(|p| !p.is_dead()));
        drop(offer);
        let gone = asked(&domain, "samples", None, Deadline::NOW);
        assert!(
            matches!(gone, Err(VisitError::NotOffered { .. })),
            "{gone:?}"
        );
    }

    #[test]
    fn a_private_domain_waits_for_an_offer() {
        let domain = Domain::private().unwrap();
        std::thread::scope(|scope| {
            let visitor = scope.spawn(|| asked(&domain, "later", None, long()).is_ok());
            // Another kind and another name are others.
            let _other = offered(&domain, "late", &Permissions::default());
            let _offer = offered(&domain, "later", &Permissions::default());
            assert!(visitor.join().unwrap());
        });
    }

    #[test]
    fn a_private_domain_asks_for_tokens_and_names() {
        let domain = Domain::private().unwrap();
        let token = AccessToken::random().unwrap();
        let _offer = offered(&domain, "a", &Permissions::anyone().token(token));
        assert!(asked(&domain, "a", Some(&token), Deadline::NOW).is_ok());
        let none = asked(&domain, "a", None, Deadline::NOW);
        assert!(matches!(
            none,
            Err(VisitError::WrongToken { shown: false, .. })
        ));
        let bad = asked(&domain, "", None, Deadline::NOW);
        assert!(matches!(bad, Err(VisitError::BadName { .. })));
        let _closed = offered(&domain, "b", &Permissions::nobody());
        let refused = asked(&domain, "b", None, Deadline::NOW);
        assert!(matches!(refused, Err(VisitError::NotPermitted { .. })));
        let queue: Arc<dyn Desk> = Arc::new(Queue::default());
        let twice = offer(
            domain.member(),
            OfferKind::Export,
            "a",
            &Permissions::nobody(),
            Arc::clone(&queue),
            long(),
        );
        assert!(matches!(twice, Err(OfferError::NameTaken)));
        let bad = offer(
            domain.member(),
            OfferKind::Port,
            "",
            &Permissions::nobody(),
            queue,
            long(),
        );
        assert!(matches!(bad, Err(OfferError::BadName)));
    }
}
