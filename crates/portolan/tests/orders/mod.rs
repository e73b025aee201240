//! Another process of a test, told what to do line by line.
//!
//! It is this test program again, running one test that does nothing unless it was started
//! from here.

#![allow(dead_code, reason = "no test's file uses all of it")]

#[path = "../until/mod.rs"]
mod until;

pub(crate) use until::{PATIENCE, until};

use portolan_sys::process::{PidFd, Signal, signal};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set in a process that takes orders.
const ORDERS: &str = "PORTOLAN_TEST_CHILD";
/// What marks an answer among what the test harness prints.
const MARK: &str = "@ ";
/// What every child can be told.
const COPY: &str = "make a copy";

/// A domain's name that no other test has.
pub(crate) fn unique(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{test}-{}-{number}", std::process::id())
}

/// A process that takes orders. Killed when dropped.
pub(crate) struct Child {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// A process that runs the test named `test`, which [`obey`]s.
    pub(crate) fn running(test: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        Self::started(
            Command::new(std::env::current_exe().unwrap()),
            test,
            prepare,
        )
    }

    /// The same by `starter`, a command that runs another.
    pub(crate) fn through(mut starter: Command, test: &str) -> Self {
        starter.arg(std::env::current_exe().unwrap());
        Self::started(starter, test, |_| {})
    }

    fn started(mut command: Command, test: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
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

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Gives an order without waiting for the answer.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        self.orders.flush().unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).unwrap();
            assert!(read > 0, "the child has ended: {:?}", self.process.wait());
            // The harness prints the test's name without ending the line.
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Gives an order; the answer.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// Whether it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends SIGKILL and does not wait.
    pub(crate) fn kill_only(&mut self) {
        self.process.kill().unwrap();
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        self.stopped();
    }

    /// Waits until it has stopped.
    pub(crate) fn stopped(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        until("the child has stopped", || {
            std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "))
        });
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, what: Signal) {
        let pidfd = PidFd::open(self.pid()).unwrap();
        signal(&pidfd, what).unwrap();
    }
}

/// A copy of a child that has all its descriptors, and does nothing. Killed when dropped.
pub(crate) struct Copied(PidFd);

impl Child {
    /// Has it make a copy of itself, past whatever a fork does.
    pub(crate) fn copied(&mut self) -> Copied {
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

/// The same as `fork`, but nobody is told who wants to be: neither the C library, nor whoever
/// has it let go of descriptors.
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
pub(crate) fn close_all() -> String {
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
pub(crate) fn apart() -> Option<Command> {
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
pub(crate) type Answer = Result<String, Box<dyn std::error::Error>>;

/// Does what this process is told, if it was started to take orders.
pub(crate) fn obey(mut act: impl FnMut(&str) -> Answer) {
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

/// What happens to this process at a mark.
#[cfg(feature = "marks")]
pub(crate) mod fate {
    use portolan_sys::process::{PidFd, Signal, signal};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// The mark at which something happens to this process, and what.
    static DEADLY: OnceLock<(String, Signal)> = OnceLock::new();
    /// Whether it happens once only, and whether it has.
    static ONCE: AtomicBool = AtomicBool::new(false);
    static PASSED: AtomicBool = AtomicBool::new(false);

    /// Kills this process the next time that it passes the mark.
    pub(crate) fn die_at(mark: &str) {
        DEADLY.set((mark.to_owned(), Signal::KILL)).unwrap();
        portolan_shm::mark::install(passed);
    }

    /// Stops this process whenever it passes the mark.
    pub(crate) fn stop_at(mark: &str) {
        DEADLY.set((mark.to_owned(), Signal::STOP)).unwrap();
        portolan_shm::mark::install(passed);
    }

    /// Stops this process when it next passes the mark, and never again.
    pub(crate) fn stop_once_at(mark: &str) {
        ONCE.store(true, Ordering::Relaxed);
        stop_at(mark);
    }

    fn passed(mark: &'static str) {
        if let Some((deadly, fate)) = DEADLY.get()
            && deadly == mark
            && !(ONCE.load(Ordering::Relaxed) && PASSED.swap(true, Ordering::Relaxed))
        {
            let own = PidFd::open(std::process::id()).unwrap();
            signal(&own, *fate).unwrap();
            // The signal may come to another thread first, and to this one a moment later.
            match *fate {
                Signal::KILL => std::thread::park(),
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}
