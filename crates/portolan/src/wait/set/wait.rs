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
use portolan_sys::futex;

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
        self.look(&mut ready);
        if ready.is_empty() {
            if !deadline.is_now() {
                counters::waits(&self.member, Wait::Spinning(self.waiting_at()));
                looked = self.spin(&mut ready, deadline).map(|l| (l.begun(), l));
                counters::waits(&self.member, Wait::Nothing);
            } else if !self.is_watched() {
                return Ok(ready);
            }
        }
        while ready.is_empty() {
            match self.round() {
                Ok(found) => ready = found,
                Err(bell) if deadline.has_passed() => {
                    self.hush(bell)?;
                    return Ok(ready);
                }
                Err(bell) => {
                    counters::waits(&self.member, Wait::Sleeping(self.waiting_at()));
                    mark!("sleep.before_futex");
                    let _ = self.member.during(EventKind::Sleep, About::NOTHING, || {
                        futex::wait(&self.entry().doorbell, bell, deadline.instant())
                    });
                    counters::waits(&self.member, Wait::Nothing);
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
    pub(crate) fn round(&mut self) -> Result<Ready, u32> {
        let mut ready = Ready::default();
        self.entry().awake();
        loop {
            self.arm(&mut ready);
            self.gather(&mut ready);
            if !ready.is_empty() {
                return Ok(ready);
            }
            if let Some(bell) = self.entry().sleep() {
                return Err(bell);
            }
        }
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
            ..
        } = self;
        let mut warm = 0;
        loose.retain(|index| {
            let place = &mut places[*index as usize];
            if place.may_have() {
                ready.push(*index, place);
                return true;
            }
            warm += 1;
            if warm <= WARM || place.arm(link(*set, *index)) {
                return warm <= WARM;
            }
            ready.push(*index, place);
            true
        });
        self.gather(ready);
    }

    /// Arms the loose ports, or finds that something is there.
    fn arm(&mut self, ready: &mut Ready) {
        let Self {
            index: set,
            places,
            loose,
            ..
        } = self;
        loose.retain(|index| {
            let place = &mut places[*index as usize];
            let armed = place.arm(link(*set, *index));
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
            if !place.arm(link(*set, index)) {
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
            if looking.is_time_for_more() && deadline.has_passed() {
                return None;
            }
        }
        Some(looking)
    }

    /// Nothing is there: the descriptor is not readable until something comes (W4).
    fn hush(&mut self, bell: u32) -> Result<(), NoDescriptor> {
        if !self.is_watched() {
            self.entry().awake();
            return Ok(());
        }
        // It may have fired for no reason as well.
        let fired = self.bell.drain()?;
        if fired || self.quiet != Some(bell) {
            self.quiet = None;
            let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
            self.bell.arm(doorbell, bell)?;
            self.quiet = Some(bell);
        }
        // And `asleep` stays set: senders, and the host after a death, change the doorbell.
        Ok(())
    }

    /// Something may be there: the descriptor becomes readable (W4).
    pub(super) fn stir(&mut self) {
        if self.quiet.take().is_some() && self.member.present().is_ok() {
            let doorbell = &self.entry().doorbell;
            // A change, for a helper thread that has not fallen asleep on it yet.
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, u32::MAX);
        }
    }

    fn is_watched(&self) -> bool {
        // Relaxed: a descriptor that was asked for only now is readable still.
        self.watched.load(Ordering::Relaxed)
    }
}
