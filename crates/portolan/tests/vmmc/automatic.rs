//! Automatic update, by another process: what each mode promises.

use crate::child::Child;
use crate::{content, domain, export};
use portolan::vmmc::{
    Alias, ExportError, ExportMemory, ExportOptions, Import, Log, MappingError, Mode, Reach,
    Tracked, UpdateError,
};
use portolan::{Domain, Permissions};
use portolan_testkit::{Answer, PATIENCE, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;

/// What a process that takes orders maps, and where it stores.
#[derive(Default)]
pub(crate) struct Updater {
    memory: Option<ExportMemory>,
    alias: Option<Alias>,
    log: Option<Log>,
    tracked: Option<Tracked>,
}

impl Updater {
    /// Sends all that is stored to `memory`.
    pub(crate) fn tracking(memory: ExportMemory, import: &Import) -> Result<Self, MappingError> {
        let tracked = import.map_tracked(&memory, 0..memory.len(), 0, None)?;
        Ok(Self {
            memory: Some(memory),
            tracked: Some(tracked),
            ..Self::default()
        })
    }

    pub(crate) fn obey(&mut self, import: Option<&Import>, words: &[&str]) -> Answer {
        let import = || import.ok_or("nothing is imported");
        match *words {
            ["memory", pages, byte] => {
                let memory = ExportMemory::new(pages.parse::<usize>()? * PAGE)?;
                memory.write(0, &vec![byte.parse()?; memory.len()])?;
                self.memory = Some(memory);
            }
            ["alias", first, pages, offset] => {
                let part = pages_from(first, pages)?;
                let mapped = import()?.map_alias(self.memory(), part, offset.parse()?)?;
                self.alias = Some(mapped);
            }
            ["log", start, len, offset] => {
                let start: usize = start.parse()?;
                let part = start..start + len.parse::<usize>()?;
                let mapped = import()?.map_log(self.memory(), part, offset.parse()?)?;
                self.log = Some(mapped);
            }
            ["tracked", first, pages, offset, completion] => {
                let part = pages_from(first, pages)?;
                let offset = offset.parse()?;
                let completion = Some(completion.parse()?);
                let mapped = import()?.map_tracked(self.memory(), part, offset, completion)?;
                self.tracked = Some(mapped);
            }
            ["put", offset, value] => {
                self.memory()
                    .store_release(offset.parse()?, value.parse()?)?;
            }
            ["get", offset] => {
                return Ok(self.memory().load_acquire(offset.parse()?)?.to_string());
            }
            ["log", "store", at, len, byte] => {
                let bytes = vec![byte.parse::<u8>()?; len.parse()?];
                self.log.as_mut().unwrap().store(at.parse()?, &bytes)?;
            }
            ["log", "flush"] => self.log.as_mut().unwrap().flush()?,
            ["alias", "notify"] => self.alias.as_ref().unwrap().flush_notifying()?,
            ["log", "notify"] => self.log.as_mut().unwrap().flush_notifying()?,
            ["tracked", "notify"] => {
                self.tracked.as_mut().unwrap().flush_notifying()?;
            }
            ["log", "race", rounds] => race_by_log(self.log.as_mut().unwrap(), rounds.parse()?)?,
            ["alias", "race", rounds] => race(self.memory(), rounds.parse()?)?,
            ["alias", "check"] => {
                return Ok(format!("{:?}", self.alias.as_ref().unwrap().check()));
            }
            ["epochs", count] => self.epochs(count.parse()?)?,
            ["flush"] => {
                let epoch = self.tracked.as_mut().unwrap().flush()?;
                return Ok(format!("{} {}", epoch.number, epoch.bytes));
            }
            ["unmap"] => {
                if let Some(alias) = self.alias.take() {
                    alias.unmap()?;
                }
                if let Some(log) = self.log.take() {
                    log.unmap()?;
                }
                if let Some(tracked) = self.tracked.take() {
                    tracked.unmap()?;
                }
            }
            _ => return Err(format!("no such order: auto {words:?}").into()),
        }
        Ok("done".to_owned())
    }

    fn memory(&self) -> &ExportMemory {
        self.memory.as_ref().unwrap()
    }

    /// Fills all tracked words with the epoch's number, then flushes.
    fn epochs(&mut self, count: u64) -> Result<(), MappingError> {
        let memory = self.memory.clone().unwrap();
        let tracked = self.tracked.as_mut().unwrap();
        for _ in 0..count {
            let number = tracked.epoch() + 1;
            for word in memory.words()? {
                word.store(number, Ordering::Relaxed);
            }
            assert_eq!(tracked.flush()?.number, number);
        }
        Ok(())
    }
}

fn pages_from(first: &str, pages: &str) -> Result<std::ops::Range<usize>, std::num::ParseIntError> {
    let (first, pages): (usize, usize) = (first.parse()?, pages.parse()?);
    Ok(first * PAGE..(first + pages) * PAGE)
}

/// Stores data, then a flag, again and again; the flag lies before the data.
fn race(memory: &ExportMemory, rounds: u64) -> Result<(), UpdateError> {
    for round in 1..=rounds {
        memory.store_release(8, round)?;
        memory.store_release(0, round)?;
    }
    Ok(())
}

/// As [`race`], the data on both sides of the flag, so that a run ends in the flag.
fn race_by_log(log: &mut Log, rounds: u64) -> Result<(), UpdateError> {
    for round in 1..=rounds {
        log.store(16, &round.to_ne_bytes())?;
        log.store(0, &round.to_ne_bytes())?;
        log.store(8, &round.to_ne_bytes())?;
        if round % 64 == 0 {
            log.flush()?;
        }
    }
    log.flush()
}

/// Runs `order` in a child while this process looks at the export: data is never behind the
/// flag at `flag`.
fn never_behind(
    memory: &ExportMemory,
    child: &mut Child,
    order: &str,
    flag: usize,
    data: &[usize],
) {
    let over = Arc::new(AtomicBool::new(false));
    let (its_own, watched, data) = (Arc::clone(&over), memory.clone(), data.to_vec());
    let watcher = std::thread::spawn(move || {
        let mut last = 0;
        while !its_own.load(Ordering::Relaxed) {
            let seen = watched.load_acquire(flag).unwrap();
            for at in &data {
                let found = watched.load_acquire(*at).unwrap();
                assert!(found >= seen, "flag {seen}, and {found} at {at}");
            }
            assert!(seen >= last, "the flag went from {last} to {seen}");
            last = seen;
        }
        last
    });
    assert_eq!(child.ask(order), "done");
    over.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
}

/// An exporter's memory of 4 pages and a process that has imported it and has memory of 2
/// pages, filled with sevens.
fn pair(test: &str) -> (Domain, ExportMemory, portolan::vmmc::Export, Child) {
    let (domain, name) = domain(test);
    let (memory, export) = export(&domain, 4, Reach::ReadWrite);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("auto memory 2 7"), "done");
    (domain, memory, export, child)
}

const SEVENS: u64 = u64::from_ne_bytes([7; 8]);

#[test]
fn an_alias_is_the_remote_memory_until_it_is_unmapped() {
    let (_domain, memory, _export, mut child) = pair("alias");
    memory.store_release(PAGE, 5).unwrap();
    assert_eq!(child.ask("auto alias 1 1 4096"), "done");
    assert_eq!(child.ask("auto get 4096"), "5", "the export's content wins");
    assert_eq!(
        child.ask("auto get 0"),
        SEVENS.to_string(),
        "beside it nothing changes"
    );
    assert_eq!(child.ask("auto put 4104 6"), "done");
    assert_eq!(
        memory.load_acquire(PAGE + 8),
        Ok(6),
        "a store is there at once"
    );
    memory.store_release(PAGE + 16, 8).unwrap();
    assert_eq!(child.ask("auto get 4112"), "8", "and so is the exporter's");
    assert_eq!(child.ask("auto unmap"), "done");
    assert_eq!(child.ask("auto get 4104"), "6", "it keeps what was there");
    assert_eq!(child.ask("auto put 4104 9"), "done");
    assert_eq!(memory.load_acquire(PAGE + 8), Ok(6), "and is its own");
    memory.store_release(PAGE + 16, 10).unwrap();
    assert_eq!(child.ask("auto get 4112"), "8");
    // To another destination.
    assert_eq!(child.ask("auto alias 1 1 8192"), "done");
    assert_eq!(child.ask("auto put 4096 11"), "done");
    assert_eq!(memory.load_acquire(2 * PAGE), Ok(11));
    assert_eq!(memory.load_acquire(PAGE), Ok(5));
}

#[test]
fn stores_to_an_alias_keep_their_order() {
    let (_domain, memory, _export, mut child) = pair("alias-order");
    assert_eq!(child.ask("auto alias 0 1 0"), "done");
    never_behind(&memory, &mut child, "auto alias race 200000", 0, &[8]);
}

#[test]
fn an_alias_says_when_stores_reach_nobody() {
    let (_domain, memory, export, mut child) = pair("alias-end");
    assert_eq!(child.ask("auto alias 0 2 0"), "done");
    assert_eq!(child.ask("auto put 8 1"), "done");
    assert_eq!(child.ask("auto alias check"), "Ok(())");
    export.unexport().unwrap();
    assert!(child.ask("auto alias check").contains("Revoked"));
    assert_eq!(child.ask("auto put 8 2"), "done", "nothing traps");
    assert_eq!(memory.load_acquire(8), Ok(1));
    assert_eq!(child.ask("auto unmap"), "done");
    assert_eq!(child.ask("auto get 8"), "2", "what was stored since stays");
}

#[test]
fn an_alias_reads_as_zeros_after_the_end_whether_the_exporter_keeps_the_memory_or_not() {
    for keeps in [true, false] {
        let (_domain, memory, export, mut child) = pair("alias-zeros");
        memory.store_release(8, 1).unwrap();
        assert_eq!(child.ask("auto alias 0 2 0"), "done");
        assert_eq!(child.ask("auto get 8"), "1");
        let kept = keeps.then_some(memory);
        export.unexport().unwrap();
        assert_eq!(child.ask("auto get 8"), "0", "kept: {keeps}");
        if let Some(memory) = kept {
            assert_eq!(memory.load_acquire(8), Ok(1));
        }
    }
}

#[test]
fn a_log_keeps_both_memories_and_the_order_of_the_program() {
    let (_domain, memory, _export, mut child) = pair("log");
    memory.store_release(4160, 5).unwrap();
    assert_eq!(child.ask("auto log 0 4096 4160"), "done");
    assert_eq!(
        child.ask("auto get 0"),
        SEVENS.to_string(),
        "it keeps its content"
    );
    assert_eq!(memory.load_acquire(4160), Ok(5), "and so does the export");
    // Combined, and not sent before something follows that lies elsewhere.
    assert_eq!(child.ask("auto log store 3 5 1"), "done");
    assert_eq!(child.ask("auto log store 8 3 2"), "done");
    assert_eq!(
        child.ask("auto get 0"),
        u64::from_ne_bytes([7, 7, 7, 1, 1, 1, 1, 1]).to_string()
    );
    assert_eq!(memory.load_acquire(4160), Ok(5));
    assert_eq!(child.ask("auto log flush"), "done");
    let sent = content(&memory)[4160..4176].to_vec();
    assert_eq!(sent, [5, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0]);
    // More than a run.
    assert_eq!(child.ask("auto log store 0 4096 3"), "done");
    assert_eq!(child.ask("auto log store 1 4095 4"), "done");
    assert_eq!(child.ask("auto unmap"), "done", "sends what is left");
    let sent = content(&memory)[4160..8257].to_vec();
    assert_eq!(
        (sent[0], &sent[1..4096], sent[4096]),
        (3, &[4; 4095][..], 0)
    );
    assert_eq!(child.ask("auto put 0 9"), "done");
    assert_eq!(content(&memory)[4160], 3, "unmapped");
}

#[test]
fn who_sees_a_logged_flag_sees_the_data() {
    let (_domain, memory, _export, mut child) = pair("log-order");
    assert_eq!(child.ask("auto log 0 64 0"), "done");
    never_behind(&memory, &mut child, "auto log race 100000", 8, &[0, 16]);
}

#[test]
fn an_epoch_lands_whole_before_its_completion_word() {
    let (_domain, memory, _export, mut child) = pair("tracked-order");
    assert_eq!(child.ask("auto tracked 0 2 8192 0"), "done");
    let over = Arc::new(AtomicBool::new(false));
    let (its_own, watched) = (Arc::clone(&over), memory.clone());
    let watcher = std::thread::spawn(move || {
        while !its_own.load(Ordering::Relaxed) {
            let epoch = watched.load_acquire(0).unwrap();
            let words = &watched.words().unwrap()[1024..2048];
            let behind = words.iter().find(|w| w.load(Ordering::Relaxed) < epoch);
            assert!(behind.is_none(), "epoch {epoch}, and {behind:?}");
        }
    });
    assert_eq!(child.ask("auto epochs 2000"), "done");
    over.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    assert_eq!(memory.load_acquire(0), Ok(2000));
}

#[test]
fn tracked_memory_stays_the_importers_own() {
    let (_domain, memory, _export, mut child) = pair("tracked");
    assert_eq!(child.ask("auto tracked 0 2 4096 0"), "done");
    assert_eq!(
        child.ask("auto flush"),
        "1 0",
        "what is there at map is not sent"
    );
    assert_eq!(memory.load_acquire(0), Ok(1));
    memory.store_release(PAGE, 5).unwrap();
    assert_eq!(child.ask("auto get 0"), SEVENS.to_string());
    // A page is sent whole, and no other.
    assert_eq!(child.ask("auto put 4096 6"), "done");
    assert_eq!(child.ask("auto flush"), "2 4096");
    assert_eq!(memory.load_acquire(2 * PAGE), Ok(6));
    assert_eq!(memory.load_acquire(2 * PAGE + 8), Ok(SEVENS));
    assert_eq!(memory.load_acquire(PAGE), Ok(5));
    assert_eq!(child.ask("auto unmap"), "done");
    assert_eq!(child.ask("auto put 4096 8"), "done");
    assert_eq!(child.ask("auto get 4096"), "8");
    assert_eq!(memory.load_acquire(2 * PAGE), Ok(6));
}

#[test]
fn mappings_of_an_export_that_ends_or_an_exporter_that_dies() {
    let (_domain, _memory, export, mut child) = pair("auto-revoked");
    assert_eq!(child.ask("auto tracked 0 1 4096 0"), "done");
    assert_eq!(child.ask("auto log 4096 64 0"), "done");
    export.unexport().unwrap();
    assert_eq!(child.ask("auto put 0 1"), "done");
    assert!(child.ask("auto flush").contains("Revoked"));
    assert_eq!(child.ask("auto log store 0 8 1"), "done", "into the run");
    assert!(child.ask("auto log flush").contains("Revoked"));
    assert_eq!(child.ask("auto get 0"), "1", "the memory stays");

    let name = portolan_testkit::unique("auto-dead");
    let mut exporter = Child::exporter(&name, 4);
    let import = Domain::builder(&name).import("x", PATIENCE).unwrap();
    let local = ExportMemory::new(2 * PAGE).unwrap();
    let alias = import.map_alias(&local, 0..PAGE, 0).unwrap();
    let mut tracked = import
        .map_tracked(&local, PAGE..2 * PAGE, PAGE, None)
        .unwrap();
    assert_eq!(tracked.flush().unwrap().bytes, 0);
    local.store_release(8, 3).unwrap();
    exporter.kill();
    until("the death is seen", || {
        alias.check() == Err(UpdateError::ExporterDied)
    });
    local.store_release(PAGE, 4).unwrap();
    let flushed = tracked.flush();
    assert!(
        matches!(
            flushed,
            Err(MappingError::Update(UpdateError::ExporterDied))
        ),
        "{flushed:?}"
    );
    alias.unmap().unwrap();
    assert_eq!(
        (local.load_acquire(8), local.load_acquire(PAGE)),
        (Ok(3), Ok(4))
    );
}

#[test]
fn local_memory_has_one_destination() {
    let (domain, _) = domain("auto-one");
    let (_memory, _export) = export(&domain, 4, Reach::ReadWrite);
    let import = domain.import("x", PATIENCE).unwrap();
    let local = ExportMemory::new(4 * PAGE).unwrap();
    let log = import.map_log(&local, 100..PAGE + 1, 0).unwrap();
    let taken = import.map_alias(&local, PAGE..2 * PAGE, 0).unwrap_err();
    assert!(
        matches!(
            taken,
            MappingError::Mapped {
                offset: 100,
                len: 3997,
                mode: Mode::Log
            }
        ),
        "{taken:?}"
    );
    let taken = import
        .map_tracked(&local, 0..2 * PAGE, 0, None)
        .unwrap_err();
    assert!(matches!(taken, MappingError::Mapped { .. }), "{taken:?}");
    assert!(import.map_log(&local, 0..100, 0).is_ok(), "right beside it");
    log.unmap().unwrap();
    let mut tracked = import.map_tracked(&local, 0..3 * PAGE, 0, None).unwrap();
    assert!(matches!(
        import.map_log(&local, 0..8, 0),
        Err(MappingError::Mapped { .. })
    ));
    // Many local ranges to one export, and a part of one set free.
    let mut second = import.map_log(&local, 3 * PAGE..4 * PAGE, 0).unwrap();
    second.store(0, b"from the second").unwrap();
    second.flush().unwrap();
    local.write(PAGE, b"goes with the flush").unwrap();
    assert_eq!(tracked.unmap_part(PAGE, PAGE).unwrap().bytes, PAGE);
    let alias = import.map_alias(&local, PAGE..2 * PAGE, 3 * PAGE).unwrap();
    local.write(PAGE, b"aliased").unwrap();
    local.write(0, b"tracked").unwrap();
    assert_eq!(
        tracked.flush().unwrap().bytes,
        2 * PAGE,
        "the rest is sent whole"
    );
    let mut bytes = [0; 7];
    for (offset, expected) in [(0, b"tracked"), (PAGE, b"goes wi"), (3 * PAGE, b"aliased")] {
        import.read(offset, &mut bytes).unwrap();
        assert_eq!(&bytes, expected, "at {offset}");
    }
    drop((tracked, alias, second));
    assert!(import.map_alias(&local, 0..4 * PAGE, 0).is_ok());
}

#[test]
fn an_alias_is_unmapped_page_by_page() {
    let (domain, _) = domain("alias-part");
    let (memory, _export) = export(&domain, 4, Reach::ReadWrite);
    let import = domain.import("x", PATIENCE).unwrap();
    let local = ExportMemory::new(3 * PAGE).unwrap();
    let mut alias = import.map_alias(&local, 0..3 * PAGE, PAGE).unwrap();
    local.store_release(PAGE, 1).unwrap();
    alias.unmap_part(PAGE, PAGE).unwrap();
    local.store_release(PAGE, 2).unwrap();
    local.store_release(0, 3).unwrap();
    local.store_release(2 * PAGE, 4).unwrap();
    let seen = [PAGE, 2 * PAGE, 3 * PAGE].map(|at| memory.load_acquire(at).unwrap());
    assert_eq!(seen, [3, 1, 4]);
    let refused = alias.unmap_part(0, 100);
    assert!(
        matches!(refused, Err(MappingError::NotWholePages { .. })),
        "{refused:?}"
    );
    drop(alias);
    let kept = [0, PAGE, 2 * PAGE].map(|at| local.load_acquire(at).unwrap());
    assert_eq!(kept, [3, 2, 4]);
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let (domain, _) = domain("auto-refused");
    let (memory, _export) = export(&domain, 2, Reach::ReadWrite);
    let import = domain.import("x", PATIENCE).unwrap();
    let local = ExportMemory::new(2 * PAGE).unwrap();
    for (part, offset) in [(0..100, 0), (8..PAGE + 8, 0), (0..PAGE, 8), (0..0, 0)] {
        let alias = import.map_alias(&local, part.clone(), offset);
        assert!(
            matches!(alias, Err(MappingError::NotWholePages { .. })),
            "{alias:?}"
        );
        let tracked = import.map_tracked(&local, part, offset, None);
        assert!(
            matches!(tracked, Err(MappingError::NotWholePages { .. })),
            "{tracked:?}"
        );
    }
    let outside = [
        (0..3 * PAGE, 0),
        (0..2 * PAGE, PAGE),
        (PAGE..2 * PAGE, usize::MAX - 4095),
    ];
    for (part, offset) in outside {
        let mapped = import.map_alias(&local, part.clone(), offset);
        assert!(
            matches!(
                mapped,
                Err(MappingError::Update(UpdateError::OutOfBounds { .. }))
            ),
            "{mapped:?}"
        );
        let mapped = import.map_log(&local, part, offset);
        assert!(
            matches!(
                mapped,
                Err(MappingError::Update(UpdateError::OutOfBounds { .. }))
            ),
            "{mapped:?}"
        );
    }
    for completion in [0, 8, 4088, 4, 8185] {
        let mapped = import.map_tracked(&local, 0..PAGE, 0, Some(completion));
        assert!(mapped.is_err(), "{completion}: {mapped:?}");
    }
    // Memory that is exported is not an alias; what is an alias is not exported.
    let own = import.map_alias(&memory, 0..PAGE, 0);
    assert!(matches!(own, Err(MappingError::Exported)), "{own:?}");
    let alias = import.map_alias(&local, 0..PAGE, 0).unwrap();
    let options = ExportOptions::new(Reach::Read).permit(Permissions::anyone());
    let exported = domain.export(&local, "y", &options, PATIENCE);
    assert!(
        matches!(
            exported,
            Err(ExportError::Mapped {
                mode: Mode::Alias,
                ..
            })
        ),
        "{exported:?}"
    );
    drop(alias);
    local.store_release(0, 5).unwrap();
    let exported = domain.export(&local, "y", &options, PATIENCE).unwrap();
    let read_only = domain.import("y", PATIENCE).unwrap();
    assert_eq!(read_only.load_acquire(0), Ok(5));
    let mapped = read_only.map_log(&memory, 0..8, 0);
    assert!(
        matches!(mapped, Err(MappingError::Update(UpdateError::NotWritable))),
        "{mapped:?}"
    );
    drop(exported);
    let ended = read_only.map_alias(&ExportMemory::new(PAGE).unwrap(), 0..PAGE, 0);
    assert!(ended.is_err());
}

#[test]
fn two_processes_keep_one_memory_in_step_by_tracking() {
    // Each exports its own copy and maps it to the other's, as shared virtual memory does.
    let (domain, name) = domain("auto-both");
    let (memory, _export) = export(&domain, 2, Reach::ReadWrite);
    let mut other = Child::new();
    assert_eq!(other.ask(&format!("join {name}")), "done");
    assert_eq!(other.ask("export y 2"), "done");
    assert!(
        other
            .ask(&format!("import {name} x"))
            .starts_with("imported")
    );
    assert_eq!(other.ask("auto own tracked"), "done");
    let import = domain.import("y", PATIENCE).unwrap();
    let mut tracked = import.map_tracked(&memory, 0..2 * PAGE, 0, None).unwrap();
    memory.store_release(0, 1).unwrap();
    assert_eq!(tracked.flush().unwrap().bytes, PAGE);
    assert_eq!(other.ask("load own 0"), "1");
    assert_eq!(other.ask("auto put 4096 2"), "done");
    assert_eq!(other.ask("auto flush"), "1 4096");
    assert_eq!(memory.load_acquire(PAGE), Ok(2));
    assert_eq!(
        tracked.flush().unwrap().bytes,
        0,
        "what the other stores is not ours to send"
    );
}
