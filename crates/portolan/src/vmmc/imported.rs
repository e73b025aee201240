//! An import shares its state with its non-blocking writes: the backend, the permissions, and
//! whether the exporter is still there.

use super::access::{put, put_upwards, take, within, word};
use super::backend::Backend;
use super::kernel::{Direct, Failed, UnderWay};
use super::notify::Poster;
use super::place::Place;
use super::watch::Watched;
use super::write_queue::WriteOrder;
use super::{Reach, UpdateError};
use crate::space::Member;
use crate::space::record::{About, Begun};
use crate::{Deadline, EventKind};
use portolan_abi::vmmc::{Ranges, status_page};
use portolan_shm::atomic::in_program_order;
use portolan_sys::memory::{self, PAGE};
use portolan_sys::process::TransferError;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What an import and its writes that go on share.
pub(crate) struct Imported {
    pub(super) name: String,
    pub(super) reach: Reach,
    pub(super) ranges: Ranges,
    /// Whether each update makes a barrier.
    pub(super) fences: bool,
    pub(super) backend: Backend,
    pub(super) status_page: Place,
    /// What we say that we have written.
    pub(super) notification_page: Place,
    pub(super) poster: Poster,
    pub(super) exporter: Watched,
    pub(super) write_order: WriteOrder,
    /// Whose trace its updates are in: of a process that imported it as a member.
    pub(super) member: Option<Arc<Member>>,
}

impl Imported {
    /// When an update begins, if that is recorded. Not in a forked child.
    #[inline]
    pub(super) fn begins(&self) -> Option<Begun> {
        self.member.as_ref()?.begins(EventKind::Update)
    }

    /// Records it.
    #[inline]
    pub(super) fn has_updated(&self, begun: Option<Begun>, offset: usize, bytes: usize) {
        if let (Some(begun), Some(member)) = (begun, &self.member) {
            member.record(begun, About::byte(offset as u64, bytes as u64));
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn reach(&self) -> Reach {
        self.reach
    }

    pub(super) fn len(&self) -> usize {
        self.backend.len()
    }

    /// What is mapped, if anything is.
    pub(super) fn file(&self) -> Result<&OwnedFd, UpdateError> {
        self.backend.file()
    }

    /// The export's words, if it is mapped.
    #[inline]
    pub(super) fn words(&self) -> Result<&[AtomicU64], UpdateError> {
        self.backend.words()
    }

    /// Copies to it. Within bounds.
    #[inline]
    pub(super) fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        match &self.backend {
            Backend::Mapped { place, .. } => {
                put(place.words(), offset, bytes);
                Ok(())
            }
            Backend::Kernel(direct) => self.by_kernel(direct, |direct| direct.write(offset, bytes)),
            Backend::Host(host) => self.by_host(|there| host.write(offset, bytes, there)),
        }
    }

    /// Takes memory for a part that is mapped. Within bounds.
    pub(super) fn populate(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        let Backend::Mapped { place, .. } = &self.backend else {
            return Ok(());
        };
        if len == 0 {
            return Ok(());
        }
        let first = offset / PAGE * PAGE;
        let end = (offset + len).next_multiple_of(PAGE);
        let taken = memory::populate_new(place.start() + first, end - first);
        taken.map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => UpdateError::OutOfMemory { len },
            _ => UpdateError::System {
                errno: error.raw_os_error().unwrap_or(0),
            },
        })
    }

    /// Copies from it. Within bounds.
    #[inline]
    pub(super) fn take(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        match &self.backend {
            Backend::Mapped { place, .. } => {
                take(place.words(), offset, bytes);
                Ok(())
            }
            Backend::Kernel(direct) => self.by_kernel(direct, |direct| direct.read(offset, bytes)),
            Backend::Host(host) => self.by_host(|there| host.read(offset, bytes, there)),
        }
    }

    /// Has the kernel copy, if the export is still there (K2).
    fn by_kernel(
        &self,
        direct: &Direct,
        copy: impl FnOnce(&Direct) -> Result<(), Failed>,
    ) -> Result<(), UpdateError> {
        let _under_way = UnderWay::new(&self.notification_page);
        self.there()?;
        copy(direct).map_err(|failed| match failed {
            Failed::Closed => UpdateError::Disconnected,
            Failed::Transfer(TransferError::Gone { .. }) => self.how_it_went(),
            Failed::Transfer(other) => direct.explain(other),
        })
    }

    /// Has the domain's host copy, which knows itself whether the export is still there.
    fn by_host(
        &self,
        copy: impl FnOnce(&dyn Fn() -> Result<(), UpdateError>) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        let there = || {
            self.there()?;
            if self.exporter.is_dead() {
                return Err(UpdateError::ExporterDied);
            }
            Ok(())
        };
        copy(&there).map_err(|error| match error {
            UpdateError::Disconnected => self.how_it_went(),
            other => other,
        })
    }

    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.may_write(offset, bytes.len())?;
        self.ready()?;
        let begun = self.begins();
        self.put(offset, bytes)?;
        portolan_shm::mark!("update.copied");
        self.landed()?;
        self.has_updated(begun, offset, bytes.len());
        Ok(())
    }

    /// As [`write`](Self::write), the lower bytes before the higher ones.
    pub(super) fn write_upwards(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.may_write(offset, bytes.len())?;
        self.ready()?;
        let begun = self.begins();
        put_upwards(self.words()?, offset, bytes);
        self.landed()?;
        self.has_updated(begun, offset, bytes.len());
        Ok(())
    }

    #[inline]
    pub(super) fn store_release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        self.may_write(offset, 8)?;
        self.ready()?;
        let begun = self.begins();
        // Release: pairs with `load_acquire`.
        word(self.words()?, offset)?.store(value, Ordering::Release);
        self.landed()?;
        self.has_updated(begun, offset, 8);
        Ok(())
    }

    /// Tells the exporter of an update, if it wants to know.
    pub(super) fn notify(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        self.may_write(offset, len)?;
        self.ready()?;
        if self
            .poster
            .post(&self.status_page, &self.notification_page, offset, len)
        {
            self.exporter.wake();
        }
        self.landed()
    }

    /// Checks everything that is the caller's affair.
    #[inline]
    pub(super) fn may_write(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        if !self.reach.writes() {
            return Err(UpdateError::NotWritable);
        }
        self.inside(offset, len)
    }

    #[inline]
    pub(super) fn may_read(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        if !self.reach.reads() {
            return Err(UpdateError::NotReadable);
        }
        self.inside(offset, len)
    }

    #[inline]
    fn inside(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        within(offset, len, self.len())?;
        if self.ranges.hold(offset as u64, (offset + len) as u64) {
            Ok(())
        } else {
            Err(UpdateError::OutOfRanges { offset, len })
        }
    }

    /// Before anything is touched: it is mapped, and there, and nothing is under way before it.
    #[inline]
    pub(super) fn ready(&self) -> Result<(), UpdateError> {
        super::present()?;
        self.write_order.behind(Deadline::NEVER);
        self.there()
    }

    /// Whether what was stored before this has landed (X1 of exports).
    #[inline]
    pub(super) fn landed(&self) -> Result<(), UpdateError> {
        if self.fences {
            fence(Ordering::SeqCst);
        } else {
            in_program_order();
        }
        self.there()
    }

    /// Whether the export is still there.
    #[inline]
    pub(super) fn there(&self) -> Result<(), UpdateError> {
        if self.is_open() && self.exporter.is_there() {
            Ok(())
        } else {
            Err(self.why_not())
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        let state = self.status_page.words().get(status_page::STATE);
        // Acquire: the loads after this one are not made before it.
        state.is_some_and(|s| s.load(Ordering::Acquire) == status_page::OPEN)
    }

    #[cold]
    fn why_not(&self) -> UpdateError {
        let how = self.is_open().then(|| self.how_it_went());
        // Loaded again afterwards: an exporter stores the end of an export before it closes the
        // connection.
        how.filter(|_| self.is_open())
            .unwrap_or(UpdateError::Revoked)
    }

    /// What has become of an exporter that has let go of the connection, or of its memory.
    fn how_it_went(&self) -> UpdateError {
        match self.exporter.has_died() {
            true => UpdateError::ExporterDied,
            false => UpdateError::Disconnected,
        }
    }
}
