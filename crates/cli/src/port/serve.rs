//! `portolan port serve`: a command answers each request.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portolan::{Access, Domain, Extent, Message, PortOptions, ReceiveError, Request};
use portolan_sys::process::dies_with_us;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{QUEUE, bind, deadline, join, payload};
use crate::args::ServeArgs;
use crate::error::{CliError, Result};

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    let domain = join(&args.place, "serve", args.timeout)?;
    let options = PortOptions::named(&args.place.name)
        .queue(QUEUE)
        .synchronous();
    let mut port = bind(&domain, options)?;
    let mut served = 0;
    while args.count.is_none_or(|count| served < count) {
        let received = port.get_request(Access::Now, deadline(args.timeout));
        let request = received.map_err(|error| match error {
            ReceiveError::TimedOut => CliError::NothingCame {
                name: args.place.name.clone(),
            },
            other => CliError::library("receiving")(other),
        })?;
        if request.wants_reply() {
            served += 1;
            let limit = args.limit.map(Duration::from_secs_f64);
            answer(&domain, request, &args.command, limit)?;
        }
    }
    Ok(())
}

/// Runs the command with the request as its input; its output is the answer. A request
/// whose command fails, or takes too long, is dropped, which its client is told.
fn answer(
    domain: &Domain,
    request: Request,
    command: &[String],
    limit: Option<Duration>,
) -> Result<()> {
    let (program, arguments) = command.split_first().ok_or_else(|| {
        // The command line asks for one at least.
        CliError::Refused("no command to answer with".to_owned())
    })?;
    let mut run = Command::new(program);
    run.args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // With all that it starts, it can be killed.
        .process_group(0);
    dies_with_us(&mut run);
    // Else ours would pass for this request's.
    run.env_remove("PORTOLAN_HEADER");
    let header = request.message.header();
    if !header.contains(&0) {
        run.env("PORTOLAN_HEADER", OsStr::from_bytes(header));
    }
    let until = limit.map(|limit| Instant::now() + limit);
    let mut child = run.spawn().map_err(|source| CliError::Input {
        path: program.into(),
        source,
    })?;
    let output = converse(domain, &request.message, &mut child, until);
    let in_time = output.is_ok() && ends(&child, until)?;
    if !in_time {
        // It is not waited for yet, so this number is its own.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child
        .wait()
        .map_err(CliError::system("waiting for the command"))?;
    let extents = match output {
        _ if !in_time && until.is_some_and(|until| until <= Instant::now()) => {
            let seconds = limit.unwrap_or_default().as_secs_f64();
            eprintln!("portolan: {program} took longer than {seconds} s; the request is dropped");
            return Ok(());
        }
        Ok(extents) if status.success() => extents,
        Ok(_) => {
            eprintln!("portolan: {program}: {status}; the request is dropped");
            return Ok(());
        }
        Err(error) => {
            error.report();
            return Ok(());
        }
    };
    let mut message = Message::default();
    for extent in extents {
        if let Err(refused) = message.push(extent) {
            eprintln!("portolan: {}; the request is dropped", refused.error);
            return Ok(());
        }
    }
    if let Err(error) = request.reply(message) {
        eprintln!("portolan: nobody takes the answer: {error}");
    }
    Ok(())
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
