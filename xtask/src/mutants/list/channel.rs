//! Channels: M1 to M6 of `shm/channel`.

use super::{Mutant, model, shm};

const READER: &str = "crates/shm/src/channel/reader.rs";
const WRITER: &str = "crates/shm/src/channel/writer.rs";

pub(super) const MUTANTS: &[Mutant] = &[
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
];
