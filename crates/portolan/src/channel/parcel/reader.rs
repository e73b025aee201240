//! A reader takes parcels, and finds the registry of the current writer.

use super::super::ChannelError;
use super::super::{Channel, Missed, ReadError, Reader, ReaderOptions};
use super::{Delivery, Parcel, Stamp, registry_name};
use crate::port::{ConnectError, ReceiveRight, Right, SendError, SendRight};
use crate::space::Member;
use crate::wait::{Armable, WaitSetError};
use crate::{Access, Deadline, Message, PortOptions};
use std::sync::Arc;

/// Parcels that an inbox holds at most; a reader that lags further misses some.
const LARGEST_INBOX: usize = 4096;

/// Reads notes with parcels. See [`ParcelWriter`](super::ParcelWriter).
///
/// A [`WaitSet`](crate::WaitSet) names it as it names a [`Reader`], also while no writer is bound.
/// It makes itself known to the next writer as soon as that is there.
///
/// ```
/// use portolan::channel::{ChannelOptions, Parcel, ReaderOptions};
/// use portolan::{Deadline, Domain, WaitSet};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable())?;
/// let mut writer = channel.bind_parcel_writer()?;
/// let reader = channel.bind_parcel_reader(ReaderOptions::default(), Deadline::NOW)?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(reader)?;
///
/// let extent = domain.allocate(1 << 20)?;
/// writer.send(b"large", Some(Parcel::Moved(extent)), Deadline::NOW)?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let reader = set.get_mut(token).ok_or("not in the set")?;
/// assert!(reader.receive(Deadline::NOW)?.parcel.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ParcelReader {
    // Declared before the reader: it closes first (P3).
    /// Gone once nothing will come any more.
    inbox: Option<ReceiveRight>,
    reader: Reader,
    /// The registry's name.
    registry: String,
    /// The writer that there is does not know of us.
    orphaned: bool,
    /// What comes after this one comes to us too: the first welcome.
    welcome: Option<Stamp>,
    /// Came early.
    next: Option<(Stamp, Message)>,
}

impl Channel {
    /// A reader that gets parcels, of the writer that there is before the deadline: those
    /// that are sent once that writer has learnt of it, which is when it next sends one.
    ///
    /// # Errors
    ///
    /// [`ChannelError`].
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, Lagging, Parcel, ReadError, ReaderOptions};
    /// use portolan::{Deadline, Domain};
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable().units(4))?;
    /// let mut writer = channel.bind_parcel_writer()?;
    /// // It misses what it is too slow for; what was moved to it then is freed.
    /// let options = ReaderOptions::default().lagging(Lagging::Skip);
    /// let mut reader = channel.bind_parcel_reader(options, Deadline::NOW)?;
    /// for _ in 0..20 {
    ///     let extent = domain.allocate(1 << 20)?;
    ///     writer.send(b"news", Some(Parcel::Moved(extent)), Deadline::NOW)?;
    /// }
    /// let received = reader.receive(Deadline::NOW);
    /// assert!(matches!(received, Err(ReadError::Missed(missed)) if missed.from == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind_parcel_reader(
        &self,
        options: ReaderOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<ParcelReader, ChannelError> {
        let deadline = deadline.into();
        let member = self.member();
        let units = usize::try_from(self.units()).unwrap_or(usize::MAX);
        // As many as there can be announced and not read, a welcome, and one unannounced.
        let size = units.saturating_add(2).min(LARGEST_INBOX);
        let inbox = crate::port::bind_port(member, &PortOptions::unnamed().queue(size))?;
        let registry_name = registry_name(self);
        let registry = crate::port::connect_port(member, &registry_name, deadline)
            .map_err(ChannelError::NoWriter)?;
        let mut reader = self.bind_reader(options)?;
        reader.serve_parcels();
        // If it closes later, we are told that its writer has gone (P3).
        let orphaned = register(&inbox, &reader, &registry, deadline).is_err();
        Ok(ParcelReader {
            inbox: Some(inbox),
            reader,
            registry: registry_name,
            orphaned,
            welcome: None,
            next: None,
        })
    }
}

impl ParcelReader {
    /// The next note, with its parcel.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. A note whose parcel did not come to us is [`ReadError::Missed`].
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Delivery, ReadError> {
        let deadline = deadline.into();
        loop {
            if self.orphaned {
                self.change_registries(deadline)?;
            }
            let received = match self.reader.receive(deadline) {
                Ok(received) => received,
                Err(ReadError::WriterGone) => {
                    self.orphaned = true;
                    return Err(ReadError::WriterGone);
                }
                Err(over @ (ReadError::Dropped | ReadError::Garbled(_))) => {
                    // The parcels there belong to no message any more. In this order: P3.
                    self.inbox = None;
                    self.next = None;
                    self.reader.leave();
                    return Err(over);
                }
                Err(other) => return Err(other),
            };
            let position = received.position();
            let parts = Stamp::split(&received);
            let read = parts.map(|(stamp, has_parcel, note)| (stamp, has_parcel, note.to_vec()));
            let to = self.reader.position();
            let missed = ReadError::Missed(Missed { from: position, to });
            let Some((stamp, has_parcel, note)) = read else {
                // Not written by a writer of parcels.
                return Err(missed);
            };
            let parcel = has_parcel.then(|| self.parcel(stamp)).flatten();
            if has_parcel && parcel.is_none() {
                if self.welcome.is_some_and(|last_before| stamp > last_before) {
                    return Err(missed);
                }
                // Before our time (P2).
                continue;
            }
            return Ok(Delivery {
                note,
                parcel,
                position,
            });
        }
    }

    /// The parcel of this stamp. It came before it was announced, or will not come.
    fn parcel(&mut self, stamp: Stamp) -> Option<Parcel> {
        loop {
            let (found, mut message) = match self.next.take() {
                Some(early) => early,
                None => {
                    let inbox = self.inbox.as_mut()?;
                    let message = inbox.receive(Access::Later, Deadline::NOW).ok()?;
                    let Some((found, has_parcel, _)) = Stamp::split(message.header()) else {
                        continue;
                    };
                    if !has_parcel {
                        self.welcome.get_or_insert(found);
                        continue;
                    }
                    (found, message)
                }
            };
            if found == stamp {
                if let Some(extent) = message.remove(0) {
                    return Some(Parcel::Moved(extent));
                }
                return match message.take_rights().pop() {
                    Some(Right::Shared(shared)) => Some(Parcel::Shared(shared)),
                    _ => None,
                };
            }
            if found > stamp {
                self.next = Some((found, message));
                return None;
            }
            // Sent, and never announced; or announced, and missed.
        }
    }

    /// Announces sleep: whether there is nothing to receive now. It is woken when there may be,
    /// also when it has no registry and there is one (P5).
    pub(in crate::channel) fn idles(&mut self) -> bool {
        let asleep = self.reader.arm().is_some();
        // After the announcement.
        self.find_registry();
        // What lies there is received once we have been welcomed.
        self.orphaned || asleep && !self.reader.may_have()
    }

    /// As a reader's, for a wait set.
    pub(crate) fn arm_for(&mut self, link: u64) -> bool {
        self.reader.link(link);
        link == 0 || self.idles()
    }

    /// Whether a call may receive something, or be told something.
    pub(crate) fn may_have(&mut self) -> bool {
        self.find_registry();
        !self.orphaned && self.reader.may_have()
    }

    /// Finds the registry of the current writer, if it has none and there is one.
    fn find_registry(&mut self) {
        if self.orphaned && self.reader.has_writer() {
            // What fails for good, the next call says.
            let _ = self.change_registries(Deadline::NOW);
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        self.reader.member()
    }

    /// Another space writes now, or will: it has to know of us.
    fn change_registries(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        let Some(inbox) = &self.inbox else {
            // The next call says why.
            self.orphaned = false;
            return Ok(());
        };
        loop {
            let member = &inbox.at().member;
            match crate::port::connect_port(member, &self.registry, deadline) {
                Ok(registry) => {
                    if register(inbox, &self.reader, &registry, deadline).is_ok() {
                        self.orphaned = false;
                        return Ok(());
                    }
                }
                Err(ConnectError::Disowned(why)) => return Err(why.into()),
                // A registry was bound under this name, so it is one; and no node was asked.
                Err(_) => {}
            }
            if deadline.has_passed() {
                return Err(ReadError::TimedOut);
            }
        }
    }
}

/// Makes a reader known at a registry.
fn register(
    inbox: &ReceiveRight,
    reader: &Reader,
    registry: &SendRight,
    deadline: Deadline,
) -> Result<(), SendError> {
    let place = reader.entry();
    let place = place.map(|(entry, is_waited_for)| [entry, u8::from(is_waited_for)]);
    let mut message = Message::new(place.as_slice().as_flattened()).unwrap_or_default();
    // A message holds a right at least.
    drop(message.attach(inbox.make_send()));
    registry.send_from(&mut message, deadline)
}

impl std::fmt::Debug for ParcelReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParcelReader")
            .field("position", &self.reader.position())
            .finish_non_exhaustive()
    }
}

impl Armable for ParcelReader {
    fn kind(&self) -> &'static str {
        "the reader of parcels"
    }

    fn membership(&self) -> u64 {
        self.member().number
    }

    fn why_not(&self) -> Option<WaitSetError> {
        self.reader.why_not()
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        Self::arm_for(self, link)
    }
}
