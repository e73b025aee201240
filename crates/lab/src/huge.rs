//! Tells on which pages a block lies. The kernel moves memory to huge pages when it can, and not
//! when it has none to spare or is busy: blocks of 2 MiB then lie on 4 KiB pages, which are closed and
//! opened one by one. Figures of which some have the ones and some the others say nothing.
//!
//! So whatever is measured of huge pages looks first. What lies on 4 KiB pages is started anew, in new
//! memory, up to [`ATTEMPTS`] times, and what lies there still is no figure of huge pages.

use std::time::Duration;

use portolan_sys::memory;
use portolan_sys::track;

/// Bytes of a huge page.
pub(crate) const PAGE: usize = memory::HUGE_PAGE;
/// How often memory is asked for, to get some on huge pages.
pub(crate) const ATTEMPTS: u32 = 5;
/// How long to wait between: the kernel is asked no more for a while after it was slow.
pub(crate) const REST: Duration = Duration::from_millis(300);

/// Whether all of a block that is open here lies on huge pages; none where the system does not tell.
pub(crate) fn holds(block: &[u8]) -> Option<bool> {
    let start = block.as_ptr().addr();
    Some(track::huge_bytes(start, block.len())? >= block.len())
}

/// Whether all of several do; none where one is not known and none is known to lie elsewhere.
pub(crate) fn all(found: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for one in found {
        match one {
            Some(true) => {}
            Some(false) => return Some(false),
            None => all = None,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use portolan_sys::shared::Window;

    use super::*;

    #[test]
    fn one_block_elsewhere_is_enough() {
        assert_eq!(all([Some(true), Some(true)].into_iter()), Some(true));
        assert_eq!(all([Some(true), None].into_iter()), None);
        assert_eq!(all([None, Some(false)].into_iter()), Some(false));
        assert_eq!(all([Some(false), Some(true)].into_iter()), Some(false));
    }

    #[test]
    fn half_a_block_on_huge_pages_is_not_all_of_it() {
        let window = Window::create(3 * PAGE).unwrap();
        window.populate().unwrap();
        let base = window.base().addr();
        let at = base.next_multiple_of(PAGE);
        let huge = || track::huge_bytes(base, window.len());
        // Where the system gave huge pages unasked, or gives none, or does not tell, there is nothing
        // to see.
        if huge() == Some(0) && memory::collapse(at, PAGE).unwrap_or(false) {
            window.fill(0, window.len(), 1);
            let huge = huge().unwrap();
            assert!((PAGE..window.len()).contains(&huge), "{huge}");
        }
        // Memory of this process that is not shared lies on no huge page that anybody asked for.
        assert_ne!(holds(&[7; 64][..]), Some(true));
    }
}
