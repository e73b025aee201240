//! Says what rows about exported memory do.

use serde::{Deserialize, Serialize};

use super::Unit;

/// Words that a row of stores stores, one after another.
pub const STORES: usize = 8192;
/// Pages that a row about tracked update has written between two flushes.
pub const PAGES: usize = 512;

/// Bytes of the largest copy that has a time and not a rate.
const FEW: u64 = 64;
/// Bytes of the largest whose instructions are counted.
const COUNTED: u64 = 64 << 10;

/// How a word gets to the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// By a call that stores one word: deliberate update.
    Deliberate,
    /// By the call that writes any bytes: deliberate update.
    Written,
    /// Stored to a mapped range.
    Alias,
    /// Stored through a log.
    Log,
    /// By a system call, into memory that the exporter alone has mapped.
    Kernel,
    /// By a call that tells the exporter as well, which looks, or sleeps, until it is told.
    Notified,
}

/// Where the words of a row of stores go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// To nobody: private memory.
    Private,
    /// To a mapped range.
    Alias,
    /// To one whose stores are logged, up to the flush.
    Log,
    /// To one whose pages are tracked, and then flushed.
    Tracked,
}

/// One operation on exported memory. The exporter is another process, which does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Update {
    /// A blocking deliberate update.
    Write,
    /// The same bytes by `memcpy` into memory of the same kind that nobody imports.
    Copy,
    /// A blocking update that the kernel mediates.
    Mediated,
    /// The same bytes by the same system call, without anything around it.
    Bare,
    /// Words stored one by one.
    Stores {
        /// Where.
        to: Target,
        /// One in each of many cache lines, not one beside the other.
        scattered: bool,
    },
    /// The first store to a page after a flush.
    FirstStore,
    /// A flush, by page that was written.
    FlushPage,
    /// A flush of one page.
    Flush,
    /// A blocking update of a word, of which the exporter is told.
    Notify {
        /// The exporter sleeps until it is told.
        asleep: bool,
    },
    /// A blocking update of a word, with the processor time that the exporter spends on it.
    Receiver,
    /// A non-blocking update, until the call returns.
    Initiate,
    /// A blocking update, and then a computation that takes as long.
    InTurn,
    /// The same computation while a non-blocking update goes on, until both are done.
    Overlapped,
    /// Memory is exported.
    Export,
    /// It is imported.
    Import,
    /// And let go of.
    Unimport,
    /// The end of an export that another process has imported and touched.
    Unexport,
    /// The same bytes copied into private memory that is new.
    FreshCopy,
}

impl Way {
    pub(super) fn name(self) -> String {
        match self {
            Self::Notified => self.word().to_owned(),
            _ => format!("word, {}", self.word()),
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Deliberate => "deliberate",
            Self::Written => "deliberate, written",
            Self::Alias => "alias",
            Self::Log => "log",
            Self::Kernel => "kernel-mediated",
            Self::Notified => "notification",
        }
    }
}

impl Update {
    /// Whether the exporter's memory is ordinary memory.
    pub(crate) fn is_kernels(self) -> bool {
        matches!(self, Self::Mediated | Self::Bare)
    }

    /// What the operation stands beside: no library's work.
    pub(super) fn system_name(self) -> &'static str {
        match self {
            Self::Copy | Self::FreshCopy => "memcpy",
            Self::Bare => "system call",
            Self::Stores {
                to: Target::Private,
                ..
            } => "private memory",
            _ => "portolan",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Mediated => "write, kernel-mediated",
            Self::Bare => "into another process's memory",
            Self::Copy => "into the same kind of memory",
            Self::Stores { to, scattered } => match (to, scattered) {
                (Target::Private, false) => "consecutive stores",
                (Target::Private, true) => "scattered stores",
                (Target::Alias, false) => "alias, consecutive stores",
                (Target::Alias, true) => "alias, scattered stores",
                (Target::Log, false) => "log, consecutive stores",
                (Target::Log, true) => "log, scattered stores",
                (Target::Tracked, false) => "tracked, consecutive stores",
                (Target::Tracked, true) => "tracked, scattered stores",
            },
            Self::FirstStore => "tracked, first store to a page",
            Self::FlushPage => "tracked, flush, a page",
            Self::Flush => "tracked, flush of one page",
            Self::Notify { asleep: false } => "write with a notification, exporter awake",
            Self::Notify { asleep: true } => "write with a notification, exporter asleep",
            Self::Receiver => "word, and the exporter's CPU",
            Self::Initiate => "write begun",
            Self::InTurn => "write, then compute",
            Self::Overlapped => "write while computing",
            Self::Export => "export",
            Self::Import => "import",
            Self::Unimport => "unimport",
            Self::Unexport => "unexport, with revocation",
            Self::FreshCopy => "into new private memory",
        }
    }

    /// Copies of more than a few words have a rate, everything else has a time.
    pub(super) fn unit(self, bytes: u64) -> Unit {
        match self {
            Self::Write | Self::Copy | Self::Mediated | Self::Bare if bytes > FEW => {
                Unit::Gigabytes
            }
            _ => Unit::Operation,
        }
    }

    /// Whether instructions and system calls are counted as well. Not of what goes on in several
    /// threads, nor of what takes very many; a flush that follows stores is counted by itself.
    pub(crate) fn is_counted(self, bytes: u64) -> bool {
        match self {
            Self::Stores { to, scattered } => !scattered && to != Target::Tracked,
            Self::Receiver
            | Self::FirstStore
            | Self::FlushPage
            | Self::Initiate
            | Self::InTurn
            | Self::Overlapped
            | Self::FreshCopy => false,
            _ => bytes <= COUNTED,
        }
    }
}
