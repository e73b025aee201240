//! A port's ingress sends the messages of one client, which were read whole, on to the real port,
//! and finds the answers to the requests among them.
//!
//! ```text
//! staged --message, request--> real port      as the port has room
//! answers <-------------------- reply port    as they come
//! ```

use super::carrier::{Context, Word};
use super::clients::{Admission, Bridge};
use super::codec;
use super::error::Over;
use super::offered::{InHand, OfferedTo};
use super::sharing::NewPort;
use super::side::{Side, bytes_of};
use super::window::{Accepting, Window};
use crate::port::{PendingReply, RequestError, SendError, WhenFull, may_leave};
use crate::space::public::Shown;
use crate::wait::Armable;
use crate::{Access, Deadline, Message};
use portolan_abi::bridge::FrameKind;
use portolan_abi::port::Leaving;
use portolan_abi::public::PublicKind;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two looks whether there is room for descriptors.
const CROWDED: Duration = Duration::from_millis(1);

/// Between two looks whether the domain has memory for the list of a message's extents, at first and
/// at the most.
const SHORT_OF_PAGES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Looks at a request before it is armed, while the carrier is busy.
const LOOKS: u32 = 16;

/// The ingress of a port for one client.
pub(super) struct PortIngress {
    pub(super) bridge: Arc<Bridge<OfferedTo>>,
    number: u32,
    side: Rc<Side>,
    /// Where the real port rings when it is closed, or has room.
    word: Word,
    pub(super) window: RefCell<Accepting>,
    /// Whole messages that are not in the port.
    staged: RefCell<VecDeque<Staged>>,
    /// The client sends nothing more for it.
    ended: Cell<bool>,
    /// Requests that are with the server.
    serving: RefCell<Vec<Serving>>,
    /// What an answer may take there.
    back: Leaving,
    /// What observers see.
    shown: Shown,
    // The last field: it outlives the handles in the others.
    _admission: Admission,
}

/// A message or a request, of this number.
struct Staged {
    message: Message,
    tag: u64,
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
    /// Its answer is being written.
    answering: bool,
}

/// What a port has to write.
pub(super) enum Act {
    /// An answer to the request of this number; `None` for one that was dropped.
    Answer(u64, Option<Message>),
    /// How many messages it has accepted.
    Accepted,
}

impl PortIngress {
    /// The ingress of a port for this client.
    pub(super) fn new(port: NewPort, side: Rc<Side>, who: (u32, u32)) -> Self {
        let NewPort {
            bridge,
            admission,
            number,
            most,
        } = port;
        let to = &bridge.what.right.to;
        let window = Window::new(bridge.what.window(), bridge.most);
        Self {
            number,
            word: side.context().word(),
            side,
            window: RefCell::new(Accepting::new(window)),
            staged: RefCell::default(),
            ended: Cell::new(false),
            serving: RefCell::default(),
            back: Leaving {
                most,
                sealed: false,
            },
            shown: bridge.show(&to.member, PublicKind::Client, to.port.index, who),
            bridge,
            _admission: admission,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Its number in its domain, for events.
    pub(super) fn index(&self) -> u16 {
        self.bridge.what.right.to.port.index
    }

    /// Whether frames of this kind begin what it takes.
    pub(super) fn takes(&self, kind: FrameKind) -> bool {
        match kind {
            FrameKind::Message => !self.bridge.what.synchronous,
            FrameKind::Request => self.bridge.what.synchronous,
            _ => false,
        }
    }

    /// A whole message has come.
    pub(super) fn stage(&self, message: Message, tag: u64) {
        self.shown.came(bytes_of(&message));
        portolan_shm::mark!("bridge.whole");
        self.staged.borrow_mut().push_back(Staged { message, tag });
    }

    /// The client sends nothing more for it, and takes no answers.
    pub(super) fn client_ended(&self) {
        self.ended.set(true);
    }

    fn context(&self) -> &Rc<Context> {
        self.side.context()
    }

    /// Sends on what comes until the client or the real port ends it; returns the reason.
    pub(super) async fn carry(&self) -> Over {
        loop {
            match self.carry_next().await {
                Ok(true) => {}
                Ok(false) => return Over::Gone,
                // The real port is closed. Its server may have requests that it answers yet.
                Err(Over::Stopped) => {
                    let look = |_| {
                        let over = self.ended.get() || self.serving.borrow().is_empty();
                        Ok(over.then_some(()))
                    };
                    let served = self.context().until(look).await;
                    return served.err().unwrap_or(Over::Stopped);
                }
                Err(over) => return over,
            }
        }
    }

    /// Sends the next message on; whether there was one.
    async fn carry_next(&self) -> Result<bool, Over> {
        let Some(Staged { message, tag }) = self.next().await? else {
            return Ok(false);
        };
        // Until it waits in the port.
        let _hand = self.take_in_hand(message.sealed().len()).await?;
        match self.bridge.what.synchronous {
            false => self.deliver(message).await?,
            true => self.request(message, tag).await?,
        }
        self.window.borrow_mut().accept();
        portolan_shm::mark!("bridge.delivered");
        self.side.delivered();
        Ok(true)
    }

    /// Waits for the next message, or the end of the real port; nothing, once the client has ended.
    async fn next(&self) -> Result<Option<Staged>, Over> {
        let right = &self.bridge.what.right;
        let room = &right.to.queue().port.room.room;
        let look = |arms: bool| {
            // SeqCst: before the look at the port; its closer changes the word afterwards.
            let seen = room.load(Ordering::SeqCst);
            if !right.is_live() {
                return Err(Over::Stopped);
            }
            let serves = self.serving.borrow().len() < self.bridge.requests;
            let next = serves.then(|| self.staged.borrow_mut().pop_front());
            match next.flatten() {
                Some(next) => return Ok(Some(Some(next))),
                // What came whole has been sent on, but requests for which the server has no place: a
                // client that is gone gets no answers.
                None if self.ended.get() => return Ok(Some(None)),
                None => {}
            }
            if arms {
                self.word.arm(room, seen)?;
            }
            Ok(None)
        };
        self.context().until(look).await
    }

    /// Waits until so many parts of sealed memory may wait in the port, as for a full one.
    async fn take_in_hand(&self, parts: usize) -> Result<Option<InHand<'_>>, Over> {
        while parts > 0 && self.bridge.what.right.is_live() {
            if let Some(hand) = self.bridge.what.take_in_hand(parts) {
                return Ok(Some(hand));
            }
            self.context().pause(CROWDED).await;
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
                word: self.context().word(),
                armed: false,
                looks: 0,
                answering: false,
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
                self.context().pause(*wait).await;
                *wait = (*wait * 2).min(SHORT_OF_PAGES.1);
                Ok(())
            }
            // The real port is received in another process.
            SendError::Sealed if message.holds_sealed() => {
                let member = &self.bridge.what.right.to.member;
                codec::unseal(self.context(), member, message).await
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
        self.context().until(look).await
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

impl PortIngress {
    /// What is to be written for it now.
    pub(super) fn next_act(&self, arms: bool) -> Result<Option<Act>, Over> {
        if let Some((tag, answer)) = self.next_answer(arms)? {
            return Ok(Some(Act::Answer(tag, answer)));
        }
        Ok(self.window.borrow().is_due().then_some(Act::Accepted))
    }

    /// The next answer, if there is one, and which request it is for; `None` for one that was dropped.
    fn next_answer(&self, arms: bool) -> Result<Option<(u64, Option<Message>)>, Over> {
        let mut serving = self.serving.borrow_mut();
        for serving in &mut *serving {
            if serving.answering || !serving.has_ended(arms)? {
                continue;
            }
            let pending = serving.pending.as_mut();
            let answer = match pending.map(|it| it.wait(Access::Later, Deadline::NOW)) {
                Some(Err(RequestError::TimedOut)) => continue,
                Some(Ok(answer)) => self.may_go(&answer).then_some(answer),
                // Dropped, or the port is closed, or there was none for the answer.
                Some(Err(_)) | None => None,
            };
            serving.answering = true;
            return Ok(Some((serving.tag, answer)));
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

    /// An answer was written, which took so many bytes.
    pub(super) fn answered(&self, bytes: u64) {
        self.shown.went(bytes);
        // Not before: a client that takes no answers has no more requests served.
        self.serving.borrow_mut().retain(|it| !it.answering);
    }
}
