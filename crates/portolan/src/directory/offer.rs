//! A process keeps its own offers, and accepts the clients that the host hands off to it.
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
//! - **O1** An offer does not lie in the region: this process keeps it, and the host knows of it
//!   for as long as our connection to the host lasts.
//! - **O2** When the drop of an [`Offer`] has returned, its inbox gets no client any more.
//! - **O3** The kernel tells us who a client is; the host only tells which offer it wants.
//! - **O4** A delegation is withdrawn once a host has answered so. That may be another host than
//!   the one that got it: an earlier host has ended all copies, or is dead.

use super::OfferError;
use super::permissions::{Permissions, Verdict, judge, started};
use crate::space::descriptor::{Descriptor, HeldMemory};
use crate::space::host::me;
use crate::space::{Member, Part};
use crate::{Deadline, Disowned};
pub(crate) use portolan_abi::connect::OfferKind;
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Grants, Maker, OfferName};
use portolan_abi::control::{Announcement, Decline, FromMember};
use portolan_abi::delegate::{Capability, Delegation};
use portolan_abi::limits::MAX_OFFERS;
use portolan_abi::space::HostWord;
use portolan_shm::region::read_text;
use portolan_sys::process::{EventFd, PidFd, ProcessMemory};
use portolan_sys::socket::{self, Peer, SocketError};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A process that the host has handed to an offer of ours, and whom its permissions admit. It is
/// not trusted.
pub(crate) struct Client {
    /// The connection to it. It may have sent something already. The socket takes descriptors: an
    /// inbox that wants none makes it refuse them, and always receives with room for none.
    pub(crate) connection: Descriptor,
    /// Who it is, as the kernel says: of the moment when it connected.
    pub(crate) peer: Peer,
    /// Its process; `None` if that is dead, or in another process namespace.
    pub(crate) pidfd: Option<Descriptor<PidFd>>,
}

impl Client {
    /// Who is at the other end of a connection.
    fn new(connection: Descriptor) -> Result<Self, SocketError> {
        Ok(Self {
            peer: socket::peer(&connection)?,
            pidfd: PidFd::of_peer(&connection).ok().map(Descriptor::new),
            connection,
        })
    }
}

/// Where the clients of an offer arrive.
pub(crate) trait OfferInbox: Send + Sync {
    /// Queues a client; must not wait. The membership thread calls this (in a private domain, the
    /// client's thread) with the offers locked, so it must not make or drop one.
    fn meet(&self, client: Client);
}

/// Something that clients may ask for by its name, until dropped.
#[must_use = "a dropped offer is withdrawn"]
pub(crate) struct Offer {
    member: Arc<Member>,
    number: u32,
}

/// Offers something to the clients that `permissions` admit; they arrive at `inbox`.
/// [`Deadline::NOW`] waits for the host's answer, and for no host.
///
/// # Errors
///
/// [`OfferError`], until `deadline` at the latest.
pub(crate) fn offer(
    member: &Arc<Member>,
    kind: OfferKind,
    name: &str,
    permissions: &Permissions,
    inbox: Arc<dyn OfferInbox>,
    deadline: Deadline,
) -> Result<Offer, OfferError> {
    member.present()?;
    member.host_connection.connected()?;
    let name = OfferName::new(name).ok_or(OfferError::BadName)?;
    let made = Made {
        kind,
        name,
        grants: permissions.grants()?,
        inbox,
        delegated: None,
        // A private domain has no host to tell.
        state: match member.host_connection.sockets() {
            Some(_) => State::New,
            None => State::Open,
        },
        agreed: false,
    };
    let offers = member.part::<Offers>();
    let number = offers.enter(made)?;
    let offer = Offer {
        member: Arc::clone(member),
        number,
    };
    if member.host_connection.sockets().is_some() {
        member.host_connection.prompt();
        let deadline = match deadline.is_now() {
            true => Deadline::after(ANSWER),
            false => deadline,
        };
        // Dropped by an error, and so withdrawn.
        offers.wait_open(number, deadline)?;
    }
    Ok(offer)
}

/// Memory of this process that the host copies to and from.
struct Delegated {
    delegation: Delegation,
    memory: HeldMemory,
}

/// Delegates memory of this process to the host, for permitted clients that show `capability`.
/// The membership thread tells the host soon, and clients wait until then; this call does not
/// wait.
///
/// # Errors
///
/// [`OfferError`].
pub(crate) fn delegate(
    member: &Arc<Member>,
    capability: &Capability,
    permissions: &Permissions,
    delegation: Delegation,
    memory: ProcessMemory,
) -> Result<Offer, OfferError> {
    member.present()?;
    member.host_connection.connected()?;
    let mut grants = permissions.grants()?;
    grants.token = Some(capability.token);
    let made = Made {
        kind: OfferKind::Memory,
        name: capability.name().ok_or(OfferError::BadName)?,
        grants,
        inbox: Arc::new(Nowhere),
        delegated: Some(Arc::new(Delegated {
            delegation,
            memory: HeldMemory::new(memory),
        })),
        state: State::New,
        agreed: false,
    };
    let number = member.part::<Offers>().enter(made)?;
    member.host_connection.prompt();
    Ok(Offer {
        member: Arc::clone(member),
        number,
    })
}

/// The inbox of an offer that the host serves itself.
struct Nowhere;

impl OfferInbox for Nowhere {
    fn meet(&self, client: Client) {
        drop(client);
    }
}

impl Offer {
    /// Whether the host would not have it.
    pub(crate) fn is_declined(&self) -> bool {
        self.member.part::<Offers>().is_declined(self.number)
    }

    /// Withdraws a delegation, and waits until the host answers that it copies nothing there any
    /// more; `false` if the deadline passes first. May be called again.
    pub(crate) fn retire(&self, deadline: Deadline) -> bool {
        let offers: &Offers = self.member.part();
        offers.begin_to_retire(self.number);
        self.member.host_connection.prompt();
        offers.wait_retired(self.number, deadline)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever, and nothing is offered.
        if portolan_sys::fork::in_child() {
            return;
        }
        if self.member.part::<Offers>().remove(self.number) {
            self.member.host_connection.prompt();
        }
    }
}

/// Most offers of one process.
const MOST: usize = 16_384;
/// How long an offer that is made at once waits for the host's answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Everything that this process offers. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct Offers(Arc<Inner>);

impl Part for Offers {}

#[derive(Default)]
struct Inner {
    table: Mutex<Table>,
    /// An offer has been answered.
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    last: u32,
    made: BTreeMap<u32, Made>,
    /// What the host is to be told of, in this order: what is gone, then what is new.
    withdrawn: VecDeque<u32>,
    fresh: VecDeque<u32>,
    /// Notified when something is offered.
    bells: Vec<Weak<EventFd>>,
    /// Delegations that are withdrawn and not yet answered, each with the number of answers to
    /// come.
    retiring: BTreeMap<u32, u32>,
    /// No thread sends to the host any more.
    over: bool,
}

/// An offer.
struct Made {
    kind: OfferKind,
    name: OfferName,
    grants: Grants,
    inbox: Arc<dyn OfferInbox>,
    /// What the host is to copy to and from.
    delegated: Option<Arc<Delegated>>,
    state: State,
    /// Some host has agreed to it.
    agreed: bool,
}

/// What the host knows of an offer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing yet.
    New,
    /// It has been told, and has not answered.
    Announced,
    /// The host hands clients to it.
    Open,
    /// It would not have it.
    Declined(Decline),
}

impl Table {
    fn find(&self, kind: OfferKind, name: &OfferName) -> Option<&Made> {
        let mut made = self.made.values();
        made.find(|m| (m.kind, &m.name) == (kind, name))
    }
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // An inbox that panics leaves the table as it was.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, made: Made) -> Result<u32, OfferError> {
        let mut table = self.lock();
        if table.made.len() >= MOST {
            return Err(OfferError::TooMany { most: MOST });
        }
        if table.find(made.kind, &made.name).is_some() {
            return Err(OfferError::NameTaken);
        }
        let mut number = table.last.wrapping_add(1);
        while table.made.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        table.last = number;
        if made.state == State::New {
            table.fresh.push_back(number);
        }
        table.made.insert(number, made);
        for bell in table.bells.iter().filter_map(Weak::upgrade) {
            // Fails only where the program has closed the descriptor.
            let _ = bell.notify();
        }
        drop(table);
        self.0.changed.notify_all();
        Ok(number)
    }

    /// An event descriptor that is notified whenever something is offered; it is readable now.
    pub(crate) fn bell(&self) -> io::Result<Arc<EventFd>> {
        let bell = Arc::new(EventFd::new()?);
        bell.notify()?;
        let bells = &mut self.lock().bells;
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        Ok(bell)
    }

    /// Takes an offer out; whether the host is to be told.
    fn remove(&self, number: u32) -> bool {
        let mut table = self.lock();
        let made = table.made.remove(&number);
        let known = |m: &Made| matches!(m.state, State::Announced | State::Open);
        let tell = made.as_ref().is_some_and(known);
        if tell {
            table.withdrawn.push_back(number);
        }
        drop(table);
        // Its inbox is dropped here, without the lock.
        drop(made);
        tell
    }

    /// Waits until the host has answered to an offer.
    fn wait_open(&self, number: u32, deadline: Deadline) -> Result<(), OfferError> {
        let mut table = self.lock();
        loop {
            match table.made.get(&number).map(|m| m.state) {
                Some(State::Open) => return Ok(()),
                Some(State::Declined(Decline::NameTaken)) => return Err(OfferError::NameTaken),
                // Unfit is only a delegation, and no call waits here for one.
                Some(State::Declined(Decline::Full | Decline::Unfit)) => {
                    return Err(OfferError::TooMany { most: MAX_OFFERS });
                }
                _ if table.over => return Err(Disowned::Disconnected.into()),
                _ if deadline.has_passed() => return Err(OfferError::Unanswered),
                _ => table = self.sleep(table, deadline),
            }
        }
    }

    fn sleep<'t>(&self, table: MutexGuard<'t, Table>, deadline: Deadline) -> MutexGuard<'t, Table> {
        let Some(at) = deadline.instant() else {
            return self
                .0
                .changed
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        };
        let left = at.saturating_duration_since(Instant::now());
        let waited = self.0.changed.wait_timeout(table, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn is_declined(&self, number: u32) -> bool {
        let table = self.lock();
        let made = table.made.get(&number);
        made.is_none_or(|m| matches!(m.state, State::Declined(_)))
    }

    fn begin_to_retire(&self, number: u32) {
        let mut table = self.lock();
        let Some(made) = table.made.remove(&number) else {
            return;
        };
        // Whatever this host knows of it: one that has lost our connection may be copying.
        let offered = u32::from(made.state == State::Announced);
        table.retiring.insert(number, offered + 1);
        table.withdrawn.push_back(number);
        drop(table);
        drop(made);
    }

    fn wait_retired(&self, number: u32, deadline: Deadline) -> bool {
        let mut table = self.lock();
        while table.retiring.contains_key(&number) {
            if table.over || deadline.has_passed() {
                return false;
            }
            table = self.sleep(table, deadline);
        }
        true
    }

    /// What the host is to be told next; it is considered told then.
    pub(crate) fn next_record(&self) -> Option<Record> {
        let mut table = self.lock();
        if let Some(number) = table.withdrawn.pop_front() {
            return Some(Record {
                delegated: None,
                said: FromMember::Withdraw(number),
            });
        }
        loop {
            let number = table.fresh.pop_front()?;
            let Some(made) = table.made.get_mut(&number) else {
                // Withdrawn before the host was told.
                continue;
            };
            made.state = State::Announced;
            let announcement = Announcement {
                number,
                kind: made.kind,
                name: made.name,
                grants: made.grants.clone(),
                reannounced: made.agreed,
            };
            return Some(Record {
                delegated: made.delegated.clone().map(|what| (number, what)),
                said: FromMember::Offer(announcement),
            });
        }
    }

    /// There is a host that knows nothing of us yet.
    pub(crate) fn reannounce(&self) {
        let mut table = self.lock();
        // The former host sends no answers any more, and the new one may be the same process.
        table.withdrawn = table.retiring.keys().copied().collect();
        table.retiring.values_mut().for_each(|answers| *answers = 1);
        table.fresh = table.made.keys().copied().collect();
        for made in table.made.values_mut() {
            made.state = State::New;
        }
    }

    /// The host has answered to an offer, or to its withdrawal.
    pub(crate) fn answered(&self, number: u32, answer: Result<(), Decline>) {
        let mut table = self.lock();
        if let Some(answers) = table.retiring.get_mut(&number) {
            *answers -= 1;
            if *answers == 0 {
                table.retiring.remove(&number);
            }
        }
        if let Some(made) = table.made.get_mut(&number) {
            match answer {
                Ok(()) => {
                    made.state = State::Open;
                    made.agreed = true;
                }
                Err(why) => {
                    made.state = State::Declined(why);
                    if made.agreed {
                        let (kind, name) = (made.kind, made.name.as_str());
                        tracing::warn!(%kind, name, ?why, "the new host does not take an offer over");
                    }
                }
            }
        }
        drop(table);
        self.0.changed.notify_all();
    }

    /// No thread will send to the host any more.
    pub(crate) fn end(&self) {
        self.lock().over = true;
        self.0.changed.notify_all();
    }

    /// Accepts a client that the host has handed to the offer `number`. If the offer has been
    /// withdrawn, the connection is closed, and the client asks again.
    pub(crate) fn take_handoff(&self, number: u32, connection: Descriptor) {
        let table = self.lock();
        let (Some(made), Ok(client)) = (table.made.get(&number), Client::new(connection)) else {
            return;
        };
        // The host has seen to the token (O3).
        let token = made.grants.token;
        if made.verdict(&client, token.as_ref()) != Verdict::Admitted {
            return;
        }
        // Refused until now. Before it hears of us, because it may send some at once.
        let _ = socket::accept_descriptors(&client.connection);
        let answer = ConnectAnswer::Accepted.encode();
        let now = Some(Instant::now());
        if socket::send_by(&client.connection, &answer, &[], now).is_ok() {
            portolan_shm::mark!("connect.accepted");
            made.inbox.meet(client);
        }
    }

    /// Hands this process to an offer of its own, in a private domain. `None`: there is none of
    /// that name.
    pub(crate) fn connect_here(
        &self,
        member: &Member,
        request: &ConnectRequest,
    ) -> Option<Result<Own, SocketError>> {
        if !request.maker.fits(&maker(member, me(member))) {
            return None;
        }
        let table = self.lock();
        let made = table.find(request.kind, &request.name)?;
        Some(made.meet_own(request))
    }

    /// Waits until there is such an offer, or until `deadline`.
    pub(crate) fn wait_offer(&self, member: &Member, request: &ConnectRequest, deadline: Deadline) {
        let meant = request.maker.fits(&maker(member, me(member)));
        let mut table = self.lock();
        let there = |table: &Table| meant && table.find(request.kind, &request.name).is_some();
        while !there(&table) && !deadline.has_passed() {
            table = self.sleep(table, deadline);
        }
    }
}

/// A member, as the domain's tables describe it.
pub(crate) fn maker(member: &Member, by: HostWord) -> Maker {
    let Some(entry) = member.tables().spaces.get(usize::from(by.space)) else {
        return Maker::ANY;
    };
    let maker = Maker {
        space: by.space,
        process: u32::try_from(entry.pid.load(Ordering::Relaxed)).unwrap_or(0),
        ..Maker::ANY
    };
    maker.named(&read_text(&entry.name)).unwrap_or(maker)
}

/// Something for the host to hear.
pub(crate) struct Record {
    /// The delegation to send before the record, with the number of its offer.
    delegated: Option<(u32, Arc<Delegated>)>,
    pub(crate) said: FromMember,
}

impl Record {
    /// The delegation to send before the record, with its memory; `None` also if the program has
    /// closed our descriptors.
    pub(crate) fn delegated(&self) -> Option<(u32, Delegation, &ProcessMemory)> {
        let (number, delegated) = self.delegated.as_ref()?;
        Some((*number, delegated.delegation, delegated.memory.get()?))
    }
}

/// The outcome of a request to our own process: a connection, or why not and who we are.
pub(crate) type Own = Result<OwnedFd, (Verdict, u32)>;

impl Made {
    fn verdict(&self, client: &Client, token: Option<&[u8; 16]>) -> Verdict {
        let Client { peer, pidfd, .. } = client;
        let started = || started(peer, pidfd.as_ref()?);
        judge(&self.grants, peer, started, token)
    }

    /// Meets this very process.
    fn meet_own(&self, request: &ConnectRequest) -> Result<Own, SocketError> {
        let (theirs, ours) = socket::pair()?;
        let client = Client::new(Descriptor::new(ours))?;
        match self.verdict(&client, request.token.as_ref()) {
            Verdict::Admitted => {
                self.inbox.meet(client);
                Ok(Ok(theirs))
            }
            verdict => Ok(Err((verdict, client.peer.uid))),
        }
    }
}
