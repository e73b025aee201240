//! Writes and reads messages on a byte ring: a frame header, lengths, a header, and the bytes of
//! the extents, which pass in fragments.
//!
//! ```text
//! [frame header][lengths][header] [fragment] ... [frame header][fragment] ... [frame header][fragment]
//!  Outgoing::begin                 step           fragment       step
//!  Preamble::read, Incoming::new   step                          step
//! ```
//!
//! A message is written and read in steps, none of which waits. So its port may end between two
//! steps; then the bytes of the fragment pass all the same, and are zeros or thrown away.

use super::carrier::Context;
use super::error::{Over, ViolationKind};
use super::side::{Side, bytes_of};
use super::window::Taken;
use crate::space::Member;
use crate::space::extent;
use crate::space::record::{About, Begun};
use crate::{AllocateError, EventKind, Extent, FreezeError, Message, Sealed, Unsealed};
use portolan_abi::bridge::{FRAGMENT, FrameHeader, FrameKind, bytes_taken};
use portolan_sys::memory::{Frozen, FrozenError, VerifyError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether the domain has memory again, at first and at the most.
const SHORT_OF_PAGES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Bytes that are read in one step of a message that is thrown away.
const NOTHING: usize = 4096;

/// What a step has done.
pub(super) enum Step {
    /// Something; there is more.
    Moved,
    /// Nothing: there is no room, or nothing has come.
    Waits,
    /// Nothing: the domain has no memory. Another step after this time.
    Pause(Duration),
    /// The fragment is over.
    Done,
}

/// The place in a message's parts, and in a fragment.
#[derive(Clone, Default)]
struct Cursor {
    part: usize,
    at: usize,
    /// Bytes of the fragment that are left.
    left: usize,
}

impl Cursor {
    /// Bytes of the next piece, all of which are of one part; `None` at the fragment's end.
    fn piece(&self, lengths: &[u64]) -> Option<usize> {
        let len = *lengths.get(self.part)?;
        // A part is longer than memory only until it is refused.
        let rest = usize::try_from(len).unwrap_or(usize::MAX) - self.at;
        (self.left > 0).then_some(rest.min(self.left))
    }

    /// So many bytes of a message, from here on.
    fn of<'m>(&self, message: &'m Message, bytes: usize) -> &'m [u8] {
        let extents = message.extents();
        let part = match extents.get(self.part) {
            Some(extent) => &extent[..],
            None => &message.sealed()[self.part - extents.len()][..],
        };
        &part[self.at..self.at + bytes]
    }

    /// So many bytes have passed; whether the part is over.
    fn passed(&mut self, bytes: usize, lengths: &[u64]) -> bool {
        self.at += bytes;
        self.left -= bytes;
        let over = lengths
            .get(self.part)
            .is_some_and(|len| *len == self.at as u64);
        if over {
            (self.part, self.at) = (self.part + 1, 0);
        }
        over
    }
}

/// A message that is being written.
pub(super) struct Outgoing {
    /// `None`: its port has ended, and only what is left of the fragment is written.
    message: Option<Message>,
    rest: Vec<u8>,
    frame: FrameHeader,
    /// Of all parts; those of sealed memory last.
    lengths: Vec<u64>,
    /// What goes by descriptor.
    sealed: Vec<Sealed>,
    cursor: Cursor,
    begun: Option<Begun>,
}

impl Outgoing {
    /// A message, whose parts are copied, or go as sealed memory.
    pub(super) fn new(message: Message, seals: bool) -> Result<Self, Over> {
        let sealed = if seals {
            seal(&message).map_err(io::Error::other)?
        } else {
            Vec::new()
        };
        let copied = message.slices().filter(|_| !seals).map(<[u8]>::len);
        let lengths: Vec<u64> = copied
            .chain(sealed.iter().map(|s| s.len()))
            .map(|len| len as u64)
            .collect();
        let frame = FrameHeader {
            header: message.header().len(),
            extents: lengths.len() - sealed.len(),
            sealed: sealed.len(),
            urgency: message.urgency_word(),
            ..FrameHeader::new(FrameKind::Message)
        };
        Ok(Self {
            message: Some(message),
            rest: Vec::new(),
            frame,
            lengths,
            sealed,
            cursor: Cursor::default(),
            begun: None,
        })
    }

    /// It is about to leave the domain.
    pub(super) fn leaves(&mut self, member: &Member) {
        self.begun = member.begins(EventKind::Depart);
    }

    /// What it takes where it goes.
    pub(super) fn taken(&self) -> Taken {
        taken(&self.frame, &self.lengths)
    }

    /// The first fragment begins: its frame header and what follows it stand in `scratch`. Of which
    /// port it is, and the sealed memory whose descriptors go before.
    pub(super) fn begin(
        &mut self,
        as_what: impl FnOnce(FrameHeader) -> FrameHeader,
        scratch: &mut Vec<u8>,
    ) -> (u32, Vec<Sealed>) {
        self.frame = as_what(self.frame);
        scratch.clear();
        scratch.extend(self.frame.encode());
        scratch.extend(self.lengths.iter().flat_map(|len| len.to_le_bytes()));
        scratch.extend(self.message.iter().flat_map(Message::header));
        self.cursor.left = FRAGMENT;
        (self.frame.port, std::mem::take(&mut self.sealed))
    }

    /// What it is.
    pub(super) fn kind(&self) -> FrameKind {
        self.frame.kind
    }

    /// The next fragment begins with this.
    pub(super) fn fragment(&mut self) -> FrameHeader {
        self.cursor.left = FRAGMENT;
        FrameHeader {
            port: self.frame.port,
            ..FrameHeader::new(FrameKind::Fragment)
        }
    }

    fn copied(&self) -> &[u64] {
        &self.lengths[..self.frame.extents]
    }

    /// Writes a piece.
    pub(super) fn step(&mut self, side: &Side) -> Result<Step, Over> {
        let Some(piece) = self.cursor.piece(self.copied()) else {
            self.cursor.left = 0;
            return Ok(Step::Done);
        };
        let written = match &self.message {
            _ if piece == 0 => 0,
            Some(message) => side.push(self.cursor.of(message, piece))?,
            None => {
                let written = side.push(&self.rest[..piece])?;
                self.rest.drain(..written);
                written
            }
        };
        if written == 0 && piece > 0 {
            return Ok(Step::Waits);
        }
        let lengths = &self.lengths[..self.frame.extents];
        self.cursor.passed(written, lengths);
        Ok(Step::Moved)
    }

    /// Whether it is written, or was abandoned and its fragment is.
    pub(super) fn is_over(&self) -> bool {
        self.is_abandoned() || self.cursor.part == self.frame.extents
    }

    /// Its port has ended: it, if a fragment is to be written to its end.
    pub(super) fn abandon(mut self) -> Option<Self> {
        self.sealed = Vec::new();
        if let Some(message) = self.message.take() {
            let mut ahead = self.cursor.clone();
            while let Some(piece) = ahead.piece(self.copied()) {
                self.rest.extend_from_slice(ahead.of(&message, piece));
                ahead.passed(piece, self.copied());
            }
        }
        self.cursor.piece(self.copied()).is_some().then_some(self)
    }

    /// Whether its port has ended.
    pub(super) fn is_abandoned(&self) -> bool {
        self.message.is_none()
    }

    /// Records that it has left the domain; its bytes.
    pub(super) fn left(self, member: &Member, port: u16) -> u64 {
        let bytes = self.message.as_ref().map_or(0, bytes_of);
        record(member, self.begun, port, bytes);
        bytes
    }
}

fn record(member: &Member, begun: Option<Begun>, port: u16, bytes: u64) {
    if let Some(begun) = begun {
        let about = About {
            bytes,
            ..About::port(port)
        };
        member.record(begun, about);
    }
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
    context: &Context,
    member: &Arc<Member>,
    message: &mut Message,
) -> Result<(), Over> {
    for part in message.take_sealed() {
        let mut extent = allocate(context, member, part.len()).await?;
        extent.copy_from_slice(&part);
        message
            .push(extent)
            .map_err(|_| ViolationKind::FrameHeader)?;
    }
    Ok(())
}

/// What a message with parts of these lengths takes of a window: the bytes of those that are copied.
/// Sealed memory is its sender's.
fn taken(frame: &FrameHeader, lengths: &[u64]) -> Taken {
    let copied = lengths.iter().copied().take(frame.extents);
    Taken {
        bytes: bytes_taken(frame.header, copied),
        parts: frame.sealed,
    }
}

/// A message's frame header, and what follows it.
pub(super) struct Preamble<'s> {
    pub(super) frame: FrameHeader,
    lengths: Vec<u64>,
    header: &'s [u8],
}

impl<'s> Preamble<'s> {
    /// Reads what follows a frame header; waits for all of it.
    pub(super) async fn read(
        side: &Side,
        frame: FrameHeader,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Self, Over> {
        scratch.resize(frame.rest(), 0);
        side.read(scratch).await?;
        let (lengths, header) = scratch.split_at(frame.rest() - frame.header);
        let lengths = lengths.as_chunks::<8>().0.iter();
        let lengths = lengths.map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Self {
            frame,
            lengths,
            header,
        })
    }

    /// What it takes; an error if that and its sealed memory are more than `most` bytes. Asked before
    /// a byte is taken for it (G1).
    pub(super) fn taken(&self, most: u64) -> Result<Taken, ViolationKind> {
        let bytes = bytes_taken(self.frame.header, self.lengths.iter().copied());
        match bytes > most {
            true => Err(ViolationKind::TooLong { bytes, most }),
            false => Ok(taken(&self.frame, &self.lengths)),
        }
    }
}

/// A message that is being read.
pub(super) struct Incoming {
    pub(super) frame: FrameHeader,
    /// `None`: its port has ended, and what comes is thrown away.
    into: Option<Arriving>,
    /// Of the parts whose bytes follow.
    lengths: Vec<u64>,
    cursor: Cursor,
}

/// What a message is read into.
struct Arriving {
    message: Message,
    /// The part that is being read.
    extent: Option<Extent>,
    /// Whose extents it gets.
    member: Arc<Member>,
    wait: Duration,
    begun: Option<Begun>,
}

impl Incoming {
    /// A message that has begun, into extents of `member`'s.
    pub(super) fn new(
        side: &Side,
        member: &Arc<Member>,
        preamble: Preamble<'_>,
    ) -> Result<Self, Over> {
        let begun = member.begins(EventKind::Arrive);
        let mut message = Message::new(preamble.header).map_err(|_| ViolationKind::FrameHeader)?;
        if let Some(urgency) = preamble.frame.urgency {
            message.set_urgency_word(urgency);
        }
        let shown = &preamble.lengths[preamble.frame.extents..];
        if !shown.is_empty() {
            let fds = side.shown(shown.len())?;
            let sealed = fds.into_iter().zip(shown);
            let sealed: Result<_, Over> = sealed.map(|(fd, len)| verify(fd, *len)).collect();
            message.put_sealed(sealed?);
        }
        let into = Arriving {
            message,
            extent: None,
            member: Arc::clone(member),
            wait: SHORT_OF_PAGES.0,
            begun,
        };
        Ok(Self::reading(preamble, Some(into)))
    }

    /// A message that has begun, for a port that has ended.
    pub(super) fn thrown_away(side: &Side, preamble: Preamble<'_>) -> Result<Self, Over> {
        if preamble.frame.sealed > 0 {
            drop(side.shown(preamble.frame.sealed)?);
        }
        Ok(Self::reading(preamble, None))
    }

    fn reading(preamble: Preamble<'_>, into: Option<Arriving>) -> Self {
        let Preamble {
            frame, mut lengths, ..
        } = preamble;
        lengths.truncate(frame.extents);
        let cursor = Cursor {
            left: FRAGMENT,
            ..Cursor::default()
        };
        Self {
            frame,
            into,
            lengths,
            cursor,
        }
    }

    /// The next fragment begins.
    pub(super) fn fragment(&mut self) {
        self.cursor.left = FRAGMENT;
    }

    /// Reads a piece.
    pub(super) fn step(&mut self, side: &Side) -> Result<Step, Over> {
        let Some(piece) = self.cursor.piece(&self.lengths) else {
            return Ok(Step::Done);
        };
        let at = self.cursor.at;
        let read = match &mut self.into {
            Some(into) => {
                // Fits: it is below what a message may take, which is below what a domain holds.
                let len = usize::try_from(self.lengths[self.cursor.part]).unwrap_or(usize::MAX);
                let extent = match into.extent(len)? {
                    Ok(extent) => extent,
                    Err(wait) => return Ok(Step::Pause(wait)),
                };
                match piece {
                    0 => 0,
                    _ => side.pull(&mut extent[at..at + piece])?,
                }
            }
            None if piece == 0 => 0,
            None => side.pull(&mut [0; NOTHING][..piece.min(NOTHING)])?,
        };
        if read == 0 && piece > 0 {
            return Ok(Step::Waits);
        }
        if self.cursor.passed(read, &self.lengths)
            && let Some(into) = &mut self.into
        {
            into.part_is_over()?;
        }
        Ok(Step::Moved)
    }

    /// Whether all of it is read.
    pub(super) fn is_whole(&self) -> bool {
        self.cursor.part == self.lengths.len()
    }

    /// Its port has ended: what comes of it is thrown away.
    pub(super) fn abandon(&mut self) {
        self.into = None;
    }

    /// The whole message, which has come to a port of this number; nothing, if that has ended.
    pub(super) fn came(self, port: u16) -> Option<Message> {
        let into = self.into?;
        record(&into.member, into.begun, port, bytes_of(&into.message));
        Some(into.message)
    }
}

impl Arriving {
    /// The extent of the part that is being read; or how long to wait, while the domain has no memory
    /// for it.
    fn extent(&mut self, len: usize) -> Result<Result<&mut Extent, Duration>, Over> {
        let extent = match self.extent.take() {
            Some(extent) => extent,
            None => match extent::allocate(&self.member, len) {
                Ok(extent) => {
                    portolan_shm::mark!("bridge.half");
                    self.wait = SHORT_OF_PAGES.0;
                    extent
                }
                Err(AllocateError::Disowned(_)) => return Err(Over::Stopped),
                Err(AllocateError::OutOfPages { .. }) => {
                    let wait = self.wait;
                    self.wait = (wait * 2).min(SHORT_OF_PAGES.1);
                    return Ok(Err(wait));
                }
            },
        };
        Ok(Ok(self.extent.insert(extent)))
    }

    fn part_is_over(&mut self) -> Result<(), Over> {
        if let Some(extent) = self.extent.take() {
            let pushed = self.message.push(extent);
            pushed.map_err(|_| ViolationKind::FrameHeader)?;
        }
        Ok(())
    }
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
async fn allocate(context: &Context, member: &Arc<Member>, len: usize) -> Result<Extent, Over> {
    let mut wait = SHORT_OF_PAGES.0;
    loop {
        match extent::allocate(member, len) {
            Ok(extent) => return Ok(extent),
            Err(AllocateError::Disowned(_)) => return Err(Over::Stopped),
            Err(AllocateError::OutOfPages { .. }) => context.pause(wait).await,
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
        ..FrameHeader::new(FrameKind::Message)
    };
    scratch.clear();
    scratch.extend(frame.encode());
    scratch.extend((bytes.len() as u64).to_le_bytes());
    side.write(scratch).await?;
    side.write(bytes).await
}

/// Writes that a channel's writer has gone.
pub(super) async fn write_end(side: &Side) -> Result<(), Over> {
    side.write(&FrameHeader::new(FrameKind::Dropped).encode())
        .await
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
    if frame == FrameHeader::new(FrameKind::Dropped) {
        return Ok(frame);
    }
    let one = FrameHeader {
        extents: 1,
        tag: frame.tag,
        ..FrameHeader::new(FrameKind::Message)
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

/// Reads the next frame header.
pub(super) async fn read_frame_header(side: &Side) -> Result<FrameHeader, Over> {
    // What one call writes is read by one call of this length, or by several of whole lines.
    let mut first = [0; FrameHeader::BYTES];
    side.read(&mut first).await?;
    Ok(FrameHeader::decode(&first).map_err(|_| ViolationKind::FrameHeader)?)
}
