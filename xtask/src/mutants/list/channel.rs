//! Channels: M1 to M6 of `shm/channel`.

use super::{Mutant, model};

const READER: &str = "crates/shm/src/channel/reader.rs";
const WRITER: &str = "crates/shm/src/channel/writer.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "channel-take-back",
        breaks: "M1: of several writers one takes a unit that holds a later position",
        file: WRITER,
        find: "if found.phase() != UnitPhase::Empty && found.position() >= position {
            return false;
        }",
        replace: "",
        found_by: model("loom_channel", "callers_do_not_mix"),
    },
    Mutant {
        name: "channel-copy-unchecked",
        breaks: "M2: what was overwritten during the copy counts",
        file: READER,
        find: "(unit.stamp().load(Ordering::Relaxed) == before.0).then_some(out.len())",
        replace: "Some(out.len())",
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
];
