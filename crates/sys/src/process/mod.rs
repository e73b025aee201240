//! Refers to other processes and their memory, and waits on descriptors.

mod event;
mod maps;
mod memory;
mod own;
mod pidfd;
mod poller;
mod proc;
mod thread;
mod transfer;
mod vm;

pub use event::{EventFd, Ready, WrongKind, poll};
pub(crate) use event::{take_count, wait};
pub use maps::{Area, Maps, MapsError};
pub use memory::{ForeignError, Need, OpenError, ProcessMemory};
pub(crate) use own::quiet;
pub use own::{dies_with_us, fix_addresses, libc_version, random, spawn_quiet, user};
pub use pidfd::{PidFd, signal};
pub use poller::{On, Poller};
pub use proc::{comm, is_stopped, start_time};
pub use rustix::process::Signal;
pub use thread::{HAS_THREAD_POINTER, ThreadFd, has_thread, thread, thread_pointer};
pub use transfer::TransferError;
pub use vm::{Remote, read_memory, write_memory};
