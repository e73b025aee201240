//! A channel carries a stream of messages in a ring of units, from one writer to any number of
//! readers (or from several writers, on a channel that many call on).
//!
//! ```text
//!           begin               finish                begin, a lap later
//! done(p-n) -----> busy(p) --------------> done(p) -------------------> busy(p+n)
//!                          (stamp, last)
//! ```
//!
//! A unit is its own evidence: the stamp in its first word says which position of the
//! stream it holds. A reader watches the unit that it expects next, so a small message
//! reaches it with **one line transfer**, and one write serves every reader.
//!
//! - *Message consistency*: the writer never waits. A reader that is overtaken finds a
//!   stamp beyond the one it expects, and knows exactly which units it missed.
//! - *Reliable*: the writer stays within a lap of the slowest reader that it waits for.
//!
//! # Cost of a message of one line
//!
//! | step | lines that come from another core | locked instructions |
//! |---|---|---|
//! | begin: stamp busy | **the unit** (readers watch it) | 0; 1 with several writers |
//! | payload, meta, stamp done *(commit point)* | - | 0; 1 if it ends a signalling unit and a reader slept lately (M6) |
//! | does a reader sleep? | - (a line that changes when one does) | 0 |
//! | where the end is, for latecomers | - (the writer's line) | 0 |
//! | find, copy, look at the stamp again | **the unit** | 0 |
//! | where the reader is (reliable) | - (the reader's line) | 0; 1 a quarter of a lap |
//! | the first look in vain after that (reliable) | - (a line that changes when a writer waits) | a barrier |
//!
//! A wake is two locked instructions of the waker's besides the system call, and going to
//! sleep two of the reader's.
//!
//! Of 32 bytes the writer makes 7 stores: stamp, two of payload, meta, stamp, and two of
//! where it is. They wait in order for the unit's line, and the processor holds few, so
//! a stream would go as fast as lines come one after another. Therefore the writer asks for the
//! line of a later unit before it writes this one, where no reader watches it yet.
//!
//! # Invariants
//!
//! - **M1** Position `p` lies in unit `p mod n`. A unit's stamp only grows.
//! - **M2** A reader that copies a payload and finds the same `done(p)` before and after has
//!   the bytes written at `p`. With several writers a checksum, seeded with the position, tells
//!   whole units from those that a stopped writer scribbled over.
//! - **M3** One writer: units of a message lie at consecutive positions, from one that says
//!   *first* to one that says *last*. If a writer dies, a *first* follows a message that
//!   has no *last*; readers throw the beginning away.
//! - **M4** Reliable: no unit at or beyond the cursor of a live reader with
//!   [`Lagging::Wait`] is begun anew. A reader that joins is seen before the writer next
//!   extends its window, or sees where that window began.
//! - **M5** A reader that sleeps has announced it before its last look; a writer that ends
//!   a signalling unit looks for sleepers after publishing. A writer that waits for room
//!   has announced it before its last look at the cursors; a reader looks for it at every
//!   quarter of a lap, at its first look in vain after it has moved, and before it sleeps.
//! - **M6** A writer that has found no sleeper for a while says that it is *relaxed*, makes a
//!   full barrier, and from then on looks for sleepers without one. A reader that has
//!   announced its sleep, and finds a relaxed writer, has a barrier made in the writer's
//!   process ([`Barriers`]) before its last look. Who cannot says so for good (`FENCED`, in
//!   the word that the writer looks at) and waits once, until what was stored before that is
//!   seen by time.
//!
//! - **M7** No waker of a channel clears a mark before it has made the wake, so a waker that stops
//!   in between loses no wake: the next one finds the mark too. (The mark of senders that wait for
//!   room in a *queue* is cleared before the wake, because that queue's receiver is their only
//!   waker.) The writer that waits for room clears its own mark. Readers share one mark, and each
//!   of them adds one to the *arming count* when it arms, after it has read the doorbell. A waker reads mark and count, changes the doorbell, wakes all readers,
//!   and then clears the mark only if the count is the same: the readers that armed before were
//!   woken, or find that the doorbell has changed.
//!
//! - **M8** A reader that has enabled the channel's signals says so in its entry, then by a mark
//!   (`HANDLED`) in the word that the writer looks at, then looks for what is there, with the
//!   barriers of M5 and M6: what that look does not find is signalled. A writer that finds the mark
//!   owes the address of every signalling unit that it ends; if it dies first, the host owes each
//!   handler one. The mark is taken back once no live reader's entry says so, and only if none has
//!   enabled or armed since, as in M7.
//! - **M9** The writer may take a message of one unit back: it changes the first word, which no
//!   stamp covers. A reader that has said that it uses what the message tells of, and then finds
//!   word and stamp as they were, has said so before the writer looks; a writer that has
//!   taken the message back, or has begun its unit anew, sees from its next barrier on every reader
//!   that will find them as they were (`taken_back`).
//!
//! Message consistency and signalling units are Cheriton and Kutter's (*Optimized
//! Memory-Based Messaging*, sections 2.2, 2.3); the wrap count of their checksum is the
//! position in the stamp here.

mod handlers;
mod reader;
mod taken_back;
mod writer;

pub use reader::{Barriers, CopyOut, Garbled, Look, NoEntry, Reading, Since};
pub use writer::{Fill, Finished, NotWritten, Pen};

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::mark;
use portolan_abi::channel::{
    MAGIC, Purpose, ReaderState, Shape, Stamp, UNIT_HEAD_WORDS, UnitPhase, WriterWord,
};
use portolan_abi::sum;

pub use portolan_abi::channel::{Lagging, Meta};

/// The head of a channel.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Head {
    /// Written once; but for who writes.
    pub config: Config,
    /// Written by the writer.
    pub writer: WriterLine,
    /// Written by readers that sleep; read at every signal.
    pub sleep: SleepLine,
    /// Written by a writer that waits for room; read by readers now and then.
    pub room: RoomLine,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Head>() as u64 == portolan_abi::channel::HEAD_BYTES);
// Where observers find what they read, who map no channel.
#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    use portolan_abi::channel::word;
    assert!(8 * word::UNIT == offset_of!(Head, config.unit));
    assert!(8 * word::UNITS == offset_of!(Head, config.units));
    assert!(8 * word::READERS == offset_of!(Head, config.readers));
    assert!(8 * word::MODE == offset_of!(Head, config.mode));
    assert!(8 * word::OWNER == offset_of!(Head, config.owner));
    assert!(8 * word::PURPOSE == offset_of!(Head, config.purpose));
    assert!(8 * word::NEXT == offset_of!(Head, writer.next));
    assert!(8 * word::SLEEP == offset_of!(Head, sleep.sleepers));
    assert!(8 * word::READER_STATE == offset_of!(ReaderEntry, state));
    assert!(8 * word::READER_CURSOR == offset_of!(ReaderEntry, cursor));
};

/// See [`Head::config`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct Config {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Bytes of a unit.
    pub unit: AtomicU64,
    /// Units.
    pub units: AtomicU64,
    /// Entries for readers.
    pub readers: AtomicU64,
    /// [`Mode`], packed.
    pub mode: AtomicU64,
    /// [`WriterWord`]. Here, where readers that find nothing may look at it all the time.
    owner: AtomicU64,
    /// What the maker says of its content, for readers to compare.
    pub content: AtomicU64,
    /// What it is used for ([`portolan_abi::channel::Purpose`]), for observers.
    pub purpose: AtomicU64,
}

/// See [`Head::writer`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct WriterLine {
    /// The position that is written next: about, with several writers.
    pub next: AtomicU64,
    /// The writer looks for sleepers without a barrier of its own (M6).
    relaxed: AtomicU64,
}

/// See [`Head::sleep`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct SleepLine {
    /// [`ASLEEP`], [`FENCED`], [`HANDLED`], and how many [`ARMING`]s were taken (M7).
    sleepers: AtomicU64,
    /// Their futex.
    pub doorbell: AtomicU32,
}

/// Of [`SleepLine`]: readers sleep, or are about to.
const ASLEEP: u64 = 1;
/// Of [`SleepLine`]: a reader cannot have other processes' barriers made (M6). For good.
const FENCED: u64 = 2;
/// Of [`SleepLine`]: readers have handlers, which are signalled the addresses of units (M8).
const HANDLED: u64 = 4;
/// Of [`SleepLine`]: one for each time that a reader has armed, or enabled signals. They do not
/// come round.
const ARMING: u64 = 8;

/// See [`Head::room`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct RoomLine {
    /// The writer waits. Written by the writer alone (M7).
    pub waiting: AtomicU32,
    /// Its futex.
    pub room: AtomicU32,
}

/// A reader's entry; written by that reader, except that the writer drops it.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ReaderEntry {
    /// [`ReaderState`].
    state: AtomicU64,
    /// The position that it reads next.
    cursor: AtomicU64,
    /// What is raised when the reader must be woken: a place of a wait set, 0 for none.
    link: AtomicU64,
    /// Not 0: its space has handlers for the units' addresses (M8).
    handled: AtomicU64,
    spare: [AtomicU64; 4],
}

impl ReaderEntry {
    /// What it is used for.
    pub fn state(&self) -> ReaderState {
        ReaderState::unpack(self.state.load(Ordering::Acquire))
    }

    /// The position that its reader reads next.
    pub fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::Acquire)
    }

    /// The place of a wait set that its reader waits at, 0 for none.
    pub fn link(&self) -> u64 {
        // SeqCst: pairs with `Channel::link`.
        self.link.load(Ordering::SeqCst)
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ReaderEntry>() as u64 == portolan_abi::channel::READER_BYTES);

/// How a channel is used; set when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The writer waits for readers ([`Lagging::Wait`]).
    pub reliable: bool,
    /// Several spaces write: each unit is a message, and carries a checksum.
    pub many_writers: bool,
    /// Units are written at fixed places, without heads and checks: a frame buffer.
    pub raw: bool,
    /// Bytes between signals; see [`Signalling`].
    pub signalling: Signalling,
}

/// When a writer looks for readers that sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signalling {
    /// Never: readers poll.
    Never,
    /// At the end of every message.
    #[default]
    Message,
    /// At every so many bytes of units, a multiple of a cache line.
    Bytes(u32),
}

impl Mode {
    /// As a word.
    pub fn pack(self) -> u64 {
        let (kind, bytes) = match self.signalling {
            Signalling::Never => (0, 0),
            Signalling::Message => (1, 0),
            Signalling::Bytes(bytes) => (2, bytes),
        };
        u64::from(self.reliable)
            | u64::from(self.many_writers) << 1
            | u64::from(self.raw) << 2
            | kind << 8
            | u64::from(bytes) << 32
    }

    /// From a word.
    pub fn unpack(word: u64) -> Self {
        let [flags, kind, _, _, a, b, c, d] = word.to_le_bytes();
        Self {
            reliable: flags & 1 != 0,
            many_writers: flags & 2 != 0,
            raw: flags & 4 != 0,
            signalling: match kind {
                1 => Signalling::Message,
                2 => Signalling::Bytes(u32::from_le_bytes([a, b, c, d])),
                _ => Signalling::Never,
            },
        }
    }
}

/// Why memory is not a channel. The maker's, or a hostile peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAChannel {
    /// It does not begin as one.
    #[error("it begins with {found:#x} and not as a channel does")]
    Magic {
        /// What stands there.
        found: u64,
    },
    /// Its head says what cannot be.
    #[error("its head is wrong: {0}")]
    Shape(portolan_abi::channel::ShapeError),
    /// The memory is too small.
    #[error("it says that it has {says} bytes, and has {has}")]
    Short {
        /// What its head says.
        says: u64,
        /// What there is.
        has: u64,
    },
}

/// A channel over memory that the caller placed.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    head: &'a Head,
    readers: &'a [ReaderEntry],
    words: &'a [AtomicU64],
    /// Words of a unit.
    stride: usize,
    shape: Shape,
    mode: Mode,
}

impl<'a> Channel<'a> {
    /// The first words of a channel; the rest of its memory holds zeros.
    pub fn image(shape: Shape, mode: Mode, content: u64, purpose: Purpose) -> [u64; 8] {
        let Shape {
            unit,
            units,
            readers,
        } = shape;
        let nobody = 0;
        [
            MAGIC,
            unit as u64,
            units,
            readers,
            mode.pack(),
            nobody,
            content,
            purpose.pack(),
        ]
    }

    /// Makes the parts a channel. They hold zeros, or an older channel that no space uses.
    pub fn make(
        head: &'a Head,
        readers: &'a [ReaderEntry],
        words: &'a [AtomicU64],
        shape: Shape,
        mode: Mode,
    ) -> Result<Self, NotAChannel> {
        let config = &head.config;
        let [magic, unit, units, entries, mode, ..] =
            Self::image(shape, mode, 0, Purpose::Messages);
        config.unit.store(unit, Ordering::Relaxed);
        config.units.store(units, Ordering::Relaxed);
        config.readers.store(entries, Ordering::Relaxed);
        config.mode.store(mode, Ordering::Relaxed);
        // Release: pairs with `open`.
        config.magic.store(magic, Ordering::Release);
        Self::open(head, readers, words)
    }

    /// Checks what the head says against the parts, and takes its word for the rest.
    pub fn open(
        head: &'a Head,
        readers: &'a [ReaderEntry],
        words: &'a [AtomicU64],
    ) -> Result<Self, NotAChannel> {
        let config = &head.config;
        let found = config.magic.load(Ordering::Acquire);
        if found != MAGIC {
            return Err(NotAChannel::Magic { found });
        }
        let word = |w: &AtomicU64| w.load(Ordering::Relaxed);
        let unit = usize::try_from(word(&config.unit)).unwrap_or(usize::MAX);
        let shape = Shape::new(unit, word(&config.units), word(&config.readers))
            .map_err(NotAChannel::Shape)?;
        let has = shape.units_at() + 8 * words.len() as u64;
        if has < shape.len() || (readers.len() as u64) < shape.readers {
            let says = shape.len();
            return Err(NotAChannel::Short { says, has });
        }
        Ok(Self {
            head,
            readers,
            words,
            stride: shape.unit / 8,
            shape,
            mode: Mode::unpack(word(&config.mode)),
        })
    }

    /// Its head.
    pub fn head(&self) -> &'a Head {
        self.head
    }

    /// Its shape.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How it is used.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What its maker says of its content.
    pub fn content(&self) -> u64 {
        self.head.config.content.load(Ordering::Relaxed)
    }

    /// What it is used for.
    pub fn purpose(&self) -> Purpose {
        Purpose::unpack(self.head.config.purpose.load(Ordering::Relaxed))
    }

    /// The entries of its readers.
    pub fn readers(&self) -> &'a [ReaderEntry] {
        self.readers
    }

    /// Where the unit of `position` lies, in bytes from the first unit.
    pub fn place(&self, position: u64) -> u64 {
        position % self.shape.units * self.shape.unit as u64
    }

    #[inline(always)]
    fn unit(&self, position: u64) -> Unit<'a> {
        let [stamp, meta, payload @ ..] = self.words_of(position) else {
            // A shape has units of a line at least.
            unreachable!("a unit has a head");
        };
        Unit {
            stamp,
            meta,
            payload,
        }
    }

    /// All words of the unit of `position`.
    #[inline(always)]
    fn words_of(&self, position: u64) -> &'a [AtomicU64] {
        let first = self.first_word(position);
        &self.words[first..first + self.stride]
    }

    /// Where the unit of `position` begins, in words.
    #[inline(always)]
    fn first_word(&self, position: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of units")]
        let index = (position & (self.shape.units - 1)) as usize;
        index * self.stride
    }

    /// Who writes, and how many have left.
    #[inline]
    pub fn writer(&self) -> WriterWord {
        // Acquire: what the last writer wrote before it left is seen.
        WriterWord::unpack(self.head.config.owner.load(Ordering::Acquire))
    }

    /// Makes `space` the one writer; the present one, if there is one.
    pub fn bind_writer(&self, space: u8) -> Result<(), u8> {
        let owner = &self.head.config.owner;
        let mut word = owner.load(Ordering::Acquire);
        loop {
            let was = WriterWord::unpack(word);
            if was.space != 0 {
                return Err(was.space);
            }
            let ours = WriterWord { space, ..was }.pack();
            // Acquire: pairs with the last one's leaving.
            match owner.compare_exchange(word, ours, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    mark!("channel.bound");
                    return Ok(());
                }
                Err(now) => word = now,
            }
        }
    }

    /// `space` writes no more, if it did. Readers are to be woken ([`Self::rouse`]).
    pub fn unbind_writer(&self, space: u8) -> bool {
        let owner = &self.head.config.owner;
        let mut word = owner.load(Ordering::Acquire);
        loop {
            let was = WriterWord::unpack(word);
            if was.space != space {
                return false;
            }
            let none = WriterWord {
                space: 0,
                left: was.left.wrapping_add(1),
            };
            // Release: pairs with the next one's binding, and with readers' looks.
            match owner.compare_exchange(word, none.pack(), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => {
                    mark!("channel.unbound");
                    return true;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Wakes a writer that waits for room, by `wake`, which is to wake all that sleep on the
    /// word. What says that it waits is its own to take back (M7).
    pub fn rouse_writer(&self, wake: impl FnOnce(&AtomicU32)) {
        let room = &self.head.room.room;
        room.fetch_add(1, Ordering::SeqCst);
        mark!("channel.room_made");
        wake(room);
    }

    /// Wakes readers that sleep: by `raise`, with what each of them is linked to, and `wake`,
    /// which is to wake all that sleep on the doorbell.
    pub fn rouse(&self, mut raise: impl FnMut(u64), wake: impl FnOnce(&AtomicU32)) {
        let SleepLine { sleepers, doorbell } = &self.head.sleep;
        // M7. Acquire: pairs with `count_arming`; a reader that is counted by now read the doorbell
        // before we change it, and has its link where we look.
        let seen = sleepers.load(Ordering::Acquire);
        self.change_doorbell();
        mark!("channel.before_wake");
        for reader in self.readers {
            raise(reader.link());
        }
        mark!("channel.raised");
        wake(doorbell);
        if seen & ASLEEP != 0 {
            // So that a reader that died asleep costs one wake. Only now: a writer that finds the
            // mark before that makes the wake too.
            let awake = seen & !ASLEEP;
            let _ = sleepers.compare_exchange(seen, awake, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Changes the doorbell of readers that sleep, so that they look once more when they are
    /// woken. They are taken for asleep still.
    pub fn change_doorbell(&self) {
        self.head.sleep.doorbell.fetch_add(1, Ordering::SeqCst);
    }

    /// Says that a reader sleeps. It has read the doorbell before, and looks once more
    /// afterwards (M5, M7).
    fn count_arming(&self) {
        let sleepers = &self.head.sleep.sleepers;
        // Release: pairs with `rouse`, which may see this before the mark, beside another
        // reader's.
        sleepers.fetch_add(ARMING, Ordering::AcqRel);
        // Relaxed: a thread that sees the mark sees the count too, because every change of this
        // word is a read-modify-write.
        sleepers.fetch_or(ASLEEP, Ordering::Relaxed);
    }

    /// Raw mode: the words of the unit at `place`, counted modulo the number of units.
    pub fn place_words(&self, place: u64) -> &'a [AtomicU64] {
        self.words_of(place)
    }

    /// Raw mode: how many units were put.
    pub fn puts(&self) -> u64 {
        self.head.writer.next.load(Ordering::Acquire)
    }

    /// Raw mode: says that one more unit was put.
    pub fn put(&self) {
        let next = &self.head.writer.next;
        // One writer. Release: a thread that sees it sees the unit.
        let puts = next.load(Ordering::Relaxed).wrapping_add(1);
        next.store(puts, Ordering::Release);
    }

    /// Raw mode: announces sleep: the doorbell's value, unless more than `seen` were put.
    pub fn arm_for_puts(&self, seen: u64) -> Option<u32> {
        let sleep = &self.head.sleep;
        let bell = sleep.doorbell.load(Ordering::Acquire);
        self.count_arming();
        fence(Ordering::SeqCst);
        (self.puts() == seen).then_some(bell)
    }

    /// Returns what a dead space held: its readers' entries, its place as the writer.
    ///
    /// The dead space may have owed wakes to readers and to the writer: the caller must wake both
    /// afterwards ([`Self::rouse`], [`Self::rouse_writer`]).
    pub fn reclaim(&self, space: u8) {
        for entry in self.readers {
            match entry.state() {
                ReaderState::Joining { space: owner }
                | ReaderState::Live { space: owner, .. }
                | ReaderState::Dropped { space: owner }
                    if owner == space =>
                {
                    entry.link.store(0, Ordering::Relaxed);
                    entry.handled.store(0, Ordering::Relaxed);
                    entry
                        .state
                        .store(ReaderState::Free.pack(), Ordering::Release);
                }
                _ => {}
            }
        }
        if self.mode.many_writers {
            self.void_units_of(space);
        }
        self.unbind_writer(space);
    }
}

impl Channel<'_> {
    /// Several writers: units that a dead one had begun become ones that are not whole.
    fn void_units_of(&self, space: u8) {
        for index in 0..self.shape.units {
            let unit = self.unit(index);
            let stamp = unit.look();
            if stamp.phase() == UnitPhase::Busy && stamp.writer() == space {
                let sum = sum::finish(stamp.position(), sum::of(&[]));
                let bad = Meta::new(0, Meta::FIRST | Meta::LAST | Meta::CLOSED, !sum);
                unit.meta().store(bad.0, Ordering::Relaxed);
                // No other space writes it: the writer is dead, and a lap ahead is refused
                // only by a stamp that has grown.
                let done = Stamp::done(stamp.position(), space).0;
                let _ = unit.stamp().compare_exchange(
                    stamp.0,
                    done,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
    }
}

const _: () = assert!(UNIT_HEAD_WORDS == 2, "a stamp and a meta word");

/// One unit of the ring.
#[derive(Clone, Copy)]
struct Unit<'a> {
    stamp: &'a AtomicU64,
    meta: &'a AtomicU64,
    payload: &'a [AtomicU64],
}

impl<'a> Unit<'a> {
    #[inline(always)]
    fn stamp(&self) -> &'a AtomicU64 {
        self.stamp
    }

    #[inline(always)]
    fn meta(&self) -> &'a AtomicU64 {
        self.meta
    }

    #[inline(always)]
    fn payload(&self) -> &'a [AtomicU64] {
        self.payload
    }

    #[inline(always)]
    fn look(&self) -> Stamp {
        // Acquire: pairs with the writer's release of `done`.
        Stamp(self.stamp().load(Ordering::Acquire))
    }
}
