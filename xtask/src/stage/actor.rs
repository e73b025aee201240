//! An actor is one process of a scene.
//!
//! It says `ready PORTS PENDING SENDS READERS` once it stands where the scene wants it: the
//! receive rights, the unanswered requests, the live send rights and the entries as a reader
//! of channels that it has, which are its journal. A victim waits for a line then, its cue;
//! everybody else stays until killed.

use super::{Failure, PATIENCE, Part, Scene};
use crate::torture::{MEMORY_LIMIT, SIZE};
use portolan::Domain;
use rustix::process::{Pid, Signal};
use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;

/// The mark at which this process dies.
static DEADLY: OnceLock<&'static str> = OnceLock::new();

fn passed(mark: &'static str) {
    let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
    if let Some(own) = own.filter(|_| DEADLY.get() == Some(&mark)) {
        // Cannot fail: a process may send itself signals. It dies before the call returns.
        let _ = rustix::process::kill_process(own, Signal::KILL);
    }
}

/// A process of a scene, and its membership.
pub(crate) struct Actor {
    pub(crate) domain: Domain,
    mark: &'static str,
}

/// Plays a part.
pub(crate) fn run(scene: &'static Scene, part: Part, domain: &str, off: bool) -> ExitCode {
    match play(scene, part, domain, off) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}: the {}: {failure}", scene.name, part.name());
            ExitCode::FAILURE
        }
    }
}

fn play(scene: &'static Scene, part: Part, domain: &str, off: bool) -> Result<(), Failure> {
    if off {
        portolan::sabotage::switch_off(scene.rule);
    }
    let builder = Domain::builder(domain).size(SIZE).limit(MEMORY_LIMIT);
    let actor = Actor {
        domain: builder.deadline(PATIENCE).join()?,
        mark: scene.mark,
    };
    match part {
        Part::Host => {
            actor.ready(0, 0)?;
            stay()
        }
        Part::Survivor => (scene.survivor)(&actor),
        Part::Victim => {
            (scene.victim)(&actor)?;
            Err(format!("it has not passed {:?}", scene.mark).into())
        }
    }
}

impl Actor {
    /// Says that it stands, with so many receive rights and unanswered requests.
    pub(crate) fn ready(&self, ports: usize, pending: usize) -> Result<(), Failure> {
        self.ready_with(ports, pending, 0, 0)
    }

    /// As [`Self::ready`], with so many live send rights and rights on segments, and so many
    /// readers of channels, as well.
    pub(crate) fn ready_with(
        &self,
        ports: usize,
        pending: usize,
        sends: usize,
        readers: usize,
    ) -> Result<(), Failure> {
        println!("ready {ports} {pending} {sends} {readers}");
        Ok(std::io::stdout().flush()?)
    }

    /// Says that it stands, and waits for its cue. From here on the mark is deadly.
    pub(crate) fn await_cue(&self) -> Result<(), Failure> {
        self.ready(0, 0)?;
        if std::io::stdin().read_line(&mut String::new())? == 0 {
            return Err("there was no cue".into());
        }
        DEADLY.set(self.mark).map_err(|_| "a second cue")?;
        portolan_shm::mark::install(passed);
        Ok(())
    }
}

/// Holds what it holds, until killed.
pub(crate) fn stay() -> Result<(), Failure> {
    while std::io::stdin().read_line(&mut String::new())? != 0 {}
    Err("the director is gone".into())
}
