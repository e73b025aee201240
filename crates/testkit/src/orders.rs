//! Orders tell another process of a test what to do, line by line.
//!
//! It runs one test, which calls [`obey`] and does nothing else.

use crate::process::{again, one_test};
use crate::wait::until;
use portolan_sys::process::{PidFd, Signal, signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// Set in a process that takes orders.
const ORDERS: &str = "PORTOLAN_TEST_CHILD";
/// What marks an answer among what the test harness prints.
const MARK: &str = "@ ";
/// What every child can be told.
const COPY: &str = "make a copy";

/// A process that takes orders. Killed when dropped.
pub struct Child {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// A process that runs the test named `test`, which [`obey`]s.
    pub fn running(test: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        Self::started(again(test), prepare)
    }

    /// The same by `starter`, a command that runs another.
    pub fn through(mut starter: Command, test: &str) -> Self {
        starter.arg(std::env::current_exe().unwrap());
        one_test(&mut starter, test);
        Self::started(starter, |_| {})
    }

    fn started(mut command: Command, prepare: impl FnOnce(&mut Command)) -> Self {
        command
            .env(ORDERS, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut process = command.spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            orders,
            answers,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Gives an order without waiting for the answer.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        self.orders.flush().unwrap();
    }

    /// The answer to the last order.
    ///
    /// # Panics
    ///
    /// The process has ended.
    pub fn answer(&mut self) -> String {
        let answer = self.answer_or_end();
        answer.unwrap_or_else(|| panic!("the child has ended: {:?}", self.process.wait()))
    }

    /// The answer to the last order; nothing, if the process has ended instead.
    pub fn answer_or_end(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness prints the test's name without ending the line.
            if let Some(at) = line.find(MARK) {
                return Some(line[at + MARK.len()..].trim_end().to_owned());
            }
        }
    }

    /// Gives an order; the answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// Waits until it has ended; how it did, and what it wrote to its standard error, if that is a
    /// pipe.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let status = self.process.wait().unwrap();
        let mut said = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            stderr.read_to_string(&mut said).unwrap();
        }
        (status, said)
    }

    /// The next line that it writes to its standard error, which is a pipe.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        let stderr = self.process.stderr.as_mut().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        line
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Kills it, and waits until it is dead.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends SIGKILL and does not wait.
    pub fn kill_only(&mut self) {
        self.process.kill().unwrap();
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        self.stopped();
    }

    /// Waits until it has stopped.
    pub fn stopped(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        until("the child has stopped", || {
            std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "))
        });
    }

    /// Lets it go on after a stop.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, what: Signal) {
        let pidfd = PidFd::open(self.pid()).unwrap();
        signal(&pidfd, what).unwrap();
    }
}

/// A copy of a child that has all its descriptors, and does nothing. Killed when dropped.
pub struct Copied(PidFd);

impl Child {
    /// Has it make a copy of itself, past whatever a fork does.
    pub fn copied(&mut self) -> Copied {
        let pid = self.ask(COPY).parse().unwrap();
        Copied(PidFd::open(pid).unwrap())
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        assert!(!self.0.is_dead());
        signal(&self.0, Signal::KILL).unwrap();
    }
}

/// The same as `fork`, but without the fork handlers: neither the C library's run, nor those by
/// which a library closes its descriptors in the child.
fn copy() -> libc::c_long {
    // SAFETY:
    // - Like `fork`: a copy of this process, on a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        loop {
            // SAFETY:
            // - Takes no pointers, no memory and no locks.
            unsafe { libc::pause() };
        }
    }
    pid
}

/// Closes all descriptors but the standard ones, the library's behind its back, once its threads
/// are at rest; what the kernel said. What a thread has just opened, and not put down yet as its
/// own, it would find closed beneath it, and the standard library aborts where it finds that.
pub fn close_all() -> String {
    let mut before = None;
    until("all other threads sleep", || {
        let now = at_rest();
        let resting = now.is_some() && now == before;
        before = now;
        resting
    });
    // SAFETY:
    // - It takes the library's descriptors away behind its back, which is what is tested.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    closed.to_string()
}

/// The other threads of this process, and how often each has fallen asleep, if all of them are.
fn at_rest() -> Option<Vec<(String, String)>> {
    let us = std::fs::read_link("/proc/thread-self").unwrap();
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if path.file_name() == us.file_name() {
            continue;
        }
        // One that has ended meanwhile is not at rest.
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let of = |key: &str| Some(status.lines().find_map(|l| l.strip_prefix(key))?.trim());
        if !of("State:")?.starts_with('S') {
            return None;
        }
        let thread = path.to_string_lossy().into_owned();
        threads.push((thread, of("voluntary_ctxt_switches:")?.to_owned()));
    }
    threads.sort();
    Some(threads)
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What starts a program in a process namespace of its own; nothing where none can be made.
pub fn apart() -> Option<Command> {
    let apart = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare
    };
    let made = apart().arg("true").status();
    let made = made.is_ok_and(|status| status.success());
    if !made {
        eprintln!("skipped: no process namespace can be made here");
    }
    made.then(apart)
}

/// What an order came to.
pub type Answer = Result<String, Box<dyn std::error::Error>>;

/// Does what this process is told, if it was started to take orders.
pub fn obey(mut act: impl FnMut(&str) -> Answer) {
    if std::env::var_os(ORDERS).is_none() {
        return;
    }
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return };
        let copied = (line == COPY).then(|| Ok(copy().to_string()));
        let answer = copied.unwrap_or_else(|| act(&line));
        let answer = answer.unwrap_or_else(|error| format!("error {error}"));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{MARK}{answer}").unwrap();
        out.flush().unwrap();
    }
}
