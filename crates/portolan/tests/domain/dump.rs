//! What a region holds, read from its file without the library.

use crate::takeover::half_join;
use portolan_abi::limits::{MAX_PORTS, MAX_SPACES};
use portolan_abi::owner::{Alloc, AllocWord, ChunkUse, ChunkWord, Destination, Hold, OwnerWord};
use portolan_abi::port::{PortPhase, PortStatus, SendCount};
use portolan_abi::region::{Geometry, PORT_BYTES, SPACE_BYTES};
use portolan_abi::space::{SpacePhase, SpaceStatus};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Everything in the domain's region that is not as in a fresh one.
pub(crate) fn dump(domain: &str) -> String {
    let (_connection, _welcome, mut fds) = half_join(domain);
    let file = File::from(fds.remove(0));
    let word = |offset: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_le_bytes(bytes)
    };
    let table = |offset: u64, bytes: u64| {
        let mut all = vec![0; usize::try_from(bytes).unwrap()];
        file.read_exact_at(&mut all, offset).unwrap();
        let words = all
            .chunks_exact(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        words.collect::<Vec<u64>>()
    };
    let geometry = Geometry::new(word(16)).unwrap();
    let mut out = String::new();
    for space in 0..MAX_SPACES as u64 {
        let status = SpaceStatus::unpack(word(geometry.spaces + space * SPACE_BYTES));
        if status.phase != SpacePhase::Free {
            writeln!(out, "space {space}: {status:?}").unwrap();
        }
        let row = table(
            geometry.owners + space * geometry.owner_row(),
            geometry.owner_row(),
        );
        for (page, entry) in row.chunks_exact(2).enumerate() {
            let held = OwnerWord(entry[0]);
            if held.hold() != Hold::None {
                let to = Destination(entry[1]);
                writeln!(
                    out,
                    "space {space} page {page}: {:?}({}) to {}:{}",
                    held.hold(),
                    held.generation(),
                    to.port(),
                    to.position()
                )
                .unwrap();
            }
        }
        let rights = table(
            geometry.rights + space * Geometry::RIGHT_ROW,
            Geometry::RIGHT_ROW,
        );
        for (index, entry) in rights.chunks_exact(2).enumerate() {
            if entry[0] & 0xff_ffff_ffff != 0 || entry[1] & 0xfff != 0 {
                writeln!(
                    out,
                    "space {space} port {index}: {:?} once {:#x}",
                    SendCount::unpack(entry[0]),
                    entry[1]
                )
                .unwrap();
            }
        }
    }
    for (index, chunk) in table(geometry.chunks, geometry.all_chunks() * 8)
        .into_iter()
        .enumerate()
    {
        let chunk = ChunkWord::unpack(chunk);
        if chunk.r#use != ChunkUse::Free || chunk.populated {
            writeln!(out, "chunk {index}: {chunk:?}").unwrap();
        }
    }
    for (page, alloc) in table(geometry.alloc, geometry.pages() * 8)
        .into_iter()
        .enumerate()
    {
        let alloc = AllocWord(alloc);
        if alloc.state() == Alloc::Used {
            writeln!(out, "page {page}: used({})", alloc.generation()).unwrap();
        }
    }
    for index in 0..MAX_PORTS as u64 {
        let at = geometry.ports + index * PORT_BYTES;
        let status = PortStatus::unpack(word(at));
        if status.phase != PortPhase::Free {
            writeln!(
                out,
                "port {index}: {status:?}, queue {:#x}, geometry {:#x}",
                word(at + 8),
                word(at + 16)
            )
            .unwrap();
        }
    }
    out
}
