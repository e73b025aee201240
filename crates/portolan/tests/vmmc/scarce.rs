//! Exports larger than memory, and processes whose control group has little left.

use crate::child::Child;
use crate::domain;
use portolan_testkit::{unique, until};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// A control group with a limit of memory; goes when all processes in it have.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Below our own; `None`, and says so, where that is not allowed.
    fn new(test: &str, limit: u64) -> Option<Self> {
        let group = Self::make(test).and_then(|group| {
            group.set(limit)?;
            Ok(group)
        });
        if let Err(error) = &group {
            eprintln!("skipped: no control group for memory ({error})");
        }
        group.ok()
    }

    fn make(test: &str) -> std::io::Result<Self> {
        let ours = std::fs::read_to_string("/proc/self/cgroup")?;
        let mut lines = ours.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        let root = Path::new("/sys/fs/cgroup");
        // The first version's, if memory is among them, else the second's.
        let first = lines
            .clone()
            .find(|(names, _)| names.split(',').any(|n| n == "memory"));
        let (below, limit) = match (first, lines.find(|(names, _)| names.is_empty())) {
            (Some((_, path)), _) => (format!("memory{path}"), "memory.limit_in_bytes"),
            (None, Some((_, path))) => (path.trim_start_matches('/').to_owned(), "memory.max"),
            (None, None) => return Err(std::io::ErrorKind::NotFound.into()),
        };
        let path = root.join(below).join(unique(test));
        std::fs::create_dir(&path)?;
        let group = Self { path, limit };
        match group.path.join(limit).exists() {
            true => Ok(group),
            false => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }

    fn set(&self, limit: u64) -> std::io::Result<()> {
        std::fs::write(self.path.join(self.limit), limit.to_string())
    }

    /// A process in it.
    fn child(&self) -> Child {
        self.with(Child::new())
    }

    fn with(&self, child: Child) -> Child {
        let processes = self.path.join("cgroup.procs");
        std::fs::write(processes, child.pid().to_string()).unwrap();
        child
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("its processes have gone", || {
            let gone = std::fs::remove_dir(&self.path);
            gone.is_ok() || !self.path.exists()
        });
    }
}

/// A process with little memory that has joined a domain.
fn exporter(group: &Group, name: &str) -> Child {
    let mut child = group.child();
    assert_eq!(child.ask(&format!("join {name}")), "done");
    child
}

/// Whether a process may stop the stores of system calls, without which holes are filled.
fn keeps_holes(is_root: bool) -> bool {
    let all = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    is_root || all.is_ok_and(|all| all.trim() == "1")
}

#[test]
fn an_export_larger_than_memory_is_written_sparsely_and_ends() {
    const PAGES: u64 = (64 << 30) / 4096;
    let Some(group) = Group::new("larger", 192 * MIB) else {
        return;
    };
    let name = unique("larger");
    let mut exporter = exporter(&group, &name);
    assert_eq!(exporter.ask(&format!("export x {PAGES}")), "done");
    let mut importer = Child::importer(&name);
    let places = [0, 8 << 20, (32 << 30) + 4096, (64 << 30) - 8_u64];
    for (value, at) in (1..).zip(places) {
        assert_eq!(importer.ask(&format!("store {at} {value}")), "done");
    }
    let all_there = |exporter: &mut Child| {
        for (value, at) in (1..).zip(places) {
            assert_eq!(exporter.ask(&format!("load own {at}")), value.to_string());
        }
    };
    all_there(&mut exporter);
    // All of it cannot be had: neither side is killed, and nothing is lost.
    let refused = exporter.ask("populate own");
    assert!(
        refused.contains(&format!("OutOfMemory {{ len: {} }}", 64_u64 << 30)),
        "{refused}"
    );
    all_there(&mut exporter);
    let ended = exporter.ask("unexport");
    if keeps_holes(rustix::process::geteuid().is_root()) {
        assert_eq!(ended, "done");
    } else {
        assert!(ended.contains("NoRoom"), "{ended}");
    }
    all_there(&mut exporter);
    assert!(importer.ask("store 0 9").contains("Revoked"));
    assert_eq!(exporter.ask("load own 0"), "1");
}

/// Another user may not stop the stores of system calls.
#[test]
fn where_holes_are_filled_too_much_of_them_is_refused() {
    const USER: u32 = 1234;
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || keeps_holes(false) {
        eprintln!("skipped: no other user, or no other way");
        return;
    }
    let Some(group) = Group::new("holes", 192 * MIB) else {
        return;
    };
    let name = unique("holes");
    let mut exporter = group.with(Child::of_user(USER));
    assert_eq!(exporter.ask(&format!("join {name} of={USER}")), "done");
    for (pages, ends) in [((64 << 30) / 4096_u64, false), (16 * MIB / 4096, true)] {
        assert_eq!(exporter.ask(&format!("export x {pages}")), "done");
        let mut importer = Child::new();
        let imported = importer.ask(&format!("import {name} x of={USER}"));
        assert!(imported.starts_with("imported"), "{imported}");
        let last = pages * 4096 - 8;
        assert_eq!(importer.ask(&format!("store {last} 7")), "done");
        let ended = exporter.ask("unexport");
        if ends {
            assert_eq!(ended, "done");
        } else {
            assert!(ended.contains("NoRoom"), "{ended}");
        }
        assert_eq!(exporter.ask(&format!("load own {last}")), "7");
        assert!(importer.ask("store 0 9").contains("Revoked"));
        assert_eq!(exporter.ask("load own 0"), "0");
    }
}

#[test]
fn an_export_that_has_most_of_the_memory_ends() {
    const PAGES: u64 = 120 * MIB / 4096;
    let Some(group) = Group::new("most", 192 * MIB) else {
        return;
    };
    let name = unique("most");
    let mut exporter = exporter(&group, &name);
    assert_eq!(exporter.ask(&format!("export x {PAGES}")), "done");
    assert_eq!(exporter.ask("populate own"), "done");
    assert_eq!(exporter.ask("fill own 7"), "done");
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("write 4096 4096 7"), "done");
    assert_eq!(exporter.ask("unexport"), "done");
    assert_eq!(exporter.ask("is own 7"), PAGES.to_string());
    assert!(importer.ask("write 0 1 9").contains("Revoked"));
    // Again, from private memory.
    assert_eq!(exporter.ask("fill own 8"), "done");
    assert_eq!(exporter.ask("is own 8"), PAGES.to_string());
}

/// The pages of what importers only read cannot be given up before its end, so copies are needed.
#[test]
fn an_export_to_be_read_for_which_there_is_no_copy_ends_when_there_is() {
    const PAGES: u64 = 120 * MIB / 4096;
    let Some(group) = Group::new("copy", 192 * MIB) else {
        return;
    };
    let name = unique("copy");
    let mut exporter = exporter(&group, &name);
    assert_eq!(exporter.ask(&format!("export-to-read x {PAGES}")), "done");
    assert_eq!(exporter.ask("populate own"), "done");
    assert_eq!(exporter.ask("fill own 7"), "done");
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("read 0 1"), "[7]");
    for _ in 0..2 {
        let refused = exporter.ask("unexport");
        assert!(refused.contains("NoRoom"), "{refused}");
        assert_eq!(exporter.ask("is own 7"), PAGES.to_string());
    }
    group.set(512 * MIB).unwrap();
    assert_eq!(exporter.ask("unexport"), "done");
    assert_eq!(exporter.ask("is own 7"), PAGES.to_string());
    assert!(importer.ask("read 0 1").contains("Revoked"));
}

#[test]
fn an_importer_asks_for_the_memory_that_it_will_write() {
    let Some(group) = Group::new("importer", 192 * MIB) else {
        return;
    };
    let (domain, name) = domain("importer-populates");
    let (memory, _export) =
        crate::export(&domain, (1 << 30) / 4096, portolan::vmmc::Reach::ReadWrite);
    memory.write(0, b"kept").unwrap();
    let mut importer = group.child();
    let imported = importer.ask(&format!("import {name} x"));
    assert!(imported.starts_with("imported 1073741824"), "{imported}");
    let refused = importer.ask(&format!("populate 0 {}", 1 << 30));
    assert!(
        refused.contains("OutOfMemory { len: 1073741824 }"),
        "{refused}"
    );
    assert_eq!(importer.ask(&format!("populate 4096 {}", 32 * MIB)), "done");
    assert_eq!(importer.ask(&format!("write 4096 {} 5", 32 * MIB)), "done");
    let mut bytes = [0; 4];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    memory.read(32 << 20, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 4]);
    let outside = importer.ask(&format!("populate {} 1", 1 << 30));
    assert!(outside.contains("OutOfBounds"), "{outside}");
}
