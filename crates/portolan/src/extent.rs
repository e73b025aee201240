//! Extents (being written).
/// Extents near at hand.
#[derive(Default)]
pub(crate) struct Cache;
