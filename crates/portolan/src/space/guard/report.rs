//! Reports a stray access from the signal handler: without allocation or lock, on a stack of a few
//! kilobytes.

use super::{Doors, Place, Stray};
use portolan_abi::limits::PAGE;
use portolan_abi::owner::{Alloc, Descriptor, Destination, Hold};
use portolan_abi::port::PortStatus;
use portolan_abi::slot::Meta;
use portolan_shm::queue::Queue;
use portolan_shm::region::Tables;
use portolan_sys::fault::{Fault, Line};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whose an extent is.
enum Owner {
    /// A space's.
    Space(u8),
    /// A message's, sent by this space.
    Transit(u8, Destination),
    /// A message's, of a dead sender; where it is sent, if that can be told.
    Orphan(Option<Destination>),
    /// No space's.
    Free,
}

/// Reports an access to `page` that this space may not make.
#[inline(never)]
pub(super) fn stray(doors: &Doors, fault: &Fault, page: u32, why: &Stray) {
    let tables = doors.ground.tables();
    let mut line = Line::new();
    line.text(match fault.write {
        Some(true) => b"portolan: stray write to ",
        Some(false) => b"portolan: stray read of ",
        None => b"portolan: stray access to ",
    });
    line.hex(fault.address as u64).text(b" by ");
    space(&mut line, tables, doors.space);
    line.text(b" of domain \"");
    text(&mut line, &tables.header.name);
    line.text(b"\": ");
    match (why, doors.place(page)) {
        (Stray::Failed(error), _) => {
            line.text(b"it owns the extent, but the kernel does not open it: error ");
            line.decimal(u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs()));
        }
        (Stray::NotOurs, None) => {
            line.text(b"no extent is there (page ")
                .decimal(page.into())
                .text(b")");
        }
        (Stray::NotOurs, Some(place)) => extent(&mut line, doors, place),
    }
    line.text(b"\n").write();
}

fn extent(line: &mut Line, doors: &Doors, place: Place) {
    let tables = doors.ground.tables();
    let bytes = place.size.pages() * PAGE;
    line.text(b"the extent at page ")
        .decimal(place.first.into());
    line.text(b" (").decimal(bytes as u64).text(b" bytes) ");
    let sent = tables.owner_row(doors.space).read(place.first).1;
    match owner(tables, place) {
        Owner::Space(of) if of == doors.space => {
            line.text(b"is on its way out of this space");
            return;
        }
        Owner::Space(of) => {
            line.text(b"is owned by ");
            space(line, tables, of);
        }
        Owner::Transit(from, to) => {
            line.text(b"is in transit from ");
            space(line, tables, from);
            line.text(b" to ");
            port(line, tables, to);
            return;
        }
        Owner::Orphan(to) => {
            line.text(b"is in transit from a space that has died");
            if let Some(to) = to {
                line.text(b" to ");
                port(line, tables, to);
            }
            return;
        }
        Owner::Free => {
            line.text(b"is free");
        }
    }
    if sent.0 != 0 {
        line.text(b"; this space last sent it to ");
        port(line, tables, sent);
    }
}

/// Asks every space's row.
fn owner(tables: &Tables<'_>, place: Place) -> Owner {
    let word = tables.alloc.read(place.first);
    if word.state() != Alloc::Used {
        return Owner::Free;
    }
    let generation = word.generation();
    let mut found = None;
    for index in tables.used_spaces() {
        let (word, to) = tables.owner_row(index).read(place.first);
        match word.hold() {
            Hold::Held | Hold::Parked if word.generation() == generation => {
                return Owner::Space(index);
            }
            Hold::Sending if word.generation() == generation => {
                found = Some(Owner::Transit(index, to))
            }
            Hold::None if travels(tables, to, place, generation) => {
                found = Some(Owner::Transit(index, to))
            }
            _ => {}
        }
    }
    found.unwrap_or_else(|| Owner::Orphan(orphaned(tables, place, generation)))
}

/// Looks for an extent in every slot; not for those that stand in a header extent. By plain
/// loops: a fault handler's stack is small.
fn orphaned(tables: &Tables<'_>, place: Place, generation: u32) -> Option<Destination> {
    for (index, _) in tables.used_ports() {
        let Some(queue) = tables.queue(index) else {
            continue;
        };
        for at in 0..queue.slots() as u64 {
            let slot = queue.slot(at);
            let to = Destination::new(index, slot.state(Ordering::Acquire).position());
            let spilled = Meta::unpack(slot.meta()).spilled;
            if !spilled && carries(&queue, to, place, generation) {
                return Some(to);
            }
        }
    }
    None
}

/// Whether an untaken message at `to` carries that use of the extent.
fn travels(tables: &Tables<'_>, to: Destination, place: Place, generation: u32) -> bool {
    let queue = tables.queue(to.port());
    queue.is_some_and(|queue| carries(&queue, to, place, generation))
}

fn carries(queue: &Queue<'_>, to: Destination, place: Place, generation: u32) -> bool {
    let slot = queue.slot(to.position());
    let state = slot.state(Ordering::Acquire);
    if !queue.is_untaken(state) || Destination::new(to.port(), state.position()) != to {
        return false;
    }
    if Meta::unpack(slot.meta()).spilled {
        // What it carries stands in an extent of its own.
        return true;
    }
    let [wanted, _] = Descriptor {
        page: place.first,
        generation,
        size: place.size,
        len: 0,
    }
    .pack();
    // Relaxed: the state was loaded with Acquire.
    (0..slot.inline_words()).any(|at| slot.inline(at).load(Ordering::Relaxed) == wanted)
}

/// `space 2 (process 77, "reader")`
fn space(line: &mut Line, tables: &Tables<'_>, index: u8) {
    line.text(b"space ").decimal(index.into());
    if let Some(entry) = tables.spaces.get(usize::from(index)) {
        line.text(b" (process ")
            .decimal(entry.pid.load(Ordering::Relaxed))
            .text(b", \"");
        text(line, &entry.name);
        line.text(b"\")");
    }
}

/// `port 3 ("frames") of space 2 (process 77, "reader")`
fn port(line: &mut Line, tables: &Tables<'_>, to: Destination) {
    line.text(b"port ").decimal(to.port().into());
    let Some(entry) = tables.ports.get(usize::from(to.port())) else {
        return;
    };
    if entry.name.words[0].load(Ordering::Relaxed) != 0 {
        line.text(b" (\"");
        text(line, &entry.name.words);
        line.text(b"\")");
    }
    let owner = PortStatus::unpack(entry.control.status.load(Ordering::Acquire)).owner;
    if owner != 0 {
        line.text(b" of ");
        space(line, tables, owner);
    }
}

/// A zero-padded text.
fn text(line: &mut Line, words: &[AtomicU64]) {
    for word in words {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        line.text(&bytes[..len]);
        if len < bytes.len() {
            break;
        }
    }
}
