//! A port's ingress reads one client's messages from the connection's memory, and sends them on
//! to the real port.

use super::clients::{Bridge, Place, deny};
use super::codec;
use super::control_socket::ControlSocket;
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use super::offered::{InHand, OfferedTo};
use super::options::ring_bytes;
use super::side::{Side, bytes_of, crossing};
use crate::directory::Client;
use crate::port::{PendingReply, RequestError, SendError, WhenFull, may_leave};
use crate::space::handshake::{Awaited, Ended};
use crate::space::public::Shown;
use crate::{Access, Deadline, EventKind, Message};
use portolan_abi::bridge::{Answer, Ask, Denied, Granted, RING_BYTES};
use portolan_abi::port::Leaving;
use portolan_abi::public::PublicKind;
use portolan_abi::slot::Kind;
use portolan_proto::handshake::Unasked;
use portolan_sys::bell::FutexFd;
use portolan_sys::{process, socket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A client must send its request within this time, and take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether to stop, while the real port is full.
const FULL: Duration = Duration::from_millis(100);

/// Between two looks whether there is room for descriptors.
const CROWDED: Duration = Duration::from_millis(1);

/// Serves one client until its connection ends, or refuses it for want of a place.
pub(super) fn serve(bridge: &Bridge<OfferedTo>, client: Client, place: Option<Place>) {
    let (uid, pid) = (client.peer.uid, client.peer.pid);
    let domain = bridge.domain.as_str();
    let over = match PortIngress::let_in(bridge, client, place.is_some()) {
        Ok(mut ingress) => {
            tracing::info!(domain, uid, pid, "a client sends to an offered port");
            ingress.carry_all()
        }
        Err(over) => over,
    };
    bridge.ended(uid, pid, over);
}

struct PortIngress<'g> {
    bridge: &'g Bridge<OfferedTo>,
    side: Side,
    /// Notified when the real port is closed.
    bell: FutexFd,
    /// The value for which it is armed.
    armed: Option<u32>,
    scratch: Vec<u8>,
    delivered: u64,
    /// What an answer may take there.
    back: Leaving,
    /// What observers see.
    shown: Shown,
}

impl<'g> PortIngress<'g> {
    /// Reads a client's request, and answers it.
    fn let_in(
        bridge: &'g Bridge<OfferedTo>,
        client: Client,
        has_place: bool,
    ) -> Result<Self, Over> {
        let mut bell = None;
        let who = (client.peer.uid, client.peer.pid);
        let (ask, side) = let_in(bridge, client, has_place, |ask| {
            if !bridge.what.right.is_live() {
                return Err(Denied::Over);
            }
            bell = Some(FutexFd::new().map_err(|_| Denied::Resources)?);
            Ok(Granted {
                synchronous: bridge.what.synchronous,
                most: bridge.most,
                there: ring_bytes(ask.there.min(bridge.ring_bytes)),
                back: *RING_BYTES.start(),
            })
        })?;
        Ok(Self {
            bridge,
            side,
            bell: bell.ok_or(Over::Stopped)?,
            armed: None,
            scratch: Vec::new(),
            delivered: 0,
            back: Leaving {
                most: ask.most,
                sealed: false,
            },
            shown: {
                let to = &bridge.what.right.to;
                bridge.show(&to.member, PublicKind::Client, to.port.index, who)
            },
        })
    }

    /// Carries messages until the connection ends; returns the reason.
    fn carry_all(&mut self) -> Over {
        loop {
            if let Err(over) = self.carry_next() {
                return over;
            }
        }
    }

    fn carry_next(&mut self) -> Result<(), Over> {
        self.side.look_up()?;
        while !self.wait()? {
            if self.side.is_gone() {
                return Err(Over::Gone);
            }
        }
        let to = &self.bridge.what.right.to;
        let (member, port) = (&to.member, to.port.index);
        let (frame, message) = crossing(member, EventKind::Arrive, port, || {
            let most = self.bridge.most;
            let read = codec::read(&mut self.side, member, most, &mut self.scratch)?;
            let bytes = bytes_of(&read.1);
            Ok((read, bytes))
        })?;
        self.shown.came(bytes_of(&message));
        portolan_shm::mark!("bridge.whole");
        let hand = self.await_hand(message.sealed().len())?;
        match (frame.kind, self.bridge.what.synchronous) {
            (Kind::Message, false) => self.deliver(message)?,
            (Kind::Request, true) => self.ask(message, frame.tag, hand)?,
            _ => return Err(ViolationKind::FrameHeader.into()),
        }
        portolan_shm::mark!("bridge.delivered");
        self.delivered += 1;
        self.side.incoming().set_delivered(self.delivered);
        Ok(())
    }

    /// Waits for the next message, or the end of the real port; whether there is one.
    fn wait(&mut self) -> Result<bool, Over> {
        let room = &self.bridge.what.right.to.queue().port.room.room;
        // SeqCst: before the look at the port; its closer changes the word afterwards.
        let seen = room.load(Ordering::SeqCst);
        if !self.bridge.what.right.is_live() {
            return Err(Over::Stopped);
        }
        if self.side.has_more()? {
            return Ok(true);
        }
        if self.armed != Some(seen) {
            self.bell.arm(room, seen)?;
            self.armed = Some(seen);
        }
        let more = self.side.wait(&[self.bell.as_fd()])?;
        if self.bell.drain()? {
            self.armed = None;
        }
        Ok(more)
    }

    /// Waits until so many parts of sealed memory may wait in the port, as for a full one.
    fn await_hand(&self, parts: usize) -> Result<Option<InHand<'g>>, Over> {
        while parts > 0 && self.bridge.what.right.is_live() && !self.side.is_stopped() {
            if let Some(hand) = self.bridge.what.take_in_hand(parts) {
                return Ok(Some(hand));
            }
            std::thread::sleep(CROWDED);
        }
        match parts {
            0 => Ok(None),
            _ => Err(Over::Stopped),
        }
    }

    /// Sends a whole message on. It waits while the port is full, and the client waits with it.
    fn deliver(&mut self, mut message: Message) -> Result<(), Over> {
        loop {
            let full = WhenFull::Wait(Deadline::after(FULL));
            match self.bridge.what.right.send_from(&mut message, full) {
                Ok(()) => return Ok(()),
                Err(SendError::Full { .. } | SendError::Allocate(_)) if !self.side.is_stopped() => {
                }
                // The real port is received in another process.
                Err(SendError::Sealed) if message.holds_sealed() => {
                    let member = &self.bridge.what.right.to.member;
                    codec::unseal(&mut self.side, member, &mut message)?;
                }
                Err(_) => return Err(Over::Stopped),
            }
        }
    }
}

impl PortIngress<'_> {
    /// Has a request served, and takes the answer back.
    fn ask(&mut self, message: Message, tag: u64, hand: Option<InHand<'_>>) -> Result<(), Over> {
        let Some(mut pending) = self.request(message)? else {
            return self.answer(Kind::Dropped, tag, &Message::default());
        };
        portolan_shm::mark!("bridge.asking");
        // It waits in the port now.
        drop(hand);
        loop {
            match pending.wait(Access::Later, Deadline::after(FULL)) {
                Err(RequestError::TimedOut) => {
                    if self.side.is_stopped() {
                        return Err(Over::Stopped);
                    }
                    self.side.hear()?;
                }
                Ok(answer) if self.may_go(&answer) => {
                    return self.answer(Kind::Reply, tag, &answer);
                }
                Ok(_) | Err(RequestError::Dropped) => {
                    return self.answer(Kind::Dropped, tag, &Message::default());
                }
                // Or closed: which is the end of this connection too.
                Err(_) => return Err(Over::Stopped),
            }
        }
    }

    /// Sends a request on; `None` if it cannot be.
    fn request(&mut self, mut message: Message) -> Result<Option<PendingReply>, Over> {
        loop {
            let full = WhenFull::Wait(Deadline::after(FULL));
            message = match self.bridge.what.right.begin_request(message, full) {
                Ok(pending) => return Ok(Some(pending)),
                Err(RequestError::Unsent(unsent)) => match unsent.why {
                    SendError::Full { .. } | SendError::Allocate(_) if !self.side.is_stopped() => {
                        *unsent.item
                    }
                    SendError::Sealed if unsent.item.holds_sealed() => {
                        let mut message = *unsent.item;
                        let member = &self.bridge.what.right.to.member;
                        codec::unseal(&mut self.side, member, &mut message)?;
                        message
                    }
                    _ => return Err(Over::Stopped),
                },
                // No port for the answer.
                Err(_) => return Ok(None),
            };
        }
    }

    /// Whether an answer may leave its domain; if not, that is the server's mistake, not the
    /// client's.
    fn may_go(&self, answer: &Message) -> bool {
        let may = may_leave(answer, self.back);
        if let Err(error) = &may {
            let domain = self.bridge.domain.as_str();
            tracing::warn!(domain, %error, "an answer cannot leave its domain");
        }
        may.is_ok()
    }

    fn answer(&mut self, kind: Kind, tag: u64, message: &Message) -> Result<(), Over> {
        let to = &self.bridge.what.right.to;
        let (member, port) = (&to.member, to.port.index);
        crossing(member, EventKind::Depart, port, || {
            codec::write(&mut self.side, kind, tag, message, &mut self.scratch)?;
            Ok(((), bytes_of(message)))
        })?;
        self.shown.went(bytes_of(message));
        Ok(())
    }
}

/// Reads a client's request, and gives it memory of the sizes that `grant` returns, or the reason
/// for a refusal. Returns the request, and this side of the connection.
pub(super) fn let_in<T>(
    bridge: &Bridge<T>,
    client: Client,
    has_place: bool,
    grant: impl FnOnce(&Ask) -> Result<Granted, Denied>,
) -> Result<(Ask, Side), Over> {
    let connection = client.connection;
    let by = Some(Instant::now() + PATIENCE);
    let ask = match hear(&connection, &bridge.stop, by, bridge.sealed) {
        Ok(ask) => ask,
        Err(refused) => {
            deny(&connection, refused.says);
            return Err(refused.over);
        }
    };
    // Only after the request was read: an answer to a client that is still sending gets lost.
    let granted = match has_place {
        true => grant(&ask),
        false => Err(Denied::Full),
    };
    portolan_shm::mark!("bridge.heard");
    let granted = granted.map_err(|why| {
        deny(&connection, why);
        Over::Stopped
    })?;
    let memory = match ConnectionMemory::create(granted.there, granted.back) {
        Ok(memory) => memory,
        Err(error) => {
            deny(&connection, Denied::Resources);
            return Err(Over::Io(std::io::Error::other(error)));
        }
    };
    if ask.sealed {
        // The host had it refuse them, and from here on they are expected.
        socket::accept_descriptors(&connection)?;
    }
    portolan_shm::mark!("bridge.granting");
    let answer = Answer::Granted(granted).encode();
    let shown = [memory.as_fd(), bridge.process.as_fd()];
    socket::send_by(&connection, &answer, &shown, by)?;
    portolan_shm::mark!("bridge.granted");
    let control = ControlSocket::new(connection, client.pidfd, ask.sealed);
    Ok((ask, Side::server(memory, control, Arc::clone(&bridge.stop))))
}

/// The answer to a client that is refused, and the end of its connection.
struct Refused {
    says: Denied,
    over: Over,
}

/// Reads a client's request. A client that says nothing, because it is stopped perhaps, holds up
/// nobody who closes the offer.
fn hear(
    connection: impl AsFd,
    stop: impl AsFd,
    by: Option<Instant>,
    takes_sealed: bool,
) -> Result<Ask, Refused> {
    let refused = |says, over| Err(Refused { says, over });
    match process::poll(&[stop.as_fd(), connection.as_fd()], by) {
        Ok(ready) if ready[0].any() => return refused(Denied::Over, Over::Stopped),
        Ok(_) => {}
        Err(error) => return refused(Denied::Resources, error.into()),
    }
    let ask = match Awaited::<Ask>::new(by).wait(connection) {
        Ok(ask) => ask,
        Err(Ended::Failed(Unasked::Refuse(says @ Denied::Version, _))) => {
            return refused(says, Over::Stopped);
        }
        Err(Ended::Failed(Unasked::Refuse(says, _))) => {
            return refused(says, ViolationKind::Ask.into());
        }
        Err(Ended::Failed(Unasked::HangUp)) => return refused(Denied::Resources, Over::Gone),
        Err(Ended::Socket(error)) => return refused(Denied::Resources, error.into()),
    };
    if ask.sealed && !takes_sealed {
        return refused(Denied::Sealed, Over::Stopped);
    }
    Ok(ask)
}
