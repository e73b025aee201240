//! Does the work of the demo's three processes, which is the same for every way of carrying blocks.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use portolan_measure::MeasureError;
use portolan_measure::child::Control;
use serde::{Deserialize, Serialize};

use super::carrier::{Block as _, Carrier, Stamp};
use super::owned::Owned;
use super::stream::Stream;
use crate::args::CarrierName;
use crate::error::{CliError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Reader,
    Hasher,
    Writer,
}

/// What a stage is to do. Its descriptors: the reader's FILE, or the hop in; then the
/// hop out, or the writer's output. A carrier that finds its hops by name has none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StageBrief {
    pub(crate) role: Role,
    pub(crate) carrier: CarrierName,
    /// Bytes of a block.
    pub(crate) block: usize,
    /// The domain of this run, for the carrier that has one.
    pub(crate) domain: String,
}

/// Stage to coordinator: ready to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {}

/// Coordinator to stage: start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {}

/// Stage to coordinator: all done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) bytes: u64,
    /// User and system time, from start to end.
    pub(crate) cpu: Duration,
    /// The last stamp's digest, in hexadecimal; empty from the reader.
    pub(crate) digest: String,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Reader, Self::Hasher, Self::Writer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Hasher => "hasher",
            Self::Writer => "writer",
        }
    }
}

/// The whole life of a stage.
pub(crate) fn stage_main(
    brief: StageBrief,
    control: &Control,
    descriptors: Vec<OwnedFd>,
) -> Result<()> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(MeasureError::NoCoordinator);
    match brief.carrier {
        CarrierName::Portolan => {
            let hops = Owned::new(brief.role, &brief.domain, brief.block)?;
            match brief.role {
                Role::Reader => {
                    let file = next()?.into();
                    timed(control, hops, |hop| read(file, brief.block, hop))
                }
                Role::Hasher => timed(control, hops, hash),
                Role::Writer => {
                    let output = next()?.into();
                    timed(control, hops, |hop| write(hop, output))
                }
            }
        }
        CarrierName::Pipe | CarrierName::Socket => {
            let (from, to) = (next()?, next()?);
            let stream = |from, to| Stream::new(brief.role.name(), from, to, brief.block);
            match brief.role {
                Role::Reader => timed(control, stream(None, Some(to)), |hop| {
                    read(from.into(), brief.block, hop)
                }),
                Role::Hasher => timed(control, stream(Some(from), Some(to)), hash),
                Role::Writer => timed(control, stream(Some(from), None), |hop| {
                    write(hop, to.into())
                }),
            }
        }
    }
}

/// Waits for the start, works, and reports with the processor time that it took.
fn timed<C: Carrier>(
    control: &Control,
    mut hops: C,
    work: impl FnOnce(&mut C) -> Result<(u64, String)>,
) -> Result<()> {
    control.send(&Ready {})?;
    let Some(Start {}) = control.receive()? else {
        return Err(MeasureError::NoCoordinator.into());
    };
    let before = portolan_sys::machine::cpu_time();
    let (bytes, digest) = work(&mut hops)?;
    let cpu = portolan_sys::machine::cpu_time() - before;
    control.send(&Done { bytes, cpu, digest })?;
    // Our ends stay open until every stage is done: the coordinator lets us go.
    let _: Option<Start> = control.receive()?;
    Ok(())
}

/// FILE into blocks.
pub(crate) fn read<C: Carrier>(mut file: File, room: usize, hops: &mut C) -> Result<(u64, String)> {
    let mut total = 0;
    loop {
        let mut block = hops.blank(room)?;
        let len = fill(&mut file, block.bytes_mut())?;
        if len == 0 {
            hops.retire(block);
            hops.finish()?;
            return Ok((total, String::new()));
        }
        total += len as u64;
        hops.send(block, len)?;
    }
}

/// As much as fits, less only at the end of the file.
fn fill(file: &mut File, room: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < room.len() {
        match file.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(CliError::system("reading the input")(source));
            }
        }
    }
    Ok(len)
}

/// Digest and stamp, in place.
pub(crate) fn hash<C: Carrier>(hops: &mut C) -> Result<(u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let (mut sequence, mut total) = (0, 0);
    while let Some(mut block) = hops.receive()? {
        hasher.update(block.bytes());
        sequence += 1;
        block.set_stamp(Stamp {
            sequence,
            digest: hasher.finalize().into(),
        });
        let len = block.bytes().len();
        total += len as u64;
        hops.send(block, len)?;
    }
    hops.finish()?;
    Ok((total, hasher.finalize().to_hex().to_string()))
}

/// Blocks into the output, each with the stamp that must come next.
pub(crate) fn write<C: Carrier>(hops: &mut C, mut output: File) -> Result<(u64, String)> {
    let mut last = Stamp {
        sequence: 0,
        digest: blake3::hash(&[]).into(),
    };
    let mut total = 0;
    while let Some(block) = hops.receive()? {
        let stamp = block.stamp();
        if stamp.sequence != last.sequence + 1 {
            return Err(CliError::OutOfOrder {
                expected: last.sequence + 1,
                found: stamp.sequence,
            });
        }
        output
            .write_all(block.bytes())
            .map_err(CliError::system("writing the output"))?;
        total += block.bytes().len() as u64;
        last = stamp;
        hops.retire(block);
    }
    Ok((
        total,
        blake3::Hash::from_bytes(last.digest).to_hex().to_string(),
    ))
}
