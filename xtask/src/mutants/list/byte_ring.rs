//! Lists mutants of byte rings between processes that need not trust each other: L1 to L3 of
//! `shm/byte_ring`.

use super::{Mutant, Test, model};

const FILE: &str = "crates/shm/src/byte_ring.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "byte-ring-count-unchecked",
        breaks: "L1: a count that the other side cannot have is believed",
        file: FILE,
        find: "if done > until.wrapping_sub(from) || !done.is_multiple_of(LINE as u64) {",
        replace: "if false && done > until.wrapping_sub(from) {",
        found_by: Test::Beside {
            folder: "shm",
            file: "src/byte_ring.rs",
            name: "byte_ring::tests::counts_that_cannot_be_are_found_out",
        },
    },
    Mutant {
        name: "byte-ring-head-relaxed",
        breaks: "L1: a reader finds bytes counted that it does not see yet",
        file: FILE,
        find: "ring.control[HEAD].store(self.at, Ordering::Release);",
        replace: "ring.control[HEAD].store(self.at, Ordering::Relaxed);",
        found_by: model("loom_byte_ring", "a_reader_does_not_sleep_for_good"),
    },
    Mutant {
        name: "byte-ring-tail-relaxed",
        breaks: "L1: the writer overwrites what the reader still reads",
        file: FILE,
        find: "ring.control[TAIL].store(self.at, Ordering::Release);",
        replace: "ring.control[TAIL].store(self.at, Ordering::Relaxed);",
        found_by: model(
            "loom_byte_ring",
            "nobody_sleeps_for_good_and_nothing_is_overwritten_that_was_not_read",
        ),
    },
    Mutant {
        name: "byte-ring-counted-first",
        breaks: "L2: the reader says that it has read, then copies",
        file: FILE,
        find: "bulk::load(ring.place(self.at, now), &mut out[..now]);
        self.at = self.at.wrapping_add(lines(now));
        // Release: pairs with `Writer::read`; we do not look at these bytes any more.
        ring.control[TAIL].store(self.at, Ordering::Release);",
        replace: "let place = ring.place(self.at, now);
        self.at = self.at.wrapping_add(lines(now));
        ring.control[TAIL].store(self.at, Ordering::Release);
        bulk::load(place, &mut out[..now]);",
        found_by: model(
            "loom_byte_ring",
            "nobody_sleeps_for_good_and_nothing_is_overwritten_that_was_not_read",
        ),
    },
    Mutant {
        name: "byte-ring-announce-unfenced",
        breaks: "L3: neither the sleeper nor the other side sees the other",
        file: FILE,
        find: "// L3: pairs with the fence in `owes`.
        fence(Ordering::SeqCst);",
        replace: "",
        found_by: model("loom_byte_ring", "a_reader_does_not_sleep_for_good"),
    },
    Mutant {
        name: "byte-ring-woken-once",
        breaks: "L3: only the first sleep is woken",
        file: FILE,
        find: "let owes = theirs != 0 && theirs != self.woken;",
        replace: "let owes = theirs != 0 && self.woken == 0;",
        found_by: model(
            "loom_byte_ring",
            "nobody_sleeps_for_good_and_nothing_is_overwritten_that_was_not_read",
        ),
    },
];
