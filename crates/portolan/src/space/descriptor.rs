//! A descriptor knows whether it still is the file that this process opened.
//!
//! Programs exist that close every descriptor they do not know (daemons do it at
//! start). Ours then name nothing, or a stranger's file of the same number. Such a
//! descriptor is neither used nor closed.

use portolan_sys::fork::{CloseOnFork, close_in_child};
use portolan_sys::process::ProcessMemory;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

/// A descriptor of ours, which forked children let go of.
#[derive(Debug)]
pub(crate) struct Descriptor<T: AsFd + Into<OwnedFd> = OwnedFd> {
    /// There until the drop decides what becomes of it.
    inner: Option<T>,
    identity: Option<Identity>,
    /// There until dropped: a number that is not ours any more is not to be let go of.
    guard: Option<CloseOnFork>,
}

/// Device and inode.
type Identity = (u64, u64);

fn identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    let file = rustix::fs::fstat(fd).ok()?;
    Some((file.st_dev, file.st_ino))
}

impl<T: AsFd + Into<OwnedFd>> Descriptor<T> {
    pub(crate) fn new(inner: T) -> Self {
        let guard = close_in_child(inner.as_fd().as_raw_fd());
        let identity = identity(inner.as_fd());
        Self {
            inner: Some(inner),
            identity,
            guard: Some(guard),
        }
    }

    /// Whether it still is what we opened.
    pub(crate) fn is_ours(&self) -> bool {
        self.identity == identity(self.as_fd())
    }
}

impl<T: AsFd + Into<OwnedFd>> Deref for Descriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("there until dropped")
    }
}

impl<T: AsFd + Into<OwnedFd>> AsFd for Descriptor<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl<T: AsFd + Into<OwnedFd>> Drop for Descriptor<T> {
    fn drop(&mut self) {
        let ours = self.is_ours();
        // First: once it is closed the number may be another file's, also in a child.
        self.guard = None;
        if let Some(inner) = self.inner.take()
            && !ours
        {
            // Closed behind our back; the number may be another file's by now.
            let _ = inner.into().into_raw_fd();
        }
    }
}

/// A process's memory by descriptors, which forked children let go of.
pub(crate) struct HeldMemory {
    /// There until dropped.
    inner: Option<ProcessMemory>,
    identity: [Option<Identity>; 2],
    /// There until dropped.
    guards: Option<[CloseOnFork; 2]>,
}

impl HeldMemory {
    /// Holds it. The descriptors are of `/proc`, which answers.
    pub(crate) fn new(memory: ProcessMemory) -> Self {
        Self {
            identity: memory.descriptors().map(identity),
            guards: Some(
                memory
                    .descriptors()
                    .map(|fd| close_in_child(fd.as_raw_fd())),
            ),
            inner: Some(memory),
        }
    }

    /// It, unless the program has closed our descriptors behind our back: the numbers may be
    /// other files' by now.
    pub(crate) fn get(&self) -> Option<&ProcessMemory> {
        let ours = |memory: &&ProcessMemory| memory.descriptors().map(identity) == self.identity;
        self.inner.as_ref().filter(ours)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let ours = self.get().is_some();
        // First, as above.
        self.guards = None;
        if let Some(memory) = self.inner.take()
            && !ours
        {
            for fd in memory.into_descriptors() {
                let _ = fd.into_raw_fd();
            }
        }
    }
}
