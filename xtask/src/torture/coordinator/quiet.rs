//! Holds all workers still for moments, in which the auditor looks.

use super::super::Doing;
use super::super::board::{DIE, Entry, Journal, Word};
use super::super::last_acts::LastAct;
use super::{BOUND, Coordinator, LASTING, LASTING_PLANTED, LASTING_SABOTAGED, LONG_BOUND, SPARE};
use crate::audit::{self, Findings, Image};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Coordinator {
    /// Lets everybody hold still, and looks at what they hold.
    pub(super) fn pause_and_audit(&mut self) -> std::io::Result<()> {
        for worker in 0..self.places.len() {
            self.board.disarm(worker);
            self.places[worker].armed = None;
        }
        self.newcomer = None;
        self.pauses += 1;
        let pause = self.pauses;
        self.board.word(Word::Pause).store(pause, Ordering::SeqCst);
        let asleep = |c: &Self, w: usize| Doing::of(c.board.get(w, Entry::Doing)).is_asleep();
        self.wait(LONG_BOUND, |c, w| {
            c.board.get(w, Entry::Paused) == pause || asleep(c, w)
        })?;
        self.settle()?;
        self.let_some_die(pause)?;
        self.find_sleepers()?;
        let awake = (0..self.places.len()).find(|w| self.board.get(*w, Entry::Paused) == pause);
        self.board
            .word(Word::Pinger)
            .store(awake.map_or(0, |w| w as u64 + 1), Ordering::SeqCst);
        self.wait(BOUND, |c, w| c.board.get(w, Entry::Paused) == pause)?;
        // Who was killed for not answering is reclaimed first.
        self.settle()?;
        self.board.word(Word::Count).store(pause, Ordering::SeqCst);
        self.wait(BOUND, |c, w| c.board.get(w, Entry::Counted) == pause)?;
        self.conclude()?;
        for worker in 0..self.places.len() {
            self.take_corrupt(worker);
            self.places[worker].beat = None;
        }
        for word in [Word::Count, Word::Pinger, Word::Pause] {
            self.board.word(word).store(0, Ordering::SeqCst);
        }
        self.report.audits += 1;
        Ok(())
    }

    /// Some of those who hold still die, in the midst of what they do last.
    fn let_some_die(&mut self, pause: u64) -> std::io::Result<()> {
        if self.plan.stop || !self.plan.marks.is_empty() {
            return Ok(());
        }
        let deaths = if self.plan.sabotage.is_some() { 3 } else { 1 };
        for _ in 0..deaths {
            let holds = |c: &Self, w: usize| {
                let place = &c.places[w];
                let is_there = place.child.is_some() && !place.killed;
                is_there && c.board.get(w, Entry::Paused) == pause
            };
            let all: Vec<usize> = (0..self.places.len()).filter(|w| holds(self, *w)).collect();
            if all.len() <= SPARE {
                break;
            }
            let worker = all[self.random.below(all.len())];
            let act = LastAct::ALL[self.random.below(LastAct::ALL.len())];
            self.let_die(worker, act)?;
        }
        self.settle()
    }

    /// A worker does something last, and is dead afterwards.
    fn let_die(&mut self, worker: usize, act: LastAct) -> std::io::Result<()> {
        let pid = |c: &Self| c.places[worker].child.as_ref().map(|child| child.id());
        let who = pid(self);
        let marks = act.marks();
        let mark = marks.get(self.random.below(marks.len()));
        if let Some(mark) = mark.and_then(|mark| crate::marks::index(mark)) {
            self.arm_at_once(worker, mark, DIE);
        }
        self.board.set(worker, Entry::LastAct, act as u64);
        let end = Instant::now() + BOUND;
        while pid(self) == who && Instant::now() < end {
            if self.board.get(worker, Entry::LastAct) == LastAct::DONE {
                self.kill(worker);
            }
            std::thread::sleep(Duration::from_millis(1));
            self.look_around()?;
        }
        if pid(self) == who {
            self.hang(worker, &format!("worker {worker} does not end {act:?}"));
        }
        Ok(())
    }

    /// Waits until all living workers are `ready`; one that is not in time hangs.
    pub(super) fn wait(
        &mut self,
        bound: Duration,
        ready: impl Fn(&Self, usize) -> bool,
    ) -> std::io::Result<()> {
        let end = Instant::now() + bound;
        loop {
            self.look_around()?;
            for worker in 0..self.places.len() {
                self.resume(worker, true);
            }
            let late: Vec<usize> = (0..self.places.len())
                .filter(|w| self.places[*w].child.is_none() || !ready(self, *w))
                .collect();
            if late.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                for worker in late {
                    let doing = Doing::of(self.board.get(worker, Entry::Doing));
                    self.hang(
                        worker,
                        &format!("worker {worker} is {doing:?} and does not answer"),
                    );
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How long a finding must last to count.
    fn lasting(&self) -> Duration {
        match (&self.plan.sabotage, self.plan.plant.as_deref()) {
            (Some(_), _) => LASTING_SABOTAGED,
            // Which only the audit notices.
            (None, Some("sample")) => LASTING_PLANTED,
            (None, _) => LASTING,
        }
    }

    /// Waits until the dead are reclaimed and somebody hosts.
    fn settle(&mut self) -> std::io::Result<()> {
        // With a rule off, nobody may ever be reclaimed; the auditor will say so.
        let bound = if self.plan.sabotage.is_none() {
            BOUND
        } else {
            LASTING_SABOTAGED
        };
        let end = Instant::now() + bound;
        loop {
            self.look_around()?;
            let Some(image) = &self.image else {
                return Ok(());
            };
            let before = image.reclaims()?;
            if audit::is_settled(image)? && image.reclaims()? == before {
                return Ok(());
            }
            if Instant::now() > end {
                // The auditor will say what is wrong.
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn journals(&self) -> Vec<(u32, Journal)> {
        let of = |worker: usize| {
            Some((
                self.places[worker].child.as_ref()?.id(),
                self.board.journal(worker),
            ))
        };
        (0..self.places.len()).filter_map(of).collect()
    }

    /// Nobody sleeps although a message waits for it.
    fn find_sleepers(&mut self) -> std::io::Result<()> {
        let end = Instant::now() + self.lasting();
        let mut first: Option<BTreeSet<String>> = None;
        while let Some(image) = &self.image {
            let found = audit::audit(image, &[])?;
            let ports = found
                .sleeping
                .iter()
                .map(|port| audit::sleepers(&[*port].into()));
            let now: BTreeSet<String> = ports.chain(self.deaf(image, &found)?).collect();
            let still: BTreeSet<String> = first
                .take()
                .map_or(now.clone(), |f| f.intersection(&now).cloned().collect());
            if still.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                self.report.hung_waiters += still.len() as u64;
                for hung in still {
                    self.note(format!("hung: {hung}"));
                }
                return Ok(());
            }
            first = Some(still);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Workers that sleep for a letter, and have one.
    fn deaf(&self, image: &Image, found: &Findings) -> std::io::Result<Vec<String>> {
        let spaces = image.spaces()?;
        let deaf = (0..self.places.len()).filter_map(|worker| {
            let doing = Doing::of(self.board.get(worker, Entry::Doing));
            let pid = self.places[worker].child.as_ref()?.id();
            let space = spaces.iter().find(|s| s.pid == pid)?.id;
            let page = image.page_of(self.board.get(worker, Entry::Letters))?;
            let hung = doing == Doing::Listening && found.unread.contains(&(space, page));
            hung.then(|| format!("worker {worker} sleeps, and there is a letter for it"))
        });
        Ok(deaf.collect())
    }

    /// The audit proper: what it finds must last to count.
    fn conclude(&mut self) -> std::io::Result<()> {
        let end = Instant::now() + self.lasting();
        let journals = self.journals();
        while let Some(image) = &self.image {
            let found = audit::audit(image, &journals)?;
            let news = found.all().any(|f| !self.seen.contains(&f));
            if found.is_clean() || !news {
                return Ok(());
            }
            if Instant::now() > end {
                self.count(&found);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn count(&mut self, found: &Findings) {
        let r = &mut self.report;
        r.leaked_extents += found.leaked.len() as u64;
        r.double_owned += found.double_owned.len() as u64;
        r.unreleased_rights += found.unreleased.len() as u64;
        r.hung_waiters += found.hung.len() as u64;
        r.failed_takeovers += found.leaderless.len() as u64;
        for finding in found.all() {
            if self.seen.insert(finding.clone()) {
                self.note(finding);
            }
        }
    }
}
