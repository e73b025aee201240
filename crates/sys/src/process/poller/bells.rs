//! Sleeps without an io_uring: each word has a bell, and all are polled.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{By, On, is_named};
use crate::bell::FutexFd;
use crate::process::{Ready, poll};
use crate::watch::Timer;

#[derive(Debug)]
pub(super) struct Bells {
    /// By key; and whether it is armed.
    words: BTreeMap<u64, (FutexFd, bool)>,
    /// Of near times.
    timer: Timer,
    /// When it runs out; `None`: it has.
    set: Option<Instant>,
}

impl Bells {
    pub(super) fn new() -> io::Result<Self> {
        let set = Some(Instant::now());
        let timer = Timer::start(Duration::ZERO, None)?;
        let words = BTreeMap::new();
        Ok(Self { words, timer, set })
    }

    /// The next call ends by then, which is so far away.
    fn ends_at(&mut self, at: Instant, left: Duration) -> io::Result<()> {
        if self.set.is_none_or(|set| set > at) {
            self.timer.set(left, None)?;
            self.set = Some(at);
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, on: &[(u64, On<'_>)], by: Option<By>) -> io::Result<Vec<u64>> {
        let deadline = match by {
            Some(By::Timer(at, left)) => {
                self.ends_at(at, left)?;
                None
            }
            Some(By::Clock(at)) => Some(at),
            None => None,
        };
        self.words.retain(|key, _| is_named(on, *key));
        for (key, what) in on {
            let On::Word(word, value) = what else {
                continue;
            };
            if !self.words.contains_key(key) {
                self.words.insert(*key, (FutexFd::with_thread()?, false));
            }
            if let Some((bell, armed)) = self.words.get_mut(key)
                && !*armed
            {
                bell.arm(word, *value)?;
                *armed = true;
            }
        }
        let mut keys = Vec::with_capacity(on.len());
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(on.len() + 1);
        for (key, what) in on {
            match (what, self.words.get(key)) {
                (On::Descriptor(fd), _) => fds.push(*fd),
                (_, Some((bell, true))) => fds.push(bell.as_fd()),
                _ => continue,
            }
            keys.push(*key);
        }
        fds.push(self.timer.as_fd());
        let ready = poll(&fds, deadline)?;
        let mut fired = Vec::new();
        for (key, ready) in keys.into_iter().zip(&ready) {
            if !ready.any() {
                continue;
            }
            if let Some((bell, armed)) = self.words.get_mut(&key) {
                if !bell.drain()? {
                    continue;
                }
                *armed = false;
            }
            fired.push(key);
        }
        if ready.last().copied().is_some_and(Ready::any) {
            self.timer.ran_out()?;
            self.set = None;
        }
        Ok(fired)
    }
}
