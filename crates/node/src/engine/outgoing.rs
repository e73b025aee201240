//! What waits to be written on a stream: bytes, and ranges of payloads, which are written from
//! where they lie.

use std::collections::VecDeque;
use std::ops::Range;

use portolan_transport::{Connection, Progress, Source, StreamId, TransportError};

use super::payload::Payload;

/// Ranges that one call is given, at most.
const MOST_PARTS: usize = 64;

/// A part, and how much of it was written.
#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>, usize),
    Payload(Payload, Range<u64>),
}

impl Part {
    fn left(&self) -> u64 {
        match self {
            Self::Bytes(bytes, sent) => (bytes.len() - sent) as u64,
            Self::Payload(_, range) => range.end - range.start,
        }
    }
}

/// The parts that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    parts: VecDeque<Part>,
    /// Bytes of them.
    left: u64,
    /// Bytes that were written in all.
    pub(super) written: u64,
}

impl Outgoing {
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    pub(super) fn push(&mut self, bytes: Vec<u8>, payload: Option<(Payload, Range<u64>)>) {
        self.left += bytes.len() as u64;
        // Many short records are one part.
        match self.parts.back_mut() {
            Some(Part::Bytes(last, _)) => last.extend(bytes),
            _ => self.parts.push_back(Part::Bytes(bytes, 0)),
        }
        if let Some((payload, range)) = payload {
            self.left += range.end - range.start;
            self.parts.push_back(Part::Payload(payload, range));
        }
    }

    /// Writes what the stream takes; whether that was all.
    pub(super) fn write(
        &mut self,
        connection: &mut dyn Connection,
        stream: StreamId,
    ) -> Result<bool, TransportError> {
        while self.left > 0 {
            let mut sources = Vec::with_capacity(MOST_PARTS.min(2 * self.parts.len()));
            for part in self.parts.iter().take(MOST_PARTS) {
                match part {
                    Part::Bytes(bytes, sent) => sources.push(Source::from(&bytes[*sent..])),
                    Part::Payload(payload, range) => payload.sources(range, &mut sources),
                }
            }
            match connection.send(stream, &sources) {
                Progress::Moved(moved) => self.wrote(moved as u64),
                Progress::Blocked => return Ok(false),
                // It was closed here: nothing more is to be said.
                Progress::Ended => {
                    self.parts.clear();
                    self.left = 0;
                }
                Progress::Failed(why) => return Err(why),
            }
        }
        Ok(true)
    }

    fn wrote(&mut self, mut moved: u64) {
        self.written += moved;
        self.left = self.left.saturating_sub(moved);
        while let Some(part) = self.parts.front_mut() {
            let left = part.left();
            if moved >= left {
                moved -= left;
                self.parts.pop_front();
                continue;
            }
            match part {
                // Less than what is left of it.
                Part::Bytes(_, sent) => *sent += usize::try_from(moved).unwrap_or(0),
                Part::Payload(_, range) => range.start += moved,
            }
            return;
        }
    }
}
