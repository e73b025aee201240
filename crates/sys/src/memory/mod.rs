//! Provides shared memory: memfds, mappings, and advice on address ranges.
//!
//! # Invariants
//!
//! - **M1** A memfd that leaves [`create`] can neither shrink nor grow, so no access to
//!   a mapping of it runs past its end into SIGBUS.
//! - **M2** A [`Mapping`] never replaces another mapping of the process.
//! - **M3** A [`Mapping`] unmaps only what it mapped, also in a forked child.
//! - **M4** Once a memfd has passed [`seal`] or [`verify_sealed`], no process can change a
//!   byte of it.
//! - **M5** Once [`privatise`] has returned, no other process can change a byte of the
//!   range, whatever it kept; and no store of our own was lost, nor by [`share_in_place`].

mod carry;
mod file;
mod frozen;
mod large;
mod mapping;
mod over;
mod privatise;
mod range;
mod replace;
mod room;
mod sealed;
mod share;

pub use file::{
    AllocateError, DataRanges, VerifyError, allocate, allocated_bytes, create, data_ranges, punch,
    reopen_to_read, verify,
};
pub use frozen::{Blank, FreezeError, Frozen, FrozenError};
pub use large::collapse_quickly;
pub use mapping::{MapError, Mapping};
pub use privatise::{PrivatiseError, privatise, privatise_giving_up};
pub use range::{
    Access, Lock, advise_huge, collapse, lock, populate_read, populate_rest, populate_write,
    protect, resident_bytes, zap,
};
pub use replace::replace;
pub use room::{populate_huge, populate_new};
pub use sealed::{SealError, create_unsealed, seal, seal_size, seal_to_readers, verify_sealed};
pub use share::{ShareError, share_in_place, share_into};

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Bytes in a huge page.
pub const HUGE_PAGE: usize = 2 << 20;
