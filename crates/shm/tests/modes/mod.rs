//! How channels of tests are used.

use portolan_shm::channel::{Mode, Signalling};

/// What readers are too slow for is lost.
pub(crate) const LOSSY: Mode = Mode {
    reliable: false,
    many_writers: false,
    raw: false,
    signalling: Signalling::Message,
};
/// The writer waits.
pub(crate) const RELIABLE: Mode = Mode {
    reliable: true,
    ..LOSSY
};
/// Several write.
pub(crate) const CALLED_ON: Mode = Mode {
    many_writers: true,
    ..LOSSY
};
