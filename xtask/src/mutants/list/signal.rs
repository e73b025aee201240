//! Lists mutants of signals: S1 to S6 of `shm/signal`.

use super::{Mutant, model, shm};

const FIFO: &str = "crates/shm/src/signal/fifo.rs";
const RANGES: &str = "crates/shm/src/signal/ranges.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "signal-empty-same-lap",
        breaks: "S1: an emptied slot has the lap that it had",
        file: FIFO,
        find: "slot.store(Slot::empty(lap + 1).0, Ordering::Release);",
        replace: "slot.store(Slot::empty(lap).0, Ordering::Release);",
        found_by: shm("signal", "a_fifo_is_a_bounded_deque"),
    },
    Mutant {
        name: "signal-beyond-a-full-one",
        breaks: "S2: a sender goes on beyond a slot of the lap before",
        file: FIFO,
        find: "if is_before(found.lap(), lap) {",
        replace: "if false && is_before(found.lap(), lap) {",
        found_by: model("loom_signal", "no_signal_goes_beyond_a_full_slot"),
    },
    Mutant {
        name: "signal-moved-unseen",
        breaks: "S5: a sender does not look whether the handler has moved meanwhile",
        file: RANGES,
        find: "(now != fifo).then_some(now)",
        replace: "(now != fifo && false).then_some(now)",
        found_by: model("loom_signal", "a_handler_moves_and_loses_nothing"),
    },
    Mutant {
        name: "signal-emptied-at-once",
        breaks: "S6: the slot of a signal is empty while its handler runs",
        file: FIFO,
        find: "if self.slots.len() == 1 {
            // Its",
        replace: "if true {
            // Its",
        found_by: shm("signal", "a_fifo_is_a_bounded_deque"),
    },
    Mutant {
        name: "signal-enabled-first",
        breaks: "S4: a handler is enabled before its blocks are in the table",
        file: RANGES,
        find: "        entry.delivery.store(delivery, Ordering::Relaxed);
        for block in blocks(start, end) {",
        replace: "        entry.delivery.store(delivery, Ordering::Relaxed);
        entry
            .state
            .store(HandlerState::Enabled { space }.pack(), Ordering::Release);
        for block in blocks(start, end) {",
        found_by: model(
            "loom_signal",
            "a_handler_is_there_with_its_whole_range_or_not_at_all",
        ),
    },
    Mutant {
        name: "signal-sleep-unlooked",
        breaks: "S3: a reader sleeps without a look after its announcement",
        file: FIFO,
        find: "if self.is_ready(head) {
            self.disarm();",
        replace: "if false {
            self.disarm();",
        found_by: model("loom_signal", "no_signal_is_lost_and_no_reader_sleeps_on"),
    },
    Mutant {
        name: "signal-mark-before-wake",
        breaks: "S3: a sender takes the mark, then stops before the wake",
        file: FIFO,
        find: "wake(&self.entry.control);
        if seen & ASLEEP != 0 {
            let awake = seen & !ASLEEP;
            let _ = asleep.compare_exchange(seen, awake, Ordering::AcqRel, Ordering::Relaxed);
        }",
        replace: "if seen & ASLEEP != 0 {
            let awake = seen & !ASLEEP;
            let _ = asleep.compare_exchange(seen, awake, Ordering::AcqRel, Ordering::Relaxed);
        }
        wake(&self.entry.control);",
        found_by: model("loom_wakes", "a_listener_beside_a_stopped_sender"),
    },
];
