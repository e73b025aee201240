//! Waits until what was sent to a port on another node is there.
//!
//! A flush is a request without content at a proxied port that takes messages. It stands behind them
//! in the queue, so the node that receives there knows which they are, and answers once their home
//! has acknowledged all of them ([`Taken::Flush`](crate::proxy::Taken::Flush)).

use super::request::RequestError;
use super::rights::is_live;
use super::send::{self, SendError};
use super::{Access, SendRight, WhenFull, wire};
use crate::port::message::Message;
use crate::space::region::Attached;
use crate::{Deadline, Refused};
use portolan_abi::port::PortStatus;
use portolan_abi::slot::{Kind, inline_capacity};
use portolan_shm::queue::Spot;
use std::sync::atomic::Ordering;

impl SendRight {
    /// Waits until all messages that were sent to the port before are in its queue. Those to a port of
    /// this machine are, once they are sent; those to a port on another node travel first, and are
    /// kept meanwhile, also while that node is silent. They are in its queue then, and need not have
    /// been received: that only an answer says.
    ///
    /// # Errors
    ///
    /// [`RequestError::TimedOut`]: they may arrive later. [`RequestError::NodeLost`],
    /// [`RequestError::ServerDead`]: the node was given up, or the port died, before it was known that
    /// all have arrived; some may have. [`RequestError::Dropped`]: this machine's node could not tell.
    /// [`RequestError::Unsent`]: the right is a dead name; or the port takes requests, which are
    /// answered.
    ///
    /// ```
    /// use portolan::proxy::{ProxyPort, Taken};
    /// use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// right.flush(Deadline::NOW)?; // of this machine
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// right.send(Message::new(b"hello")?, WhenFull::Fail)?;
    /// let program = std::thread::spawn(move || right.flush(Deadline::NEVER).is_ok());
    /// assert!(matches!(proxy.take(Deadline::NEVER)?, Taken::Message(_))); // it travels to "hall"
    /// let Taken::Flush(answer) = proxy.take(Deadline::NEVER)? else {
    ///     return Err("the flush comes behind it".into());
    /// };
    /// answer.reply(Message::default())?; // once "hall" has acknowledged it
    /// assert!(program.join().expect("it ends"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self, deadline: impl Into<Deadline>) -> Result<(), RequestError> {
        let deadline = deadline.into();
        self.to.member.present()?;
        let mut port = self
            .replies
            .take(&self.to.member)
            .map_err(|error| RequestError::NoReplyPort(Box::new(error), Box::default()))?;
        let reply = port.next_right().pack();
        let posted = post(&self.to, &self.spot, reply, deadline);
        if !matches!(posted, Ok(true)) {
            self.replies.put(port);
            let unsent = |why| Refused::new(Message::default(), why).into();
            return posted.map(drop).map_err(unsent);
        }
        let told = port.wait_in(&mut Message::default(), Access::Later, deadline);
        if !matches!(
            told,
            Err(RequestError::TimedOut | RequestError::Disowned(_))
        ) {
            self.replies.put(port);
        }
        told
    }
}

/// Posts a flush to a proxied port: a request without content at a port that takes messages. Whether
/// there is anything to flush: a port of this machine has what was sent to it.
fn post(to: &Attached, spot: &Spot, reply: u64, deadline: Deadline) -> Result<bool, SendError> {
    let (member, queue) = (&to.member, to.queue());
    member.present()?;
    let takes = PortStatus::takes_flush(to.port.generation);
    loop {
        // Acquire: where its home is comes before.
        let status = PortStatus::unpack(queue.port.control.status.load(Ordering::Acquire));
        if !is_live(status, to.port) {
            return Err(SendError::DeadName);
        }
        if status.synchronous {
            return Err(SendError::WrongKind(
                "synchronous",
                "the answer of a request, which says more",
            ));
        }
        if !status.proxied {
            return Ok(false);
        }
        let mut empty = Message::default();
        let slot = inline_capacity(queue.slot_lines());
        let plan = wire::plan(member, &mut empty, Kind::Request, Some(reply), slot)?;
        let posted = match send::post(to, spot, takes, &plan, &mut empty) {
            Err(SendError::Full { slots }) => {
                send::full(to, &mut empty, WhenFull::Wait(deadline), slots, |empty| {
                    send::post(to, spot, takes, &plan, empty)
                })
            }
            other => other,
        };
        match posted {
            Ok(()) => return Ok(true),
            // Dead, or its home is here by now: then the next look says so.
            Err(SendError::DeadName | SendError::WrongKind(..)) => {}
            Err(why) => return Err(why),
        }
    }
}
