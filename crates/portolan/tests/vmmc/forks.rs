//! `fork` without `exec`, in exporter and importer.

use crate::child::Child;
use crate::{domain, export};
use portolan::vmmc::{Export, ExportMemory, Import, Reach};
use portolan_sys::process::{PidFd, Signal, signal};
use portolan_testkit::{unique, until};
use std::io::{Read, Write};

/// What a forked child finds of what it has copies of.
pub(crate) fn found(
    export: Option<&Export>,
    memory: Option<&ExportMemory>,
    import: Option<&Import>,
) -> String {
    let memory = memory.map(|memory| (memory.write(0, b"child"), memory.words().err()));
    let import = import.map(|import| {
        (
            import.write(0, b"child"),
            import.check(),
            import.begin_write(0, "x").err().map(|e| e.why),
        )
    });
    let name = export.map(Export::name);
    let new = ExportMemory::new(4096)
        .map(|_| ())
        .map_err(|e| e.to_string().contains("forked"));
    format!("{name:?} {memory:?} {import:?} {new:?}")
}

/// Forks; the child says what comes of `act`, then sleeps until it is killed. Its id, and what it
/// says.
pub(crate) fn fork(act: impl FnOnce() -> String) -> std::io::Result<String> {
    let (mut read, mut write) = std::io::pipe()?;
    // SAFETY:
    // - The child calls the library, whose refusal is what is tested, writes to a pipe, and is
    //   killed. The harness runs no other thread that holds a lock we need.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _ = writeln!(write, "{}", act());
        drop(write);
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1000));
        }
    }
    drop(write);
    let mut said = String::new();
    read.read_to_string(&mut said)?;
    Ok(format!("{pid} {}", said.trim()))
}

pub(crate) fn end(pid: u32) {
    let pidfd = PidFd::open(pid).unwrap();
    signal(&pidfd, Signal::KILL).unwrap();
}

fn forked(child: &mut Child) -> (u32, String) {
    let answer = child.ask("fork");
    let (pid, said) = answer.split_once(' ').unwrap();
    (pid.parse().unwrap(), said.to_owned())
}

#[test]
fn a_forked_child_of_an_exporter_has_nothing_and_hides_no_death() {
    let name = unique("fork-exporter");
    let mut exporter = Child::exporter(&name, 1);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("store 0 5"), "done");
    let (pid, said) = forked(&mut exporter);
    assert_eq!(
        said,
        r#"Some("x") Some((Err(Disowned(Forked)), Some(Disowned(Forked)))) None Err(true)"#
    );
    // The parent is what it was.
    assert_eq!(exporter.ask("load own 0"), "5");
    assert_eq!(importer.ask("store 0 6"), "done");
    assert_eq!(exporter.ask("load own 0"), "6");
    exporter.kill();
    until("it knows of the death", || {
        importer.ask("check") == "Err(ExporterDied)"
    });
    end(pid);
}

#[test]
fn a_forked_child_of_an_importer_has_nothing_and_keeps_nothing() {
    let name = unique("fork-importer");
    let mut exporter = Child::exporter(&name, 1);
    let mut importer = Child::importer(&name);
    let (pid, said) = forked(&mut importer);
    assert_eq!(
        said,
        "None None Some((Err(Disowned(Forked)), Err(Disowned(Forked)), Some(Disowned(Forked)))) Err(true)"
    );
    assert_eq!(importer.ask("store 8 7"), "done");
    assert_eq!(exporter.ask("load own 8"), "7");
    importer.kill();
    assert_eq!(exporter.ask("unexport"), "done");
    assert_eq!(exporter.ask("load own 8"), "7");
    end(pid);
}

#[test]
fn a_copy_of_an_exporter_or_an_importer_hides_no_death() {
    let name = unique("copied");
    let mut exporter = Child::exporter(&name, 1);
    let mut importer = Child::importer(&name);
    let _copy = exporter.copied();
    exporter.kill();
    until("it knows of the death", || {
        importer.ask("check") == "Err(ExporterDied)"
    });

    let (domain, name) = domain("copied");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    let _copy = importer.copied();
    assert_eq!(export.importers(), 1);
    importer.kill();
    until("it is forgotten", || export.importers() == 0);
}
