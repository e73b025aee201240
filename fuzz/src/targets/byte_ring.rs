//! A byte ring's counts and bytes, which the other side rewrites between any two steps, and the
//! records that the two sides of a connection say.

use arbitrary::{Result, Unstructured};
use portolan_abi::bridge::control::{DELIVERED, HEAD, READER_SLEEPS, STRIDE, TAIL, WRITER_SLEEPS};
use portolan_abi::bridge::{Answer, Ask, FrameHeader, connection_bytes};
use portolan_abi::limits::LINE;
use portolan_shm::byte_ring::{ByteRing, Garbled, Passed, Reader, Writer};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn run(data: &[u8]) {
    records(data);
    let _ = play(&mut Unstructured::new(data));
}

/// Read as something, which survives its own writing.
fn records(data: &[u8]) {
    let ask = Ask::decode(data);
    assert_eq!(ask.and_then(|a| Ask::decode(&a.encode())), ask);
    let answer = Answer::decode(data);
    assert_eq!(answer.and_then(|a| Answer::decode(&a.encode())), answer);
    if let Ok(Answer::Granted(granted)) = answer {
        assert!(connection_bytes(granted.there, granted.back).is_some());
    }
    let frame = FrameHeader::decode(data);
    assert_eq!(frame.and_then(|m| FrameHeader::decode(&m.encode())), frame);
    if let Ok(frame) = frame {
        assert!(frame.rest() <= FrameHeader::MOST - FrameHeader::BYTES);
    }
}

/// The two sides that follow the rules, and how far they have got as we count it.
struct Play {
    page: Vec<AtomicU64>,
    ring: Vec<AtomicU64>,
    index: usize,
    writer: Writer,
    reader: Reader,
    written: u64,
    read: u64,
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
    let mut play = Play {
        page: words(2 * STRIDE),
        ring: words(*u.choose(&[8, 16, 128, 16 << 10])?),
        index: u.int_in_range(0..=1)?,
        writer: Writer::default(),
        reader: Reader::default(),
        written: 0,
        read: 0,
    };
    while !u.is_empty() {
        match u.int_in_range(0..=5)? {
            0 => play.rewrite_count(u)?,
            1 => {
                let word = u.choose_index(play.ring.len())?;
                play.ring[word].store(u.arbitrary()?, Relaxed);
            }
            2 => play.push(u)?,
            3 => play.pull(u)?,
            4 => play.sleep(u)?,
            _ => play.look(),
        }
    }
    Ok(())
}

fn lines(bytes: usize) -> u64 {
    bytes.next_multiple_of(LINE) as u64
}

impl Play {
    fn control(&self, word: usize) -> &AtomicU64 {
        &self.page[self.index * STRIDE + word]
    }

    fn bytes(&self) -> u64 {
        self.ring.len() as u64 * 8
    }

    /// Says something about one side that may be true, almost true, or anything.
    fn rewrite_count(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let words = [HEAD, TAIL, DELIVERED, WRITER_SLEEPS, READER_SLEEPS];
        let near = *u.choose(&[0, self.written, self.read, self.read + self.bytes()])?;
        let away = u64::from(u.arbitrary::<u8>()?) * *u.choose(&[1, LINE as u64])?;
        let says = match u.int_in_range(0..=2)? {
            0 => near.wrapping_add(away),
            1 => near.wrapping_sub(away),
            _ => u.arbitrary()?,
        };
        self.control(*u.choose(&words)?).store(says, Relaxed);
        Ok(())
    }

    /// The bytes of the ring from count `at` on.
    fn there(&self, at: u64, len: usize) -> Vec<u8> {
        let bytes = self.ring.iter().cycle();
        let skip = usize::try_from(at % self.bytes()).unwrap_or(0) / 8;
        let words = bytes.skip(skip).take(len.div_ceil(8));
        let mut all: Vec<u8> = words.flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        all.truncate(len);
        all
    }

    fn push(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let len = u.int_in_range(0..=2 * self.ring.len() * 8)?;
        let message = vec![u.arbitrary()?; len];
        let ring = ByteRing::new(&self.page, self.index, &self.ring);
        let Ok(Passed { bytes, .. }) = self.writer.push(&ring, &message) else {
            return Ok(());
        };
        assert!(bytes <= len && bytes as u64 <= self.bytes());
        assert_eq!(self.there(self.written, bytes), message[..bytes]);
        self.written += lines(bytes);
        assert_eq!(self.writer.written(), self.written);
        if bytes > 0 {
            assert_eq!(self.control(HEAD).load(Relaxed), self.written);
        }
        Ok(())
    }

    fn pull(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let len = u.int_in_range(0..=2 * self.ring.len() * 8)?;
        let mut out = vec![0xa5; len];
        let ring = ByteRing::new(&self.page, self.index, &self.ring);
        let Ok(Passed { bytes, .. }) = self.reader.pull(&ring, &mut out) else {
            assert_eq!(out, vec![0xa5; len], "what is garbled is not read");
            return Ok(());
        };
        assert!(bytes <= len && bytes as u64 <= self.bytes());
        assert_eq!(out[..bytes], self.there(self.read, bytes));
        assert!(out[bytes..].iter().all(|byte| *byte == 0xa5));
        self.read += lines(bytes);
        if bytes > 0 {
            assert_eq!(self.control(TAIL).load(Relaxed), self.read);
        }
        Ok(())
    }

    /// A side that finds bytes or room does not sleep; a side that sleeps has said so.
    fn sleep(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let ring = ByteRing::new(&self.page, self.index, &self.ring);
        let says = |word: usize| self.page[self.index * STRIDE + word].load(Relaxed) != 0;
        if u.arbitrary()? {
            if let Ok(sleeps) = self.writer.arm(&ring) {
                assert_eq!(says(WRITER_SLEEPS), sleeps);
            }
            self.writer.disarm(&ring);
            assert!(!says(WRITER_SLEEPS));
        } else {
            if let Ok(sleeps) = self.reader.arm(&ring) {
                assert_eq!(says(READER_SLEEPS), sleeps);
            }
            self.reader.disarm(&ring);
            assert!(!says(READER_SLEEPS));
        }
        Ok(())
    }

    fn look(&mut self) {
        let ring = ByteRing::new(&self.page, self.index, &self.ring);
        if let Ok(read) = self.writer.read(&ring) {
            assert!(self.written - read <= self.bytes());
            assert_eq!(read % LINE as u64, 0);
        }
        let garbled = [
            self.writer.has_room(&ring).err(),
            self.reader.has_more(&ring).err(),
        ];
        for Garbled { from, to, .. } in garbled.into_iter().flatten() {
            assert_ne!(from, to, "what it said before is allowed");
        }
    }
}
