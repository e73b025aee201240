//! A raw channel gives a frame buffer: its units have fixed places.

use super::reader::why_not;
use super::{ChannelError, Lagging, ReadError, Since};
use crate::channel::Ring;
use crate::port::segment::copy_to;
use crate::space::Member;
use crate::wait::{Armable, WaitSetError};
use crate::{Deadline, Disowned};
use portolan_shm::bulk;
use portolan_shm::channel::{Finished, Reading, Signalling};
use portolan_sys::futex;
use std::sync::Arc;

const NOT_RAW: ChannelError = ChannelError::WrongKind("not raw", "`bind_writer` and `bind_reader`");

/// The one who puts units to a raw channel.
///
/// ```
/// use portolan::channel::ChannelOptions;
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let lines = ChannelOptions::unnamed().raw().unit(128).units(4);
/// let channel = domain.make_channel(&lines)?;
/// let mut screen = channel.bind_frame_reader()?;
/// let mut camera = channel.bind_frame_writer()?;
///
/// for line in 0..4 {
///     camera.put(line, &[1; 128])?;
/// }
/// camera.show()?;
/// // Of the next picture a line is lost.
/// for line in [0, 1, 3] {
///     camera.put(line, &[2; 128])?;
/// }
/// camera.show()?;
/// assert_eq!(screen.wait(Deadline::NOW)?, 7);
/// let mut line = [0; 128];
/// let picture = [0, 1, 2, 3].map(|at| { screen.get(at, &mut line).map(|_| line[0]) });
/// assert_eq!(picture, [Ok(2), Ok(2), Ok(1), Ok(2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FrameWriter {
    ring: Ring,
    unsignalled: u64,
    /// The unit that was put last.
    last: u64,
}

impl FrameWriter {
    pub(super) fn bind(ring: Ring) -> Result<Self, ChannelError> {
        let member = &ring.segment().right().to.member;
        member.present()?;
        if !ring.channel().mode().raw {
            return Err(NOT_RAW);
        }
        let bound = ring.channel().bind_writer(member.space);
        bound.map_err(|space| ChannelError::Written { space })?;
        Ok(Self {
            ring,
            unsignalled: 0,
            last: 0,
        })
    }

    /// Puts `bytes` to the beginning of the unit at `place`, counted modulo the number of
    /// units; cut to a unit. Readers may see a mixture of old and new meanwhile.
    ///
    /// # Errors
    ///
    /// [`Disowned`]; nothing was put.
    pub fn put(&mut self, place: u64, bytes: &[u8]) -> Result<(), Disowned> {
        self.present()?;
        let channel = self.ring.channel();
        let words = channel.place_words(place);
        copy_to(words, 0, &bytes[..bytes.len().min(words.len() * 8)]);
        channel.put();
        self.last = place;
        self.unsignalled += channel.shape().unit as u64;
        if let Signalling::Bytes(bytes) = channel.mode().signalling
            && self.unsignalled >= u64::from(bytes)
        {
            self.show()?;
        }
        Ok(())
    }

    /// A frame is whole: wakes readers that sleep, and signals the unit that was put last to
    /// handlers, where readers are signalled at all.
    ///
    /// # Errors
    ///
    /// [`Disowned`]; no reader was woken.
    pub fn show(&mut self) -> Result<(), Disowned> {
        self.present()?;
        self.unsignalled = 0;
        let channel = self.ring.channel();
        let signals = channel.mode().signalling != Signalling::Never;
        if signals && channel.signal() == Finished::Wake {
            let due = channel.is_handled().then_some(self.last);
            self.ring.attend(due.as_slice());
        }
        Ok(())
    }

    fn present(&self) -> Result<(), Disowned> {
        self.ring.segment().right().to.member.present()
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        let space = self.ring.segment().right().to.member.space;
        if self.present().is_ok() && self.ring.channel().unbind_writer(space) {
            self.ring.wake_readers();
            self.ring.tell_handlers();
        }
    }
}

impl std::fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameWriter").finish_non_exhaustive()
    }
}

/// One who looks at a raw channel. See [`FrameWriter`].
///
/// A [`WaitSet`](crate::WaitSet) names it if something was put since its last
/// [`wait`](Self::wait), or the writer has gone; it is named again until it has waited, which is
/// how it takes note. Its channel must signal.
///
/// ```
/// use portolan::channel::ChannelOptions;
/// use portolan::{Deadline, Domain, WaitSet};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().raw())?;
/// let mut camera = channel.bind_frame_writer()?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(channel.bind_frame_reader()?)?;
///
/// camera.put(0, b"a line")?;
/// camera.show()?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let screen = set.get_mut(token).ok_or("not in the set")?;
/// assert_eq!(screen.wait(Deadline::NOW)?, 1);
/// assert!(set.wait(Deadline::NOW)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FrameReader {
    pub(super) ring: Ring,
    /// Its entry, if it has one: by that a wait set is told. No writer looks at its position.
    pub(super) reading: Reading,
    /// Units that had been put when it last waited.
    seen: u64,
    /// Writers that had left by then.
    left: u32,
}

impl FrameReader {
    pub(super) fn bind(ring: Ring) -> Result<Self, ChannelError> {
        let member = &ring.segment().right().to.member;
        member.present()?;
        if !ring.channel().mode().raw {
            return Err(NOT_RAW);
        }
        let channel = ring.channel();
        let (seen, left) = (channel.puts(), channel.writer().left);
        let joined = channel.join(member.space, Lagging::Skip, Since::Now);
        let reading = joined.unwrap_or_else(|_full| channel.start_reading(Since::Now));
        Ok(Self {
            ring,
            reading,
            seen,
            left,
        })
    }

    /// Copies the unit at `place`, as much as fits; how many bytes. No check is made: while
    /// it is being put it is a mixture.
    ///
    /// # Errors
    ///
    /// [`Disowned`]; `out` is as it was.
    pub fn get(&self, place: u64, out: &mut [u8]) -> Result<usize, Disowned> {
        self.member().present()?;
        let words = self.ring.channel().place_words(place);
        let fits = out.len().min(words.len() * 8);
        bulk::load(words, &mut out[..fits]);
        Ok(fits)
    }

    /// Waits until something was put since the last wait; how many units.
    ///
    /// # Errors
    ///
    /// [`ReadError::TimedOut`], [`ReadError::WriterGone`], [`ReadError::Disowned`].
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<u64, ReadError> {
        self.member().present()?;
        let deadline = deadline.into();
        loop {
            let channel = self.ring.channel();
            let puts = channel.puts();
            if puts != self.seen {
                return Ok(puts.wrapping_sub(std::mem::replace(&mut self.seen, puts)));
            }
            let writer = channel.writer();
            if writer.space == 0 && writer.left != self.left && channel.puts() == self.seen {
                self.left = writer.left;
                return Err(ReadError::WriterGone);
            }
            if deadline.has_passed() {
                return Err(ReadError::TimedOut);
            }
            let Some(bell) = channel.arm_for_puts(self.seen) else {
                continue;
            };
            if channel.writer() == writer {
                let doorbell = &channel.head().sleep.doorbell;
                let _ = futex::wait(doorbell, bell, deadline.instant());
            }
        }
    }

    /// Whether a wait would tell something.
    pub(crate) fn may_have(&self) -> bool {
        self.ring.channel().puts() != self.seen || self.has_lost_writer()
    }

    fn has_lost_writer(&self) -> bool {
        let writer = self.ring.channel().writer();
        writer.space == 0 && writer.left != self.left
    }

    /// Arms it for a wait set, whose place `link` names, or for none (0); `false` if something
    /// is there.
    pub(crate) fn arm_for(&self, link: u64) -> bool {
        let channel = self.ring.channel();
        channel.link(&self.reading, link);
        // After the link, and before the last look.
        link == 0 || channel.arm_for_puts(self.seen).is_some() && !self.may_have()
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.ring.segment().right().to.member
    }
}

impl Drop for FrameReader {
    fn drop(&mut self) {
        if self.member().present().is_ok() {
            let channel = self.ring.channel();
            let none = channel.start_reading(Since::Now);
            // No writer waits for a reader of frames.
            let _ = channel.leave(std::mem::replace(&mut self.reading, none));
        }
    }
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").finish_non_exhaustive()
    }
}

impl Armable for FrameReader {
    fn kind(&self) -> &'static str {
        "the reader of frames"
    }

    fn membership(&self) -> u64 {
        self.member().number
    }

    fn why_not(&self) -> Option<WaitSetError> {
        why_not(&self.ring, &self.reading)
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        Self::arm_for(self, link)
    }
}
