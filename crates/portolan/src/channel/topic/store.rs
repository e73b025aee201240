//! A publisher's store keeps long samples in buffers, which all subscribers read in place.
//!
//! ```text
//! publisher: buffer, no other rights --fill--> sample reference in the ring
//!              ^                                |  readers take rights by the reference
//!              |                                v
//!              +--take the reference back-- no other rights <-- kept: the last few samples
//! ```
//!
//! A buffer is a segment that is only read, and that its publisher keeps (G3 of
//! `portolan_shm::rights`) for as long as it may write it again. A subscriber that reads a sample
//! reference makes itself a right out of the segment's name, as a process does that finds a segment
//! by name, and then looks at the reference once more. So a sample costs its publisher the same
//! for any number of subscribers. The memory is freed with the last right on it, also if the
//! process that held the right died.
//!
//! # Cost of a long sample that nobody touches: lines that change hands
//!
//! | step | lines that come from another core |
//! |---|---|
//! | publisher: who has a right on the oldest buffer? | **the subscriber's row of rights** (it wrote it) |
//! | publisher: take the buffer's reference back | **its unit** (the subscriber has a copy); asked for while the row comes |
//! | publisher: write the next reference | the next unit (the subscriber polls it) |
//! | subscriber: find it | **that unit** |
//! | subscriber: count a right, look at the reference again | its row (the publisher has looked at it) |
//! | subscriber: read the buffer's status and memory | - (lines that change only when the buffer is made or let go of) |
//! | subscriber: drop the right | - (its row) |
//!
//! Three lines carry something: the reference, the reference that is taken back, and the
//! subscriber's count. With more subscribers there is one more row for each space. Neither side
//! writes the status of the buffer, and no subscriber looks at its publisher's row.
//!
//! # Invariants
//!
//! - **B1** Only the publisher writes a buffer, while no other process has a right on it or can make
//!   one that counts: the reference is taken back first, which a subscriber finds that counts its
//!   right later (M9 of `portolan_shm::channel`). A structure is written in extents of the publisher,
//!   which become buffers when it is published, and are never written again.
//! - **B2** Rights on buffers are handles of samples, and travel in no message: so counting
//!   all spaces' rows is counting all of them.
//! - **B3** Of the last `history` samples, those in buffers have a right of their publisher's, and
//!   their references stand.
//! - **B4** A reference counts only where the space wrote it that keeps the buffer, or if no space
//!   keeps the buffer any more. So a reference to another space's buffer, or to a kept one among
//!   those of a structure, is none.

use super::sample::Bytes;
use crate::channel::{Reader, Writer};
use crate::port::BindError;
use crate::port::kept::Kept;
use crate::port::segment::Segment;
use crate::port::shared_entries;
use crate::space::Member;
use crate::{AllocateError, Domain, SharedExtent};
use portolan_abi::beside::{self, BufferName};
use portolan_abi::port::PortName;
use portolan_arena::header::MAX_PARTS;
use portolan_shm::mark;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buffers that a publisher keeps for later samples, or until readers have let go of them.
const SPARE: usize = 4;

/// The first bytes of a sample that states its own length: copied, or a sample reference.
const HERE: [u8; TAG] = [0; TAG];
const THERE: [u8; TAG] = [1, 0, 0, 0, 0, 0, 0, 0];
/// Before the names of a structure's buffers.
const ARENA: [u8; TAG] = [2, 0, 0, 0, 0, 0, 0, 0];
/// Of a reference that was taken back: the sample is gone.
const GONE: [u8; TAG] = [3, 0, 0, 0, 0, 0, 0, 0];
/// Bytes of such a name.
const NAME: usize = BufferName::BYTES;
/// The most bytes of the reference of a structure.
pub(super) const LONGEST_REFERENCE: usize = TAG + NAME * MAX_PARTS;
/// Bytes of either; the sample after them is aligned for words.
pub(super) const TAG: usize = 8;

/// How samples lie in their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// All have one length, and are copied: nothing but their bytes.
    Bare,
    /// After a tag.
    Tagged,
}

impl Form {
    /// The parts of a message that holds a sample's bytes.
    #[inline]
    pub(super) fn parts(self, bytes: &[u8]) -> [&[u8]; 2] {
        match self {
            Self::Bare => [&[], bytes],
            Self::Tagged => [&HERE, bytes],
        }
    }

    /// The sample's own bytes among the first `len` bytes of these words, and how many they are;
    /// `None` if the sample lies elsewhere.
    #[inline(always)]
    pub(super) fn own_bytes(
        self,
        words: &[AtomicU64],
        len: usize,
    ) -> Option<(&[AtomicU64], usize)> {
        let Self::Tagged = self else {
            return Some((words, len));
        };
        let (tag, words) = words.split_first()?;
        // Relaxed: as all that is read of a unit, it counts if the unit's stamp stays.
        let is_here = tag.load(Ordering::Relaxed) == u64::from_le_bytes(HERE);
        is_here.then_some((words, len.checked_sub(TAG)?))
    }

    /// The bytes of the sample that a message holds; `None` if they lie elsewhere.
    #[inline]
    pub(super) fn bytes(self, message: &[u8]) -> Option<Bytes> {
        let Self::Tagged = self else {
            return Some(Bytes::copy(message));
        };
        match message.split_first_chunk::<TAG>()? {
            (&HERE, bytes) => Some(Bytes::copy(bytes)),
            _ => None,
        }
    }

    /// Where the sample lies of which a message tells.
    #[inline]
    pub(super) fn reference(self, message: &[u8]) -> Option<SampleReference> {
        match message.split_first_chunk::<TAG>()? {
            (&THERE, reference) if self == Self::Tagged => SampleReference::unpack(reference),
            _ => None,
        }
    }
}

/// Where a sample lies. Nothing of it is believed.
#[derive(Clone, Copy)]
pub(super) struct SampleReference {
    buffer: PortName,
    len: usize,
}

impl SampleReference {
    /// With its tag.
    pub(super) const BYTES: usize = TAG + beside::SampleReference::BYTES;

    pub(super) fn pack(self) -> [u8; Self::BYTES] {
        let reference = beside::SampleReference {
            len: self.len as u64,
            buffer: self.buffer.into(),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..TAG].copy_from_slice(&THERE);
        bytes[TAG..].copy_from_slice(&reference.encode());
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let beside::SampleReference { len, buffer } =
            beside::SampleReference::decode(bytes).ok()?;
        Some(Self {
            buffer: buffer.into(),
            len: usize::try_from(len).ok()?,
        })
    }

    /// Our own right on the buffer, of which `reader` has read at `position`; `None` if it is used
    /// for a later sample, or gone.
    pub(super) fn take(
        self,
        member: &Arc<Member>,
        reader: &Reader,
        position: u64,
    ) -> Option<Bytes> {
        let (right, joined) = shared_entries::join_told(member, self.buffer)?;
        mark!("topic.joined");
        // B1, B4. From here on the publisher counts our right before it writes the buffer.
        let told_by = reader.still_begins(position, u64::from_le_bytes(THERE))?;
        if joined.keeper != 0 && joined.keeper != told_by {
            return None;
        }
        let (segment, frozen) = Segment::taken(right)?;
        if !frozen || self.len > segment.len() {
            return None;
        }
        Some(Bytes::Shared(SharedExtent::of(segment), self.len))
    }
}

/// What is written for a structure that lies in these buffers, in their order.
fn names_of(buffers: &[Segment]) -> Vec<u8> {
    let mut reference = ARENA.to_vec();
    for buffer in buffers {
        reference.extend(BufferName::from(buffer.right().to.port).encode());
    }
    reference
}

/// Our own rights on the buffers of the structure that a message tells of; `None` if one of them
/// is gone, or it tells of none. Nothing of it is believed.
pub(super) fn structure_of(message: &[u8], member: &Arc<Member>) -> Option<Vec<SharedExtent>> {
    let (tag, names) = message.split_first_chunk::<TAG>()?;
    let (names, rest) = names.as_chunks::<NAME>();
    if *tag != ARENA || !rest.is_empty() || !(1..=MAX_PARTS).contains(&names.len()) {
        return None;
    }
    let buffer = |name: &[u8; NAME]| {
        let port = BufferName::decode(name).ok()?.into();
        let (right, joined) = shared_entries::join_told(member, port)?;
        // B4: a structure's buffers are not kept.
        let (segment, frozen) = Segment::taken(right).filter(|_| joined.keeper == 0)?;
        frozen.then(|| SharedExtent::of(segment))
    };
    names.iter().map(buffer).collect()
}

/// A buffer that no other space has a right on, nor can make one that counts (B1).
pub(super) struct Buffer {
    // Boxed: it goes from hand to hand with each sample.
    kept: Box<Kept>,
}

impl Buffer {
    fn make(domain: &Domain, len: usize) -> Result<Self, BindError> {
        let kept = Box::new(Kept::make(domain, len)?);
        Ok(Self { kept })
    }

    /// What tells of a sample in its first `len` bytes.
    pub(super) fn reference(&self, len: usize) -> SampleReference {
        let buffer = self.kept.name();
        SampleReference { buffer, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.kept.bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.kept.bytes_mut()
    }
}

/// A buffer that a sample may lie in.
struct Told {
    kept: Box<Kept>,
    /// The position of the unit that names it; none, once what it says was taken back.
    at: Option<u64>,
}

impl Told {
    /// Whether it is a buffer again to write to (B1). Takes its reference back, unless a subscriber
    /// is seen to have a right on it.
    fn comes_back(&mut self, writer: &Writer) -> bool {
        if let Some(at) = self.at {
            // Comes beside the rows of the spaces.
            writer.will_take_back(at);
        }
        if !self.kept.is_ours_alone() {
            return false;
        }
        let Some(at) = self.at.take() else {
            return true;
        };
        writer.take_back(at, u64::from_le_bytes(GONE));
        mark!("topic.taken_back");
        // Again: a subscriber may have made a right before it was taken back.
        self.kept.is_ours_alone()
    }
}

/// A publisher's buffers.
pub(super) struct Store {
    domain: Domain,
    history: u64,
    /// Of the last samples, by position (B3).
    told: VecDeque<(u64, Told)>,
    /// The same, of structures.
    structures: VecDeque<(u64, Segment)>,
    /// Of earlier samples; readers may have rights on them still.
    spare: VecDeque<Told>,
}

impl Store {
    pub(super) fn new(domain: &Domain, history: u64) -> Self {
        Self {
            domain: domain.clone(),
            history: history.max(1),
            told: VecDeque::new(),
            structures: VecDeque::new(),
            spare: VecDeque::new(),
        }
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// How many there are.
    pub(super) fn buffers(&self) -> usize {
        self.told.len() + self.structures.len() + self.spare.len()
    }

    /// A buffer for the sample that `writer` writes next, of `len` bytes at least.
    pub(super) fn buffer(&mut self, writer: &Writer, len: usize) -> Result<Buffer, BindError> {
        self.retire(writer.position());
        for index in 0..self.spare.len() {
            let told = &mut self.spare[index];
            if told.kept.len() < len || !told.comes_back(writer) {
                continue;
            }
            if let Some(Told { kept, .. }) = self.spare.remove(index) {
                return Ok(Buffer { kept });
            }
        }
        match Buffer::make(&self.domain, len) {
            Err(BindError::Allocate(AllocateError::OutOfPages { .. })) => {
                // Ours may be what is missing.
                self.spare.clear();
                Buffer::make(&self.domain, len)
            }
            made => made,
        }
    }

    /// Keeps the buffer of the sample at `position`, which tells of it.
    pub(super) fn keep(&mut self, buffer: Buffer, position: u64) {
        let Buffer { kept } = buffer;
        let at = Some(position);
        self.told.push_back((position, Told { kept, at }));
    }

    /// Keeps the buffers of a structure that is the sample at `position`, and says where they lie.
    pub(super) fn keep_all(&mut self, buffers: Vec<Segment>, position: u64) -> Vec<u8> {
        let reference = names_of(&buffers);
        let told = buffers.into_iter().map(|buffer| (position, buffer));
        self.structures.extend(told);
        reference
    }

    /// Lets go of structures that are no longer among the last ones before `position` (B3), for
    /// good: each next one comes in memory of its own.
    pub(super) fn let_go(&mut self, position: u64) {
        let oldest = self.oldest(position);
        let gone = self.structures.partition_point(|(at, _)| *at < oldest);
        self.structures.drain(..gone);
    }

    /// Takes back a buffer that was not told of.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        let Buffer { kept } = buffer;
        self.put_by(Told { kept, at: None });
    }

    /// Lets go of samples that are no longer among the last ones before `position` (B3).
    fn retire(&mut self, position: u64) {
        let oldest = self.oldest(position);
        while self.told.front().is_some_and(|(at, _)| *at < oldest)
            && let Some((_, told)) = self.told.pop_front()
        {
            self.put_by(told);
        }
    }

    /// The first of the last samples before `position`.
    fn oldest(&self, position: u64) -> u64 {
        position.saturating_sub(self.history)
    }

    /// What is kept longest is let go: it is too small, or a subscriber holds it.
    fn put_by(&mut self, told: Told) {
        if self.spare.len() == SPARE {
            self.spare.pop_front();
        }
        self.spare.push_back(told);
    }
}
