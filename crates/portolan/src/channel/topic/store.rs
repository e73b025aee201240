//! A publisher's store keeps long samples in buffers, which all subscribers read in place.
//!
//! ```text
//! publisher: buffer, no other rights --fill--> sample reference in the ring
//!              ^                                |  readers take rights by the reference
//!              |                                v
//!              +--reissue-- no other rights <-- kept: the last few samples
//! ```
//!
//! A buffer is a segment that is only read. Its publisher keeps a right on those of its last
//! samples. A subscriber that reads a sample reference makes itself a right out of the segment's
//! name, as a process does that finds a segment by name. So a sample costs its publisher the same
//! for any number of subscribers. The memory is freed with the last right on it, also if the
//! process that held the right died.
//!
//! # Invariants
//!
//! - **B1** Only the publisher writes a buffer, while no other process has a right on it or knows
//!   its name. Reissuing gives it a new name, and fails if another process has a right, or makes
//!   one meanwhile (`port::shared_entries`). A structure is written in extents of the publisher,
//!   which become buffers when it is published.
//! - **B2** Rights on buffers are handles of samples, and travel in no message: so counting
//!   all spaces' rows is counting all of them.
//! - **B3** Of the last `history` samples, those in buffers have a right of their publisher's.

use super::sample::Bytes;
use crate::port::BindError;
use crate::port::segment::Segment;
use crate::port::shared_entries;
use crate::space::Member;
use crate::{AllocateError, Domain, SharedExtent};
use portolan_abi::beside::{self, BufferName};
use portolan_abi::owner::Size;
use portolan_abi::port::PortName;
use portolan_arena::header::MAX_PARTS;
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

    /// The bytes of the sample that a message holds, or tells of.
    #[inline]
    pub(super) fn bytes(self, message: &[u8], member: &Arc<Member>) -> Option<Bytes> {
        let Self::Tagged = self else {
            return Some(Bytes::copy(message));
        };
        match message.split_first_chunk::<TAG>()? {
            (&HERE, bytes) => Some(Bytes::copy(bytes)),
            (&THERE, reference) => SampleReference::unpack(reference)?.take(member),
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

    /// Our own right on the buffer; `None` if it is used for a later sample, or gone.
    fn take(self, member: &Arc<Member>) -> Option<Bytes> {
        let right = shared_entries::join_told(member, self.buffer)?;
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
        let (segment, frozen) = Segment::taken(shared_entries::join_told(member, port)?)?;
        frozen.then(|| SharedExtent::of(segment))
    };
    names.iter().map(buffer).collect()
}

/// A buffer that no other space has a right on (B1).
pub(super) struct Buffer {
    segment: Segment,
}

impl Buffer {
    fn make(domain: &Domain, len: usize) -> Result<Self, BindError> {
        // All of it, so that it serves samples of other lengths too.
        let extent = domain.allocate(Size::for_bytes(len).bytes())?;
        match domain.share_extent(extent) {
            Ok(shared) => Ok(Self {
                segment: shared.into_segment(),
            }),
            Err(refused) => Err(refused.why),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.segment.bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.segment.bytes_mut()
    }
}

/// A publisher's buffers.
pub(super) struct Store {
    domain: Domain,
    history: u64,
    /// Of the last samples, by position (B3).
    told: VecDeque<(u64, Segment)>,
    /// Of earlier ones; readers may have rights on them still.
    spare: VecDeque<Segment>,
}

impl Store {
    pub(super) fn new(domain: &Domain, history: u64) -> Self {
        Self {
            domain: domain.clone(),
            history: history.max(1),
            told: VecDeque::new(),
            spare: VecDeque::new(),
        }
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// How many there are.
    pub(super) fn buffers(&self) -> usize {
        self.told.len() + self.spare.len()
    }

    /// A buffer for the sample at `position`, of `len` bytes at least.
    pub(super) fn buffer(&mut self, position: u64, len: usize) -> Result<Buffer, BindError> {
        self.retire(position);
        for index in 0..self.spare.len() {
            if self.spare[index].len() < len || !self.spare[index].reissue() {
                continue;
            }
            if let Some(segment) = self.spare.remove(index) {
                return Ok(Buffer { segment });
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

    /// Keeps what was filled for the sample at `position`, and says where it lies.
    pub(super) fn keep(&mut self, buffer: Buffer, position: u64, len: usize) -> SampleReference {
        let Buffer { segment } = buffer;
        let buffer = segment.right().to.port;
        self.told.push_back((position, segment));
        SampleReference { buffer, len }
    }

    /// Keeps the buffers of a structure that is the sample at `position`, and says where they lie.
    pub(super) fn keep_all(&mut self, buffers: Vec<Segment>, position: u64) -> Vec<u8> {
        let reference = names_of(&buffers);
        let told = buffers.into_iter().map(|buffer| (position, buffer));
        self.told.extend(told);
        reference
    }

    /// Lets go of structures that are no longer among the last ones before `position` (B3), for
    /// good: each next one comes in memory of its own.
    pub(super) fn let_go(&mut self, position: u64) {
        self.retire(position);
        self.spare.clear();
    }

    /// Takes back a buffer that was not told of.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.put_by(buffer.segment);
    }

    /// Lets go of samples that are no longer among the last ones before `position` (B3).
    fn retire(&mut self, position: u64) {
        let oldest = position.saturating_sub(self.history);
        while self.told.front().is_some_and(|(told, _)| *told < oldest)
            && let Some((_, segment)) = self.told.pop_front()
        {
            self.put_by(segment);
        }
    }

    /// What is kept longest is let go: it is too small, or a subscriber holds it.
    fn put_by(&mut self, segment: Segment) {
        if self.spare.len() == SPARE {
            self.spare.pop_front();
        }
        self.spare.push_back(segment);
    }
}
