//! Uses memory that others have too: segments, and signals about them.

use super::{Doing, SHORT, Worker};
use portolan::{Deadline, Domain, HandlerId, Listener, ListenerOptions, Segment};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Few, so that making, finding and the last drop meet.
const NAMES: [&str; 2] = ["north", "south"];
/// Bytes: a small extent, and one of the large part.
const SIZES: [usize; 2] = [5000, 3 << 20];

impl Worker {
    /// Makes a segment or finds another's, and sees that it stays while there is a right on it.
    pub(super) fn share(&mut self) {
        self.doing(Doing::Sharing);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        let name = NAMES[usize::from(self.random.once_in(2))];
        let bytes = SIZES[usize::from(self.random.once_in(8))];
        let made = domain.make_segment(Some(name), bytes);
        let found = made
            .ok()
            .or_else(|| domain.find_segment(name, Deadline::NOW).ok());
        let Some(segment) = found else {
            return;
        };
        // A word for each worker: no other worker writes ours.
        let index = self.at % segment.words().len();
        let mark = self.random.next();
        segment.words()[index].store(mark, Ordering::SeqCst);
        let again = segment.clone();
        drop(segment);
        if self.random.once_in(2) {
            self.tell_and_listen(&domain, &again);
        }
        if again.words()[index].load(Ordering::SeqCst) != mark {
            self.corrupt("a segment was somebody else's while we had a right on it");
        }
    }

    fn tell_and_listen(&mut self, domain: &Domain, segment: &Segment) {
        let Ok(mut listener) = domain.listen(ListenerOptions::default()) else {
            return;
        };
        let (start, len) = (segment.address(), segment.len());
        let from = start + self.random.below(4000);
        let Ok(handler) = listener.on(from..start + len, |_| {}) else {
            return;
        };
        let _ = domain.signal(from);
        self.move_away(domain, &mut listener, handler);
        // Now and then long enough that others signal while it sleeps.
        let sleeps = self.random.once_in(4);
        let _ = listener.wait(Duration::from_millis(1));
        while listener.poll() > 0 {}
        if sleeps {
            let _ = listener.wait(SHORT);
        }
    }

    /// Signals an address of a segment, which reaches its listeners.
    pub(super) fn tell(&mut self) {
        self.doing(Doing::Sharing);
        let Some(domain) = &self.domain else { return };
        let name = NAMES[usize::from(self.random.once_in(2))];
        let Ok(segment) = domain.find_segment(name, Deadline::NOW) else {
            return;
        };
        for _ in 0..=self.random.below(8) {
            let at = segment.address() + self.random.below(segment.len());
            let _ = domain.signal(at);
        }
    }

    fn move_away(&mut self, domain: &Domain, listener: &mut Listener, handler: HandlerId) {
        let Ok(mut other) = domain.listen(ListenerOptions::default()) else {
            return;
        };
        if self.random.once_in(2) && listener.give(handler, &other.outbox()).is_ok() {
            let _ = other.wait(Duration::from_millis(1));
        }
    }
}
