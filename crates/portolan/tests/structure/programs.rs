//! Two programs that were built in different ways work on one structure in turn.

use super::steps::{Chart, STEPS, begin, check, model, step};
use super::{PATIENCE, unique};
use portolan::structure::Structure;
use portolan::{Access, Deadline, Domain, Message, PortOptions};
use std::path::PathBuf;
use std::process::{Child, Command};

/// The other program; it ends with the test.
pub(crate) struct Twin(Child);

impl Twin {
    fn start(domain: &str) -> Self {
        Self::run(&[domain])
    }

    pub(crate) fn run(arguments: &[&str]) -> Self {
        let path = Self::path();
        let child = Command::new(&path).args(arguments).spawn();
        Self(child.unwrap_or_else(|e| {
            panic!(
                "{}: {e} (cargo test without --test builds it; so does cargo build --examples)",
                path.display()
            )
        }))
    }

    /// Waits until it has ended by itself, without a failure.
    pub(crate) fn ends(&mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Where cargo puts an example: beside the directory of the tests.
    fn path() -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(|deps| deps.parent()).unwrap();
        profile.join("examples").join("structure_twin")
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs all steps; the test's program takes those that `ours` says.
fn in_turn(domain: &Domain, name: &str, ours: impl Fn(u32) -> bool) {
    let mut port = domain.bind(PortOptions::named("test")).unwrap();
    let _twin = Twin::start(name);
    let hello = port.receive(Access::Now, PATIENCE).unwrap();
    let there = usize::from_le_bytes(*hello.header().first_chunk().unwrap());
    let here = (step as *const ()).addr();
    assert_ne!(
        here, there,
        "the two programs' code lies at different addresses"
    );
    let twin = domain.connect("twin", PATIENCE).unwrap();

    let structure = Structure::<Chart>::build(domain, |arena| Ok(begin(arena))).unwrap();
    let mut message = structure.into_message();
    for number in 0..STEPS {
        check(message.root::<Chart>().unwrap(), &model(number));
        if ours(number) {
            let done = message.edit::<Chart, _>(|chart, arena| step(chart, arena, number));
            done.unwrap().unwrap();
        } else {
            message
                .set_header(&[u8::try_from(number).unwrap()])
                .unwrap();
            twin.send(message, Deadline::from(PATIENCE)).unwrap();
            message = port.receive(Access::Later, PATIENCE).unwrap();
            assert_eq!(u32::from(message.header()[0]), number + 1);
        }
    }
    check(message.root::<Chart>().unwrap(), &model(STEPS));
    twin.send(Message::default(), Deadline::from(PATIENCE))
        .unwrap();
}

#[test]
fn programs_take_turns() {
    let name = unique("turns");
    in_turn(&Domain::join(&name).unwrap(), &name, |step| step % 2 == 0);
}

#[test]
fn programs_take_turns_the_other_way_round() {
    let name = unique("other");
    in_turn(&Domain::join(&name).unwrap(), &name, |step| step % 2 == 1);
}

#[test]
fn one_program_builds_and_the_other_does_the_rest() {
    let name = unique("rest");
    in_turn(&Domain::join(&name).unwrap(), &name, |_| false);
}

#[test]
fn programs_take_turns_in_a_guarded_domain() {
    let name = unique("guarded");
    let domain = Domain::builder(&name)
        .protection(portolan::Protection::Guarded)
        .join()
        .unwrap();
    in_turn(&domain, &name, |step| step % 2 == 0);
}
