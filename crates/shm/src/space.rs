//! Changes the status word of a space's entry: a process takes the entry, and the entry becomes
//! free again.
//!
//! ```text
//!       claim              hand_over               the newcomer
//! free -------> claimed ---------------> joining ---------------> live --> dead --> free
//!  ^               | claimer died            | newcomer gave up, or was admitted anew
//!  +---------------+-------------------------+
//! ```
//!
//! The host admits newcomers, and so does any other member while the host does not answer; both
//! may admit at the same time, also the same process. Each arrow is one compare-exchange.
//!
//! # Invariants
//!
//! - **A1** Of all that take a free entry one gets it. Only that claimer writes the entry's other
//!   fields, until it hands the entry over.
//! - **A2** A claimed entry becomes free only when its claimer is dead; a stopped claimer keeps it.
//! - **A3** Each claim raises the incarnation, so a step of an earlier admission fails.
//! - **A4** The newcomer itself makes its entry live. A process that two members admit enters one
//!   entry; the other entry becomes free.

use crate::atomic::{AtomicU64, Ordering};
use portolan_abi::space::{SpacePhase, SpaceStatus};

/// Reads a status.
pub fn status(word: &AtomicU64) -> SpaceStatus {
    // Acquire: the entry's other fields were written before (A1).
    SpaceStatus::unpack(word.load(Ordering::Acquire))
}

/// Changes the status of the space with this incarnation, if `to` says to what.
/// `false` if it is another one by now, or `to` says nothing.
pub fn change(
    word: &AtomicU64,
    incarnation: u32,
    to: impl Fn(SpaceStatus) -> Option<SpaceStatus>,
) -> bool {
    let mut was = word.load(Ordering::Acquire);
    loop {
        let now = SpaceStatus::unpack(was);
        let Some(next) = Some(now)
            .filter(|s| s.incarnation == incarnation)
            .and_then(&to)
        else {
            return false;
        };
        let swapped = word.compare_exchange(
            was,
            next.pack(),
            // AcqRel: what we did to the space before is seen by who finds the new status.
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match swapped {
            Ok(_) => return true,
            Err(other) => was = other,
        }
    }
}

/// Moves the status from one phase to another; see [`change`].
pub fn step(word: &AtomicU64, incarnation: u32, from: SpacePhase, to: SpacePhase) -> bool {
    change(word, incarnation, |s| {
        (s.phase == from).then_some(SpaceStatus { phase: to, ..s })
    })
}

/// Claims a free entry for space `claimer`, which may then write the entry's other fields; the
/// incarnation of the space to come (A1, A3).
pub fn claim(word: &AtomicU64, claimer: u8) -> Option<u32> {
    let was = SpaceStatus::unpack(word.load(Ordering::Acquire));
    if was.phase != SpacePhase::Free {
        return None;
    }
    let incarnation = was.incarnation.wrapping_add(1);
    let claimed = SpaceStatus {
        phase: SpacePhase::Claimed,
        disconnected: false,
        claimer,
        incarnation,
    };
    // SeqCst: stronger than the Acquire that the fields need, for a tracer, which looks at all
    // spaces after it has announced itself; the claimer looks for a tracer after this.
    word.compare_exchange(
        was.pack(),
        claimed.pack(),
        Ordering::SeqCst,
        Ordering::Relaxed,
    )
    .ok()
    .map(|_| incarnation)
}

/// Hands an entry that `claimer` has claimed and described over to its newcomer.
pub fn hand_over(word: &AtomicU64, claimer: u8, incarnation: u32) -> bool {
    change(word, incarnation, |s| {
        (s.phase == SpacePhase::Claimed && s.claimer == claimer).then_some(SpaceStatus {
            phase: SpacePhase::Joining,
            claimer: 0,
            ..s
        })
    })
}

/// Frees an entry that `claimer`, which is dead, has claimed and not handed over (A2).
pub fn release(word: &AtomicU64, claimer: u8) -> bool {
    let now = status(word);
    change(word, now.incarnation, |s| {
        (s.phase == SpacePhase::Claimed && s.claimer == claimer).then_some(SpaceStatus {
            phase: SpacePhase::Free,
            claimer: 0,
            ..s
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OURS: u8 = 3;

    fn phase(word: &AtomicU64) -> SpacePhase {
        status(word).phase
    }

    #[test]
    fn a_step_of_an_earlier_admission_fails() {
        let word = AtomicU64::new(0);
        let earlier = claim(&word, OURS).unwrap();
        assert_eq!(claim(&word, OURS), None, "it is claimed");
        assert!(release(&word, OURS));
        let later = claim(&word, OURS).unwrap();
        assert_ne!(earlier, later);
        assert!(!hand_over(&word, OURS, earlier));
        assert_eq!(phase(&word), SpacePhase::Claimed);
        assert!(hand_over(&word, OURS, later));
        let (joining, live) = (SpacePhase::Joining, SpacePhase::Live);
        assert!(!step(&word, earlier, joining, live));
        assert!(step(&word, later, joining, live));
    }

    #[test]
    fn only_what_the_dead_space_has_claimed_is_freed() {
        let word = AtomicU64::new(0);
        let incarnation = claim(&word, OURS).unwrap();
        assert!(!release(&word, OURS + 1));
        assert!(!hand_over(&word, OURS + 1, incarnation));
        assert_eq!(phase(&word), SpacePhase::Claimed);
        assert!(hand_over(&word, OURS, incarnation));
        assert!(!release(&word, OURS), "it is the newcomer's by now");
        assert_eq!(phase(&word), SpacePhase::Joining);
    }
}
