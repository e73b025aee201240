//! Bytes in bulk on a stream of a connection: bare, or as transfers with heads into one extent that
//! is prepared, which is KKT. Neither waits: both are stepped.

use portolan_transport::{Connection, Destination, Progress, Source, StreamId, TransportError};

/// Number and length of a transfer, little-endian; as long as a fragment's between nodes.
pub(crate) const HEAD: usize = 32;
/// Bytes that one call is given, at most: as a fragment's between nodes.
const CALL: usize = 256 << 10;

/// Whether each transfer has a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    None,
    Heads,
}

/// What a transfer's head says.
pub(crate) fn head(number: u64, length: usize) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

/// The number and the length that a head says.
pub(crate) fn read(head: &[u8; HEAD]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    (word(0), word(8))
}

/// So many transfers that go out one behind the other, all of the same memory.
#[derive(Debug)]
pub(crate) struct Outbound {
    on: StreamId,
    frames: Frames,
    /// Which one is being sent, and how many there are.
    number: u64,
    count: u64,
    /// Bytes of its head, and of the memory, that were sent.
    of_head: usize,
    at: usize,
}

impl Outbound {
    pub(crate) fn new(on: StreamId, frames: Frames, count: u64) -> Self {
        Self {
            on,
            frames,
            number: 0,
            count,
            of_head: 0,
            at: 0,
        }
    }

    /// Sends what the stream takes; whether all is sent.
    pub(crate) fn step(
        &mut self,
        connection: &mut dyn Connection,
        memory: &[u8],
    ) -> Result<bool, TransportError> {
        while self.number < self.count {
            let head = head(self.number, memory.len());
            let head = match self.frames {
                Frames::Heads => &head[self.of_head..],
                Frames::None => &[],
            };
            let end = memory.len().min(self.at + CALL);
            let parts = [Source::from(head), Source::from(&memory[self.at..end])];
            match connection.send(self.on, &parts) {
                Progress::Moved(moved) => {
                    let of_head = moved.min(head.len());
                    self.of_head += of_head;
                    self.at += moved - of_head;
                }
                Progress::Blocked => return Ok(false),
                Progress::Ended => return Err(TransportError::Truncated),
                Progress::Failed(why) => return Err(why),
            }
            if self.at == memory.len() {
                (self.of_head, self.at) = (0, 0);
                self.number += 1;
            }
        }
        Ok(true)
    }
}

/// Transfers that come in one behind the other, into the same memory.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) on: StreamId,
    pub(crate) frames: Frames,
    head: [u8; HEAD],
    of_head: usize,
    at: usize,
    /// Transfers that have come.
    pub(crate) come: u64,
}

impl Inbound {
    pub(crate) fn new(on: StreamId, frames: Frames) -> Self {
        Self {
            on,
            frames,
            head: [0; HEAD],
            of_head: 0,
            at: 0,
            come: 0,
        }
    }

    /// Receives what has come of transfers of as many bytes as `memory` has, until one is whole:
    /// `true`, or nothing is there: `false`.
    pub(crate) fn step(
        &mut self,
        connection: &mut dyn Connection,
        memory: &mut [u8],
    ) -> Result<bool, TransportError> {
        loop {
            let head = match self.frames {
                Frames::Heads => &mut self.head[self.of_head..],
                Frames::None => &mut [],
            };
            let wanted = head.len();
            let end = memory.len().min(self.at + CALL);
            let parts = [
                Destination::from(head),
                Destination::from(&mut memory[self.at..end]),
            ];
            match connection.receive(self.on, &parts) {
                Progress::Moved(moved) => {
                    let of_head = moved.min(wanted);
                    self.of_head += of_head;
                    self.at += moved - of_head;
                }
                Progress::Blocked => return Ok(false),
                Progress::Ended => return Err(TransportError::Truncated),
                Progress::Failed(why) => return Err(why),
            }
            if self.at < memory.len() {
                continue;
            }
            if self.frames == Frames::Heads && read(&self.head) != (self.come, memory.len() as u64)
            {
                let what = format!("transfer {} has another head", self.come);
                return Err(TransportError::NotPortolan { what });
            }
            (self.of_head, self.at) = (0, 0);
            self.come += 1;
            return Ok(true);
        }
    }
}
