//! Sleeps in an io_uring: what is new is submitted by the call that sleeps.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::types::{Fd, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::looks::Looks;
use super::{By, On, is_named};
use crate::bell::wait_entry;
use crate::time;

/// Entries that are submitted by one call. Further ones cost a call of their own.
const ENTRIES: u32 = 64;
/// Completions that fit into the ring: those of as many links as a node has. The kernel keeps further
/// ones until there is room.
const COMPLETIONS: u32 = 512;

/// How often it is looked before the clock is read.
const LOOKS_EACH: u32 = 16;

/// Marks the completion of a cancellation, and of a near time; what is slept on is numbered below.
const CANCEL: u64 = u64::MAX;
const TIME: u64 = u64::MAX - 1;

pub(super) struct Ring {
    ring: IoUring,
    /// The number of what is in the kernel, by its key.
    armed: BTreeMap<u64, u64>,
    /// The key, by the number.
    keys: BTreeMap<u64, u64>,
    /// So many things were put into the kernel so far.
    numbers: u64,
    /// Keys of what has fired and was not said.
    fired: Vec<u64>,
    /// Of the near times that are in the kernel the first one.
    near: Option<Instant>,
    /// The same for the kernel, which reads it when it is submitted.
    at: Box<Timespec>,
    pub(super) looks: Looks,
    /// System calls so far, and those of them that slept.
    #[cfg(test)]
    pub(super) calls: u64,
    #[cfg(test)]
    slept: u64,
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        // A completion comes while this thread sleeps in the ring, or waits for its next call: it need
        // not be interrupted for one.
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let is_there = |code| probe.is_supported(code);
        if !is_there(opcode::FutexWait::CODE) || !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            ring,
            armed: BTreeMap::new(),
            keys: BTreeMap::new(),
            numbers: 0,
            fired: Vec::new(),
            near: None,
            at: Box::default(),
            looks: Looks::default(),
            #[cfg(test)]
            calls: 0,
            #[cfg(test)]
            slept: 0,
        })
    }

    /// The sleep that follows ends by then. The time stays in the kernel if it ends before.
    fn ends_at(&mut self, at: Instant) -> io::Result<()> {
        if self.near.is_some_and(|near| near <= at) {
            return Ok(());
        }
        let Some(absolute) = time::absolute(at) else {
            return Ok(());
        };
        *self.at = Timespec::new()
            .sec(absolute.tv_sec.unsigned_abs())
            .nsec(u32::try_from(absolute.tv_nsec).unwrap_or(0));
        let timer = opcode::Timeout::new(&raw const *self.at).flags(TimeoutFlags::ABS);
        self.push(&timer.build().user_data(TIME))?;
        self.near = Some(at);
        Ok(())
    }

    pub(super) fn poll(
        &mut self,
        on: &[(u64, On<'_>)],
        by: Option<By>,
        looks: bool,
    ) -> io::Result<Vec<u64>> {
        self.drain()?;
        self.let_go(on)?;
        for (key, what) in on {
            let is_known = self.armed.contains_key(key) || self.fired.contains(key);
            let entry = match what {
                _ if is_known => continue,
                On::Kept => continue,
                On::Descriptor(fd) => {
                    let readable = u32::from(libc::POLLIN.unsigned_abs());
                    opcode::PollAdd::new(Fd(fd.as_raw_fd()), readable).build()
                }
                On::Word(word, value) => wait_entry(word, *value),
            };
            self.arm(*key, entry)?;
        }
        // S4: from here on who takes something out does not sleep.
        let deadline = match by {
            Some(By::Timer(at, _)) => {
                self.ends_at(at)?;
                None
            }
            Some(By::Clock(at)) => Some(at),
            None => None,
        };
        // S1.
        let mut sleeps = self.fired.is_empty();
        if sleeps && looks && self.looks.begins() {
            sleeps = !self.look(deadline)?;
        }
        if sleeps || !self.ring.submission().is_empty() {
            self.enter(sleeps, deadline)?;
            self.drain()?;
        }
        Ok(std::mem::take(&mut self.fired))
    }

    /// Puts all into the kernel (S1), and looks a while whether something fires; whether it has. Nobody
    /// has to wake this thread for that, and it makes no system call.
    fn look(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let begun = Instant::now();
        if deadline.is_some_and(|at| at < begun + self.looks.long) {
            return Ok(false);
        }
        self.enter(false, None)?;
        if self.has_come() {
            return self.takes_what_has_come();
        }
        while begun.elapsed() < self.looks.long {
            for _ in 0..LOOKS_EACH {
                if self.has_come() {
                    self.looks.paid();
                    return self.takes_what_has_come();
                }
                std::hint::spin_loop();
            }
        }
        self.looks.was_in_vain();
        Ok(false)
    }

    /// Whether something has completed, or does when the kernel is called next.
    fn has_come(&mut self) -> bool {
        let runs = self.ring.submission().taskrun();
        runs || !self.ring.completion().is_empty()
    }

    fn takes_what_has_come(&mut self) -> io::Result<bool> {
        if self.ring.submission().taskrun() {
            self.enter(false, None)?;
        }
        self.drain()?;
        Ok(true)
    }

    /// Puts something into the kernel, with the next call.
    fn arm(&mut self, key: u64, entry: squeue::Entry) -> io::Result<()> {
        self.numbers += 1;
        let number = self.numbers;
        self.push(&entry.user_data(number))?;
        self.armed.insert(key, number);
        self.keys.insert(number, key);
        Ok(())
    }

    /// Calls off what is not named any more.
    fn let_go(&mut self, on: &[(u64, On<'_>)]) -> io::Result<()> {
        self.fired.retain(|key| is_named(on, *key));
        let named = on.iter().filter(|(key, _)| self.armed.contains_key(key));
        if named.count() == self.armed.len() {
            return Ok(());
        }
        let all = self.armed.iter();
        let gone: Vec<(u64, u64)> = all
            .filter(|(key, _)| !is_named(on, **key))
            .map(|(key, number)| (*key, *number))
            .collect();
        for (key, number) in gone {
            let cancel = opcode::AsyncCancel::new(number).build().user_data(CANCEL);
            self.push(&cancel.flags(squeue::Flags::SKIP_SUCCESS))?;
            self.armed.remove(&key);
            self.keys.remove(&number);
        }
        Ok(())
    }

    /// Takes all completions; what they were of is in the kernel no more.
    fn drain(&mut self) -> io::Result<()> {
        loop {
            let Self {
                ring,
                armed,
                keys,
                fired,
                near,
                ..
            } = self;
            for done in ring.completion() {
                let number = done.user_data();
                if number == TIME {
                    *near = None;
                } else if let Some(key) = keys.remove(&number) {
                    armed.remove(&key);
                    fired.push(key);
                }
            }
            if !self.ring.submission().cq_overflow() {
                return Ok(());
            }
            // The kernel moves those over for which there was no room.
            self.enter(false, None)?;
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        while self.ring.submission().is_full() {
            // What has completed makes room for what will.
            self.drain()?;
            self.enter(false, None)?;
        }
        // SAFETY:
        // - No entry makes the kernel write to our memory. It reads the futex word only while it
        //   submits, where a bad address is an error that fires; and a time from a box that lives as
        //   long as the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(io::Error::other)
    }

    /// Submits what is pushed; then, if it `sleeps`, sleeps until something completes.
    fn enter(&mut self, sleeps: bool, deadline: Option<Instant>) -> io::Result<()> {
        #[cfg(test)]
        {
            self.calls += 1;
            self.slept += u64::from(sleeps);
        }
        let done = match deadline {
            Some(at) if sleeps => {
                let left = Timespec::from(time::remaining(at));
                let args = SubmitArgs::new().timespec(&left);
                self.ring.submitter().submit_with_args(1, &args)
            }
            _ => self.ring.submit_and_wait(usize::from(sleeps)),
        };
        match done {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time has come, or a signal; or completions wait to be taken.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("armed", &self.armed)
            .field("near", &self.near)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::futex;
    use crate::process::EventFd;

    /// What a node does for each message: woken by a word, then by a descriptor, each time with a
    /// time that does not come.
    #[test]
    fn a_sleep_is_one_system_call() {
        let mut ring = match Ring::new() {
            Ok(ring) => ring,
            Err(error) => return eprintln!("no io_uring: {error}"),
        };
        let (event, word) = (EventFd::new().unwrap(), AtomicU32::new(0));
        let minute = Duration::from_secs(60);
        let soon = Some(By::Timer(Instant::now() + minute, minute));
        for turn in 0..100 {
            let on = [
                (1, On::Descriptor(event.as_fd())),
                (2, On::Word(&word, turn)),
            ];
            let now = Some(By::Clock(Instant::now()));
            assert_eq!(ring.poll(&on, now, false).unwrap(), []);
            let before = ring.calls;
            word.fetch_add(1, Ordering::SeqCst);
            futex::wake(&word, u32::MAX);
            assert_eq!(ring.poll(&on, soon, false).unwrap(), [2]);
            event.notify().unwrap();
            let on = [on[0], (2, On::Word(&word, turn + 1))];
            assert_eq!(ring.poll(&on, soon, false).unwrap(), [1]);
            event.drain().unwrap();
            assert!(ring.calls <= before + 2, "{} calls", ring.calls - before);
        }
        assert_eq!(ring.armed.len(), 1, "the word");
        assert!(ring.near.is_some());
    }

    /// More at once than there is room for, in either direction.
    #[test]
    fn many_are_slept_on_and_fire_at_once() {
        let mut ring = match Ring::new() {
            Ok(ring) => ring,
            Err(error) => return eprintln!("no io_uring: {error}"),
        };
        let words: Vec<AtomicU32> = (0..1500).map(AtomicU32::new).collect();
        let on: Vec<_> = (0..).zip(words.iter().map(|it| On::Word(it, 0))).collect();
        let mut seen = vec![false; words.len()];
        seen[0] = true;
        futex::wake(&words[0], 1);
        while seen.contains(&false) {
            // All but the first have another value.
            for key in ring.poll(&on, None, false).unwrap() {
                seen[usize::try_from(key).unwrap()] = true;
            }
        }
        assert!(ring.armed.contains_key(&0));
    }

    /// What comes while it looks is found without a sleep; what does not come is slept for.
    #[test]
    fn who_expects_something_soon_looks_for_it_first() {
        let mut ring = match Ring::new() {
            Ok(ring) => ring,
            Err(error) => return eprintln!("no io_uring: {error}"),
        };
        let (event, word) = (EventFd::new().unwrap(), AtomicU32::new(0));
        let descriptor = (1, On::Descriptor(event.as_fd()));
        // So that what is late is still in time.
        ring.looks.long = Duration::from_secs(60);
        for turn in 0..10 {
            let on = [descriptor, (2, On::Word(&word, turn))];
            let ready = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    word.fetch_add(1, Ordering::SeqCst);
                    futex::wake(&word, u32::MAX);
                });
                ring.poll(&on, None, true).unwrap()
            });
            assert_eq!(ready, [2]);
            let on = [descriptor, (2, On::Word(&word, turn + 1))];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    event.notify().unwrap();
                });
                assert_eq!(ring.poll(&on, None, true).unwrap(), [1]);
            });
            event.drain().unwrap();
        }
        assert_eq!(ring.slept, 0);
        ring.looks.long = Duration::from_micros(1);
        let on = [descriptor, (2, On::Word(&word, 10))];
        let soon = Some(By::Clock(Instant::now() + Duration::from_millis(5)));
        assert_eq!(ring.poll(&on, soon, true).unwrap(), []);
        assert_eq!(ring.slept, 1);
        // S1: what was put into the kernel by the look fires.
        event.notify().unwrap();
        assert_eq!(ring.poll(&on, None, true).unwrap(), [1]);
    }
}
