//! Lists mutants of trace rings, E1 to E4 of `shm/trace`, and of their tracer.

use super::{Mutant, Test, library, model};

const FILE: &str = "crates/shm/src/trace.rs";

const fn beside(name: &'static str) -> Test {
    Test::Beside {
        folder: "shm",
        file: "src/trace.rs",
        name,
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "trace-number-twice",
        breaks: "E1: two writers get one number",
        file: FILE,
        find: "let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;",
        replace: "let number = self.next.load(Ordering::Relaxed) + 1;
        self.next.store(number, Ordering::Relaxed);",
        found_by: model("loom_trace", "writers_a_lap_apart_do_not_mix"),
    },
    Mutant {
        name: "trace-read-once",
        breaks: "E2: an event counts that was overwritten while it was read",
        file: FILE,
        find: "if line[0].load(Ordering::Relaxed) != word {",
        replace: "if false && line[0].load(Ordering::Relaxed) != word {",
        found_by: model("loom_trace", "an_event_is_overwritten_while_it_is_read"),
    },
    Mutant {
        name: "trace-write-unfenced",
        breaks: "E2: a reader sees words of a later event and not that its line is busy",
        file: FILE,
        find: "fence(Ordering::Release);
        for (to, word) in line[1..]",
        replace: "for (to, word) in line[1..]",
        found_by: model("loom_trace", "an_event_is_overwritten_while_it_is_read"),
    },
    Mutant {
        name: "trace-living-overwritten",
        breaks: "E3: a writer takes the line that a living thread of its space is at",
        file: FILE,
        find: "was.number >= number || was.busy && was.incarnation == incarnation",
        replace: "was.number >= number",
        found_by: beside("trace::tests::what_a_dead_writer_began_is_lost_and_its_line_used_again"),
    },
    Mutant {
        name: "trace-lost-uncounted",
        breaks: "E4: what was overwritten before it was read is not counted",
        file: FILE,
        find: "self.lost += oldest - self.next;",
        replace: "",
        found_by: beside("trace::tests::the_newest_are_kept_and_the_others_counted"),
    },
    Mutant {
        name: "trace-over-before-it-is-read",
        breaks: "the host gives a dead space's ring back while its last events are still to be read",
        file: "crates/portolan/src/trace/mod.rs",
        find: "switch::all_off(self.domain.member(), self.switch);",
        replace: "switch::end(self.domain.member(), self.switch);",
        found_by: library(
            "domain",
            "trace::who_dies_while_a_trace_ends_is_heard_to_the_end",
        ),
    },
];
