//! Makes the data that is sent: a map of string keys to small records, once as a structure and once
//! as a program that serialises has it.

use portolan::Handover;
use portolan::structure::{Map, NoRoom, Structure, Text};

/// A small record, the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Handover)]
#[cfg_attr(
    feature = "serialisers",
    derive(
        serde::Serialize,
        serde::Deserialize,
        rkyv::Archive,
        rkyv::Serialize,
        rkyv::Deserialize
    )
)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) position: [f64; 2],
    pub(crate) flags: u32,
}

/// A program's own map.
#[cfg(feature = "serialisers")]
pub(crate) type Plain = std::collections::HashMap<String, Record>;

/// Bytes that a structure of so many entries fits into: hashbrown doubles its slots, and a
/// text takes its bytes rounded up.
const ENTRY: usize = 2 * 8 * (size_of::<Text<'_>>() + size_of::<Record>() + 1) / 7 + 32;

pub(crate) fn key(n: u64) -> String {
    format!("vessel-{n:09}")
}

pub(crate) fn record(n: u64) -> Record {
    Record {
        id: n,
        position: [n as f64, -(n as f64)],
        flags: u32::try_from(n % 7).unwrap_or(0),
    }
}

/// The map as a structure, in one extent.
pub(crate) fn structure(
    domain: &portolan::Domain,
    entries: u64,
) -> Result<Structure<Map<'static, Text<'static>, Record>>, NoRoom> {
    let room = usize::try_from(entries).unwrap_or(usize::MAX);
    Structure::with_capacity(domain, room.saturating_mul(ENTRY), |arena| {
        let mut map = arena.map();
        map.reserve(room)?;
        for n in 0..entries {
            map.insert(arena.text(&key(n))?, record(n))?;
        }
        Ok(map)
    })
}

/// The map as most programs have it.
#[cfg(feature = "serialisers")]
pub(crate) fn plain(entries: u64) -> Plain {
    (0..entries).map(|n| (key(n), record(n))).collect()
}

/// The keys that are looked up, spread over all.
pub(crate) fn looked_up(entries: u64, lookups: u64) -> Vec<String> {
    // A prime that divides no number of entries used here: no key comes twice.
    (0..lookups).map(|i| key(i * 7919 % entries)).collect()
}
