//! A4 in the memory of segments that are channels.

use super::{Audit, Contents, is_untaken};
use portolan_abi::channel::{
    HEAD_BYTES, MAGIC, MAX_READERS, READER_BYTES, ReaderState, WriterWord,
};
use portolan_abi::port::PortPhase;
use std::io;

/// Where the number of readers stands in the head, and who writes; in words.
const READERS: usize = 3;
const WRITER: usize = 5;

impl Audit<'_> {
    /// A4: who reads and writes.
    pub(super) fn channels(&mut self) -> io::Result<()> {
        let mut listed = Vec::new();
        let shared = |phase, shared: bool| phase == PortPhase::Open && shared;
        for port in &self.ports {
            if !shared(port.status.phase, port.status.shared) {
                continue;
            }
            let Some(slot) = port.slots.iter().find(|s| is_untaken(port, s.state)) else {
                continue;
            };
            let Some(memory) = Contents::read(self.image, slot)?.extents.first().copied() else {
                continue;
            };
            let head = self.image.extent(memory.page, HEAD_BYTES)?;
            if head.first() != Some(&MAGIC) {
                continue;
            }
            let readers = head[READERS].min(MAX_READERS) * READER_BYTES;
            let words = self.image.extent(memory.page, HEAD_BYTES + readers)?;
            let entries = words.chunks(8).skip(4);
            let (index, writer) = (port.index, WriterWord::unpack(words[WRITER]));
            if writer.space != 0 {
                listed.push((
                    writer.space,
                    format!("writes to the channel of port {index}"),
                ));
            }
            for state in entries.map(|e| ReaderState::unpack(e[0])) {
                match state {
                    ReaderState::Free => {}
                    ReaderState::Joining { space }
                    | ReaderState::Live { space, .. }
                    | ReaderState::Dropped { space } => {
                        listed.push((space, format!("reads the channel of port {index}")));
                    }
                }
            }
        }
        for (space, what) in listed {
            if !self.is_live(space) {
                let does = format!("space {space}, which does not live, {what}");
                self.found.unreleased.push(does);
            }
        }
        Ok(())
    }
}
