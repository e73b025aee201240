//! The host's side of a newcomer's admission.
//!
//! ```text
//! accept -- greeting -- user and group permitted? -- entry: joining -- welcome -- (its act) live
//!              | visit            | no                        |
//!              v                  v                           v its connection ends
//!         `introduce`          refused                    free again
//! ```
//!
//! Anybody may connect, and say nothing or rubbish: how many of those are kept is bounded.

use super::create;
use super::descriptor::Descriptor;
use super::host::{Host, Newcomer, Watched};
use super::introduce::Limits;
use super::link::Rope;
use super::space;
use crate::member::Member;
use crate::trace;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::control::FromHost;
use portolan_abi::hello::{Answer, Greeting, Hello, Look, Reason, Refusal, Return, Welcome};
use portolan_abi::limits::MAX_SPACES;
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_shm::atomic::Ordering;
use portolan_shm::region::{Header, SpaceEntry};
use portolan_sys::memory;
use portolan_sys::process::{PidFd, start_time};
use portolan_sys::socket::{self, Peer, SocketError};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Newcomers accepted before other things get their turn.
const AT_ONCE: usize = 64;

/// The user or group that the kernel names when it cannot say who it is.
pub(super) const OVERFLOW_ID: u32 = 65_534;

/// Says no. The newcomer may not be there any more to hear it.
pub(super) fn refuse(member: &Member, connection: impl AsFd, reason: Reason, value: u64) {
    let domain = member.domain.as_str();
    tracing::warn!(domain, ?reason, value, "a newcomer is refused");
    let refusal = Answer::Refusal(Refusal {
        version: FORMAT_VERSION,
        reason,
        value,
    });
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

impl Host {
    /// Takes those who wait in the backlog. `false`: the listening socket is not ours any more.
    pub(super) fn accept(&mut self, member: &Member, rope: &Rope) -> bool {
        for _ in 0..AT_ONCE {
            match socket::try_accept(&rope.listener) {
                Ok(None) => return true,
                Ok(Some(connection)) => self.meet(member, connection),
                Err(SocketError::DescriptorsExhausted { .. }) => {
                    self.turn_away(member, rope);
                    if self.deaf {
                        return true;
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// There is no descriptor left: gives one up to say so.
    fn turn_away(&mut self, member: &Member, rope: &Rope) {
        self.spare = None;
        if let Ok(Some(connection)) = socket::try_accept(&rope.listener) {
            let limit = portolan_sys::machine::rlimit_nofile().soft;
            refuse(
                member,
                &connection,
                Reason::Descriptors,
                limit.unwrap_or(u64::MAX),
            );
        }
        self.rest();
    }

    /// Looks at who has connected.
    fn meet(&mut self, member: &Member, connection: OwnedFd) {
        let Ok(peer) = socket::peer(&connection) else {
            return;
        };
        // Nobody has descriptors for us. Where the kernel does not see to it, they are
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
                Err(_) => return refuse(member, connection, Reason::Descriptors, 0),
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
    /// them, if there are too many. Whoever means it greets at once, or comes again.
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

    /// Reads a greeting and answers it.
    pub(super) fn greet(&mut self, member: &Member, rope: &Rope, index: usize) {
        let Some(newcomer) = &self.newcomers[index] else {
            return;
        };
        let mut buffer = [0; 2 * Hello::BYTES];
        let received = match socket::try_receive(&newcomer.connection, &mut buffer, 0) {
            Ok(None) => return,
            Ok(Some(received)) => received.len.min(buffer.len()),
            Err(_) => 0,
        };
        // Taken out of its place: it becomes a watched space, a visitor, or goes.
        let newcomer = self.newcomers[index].take();
        let Some(newcomer) = newcomer.filter(|_| received > 0) else {
            return;
        };
        let greeting = Greeting::decode(&buffer[..received]);
        let connection = &newcomer.connection;
        match greeting {
            Some(Greeting::Visit(visit)) => return self.receive(member, newcomer, visit),
            Some(Greeting::OtherVisit(version)) => {
                return refuse(member, connection, Reason::Version, version.into());
            }
            _ => {}
        }
        // What follows is for those who may join.
        if let Some((reason, value)) = why_not(member, &newcomer.peer) {
            return refuse(member, connection, reason, value);
        }
        match greeting {
            Some(Greeting::Hello(hello)) => self.admit(member, rope, newcomer, &hello),
            Some(Greeting::Look(look)) => show(member, connection, look),
            Some(Greeting::Return(back)) => self.take_back(member, newcomer, back),
            _ => refuse(member, connection, Reason::Garbled, 0),
        }
    }

    fn admit(&mut self, member: &Member, rope: &Rope, newcomer: Newcomer, hello: &Hello) {
        let Newcomer {
            connection,
            pidfd: Some(pidfd),
            peer,
        } = newcomer
        else {
            return;
        };
        if hello.version != FORMAT_VERSION {
            return refuse(member, &connection, Reason::Version, hello.version.into());
        }
        let Some(started) = self.started(peer.pid) else {
            // It is dead, or we have no descriptor to read about it.
            return refuse(member, &connection, Reason::Descriptors, 0);
        };
        self.undo_earlier(member, peer.pid, started);
        let tables = member.tables();
        let mut spaces = (1..=u8::MAX).zip(tables.spaces.iter().skip(1));
        let free = spaces.find(|(_, e)| space::status(e).phase == SpacePhase::Free);
        let Some((space, entry)) = free else {
            return refuse(member, &connection, Reason::Full, MAX_SPACES as u64 - 1);
        };
        tables.use_space(space);
        let incarnation = reserve(entry, &peer, started, hello);
        // Before it is welcome, so that its first event is recorded.
        trace::newcomer(member, space);
        portolan_shm::mark!("join.reserved");
        let welcome = Answer::Welcome(Welcome {
            version: FORMAT_VERSION,
            space,
            incarnation,
            base: member.region.base() as u64,
            len: tables.geometry.len,
        });
        let fds = [member.region.fd().as_fd(), rope.listener.as_fd()];
        // Refused until now. Once it is a member it may entrust us with memory.
        let _ = socket::accept_descriptors(&connection);
        let sent = socket::send_by(&connection, &welcome.encode(), &fds, Some(Instant::now()));
        portolan_shm::mark!("join.welcomed");
        if let Err(error) = sent {
            space::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free);
            if !matches!(error, SocketError::Closed) {
                // Too many descriptors on their way; the kernel counts them as ours.
                refuse(member, &connection, Reason::Descriptors, 0);
            }
            return;
        }
        let (domain, process, user) = (member.domain.as_str(), peer.pid, peer.uid);
        tracing::debug!(domain, space, process, user, "a newcomer is admitted");
        self.watched.push(Watched {
            space,
            incarnation,
            pidfd,
            connection: Some(connection),
            handed: 0,
            done: false,
        });
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

    /// A process joins a domain once at a time: another admission of it, which it has not
    /// answered, is one that it gave up.
    fn undo_earlier(&mut self, member: &Member, pid: u32, started: u64) {
        for (space, entry) in (1..=u8::MAX).zip(member.tables().spaces.iter().skip(1)) {
            let SpaceStatus {
                phase, incarnation, ..
            } = space::status(entry);
            let same = entry.pid.load(Ordering::Relaxed) == u64::from(pid)
                && entry.start_time.load(Ordering::Relaxed) == started;
            if phase == SpacePhase::Joining
                && same
                && space::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free)
            {
                for watched in self.watched.iter_mut().filter(|w| w.space == space) {
                    watched.done = true;
                }
            }
        }
    }

    /// A member of our predecessor's makes itself known.
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
            return;
        }
        // It tells us of its offers over this connection, and may entrust us with memory.
        self.reception.forget(back.space);
        self.mediators.forget(back.space, back.incarnation);
        self.watched[index].connection = Some(connection);
        self.watched[index].handed = 0;
        let (domain, space) = (member.domain.as_str(), back.space);
        tracing::debug!(
            domain,
            space,
            "a member has made itself known to its new host"
        );
        if space::status(entry).phase == SpacePhase::Dead {
            return self.let_go(member, index);
        }
        space::change(entry, back.incarnation, |s| {
            Some(SpaceStatus {
                disconnected: false,
                ..s
            })
        });
    }
}

/// Lets an observer read: it gets the region's file, open for reading only, and no space.
/// Nobody keeps anything of it here.
fn show(member: &Member, connection: &Descriptor, look: Look) {
    if look.version != FORMAT_VERSION {
        return refuse(member, connection, Reason::Version, look.version.into());
    }
    // Fails in a host of another user than the domain's creator: then an observer is
    // trusted not to write, as members are. And it fails for want of a descriptor.
    let file = memory::reopen_to_read(member.region.fd());
    let fd = match &file {
        Ok(file) => file.as_fd(),
        Err(_) => member.region.fd().as_fd(),
    };
    let welcome = Answer::Welcome(Welcome {
        version: FORMAT_VERSION,
        space: 0,
        incarnation: 0,
        base: member.region.base() as u64,
        len: member.tables().geometry.len,
    });
    let _ = socket::send_by(connection, &welcome.encode(), &[fd], Some(Instant::now()));
}

/// Hands a free entry to a newcomer; its incarnation (D3).
fn reserve(entry: &SpaceEntry, peer: &Peer, started: u64, hello: &Hello) -> u32 {
    let name = hello.name.split(|b| *b == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    create::describe(entry, peer.pid, started, peer.uid, &name);
    let joining = SpaceStatus {
        phase: SpacePhase::Joining,
        disconnected: false,
        incarnation: space::status(entry).incarnation.wrapping_add(1),
    };
    // Release: who sees the space sees whose it is.
    entry.status.store(joining.pack(), Ordering::Release);
    joining.incarnation
}
