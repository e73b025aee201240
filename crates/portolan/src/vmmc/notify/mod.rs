//! Notifications tell an exporter which bytes its importers have written.
//!
//! After the paper's section 4.4: a write may carry a notification, and so may every flush of a
//! mapping. The exporter has a handler for each export, and blocks, discards, accepts or awaits
//! notifications.
//!
//! ```text
//! importer   write, post (offset, length) --------> does the exporter sleep? -- yes --> ring
//!                        |                                                               |
//! exporter   look <------+---------------------- acceptor: is there anything new? <-----+
//! ```
//!
//! # Invariants
//!
//! - **N1** A note is posted behind its data: a thread that has the note sees the data.
//! - **N2** No wake-up is lost. The exporter stores on the status page that it sleeps, makes a full
//!   barrier and looks for notes once more. The importer posts, makes a full barrier, and then
//!   loads whether the exporter sleeps.
//! - **N3** The exporter does not trust a notification page: it copies each note once and checks
//!   the copy. It takes at most one page of notes from an importer before it serves the others.
//! - **N4** The exporter hands out what an importer posted before it died or closed its import.

#[cfg(feature = "tokio")]
mod awaited;
mod notes;
mod poster;

pub(super) use notes::Notes;
pub(super) use poster::Poster;

use super::Export;
use super::export::Exported;
use crate::space::Member;
use crate::space::record::About;
use crate::wait::Armable;
use crate::{Deadline, Disowned, EventKind};
use portolan_sys::process::{EventFd, poll};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Notes that a [`dispatch`](Notifications::dispatch) handles at the most.
const AT_ONCE: usize = 256;

/// What importers of an export say that they have written: [`Export::notifications`].
///
/// An importer [notifies](super::Import::notify) after a write; then the exporter finds the note
/// here, and the data in its memory. It looks ([`Deadline::NOW`]), waits
/// ([`wait`](Self::wait)), has a handler run ([`on`](Self::on), [`dispatch`](Self::dispatch)),
/// or waits together with whatever else it waits for: in a wait set
/// ([`WaitSet::add`](crate::WaitSet::add)), or for the
/// [`descriptor`](Self::descriptor).
///
/// As long as there is no `Notifications` of an export, or it [discards](Self::discard), an
/// importer that notifies does nothing, and nothing is kept.
///
/// A note is the importer's word. That its bytes lie within the export, and in one of its
/// ranges, has been checked; that it wrote them has not.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
/// use portolan::{Deadline, Domain};
/// use std::time::Duration;
/// let soon = Deadline::after(Duration::from_secs(60));
/// let domain = Domain::private()?;
/// let memory = ExportMemory::new(8192)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "inbox", &options, soon)?;
/// let mut notifications = export.notifications()?;
///
/// let import = domain.import("inbox", soon)?;
/// import.write(100, b"some ")?;
/// import.write_notifying(105, b"data")?;
/// import.notify(100, 9)?; // both of them
///
/// let Notification::Written { offset, len, .. } = notifications.wait(soon)? else {
///     panic!("there was room for it");
/// };
/// assert_eq!((offset, len), (105, 4));
/// let next = notifications.wait(soon)?;
/// assert!(matches!(next, Notification::Written { offset: 100, len: 9, .. }));
/// let mut data = [0; 9];
/// memory.read(100, &mut data)?;
/// assert_eq!(&data, b"some data");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A [`WaitSet`](crate::WaitSet) names them when there is a notification, and for ever once the
/// export has ended. It may name them for nothing, if an importer has posted what makes no sense.
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
/// use portolan::{Deadline, Domain, WaitSet};
/// let domain = Domain::private()?;
/// let memory = ExportMemory::new(4096)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "inbox", &options, Deadline::NEVER)?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(export.notifications()?)?;
///
/// let import = domain.import("inbox", Deadline::NEVER)?;
/// import.write_notifying(64, b"data")?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let notifications = set.get_mut(token).ok_or("not in the set")?;
/// let note = notifications.wait(Deadline::NOW)?;
/// assert!(matches!(note, Notification::Written { offset: 64, len: 4, .. }));
/// assert!(set.wait(Deadline::NOW)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "when dropped, importers notify nobody"]
pub struct Notifications {
    notes: Arc<Notes>,
    bell: Arc<notes::Bell>,
    /// Never locked; it lets this be shared, whatever the handler is.
    handler: Mutex<Option<Handler>>,
    /// What an async wait waits with.
    #[cfg(feature = "tokio")]
    async_bell: Option<awaited::AsyncBell>,
    member: Arc<Member>,
    export: Weak<Exported>,
}

type Handler = Box<dyn FnMut(Notification) + Send>;

/// What an importer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// It has written these bytes.
    Written {
        /// Who.
        importer: ImporterId,
        /// First byte, within the export.
        offset: usize,
        /// Bytes; may be none.
        len: usize,
    },
    /// It has written more than there was room to tell: something has changed, anywhere.
    Several {
        /// Who.
        importer: ImporterId,
        /// How many notes it says found no room.
        count: u64,
    },
}

impl Notification {
    /// Whose it is.
    pub fn importer(&self) -> ImporterId {
        match self {
            Self::Written { importer, .. } | Self::Several { importer, .. } => *importer,
        }
    }
}

/// An importer of an export, as its exporter knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImporterId {
    number: u64,
    user: u32,
    process: u32,
}

impl ImporterId {
    pub(super) fn new(number: u64, user: u32, process: u32) -> Self {
        Self {
            number,
            user,
            process,
        }
    }

    /// Its user when it imported.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// The id of its process when it imported; 0 if it is in another pid namespace. Another
    /// process may have it by now.
    pub fn process(&self) -> u32 {
        self.process
    }
}

/// Why there is no notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotificationError {
    /// The caller's: there is one `Notifications` of an export. Drop the first one.
    #[error("somebody has the export's notifications already: drop those first")]
    Taken,
    /// The state's: the export has ended, and everything that was posted has been handed out.
    #[error("the export has ended, and nothing more will be notified: drop this")]
    Ended,
    /// No one's fault: the deadline has passed.
    #[error("nothing was notified by the deadline: wait longer, or look whether importers live")]
    TimedOut,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// The system's; or the program has closed the descriptor.
    #[error("cannot {doing} ({}): close some descriptors", io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was not done.
        doing: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl NotificationError {
    fn system(doing: &'static str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self::System { doing, errno }
    }
}

impl Export {
    /// Has importers notify from now on; until this is dropped there is no other one. What they
    /// notified of before was ignored.
    ///
    /// # Errors
    ///
    /// [`NotificationError`], but for `TimedOut`.
    pub fn notifications(&self) -> Result<Notifications, NotificationError> {
        super::present()?;
        let bell = EventFd::new().map_err(|e| NotificationError::system("make a bell", &e))?;
        let bell = Arc::new(notes::Bell::new(bell));
        let notes = self.notes();
        notes.listen(&bell)?;
        Ok(Notifications {
            notes: Arc::clone(notes),
            bell,
            handler: Mutex::default(),
            #[cfg(feature = "tokio")]
            async_bell: None,
            member: Arc::clone(self.member()),
            export: Arc::downgrade(self.exported()),
        })
    }
}

impl Notifications {
    /// The next notification, if there is one.
    fn look(&mut self) -> Result<Option<Notification>, NotificationError> {
        super::present()?;
        Ok(self.notes.poll()?.inspect(|taken| self.took(taken)))
    }

    /// Counts what is handed out, for observers, and records it.
    fn took(&self, notification: &Notification) {
        if let Some(export) = self.export.upgrade() {
            export.count_notification();
        }
        if self.member.traces(EventKind::Notify) {
            let (offset, bytes) = match notification {
                Notification::Written { offset, len, .. } => (*offset, *len),
                Notification::Several { .. } => (0, 0),
            };
            let about = About {
                process: notification.importer().process(),
                ..About::byte(offset as u64, bytes as u64)
            };
            self.member.happened(EventKind::Notify, about);
        }
    }

    /// The next notification, waiting for it until the deadline. Meanwhile an importer's first
    /// note wakes the exporter. Importers send no wake to an exporter that only looks, by
    /// [`Deadline::NOW`]: that costs the exporter's time and not theirs.
    ///
    /// # Errors
    ///
    /// [`NotificationError::TimedOut`] if nothing came; [`NotificationError::Ended`], once nothing
    /// more will; [`NotificationError::Disowned`].
    pub fn wait(
        &mut self,
        deadline: impl Into<Deadline>,
    ) -> Result<Notification, NotificationError> {
        let deadline = deadline.into();
        loop {
            if let Some(notification) = self.look()? {
                return Ok(notification);
            }
            if deadline.has_passed() {
                return Err(NotificationError::TimedOut);
            }
            if let Some(notification) = self.notes.fall_asleep()? {
                self.took(&notification);
                return Ok(notification);
            }
            let polled = poll(&[self.bell.as_fd()], deadline.instant());
            self.notes.wake_up();
            let polled = polled.map_err(|e| NotificationError::system("wait", &e))?;
            if polled.iter().any(|ready| ready.invalid) {
                let closed = io::Error::from_raw_os_error(CLOSED);
                return Err(NotificationError::system("wait", &closed));
            }
        }
    }

    /// Has `handler` run for each notification, by [`dispatch`](Self::dispatch); one at a time.
    pub fn on(&mut self, handler: impl FnMut(Notification) + Send + 'static) {
        self.handler = Mutex::new(Some(Box::new(handler)));
    }

    /// Waits until there is a notification, and has the handler run for it and for those that
    /// are there behind it, up to 256; how many there were. Without a handler they are ignored.
    ///
    /// ```
    /// # use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
    /// # use portolan::{Deadline, Domain};
    /// # let soon = Deadline::after(std::time::Duration::from_secs(60));
    /// # let domain = Domain::private()?;
    /// # let memory = ExportMemory::new(8192)?;
    /// # let options = ExportOptions::new(Reach::ReadWrite);
    /// # let export = domain.export(&memory, "inbox", &options, soon)?;
    /// # let import = domain.import("inbox", soon)?;
    /// let mut notifications = export.notifications()?;
    /// let data = memory.clone();
    /// notifications.on(move |note| {
    ///     if let Notification::Written { offset, .. } = note {
    ///         println!("{}", data.load_acquire(offset).expect("a word"));
    ///     }
    /// });
    /// import.write_notifying(64, &7_u64.to_ne_bytes())?;
    /// assert_eq!(notifications.dispatch(soon)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn dispatch(&mut self, deadline: impl Into<Deadline>) -> Result<usize, NotificationError> {
        let first = self.wait(deadline)?;
        self.handle(first);
        let mut count = 1;
        while count < AT_ONCE {
            // That it has ended is said by the next call.
            let Ok(Some(next)) = self.look() else {
                break;
            };
            self.handle(next);
            count += 1;
        }
        Ok(count)
    }

    fn handle(&mut self, notification: Notification) {
        // A handler that panicked is called again.
        let handler = self
            .handler
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(handler) = handler {
            handler(notification);
        }
    }

    /// A descriptor that is readable when there is something to [`wait`](Self::wait) for: from
    /// the moment that something comes until nothing is there; and for ever once the export
    /// has ended. For epoll, or to have an address signalled
    /// ([`Domain::bind_address`](crate::Domain::bind_address)), by which it comes into a
    /// [`Listener`](crate::Listener) and a wait set; look until nothing is there each time. Do
    /// not read it.
    ///
    /// From the first call on importers ring also for a thread that only looks.
    ///
    /// ```
    /// # use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
    /// # use portolan::{Deadline, Domain};
    /// use portolan::{ListenerOptions, Origin};
    /// # let soon = Deadline::after(std::time::Duration::from_secs(60));
    /// # let domain = Domain::private()?;
    /// # let memory = ExportMemory::new(8192)?;
    /// # let options = ExportOptions::new(Reach::ReadWrite);
    /// # let export = domain.export(&memory, "inbox", &options, soon)?;
    /// # let import = domain.import("inbox", soon)?;
    /// let mut notifications = export.notifications()?;
    /// let segment = domain.make_segment(None, 4096)?;
    /// let descriptor = notifications.descriptor().try_clone_to_owned()?;
    /// let _bound = domain.bind_address(segment.address(), Origin::Descriptor(descriptor))?;
    ///
    /// let mut listener = domain.listen(ListenerOptions::default())?;
    /// let all = segment.address()..segment.address() + 4096;
    /// listener.on(all, move |_| {
    ///     while let Ok(note) = notifications.wait(Deadline::NOW) {
    ///         println!("{note:?}");
    ///     }
    /// })?;
    /// import.write_notifying(0, b"data")?;
    /// listener.wait(soon).expect("the address is signalled");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descriptor(&mut self) -> BorrowedFd<'_> {
        if super::present().is_ok() {
            self.notes.watched_from_outside();
        }
        self.bell.as_fd()
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Whether something may be there.
    pub(crate) fn may_have(&self) -> bool {
        self.notes.may_have()
    }

    /// Arms it for the wait set that `link` names, 0 for none, in which case it is disarmed;
    /// `false` if something may be there.
    pub(crate) fn arm_for(&self, link: u64) -> bool {
        self.notes.arm_for(&self.member, link)
    }

    /// Keeps notifications back until [`unblock`](Self::unblock): there is nothing to poll or
    /// wait for. What importers post meanwhile waits in their rings, of 128 notes each; beyond
    /// that it is counted ([`Notification::Several`]).
    pub fn block(&mut self) {
        if super::present().is_ok() {
            self.notes.block(true);
        }
    }

    /// Hands out what was kept back, and what comes.
    pub fn unblock(&mut self) {
        if super::present().is_ok() {
            self.notes.block(false);
        }
    }

    /// From now on notes of importers are dropped; they post none, nor ring, once they have seen
    /// it. What they posted before is still handed out.
    pub fn discard(&mut self) {
        if super::present().is_ok() {
            self.notes.discard();
        }
    }

    /// Ends [`discard`](Self::discard).
    pub fn accept(&mut self) {
        if super::present().is_ok() {
            self.notes.accept();
        }
    }

    /// Notes that did not lie within the export, or in no range of it, or came in a ring that
    /// makes no sense: they were dropped.
    pub fn garbled(&self) -> u64 {
        self.notes.garbled()
    }
}

/// `EBADF`.
const CLOSED: i32 = 9;

impl Drop for Notifications {
    fn drop(&mut self) {
        if super::present().is_ok() {
            self.notes.stop_listening();
        }
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").finish_non_exhaustive()
    }
}

impl Armable for Notifications {
    fn kind(&self) -> &'static str {
        "the notifications"
    }

    fn membership(&self) -> u64 {
        self.member().number
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        Self::arm_for(self, link)
    }
}
