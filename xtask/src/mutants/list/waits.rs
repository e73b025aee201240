//! Lists mutants of wait sets: the promises in the header of `shm/wait_set`.

use super::{Mutant, model};

const FILE: &str = "crates/shm/src/wait_set.rs";
const MODEL: &str = "no_ready_member_is_slept_over";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "wait-set-sleep-unlooked",
        breaks: "no wake is lost: a waiter sleeps without a look after its announcement",
        file: FILE,
        find: "if self.summit.load(Ordering::SeqCst) != 0 {",
        replace: "if false {",
        found_by: model("loom_owner", MODEL),
    },
    Mutant {
        name: "wait-set-summit-first",
        breaks: "no wake is lost: the bits above are set before those below",
        file: FILE,
        find: "self.leaves[leaf].fetch_or(1 << (member % 64), Ordering::AcqRel);
        self.ridges[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::AcqRel);
        self.summit.fetch_or(1 << (leaf / 64), Ordering::SeqCst);",
        replace: "self.summit.fetch_or(1 << (leaf / 64), Ordering::SeqCst);
        self.ridges[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::AcqRel);
        self.leaves[leaf].fetch_or(1 << (member % 64), Ordering::AcqRel);",
        found_by: model("loom_owner", MODEL),
    },
    Mutant {
        name: "wait-set-drain-by-store",
        breaks: "no wake is lost: a bit that is set while its word is cleared goes with it",
        file: FILE,
        find: "for b in bits(self.leaves[leaf].swap(0, Ordering::AcqRel)) {",
        replace: "let word = self.leaves[leaf].load(Ordering::Acquire);
                self.leaves[leaf].store(0, Ordering::Release);
                for b in bits(word) {",
        found_by: model("loom_owner", "no_ready_member_of_one_leaf_is_slept_over"),
    },
];
