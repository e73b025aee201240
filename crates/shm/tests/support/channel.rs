//! A channel as the models use it.

use super::Futex;
use loom::sync::atomic::AtomicBool;
use portolan_abi::channel::Shape;
use portolan_shm::atomic::{AtomicU64, Ordering, asked};
use portolan_shm::channel::{
    Barriers, Channel, Finished, Head, Look, Meta, Mode, Pen, ReaderEntry, Reading,
};

/// How readers come by a writer's barriers.
#[derive(Clone, Copy, PartialEq)]
pub enum By {
    /// It makes its own, always.
    Itself,
    /// The kernel has it make one.
    Kernel,
    /// Readers wait until its stores are seen, as they are after any barrier.
    Time,
    /// They do not.
    Mistake,
}

impl Barriers for By {
    fn everywhere(&self) -> bool {
        match self {
            Self::Itself => panic!("nobody asks then"),
            Self::Kernel => asked::everywhere(),
            Self::Mistake => {}
            Self::Time => return false,
        }
        true
    }

    fn by_time(&self) {
        asked::everywhere();
    }
}

/// A channel in memory of its own, with the futexes of its two sides.
pub struct World {
    barriers: By,
    pub head: Head,
    readers: Vec<ReaderEntry>,
    words: Vec<AtomicU64>,
    /// What readers sleep on, and a writer.
    pub bell: Futex,
    pub room: Futex,
}

impl World {
    pub fn new(mode: Mode) -> Self {
        Self::with_barriers(mode, By::Itself)
    }

    pub fn with_barriers(mode: Mode, barriers: By) -> Self {
        Self::with_units(4, mode, barriers)
    }

    pub fn with_units(units: u64, mode: Mode, barriers: By) -> Self {
        let shape = Shape::new(64, units, 2).unwrap();
        let world = Self {
            barriers,
            head: Head::default(),
            readers: (0..2).map(|_| ReaderEntry::default()).collect(),
            words: (0..8 * units).map(|_| AtomicU64::new(0)).collect(),
            bell: Futex::default(),
            room: Futex::default(),
        };
        Channel::make(&world.head, &world.readers, &world.words, shape, mode).unwrap();
        world
    }

    pub fn channel(&self) -> Channel<'_> {
        Channel::open(&self.head, &self.readers, &self.words).unwrap()
    }

    /// A message whose two words are both `n`.
    pub fn write(&self, pen: &mut Pen, n: u64) -> bool {
        let message = [n.to_le_bytes(), n.to_le_bytes()].concat();
        match self.channel().write(pen, &[&message]) {
            Ok(Finished::Wake) => self.channel().rouse(|_| {}, |_| self.bell.wake()),
            Ok(Finished::Done) => {}
            Err(_) => return false,
        }
        true
    }

    /// Wakes the readers that sleep; a reader that is about to sleep looks once more.
    pub fn wake_readers(&self) {
        self.channel().rouse(|_| {}, |_| self.bell.wake());
    }

    pub fn write_waiting(&self, pen: &mut Pen, n: u64) {
        while !self.write(pen, n) {
            if let Some(bell) = self.channel().wait_for_room(pen, 1) {
                self.room.wait(&self.head.room.room, bell);
            }
        }
    }

    pub fn read(&self, reading: &mut Reading) -> Option<u64> {
        let channel = self.channel();
        loop {
            let mut out = [0; 16];
            // Half of them in one go.
            if reading.position().is_multiple_of(2)
                && let Some((len, finished)) = channel.take_one(reading, &mut out)
            {
                self.owed(finished);
                let n = u64::from_le_bytes(out[..8].try_into().unwrap());
                assert_eq!((len, &out[8..]), (16, &n.to_le_bytes()[..]), "torn");
                return Some(n);
            }
            match channel.look(reading) {
                Look::Nothing => {
                    self.owed(channel.found_nothing(reading));
                    return None;
                }
                Look::Missed(_) => {}
                Look::Dropped => panic!("dropped"),
                Look::Garbled(why) => panic!("{why}"),
                Look::Unit { len, flags } => {
                    assert_eq!(flags, Meta::FIRST | Meta::LAST | Meta::CLOSED);
                    if channel.copy(reading, &mut out) != Some(len) {
                        continue;
                    }
                    // A dead writer's is voided.
                    let whole =
                        !channel.mode().many_writers || channel.is_whole(reading, &out[..len]);
                    self.owed(channel.advance(reading, len, true));
                    if whole {
                        let n = u64::from_le_bytes(out[..8].try_into().unwrap());
                        assert_eq!((len, &out[8..]), (16, &n.to_le_bytes()[..]), "torn");
                        return Some(n);
                    }
                }
            }
        }
    }

    pub fn owed(&self, finished: Finished) {
        if finished == Finished::Wake {
            self.channel().rouse_writer(|_| self.room.wake());
        }
    }

    pub fn read_waiting(&self, reading: &mut Reading, over: &AtomicBool) -> Option<u64> {
        loop {
            let last = over.load(Ordering::SeqCst);
            if let Some(n) = self.read(reading) {
                return Some(n);
            }
            if last {
                return None;
            }
            if self.channel().is_stuck(reading) {
                // Its writer is at work: no writer stops in the middle.
                loom::thread::yield_now();
                continue;
            }
            let (bell, owed) = self.channel().arm(reading, &self.barriers);
            self.owed(owed);
            if let Some(bell) = bell
                && !over.load(Ordering::SeqCst)
            {
                self.bell.wait(&self.head.sleep.doorbell, bell);
            }
        }
    }
}
