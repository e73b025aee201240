//! Tracked memory takes plain stores, finds them page by page, and sends them by epochs.

use super::{Link, MappingError, Mode, Sink, Unannounced};
use crate::vmmc::access::take;
use crate::vmmc::{ExportMemory, Import, UpdateError};
use portolan_sys::track::{TrackError, Tracker};
use std::fmt;
use std::ops::Range;

/// Bytes that are copied at a time: they are still in the first cache when they are sent.
const STEP: usize = 16 << 10;

/// A part of local memory whose written pages are sent to an import at each
/// [`flush`](Self::flush).
///
/// Stores are plain ones, by whichever thread or system call; the first to a page after a flush
/// costs a fault in the kernel, the others nothing. The local memory keeps its own content at
/// map and at unmap, and does not show what the exporter stores.
///
/// A flush is an *epoch*. What was stored before it began has landed when it ends, and before its
/// completion word, if there is one, which then holds the epoch's number. Within an epoch there
/// is no order, and pages are sent whole: what the exporter stores to them may be overwritten.
/// Recognise complete data by the completion word, or by a word that is stored with
/// [`store_release`](Self::store_release), not by a flag among the data. What is stored while a
/// flush runs is sent with that epoch or with the next.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let remote = ExportMemory::new(3 * 4096)?;
/// let options = ExportOptions::new(Reach::Write);
/// let export = domain.export(&remote, "matrix", &options, Deadline::NOW)?;
/// let import = domain.import("matrix", Deadline::after(std::time::Duration::from_secs(60)))?;
///
/// let local = ExportMemory::new(2 * 4096)?;
/// let mut tracked = import.map_tracked(&local, 0..2 * 4096, 4096, Some(0))?;
/// local.write(5000, b"a plain store")?;
/// let epoch = tracked.flush()?;
/// assert_eq!((epoch.number, epoch.bytes), (1, 4096));
/// assert_eq!(remote.load_acquire(0)?, 1);
/// let mut bytes = [0; 13];
/// remote.read(4096 + 5000, &mut bytes)?;
/// assert_eq!(&bytes, b"a plain store");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tracked {
    /// One for each run of pages that are still mapped. Before `link`, whose drop lets others
    /// map the pages.
    trackers: Vec<Tracker>,
    link: Link,
    unannounced: Unannounced,
    completion: Option<usize>,
    epoch: u64,
    /// Found and not sent yet, by place in the memory.
    owed: Vec<Range<usize>>,
    /// What was found, by address.
    found: Vec<Range<usize>>,
    buffer: Box<[u8]>,
}

/// A flush that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, from 1 on: what the completion word holds.
    pub number: u64,
    /// Bytes that were sent: whole pages.
    pub bytes: usize,
}

impl Import {
    /// Sends what is stored to `part` of `memory`, whole pages, to the import from `offset` on,
    /// at each flush; see [`Tracked`]. What it holds already is not sent, unless
    /// [`resend`](Tracked::resend) says so. `completion` is the offset in the import of a word
    /// that holds the number of the last epoch.
    ///
    /// # Errors
    ///
    /// [`MappingError`].
    pub fn map_tracked(
        &self,
        memory: &ExportMemory,
        part: Range<usize>,
        offset: usize,
        completion: Option<usize>,
    ) -> Result<Tracked, MappingError> {
        let import = self.shared();
        if let Some(at) = completion {
            let end = offset.saturating_add(part.len());
            let among = at < end && at.saturating_add(8) > offset;
            if among || !at.is_multiple_of(8) {
                return Err(MappingError::Completion { offset: at });
            }
            import.may_write(at, 8)?;
            import.words()?;
        }
        let link = Link::new(import, memory, part, offset, Mode::Tracked)?;
        Ok(Tracked {
            trackers: watch(&link)?,
            link,
            unannounced: Unannounced::default(),
            completion,
            epoch: 0,
            owed: Vec::new(),
            found: Vec::new(),
            buffer: vec![0; STEP].into(),
        })
    }
}

/// Watches what is mapped.
fn watch(link: &Link) -> Result<Vec<Tracker>, TrackError> {
    let base = link.memory.address();
    let parts = link.parts.iter();
    parts
        .map(|part| Tracker::new(base + part.start, part.len()))
        .collect()
}

impl Tracked {
    /// Sends the pages that were written since the last flush.
    ///
    /// # Errors
    ///
    /// [`MappingError`]. What was not sent is owed, and sent by the next flush.
    pub fn flush(&mut self) -> Result<Epoch, MappingError> {
        crate::vmmc::present()?;
        self.find()?;
        self.merge();
        let mut bytes = 0;
        while let Some(part) = self.owed.pop() {
            if let Err(error) = self.send(&part, &mut bytes) {
                self.owed.push(part);
                return Err(error.into());
            }
            self.unannounced.add(&self.link, &part);
        }
        self.link.import.there()?;
        if let Some(at) = self.completion {
            // A4.
            self.link.import.release(at, self.epoch + 1)?;
        }
        self.epoch += 1;
        Ok(Epoch {
            number: self.epoch,
            bytes,
        })
    }

    /// [Flushes](Self::flush), then notifies the exporter of what was sent since this was called
    /// last, from its first page to its last; of nothing, if that is what was sent.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn flush_notifying(&mut self) -> Result<Epoch, MappingError> {
        let epoch = self.flush()?;
        self.unannounced.announce(&self.link)?;
        Ok(epoch)
    }

    /// Flushes, then stores a word, `at` so many bytes after the first mapped one, a multiple of
    /// 8, here and behind the epoch in the import: a thread that sees it there sees the epoch.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush), and [`UpdateError::Misaligned`].
    pub fn store_release(&mut self, at: usize, value: u64) -> Result<Epoch, MappingError> {
        let part = self.link.part(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(UpdateError::Misaligned { offset: at }.into());
        }
        let epoch = self.flush()?;
        self.link.memory.store_release(part.start, value)?;
        if self.link.mapped(&part).any(|p| p == part) {
            let destination = self.link.destination(part.start);
            self.link.import.release(destination, value)?;
            self.unannounced.add(&self.link, &part);
        }
        Ok(epoch)
    }

    /// Has the next flush send every page, written or not: what the memory held at map, say.
    pub fn resend(&mut self) {
        self.owed.clear();
        self.owed.push(self.link.whole.clone());
    }

    /// The number of the last epoch; 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Flushes, and ends the mapping. When it is dropped instead, what was stored since the last
    /// flush is not sent.
    ///
    /// # Errors
    ///
    /// [`MappingError`]: the mapping has ended, and the last stores may not have landed.
    pub fn unmap(mut self) -> Result<Epoch, MappingError> {
        self.flush()
    }

    /// Flushes; from then on `len` bytes, `at` so many after the first mapped one, whole pages,
    /// are local memory and nothing else, to compute in or to map to something else. The next
    /// flush sends the rest whole, since stores to it may have gone unseen meanwhile.
    ///
    /// # Errors
    ///
    /// [`MappingError`]. After [`MappingError::Track`] nothing is mapped any more.
    pub fn unmap_part(&mut self, at: usize, len: usize) -> Result<Epoch, MappingError> {
        let part = self.link.pages(at, len)?;
        let epoch = self.flush()?;
        self.trackers.clear();
        self.link.release(&part);
        self.resend();
        match watch(&self.link) {
            Ok(trackers) => self.trackers = trackers,
            Err(error) => {
                let whole = self.link.whole.clone();
                self.link.release(&whole);
                return Err(error.into());
            }
        }
        Ok(epoch)
    }

    /// Asks what was written.
    fn find(&mut self) -> Result<(), TrackError> {
        let base = self.link.memory.address();
        for tracker in &mut self.trackers {
            self.found.clear();
            let asked = tracker.take_written(&mut self.found);
            // What was found before it failed is protected again, and would not be found twice.
            let found = self.found.iter();
            self.owed
                .extend(found.map(|a| a.start - base..a.end - base));
            asked?;
        }
        Ok(())
    }

    /// Joins what is owed twice, or in pieces that meet.
    fn merge(&mut self) {
        self.owed.sort_unstable_by_key(|part| part.start);
        self.owed.dedup_by(|next, before| {
            let meet = next.start <= before.end;
            if meet {
                before.end = before.end.max(next.end);
            }
            meet
        });
    }

    /// Copies what of a part is still mapped.
    fn send(&mut self, part: &Range<usize>, bytes: &mut usize) -> Result<(), UpdateError> {
        let words = self.link.memory.words()?;
        for piece in self.link.mapped(part) {
            for start in piece.clone().step_by(STEP) {
                let len = STEP.min(piece.end - start);
                let Some(buffer) = self.buffer.get_mut(..len) else {
                    continue;
                };
                take(words, start, buffer);
                let destination = self.link.destination(start);
                self.link.import.send(destination, buffer)?;
                *bytes += len;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (import, parts) = (self.link.import.name(), &self.link.parts);
        let offset = self.link.offset;
        write!(f, "Tracked({parts:?} to {import:?} from {offset})")
    }
}
