//! A member sleeps, in its membership thread, until the host is dead or gone, and succeeds it.
//!
//! ```text
//!            pidfd readable, or host word vacant: compare-exchange
//! watching -----------------------------------------------------> host
//!    ^  |                                            | lost, or handed to a member that asked
//!    |  +-- connection ended, host alive --> return  |
//!    +---------- host answers: known <----------+----+
//! ```
//!
//! A connection that ends does not mean a death. The host has left, has lost its descriptors, or
//! has a successor. So the member loads the host word and makes itself known again. Until the new
//! host has answered it polls the word by the clock; nothing else here is timed.

use super::Role;
use super::admit::{Admission, Event, REST};
use super::host::{self, Host, region_is_ours};
use super::membership_thread::{MembershipThread, Stop};
use crate::Disowned;
use crate::directory::Offers;
use crate::space::LeaveError;
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::entry::{self, Owner};
use crate::space::host::{host_of, me, trusts_host};
use crate::space::host_connection::HostSockets;
use portolan_abi::control::{Decline, FromHost, FromMember, WINDOW};
use portolan_abi::hello::Return;
use portolan_abi::space::{HostWord, SpacePhase};
use portolan_shm::atomic::Ordering;
use portolan_sys::process::{PidFd, poll};
use portolan_sys::socket::{self, SocketError};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first and the longest pause between two looks at the host word, while no host
/// has answered.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));
/// How long a connection to a full backlog may take at one time.
const CONNECT: Duration = Duration::from_millis(50);

/// A member's connection to its host.
pub(super) struct Control {
    connection: Option<Descriptor>,
    /// The member that has answered on it.
    known: Option<HostWord>,
    /// The member that hosted when we last looked.
    host: HostWord,
    /// Whether it may have a descriptor of our memory.
    trusted: bool,
    pause: Option<Duration>,
    /// Offers and withdrawals that it has not answered.
    unanswered: u32,
    /// It was asked for its role.
    asked: bool,
    /// Newcomers that come to us because the host does not answer them.
    admission: Admission,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            connection: None,
            known: None,
            host: HostWord::VACANT,
            trusted: false,
            pause: None,
            unanswered: 0,
            asked: false,
            admission: Admission::default(),
        }
    }
}

/// The host, as a member sees it.
enum View {
    /// We do.
    Mine,
    /// No member hosts, or a dead one: it must be succeeded.
    Free(HostWord),
    /// A living member hosts.
    Alive(HostWord, Descriptor<PidFd>),
    /// A member hosts, but we have no descriptor to watch it with.
    Unclear,
}

/// Looks at the host word, and whether who it names lives.
fn view(member: &Member) -> View {
    loop {
        let word = host_of(member);
        if word == me(member) {
            return View::Mine;
        }
        if word == HostWord::VACANT {
            return View::Free(word);
        }
        let Some(entry) = member.tables().spaces.get(usize::from(word.space)) else {
            return View::Unclear;
        };
        let owner = entry::owner(entry);
        // The entry may be another's by now, if the host was succeeded meanwhile.
        if host_of(member) == word {
            return match owner {
                Owner::Alive(pidfd) => View::Alive(word, Descriptor::new(pidfd)),
                Owner::Dead => View::Free(word),
                Owner::Unknown(_) => View::Unclear,
            };
        }
    }
}

/// Whether who hosts runs another program by now.
fn has_execed(member: &Member, word: HostWord) -> bool {
    let entry = member.tables().spaces.get(usize::from(word.space));
    let execed = entry.is_some_and(|e| entry::has_execed(e, member.region.base()));
    // The entry may be another's by now.
    execed && host_of(member) == word
}

/// Takes the host word from `from`: **the commit point of a takeover** (D2).
fn succeed(member: &Member, from: HostWord) -> bool {
    portolan_shm::mark!("host.contest");
    let word = &member.tables().header.host.word;
    // AcqRel: we see what the last host did; the next host sees what we do.
    let won = word.compare_exchange(
        from.pack(),
        me(member).pack(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    portolan_shm::mark!("host.contested");
    won.is_ok()
}

impl Control {
    /// The connection over which the host has welcomed us.
    pub(super) fn welcomed(connection: Descriptor, by: HostWord) -> Self {
        Self {
            connection: Some(connection),
            known: Some(by),
            host: by,
            ..Self::default()
        }
    }

    /// Another member than the host has welcomed us: makes us known to the host. It wakes for
    /// that when it goes on, whatever has become of us.
    pub(super) fn admitted(member: &Member, sockets: &HostSockets) -> Self {
        let mut control = Self::default();
        control.connect(member, sockets, host_of(member));
        portolan_shm::mark!("join.returning");
        control
    }

    /// Tells the host that we are live, for its information: the status counts.
    pub(super) fn tell_arrived(&self) {
        if let Some(connection) = self.connection.as_ref().filter(|_| self.known.is_some()) {
            // It may be dead by now.
            let arrived = FromMember::Arrived.encode();
            let _ = socket::send_by(connection, &arrived, &[], Some(Instant::now()));
        }
    }

    /// Until when to sleep: for ever, once the host has answered.
    fn deadline(&mut self) -> Option<Instant> {
        if self.known.is_some() {
            return None;
        }
        let (first, longest) = PAUSES;
        let pause = self.pause.map_or(first, |p| (p * 2).min(longest));
        self.pause = Some(pause);
        Some(Instant::now() + pause)
    }

    /// Makes us known to the current host, or the next one, which answers in its own time.
    fn connect(&mut self, member: &Member, sockets: &HostSockets, host: HostWord) {
        self.host = host;
        self.trusted = trusts_host(member, Some(host));
        if self.known.is_some_and(|known| known != host) {
            // It leads to the former host; another process may hold it open.
            self.lose();
        }
        if self.connection.is_some() {
            // Answered, or still waiting for the member that hosts when it is accepted.
            return;
        }
        let Ok(connection) = socket::connect_by(&sockets.address, Some(Instant::now() + CONNECT))
        else {
            return;
        };
        let connection = Descriptor::new(connection);
        let back = Return {
            space: member.space,
            incarnation: member.incarnation,
        };
        let ours = socket::peer(&connection).is_ok_and(|p| p.uid == sockets.owner);
        if ours && socket::send_by(&connection, &back.encode(), &[], Some(Instant::now())).is_ok() {
            self.connection = Some(connection);
        }
    }

    /// Asks the host to return what we held, once on each connection.
    fn tell_leaving(&mut self, told: bool) -> bool {
        match &self.connection {
            Some(connection) if !told => {
                let now = Some(Instant::now());
                socket::send_by(connection, &FromMember::Leaving.encode(), &[], now).is_ok()
            }
            Some(_) => told,
            None => false,
        }
    }

    /// Tells the host what we offer, as much as it has not been told.
    fn announce(&mut self, offers: &Offers) {
        while self.known.is_some() && self.unanswered < WINDOW {
            let Some(record) = offers.next_record() else {
                return;
            };
            let delegated = record.delegated().filter(|_| self.trusted);
            if let Some((number, delegation, memory)) = delegated {
                let said = FromMember::Delegate(number, delegation);
                self.say_with(&said, &memory.descriptors());
                portolan_shm::mark!("offer.delegated");
            }
            self.say(&record.said);
            self.unanswered += 1;
            portolan_shm::mark!("offer.announced");
        }
    }

    /// Asks the host for its role, once on each connection, if this process is to host.
    fn ask_for_role(&mut self, sockets: &HostSockets) {
        // Acquire: pairs with the Release before the prompt.
        if self.known.is_some() && !self.asked && sockets.prefers.load(Ordering::Acquire) {
            self.asked = true;
            self.say(&FromMember::Succeeds);
            portolan_shm::mark!("host.asking");
        }
    }

    /// Says something to the host. There is room for it, unless it does not read what it
    /// owes an answer to.
    fn say(&mut self, record: &FromMember) {
        self.say_with(record, &[]);
    }

    fn say_with(&mut self, record: &FromMember, fds: &[BorrowedFd<'_>]) {
        let Some(connection) = &self.connection else {
            return;
        };
        if socket::send_by(connection, &record.encode(), fds, Some(Instant::now())).is_err() {
            self.lose();
        }
    }

    /// Reads what the host has sent, and notices when it has hung up.
    fn listen(&mut self, offers: &Offers) {
        loop {
            let Some(connection) = &self.connection else {
                return;
            };
            let mut buffer = [0; FromHost::BYTES];
            let mut received = match socket::try_receive(connection, &mut buffer, 1) {
                Ok(None) => return,
                Ok(Some(received)) => received,
                Err(SocketError::DescriptorsExhausted { .. }) => {
                    // The client's connection has ended with that, so it asks again.
                    self.say(&FromMember::Received);
                    continue;
                }
                // Closed: begin again.
                Err(_) => return self.lose(),
            };
            let record = buffer
                .get(..received.len)
                .and_then(|b| FromHost::decode(b).ok());
            match record {
                Some(FromHost::Back) => {
                    self.known = Some(self.host);
                    self.pause = None;
                    self.unanswered = 0;
                    offers.reannounce();
                }
                Some(FromHost::Done { number }) => self.answered(offers, number, Ok(())),
                Some(FromHost::Declined { number, why }) => self.answered(offers, number, Err(why)),
                Some(FromHost::HandOff { number }) => {
                    portolan_shm::mark!("connect.received");
                    if let Some(connection) = received.fds.pop() {
                        offers.take_handoff(number, Descriptor::new(connection));
                    }
                    self.say(&FromMember::Received);
                }
                // For leaving, where the status says the same.
                Some(FromHost::Gone) => {}
                // An answer that is none: begin again.
                None => return self.lose(),
            }
        }
    }

    fn answered(&mut self, offers: &Offers, number: u32, answer: Result<(), Decline>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        offers.answered(number, answer);
    }

    fn lose(&mut self) {
        self.connection = None;
        self.known = None;
        self.unanswered = 0;
        self.asked = false;
    }

    /// Sleeps until the host is dead, says something, or hangs up, until newcomers come to us, or
    /// until prompted, and fails if that is to stop. What happened to newcomers; none come to a
    /// member that is leaving, and takes no prompts.
    fn sleep(
        &mut self,
        offers: &Offers,
        prompts: Option<&HostSockets>,
        pidfd: Option<&Descriptor<PidFd>>,
        until: Option<Instant>,
    ) -> Result<Vec<Event>, Stop> {
        let prompt = prompts.map(|sockets| sockets.prompt.as_fd());
        let connection = self.connection.as_ref().map(AsFd::as_fd);
        let pidfd = pidfd.map(AsFd::as_fd);
        let mut fds: Vec<_> = [prompt, connection, pidfd].into_iter().flatten().collect();
        let others = fds.len();
        let newcomers = prompts.map_or_else(Vec::new, |sockets| self.admission.sources(sockets));
        fds.extend(newcomers.iter().map(|(_, fd)| *fd));
        let until = if self.admission.is_deaf() {
            let rested = Instant::now() + REST;
            Some(until.map_or(rested, |until| until.min(rested)))
        } else {
            until
        };
        // An error (no memory) is met again at the next turn; meanwhile we look around.
        let ready = poll(&fds, until).unwrap_or_default();
        if ready.iter().any(|r| r.invalid) {
            return Err(Stop::Disconnected);
        }
        let prompted = ready.first().is_some_and(|r| r.readable);
        if prompts
            .filter(|_| prompted)
            .is_some_and(HostSockets::is_told_to_stop)
        {
            return Err(Stop::Told);
        }
        let events = newcomers.iter().zip(ready.iter().skip(others));
        let happened = events.filter(|(_, ready)| ready.any());
        let happened = happened.map(|((event, _), _)| *event).collect();
        self.admission.listen_again();
        self.listen(offers);
        Ok(happened)
    }
}

impl MembershipThread {
    /// Watches the host until it has to be succeeded, and we have done it.
    pub(super) fn watch(&mut self) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let sockets = shared.sockets.as_ref().ok_or(Stop::Told)?;
        loop {
            let turn = self.attend(|thread, member| thread.turn(member, sockets));
            let pidfd = match turn.ok_or(Stop::Told)?? {
                Turn::Host => return Ok(()),
                Turn::Again => continue,
                Turn::Sleep(pidfd) => pidfd,
            };
            if let Role::Member(control) = &mut self.role {
                control.announce(&self.offers);
                control.ask_for_role(sockets);
                let until = control.deadline();
                let newcomers =
                    control.sleep(&self.offers, Some(sockets), pidfd.as_ref(), until)?;
                if !newcomers.is_empty() {
                    let admitted =
                        self.attend(|thread, member| thread.admit(member, sockets, &newcomers));
                    admitted.ok_or(Stop::Told)??;
                }
            }
        }
    }

    /// Deals with newcomers whom the host has not answered.
    fn admit(
        &mut self,
        member: &Member,
        sockets: &HostSockets,
        newcomers: &[Event],
    ) -> Result<(), Stop> {
        let Role::Member(control) = &mut self.role else {
            return Ok(());
        };
        let able = sockets.is_whole() && region_is_ours(member);
        if able && control.admission.act(member, sockets, newcomers) {
            Ok(())
        } else {
            Err(Stop::Disconnected)
        }
    }

    /// Leaves as a member: the host returns what we held.
    pub(super) fn leave_as_member(&mut self, member: &Member) -> Result<(), LeaveError> {
        let shared = Arc::clone(&self.shared);
        let us = me(member);
        let entry = member.tables().spaces.get(usize::from(us.space));
        let (Some(sockets), Some(entry)) = (&shared.sockets, entry) else {
            return Ok(());
        };
        portolan_shm::mark!("leave.begin");
        entry::step(entry, us.incarnation, SpacePhase::Live, SpacePhase::Dead);
        portolan_shm::mark!("leave.dead");
        if let Role::Member(control) = &mut self.role {
            control.admission.end(member);
        }
        let deadline = Instant::now() + sockets.patience;
        let mut told = false;
        loop {
            let status = entry::status(entry);
            if status.phase == SpacePhase::Free || status.incarnation != us.incarnation {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let waited = sockets.patience;
                return Err(LeaveError::Unanswered { waited });
            }
            let turn = self.turn(member, sockets);
            let Role::Member(control) = &mut self.role else {
                self.leave_as_host(member);
                return Ok(());
            };
            let pidfd = match turn {
                Ok(Turn::Sleep(pidfd)) => pidfd,
                Ok(Turn::Again | Turn::Host) => continue,
                Err(_) => return Err(LeaveError::Disowned(Disowned::Disconnected)),
            };
            told = control.tell_leaving(told);
            // Look at the status by the clock, too: a new host may return us unasked.
            control.known = None;
            let until = control.deadline().unwrap_or(deadline).min(deadline);
            let slept = control.sleep(&self.offers, None, pidfd.as_ref(), Some(until));
            if slept.is_err() {
                return Err(LeaveError::Disowned(Disowned::Disconnected));
            }
        }
    }

    /// One look at the host word, and what it asks for.
    fn turn(&mut self, member: &Member, sockets: &HostSockets) -> Result<Turn, Stop> {
        let Role::Member(control) = &mut self.role else {
            return Ok(Turn::Host);
        };
        let vacant = match view(member) {
            View::Mine => None,
            View::Free(word) => Some(word),
            View::Alive(word, pidfd) => {
                if control.known == Some(word) || !has_execed(member, word) {
                    control.connect(member, sockets, word);
                    return Ok(Turn::Sleep(Some(pidfd)));
                }
                // It lives as another program, and does not answer.
                Some(word)
            }
            View::Unclear => {
                control.known = None;
                return Ok(Turn::Sleep(None));
            }
        };
        if let Some(word) = vacant {
            // Without descriptors we could not host: that is left to the others.
            if !sockets.is_whole() || !region_is_ours(member) {
                return Err(Stop::Disconnected);
            }
            if !succeed(member, word) {
                return Ok(Turn::Again);
            }
        }
        let admission = std::mem::take(&mut control.admission);
        if let Ok(host) = Host::succeed(member, admission) {
            self.role = Role::Host(Box::new(host));
            return Ok(Turn::Host);
        }
        // We have no descriptors to watch the others with. Another member may have, and is not asked for
        // the role again.
        sockets.prefers.store(false, Ordering::Relaxed);
        host::resign(member);
        control.known = None;
        Ok(Turn::Sleep(None))
    }
}

/// What to do after a look at the host word.
enum Turn {
    /// We host.
    Host,
    /// Look again.
    Again,
    /// Sleep until something happens to this process.
    Sleep(Option<Descriptor<PidFd>>),
}
