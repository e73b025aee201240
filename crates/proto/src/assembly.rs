//! Cuts messages that are longer than a packet into pieces, and puts them together again.
//!
//! The sender sends a burst unasked. The receiver asks for what it misses and for the next
//! burst in one go, when the last piece that it asked for has come, or when it is time to
//! review. So a message may be longer than the channel, and a burst that was lost is asked
//! for again.

use crate::{Misbehaved, Settings};
use portolan_abi::rpc::MAX_ASKED;

/// A message of which some pieces have come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assembly {
    bytes: Vec<u8>,
    /// A bit for each piece that has come.
    have: Vec<u64>,
    /// Pieces that have not come.
    missing: u32,
    /// Pieces before this one were sent, or asked for.
    asked: u32,
}

/// What a piece did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was there before.
    Known,
    /// More is on its way.
    Waiting,
    /// Ask for more.
    Ask,
    /// That was all.
    Complete,
}

impl Assembly {
    /// Whether nothing has come.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        // Without bytes it has nothing else: most messages are whole.
        if !self.is_empty() {
            *self = Self::default();
        }
    }

    /// The whole, once it is complete.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).bytes
    }

    /// Adds a piece.
    pub(crate) fn add(
        &mut self,
        settings: &Settings,
        place: u64,
        body: &[u8],
    ) -> Result<Progress, Misbehaved> {
        let [o0, o1, o2, o3, t0, t1, t2, t3] = place.to_le_bytes();
        let (offset, total) = (
            u32::from_le_bytes([o0, o1, o2, o3]),
            u32::from_le_bytes([t0, t1, t2, t3]),
        );
        let (from, whole, len) = (offset as usize, total as usize, body.len());
        let most = settings.longest();
        if whole > most {
            return Err(Misbehaved::TooLong { total: whole, most });
        }
        let size = settings.piece();
        let fits = from < whole && from.is_multiple_of(size) && len == size.min(whole - from);
        if !fits || !self.is_empty() && self.bytes.len() != whole {
            let bad = Misbehaved::Piece { offset, total, len };
            return Err(bad);
        }
        if self.is_empty() {
            let pieces = whole.div_ceil(size);
            self.bytes = vec![0; whole];
            self.have = vec![0; pieces.div_ceil(64)];
            self.missing = u32::try_from(pieces).unwrap_or(u32::MAX);
            self.asked = settings.burst().min(self.missing);
        }
        let index = from / size;
        let (have, bit) = (&mut self.have[index / 64], 1 << (index % 64));
        if *have & bit != 0 {
            return Ok(Progress::Known);
        }
        *have |= bit;
        self.missing -= 1;
        self.bytes[from..from + len].copy_from_slice(body);
        if self.missing == 0 {
            return Ok(Progress::Complete);
        }
        if index + 1 == self.asked as usize {
            return Ok(Progress::Ask);
        }
        Ok(Progress::Waiting)
    }

    /// What to ask for: the first piece, and a bit for each from there on; notes that it was.
    pub(crate) fn wanted(&mut self, settings: &Settings) -> (u32, u64) {
        let pieces = self.bytes.len().div_ceil(settings.piece());
        let has = |i: usize| self.have[i / 64] & 1 << (i % 64) != 0;
        let Some(first) = (0..pieces).find(|&i| !has(i)) else {
            return (0, 1);
        };
        let (mut bits, mut count, mut last) = (0, 0, first);
        for index in first..pieces.min(first + MAX_ASKED as usize) {
            if !has(index) && count < settings.burst() {
                bits |= 1 << (index - first);
                count += 1;
                last = index;
            }
        }
        let short = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
        self.asked = short(last + 1);
        (short(first), bits)
    }
}

/// The pieces of a message that were asked for, as (place, bytes).
pub(crate) fn pieces<'a>(
    settings: &Settings,
    message: &'a [u8],
    first: u32,
    bits: u64,
) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
    let (size, burst) = (settings.piece(), settings.burst() as usize);
    (0..u64::BITS)
        .filter(move |i| bits & 1 << i != 0)
        .take(burst)
        .filter_map(move |i| {
            let offset = (first as usize + i as usize).checked_mul(size)?;
            let bytes = message.get(offset..)?;
            let bytes = &bytes[..bytes.len().min(size)];
            let place = offset as u64 | (message.len() as u64) << 32;
            (!bytes.is_empty()).then_some((place, bytes))
        })
}

/// The bits of the first burst.
#[inline]
pub(crate) fn first_burst(settings: &Settings) -> u64 {
    u64::MAX >> (u64::BITS - settings.burst())
}
