//! `portolan port serve` runs a command that answers each request.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portolan::{Access, Domain, Extent, Message, PortOptions, ReceiveError, Request};
use portolan_sys::process::dies_with_us;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access as Permission, AtFlags, CWD, OFlags, accessat, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::place::{self, deadline};
use super::{QUEUE, payload};
use crate::args::ServeArgs;
use crate::error::{CliError, Result};

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    let (program, arguments) = args.command.split_first().ok_or(CliError::Refused {
        // The command line asks for one at least.
        what: "no command to answer with".to_owned(),
        to_do: "name it after `--`",
    })?;
    runnable(program)?;
    let server = Server {
        program,
        arguments,
        limit: args.limit.map(Duration::from_secs_f64),
        group: Group::default(),
    };
    server.group.ends_with_us()?;
    let domain = place::make(&args.place, &args.make, "serve")?;
    let options = PortOptions::named(&args.place.name)
        .queue(QUEUE)
        .synchronous();
    let mut port = place::bind(&domain, &args.bind, options)?;
    let mut waiting = Some(place::awaiting(&args.place, args.timeout, "a request"));
    let mut served = 0;
    while args.count.is_none_or(|count| served < count) {
        let received = port.get_request(Access::Now, deadline(args.timeout));
        // Told once, and not of each request.
        drop(waiting.take());
        let request = received.map_err(|error| match error {
            ReceiveError::TimedOut => CliError::NothingCame {
                name: args.place.name.clone(),
            },
            other => CliError::library("receiving")(other),
        })?;
        if request.wants_reply() {
            served += 1;
            if let Err(error) = server.answer(&domain, request) {
                // Dropped, which its client is told; the next one may fare better.
                error.report();
                tell!("portolan: the request is dropped");
            }
        }
    }
    Ok(())
}

/// Whether a program can be started, as far as can be told beforehand.
fn runnable(program: &str) -> Result<()> {
    let not = |reason: String| CliError::NotRunnable {
        program: program.to_owned(),
        reason,
    };
    if program.contains('/') {
        return executable(Path::new(program)).map_err(|error| not(error.to_string()));
    }
    // As the C library does without one.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut found = None;
    for directory in std::env::split_paths(&path) {
        match executable(&directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => found = Some(error),
        }
    }
    Err(not(found.map_or_else(
        || "there is no such program in PATH".to_owned(),
        |error| error.to_string(),
    )))
}

fn executable(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let flags = AtFlags::EACCESS;
    Ok(accessat(CWD, path, Permission::EXEC_OK, flags)?)
}

/// The process group of the command that runs, if one does.
#[derive(Clone, Default)]
struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    /// Starts a command in a group of its own.
    fn start(&self, command: &mut Command) -> io::Result<Child> {
        // Locked, so that the thread that ends us finds the group.
        let mut group = self.lock();
        let child = command.process_group(0).spawn()?;
        *group = Some(Pid::from_child(&child));
        Ok(child)
    }

    /// Waits for the command, whose number is another process's afterwards.
    fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let mut group = self.lock();
        *group = None;
        child.wait()
    }

    fn kill(&self) {
        if let Some(group) = *self.lock() {
            // Not waited for yet, so this number is its own. It may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Kills the group when a signal ends us, and then ends as that signal does.
    fn ends_with_us(&self) -> Result<()> {
        let ours = [SIGHUP, SIGINT, SIGTERM];
        // Who was started with a signal ignored (`nohup`, `&` in a script) goes on ignoring it.
        let ignored = ignored();
        let ours = ours.into_iter().filter(|signal| !ignored(*signal));
        let listening = CliError::system("listening to signals");
        let mut signals = Signals::new(ours).map_err(listening)?;
        let group = self.clone();
        let end = move || {
            for signal in signals.forever() {
                group.kill();
                let _ = emulate_default_handler(signal);
            }
        };
        let started = std::thread::Builder::new().spawn(end);
        started.map_err(CliError::system("starting a thread"))?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which signals this process ignores.
fn ignored() -> impl Fn(i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    move |signal| mask >> (signal - 1) & 1 == 1
}

/// What answers requests.
struct Server<'a> {
    program: &'a str,
    arguments: &'a [String],
    /// How long the command may take.
    limit: Option<Duration>,
    group: Group,
}

impl Server<'_> {
    /// Runs the command with the request as its input; its output is the answer. A request
    /// whose command fails, or takes too long, is dropped, which its client is told.
    fn answer(&self, domain: &Domain, request: Request) -> Result<()> {
        let Self { program, limit, .. } = self;
        let mut run = Command::new(program);
        run.args(self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        dies_with_us(&mut run);
        // Else ours would pass for this request's.
        run.env_remove("PORTOLAN_HEADER");
        let header = request.message.header();
        if !header.contains(&0) {
            run.env("PORTOLAN_HEADER", OsStr::from_bytes(header));
        }
        let until = limit.map(|limit| Instant::now() + limit);
        let started = self.group.start(&mut run);
        let mut child = started.map_err(|source| CliError::NotRunnable {
            program: (*program).to_owned(),
            reason: source.to_string(),
        })?;
        let output = converse(domain, &request.message, &mut child, until);
        let ended = output.is_ok().then(|| ends(&child, until)).transpose();
        let in_time = matches!(ended, Ok(Some(true)));
        if !in_time {
            self.group.kill();
        }
        let status = self.group.wait(&mut child);
        let status = status.map_err(CliError::system("waiting for the command"))?;
        if !in_time && until.is_some_and(|until| until <= Instant::now()) {
            let seconds = limit.unwrap_or_default().as_secs_f64();
            tell!("portolan: {program} took longer than {seconds} s; the request is dropped");
            return Ok(());
        }
        let extents = output?;
        ended?;
        if !status.success() {
            tell!("portolan: {program}: {status}; the request is dropped");
            return Ok(());
        }
        let mut message = Message::default();
        for extent in extents {
            if let Err(refused) = message.push(extent) {
                tell!("portolan: {}; the request is dropped", refused.why);
                return Ok(());
            }
        }
        if let Err(error) = request.reply(message) {
            tell!("portolan: nobody takes the answer: {error}");
        }
        Ok(())
    }
}

/// Waits for the command's end; `false` if it is still running then.
fn ends(child: &Child, until: Option<Instant>) -> Result<bool> {
    let failed = CliError::system("waiting for the command");
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let pidfd = pidfd.map_err(io::Error::from);
    match pidfd.and_then(|pidfd| ready(pidfd.as_fd(), PollFlags::IN, until)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Writes the request to the command while its output is read.
fn converse(
    domain: &Domain,
    request: &Message,
    child: &mut Child,
    until: Option<Instant>,
) -> Result<Vec<Extent>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || match stdin {
            Some(stdin) => {
                // A pipe that is ready takes a little, and a write of more would wait.
                fcntl_setfl(&stdin, fcntl_getfl(&stdin)? | OFlags::NONBLOCK)?;
                payload::store(request, &mut Timed { pipe: stdin, until })
            }
            None => Ok(()),
        });
        let output = match stdout {
            Some(stdout) => payload::load(
                domain,
                &mut Timed {
                    pipe: stdout,
                    until,
                },
                None,
            ),
            None => Ok(Vec::new()),
        };
        match writer.join() {
            // A command need not read all of its input.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::system("writing to the command")(error))
            }
            _ => output,
        }
    })
}

/// A pipe that is used until a deadline.
struct Timed<P> {
    pipe: P,
    until: Option<Instant>,
}

/// Waits until a descriptor is ready for `what`, or has failed; `TimedOut` at the deadline.
fn ready(descriptor: BorrowedFd<'_>, what: PollFlags, until: Option<Instant>) -> io::Result<()> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::from_borrowed_fd(descriptor, what)];
        match poll(&mut polled, left.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl<P: Read + AsFd> Read for Timed<P> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        ready(self.pipe.as_fd(), PollFlags::IN, self.until)?;
        self.pipe.read(bytes)
    }
}

impl<P: Write + AsFd> Write for Timed<P> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.pipe.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(self.pipe.as_fd(), PollFlags::OUT, self.until)?;
                }
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pipe.flush()
    }
}
