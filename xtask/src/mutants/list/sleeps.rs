//! Lists mutants of sleeps on many things at once: the promises in the headers of `sys/process/poller`
//! and `sys/bell/ring`.

use super::{Mutant, Test};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "poller-time-that-has-come",
        breaks: "a near time ends a sleep: one that has run out since an earlier call is waited for",
        file: "crates/sys/src/process/poller/ring.rs",
        find: "        self.drain()?;
        self.let_go(on)?;",
        replace: "        let near = self.near;
        self.drain()?;
        self.near = near;
        self.let_go(on)?;",
        found_by: Test::Beside {
            folder: "sys",
            file: "src/process/poller/mod.rs",
            name: "process::poller::tests::a_near_time_that_has_come_before_a_call_is_not_what_ends_it",
        },
    },
    Mutant {
        name: "bell-look-takes-what-it-does-not-tell",
        breaks: "what a call finds and does not take keeps the descriptor readable: it is slept over",
        file: "crates/sys/src/bell/ring.rs",
        find: "        self.tell()?;
        Ok(fired)",
        replace: "        Ok(fired)",
        found_by: Test::Of {
            folder: "sys",
            target: "words",
            name: "what_a_call_finds_and_does_not_take_keeps_the_descriptor_readable",
        },
    },
];
