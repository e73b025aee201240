//! Lists mutants of rights: R1 to R3 of `shm/rights`, and what ports do about them.

use super::{Mutant, Test, model};

const ROWS: &str = "crates/shm/src/rights.rs";
const TRAVELLING: &str = "crates/shm/src/rights/travelling.rs";
const SEGMENT: &str = "crates/shm/src/rights/segment.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "rights-taker-uncounted",
        breaks: "R1: a right that is taken is counted neither by the entry nor by the taker's row",
        file: ROWS,
        find: "self.change_send(port, |was| begin(more(was)));",
        replace: "self.change_send(port, begin);",
        found_by: model("loom_rights", "a_right_that_moves_past_the_count_is_seen"),
    },
    Mutant {
        name: "rights-departure-untold",
        breaks: "R2: a right leaves a row that is read later for one that was read",
        file: TRAVELLING,
        find: "self.departures.fetch_add(1, Ordering::SeqCst);",
        replace: "",
        found_by: model("loom_rights", "a_right_that_moves_past_the_count_is_seen"),
    },
    Mutant {
        name: "rights-counted-once",
        breaks: "R2: a count of zero counts although a right has travelled meanwhile",
        file: TRAVELLING,
        find: "return is_still();",
        replace: "return true;",
        found_by: model("loom_rights", "a_right_that_moves_past_the_count_is_seen"),
    },
    Mutant {
        name: "rights-death-without-doubt",
        breaks: "R2: what a dead space left in an entry's count stays there",
        file: TRAVELLING,
        find: "doubtful: true,",
        replace: "doubtful: false,",
        found_by: model(
            "loom_rights",
            "a_sender_that_dies_leaves_a_count_that_is_put_right",
        ),
    },
    Mutant {
        name: "rights-settled-although-moved",
        breaks: "R2: a doubtful count is put right by what was in slots before a right has moved",
        file: TRAVELLING,
        find: "            && line.departures.load(Ordering::SeqCst) == self.departures;",
        replace: ";",
        found_by: model(
            "loom_rights",
            "a_count_is_put_right_beside_a_sender_and_a_taker",
        ),
    },
    Mutant {
        name: "rights-any-generation",
        breaks: "R3: a dead name takes the place of the count of the entry's present port",
        file: "crates/shm/src/rights/counted.rs",
        find: "if C::unpack(was).generation() != port.generation && !is_present(entry, port) {",
        replace: "if false && !is_present(entry, port) {",
        found_by: model("loom_rights", "counts_of_a_row_add_up"),
    },
    Mutant {
        name: "rights-listed-in-what-is-freed",
        breaks: "R1: the taker of a message notes its rights after the extent that lists them",
        file: "crates/portolan/src/port/receive/look.rs",
        find: "        Right::arrive(&member, &contents.rights);
        mark!(\"receive.rights_noted\");
        contents.all_extents().for_each(|d| wire::hold(&member, d));
",
        replace: "        contents.all_extents().for_each(|d| wire::hold(&member, d));
        Right::arrive(&member, &contents.rights);
        mark!(\"receive.rights_noted\");
",
        found_by: Test::Of {
            folder: "portolan",
            target: "rights_travelling",
            name: "rights_in_a_long_message_are_gone_when_who_takes_it_has_died",
        },
    },
    Mutant {
        name: "rights-counted-in-a-binding",
        breaks: "R2: a message is counted again by an entry that names the same memory",
        file: "crates/portolan/src/port/entry.rs",
        find: "is_one_port(before, status()).then_some(found)",
        replace: "(is_one_port(before, status()) || true).then_some(found)",
        found_by: Test::Beside {
            folder: "portolan",
            file: "src/port/entry.rs",
            name: "port::entry::tests::a_message_is_counted_once_beside_an_entry_that_names_the_same_memory",
        },
    },
    Mutant {
        name: "rights-carried-port-closed-twice",
        breaks: "Y3: of two that close a port of a ring both do",
        file: "crates/portolan/src/port/close.rs",
        find: "            status.compare_exchange(seen, closing.pack(), Ordering::SeqCst, Ordering::Acquire);",
        replace: "            Ok::<_, u64>(status.swap(closing.pack(), Ordering::SeqCst));",
        found_by: Test::Beside {
            folder: "portolan",
            file: "src/port/close.rs",
            name: "port::close::tests::a_carried_port_that_another_process_closes_is_that_ones",
        },
    },
    Mutant {
        name: "rights-kept-for-ever",
        breaks: "G3: a keeper drops its right and does not let go of the segment",
        file: SEGMENT,
        find: "        exchange(entry, was, unmarked(was));
        // Before rights are counted: see `is_left_to_keeper`.
        store_load_barrier();",
        replace: "",
        found_by: model("loom_kept", "a_segment_that_is_let_go_is_closed_once"),
    },
    Mutant {
        name: "rights-let-go-unfenced",
        breaks: "G3: of its keeper and the last space beside it neither counts after both",
        file: SEGMENT,
        find: "    // The other half of the pair with `let_go`.
    store_load_barrier();
    let status = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));",
        replace: "    let status = PortStatus::unpack(entry.control.status.load(Ordering::Relaxed));",
        found_by: model("loom_kept", "a_segment_that_is_let_go_is_closed_once"),
    },
    Mutant {
        name: "rights-kept-segment-joined",
        breaks: "G3: who looks at all ports makes a right on a segment that is kept",
        file: SEGMENT,
        find: "names_segment(status, port) && !is_kept(status)",
        replace: "names_segment(status, port)",
        found_by: model("loom_kept", "a_kept_segment_is_closed_by_nobody_else"),
    },
    Mutant {
        name: "rights-dead-keeper-kept",
        breaks: "G3: what a dead space kept stays its",
        file: SEGMENT,
        find: "    exchange(entry, marked, unmarked(marked));
}

impl",
        replace: "    let _ = (entry, marked);
}

impl",
        found_by: model(
            "loom_kept",
            "a_keeper_that_dies_leaves_a_segment_that_is_closed",
        ),
    },
];
