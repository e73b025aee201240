//! A byte ring carries a stream of bytes from one process to another that need not trust it.
//!
//! A byte ring is a buffer in memory that both processes can write, and two counts: the writer's
//! *head*, of bytes written so far, and the reader's *tail*, of bytes read. Each side keeps its
//! own count to itself as well, and never reads it back.
//!
//! ```text
//!        tail               head
//!          v                  v
//! [........(written, not read)..........]      head - tail <= bytes of the ring
//! ```
//!
//! # Invariants
//!
//! - **L1** The place at which a side reads or writes follows from its own count alone. The other
//!   side sends only its count, which is checked each time: it must not be behind the count before,
//!   not further than the ring is long, and a whole number of lines. Else it is [`Garbled`].
//! - **L2** The reader copies the bytes first, once, and judges the copy afterwards. A writer that
//!   changes them during the copy has sent a mixture.
//! - **L3** A side that sleeps is woken: it announces its sleep, then looks at the other side's
//!   count; the other side counts, then looks for a sleep. One of the two sees the other.
//!   Sleeps are numbered, and each is woken once: no third process could wake the side instead,
//!   and a process that is stopped before it sends the wake delays its own byte ring alone.
//!
//! Bytes are passed in *pieces*: the reader begins with the first while the writer copies
//! the second, so that the two copies overlap, and a piece is still in a cache that both
//! reach. The bytes of one call begin at a line; the end of their last line is not used.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::bulk;
use portolan_abi::bridge::control::{DELIVERED, HEAD, READER_SLEEPS, STRIDE, TAIL, WRITER_SLEEPS};
use portolan_abi::limits::LINE;

/// Bytes that are counted in one go.
const PIECE: usize = 64 << 10;

/// One direction of a connection's memory.
///
/// # Examples
///
/// ```
/// use portolan_abi::bridge::control::STRIDE;
/// use portolan_shm::byte_ring::{ByteRing, Reader, Writer};
/// use std::sync::atomic::AtomicU64;
/// let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
/// let (page, ring) = (words(STRIDE), words(1024 / 8));
/// // Both sides have the memory, and each a count of its own.
/// let ring = ByteRing::new(&page, 0, &ring);
/// let (mut writer, mut reader) = (Writer::default(), Reader::default());
/// assert_eq!(writer.push(&ring, b"hello")?.bytes, 5);
/// let mut bytes = [0; 5];
/// assert_eq!(reader.pull(&ring, &mut bytes)?.bytes, 5);
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), portolan_shm::byte_ring::Garbled>(())
/// ```
#[derive(Clone, Copy)]
pub struct ByteRing<'m> {
    control: &'m [AtomicU64],
    ring: &'m [AtomicU64],
}

/// The peer's: its count of bytes is none that it can have (L1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side's count went from {from} to {to} in a byte ring of {bytes} bytes")]
pub struct Garbled {
    /// What it was.
    pub from: u64,
    /// What it said.
    pub to: u64,
    /// Bytes of the ring.
    pub bytes: u64,
}

/// What a call has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the other side may have to be woken"]
pub struct Passed {
    /// Bytes of the caller's that were copied.
    pub bytes: usize,
    /// The other side sleeps, and must be woken (L3).
    pub wake: bool,
}

impl<'m> ByteRing<'m> {
    /// The `index`th byte ring of a control page, over this ring.
    ///
    /// # Panics
    ///
    /// If the page is too short, or the ring no power of two of lines.
    pub fn new(page: &'m [AtomicU64], index: usize, ring: &'m [AtomicU64]) -> Self {
        assert!(ring.len().is_power_of_two() && ring.len() * 8 >= LINE);
        let control = &page[index * STRIDE..(index + 1) * STRIDE];
        Self { control, ring }
    }

    fn bytes(&self) -> u64 {
        self.ring.len() as u64 * 8
    }

    /// Messages that the reader says it has delivered.
    pub fn delivered(&self) -> u64 {
        // Acquire: pairs with `set_delivered`; what the reader did before is done.
        self.control[DELIVERED].load(Ordering::Acquire)
    }

    /// Says that the reader has delivered so many messages.
    pub fn set_delivered(&self, count: u64) {
        // Release: pairs with `delivered`.
        self.control[DELIVERED].store(count, Ordering::Release);
    }

    /// The words from the place of count `at` on, `bytes` of them without going round.
    fn place(&self, at: u64, bytes: usize) -> &'m [AtomicU64] {
        let first = usize::try_from(at % self.bytes()).unwrap_or(0) / 8;
        &self.ring[first..first + bytes.div_ceil(8)]
    }

    /// Bytes from the place of count `at` to the ring's end.
    fn straight(&self, at: u64) -> usize {
        usize::try_from(self.bytes() - at % self.bytes()).unwrap_or(0)
    }

    /// Checks what the other side says it has done (L1): at least `from`, and no further
    /// than `until`.
    fn check(&self, says: u64, from: u64, until: u64) -> Result<u64, Garbled> {
        let done = says.wrapping_sub(from);
        if done > until.wrapping_sub(from) || !done.is_multiple_of(LINE as u64) {
            return Err(Garbled {
                from,
                to: says,
                bytes: self.bytes(),
            });
        }
        Ok(says)
    }

    fn withdraw(&self, sleeps: usize) {
        // Relaxed: a side that sees it late sends a wake in vain.
        self.control[sleeps].store(0, Ordering::Relaxed);
    }
}

/// A side's own record of sleeps and wakes.
///
/// Each sleep has a number, which the sleeper alone writes; the side that wakes it remembers the
/// number of the sleep that it has ended, so that it sends one wake for each.
#[derive(Debug, Default)]
struct Sleeps {
    /// Times that this side has said it sleeps.
    ours: u64,
    /// The number of the other side's sleep for which this side has sent a wake.
    woken: u64,
}

impl Sleeps {
    /// Whether this side must wake the side that sets the word `sleeps`.
    fn owes(&mut self, ring: &ByteRing<'_>, sleeps: usize) -> bool {
        // L3: pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it behind our count.
        let theirs = ring.control[sleeps].load(Ordering::Relaxed);
        let owes = theirs != 0 && theirs != self.woken;
        if owes {
            self.woken = theirs;
        }
        owes
    }

    /// Says that this side is about to sleep; it looks at the other's count after this.
    fn announce(&mut self, ring: &ByteRing<'_>, sleeps: usize) {
        self.ours += 1;
        // Relaxed: the fence orders it before our look at the other's count.
        ring.control[sleeps].store(self.ours, Ordering::Relaxed);
        crate::mark!("byte_ring.armed");
        // L3: pairs with the fence in `owes`.
        fence(Ordering::SeqCst);
    }
}

/// The bytes that `len` bytes take.
fn lines(len: usize) -> u64 {
    len.next_multiple_of(LINE) as u64
}

/// The writing side's own count.
#[derive(Debug, Default)]
pub struct Writer {
    at: u64,
    /// The reader's count, as it was last.
    read: u64,
    sleeps: Sleeps,
}

impl Writer {
    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// Bytes that the reader has read so far.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn read(&mut self, ring: &ByteRing<'_>) -> Result<u64, Garbled> {
        // Acquire: pairs with `Reader::pull`; what the reader has copied out it does not look at
        // any more.
        let says = ring.control[TAIL].load(Ordering::Acquire);
        self.read = ring.check(says, self.read, self.at)?;
        Ok(self.read)
    }

    /// Whether there is room for something.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn has_room(&mut self, ring: &ByteRing<'_>) -> Result<bool, Garbled> {
        Ok(self.at - self.read(ring)? < ring.bytes())
    }

    /// Writes the beginning of `bytes`, as far as there is room for it and one piece goes;
    /// none, if there is no room.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn push(&mut self, ring: &ByteRing<'_>, bytes: &[u8]) -> Result<Passed, Garbled> {
        let mut room = ring.bytes() - (self.at - self.read);
        if room < lines(bytes.len().min(PIECE)) {
            room = ring.bytes() - (self.at - self.read(ring)?);
        }
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let most = room.min(PIECE).min(ring.straight(self.at));
        let now = bytes.len().min(most);
        if now == 0 {
            return Ok(Passed::default());
        }
        bulk::store(ring.place(self.at, now), &bytes[..now]);
        crate::mark!("byte_ring.copied");
        self.at += lines(now);
        // Release: pairs with `Reader::look`; the bytes come first.
        ring.control[HEAD].store(self.at, Ordering::Release);
        crate::mark!("byte_ring.shown");
        Ok(Passed {
            bytes: now,
            wake: self.sleeps.owes(ring, READER_SLEEPS),
        })
    }

    /// Says that this side sleeps until it is woken; `false`, and it does not, if there is
    /// room.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn arm(&mut self, ring: &ByteRing<'_>) -> Result<bool, Garbled> {
        self.sleeps.announce(ring, WRITER_SLEEPS);
        let room = self.has_room(ring)?;
        if room {
            ring.withdraw(WRITER_SLEEPS);
        }
        Ok(!room)
    }

    /// This side is awake.
    pub fn disarm(&self, ring: &ByteRing<'_>) {
        ring.withdraw(WRITER_SLEEPS);
    }
}

/// The reading side's own count.
#[derive(Debug, Default)]
pub struct Reader {
    at: u64,
    /// The writer's count, as it was last.
    written: u64,
    sleeps: Sleeps,
}

impl Reader {
    /// Whether there is something to read.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    #[inline]
    pub fn has_more(&mut self, ring: &ByteRing<'_>) -> Result<bool, Garbled> {
        if self.written != self.at {
            return Ok(true);
        }
        self.look(ring)?;
        Ok(self.written != self.at)
    }

    fn look(&mut self, ring: &ByteRing<'_>) -> Result<(), Garbled> {
        // Acquire: pairs with `Writer::push`; the bytes come first.
        let says = ring.control[HEAD].load(Ordering::Acquire);
        let until = self.at.wrapping_add(ring.bytes());
        self.written = ring.check(says, self.written, until)?;
        Ok(())
    }

    /// Reads into the beginning of `out`, as far as something is there and one piece goes;
    /// nothing, if nothing is. What is left of `out` comes with the next call.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn pull(&mut self, ring: &ByteRing<'_>, out: &mut [u8]) -> Result<Passed, Garbled> {
        if self.written.wrapping_sub(self.at) < lines(out.len().min(PIECE)) {
            self.look(ring)?;
        }
        let there = usize::try_from(self.written.wrapping_sub(self.at)).unwrap_or(0);
        let most = there.min(PIECE).min(ring.straight(self.at));
        let now = out.len().min(most);
        if now == 0 {
            return Ok(Passed::default());
        }
        bulk::load(ring.place(self.at, now), &mut out[..now]);
        self.at = self.at.wrapping_add(lines(now));
        // Release: pairs with `Writer::read`; we do not look at these bytes any more.
        ring.control[TAIL].store(self.at, Ordering::Release);
        crate::mark!("byte_ring.read");
        // A writer that waits for room is woken once it can go on for a while.
        let left = self.written.wrapping_sub(self.at);
        Ok(Passed {
            bytes: now,
            wake: left <= ring.bytes() / 2 && self.sleeps.owes(ring, WRITER_SLEEPS),
        })
    }

    /// Says that this side sleeps until it is woken; `false`, and it does not, if there is
    /// something to read.
    ///
    /// # Errors
    ///
    /// [`Garbled`].
    pub fn arm(&mut self, ring: &ByteRing<'_>) -> Result<bool, Garbled> {
        self.sleeps.announce(ring, READER_SLEEPS);
        let more = self.has_more(ring)?;
        if more {
            ring.withdraw(READER_SLEEPS);
        }
        Ok(!more)
    }

    /// This side is awake.
    pub fn disarm(&self, ring: &ByteRing<'_>) {
        ring.withdraw(READER_SLEEPS);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RING: usize = 1024;

    fn memory() -> (Vec<AtomicU64>, Vec<AtomicU64>) {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        (words(STRIDE), words(RING / 8))
    }

    #[test]
    fn bytes_arrive_in_order_whatever_their_lengths() {
        let (page, ring) = memory();
        let ring = ByteRing::new(&page, 0, &ring);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for len in (0_usize..200).chain([960, 1023, 1024, 1025, 5000]) {
            let sent: Vec<u8> = (0..len)
                .map(|i: usize| (i * 7 + len).to_le_bytes()[0])
                .collect();
            let mut came = vec![0; len];
            let (mut out, mut done) = (0, 0);
            while done < len {
                out += writer.push(&ring, &sent[out..]).unwrap().bytes;
                done += reader.pull(&ring, &mut came[done..]).unwrap().bytes;
            }
            assert_eq!(came, sent, "{len}");
            assert!(!reader.has_more(&ring).unwrap());
        }
    }

    #[test]
    fn a_full_lane_takes_nothing_and_an_empty_one_gives_nothing() {
        let (page, ring) = memory();
        let ring = ByteRing::new(&page, 0, &ring);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        assert_eq!(reader.pull(&ring, &mut [0]).unwrap(), Passed::default());
        assert_eq!(writer.push(&ring, &[1; 2000]).unwrap().bytes, RING);
        assert_eq!(writer.push(&ring, &[1]).unwrap(), Passed::default());
        assert!(writer.arm(&ring).unwrap());
        // Not before half of it is free.
        assert!(!reader.pull(&ring, &mut [0; 64]).unwrap().wake);
        assert!(reader.pull(&ring, &mut [0; RING / 2]).unwrap().wake);
        assert!(!reader.pull(&ring, &mut [0; 64]).unwrap().wake);
        assert!(!writer.arm(&ring).unwrap());
        while reader.pull(&ring, &mut [0; RING]).unwrap().bytes > 0 {}
        assert!(reader.arm(&ring).unwrap());
        assert!(writer.push(&ring, &[1]).unwrap().wake);
        assert!(!reader.arm(&ring).unwrap());
    }

    #[test]
    fn counts_that_cannot_be_are_found_out() {
        let (page, ring) = memory();
        let ring = ByteRing::new(&page, 0, &ring);
        for says in [1, 63, RING as u64 + 64, u64::MAX, u64::MAX - 63] {
            page[HEAD].store(says, Ordering::Relaxed);
            assert!(Reader::default().pull(&ring, &mut [0; 64]).is_err());
            assert!(Reader::default().arm(&ring).is_err());
            page[TAIL].store(says, Ordering::Relaxed);
            assert!(Writer::default().push(&ring, &[0; 2 * RING]).is_err());
            assert!(Writer::default().arm(&ring).is_err());
        }
        // Back to what was said before.
        page[HEAD].store(128, Ordering::Relaxed);
        let mut reader = Reader::default();
        assert_eq!(reader.pull(&ring, &mut [0; 64]).unwrap().bytes, 64);
        page[HEAD].store(64, Ordering::Relaxed);
        assert!(reader.pull(&ring, &mut [0; 128]).is_err());
    }
}
