//! Lists mutants of rights: R1 to R3 of `shm/rights`.

use super::{Mutant, model};

const ROWS: &str = "crates/shm/src/rights.rs";
const TRAVELLING: &str = "crates/shm/src/rights/travelling.rs";

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
        name: "rights-any-generation",
        breaks: "R3: a dead name takes the place of the count of the entry's present port",
        file: "crates/shm/src/rights/counted.rs",
        find: "if C::unpack(was).generation() != port.generation && !is_present(entry, port) {",
        replace: "if false && !is_present(entry, port) {",
        found_by: model("loom_rights", "counts_of_a_row_add_up"),
    },
];
