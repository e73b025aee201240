//! A process that joins a domain finds its host, or becomes the first member.
//!
//! The process that binds *and listens* first creates the domain (D4). Between the two steps, a
//! connection is refused and the address is in use: newcomers look again. A newcomer closes a
//! connection that gets no answer and makes another, because the host may have died. After a second
//! without an answer newcomers connect to the fallback socket, where every member admits.

use super::addresses;
use super::create::{self, FIRST};
use super::handoff::open_to_all;
use super::host::Host;
use super::place::place;
use super::watch::Control;
use super::{Role, membership_thread};
use crate::proxy::span_by_node;
use crate::space::Builder;
use crate::space::JoinError;
use crate::space::Member;
use crate::space::answer::{check, check_owner, garbled, no_answer, refused};
use crate::space::descriptor::Descriptor;
use crate::space::drain::Drains;
use crate::space::entry::{self, Owner};
use crate::space::guard::Guard;
use crate::space::handshake::{Asked, Ended};
use crate::space::host::host_of;
use crate::space::host_connection::{HostConnection, HostSockets, lock_directory};
use crate::space::region::Region;
use crate::space::{Domain, Parts, protection_of};
use crate::survey::ABSENCE;
use crate::{Protection, port};
use portolan_abi::hello::{Hello, Welcome};
use portolan_abi::limits::MAX_NAME;
use portolan_abi::region::Geometry;
use portolan_abi::space::{HostWord, SpacePhase};
use portolan_proto::handshake::Failure;
use portolan_sys::memory;
use portolan_sys::process::{EventFd, poll};
use portolan_sys::socket::{self, Address, SocketError};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Newcomers that may wait while the host is busy, or while there is none.
const BACKLOG: u32 = 4096;
/// How long the first connection waits for an answer. Each one more waits twice as long,
/// because a host may be busy returning what a dead space held, up to the second value.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// How long the host may take to answer before newcomers turn to the other members.
const GRACE: Duration = Duration::from_secs(1);
/// Pause before looking again at an address that is neither listening nor free.
const PAUSE: Duration = Duration::from_millis(2);

impl Domain {
    /// Joins the domain `name` of this process's user, and creates it if it is not there.
    ///
    /// # Errors
    ///
    /// [`JoinError`], after 5 seconds at the latest.
    pub fn join(name: &str) -> Result<Self, JoinError> {
        Self::builder(name).join()
    }

    /// A domain that only this process is in, without socket and thread. It takes none of the addresses
    /// that the machine's domains share. For tests.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn private() -> Result<Self, JoinError> {
        Self::builder("private").private()
    }
}

impl Builder {
    /// Joins the domain, and creates it if it is not there, unless [`create`](Self::create)
    /// forbids that.
    ///
    /// A process has one membership in a domain: joining again gives another handle of it.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; [`JoinError::NotRunning`] if there is no such domain, and it is not to be
    /// created.
    pub fn join(self) -> Result<Domain, JoinError> {
        self.check()?;
        let deadline = Instant::now() + self.deadline;
        let domain = join(&self, deadline)?;
        if self.spanning {
            // The node joins by itself, so nothing is held here that it needs.
            span_by_node(&self, &domain, deadline)?;
        }
        Ok(domain)
    }

    /// Creates a domain that only this process is in: no socket, no thread. For tests.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn private(self) -> Result<Domain, JoinError> {
        self.check()?;
        private(&self)
    }
}

/// Joins, or creates.
fn join(settings: &Builder, deadline: Instant) -> Result<Domain, JoinError> {
    let address = settings.address();
    let place = place(&address);
    let search = Search {
        settings,
        fallback: settings.fallback_address(),
        address,
        deadline,
        absent_since: Cell::new(None),
    };
    let _turn = place.enter(deadline).ok_or_else(|| search.timed_out())?;
    let known = place.state().member.clone();
    if let Some(member) = known.as_ref().and_then(|(member, _)| member.upgrade()) {
        check_protection(settings, member.protection)?;
        if settings.always_open && !member.always_open() {
            return Err(JoinError::GuardedAlready);
        }
        return Ok(Domain::new(member));
    }
    if let Some((_, departure)) = known {
        // Its last handle is being dropped: its addresses are free afterwards.
        departure.gone_by(deadline);
    }
    let domain = search.run()?;
    place.state().member = Some((
        Arc::downgrade(domain.member()),
        domain.member().host_connection.settled().departure(),
    ));
    Ok(domain)
}

/// A domain of this process alone.
fn private(settings: &Builder) -> Result<Domain, JoinError> {
    let region = create::region(settings, None)?;
    let member = member(settings, region, FIRST, HostConnection::new(None))?;
    Ok(Domain::new(Arc::new(member)))
}

/// The membership of space `us` in a region that is mapped.
fn member(
    settings: &Builder,
    region: Region,
    us: HostWord,
    host_connection: HostConnection,
) -> Result<Member, JoinError> {
    let offset = region.tables().geometry.threads + u64::from(us.space) * Geometry::THREAD_ROW;
    memory::allocate(region.fd(), offset, Geometry::THREAD_ROW).map_err(JoinError::Memory)?;
    for line in region.tables().thread_lines(us.space) {
        line.wipe();
    }
    let protection = protection_of(region.tables().header);
    let guard = match protection {
        Protection::Guarded if !settings.always_open => {
            Some(Guard::new(&region, us.space, us.incarnation)?)
        }
        _ => None,
    };
    Ok(Member {
        guard,
        own_words: region.own_words(us.space),
        region,
        space: us.space,
        incarnation: us.incarnation,
        number: Member::next_number(),
        domain: settings.name.clone(),
        protection,
        cache: Mutex::default(),
        growth: Mutex::default(),
        relief: port::RELIEF,
        drains: Drains::default(),
        closing: Mutex::default(),
        parts: Parts::default(),
        host_connection,
    })
}

fn check_protection(settings: &Builder, found: Protection) -> Result<(), JoinError> {
    let name = |p| match p {
        Protection::Guarded => "guarded",
        _ => "trusted",
    };
    match settings.protection {
        Some(wanted) if wanted != found => Err(JoinError::ProtectionMismatch {
            wanted: name(wanted),
            found: name(found),
        }),
        _ => Ok(()),
    }
}

/// One call of `join`.
struct Search<'s> {
    settings: &'s Builder,
    /// Where the host answers.
    address: Address,
    /// Where every member does.
    fallback: Address,
    deadline: Instant,
    /// When no process was first found to listen, if none has been met since.
    absent_since: Cell<Option<Instant>>,
}

/// How a search has gone so far.
struct Progress {
    /// How long to wait for the next answer.
    patience: Duration,
    /// When we first connected to a host that has not answered.
    unanswered: Option<Instant>,
    /// Whether we have turned to the other members.
    at_fallback: bool,
}

impl Progress {
    const BEGUN: Self = Self {
        patience: PATIENCE.0,
        unanswered: None,
        at_fallback: false,
    };

    /// Where to ask next is the fallback socket; until when to wait there, or at the other.
    fn next(&mut self, deadline: Instant) -> Instant {
        let now = Instant::now();
        let turns = self.unanswered.map(|since| since + GRACE);
        if !self.at_fallback && turns.is_some_and(|at| now >= at) {
            self.at_fallback = true;
            self.patience = PATIENCE.0;
        }
        let until = deadline.min(now + self.patience);
        match turns {
            Some(at) if !self.at_fallback => until.min(at),
            _ => until,
        }
    }

    /// A process has been asked.
    fn asked(&mut self) {
        self.unanswered.get_or_insert_with(Instant::now);
        self.patience = (self.patience * 2).min(PATIENCE.1);
    }
}

/// Why an attempt led to nothing.
enum Miss {
    /// Try again at once.
    Again,
    /// Try again after a pause.
    Later,
    /// No use.
    Failed(JoinError),
}

impl From<JoinError> for Miss {
    fn from(error: JoinError) -> Self {
        Self::Failed(error)
    }
}

impl Search<'_> {
    fn run(&self) -> Result<Domain, JoinError> {
        let mut progress = Progress::BEGUN;
        loop {
            match self.attempt(&mut progress) {
                Ok(domain) => return Ok(domain),
                Err(Miss::Failed(error)) => return Err(error),
                Err(Miss::Again) => {}
                Err(Miss::Later) => std::thread::sleep(PAUSE),
            }
            if Instant::now() >= self.deadline {
                return Err(self.timed_out());
            }
        }
    }

    fn timed_out(&self) -> JoinError {
        let Builder { owner, name, .. } = self.settings;
        if self.absent_since.get().is_some() {
            return self.not_running();
        }
        let occupant = socket::occupant(&self.address);
        match occupant {
            Some(found) if !found.listens => JoinError::Occupied {
                socket: self.address.to_string(),
                holder: found.holder,
            },
            None if *owner != self.settings.user => JoinError::Absent {
                name: name.clone(),
                owner: *owner,
            },
            found => JoinError::TimedOut {
                waited: self.settings.deadline,
                holder: found.and_then(|found| found.holder),
            },
        }
    }

    /// Another process has the fallback socket's name, and keeps it.
    fn occupied(&self) -> JoinError {
        JoinError::Occupied {
            socket: self.fallback.to_string(),
            holder: socket::occupant(&self.fallback).and_then(|found| found.holder),
        }
    }

    fn attempt(&self, progress: &mut Progress) -> Result<Domain, Miss> {
        let until = progress.next(self.deadline);
        let address = if progress.at_fallback {
            &self.fallback
        } else {
            &self.address
        };
        match socket::connect_by(address, Some(until)) {
            Ok(connection) => {
                self.absent_since.set(None);
                progress.asked();
                self.greet(connection, until)
            }
            Err(SocketError::Refused { .. } | SocketError::NotFound { .. }) => {
                let gone = progress.at_fallback;
                *progress = Progress::BEGUN;
                if gone { Err(Miss::Later) } else { self.found() }
            }
            // The host is busy or stopped, and many wait for it.
            Err(SocketError::BacklogFull { .. }) => {
                progress.asked();
                Err(Miss::Again)
            }
            Err(error) => Err(JoinError::socket(error).into()),
        }
    }

    /// No process listens there: listens, and creates the domain.
    fn found(&self) -> Result<Domain, Miss> {
        if !self.settings.create {
            return Err(self.absent());
        }
        if self.settings.owner != self.settings.user {
            return Err(Miss::Later);
        }
        portolan_shm::mark!("join.before_listen");
        let listener = match self.listen(&self.address)? {
            Ok(listener) => Descriptor::new(listener),
            // Another process was faster, and may be about to listen.
            Err(SocketError::AddressInUse { .. }) => return Err(Miss::Later),
            Err(error) => return Err(JoinError::socket(error).into()),
        };
        portolan_shm::mark!("join.listening");
        let created = self.listen_for_all().and_then(|fallback| {
            portolan_shm::mark!("join.fallback");
            self.create(listener, fallback)
        });
        if created.is_err() {
            for address in [&self.address, &self.fallback] {
                if let Address::Path(path) = address {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
        created.map_err(Miss::Failed)
    }

    /// No process listens there, and we must not: there is no such domain, if that stays so.
    fn absent(&self) -> Miss {
        let since = self.absent_since.get().unwrap_or_else(Instant::now);
        self.absent_since.set(Some(since));
        if since.elapsed() < ABSENCE {
            return Miss::Later;
        }
        self.not_running().into()
    }

    fn not_running(&self) -> JoinError {
        JoinError::NotRunning {
            name: self.settings.name.clone(),
            owner: self.settings.owner,
        }
    }

    /// Listens where every member answers. We listen at the other address already, so no process
    /// but the members that had it last, and are ending, can be in the way; or a stranger.
    fn listen_for_all(&self) -> Result<Descriptor, JoinError> {
        loop {
            match self.listen(&self.fallback)? {
                Ok(listener) => return Ok(Descriptor::new(listener)),
                Err(SocketError::AddressInUse { .. }) if Instant::now() < self.deadline => {
                    std::thread::sleep(PAUSE);
                }
                Err(SocketError::AddressInUse { .. }) => return Err(self.occupied()),
                Err(error) => return Err(JoinError::socket(error)),
            }
        }
    }

    fn listen(&self, address: &Address) -> Result<Result<OwnedFd, SocketError>, JoinError> {
        match address {
            Address::Abstract(_) => Ok(socket::listen(address, BACKLOG)),
            Address::Path(path) => self.replace(address, path),
        }
    }

    /// Listens at a path. A file without a listener was left by a killed process.
    fn replace(
        &self,
        address: &Address,
        path: &Path,
    ) -> Result<Result<OwnedFd, SocketError>, JoinError> {
        let refused = |error| JoinError::directory(path, error);
        let taken = || SocketError::AddressInUse {
            address: address.clone(),
        };
        // Only the holder of the lock binds, listens, or removes.
        let Some(_directory) = lock_directory(path, self.deadline).map_err(refused)? else {
            return Ok(Err(taken()));
        };
        match socket::connect_by(address, Some(Instant::now())) {
            Err(SocketError::NotFound { .. }) => {}
            Err(SocketError::Refused { .. }) => {
                std::fs::remove_file(path).map_err(refused)?;
            }
            // Another process listens there by now.
            _ => return Ok(Err(taken())),
        }
        let listener = socket::listen(address, BACKLOG);
        if let Err(SocketError::Io { source, .. }) = listener {
            return Err(refused(source));
        }
        let Builder { users, groups, .. } = self.settings;
        if listener.is_ok() && !(users.is_empty() && groups.is_empty()) {
            open_to_all(path).map_err(|e| JoinError::system("let others use the socket", e))?;
        }
        Ok(listener)
    }

    fn create(&self, listener: Descriptor, fallback: Descriptor) -> Result<Domain, JoinError> {
        let host = Host::first().map_err(|e| JoinError::system("make event descriptors", e))?;
        let sockets = self.sockets(listener, fallback)?;
        let region = create::region(self.settings, Some(&self.settings.name))?;
        let host_connection = HostConnection::new(Some(sockets));
        let member = Arc::new(member(self.settings, region, FIRST, host_connection)?);
        start(&member, Role::Host(Box::new(host)))?;
        portolan_shm::mark!("join.hosting");
        let (domain, space) = (member.domain.as_str(), member.space);
        tracing::info!(
            domain,
            space,
            "this process has created the domain, and hosts it"
        );
        Ok(Domain::new(member))
    }

    fn sockets(
        &self,
        listener: Descriptor,
        fallback: Descriptor,
    ) -> Result<HostSockets, JoinError> {
        let prompt = EventFd::new().map_err(|e| JoinError::system("make event descriptors", e))?;
        Ok(HostSockets {
            fallback,
            listener,
            prompt: Descriptor::new(prompt),
            stopping: AtomicBool::new(false),
            prefers: AtomicBool::new(false),
            address: self.address.clone(),
            fallback_address: self.fallback.clone(),
            owner: self.settings.owner,
            patience: self.settings.deadline,
        })
    }

    /// Asks the process that listens there to admit us.
    fn greet(&self, connection: OwnedFd, until: Instant) -> Result<Domain, Miss> {
        let connection = Descriptor::new(connection);
        check_owner(&connection, &self.address, self.settings.owner)?;
        let mut name = [0; MAX_NAME + 1];
        let called = self.settings.space_name_or_default();
        for (to, from) in name.iter_mut().take(MAX_NAME).zip(called.bytes()) {
            *to = from;
        }
        let (hello, by) = (Hello { name }, Some(until));
        let answered =
            Asked::send(&connection, &hello, by, by).and_then(|asked| asked.wait(&connection));
        portolan_shm::mark!("join.answered");
        match answered {
            Ok((welcome, fds)) => self.enter(connection, welcome, fds),
            // The host has died, is busy, or is about to be succeeded.
            Err(Ended::Failed(Failure::Unanswered)) => Err(Miss::Again),
            Err(Ended::Failed(Failure::HungUp)) => Err(Miss::Later),
            Err(Ended::Failed(Failure::Refused(refusal))) => {
                Err(refused(refusal, &self.address, self.settings.owner).into())
            }
            Err(Ended::Failed(Failure::Garbled(why))) => Err(no_answer(why).into()),
            Err(Ended::Socket(error)) => Err(JoinError::socket(error).into()),
        }
    }

    /// We are welcome: maps the region, and becomes a member by changing our own status.
    fn enter(
        &self,
        connection: Descriptor,
        welcome: Welcome,
        fds: Vec<OwnedFd>,
    ) -> Result<Domain, Miss> {
        let count = fds.len() as u64;
        let Ok([file, listener, fallback, reservation]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(garbled("number of descriptors", count, 4).into());
        };
        let sockets = self.sockets(Descriptor::new(listener), Descriptor::new(fallback))?;
        let region = open(file, reservation, &welcome)?;
        portolan_shm::mark!("join.mapped");
        check_protection(self.settings, protection_of(region.tables().header))?;
        let us = HostWord {
            space: welcome.space,
            incarnation: welcome.incarnation,
        };
        // Made before we are live, so that whatever fails here leaves nothing behind.
        let member = Arc::new(member(
            self.settings,
            region,
            us,
            HostConnection::new(Some(sockets)),
        )?);
        if !sees_host(&member, &connection) {
            return Err(JoinError::OtherNamespace.into());
        }
        // Before we are live: a process that dies as a member is known to the host, or about to be
        // (D6).
        let control = match member.host_connection.sockets() {
            Some(sockets) if !welcome.by_host => Control::admitted(&member, sockets),
            _ => Control::welcomed(connection, host_of(&member)),
        };
        let entry = member.tables().spaces.get(usize::from(us.space));
        let joined = entry
            .is_some_and(|e| entry::step(e, us.incarnation, SpacePhase::Joining, SpacePhase::Live));
        if !joined {
            // The host has taken the admission back; perhaps it found us too slow.
            return Err(Miss::Again);
        }
        portolan_shm::mark!("join.live");
        control.tell_arrived();
        portolan_shm::mark!("join.arrived");
        let started = start(&member, Role::Member(control));
        if let (Err(_), Some(entry)) = (&started, entry) {
            // The connection has closed with the role: the host returns us to free.
            entry::step(entry, us.incarnation, SpacePhase::Live, SpacePhase::Dead);
        }
        started?;
        let (domain, space) = (member.domain.as_str(), member.space);
        tracing::info!(domain, space, "this process has joined the domain");
        Ok(Domain::new(member))
    }
}

fn start(member: &Arc<Member>, role: Role) -> Result<(), JoinError> {
    let started = membership_thread::start(&member.host_connection, member, role);
    started.map_err(|e| JoinError::system("start a thread", e))
}

/// Whether we can tell that the host dies: its process id means the same to us.
fn sees_host(member: &Member, connection: &Descriptor) -> bool {
    let word = host_of(member);
    let Some(entry) = member.tables().spaces.get(usize::from(word.space)) else {
        return true;
    };
    if !matches!(entry::owner(entry), Owner::Dead) {
        return true;
    }
    // It has died since it welcomed us, or is alive in another namespace. The dead have let
    // go of their connections before any process hears of their death.
    let ended = poll(&[connection.as_fd()], Some(Instant::now()));
    if ended.is_ok_and(|r| r.iter().any(|r| r.hangup)) || host_of(member) != word {
        return true;
    }
    // Or another one welcomed us, and is leaving; its successor has died. From within another
    // namespace we would not see who first listened, dead or alive.
    let sees_first = socket::peer(connection).is_ok_and(|first| first.pid != 0);
    sees_first && entry::is_gone(entry)
}

/// Maps a region that the host has sent.
fn open(file: OwnedFd, reservation: OwnedFd, welcome: &Welcome) -> Result<Region, JoinError> {
    let (fd, geometry) = check(file, welcome)?;
    let mapping = addresses::map(&fd, welcome.base, geometry.len).map_err(JoinError::map)?;
    Ok(Region::new(fd, mapping, geometry, reservation))
}
