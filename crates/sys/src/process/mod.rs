//! Other processes, and waiting on descriptors.

mod event;
mod own;
mod pidfd;
mod proc;
mod thread;

pub use event::{EventFd, Ready, poll};
pub(crate) use event::{take_count, wait};
pub use own::{dies_with_us, spawn_quiet, user};
pub use pidfd::{PidFd, signal};
pub use proc::{comm, start_time};
pub use rustix::process::Signal;
pub use thread::{ThreadFd, has_thread, thread};
