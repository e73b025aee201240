//! The host handles newcomers, connections, offers and deaths, in its membership thread.
//!
//! It polls, without a timeout, every source of events. It does nothing while members send and
//! receive, because no message passes through the host.
//!
//! Other members admit newcomers while the host is stopped, so the host compares its list with
//! the region's entries whenever something happens (D6).

use super::admit::{Admission, Event, REST};
use super::copy_broker::{self, CopyBrokers};
use super::handoff::OfferTable;
use super::membership_thread::{MembershipThread, Stop};
use super::reclaim::End;
use super::watch::Control;
use super::{Role, reclaim};
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::entry::{self, Owner};
use crate::space::host::{host_of, me};
use crate::space::host_connection::HostSockets;
use portolan_abi::control::{FromHost, FromMember};
use portolan_abi::delegate::{DELEGATED, Delegation};
use portolan_abi::limits::MAX_SPACES;
use portolan_abi::space::{HostWord, SpacePhase, SpaceStatus};
use portolan_shm::atomic::Ordering;
use portolan_sys::memory;
use portolan_sys::process::{PidFd, poll};
use portolan_sys::socket::{self, SocketError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Records of one member that are read before others get their turn.
const RECORDS_AT_ONCE: usize = 32;

/// What the host keeps besides the region. A successor makes its own.
pub(super) struct Host {
    /// Every other space that is joining or live.
    pub(super) watched: Vec<Watched>,
    /// Newcomers.
    pub(super) admission: Admission,
    /// What is offered to clients, and who waits for it.
    pub(super) offer_table: OfferTable,
    /// The threads that copy to and from delegated memory.
    pub(super) copy_brokers: CopyBrokers,
    /// The member that has asked for the role.
    heir: Option<HostWord>,
}

/// A space that we watch.
pub(super) struct Watched {
    pub(super) space: u8,
    pub(super) incarnation: u32,
    pub(super) pidfd: Descriptor<PidFd>,
    pub(super) connection: Option<Descriptor>,
    /// Hand-offs that it has not received yet.
    pub(super) handed: u32,
    /// Dealt with; to be dropped from the list.
    pub(super) done: bool,
}

/// What something happened to: an index into the host's lists.
#[derive(Clone, Copy)]
enum Source {
    Prompt,
    Listener,
    Newcomers(Event),
    Connection(usize),
    Death(usize),
    Waiting(usize),
    CopyBrokers,
}

/// Lays the host's role down: **the commit point of a resignation**.
pub(super) fn resign(member: &Member) {
    let word = &member.tables().header.host.word;
    portolan_shm::mark!("host.resign");
    // Release: what we did as host is seen by who succeeds us. Fails only if we do not host.
    let _ = word.compare_exchange(
        me(member).pack(),
        HostWord::VACANT.pack(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    portolan_shm::mark!("host.resigned");
}

/// Hands the host's role to another member: **the commit point of that** (D9). Fails only if we
/// do not host.
fn pass(member: &Member, heir: HostWord) -> bool {
    let word = &member.tables().header.host.word;
    portolan_shm::mark!("host.passing");
    // Release: what we did as host is seen by the heir.
    let passed = word.compare_exchange(
        me(member).pack(),
        heir.pack(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    portolan_shm::mark!("host.passed");
    passed.is_ok()
}

/// Whether the region's descriptor still is the region's, so that we could hand it out.
pub(super) fn region_is_ours(member: &Member) -> bool {
    memory::verify(member.region.fd(), member.tables().geometry.len).is_ok()
}

impl Host {
    /// The host of a domain that has no other members yet.
    pub(super) fn first() -> io::Result<Self> {
        Self::with(Admission::of_host()?)
    }

    fn with(admission: Admission) -> io::Result<Self> {
        Ok(Self {
            watched: Vec::new(),
            admission,
            offer_table: OfferTable::default(),
            copy_brokers: CopyBrokers::new()?,
            heir: None,
        })
    }

    /// Takes the place of the host before, whose host word we have just taken: watches the
    /// living, reclaims the dead, and finishes what the dead host was at. The newcomers that we
    /// were admitting are ours still.
    ///
    /// # Errors
    ///
    /// A living member could not be watched, for want of a descriptor.
    pub(super) fn succeed(member: &Member, mut admission: Admission) -> io::Result<Self> {
        portolan_shm::mark!("host.won");
        let header = member.tables().header;
        // Relaxed: a counter for people, written by the host alone.
        header.host.takeovers.fetch_add(1, Ordering::Relaxed);
        portolan_shm::mark!("host.counted");
        admission.promote()?;
        let mut host = Self::with(admission)?;
        for space in 1..=u8::MAX {
            host.look_at(member, space)?;
        }
        portolan_shm::mark!("host.ready");
        let (domain, space) = (member.domain.as_str(), member.space);
        let members = host.watched.len();
        tracing::info!(
            domain,
            space,
            members,
            "this process has taken the host's place"
        );
        Ok(host)
    }

    fn look_at(&mut self, member: &Member, space: u8) -> io::Result<()> {
        let Some(entry) = member.tables().spaces.get(usize::from(space)) else {
            return Ok(());
        };
        let SpaceStatus {
            phase, incarnation, ..
        } = entry::status(entry);
        // What is claimed is its claimer's, and free again when that one is reclaimed (A2).
        if matches!(phase, SpacePhase::Free | SpacePhase::Claimed) || space == member.space {
            return Ok(());
        }
        portolan_shm::mark!("host.look");
        let execed = phase == SpacePhase::Live && entry::has_execed(entry, member.region.base());
        match (phase, entry::owner(entry)) {
            // It left, or died, and was not returned to the end.
            (_, Owner::Dead) => reclaim(member, space, incarnation, End::Death),
            (SpacePhase::Dead, _) => reclaim(member, space, incarnation, End::Leave),
            (_, Owner::Alive(_)) if execed => reclaim(member, space, incarnation, End::Death),
            (_, Owner::Unknown(error)) => return Err(error),
            (_, Owner::Alive(pidfd)) => self.watched.push(Watched {
                space,
                incarnation,
                pidfd: Descriptor::new(pidfd),
                connection: None,
                handed: 0,
                done: false,
            }),
        }
        Ok(())
    }

    /// Watches the spaces that others have admitted, and none any more whose admission was undone
    /// (D6).
    fn compare(&mut self, member: &Member) {
        self.prune(member);
        let mut known = [false; MAX_SPACES];
        for watched in self.watched.iter().filter(|w| !w.done) {
            known[usize::from(watched.space)] = true;
        }
        for space in member.tables().used_spaces() {
            if !known[usize::from(space)] && self.look_at(member, space).is_err() {
                // For want of a descriptor: again when something happens.
                return;
            }
        }
    }

    /// Drops the spaces that are not there any more.
    pub(super) fn prune(&mut self, member: &Member) {
        for watched in &mut self.watched {
            let entry = member.tables().spaces.get(usize::from(watched.space));
            let there = entry.map(entry::status).is_some_and(|s| {
                s.incarnation == watched.incarnation
                    && !matches!(s.phase, SpacePhase::Free | SpacePhase::Claimed)
            });
            watched.done |= !there;
        }
    }

    fn sources<'h>(&'h self, sockets: &'h HostSockets) -> Vec<(Source, BorrowedFd<'h>)> {
        let mut all = vec![
            (Source::Prompt, sockets.prompt.as_fd()),
            (Source::CopyBrokers, self.copy_brokers.bell()),
        ];
        if !self.admission.is_deaf() {
            all.push((Source::Listener, sockets.listener.as_fd()));
        }
        let newcomers = self.admission.sources(sockets);
        all.extend(
            newcomers
                .into_iter()
                .map(|(e, fd)| (Source::Newcomers(e), fd)),
        );
        for (i, client) in self.offer_table.waiting.iter().enumerate() {
            let Some(client) = client else { continue };
            all.push((Source::Waiting(i), client.connection.as_fd()));
        }
        for (i, watched) in self.watched.iter().enumerate() {
            all.push((Source::Death(i), watched.pidfd.as_fd()));
            if let Some(connection) = &watched.connection {
                all.push((Source::Connection(i), connection.as_fd()));
            }
        }
        all
    }

    /// Deals with all that happened. `false`: our descriptors are not ours any more.
    fn act(&mut self, member: &Member, sockets: &HostSockets, happened: &[Source]) -> bool {
        self.compare(member);
        // Deaths first: what they return may be what a newcomer needs.
        for source in happened {
            match *source {
                Source::Death(i) => self.died(member, i, End::Death),
                Source::Newcomers(Event::Death(i)) => self.admission.died(i),
                Source::Newcomers(Event::Welcomed(i)) => self.admission.forget(member, i),
                _ => {}
            }
        }
        for source in happened {
            match *source {
                Source::Connection(i) if !self.watched[i].done => self.listen(member, sockets, i),
                Source::Newcomers(Event::Greeting(i)) => self.greet(member, sockets, i),
                Source::Waiting(i) => self.interrupted(member, i),
                Source::Prompt => self.post_own(member, sockets),
                Source::CopyBrokers => self.hear_copy_brokers(member, sockets),
                _ => {}
            }
        }
        // Last, because it may drop newcomers that have not greeted to make room.
        let mut heard = true;
        for source in happened {
            heard &= match source {
                Source::Listener => self.admission.accept(member, &sockets.listener),
                Source::Newcomers(Event::Fallback) => {
                    self.admission.accept(member, &sockets.fallback)
                }
                _ => true,
            };
        }
        self.watched.retain(|w| !w.done);
        self.admission.tidy();
        self.offer_table.waiting.retain(Option::is_some);
        if self.admission.is_deaf() {
            self.admission.rest();
        }
        heard
    }

    fn died(&mut self, member: &Member, index: usize, end: End) {
        let watched = &mut self.watched[index];
        watched.done = true;
        self.offer_table.forget(watched.space);
        self.copy_brokers
            .reclaim(watched.space, watched.incarnation);
        reclaim(member, watched.space, watched.incarnation, end);
    }

    /// Reads what a member says.
    fn listen(&mut self, member: &Member, sockets: &HostSockets, index: usize) {
        for _ in 0..RECORDS_AT_ONCE {
            let watched = &self.watched[index];
            let Some(connection) = watched.connection.as_ref().filter(|_| !watched.done) else {
                return;
            };
            let by = HostWord {
                space: watched.space,
                incarnation: watched.incarnation,
            };
            let said = match hear(connection) {
                Heard::Nothing => return,
                Heard::Said(said) => Some(said),
                Heard::Delegated(number, delegation, fds) => {
                    self.delegated(member, by, number, delegation, fds);
                    continue;
                }
                Heard::Lost => continue,
                Heard::Over => None,
            };
            match said {
                // It says so by its status.
                Some(FromMember::Arrived) => {}
                Some(FromMember::Leaving) => {
                    portolan_shm::mark!("leave.asked");
                    self.let_go(member, index);
                }
                Some(FromMember::Offer(offer)) => self.offered(member, sockets, index, offer),
                Some(FromMember::Withdraw(number)) => self.withdrawn(member, index, number),
                Some(FromMember::Received) => self.received(member, index),
                Some(FromMember::Succeeds) => self.heir = Some(by),
                // Closed, or not what a member says: the connection is of no use any more.
                Some(FromMember::Delegate(..)) | None => self.hung_up(member, index),
            }
        }
    }

    /// Answers a member. One that does not read what it asked for loses its connection, and
    /// makes itself known again when it goes on.
    pub(super) fn answer(&mut self, member: &Member, index: usize, answer: FromHost) {
        let connection = &self.watched[index].connection;
        let Some(connection) = connection else { return };
        if socket::send_by(connection, &answer.encode(), &[], Some(Instant::now())).is_err() {
            self.hung_up(member, index);
        }
    }

    /// Returns what a leaving member held, and tells it.
    pub(super) fn let_go(&mut self, member: &Member, index: usize) {
        let watched = &mut self.watched[index];
        watched.done = true;
        self.offer_table.forget(watched.space);
        self.copy_brokers
            .reclaim(watched.space, watched.incarnation);
        reclaim(member, watched.space, watched.incarnation, End::Leave);
        portolan_shm::mark!("leave.returned");
        if let Some(connection) = &watched.connection {
            // It may be gone already, or look at its status instead.
            let gone = FromHost::Gone.encode();
            let _ = socket::send_by(connection, &gone, &[], Some(Instant::now()));
        }
    }

    /// A connection has ended. That is no death.
    pub(super) fn hung_up(&mut self, member: &Member, index: usize) {
        let watched = &mut self.watched[index];
        watched.connection = None;
        watched.handed = 0;
        self.offer_table.forget(watched.space);
        self.copy_brokers.forget(watched.space, watched.incarnation);
        let Some(entry) = member.tables().spaces.get(usize::from(watched.space)) else {
            return;
        };
        let incarnation = watched.incarnation;
        if entry::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free) {
            // It gave up, or could not map the region. The first to change the status wins.
            watched.done = true;
        } else if entry::status(entry).phase == SpacePhase::Dead {
            // It was leaving and has not waited.
            self.died(member, index, End::Leave);
        } else if entry::has_execed(entry, member.region.base()) {
            self.died(member, index, End::Death);
        } else {
            let space = watched.space;
            let process = entry.pid.load(Ordering::Relaxed);
            let domain = member.domain.as_str();
            tracing::warn!(domain, space, process, "a member has lost its connection");
            entry::change(entry, incarnation, |s| {
                Some(SpaceStatus {
                    disconnected: true,
                    ..s
                })
            });
        }
    }

    /// The member that has asked for the role, if it still can have it.
    fn take_heir(&mut self, member: &Member) -> Option<HostWord> {
        let heir = self.heir.take()?;
        let mut watched = self.watched.iter();
        let its = watched.find(|w| (w.space, w.incarnation) == (heir.space, heir.incarnation))?;
        let entry = member.tables().spaces.get(usize::from(heir.space))?;
        let status = entry::status(entry);
        let is_live = status.phase == SpacePhase::Live && status.incarnation == heir.incarnation;
        // Should it die, or leave, after this look, it is succeeded as any host.
        (is_live && !its.done && its.connection.is_some() && !its.pidfd.is_dead()).then_some(heir)
    }

    /// Leaves in good order: the host returns what it held itself, and lays the role down.
    fn leave(mut self, member: &Member, sockets: &HostSockets) {
        portolan_shm::mark!("leave.host");
        self.copy_brokers.stop();
        let us = me(member);
        let others = (1..=u8::MAX).filter(|s| *s != us.space).any(|s| {
            let entry = member.tables().spaces.get(usize::from(s));
            entry.is_some_and(|e| entry::status(e).phase != SpacePhase::Free)
        });
        if others {
            reclaim::reclaim(member, us.space, us.incarnation, End::Leave);
        } else {
            sockets.remove_files();
        }
        if !others && let Some(entry) = member.tables().spaces.get(usize::from(us.space)) {
            // No member is left to return what we held; observers see that the domain has ended.
            entry::step(entry, us.incarnation, SpacePhase::Live, SpacePhase::Dead);
        }
        resign(member);
        portolan_shm::mark!("leave.resigned");
        // Only now the connections close, so a member that sees that finds the role vacant. It may
        // have succeeded us, and died, before the others see it.
        for watched in self.watched {
            drop(watched);
            portolan_shm::mark!("leave.told");
        }
    }
}

/// What came of listening to a member.
enum Heard {
    Nothing,
    Said(FromMember),
    /// With descriptors of its memory.
    Delegated(u32, Delegation, [OwnedFd; DELEGATED]),
    /// There was no descriptor left to receive some with. What was to come is missed when its
    /// offer comes.
    Lost,
    /// Closed, or not what a member says.
    Over,
}

/// Takes the next record. Descriptors come with one kind only; others are put away.
fn hear(connection: &Descriptor) -> Heard {
    let mut buffer = [0; FromMember::MAX_BYTES + 1];
    let received = match socket::try_receive(connection, &mut buffer, DELEGATED) {
        Ok(None) => return Heard::Nothing,
        Ok(Some(received)) => received,
        Err(SocketError::DescriptorsExhausted { .. }) => return Heard::Lost,
        Err(_) => return Heard::Over,
    };
    let bytes = buffer.get(..received.len).unwrap_or_default();
    let said = FromMember::decode(bytes)
        .ok()
        .filter(|_| !received.truncated);
    match (said, <[OwnedFd; DELEGATED]>::try_from(received.fds)) {
        (Some(FromMember::Delegate(number, delegation)), Ok(fds)) => {
            Heard::Delegated(number, delegation, fds)
        }
        (Some(said), Err(fds)) if fds.is_empty() => Heard::Said(said),
        (_, fds) => {
            copy_broker::put_away(fds.map_or_else(|fds| fds, Vec::from));
            Heard::Over
        }
    }
}

/// Returns what a dead or leaving space held, or undoes its admission.
fn reclaim(member: &Member, space: u8, incarnation: u32, end: End) {
    let Some(entry) = member.tables().spaces.get(usize::from(space)) else {
        return;
    };
    if !entry::step(entry, incarnation, SpacePhase::Joining, SpacePhase::Free) {
        // Before its own entry is free: its next space claims others.
        entry::release_claims(member, space);
        portolan_shm::mark!("host.claims_released");
        reclaim::reclaim(member, space, incarnation, end);
    }
}

impl MembershipThread {
    /// Hosts until told to stop, or until it cannot.
    pub(super) fn host(&mut self) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let sockets = shared.sockets.as_ref().ok_or(Stop::Told)?;
        // Our host before, if there was one, knew of them; now we do.
        self.offers.reannounce();
        let entered = self.attend(|thread, member| {
            if let Role::Host(host) = &mut thread.role {
                host.post_own(member, sockets);
            }
        });
        entered.ok_or(Stop::Told)?;
        loop {
            let Role::Host(host) = &self.role else {
                return Ok(());
            };
            let (sources, fds): (Vec<_>, Vec<_>) = host.sources(sockets).into_iter().unzip();
            // Other threads close descriptors too: without one to spare it looks again.
            let until = host.admission.is_deaf().then(|| Instant::now() + REST);
            // Fails if the process has lowered its limit of descriptors below what we have.
            let Ok(ready) = poll(&fds, until) else {
                return self.give_up();
            };
            if ready.iter().any(|r| r.invalid) || !sockets.is_whole() {
                return self.give_up();
            }
            let all = sources.into_iter().zip(ready);
            let happened: Vec<_> = all.filter(|(_, r)| r.any()).map(|(s, _)| s).collect();
            let prompted = happened.iter().any(|s| matches!(s, Source::Prompt));
            if prompted && sockets.is_told_to_stop() {
                return Err(Stop::Told);
            }
            let acted = self.attend(|thread, member| match &mut thread.role {
                Role::Host(host) => {
                    host.act(member, sockets, &happened) && host_of(member) == me(member)
                }
                Role::Member(_) => true,
            });
            if !acted.ok_or(Stop::Told)? {
                return self.give_up();
            }
            if self.hand_over(sockets)? {
                return Ok(());
            }
        }
    }

    /// Hands the role to the member that has asked for it, if one has, and watches it from then on;
    /// whether it did.
    ///
    /// Newcomers that have not greeted, and clients that wait, come again, as after a host's death.
    fn hand_over(&mut self, sockets: &HostSockets) -> Result<bool, Stop> {
        let asked = matches!(&self.role, Role::Host(host) if host.heir.is_some());
        // Relaxed: of two that prefer to host, the one that does goes on.
        if !asked || sockets.prefers.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let passed = self.attend(|thread, member| {
            let Role::Host(host) = &mut thread.role else {
                return false;
            };
            let Some(heir) = host.take_heir(member) else {
                return false;
            };
            host.copy_brokers.stop();
            let (domain, space) = (member.domain.as_str(), heir.space);
            tracing::info!(domain, space, "the host's role is handed to another member");
            pass(member, heir)
        });
        if !passed.ok_or(Stop::Told)? {
            return Ok(false);
        }
        // Only now the connections close, the heir's too: a member that sees that finds the word changed.
        let role = std::mem::replace(&mut self.role, Role::Member(Control::default()));
        if let Role::Host(host) = role {
            for watched in host.watched {
                drop(watched);
                portolan_shm::mark!("host.passed_on");
            }
        }
        Ok(true)
    }

    /// Ends all copies for importers, before another member can host.
    pub(super) fn stop_copy_brokers(&mut self) {
        if let Role::Host(host) = &mut self.role {
            host.copy_brokers.stop();
        }
    }

    /// Our descriptors are gone: lets the others see that the host role is vacant.
    fn give_up(&mut self) -> Result<(), Stop> {
        let resigned = self.attend(|thread, member| {
            thread.stop_copy_brokers();
            resign(member);
        });
        resigned.ok_or(Stop::Told)?;
        // Closes the connections, after the role is vacant.
        self.role = Role::Member(Control::default());
        Err(Stop::Disconnected)
    }

    /// Leaves as host.
    pub(super) fn leave_as_host(&mut self, member: &Member) {
        let role = std::mem::replace(&mut self.role, Role::Member(Control::default()));
        if let (Role::Host(host), Some(sockets)) = (role, &self.shared.sockets) {
            host.leave(member, sockets);
        }
    }
}
