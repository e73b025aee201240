//! Counts a domain's extents for a survey: which space holds how many of which size, and how old
//! they are.

use super::{Ground, MemorySurvey, SpaceSurvey};
use crate::space::extent;
use portolan_abi::limits::{CHUNK, CHUNK_PAGES};
use portolan_abi::owner::{Alloc, ChunkUse, Hold, Size};
use portolan_abi::region::OWNER_BYTES;
use portolan_shm::chunk::Chunks;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ages at which [`HoldingSurvey::by_age`] goes over to its next part.
pub const AGES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(3600),
];

/// The extents of one size that one holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldingSurvey {
    /// Who has them.
    pub holder: Holder,
    /// Bytes of each.
    pub size: u64,
    /// How many there are.
    pub extents: u64,
    /// How many were allocated less than each of [`AGES`] ago, the last of all; an extent
    /// keeps its age when it changes hands.
    pub by_age: [u64; AGES.len() + 1],
    /// How long ago the oldest was allocated, to the second, modulo 48 days.
    pub oldest: Duration,
}

/// Who has an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Holder {
    /// The space of this number.
    Space(u8),
    /// A message in a queue, or one that a space is sending this instant.
    Queues,
    /// Several spaces: it is a segment's.
    Segments,
}

/// Fills in what each space owns; the domain's memory, and who holds what.
pub(super) fn take(
    ground: &Ground<'_>,
    spaces: &mut [SpaceSurvey],
    shared: &HashSet<u32>,
) -> (MemorySurvey, Vec<HoldingSurvey>) {
    let tables = ground.tables;
    let mut holders = HashMap::new();
    let mut sending = HashMap::new();
    for space in spaces.iter() {
        read_row(ground, space.id, &mut holders, &mut sending);
    }
    let now = extent::now();
    let mut memory = MemorySurvey {
        limit: tables.header.limit.load(Ordering::Relaxed),
        ..MemorySurvey::default()
    };
    let mut holdings: BTreeMap<(Holder, Size), HoldingSurvey> = BTreeMap::new();
    for chunk in ground.entries(tables.geometry.chunks, 8, tables.chunks.len()) {
        let word = tables.chunks.read(chunk);
        let chunk_bytes = CHUNK as u64;
        if word.populated || word.r#use == ChunkUse::Taking {
            memory.taken += chunk_bytes;
        }
        let cut = matches!(word.r#use, ChunkUse::Small | ChunkUse::Head);
        let Some(size) = Size::from_code(word.size).filter(|_| cut) else {
            if word.populated && word.r#use == ChunkUse::Free {
                memory.free += chunk_bytes;
            }
            continue;
        };
        let bytes = size.bytes() as u64;
        let words = tables.geometry.alloc + 8 * u64::from(Chunks::first_page(chunk));
        ground.fetch(words..words + 8 * CHUNK_PAGES as u64);
        for page in Chunks::extents(chunk, size) {
            let word = tables.alloc.read(page);
            match word.state() {
                Alloc::Free => memory.free += bytes,
                Alloc::Locked => {}
                Alloc::Used => {
                    memory.used += bytes;
                    let key = (page, word.generation());
                    let holder = match holders.get(&key) {
                        Some(id) => Holder::Space(*id),
                        None if shared.contains(&page) => Holder::Segments,
                        None => Holder::Queues,
                    };
                    match holder {
                        Holder::Segments => memory.shared += bytes,
                        Holder::Queues if !sending.contains_key(&key) => memory.queued += bytes,
                        _ => {}
                    }
                    let holding = holdings
                        .entry((holder, size))
                        .or_insert_with(|| HoldingSurvey {
                            holder,
                            size: bytes,
                            extents: 0,
                            by_age: [0; AGES.len() + 1],
                            oldest: Duration::ZERO,
                        });
                    let age = Duration::from_secs(word.born().age(now).into());
                    holding.extents += 1;
                    holding.by_age[AGES.iter().filter(|limit| age >= **limit).count()] += 1;
                    holding.oldest = holding.oldest.max(age);
                }
            }
        }
    }
    let queues = tables.header.queue_chunks.value.load(Ordering::Relaxed) * CHUNK as u64;
    memory.free += memory.limit.saturating_sub(memory.taken + queues);
    for space in spaces {
        for holding in holdings.values() {
            if holding.holder == Holder::Space(space.id) {
                space.extents += holding.extents;
                space.owned += holding.extents * holding.size;
            }
        }
    }
    (memory, holdings.into_values().collect())
}

/// An extent's first page, and which use of it.
type Use = (u32, u32);

/// Reads one row of owner words. A word of an earlier use says nothing, and finds no
/// extent of its generation.
fn read_row(
    ground: &Ground<'_>,
    space: u8,
    holders: &mut HashMap<Use, u8>,
    sending: &mut HashMap<Use, u8>,
) {
    let tables = ground.tables;
    let row = tables.owner_row(space);
    let start = tables.geometry.owners + u64::from(space) * tables.geometry.owner_row();
    for page in ground.entries(start, OWNER_BYTES, tables.alloc.pages()) {
        let Ok(page) = u32::try_from(page) else {
            continue;
        };
        let (word, _) = row.read(page);
        let noted = match word.hold() {
            Hold::None => continue,
            Hold::Held | Hold::Parked => &mut *holders,
            Hold::Sending => &mut *sending,
        };
        noted.insert((page, word.generation()), space);
    }
}
