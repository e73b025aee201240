//! Lists mutants of channels: M1 to M9 of `shm/channel`.

use super::{Mutant, library, model, shm};

const HANDLERS: &str = "crates/shm/src/channel/handlers.rs";
const READER: &str = "crates/shm/src/channel/reader.rs";
const WRITER: &str = "crates/shm/src/channel/writer.rs";
const TAKEN_BACK: &str = "crates/shm/src/channel/taken_back.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "channel-take-back",
        breaks: "M1: of several writers one takes a unit that holds a later position",
        file: WRITER,
        find: "while found.phase() == UnitPhase::Empty || found.position() < position {",
        replace: "while found.phase() == UnitPhase::Empty || position < POSITIONS {",
        found_by: model("loom_channel", "callers_do_not_mix"),
    },
    Mutant {
        name: "channel-copy-unchecked",
        breaks: "M2: what was overwritten during the copy counts",
        file: READER,
        find: "(unit.stamp().load(Ordering::Relaxed) == before.0).then_some(out.len())",
        replace: "Some(out.len())",
        found_by: model(
            "loom_channel",
            "an_overtaken_reader_never_sees_a_torn_unit_that_it_looked_at",
        ),
    },
    Mutant {
        name: "channel-take-unchecked",
        breaks: "M2: the same, of a message that is read in one go",
        file: READER,
        find: "// As in `copy`.
        fence(Ordering::Acquire);
        if unit.stamp().load(Ordering::Relaxed) != stamp.0 {",
        replace: "if false {",
        found_by: model("loom_channel", "an_overtaken_reader_never_sees_a_torn_unit"),
    },
    Mutant {
        name: "channel-begin-unfenced",
        breaks: "M2: a reader sees words of a later position and not its stamp",
        file: WRITER,
        find:
            "// Pairs with the reader's acquire fence: who sees a word of what follows sees `busy`.
        fence(Ordering::Release);",
        replace: "",
        found_by: model("loom_channel", "an_overtaken_reader_never_sees_a_torn_unit"),
    },
    Mutant {
        name: "channel-begins-anywhere",
        breaks: "M3: what has no beginning is read as a message",
        file: READER,
        find: "if reading.seeks && !meta.has(Meta::FIRST) {",
        replace: "if false && !meta.has(Meta::FIRST) {",
        found_by: shm("channel", "a_lossy_stream"),
    },
    Mutant {
        name: "channel-join-unfenced",
        breaks: "M4: neither the reader that joins nor the writer sees the other",
        file: READER,
        find: "store_load_barrier();
            fence(Ordering::SeqCst);
            let next = self.head.writer.next.load(Ordering::Acquire);",
        replace: "let next = self.head.writer.next.load(Ordering::Acquire);",
        found_by: model("loom_channel", "a_reader_that_joins_is_waited_for"),
    },
    Mutant {
        name: "channel-looked-at-twice",
        breaks: "M5: a unit is published between two looks of a reader that is about to sleep",
        file: READER,
        find: "|| self.mode.many_writers && self.is_overtaken(reading, stamp)",
        replace: "|| self.is_stuck(reading)",
        found_by: model("loom_wakes", "a_reader_beside_a_stopped_writer"),
    },
    Mutant {
        name: "channel-sleep-unlooked",
        breaks: "M5: a reader sleeps without a look after its announcement",
        file: READER,
        find: "((!self.has_more(reading)).then_some(bell), owed)",
        replace: "(Some(bell), owed)",
        found_by: model("loom_channel", "no_reader_sleeps_on"),
    },
    Mutant {
        name: "channel-relax-unfenced",
        breaks: "M6: a writer does without barriers and a reader has not seen that it does",
        file: "crates/shm/src/channel/writer/waking.rs",
        find: "fence(Ordering::SeqCst);
            pen.relaxed = true;",
        replace: "pen.relaxed = true;",
        found_by: model(
            "loom_channel",
            "no_reader_sleeps_on_beside_a_writer_without_barriers",
        ),
    },
    Mutant {
        name: "channel-publish-by-store",
        breaks: "M1: a writer that others have lapped publishes what is not its own",
        file: WRITER,
        find: "let published =
                unit.stamp()
                    .compare_exchange(busy, done, Ordering::AcqRel, Ordering::Relaxed);",
        replace: "let _ = busy;
            unit.stamp().store(done, Ordering::Release);
            let published = Ok::<u64, u64>(0);",
        found_by: model("loom_channel", "a_writer_that_is_lapped_takes_nothing_back"),
    },
    Mutant {
        name: "channel-reclaim-voids-nothing",
        breaks: "M2: what a dead writer of many had begun is never done",
        file: "crates/shm/src/channel/mod.rs",
        find: "self.void_units_of(space);",
        replace: "",
        found_by: model("loom_channel", "a_writer_of_many_dies"),
    },
    Mutant {
        name: "channel-room-unlooked",
        breaks: "M5: a reader that polls and never sleeps does not look whether the writer waits",
        file: READER,
        find: "if !(reading.moved || reading.owed) {",
        replace: "if true {",
        found_by: model(
            "loom_wakes",
            "a_writer_that_waits_for_more_room_than_the_last_quarter_made",
        ),
    },
    Mutant {
        name: "channel-polled-unlooked",
        breaks: "M5: a wait set looks at a reader in vain, and its writer waits on",
        file: "crates/portolan/src/channel/reader/wait.rs",
        find: "self.tell_of_room();
        false",
        replace: "false",
        found_by: library("channel", "polled::a_set_that_is_asked_now_and_then"),
    },
    Mutant {
        name: "channel-mark-before-wake",
        breaks: "M7: a waker takes the mark, then stops before the wake",
        file: "crates/shm/src/channel/mod.rs",
        find: "let seen = sleepers.load(Ordering::Acquire);
        self.change_doorbell();",
        replace: "let seen = sleepers.fetch_and(!ASLEEP, Ordering::AcqRel);
        self.change_doorbell();",
        found_by: model("loom_wakes", "a_reader_beside_a_stopped_writer"),
    },
    Mutant {
        name: "channel-no-arming-count",
        breaks: "M7: a waker takes the mark of a reader that it did not wake",
        file: "crates/shm/src/channel/mod.rs",
        find: "sleepers.fetch_add(ARMING, Ordering::AcqRel);",
        replace: "",
        found_by: model(
            "loom_wakes",
            "two_readers_of_a_writer_that_rouses_one_while_the_other_arms",
        ),
    },
    Mutant {
        name: "channel-handled-unasked",
        breaks: "M8: a reader that enables signals has no barrier made beside a relaxed writer",
        file: HANDLERS,
        find: "self.fence_relaxed(reading, barriers);",
        replace: "let _ = barriers;",
        found_by: model(
            "loom_handled",
            "what_is_not_found_is_signalled_by_a_writer_without_barriers",
        ),
    },
    Mutant {
        name: "channel-handled-uncounted",
        breaks: "M8: the mark of a reader that enables is taken back under its hands",
        file: HANDLERS,
        find: "sleepers.fetch_add(ARMING, Ordering::AcqRel);",
        replace: "let _ = ARMING;",
        found_by: model("loom_handled", "a_mark_that_is_taken_back_is_nobody_elses"),
    },
    Mutant {
        name: "channel-handled-unlooked",
        breaks: "M8: the mark is taken back although a reader has handlers",
        file: HANDLERS,
        find: "if !self.readers.iter().any(wants) {",
        replace: "let _ = wants;
        {",
        found_by: model("loom_handled", "a_mark_that_is_taken_back_is_nobody_elses"),
    },
    Mutant {
        name: "channel-never-taken-back",
        breaks: "M9: a writer uses memory again that a reference leads to",
        file: TAKEN_BACK,
        find: "first.swap(word, Ordering::SeqCst);",
        replace: "let _ = (first, word);",
        found_by: model("loom_kept", "memory_is_written_again_under_no_reader"),
    },
    Mutant {
        name: "channel-taken-back-unfenced",
        breaks: "M9: neither the writer nor the reader sees what the other one has written",
        file: TAKEN_BACK,
        find: "first.swap(word, Ordering::SeqCst);
            store_load_barrier();",
        replace: "first.store(word, Ordering::Relaxed);",
        found_by: model("loom_kept", "memory_is_written_again_under_no_reader"),
    },
    Mutant {
        name: "channel-second-look-at-the-word-alone",
        breaks: "M9: a later message in the same unit is taken for the one that was read",
        file: TAKEN_BACK,
        find: "(is_of_position && first == word)",
        replace: "((is_of_position || true) && first == word)",
        found_by: model("loom_kept", "memory_is_written_again_after_its_unit_was"),
    },
    Mutant {
        name: "channel-second-look-at-the-stamp-first",
        breaks: "M9: the word is of a later message than the stamp",
        file: TAKEN_BACK,
        find: "        let first = unit.payload().first()?.load(Ordering::SeqCst);
        // As in `copy`: if the word is of a later message, so is the stamp.
        fence(Ordering::Acquire);
        let stamp = Stamp(unit.stamp().load(Ordering::Relaxed));",
        replace: "        let stamp = Stamp(unit.stamp().load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let first = unit.payload().first()?.load(Ordering::SeqCst);",
        found_by: model("loom_kept", "memory_is_written_again_before_its_unit_is"),
    },
];
