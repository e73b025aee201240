//! Further ports go over a connection that is there already, if client and offering process are the
//! same.
//!
//! ```text
//! client                                     offering process
//! Used::reserve  -- Ask, names secrets -->   Served::find: of this client, and alike?
//!                                            Served::add: the port's number, its ingress begins
//! Reserved::add  <- Granted, shares -------
//!   its egress begins -- WAKE, hang up -->   it stays; without the wake it is cancelled
//! ```
//!
//! # Invariants
//!
//! - **J1** The host judges each request for an offer, and hands its socket over. The kernel says of
//!   that socket which process asks. A connection that it names is shared only if the same process
//!   and user made it, by the kernel's word too.
//! - **J2** Each port has an admission by its own offer, so a limit of an offer holds as if the port had a
//!   connection of its own.
//! - **J3** A connection that a request names does not end for want of ports before the answer.

use super::carrier::{self, Context};
use super::clients::{Admission, Bridge};
use super::offered::OfferedTo;
use super::port_egress::PortEgress;
use crate::space::drain::Drain;
use crate::space::{Member, Part};
use portolan_abi::bridge::{MAX_NAMED, MAX_PORTS, Secret};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The connections of a membership that further ports may go over.
#[derive(Default)]
pub(crate) struct Connections {
    used: Mutex<Vec<Weak<Used>>>,
    served: Mutex<Vec<Weak<Served>>>,
}

impl Part for Connections {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds one, and forgets those that are over; the first are the oldest.
fn enter<T>(all: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = lock(all);
    all.retain(|other| other.strong_count() > 0);
    all.push(Arc::downgrade(one));
}

/// What further ports must have in common with the first one of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alike {
    /// The other side takes descriptors.
    pub(super) sealed: bool,
    /// Bytes of the byte ring there.
    pub(super) there: u64,
}

/// A connection that this process serves.
pub(super) struct Served {
    secret: Secret,
    /// The client's user and process.
    who: (u32, u32),
    alike: Alike,
    /// Numbers that are taken, as the task has said last.
    taken: AtomicUsize,
    inbox: Mutex<ServedInbox>,
}

struct ServedInbox {
    coming: Vec<Coming>,
    /// The number of the last port.
    last: u32,
    over: bool,
}

/// What the task of a connection is told.
pub(super) enum Coming {
    Open(NewPort),
    /// The client does not know of this port.
    Cancel(u32),
}

/// A port that is to begin.
pub(super) struct NewPort {
    pub(super) bridge: Arc<Bridge<OfferedTo>>,
    pub(super) admission: Admission,
    pub(super) number: u32,
    /// Bytes that an answer may take there.
    pub(super) most: u64,
}

impl Served {
    /// A connection with its first port.
    pub(super) fn new(member: &Member, secret: Secret, who: (u32, u32), alike: Alike) -> Arc<Self> {
        let served = Arc::new(Self {
            secret,
            who,
            alike,
            taken: AtomicUsize::new(1),
            inbox: Mutex::new(ServedInbox {
                coming: Vec::new(),
                last: 0,
                over: false,
            }),
        });
        enter(&member.part::<Connections>().served, &served);
        served
    }

    /// A connection that this client has named, and over which its port may go (J1).
    pub(super) fn find(
        member: &Member,
        named: &[Secret],
        who: (u32, u32),
        alike: Alike,
    ) -> Option<Arc<Self>> {
        // A process that this one cannot see has no number of its own.
        if who.1 == 0 {
            return None;
        }
        let all = lock(&member.part::<Connections>().served);
        let mut all = all.iter().filter_map(Weak::upgrade);
        let none = Secret::default();
        all.find(|it| {
            it.secret != none && named.contains(&it.secret) && (it.who, it.alike) == (who, alike)
        })
    }

    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    pub(super) fn who(&self) -> (u32, u32) {
        self.who
    }

    /// One more port, whose answers may take `most` bytes; its number. Without one, the connection is
    /// over or has as many as may be.
    pub(super) fn add(
        &self,
        bridge: Arc<Bridge<OfferedTo>>,
        admission: Admission,
        most: u64,
    ) -> Result<u32, (Arc<Bridge<OfferedTo>>, Admission)> {
        let mut inbox = lock(&self.inbox);
        // Relaxed: a bound, which the task keeps in the end.
        let taken = self.taken.load(Ordering::Relaxed) + inbox.coming.len();
        let number = inbox.last.checked_add(1).filter(|_| taken < MAX_PORTS);
        let Some(number) = number.filter(|_| !inbox.over) else {
            return Err((bridge, admission));
        };
        inbox.last = number;
        let member = Arc::clone(&bridge.what.right.to.member);
        inbox.coming.push(Coming::Open(NewPort {
            bridge,
            admission,
            number,
            most,
        }));
        drop(inbox);
        carrier::ring(&member);
        Ok(number)
    }

    /// The client does not know of a port.
    pub(super) fn cancel(&self, context: &Context, number: u32) {
        let mut inbox = lock(&self.inbox);
        if !inbox.over {
            inbox.coming.push(Coming::Cancel(number));
        }
        drop(inbox);
        context.ring();
    }

    /// What is new, of which the task says that it has so many ports.
    pub(super) fn take(&self, taken: usize) -> Vec<Coming> {
        let mut inbox = lock(&self.inbox);
        let coming = std::mem::take(&mut inbox.coming);
        // Relaxed: see `add`, which sees it under the lock.
        self.taken.store(taken + coming.len(), Ordering::Relaxed);
        coming
    }

    /// The connection ends if nothing is new; whether it does.
    pub(super) fn end_if_unused(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        inbox.over |= inbox.coming.is_empty();
        inbox.over
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn count(member: &Member) -> usize {
        let all = lock(&member.part::<Connections>().served);
        all.iter().filter(|it| it.strong_count() > 0).count()
    }

    /// The connection ends.
    pub(super) fn end(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.over = true;
        let coming = std::mem::take(&mut inbox.coming);
        drop(inbox);
        drop(coming);
    }
}

/// A connection that this process uses as a client.
pub(super) struct Used {
    /// The other domain and its user.
    domain: String,
    user: u32,
    secret: Secret,
    sealed: bool,
    /// The offering process.
    pid: Option<u32>,
    inbox: Mutex<UsedInbox>,
}

#[derive(Default)]
struct UsedInbox {
    ports: Vec<(PortEgress, Arc<Drain>)>,
    /// Requests that name it.
    reserved: usize,
    over: bool,
}

impl Used {
    /// A connection, which is known by this secret, with a domain.
    pub(super) fn new(
        member: &Member,
        (domain, user): (&str, u32),
        secret: Secret,
        sealed: bool,
        pid: Option<u32>,
    ) -> Arc<Self> {
        let used = Arc::new(Self {
            domain: domain.to_owned(),
            user,
            secret,
            sealed,
            pid,
            inbox: Mutex::default(),
        });
        enter(&member.part::<Connections>().used, &used);
        used
    }

    /// Connections with a domain, to be named in a request; the last ones.
    pub(super) fn reserve<'m>(
        member: &'m Member,
        with: (&str, u32),
        sealed: bool,
    ) -> Vec<Reserved<'m>> {
        let all = lock(&member.part::<Connections>().used);
        let all = all.iter().rev().filter_map(Weak::upgrade);
        all.filter(|it| (it.domain.as_str(), it.user, it.sealed) == (with.0, with.1, sealed))
            .filter_map(|used| Reserved::new(used, member))
            .take(MAX_NAMED)
            .collect()
    }

    /// The offering process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Ports that are new.
    pub(super) fn take(&self) -> Vec<(PortEgress, Arc<Drain>)> {
        std::mem::take(&mut lock(&self.inbox).ports)
    }

    /// The connection ends if no port is new, and none may come (J3); whether it does.
    pub(super) fn end_if_unused(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        inbox.over |= inbox.ports.is_empty() && inbox.reserved == 0;
        inbox.over
    }

    /// The connection ends.
    pub(super) fn end(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.over = true;
        let ports = std::mem::take(&mut inbox.ports);
        drop(inbox);
        for (port, drain) in ports {
            port.forget(drain);
        }
    }
}

/// A connection that a request names, until dropped.
pub(super) struct Reserved<'m> {
    used: Arc<Used>,
    member: &'m Member,
}

impl<'m> Reserved<'m> {
    fn new(used: Arc<Used>, member: &'m Member) -> Option<Self> {
        let mut inbox = lock(&used.inbox);
        if inbox.over {
            return None;
        }
        inbox.reserved += 1;
        drop(inbox);
        Some(Self { used, member })
    }

    pub(super) fn secret(&self) -> Secret {
        self.used.secret
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.used.pid
    }

    /// One more port goes over it, on which the caller has a right; not if the connection has ended.
    /// Whether it does.
    pub(super) fn add(&self, port: PortEgress) -> bool {
        let mut inbox = lock(&self.used.inbox);
        let goes = !inbox.over;
        if goes {
            let drain = port.launched();
            inbox.ports.push((port, drain));
        }
        goes
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        lock(&self.used.inbox).reserved -= 1;
        // For its new port, or its end.
        carrier::ring(self.member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;

    #[test]
    fn a_connection_is_found_by_its_secret_its_process_and_its_kind() {
        let domain = Domain::private().unwrap();
        let member = domain.member();
        let alike = Alike {
            sealed: false,
            there: 1 << 20,
        };
        let (one, other) = ([1; 16], [2; 16]);
        let served = Served::new(member, one, (10, 20), alike);
        let unnamed = Served::new(member, Secret::default(), (10, 20), alike);
        let unseen = Served::new(member, other, (10, 0), alike);
        let find = |named: &[Secret], who, alike| {
            let found = Served::find(member, named, who, alike);
            found.is_some_and(|found| Arc::ptr_eq(&found, &served))
        };
        assert!(find(&[other, one, Secret::default()], (10, 20), alike));
        assert!(!find(&[other, Secret::default()], (10, 20), alike));
        for who in [(10, 21), (11, 20), (10, 0)] {
            assert!(Served::find(member, &[one, other], who, alike).is_none());
        }
        let sealed = Alike {
            sealed: true,
            ..alike
        };
        let there = Alike {
            there: 2 << 20,
            ..alike
        };
        assert!(!find(&[one], (10, 20), sealed) && !find(&[one], (10, 20), there));
        // Of another membership.
        let elsewhere = Domain::private().unwrap();
        assert!(Served::find(elsewhere.member(), &[one], (10, 20), alike).is_none());
        drop((served, unnamed, unseen));
        assert!(Served::find(member, &[one], (10, 20), alike).is_none());
    }

    #[test]
    fn a_connection_that_a_request_names_does_not_end_before_the_answer() {
        let domain = Domain::private().unwrap();
        let member = domain.member();
        let used = Used::new(member, ("other", 7), [1; 16], false, None);
        assert!(Used::reserve(member, ("other", 8), false).is_empty());
        assert!(Used::reserve(member, ("another", 7), false).is_empty());
        assert!(Used::reserve(member, ("other", 7), true).is_empty());
        let reserved = Used::reserve(member, ("other", 7), false);
        assert_eq!(reserved.len(), 1);
        assert!(!used.end_if_unused());
        drop(reserved);
        assert!(used.end_if_unused());
        assert!(Used::reserve(member, ("other", 7), false).is_empty());
        // The last ones are named.
        let all: Vec<_> = (1..9)
            .map(|n| Used::new(member, ("other", 7), [n; 16], false, None))
            .collect();
        let named: Vec<_> = Used::reserve(member, ("other", 7), false)
            .iter()
            .map(|it| it.secret()[0])
            .collect();
        assert_eq!(named, [8, 7, 6, 5]);
        drop(all);
    }
}
