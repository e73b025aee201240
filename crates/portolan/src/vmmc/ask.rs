//! An importer finds an exporter through the host, and asks it for the export.
//!
//! ```text
//! connecting --accepted--> asked --granted--> import
//!   ^                        |
//!   +----- away <------------+  the exporter went away, or ended the export
//! ```
//!
//! So a pending import outlives the host and the exporter, and ends with its own process.

use super::granted::Miss;
use super::{Export, ExportError, ExportOptions, Exportable, Import, ImportError, ImportOptions};
use crate::directory::{AcceptedConnection, Entrance, OfferKind, PendingConnection};
use crate::space::Builder;
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::handshake::{Asked, Ended};
use crate::{Deadline, Domain, NoDescriptor, OfferConnectError};
use portolan_abi::vmmc::Ask;
use portolan_proto::handshake::Failure;
use portolan_sys::barrier;
use portolan_sys::process::poll;
use portolan_sys::watch::Alarm;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an exporter is given for its answer before it is looked for anew.
const ANSWER: Duration = Duration::from_secs(5);
/// The first and the longest pause before looking for an exporter anew.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl Domain {
    /// Exports memory under a name, to whom the options permit; until `deadline` the domain's
    /// host may take to learn of it. Importers map [`ExportMemory`](crate::vmmc::ExportMemory),
    /// and have the kernel copy to and from [`OrdinaryMemory`](crate::vmmc::OrdinaryMemory); see
    /// [`vmmc`](crate::vmmc) for what each has. A member exports under a name once; other members
    /// may export under the same one, and importers say whose they mean
    /// ([`ImportOptions::exporter`]).
    ///
    /// # Errors
    ///
    /// [`ExportError`]. The memory is as it was before.
    pub fn export<'a>(
        &self,
        memory: impl Into<Exportable<'a>>,
        name: &str,
        options: &ExportOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<Export, ExportError> {
        let memory = memory.into();
        Export::new(self.member(), memory, name, options, deadline.into())
    }
}

/// The three ways to import, for what tells where the exporter is looked for ([`Whence`]).
macro_rules! imports {
    ($(#[$doc:meta])* from $place:ident) => {
        impl $place {
            $(#[$doc])*
            ///
            /// # Errors
            ///
            /// [`ImportError`].
            pub fn import(
                &self,
                name: &str,
                deadline: impl Into<Deadline>,
            ) -> Result<Import, ImportError> {
                self.import_with(name, &ImportOptions::default(), deadline)
            }

            /// As [`import`](Self::import), of one exporter of several, with a token, or a limit.
            ///
            /// # Errors
            ///
            /// [`ImportError`].
            pub fn import_with(
                &self,
                name: &str,
                options: &ImportOptions,
                deadline: impl Into<Deadline>,
            ) -> Result<Import, ImportError> {
                self.begin_import(name, options)?.wait(deadline)
            }

            /// Begins to import, and does not wait: see [`PendingImport`].
            ///
            /// # Errors
            ///
            /// [`ImportError`]: what is the caller's mistake.
            pub fn begin_import(
                &self,
                name: &str,
                options: &ImportOptions,
            ) -> Result<PendingImport, ImportError> {
                PendingImport::new(Whence::from(self), name, options)
            }
        }
    };
}

imports! {
    /// Imports what a member of this domain exports, and waits for it until `deadline`. The
    /// import keeps the membership, as other handles do: in the domain's trace its updates are
    /// this space's.
    from Domain
}

imports! {
    /// Imports what a member of the domain exports, without joining it, and waits for it until
    /// `deadline`. Of all settings only those count that say which domain it is.
    from Builder
}

/// An import that waits for its export. It goes on whenever it is asked
/// ([`poll`](Self::poll)) or waited for ([`wait`](Self::wait)), by no thread of its own;
/// dropped, it is given up.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, ImportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// use std::time::Duration;
///
/// let domain = Domain::private()?;
/// let mut pending = domain.begin_import("later", &ImportOptions::default())?;
/// assert!(pending.poll()?.is_none());
///
/// let memory = ExportMemory::new(4096)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "later", &options, Deadline::NEVER)?;
/// let import = pending.wait(Duration::from_secs(60))?;
/// assert_eq!(import.len(), 4096);
/// # drop(export);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an import that is dropped is given up"]
pub struct PendingImport {
    from: Whence,
    name: String,
    options: ImportOptions,
    stage: Stage,
    pause: Duration,
    /// Goes off when it may go on; made on demand.
    alarm: Option<Alarm>,
    /// The kernel does not let us reach the exporter's memory: the host is to copy.
    brokered: bool,
}

/// Where it looks for the exporter.
enum Whence {
    Within(Arc<Member>),
    Outside(Box<Builder>),
}

enum Stage {
    /// Not before this instant.
    Away(Instant),
    Connecting(Box<PendingConnection>),
    /// The exporter has the request.
    Asked(Descriptor, Asked<Ask>),
}

impl From<&Domain> for Whence {
    fn from(domain: &Domain) -> Self {
        Self::Within(Arc::clone(domain.member()))
    }
}

impl From<&Builder> for Whence {
    fn from(builder: &Builder) -> Self {
        Self::Outside(Box::new(builder.clone()))
    }
}

impl Whence {
    /// As whose member it looks.
    fn member(&self) -> Option<&Arc<Member>> {
        match self {
            Self::Within(member) => Some(member),
            Self::Outside(_) => None,
        }
    }

    /// Where the host is found, if there can be one.
    fn entrance(&self) -> Option<Entrance> {
        match self {
            Self::Within(member) => Entrance::from_inside(member),
            Self::Outside(domain) => Some(Entrance::from_outside(domain)),
        }
    }

    fn connect(
        &self,
        name: &str,
        options: &ImportOptions,
    ) -> Result<PendingConnection, OfferConnectError> {
        let (kind, token) = (OfferKind::Export, options.token.as_ref());
        let pending = match self {
            Self::Within(member) => PendingConnection::from_inside(member, kind, name, token),
            Self::Outside(domain) => PendingConnection::from_outside(domain, kind, name, token),
        }?;
        match &options.exporter {
            Some(exporter) => pending.made_by(exporter),
            None => Ok(pending),
        }
    }
}

impl PendingImport {
    fn new(from: Whence, name: &str, options: &ImportOptions) -> Result<Self, ImportError> {
        super::present()?;
        let stage = Stage::Connecting(Box::new(from.connect(name, options)?));
        Ok(Self {
            from,
            name: name.to_owned(),
            options: options.clone(),
            stage,
            pause: PAUSES.0,
            alarm: None,
            brokered: false,
        })
    }

    /// Goes on, without waiting; nothing, if the export is not there yet. Not to be called again
    /// once it has given the import.
    ///
    /// # Errors
    ///
    /// [`ImportError`]: asking again is of no use.
    pub fn poll(&mut self) -> Result<Option<Import>, ImportError> {
        let import = self.go_on()?;
        if import.is_none()
            && let Some(alarm) = &self.alarm
        {
            let set = match &mut self.stage {
                Stage::Away(until) => alarm.set_time(Some(*until)),
                Stage::Connecting(pending) => pending.set(alarm),
                Stage::Asked(connection, asked) => alarm.set(&*connection, asked.until()),
            };
            set.map_err(|e| ImportError::system("wait for the exporter", &e))?;
        }
        Ok(import)
    }

    /// A descriptor that is readable when [`poll`](Self::poll) may go on: for `epoll` and the
    /// like, or for [`Domain::bind_address`], and so for a [`Listener`](crate::Listener) and a
    /// wait set. Poll whenever it is; it is readable at first. Do not read it.
    ///
    /// # Errors
    ///
    /// [`NoDescriptor`].
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, ExportOptions, ImportOptions, Reach};
    /// use portolan::{Deadline, Domain, ListenerOptions, Origin, WaitSet};
    /// let domain = Domain::private()?;
    /// let mut pending = domain.begin_import("later", &ImportOptions::default())?;
    ///
    /// // An address that is signalled when it may go on, for a listener in a wait set.
    /// let segment = domain.make_segment(None, 4096)?;
    /// let at = segment.address();
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// listener.on(at..at + 1, |_| {})?;
    /// let _bound = domain.bind_address(at, Origin::Descriptor(pending.descriptor()?))?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add(listener)?;
    ///
    /// let memory = ExportMemory::new(4096)?;
    /// let options = ExportOptions::new(Reach::ReadWrite);
    /// let export = domain.export(&memory, "later", &options, Deadline::NEVER)?;
    /// let import = loop {
    ///     if let Some(import) = pending.poll()? {
    ///         break import;
    ///     }
    ///     set.wait(Deadline::NEVER)?;
    ///     set.get_mut(token).ok_or("not in the set")?.poll();
    /// };
    /// assert_eq!(import.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descriptor(&mut self) -> Result<OwnedFd, NoDescriptor> {
        let alarm = match self.alarm.take() {
            Some(alarm) => alarm,
            None => Alarm::new()?,
        };
        let fd = self.alarm.insert(alarm).as_fd().try_clone_to_owned()?;
        Ok(fd)
    }

    fn go_on(&mut self) -> Result<Option<Import>, ImportError> {
        loop {
            match &mut self.stage {
                Stage::Away(until) if Instant::now() < *until => return Ok(None),
                Stage::Away(_) => {
                    self.stage =
                        Stage::Connecting(Box::new(self.from.connect(&self.name, &self.options)?));
                }
                Stage::Connecting(pending) => match pending.poll()? {
                    None => return Ok(None),
                    Some(accepted) => self.ask(accepted)?,
                },
                Stage::Asked(..) => {
                    if let Some(import) = self.hear()? {
                        return Ok(Some(import));
                    }
                    if matches!(self.stage, Stage::Asked(..)) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits until the export is there and imported, or `deadline`. [`Deadline::NOW`] waits for
    /// answers, and for no export. After the error of a deadline it may be called again.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Import, ImportError> {
        let deadline = deadline.into();
        let end = if deadline.is_now() {
            Deadline::after(ANSWER)
        } else {
            deadline
        };
        let left = |until: Instant| end.instant().map_or(until, |end| end.min(until));
        loop {
            if let Some(import) = self.poll()? {
                return Ok(import);
            }
            match &mut self.stage {
                Stage::Connecting(pending) => {
                    let accepted = pending.wait(deadline)?;
                    self.ask(accepted)?;
                    continue;
                }
                Stage::Away(until) => {
                    let until = left(*until);
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                }
                Stage::Asked(connection, asked) => {
                    // An error (no memory) is met again at the next turn.
                    let _ = poll(&[connection.as_fd()], asked.until().map(left));
                }
            }
            // What came at the last moment still counts.
            if end.has_passed() {
                let name = self.name.clone();
                let last = self.poll()?;
                return last.ok_or(ImportError::TimedOut { name });
            }
        }
    }

    fn ask(&mut self, accepted: AcceptedConnection) -> Result<(), ImportError> {
        let AcceptedConnection { connection } = accepted;
        portolan_shm::mark!("import.accepted");
        let ask = Ask {
            barriers: barrier::allow_now(),
            brokered: self.brokered,
        };
        let now = Instant::now();
        match Asked::send(&connection, &ask, Some(now), Some(now + ANSWER)) {
            Ok(asked) => {
                self.stage = Stage::Asked(connection, asked);
                portolan_shm::mark!("import.asked");
            }
            Err(Ended::Failed(_)) => self.go_away(),
            Err(Ended::Socket(error)) => return Err(ImportError::Socket(error)),
        }
        Ok(())
    }

    /// Reads the answer, if it is there.
    fn hear(&mut self) -> Result<Option<Import>, ImportError> {
        let Stage::Asked(connection, asked) = &mut self.stage else {
            return Ok(None);
        };
        let answer = match asked.poll(&*connection) {
            Ok(None) => return Ok(None),
            Ok(Some(granted)) => Ok(granted),
            // The exporter may be stopped; or dead, while another process holds its socket open.
            Err(Ended::Failed(Failure::HungUp | Failure::Unanswered)) => {
                self.go_away();
                return Ok(None);
            }
            Err(Ended::Failed(failure)) => Err(failure),
            Err(Ended::Socket(error)) => return Err(ImportError::Socket(error)),
        };
        portolan_shm::mark!("import.answered");
        let away = Stage::Away(Instant::now());
        let Stage::Asked(connection, _) = std::mem::replace(&mut self.stage, away) else {
            return Ok(None);
        };
        let (name, most) = (&self.name, self.options.most);
        let entrance = self.from.entrance();
        let member = self.from.member();
        match Import::answered(connection, name, most, answer, entrance, member) {
            Ok(import) => Ok(Some(import)),
            Err(Miss::Delegate) => {
                self.brokered = true;
                Ok(None)
            }
            Err(Miss::Again) => {
                self.go_away();
                Ok(None)
            }
            Err(Miss::Final(error)) => Err(error),
        }
    }

    /// To look for it anew, after a pause.
    fn go_away(&mut self) {
        self.stage = Stage::Away(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

/// What an importer makes of what came over a connection.
#[cfg(test)]
pub(super) fn answer_to(
    connection: std::os::fd::OwnedFd,
    options: &ImportOptions,
) -> Result<Option<Import>, ImportError> {
    let far = Some(Instant::now() + ANSWER);
    let mut pending = PendingImport {
        from: Whence::from(&Domain::builder("nowhere")),
        name: "x".to_owned(),
        options: options.clone(),
        stage: Stage::Asked(Descriptor::new(connection), Asked::sent(far)),
        pause: PAUSES.0,
        alarm: None,
        brokered: false,
    };
    pending.hear()
}

impl fmt::Debug for PendingImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingImport({:?})", self.name)
    }
}
