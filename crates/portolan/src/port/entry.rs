//! Takes a port's entry and the memory of its queue for a bind, and gives both back at a close.
//!
//! ```text
//!  free --> binding, ours --> queue named, its banks taken, memory had --> open
//!    ^                                                                       |
//!    +-- binding, ours: memory given up, banks and entry given back <-- lingering, all
//!                                                                       slots closed
//! ```
//!
//! The status word of an entry in *binding* names the space that has it, the entry names the
//! queue's banks, and these name the entry. So the host finds everything that a space had taken
//! before it died here, and gives it back ([`give_back`] may be repeated).
//!
//! # What counts against the domain's limit
//!
//! Memory of queues counts in whole chunks of 2 MiB, as memory of extents does; less than a chunk
//! comes with the domain, as its tables do. `queue_chunks` says how many there may be. A space that
//! takes memory notes it at its banks, then makes sure that there may be as much; a space that
//! gives memory up lowers the number, then looks again. A death in between leaves the number wrong
//! until the next space does that, at the latest the host ([`settle`]).
//!
//! Closed ports leave their memory to the next ones, up to [`SPARE`] of each width of slot; more,
//! and all of it where memory is short, goes back to the system.

use super::BindError;
use crate::space::Member;
use crate::space::extent;
use portolan_abi::limits::{BANK_SLOTS, CHUNK, MAX_SLOT_LINES, PAGE};
use portolan_abi::port::{GENERATION_MASK, PortPhase, PortStatus, QueuePlace};
use portolan_abi::slot::POSITION_BITS;
use portolan_shm::mark;
use portolan_shm::queue::{PortEntry, Queue};
use portolan_shm::queue_memory::{BankOwner, QueueMemory};
use portolan_sys::memory;
use std::sync::atomic::{Ordering, fence};

/// Bytes that closed ports may leave with memory, of each width of slot.
const SPARE: usize = 2 * CHUNK;

/// Queues begin before this position, so that each has as many left before its positions end.
const LAST_BEGINNING: u64 = 1 << (POSITION_BITS - 1);

/// An entry that we have in *binding*. It is given back when this is dropped.
pub(super) struct Taken<'m> {
    member: &'m Member,
    pub(super) index: u16,
    pub(super) entry: &'m PortEntry,
    pub(super) generation: u32,
    kept: bool,
}

/// Takes a free entry, in turn.
pub(super) fn take(member: &Member) -> Option<Taken<'_>> {
    let tables = member.tables();
    let in_use = tables.ports_in_use();
    in_use.in_turn().find_map(|at| {
        let (index, entry) = (u16::try_from(at).ok()?, tables.ports.get(at)?);
        let status = &entry.control.status;
        let was = PortStatus::unpack(status.load(Ordering::Relaxed));
        if was.phase != PortPhase::Free {
            return None;
        }
        let generation = was.generation;
        let binding = PortStatus {
            phase: PortPhase::Binding,
            owner: member.space,
            generation,
            ..PortStatus::FRESH
        };
        // AcqRel: what the last one did to the entry comes before.
        status
            .compare_exchange(
                was.pack(),
                binding.pack(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .ok()?;
        mark!("entry.taken");
        in_use.note(at);
        in_use.pass(at);
        Some(Taken {
            member,
            index,
            entry,
            generation,
            kept: false,
        })
    })
}

impl<'m> Taken<'m> {
    /// Takes memory for a queue of this shape, with every slot free.
    pub(super) fn queue(&self, slots: usize, lines: usize) -> Result<Queue<'m>, BindError> {
        let tables = self.member.tables();
        let memory = tables.queue_memory(lines).ok_or(BindError::NoRoom)?;
        let owner = BankOwner::port(self.index);
        let mut place = None;
        let name = |bank| {
            place = QueuePlace::new(slots, lines, bank);
            let word = place.map_or(0, QueuePlace::pack);
            // Release: before its banks are taken (U2).
            self.entry.control.queue.store(word, Ordering::Release);
        };
        let banks = slots.div_ceil(BANK_SLOTS);
        let taken = memory.take(owner, banks, name);
        let place = taken.and(place).ok_or(BindError::NoRoom)?;
        mark!("bind.queue_taken");
        have_memory(self.member, memory, place)?;
        let queue = tables.queue_at(self.entry, place);
        let queue = queue.ok_or(BindError::NoRoom)?;
        // Acquire: after the banks were taken (U5).
        let from = tables.header.positions.value.load(Ordering::Acquire);
        if from >= LAST_BEGINNING {
            return Err(BindError::NoRoom);
        }
        queue.open(from);
        Ok(queue)
    }

    /// It is another status that says from now on whose the entry is.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.kept {
            give_back(self.member, self.index, self.generation);
        }
    }
}

/// Gives a lingering entry back, with the memory of its queue, if no slot of it is claimed any
/// more. Any space may call it.
pub(crate) fn sweep(member: &Member, index: u16) {
    let tables = member.tables();
    let Some(entry) = tables.ports.get(usize::from(index)) else {
        return;
    };
    let status = &entry.control.status;
    let was = PortStatus::unpack(status.load(Ordering::Acquire));
    if was.phase != PortPhase::Lingering {
        return;
    }
    mark!("entry.sweeping");
    // After the status, and before the exchange that expects it: so it is that port's queue that
    // we look at, and not one that the entry had before.
    let Some(queue) = tables.queue(index) else {
        return;
    };
    let Some(retired) = queue.retired() else {
        return;
    };
    if retired >= LAST_BEGINNING {
        // Where it ends no other queue may begin: neither entry nor memory is seen again.
        return;
    }
    // U5. If another space has given the entry back meanwhile, this skips positions.
    tables
        .header
        .positions
        .value
        .fetch_max(retired, Ordering::SeqCst);
    let ours = PortStatus {
        phase: PortPhase::Binding,
        owner: member.space,
        generation: was.generation,
        ..PortStatus::FRESH
    };
    // Lost only to another space that does the same.
    let won = status.compare_exchange(was.pack(), ours.pack(), Ordering::AcqRel, Ordering::Relaxed);
    if won.is_ok() {
        mark!("entry.swept");
        give_back(member, index, was.generation);
    }
}

/// The host: gives an entry back that a dead space had in *binding*.
pub(crate) fn give_back_of_dead(member: &Member, index: u16) {
    let Some(entry) = member.tables().ports.get(usize::from(index)) else {
        return;
    };
    let was = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    let generation = was.generation.wrapping_add(1) & GENERATION_MASK;
    give_back(member, index, generation);
}

/// Gives back an entry in *binding*, and what it has of the banks that it names. For the space
/// that has it, or the host for a dead one. May be repeated.
fn give_back(member: &Member, index: u16, generation: u32) {
    let tables = member.tables();
    let Some(entry) = tables.ports.get(usize::from(index)) else {
        return;
    };
    // Of a dead space: it may have won the name. Release: after what else there was of the port.
    tables.names[usize::from(index)].store(0, Ordering::Release);
    let place = QueuePlace::unpack(entry.control.queue.load(Ordering::Acquire));
    if let Some(place) = place
        && let Some(memory) = tables.queue_memory(place.lines())
    {
        let owner = BankOwner::port(index);
        let (first, banks) = (place.bank() as usize, place.banks());
        // Where it has not all of them, its binder died while it took them, or a space while
        // they were given back: no memory was had, or what becomes of it was decided.
        let emptied = memory.has(owner, first, banks)
            && memory.spare(most_spare(place.lines())) + banks > most_spare(place.lines())
            && empty(member, memory, place);
        mark!("entry.emptied");
        memory.give_back(owner, first, banks);
        if emptied {
            settle(member);
        }
    }
    mark!("entry.banks_returned");
    tables.ports_in_use().forget(usize::from(index));
    let free = PortStatus {
        generation,
        ..PortStatus::FRESH
    };
    // Release: all that we did to it comes before its next port.
    entry.control.status.store(free.pack(), Ordering::Release);
    mark!("entry.free");
}

/// What `look` finds in the queue that an entry names, if that was one port's throughout. An entry
/// in *binding* names banks that its last port had, or that another binder has won: they may be
/// another port's by now, whose messages are not to be found twice.
pub(super) fn look_at_queue<R>(entry: &PortEntry, look: impl FnOnce() -> R) -> Option<R> {
    let status = || PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    let before = status();
    let found = look();
    // Whatever was read comes before the status that is read again.
    fence(Ordering::Acquire);
    is_one_port(before, status()).then_some(found)
}

/// Whether an entry that had one status and then the other is the same port's, and that has a queue.
fn is_one_port(before: PortStatus, after: PortStatus) -> bool {
    let has_queue = |s: PortStatus| !matches!(s.phase, PortPhase::Free | PortPhase::Binding);
    let is_open = |s: PortStatus| matches!(s.phase, PortPhase::Open | PortPhase::Moving);
    // It goes up as the port is closed.
    let generation = match (is_open(before), is_open(after)) {
        (false, true) => return false,
        (true, false) => before.generation.wrapping_add(1) & GENERATION_MASK,
        _ => before.generation,
    };
    has_queue(before) && has_queue(after) && generation == after.generation
}

/// Banks of so many lines a slot that may be spare.
fn most_spare(lines: usize) -> usize {
    SPARE / (lines * PAGE)
}

/// Has memory for every bank of a queue that we are making (U6).
fn have_memory(
    member: &Member,
    memory: &QueueMemory<'_>,
    place: QueuePlace,
) -> Result<(), BindError> {
    let fresh = memory.note_memory(place.bank() as usize, place.banks());
    if fresh.is_empty() {
        return Ok(());
    }
    let bank_bytes = (place.lines() * PAGE) as u64;
    let all = member.tables().geometry.queues + place.offset();
    let offset = |bank: usize| all + (bank - place.bank() as usize) as u64 * bank_bytes;
    let had = may_have(member)
        && fresh.iter().all(|run| {
            let bytes = run.len() as u64 * bank_bytes;
            memory::allocate(member.region.fd(), offset(run.start), bytes).is_ok()
        });
    if had {
        mark!("bind.memory_had");
        return Ok(());
    }
    for run in fresh {
        let bytes = run.len() as u64 * bank_bytes;
        if memory::punch(member.region.fd(), offset(run.start), bytes).is_ok() {
            memory.note_empty(run.start, run.len());
        }
    }
    settle(member);
    Err(BindError::OutOfMemory {
        bytes: place.banks() as u64 * bank_bytes,
        limit: member.tables().header.limit.load(Ordering::Relaxed),
    })
}

/// Gives the memory of a queue's banks to the system; they are ours.
fn empty(member: &Member, memory: &QueueMemory<'_>, place: QueuePlace) -> bool {
    let offset = member.tables().geometry.queues + place.offset();
    let bytes = (place.banks() * place.lines() * PAGE) as u64;
    let punched = memory::punch(member.region.fd(), offset, bytes).is_ok();
    if punched {
        memory.note_empty(place.bank() as usize, place.banks());
    }
    punched
}

/// Whole chunks of queue memory, by what the banks say.
fn chunks(member: &Member) -> u64 {
    let bytes: usize = (1..=MAX_SLOT_LINES)
        .filter_map(|lines| {
            let memory = member.tables().queue_memory(lines)?;
            Some(memory.with_memory() * lines * PAGE)
        })
        .sum();
    (bytes / CHUNK) as u64
}

/// Whether queues may have the memory that their banks say they have.
fn may_have(member: &Member) -> bool {
    let tables = member.tables();
    let granted = &tables.header.queue_chunks.value;
    let wanted = chunks(member);
    if wanted <= granted.load(Ordering::SeqCst) {
        return true;
    }
    // Counted before the look at the limit, as extents do: of two, one sees the other.
    granted.fetch_max(wanted, Ordering::SeqCst);
    mark!("bind.memory_counted");
    let limit = tables.header.limit.load(Ordering::Relaxed) / CHUNK as u64;
    while tables.chunks.populated() as u64 + granted.load(Ordering::SeqCst) > limit {
        if !extent::release(member) && empty_spare(member) == 0 {
            return false;
        }
    }
    true
}

/// Has the number of chunks say what the banks say.
pub(crate) fn settle(member: &Member) {
    let granted = &member.tables().header.queue_chunks.value;
    loop {
        let now = granted.load(Ordering::SeqCst);
        let wanted = chunks(member);
        if wanted > now {
            granted.fetch_max(wanted, Ordering::SeqCst);
        }
        if wanted >= now {
            return;
        }
        // Then once more: another space may have counted on the chunks that we take away.
        let _ = granted.compare_exchange(now, wanted, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Gives the memory of all banks that no port has to the system; how many bytes. None where all
/// entries are in use: the banks need an owner meanwhile.
pub(crate) fn empty_spare(member: &Member) -> u64 {
    let Some(taken) = take(member) else {
        return 0;
    };
    let owner = BankOwner::port(taken.index);
    let mut bytes = 0;
    for lines in 1..=MAX_SLOT_LINES {
        let Some(memory) = member.tables().queue_memory(lines) else {
            continue;
        };
        let mut from = 0;
        let place = |bank, banks: usize| QueuePlace::new(banks * BANK_SLOTS, lines, bank);
        let name = |bank, banks| {
            let word = place(bank, banks).map_or(0, QueuePlace::pack);
            taken.entry.control.queue.store(word, Ordering::Release);
        };
        while let Some((first, banks)) = memory.take_spare(owner, from, name) {
            if let Some(place) = u32::try_from(first)
                .ok()
                .and_then(|bank| place(bank, banks))
                && empty(member, memory, place)
            {
                bytes += (banks * lines * PAGE) as u64;
            }
            mark!("entry.spare_emptied");
            memory.give_back(owner, first, banks);
            from = first + banks;
        }
    }
    drop(taken);
    if bytes > 0 {
        settle(member);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::senders::is_unused;
    use crate::{Domain, Message, PortOptions, WhenFull};

    /// A process that binds has an entry that names its last port's memory, and then what it tries to
    /// get; if the process dies of it, that stays so for a while.
    #[test]
    fn a_message_is_counted_once_beside_an_entry_that_names_the_same_memory() {
        let domain = Domain::private().unwrap();
        let member = domain.member();
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let to = domain.bind(PortOptions::unnamed()).unwrap();
        let mut message = Message::default();
        message.attach(port.make_send()).unwrap();
        to.make_send().send(message, WhenFull::Fail).unwrap();
        let binding = take(member).unwrap();
        let named = to.at().queue().port.control.queue.load(Ordering::Relaxed);
        binding.entry.control.queue.store(named, Ordering::Relaxed);
        // A space died while it moved a right: the next count looks into all queues.
        let (entry, name) = (port.at().queue().port, port.at().port);
        entry.rights.doubt(entry, name);
        assert!(!is_unused(member, name));
        assert_eq!(entry.rights.count(name), 1);
        binding.entry.control.queue.store(0, Ordering::Relaxed);
    }

    #[test]
    fn an_entry_is_one_ports_until_it_is_free() {
        use PortPhase::{Binding, Closing, Free, Lingering, Moving, Open};
        let is_one = |before: (PortPhase, u32), after: (PortPhase, u32)| {
            let of = |(phase, generation)| PortStatus {
                phase,
                generation,
                ..PortStatus::FRESH
            };
            is_one_port(of(before), of(after))
        };
        for (before, after) in [(Open, Open), (Open, Moving), (Closing, Lingering)] {
            assert!(is_one((before, 3), (after, 3)));
            assert!(!is_one((before, 3), (after, 4)));
        }
        for (before, after) in [(Open, Closing), (Moving, Lingering)] {
            assert!(is_one((before, 3), (after, 4)));
            assert!(is_one((before, GENERATION_MASK), (after, 0)));
            assert!(!is_one((before, 3), (after, 3)));
            // The next port of the entry begins with the generation at which this one ended.
            assert!(!is_one((after, 4), (before, 4)));
        }
        for none in [Free, Binding] {
            assert!(!is_one((none, 3), (Open, 3)) && !is_one((Lingering, 3), (none, 3)));
        }
    }
}
