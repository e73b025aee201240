//! Virtual memory-mapped communication lets a process read and write memory that another process
//! has exported, while that process does nothing.
//!
//! After Dubnicki, Iftode, Felten and Li, *Software Support for Virtual Memory-Mapped
//! Communication* (sections 3 to 5), between processes of one machine that need not trust one
//! another.
//!
//! ```
//! use portolan::vmmc::{ExportMemory, ExportOptions, Reach, UpdateError};
//! use portolan::{Deadline, Domain, Permissions};
//!
//! // The exporter.
//! let domain = Domain::private()?; // Domain::join("robot")? among processes
//! let memory = ExportMemory::new(1 << 20)?;
//! let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::own_user());
//! let export = domain.export(&memory, "samples", &options, Deadline::NEVER)?;
//!
//! // An importer: another member; or Domain::builder("robot").of_user(1000).import(...),
//! // which need not be one.
//! let import = domain.import("samples", Deadline::NEVER)?;
//! import.write(4096, b"data")?;
//! import.store_release(0, 1)?; // the flag that announces it
//!
//! // The exporter sees the flag, and so the data. It received no message.
//! assert_eq!(memory.load_acquire(0)?, 1);
//! let mut data = [0; 4];
//! memory.read(4096, &mut data)?;
//! assert_eq!(&data, b"data");
//!
//! // From here on the memory is the exporter's alone, at the same address.
//! export.unexport()?;
//! assert_eq!(import.write(4096, b"late"), Err(UpdateError::Revoked));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | the paper | here |
//! |---|---|
//! | `Export(mapId, recvBuf, nbytes, permissions)` | [`Domain::export`](crate::Domain::export), of [`ExportMemory`] made for it or there before, or of [`OrdinaryMemory`] |
//! | `Import(mapId, exporter, &impAddr, &nbytes)` | [`Domain::import`](crate::Domain::import), [`Builder::import`](crate::Builder::import); not blocking: [`PendingImport`]; of one of several exporters: [`Exporter`] |
//! | an address of the destination proxy space | an [`Import`] and an offset, checked at each call |
//! | `SendMsg`, blocking | [`Import::write`]: returns when the source may be used again, and (on one machine) everything has landed; [`Import::write_from`], of memory that is exported or aliased itself |
//! | `SendMsg`, not blocking | [`Import::begin_write`], with a handle ([`Pending`]); [`Import::flush`] |
//! | notifications: handlers, block and unblock, accept and discard | [`Export::notifications`], [`Import::notify`], `flush_notifying` of [`Alias`], [`Log`] and [`Tracked`] |
//! | `Unimport`, `Unexport`, the latter also not blocking | [`Import::unimport`], [`Export::unexport`], [`Export::begin_unexport`] |
//!
//! Beyond the paper: remote reads, words that are added to and exchanged in one step, scattered
//! and strided sources.
//!
//! # Two implementations
//!
//! As in the paper, there are two, and the memory that is exported chooses:
//!
//! | | user level: [`ExportMemory`] | kernel-mediated: [`OrdinaryMemory`] |
//! |---|---|---|
//! | what is exported | whole pages, which the export makes shared | any bytes, as they are: a vector, a range of the program's own |
//! | who may import | processes that the [permissions](ExportOptions::permit) admit | the same. For an importer that may not trace the exporter (another user, another process namespace) the domain's host copies, if it is of the exporter's user or root |
//! | a write or a read | a copy in user mode | two system calls: may the exporter do that itself there? then the copy. Where the host copies, one more copy and a wake-up there and back |
//! | scattered, strided, non-blocking, [`flush`](Import::flush) | yes | yes |
//! | eight bytes in one go, [`store_release`](Import::store_release), [`fetch_add`](Import::fetch_add), ... | yes | no: [`UpdateError::NoWords`]. One byte is whole: let it be the flag, in a write of its own |
//! | automatic update | [`Alias`], [`Log`], [`Tracked`] | [`Tracked`] without a completion word |
//! | [`Notifications`] | yes | yes |
//! | page protection of the exporter's | fixed while exported | is asked at each call: [`UpdateError::Protected`], [`UpdateError::Unmapped`] |
//! | bounds are kept by | the kernel: whole exports | to the byte: the host, where it copies; else the library: a process that may trace the exporter may write all of its memory anyway |
//! | the end | a copy of the memory; no importer is waited for | nothing is copied; calls under way are waited for ([`ExportError::UnderWay`]), of the host too ([`ExportError::Unanswered`]) |
//! | the host dies | no effect | an importer that needs a host goes on with the next one; a write that the dead host had begun is [`UpdateError::Unanswered`] |
//!
//! # Plain slices for the owner
//!
//! Whether the owner of memory may have a `&[u8]` or a `&mut [u8]` of it depends on what importers
//! may do meanwhile, which the types say:
//!
//! | type | importers | the owner has |
//! |---|---|---|
//! | [`OwnedMemory`] | none | `&[u8]`, `&mut [u8]` |
//! | [`ReadableExport`] | read | `&[u8]`, `&mut [u8]` |
//! | [`WritableExport`] | write | copies and atomics, until it takes the memory back |
//! | [`Export`] and [`ExportMemory`] | as the [`Reach`] says | copies and atomics, in any number of clones |
//!
//! # What holds
//!
//! - An importer reaches the exported pages and nothing else of the exporter. What it may do,
//!   read or write, the kernel enforces as far as reading goes: an importer that may only read
//!   cannot write. `Reach::Write` and byte ranges bind importers that keep to the library.
//!   (These, and what follows, of user-level exports; of the others see the table.)
//! - Updates of one thread are seen in the order in which it made them; nothing tells the
//!   exporter of one, and it spends no time on it, unless it asks for [`Notifications`] and the
//!   importer sends one ([`Import::notify`]).
//! - After [`Export::unexport`] no importer can change a byte, whatever it kept, and what was
//!   said to have landed has. No importer is waited for. Their calls fail with
//!   [`UpdateError::Revoked`]; so do they when the exporter dies
//!   ([`UpdateError::ExporterDied`]).
//! - Forked children have neither exports nor imports, and are told so
//!   ([`UpdateError::Disowned`]).

// | file | what it does |
// |---|---|
// | `options` | how memory is exported |
// | `memory` | memory that can be exported, and what its owner does with it |
// | `owned` | memory and exports that say by their types whether their owner has plain slices |
// | `place` | mappings as words; with `kernel/range` the files with `unsafe` |
// | `kernel` | kernel-mediated exports and imports: ordinary memory |
// | `access` | copies within bounds |
// | `export` | showing memory and taking it back |
// | `acceptor` | the exporter's thread: it grants exports, and sees importers go |
// | `ask` | finding an exporter, and asking it |
// | `granted` | verifies and maps the exporter's answer |
// | `import` | deliberate update, remote read, atomics |
// | `imported` | the state of an import: its backend, its permissions, whether its exporter lives |
// | `relay` | copies between an import and memory that others write |
// | `backend` | carries out reads and writes: on a mapping, or through the kernel |
// | `notify` | notifications: importers post notes, the exporter checks and reports them |
// | `write_queue` | the worker thread that performs the non-blocking writes |
// | `watch` | the importer's thread: it sees exporters go |
// | `pending` | handles of writes and ends that go on in the background |

mod acceptor;
mod access;
mod ask;
mod backend;
mod error;
mod export;
mod granted;
mod import;
mod imported;
mod kernel;
mod memory;
mod notify;
mod options;
mod owned;
mod pending;
mod place;
mod relay;
#[cfg(test)]
mod tests;
mod update;
mod watch;
mod write_queue;

use crate::Disowned;
pub use crate::directory::Exporter;
pub use ask::PendingImport;
pub use error::{ExportError, ImportError, UpdateError};
pub use export::Export;
pub use import::Import;
pub use kernel::{Exportable, OrdinaryMemory};
pub use memory::ExportMemory;
pub use notify::{ImporterId, Notification, NotificationError, Notifications};
pub use options::{ExportOptions, ImportOptions, Reach};
pub use owned::{OwnedMemory, ReadableExport, WritableExport};
pub use pending::Pending;
pub use update::{Alias, Epoch, Log, MappingError, Mode, Tracked};

/// Refuses a forked child: nothing of exports and imports is mapped there.
#[inline]
fn present() -> Result<(), Disowned> {
    if portolan_sys::fork::in_child() {
        Err(Disowned::Forked)
    } else {
        Ok(())
    }
}
