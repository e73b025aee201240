//! This crate wraps Linux mechanisms for Portolan, without policy.
//!
//! Every function here does one thing to the kernel and reports what happened.
//! Which memory to map, when to sleep, whom to trust and what to do about a death
//! is decided by the crates above.
//!
//! | module | what it wraps |
//! |---|---|
//! | [`memory`] | memfds sealed in size or for good, mappings, shared memory made private and back |
//! | [`shared`] | a small safe window of shared memory, for benchmarks and tests |
//! | [`futex`] | sleeping on a shared word and waking sleepers |
//! | [`barrier`] | barriers that other processes make when asked |
//! | [`bell`] | a descriptor that becomes readable when a futex word changes |
//! | [`monitor`] | waiting in user mode until a line is written |
//! | [`upcall`] | code that a signal makes run on a chosen thread |
//! | [`watch`] | many descriptors, timers and Unix signals at once |
//! | [`process`] | pidfds, `/proc/PID`, other processes' memory, poll, eventfd |
//! | [`socket`] | sequenced-packet Unix sockets that carry descriptors |
//! | [`stream`] | TCP sockets that never block, and checked ranges of memory to send and receive |
//! | [`userfault`] | closing and opening pages with userfaultfd minor faults |
//! | [`track`] | finding the pages of a range that were written |
//! | [`fault`] | the SIGSEGV and SIGBUS handler, by address range |
//! | [`fork`] | what a forked child must let go of |
//! | [`ticks`] | the processor's clock |
//! | [`machine`] | processors, memory, limits and use |
//! | [`probe`](mod@probe) | which of these mechanisms this kernel offers |
//!
//! # Conventions
//!
//! - A descriptor is an [`OwnedFd`](std::os::fd::OwnedFd) and closes on exec.
//! - A deadline is an `Option<Instant>`; `None` waits for ever.
//! - A process id is a `u32`; 0 means "outside our pid namespace".
//! - An address range is a `start: usize` and a `len: usize`, both whole pages.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("portolan-sys runs on 64-bit Linux only");

pub mod barrier;
pub mod bell;
pub mod fault;
pub mod fork;
pub mod futex;
pub mod machine;
pub mod memory;
pub mod monitor;
pub mod probe;
pub mod process;
pub mod shared;
pub mod socket;
pub mod stream;
pub mod ticks;
mod time;
pub mod track;
pub mod upcall;
pub mod userfault;
pub mod watch;
