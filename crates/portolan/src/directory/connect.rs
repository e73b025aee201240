//! A client asks a domain's host for a connection to an offer, from outside the domain or inside.
//!
//! ```text
//! away --connect, ConnectRequest--> asked --Wait--> waiting --Accepted--> accepted
//!  ^                         |                |
//!  +-------- the host is gone, or too busy ---+---- refused: an error
//! ```
//!
//! A client need not be in any domain. It asks again when its connection ends without an answer,
//! because the host or the acceptor may have died with the connection. So a pending connection
//! outlives both, and ends with its own process.

use super::offer::Offers;
use super::permissions::{AccessToken, Verdict};
use super::{Exporter, OfferConnectError};
use crate::Deadline;
use crate::space::Builder;
use crate::space::JoinError;
use crate::space::Member;
use crate::space::answer::{check_owner, garbled, refused};
use crate::space::descriptor::Descriptor;
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind, OfferName};
use portolan_abi::delegate::Capability;
use portolan_abi::hello::{Reason, socket_name};
use portolan_sys::process::{EventFd, poll};
use portolan_sys::socket::{self, Address, SocketError};
use portolan_sys::watch::Alarm;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first and the longest pause before asking again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// How long the first connection waits for an answer; each one more waits twice as long, up
/// to the second value. A waiting client asks anew as often as that, because its host may be
/// dead while a child that the host had forked holds the connection open.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
/// How long a client that is not to wait for an offer waits for the host's answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A connection to the acceptor, the process that made the offer. It ends when that process is
/// gone. If it ends before the acceptor has sent anything, the caller must connect again.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) connection: Descriptor,
}

/// Asks the domain that `settings` name for an offer, waiting for it until `deadline`.
/// [`Deadline::NOW`] waits for the host's answer only.
///
/// # Errors
///
/// [`OfferConnectError`].
pub(crate) fn connect(
    settings: &Builder,
    kind: OfferKind,
    name: &str,
    token: Option<&AccessToken>,
    deadline: Deadline,
) -> Result<AcceptedConnection, OfferConnectError> {
    PendingConnection::from_outside(settings, kind, name, token)?.wait(deadline)
}

/// Asks our own domain for an offer, as [`connect`] does.
///
/// # Errors
///
/// [`OfferConnectError`].
#[cfg(test)]
pub(crate) fn connect_own(
    member: &Arc<Member>,
    kind: OfferKind,
    name: &str,
    token: Option<&AccessToken>,
    deadline: Deadline,
) -> Result<AcceptedConnection, OfferConnectError> {
    PendingConnection::from_inside(member, kind, name, token)?.wait(deadline)
}

/// A connection to an offer that is not accepted yet. Dropped, it is given up.
pub(crate) struct PendingConnection {
    door: Door,
    request: ConnectRequest,
    /// Whose offer is meant, if that is said.
    exporter: Option<Exporter>,
    stage: Stage,
    /// What stood in the way last.
    obstacle: Option<Obstacle>,
    pause: Duration,
    patience: Duration,
    /// Notified when something is offered in a private domain; made on demand.
    bell: Option<Arc<EventFd>>,
}

/// What a pending connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    NotOffered,
    NotMet,
    NotRunning,
    Busy,
    HostDescriptors,
    Unanswered,
}

/// Where the client asks.
enum Door {
    /// In our own private domain.
    Private(Arc<Member>),
    /// At a domain's socket.
    Socket(Entrance),
}

/// The socket of a domain, where clients come in.
#[derive(Clone)]
pub(crate) struct Entrance {
    address: Address,
    owner: u32,
    domain: String,
}

impl Entrance {
    /// That of the domain which `settings` name.
    pub(crate) fn from_outside(settings: &Builder) -> Self {
        Self {
            address: settings.address(),
            owner: settings.owner,
            domain: settings.name.clone(),
        }
    }

    /// That of our own domain; a private one has none.
    pub(crate) fn from_inside(member: &Member) -> Option<Self> {
        let sockets = member.host_connection.sockets()?;
        Some(Self {
            address: sockets.address.clone(),
            owner: sockets.owner,
            domain: member.domain.clone(),
        })
    }

    /// Begins to connect to delegated memory, which the host serves.
    pub(crate) fn to_memory(&self, capability: &Capability) -> Option<PendingConnection> {
        let (kind, name) = (OfferKind::Memory, capability.name()?);
        let pending = PendingConnection::of(
            Door::Socket(self.clone()),
            kind,
            name,
            Some(capability.token),
        );
        Some(pending)
    }
}

enum Stage {
    /// To ask, not before this instant.
    Away(Option<Instant>),
    /// The host has our greeting, and until the instant the time to answer it.
    Asked(Descriptor, Instant),
    /// It has put us on its list. At the instant we ask anew.
    Waiting(Descriptor, Instant),
}

impl PendingConnection {
    /// Begins to connect to an offer of the domain that `settings` name.
    ///
    /// # Errors
    ///
    /// The caller's mistakes.
    pub(crate) fn from_outside(
        settings: &Builder,
        kind: OfferKind,
        name: &str,
        token: Option<&AccessToken>,
    ) -> Result<Self, OfferConnectError> {
        if portolan_sys::fork::in_child() {
            return Err(JoinError::Forked.into());
        }
        let domain = settings.name.clone();
        if socket_name(settings.owner, &domain).is_none() {
            return Err(JoinError::BadName { name: domain }.into());
        }
        let door = Door::Socket(Entrance::from_outside(settings));
        Self::new(door, kind, name, token)
    }

    /// Begins to connect to an offer of our own domain.
    ///
    /// # Errors
    ///
    /// The caller's mistakes.
    pub(crate) fn from_inside(
        member: &Arc<Member>,
        kind: OfferKind,
        name: &str,
        token: Option<&AccessToken>,
    ) -> Result<Self, OfferConnectError> {
        member.present()?;
        let door = Entrance::from_inside(member)
            .map_or_else(|| Door::Private(Arc::clone(member)), Door::Socket);
        Self::new(door, kind, name, token)
    }

    fn new(
        door: Door,
        kind: OfferKind,
        name: &str,
        token: Option<&AccessToken>,
    ) -> Result<Self, OfferConnectError> {
        let bad = || OfferConnectError::BadName {
            name: name.to_owned(),
        };
        let name = OfferName::new(name).ok_or_else(bad)?;
        Ok(Self::of(door, kind, name, token.map(|t| t.to_bytes())))
    }

    fn of(door: Door, kind: OfferKind, name: OfferName, token: Option<[u8; 16]>) -> Self {
        Self {
            door,
            request: ConnectRequest {
                kind,
                name,
                token,
                maker: Maker::ANY,
            },
            exporter: None,
            stage: Stage::Away(None),
            obstacle: None,
            pause: PAUSES.0,
            patience: PATIENCE.0,
            bell: None,
        }
    }

    /// Only an offer that this exporter makes. To be called before anything else.
    ///
    /// # Errors
    ///
    /// [`OfferConnectError::NoSuchExporter`].
    pub(crate) fn made_by(mut self, exporter: &Exporter) -> Result<Self, OfferConnectError> {
        let exporter = exporter.clone();
        let Some(maker) = exporter.pattern() else {
            return Err(OfferConnectError::NoSuchExporter { exporter });
        };
        self.request.maker = maker;
        self.exporter = Some(exporter);
        Ok(self)
    }

    /// Goes on without waiting; `None`: not accepted yet.
    ///
    /// # Errors
    ///
    /// [`OfferConnectError`]: asking again is of no use.
    pub(crate) fn poll(&mut self) -> Result<Option<AcceptedConnection>, OfferConnectError> {
        if portolan_sys::fork::in_child() {
            return Err(JoinError::Forked.into());
        }
        if let Door::Private(member) = &self.door {
            let member = Arc::clone(member);
            if let Some(bell) = &self.bell {
                // Before the look: a later offer notifies it again.
                let _ = bell.drain();
            }
            return self.ask_within(&member);
        }
        loop {
            let heard = match &self.stage {
                Stage::Away(Some(again)) if Instant::now() < *again => return Ok(None),
                Stage::Away(_) => {
                    self.ask()?;
                    continue;
                }
                Stage::Asked(connection, until) | Stage::Waiting(connection, until) => {
                    let mut answer = [0; ConnectAnswer::MAX_BYTES];
                    match socket::try_receive(connection, &mut answer, 0) {
                        Ok(None) if Instant::now() < *until => return Ok(None),
                        // No answer: the host may be dead, and another process hold its socket.
                        Ok(None) => None,
                        Ok(Some(received)) => Some((answer, received.len)),
                        Err(SocketError::Closed) => None,
                        Err(error) => return Err(JoinError::socket(error).into()),
                    }
                }
            };
            let Some((answer, len)) = heard else {
                self.go_away();
                continue;
            };
            if let Some(connection) = self.hear(answer.get(..len).unwrap_or_default())? {
                return Ok(Some(AcceptedConnection { connection }));
            }
        }
    }

    /// Waits until the connection is accepted, or `deadline`. May be called again after an earlier
    /// deadline: nothing is given up.
    ///
    /// # Errors
    ///
    /// [`OfferConnectError`]; what stands in the way at the deadline.
    pub(crate) fn wait(
        &mut self,
        deadline: Deadline,
    ) -> Result<AcceptedConnection, OfferConnectError> {
        let end = if deadline.is_now() {
            Deadline::after(ANSWER)
        } else {
            deadline
        };
        loop {
            if let Some(accepted) = self.poll()? {
                return Ok(accepted);
            }
            let answered = self.obstacle.is_some() || matches!(self.door, Door::Private(_));
            let over = deadline.is_now() && answered;
            if over || end.has_passed() {
                return Err(self.overdue());
            }
            self.sleep(end);
        }
    }

    /// Sleeps until there may be something to do.
    fn sleep(&self, end: Deadline) {
        let by = |at: Instant| Some(end.instant().map_or(at, |end| end.min(at)));
        match (&self.door, &self.stage) {
            (Door::Private(member), _) => {
                member
                    .part::<Offers>()
                    .wait_offer(member, &self.request, end);
            }
            (_, Stage::Away(None)) => {}
            (_, Stage::Away(Some(again))) => {
                let left = by(*again).map(|at| at.saturating_duration_since(Instant::now()));
                std::thread::sleep(left.unwrap_or_default());
            }
            (_, Stage::Asked(connection, until) | Stage::Waiting(connection, until)) => {
                // An error (no memory) is met again at the next turn.
                let _ = poll(&[connection.as_fd()], by(*until));
            }
        }
    }

    /// Has `alarm` go off when there may be something to do.
    pub(crate) fn set(&mut self, alarm: &Alarm) -> io::Result<()> {
        match (&self.door, &self.stage) {
            (Door::Private(member), _) => {
                let bell = match self.bell.take() {
                    Some(bell) => bell,
                    None => member.part::<Offers>().bell()?,
                };
                alarm.set(&**self.bell.insert(bell), None)
            }
            (_, Stage::Away(again)) => alarm.set_time(Some(again.unwrap_or_else(Instant::now))),
            (_, Stage::Asked(connection, until) | Stage::Waiting(connection, until)) => {
                alarm.set(connection, Some(*until))
            }
        }
    }

    /// What stands in the way now.
    fn overdue(&self) -> OfferConnectError {
        let (kind, name) = self.what();
        let Door::Socket(Entrance {
            address,
            owner,
            domain,
        }) = &self.door
        else {
            return self.not_offered();
        };
        match self.obstacle.unwrap_or(Obstacle::Unanswered) {
            Obstacle::NotOffered => self.not_offered(),
            Obstacle::NotMet => OfferConnectError::NotMet { kind, name },
            Obstacle::NotRunning => OfferConnectError::NotRunning {
                domain: domain.clone(),
                owner: *owner,
            },
            Obstacle::Busy => OfferConnectError::Busy,
            Obstacle::HostDescriptors => JoinError::HostDescriptors {
                host: socket::holder(address),
            }
            .into(),
            Obstacle::Unanswered => OfferConnectError::Unanswered,
        }
    }

    fn what(&self) -> (&'static str, String) {
        let ConnectRequest { kind, name, .. } = &self.request;
        (kind.as_str(), name.as_str().to_owned())
    }

    fn not_offered(&self) -> OfferConnectError {
        let (kind, name) = self.what();
        let exporter = self.exporter.clone();
        OfferConnectError::NotOffered {
            kind,
            name,
            exporter,
        }
    }

    fn not_admitted(&self, verdict: Verdict, user: u64) -> OfferConnectError {
        let (kind, name) = self.what();
        let shown = self.request.token.is_some();
        match verdict {
            Verdict::WrongToken => OfferConnectError::WrongToken { kind, name, shown },
            _ => OfferConnectError::NotPermitted { kind, name, user },
        }
    }

    fn ask_within(
        &mut self,
        member: &Arc<Member>,
    ) -> Result<Option<AcceptedConnection>, OfferConnectError> {
        match member.part::<Offers>().connect_here(member, &self.request) {
            None => Ok(None),
            Some(Err(error)) => Err(JoinError::socket(error).into()),
            Some(Ok(Err((verdict, user)))) => Err(self.not_admitted(verdict, user.into())),
            Some(Ok(Ok(connection))) => Ok(Some(AcceptedConnection {
                connection: Descriptor::new(connection),
            })),
        }
    }

    /// Connects, and greets.
    fn ask(&mut self) -> Result<(), OfferConnectError> {
        let Door::Socket(Entrance { address, owner, .. }) = &self.door else {
            return Ok(());
        };
        let now = Instant::now();
        let connection = match socket::connect_by(address, Some(now)) {
            Ok(connection) => Descriptor::new(connection),
            Err(SocketError::Refused { .. } | SocketError::NotFound { .. }) => {
                self.obstacle = Some(Obstacle::NotRunning);
                self.go_away();
                return Ok(());
            }
            Err(SocketError::BacklogFull { .. }) => {
                self.obstacle = Some(Obstacle::Unanswered);
                self.go_away();
                return Ok(());
            }
            Err(SocketError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                let socket = address.to_string();
                return Err(OfferConnectError::Forbidden { socket });
            }
            Err(error) => return Err(JoinError::socket(error).into()),
        };
        check_owner(&connection, address, *owner)?;
        // Asked anew, we know as much as before until we are answered.
        let heard = [Obstacle::NotOffered, Obstacle::NotMet];
        self.obstacle = self.obstacle.filter(|o| heard.contains(o));
        match socket::send_by(&connection, &self.request.encode(), &[], Some(now)) {
            // It may have answered before it hung up.
            Ok(()) | Err(SocketError::Closed) => {
                self.stage = Stage::Asked(connection, now + self.patience);
                self.patience = (self.patience * 2).min(PATIENCE.1);
            }
            Err(SocketError::TimedOut) => self.go_away(),
            Err(error) => return Err(JoinError::socket(error).into()),
        }
        Ok(())
    }

    /// To ask again, after a pause.
    fn go_away(&mut self) {
        self.stage = Stage::Away(Some(Instant::now() + self.pause));
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Reads the host's answer. Returns the connection, once it leads to the acceptor.
    fn hear(&mut self, answer: &[u8]) -> Result<Option<Descriptor>, OfferConnectError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Away(None));
        let (Stage::Asked(connection, _) | Stage::Waiting(connection, _)) = stage else {
            return Ok(None);
        };
        let refusal = match ConnectAnswer::decode(answer) {
            Ok(ConnectAnswer::Accepted) => return Ok(Some(connection)),
            Ok(wait @ (ConnectAnswer::Wait | ConnectAnswer::Queue)) => {
                self.stage = Stage::Waiting(connection, Instant::now() + PATIENCE.1);
                self.obstacle = Some(match wait {
                    ConnectAnswer::Wait => Obstacle::NotOffered,
                    _ => Obstacle::NotMet,
                });
                self.pause = PAUSES.0;
                self.patience = PATIENCE.0;
                return Ok(None);
            }
            Ok(ConnectAnswer::Ambiguous(makers)) => {
                let (kind, name) = self.what();
                return Err(OfferConnectError::Ambiguous {
                    kind,
                    name,
                    exporters: makers.iter().map(Exporter::from_maker).collect(),
                });
            }
            Ok(ConnectAnswer::Refused(refusal)) => refusal,
            Err(_) => {
                let (found, wanted) = (answer.len() as u64, ConnectAnswer::MAX_BYTES as u64);
                return Err(garbled("answer", found, wanted).into());
            }
        };
        let Door::Socket(Entrance { address, owner, .. }) = &self.door else {
            return Ok(None);
        };
        self.obstacle = Some(match refusal.why {
            Reason::Busy => Obstacle::Busy,
            Reason::Descriptors => Obstacle::HostDescriptors,
            Reason::Permission => {
                return Err(self.not_admitted(Verdict::NotPermitted, refusal.value));
            }
            Reason::Token => return Err(self.not_admitted(Verdict::WrongToken, refusal.value)),
            _ => return Err(refused(refusal, address, *owner).into()),
        });
        // Others get their turn first.
        self.pause = PAUSES.1;
        self.go_away();
        Ok(None)
    }
}
