//! Automatic update sends a program's stores to its own memory on to an import.
//!
//! Dubnicki, Iftode, Felten and Li, *Software Support for Virtual Memory-Mapped Communication*
//! (`Map` and `Unmap`, sections 3 and 4). Their network interface snoops stores from the memory
//! bus; here are three ways of doing without, each named for what it promises:
//!
//! | | alias | log | tracked |
//! |---|---|---|---|
//! | a store is | a plain one | a call | a plain one |
//! | and costs | nothing | a copy more | a fault, the first one to a page after a flush |
//! | the import sees it | at once | when its run ends, or at a flush | at the next flush, a page at a time |
//! | in the order of | the processor | the program, word for word | epochs; within one, none |
//! | local content at map | gone: the import's is seen | stays | stays |
//! | what the exporter stores is seen here | yes | no | no |
//! | local content after unmap | what the import held then | what was stored here | what was stored here |
//! | whole pages | yes | no | yes |
//!
//! # Invariants
//!
//! - **A1** A byte of local memory has one destination: a mapping enters its part in the memory's
//!   list, under a lock, or is refused.
//! - **A2** A mapping sends only bytes within the import, and within one range if the exporter
//!   opened ranges: `map` checks that for the whole part.
//! - **A3** Stores of a log reach the import one after another: a run grows only at its end,
//!   and is stored upwards word by word.
//! - **A4** An epoch's completion word is stored once all its pages have landed.
//!
//! Log and tracked know of the import only that it takes bytes ([`Sink`]); alias is the only one
//! that needs the import's pages to be mapped here.

mod alias;
mod error;
mod log;
mod tracked;

pub use alias::Alias;
pub use error::{MappingError, Mode};
pub use log::Log;
pub use tracked::{Epoch, Tracked};

use super::access::within;
use super::imported::Imported;
use super::{ExportMemory, UpdateError};
use portolan_sys::memory::PAGE;
use std::ops::Range;
use std::sync::Arc;

/// Takes updates. What one call was given comes before what the next one is.
trait Sink {
    /// Takes bytes, the lower ones first.
    fn send_upwards(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError>;

    /// Takes bytes in any order.
    fn send(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError>;

    /// Stores a word, behind everything that was sent.
    fn release(&self, offset: usize, value: u64) -> Result<(), UpdateError>;
}

impl Sink for Imported {
    fn send_upwards(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.write_upwards(offset, bytes)
    }

    fn send(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.write(offset, bytes)
    }

    fn release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        self.store_release(offset, value)
    }
}

/// A part of local memory and where in an import it goes, until this is dropped.
struct Link {
    import: Arc<Imported>,
    memory: ExportMemory,
    /// What was mapped.
    whole: Range<usize>,
    /// What of it still is; ascending.
    parts: Vec<Range<usize>>,
    /// Where in the import its first byte goes.
    offset: usize,
}

impl Link {
    /// Checks everything, and notes the part in its memory (A1, A2).
    fn new(
        import: &Arc<Imported>,
        memory: &ExportMemory,
        part: Range<usize>,
        offset: usize,
        mode: Mode,
    ) -> Result<Self, MappingError> {
        super::present()?;
        let len = part.end.saturating_sub(part.start);
        within(part.start, len, memory.len())?;
        if len == 0 || (mode != Mode::Log && !whole_pages(&[part.start, len, offset])) {
            let start = part.start;
            return Err(MappingError::NotWholePages { start, len, offset });
        }
        import.may_write(offset, len)?;
        import.there()?;
        memory.inner.map(&part, mode)?;
        Ok(Self {
            import: Arc::clone(import),
            memory: memory.clone(),
            parts: vec![part.clone()],
            whole: part,
            offset,
        })
    }

    /// Where in the import a byte of the memory goes. Of one that was mapped.
    fn destination(&self, at: usize) -> usize {
        self.offset + (at - self.whole.start)
    }

    /// Where in the memory `len` bytes lie, `at` so many after the first mapped one.
    fn part(&self, at: usize, len: usize) -> Result<Range<usize>, UpdateError> {
        within(at, len, self.whole.len())?;
        let start = self.whole.start + at;
        Ok(start..start + len)
    }

    /// As [`part`](Self::part), of whole pages.
    fn pages(&self, at: usize, len: usize) -> Result<Range<usize>, MappingError> {
        let part = self.part(at, len)?;
        if whole_pages(&[at, len]) {
            return Ok(part);
        }
        let (start, offset) = (part.start, self.offset + at);
        Err(MappingError::NotWholePages { start, len, offset })
    }

    /// The pieces of `part` that are still mapped.
    fn mapped(&self, part: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (start, end) = (part.start, part.end);
        let pieces = self.parts.iter();
        pieces
            .map(move |p| p.start.max(start)..p.end.min(end))
            .filter(|p| !p.is_empty())
    }

    /// Forgets a part: it is local memory and nothing else.
    fn release(&mut self, part: &Range<usize>) {
        let old = std::mem::take(&mut self.parts);
        self.parts = old.iter().flat_map(|p| without(p, part)).collect();
        self.memory.inner.unmap(part);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for part in &self.parts {
            self.memory.inner.unmap(part);
        }
    }
}

/// What of an import was sent and its exporter not notified of.
#[derive(Default)]
struct Unannounced(Option<Range<usize>>);

impl Unannounced {
    /// A part has been sent, as far as it is mapped.
    fn add(&mut self, link: &Link, part: &Range<usize>) {
        for piece in link.mapped(part) {
            let first = link.destination(piece.start);
            let sent = first..first + piece.len();
            self.0 = Some(match &self.0 {
                Some(all) => all.start.min(sent.start)..all.end.max(sent.end),
                None => sent,
            });
        }
    }

    /// Notifies of all of it, from its first byte to its last.
    fn announce(&mut self, link: &Link) -> Result<(), UpdateError> {
        if let Some(all) = &self.0 {
            link.import.notify(all.start, all.len())?;
            self.0 = None;
        }
        Ok(())
    }
}

fn whole_pages(numbers: &[usize]) -> bool {
    numbers.iter().all(|n| n.is_multiple_of(PAGE))
}

/// What is left of `all` without `part`.
pub(super) fn without(
    all: &Range<usize>,
    part: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let before = all.start..all.end.min(part.start);
    let after = all.start.max(part.end)..all.end;
    [before, after].into_iter().filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left() {
        let left = |part| {
            let left = without(&(10..20), &part);
            left.map(|r| (r.start, r.end)).collect::<Vec<_>>()
        };
        assert_eq!(left(0..5), [(10, 20)]);
        assert_eq!(left(20..25), [(10, 20)]);
        assert_eq!(left(10..20), []);
        assert_eq!(left(5..25), []);
        assert_eq!(left(5..12), [(12, 20)]);
        assert_eq!(left(18..25), [(10, 18)]);
        assert_eq!(left(12..18), [(10, 12), (18, 20)]);
    }
}
