//! Finding a domain's host, or becoming the first.
//!
//! Whoever binds *and listens* first creates the domain (D4). Between the two, a
//! connection is refused and the address is in use: look again. A connection that gets
//! no answer is closed and made anew, for its host may have died with it in hand.

use super::admit::OVERFLOW_ID;
use super::create::{self, FIRST};
use super::descriptor::Descriptor;
use super::error::JoinError;
use super::host::{Host, lock_directory};
use super::introduce::open_to_all;
use super::link::{Link, Rope, Settled};
use super::settings::Builder;
use super::space::{self, Owner};
use super::watch::Control;
use super::{Domain, Role};
use crate::Protection;
use crate::ending::Endings;
use crate::gate::Ferries;
use crate::guard::Guard;
use crate::member::Member;
use crate::region::Region;
use crate::sealed::Depot;
use crate::signal::Threads;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::control::FromMember;
use portolan_abi::hello::{Answer, Hello, Reason, Refusal, Welcome};
use portolan_abi::limits::MAX_NAME;
use portolan_abi::region::{Geometry, MAGIC};
use portolan_abi::space::{HostWord, SpacePhase};
use portolan_shm::atomic::Ordering;
use portolan_shm::region::Header;
use portolan_sys::memory;
use portolan_sys::process::{EventFd, poll};
use portolan_sys::socket::{self, Address, SocketError};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Newcomers that may wait while the host is busy, or while there is none.
const BACKLOG: u32 = 4096;
/// How long the first connection waits for an answer. Each one more waits twice as long,
/// because a host may be busy returning what a dead space held, up to the second value.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// Pause before looking again at an address that is neither listening nor free.
const PAUSE: Duration = Duration::from_millis(2);

/// A membership of this process: to be had again, or to be waited for while it ends.
type Place = Mutex<Option<(Weak<Member>, Settled)>>;

/// The place of this process's membership in the domain at `address`.
fn place(address: &Address) -> Arc<Place> {
    static PLACES: OnceLock<Mutex<HashMap<Address, Arc<Place>>>> = OnceLock::new();
    let places = PLACES.get_or_init(Mutex::default);
    let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(places.entry(address.clone()).or_default())
}

/// Joins, or creates.
pub(super) fn join(settings: &Builder) -> Result<Domain, JoinError> {
    let deadline = Instant::now() + settings.deadline;
    let address = settings.address();
    let place = place(&address);
    // Held while we join: the region has one address, so a process maps it once.
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((member, settled)) = &*place {
        if let Some(member) = member.upgrade() {
            check_protection(settings, member.protection)?;
            if settings.always_open && !member.always_open() {
                return Err(JoinError::GuardedAlready);
            }
            return Ok(Domain::new(member));
        }
        // Its last handle is being dropped: its addresses are free afterwards.
        settled.gone_by(deadline);
    }
    let domain = Search {
        settings,
        address,
        deadline,
    }
    .run()?;
    *place = Some((
        Arc::downgrade(domain.member()),
        domain.member().link.settled(),
    ));
    Ok(domain)
}

/// A domain of this process alone.
pub(super) fn private(settings: &Builder) -> Result<Domain, JoinError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only to tell them apart, so that they lie in different places.
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let place = format!("/{}/{number}", std::process::id());
    let region = create::region(settings, &place)?;
    let member = member(settings, region, FIRST, Link::new(None))?;
    Ok(Domain::new(Arc::new(member)))
}

/// The membership of space `us` in a region that is mapped.
fn member(
    settings: &Builder,
    region: Region,
    us: HostWord,
    link: Link,
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
        region,
        space: us.space,
        incarnation: us.incarnation,
        number: Member::next_number(),
        domain: settings.name.clone(),
        protection,
        cache: Mutex::default(),
        sources: Mutex::default(),
        reception: Mutex::default(),
        threads: Threads::default(),
        endings: Endings::default(),
        ferries: Ferries::default(),
        depot: Depot::default(),
        link,
    })
}

pub(super) fn protection_of(header: &Header) -> Protection {
    match header.protection.load(Ordering::Relaxed) {
        0 => Protection::Trusted,
        _ => Protection::Guarded,
    }
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
    address: Address,
    deadline: Instant,
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
        let mut patience = PATIENCE.0;
        loop {
            match self.attempt(&mut patience) {
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
        let holder = socket::holder(&self.address);
        if holder.is_none() && *owner != self.settings.user {
            return JoinError::Absent {
                name: name.clone(),
                owner: *owner,
            };
        }
        JoinError::TimedOut {
            waited: self.settings.deadline,
            holder,
        }
    }

    fn attempt(&self, patience: &mut Duration) -> Result<Domain, Miss> {
        let until = self.deadline.min(Instant::now() + *patience);
        match socket::connect_by(&self.address, Some(until)) {
            Ok(connection) => {
                *patience = (*patience * 2).min(PATIENCE.1);
                self.greet(connection, until)
            }
            Err(SocketError::Refused { .. } | SocketError::NotFound { .. }) => self.found(),
            // The host is busy or stopped, and many wait for it.
            Err(SocketError::BacklogFull { .. }) => Err(Miss::Again),
            Err(error) => Err(JoinError::socket(error).into()),
        }
    }

    /// Nobody listens there: listens, and creates the domain.
    fn found(&self) -> Result<Domain, Miss> {
        if self.settings.owner != self.settings.user {
            return Err(Miss::Later);
        }
        portolan_shm::mark!("join.before_listen");
        let listener = match &self.address {
            Address::Abstract(_) => socket::listen(&self.address, BACKLOG),
            Address::Path(path) => self.replace(path)?,
        };
        let listener = match listener {
            Ok(listener) => Descriptor::new(listener),
            // Somebody else was faster, and may be about to listen.
            Err(SocketError::AddressInUse { .. }) => return Err(Miss::Later),
            Err(error) => return Err(JoinError::socket(error).into()),
        };
        portolan_shm::mark!("join.listening");
        let created = self.create(listener);
        if created.is_err()
            && let Address::Path(path) = &self.address
        {
            let _ = std::fs::remove_file(path);
        }
        created.map_err(Miss::Failed)
    }

    /// Listens at a path. A file that nobody listens at was left by somebody who was killed.
    fn replace(&self, path: &std::path::Path) -> Result<Result<OwnedFd, SocketError>, JoinError> {
        let refused = |error| JoinError::directory(path, error);
        // Whoever holds it is the only one to bind, to listen, or to remove.
        let _directory = lock_directory(path).map_err(refused)?;
        match socket::connect_by(&self.address, Some(Instant::now())) {
            Err(SocketError::NotFound { .. }) => {}
            Err(SocketError::Refused { .. }) => {
                std::fs::remove_file(path).map_err(refused)?;
            }
            // Somebody listens there by now.
            _ => {
                let address = self.address.clone();
                return Ok(Err(SocketError::AddressInUse { address }));
            }
        }
        let listener = socket::listen(&self.address, BACKLOG);
        if let Err(SocketError::Io { source, .. }) = listener {
            return Err(refused(source));
        }
        let Builder { users, groups, .. } = self.settings;
        if listener.is_ok() && !(users.is_empty() && groups.is_empty()) {
            open_to_all(path).map_err(|e| JoinError::system("let others use the socket", e))?;
        }
        Ok(listener)
    }

    fn create(&self, listener: Descriptor) -> Result<Domain, JoinError> {
        let host = Host::first().map_err(|e| JoinError::system("make event descriptors", e))?;
        let rope = self.rope(listener)?;
        let region = create::region(self.settings, &self.settings.name)?;
        let link = Link::new(Some(rope));
        let member = Arc::new(member(self.settings, region, FIRST, link)?);
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

    fn rope(&self, listener: Descriptor) -> Result<Rope, JoinError> {
        let prompt = EventFd::new().map_err(|e| JoinError::system("make event descriptors", e))?;
        Ok(Rope {
            listener,
            prompt: Descriptor::new(prompt),
            stopping: AtomicBool::new(false),
            address: self.address.clone(),
            owner: self.settings.owner,
            patience: self.settings.deadline,
        })
    }

    /// Asks whoever listens there to let us in.
    fn greet(&self, connection: OwnedFd, until: Instant) -> Result<Domain, Miss> {
        let connection = Descriptor::new(connection);
        check_owner(&connection, &self.address, self.settings.owner)?;
        let mut name = [0; MAX_NAME + 1];
        let called = self.settings.space_name_or_default();
        for (to, from) in name.iter_mut().take(MAX_NAME).zip(called.bytes()) {
            *to = from;
        }
        let version = FORMAT_VERSION;
        let hello = Hello { version, name }.encode();
        let mut answer = [0; Answer::BYTES];
        let answered = socket::send_by(&connection, &hello, &[], Some(until))
            .and_then(|()| socket::receive_by(&connection, &mut answer, 2, Some(until)));
        portolan_shm::mark!("join.answered");
        let received = match answered {
            Ok(received) => received,
            // The host has died, is busy, or is about to be succeeded.
            Err(SocketError::TimedOut) => return Err(Miss::Again),
            Err(SocketError::Closed) => return Err(Miss::Later),
            Err(error) => return Err(JoinError::socket(error).into()),
        };
        let bytes = answer.get(..received.len).unwrap_or_default();
        match Answer::decode(bytes) {
            Some(Answer::Refusal(refusal)) => {
                Err(refused(refusal, &self.address, self.settings.owner).into())
            }
            Some(Answer::Welcome(welcome)) => self.enter(connection, welcome, received.fds),
            None => Err(garbled("answer", received.len as u64, Answer::BYTES as u64).into()),
        }
    }

    /// We are welcome: maps the region, and becomes a member by changing our own status.
    fn enter(
        &self,
        connection: Descriptor,
        welcome: Welcome,
        fds: Vec<OwnedFd>,
    ) -> Result<Domain, Miss> {
        if welcome.version != FORMAT_VERSION {
            let (theirs, ours) = (welcome.version, FORMAT_VERSION);
            return Err(JoinError::OtherVersion { theirs, ours }.into());
        }
        let count = fds.len() as u64;
        let Ok([file, listener]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(garbled("number of descriptors", count, 2).into());
        };
        let rope = self.rope(Descriptor::new(listener))?;
        let region = open(file, &welcome)?;
        portolan_shm::mark!("join.mapped");
        check_protection(self.settings, protection_of(region.tables().header))?;
        let us = HostWord {
            space: welcome.space,
            incarnation: welcome.incarnation,
        };
        // Made before we are live, so that whatever fails here leaves nothing behind.
        let member = Arc::new(member(self.settings, region, us, Link::new(Some(rope)))?);
        if !sees_host(&member, &connection) {
            return Err(JoinError::OtherNamespace.into());
        }
        let entry = member.tables().spaces.get(usize::from(us.space));
        let joined = entry
            .is_some_and(|e| space::step(e, us.incarnation, SpacePhase::Joining, SpacePhase::Live));
        if !joined {
            // The host has taken the admission back; perhaps it found us too slow.
            return Err(Miss::Again);
        }
        portolan_shm::mark!("join.live");
        // For the host's information: the status counts. It may be dead by now.
        let arrived = FromMember::Arrived.encode();
        let _ = socket::send_by(&connection, &arrived, &[], Some(Instant::now()));
        portolan_shm::mark!("join.arrived");
        let control = Control::welcomed(connection, super::hosting(&member));
        let started = start(&member, Role::Member(control));
        if let (Err(_), Some(entry)) = (&started, entry) {
            // The connection has closed with the role: the host returns us to free.
            space::step(entry, us.incarnation, SpacePhase::Live, SpacePhase::Dead);
        }
        started?;
        let (domain, space) = (member.domain.as_str(), member.space);
        tracing::info!(domain, space, "this process has joined the domain");
        Ok(Domain::new(member))
    }
}

/// What a host's refusal means.
pub(super) fn refused(refusal: Refusal, address: &Address, owner: u32) -> JoinError {
    let Refusal {
        version,
        reason,
        value,
    } = refusal;
    match reason {
        Reason::Version => JoinError::OtherVersion {
            theirs: version,
            ours: FORMAT_VERSION,
        },
        Reason::Permission => JoinError::NotPermitted { user: value, owner },
        Reason::Full => JoinError::Full { spaces: value },
        Reason::Descriptors => JoinError::HostDescriptors {
            host: socket::holder(address),
        },
        Reason::Namespace => JoinError::OtherNamespace,
        // The last two are for visitors, who do not come here.
        Reason::Garbled | Reason::Stranger | Reason::Token | Reason::Busy => {
            garbled("greeting", value, 0)
        }
    }
}

/// Refuses a socket that somebody else than the domain's user listens at.
pub(super) fn check_owner(
    connection: &Descriptor,
    address: &Address,
    owner: u32,
) -> Result<(), JoinError> {
    let found = socket::peer(connection).map_err(JoinError::socket)?.uid;
    if found == owner && found != OVERFLOW_ID {
        return Ok(());
    }
    Err(JoinError::Impostor {
        owner,
        found,
        holder: socket::holder(address),
    })
}

fn start(member: &Arc<Member>, role: Role) -> Result<(), JoinError> {
    let started = member.link.start(member, role);
    started.map_err(|e| JoinError::system("start a thread", e))
}

pub(super) fn garbled(what: &'static str, found: u64, wanted: u64) -> JoinError {
    JoinError::Garbled {
        what,
        found,
        wanted,
    }
}

/// Whether we can tell that the host dies: its process id means the same to us.
fn sees_host(member: &Member, connection: &Descriptor) -> bool {
    let word = super::hosting(member);
    let Some(entry) = member.tables().spaces.get(usize::from(word.space)) else {
        return true;
    };
    if !matches!(space::owner(entry), Owner::Dead) {
        return true;
    }
    // It has died since it welcomed us, or is alive in another namespace. The dead have let
    // go of their connections before anybody hears of their death.
    let ended = poll(&[connection.as_fd()], Some(Instant::now()));
    if ended.is_ok_and(|r| r.iter().any(|r| r.hangup)) || super::hosting(member) != word {
        return true;
    }
    // Or another one welcomed us, and is leaving; its successor has died. From within another
    // namespace we would not see who first listened, dead or alive.
    let sees_first = socket::peer(connection).is_ok_and(|first| first.pid != 0);
    sees_first && space::is_gone(entry)
}

/// Maps a region that the host has sent.
fn open(file: OwnedFd, welcome: &Welcome) -> Result<Region, JoinError> {
    let (fd, geometry) = check(file, welcome)?;
    let mapping = create::map(&fd, welcome.base, geometry.len).map_err(JoinError::map)?;
    Ok(Region::new(fd, mapping, geometry))
}

/// Checks a region that the host has sent.
pub(super) fn check(file: OwnedFd, welcome: &Welcome) -> Result<(OwnedFd, Geometry), JoinError> {
    memory::verify(&file, welcome.len).map_err(JoinError::NotARegion)?;
    let file = File::from(file);
    let [magic, version, size, base] =
        head(&file).map_err(|e| JoinError::system("read the region's header", e))?;
    let ours = u64::from(FORMAT_VERSION);
    let geometry = Geometry::new(size);
    let len = geometry.map_or(0, |g| g.len);
    let checks = [
        ("magic number", magic, MAGIC),
        ("version", version, ours),
        ("length", len, welcome.len),
        ("base", base, welcome.base),
    ];
    if let Some((what, found, wanted)) = checks.into_iter().find(|(_, f, w)| f != w) {
        return Err(garbled(what, found, wanted));
    }
    let Some(geometry) = geometry else {
        return Err(garbled("size", size, 1));
    };
    Ok((file.into(), geometry))
}

/// The first words of a region's header, read and not mapped.
fn head(file: &File) -> io::Result<[u64; 4]> {
    let mut words = [0; 4];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, i as u64 * 8)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}
