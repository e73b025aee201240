//! Ordinary memory that the domain's host copies to and from: hosts, exporters and importers that
//! leave, die, stop, fork, or become another program.

use crate::brokered::{OTHER, hosted, importer, root};
use crate::child::Child;
use crate::domain;
use crate::kernel::{content, lend_zeros};
use portolan::vmmc::{ExportError, ExportOptions, Import, OrdinaryMemory, Reach, UpdateError};
use portolan_testkit::{PATIENCE, unique, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Writes that go on under every host, each read back.
pub(crate) struct Weather {
    calm: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Result<u64, UpdateError>>,
}

impl Weather {
    pub(crate) fn begin(import: &Arc<Import>) -> Self {
        let (calm, rounds) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let import = Arc::clone(import);
        let (its_calm, its_rounds) = (Arc::clone(&calm), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || rage(&import, &its_calm, &its_rounds));
        Self {
            calm,
            rounds,
            thread,
        }
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// How many writes were not answered.
    pub(crate) fn calm(self) -> String {
        self.calm.store(true, Ordering::Relaxed);
        self.end()
    }

    /// Waits until it ends by itself, and says why.
    pub(crate) fn end(self) -> String {
        until("the weather ends", || self.thread.is_finished());
        match self.thread.join() {
            Ok(Ok(unanswered)) => format!("{unanswered} unanswered"),
            other => format!("{other:?}"),
        }
    }
}

fn rage(import: &Import, calm: &AtomicBool, rounds: &AtomicU64) -> Result<u64, UpdateError> {
    let mut unanswered = 0;
    let mut round = 0_u64;
    while !calm.load(Ordering::Relaxed) {
        round += 1;
        let bytes = vec![round.to_le_bytes()[0].max(1); import.len()];
        // An unanswered write may have landed: repeat it, because no other process writes there.
        while let Err(error) = import.write(0, &bytes) {
            match error {
                UpdateError::Unanswered => unanswered += 1,
                other => return Err(other),
            }
        }
        let mut back = vec![0; import.len()];
        import.read(0, &mut back)?;
        assert!(back == bytes, "what was answered has not landed");
        rounds.store(round, Ordering::Relaxed);
    }
    Ok(unanswered)
}

fn weather_rounds(importer: &mut Child) -> u64 {
    importer.ask("weather-rounds").parse().unwrap()
}

fn goes_on(importer: &mut Child) {
    let now = weather_rounds(importer);
    until("the weather goes on", || weather_rounds(importer) > now + 2);
}

#[test]
fn a_host_that_leaves_loses_no_write() {
    if !root() {
        return;
    }
    let (mut host, domain, name) = hosted("leaves");
    let (memory, export) = lend_zeros(&domain, 300_000);
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("weather"), "done");
    goes_on(&mut theirs);
    // Several times, with each successor.
    for _ in 0..3 {
        let mut next = Child::new();
        assert_eq!(next.ask(&format!("join {name}")), "done");
        assert_eq!(host.ask("leave"), "done");
        goes_on(&mut theirs);
        host = next;
    }
    assert_eq!(theirs.ask("calm"), "0 unanswered");
    let bytes = content(&memory);
    assert!(bytes[0] != 0 && bytes.iter().all(|byte| *byte == bytes[0]));
    export.unexport().unwrap();
}

#[test]
fn a_host_that_is_killed_loses_no_write_without_a_word() {
    if !root() {
        return;
    }
    for _ in 0..3 {
        let (mut host, domain, name) = hosted("killed");
        let (memory, export) = lend_zeros(&domain, 300_000);
        let mut theirs = importer(&name);
        assert_eq!(theirs.ask("weather"), "done");
        goes_on(&mut theirs);
        host.kill();
        goes_on(&mut theirs);
        let calm = theirs.ask("calm");
        // One write was under way, at most.
        assert!(
            ["0 unanswered", "1 unanswered"].contains(&calm.as_str()),
            "{calm}"
        );
        let bytes = content(&memory);
        assert!(bytes[0] != 0 && bytes.iter().all(|byte| *byte == bytes[0]));
        export.unexport().unwrap();
        assert!(theirs.ask("write 0 1 1").contains("Revoked"));
    }
}

#[test]
fn while_the_host_is_stopped_an_export_does_not_end_and_says_so() {
    if !root() {
        return;
    }
    let (host, domain, name) = hosted("stopped");
    let (memory, export) = lend_zeros(&domain, 10);
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 0 1 1"), "done");
    host.stop();
    let failed = export.unexport().unwrap_err();
    assert!(matches!(failed.why, ExportError::Unanswered), "{failed}");
    host.resume();
    failed.item.unexport().unwrap();
    assert_eq!(memory.into_vec().unwrap()[0], 1);
    assert!(theirs.ask("write 0 1 2").contains("Revoked"));
}

#[test]
fn exporters_that_die_or_run_another_program_are_reached_no_more() {
    if !root() {
        return;
    }
    let (domain, name) = domain("ends");
    for (end, wanted) in [("die", "ExporterDied"), ("exec", "Disconnected")] {
        let mut exporter = Child::new();
        assert_eq!(exporter.ask(&format!("join {name}")), "done");
        assert_eq!(exporter.ask("export-ordinary x 4000000"), "done");
        let mut theirs = importer(&name);
        assert_eq!(theirs.ask("weather"), "done");
        goes_on(&mut theirs);
        match end {
            "die" => exporter.kill(),
            _ => exporter.tell("exec"),
        }
        until("it is told", || {
            let over = exporter.ended();
            let answer = theirs.ask("read 0 1");
            assert!(!answer.starts_with('[') || !over, "it reads the dead");
            answer.contains(wanted)
        });
        let why = theirs.ask("weather-end");
        let died = why.contains("ExporterDied") || why.contains("Disconnected");
        assert!(died, "{why}");
        drop(exporter);
        until("its name is free", || {
            let memory = OrdinaryMemory::from(vec![0; 10]);
            let options = ExportOptions::new(Reach::Read);
            domain.export(&memory, "x", &options, PATIENCE).is_ok()
        });
    }
}

#[test]
fn importers_that_are_killed_leave_nothing_at_the_host() {
    if !root() {
        return;
    }
    let (domain, name) = domain("leftovers");
    let (_memory, export) = lend_zeros(&domain, 1 << 20);
    let staging = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|l| l.contains("portolan-staging"))
            .count()
    };
    // Other tests of this process may host, too.
    let mut most = 0;
    for _ in 0..10 {
        let mut theirs = importer(&name);
        assert_eq!(theirs.ask("weather"), "done");
        goes_on(&mut theirs);
        most = most.max(staging());
        theirs.kill();
    }
    assert!(most > 0);
    until("the dead are forgotten", || export.importers() == 0);
    until("what they had is given back", || staging() == 0);
    export.unexport().unwrap();
}

/// How many descriptors of some process's memory this process has; one that is forked from it
/// comes to have none.
pub(crate) fn fork_without_memory() -> usize {
    let opened = |pid: &str| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        let of_memory = links.filter(|link| link.ends_with("mem") || link.ends_with("maps"));
        of_memory.count()
    };
    let ours = opened("self");
    // SAFETY:
    // - The child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY:
            // - Takes no pointers.
            unsafe { libc::pause() };
        }
    }
    until("the child has let go", || opened(&child.to_string()) == 0);
    // SAFETY:
    // - Takes no pointers; our own child, which is waited for below.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY:
    // - No status is wanted.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    ours
}

#[test]
fn forked_children_have_no_way_into_anybodys_memory() {
    if !root() {
        return;
    }
    let name = unique("forks");
    let mut exporter = Child::new();
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    assert_eq!(exporter.ask("export-ordinary x 10"), "done");
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 0 1 1"), "done");
    // Host and exporter, it has both descriptors twice.
    assert_eq!(exporter.ask("fork-without-memory"), "4");
    assert_eq!(theirs.ask("write 1 1 2"), "done");
    assert_eq!(theirs.ask("read 0 3"), "[1, 2, 0]");
    assert_eq!(exporter.ask("unexport"), "done");
    assert_eq!(exporter.ask("fork-without-memory"), "0");
}

#[cfg(feature = "marks")]
#[test]
fn a_host_is_killed_at_each_step_of_copying() {
    if !root() {
        return;
    }
    for mark in ["broker.accepted", "broker.checked", "broker.copied"] {
        let (mut host, domain, name) = hosted("copies");
        let (memory, export) = lend_zeros(&domain, 1000);
        let mut theirs = importer(&name);
        assert_eq!(host.ask(&format!("die-at {mark}")), "done");
        let answer = theirs.ask("write 0 1000 3");
        // Only what was begun may have been done.
        match mark {
            "broker.accepted" => assert_eq!(answer, "done"),
            _ => assert!(answer.contains("Unanswered"), "{mark}: {answer}"),
        }
        until("it has died", || host.ended());
        let wanted = if mark == "broker.checked" { 0 } else { 3 };
        assert_eq!(content(&memory), [wanted; 1000], "{mark}");
        assert_eq!(theirs.ask("write 0 1000 4"), "done");
        export.unexport().unwrap();
        assert_eq!(memory.into_vec().unwrap(), [4; 1000]);
    }
}

#[cfg(feature = "marks")]
#[test]
fn a_host_is_killed_while_an_export_ends() {
    if !root() {
        return;
    }
    let (mut host, domain, name) = hosted("ending");
    let (memory, export) = lend_zeros(&domain, 10);
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 0 1 1"), "done");
    assert_eq!(host.ask("die-at broker.withdrawn"), "done");
    export.unexport().unwrap();
    assert!(host.ended());
    assert_eq!(memory.into_vec().unwrap()[0], 1);
    assert!(theirs.ask("write 0 1 2").contains("Revoked"));
}

#[cfg(feature = "marks")]
#[test]
fn an_export_waits_for_what_the_host_is_copying() {
    if !root() {
        return;
    }
    let (mut host, domain, name) = hosted("waits");
    let (memory, export) = lend_zeros(&domain, 10);
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 0 1 1"), "done");
    assert_eq!(host.ask("stop-at broker.checked"), "done");
    theirs.tell("write 0 1 2");
    host.stopped();
    let ending = export.begin_unexport();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!ending.is_done(), "it has not waited");
    host.resume();
    ending.finish().unwrap();
    let answer = theirs.answer();
    assert!(answer == "done" || answer.contains("Revoked"), "{answer}");
    assert_eq!(memory.into_vec().unwrap()[0], 2);
}

#[cfg(feature = "marks")]
#[test]
fn exporters_and_importers_are_killed_at_each_step() {
    if !root() {
        return;
    }
    let (domain, name) = domain("steps");
    let free = || {
        let memory = OrdinaryMemory::from(vec![0; 10]);
        let options = ExportOptions::new(Reach::Read);
        domain.export(&memory, "x", &options, PATIENCE).is_ok()
    };
    let mut exporter = Child::new();
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    assert_eq!(exporter.ask("die-at offer.delegated"), "done");
    assert_eq!(exporter.ask("export-ordinary x 10"), "done");
    // Its first importer of another user makes it delegate to the host.
    let mut theirs = Child::of_user(OTHER);
    theirs.tell(&format!("import {name} x of=0"));
    until("the exporter has died", || exporter.ended());
    theirs.kill();
    until("its name is free", free);
    let (memory, export) = lend_zeros(&domain, 10);
    for mark in ["brokered.connected", "brokered.asked"] {
        let mut theirs = importer(&name);
        assert_eq!(theirs.ask(&format!("die-at {mark}")), "done");
        theirs.tell("write 0 10 5");
        until("it has died", || theirs.ended());
    }
    assert_eq!(importer(&name).ask("write 9 1 6"), "done");
    export.unexport().unwrap();
    assert_eq!(memory.into_vec().unwrap()[9], 6);
}
