//! Defines the trait of the ways in which the demo carries blocks.
//!
//! To add one: a variant of [`CarrierName`], a type that implements [`Carrier`],
//! and a line each in `hop` (in `chain`) and
//! [`stage_main`](super::stage_main).

use crate::args::CarrierName;
use crate::error::Result;

/// What the hasher writes on each block, in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The block's number, from 1; 0 is unstamped.
    pub(crate) sequence: u64,
    /// BLAKE3 of the input up to and including this block.
    pub(crate) digest: [u8; 32],
}

/// One process's ends of the hops that touch it.
///
/// The reader calls [`blank`](Self::blank) and [`send`](Self::send), the hasher
/// [`receive`](Self::receive) and `send`, the writer `receive` and
/// [`retire`](Self::retire).
pub(crate) trait Carrier {
    /// Exclusive use of one block, until sent or retired.
    type Block: Block;

    /// A block with room for `room` bytes; what they are is undefined.
    fn blank(&mut self, room: usize) -> Result<Self::Block>;

    /// Passes on the block, of which the first `len` bytes count.
    fn send(&mut self, block: Self::Block, len: usize) -> Result<()>;

    /// The next block; `None` after the last one, once the sender said so.
    fn receive(&mut self) -> Result<Option<Self::Block>>;

    /// A block that goes nowhere else.
    fn retire(&mut self, block: Self::Block);

    /// Says that no block follows.
    fn finish(&mut self) -> Result<()>;
}

/// The bytes of a block, and its stamp.
pub(crate) trait Block {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    fn stamp(&self) -> Stamp;
    fn set_stamp(&mut self, stamp: Stamp);
}

impl CarrierName {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Portolan => "portolan",
            Self::Pipe => "pipe",
            Self::Socket => "unix socket",
        }
    }

    /// How often a byte is copied between two processes: never, or into the kernel and
    /// out of it.
    pub(crate) fn copies_a_hop(self) -> u64 {
        match self {
            Self::Portolan => 0,
            Self::Pipe | Self::Socket => 2,
        }
    }
}
