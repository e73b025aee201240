//! An observer reads a region without being in the domain.
//!
//! An observer asks the host once for the region's file, which it gets open for reading
//! only; afterwards no member knows of it. It has no space and no connection, cannot write,
//! cannot become the host, and does not keep the domain alive. It finds out by itself
//! that the domain is over: when no space is left whose process lives.

use crate::space::JoinError;
use crate::space::answer::{check, check_owner, garbled, no_answer, refused};
use crate::space::descriptor::Descriptor;
use crate::space::entry::{self, Owner};
use crate::space::handshake::{Asked, Ended};
use crate::space::region::Picture;
use crate::space::{Builder, protection_of};
use crate::survey::{self, Ground, Survey};
use portolan_abi::hello::{Look, socket_name};
use portolan_abi::region::HEADER_BYTES;
use portolan_abi::space::{HostWord, SpacePhase};
use portolan_proto::handshake::Failure;
use portolan_shm::atomic::Ordering;
use portolan_sys::socket::{self, Address, SocketError};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one connection waits for an answer, at first and at most; as in joining.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// How long no process may listen before we believe that the domain is over: between a name's
/// making and its listening, or a host's end and its successor's first look.
pub(crate) const ABSENCE: Duration = Duration::from_millis(50);
/// Pause before looking again.
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes of tables that are copied for one look at the most. Those of a domain of 16 GiB with
/// every page an extent take 200 MiB.
const MOST_COPIED: u64 = 512 << 20;

/// Reads a domain's tables, without being in it: for tools that watch.
///
/// ```
/// use portolan::{Domain, PortOptions};
/// # let name = format!("doc-observer-{}", std::process::id());
/// let domain = Domain::join(&name)?;
/// let port = domain.bind(PortOptions::named("frames"))?;
/// let observer = Domain::builder(&name).observe()?;
/// let survey = observer.survey()?;
/// assert_eq!((survey.spaces.len(), survey.ports.len()), (1, 1));
/// drop((port, domain));
/// assert!(observer.survey().is_err(), "it does not keep the domain alive");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Observer {
    file: OwnedFd,
    /// What is copied of it, for each look anew.
    picture: Mutex<Picture>,
    name: String,
}

impl Builder {
    /// Looks into the domain without being in it: see [`Observer`]. It is not created if
    /// it is not there.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; [`JoinError::NotRunning`] if there is no such domain.
    pub fn observe(self) -> Result<Observer, JoinError> {
        if socket_name(self.owner, &self.name).is_none() {
            return Err(JoinError::BadName { name: self.name });
        }
        Observer::of(&self)
    }
}

impl Observer {
    fn of(settings: &Builder) -> Result<Self, JoinError> {
        let address = settings.address();
        let begun = Instant::now();
        let deadline = begun + settings.deadline;
        let mut patience = PATIENCE.0;
        let mut absent_since = None;
        loop {
            let until = deadline.min(Instant::now() + patience);
            match socket::connect_by(&address, Some(until)) {
                Ok(connection) => {
                    absent_since = None;
                    patience = (patience * 2).min(PATIENCE.1);
                    if let Some(observer) = ask(settings, &address, connection, until)? {
                        return Ok(observer);
                    }
                }
                Err(SocketError::Refused { .. } | SocketError::NotFound { .. }) => {
                    let since = *absent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= ABSENCE {
                        return Err(JoinError::NotRunning {
                            name: settings.name.clone(),
                            owner: settings.owner,
                        });
                    }
                }
                Err(SocketError::BacklogFull { .. }) => {}
                Err(error) => return Err(JoinError::socket(error)),
            }
            if Instant::now() >= deadline {
                return Err(JoinError::TimedOut {
                    waited: settings.deadline,
                    holder: socket::holder(&address),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The domain's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Looks at every space and everything in the domain; see [`crate::Domain::survey`].
    ///
    /// # Errors
    ///
    /// [`JoinError::Ended`].
    pub fn survey(&self) -> Result<Survey, JoinError> {
        let picture = self.picture();
        let ground = Ground::of_observer(&picture, &self.file);
        if !lives(&ground, &picture) {
            return Err(JoinError::Ended {
                name: self.name.clone(),
            });
        }
        let protection = protection_of(picture.tables().header);
        Ok(survey::take(&ground, &self.name, protection))
    }

    /// The memory for a copy, with nothing in it.
    fn picture(&self) -> MutexGuard<'_, Picture> {
        // A thread that panicked has left an old copy, which is cleared now.
        let picture = self.picture.lock().unwrap_or_else(PoisonError::into_inner);
        picture.clear();
        picture
    }

    fn lives(&self) -> bool {
        let picture = self.picture();
        lives(&Ground::of_observer(&picture, &self.file), &picture)
    }
}

/// Whether any space's process lives. The host's, as a rule, so the first look tells.
fn lives(ground: &Ground<'_>, picture: &Picture) -> bool {
    let tables = picture.tables();
    let geometry = &tables.geometry;
    ground.fetch(0..HEADER_BYTES);
    ground.fetch(geometry.spaces..geometry.threads);
    let host = HostWord::unpack(tables.header.host.word.load(Ordering::Acquire)).space;
    let others = (1..=u8::MAX).filter(|space| *space != host);
    let spaces = std::iter::once(host)
        .filter(|host| *host != 0)
        .chain(others);
    let mut living = spaces.filter(|space| {
        let Some(entry) = tables.spaces.get(usize::from(*space)) else {
            return false;
        };
        let alive = || !matches!(entry::owner(entry), Owner::Dead);
        matches!(
            entry::status(entry).phase,
            SpacePhase::Joining | SpacePhase::Live
        ) && alive()
    });
    let base = usize::try_from(tables.header.base.load(Ordering::Relaxed)).unwrap_or(0);
    match (living.next(), living.next()) {
        (None, _) => false,
        // Alone: it may be another program by now, which nothing else would show.
        (Some(only), None) => tables
            .spaces
            .get(usize::from(only))
            .is_some_and(|entry| !entry::has_execed(entry, base)),
        (Some(_), Some(_)) => true,
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer({:?})", self.name)
    }
}

/// Asks the process that listens there for the region. `None`: look again.
fn ask(
    settings: &Builder,
    address: &Address,
    connection: OwnedFd,
    until: Instant,
) -> Result<Option<Observer>, JoinError> {
    let connection = Descriptor::new(connection);
    check_owner(&connection, address, settings.owner)?;
    let by = Some(until);
    let asked = Asked::send(&connection, &Look {}, by, by);
    let (welcome, fds) = match asked.and_then(|asked| asked.wait(&connection)) {
        Ok(granted) => granted,
        // The host has died, is busy, or is about to be succeeded.
        Err(Ended::Failed(Failure::Unanswered | Failure::HungUp)) => return Ok(None),
        Err(Ended::Failed(Failure::Refused(refusal))) => {
            return Err(refused(refusal, address, settings.owner));
        }
        Err(Ended::Failed(Failure::Garbled(why))) => return Err(no_answer(why)),
        Err(Ended::Socket(error)) => return Err(JoinError::socket(error)),
    };
    let count = fds.len() as u64;
    let Ok([file]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err(garbled("number of descriptors", count, 1));
    };
    let (file, geometry) = check(file, &welcome)?;
    let observer = Observer {
        file,
        picture: Mutex::new(Picture::new(geometry, MOST_COPIED).map_err(JoinError::map)?),
        name: settings.name.clone(),
    };
    if observer.lives() {
        return Ok(Some(observer));
    }
    // It answered this instant: it has just died, or its process ids mean nothing to us.
    let hung_up = portolan_sys::process::poll(
        &[std::os::fd::AsFd::as_fd(&connection)],
        Some(Instant::now()),
    );
    if hung_up.is_ok_and(|ready| ready.iter().any(|ready| ready.hangup)) {
        return Ok(None);
    }
    Err(JoinError::OtherNamespace)
}
