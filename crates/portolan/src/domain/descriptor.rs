//! A descriptor that knows whether it is still the file that we opened.
//!
//! Programs exist that close every descriptor they do not know (daemons do it at
//! start). Ours then name nothing, or a stranger's file of the same number. Such a
//! descriptor is neither used nor closed.

use portolan_sys::fork::{CloseOnFork, close_in_child};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A descriptor of ours, which forked children let go of.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// Always there, until the drop decides what becomes of it.
    fd: Option<OwnedFd>,
    identity: Option<Identity>,
    _guard: CloseOnFork,
}

/// Device and inode.
type Identity = (u64, u64);

fn identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    // Through /proc, because it needs no further descriptor.
    let file = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some((file.dev(), file.ino()))
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let guard = close_in_child(fd.as_raw_fd());
        let identity = identity(fd.as_fd());
        Self {
            fd: Some(fd),
            identity,
            _guard: guard,
        }
    }

    /// The descriptor, if it is still ours.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.fd.as_ref()?.as_fd();
        (self.identity == identity(fd)).then_some(fd)
    }

    /// Whether it is still ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.get().is_some()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let ours = self.is_ours();
        if let Some(fd) = self.fd.take()
            && !ours
        {
            // Somebody has closed it for us; the number may be another file's by now.
            let _ = fd.into_raw_fd();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_became_another_file_is_left_alone() {
        let ours = Descriptor::new(std::fs::File::open("/proc/self/stat").unwrap().into());
        assert!(ours.is_ours());
        let number = ours.get().unwrap().as_raw_fd();
        drop(ours);
        assert!(!std::path::Path::new(&format!("/proc/self/fd/{number}")).exists() || number < 3);
    }
}
