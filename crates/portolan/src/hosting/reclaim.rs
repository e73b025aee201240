//! The reclaim returns what a dead or leaving space held.
//!
//! The host runs it, or a leaving host for itself. The host may be killed at any instruction, and
//! its successor begins again at the top. So every step either can be repeated, or is not begun a
//! second time because it removed its own cause (D5 in `hosting/mod.rs`).
//!
//! # Order
//!
//! - **R1** Extents before claims: the state of a slot, still claimed by the dead space,
//!   says whether a message was sent (its commit point). Voiding it destroys that.
//! - **R2** Receive rights that were being sent before claims, for the same reason. A port is closed
//!   here only if the slot of its right is still claimed by the dead space.
//! - **R3** Claims before ports: closing waits for no slot that the dead have claimed. Then ports
//!   whose receive rights lie in one another's queues, because no other process may be left to
//!   notice them.
//! - **R4** Chunks after extents: a member that adopts a chunk finds its extents free or used, and
//!   no owner word of the dead beside them.
//! - **R5** Wakes last: a thread that wakes finds everything above done.
//! - **R6** The entry is free only when nothing of the space is left (D3 in `hosting/mod.rs`).

use crate::space::Member;
use crate::space::entry;
use crate::space::record::{About, Begun};
use crate::trace;
use crate::{EventKind, port, sabotage};
use portolan_abi::limits::{CHUNK, MAX_PORTS, MAX_WAIT_SETS, MAX_WATCHES, PAGE};
use portolan_abi::owner::{Destination, Hold, OwnerWord, Size};
use portolan_abi::port::{PortName, PortPhase, PortStatus};
use portolan_abi::region::{
    Geometry, OWNER_BYTES, PORT_BYTES, RIGHT_BYTES, WAIT_SET_BYTES, WATCH_BYTES,
};
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_shm::atomic::Ordering;
use portolan_shm::chunk::Chunks;
use portolan_shm::mark;
use portolan_shm::queue::Queue;
use portolan_shm::region::read_text;
use portolan_shm::rights::forget_mark;
use portolan_sys::{futex, memory};
use std::cell::Cell;

/// Why a space is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its process has died, or runs another program.
    Death,
    /// It has left.
    Leave,
}

/// Returns everything that a space held, and frees its entry. For the host, about a space
/// that is dead or has said that it leaves; also about itself, when it leaves.
pub(super) fn reclaim(member: &Member, space: u8, incarnation: u32, end: End) {
    let Some(entry) = member.tables().spaces.get(usize::from(space)) else {
        return;
    };
    let dead = entry::change(entry, incarnation, |s| {
        let phase = SpacePhase::Dead;
        (s.phase != SpacePhase::Free).then_some(SpaceStatus { phase, ..s })
    });
    if !dead {
        // Another's by now, so it was returned before.
        return;
    }
    mark!("host.reclaim.dead");
    let begun = Begun::now(EventKind::Reclaim);
    let process = u32::try_from(entry.pid.load(Ordering::Relaxed)).unwrap_or(0);
    let name = read_text(&entry.name);
    let about = About {
        space,
        process,
        ..About::NOTHING
    };
    let domain = member.domain.as_str();
    match end {
        End::Death => {
            if member.traces(EventKind::Death) {
                member.record(Begun::now(EventKind::Death), about);
            }
            tracing::warn!(domain, space, process, name, "a member has died");
        }
        End::Leave => tracing::info!(domain, space, process, name, "a member leaves"),
    }
    let estate = Estate {
        member,
        space,
        incarnation,
        returned: Returned::default(),
    };
    estate.settle();
    estate.wipe_rows();
    if member.traces(EventKind::Reclaim) {
        let bytes = estate.returned.bytes.get();
        member.record(begun, About { bytes, ..about });
    }
    estate.returned.log(member, space, process);
    entry.pid.store(0, Ordering::Relaxed);
    entry.start_time.store(0, Ordering::Relaxed);
    portolan_shm::region::write_text(&entry.name, "");
    // Release: a thread that adopts chunks because of it sees them without a cache owner.
    let reclaims = &member.tables().header.reclaims.value;
    reclaims.fetch_add(1, Ordering::Release);
    mark!("host.reclaim.counted");
    entry::change(entry, incarnation, |s| {
        Some(SpaceStatus {
            phase: SpacePhase::Free,
            disconnected: false,
            ..s
        })
    });
    mark!("host.reclaim.done");
}

/// What one dead space held.
struct Estate<'m> {
    member: &'m Member,
    space: u8,
    incarnation: u32,
    returned: Returned,
}

/// What was returned, by this host: what one before it returned and died over is missing.
#[derive(Default)]
struct Returned {
    extents: Cell<u64>,
    /// In those extents.
    bytes: Cell<u64>,
    /// Slots claimed and not published.
    claims: Cell<u64>,
    ports: Cell<u64>,
    /// Ports on which it had rights.
    rights: Cell<u64>,
    /// Requests that it had not answered.
    requests: Cell<u64>,
}

impl Returned {
    fn log(&self, member: &Member, space: u8, process: u32) {
        tracing::info!(
            domain = member.domain,
            space,
            process,
            extents = self.extents.get(),
            bytes = self.bytes.get(),
            claims = self.claims.get(),
            ports = self.ports.get(),
            rights = self.rights.get(),
            requests = self.requests.get(),
            "what a member held is returned"
        );
    }
}

/// Counts one more.
fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl<'m> Estate<'m> {
    /// All steps but the last, in their order.
    fn settle(&self) {
        trace::reclaim(self.member, self.space, self.incarnation);
        mark!("host.reclaim.trace");
        self.keep("extents", Self::return_extents);
        self.keep("moving", Self::close_unsent_ports);
        self.keep("claims", Self::void_claims);
        self.keep("ports", Self::close_ports);
        self.keep("cycles", |estate| {
            port::unreachable::close(estate.member);
        });
        self.keep("rights", Self::drop_rights);
        self.keep("chunks", Self::give_up_chunks);
        self.keep("waits", Self::free_waits);
        self.keep("signals", |estate| {
            crate::signal::reclaim(estate.member, estate.space)
        });
        self.keep("channels", |estate| {
            crate::channel::reclaim(estate.member, estate.space)
        });
        self.keep("wakes", Self::wake_everybody);
    }

    /// Keeps a rule, unless a test has switched it off.
    fn keep(&self, rule: &str, step: fn(&Self)) {
        if sabotage::holds(rule) {
            step(self);
        }
    }

    /// Frees every extent that the space held, or was sending and had not sent (R1).
    fn return_extents(&self) {
        let tables = self.member.tables();
        let row = tables.owner_row(self.space);
        let offset = tables.geometry.owners + u64::from(self.space) * tables.geometry.owner_row();
        let pages = tables.alloc.pages();
        for page in self.used(offset, OWNER_BYTES, pages) {
            let Ok(page) = u32::try_from(page) else {
                continue;
            };
            let (word, to) = row.read(page);
            if word == OwnerWord::NONE {
                continue;
            }
            if word.hold() != Hold::Sending {
                let size = self.size_at(page);
                if tables.alloc.reclaim_row(&row, page) {
                    self.freed(size);
                }
                mark!("host.reclaim.extent");
                continue;
            }
            if self.is_unsent(to) {
                let size = self.size_at(page);
                if tables.alloc.reclaim(page, word.generation()) {
                    self.freed(size);
                }
                mark!("host.reclaim.unsent");
            }
            row.clear(page);
        }
        mark!("host.reclaim.extents");
    }

    /// The size of the extents that the chunk of `page` is cut into.
    fn size_at(&self, page: u32) -> Option<Size> {
        let chunks = &self.member.tables().chunks;
        Size::from_code(chunks.read(Chunks::of_page(page)).size)
    }

    fn freed(&self, size: Option<Size>) {
        let Returned { extents, bytes, .. } = &self.returned;
        count(extents);
        bytes.set(bytes.get() + size.map_or(0, |s| s.bytes() as u64));
    }

    /// Whether what the space was sending there is still its own. The slot decides.
    fn is_unsent(&self, to: Destination) -> bool {
        let Some(queue) = self.member.tables().queue(to.port()) else {
            return true;
        };
        // Acquire: the claim is seen as the dead space left it.
        let state = queue.slot(to.position()).state(Ordering::Acquire);
        Queue::is_unsent(state, self.space, to.position())
    }

    /// Closes ports whose receive right the space was sending and had not sent (R2).
    fn close_unsent_ports(&self) {
        for (index, entry) in self.member.tables().used_ports() {
            let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            let to = Destination(entry.control.transit.load(Ordering::Acquire));
            let moving = status.phase == PortPhase::Moving && status.owner == self.space;
            if moving && self.is_unsent(to) {
                port::close::close(self.member, index);
            }
        }
        mark!("host.reclaim.moving");
    }

    /// Voids every slot that the space claimed and did not publish.
    fn void_claims(&self) {
        for (index, entry) in self.member.tables().used_ports() {
            let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            if matches!(status.phase, PortPhase::Free | PortPhase::Binding) {
                // Of others, and without a claim: a claim keeps a port from being given back.
                continue;
            }
            let Some(queue) = self.member.tables().queue(index) else {
                continue;
            };
            for at in 0..queue.slots() as u64 {
                let state = queue.slot(at).state(Ordering::Acquire);
                let asleep = (state.space() == self.space)
                    .then(|| queue.void(state.position(), self.space))
                    .flatten();
                if asleep.is_some() {
                    count(&self.returned.claims);
                }
                mark!("host.reclaim.slot");
                if asleep == Some(true) {
                    port::wake(self.member, &queue, index);
                }
            }
        }
        mark!("host.reclaim.claims");
    }

    /// Closes the space's ports, and frees entries that only waited for its claims (R3).
    fn close_ports(&self) {
        for (index, entry) in self.ports() {
            let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            match status.phase {
                PortPhase::Lingering => port::entry::sweep(self.member, index),
                // It died while it made a port, or gave one back.
                PortPhase::Binding if status.owner == self.space => {
                    port::entry::give_back_of_dead(self.member, index);
                    mark!("host.reclaim.binding");
                }
                // It died while it looked whether a segment is still in use.
                PortPhase::Open if status.shared && status.owner == self.space => {
                    forget_mark(entry, status);
                }
                PortPhase::Open | PortPhase::Closing if status.owner == self.space => {
                    port::close::close(self.member, index);
                    count(&self.returned.ports);
                    mark!("host.reclaim.port");
                }
                _ => {}
            }
        }
        port::entry::settle(self.member);
        mark!("host.reclaim.ports");
    }

    /// Answers the requests that the space had not answered, and forgets its rights.
    fn drop_rights(&self) {
        let tables = self.member.tables();
        let row = tables.right_row(self.space);
        let offset = tables.geometry.rights + u64::from(self.space) * Geometry::RIGHT_ROW;
        for index in self.used(offset, RIGHT_BYTES, MAX_PORTS) {
            let Ok(index) = u16::try_from(index) else {
                continue;
            };
            if let Some(once) = row.once(index) {
                let generation = once.generation;
                port::answer_for_dead(self.member, PortName { index, generation }, once.tag);
                count(&self.returned.requests);
                mark!("host.reclaim.answered");
            }
            let sends = row.any_sends(index);
            if row.once(index).is_some() || sends.is_some() {
                if let Some(sends) = sends.filter(|s| s.moving > 0)
                    && let Some(entry) = tables.ports.get(usize::from(index))
                {
                    // R2 of rights: it died while it moved some. Before its row is emptied.
                    let generation = sends.generation;
                    entry.rights.doubt(entry, PortName { index, generation });
                    mark!("host.reclaim.doubted");
                }
                row.forget(index);
                count(&self.returned.rights);
                mark!("host.reclaim.right");
            }
        }
        mark!("host.reclaim.rights");
    }

    /// Finishes what the space was doing to chunks, and puts its chunks up for adoption (R4).
    fn give_up_chunks(&self) {
        let tables = self.member.tables();
        let all = tables.chunks.len();
        for index in self.used(tables.geometry.chunks, 8, all) {
            if tables.chunks.reclaim(&tables.alloc, index, self.space) {
                // Perhaps half populated. Before the word says free: later it may be another's.
                let offset = self.member.region.offset(Chunks::first_page(index));
                // Fails only where there is no memory to give back.
                let _ = memory::punch(self.member.region.fd(), offset, CHUNK as u64);
                mark!("host.reclaim.punched");
                tables.chunks.abandon(index, 1);
            }
            mark!("host.reclaim.chunk");
        }
        mark!("host.reclaim.chunks");
    }

    /// Frees the space's wait sets, and what it asked to be told of.
    fn free_waits(&self) {
        let tables = self.member.tables();
        let offset = tables.geometry.wait_sets;
        for index in self.used(offset, WAIT_SET_BYTES, MAX_WAIT_SETS) {
            let owner = &tables.wait_sets[index].owner;
            let word = owner.load(Ordering::Acquire);
            if word != 0 && word.to_le_bytes()[0] == self.space {
                // Release: nothing of the old owner's comes after it.
                owner.store(0, Ordering::Release);
                mark!("host.reclaim.wait_set");
            }
        }
        for index in self.used(tables.geometry.watches, WATCH_BYTES, MAX_WATCHES) {
            if tables.watches[index].free_if(|watch, _| watch.space == self.space) {
                mark!("host.reclaim.watch");
            }
        }
        mark!("host.reclaim.waits");
    }

    /// Wakes every thread that the space could have owed a wake (R5). A thread that wakes for
    /// nothing looks, and sleeps again.
    fn wake_everybody(&self) {
        let member = self.member;
        let tables = member.tables();
        self.repeat_notices();
        // Before senders are counted, port by port.
        port::settle_doubts(member);
        for (index, entry) in tables.used_ports() {
            let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            if !matches!(status.phase, PortPhase::Open | PortPhase::Moving) {
                continue;
            }
            let generation = status.generation;
            port::check_senders(member, PortName { index, generation });
            let Some(queue) = tables.queue(index) else {
                continue;
            };
            // SeqCst: pairs with the announcements of those who fall asleep.
            let listed = entry.sleep.wait_set.load(Ordering::SeqCst) != 0;
            if listed || entry.sleep.asleep.load(Ordering::SeqCst) != 0 {
                port::wake(member, &queue, index);
                futex::wake(&entry.sleep.doorbell, u32::MAX);
            }
            if entry.room.waiting.load(Ordering::SeqCst) != 0 {
                port::wake_senders(&queue);
            }
            mark!("host.reclaim.woken");
        }
        for index in self.used(tables.geometry.wait_sets, WAIT_SET_BYTES, MAX_WAIT_SETS) {
            let set = &tables.wait_sets[index];
            if set.owner.load(Ordering::Acquire) != 0 && set.asleep.load(Ordering::SeqCst) != 0 {
                set.doorbell.fetch_add(1, Ordering::SeqCst);
                futex::wake(&set.doorbell, u32::MAX);
            }
        }
        port::wake_waiters(member);
        crate::signal::wake_all(member);
        mark!("host.reclaim.wakes");
    }

    /// A space, or a host before us, may have died between firing a watch and telling of it.
    fn repeat_notices(&self) {
        let tables = self.member.tables();
        for index in self.used(tables.geometry.watches, WATCH_BYTES, MAX_WATCHES) {
            port::watches::tell_again(self.member, &tables.watches[index]);
        }
    }

    /// Gives the memory of the space's rows back; they then read as nothing (R6).
    fn wipe_rows(&self) {
        let geometry = &self.member.tables().geometry;
        let space = u64::from(self.space);
        let owners = geometry.owners + space * geometry.owner_row();
        let rights = geometry.rights + space * Geometry::RIGHT_ROW;
        let fd = self.member.region.fd();
        // They were cleared word by word; this only saves memory, so it may fail.
        let _ = memory::punch(fd, owners, geometry.owner_row());
        mark!("host.reclaim.owner_row");
        let _ = memory::punch(fd, rights, Geometry::RIGHT_ROW);
        mark!("host.reclaim.right_row");
        crate::space::public::reclaim(self.member, self.space);
        trace::give_back(self.member, self.space);
        mark!("host.reclaim.trace_ring");
    }

    /// Ports that have ever been touched, also those whose binder died before it noted that they
    /// are in use.
    fn ports(&self) -> impl Iterator<Item = (u16, &'m portolan_shm::queue::PortEntry)> {
        let tables = self.member.tables();
        let used = self.used(tables.geometry.ports, PORT_BYTES, MAX_PORTS);
        used.filter_map(|index| Some((u16::try_from(index).ok()?, tables.ports.get(index)?)))
    }

    /// Indices of a table's entries that have memory, without giving the others any:
    /// reading a hole of shared memory fills it.
    fn used(&self, table: u64, entry: u64, count: usize) -> impl Iterator<Item = usize> {
        let count = count as u64;
        let whole = table..table + (count * entry).next_multiple_of(PAGE as u64);
        let ranges: Result<Vec<_>, _> =
            memory::data_ranges(self.member.region.fd(), whole.clone()).collect();
        // Without an answer, all of it: that costs memory and loses nothing.
        let ranges = ranges.unwrap_or_else(|_| vec![whole]);
        let index = move |offset: u64| (offset - table) / entry;
        // An entry never straddles two ranges: pages hold whole entries, or entries whole pages.
        let spans = ranges.into_iter().map(move |r| {
            let end = (r.end - table).div_ceil(entry).min(count);
            (index(r.start), end)
        });
        let mut next = 0;
        spans
            .flat_map(move |(start, end)| {
                let from = start.max(next);
                next = next.max(end);
                from..end
            })
            .filter_map(|i| usize::try_from(i).ok())
    }
}
