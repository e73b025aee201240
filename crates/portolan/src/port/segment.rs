//! A segment is memory that several spaces map at once.

use crate::port::rights::SegmentRight;
use crate::port::shared_entries::{self, Memory, Sharing};
use crate::port::{BindError, ConnectError, SendError};
use crate::space::region::MappedChannel;
use crate::{Deadline, Domain};
use portolan_abi::limits::PAGE;
use portolan_abi::owner::Size;
use portolan_shm::bulk;
use portolan_shm::channel::NotAChannel;
use std::sync::atomic::{AtomicU64, Ordering};

/// A right to memory that every space with such a right can read and write.
///
/// It has no owner: it is freed when the last right on it is dropped, or has died. A
/// clone is another right. Rights travel in messages ([`crate::Message::attach`]), and a
/// segment with a name is found by it ([`Domain::find_segment`]). The memory has the
/// same address in every space, and begins as zeros.
///
/// Others write while we read. So it is seen as atomic words, and copied as bytes that
/// may be a mixture of what several wrote; channels are the way to whole messages.
///
/// ```
/// use portolan::{Deadline, Domain};
/// use std::sync::atomic::Ordering;
///
/// let domain = Domain::private()?;
/// let made = domain.make_segment(Some("counters"), 4096)?;
/// let found = domain.find_segment("counters", Deadline::NOW)?;
/// made.words()[3].fetch_add(7, Ordering::Relaxed);
/// assert_eq!(found.words()[3].load(Ordering::Relaxed), 7);
/// assert_eq!(found.address(), made.address());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Segment {
    right: Option<SegmentRight>,
    page: u32,
    size: Size,
    len: usize,
}

impl Domain {
    /// Makes a segment of at least `bytes` bytes, whole pages of zeros.
    ///
    /// # Errors
    ///
    /// [`BindError`]; nothing is left behind.
    pub fn make_segment(&self, name: Option<&str>, bytes: usize) -> Result<Segment, BindError> {
        self.make_segment_with(name, bytes, |_| {})
    }

    /// As [`Self::make_segment`], with something in it before any space finds it.
    pub(crate) fn make_segment_with(
        &self,
        name: Option<&str>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Segment, BindError> {
        // What has no next page is refused for its size, as all that is too large.
        let whole = bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes);
        let mut extent = self.allocate(whole.max(PAGE))?;
        extent.fill(0);
        fill(&mut extent);
        let made = shared_entries::make(self.member(), name, extent, Sharing::Written);
        let right = made.map_err(|(error, _)| error)?;
        Segment::attach(right).ok_or(BindError::Unsent(SendError::DeadName))
    }

    /// A right on the segment of this name, waiting until there is one.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchPort`] once the deadline has passed; [`ConnectError::BadName`]
    /// at once.
    pub fn find_segment(
        &self,
        name: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<Segment, ConnectError> {
        let deadline = deadline.into();
        let right = shared_entries::connect(self.member(), name, deadline)?;
        Segment::attach(right).ok_or_else(|| ConnectError::NoSuchPort {
            name: name.to_owned(),
        })
    }
}

impl Segment {
    /// The handle of a right on a segment that is written.
    pub(crate) fn attach(right: SegmentRight) -> Option<Self> {
        let (segment, frozen) = Self::taken(right)?;
        (!frozen).then_some(segment)
    }

    /// The handle of a right on a segment, and whether it is only read: then the caller
    /// sees to that.
    pub(crate) fn taken(right: SegmentRight) -> Option<(Self, bool)> {
        let Memory { extent, frozen } = shared_entries::memory(&right)?;
        let len = usize::try_from(extent.len).ok()?;
        if let Some(guard) = &right.to.member.guard {
            guard.share(extent.page, extent.size);
        }
        let segment = Self {
            right: Some(right),
            page: extent.page,
            size: extent.size,
            len,
        };
        Some((segment, frozen))
    }

    /// Its bytes, for [`crate::SharedExtent`]: of a segment that is only read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.right().to.member.region.bytes(self.page, self.len)
    }

    /// Its memory as a channel, if its head says so. The caller keeps the segment beside it.
    pub(crate) fn as_channel(&self) -> Result<MappedChannel, NotAChannel> {
        MappedChannel::open(&self.right().to.member, self.page, self.len)
    }

    /// As [`Self::bytes`], to write: of one that is kept ([`super::kept::Kept`]).
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let (page, len) = (self.page, self.len);
        self.right().to.member.region.bytes_mut(page, len)
    }

    #[inline]
    pub(crate) fn right(&self) -> &SegmentRight {
        // Gone only while it is being dropped or given away.
        self.right.as_ref().expect("a segment in use has its right")
    }

    /// The right, to be given away.
    pub(crate) fn into_right(mut self) -> SegmentRight {
        let right = self.right.take().expect("a segment in use has its right");
        self.close(&right);
        right
    }

    fn close(&self, right: &SegmentRight) {
        if right.to.member.present().is_ok()
            && let Some(guard) = &right.to.member.guard
        {
            guard.unshare(self.page, self.size);
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies, in every space.
    pub fn address(&self) -> usize {
        self.right().to.member.region.address(self.page)
    }

    /// Its memory; empty in a forked child, which has none.
    pub fn words(&self) -> &[AtomicU64] {
        let member = &self.right().to.member;
        match member.present() {
            Ok(()) => member.region.words(self.page, self.len),
            Err(_) => &[],
        }
    }

    /// Copies `bytes` to `offset`; cut to what there is. How many were copied.
    ///
    /// Bytes of a word at the edges that are not written keep what we last saw there: two
    /// writers do not share a word.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> usize {
        let words = self.words();
        let fits = bytes.len().min(self.here(words).saturating_sub(offset));
        if fits == 0 {
            return 0;
        }
        copy_to(words, offset, &bytes[..fits]);
        fits
    }

    /// Copies from `offset` to `out`; cut to what there is. How many were copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> usize {
        let words = self.words();
        let fits = out.len().min(self.here(words).saturating_sub(offset));
        if fits > 0 {
            bulk::load_at(words, offset, &mut out[..fits]);
        }
        fits
    }

    /// Bytes of it that there are, of these words.
    fn here(&self, words: &[AtomicU64]) -> usize {
        self.len.min(size_of_val(words))
    }
}

impl Clone for Segment {
    fn clone(&self) -> Self {
        let member = &self.right().to.member;
        if member.present().is_ok()
            && let Some(guard) = &member.guard
        {
            guard.share(self.page, self.size);
        }
        Self {
            right: Some(self.right().clone()),
            ..*self
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(right) = self.right.take() {
            self.close(&right);
        }
    }
}

/// Copies `bytes` to `offset`; the bytes before and after them stay.
pub(crate) fn copy_to(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    // Whole words in the middle; what remains at the edges goes into words that stay.
    let first = offset.next_multiple_of(8).min(end);
    let last = (end / 8 * 8).max(first);
    merge(words, offset, &bytes[..first - offset]);
    bulk::store(
        &words[first.div_ceil(8)..],
        &bytes[first - offset..last - offset],
    );
    merge(words, last, &bytes[last - offset..]);
}

/// Puts bytes into the one word that they lie in.
fn merge(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    if let Some(word) = words.get(offset / 8).filter(|_| !bytes.is_empty()) {
        let mut now = word.load(Ordering::Relaxed).to_le_bytes();
        now[offset % 8..offset % 8 + bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(now), Ordering::Relaxed);
    }
}
