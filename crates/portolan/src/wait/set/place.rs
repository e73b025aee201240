//! Keeps the places of a wait set, and arms what is at each.

use super::waitable::Waitable;
use std::time::Instant;

/// Room for one thing that is waited for.
#[derive(Default)]
pub(super) struct Place {
    /// Goes up when what is there leaves, so that the token names nothing.
    pub(super) generation: u32,
    pub(super) waitable: Option<Box<dyn Waitable>>,
    pub(super) armed: bool,
    /// What is here may be due, or have a word: see [`Alarms`](super::alarms::Alarms).
    pub(super) has_alarms: bool,
    pub(super) due: Option<Instant>,
    pub(super) has_word: bool,
}

impl Place {
    pub(super) fn may_have(&mut self) -> bool {
        self.waitable
            .as_mut()
            .is_some_and(|waitable| waitable.may_have())
    }

    /// Arms what is there, also if it is armed; `false` if something is there, and it is loose.
    pub(super) fn arm(&mut self, link: u64) -> bool {
        let Some(waitable) = &mut self.waitable else {
            return true;
        };
        self.armed = true;
        if waitable.arm_for(link) {
            return true;
        }
        self.loosen();
        false
    }

    /// Disarms what is there; `false` if it was not armed.
    pub(super) fn loosen(&mut self) -> bool {
        let was = std::mem::take(&mut self.armed);
        // A forked child has no region.
        let ours = was && !portolan_sys::fork::in_child();
        if let Some(waitable) = self.waitable.as_mut().filter(|_| ours) {
            waitable.arm_for(0);
        }
        was
    }
}

/// What a port's entry says about its wait set.
pub(super) fn link(set: u32, place: u32) -> u64 {
    u64::from(set + 1) | u64::from(place) << 32
}
