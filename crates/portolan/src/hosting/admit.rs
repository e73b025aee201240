//! The host, or another member, admits newcomers to the domain.
//!
//! ```text
//! accept -- greeting -- user and group permitted? -- entry: claimed -- joining -- welcome -- (its act) live
//!              | connect request  | no                        |           |
//!              v                  v                           v killed    v its connection ends
//!         `handoff`            refused                       free again, by the host
//! ```
//!
//! The host accepts at both listening sockets. A newcomer that the host has not answered within a
//! second connects to the fallback socket, where every member accepts; so a stopped host
//! keeps no newcomer out. [`portolan_shm::space`] makes the decisions in the region.
//!
//! A newcomer that a member has admitted makes itself known to the host before it is live: its
//! connection waits in the backlog of the host's socket, wakes the host when that goes on, and the
//! host then watches every space that it finds in the region (D6).
//!
//! Any process may connect, and send nothing or rubbish: the number of such connections is bounded.

use super::create;
use super::handoff::Limits;
use super::host::{Host, Watched};
use crate::space::descriptor::Descriptor;
use crate::space::entry;
use crate::space::handshake::{Awaited, Ended};
use crate::space::host_connection::HostSockets;
use crate::space::{Member, OVERFLOW_ID};
use crate::trace;
use portolan_abi::control::FromHost;
use portolan_abi::hello::{Answer, Greeting, Hello, Reason, Refusal, Return, Welcome};
use portolan_abi::limits::MAX_SPACES;
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_proto::handshake::Unasked;
use portolan_shm::atomic::Ordering;
use portolan_shm::region::{Header, SpaceEntry};
use portolan_shm::space as copy_slot;
use portolan_sys::memory;
use portolan_sys::process::{EventFd, PidFd, poll, start_time};
use portolan_sys::socket::{self, Peer, SocketError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Newcomers accepted before other things get their turn.
const AT_ONCE: usize = 64;

/// Says no. The newcomer may not be there any more to hear it.
pub(super) fn refuse(member: &Member, connection: impl AsFd, reason: Reason, value: u64) {
    let domain = member.domain.as_str();
    tracing::warn!(domain, ?reason, value, "a newcomer is refused");
    let refusal = Answer::Refused(Refusal::with(reason, value));
    let _ = socket::send_by(connection, &refusal.encode(), &[], Some(Instant::now()));
}

/// Whether the domain's creator lets `peer` in.
fn permitted(header: &Header, peer: &Peer) -> bool {
    let known = |id: &&u32| **id != OVERFLOW_ID;
    let user = Some(&peer.uid).filter(known);
    let owner = header.user.load(Ordering::Relaxed);
    let mut groups = peer.groups.iter().chain([&peer.gid]).filter(known);
    user.is_some_and(|u| u64::from(*u) == owner || create::listed(&header.users, *u))
        || groups.any(|g| create::listed(&header.groups, *g))
}

/// Why `peer` may not join, nor look.
fn why_not(member: &Member, peer: &Peer) -> Option<(Reason, u64)> {
    if !permitted(member.tables().header, peer) {
        return Some((Reason::Permission, peer.uid.into()));
    }
    (peer.pid == 0).then_some((Reason::Namespace, 0))
}

/// Newcomers of one member: those that have not greeted, and those that it has welcomed.
#[derive(Default)]
pub(super) struct Admission {
    /// Whether the member hosts.
    by_host: bool,
    /// Connections that have not greeted yet.
    newcomers: Vec<Option<Newcomer>>,
    /// Welcomed by a member that does not host, and not heard of since.
    welcomed: Vec<Option<Welcomed>>,
    /// Given up for a moment to refuse a newcomer when there is no other descriptor left. A host's.
    spare: Option<Descriptor<EventFd>>,
    /// Newcomers wait: there is no descriptor to accept them with.
    deaf: bool,
}

/// A connection that has not greeted yet.
pub(super) struct Newcomer {
    pub(super) connection: Descriptor,
    /// `None` if it may not join.
    pidfd: Option<Descriptor<PidFd>>,
    pub(super) peer: Peer,
}

/// A newcomer that has an entry and a welcome.
pub(super) struct Welcomed {
    space: u8,
    incarnation: u32,
    pidfd: Descriptor<PidFd>,
    connection: Descriptor,
}

/// How long a member, or the host, that has no descriptor left does not look for newcomers.
pub(super) const REST: Duration = Duration::from_secs(1);

/// What something happened to: an index into the lists of an [`Admission`].
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// A process connects to the fallback socket.
    Fallback,
    /// A newcomer greets.
    Greeting(usize),
    /// A newcomer dies.
    Death(usize),
    /// A newcomer that was welcomed has hung up.
    Welcomed(usize),
}

impl Admission {
    /// What the host has: with a descriptor to spare.
    pub(super) fn of_host() -> io::Result<Self> {
        let mut admission = Self::default();
        admission.promote()?;
        Ok(admission)
    }

    /// The member becomes the host.
    pub(super) fn promote(&mut self) -> io::Result<()> {
        self.spare = Some(Descriptor::new(EventFd::new()?));
        self.by_host = true;
        self.deaf = false;
        Ok(())
    }

    /// Whether newcomers wait for a descriptor.
    pub(super) fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// What to poll.
    pub(super) fn sources<'a>(&'a self, sockets: &'a HostSockets) -> Vec<(Event, BorrowedFd<'a>)> {
        let mut all = Vec::new();
        if !self.deaf {
            all.push((Event::Fallback, sockets.fallback.as_fd()));
        }
        for (i, newcomer) in self.newcomers.iter().enumerate() {
            let Some(newcomer) = newcomer else { continue };
            all.push((Event::Greeting(i), newcomer.connection.as_fd()));
            if let Some(pidfd) = &newcomer.pidfd {
                all.push((Event::Death(i), pidfd.as_fd()));
            }
        }
        for (i, welcomed) in self.welcomed.iter().enumerate() {
            let Some(welcomed) = welcomed else { continue };
            all.push((Event::Welcomed(i), welcomed.connection.as_fd()));
        }
        all
    }

    /// Forgets what is dealt with; indices change.
    pub(super) fn tidy(&mut self) {
        self.newcomers.retain(Option::is_some);
        self.welcomed.retain(Option::is_some);
    }

    /// Takes those who wait in a backlog. `false`: the listening socket is not ours any more.
    pub(super) fn accept(&mut self, member: &Member, listener: &Descriptor) -> bool {
        for _ in 0..AT_ONCE {
            match socket::try_accept(listener) {
                Ok(None) => return true,
                Ok(Some(connection)) => self.meet(member, connection),
                Err(SocketError::DescriptorsExhausted { .. }) => {
                    self.turn_away(member, listener);
                }
                Err(_) => return false,
            }
            if self.deaf {
                return true;
            }
        }
        true
    }

    /// There is no descriptor left. The host gives one up to say so; a member leaves the newcomer
    /// to the others.
    fn turn_away(&mut self, member: &Member, listener: &Descriptor) {
        if self.by_host {
            self.spare = None;
            if let Ok(Some(connection)) = socket::try_accept(listener) {
                let limit = portolan_sys::machine::rlimit_nofile().soft;
                let limit = limit.unwrap_or(u64::MAX);
                refuse(member, &connection, Reason::Descriptors, limit);
            }
        }
        self.rest();
    }

    /// Makes the host's spare descriptor again, if there is one to be had, and listens again.
    /// A member listens again after a pause.
    pub(super) fn rest(&mut self) {
        if self.by_host && self.spare.is_none() {
            self.spare = EventFd::new().ok().map(Descriptor::new);
        }
        self.deaf = self.spare.is_none();
    }

    /// A member that had no descriptor left looks again.
    pub(super) fn listen_again(&mut self) {
        self.deaf = false;
    }

    /// Says no for a reason that lies with this member. Another one may let the newcomer in, so
    /// only the host says it.
    fn decline(&mut self, member: &Member, connection: &Descriptor, reason: Reason) {
        if self.by_host {
            refuse(member, connection, reason, 0);
        } else {
            self.deaf = true;
        }
    }

    /// Looks at who has connected.
    fn meet(&mut self, member: &Member, connection: OwnedFd) {
        let Ok(peer) = socket::peer(&connection) else {
            return;
        };
        // A newcomer sends us no descriptors. Where the kernel does not see to it, they are
        // not received.
        let _ = socket::refuse_descriptors(&connection);
        portolan_shm::mark!("join.accepted");
        let connection = Descriptor::new(connection);
        let pidfd = if why_not(member, &peer).is_some() {
            None
        } else {
            match PidFd::of_peer(&connection) {
                Ok(pidfd) => Some(Descriptor::new(pidfd)),
                // It is dead, or we have no descriptor for it.
                Err(_) => return self.decline(member, &connection, Reason::Descriptors),
            }
        };
        self.make_room();
        self.newcomers.push(Some(Newcomer {
            connection,
            pidfd,
            peer,
        }));
    }

    /// Drops the connection that has not greeted for longest, of the user that has most of
    /// them, if there are too many. An honest newcomer greets at once, or comes again.
    fn make_room(&mut self) {
        let silent = || self.newcomers.iter().flatten();
        if silent().count() < Limits::now().newcomers {
            return;
        }
        let most = silent()
            .map(|n| n.peer.uid)
            .max_by_key(|user| silent().filter(|n| n.peer.uid == *user).count());
        let mut places = self.newcomers.iter_mut();
        let oldest = places.find(|n| n.as_ref().map(|n| n.peer.uid) == most);
        if let Some(place) = oldest {
            *place = None;
        }
    }

    /// A newcomer has died before it greeted.
    pub(super) fn died(&mut self, index: usize) {
        self.newcomers[index] = None;
    }

    /// Reads a greeting; `None` if there is none, or nothing is to be done about it.
    pub(super) fn greeting(
        &mut self,
        member: &Member,
        index: usize,
    ) -> Option<(Newcomer, Greeting)> {
        let newcomer = self.newcomers[index].as_ref()?;
        let greeting = match Awaited::<Greeting>::new(None).poll(&newcomer.connection) {
            Ok(None) => return None,
            Ok(Some(greeting)) => Ok(greeting),
            Err(error) => Err(error),
        };
        // Taken out of its place: it becomes a space, a client, or goes.
        let newcomer = self.newcomers[index].take()?;
        let connection = &newcomer.connection;
        let greeting = match greeting {
            Ok(request @ Greeting::Connect(_)) => return Some((newcomer, request)),
            Err(Ended::Failed(Unasked::Refuse(reason @ Reason::Version, theirs))) => {
                refuse(member, connection, reason, theirs.into());
                return None;
            }
            Err(Ended::Failed(Unasked::HangUp) | Ended::Socket(_)) => return None,
            Ok(greeting) => Ok(greeting),
            Err(Ended::Failed(Unasked::Refuse(reason, _))) => Err(reason),
        };
        // What follows is for those who may join.
        if let Some((reason, value)) = why_not(member, &newcomer.peer) {
            refuse(member, connection, reason, value);
            return None;
        }
        match greeting {
            Ok(Greeting::Look(_)) => {
                show(member, connection);
                None
            }
            Ok(greeting) => Some((newcomer, greeting)),
            Err(reason) => {
                refuse(member, connection, reason, 0);
                None
            }
        }
    }

    /// Gives a newcomer an entry, and welcomes it.
    fn admit(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        newcomer: Newcomer,
        hello: &Hello,
    ) -> Option<Welcomed> {
        let Newcomer {
            connection,
            pidfd: Some(pidfd),
            peer,
        } = newcomer
        else {
            return None;
        };
        if has_given_up(&connection) {
            // It waits for another answer by now.
            return None;
        }
        let Some(started) = self.started(peer.pid) else {
            let reason = why_unreadable();
            self.decline(member, &connection, reason);
            return None;
        };
        undo_earlier(member, peer.pid, started);
        let Some((space, entry, incarnation)) = claim(member) else {
            refuse(member, &connection, Reason::Full, MAX_SPACES as u64 - 1);
            return None;
        };
        portolan_shm::mark!("join.claimed");
        describe(entry, &peer, started, hello);
        // Before it is welcome, so that its first event is recorded.
        trace::newcomer(member, space);
        if !copy_slot::hand_over(&entry.status, member.space, incarnation) {
            // Another member has taken us for dead: we must admit no newcomer.
            return None;
        }
        portolan_shm::mark!("join.reserved");
        let welcome = Answer::Granted(Welcome {
            space,
            incarnation,
            base: member.region.base() as u64,
            len: member.tables().geometry.len,
            by_host: self.by_host,
        });
        let region = &member.region;
        let (listener, fallback) = (&*sockets.listener, &*sockets.fallback);
        let fds = [region.fd(), listener, fallback, region.reservation()].map(AsFd::as_fd);
        // Refused until now. A member may delegate memory to its host.
        let _ = socket::accept_descriptors(&connection);
        let sent = socket::send_by(&connection, &welcome.encode(), &fds, Some(Instant::now()));
        portolan_shm::mark!("join.welcomed");
        if let Err(error) = sent {
            entry::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free);
            if !matches!(error, SocketError::Closed) {
                // Too many descriptors on their way; the kernel counts them as ours.
                self.decline(member, &connection, Reason::Descriptors);
            }
            return None;
        }
        let (domain, process, user) = (member.domain.as_str(), peer.pid, peer.uid);
        tracing::debug!(domain, space, process, user, "a newcomer is admitted");
        Some(Welcomed {
            space,
            incarnation,
            pidfd,
            connection,
        })
    }

    /// When the process started, read with the spare descriptor if there is no other.
    fn started(&mut self, pid: u32) -> Option<u64> {
        start_time(pid).or_else(|| {
            self.spare = None;
            let started = start_time(pid);
            self.rest();
            started
        })
    }

    /// Deals with all that happened at a member that does not host. `false`: our descriptors are
    /// not ours any more.
    pub(super) fn act(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        happened: &[Event],
    ) -> bool {
        for event in happened {
            match *event {
                Event::Death(i) => self.died(i),
                Event::Welcomed(i) => self.forget(member, i),
                Event::Fallback | Event::Greeting(_) => {}
            }
        }
        for event in happened {
            if let Event::Greeting(i) = *event
                && let Some((newcomer, greeting)) = self.greeting(member, i)
            {
                match greeting {
                    Greeting::Hello(hello) => {
                        let welcomed = self.admit(member, sockets, newcomer, &hello);
                        self.welcomed.extend(welcomed.map(Some));
                    }
                    // For the host, at its own socket.
                    _ => refuse(member, &newcomer.connection, Reason::Garbled, 0),
                }
            }
        }
        let accepts = happened.iter().any(|e| matches!(e, Event::Fallback));
        let heard = !accepts || self.accept(member, &sockets.fallback);
        self.tidy();
        heard
    }

    /// A newcomer that was welcomed has hung up: it is live by now, or has given up.
    pub(super) fn forget(&mut self, member: &Member, index: usize) {
        if let Some(Welcomed {
            space, incarnation, ..
        }) = self.welcomed[index].take()
            && let Some(entry) = member.tables().spaces.get(usize::from(space))
        {
            entry::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free);
        }
    }

    /// The member leaves. Whom it has welcomed, and who is not live yet, asks another one.
    pub(super) fn end(&mut self, member: &Member) {
        for index in 0..self.welcomed.len() {
            self.forget(member, index);
        }
        *self = Self::default();
    }
}

/// Whether a newcomer has closed its connection, and what it said there is of no use any more.
fn has_given_up(connection: &Descriptor) -> bool {
    let ready = poll(&[connection.as_fd()], Some(Instant::now()));
    ready.is_ok_and(|ready| ready.iter().any(|ready| ready.hangup))
}

/// Why nothing can be read of a newcomer: it is dead, we have no descriptor to read with, or
/// there is nothing to read.
fn why_unreadable() -> Reason {
    match std::fs::metadata("/proc/self/stat") {
        Ok(_) => Reason::Descriptors,
        Err(_) => Reason::Proc,
    }
}

/// A process joins a domain once at a time: another admission of it, which it has not
/// answered, is one that it gave up.
fn undo_earlier(member: &Member, pid: u32, started: u64) {
    for entry in member.tables().spaces.iter().skip(1) {
        let SpaceStatus {
            phase, incarnation, ..
        } = entry::status(entry);
        let same = entry.pid.load(Ordering::Relaxed) == u64::from(pid)
            && entry.start_time.load(Ordering::Relaxed) == started;
        if phase == SpacePhase::Joining && same {
            entry::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free);
        }
    }
}

/// Claims a free entry, if there is one; the space and its incarnation (D3, D7).
fn claim(member: &Member) -> Option<(u8, &SpaceEntry, u32)> {
    let tables = member.tables();
    (1..=u8::MAX)
        .zip(tables.spaces.iter().skip(1))
        .find_map(|(space, entry)| {
            if entry::status(entry).phase != SpacePhase::Free {
                return None;
            }
            tables.use_space(space);
            let incarnation = copy_slot::claim(&entry.status, member.space)?;
            Some((space, entry, incarnation))
        })
}

/// Writes who a newcomer is, into an entry that we have claimed.
fn describe(entry: &SpaceEntry, peer: &Peer, started: u64, hello: &Hello) {
    let name = hello.name.split(|b| *b == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    create::describe(entry, peer.pid, started, peer.uid, &name);
}

impl Host {
    /// Reads a greeting and answers it.
    pub(super) fn greet(&mut self, member: &Member, sockets: &HostSockets, index: usize) {
        let Some((newcomer, greeting)) = self.admission.greeting(member, index) else {
            return;
        };
        match greeting {
            Greeting::Connect(request) => self.receive(member, newcomer, request),
            Greeting::Hello(hello) => {
                let welcomed = self.admission.admit(member, sockets, newcomer, &hello);
                // What was undone for it is not watched any more.
                self.prune(member);
                self.watched.extend(welcomed.map(|welcomed| Watched {
                    space: welcomed.space,
                    incarnation: welcomed.incarnation,
                    pidfd: welcomed.pidfd,
                    connection: Some(welcomed.connection),
                    handed: 0,
                    done: false,
                }));
            }
            Greeting::Return(back) => self.take_back(member, newcomer, back),
            Greeting::Look(_) => {}
        }
    }

    /// A member of our predecessor's makes itself known, or one that another member has admitted.
    fn take_back(&mut self, member: &Member, newcomer: Newcomer, back: Return) {
        let connection = newcomer.connection;
        let entry = member.tables().spaces.get(usize::from(back.space));
        let index = self
            .watched
            .iter()
            .position(|w| !w.done && w.space == back.space && w.incarnation == back.incarnation);
        let pid = entry.map(|e| e.pid.load(Ordering::Relaxed));
        let (Some(index), Some(entry)) = (index, entry) else {
            return refuse(member, &connection, Reason::Stranger, back.space.into());
        };
        if pid != Some(newcomer.peer.pid.into()) {
            return refuse(member, &connection, Reason::Stranger, back.space.into());
        }
        portolan_shm::mark!("host.return");
        // Refused until now. Before it hears of us, because it may send some at once.
        let _ = socket::accept_descriptors(&connection);
        let said = FromHost::Back.encode();
        if socket::send_by(&connection, &said, &[], Some(Instant::now())).is_err() {
            if self.watched[index].connection.is_none() {
                // It has left meanwhile, or runs another program.
                self.hung_up(member, index);
            }
            return;
        }
        // It tells us of its offers over this connection, and may delegate memory to us.
        self.offer_table.forget(back.space);
        self.copy_brokers.forget(back.space, back.incarnation);
        self.watched[index].connection = Some(connection);
        self.watched[index].handed = 0;
        let (domain, space) = (member.domain.as_str(), back.space);
        tracing::debug!(
            domain,
            space,
            "a member has made itself known to its new host"
        );
        if entry::status(entry).phase == SpacePhase::Dead {
            return self.let_go(member, index);
        }
        entry::change(entry, back.incarnation, |s| {
            Some(SpaceStatus {
                disconnected: false,
                ..s
            })
        });
    }
}

/// Lets an observer read: it gets the region's file, open for reading only, and no space.
/// This process keeps nothing of it.
fn show(member: &Member, connection: &Descriptor) {
    // Fails in a host of another user than the domain's creator: then an observer is
    // trusted not to write, as members are. And it fails for want of a descriptor.
    let file = memory::reopen_to_read(member.region.fd());
    let fd = match &file {
        Ok(file) => file.as_fd(),
        Err(_) => member.region.fd().as_fd(),
    };
    let welcome = Answer::Granted(Welcome {
        space: 0,
        incarnation: 0,
        base: member.region.base() as u64,
        len: member.tables().geometry.len,
        by_host: true,
    });
    let _ = socket::send_by(connection, &welcome.encode(), &[fd], Some(Instant::now()));
}
