//! A port's ingress reads one client's messages from the connection's memory, and sends them on
//! to the real port.
//!
//! ```text
//! byte ring --message, request--> real port      the first half, one after another
//! byte ring back <------ answer-- reply port     the second half, as they come
//! ```

use super::carrier::{Context, Word, either};
use super::clients::{Bridge, Place, deny};
use super::codec;
use super::control_socket::{ControlSocket, Watched};
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use super::offered::{InHand, OfferedTo};
use super::options::ring_bytes;
use super::side::{Side, bytes_of, crossing};
use crate::directory::Client;
use crate::port::{PendingReply, RequestError, SendError, WhenFull, may_leave};
use crate::space::handshake::{Awaited, Ended};
use crate::space::public::Shown;
use crate::wait::Armable;
use crate::{Access, Deadline, EventKind, Message};
use portolan_abi::bridge::{Answer, Ask, Denied, Granted, RING_BYTES};
use portolan_abi::port::Leaving;
use portolan_abi::public::PublicKind;
use portolan_abi::slot::Kind;
use portolan_proto::handshake::Unasked;
use portolan_sys::socket;
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A client must send its request within this time, and take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks whether there is room for descriptors.
const CROWDED: Duration = Duration::from_millis(1);

/// Between two looks whether the domain has memory for the list of a message's extents, at first and
/// at the most.
const SHORT_OF_PAGES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Looks at a request before it is armed, while the carrier is busy.
const LOOKS: u32 = 16;

/// Serves one client until its connection ends, or refuses it for want of a place.
pub(super) async fn serve(
    bridge: Arc<Bridge<OfferedTo>>,
    client: Client,
    place: Option<Place>,
    context: Rc<Context>,
) {
    let (uid, pid) = (client.peer.uid, client.peer.pid);
    let domain = bridge.domain.as_str();
    let over = match grant(&bridge, client, place.is_some(), &context).await {
        Ok((ask, side)) => {
            tracing::info!(domain, uid, pid, "a client sends to an offered port");
            carry(&bridge, side, ask.most, (uid, pid)).await
        }
        Err(over) => over,
    };
    bridge.ended(uid, pid, over);
}

/// Reads a client's request, and answers it.
async fn grant(
    bridge: &Bridge<OfferedTo>,
    client: Client,
    has_place: bool,
    context: &Rc<Context>,
) -> Result<(Ask, Side), Over> {
    let granted = |ask: &Ask| {
        if !bridge.what.right.is_live() {
            return Err(Denied::Over);
        }
        Ok(Granted {
            synchronous: bridge.what.synchronous,
            most: bridge.most,
            there: ring_bytes(ask.there.min(bridge.ring_bytes)),
            back: *RING_BYTES.start(),
        })
    };
    let_in(bridge, client, has_place, context, granted).await
}

/// Carries what a client sends, whose answers may take so many bytes, until the connection ends.
pub(super) async fn carry(
    bridge: &Bridge<OfferedTo>,
    side: Side,
    most: u64,
    who: (u32, u32),
) -> Over {
    let to = &bridge.what.right.to;
    let ingress = PortIngress {
        bridge,
        word: side.context().word(),
        side,
        serving: RefCell::default(),
        back: Leaving {
            most,
            sealed: false,
        },
        shown: bridge.show(&to.member, PublicKind::Client, to.port.index, who),
    };
    let halves = either(ingress.carry_all(), ingress.answer_all());
    bridge.stop.or(halves).await
}

struct PortIngress<'g> {
    bridge: &'g Bridge<OfferedTo>,
    side: Side,
    /// Where the real port rings when it is closed, or has room.
    word: Word,
    /// Requests that are with the server.
    serving: RefCell<Vec<Serving>>,
    /// What an answer may take there.
    back: Leaving,
    /// What observers see.
    shown: Shown,
}

/// A request that is with the server, or whose answer is being written.
struct Serving {
    tag: u64,
    /// `None`: there is no port for its answer.
    pending: Option<PendingReply>,
    /// Where its answer rings, and whether it is to.
    word: Word,
    armed: bool,
    /// How often it was looked at while it was not armed.
    looks: u32,
}

impl<'g> PortIngress<'g> {
    /// Carries messages until the connection ends; returns the reason.
    async fn carry_all(&self) -> Over {
        let (mut scratch, mut delivered) = (Vec::new(), 0);
        loop {
            match self.carry_next(&mut scratch).await {
                Ok(()) => {}
                // The real port is closed. Its server may have requests that it answers yet.
                Err(Over::Stopped) => {
                    let served = self.fewer_than(1).await;
                    return served.err().unwrap_or(Over::Stopped);
                }
                Err(over) => return over,
            }
            portolan_shm::mark!("bridge.delivered");
            delivered += 1;
            self.side.set_delivered(delivered);
        }
    }

    async fn carry_next(&self, scratch: &mut Vec<u8>) -> Result<(), Over> {
        self.fewer_than(self.bridge.requests).await?;
        self.more().await?;
        let to = &self.bridge.what.right.to;
        let (member, port) = (&to.member, to.port.index);
        let read = async {
            let read = codec::read(&self.side, member, self.bridge.most, scratch).await?;
            let bytes = bytes_of(&read.1);
            Ok((read, bytes))
        };
        let (frame, message) = crossing(member, EventKind::Arrive, port, read).await?;
        self.shown.came(bytes_of(&message));
        portolan_shm::mark!("bridge.whole");
        // Until it waits in the port.
        let _hand = self.take_in_hand(message.sealed().len()).await?;
        match (frame.kind, self.bridge.what.synchronous) {
            (Kind::Message, false) => self.deliver(message).await,
            (Kind::Request, true) => self.request(message, frame.tag).await,
            _ => Err(ViolationKind::FrameHeader.into()),
        }
    }

    /// Waits for the next message, or the end of the real port.
    async fn more(&self) -> Result<(), Over> {
        let right = &self.bridge.what.right;
        let room = &right.to.queue().port.room.room;
        self.side
            .more(|arms| {
                // SeqCst: before the look at the port; its closer changes the word afterwards.
                let seen = room.load(Ordering::SeqCst);
                if !right.is_live() {
                    return Err(Over::Stopped);
                }
                if arms {
                    self.word.arm(room, seen)?;
                }
                Ok(())
            })
            .await
    }

    /// Waits until fewer requests than so many are with the server.
    async fn fewer_than(&self, requests: usize) -> Result<(), Over> {
        let is_so = || self.serving.borrow().len() < requests;
        if is_so() {
            return Ok(());
        }
        let look = |_| {
            self.side.hear()?;
            Ok(is_so().then_some(()))
        };
        self.side.context().until(look).await
    }

    /// Waits until so many parts of sealed memory may wait in the port, as for a full one.
    async fn take_in_hand(&self, parts: usize) -> Result<Option<InHand<'g>>, Over> {
        while parts > 0 && self.bridge.what.right.is_live() {
            if let Some(hand) = self.bridge.what.take_in_hand(parts) {
                return Ok(Some(hand));
            }
            self.side.context().pause(CROWDED).await;
        }
        match parts {
            0 => Ok(None),
            _ => Err(Over::Stopped),
        }
    }

    /// Sends a whole message on. It waits while the port is full, and the client waits with it.
    async fn deliver(&self, mut message: Message) -> Result<(), Over> {
        let right = &self.bridge.what.right;
        let mut wait = SHORT_OF_PAGES.0;
        loop {
            match right.send_from(&mut message, WhenFull::Fail) {
                Ok(()) => return Ok(()),
                Err(why) => self.may_be_sent(why, &mut message, &mut wait).await?,
            }
        }
    }

    /// Sends a request on, and notes it.
    async fn request(&self, mut message: Message, tag: u64) -> Result<(), Over> {
        let right = &self.bridge.what.right;
        let mut wait = SHORT_OF_PAGES.0;
        loop {
            let pending = match right.begin_request(message, WhenFull::Fail) {
                Ok(pending) => Some(pending),
                Err(RequestError::Unsent(unsent)) => {
                    message = *unsent.item;
                    self.may_be_sent(unsent.why, &mut message, &mut wait)
                        .await?;
                    continue;
                }
                Err(_) => None,
            };
            let serving = Serving {
                tag,
                pending,
                word: self.side.context().word(),
                armed: false,
                looks: 0,
            };
            self.serving.borrow_mut().push(serving);
            portolan_shm::mark!("bridge.asking");
            return Ok(());
        }
    }

    /// Waits until a message may be sent that was not.
    async fn may_be_sent(
        &self,
        why: SendError,
        message: &mut Message,
        wait: &mut Duration,
    ) -> Result<(), Over> {
        match why {
            SendError::Full { .. } => self.room().await,
            SendError::Allocate(_) => {
                self.side.context().pause(*wait).await;
                *wait = (*wait * 2).min(SHORT_OF_PAGES.1);
                Ok(())
            }
            // The real port is received in another process.
            SendError::Sealed if message.holds_sealed() => {
                let member = &self.bridge.what.right.to.member;
                codec::unseal(&self.side, member, message).await
            }
            _ => Err(Over::Stopped),
        }
    }

    /// Waits for room in the real port, or its end.
    async fn room(&self) -> Result<(), Over> {
        /// Any but 0, which would disarm it.
        const ARMED: u64 = 1;
        let mut room = self.bridge.what.right.room();
        let look = |arms: bool| {
            if room.is_there() || arms && !room.arm_for(ARMED) {
                return Ok(Some(()));
            }
            if arms && let Some((word, seen)) = room.word() {
                self.word.arm(word, seen)?;
            }
            Ok(None)
        };
        self.side.context().until(look).await
    }
}

impl Serving {
    /// Whether its answer may be there. One that was looked at in vain for a while is armed in any
    /// case: from then on it is not looked at before it has fired.
    fn has_ended(&mut self, arms: bool) -> Result<bool, Over> {
        let Some(pending) = &mut self.pending else {
            return Ok(true);
        };
        if self.armed {
            if !self.word.has_fired() {
                return Ok(false);
            }
            self.armed = false;
            pending.disarm();
        }
        if pending.may_have() {
            return Ok(true);
        }
        self.looks += 1;
        if !arms && self.looks < LOOKS {
            return Ok(false);
        }
        let Some((word, seen)) = pending.arm() else {
            return Ok(true);
        };
        self.word.arm(word, seen)?;
        (self.armed, self.looks) = (true, 0);
        Ok(false)
    }
}

impl PortIngress<'_> {
    /// Takes answers back until the connection ends; returns the reason.
    async fn answer_all(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            let answered = async {
                let look = |arms| self.next_answer(arms);
                let (at, answer) = self.side.context().until(look).await?;
                let tag = self.serving.borrow()[at].tag;
                self.answer(tag, answer, &mut scratch).await?;
                // Not before: a client that takes no answers has no more requests served. Others
                // were added behind it.
                self.serving.borrow_mut().remove(at);
                Ok(())
            };
            if let Err(over) = answered.await {
                return over;
            }
        }
    }

    /// The next answer, if there is one, and which request it is for; `None` for one that was dropped.
    fn next_answer(&self, arms: bool) -> Result<Option<(usize, Option<Message>)>, Over> {
        let mut serving = self.serving.borrow_mut();
        for at in 0..serving.len() {
            if !serving[at].has_ended(arms)? {
                continue;
            }
            let pending = serving[at].pending.as_mut();
            let answer = match pending.map(|it| it.wait(Access::Later, Deadline::NOW)) {
                Some(Err(RequestError::TimedOut)) => continue,
                Some(Ok(answer)) => self.may_go(&answer).then_some(answer),
                Some(Err(RequestError::Dropped)) | None => None,
                // Or closed: which is the end of this connection too.
                Some(Err(_)) => return Err(Over::Stopped),
            };
            return Ok(Some((at, answer)));
        }
        Ok(None)
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

    async fn answer(
        &self,
        tag: u64,
        answer: Option<Message>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Over> {
        let kind = match answer {
            Some(_) => Kind::Reply,
            None => Kind::Dropped,
        };
        let message = answer.unwrap_or_default();
        let to = &self.bridge.what.right.to;
        let (member, port) = (&to.member, to.port.index);
        let write = async {
            codec::write(&self.side, kind, tag, &message, scratch).await?;
            Ok(((), bytes_of(&message)))
        };
        crossing(member, EventKind::Depart, port, write).await?;
        self.shown.went(bytes_of(&message));
        Ok(())
    }
}

/// Reads a client's request, and gives it memory of the sizes that `grant` returns, or the reason
/// for a refusal. Returns the request, and this side of the connection.
pub(super) async fn let_in<T>(
    bridge: &Bridge<T>,
    client: Client,
    has_place: bool,
    context: &Rc<Context>,
    grant: impl FnOnce(&Ask) -> Result<Granted, Denied>,
) -> Result<(Ask, Side), Over> {
    let control = ControlSocket::new(client.connection, client.pidfd, false);
    let mut watched = Watched::new(control, context)?;
    let ask = match hear(bridge, &watched.control, context).await {
        Ok(ask) => ask,
        Err(refused) => {
            deny(watched.control.socket(), refused.says);
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
        deny(watched.control.socket(), why);
        Over::Stopped
    })?;
    let memory = match ConnectionMemory::create(granted.there, granted.back) {
        Ok(memory) => memory,
        Err(error) => {
            deny(watched.control.socket(), Denied::Resources);
            return Err(Over::Io(std::io::Error::other(error)));
        }
    };
    for () in memory.populate() {
        context.turn().await;
    }
    if ask.sealed {
        // The host had it refuse them, and from here on they are expected.
        watched.control.take_descriptors()?;
    }
    portolan_shm::mark!("bridge.granting");
    let answer = Answer::Granted(granted).encode();
    let shown = [memory.as_fd(), bridge.process.as_fd()];
    // There is room: nothing was sent before.
    let now = Some(Instant::now());
    socket::send_by(watched.control.socket(), &answer, &shown, now)?;
    portolan_shm::mark!("bridge.granted");
    Ok((ask, Side::server(memory, watched, context)))
}

/// The answer to a client that is refused, and the end of its connection.
struct Refused {
    says: Denied,
    over: Over,
}

/// Reads a client's request, for which it has some time, unless the offer is closed meanwhile.
async fn hear<T>(
    bridge: &Bridge<T>,
    control: &ControlSocket,
    context: &Context,
) -> Result<Ask, Refused> {
    let by = Instant::now() + PATIENCE;
    let mut awaited = Awaited::<Ask>::new(Some(by));
    let refused = |says, over| Err(Refused { says, over });
    let came = context.until(|_| {
        if bridge.stop.is_asked() {
            return Err(Over::Stopped);
        }
        context.by(by);
        if !context.take_news() && Instant::now() < by {
            return Ok(None);
        }
        Ok(awaited.poll(control.socket()).transpose())
    });
    let ask = match came.await {
        Err(over) => return refused(Denied::Over, over),
        Ok(Ok(ask)) => ask,
        Ok(Err(Ended::Failed(Unasked::Refuse(says @ Denied::Version, _)))) => {
            return refused(says, Over::Stopped);
        }
        Ok(Err(Ended::Failed(Unasked::Refuse(says, _)))) => {
            return refused(says, ViolationKind::Ask.into());
        }
        Ok(Err(Ended::Failed(Unasked::HangUp))) => return refused(Denied::Resources, Over::Gone),
        Ok(Err(Ended::Socket(error))) => return refused(Denied::Resources, error.into()),
    };
    // What follows it may be there already.
    context.keep_news();
    if ask.sealed && !bridge.sealed {
        return refused(Denied::Sealed, Over::Stopped);
    }
    Ok(ask)
}
