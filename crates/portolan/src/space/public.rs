//! Writes public entries, which show observers what this process has outside the region.
//!
//! An entry is taken for as long as the thing is there: an export, a connection to another
//! domain. Only this space writes its row; the threads that serve the shown thing write the counts
//! in its entry; the host empties the rows of the dead. Only observers read an entry: if none is
//! left, the thing works as well.
//!
//! ```text
//! state: free --CAS--> busy --texts, then Release--> shown --> free
//! ```

use crate::space::Member;
use crate::space::record::NO_PORT;
use portolan_abi::public::{PublicKind, PublicState};
use portolan_abi::region::{Geometry, PUBLIC_BYTES};
use portolan_shm::mark;
use portolan_shm::region::{PublicEntry, write_text};
use portolan_sys::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What an entry says from its beginning on.
pub(crate) struct Public<'a> {
    pub(crate) kind: PublicKind,
    /// [`portolan_abi::public::flag`]s.
    pub(crate) flags: u64,
    pub(crate) bytes: u64,
    /// The port or segment here.
    pub(crate) port: Option<u16>,
    /// The other side.
    pub(crate) pid: u32,
    pub(crate) user: u32,
    pub(crate) name: &'a str,
    /// The other domain.
    pub(crate) domain: &'a str,
}

impl<'a> Public<'a> {
    /// Of which only so much is known.
    pub(crate) fn new(kind: PublicKind, name: &'a str) -> Self {
        Self {
            kind,
            flags: 0,
            bytes: 0,
            port: None,
            pid: 0,
            user: 0,
            name,
            domain: "",
        }
    }
}

/// An entry of ours, until dropped; or none, if all were taken.
pub(crate) struct Shown {
    member: Arc<Member>,
    index: Option<usize>,
    port: u16,
}

impl Shown {
    /// Shows something.
    pub(crate) fn new(member: &Arc<Member>, public: &Public<'_>) -> Self {
        let member = Arc::clone(member);
        let index = take(&member, public);
        let port = public.port.unwrap_or(NO_PORT);
        Self {
            member,
            index,
            port,
        }
    }

    fn entry(&self) -> Option<&PublicEntry> {
        // A forked child has no region.
        self.member.present().ok()?;
        self.member
            .tables()
            .publics(self.member.space)
            .get(self.index?)
    }

    /// Whose it is, and the port or segment that it tells of, for events.
    pub(crate) fn whose(&self) -> (&Member, u16) {
        (&self.member, self.port)
    }

    /// A message went to the other side. Only the one thread that carries them calls this.
    pub(crate) fn went(&self, bytes: u64) {
        if let Some(entry) = self.entry() {
            add(&entry.counters.out, 1);
            add(&entry.counters.out_bytes, bytes);
        }
    }

    /// A message came from the other side. As [`Self::went`].
    pub(crate) fn came(&self, bytes: u64) {
        if let Some(entry) = self.entry() {
            add(&entry.counters.came, 1);
            add(&entry.counters.came_bytes, bytes);
        }
    }

    /// How many have imported it now. Under the exporter's lock.
    pub(crate) fn imported_by(&self, importers: usize) {
        if let Some(entry) = self.entry() {
            let count = &entry.counters.importers;
            count.store(importers as u64, Ordering::Relaxed);
        }
    }

    /// A notification was taken. By the one who takes them.
    pub(crate) fn notified(&self) {
        if let Some(entry) = self.entry() {
            add(&entry.counters.notifications, 1);
        }
    }
}

/// Adds to a word that this thread alone writes.
fn add(word: &AtomicU64, value: u64) {
    // Relaxed: a count for people.
    let now = word.load(Ordering::Relaxed).wrapping_add(value);
    word.store(now, Ordering::Relaxed);
}

/// Takes and fills an entry of ours.
fn take(member: &Member, public: &Public<'_>) -> Option<usize> {
    let row = member.tables().publics(member.space);
    let (index, entry, busy) = row.iter().enumerate().find_map(|(index, entry)| {
        let word = entry.state.load(Ordering::Relaxed);
        let was = PublicState::unpack(word);
        if was.kind.is_some() || was.busy {
            return None;
        }
        let busy = PublicState {
            kind: None,
            busy: true,
            number: was.number.wrapping_add(1),
        };
        // Acquire: what its last user counted comes before.
        let taken =
            entry
                .state
                .compare_exchange(word, busy.pack(), Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some((index, entry, busy))
    })?;
    // Pairs with the observer's fence: an observer that reads one of the words that follow reads
    // *busy* after it.
    fence(Ordering::Release);
    mark!("public.taken");
    let PublicEntry {
        state: _,
        flags,
        bytes,
        port,
        pid,
        user,
        counters,
        name,
        domain,
        ..
    } = entry;
    let counted = [
        &counters.out,
        &counters.out_bytes,
        &counters.came,
        &counters.came_bytes,
        &counters.importers,
        &counters.notifications,
    ];
    for count in counted {
        count.store(0, Ordering::Relaxed);
    }
    flags.store(public.flags, Ordering::Relaxed);
    bytes.store(public.bytes, Ordering::Relaxed);
    let index_here = public.port.map_or(0, |port| u64::from(port) + 1);
    port.store(index_here, Ordering::Relaxed);
    pid.store(public.pid.into(), Ordering::Relaxed);
    user.store(public.user.into(), Ordering::Relaxed);
    write_text(name, public.name);
    write_text(domain, public.domain);
    let shown = PublicState {
        kind: Some(public.kind),
        busy: false,
        ..busy
    };
    // Release: pairs with the observer's load.
    entry.state.store(shown.pack(), Ordering::Release);
    mark!("public.shown");
    Some(index)
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(entry) = self.entry() {
            let state = PublicState::unpack(entry.state.load(Ordering::Relaxed));
            let free = PublicState {
                kind: None,
                busy: false,
                ..state
            };
            // Release: the next thread that takes the entry comes after the last count.
            entry.state.store(free.pack(), Ordering::Release);
        }
    }
}

/// Empties the row of a dead space. For the host; may be repeated.
pub(crate) fn reclaim(member: &Member, space: u8) {
    let geometry = &member.tables().geometry;
    let start = geometry.publics + u64::from(space) * Geometry::PUBLIC_ROW;
    let row = start..start + Geometry::PUBLIC_ROW;
    let entries = member.tables().publics(space);
    // Entries that have no memory say nothing, and are to have none.
    for range in memory::data_ranges(member.region.fd(), row).flatten() {
        let index = |offset: u64| usize::try_from((offset - start) / PUBLIC_BYTES).unwrap_or(0);
        for entry in entries
            .iter()
            .take(index(range.end) + 1)
            .skip(index(range.start))
        {
            let state = PublicState::unpack(entry.state.load(Ordering::Relaxed));
            let free = PublicState {
                kind: None,
                busy: false,
                ..state
            };
            entry.state.store(free.pack(), Ordering::Release);
        }
    }
    mark!("host.reclaim.public_row");
    // It only saves memory, so it may fail.
    let _ = memory::punch(member.region.fd(), start, Geometry::PUBLIC_ROW);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use portolan_abi::limits::PUBLIC_ENTRIES;

    fn public(name: &str) -> Public<'_> {
        Public::new(PublicKind::ConnectedTo, name)
    }

    #[test]
    fn an_entry_is_there_until_it_is_dropped_and_is_used_again() {
        let domain = Domain::private().unwrap();
        let offers = || {
            let survey = domain.survey().unwrap();
            let offers = survey.connections.into_iter().map(|c| (c.offer, c.out));
            offers.collect::<Vec<_>>()
        };
        let shown = Shown::new(domain.member(), &public("first"));
        shown.went(10);
        assert_eq!(offers(), [("first".to_owned(), 1)]);
        drop(shown);
        assert_eq!(offers(), []);
        let _shown = Shown::new(domain.member(), &public("second"));
        assert_eq!(offers(), [("second".to_owned(), 0)]);
    }

    #[test]
    fn one_that_has_no_entry_left_works_unseen() {
        let domain = Domain::private().unwrap();
        let all: Vec<_> = (0..PUBLIC_ENTRIES + 2)
            .map(|n| Shown::new(domain.member(), &public(&n.to_string())))
            .collect();
        all.iter().for_each(|shown| shown.came(1));
        assert_eq!(domain.survey().unwrap().connections.len(), PUBLIC_ENTRIES);
        drop(all);
        assert!(domain.survey().unwrap().connections.is_empty());
    }

    #[test]
    fn the_row_of_the_dead_is_emptied() {
        let domain = Domain::private().unwrap();
        let shown = Shown::new(domain.member(), &public("its"));
        reclaim(domain.member(), domain.space());
        assert!(domain.survey().unwrap().connections.is_empty());
        // Twice, as another host may.
        reclaim(domain.member(), domain.space());
        drop(shown);
    }
}
