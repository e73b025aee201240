//! A listener gives a handler to another listener, with the signals that had come for it.
//!
//! ```text
//! giver:   puts the handler in the inbox; changes its entry; takes the handler's signals out of
//!          its FIFO (S5 of `shm/signal`) and puts them in too; unlocks the inbox; wakes the target
//! target:  whenever it has looked for a signal: is something in the inbox? takes it in, the
//!          signals there before those of its own FIFO
//! ```
//!
//! A listener whose upcalls' thread has ended gives their handlers to itself.

use super::delivery::How;
use super::handlers::Handling;
use super::inbox::{Inbox, Parting};
use super::upcall::Upcalls;
use super::{HandlerId, Listener, SignalError, wake_reader};
use crate::space::Member;
use portolan_shm::mark;
use std::fmt;
use std::sync::{Arc, Weak};

/// Where handlers can be given to a listener, by those of its space ([`Listener::give`]).
#[derive(Clone)]
pub struct Outbox {
    /// Whose the listener is; no thread that could give to it keeps it.
    member: Weak<Member>,
    fifo: u32,
    inbox: Arc<Inbox>,
}

impl Listener {
    /// Where other listeners of this space can give handlers to this one.
    pub fn outbox(&self) -> Outbox {
        Outbox {
            member: Arc::downgrade(&self.intake.member),
            fifo: self.intake.index,
            inbox: Arc::clone(&self.inbox),
        }
    }

    /// Gives a handler to another thread's listener. What had come for it goes along, however
    /// small the other's FIFO is, and wakes it. No signal is lost; one that is signalled
    /// meanwhile, or waits for other handlers of the other listener too, may be handled twice.
    /// One that was an upcall is handled where the other listener waits.
    ///
    /// # Errors
    ///
    /// [`SignalError`]; the handler stays where it is.
    ///
    /// ```
    /// # use portolan::{Domain, ListenerOptions};
    /// # let domain = Domain::private()?;
    /// # let segment = domain.make_segment(None, 4096)?;
    /// # let at = segment.address();
    /// let mut here = domain.listen(ListenerOptions::default())?;
    /// let mut there = domain.listen(ListenerOptions::default())?;
    /// let handler = here.on(at..at + 64, |_| {})?;
    /// domain.signal(at)?;
    /// here.give(handler, &there.outbox())?;
    /// // What had come already goes along.
    /// assert_eq!((here.poll(), there.poll()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give(&mut self, handler: HandlerId, to: &Outbox) -> Result<(), SignalError> {
        self.intake.member.present()?;
        // Its FIFO's number names another one here.
        if !std::ptr::eq(to.member.as_ptr(), Arc::as_ptr(&self.intake.member)) {
            return Err(SignalError::OtherDomain);
        }
        self.adopt();
        if Arc::ptr_eq(&self.inbox, &to.inbox) && self.intake.handlers.place(handler.0).is_some() {
            // It is where it is to go.
            return Ok(());
        }
        self.hand_over(handler, to)
    }

    fn hand_over(&mut self, handler: HandlerId, to: &Outbox) -> Result<(), SignalError> {
        // Else an upcall would find a signal without the handler, which leaves first.
        if let Some(upcalls) = &mut self.upcalls {
            upcalls.pause();
        }
        let given = self.hand_over_at_rest(handler, to);
        if let Some(upcalls) = &mut self.upcalls {
            upcalls.go_on();
        }
        given
    }

    /// While no upcall of ours handles anything.
    fn hand_over_at_rest(&mut self, handler: HandlerId, to: &Outbox) -> Result<(), SignalError> {
        let handling = self
            .let_go(handler.0)
            .ok_or(SignalError::UnknownHandler(handler))?;
        let (range, how) = (handling.range.clone(), handling.how);
        let here = match how {
            How::Upcall => How::Doorbell,
            other => other,
        };
        let sent = Handling {
            how: here,
            ..handling
        };
        // Until its signals go there too: a listener that is dropped has both, or neither; and
        // one that has been told by way of the new FIFO waits for what came before.
        let mut inbox = to.inbox.lock();
        // First the function, so that it is there when the first signal is.
        if let Err(back) = inbox.post(sent) {
            drop(inbox);
            self.take_on(Handling { how, ..back });
            return Err(SignalError::ListenerGone);
        }
        let member = Arc::clone(&self.intake.member);
        let tables = member.tables();
        if let Some(entry) = tables.ranges().handlers().get(usize::from(handler.0)) {
            entry.move_to(to.fifo);
        }
        mark!("signal.moved");
        // Not by way of the FIFO, which may be full.
        let had = match &mut self.upcalls {
            Some(upcalls) if how == How::Upcall => upcalls.part_with(handler.0, &range),
            _ => self.intake.part_with(handler.0, &range),
        };
        let brought = inbox.bring(had);
        drop(inbox);
        if brought && let Some(fifo) = tables.fifo(to.fifo) {
            wake_reader(&member, &fifo.entry().control);
        }
        Ok(())
    }

    /// Takes in what was given to us.
    #[inline]
    pub(super) fn adopt(&mut self) {
        if self.inbox.is_posted() || self.is_heir() {
            self.take_in();
        }
    }

    /// Whether the thread has ended that upcalls interrupted.
    #[inline]
    pub(super) fn is_heir(&self) -> bool {
        self.upcalls.as_ref().is_some_and(Upcalls::have_ended)
    }

    /// The handlers of a thread that has ended become ours, as if they were given to us.
    fn inherit(&mut self) {
        let own = self.outbox();
        let ids = self.upcalls.as_mut().map_or_else(Vec::new, Upcalls::ids);
        for id in ids {
            // It is there, and so are we.
            let _ = self.hand_over(HandlerId(id), &own);
        }
        if let Some(mut upcalls) = self.upcalls.take() {
            let (dropped, unhandled) = &mut self.inherited;
            *dropped += upcalls.dropped();
            *unhandled += upcalls.unhandled();
            upcalls.close();
        }
    }

    #[cold]
    pub(super) fn take_in(&mut self) {
        if self.is_heir() {
            self.inherit();
        }
        let given = self.inbox.lock().take();
        for Parting { handling, had } in given {
            self.intake.take_in(handling, had);
        }
        self.choose_rest();
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outbox").field(&self.fifo).finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Domain, ListenerOptions};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn upcalls_wait_while_their_handler_is_given_away() -> Result<(), Box<dyn std::error::Error>> {
        let domain = Domain::private()?;
        let segment = domain.make_segment(None, 4096)?;
        let at = segment.address();
        let mut to = domain.listen(ListenerOptions::default())?;
        let mut from = domain.listen(ListenerOptions::default())?;
        let (handler, note) = from.note(at..at + 64)?;
        let outbox = to.outbox();
        let (begin, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The giver waits for it, and has let the handler go by then.
                let inbox = outbox.inbox.lock();
                begin.send(()).unwrap();
                for _ in 0..50 {
                    assert_eq!(domain.signal(at).unwrap(), 1);
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(inbox);
            });
            begun.recv().unwrap();
            from.give(handler, &outbox).unwrap();
        });
        to.poll();
        assert_eq!((from.unhandled(), to.unhandled()), (0, 0));
        assert!(note.count() >= 50, "{} of 50", note.count());
        Ok(())
    }
}
