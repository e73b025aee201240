//! One node of a run: the daemon as `portolan-node up` runs it, in a process that passes marks.

use super::super::board::{Board, enlist};
use portolan_node::state::State;
use portolan_node::up::Start;
use portolan_transport::clock::SystemClock;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// What a node was told on its command line.
pub(crate) struct Task<'a> {
    pub(crate) board: &'a Path,
    pub(crate) place: usize,
    pub(crate) state: &'a Path,
    pub(crate) sabotage: Option<&'a str>,
}

/// Runs a node until it is killed.
pub(crate) fn run(task: &Task<'_>) -> ExitCode {
    match Board::open(task.board) {
        Ok(board) => drop(enlist(board, task.place)),
        Err(error) => {
            eprintln!("no board: {error}");
            return ExitCode::FAILURE;
        }
    }
    if let Some(rule) = task.sabotage {
        portolan_node::sabotage::switch_off(rule);
    }
    let clock = Arc::new(SystemClock::default());
    let ran = State::at(task.state).and_then(|state| {
        portolan_node::up::run(&state, clock, Start::Alone, |_| eprintln!("listens"))
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the node has failed: {error}");
            ExitCode::FAILURE
        }
    }
}
