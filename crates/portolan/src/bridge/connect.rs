//! Connects to a port of another domain.

use super::control_socket::ControlSocket;
use super::egress;
use super::error::ConnectToError;
use super::memory::{ConnectionMemory, MemoryError};
use super::options::ConnectOptions;
use super::port_egress::PortEgress;
use super::sharing::Used;
use super::side::Connection;
use super::wire::Agreed;
use crate::directory::{AcceptedConnection, OfferKind, connect};
use crate::port::{PortOptions, SendRight, bind_port};
use crate::space::Builder;
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::handshake::{Asked, Ended, NotGranted};
use crate::space::public::{Public, Shown};
use crate::{Deadline, Domain, Protection};
use portolan_abi::bridge::{Ask, DESCRIPTORS, Granted, WAKE};
use portolan_abi::port::Leaving;
use portolan_abi::public::PublicKind;
use portolan_proto::handshake::Failure;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, SocketError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Before another attempt, when a connection ended before an answer came.
const AGAIN: Duration = Duration::from_millis(20);
/// The number of a connection's first port.
pub(super) const FIRST: u32 = 0;

impl Domain {
    /// A right on a port that another domain offers by this name
    /// ([`ReceiveRight::offer`](crate::ReceiveRight::offer)), waiting until it does.
    ///
    /// `other` names the domain, as for joining it: `Domain::builder("robot").of_user(1000)`.
    /// This process need not be permitted to join it, only to use the offer.
    ///
    /// The right is one on a port of this process's own domain, so sending is what it always is,
    /// and the right may be passed on within the domain. A thread of this process, the
    /// carrier of all its connections, copies the messages over. So when this process ends,
    /// messages that have not gone over yet are lost; a dead name says that the other side is gone.
    /// The port shares the connection that this process has with the same offering process already;
    /// a full port holds up no other. Rights and data structures cannot go over, nor
    /// messages longer than the offer allows: sending them fails.
    ///
    /// # Errors
    ///
    /// [`ConnectToError`], at the deadline of the options at the latest.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::{Access, ConnectOptions, Deadline, Domain, Message, OfferOptions};
    /// use portolan::{Permissions, PortOptions, WhenFull};
    /// # let unique = std::process::id();
    /// # let (robot, console) = (&format!("robot-{unique}"), &format!("console-{unique}"));
    /// let robot_domain = Domain::join(robot)?;
    /// let mut port = robot_domain.bind(PortOptions::named("orders"))?;
    /// let _offered = port.offer("orders", &Permissions::own_user(), OfferOptions::default())?;
    ///
    /// // In another process, of another domain:
    /// let domain = Domain::join(console)?;
    /// let right = domain.connect_to(&Domain::builder(robot), "orders", ConnectOptions::default())?;
    /// let mut message = Message::new(b"go there")?;
    /// message.push(domain.allocate(100)?)?;
    /// right.send(message, WhenFull::Fail)?;
    ///
    /// let message = port.receive(Access::Later, Deadline::NEVER)?;
    /// assert_eq!((message.header(), message.len()), (&b"go there"[..], 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_to(
        &self,
        other: &Builder,
        name: &str,
        options: ConnectOptions,
    ) -> Result<SendRight, ConnectToError> {
        if !matches!(options.protection, Protection::Copied | Protection::Sealed) {
            return Err(ConnectToError::Protection {
                asked: options.protection,
            });
        }
        let options = options.begun();
        let sought = Sought::of(other, name);
        connect_until(other, OfferKind::Port, name, &options, |accepted| {
            connect_over(self, accepted, &sought, &options)
        })
    }
}

/// Asks the other domain for the offer, and connects; tries again when the connection ends before
/// an answer came.
pub(super) fn connect_until<T>(
    other: &Builder,
    kind: OfferKind,
    name: &str,
    options: &ConnectOptions,
    mut enter: impl FnMut(AcceptedConnection) -> Result<T, ConnectToError>,
) -> Result<T, ConnectToError> {
    let token = options.token.as_ref();
    loop {
        let accepted = connect(other, kind, name, token, options.until())?;
        match enter(accepted) {
            // The offering process hung up before it read the request.
            Err(ConnectToError::Unanswered(SocketError::Closed))
                if !options.until().has_passed() =>
            {
                thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

/// Connects over a connection that leads to the offering process.
pub(super) fn connect_over(
    domain: &Domain,
    accepted: AcceptedConnection,
    sought: &Sought<'_>,
    options: &ConnectOptions,
) -> Result<SendRight, ConnectToError> {
    let most = cap(domain.member(), options.most);
    let sealed = options.protection == Protection::Sealed;
    let reserved = Used::reserve(domain.member(), sought.of_whom(), sealed);
    let mut ask = Ask {
        sealed,
        most,
        there: options.ring_bytes,
        named: Default::default(),
    };
    for (name, reserved) in ask.named.iter_mut().zip(&reserved) {
        *name = reserved.secret();
    }
    let socket = accepted.connection;
    let (granted, fds) = agree(&socket, &ask, options.answer_by())?;
    if granted.shares {
        let shared = reserved.iter().find(|it| it.secret() == granted.secret);
        let shared = shared.ok_or(ConnectToError::Garbled)?;
        let (right, port) = bind_proxy(domain, &granted, &ask, sought, shared.pid(), options)?;
        if !shared.add(port) {
            // It has ended meanwhile: the offering process is dead, or the offer withdrawn.
            return Err(ConnectToError::Unanswered(SocketError::Closed));
        }
        portolan_shm::mark!("bridge.added");
        // If it does not get there, the other side closes the port.
        let _ = socket::send_by(&socket, &[WAKE], &[], Some(Instant::now()));
        return Ok(right);
    }
    let (memory, process) = memory_of(&granted, fds)?;
    let pid = process.id();
    let control = ControlSocket::new(socket, Some(process), false);
    let wire = Box::new(Connection::new(memory, control));
    let used = Used::new(
        domain.member(),
        sought.of_whom(),
        granted.secret,
        sealed,
        pid,
    );
    send_over(domain, &granted, &ask, wire, sought, used, options)
}

/// Begins to send over a wire that was agreed on, and gives a right to do so.
pub(super) fn send_over(
    domain: &Domain,
    granted: &Granted,
    ask: &Ask,
    wire: Box<dyn Agreed>,
    sought: &Sought<'_>,
    used: Arc<Used>,
    options: &ConnectOptions,
) -> Result<SendRight, ConnectToError> {
    let (right, port) = bind_proxy(domain, granted, ask, sought, used.pid(), options)?;
    egress::launch(port, wire, used)?;
    Ok(right)
}

/// Binds a proxy port, of which an egress is to take messages, and gives a right on it.
pub(super) fn bind_proxy(
    domain: &Domain,
    granted: &Granted,
    ask: &Ask,
    sought: &Sought<'_>,
    pid: Option<u32>,
    options: &ConnectOptions,
) -> Result<(SendRight, PortEgress), ConnectToError> {
    if granted.window == 0 {
        return Err(ConnectToError::Garbled);
    }
    let there = Leaving {
        most: granted.most,
        sealed: ask.sealed,
    };
    let mut proxy = PortOptions::unnamed()
        .queue(options.queue)
        .for_another_domain(there);
    if granted.synchronous {
        proxy = proxy.synchronous();
    }
    let proxy = bind_port(domain.member(), &proxy)?;
    let right = proxy.make_send();
    portolan_shm::mark!("bridge.bound");
    let port = right.to.port.index;
    let shown = sought.show(domain.member(), PublicKind::ConnectedTo, port, pid);
    let egress = PortEgress {
        port: proxy,
        number: granted.port,
        there,
        back: ask.most,
        window: granted.window,
        name: sought.name.to_owned(),
        shown,
    };
    Ok((right, egress))
}

/// The offer that was asked for, and its domain.
pub(super) struct Sought<'a> {
    /// The domain, and its user.
    domain: &'a str,
    user: u32,
    /// The offer.
    pub(super) name: &'a str,
}

impl<'a> Sought<'a> {
    pub(super) fn of(other: &'a Builder, name: &'a str) -> Self {
        let (domain, user) = other.whose();
        Self { domain, user, name }
    }

    /// The domain, and its user.
    pub(super) fn of_whom(&self) -> (&str, u32) {
        (self.domain, self.user)
    }

    /// Shows observers the connection to it, of this port or segment of ours.
    pub(super) fn show(
        &self,
        member: &Arc<Member>,
        kind: PublicKind,
        port: u16,
        pid: Option<u32>,
    ) -> Shown {
        let public = Public {
            port: Some(port),
            pid: pid.unwrap_or(0),
            user: self.user,
            domain: self.domain,
            ..Public::new(kind, self.name)
        };
        Shown::new(member, &public)
    }
}

/// Bytes that a message may take in a domain: as many as are allowed, and never so many that
/// there might be no room for them.
pub(super) fn cap(member: &Member, allowed: u64) -> u64 {
    // Relaxed: it never changes.
    let limit = member.tables().header.limit.load(Ordering::Relaxed);
    allowed.min(limit / 4)
}

/// Asks the offering process for a connection.
pub(super) fn agree(
    socket: impl AsFd,
    ask: &Ask,
    deadline: Deadline,
) -> Result<(Granted, Vec<OwnedFd>), ConnectToError> {
    let by = deadline.instant();
    let asked = Asked::send(&socket, ask, by, by)?;
    portolan_shm::mark!("bridge.asked");
    Ok(asked.wait(&socket)?)
}

/// The connection's memory and the offering process's pidfd, which that has sent. The kernel cannot
/// give the pidfd: it knows the process that began to listen at the domain's socket as the socket's
/// other end.
pub(super) fn memory_of(
    granted: &Granted,
    fds: Vec<OwnedFd>,
) -> Result<(ConnectionMemory, Descriptor<PidFd>), ConnectToError> {
    let [memory, process] =
        <[_; DESCRIPTORS]>::try_from(fds).map_err(|_| ConnectToError::Garbled)?;
    let memory = ConnectionMemory::verify(memory, granted.there, granted.back)?;
    let process = PidFd::from_descriptor(process).map_err(|_| ConnectToError::Garbled)?;
    portolan_shm::mark!("bridge.connected");
    Ok((memory, Descriptor::new(process)))
}

impl From<NotGranted<Ask>> for ConnectToError {
    fn from(error: NotGranted<Ask>) -> Self {
        match error {
            Ended::Failed(Failure::Refused(refusal)) => Self::denied(refusal.why, refusal.version),
            Ended::Failed(Failure::Garbled(_)) => Self::Garbled,
            Ended::Failed(Failure::HungUp) => Self::Unanswered(SocketError::Closed),
            Ended::Failed(Failure::Unanswered) => Self::Unanswered(SocketError::TimedOut),
            Ended::Socket(error) => Self::Unanswered(error),
        }
    }
}

impl From<MemoryError> for ConnectToError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Io(error) => Self::Io(error),
            MemoryError::Map(error) => Self::Memory(error),
            MemoryError::Verify(_) => Self::Garbled,
        }
    }
}
