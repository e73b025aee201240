//! Guards: an extent of a guarded domain is accessible only in the space that owns it.
//!
//! (Being written.)

use crate::member::Member;
use portolan_abi::owner::Size;

/// What closes and opens pages in a guarded domain.
pub(crate) struct Guard;

impl Guard {
    /// Opens a freshly allocated extent.
    pub(crate) fn fresh(&self, _member: &Member, _page: u32, _size: Size) {}
    /// Opens a whole chunk of the large part, to collapse it.
    pub(crate) fn open_chunk(&self, _address: usize) -> bool {
        true
    }
    /// Opens an extent that we own.
    pub(crate) fn open(&self, _member: &Member, _page: u32, _size: Size) {}
    /// Closes an extent that we own.
    pub(crate) fn close(&self, _member: &Member, _page: u32, _size: Size) {}
}
