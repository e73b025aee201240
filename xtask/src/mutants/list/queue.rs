//! Lists mutants of queues of ports: Q1 to Q7 of `shm/queue`.

use super::{Mutant, model};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "queue-void-anybodys",
        breaks: "Q1: the host voids slots that the living have claimed",
        file: "crates/shm/src/queue/sender.rs",
        find: "in_hand && state.space() == space && state.position() == position",
        replace: "in_hand && { let _ = space; state.position() == position }",
        found_by: model("loom_death", "a_sender_dies"),
    },
    Mutant {
        name: "queue-claim-by-store",
        breaks: "Q1: of two senders that claim a slot both believe that they have it",
        file: "crates/shm/src/queue/sender.rs",
        find: "if exchange(first, free, free.claimed(at, space)).is_ok() {",
        replace: "if first.words[0].load(Ordering::SeqCst) == free.0 {
            first.words[0].store(free.claimed(at, space).0, Ordering::SeqCst);",
        found_by: model("loom_queue", "two_claims_at_one_place"),
    },
    Mutant {
        name: "queue-find-relaxed",
        breaks: "Q1: a receiver finds a message published and not its words",
        file: "crates/shm/src/queue/receiver.rs",
        find: "let state = self.slot(cursor.head).state(Ordering::Acquire);
            if state.is_published_at(cursor.head) {",
        replace: "let state = self.slot(cursor.head).state(Ordering::Relaxed);
            if state.is_published_at(cursor.head) {",
        found_by: model("loom_queue", "one_sender_and_one_receiver"),
    },
    Mutant {
        name: "queue-free-same-position",
        breaks: "Q2: a slot comes back at the position that it had",
        file: "crates/shm/src/queue/receiver.rs",
        find: "SlotState::free(position + self.slots_u64()).0,",
        replace: "SlotState::free(position).0,",
        found_by: model("loom_queue", "one_sender_and_one_receiver"),
    },
    Mutant {
        name: "queue-leave-out-in-silence",
        breaks: "Q3: a sender leaves a position out and does not announce it",
        file: "crates/shm/src/queue/sender.rs",
        find: "self.port.sender.left_out.fetch_max(to, Ordering::SeqCst);",
        replace: "",
        found_by: model("loom_queue", "two_passed_slots_come_back"),
    },
    Mutant {
        name: "queue-leave-out-unseen",
        breaks: "Q3: a sender leaves a position out at which a slot has come back",
        file: "crates/shm/src/queue/sender.rs",
        find: "p => p > position || state.phase() != Phase::Free,",
        replace: "_ => true,",
        found_by: model("loom_queue", "two_passed_slots_come_back"),
    },
    Mutant {
        name: "queue-passed-not-looked-at",
        breaks: "Q4: what was passed is not looked at again before a later message is taken",
        file: "crates/shm/src/queue/receiver.rs",
        find: "return Next::Found(self.late(cursor).unwrap_or(Found {
                        position: cursor.head,
                        passed: false,
                    }));",
        replace: "return Next::Found(Found { position: cursor.head, passed: false });",
        found_by: model("loom_queue", "a_stalled_sender_is_passed"),
    },
    Mutant {
        name: "queue-take-relaxed",
        breaks: "Q5: a message is seen taken, and what its receiver noted before is not",
        file: "crates/shm/src/queue/receiver.rs",
        find: ".store(cursor.head, Ordering::Release);
        mark!(\"receive.taken\");",
        replace: ".store(cursor.head, Ordering::Relaxed);
        mark!(\"receive.taken\");",
        found_by: model("loom_queue", "what_is_taken_was_noted_before"),
    },
    Mutant {
        name: "queue-take-passed-relaxed",
        breaks: "Q5: the same, of a message that was passed",
        file: "crates/shm/src/queue/receiver.rs",
        find: "fetch_and(!SlotState::PASSED, Ordering::SeqCst);",
        replace: "fetch_and(!SlotState::PASSED, Ordering::Relaxed);",
        found_by: model(
            "loom_queue",
            "what_is_taken_and_was_passed_was_noted_before",
        ),
    },
    Mutant {
        name: "queue-passed-for-taken",
        breaks: "Q5: a message that is passed between two looks counts as taken",
        file: "crates/shm/src/queue/mod.rs",
        find: "holds(now) && now.position() == state.position() && now.has(SlotState::PASSED)",
        replace: "let _ = now;
        false",
        found_by: model("loom_queue", "what_is_passed_is_not_taken"),
    },
    Mutant {
        name: "queue-no-mark-seen",
        breaks: "Q6: a sender that claimed before the receiver fell asleep owes no wake",
        file: "crates/shm/src/queue/sender.rs",
        find: "} else if asleep || was.has(SlotState::ASLEEP) {",
        replace: "} else if asleep {",
        found_by: model("loom_queue", "no_publication_is_slept_over"),
    },
    Mutant {
        name: "queue-asleep-not-seen",
        breaks: "Q6: a sender that claims after the receiver fell asleep owes no wake",
        file: "crates/shm/src/queue/sender.rs",
        find: "} else if asleep || was.has(SlotState::ASLEEP) {",
        replace: "} else if was.has(SlotState::ASLEEP) {",
        found_by: model(
            "loom_queue",
            "no_publication_beside_a_stopped_sender_is_slept_over",
        ),
    },
    Mutant {
        name: "queue-wait-unannounced",
        breaks: "Q7: a sender sleeps for room and has not announced it",
        file: "crates/shm/src/queue/receiver.rs",
        find: "self.port.room.waiting.swap(1, Ordering::SeqCst);",
        replace: "",
        found_by: model("loom_queue", "no_room_is_slept_over"),
    },
    Mutant {
        name: "queue-room-overlooked",
        breaks: "Q7: who watches for room finds none in a slot that is free",
        file: "crates/shm/src/queue/sender.rs",
        find: "Phase::Free if found.position() <= at => return true,",
        replace: "Phase::Free if found.position() < at => return true,
                Phase::Free if found.position() == at => return false,",
        found_by: model("loom_queue", "no_room_is_slept_over_by_who_watches_for_it"),
    },
    Mutant {
        name: "queue-proxied-by-store",
        breaks: "V1: an owner that marks its port takes back that it was closed",
        file: "crates/shm/src/queue/proxied.rs",
        find: "match status.compare_exchange(seen, now.pack(), Ordering::AcqRel, Ordering::Acquire) {",
        replace: "status.store(now.pack(), Ordering::Release);
            match Ok::<u64, u64>(seen) {",
        found_by: model(
            "loom_proxied",
            "a_port_that_is_closed_meanwhile_stays_closed",
        ),
    },
    Mutant {
        name: "queue-proxied-home-torn",
        breaks: "V2: a home that changes while it is read is read in parts",
        file: "crates/shm/src/queue/proxied.rs",
        find: "let still = counters.home_changes.load(Ordering::Relaxed) == before;",
        replace: "let still = true;",
        found_by: model(
            "loom_proxied",
            "a_home_that_changes_is_read_whole_or_not_at_all",
        ),
    },
    Mutant {
        name: "queue-proxied-uncompared",
        breaks: "V3: a send's one compare leaves the bits above the generation out",
        file: "crates/abi/src/port.rs",
        find: "let of_generation = (((1 << 32) - 1) << 32, (generation as u64) << 32);",
        replace: "let of_generation = (((1 << 24) - 1) << 32, (generation as u64) << 32);",
        found_by: model("loom_proxied", "a_sender_beside_the_change"),
    },
];
