//! Lists the mutants, by the room whose invariants they break.

mod byte_ring;
mod calls;
mod channel;
mod entries;
mod memory;
mod nodes;
mod queue;
mod rights;
mod signal;
mod sleeps;
mod trace;
mod waits;

use super::{Mutant, Test};

/// All of them, room by room.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    let rooms: [&'static [Mutant]; 12] = [
        queue::MUTANTS,
        memory::MUTANTS,
        rights::MUTANTS,
        entries::MUTANTS,
        waits::MUTANTS,
        sleeps::MUTANTS,
        signal::MUTANTS,
        channel::MUTANTS,
        byte_ring::MUTANTS,
        calls::MUTANTS,
        trace::MUTANTS,
        nodes::MUTANTS,
    ];
    rooms.into_iter().flatten()
}

/// A test of `crates/shm/tests/FILE.rs` under loom.
const fn model(file: &'static str, name: &'static str) -> Test {
    Test::Model { file, name }
}

/// A test of `crates/shm/tests/TARGET.rs`.
const fn shm(target: &'static str, name: &'static str) -> Test {
    Test::Of {
        folder: "shm",
        target,
        name,
    }
}

/// A test of `crates/portolan/tests/TARGET`.
const fn library(target: &'static str, name: &'static str) -> Test {
    Test::Of {
        folder: "portolan",
        target,
        name,
    }
}
