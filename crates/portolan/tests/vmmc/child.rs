//! Another process of a test, and what it can be told to do.

use crate::automatic::Updater;
use crate::brokered_ends::Weather;
use crate::{forks, notify_ends, raw};
use portolan::vmmc::{
    Export, ExportMemory, ExportOptions, Exporter, Import, ImportOptions, Notifications,
    OrdinaryMemory, Reach, UpdateError,
};
use portolan::{AccessToken, Domain, Permissions};
use portolan_testkit::{Answer, PATIENCE, obey, until};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A process that takes orders. Killed when dropped.
pub(crate) struct Child(portolan_testkit::Child);

impl Child {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// As another user, which only root can do.
    pub(crate) fn of_user(uid: u32) -> Self {
        Self::with(|command| {
            command.uid(uid).gid(uid);
        })
    }

    /// By a command that runs another.
    pub(crate) fn through(starter: Command) -> Self {
        Self(portolan_testkit::Child::through(
            starter,
            "child::takes_orders",
        ))
    }

    fn with(prepare: impl FnOnce(&mut Command)) -> Self {
        Self(portolan_testkit::Child::running(
            "child::takes_orders",
            prepare,
        ))
    }

    /// A process that has imported `x`, as a member of no domain.
    pub(crate) fn importer(domain: &str) -> Self {
        let mut child = Self::new();
        let answer = child.ask(&format!("import {domain} x"));
        assert!(answer.starts_with("imported "), "{answer}");
        child
    }

    /// A process that exports `pages` pages as `x`, in a domain that it is the first of.
    pub(crate) fn exporter(domain: &str, pages: usize) -> Self {
        let mut child = Self::new();
        assert_eq!(child.ask(&format!("join {domain}")), "done");
        assert_eq!(child.ask(&format!("export x {pages}")), "done");
        child
    }

    /// Rounds that its storm or its siege has made.
    pub(crate) fn rounds(&mut self) -> u64 {
        self.ask("rounds").parse().unwrap()
    }

    /// Waits until its storm or its siege has begun and ended a round from now on.
    pub(crate) fn goes_round(&mut self) {
        let now = self.rounds();
        until("the child goes round", || self.rounds() >= now + 2);
    }
}

impl Deref for Child {
    type Target = portolan_testkit::Child;

    fn deref(&self) -> &portolan_testkit::Child {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut portolan_testkit::Child {
        &mut self.0
    }
}

/// What a process that takes orders has.
#[derive(Default)]
struct State {
    domain: Option<Domain>,
    memory: Option<ExportMemory>,
    ordinary: Option<OrdinaryMemory>,
    notifications: Option<Notifications>,
    export: Option<Export>,
    import: Option<Arc<Import>>,
    crowd: Vec<Import>,
    updater: Updater,
    rounds: Arc<AtomicU64>,
    storm: Option<std::thread::JoinHandle<UpdateError>>,
    weather: Option<Weather>,
}

/// Not a test: what the other processes run.
#[test]
fn takes_orders() {
    let mut state = State::default();
    obey(|line| {
        let answer = state.obey(line);
        answer.map_err(|error| format!("{error:?}").into())
    });
}

fn done() -> Answer {
    Ok("done".to_owned())
}

impl State {
    fn import(&self) -> &Arc<Import> {
        self.import.as_ref().unwrap()
    }

    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["join", name, owner] => {
                let owner = owner.strip_prefix("of=").ok_or("whose")?.parse()?;
                let builder = Domain::builder(name).of_user(owner).deadline(PATIENCE);
                self.domain = Some(builder.join()?);
                done()
            }
            ["join-as", name, called] => {
                let builder = Domain::builder(name).size(64 << 20).space_name(called);
                self.domain = Some(builder.deadline(PATIENCE).join()?);
                done()
            }
            ["join", name] => {
                let builder = Domain::builder(name).size(64 << 20).deadline(PATIENCE);
                self.domain = Some(builder.join()?);
                done()
            }
            ["export", name, pages] => {
                let memory = ExportMemory::new(pages.parse::<usize>()? * 4096)?;
                let domain = self.domain.as_ref().unwrap();
                let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
                self.export = Some(domain.export(&memory, name, &options, PATIENCE)?);
                self.memory = Some(memory);
                done()
            }
            ["export-ordinary", name, len] => {
                let memory = OrdinaryMemory::from(vec![0; len.parse()?]);
                let domain = self.domain.as_ref().unwrap();
                let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
                self.export = Some(domain.export(&memory, name, &options, PATIENCE)?);
                self.ordinary = Some(memory);
                done()
            }
            ["limit-descriptors", most] => {
                crate::many::limit_descriptors(most.parse()?);
                done()
            }
            ["host"] => Ok(self.domain.as_ref().unwrap().is_host().to_string()),
            ["leave"] => {
                self.domain.take().unwrap().leave()?;
                done()
            }
            // As a daemon that keeps secrets does.
            ["undumpable"] => {
                use rustix::process::{DumpableBehavior, set_dumpable_behavior};
                set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
                done()
            }
            ["unexport"] => match self.export.take().unwrap().unexport() {
                Ok(()) => done(),
                Err(refused) => {
                    self.export = Some(*refused.item);
                    Err(refused.why.into())
                }
            },
            ["populate", "own"] => {
                self.memory.as_ref().unwrap().populate()?;
                done()
            }
            ["populate", offset, len] => {
                self.import().populate(offset.parse()?, len.parse()?)?;
                done()
            }
            ["fill", "own", byte] => {
                let memory = self.memory.as_ref().unwrap();
                for at in (0..memory.len()).step_by(4096) {
                    memory.write(at, &[byte.parse()?; 4096])?;
                }
                done()
            }
            // The first and the last byte of each page.
            ["is", "own", byte] => {
                let (memory, byte) = (self.memory.as_ref().unwrap(), byte.parse()?);
                let mut pages = 0;
                for at in (0..memory.len()).step_by(4096) {
                    let mut ends = [[0], [0]];
                    memory.read(at, &mut ends[0])?;
                    memory.read(at + 4095, &mut ends[1])?;
                    pages += usize::from(ends == [[byte]; 2]);
                }
                Ok(pages.to_string())
            }
            ["export-to-read", name, pages] => {
                let memory = ExportMemory::new(pages.parse::<usize>()? * 4096)?;
                let domain = self.domain.as_ref().unwrap();
                let options = ExportOptions::new(Reach::Read).permit(Permissions::anyone());
                self.export = Some(domain.export(&memory, name, &options, PATIENCE)?);
                self.memory = Some(memory);
                done()
            }
            ["load", "own", offset] => {
                let memory = self.memory.as_ref().unwrap();
                Ok(memory.load_acquire(offset.parse()?)?.to_string())
            }
            ["import", domain, name, ref options @ ..] => self.begin(domain, name, options),
            ["write", offset, len, byte] => {
                let bytes = vec![byte.parse()?; len.parse()?];
                self.import().write(offset.parse()?, &bytes)?;
                done()
            }
            ["read", offset, len] => {
                let mut bytes = vec![0; len.parse()?];
                self.import().read(offset.parse()?, &mut bytes)?;
                Ok(format!("{bytes:?}"))
            }
            ["store", offset, value] => {
                self.import()
                    .store_release(offset.parse()?, value.parse()?)?;
                done()
            }
            ["load", offset] => Ok(self.import().load_acquire(offset.parse()?)?.to_string()),
            ["count", offset, times] => {
                for _ in 0..times.parse::<u64>()? {
                    self.import().fetch_add(offset.parse()?, 1)?;
                }
                done()
            }
            ["swap", "count", offset, times] => {
                let offset = offset.parse()?;
                for _ in 0..times.parse::<u64>()? {
                    let mut now = self.import().load_acquire(offset)?;
                    while let Err(found) = self.import().compare_exchange(offset, now, now + 1)? {
                        now = found;
                    }
                }
                done()
            }
            ["auto", "own", "tracked"] => {
                let (memory, import) = (self.memory.clone().unwrap(), self.import());
                self.updater = Updater::tracking(memory, import)?;
                done()
            }
            ["auto", ref words @ ..] => self.updater.obey(self.import.as_deref(), words),
            ["check"] => Ok(format!("{:?}", self.import().check())),
            ["storm"] => {
                let (import, rounds) = (Arc::clone(self.import()), Arc::clone(&self.rounds));
                self.storm = Some(std::thread::spawn(move || storm(&import, &rounds)));
                done()
            }
            ["stormed"] => {
                let error = self.storm.take().unwrap().join();
                Ok(format!("{:?}", error.map_err(|_| "panic")?))
            }
            ["siege", domain, name] => {
                let hostile = raw::Hostile::new(&raw::connect(domain), name)?;
                let rounds = Arc::clone(&self.rounds);
                std::thread::spawn(move || hostile.write_for_ever(&rounds));
                done()
            }
            ["weather"] => {
                self.weather = Some(Weather::begin(self.import()));
                done()
            }
            ["calm"] => Ok(self.weather.take().unwrap().calm()),
            ["weather-end"] => Ok(self.weather.take().unwrap().end()),
            ["weather-rounds"] => Ok(self.weather.as_ref().unwrap().rounds().to_string()),
            ["besiege", user, domain, name] => {
                let siege = crate::raw_brokered::Siege::new(user.parse()?, domain, name)?;
                let rounds = Arc::clone(&self.rounds);
                std::thread::spawn(move || siege.write_for_ever(&rounds));
                done()
            }
            ["notify", ref words @ ..] => crate::notify::obey(self.import(), words),
            ["rounds"] => Ok(self.rounds.load(Ordering::Relaxed).to_string()),
            // The exports x0, x1, ..., each told its number and one.
            ["import-each", domain, count] => {
                crate::many::allow_descriptors();
                for number in 0..count.parse::<u64>()? {
                    let name = format!("x{number}");
                    let import = Domain::builder(domain).import(&name, PATIENCE)?;
                    import.store_release(8, number + 1)?;
                    self.crowd.push(import);
                }
                done()
            }
            // The export x so often, each of them counted.
            ["import-crowd", domain, count] => {
                self.crowd.clear();
                for _ in 0..count.parse::<u64>()? {
                    let import = Domain::builder(domain).import("x", PATIENCE)?;
                    import.fetch_add(8, 1)?;
                    self.crowd.push(import);
                }
                done()
            }
            ["crowd-errors"] => {
                let revoked = self
                    .crowd
                    .iter()
                    .filter(|import| import.fetch_add(8, 1) == Err(UpdateError::Revoked));
                Ok(format!("{} Revoked", revoked.count()))
            }
            ["unimport"] => {
                let import = Arc::into_inner(self.import.take().unwrap());
                import.ok_or("in use")?.unimport();
                done()
            }
            ["fork"] => {
                let (export, memory) = (self.export.as_ref(), self.memory.as_ref());
                let import = self.import.as_deref();
                Ok(forks::fork(|| forks::found(export, memory, import))?)
            }
            ["fork", "owned"] => crate::owned::fork(self.domain.as_ref().unwrap()),
            ["fork", "listening"] => {
                let notifications = self.notifications.as_mut().unwrap();
                Ok(forks::fork(|| notify_ends::in_child(notifications))?)
            }
            ["fork", "notifying"] => {
                let import = self.import();
                let act = || {
                    format!(
                        "{:?} {:?}",
                        import.notify(0, 8),
                        import.write_notifying(0, b"x")
                    )
                };
                Ok(forks::fork(act)?)
            }
            ["importers"] => Ok(self.export.as_ref().unwrap().importers().to_string()),
            ["listen"] => {
                self.notifications = Some(self.export.as_ref().unwrap().notifications()?);
                done()
            }
            // The offset of the next note.
            ["heard"] => {
                let note = self.notifications.as_mut().unwrap().wait(PATIENCE)?;
                Ok(crate::notify::offset(note).to_string())
            }
            ["fork-without-memory"] => Ok(crate::brokered_ends::fork_without_memory().to_string()),
            #[cfg(feature = "marks")]
            ["stop-at", mark] => {
                portolan_testkit::stop_at(mark, portolan_shm::mark::install);
                done()
            }
            #[cfg(feature = "marks")]
            ["die-at", mark] => {
                portolan_testkit::die_at(mark, portolan_shm::mark::install);
                done()
            }
            ["later", offset, len, byte] => {
                let bytes = vec![byte.parse()?; len.parse()?];
                self.import()
                    .begin_write(offset.parse()?, bytes)?
                    .finish()?;
                done()
            }
            // Never answers.
            ["exec"] => Err(Command::new("sleep").arg("1000").exec().into()),
            ["mappings"] => {
                let maps = std::fs::read_to_string("/proc/self/maps")?;
                let ours = maps.lines().filter(|line| line.contains("memfd:portolan-"));
                Ok(ours.count().to_string())
            }
            _ => Err(format!("no such order: {line}").into()),
        }
    }

    /// Imports; `deadline-ms`, `of` a user, `exporter` (its name), `token`, `at-most` so many bytes.
    fn begin(&mut self, domain: &str, name: &str, options: &[&str]) -> Answer {
        let mut builder = Domain::builder(domain);
        let mut import = ImportOptions::default();
        let mut deadline = PATIENCE;
        for option in options {
            let (key, value) = option.split_once('=').unwrap();
            match key {
                "of" => builder = builder.of_user(value.parse()?),
                "deadline-ms" => deadline = Duration::from_millis(value.parse()?),
                "token" => {
                    let number: u128 = value.parse()?;
                    import = import.token(AccessToken::from_bytes(number.to_le_bytes()));
                }
                "exporter" => import = import.exporter(Exporter::named(value)),
                "at-most" => import = import.at_most(value.parse()?),
                _ => return Err(format!("no such option: {key}").into()),
            }
        }
        let imported = builder.import_with(name, &import, deadline)?;
        let answer = format!("imported {} {:?}", imported.len(), imported.reach());
        self.import = Some(Arc::new(imported));
        Ok(answer)
    }
}

/// Writes all of it again and again, each round another byte, never zero; why that ended.
fn storm(import: &Import, rounds: &AtomicU64) -> UpdateError {
    for round in 1_u64.. {
        let byte = round.to_le_bytes()[0].max(1);
        for page in (0..import.len()).step_by(4096) {
            if let Err(error) = import.write(page + 64, &[byte; 1000]) {
                return error;
            }
        }
        rounds.store(round, Ordering::Relaxed);
    }
    unreachable!("rounds without end")
}
