//! A thread that waits for signals, for models: its FIFO of two slots, and what it sleeps on.

use super::Futex;
use portolan_shm::signal::{Fifo, FifoControl, FifoEntry, Head, Pushed};

pub struct Listener {
    entry: FifoEntry,
    futex: Futex,
}

impl Listener {
    pub fn new() -> (Self, Head) {
        let entry = FifoEntry::default();
        let (_, head) = Fifo::open(&entry, 2);
        let futex = Futex::default();
        (Self { entry, futex }, head)
    }

    pub fn fifo(&self) -> Fifo<'_> {
        Fifo::new(&self.entry).unwrap()
    }

    /// Signals, and wakes the thread if that is owed: whether there was room.
    pub fn push(&self, offset: u64) -> bool {
        match self.fifo().push(offset) {
            Pushed::Done => true,
            Pushed::Wake => {
                self.fifo().rouse(|control| self.wake_by(control));
                true
            }
            Pushed::Full => false,
        }
    }

    fn wake_by(&self, control: &FifoControl) {
        self.futex.change_and_wake(&control.doorbell);
    }

    /// Wakes the thread, as the host does for the dead.
    pub fn wake(&self) {
        self.wake_by(&self.entry.control);
    }

    /// Waits for a signal; `None` once it is over and none is there.
    pub fn wait(&self, head: &mut Head, over: impl Fn() -> bool) -> Option<u64> {
        let fifo = self.fifo();
        loop {
            let last = over();
            if let Some(offset) = fifo.pop(head) {
                return Some(offset);
            }
            if last {
                return None;
            }
            if let Some(bell) = fifo.arm(head)
                && !over()
            {
                self.futex.wait(&self.entry.control.doorbell, bell);
            }
            fifo.disarm();
        }
    }
}
