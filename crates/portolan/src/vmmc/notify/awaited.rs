//! A task awaits notifications under tokio.

use super::notes::{Bell, Notes};
use super::{Notification, NotificationError, Notifications};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, Id};
use ::tokio::task::coop::consume_budget;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// The bell, in a runtime's reactor.
pub(super) struct AsyncBell {
    fd: AsyncFd<Fd>,
    /// Whose reactor: another one's would not be told.
    runtime: Id,
}

struct Fd(Arc<Bell>);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsyncBell {
    /// That which is there, or a new one.
    // As the bells of ports: the constructor that is not deprecated is unsafe, and too new to be
    // relied on.
    #[allow(deprecated)]
    fn of<'b>(there: &'b mut Option<Self>, bell: &Arc<Bell>) -> io::Result<&'b Self> {
        let runtime = Handle::current().id();
        if there.as_ref().is_none_or(|b| b.runtime != runtime) {
            let fd = Fd(Arc::clone(bell));
            let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
            *there = Some(Self { fd, runtime });
        }
        there.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Marks a task as asleep, until this is dropped.
struct Asleep<'n>(&'n Notes);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        if crate::vmmc::present().is_ok() {
            self.0.wake_up();
        }
    }
}

impl Notifications {
    /// As [`wait`](Self::wait), without blocking the thread. A future that is dropped loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`NotificationError`], but not [`NotificationError::TimedOut`]: for a deadline, put the
    /// future into `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and in one without its I/O driver.
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
    /// use portolan::{Deadline, Domain};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let memory = ExportMemory::new(4096)?;
    /// let options = ExportOptions::new(Reach::ReadWrite);
    /// let export = domain.export(&memory, "inbox", &options, Deadline::NEVER)?;
    /// let mut notifications = export.notifications()?;
    /// let import = domain.import("inbox", Deadline::NEVER)?;
    /// import.write_notifying(64, b"data")?;
    /// let note = notifications.wait_async().await?;
    /// assert!(matches!(note, Notification::Written { offset: 64, .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_async(&mut self) -> Result<Notification, NotificationError> {
        let cannot = |error: io::Error| NotificationError::system("wait", &error);
        loop {
            consume_budget().await;
            if let Some(notification) = self.look()? {
                return Ok(notification);
            }
            if let Some(notification) = self.notes.fall_asleep()? {
                self.took(&notification);
                return Ok(notification);
            }
            let _asleep = Asleep(&self.notes);
            let bell = AsyncBell::of(&mut self.async_bell, &self.bell).map_err(cannot)?;
            // Before the next look: what comes between the two is told again.
            bell.fd.readable().await.map_err(cannot)?.clear_ready();
        }
    }
}
