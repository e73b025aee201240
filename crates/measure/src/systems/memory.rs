//! Makes the shared windows of endpoints in shared memory.

use std::os::fd::OwnedFd;
use std::thread;

use portolan_sys::memory::HUGE_PAGE;
use portolan_sys::shared::{Window, WindowError};

use crate::case::{Case, Placement};
use crate::error::{MeasureError, Result};

/// Two lines, because processors fetch them in pairs: a word on each side of such a
/// boundary never travels with its neighbour.
pub(crate) const LINE_PAIR: usize = 128;

/// A resident window, on large pages where it fills some: the baseline gets what
/// Portolan's own large extents get.
pub(crate) fn create(bytes: usize) -> Result<Window> {
    let doing = "making shared memory for a benchmark";
    let window = Window::create(bytes).map_err(|error| system(doing, error))?;
    window.populate().map_err(MeasureError::system(doing))?;
    let large = window.len() / HUGE_PAGE * HUGE_PAGE;
    if large > 0 {
        // Without large pages the row is a little slower, and still a row.
        let _ = portolan_sys::memory::collapse(window.base().addr(), large);
    }
    Ok(window)
}

/// The same window in a peer, its pages mapped.
pub(crate) fn attach(descriptors: Vec<OwnedFd>) -> Result<Window> {
    let doing = "mapping shared memory for a benchmark";
    let descriptor = descriptors
        .into_iter()
        .next()
        .ok_or(MeasureError::NoCoordinator)?;
    let window = Window::from_fd(descriptor).map_err(|error| system(doing, error))?;
    window.populate().map_err(MeasureError::system(doing))?;
    Ok(window)
}

/// A descriptor of `window` for the peers.
pub(crate) fn share(window: &Window) -> Result<Vec<OwnedFd>> {
    let descriptor = window
        .fd()
        .try_clone_to_owned()
        .map_err(MeasureError::system("sharing memory with a peer"))?;
    Ok(vec![descriptor])
}

fn system(doing: &'static str, error: WindowError) -> MeasureError {
    MeasureError::System {
        doing,
        source: std::io::Error::other(error),
    }
}

/// A busy wait without a pause instruction, which would add its own 10 to 40 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    /// With one CPU the other side runs only if we let it.
    yields: bool,
}

impl Spin {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            yields: case.placement == Placement::OneCpu,
        }
    }

    #[inline(always)]
    pub(crate) fn until(self, mut done: impl FnMut() -> bool) {
        while !done() {
            if self.yields {
                thread::yield_now();
            }
        }
    }
}
