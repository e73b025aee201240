//! Writes and reads messages on a byte ring: a frame header, lengths, a header, and the bytes of
//! the extents.

use super::error::{Over, ViolationKind};
use super::side::Side;
use crate::space::Member;
use crate::space::extent;
use crate::{AllocateError, Extent, FreezeError, Message, Sealed, Unsealed};
use portolan_abi::bridge::{FrameHeader, bytes_taken};
use portolan_abi::slot::Kind;
use portolan_sys::memory::{Frozen, FrozenError, VerifyError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether the domain has memory again, at first and at the most.
const SHORT_OF_PAGES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Writes a message. The message keeps its parts.
pub(super) async fn write(
    side: &Side,
    kind: Kind,
    tag: u64,
    message: &Message,
    scratch: &mut Vec<u8>,
) -> Result<(), Over> {
    let sealed = if side.seals() {
        seal(message).map_err(io::Error::other)?
    } else {
        Vec::new()
    };
    let shown = side.seals();
    let copied = || message.slices().filter(|_| !shown);
    let frame = FrameHeader {
        header: message.header().len(),
        extents: copied().count(),
        sealed: sealed.len(),
        urgency: message.urgency_word(),
        tag,
        ..FrameHeader::new(kind)
    };
    scratch.clear();
    scratch.extend(frame.encode());
    for bytes in copied().chain(sealed.iter().map(|s| &s[..])) {
        scratch.extend((bytes.len() as u64).to_le_bytes());
    }
    scratch.extend(message.header());
    if !sealed.is_empty() {
        // Before the frame header that speaks of them.
        let fds: Vec<_> = sealed.iter().map(|s| s.frozen().as_fd()).collect();
        side.show(&fds).await?;
        portolan_shm::mark!("bridge.shown");
    }
    side.write(scratch).await?;
    portolan_shm::mark!("bridge.announced");
    for bytes in copied() {
        side.write(bytes).await?;
    }
    Ok(())
}

/// Returns a message's bytes as sealed memory: its extents together as one part, and its sealed
/// parts as they are.
fn seal(message: &Message) -> Result<Vec<Sealed>, FreezeError> {
    let extents = message.extents();
    let mut sealed = Vec::new();
    if !extents.is_empty() {
        let mut blank = Unsealed::new(extents.iter().map(Extent::len).sum())?;
        let mut rest = &mut blank[..];
        for extent in extents {
            let (now, later) = rest.split_at_mut(extent.len());
            now.copy_from_slice(extent);
            rest = later;
        }
        sealed.push(blank.seal()?);
    }
    for part in message.sealed() {
        sealed.push(if part.frozen().is_written() {
            // Its descriptor leads to what it was before.
            let mut blank = Unsealed::new(part.len())?;
            blank.copy_from_slice(part);
            blank.seal()?
        } else {
            part.clone()
        });
    }
    Ok(sealed)
}

/// Puts copies in extents of `member`'s in the place of sealed memory.
pub(super) async fn unseal(
    side: &Side,
    member: &Arc<Member>,
    message: &mut Message,
) -> Result<(), Over> {
    for part in message.take_sealed() {
        let mut extent = allocate(side, member, part.len()).await?;
        extent.copy_from_slice(&part);
        message
            .push(extent)
            .map_err(|_| ViolationKind::FrameHeader)?;
    }
    Ok(())
}

/// Reads the message that is next, which may take at most `most` bytes, into extents of
/// `member`'s; waits for all of it.
pub(super) async fn read(
    side: &Side,
    member: &Arc<Member>,
    most: u64,
    scratch: &mut Vec<u8>,
) -> Result<(FrameHeader, Message), Over> {
    let frame = read_frame_header(side).await?;
    scratch.resize(frame.rest(), 0);
    side.read(scratch).await?;
    let (lengths, header) = scratch.split_at(frame.rest() - frame.header);
    let lengths: Vec<u64> = lengths
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    // Before a byte is taken for it (G1).
    let bytes = bytes_taken(frame.header, lengths.iter().copied());
    if bytes > most {
        return Err(ViolationKind::TooLong { bytes, most }.into());
    }
    let mut message = Message::new(header).map_err(|_| ViolationKind::FrameHeader)?;
    if let Some(urgency) = frame.urgency {
        message.set_urgency_word(urgency);
    }
    let (copied, shown) = lengths.split_at(frame.extents);
    if !shown.is_empty() {
        let fds = side.shown(shown.len())?;
        let sealed = fds.into_iter().zip(shown);
        let sealed: Result<_, Over> = sealed.map(|(fd, len)| verify(fd, *len)).collect();
        message.put_sealed(sealed?);
    }
    for len in copied {
        // Fits: it is below `most`, which is below what a domain holds.
        let len = usize::try_from(*len).unwrap_or(usize::MAX);
        let mut extent = allocate(side, member, len).await?;
        portolan_shm::mark!("bridge.half");
        side.read(&mut extent).await?;
        message
            .push(extent)
            .map_err(|_| ViolationKind::FrameHeader)?;
    }
    Ok((frame, message))
}

/// Verifies the seals and the size of a descriptor's memory, then maps it for this process alone.
fn verify(fd: OwnedFd, len: u64) -> Result<Sealed, Over> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    match Frozen::verify(fd, len) {
        Ok(frozen) => Ok(Sealed::of(frozen)),
        Err(FrozenError::Verify(VerifyError::Io(error))) => Err(Over::Io(error)),
        Err(FrozenError::Verify(error)) => Err(ViolationKind::Sealed(error).into()),
        Err(error) => Err(Over::Io(io::Error::other(error))),
    }
}

/// Allocates memory for a part that comes. While the domain has none the other side waits, as for
/// a full port.
async fn allocate(side: &Side, member: &Arc<Member>, len: usize) -> Result<Extent, Over> {
    let mut wait = SHORT_OF_PAGES.0;
    loop {
        match extent::allocate(member, len) {
            Ok(extent) => return Ok(extent),
            Err(AllocateError::Disowned(_)) => return Err(Over::Stopped),
            Err(AllocateError::OutOfPages { .. }) => side.context().pause(wait).await,
        }
        wait = (wait * 2).min(SHORT_OF_PAGES.1);
    }
}

/// Writes a message of a channel, before which so many units in all were missed.
pub(super) async fn write_copy(
    side: &Side,
    missed: u64,
    bytes: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(), Over> {
    let frame = FrameHeader {
        extents: 1,
        tag: missed,
        ..FrameHeader::new(Kind::Message)
    };
    scratch.clear();
    scratch.extend(frame.encode());
    scratch.extend((bytes.len() as u64).to_le_bytes());
    side.write(scratch).await?;
    side.write(bytes).await
}

/// Writes that a channel's writer has gone.
pub(super) async fn write_end(side: &Side) -> Result<(), Over> {
    side.write(&FrameHeader::new(Kind::Dropped).encode()).await
}

/// Reads what [`write_copy`] or [`write_end`] has written, of at most `most` bytes, to
/// `message`; waits for all of it.
pub(super) async fn read_copy(
    side: &Side,
    most: u64,
    message: &mut Vec<u8>,
) -> Result<FrameHeader, Over> {
    let frame = read_frame_header(side).await?;
    message.clear();
    if frame == FrameHeader::new(Kind::Dropped) {
        return Ok(frame);
    }
    let one = FrameHeader {
        extents: 1,
        tag: frame.tag,
        ..FrameHeader::new(Kind::Message)
    };
    if frame != one {
        return Err(ViolationKind::FrameHeader.into());
    }
    let mut len = [0; 8];
    side.read(&mut len).await?;
    let bytes = u64::from_le_bytes(len);
    // Before a byte is taken for it (G1).
    if bytes > most {
        return Err(ViolationKind::TooLong { bytes, most }.into());
    }
    message.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
    side.read(message).await?;
    Ok(frame)
}

/// Reads the frame header of the next message.
async fn read_frame_header(side: &Side) -> Result<FrameHeader, Over> {
    // What one call writes is read by one call of this length, or by several of whole lines.
    let mut first = [0; FrameHeader::BYTES];
    side.read(&mut first).await?;
    Ok(FrameHeader::decode(&first).map_err(|_| ViolationKind::FrameHeader)?)
}
