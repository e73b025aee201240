//! Another process of a test, and what it can be told to do.

use portolan::channel::ChannelOptions;
use portolan::structure::Structure;
use portolan::{Access, Deadline, Domain, Extent, Message, PortOptions, ReceiveRight, SendRight};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use portolan_testkit::{Answer, close_all};
pub(crate) use portolan_testkit::{PATIENCE, is_bound, unique, until};

/// Where a process that takes orders says why it could not join, if anywhere.
pub(crate) const REPORT: &str = "PORTOLAN_TEST_REPORT";

/// A process that takes orders. Killed when dropped.
pub(crate) struct Child(portolan_testkit::Child);

impl Child {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(prepare: impl FnOnce(&mut Command)) -> Self {
        Self(portolan_testkit::Child::running(
            "child::takes_orders",
            prepare,
        ))
    }

    /// By a command that runs another.
    pub(crate) fn through(starter: Command) -> Self {
        Self(portolan_testkit::Child::through(
            starter,
            "child::takes_orders",
        ))
    }

    /// As another user, which only root can do.
    pub(crate) fn of_user(uid: u32) -> Self {
        Self::with(|command| {
            command.uid(uid).gid(uid);
        })
    }

    /// A process that has joined `domain`.
    pub(crate) fn joined(domain: &str) -> Self {
        let mut child = Self::new();
        let answer = child.ask(&format!("join {domain}"));
        assert!(answer.starts_with("space "), "{answer}");
        child
    }

    /// Its space, by its own account.
    pub(crate) fn space(&mut self) -> u8 {
        self.ask("space").parse().unwrap()
    }

    pub(crate) fn is_host(&mut self) -> bool {
        self.ask("host?") == "true"
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
    extents: Vec<Extent>,
    ports: Vec<ReceiveRight>,
    rights: Vec<SendRight>,
    requests: Vec<portolan::Request>,
    forked: Vec<u32>,
    trace: Option<portolan::Trace>,
}

/// Not a test: what the other processes run.
#[test]
fn takes_orders() {
    let mut state = State::default();
    portolan_testkit::obey(|line| state.obey(line));
}

fn debug(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl State {
    fn domain(&self) -> &Domain {
        self.domain.as_ref().unwrap()
    }

    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["join", name, ref options @ ..] => self.join(name, options),
            ["private"] => {
                let domain = self.domain.insert(Domain::private()?);
                Ok(format!("space {}", domain.space()))
            }
            ["space"] => Ok(self.domain().space().to_string()),
            ["prefer"] => {
                self.domain().prefer_to_host();
                Ok("done".to_owned())
            }
            ["host?"] => Ok(self.domain().is_host().to_string()),
            ["clone"] => {
                let other = self.domain().clone();
                Ok(debug(other.leave()))
            }
            ["leave"] => {
                self.extents.clear();
                self.ports.clear();
                self.rights.clear();
                Ok(debug(self.domain.take().unwrap().leave()))
            }
            ["allocate", bytes] => {
                let extent = self.domain().allocate(bytes.parse()?)?;
                self.extents.push(extent);
                Ok("done".to_owned())
            }
            ["bind", name] => {
                self.ports
                    .push(self.domain().bind(PortOptions::named(name))?);
                Ok("done".to_owned())
            }
            ["close"] => {
                self.ports.pop();
                Ok("done".to_owned())
            }
            // The port bound last, to the one connected to last.
            ["give"] => {
                let mut message = Message::new(b"a port")?;
                message.attach(self.ports.pop().ok_or("no port")?)?;
                let right = self.rights.last().ok_or("no right")?;
                right.send(message, Deadline::after(PATIENCE))?;
                Ok("done".to_owned())
            }
            ["connect", name] => {
                let deadline = Deadline::after(PATIENCE);
                self.rights.push(self.domain().connect(name, deadline)?);
                Ok("done".to_owned())
            }
            ["send", bytes] => {
                let extent = self.domain().allocate(bytes.parse()?)?;
                let mut message = Message::new(b"")?;
                message.push(extent).map_err(debug)?;
                self.rights
                    .last()
                    .unwrap()
                    .send(message, Deadline::after(PATIENCE))?;
                Ok("done".to_owned())
            }
            ["receive"] => {
                let deadline = Deadline::after(PATIENCE);
                let message = self
                    .ports
                    .last_mut()
                    .unwrap()
                    .receive(Access::Now, deadline)?;
                Ok(format!("{} bytes", message.len()))
            }
            // Never answers.
            ["exec"] => Err(Command::new("sleep").arg("1000").exec().into()),
            ["fork"] => self.fork(),
            ["close", "all"] => Ok(close_all()),
            ["limit", descriptors] => limit(descriptors.parse()?),
            ["map", address, len] => map(address.parse()?, len.parse()?),
            ["try-connect", name] => {
                self.rights
                    .push(self.domain().connect(name, Deadline::NOW)?);
                Ok("done".to_owned())
            }
            ["try-send", bytes] => {
                let mut message = Message::new(b"storm")?;
                let extent = self.domain().allocate(bytes.parse()?)?;
                message.push(extent).map_err(debug)?;
                let right = self.rights.last().ok_or("no right")?;
                right.send(message, Deadline::NOW)?;
                Ok("done".to_owned())
            }
            ["try-receive"] => {
                let port = self.ports.last_mut().ok_or("no port")?;
                Ok(format!(
                    "{} bytes",
                    port.receive(Access::Now, Deadline::NOW)?.len()
                ))
            }
            ["check"] => Ok(debug(self.domain().check())),
            #[cfg(feature = "marks")]
            ["stop", "at", mark] => {
                portolan_testkit::stop_at(mark, portolan_shm::mark::install);
                Ok("done".to_owned())
            }
            #[cfg(feature = "marks")]
            ["stop", "once", "at", mark] => {
                portolan_testkit::stop_once_at(mark, portolan_shm::mark::install);
                Ok("done".to_owned())
            }
            #[cfg(feature = "marks")]
            ["die", "at", mark] => {
                portolan_testkit::die_at(mark, portolan_shm::mark::install);
                Ok("done".to_owned())
            }
            ["request", name] => {
                let deadline = Deadline::after(PATIENCE);
                let right = self.domain().connect(name, deadline)?;
                let answer = right.request_reply(Message::new(b"?")?, Access::Now, deadline);
                Ok(answer.map_or_else(debug, |m| format!("{} bytes", m.header().len())))
            }
            ["serve", name] => {
                let options = PortOptions::named(name).synchronous();
                self.ports.push(self.domain().bind(options)?);
                Ok("done".to_owned())
            }
            ["take"] => {
                let deadline = Deadline::after(PATIENCE);
                let request = self
                    .ports
                    .last_mut()
                    .unwrap()
                    .get_request(Access::Now, deadline)?;
                self.requests.push(request);
                Ok("done".to_owned())
            }
            ["watch", name] => {
                let right = self.domain().connect(name, Deadline::after(PATIENCE))?;
                right.watch(self.ports.last().unwrap(), 1)?;
                self.rights.push(right);
                Ok("done".to_owned())
            }
            ["lose", "/proc"] => {
                // SAFETY:
                // - The path ends in a zero byte. The process has a mount namespace of its own.
                let lost = unsafe { libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) };
                Ok(lost.to_string())
            }
            ["threads"] => Ok(threads()),
            ["trace"] => match self.domain().trace() {
                Ok(trace) => {
                    self.trace = Some(trace);
                    Ok("done".to_owned())
                }
                Err(error) => Ok(error.to_string()),
            },
            _ => Err(format!("no such order: {line}").into()),
        }
    }

    fn join(&mut self, name: &str, options: &[&str]) -> Answer {
        let mut builder = Domain::builder(name).size(64 << 20).deadline(PATIENCE);
        for option in options {
            let (key, value) = option.split_once('=').unwrap();
            builder = match key {
                "deadline-ms" => builder.deadline(Duration::from_millis(value.parse()?)),
                "limit" => builder.limit(value.parse()?),
                "size" => builder.size(value.parse()?),
                "of" => builder.of_user(value.parse()?),
                "allow" => builder.allow_user(value.parse()?),
                "allow-group" => builder.allow_group(value.parse()?),
                "path" => builder.path(value),
                "guarded" => builder.protection(portolan::Protection::Guarded),
                _ => return Err(format!("no such option: {key}").into()),
            };
        }
        match builder.join() {
            Ok(domain) => {
                let answer = format!("space {}", domain.space());
                self.domain = Some(domain);
                Ok(answer)
            }
            Err(error) => {
                if let Some(report) = std::env::var_os(REPORT) {
                    std::fs::write(report, format!("{error:?}"))?;
                }
                Ok(format!("{error:?} | {error}"))
            }
        }
    }

    /// Forks; the child says what it finds, then sleeps until it is killed.
    fn fork(&mut self) -> Answer {
        let (mut read, mut write) = std::io::pipe()?;
        let seven = Structure::<u64>::build(self.domain(), |_| Ok(7))?;
        let frames = self
            .domain()
            .make_channel(&ChannelOptions::unnamed().raw())?;
        let mut camera = frames.bind_frame_writer()?;
        let screen = frames.bind_frame_reader()?;
        // SAFETY:
        // - The child calls the library, whose refusal is what is tested, writes to a pipe,
        //   and ends with `_exit`. The harness runs no other thread that holds a lock we need.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let refused = self.domain().allocate(1).err().map(debug);
            let again = Domain::join("another").err().map(debug);
            let copy = self.domain.clone();
            drop(copy);
            let root = seven.root().err().map(debug);
            let frame = (
                camera.put(0, b"line").err(),
                camera.show().err(),
                screen.get(0, &mut [0; 4]).err(),
            );
            let _ = writeln!(write, "{refused:?} {again:?} {root:?} {frame:?}");
            drop(write);
            loop {
                std::thread::sleep(Duration::from_secs(1000));
            }
        }
        drop(write);
        self.forked.push(u32::try_from(pid)?);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut read, &mut said)?;
        Ok(format!("{pid} {}", said.trim()))
    }
}

/// Leaves room for so many more descriptors, and as many as are closed later.
fn limit(descriptors: usize) -> Answer {
    let is_open = |n: &u64| std::path::Path::new(&format!("/proc/self/fd/{n}")).exists();
    let free = (0..1000).filter(|n| !is_open(n)).nth(descriptors);
    let most = free.ok_or("no free descriptor")?;
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY:
    // - A valid structure.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Ok(format!("{set} {most}"))
}

/// Puts something at an address.
fn map(address: usize, len: usize) -> Answer {
    // SAFETY:
    // - The kernel refuses a range that holds something.
    let mapped = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    Ok((mapped as usize == address).to_string())
}

/// What the library's threads have used: their number, ticks, and sleeps.
fn threads() -> String {
    let mut found = (0, 0, 0);
    for thread in std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(Result::unwrap)
    {
        let read =
            |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        if !read("comm").starts_with("portolan") {
            continue;
        }
        let stat = read("stat");
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..]
            .split_whitespace()
            .collect();
        let switches = read("status").lines().find_map(|l| {
            l.strip_prefix("voluntary_ctxt_switches:")?
                .trim()
                .parse::<u64>()
                .ok()
        });
        found.0 += 1;
        found.1 += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        found.2 += switches.unwrap();
    }
    format!("{} {} {}", found.0, found.1, found.2)
}
