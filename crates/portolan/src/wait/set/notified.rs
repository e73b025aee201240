//! Exports' notifications in a wait set.

use super::guest::Guest;
use super::{AddNotificationsError, Token, WaitSet};
use crate::vmmc::Notifications;

impl WaitSet {
    /// Adds what the importers of an export notify of. A wait names it when there is a
    /// notification, and for ever once the export has ended. It may name it for nothing, if an
    /// importer has posted what makes no sense.
    ///
    /// # Errors
    ///
    /// They come back.
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
    /// use portolan::{Deadline, Domain, WaitSet};
    /// let domain = Domain::private()?;
    /// let memory = ExportMemory::new(4096)?;
    /// let options = ExportOptions::new(Reach::ReadWrite);
    /// let export = domain.export(&memory, "inbox", &options, Deadline::NEVER)?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add_notifications(export.notifications()?)?;
    ///
    /// let import = domain.import("inbox", Deadline::NEVER)?;
    /// import.write_notifying(64, b"data")?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token));
    /// let notifications = set.notifications_mut(token).ok_or("not in the set")?;
    /// let note = notifications.poll()?;
    /// assert!(matches!(note, Some(Notification::Written { offset: 64, len: 4, .. })));
    /// assert!(set.wait(Deadline::NOW)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_notifications(
        &mut self,
        notifications: Notifications,
    ) -> Result<Token, AddNotificationsError> {
        match self.why_no_place(notifications.member()) {
            None => Ok(self.seat(Guest::Notifications(notifications))),
            Some(why) => {
                let notifications = Box::new(notifications);
                Err(AddNotificationsError { notifications, why })
            }
        }
    }

    /// Notifications of the set, to be polled; `None` if they are not in the set.
    ///
    /// Any call is fine, also one that waits.
    pub fn notifications_mut(&mut self, token: Token) -> Option<&mut Notifications> {
        match self.guest_mut(token)? {
            Guest::Notifications(notifications) => Some(notifications),
            _ => None,
        }
    }

    /// Gives notifications back; `None` if they are not in the set.
    pub fn remove_notifications(&mut self, token: Token) -> Option<Notifications> {
        self.notifications_mut(token)?;
        match self.unseat(token) {
            Some(Guest::Notifications(notifications)) => Some(notifications),
            _ => None,
        }
    }
}
