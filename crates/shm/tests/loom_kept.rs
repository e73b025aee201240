//! Segments that their maker keeps, and writes again and again (G3, M9), every interleaving, and
//! with a keeper or a reader that dies anywhere.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_kept -- --nocapture --test-threads 1
//! ```
#![cfg(loom)]

#[allow(dead_code, reason = "of these, one is used")]
mod modes;
mod support;

use loom::thread;
use modes::LOSSY;
use portolan_abi::port::{PortName, PortPhase, PortStatus};
use portolan_shm::atomic::death;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::channel::{Pen, Reading, Since};
use portolan_shm::queue::PortEntry;
use portolan_shm::rights::{
    Mark, RightEntry, RightRow, forget_mark, is_left_to_keeper, is_unused, joins_in_time, let_go,
    may_be_joined,
};
use support::channel::{By, World};
use support::{explore, explore_deaths, with};

const SEGMENT: PortName = PortName {
    index: 0,
    generation: 1,
};
/// The spaces: a subscriber, a publisher, which keeps the segment, and the host.
const READER: u8 = 1;
const KEEPER: u8 = 2;
const HOST: u8 = 3;
const SPACES: core::ops::RangeInclusive<u8> = READER..=HOST;

/// The first words of messages: one that tells of the segment, and one that does no more.
const TOLD: u64 = 7;
const GONE: u64 = 8;

/// What the memory of the segment holds: the sample at a position, or another's after the end.
const fn sample(position: u64) -> u64 {
    100 + position
}
const ANOTHERS: u64 = 99;

/// A segment with its memory, the rows of three spaces, and the channel that tells of it.
struct Room {
    channel: World,
    ports: [PortEntry; 1],
    rows: [[RightEntry; 1]; 3],
    memory: AtomicU64,
}

impl Room {
    /// The keeper has a right on the segment, in which the first sample lies, and has told of it.
    fn new() -> (Self, Pen) {
        let room = Self {
            channel: World::with_units(4, LOSSY, By::Itself),
            ports: [PortEntry::default()],
            rows: Default::default(),
            memory: AtomicU64::plain(sample(0)),
        };
        let status = PortStatus {
            phase: PortPhase::Open,
            shared: true,
            kept: true,
            owner: KEEPER,
            generation: SEGMENT.generation,
            ..PortStatus::FRESH
        };
        let word = &room.entry().control.status;
        word.store(status.pack(), Ordering::Release);
        room.row(KEEPER).add_send(SEGMENT);
        let mut pen = room.channel.channel().resume_writing(KEEPER);
        assert!(room.channel.write(&mut pen, TOLD));
        (room, pen)
    }

    fn entry(&self) -> &PortEntry {
        &self.ports[0]
    }

    fn row(&self, space: u8) -> RightRow<'_> {
        RightRow::new(&self.rows[usize::from(space - READER)], &self.ports)
    }

    fn is_open(&self) -> bool {
        let status = PortStatus::unpack(self.entry().control.status.load(Ordering::Acquire));
        status.phase == PortPhase::Open
    }

    /// Whether the keeper's is the only right.
    fn is_keepers_alone(&self) -> bool {
        SPACES.map(|s| self.row(s).sends(SEGMENT)).sum::<u32>() == 1
    }

    /// Takes back what was told at position 0, and writes the next sample to the memory, if no other
    /// space has a right on it; whether it did.
    fn write_again(&self, pen: &mut Pen) -> bool {
        self.channel.channel().take_back(pen, 0, GONE);
        if !self.is_keepers_alone() {
            return false;
        }
        let position = pen.position();
        self.memory.store(sample(position), Ordering::Relaxed);
        self.channel.write(pen, TOLD)
    }

    /// Ends what the keeper keeps; whether it closed the segment.
    fn let_go(&self) -> bool {
        let_go(self.entry(), SEGMENT, KEEPER);
        self.drop_right(KEEPER)
    }

    /// Drops a right, as the library does; whether the segment was closed.
    fn drop_right(&self, space: u8) -> bool {
        self.row(space).drop_send(SEGMENT) == 0 && self.close_unused(space)
    }

    fn close_unused(&self, space: u8) -> bool {
        let is_unused = || {
            let rows = || SPACES.map(|space| self.row(space));
            is_unused(self.entry(), SEGMENT, rows, || 0)
        };
        if is_left_to_keeper(self.entry(), SEGMENT) || !is_unused() {
            return false;
        }
        let Some(mark) = Mark::set(self.entry(), SEGMENT, space) else {
            return false;
        };
        if !is_unused() {
            mark.take_back();
            return false;
        }
        let closed = mark.close();
        if closed {
            // The memory is another's.
            self.memory.store(ANOTHERS, Ordering::Relaxed);
        }
        closed
    }

    /// What the host does about a space that has died.
    fn reclaim(&self, space: u8) -> bool {
        let status = PortStatus::unpack(self.entry().control.status.load(Ordering::Acquire));
        if status.phase == PortPhase::Open && status.shared && status.owner == space {
            forget_mark(self.entry(), status);
        }
        self.row(space).forget(0);
        self.close_unused(HOST)
    }

    fn reading(&self) -> Reading {
        self.channel.channel().start_reading(Since::Last(4))
    }

    /// The first word of the next message, and its position.
    fn next(&self, reading: &mut Reading) -> Option<(u64, u64)> {
        let position = reading.position();
        let first = |words: &[AtomicU64], _| Some(words[0].load(Ordering::Relaxed));
        let (word, _) = self.channel.channel().take_with(reading, first)?;
        Some((word, position))
    }

    /// Makes a right on the memory that the message at `position` told of, reads it, and drops the
    /// right: whether it came in time, and whether it closed the segment.
    fn use_told(&self, position: u64) -> (bool, bool) {
        self.row(READER).add_send(SEGMENT);
        let in_time = joins_in_time(self.entry(), SEGMENT).is_some_and(|joined| {
            let told_by = self.channel.channel().still_begins(position, TOLD);
            assert!([0, KEEPER].contains(&joined.keeper));
            told_by == Some(KEEPER)
        });
        if in_time {
            let found = self.memory.load(Ordering::Relaxed);
            assert_eq!(found, sample(position), "written under a reader");
        }
        (in_time, self.drop_right(READER))
    }

    /// Takes the next sample, if there is one.
    fn take(&self, reading: &mut Reading) -> (bool, bool) {
        match self.next(reading) {
            Some((TOLD, position)) => self.use_told(position),
            Some((other, _)) => {
                assert_eq!(other, GONE);
                (false, false)
            }
            None => (false, false),
        }
    }
}

/// M9: a keeper takes its reference back and writes the memory again, beside a reader that reads the
/// reference, or has read it.
#[test]
fn memory_is_written_again_under_no_reader() {
    explore("take back and write, take twice", 6, || {
        let (room, mut pen) = Room::new();
        with(room, |room| {
            let reader = thread::spawn(|| {
                let mut reading = room.reading();
                let (one, two) = (room.take(&mut reading), room.take(&mut reading));
                assert!(!one.1 && !two.1, "closed while it is kept");
                (one.0, two.0)
            });
            let written = room.write_again(&mut pen);
            let (_, second) = reader.join().unwrap();
            assert!(written || !second);
            assert!(room.is_keepers_alone(), "every right was dropped");
            assert!(room.let_go(), "nobody's, and still open");
        });
    });
}

/// M9: the same, when the unit that told of it has been written over meanwhile, by a message that
/// begins with the same word.
#[test]
fn memory_is_written_again_after_its_unit_was() {
    explore("write over and again, use", 6, || {
        let (room, mut pen) = Room::new();
        with(room, |room| {
            for _ in 1..4 {
                assert!(room.channel.write(&mut pen, GONE));
            }
            // It has read the reference, and is slow to use it.
            let reader = thread::spawn(|| room.use_told(0));
            assert!(room.channel.write(&mut pen, TOLD));
            room.write_again(&mut pen);
            let (_, closed) = reader.join().unwrap();
            assert!(!closed, "closed while it is kept");
            assert!(room.let_go(), "nobody's, and still open");
        });
    });
}

/// M9: the same, of a reference that was taken back before its unit was written over.
#[test]
fn memory_is_written_again_before_its_unit_is() {
    explore("take back, write again and over, use", 6, || {
        let (room, mut pen) = Room::new();
        with(room, |room| {
            for _ in 1..4 {
                assert!(room.channel.write(&mut pen, GONE));
            }
            let reader = thread::spawn(|| room.use_told(0));
            // The next sample lies in the unit that told of the first.
            room.write_again(&mut pen);
            let (_, closed) = reader.join().unwrap();
            assert!(!closed, "closed while it is kept");
            assert!(room.let_go(), "nobody's, and still open");
        });
    });
}

/// G3: a keeper lets go while a reader takes and drops: one of them closes the segment.
#[test]
fn a_segment_that_is_let_go_is_closed_once() {
    explore("let go, take and drop", 6, || {
        let (room, _) = Room::new();
        with(room, |room| {
            let reader = thread::spawn(|| room.take(&mut room.reading()));
            let by_keeper = room.let_go();
            let (_, by_reader) = reader.join().unwrap();
            assert!(by_keeper != by_reader, "closed by both, or by neither");
            assert!(!room.is_open());
        });
    });
}

/// G3: who looks at all ports takes no right on a segment that is kept, and closes none.
#[test]
fn a_kept_segment_is_closed_by_nobody_else() {
    explore("look, take and drop", 6, || {
        let (room, _) = Room::new();
        with(room, |room| {
            let host = thread::spawn(|| {
                assert!(!may_be_joined(room.entry(), SEGMENT));
                room.close_unused(HOST)
            });
            let (in_time, closed) = room.take(&mut room.reading());
            assert!(in_time && !closed && !host.join().unwrap());
            assert!(room.let_go());
        });
    });
}

/// G3, M9: the keeper dies anywhere while it writes the memory again, or lets go of it, beside a reader.
/// The host returns what it kept.
#[test]
fn a_keeper_that_dies_leaves_a_segment_that_is_closed() {
    explore_deaths("the keeper", 4, |accesses| {
        let (room, mut pen) = Room::new();
        with(room, |room| {
            let reader = thread::spawn(|| room.take(&mut room.reading()));
            let outcome = death::after(accesses, || {
                room.write_again(&mut pen);
                room.let_go()
            });
            let closed = outcome.unwrap_or_else(|| room.reclaim(KEEPER));
            let (_, by_reader) = reader.join().unwrap();
            // It may have died after it closed it.
            assert!(!(closed && by_reader), "closed twice");
            assert!(!room.is_open(), "nobody's, and still open");
            outcome.is_none()
        })
    });
}

/// G3, M9: a reader dies anywhere while it takes a sample; its keeper writes the memory again after the
/// host has returned what the reader had, and closes it in the end.
#[test]
fn a_reader_that_dies_keeps_nothing() {
    explore_deaths("the reader", 4, |accesses| {
        let (room, mut pen) = Room::new();
        with(room, |room| {
            let host = thread::spawn(move || {
                let taken = death::after(accesses, || room.take(&mut room.reading()));
                let closed = match taken {
                    Some((_, closed)) => closed,
                    None => room.reclaim(READER),
                };
                assert!(!closed, "closed while it is kept");
                taken.is_none()
            });
            room.write_again(&mut pen);
            let died = host.join().unwrap();
            assert!(room.is_keepers_alone(), "a dead space's right counts");
            assert!(room.write_again(&mut pen));
            assert!(room.let_go(), "nobody's, and still open");
            died
        })
    });
}
