//! The exporter takes notes from the notification pages of its importers, and checks them.

use super::poster::{note, word};
use super::{ImporterId, Notification, NotificationError};
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::record::About;
use crate::vmmc::place::Place;
use crate::wait::raise_link;
use portolan_abi::vmmc::{Ranges, notification_page, status_page};
use portolan_sys::process::EventFd;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a thread that waits for notifications sleeps on.
pub(super) type Bell = Descriptor<EventFd>;

/// Notes of importers that have gone, kept at the most; beyond that they are counted (N4).
const MOST_LEFT: usize = 4096;

/// The notes of all importers of an export.
pub(crate) struct Notes {
    status_page: Arc<Place>,
    bounds: Bounds,
    inner: Mutex<Inner>,
}

/// The bytes that a note may name.
struct Bounds {
    len: usize,
    ranges: Ranges,
}

#[derive(Default)]
struct Inner {
    importers: BTreeMap<u64, Posts>,
    /// The importer that was served last.
    last: u64,
    /// Notes of importers that have gone.
    left: VecDeque<Notification>,
    listener: Option<Listener>,
    garbled: u64,
    /// The export has ended.
    over: bool,
}

struct Listener {
    bell: Arc<Bell>,
    blocked: bool,
    discards: bool,
    /// The program waits for the bell itself.
    outside: bool,
    /// The wait set that it is armed in, and its place there.
    armed: Option<(Arc<Member>, u64)>,
}

/// The notes of one importer.
struct Posts {
    who: ImporterId,
    page: Arc<Place>,
    /// Notes taken.
    taken: u64,
    /// Notes that found no room, as far as was told.
    lost: u64,
    /// More have been lost: to be told when so many notes have been taken.
    owed: Option<u64>,
    complained: bool,
}

impl Notes {
    pub(crate) fn new(status_page: &Arc<Place>, len: usize, ranges: Ranges) -> Self {
        Self {
            status_page: Arc::clone(status_page),
            bounds: Bounds { len, ranges },
            inner: Mutex::default(),
        }
    }

    /// An importer that may post from now on.
    pub(crate) fn enter(&self, number: u64, who: ImporterId, page: &Arc<Place>) {
        let posts = Posts {
            who,
            page: Arc::clone(page),
            taken: 0,
            lost: 0,
            owed: None,
            complained: false,
        };
        self.inner().importers.insert(number, posts);
    }

    /// One that posts no more. What it has posted is kept (N4).
    pub(crate) fn leave(&self, number: u64) {
        let mut inner = self.inner();
        let Some(mut posts) = inner.importers.remove(&number) else {
            return;
        };
        if inner.keep(&mut posts, &self.bounds) {
            self.wake(&inner);
        }
    }

    /// An importer has sent a wake; without a new note it is ignored (N3).
    pub(crate) fn importer_woke(&self, number: u64) {
        let inner = self.inner();
        let posts = inner.importers.get(&number);
        // Relaxed: a hint, under the lock; a thread that falls asleep looks once more (N2).
        let asleep = word(&self.status_page, status_page::SLEEPS).load(Ordering::Relaxed) != 0;
        if asleep && posts.is_some_and(Posts::has_more) {
            self.wake(&inner);
        }
    }

    /// The export has ended.
    pub(crate) fn end(&self) {
        let mut inner = self.inner();
        inner.over = true;
        self.wake(&inner);
    }

    pub(super) fn listen(&self, bell: &Arc<Bell>) -> Result<(), NotificationError> {
        let mut inner = self.inner();
        if inner.listener.is_some() {
            return Err(NotificationError::Taken);
        }
        if inner.over {
            return Err(NotificationError::Ended);
        }
        inner.left.clear();
        inner.skip();
        inner.listener = Some(Listener {
            bell: Arc::clone(bell),
            blocked: false,
            discards: false,
            outside: false,
            armed: None,
        });
        self.say_listens(true);
        Ok(())
    }

    pub(super) fn stop_listening(&self) {
        let mut inner = self.inner();
        self.say_listens(false);
        self.say_sleeps(false);
        inner.listener = None;
        inner.left.clear();
    }

    pub(super) fn watched_from_outside(&self) {
        let mut inner = self.inner();
        let over = inner.over;
        if let Some(listener) = &mut inner.listener {
            listener.outside = true;
        }
        self.say_sleeps(true);
        // N2: pairs with the one in `Poster::post`.
        fence(Ordering::SeqCst);
        let more = inner.importers.values().any(Posts::has_more);
        if over || more || !inner.left.is_empty() {
            self.wake(&inner);
        }
    }

    /// Whether there may be something to hand out.
    pub(super) fn may_have(&self) -> bool {
        self.inner().may_have()
    }

    /// Arms for the wait set that `link` names, or for none if it is 0; `false` if something may
    /// be there.
    pub(super) fn arm_for(&self, member: &Arc<Member>, link: u64) -> bool {
        let mut inner = self.inner();
        let Some(listener) = &mut inner.listener else {
            return false;
        };
        listener.armed = (link != 0).then(|| (Arc::clone(member), link));
        if link == 0 {
            let outside = listener.outside;
            self.say_sleeps(outside);
            return true;
        }
        let blocked = listener.blocked;
        self.say_sleeps(!blocked);
        // N2: pairs with the one in `Poster::post`.
        fence(Ordering::SeqCst);
        !inner.may_have()
    }

    pub(super) fn block(&self, block: bool) {
        let mut inner = self.inner();
        if let Some(listener) = &mut inner.listener {
            listener.blocked = block;
        }
        if !block {
            self.wake(&inner);
        }
    }

    pub(super) fn discard(&self) {
        let mut inner = self.inner();
        self.say_listens(false);
        let mut importers = std::mem::take(&mut inner.importers);
        for posts in importers.values_mut() {
            inner.keep(posts, &self.bounds);
        }
        inner.importers = importers;
        if let Some(listener) = &mut inner.listener {
            listener.discards = true;
        }
    }

    pub(super) fn accept(&self) {
        let mut inner = self.inner();
        inner.skip();
        if let Some(listener) = &mut inner.listener {
            listener.discards = false;
        }
        self.say_listens(true);
    }

    pub(super) fn garbled(&self) -> u64 {
        self.inner().garbled
    }

    /// The next notification. If the program waits for the bell itself, the bell becomes readable
    /// for notifications that come after `None`.
    pub(super) fn poll(&self) -> Result<Option<Notification>, NotificationError> {
        let mut inner = self.inner();
        let next = inner.next(&self.bounds);
        let outside = inner.listener.as_ref().is_some_and(|l| l.outside);
        if next.is_none() && outside {
            return self.settle(&mut inner);
        }
        inner.unless_over(next)
    }

    /// Looks once more, having said that we sleep (N2).
    pub(super) fn fall_asleep(&self) -> Result<Option<Notification>, NotificationError> {
        self.settle(&mut self.inner())
    }

    /// Stores that no thread sleeps any more, unless the program waits for the bell itself.
    pub(super) fn wake_up(&self) {
        let inner = self.inner();
        if inner.listener.as_ref().is_some_and(|l| !l.outside) {
            self.say_sleeps(false);
        }
    }

    fn settle(&self, inner: &mut Inner) -> Result<Option<Notification>, NotificationError> {
        let Some(listener) = &inner.listener else {
            return Err(NotificationError::Ended);
        };
        let (blocked, outside) = (listener.blocked, listener.outside);
        // Fails only where the program has closed the descriptor, which the wait then says.
        let _ = listener.bell.drain();
        // Importers need not send a wake as long as no notification would be returned.
        self.say_sleeps(!blocked);
        portolan_shm::mark!("notify.asleep");
        // N2: pairs with the one in `Poster::post`.
        fence(Ordering::SeqCst);
        let next = inner.next(&self.bounds);
        if inner.over || (next.is_some() && outside) {
            self.wake(inner);
        } else if next.is_some() {
            self.say_sleeps(false);
        }
        inner.unless_over(next)
    }

    /// Wakes the thread that waits.
    fn wake(&self, inner: &Inner) {
        if let Some(listener) = &inner.listener {
            self.say_sleeps(false);
            // As above.
            let _ = listener.bell.notify();
            if let Some((member, link)) = &listener.armed {
                raise_link(member, *link, About::NOTHING);
            }
        }
    }

    fn say_sleeps(&self, sleeps: bool) {
        // Relaxed: what has to be ordered with it has a barrier (N2).
        word(&self.status_page, status_page::SLEEPS).store(sleeps.into(), Ordering::Relaxed);
    }

    fn say_listens(&self, listens: bool) {
        // Relaxed: it publishes nothing else.
        word(&self.status_page, status_page::LISTENS).store(listens.into(), Ordering::Relaxed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn next(&mut self, bounds: &Bounds) -> Option<Notification> {
        let listener = self.listener.as_ref().filter(|l| !l.blocked)?;
        let discards = listener.discards;
        if let Some(next) = self.left.pop_front() {
            return Some(next);
        }
        if discards {
            return None;
        }
        // In turn: those after the one that was last, and then the others.
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let until = (Bound::Unbounded, Bound::Included(self.last));
        for turn in [after, until] {
            for (number, posts) in self.importers.range_mut(turn) {
                if let Some(next) = posts.next(bounds, &mut self.garbled) {
                    self.last = *number;
                    return Some(next);
                }
            }
        }
        None
    }

    /// Whether there may be something to hand out, or that it is over. What makes no sense
    /// counts until it has been looked at.
    fn may_have(&self) -> bool {
        let Some(listener) = &self.listener else {
            return self.over;
        };
        let posted = || self.importers.values().any(Posts::has_more);
        let more = !self.left.is_empty() || (!listener.discards && posted());
        self.over || (more && !listener.blocked)
    }

    fn unless_over(
        &self,
        next: Option<Notification>,
    ) -> Result<Option<Notification>, NotificationError> {
        if next.is_none() && self.over {
            return Err(NotificationError::Ended);
        }
        Ok(next)
    }

    /// Takes what a page has, if there is a listener; whether there was anything. No more than a
    /// page has: its importer may still be posting.
    fn keep(&mut self, posts: &mut Posts, bounds: &Bounds) -> bool {
        if self.listener.as_ref().is_none_or(|l| l.discards) {
            return false;
        }
        let mut any = false;
        for _ in 0..=notification_page::NOTES {
            let Some(next) = posts.next(bounds, &mut self.garbled) else {
                break;
            };
            any = true;
            self.leave(next);
        }
        any
    }

    fn leave(&mut self, next: Notification) {
        if self.left.len() < MOST_LEFT {
            return self.left.push_back(next);
        }
        let more = match next {
            Notification::Written { .. } => 1,
            Notification::Several { count, .. } => count,
        };
        if let Some(last) = self.left.back_mut() {
            let count = match last {
                Notification::Written { .. } => 1,
                Notification::Several { count, .. } => *count,
            };
            *last = Notification::Several {
                importer: next.importer(),
                count: count.saturating_add(more),
            };
        }
    }

    /// Forgets what has been posted so far.
    fn skip(&mut self) {
        for posts in self.importers.values_mut() {
            let (posted, lost) = posts.said();
            (posts.lost, posts.owed) = (lost, None);
            posts.took(posted);
        }
    }
}

impl Posts {
    /// What its importer says: notes posted, and notes that found no room.
    fn said(&self) -> (u64, u64) {
        // Acquire: pairs with `Poster::post`. The second first: when it is more than before,
        // the notes before it are there.
        let lost = word(&self.page, notification_page::LOST).load(Ordering::Acquire);
        let posted = word(&self.page, notification_page::POSTED).load(Ordering::Acquire);
        (posted, lost)
    }

    fn has_more(&self) -> bool {
        self.said() != (self.taken, self.lost)
    }

    /// Notes have been copied, up to this one.
    fn took(&mut self, taken: u64) {
        self.taken = taken;
        // Release: pairs with `Poster::post`; what is overwritten from now on has been copied.
        word(&self.page, notification_page::TAKEN).store(taken, Ordering::Release);
    }

    /// The next note that makes sense, among as many as a page has (N3).
    fn next(&mut self, bounds: &Bounds, garbled: &mut u64) -> Option<Notification> {
        for _ in 0..notification_page::NOTES {
            let (posted, lost) = self.said();
            let most = notification_page::NOTES as u64;
            if lost != self.lost && self.owed.is_none() {
                self.owed = Some(posted);
            }
            if let Some(at) = self.owed
                && !(1..=most).contains(&at.wrapping_sub(self.taken))
            {
                let count = lost.wrapping_sub(self.lost);
                (self.lost, self.owed) = (lost, None);
                let importer = self.who;
                return Some(Notification::Several { importer, count });
            }
            match posted.wrapping_sub(self.taken) {
                0 => return None,
                ahead if ahead > most => self.took(posted),
                _ => {
                    // Relaxed: behind the count (`said`). Copied once.
                    let at = note(self.taken);
                    let offset = word(&self.page, at).load(Ordering::Relaxed);
                    let len = word(&self.page, at + 1).load(Ordering::Relaxed);
                    self.took(self.taken.wrapping_add(1));
                    portolan_shm::mark!("notify.taken");
                    if let Some((offset, len)) = bounds.hold(offset, len) {
                        let importer = self.who;
                        return Some(Notification::Written {
                            importer,
                            offset,
                            len,
                        });
                    }
                }
            }
            *garbled = garbled.saturating_add(1);
            if !self.complained {
                self.complained = true;
                let (uid, pid) = (self.who.user(), self.who.process());
                tracing::warn!(
                    uid,
                    pid,
                    "an importer notifies of what it cannot have written"
                );
            }
        }
        None
    }
}

impl Bounds {
    /// What a stranger says that it has written, if it lies within.
    fn hold(&self, offset: u64, len: u64) -> Option<(usize, usize)> {
        let end = offset.checked_add(len)?;
        let holds = |&(first, bytes): &(u64, u64)| offset >= first && end <= first + bytes;
        let ranges = self.ranges.as_slice();
        let inside = end <= self.len as u64 && (ranges.is_empty() || ranges.iter().any(holds));
        let note = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        inside.then_some(note)
    }
}
