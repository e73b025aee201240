//! Lays out the tables of a region's file.
//!
//! ```text
//! header | spaces | thread lines | public entries | ports | name hashes | ports in use
//!   | lent ports | wait sets | watches | signal FIFOs | signal ranges | signal handlers | chunk words
//!   | allocation words | words of queue memory | right rows | owner rows
//!   | queue memory | trace rings
//!   | pool: small part, then large part          (both chunk-aligned)
//! ```
//!
//! The file is sparse: a table costs memory only where it is touched. The pool
//! has two parts of equal size, because large extents want huge pages and are
//! guarded in another way than small ones; the domain's limit bounds their sum.

use crate::limits::{
    CHUNK, CHUNK_PAGES, LINE, MAX_BANKS, MAX_FIFOS, MAX_PORTS, MAX_SLOT_LINES, MAX_SPACES,
    MAX_WAIT_SETS, MAX_WATCHES, PAGE, PUBLIC_ENTRIES, QUEUE_HEAP, THREAD_LINES,
};
use crate::signal::{MAX_HANDLERS, MAX_PLACES};
use crate::trace::MAX_RING;
use std::ops::Range;

/// First word of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"portolan");
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 4096;
/// Bytes of a space's entry.
pub const SPACE_BYTES: u64 = 256;
/// Bytes of a thread line.
pub const THREAD_BYTES: u64 = 128;
/// Bytes of a public entry.
pub const PUBLIC_BYTES: u64 = 320;
/// Bytes of a port's entry.
pub const PORT_BYTES: u64 = 512;
/// Bytes of a wait set's entry.
pub const WAIT_SET_BYTES: u64 = 8192;
/// Bytes of a watch.
pub const WATCH_BYTES: u64 = 64;
/// Bytes of a signal FIFO.
pub const FIFO_BYTES: u64 = 8192;
/// Bytes of a signal handler's entry.
pub const HANDLER_BYTES: u64 = 64;
/// Bytes of an owner word with its destination.
pub const OWNER_BYTES: u64 = 16;
/// Bytes of the words that say which ports are in use: a bit each.
pub const PORT_BITS_BYTES: u64 = MAX_PORTS as u64 / 8;
/// Bytes of the words of lent ports: the bell and a summary, and for each entry a bit that says
/// whether its port is lent, and one that says whether the node is to look at it.
pub const LENT_BYTES: u64 = PAGE as u64 + 2 * PORT_BITS_BYTES;
/// Bytes of the words for the queue memory of one width of slot: for each bank a bit that says
/// whether it is taken, a bit that says whether it has memory, and its owner.
pub const BANK_TABLE_BYTES: u64 = MAX_BANKS as u64 / 8 * 2 + MAX_BANKS as u64 * 4;
/// Bytes of a space's counts of rights on one port.
pub const RIGHT_BYTES: u64 = 16;

/// Lines of a trace ring before its first event: a page, of which the first word is used.
pub const TRACE_HEAD: usize = PAGE / LINE;
/// Bytes of the place for a space's trace ring.
pub const TRACE_BYTES: u64 = ((TRACE_HEAD + (1 << MAX_RING)) * LINE) as u64;

const _: () = assert!(TRACE_BYTES.is_multiple_of(PAGE as u64));
const _: () = assert!(Geometry::THREAD_ROW.is_multiple_of(PAGE as u64));
const _: () = assert!(Geometry::PUBLIC_ROW.is_multiple_of(PAGE as u64));

/// Lowest address that a region may have.
pub const BASE_LOWEST: u64 = 0x2000_0000_0000;
/// Address that a region must end before: below what Linux gives programs and libraries.
pub const BASE_HIGHEST: u64 = 0x5000_0000_0000;
/// Regions lie at multiples of this.
pub const BASE_STEP: u64 = 1 << 30;

/// The offsets of every table for a pool of two parts of `part_chunks` chunks each.
///
/// ```
/// use portolan_abi::region::Geometry;
/// let geometry = Geometry::new(16 << 30).unwrap();
/// assert_eq!(geometry.part_chunks, 8192);
/// assert_eq!(geometry.pool % (2 << 20), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Chunks of each part.
    pub part_chunks: u64,
    /// Offset of the spaces.
    pub spaces: u64,
    /// Offset of the thread lines.
    pub threads: u64,
    /// Offset of the public entries.
    pub publics: u64,
    /// Offset of the ports.
    pub ports: u64,
    /// Offset of the ports' name hashes.
    pub names: u64,
    /// Offset of the bits of ports in use.
    pub port_bits: u64,
    /// Offset of the words of lent ports.
    pub lent: u64,
    /// Offset of the wait sets.
    pub wait_sets: u64,
    /// Offset of the watches.
    pub watches: u64,
    /// Offset of the signal FIFOs.
    pub fifos: u64,
    /// Offset of the table of signal ranges.
    pub ranges: u64,
    /// Offset of the signal handlers.
    pub handlers: u64,
    /// Offset of the chunk words.
    pub chunks: u64,
    /// Offset of the allocation words.
    pub alloc: u64,
    /// Offset of the words of queue memory, for slots of one line; then of two, and so on.
    pub banks: u64,
    /// Offset of the right rows.
    pub rights: u64,
    /// Offset of the owner rows.
    pub owners: u64,
    /// Offset of the queue memory, for slots of one line; then of two, and so on.
    pub queues: u64,
    /// Offset of the trace rings.
    pub traces: u64,
    /// Offset of the pool.
    pub pool: u64,
    /// Bytes of the file.
    pub len: u64,
}

impl Geometry {
    /// The layout of a domain whose extents may take `size` bytes, rounded up to chunks.
    ///
    /// `None` if `size` is zero or over 1 TiB.
    pub const fn new(size: u64) -> Option<Self> {
        let part_chunks = size.div_ceil(CHUNK as u64);
        if part_chunks == 0 || size > 1 << 40 {
            return None;
        }
        let pages = 2 * part_chunks * CHUNK_PAGES as u64;
        let spaces = HEADER_BYTES;
        let threads = page(spaces + MAX_SPACES as u64 * SPACE_BYTES);
        let publics = page(threads + MAX_SPACES as u64 * Self::THREAD_ROW);
        let ports = page(publics + MAX_SPACES as u64 * Self::PUBLIC_ROW);
        let names = page(ports + MAX_PORTS as u64 * PORT_BYTES);
        let port_bits = page(names + MAX_PORTS as u64 * 8);
        let lent = page(port_bits + PORT_BITS_BYTES);
        let wait_sets = page(lent + LENT_BYTES);
        let watches = page(wait_sets + MAX_WAIT_SETS as u64 * WAIT_SET_BYTES);
        let fifos = page(watches + MAX_WATCHES as u64 * WATCH_BYTES);
        let ranges = page(fifos + MAX_FIFOS as u64 * FIFO_BYTES);
        let handlers = page(ranges + MAX_PLACES as u64 * 8);
        let chunks = page(handlers + MAX_HANDLERS as u64 * HANDLER_BYTES);
        let alloc = page(chunks + 2 * part_chunks * 8);
        let banks = page(alloc + pages * 8);
        let rights = page(banks + MAX_SLOT_LINES as u64 * Self::BANK_TABLE);
        let owners = page(rights + MAX_SPACES as u64 * Self::RIGHT_ROW);
        let queues = page(owners + MAX_SPACES as u64 * pages * OWNER_BYTES);
        let traces = page(queues + MAX_SLOT_LINES as u64 * QUEUE_HEAP);
        let pool = (traces + MAX_SPACES as u64 * TRACE_BYTES).next_multiple_of(CHUNK as u64);
        let len = pool + 2 * part_chunks * CHUNK as u64;
        Some(Self {
            part_chunks,
            spaces,
            threads,
            publics,
            ports,
            names,
            port_bits,
            lent,
            wait_sets,
            watches,
            fifos,
            ranges,
            handlers,
            chunks,
            alloc,
            banks,
            rights,
            owners,
            queues,
            traces,
            pool,
            len,
        })
    }

    /// Bytes of one space's thread lines: whole pages.
    pub const THREAD_ROW: u64 = THREAD_LINES as u64 * THREAD_BYTES;

    /// Bytes of one space's public entries: whole pages.
    pub const PUBLIC_ROW: u64 = PUBLIC_ENTRIES as u64 * PUBLIC_BYTES;
    /// Bytes from the words of queue memory for one width of slot to those for the next.
    pub const BANK_TABLE: u64 = page(BANK_TABLE_BYTES);

    /// Bytes of one space's right row.
    pub const RIGHT_ROW: u64 = MAX_PORTS as u64 * RIGHT_BYTES;

    /// Offset of `space`'s trace ring.
    pub const fn trace(&self, space: u8) -> u64 {
        self.traces + space as u64 * TRACE_BYTES
    }

    /// Bytes of a trace ring of `1 << size` events.
    pub const fn trace_bytes(size: u8) -> u64 {
        (TRACE_HEAD as u64 + (1 << size)) * LINE as u64
    }

    /// Chunks of both parts.
    pub const fn all_chunks(&self) -> u64 {
        2 * self.part_chunks
    }

    /// Pages of both parts.
    pub const fn pages(&self) -> u64 {
        self.all_chunks() * CHUNK_PAGES as u64
    }

    /// Bytes of one space's owner row.
    pub const fn owner_row(&self) -> u64 {
        self.pages() * OWNER_BYTES
    }

    /// Where the region of `user`'s domain `name` should lie; `attempt` picks another place.
    ///
    /// The hash is FNV-1a: every build and version of the program must agree on it.
    pub const fn base(&self, user: u32, name: &[u8], attempt: u32) -> u64 {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let seed = [user.to_le_bytes(), attempt.to_le_bytes()];
        let mut i = 0;
        while i < 8 + name.len() {
            let byte = if i < 8 {
                seed[i / 4][i % 4]
            } else {
                name[i - 8]
            };
            hash = (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3);
            i += 1;
        }
        let steps = (BASE_HIGHEST - BASE_LOWEST).saturating_sub(self.len) / BASE_STEP;
        BASE_LOWEST + (hash ^ hash >> 32) % (steps + 1) * BASE_STEP
    }

    /// The addresses of a region at `base`.
    pub const fn range(&self, base: u64) -> Range<u64> {
        base..base + self.len
    }

    /// The next place from `wished` on that none of the `reserved` ranges overlaps, going on from
    /// the lowest after the highest; `None` if there is no such place.
    ///
    /// ```
    /// use portolan_abi::region::{BASE_LOWEST, Geometry};
    /// let geometry = Geometry::new(16 << 30).unwrap();
    /// let other = geometry.range(BASE_LOWEST);
    /// let base = geometry.unreserved(BASE_LOWEST, vec![other.clone()]).unwrap();
    /// assert!(base >= other.end);
    /// ```
    pub fn unreserved(&self, wished: u64, mut reserved: Vec<Range<u64>>) -> Option<u64> {
        reserved.sort_unstable_by_key(|range| range.start);
        [wished, BASE_LOWEST].into_iter().find_map(|from| {
            let mut base = from;
            for other in &reserved {
                if overlap(&self.range(base), other) {
                    base = other.end.next_multiple_of(BASE_STEP);
                }
            }
            (self.range(base).end <= BASE_HIGHEST).then_some(base)
        })
    }
}

/// Overlapping ranges have an address in common.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

const fn page(offset: u64) -> u64 {
    offset.next_multiple_of(PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_do_not_overlap_and_bases_stay_in_their_band() {
        for size in [CHUNK as u64, 1 << 30, 16 << 30, 1 << 40] {
            let g = Geometry::new(size).unwrap();
            let order = [
                0,
                g.spaces,
                g.threads,
                g.publics,
                g.ports,
                g.names,
                g.port_bits,
                g.lent,
                g.wait_sets,
                g.watches,
                g.fifos,
                g.ranges,
                g.handlers,
                g.chunks,
                g.alloc,
                g.banks,
                g.rights,
                g.owners,
                g.queues,
                g.traces,
                g.pool,
                g.len,
            ];
            assert!(order.is_sorted_by(|a, b| a < b));
            for attempt in 0..100 {
                let base = g.base(0, b"demo", attempt);
                assert!(
                    base >= BASE_LOWEST
                        && base + g.len <= BASE_HIGHEST
                        && base.is_multiple_of(BASE_STEP)
                );
            }
        }
        assert_eq!(Geometry::new(0), None);
    }

    #[test]
    fn regions_beside_reserved_ranges_overlap_none_as_long_as_there_is_room() {
        let geometry = Geometry::new(16 << 30).unwrap();
        let mut reserved = Vec::new();
        // Each wishes the same place, and one that is not a multiple of the step is in the way.
        reserved.push(BASE_LOWEST + 1..BASE_LOWEST + 2);
        while let Some(base) = geometry.unreserved(BASE_HIGHEST - (1 << 40), reserved.clone()) {
            let range = geometry.range(base);
            assert!(BASE_LOWEST <= base && range.end <= BASE_HIGHEST);
            assert!(base.is_multiple_of(BASE_STEP));
            assert!(!reserved.iter().any(|other| overlap(other, &range)));
            reserved.push(range);
        }
        let most = (BASE_HIGHEST - BASE_LOWEST) / geometry.len.next_multiple_of(BASE_STEP);
        assert!(
            reserved.len() as u64 >= most - 3,
            "{} of {most}",
            reserved.len()
        );
        // A large one finds the gap that is left when some go.
        reserved.drain(100..103);
        let large = Geometry::new(32 << 30).unwrap();
        let base = large.unreserved(BASE_LOWEST, reserved.clone()).unwrap();
        assert!(
            !reserved
                .iter()
                .any(|other| overlap(other, &large.range(base)))
        );
    }
}
