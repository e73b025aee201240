//! Errors say why memory cannot be mapped for automatic update.

use crate::Disowned;
use crate::vmmc::UpdateError;
use portolan_sys::memory::{PAGE, PrivatiseError, SealError, ShareError};
use portolan_sys::track::TrackError;
use std::fmt;

/// How stores reach an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// See [`Alias`](super::Alias).
    Alias,
    /// See [`Log`](super::Log).
    Log,
    /// See [`Tracked`](super::Tracked).
    Tracked,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alias => "as an alias",
            Self::Log => "by a log",
            Self::Tracked => "tracked",
        })
    }
}

/// Why memory was not mapped to an import, or stores were not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// As the update says: out of bounds of the memory or of the import, or the import has ended.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The caller's: whole pages are aliased and tracked, and no mapping is empty.
    #[error(
        "{len} bytes from {start} on to offset {offset} are no whole pages of {PAGE} bytes: map whole pages, or use a log, which takes any bytes"
    )]
    NotWholePages {
        /// First byte of the memory.
        start: usize,
        /// Bytes.
        len: usize,
        /// Where in the import.
        offset: usize,
    },
    /// The caller's: memory has one destination.
    #[error(
        "{len} bytes at offset {offset} of the memory are mapped already ({mode}): unmap them first"
    )]
    Mapped {
        /// First byte of that part.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// How it is mapped.
        mode: Mode,
    },
    /// The caller's: importers of this memory would not see what it is an alias of.
    #[error("memory that is exported cannot be an alias: track it, or end the export first")]
    Exported,
    /// The caller's: the completion word is not one, or would be overwritten by epochs.
    #[error(
        "a completion word at offset {offset} of the import lies at no multiple of 8, or among what is mapped"
    )]
    Completion {
        /// The offset.
        offset: usize,
    },
    /// The machine's or the state's: stores cannot be found. After
    /// [`TrackError::Remapped`] (the memory's own export has ended) unmap, and map again.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// The state's: the memory could not be replaced.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The system's: the memory was not made private; most often there is no memory.
    #[error(transparent)]
    Private(#[from] PrivatiseError),
    /// The system's: the memory's file was not sealed.
    #[error(transparent)]
    Seal(SealError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}
