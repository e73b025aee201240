//! Messages on a lane: a manifest, lengths, a header, and the bytes of the extents.

use super::error::{BreachKind, Over};
use super::side::Side;
use crate::member::Member;
use crate::{AllocateError, Extent, Message, extent};
use portolan_abi::gate::Manifest;
use portolan_abi::slot::Kind;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether the domain has memory again, at first and at the most.
const SHORT_OF_PAGES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Writes a message. What is in it stays.
pub(super) fn write(
    side: &mut Side,
    kind: Kind,
    tag: u64,
    message: &Message,
    scratch: &mut Vec<u8>,
) -> Result<(), Over> {
    let manifest = Manifest {
        header: message.header().len(),
        extents: message.extents().len(),
        urgency: message.urgency_word(),
        tag,
        ..Manifest::new(kind)
    };
    scratch.clear();
    scratch.extend(manifest.encode());
    for extent in message.extents() {
        scratch.extend((extent.len() as u64).to_le_bytes());
    }
    scratch.extend(message.header());
    side.write(scratch)?;
    for extent in message.extents() {
        side.write(extent)?;
    }
    Ok(())
}

/// Reads the message that is next, of at most `most` bytes, into extents of `member`'s; waits
/// for all of it.
pub(super) fn read(
    side: &mut Side,
    member: &Arc<Member>,
    most: u64,
    scratch: &mut Vec<u8>,
) -> Result<(Manifest, Message), Over> {
    // What one call writes is read by one call of this length, or by several of whole lines.
    let mut first = [0; Manifest::BYTES];
    side.read(&mut first)?;
    let manifest = Manifest::decode(&first).ok_or(BreachKind::Manifest)?;
    scratch.resize(manifest.rest(), 0);
    side.read(scratch)?;
    let (lengths, header) = scratch.split_at(manifest.rest() - manifest.header);
    let lengths: Vec<u64> = lengths
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    // Before a byte is taken for it (G1).
    let bytes = lengths
        .iter()
        .fold(0, |sum: u64, len| sum.saturating_add(*len));
    if bytes > most {
        return Err(BreachKind::TooLong { bytes, most }.into());
    }
    if manifest.sealed > 0 {
        return Err(BreachKind::Manifest.into());
    }
    let mut message = Message::new(header).map_err(|_| BreachKind::Manifest)?;
    if let Some(urgency) = manifest.urgency {
        message.set_urgency_word(urgency);
    }
    for len in lengths {
        // Fits: it is below `most`, which is below what a domain holds.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut extent = allocate(side, member, len)?;
        side.read(&mut extent)?;
        message.push(extent).map_err(|_| BreachKind::Manifest)?;
    }
    Ok((manifest, message))
}

/// Memory for what comes. While the domain has none the other side waits, as for a full port.
fn allocate(side: &mut Side, member: &Arc<Member>, len: usize) -> Result<Extent, Over> {
    let mut wait = SHORT_OF_PAGES.0;
    loop {
        match extent::allocate(member, len) {
            Ok(extent) => return Ok(extent),
            Err(AllocateError::Disowned(_)) => return Err(Over::Stopped),
            Err(AllocateError::OutOfPages(_)) => side.pause(wait)?,
        }
        wait = (wait * 2).min(SHORT_OF_PAGES.1);
    }
}
