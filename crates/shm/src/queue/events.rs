//! Tells a port's receiver of events beside messages.
//!
//! - **E1** An event is told to the port that it is for, or to none: the word of events holds the
//!   port's generation, and is written anew at bind. What names a request beside it does too.

use super::{PortEntry, SleepLine};
use crate::atomic::Ordering;
use portolan_abi::port::{PortName, PortPhase, PortStatus, RightKind, RightWord, event};

impl SleepLine {
    /// Clears all events. Only the space that is binding the port of this generation calls it.
    pub fn clear_events(&self, generation: u32) {
        // An exchange, among the exchanges of those who told the port before of something. The
        // status follows with Release.
        self.events.swap(event::none(generation), Ordering::AcqRel);
    }

    /// Adds an event; `false` if the entry is another port's.
    pub fn raise(&self, generation: u32, event: u32) -> bool {
        let mut was = self.events.load(Ordering::Acquire);
        while event::is_of(was, generation) {
            let with = was | event;
            match self
                .events
                .compare_exchange(was, with, Ordering::SeqCst, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        false
    }

    /// The events that wait for the receiver of this generation.
    #[inline]
    pub fn events_of(&self, generation: u32) -> u32 {
        // SeqCst: a receiver looks after it has said that it will sleep, a sender of events at
        // that after it has told of one.
        let word = self.events.load(Ordering::SeqCst);
        if event::is_of(word, generation) {
            word & event::ALL
        } else {
            0
        }
    }

    /// Takes an event back. Only for the port's receiver.
    pub fn take_event(&self, event: u32) {
        // SeqCst: before whatever the receiver looks at to see whether the event still holds.
        self.events.fetch_and(!event, Ordering::SeqCst);
    }
}

impl PortEntry {
    /// Notes the request of `port` that will not be answered, before the event is raised; `false`
    /// if the port is dead.
    pub fn note_unanswered(&self, port: PortName, tag: u32) -> bool {
        let word = RightWord {
            kind: RightKind::SendOnce,
            port,
            tag,
        };
        let unanswered = &self.sleep.unanswered;
        let mut was = unanswered.load(Ordering::Acquire);
        loop {
            // Looked at after the word: if the entry is another port's by now, and its word is
            // written, the exchange fails.
            let status = PortStatus::unpack(self.control.status.load(Ordering::Acquire));
            let lives = matches!(status.phase, PortPhase::Open | PortPhase::Moving);
            if !lives || status.generation != port.generation {
                return false;
            }
            // Release: the tag before the event.
            match unanswered.compare_exchange(was, word.pack(), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
    }

    /// The tag of the request of `port` that will not be answered.
    pub fn unanswered(&self, port: PortName) -> Option<u32> {
        RightWord::unpack(self.sleep.unanswered.load(Ordering::Acquire))
            .filter(|word| word.port == port)
            .map(|word| word.tag)
    }
}
