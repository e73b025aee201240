//! Lists mutants of extents and of the chunks that they are cut from: O1 to O5 of `shm/owner`, C1
//! to C3 of `shm/chunk`.

use super::{Mutant, model, shm};

const OWNER: &str = "crates/shm/src/owner.rs";
const CHUNK: &str = "crates/shm/src/chunk.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "owner-sent-by-store",
        breaks: "O1: who has sent an extent clears the row although the extent is back",
        file: OWNER,
        find: "let _ = self.word.compare_exchange(
            word,
            OwnerWord::NONE.0,
            Ordering::Release,
            Ordering::Relaxed,
        );",
        replace: "let _ = word;
        self.word.store(OwnerWord::NONE.0, Ordering::Release);",
        found_by: model("loom_owner", "an_extent_comes_back_to_its_sender"),
    },
    Mutant {
        name: "owner-no-stamp",
        breaks: "O1: who has sent an extent clears the row of its next send",
        file: OWNER,
        find: "OwnerWord::new(Hold::Sending, generation).0 | stamp << STAMP_SHIFT",
        replace: "OwnerWord::new(Hold::Sending, generation).0 | (stamp & 0) << STAMP_SHIFT",
        found_by: model("loom_owner", "an_extent_is_sent_on_by_its_sender"),
    },
    Mutant {
        name: "owner-row-left",
        breaks: "O2: the host leaves the row of the dead as it was",
        file: OWNER,
        find: "mark!(\"reclaim.row\");
        row.clear(page);",
        replace: "mark!(\"reclaim.row\");",
        found_by: model("loom_death", "a_freer_dies"),
    },
    Mutant {
        name: "owner-reclaim-any-use",
        breaks: "O3: the host frees a later use of an extent that the dead had freed",
        file: OWNER,
        find: "&& was.generation() == generation
            && self.words",
        replace: "&& { let _ = generation; true }
            && self.words",
        found_by: model("loom_death", "a_freer_dies"),
    },
    Mutant {
        name: "owner-free-relaxed",
        breaks: "O4: a space that allocates an extent uses its bytes beside the space that freed it",
        file: OWNER,
        find: ".store(AllocWord::new(Alloc::Free, generation).0, Ordering::Release);",
        replace: ".store(AllocWord::new(Alloc::Free, generation).0, Ordering::Relaxed);",
        found_by: model(
            "loom_bytes",
            "the_bytes_of_a_freed_extent_are_its_next_holders",
        ),
    },
    Mutant {
        name: "owner-allocate-relaxed",
        breaks: "O4: who allocates an extent that was cut anew uses bytes beside an earlier holder",
        file: OWNER,
        find: "AllocWord::used(generation, row.space, born).0,
                Ordering::AcqRel,",
        replace: "AllocWord::used(generation, row.space, born).0,
                Ordering::Relaxed,",
        found_by: model(
            "loom_bytes",
            "the_bytes_of_an_extent_that_was_cut_anew_are_its_allocators",
        ),
    },
    Mutant {
        name: "owner-any-allocator",
        breaks: "O5: the host frees what somebody else allocated while the dead tried to",
        file: OWNER,
        find: "&& now.allocator() == row.space",
        replace: "",
        found_by: model("loom_death", "an_allocator_dies"),
    },
    Mutant {
        name: "chunk-not-looked-at-again",
        breaks: "C1: an allocator believes in a cut that is gone",
        file: CHUNK,
        find: "matches!(word.r#use, ChunkUse::Small | ChunkUse::Head) && word.size == size.code()
    }",
        replace: "let _ = (word, size);
        true
    }",
        found_by: model("loom_bytes", "an_extent_of_another_cut_is_not_allocated"),
    },
    Mutant {
        name: "chunk-head-first",
        breaks: "C2: a run that is half given back shows no head",
        file: CHUNK,
        find: "for i in (index..index + count).rev() {",
        replace: "for i in index..index + count {",
        found_by: model("loom_death", "a_giver_dies"),
    },
    Mutant {
        name: "chunk-taken-without-memory",
        breaks: "C3: a chunk whose taker died while its memory came is free at once",
        file: CHUNK,
        find: "ChunkUse::Taking if word.populated => {",
        replace: "ChunkUse::Taking => {",
        found_by: shm(
            "chunk",
            "a_chunk_whose_taker_died_waits_until_its_memory_is_gone",
        ),
    },
];
