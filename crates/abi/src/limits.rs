//! Names every bound of a region by a constant.

/// Bytes of a page, the smallest extent.
pub const PAGE: usize = 4096;
/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a chunk, the unit in which memory is taken from the kernel (one huge page).
pub const CHUNK: usize = 2 << 20;
/// Pages of a chunk.
pub const CHUNK_PAGES: usize = CHUNK / PAGE;
/// Spaces of a domain; identifiers are 1 to `MAX_SPACES - 1`, 0 is nobody.
pub const MAX_SPACES: usize = 256;
/// Thread lines of a space: one for each of its threads that sends or waits, while they last;
/// the last is shared by all further ones.
pub const THREAD_LINES: usize = 64;
/// Public entries of a space: its exports and its connections to other domains, as observers
/// see them. Further ones work as well, and are not seen.
pub const PUBLIC_ENTRIES: usize = 256;
/// Ports of a domain: reply ports count, and 10,000 idle ones must fit beside them.
pub const MAX_PORTS: usize = 32_768;
/// Wait sets of a domain.
pub const MAX_WAIT_SETS: usize = 512;
/// Threads of a domain that handle signals.
pub const MAX_FIFOS: usize = 1024;
/// Pending death notifications of a domain.
pub const MAX_WATCHES: usize = 4096;
/// Bytes of a message's header at the most.
pub const MAX_HEADER: usize = 4096;
/// Extents of one message at the most.
pub const MAX_EXTENTS: usize = 1024;
/// Rights of one message at the most.
pub const MAX_RIGHTS: usize = 64;
/// Offers to clients in one domain at the most.
pub const MAX_OFFERS: usize = 65_536;
/// Users, groups and processes, of each, that one offer permits at the most.
pub const MAX_GRANTS: usize = 64;
/// Bytes of a port's, space's or offer's name at the most.
pub const MAX_NAME: usize = 63;
/// Bytes of a node's name at the most: what fits beside the counters of a proxied port.
pub const MAX_NODE_NAME: usize = 32;
/// Bytes of a domain's name at the most: an abstract socket's name holds 107, ours adds `portolan/UID/`.
pub const MAX_DOMAIN_NAME: usize = 80;
/// Slots of a queue at the most (and at least [`MIN_SLOTS`]); always a power of two.
pub const MAX_SLOTS: usize = 65_536;
/// Slots of a queue at the least: one being filled and one being read.
pub const MIN_SLOTS: usize = 2;
/// Lines of a slot at the most: the state and meta words and 496 bytes inline.
pub const MAX_SLOT_LINES: usize = 8;
/// Size classes of extents within one chunk: 4 KiB shifted left by 0 to 8.
pub const SMALL_CLASSES: usize = 9;
/// Bytes of addresses for the queues of each width of slot ([`MAX_SLOT_LINES`] of them). Sparse;
/// a queue of 64 slots of two lines takes 8 KiB of memory.
pub const QUEUE_HEAP: u64 = (MAX_BANKS * PAGE) as u64;
/// Slots of a bank of queue memory: as many pages as a slot has lines.
pub const BANK_SLOTS: usize = PAGE / LINE;
/// Banks of queue memory of slots of one line; of wider ones there are fewer.
pub const MAX_BANKS: usize = (4 << 30) / PAGE;
/// Port entries among which new ports go round while few are in use; more are taken into use
/// when half of them are.
pub const MIN_ROUND: usize = 1024;

const _: () = assert!(PAGE << (SMALL_CLASSES - 1) == CHUNK / 2);
const _: () = assert!(MAX_PORTS.is_multiple_of(MIN_ROUND) && MIN_ROUND.is_multiple_of(64));
const _: () = assert!(MAX_BANKS.is_multiple_of(64) && MAX_SLOTS.is_multiple_of(BANK_SLOTS));
const _: () = assert!(MAX_PORTS <= 1 << 16, "a port index is 16 bits in rights");
const _: () = assert!(MAX_SPACES <= 1 << 8, "a space id is 8 bits in slot states");
const _: () = assert!(THREAD_LINES <= 64, "who has which line is 64 bits");
