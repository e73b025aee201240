//! The host keeps the table of offers, and hands each client off to the acceptor of the offer.
//!
//! ```text
//! connect request -- offered? -- permitted? -- handed off to the acceptor
//!              | no     ^ an offer    | no         | it is behind
//!              v        |             v            v
//!             waiting --+          refused      waiting, until the acceptor has received others
//! ```
//!
//! # Invariants
//!
//! - **V1** A client learns nothing of an offer that does not admit it.
//! - **V2** A client has one descriptor here, and none once it is handed off; there are
//!   never more than [`Limits`] says, of one user and of all. A client beyond that is refused.
//! - **V3** The host waits for no process: a record that does not fit a socket at once is not sent.
//! - **V4** Of exports, several members may have one of the same name, each of them once. A client
//!   that does not say which it means gets the only one that admits it, or is told which there are.

use super::admit::{Newcomer, refuse};
use super::host::{Host, Watched};
use crate::directory::{Offers, Verdict, judge, maker, started};
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::host::{host_of, me};
use crate::space::host_connection::HostSockets;
use portolan_abi::connect::{
    ConnectAnswer, ConnectRequest, Grants, MAX_CANDIDATES, Maker, OfferKind, OfferName,
};
use portolan_abi::control::{Announcement, Decline, FromHost, FromMember, WINDOW};
use portolan_abi::hello::Reason;
use portolan_abi::limits::MAX_OFFERS;
use portolan_abi::space::HostWord;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, Address, Peer, SocketError};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

/// How many strangers' descriptors a host keeps, by how many it may have.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Clients that wait.
    waiting: usize,
    /// Of one user.
    waiting_of_one: usize,
    /// Connections that have not greeted yet; each has a second descriptor if it may join.
    pub(super) newcomers: usize,
    /// Importers that the copy brokers serve.
    pub(super) copy_slots: usize,
    /// Of one user.
    pub(super) copy_slots_of_one: usize,
}

impl Limits {
    pub(super) fn now() -> Self {
        // A full domain needs 510 for its members. Of the usual 1,024 that leaves 384 for
        // strangers: 128 that wait, twice 64 that have not greeted, and 128 for whom we copy.
        let soft = portolan_sys::machine::rlimit_nofile().soft;
        let may = usize::try_from(soft.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let waiting = (may / 8).clamp(8, 256);
        Self {
            waiting,
            waiting_of_one: waiting / 2,
            newcomers: (may / 16).clamp(8, 64),
            copy_slots: waiting,
            copy_slots_of_one: waiting / 2,
        }
    }
}

type Key = (OfferKind, OfferName);

/// The offers of the domain, and the clients that wait for one.
#[derive(Default)]
pub(super) struct OfferTable {
    offers: HashMap<Key, Vec<Posted>>,
    /// Where each offer is found, by its maker's space and number.
    keys: HashMap<(u8, u32), Key>,
    pub(super) waiting: Vec<Option<Waiting>>,
}

/// An offer of a member.
struct Posted {
    by: HostWord,
    number: u32,
    grants: Grants,
    /// Agreed to by a host before us.
    reannounced: bool,
}

/// A client that has greeted.
pub(super) struct Waiting {
    pub(super) connection: Descriptor,
    peer: Peer,
    request: ConnectRequest,
}

impl Waiting {
    fn key(&self) -> Key {
        (self.request.kind, self.request.name)
    }

    /// When the client's process started, if it lives and means something to us.
    fn started(&self) -> Option<u64> {
        started(&self.peer, &PidFd::of_peer(&self.connection).ok()?)
    }
}

impl OfferTable {
    /// Enters an offer. Of two with one name, which there are if a name was given away
    /// before its holder could make itself known to us, the elder is the one that counts; but
    /// exports are told apart by their makers (V4).
    fn post(&mut self, by: HostWord, announcement: Announcement) -> Result<(), Decline> {
        let Announcement {
            number,
            kind,
            name,
            grants,
            reannounced,
        } = announcement;
        let key = (kind, name);
        let taken = self.offers.get(&key).is_some_and(|same| match kind {
            OfferKind::Export => same.iter().any(|p| p.by.space == by.space),
            _ => true,
        });
        if taken && !reannounced {
            return Err(Decline::NameTaken);
        }
        if self.keys.len() >= MAX_OFFERS {
            return Err(Decline::Full);
        }
        self.withdraw(by.space, number);
        let same = self.offers.entry(key).or_default();
        let elders = same
            .iter()
            .take_while(|p| reannounced && p.reannounced)
            .count();
        let place = if reannounced { elders } else { same.len() };
        same.insert(
            place,
            Posted {
                by,
                number,
                grants,
                reannounced,
            },
        );
        self.keys.insert((by.space, number), key);
        Ok(())
    }

    fn withdraw(&mut self, space: u8, number: u32) {
        let Some(key) = self.keys.remove(&(space, number)) else {
            return;
        };
        if let Some(same) = self.offers.get_mut(&key) {
            same.retain(|p| (p.by.space, p.number) != (space, number));
            if same.is_empty() {
                self.offers.remove(&key);
            }
        }
    }

    /// A member is gone, or will tell us anew.
    pub(super) fn forget(&mut self, space: u8) {
        let numbers = self.keys.keys().filter(|(by, _)| *by == space);
        for (space, number) in numbers.copied().collect::<Vec<_>>() {
            self.withdraw(space, number);
        }
    }

    /// What kind of offer that is, if it is one.
    fn kind(&self, space: u8, number: u32) -> Option<OfferKind> {
        self.keys.get(&(space, number)).map(|(kind, _)| *kind)
    }

    /// The offers that count, the eldest first.
    fn find(&self, key: &Key) -> &[Posted] {
        let same = self.offers.get(key).map_or(&[][..], Vec::as_slice);
        let count = match key.0 {
            OfferKind::Export => same.len(),
            _ => same.len().min(1),
        };
        same.get(..count).unwrap_or_default()
    }
}

/// What a host says of a request.
enum Choice<'t> {
    /// This one is meant, and admits the client.
    One(&'t Posted),
    /// These members make such an offer, and admit the client.
    Several(Vec<Maker>),
    /// There is none.
    Absent,
    /// There is, and this is what it says.
    Refused(Verdict),
}

impl Host {
    /// A newcomer has greeted as a client.
    pub(super) fn receive(&mut self, member: &Member, newcomer: Newcomer, request: ConnectRequest) {
        let Newcomer {
            connection, peer, ..
        } = newcomer;
        let client = Waiting {
            connection,
            peer,
            request,
        };
        let Some((client, answer)) = self.hand_off(member, client) else {
            return;
        };
        let limits = Limits::now();
        let waiting = || self.offer_table.waiting.iter().flatten();
        let same = waiting().filter(|w| w.peer.uid == client.peer.uid).count();
        if waiting().count() >= limits.waiting || same >= limits.waiting_of_one {
            let all = waiting().count() as u64;
            return refuse(member, &client.connection, Reason::Busy, all);
        }
        portolan_shm::mark!("connect.waits");
        if tell(&client.connection, &answer) {
            self.offer_table.waiting.push(Some(client));
        }
    }

    /// Hands a client to the member that it asks for, or refuses it. Gives it back if it must
    /// wait, with the answer that says what for.
    fn hand_off(&mut self, member: &Member, client: Waiting) -> Option<(Waiting, ConnectAnswer)> {
        let Waiting { peer, request, .. } = &client;
        let user = u64::from(peer.uid);
        let posted = match self.choose(member, &client) {
            Choice::One(posted) => posted,
            Choice::Absent => return Some((client, ConnectAnswer::Wait)),
            Choice::Several(makers) => {
                tell(&client.connection, &ConnectAnswer::Ambiguous(makers));
                return None;
            }
            Choice::Refused(verdict) => {
                let why = match verdict {
                    Verdict::WrongToken => Reason::Token,
                    _ => Reason::Permission,
                };
                refuse(member, &client.connection, why, user);
                return None;
            }
        };
        let (by, number) = (posted.by, posted.number);
        let (domain, name, process) = (member.domain.as_str(), request.name.as_str(), peer.pid);
        let kind = request.kind;
        tracing::debug!(domain, %kind, name, process, user, to = by.space, "a client is handed off");
        if kind == OfferKind::Memory {
            self.serve_importer(member, by, number, client.connection, &client.peer);
            return None;
        }
        if by == me(member) {
            member
                .part::<Offers>()
                .take_handoff(number, client.connection);
            return None;
        }
        let mut watched = self.watched.iter_mut();
        let maker =
            watched.find(|w| !w.done && (w.space, w.incarnation) == (by.space, by.incarnation));
        let maker = maker.filter(|w| w.handed < WINDOW);
        let Some((maker, connection)) =
            maker.and_then(|w| Some((&mut w.handed, w.connection.as_ref()?)))
        else {
            return Some((client, ConnectAnswer::Queue));
        };
        portolan_shm::mark!("connect.handing");
        let record = FromHost::HandOff { number }.encode();
        let clients = [client.connection.as_fd()];
        match socket::send_by(connection, &record, &clients, Some(Instant::now())) {
            Ok(()) => {
                *maker += 1;
                portolan_shm::mark!("connect.handed");
            }
            Err(SocketError::Closed | SocketError::TimedOut) => {
                return Some((client, ConnectAnswer::Queue));
            }
            // Too many descriptors on their way; the kernel counts them as ours.
            Err(_) => refuse(member, &client.connection, Reason::Descriptors, 0),
        }
        None
    }

    /// Which offer a client means (V1, V4).
    fn choose(&self, member: &Member, client: &Waiting) -> Choice<'_> {
        let Waiting { peer, request, .. } = client;
        let token = request.token.as_ref();
        let (mut admitted, mut refused) = (Vec::new(), None);
        for posted in self.offer_table.find(&client.key()) {
            let maker = maker(member, posted.by);
            if !request.maker.fits(&maker) {
                continue;
            }
            match judge(&posted.grants, peer, || client.started(), token) {
                Verdict::Admitted => admitted.push((posted, maker)),
                verdict => {
                    let _ = refused.get_or_insert(verdict);
                }
            }
        }
        if admitted.len() > 1 {
            // A dead exporter of whose death we have not heard yet does not count.
            admitted.retain(|(posted, _)| self.lives(member, posted.by));
            refused = None;
        }
        match (admitted.as_slice(), refused) {
            ([(posted, _)], _) => Choice::One(posted),
            ([], Some(verdict)) => Choice::Refused(verdict),
            ([], None) => Choice::Absent,
            (several, _) => {
                let makers = several.iter().map(|(_, maker)| *maker);
                Choice::Several(makers.take(MAX_CANDIDATES).collect())
            }
        }
    }

    /// Whether the process of a member lives.
    fn lives(&self, member: &Member, by: HostWord) -> bool {
        let mut watched = self.watched.iter();
        let is_it = |w: &&Watched| (w.space, w.incarnation) == (by.space, by.incarnation);
        by == me(member) || watched.find(is_it).is_some_and(|w| !w.pidfd.is_dead())
    }

    /// Hands off the waiting clients that `who` names.
    fn serve(&mut self, member: &Member, who: impl Fn(&Key, &OfferTable) -> bool) {
        for index in 0..self.offer_table.waiting.len() {
            let offer_table = &mut self.offer_table;
            let named = |w: &Waiting| who(&w.key(), offer_table);
            if !offer_table.waiting[index].as_ref().is_some_and(named) {
                continue;
            }
            if let Some(client) = offer_table.waiting[index].take() {
                let left = self.hand_off(member, client);
                self.offer_table.waiting[index] = left.map(|(client, _)| client);
            }
        }
    }

    /// A client that waits has said something, or has hung up.
    pub(super) fn interrupted(&mut self, member: &Member, index: usize) {
        let Some(client) = &self.offer_table.waiting[index] else {
            return;
        };
        match socket::try_receive(&client.connection, &mut [0; 1], 0) {
            Ok(None) => return,
            Ok(Some(_)) => refuse(member, &client.connection, Reason::Garbled, 0),
            Err(_) => {}
        }
        self.offer_table.waiting[index] = None;
    }

    /// Enters an offer of a member, and hands off the clients that wait for it.
    pub(super) fn offered(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        index: usize,
        announcement: Announcement,
    ) {
        let Some(watched) = self.watched.get(index) else {
            return;
        };
        let by = HostWord {
            space: watched.space,
            incarnation: watched.incarnation,
        };
        self.post(member, sockets, by, announcement);
    }

    /// Enters an offer of a member, which may be ourselves; a delegation after it is examined.
    fn post(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        by: HostWord,
        announcement: Announcement,
    ) {
        if announcement.kind == OfferKind::Memory {
            self.examine(member, by, announcement);
        } else {
            self.enter(member, sockets, by, announcement);
        }
    }

    /// Enters an offer, and hands off the clients that wait for it.
    pub(super) fn enter(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        by: HostWord,
        announcement: Announcement,
    ) {
        let (number, key) = (announcement.number, (announcement.kind, announcement.name));
        widen(sockets, &announcement.grants);
        let entered = self.offer_table.post(by, announcement);
        portolan_shm::mark!("offer.entered");
        self.answer_to(member, by, number, entered);
        self.serve(member, |wanted, _| *wanted == key);
    }

    /// Takes out what a member does not offer any more.
    pub(super) fn withdrawn(&mut self, member: &Member, index: usize, number: u32) {
        let Some(watched) = self.watched.get(index) else {
            return;
        };
        let by = HostWord {
            space: watched.space,
            incarnation: watched.incarnation,
        };
        self.take_out(member, by, number);
    }

    fn take_out(&mut self, member: &Member, by: HostWord, number: u32) {
        let kind = self.offer_table.kind(by.space, number);
        self.offer_table.withdraw(by.space, number);
        portolan_shm::mark!("offer.withdrawn");
        // An offer that we do not know may be a delegation.
        let delegated = kind.is_none_or(|kind| kind == OfferKind::Memory);
        if !(delegated && self.end_delegation(by, number)) {
            self.answer_to(member, by, number, Ok(()));
        }
    }

    /// A member has received a hand-off, and may get another.
    pub(super) fn received(&mut self, member: &Member, index: usize) {
        let Some(watched) = self.watched.get_mut(index) else {
            return;
        };
        watched.handed = watched.handed.saturating_sub(1);
        let space = watched.space;
        self.serve(member, |wanted, offer_table| {
            let mut posted = offer_table.find(wanted).iter();
            posted.any(|p| p.by.space == space)
        });
    }

    /// Enters what this process itself offers.
    pub(super) fn post_own(&mut self, member: &Member, sockets: &HostSockets) {
        let us = me(member);
        if host_of(member) != us {
            return;
        }
        let offers = member.part::<Offers>();
        while let Some(record) = offers.next_record() {
            if let Some((number, delegation, memory)) = record.delegated() {
                let copies = memory.descriptors().map(|fd| fd.try_clone_to_owned());
                if let [Ok(memory), Ok(maps)] = copies {
                    self.delegated(member, us, number, delegation, [memory, maps]);
                }
            }
            match record.said {
                FromMember::Offer(announcement) => self.post(member, sockets, us, announcement),
                FromMember::Withdraw(number) => self.take_out(member, us, number),
                _ => {}
            }
        }
    }
}

/// Tells a client something; whether it is still there.
pub(super) fn tell(connection: &Descriptor, answer: &ConnectAnswer) -> bool {
    socket::send_by(connection, &answer.encode(), &[], Some(Instant::now())).is_ok()
}

/// Lets those connect whom an offer admits, if the socket is a file and they might not.
fn widen(sockets: &HostSockets, grants: &Grants) {
    let Address::Path(path) = &sockets.address else {
        return;
    };
    let others = grants.anyone
        || grants.users.iter().any(|u| *u != sockets.owner)
        || !(grants.groups.is_empty() && grants.processes.is_empty());
    if others && let Err(error) = open_to_all(path) {
        let path = path.display();
        tracing::warn!(%path, %error, "other users may not connect to the domain's socket");
    }
}

/// Lets every process connect to a socket that can reach its directory. The host judges who it
/// is; the kernel does not, for an abstract socket.
///
/// # Errors
///
/// The kernel's: the socket is another user's, or another process has put something else there.
pub(super) fn open_to_all(path: &Path) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, open};
    const ALL: u32 = 0o666;
    // By descriptor, and not followed: it must be the socket whose mode is changed.
    let file = open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    let found = std::fs::metadata(&place)?;
    if !found.file_type().is_socket() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if found.permissions().mode() & ALL == ALL {
        return Ok(());
    }
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(ALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(number: u32, reannounced: bool) -> Announcement {
        Announcement {
            number,
            kind: OfferKind::Port,
            name: OfferName::new("x").unwrap(),
            grants: Grants {
                anyone: true,
                users: Vec::new(),
                groups: Vec::new(),
                processes: Vec::new(),
                token: None,
            },
            reannounced,
        }
    }

    fn by(space: u8) -> HostWord {
        HostWord {
            space,
            incarnation: 1,
        }
    }

    #[test]
    fn the_elder_of_two_offers_counts() {
        let mut offer_table = OfferTable::default();
        let key = (OfferKind::Port, OfferName::new("x").unwrap());
        let first = |offer_table: &OfferTable| offer_table.find(&key).first().map(|p| p.by.space);
        // Given away before its holders were heard of.
        assert_eq!(offer_table.post(by(2), announced(1, false)), Ok(()));
        assert_eq!(offer_table.post(by(3), announced(1, true)), Ok(()));
        assert_eq!(offer_table.post(by(4), announced(7, true)), Ok(()));
        let taken = offer_table.post(by(5), announced(1, false));
        assert_eq!(taken, Err(Decline::NameTaken));
        assert_eq!(first(&offer_table), Some(3));
        offer_table.withdraw(3, 1);
        assert_eq!(first(&offer_table), Some(4));
        offer_table.forget(4);
        assert_eq!(first(&offer_table), Some(2));
        offer_table.withdraw(2, 9);
        assert_eq!(first(&offer_table), Some(2));
        offer_table.withdraw(2, 1);
        assert_eq!(first(&offer_table), None);
        assert!(offer_table.offers.is_empty() && offer_table.keys.is_empty());
    }
}
