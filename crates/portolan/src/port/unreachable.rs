//! Finds and closes ports whose receive rights lie in queues of one another, out of every space's
//! reach.
//!
//! A port that moves names, in its transit word, the slot in which its receive right lies. So
//! each moving port leads to one other port, that one to the next if it moves too, and so on.
//! Where the way ends at a port that some space receives from, or at a slot that a sender has
//! claimed and not published yet, the right may still be taken. Where it comes back to itself it
//! cannot: a space that takes one of these rights would have to have taken another one before.
//!
//! # Invariants
//!
//! - **Y1** A cycle is closed only if all of its ports were moving, with their rights published
//!   and not taken, at one instant: each was so before that instant and after, with the same
//!   transit word, and no two moves of a port have the same. Such a cycle stays one for ever.
//! - **Y2** A port that a process beyond the domain may receive from is not in a cycle
//!   ([`is_held_beyond`]).
//! - **Y3** Of several that close a cycle, one does: the status word goes from *moving* to
//!   *closing* by compare-exchange, and is the closer's from then on.

use super::close;
use crate::space::Member;
use portolan_abi::owner::Destination;
use portolan_abi::port::{GENERATION_MASK, PortPhase, PortStatus};
use portolan_shm::mark;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Bits of a status word by which a process beyond the domain holds a port. A proxied port has one,
/// and does not move in this version; a port with one is not ours to close.
const BEYOND: u64 = 0xff << 56;

/// A port that moves, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moving {
    status: u64,
    transit: Destination,
}

/// Closes ports that no space can receive from; whether there were any. What waited in their
/// queues is given back.
pub(crate) fn close(member: &Member) -> bool {
    let moving: HashMap<u16, Moving> = member
        .tables()
        .used_ports()
        .filter_map(|(index, _)| Some((index, seen(member, index)?)))
        .collect();
    let mut closed = false;
    for cycle in cycles(&moving) {
        // Y1: once more, all of them.
        let same = |index: &u16| {
            let was = moving.get(index);
            was.is_some() && seen(member, *index).as_ref() == was
        };
        if cycle.iter().all(same)
            && let Some((index, was)) = cycle.first().and_then(|i| Some((*i, moving.get(i)?)))
        {
            // The others lie in its queue, and in theirs.
            closed |= close_one(member, index, was.status);
        }
    }
    closed
}

/// A port that moves, with its right in a slot from which it was not taken.
fn seen(member: &Member, index: u16) -> Option<Moving> {
    let tables = member.tables();
    let control = &tables.ports.get(usize::from(index))?.control;
    // Acquire: the transit word of this move was stored before.
    let status = control.status.load(Ordering::Acquire);
    if PortStatus::unpack(status).phase != PortPhase::Moving || is_held_beyond(status) {
        return None;
    }
    let transit = Destination(control.transit.load(Ordering::Acquire));
    let queue = tables.queue(transit.port())?;
    let state = queue.slot(transit.position()).state(Ordering::Acquire);
    let lies =
        queue.is_untaken(state) && Destination::new(transit.port(), state.position()) == transit;
    lies.then_some(Moving { status, transit })
}

/// Whether a process beyond the domain may receive from a port with this status word.
fn is_held_beyond(status: u64) -> bool {
    status & BEYOND != 0
}

/// The cycles of ports that lead to one another, each once.
fn cycles(moving: &HashMap<u16, Moving>) -> Vec<Vec<u16>> {
    // On which walk a port was met.
    let mut met: HashMap<u16, usize> = HashMap::new();
    let mut cycles = Vec::new();
    for (walk, start) in moving.keys().enumerate() {
        let mut way = Vec::new();
        let mut at = *start;
        while let Some(port) = moving.get(&at) {
            match met.get(&at) {
                None => {
                    met.insert(at, walk);
                    way.push(at);
                    at = port.transit.port();
                }
                Some(earlier) => {
                    if *earlier == walk {
                        cycles.push(way.iter().copied().skip_while(|i| *i != at).collect());
                    }
                    break;
                }
            }
        }
    }
    cycles
}

/// Closes a port of a cycle, if it is as it was seen.
fn close_one(member: &Member, index: u16, word: u64) -> bool {
    let Some(entry) = member.tables().ports.get(usize::from(index)) else {
        return false;
    };
    let was = PortStatus::unpack(word);
    let closing = PortStatus {
        phase: PortPhase::Closing,
        owner: member.space,
        generation: was.generation.wrapping_add(1) & GENERATION_MASK,
        ..was
    };
    let won = entry
        .control
        .status
        .compare_exchange(word, closing.pack(), Ordering::SeqCst, Ordering::Relaxed)
        .is_ok();
    if won {
        mark!("cycle.closing");
        tracing::debug!(
            domain = member.domain,
            port = index,
            "ports that nobody can receive from are closed"
        );
        close::close(member, index);
    }
    won
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Message, PortOptions, SendRight, WhenFull};

    /// Two ports, each one's receive right in the other one's queue.
    fn cycle(domain: &Domain) -> [SendRight; 2] {
        let ports = [(); 2].map(|()| domain.bind(PortOptions::unnamed()).unwrap());
        let rights = [ports[0].make_send(), ports[1].make_send()];
        for (port, to) in ports.into_iter().zip(rights.iter().rev()) {
            let mut message = Message::default();
            message.attach(port).unwrap();
            to.send(message, WhenFull::Fail).unwrap();
        }
        rights
    }

    #[test]
    fn what_a_process_beyond_the_domain_may_receive_from_is_not_closed() {
        let domain = Domain::private().unwrap();
        let rights = cycle(&domain);
        for bit in 56..64 {
            let held = 1 << bit;
            let index = usize::from(rights[bit % 2].to.port.index);
            let word = &domain.member().tables().ports[index].control.status;
            word.fetch_or(held, Ordering::SeqCst);
            assert!(!close(domain.member()), "bit {bit}");
            word.fetch_and(!held, Ordering::SeqCst);
        }
        assert!(rights.iter().all(SendRight::is_live));
        assert!(close(domain.member()), "nobody can receive from them");
        assert!(!rights.iter().any(SendRight::is_live));
    }
}
