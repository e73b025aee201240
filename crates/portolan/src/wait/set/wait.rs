//! Waits at a wait set: looks, arms, sleeps.

use super::place::link;
use super::{Ready, WaitSet, WaitSetError};
use crate::space::counters;
use crate::space::record::About;
use crate::wait::Looking;
use crate::{Deadline, EventKind, NoDescriptor};
use portolan_abi::thread::{At, Wait};
use portolan_shm::atomic::Ordering;
use portolan_shm::mark;
use portolan_sys::{futex, process};
use std::os::fd::AsFd;
use std::time::Instant;

/// Idle ports that stay loose for a while, because they were busy lately: a wait that
/// spins looks at them, and their senders need not raise anything.
const WARM: usize = 4;

impl WaitSet {
    /// Waits until something is at one of the ports; which of them, or none if the
    /// deadline came first.
    ///
    /// # Errors
    ///
    /// [`WaitSetError`].
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Ready, WaitSetError> {
        self.member.present()?;
        let deadline = deadline.into();
        let mut ready = Ready::default();
        let mut looked = None;
        self.entry().awake();
        self.hear()?;
        self.look(&mut ready);
        self.alarms.failure().map_err(NoDescriptor::from)?;
        if ready.is_empty() {
            if !deadline.is_now() {
                counters::waits(&self.member, Wait::Spinning(self.waiting_at()));
                looked = self.spin(&mut ready, deadline).map(|l| (l.begun(), l));
                counters::waits(&self.member, Wait::Nothing);
            } else if !self.is_watched() || self.is_outside() {
                return Ok(ready);
            }
        }
        while ready.is_empty() {
            match self.round()? {
                Ok(found) => ready = found,
                Err(bell) if deadline.has_passed() => {
                    if self.hush(bell)? {
                        return Ok(ready);
                    }
                }
                Err(bell) => {
                    counters::waits(&self.member, Wait::Sleeping(self.waiting_at()));
                    mark!("sleep.before_futex");
                    let slept = self.sleep(bell, deadline);
                    counters::waits(&self.member, Wait::Nothing);
                    slept?;
                    self.entry().awake();
                    if let Some((begun, looking)) = looked.take() {
                        self.patience.slept(&looking, begun.elapsed());
                    }
                }
            }
        }
        Ok(self.named(ready))
    }

    /// Where its waiters wait, for people.
    fn waiting_at(&self) -> At {
        At::Set(u16::try_from(self.index).unwrap_or(u16::MAX))
    }

    /// Arms everything: what is ready, or that the set sleeps (W3), and the value of its
    /// doorbell until something comes.
    pub(crate) fn round(&mut self) -> Result<Result<Ready, u32>, NoDescriptor> {
        let mut ready = Ready::default();
        self.entry().awake();
        loop {
            self.hear()?;
            self.arm_loose(&mut ready);
            self.gather(&mut ready);
            self.alarms.failure()?;
            if !ready.is_empty() {
                return Ok(Ok(ready));
            }
            if let Some(bell) = self.entry().sleep() {
                return Ok(Err(bell));
            }
        }
    }

    /// Sleeps until something is raised, due or fired, or the deadline has passed.
    fn sleep(&mut self, bell: u32, deadline: Deadline) -> Result<(), NoDescriptor> {
        let due = self.alarms.next();
        let until = deadline.instant().into_iter().chain(due).min();
        if !self.alarms.has_words() {
            let _ = self.member.during(EventKind::Sleep, About::NOTHING, || {
                futex::wait(&self.entry().doorbell, bell, until)
            });
            return Ok(());
        }
        let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
        self.quiet = None;
        self.alarms.bell.arm(doorbell, bell)?;
        // What has fired by now needs no further call.
        if !self.hear()? {
            let fd = self.alarms.bell.as_fd();
            let about = About::NOTHING;
            self.member
                .during(EventKind::Sleep, about, || process::poll(&[fd], until))?;
        }
        Ok(())
    }

    /// Loosens what is due, and what words have fired for (A2); whether the bell has fired, for these
    /// or for the doorbell.
    #[inline]
    pub(super) fn hear(&mut self) -> Result<bool, NoDescriptor> {
        if self.alarms.is_empty() {
            return Ok(false);
        }
        self.hear_alarms()
    }

    #[cold]
    #[inline(never)]
    fn hear_alarms(&mut self) -> Result<bool, NoDescriptor> {
        let Self {
            places,
            loose,
            alarms,
            quiet,
            ..
        } = self;
        let mut heard = false;
        let mut loosen = |index: u32, due: bool| {
            heard = true;
            let Some(place) = places.get_mut(index as usize) else {
                return;
            };
            if due {
                place.due = None;
            }
            if place.loosen() {
                loose.push(index);
            }
        };
        if alarms.next().is_some() {
            let now = Instant::now();
            while let Some(index) = alarms.take_due(now) {
                loosen(index, true);
            }
        }
        if alarms.has_words() {
            for index in alarms.bell.drain_words()? {
                loosen(index, false);
            }
            if alarms.bell.drain()? {
                *quiet = None;
                heard = true;
            }
        }
        Ok(heard)
    }

    /// About to be given out.
    pub(crate) fn named(&mut self, mut ready: Ready) -> Ready {
        self.stir();
        ready.tokens.reverse();
        ready
    }

    /// Looks at the loose ports, arms all but a few of those where nothing is, and takes
    /// what was raised.
    fn look(&mut self, ready: &mut Ready) {
        let Self {
            index: set,
            places,
            loose,
            alarms,
            ..
        } = self;
        let (mut warm, mut kept) = (0, 0);
        // A loop and not `retain`, which the compiler makes a call for each of them.
        for at in 0..loose.len() {
            let index = loose[at];
            let place = &mut places[index as usize];
            let keeps = if place.may_have() {
                ready.push(index, place);
                true
            } else {
                warm += 1;
                warm <= WARM || {
                    let armed = alarms.arm(index, place, link(*set, index));
                    if !armed {
                        ready.push(index, place);
                    }
                    !armed
                }
            };
            if keeps {
                loose[kept] = index;
                kept += 1;
            }
        }
        loose.truncate(kept);
        self.gather(ready);
    }

    /// Arms the loose ports, or finds that something is there.
    fn arm_loose(&mut self, ready: &mut Ready) {
        let Self {
            index: set,
            places,
            loose,
            alarms,
            ..
        } = self;
        loose.retain(|index| {
            let place = &mut places[*index as usize];
            let armed = alarms.arm(*index, place, link(*set, *index));
            if !armed {
                ready.push(*index, place);
            }
            !armed
        });
    }

    /// Takes what was raised, and looks at each of those ports.
    fn gather(&mut self, ready: &mut Ready) {
        let Self {
            member,
            index: set,
            places,
            loose,
            alarms,
            ..
        } = self;
        let entry = &member.tables().wait_sets[*set as usize];
        if !entry.is_raised() {
            return;
        }
        entry.drain(|member| {
            let Ok(index) = u32::try_from(member) else {
                return;
            };
            // W5: free; or loose, and looked at as such.
            let Some(place) = places.get_mut(member).filter(|p| p.armed) else {
                return;
            };
            if !alarms.arm(index, place, link(*set, index)) {
                loose.push(index);
                ready.push(index, place);
            }
        });
    }

    /// Looks again and again, for as long as that has paid lately; how it looked, if it found
    /// nothing.
    fn spin(&mut self, ready: &mut Ready, deadline: Deadline) -> Option<Looking> {
        let mut looking = self.patience.begin(self.waiting);
        while looking.again() {
            let Self { places, loose, .. } = self;
            let busy = loose.iter().any(|i| places[*i as usize].may_have());
            if busy || self.entry().is_raised() {
                self.look(ready);
            }
            if !ready.is_empty() {
                self.patience.paid(&looking);
                return None;
            }
            if looking.is_time_for_more() && (deadline.has_passed() || self.hear().is_ok_and(|h| h))
            {
                return None;
            }
        }
        Some(looking)
    }

    /// Nothing is there: the descriptor is not readable until something comes (W4). `false`: a
    /// word has fired meanwhile.
    fn hush(&mut self, bell: u32) -> Result<bool, NoDescriptor> {
        if !self.is_watched() {
            self.entry().awake();
            return Ok(true);
        }
        // It may have fired for no reason as well.
        let fired = self.alarms.bell.drain()?;
        let quiet = Some((bell, self.alarms.next()));
        if fired || self.quiet != quiet {
            self.quiet = None;
            let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
            self.alarms
                .bell
                .arm_until(doorbell, bell, self.alarms.next())?;
            self.quiet = quiet;
        }
        // A word that has fired by now is looked at before nothing is said to be there. And `asleep`
        // stays set: senders, and the host after a death, change the doorbell.
        Ok(!self.hear()?)
    }

    /// Something may be there: the descriptor becomes readable (W4).
    pub(super) fn stir(&mut self) {
        if self.is_outside() {
            // Before the next sleep all ports are looked at (W8).
            return;
        }
        if self.alarms.has_words() {
            self.ring();
        }
        // Mostly it was the bell that has brought us here, and it has not been drained.
        if self.quiet.take().is_some()
            && !self.alarms.bell.is_readable()
            && self.member.present().is_ok()
        {
            let doorbell = &self.entry().doorbell;
            // A change, for a helper thread that has not fallen asleep on it yet.
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, u32::MAX);
        }
    }

    /// Has the bell fire: what a wait has taken of words makes the descriptor readable no more.
    pub(super) fn ring(&mut self) {
        if self.is_outside() || self.member.present().is_err() {
            return;
        }
        let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
        let other = doorbell.load(Ordering::Relaxed).wrapping_sub(1);
        // Where it fails it may be armed still.
        if self.alarms.bell.arm(doorbell, other).is_ok() {
            self.quiet = None;
        }
    }

    fn is_watched(&self) -> bool {
        // Relaxed: a descriptor that was asked for only now is readable still.
        self.watched.load(Ordering::Relaxed)
    }
}
