//! The processes of a run: engines of nodes, linked with one another, and the daemons of a lab; and
//! on which processor each of them runs.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan::{Domain, SendRight};
use portolan_measure::child::readable;
use portolan_sys::process::{PidFd, dies_with_us, random};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::server::{self, Server};
use crate::error::{CliError, Result};

/// The program that has engines without the daemon.
const PROGRAM: &str = "portolan-node-bench";
/// What the domains of linked nodes are called, and so many nodes there are at most: each connects to
/// those before it.
const DOMAINS: [&str; 3] = ["near", "far", "home"];
/// How long programs look for ports on the other node.
pub(super) const MEETING: Duration = Duration::from_secs(60);

/// What links are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The engine alone, over plain TCP: no daemon does that.
    Tcp,
    /// The engine alone, over TLS.
    Tls,
    /// Two daemons as users run them, over TLS.
    Daemons,
}

impl Over {
    pub(super) const ALL: [Self; 3] = [Self::Tcp, Self::Tls, Self::Daemons];

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "nodes, plain TCP",
            Self::Tls => "nodes, TLS",
            Self::Daemons => "daemons, TLS",
        }
    }
}

/// A further process that is not this program. Dropped, it is told to end, and is killed.
#[derive(Debug)]
pub(super) struct Helper {
    process: Child,
    /// None once it is told to end.
    says: Option<ChildStdin>,
    hears: BufReader<ChildStdout>,
    /// Set before we end it, so that its end is no accident.
    expected: Arc<AtomicBool>,
}

impl Helper {
    /// Starts it. Its death ends this command, whatever that waits for.
    pub(super) fn start(words: &[String], environment: Option<(&str, &str)>) -> Result<Self> {
        let mut started = crate::node::start_program(PROGRAM, words, |command| {
            if let Some((name, value)) = environment {
                command.env(name, value);
            }
            let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            dies_with_us(command)
        })?;
        let expected = Arc::new(AtomicBool::new(false));
        watch(&started, Arc::clone(&expected))?;
        let (Some(says), Some(hears)) = (started.stdin.take(), started.stdout.take()) else {
            return Err(helper(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self {
            process: started,
            says: Some(says),
            hears: BufReader::new(hears),
            expected,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The rest of the next line, which begins with this word.
    pub(super) fn expect(&mut self, word: &str) -> Result<String> {
        let mut line = String::new();
        self.hears.read_line(&mut line).map_err(helper)?;
        match line.trim_end().strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => {
                // It says on standard error what is wrong.
                self.expected.store(true, Ordering::Relaxed);
                Err(helper(io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    pub(super) fn say(&mut self, line: &str) -> Result<()> {
        let said = match &mut self.says {
            Some(says) => writeln!(says, "{line}").and_then(|()| says.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        said.map_err(helper)
    }

    /// Tells it to end. All that are linked are told before one has ended, which the others would
    /// take for a failure.
    pub(super) fn ends(&mut self) {
        self.expected.store(true, Ordering::Relaxed);
        self.says = None;
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.ends();
        // Both fail only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn helper(source: io::Error) -> CliError {
    CliError::system("a node of this benchmark has ended")(source)
}

/// Ends this command when a process ends that must not.
fn watch(process: &Child, expected: Arc<AtomicBool>) -> Result<()> {
    let doing = "watching a node of this benchmark";
    let pidfd = PidFd::open(process.id()).map_err(CliError::system(doing))?;
    let watcher = move || {
        let ended = readable(pidfd.as_fd(), None).unwrap_or(false);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(pidfd.as_fd()), look).ok().flatten();
        // One that has heard its peer's end ends in order, perhaps before it is told to.
        let in_order = status.as_ref().and_then(|status| status.exit_status()) == Some(0);
        if ended && !expected.load(Ordering::Relaxed) && !in_order {
            let signal = status.and_then(|status| status.terminating_signal());
            let how = match signal {
                Some(signal) => format!("signal {signal} ended it"),
                None => "it says above what is wrong".to_owned(),
            };
            let error = helper(io::Error::new(io::ErrorKind::BrokenPipe, how));
            error.report();
            std::process::exit(error.exit_code().into());
        }
    };
    let thread = std::thread::Builder::new().name("watch".into());
    let thread = thread.stack_size(64 << 10).spawn(watcher);
    thread.map_err(CliError::system(doing))?;
    Ok(())
}

/// Nodes, each linked with all others, and the domain that each of them spans.
#[derive(Debug)]
pub(super) struct Linked<const N: usize> {
    pub(super) over: Over,
    /// What programs join; the nodes are members already.
    pub(super) domains: [Domain; N],
    /// Processes of the nodes.
    pub(super) nodes: [u32; N],
    _ends: Ends,
}

/// Two of them.
pub(super) type Pair = Linked<2>;
/// Three: a right goes from the first to the second, on a port of the third.
pub(super) type Trio = Linked<3>;

/// What ends with linked nodes.
#[derive(Debug)]
#[expect(dead_code, reason = "they are kept, and end what they stand for")]
enum Ends {
    Engines(Vec<Helper>),
    Lab(Lab),
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Self::Engines(engines) = self {
            engines.iter_mut().for_each(Helper::ends);
        }
    }
}

/// A name that no other domain has.
pub(super) fn unique(what: &str) -> Result<String> {
    let number: [u8; 4] =
        random().map_err(CliError::system("drawing a number for a domain's name"))?;
    let number = u32::from_ne_bytes(number);
    Ok(format!("bench-{what}-{}-{number:08x}", std::process::id()))
}

/// A domain of this run, which this process hosts.
pub(super) fn domain(name: &str, limit: u64) -> Result<Domain> {
    let builder = Domain::builder(name).space_name("bench").limit(limit);
    let joined = builder.deadline(MEETING).join();
    joined.map_err(CliError::library("making a domain of this benchmark"))
}

/// As many as there are nodes.
fn each<T: std::fmt::Debug, const N: usize>(all: Vec<T>) -> Result<[T; N]> {
    let wrong = |all: Vec<T>| {
        let because = format!("of {N} nodes {} have started", all.len());
        CliError::Unfit { because }
    };
    all.try_into().map_err(wrong)
}

impl<const N: usize> Linked<N> {
    /// Starts the nodes, which span domains with these limits.
    pub(super) fn start(over: Over, limits: [u64; N]) -> Result<Self> {
        match over {
            Over::Daemons => Self::daemons(),
            _ => Self::engines(over, limits, None),
        }
    }

    /// Engines, with a variable in their environment.
    pub(super) fn engines(
        over: Over,
        limits: [u64; N],
        environment: Option<(&str, &str)>,
    ) -> Result<Self> {
        let names = DOMAINS.iter().take(N).map(|name| unique(name));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        let domains = names.iter().zip(limits);
        let domains = domains.map(|(name, limit)| domain(name, limit));
        let domains: Vec<Domain> = domains.collect::<Result<_>>()?;
        let keys = Keys::new(over)?;
        let (mut engines, mut addresses) = (Vec::<Helper>::new(), Vec::<String>::new());
        for (number, name) in (1..).zip(&names) {
            let mut words = vec!["engine".to_owned()];
            let mut add = |flag: &str, value: &str| {
                words.extend([format!("--{flag}"), value.to_owned()]);
            };
            add("over", if over == Over::Tls { "tls" } else { "tcp" });
            add("local", name);
            add("number", &number.to_string());
            add("links", &(N - 1).to_string());
            addresses.iter().for_each(|address| add("connect", address));
            if let Some(keys) = &keys {
                add("keys", &keys.0.to_string_lossy());
            }
            let mut engine = Helper::start(&words, environment)?;
            if number < N {
                addresses.push(engine.expect("listens")?);
            }
            engines.push(engine);
        }
        for engine in &mut engines {
            engine.expect("linked")?;
        }
        Ok(Self {
            over,
            domains: each(domains)?,
            nodes: each(engines.iter().map(Helper::id).collect())?,
            _ends: Ends::Engines(engines),
        })
    }

    fn daemons() -> Result<Self> {
        let (lab, places) = Lab::start(N)?;
        let join = |place: &Beside| domain(&place.domain, 1 << 30);
        let domains: Vec<Domain> = places.iter().map(join).collect::<Result<_>>()?;
        Ok(Self {
            over: Over::Daemons,
            domains: each(domains)?,
            nodes: each(places.iter().map(|place| place.node).collect())?,
            _ends: Ends::Lab(lab),
        })
    }

    /// A right on a port of another domain, from the near one.
    pub(super) fn connect(&self, port: &str) -> Result<SendRight> {
        let right = self.domains[0].connect(port, MEETING);
        right.map_err(CliError::library("finding a port on another node"))
    }

    /// A server in the far domain.
    pub(super) fn serve(
        &self,
        serves: fn(String, String) -> server::Brief,
    ) -> Result<(Server, SendRight)> {
        self.serve_at(1, serves)
    }

    /// A server in the domain of this node.
    pub(super) fn serve_at(
        &self,
        node: usize,
        serves: impl FnOnce(String, String) -> server::Brief,
    ) -> Result<(Server, SendRight)> {
        let port = unique("port")?;
        let brief = serves(self.domains[node].name().to_owned(), port.clone());
        let server = Server::start(&brief)?;
        Ok((server, self.connect(&port)?))
    }
}

/// A directory for the keys of engines, until they are linked.
struct Keys(PathBuf);

impl Keys {
    fn new(over: Over) -> Result<Option<Self>> {
        if over != Over::Tls {
            return Ok(None);
        }
        let path = std::env::temp_dir().join(unique("keys")?);
        // The engines make their own below it, for their user alone.
        std::fs::create_dir(&path).map_err(CliError::system("making a directory for keys"))?;
        Ok(Some(Self(path)))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // What cannot be removed is in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the program beside a daemon says.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Beside {
    /// The domain, by its name here.
    domain: String,
    /// The daemon's process.
    node: u32,
}

/// Daemons of `portolan node lab`. They end with the programs beside them, and those with this
/// process, however it ends.
#[derive(Debug)]
pub(super) struct Lab(Child);

impl Lab {
    pub(super) fn start(nodes: usize) -> Result<(Self, Vec<Beside>)> {
        let own =
            std::env::current_exe().map_err(CliError::system("finding this program's file"))?;
        let count = nodes.to_string();
        let words = ["lab", &count, "--names", "--"].map(OsString::from);
        let coordinator = std::process::id().to_string();
        let started = crate::node::start(&words, |command: &mut Command| {
            command
                .arg(&own)
                .args(["__beside-node", &coordinator])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
        });
        let mut lab = Self(started?);
        let (Some(out), Some(mut errors)) = (lab.0.stdout.take(), lab.0.stderr.take()) else {
            return Err(helper(io::ErrorKind::BrokenPipe.into()));
        };
        let mut places: Vec<(String, Beside)> = Vec::new();
        for line in BufReader::new(out).lines() {
            let line = line.map_err(helper)?;
            let said = line
                .strip_prefix('[')
                .and_then(|line| line.split_once("] "));
            if let Some((name, said)) = said
                && let Ok(beside) = serde_json::from_str(said)
            {
                places.push((name.to_owned(), beside));
            }
            if places.len() == nodes {
                break;
            }
        }
        if places.len() < nodes {
            // It has ended.
            let mut said = String::new();
            errors.read_to_string(&mut said).map_err(helper)?;
            return Err(CliError::Lab { said });
        }
        // It says little, and nobody is interested in what.
        std::thread::spawn(move || io::copy(&mut errors, &mut io::sink()));
        places.sort_by(|one, other| one.0.cmp(&other.0));
        Ok((lab, places.into_iter().map(|(_, beside)| beside).collect()))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.0.try_wait()) {
            // It ends its nodes, and then itself.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// The program beside a daemon: says where it is, and stays until the benchmark has ended.
pub(crate) fn beside_main(coordinator: u32) -> Result<()> {
    let variable = |name: &str| {
        std::env::var(name).map_err(|_| CliError::Unfit {
            because: "this runs only beside a node of `portolan node lab`".to_owned(),
        })
    };
    let pidfd = PidFd::open(coordinator);
    let pidfd = pidfd.map_err(CliError::system("watching the benchmark"))?;
    let beside = Beside {
        domain: variable("PORTOLAN_LAB_DOMAIN")?,
        node: variable("PORTOLAN_LAB_PID")?.parse().unwrap_or_default(),
    };
    let line = serde_json::to_string(&beside).unwrap_or_default();
    portolan_measure::out::print(&(line + "\n"))?;
    readable(pidfd.as_fd(), None).map_err(CliError::system("watching the benchmark"))?;
    Ok(())
}

/// On which processors a row's processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pinning {
    /// The program that asks or sends, and its node.
    pub(super) near: usize,
    /// The one that answers or receives, and its node.
    pub(super) far: usize,
}

impl Pinning {
    pub(super) fn name(self) -> &'static str {
        if self.near == self.far {
            "one processor"
        } else {
            "two processors"
        }
    }

    pub(super) fn is_one(self) -> bool {
        self.near == self.far
    }

    /// Has nodes run there: the first near, all others far.
    pub(super) fn pin<const N: usize>(self, linked: &Linked<N>) -> Result<()> {
        let cpus = std::iter::once(self.near).chain(std::iter::repeat(self.far));
        let mut nodes = linked.nodes.iter().zip(cpus);
        nodes.try_for_each(|(node, cpu)| pin(*node, cpu))
    }
}

/// Has all threads of a process run on one processor.
pub(super) fn pin(process: u32, cpu: usize) -> Result<()> {
    let doing = "choosing the processor of another process";
    let mut set = CpuSet::new();
    set.set(cpu);
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    for thread in threads.map_err(CliError::system(doing))? {
        let name = thread.map_err(CliError::system(doing))?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        match sched_setaffinity(thread.and_then(Pid::from_raw), &set) {
            // It has ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(CliError::system(doing)(error)),
        }
    }
    Ok(())
}
