//! Guards (being written).
/// What closes and opens pages in a guarded domain.
pub(crate) struct Guard;
