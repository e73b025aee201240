//! Lists mutants of calls: who waits for room in a full window hears of it (`rpc/awaited.rs`).

use super::{Mutant, library};

const END: &str = "crates/portolan/src/rpc/client_end.rs";
const AWAITED: &str = "crates/portolan/src/rpc/awaited.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "call-taken-untold",
        breaks: "a place is free when its outcome is taken: a thread takes one and tells nobody",
        file: END,
        find: "mark!(\"call.ended\");
                self.tell_of_room(inner);",
        replace: "mark!(\"call.ended\");",
        found_by: library(
            "rpc",
            "window::threads_have_room_when_another_takes_its_answer",
        ),
    },
    Mutant {
        name: "call-room-reader-asleep",
        breaks: "a thread that waits for room may be the one that reads: it is not interrupted",
        file: END,
        find: "if inner.reader.is_none() && !inner.waiters.driven {",
        replace: "if false {",
        found_by: library(
            "rpc",
            "window::threads_have_room_when_another_takes_its_answer",
        ),
    },
    Mutant {
        name: "call-awaited-untold",
        breaks: "A4: a task takes an outcome and wakes none that waits for room",
        file: AWAITED,
        find: "inner.waiters.forget(id);
            connection.tell_of_room(inner);",
        replace: "inner.waiters.forget(id);",
        found_by: library(
            "rpc",
            "window::a_task_has_room_when_another_takes_its_answer",
        ),
    },
    Mutant {
        name: "call-turn-kept",
        breaks: "A4: a task that is woken and dropped keeps its place from the others",
        file: AWAITED,
        find: "if inner.waiters.leave(turn) {",
        replace: "if false {",
        found_by: library(
            "rpc",
            "window::a_task_has_room_when_another_takes_its_answer",
        ),
    },
];
