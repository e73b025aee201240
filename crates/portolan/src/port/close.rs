//! Closes a port, for its owner or on behalf of a dead one. Each step may be repeated.

use super::rights::Right;
use super::watches::{drop_watches, fire_watches};
use super::wire::Contents;
use super::{answer_for_dead, entry, lent, send};
use crate::port::sealed::SealedStore;
use crate::space::Member;
use portolan_abi::port::{GENERATION_MASK, PortName, PortPhase, PortStatus, RightKind};
use portolan_abi::slot::Kind;
use portolan_shm::mark;
use portolan_shm::queue::{CloseStep, Queue};
use std::sync::atomic::{AtomicU64, Ordering};

/// Closes port `index`, which we own, or a dead space whose host we are.
///
/// 1. The generation goes up: every right on it is a dead name.
/// 2. Every slot is closed; what waited in it is given back, its requests are answered.
/// 3. Its waiting threads are woken, and its watchers are told, and the node that has lent it.
/// 4. Entry and queue memory are given back, or linger until live senders have let go of their
///    slots ([`super::entry`]).
///
/// Ports whose receive rights waited in its queue are closed too, one after another: they may
/// lie in one another's queues to any depth.
pub(crate) fn close(member: &Member, index: u16) {
    let mut begun = Vec::new();
    begin(member, index, None, &mut begun);
    while let Some((index, closing)) = begun.pop() {
        finish(member, index, closing, &mut begun);
    }
}

/// A port whose receive right was in a message that is given back. From its first step on it is
/// the closer's, so that the host goes on with it after that one's death, and after nobody else's.
#[derive(Clone, Copy)]
struct Carried {
    generation: u32,
    closer: u8,
}

/// Ports that are being closed, with their status.
type Begun = Vec<(u16, PortStatus)>;

/// The first step: from here on every right is a dead name. Nothing, if the port is closed
/// already, or another process closes it that does not own it either.
fn begin(member: &Member, index: u16, carried: Option<Carried>, begun: &mut Begun) {
    let Some(entry) = member.tables().ports.get(usize::from(index)) else {
        return;
    };
    let status = &entry.control.status;
    let seen = status.load(Ordering::Acquire);
    if let Some(closing) = exchange(status, seen, carried) {
        mark!("close.begun");
        begun.push((index, closing));
    }
}

/// Has a port's status, last seen as `seen`, say that it is being closed.
///
/// By exchange: who looks for rings may have begun to close a carried port meanwhile, and then it
/// is that one's.
fn exchange(status: &AtomicU64, mut seen: u64, carried: Option<Carried>) -> Option<PortStatus> {
    loop {
        let closing = closing(PortStatus::unpack(seen), carried)?;
        // SeqCst: dead before we look for watches; see `SendRight::watch`.
        let exchanged =
            status.compare_exchange(seen, closing.pack(), Ordering::SeqCst, Ordering::Acquire);
        match exchanged {
            Ok(_) => return Some(closing),
            Err(now) => seen = now,
        }
    }
}

/// The status of a port that is being closed, whose status was this one; nothing, if it is not
/// ours to close.
fn closing(was: PortStatus, carried: Option<Carried>) -> Option<PortStatus> {
    if carried.is_some_and(|carried| carried.generation != was.generation) {
        return None;
    }
    match was.phase {
        // In binding there is no queue to close: see `entry`.
        PortPhase::Free | PortPhase::Binding | PortPhase::Lingering => None,
        PortPhase::Closing => Some(was),
        PortPhase::Open | PortPhase::Moving => Some(PortStatus {
            phase: PortPhase::Closing,
            owner: carried.map_or(was.owner, |carried| carried.closer),
            generation: was.generation.wrapping_add(1) & GENERATION_MASK,
            ..was
        }),
    }
}

/// All other steps.
fn finish(member: &Member, index: u16, closing: PortStatus, begun: &mut Begun) {
    let tables = member.tables();
    let Some(entry) = tables.ports.get(usize::from(index)) else {
        return;
    };
    tables.names[usize::from(index)].store(0, Ordering::Release);
    let died = PortName {
        index,
        generation: closing.generation.wrapping_sub(1) & GENERATION_MASK,
    };
    if let Some(queue) = tables.queue(index) {
        drain(member, &queue, begun);
        send::wake_senders(&queue);
        send::wake(member, &queue, index);
    }
    mark!("close.drained");
    drop_watches(member, died);
    fire_watches(member, died);
    lent::tell(member, index);
    mark!("close.told");
    entry.control.status.store(
        PortStatus {
            phase: PortPhase::Lingering,
            owner: 0,
            ..closing
        }
        .pack(),
        Ordering::Release,
    );
    entry::sweep(member, index);
}

fn drain(member: &Member, queue: &Queue<'_>, begun: &mut Begun) {
    for index in 0..queue.slots() as u64 {
        while let CloseStep::Message { position } = queue.close_slot(index) {
            let contents = Contents::read(member, &queue.slot(position));
            // Its send rights were counted as travelling; now they are gone. If we die
            // meanwhile the host corrects the counts, and asks for all ports. So we say it
            // before the header extent is free, in which they may be listed: a host that repeats
            // this finds them there no more.
            Right::end(member, &contents.rights);
            dispose(member, &contents, begun);
            mark!("close.disposed");
            queue.close_drained(position);
            mark!("close.slot_drained");
            Right::arrived(member, &contents.rights);
        }
    }
}

/// Gives back what a message holds that no receiver will take. Repeating it does nothing (O3):
/// the header extent, in which the rest may be listed, goes last, and is read by no process
/// once it is free.
fn dispose(member: &Member, contents: &Contents, begun: &mut Begun) {
    // Ours, or of another process, where it is found no more.
    drop(
        contents
            .laid
            .map(|token| member.part::<SealedStore>().take(token)),
    );
    let alloc = &member.tables().alloc;
    for d in &contents.extents {
        alloc.reclaim(d.page, d.generation);
    }
    for right in &contents.rights {
        match right.kind {
            // Counted only by its slot, which is about to be closed; see `drain`.
            RightKind::Send => {}
            RightKind::SendOnce => answer_for_dead(member, right.port, right.tag),
            RightKind::Receive => close_carried(member, right.port, begun),
        }
    }
    if let (Kind::Request, Some(reply)) = (contents.kind, contents.reply) {
        answer_for_dead(member, reply.port, reply.tag);
    }
    if let Some(d) = &contents.page {
        alloc.reclaim(d.page, d.generation);
    }
}

/// Begins to close a port whose receive right no space will take.
///
/// Its status still names its sender, which may live, or die meanwhile; but it is we who give
/// back the message that the right is in. Should we die of it, that message leads nobody here:
/// the generation has gone up. So the port becomes ours as its generation goes up.
fn close_carried(member: &Member, port: PortName, begun: &mut Begun) {
    let carried = Carried {
        generation: port.generation,
        closer: member.space,
    };
    begin(member, port.index, Some(carried), begun);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Message, PortOptions, WhenFull};

    #[test]
    fn a_drain_that_is_repeated_does_not_read_what_was_freed() {
        let domain = Domain::private().unwrap();
        let member = domain.member();
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let mut message = domain.message(&[7; 4096]).unwrap();
        message.push(domain.allocate(100).unwrap()).unwrap();
        port.make_send().send(message, WhenFull::Fail).unwrap();
        let slot = port
            .at()
            .queue()
            .slot(port.at().queue().port.receiver.head.load(Ordering::Relaxed));
        let contents = Contents::read(member, &slot);
        assert_eq!((contents.extents.len(), contents.page.is_some()), (1, true));
        let (page, size) = (
            contents.page.unwrap().page,
            contents.page.unwrap().size.bytes(),
        );
        dispose(member, &contents, &mut Vec::new());
        // Another space gets the page and writes to it, before the next host repeats the drain.
        let mut again = Message::default();
        while again.extents().last().is_none_or(|e| e.pages().0 != page) {
            let mut extent = domain.allocate(size).unwrap();
            extent.fill(0x11);
            again.push(extent).unwrap();
        }
        let repeated = Contents::read(member, &slot);
        assert!(
            repeated.page.is_none() && repeated.extents.is_empty() && repeated.rights.is_empty()
        );
    }

    /// Of several that close a ring of ports, each begins with one: the others find it carried.
    #[test]
    fn a_carried_port_that_another_process_closes_is_that_ones() {
        let of = |phase, generation, owner| PortStatus {
            phase,
            generation,
            owner,
            ..PortStatus::FRESH
        };
        let carried = Carried {
            generation: 6,
            closer: 9,
        };
        let seen = of(PortPhase::Moving, 6, 3).pack();
        let status = AtomicU64::new(seen);
        let begun = exchange(&status, seen, Some(carried));
        assert_eq!(begun, Some(of(PortPhase::Closing, 7, 9)));
        // Since it was seen another process has begun, or is done and the entry in use again.
        for phase in [PortPhase::Closing, PortPhase::Open, PortPhase::Moving] {
            let others = of(phase, 7, 3).pack();
            let status = AtomicU64::new(others);
            assert_eq!(exchange(&status, seen, Some(carried)), None);
            assert_eq!(status.load(Ordering::Relaxed), others);
        }
        // The host repeats what a dead closer had begun.
        let again = of(PortPhase::Closing, 7, 3);
        let status = AtomicU64::new(again.pack());
        assert_eq!(exchange(&status, again.pack(), None), Some(again));
    }
}
