//! Errors of exports, imports and updates say which side is at fault.

use crate::{Disowned, OfferConnectError, OfferError};
use portolan_abi::vmmc::MAX_RANGES;
use portolan_sys::memory::{MapError, PAGE, PrivatiseError, SealError, ShareError, VerifyError};
use portolan_sys::process::{OpenError, WrongKind};
use portolan_sys::socket::SocketError;
use std::io;

/// Why memory was not exported: it is as it was before. Or why an export has not ended:
/// importers are told that it is over, and have no right on it; what they keep can still change
/// pages that nobody has stored to here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The caller's: no bytes, or more than there are addresses.
    #[error(
        "{len} bytes cannot be exported: take at least one, and no more than there are addresses"
    )]
    Empty {
        /// Bytes wanted.
        len: usize,
    },
    /// The caller's: importers see whole pages, so what lies beside the range would be shown.
    #[error(
        "start {start:#x} and length {len:#x} are no whole pages of {PAGE} bytes: export whole pages"
    )]
    NotWholePages {
        /// First address.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// The caller's: this memory is exported, under this name or another.
    #[error("the memory is exported already: end that export first, or export other memory")]
    AlreadyExported,
    /// The caller's: part of the memory is an alias of other memory, or is watched for stores.
    #[error(
        "{len} bytes at offset {offset} of the memory are mapped ({mode}); export it first, or unmap them"
    )]
    Mapped {
        /// First byte of that part.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// How it is mapped.
        mode: super::Mode,
    },
    /// The caller's: it is to have plain slices of memory that importers may only read, and the
    /// options let them write.
    #[error(
        "importers may {reach:?} by these options, and the owner is to have slices: use Reach::Read, or `export_writable`"
    )]
    NotReadOnly {
        /// What the options say.
        reach: super::Reach,
    },
    /// The caller's: a range is empty, not inside, or one too many.
    #[error("ranges are {MAX_RANGES} at most, not empty, and within the {len} bytes of the export")]
    BadRanges {
        /// Bytes of the export.
        len: usize,
    },
    /// The caller's or the system's: memory of the program's own was not shared in place.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The system's: the memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The system's: the file was not sealed.
    #[error(transparent)]
    Seal(SealError),
    /// The machine's, or the control group's: it has not so much memory left. What was there before
    /// is there still.
    #[error("there is no memory for all {len} bytes: populate less, or when there is more")]
    OutOfMemory {
        /// Bytes that were to have memory.
        len: usize,
    },
    /// The caller's or the state's: it is not offered under that name, or to those.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// The system's: most often there is no memory for the copy of an export that ends. Try again
    /// when there is.
    #[error("the export has not ended: {0}")]
    Private(#[from] PrivatiseError),
    /// An importer's: of ordinary memory, a call of this process's goes on, or it is stopped in
    /// one, or claims so. Try again, or end that process.
    #[error(
        "the export has not ended: process {process} has not ended a write to it or a read: let it go on, or end it, and try again"
    )]
    UnderWay {
        /// The importer, by its id when it connected.
        process: u32,
    },
    /// The host's: it copies for importers of other users, and has not said that it does so no
    /// more. Try again when it goes on, or another one hosts.
    #[error(
        "the export has not ended: the domain's host has not answered that it copies nothing to this memory any more; it may be stopped"
    )]
    Unanswered,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// The system's.
    #[error("cannot {doing} ({}): close some descriptors, or free memory", io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was not done.
        doing: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl ExportError {
    pub(super) fn system(doing: &'static str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self::System { doing, errno }
    }
}

/// Why there is no import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// As the connection says: the exporter was not found, or does not permit it.
    #[error(transparent)]
    Connect(#[from] OfferConnectError),
    /// The state's: the exporter was found, and did not answer in time.
    #[error("the exporter of {name:?} did not answer in time; is it stopped?")]
    TimedOut {
        /// The export.
        name: String,
    },
    /// The caller's: the export is larger than the import may be.
    #[error("export {name:?} has {len} bytes, and the import may have {max}: allow more")]
    TooLarge {
        /// The export.
        name: String,
        /// Its bytes.
        len: u64,
        /// The most that the import may have.
        max: u64,
    },
    /// The state's: as many as may have imported it. Ask again when some have ended.
    #[error("export {name:?} has as many importers as it may have: ask again when some have ended")]
    Full {
        /// The export.
        name: String,
    },
    /// The exporter's system's: it has no descriptors or no memory left.
    #[error("the exporter of {name:?} has no descriptors or no memory left: ask again later")]
    ExporterResources {
        /// The export.
        name: String,
    },
    /// The caller's or the exporter's: they are of different versions.
    #[error("the exporter speaks format {theirs}, and this program {ours}: update one of them")]
    OtherVersion {
        /// The exporter's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The exporter's: the export is kernel-mediated, the kernel does not let this process reach
    /// it (it is another user's, say, or of another process namespace), and the exporter cannot
    /// delegate to the domain's host: the domain is private, or the host is neither of the
    /// exporter's user nor root, or the exporter cannot open its own memory file. Its log says
    /// which.
    #[error(
        "export {name:?} is ordinary memory that this process may not reach, and its exporter cannot have the domain's host copy (see its log): have it export memory that is made for it"
    )]
    NoCopyBroker {
        /// The export.
        name: String,
    },
    /// The machine's: the export is kernel-mediated, in a private domain, and the kernel's
    /// settings do not let this process reach its own memory.
    #[error(
        "the export is ordinary memory, and the kernel does not let this process reach it: {0}"
    )]
    Unreachable(#[source] OpenError),
    /// The exporter's: what it sent is no shared memory whose size is final. Do not trust it.
    #[error(transparent)]
    NotShared(#[from] VerifyError),
    /// The exporter's: what it sent is no answer. Do not trust it.
    #[error("the exporter's answer is not one ({what}); do not trust it")]
    Garbled {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The exporter's: a descriptor is not what it was said to be. Do not trust it.
    #[error(transparent)]
    WrongKind(#[from] WrongKind),
    /// The system's, or the exporter's, if it sealed the memory against what it grants.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The system's.
    #[error(transparent)]
    Socket(SocketError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// The system's.
    #[error("cannot {doing} ({}): close some descriptors, or end some threads", io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was not done.
        doing: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl ImportError {
    pub(super) fn system(doing: &'static str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self::System { doing, errno }
    }
}

/// Why memory was not read, or an update has not landed.
///
/// Errors of the caller are found before anything is written. After the others an update may
/// have landed in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The caller's: it does not lie within the memory.
    #[error("{len} bytes at offset {offset} do not lie within {size} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes that there are.
        size: usize,
    },
    /// The caller's: the exporter has opened other ranges than that.
    #[error("{len} bytes at offset {offset} lie in no range that the exporter opened")]
    OutOfRanges {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
    },
    /// The caller's: the exporter lets importers read only.
    #[error("the export is to be read, not written")]
    NotWritable,
    /// The caller's: the exporter lets importers write only.
    #[error("the export is to be written, not read")]
    NotReadable,
    /// The caller's: words lie at multiples of 8.
    #[error("offset {offset} is no multiple of 8, as a word's is")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
    /// The caller's: blocks of no bytes, or closer to one another than they are long.
    #[error("blocks of {block} bytes do not lie {stride} bytes apart")]
    BadStride {
        /// Bytes of a block.
        block: usize,
        /// Bytes from the start of one to the start of the next.
        stride: usize,
    },
    /// The caller's: the export is kernel-mediated ([`OrdinaryMemory`](super::OrdinaryMemory)),
    /// and the kernel copies bytes in no order that could be promised.
    #[error(
        "the export is ordinary memory: it has no words to be stored, added to or exchanged in one step, and takes no aliases, no logs and no completion words"
    )]
    NoWords,
    /// The exporter's: it has unmapped what it exports, or part of it; nothing else was touched.
    #[error("the exporter has nothing mapped at offset {offset} of what it exports")]
    Unmapped {
        /// Where.
        offset: usize,
    },
    /// The exporter's: it may not itself read there, or write; nothing was touched.
    #[error("the exporter has protected memory among {len} bytes at offset {offset}")]
    Protected {
        /// First byte wanted.
        offset: usize,
        /// Bytes.
        len: usize,
    },
    /// The host's: no member hosts the domain, or the host is stopped, or copies for as many as it
    /// can. What this call has written so far has landed, and no more.
    #[error(
        "the domain's host, which copies for this import, was not found in time, or has no room: try again later"
    )]
    NoHost,
    /// The host's: it was killed, or is stopped, in the midst of copying. What was to be written
    /// may have landed, in part or whole, and may land later if the host was only stopped. Read it
    /// back, or write it again if no other process writes there.
    #[error(
        "the domain's host ended, or is stopped, in the midst of copying: the update may have landed or not"
    )]
    Unanswered,
    /// The system's: it did not copy.
    #[error("the kernel did not copy to or from the exporter ({})", io::Error::from_raw_os_error(*.errno))]
    System {
        /// The system's error number.
        errno: i32,
    },
    /// The machine's, or the control group's: it has not so much memory left. Nothing was written.
    #[error(
        "there is no memory for {len} bytes of the export: populate less, or when there is more"
    )]
    OutOfMemory {
        /// Bytes that were to have memory.
        len: usize,
    },
    /// The exporter's: it has taken its memory back. Let go of the import; import again if it
    /// exports again.
    #[error(
        "the exporter has ended the export; an update may have landed in part: let go of the import, and import again if it is exported again"
    )]
    Revoked,
    /// The exporter's: it is dead.
    #[error(
        "the exporter is dead; an update may have landed in part: let go of the import, and import again if another process exports it"
    )]
    ExporterDied,
    /// The exporter's: it lives, and has executed another program or closed its descriptors: whether
    /// it still has the memory cannot be told. (One that is being killed closes its descriptors
    /// too; the call that finds it so waits until it is dead, for five seconds at the most.)
    #[error(
        "the exporter has let go of the connection (did it exec, or close all descriptors?): let go of the import, and import again"
    )]
    Disconnected,
    /// No one's fault: the deadline has passed; the operation goes on.
    #[error("what was begun has not ended by the deadline, and goes on: wait longer")]
    TimedOut,
    /// The caller's: this process was forked from the one that has the memory, and does not have
    /// it itself. See [`Disowned`].
    #[error("this process does not have the memory: {0}")]
    Disowned(#[from] Disowned),
}
