//! Counts the send rights on a port: in all rows, and in messages that no receiver has taken. See
//! [`portolan_shm::rights`].

use super::entry;
use super::rights::entry_of;
use super::wire::Contents;
use crate::space::Member;
use portolan_abi::port::{PortName, PortStatus, RightKind};
use portolan_shm::queue::Queue;
use portolan_shm::rights::{self, Doubt};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Whether no send right on the port is left, held or travelling (R2).
pub(crate) fn is_unused(member: &Member, port: PortName) -> bool {
    let tables = member.tables();
    entry_of(member, port).is_none_or(|entry| {
        rights::is_unused(
            entry,
            port,
            || tables.used_spaces().map(|s| tables.right_row(s)),
            || in_slots(member, port),
        )
    })
}

/// Send rights on the port, in every row and in messages. One that moves at this moment may be
/// counted twice; if none is counted there is none (R2).
pub(crate) fn senders(member: &Member, port: PortName) -> u32 {
    if is_unused(member, port) {
        return 0;
    }
    let travelling = entry_of(member, port).map_or(0, |e| e.rights.count(port));
    held(member, port).saturating_add(travelling).max(1)
}

/// Send rights on the port in every row.
pub(super) fn held(member: &Member, port: PortName) -> u32 {
    let tables = member.tables();
    let rows = tables.used_spaces().map(|s| tables.right_row(s));
    rows.map(|row| row.sends(port)).fold(0, u32::saturating_add)
}

/// Send rights on the port in all messages that no receiver has taken: looks at every slot of the
/// domain. Only after the death of a space that was moving such a right.
fn in_slots(member: &Member, port: PortName) -> u32 {
    let mut count = 0;
    each_in_slots(member, |it| count += u32::from(it == port));
    count
}

/// The host, after a death: counts anew the rights that travel on all ports whose count may be wrong
/// since then. One look at every slot of the domain, or none.
pub(crate) fn settle_doubts(member: &Member) {
    let tables = member.tables();
    let rows = || tables.used_spaces().map(|s| tables.right_row(s));
    let doubts = tables.used_ports().filter_map(|(index, entry)| {
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        let generation = status.generation;
        Doubt::of(entry, PortName { index, generation }, rows)
    });
    let doubts: Vec<Doubt<'_>> = doubts.collect();
    if doubts.is_empty() {
        return;
    }
    let mut counts: HashMap<PortName, u32> = doubts.iter().map(|it| (it.port(), 0)).collect();
    each_in_slots(member, |port| {
        if let Some(count) = counts.get_mut(&port) {
            *count += 1;
        }
    });
    for doubt in doubts {
        let count = counts.get(&doubt.port()).copied().unwrap_or(0);
        // If something has moved it stays doubtful, and the next process that counts looks for itself.
        doubt.settle(rows(), count);
    }
}

/// Calls `found` for each send right in a message that no receiver has taken.
fn each_in_slots(member: &Member, mut found: impl FnMut(PortName)) {
    let tables = member.tables();
    for (index, entry) in tables.used_ports() {
        let rights = entry::look_at_queue(entry, || Some(in_queue(member, &tables.queue(index)?)));
        rights.flatten().into_iter().flatten().for_each(&mut found);
    }
}

/// The same, of one queue. Also of a port that is being closed: until its slot is closed.
fn in_queue(member: &Member, queue: &Queue<'_>) -> Vec<PortName> {
    let slots = (0..queue.slots() as u64).map(|at| queue.slot(at));
    let untaken = slots.filter(|slot| queue.is_untaken(slot.state(Ordering::Acquire)));
    let rights = untaken.flat_map(|slot| Contents::peek(member, &slot).rights);
    let sends = rights.filter(|right| right.kind == RightKind::Send);
    sends.map(|right| right.port).collect()
}
