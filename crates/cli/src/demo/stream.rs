//! Carries blocks over a pipe or a Unix stream socket.
//!
//! ```text
//! frame: | length | sequence | digest (32 bytes) | padding to 64 | length bytes |
//! ```
//!
//! A frame of length 0 says that no block follows: an end of file without it is a
//! neighbour that died.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use super::carrier::{Block, Carrier, Stamp};
use crate::error::{CliError, Result};

/// Bytes before the data.
const HEADER: usize = 64;

/// The ends of the byte streams that touch this process.
#[derive(Debug)]
pub(crate) struct Stream {
    role: &'static str,
    from: Option<File>,
    to: Option<File>,
    /// The one buffer of this process; away while it is a block.
    spare: Option<Frame>,
    block: usize,
}

/// Header and data in one buffer, so that a block leaves with one call.
#[derive(Debug)]
pub(crate) struct Frame {
    buffer: Vec<u8>,
    len: usize,
}

impl Stream {
    /// `block` is the most that a block holds.
    pub(crate) fn new(
        role: &'static str,
        from: Option<OwnedFd>,
        to: Option<OwnedFd>,
        block: usize,
    ) -> Self {
        Self {
            role,
            from: from.map(File::from),
            to: to.map(File::from),
            spare: None,
            block,
        }
    }

    fn lost(&self) -> impl FnOnce(io::Error) -> CliError + use<> {
        let role = self.role;
        move |source| CliError::NeighbourLost { role, source }
    }

    fn write(&mut self, frame: &Frame, len: usize) -> Result<()> {
        let to = self
            .to
            .as_mut()
            .expect("only a stage with a successor sends");
        let written = to.write_all(&frame.buffer[..HEADER + len]);
        written.map_err(self.lost())
    }

    fn frame(&mut self) -> Frame {
        self.spare.take().unwrap_or_else(|| Frame {
            buffer: vec![0; HEADER + self.block],
            len: 0,
        })
    }
}

impl Carrier for Stream {
    type Block = Frame;

    fn blank(&mut self, room: usize) -> Result<Frame> {
        let mut frame = self.frame();
        frame.len = room.min(self.block);
        frame.set_stamp(Stamp::default());
        Ok(frame)
    }

    fn send(&mut self, mut frame: Frame, len: usize) -> Result<()> {
        frame.set_len(len);
        self.write(&frame, len)?;
        self.spare = Some(frame);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Frame>> {
        let mut frame = self.frame();
        let lost = self.lost();
        let from = self
            .from
            .as_mut()
            .expect("only a stage with a predecessor receives");
        let mut read = || -> io::Result<usize> {
            from.read_exact(&mut frame.buffer[..HEADER])?;
            let len = frame
                .wire_len()
                .filter(|&len| len <= self.block)
                .ok_or(io::ErrorKind::InvalidData)?;
            from.read_exact(&mut frame.buffer[HEADER..HEADER + len])?;
            Ok(len)
        };
        let len = read().map_err(lost)?;
        frame.len = len;
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(frame))
    }

    fn retire(&mut self, frame: Frame) {
        self.spare = Some(frame);
    }

    fn finish(&mut self) -> Result<()> {
        let mut last = self.blank(0)?;
        last.set_len(0);
        self.write(&last, 0)
    }
}

impl Frame {
    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.buffer[..8].copy_from_slice(&(len as u64).to_ne_bytes());
    }

    fn wire_len(&self) -> Option<usize> {
        usize::try_from(self.word(0)).ok()
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.buffer[at..at + 8].try_into().expect("8 bytes"))
    }
}

impl Block for Frame {
    fn bytes(&self) -> &[u8] {
        &self.buffer[HEADER..HEADER + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADER..HEADER + self.len]
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            sequence: self.word(8),
            digest: self.buffer[16..48].try_into().expect("32 bytes"),
        }
    }

    fn set_stamp(&mut self, stamp: Stamp) {
        self.buffer[8..16].copy_from_slice(&stamp.sequence.to_ne_bytes());
        self.buffer[16..48].copy_from_slice(&stamp.digest);
    }
}
