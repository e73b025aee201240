//! Reads bytes straight into extents, and writes them straight out of them.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use portolan::{Domain, Extent, Message};

use crate::error::{CliError, Result};

/// The largest extent that one message's bytes are cut into: huge pages, and still to be
/// had when memory is in pieces. A message of 1024 of them is 64 GiB.
const PIECE: u64 = 64 << 20;
/// The first extent for bytes whose number is not known; each one more is twice as large.
const FIRST: u64 = 64 << 10;
/// Bytes that are read or written between two looks at the progress bar.
const STEP: usize = 4 << 20;

/// Opens a file, or whatever can be opened and read.
pub(super) fn open(path: &Path) -> Result<File> {
    let open = || {
        let file = File::open(path)?;
        match file.metadata()?.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(file),
        }
    };
    open().map_err(|source| CliError::Input {
        path: path.to_owned(),
        source,
    })
}

/// Reads an open file into extents.
pub(super) fn load_file(domain: &Domain, mut file: File) -> Result<Vec<Extent>> {
    let about = file.metadata().map_err(CliError::system("reading"))?;
    // Files that the kernel makes up say that they are empty.
    let known = Some(about.len()).filter(|len| about.is_file() && *len > 0);
    load(domain, &mut file, known)
}

/// Reads all of `source` into extents; `known` bytes, if that can be told.
pub(super) fn load(
    domain: &Domain,
    source: &mut dyn Read,
    known: Option<u64>,
) -> Result<Vec<Extent>> {
    let bar = progress(known.unwrap_or(0));
    let mut extents = Vec::new();
    let mut done = 0;
    let mut next = FIRST;
    loop {
        let piece = match known {
            Some(known) if done >= known => break,
            Some(known) => (known - done).min(PIECE),
            None => next,
        };
        next = (next * 2).min(PIECE);
        // At most PIECE.
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        let mut extent = domain
            .allocate(piece)
            .map_err(CliError::library("taking memory for the message"))?;
        let filled = fill(&mut extent, source, &bar).map_err(CliError::system("reading"))?;
        done += filled as u64;
        let ended = filled < piece;
        if filled > 0 {
            // Less than its length, which is within its capacity.
            let _ = extent.set_len(filled);
            extents.push(extent);
        }
        if ended {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(extents)
}

/// Reads until the extent is full or the source has ended; how many bytes came.
fn fill(extent: &mut Extent, source: &mut dyn Read, bar: &ProgressBar) -> io::Result<usize> {
    let mut filled = 0;
    while filled < extent.len() {
        let end = extent.len().min(filled + STEP);
        match source.read(&mut extent[filled..end]) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                bar.inc(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes a message's bytes.
pub(super) fn store(message: &Message, to: &mut dyn Write) -> io::Result<()> {
    let bar = progress(message.len() as u64);
    for piece in message.slices().flat_map(|slice| slice.chunks(STEP)) {
        to.write_all(piece)?;
        bar.inc(piece.len() as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

/// A progress bar on a terminal, for what takes a while.
fn progress(bytes: u64) -> ProgressBar {
    if bytes < PIECE || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec}")
    {
        bar.set_style(style);
    }
    bar
}
