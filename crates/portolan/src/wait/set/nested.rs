//! A nested set arms its members for a place of another set, as a subscriber's set does (W6).

use super::WaitSet;
use super::place::Place;

impl WaitSet {
    /// Whether something may be at one of its members.
    pub(crate) fn may_have(&mut self) -> bool {
        self.places.iter_mut().any(Place::may_have)
    }

    /// Arms all members for another set, whose place `link` names, or for none (0); `false`
    /// if something is there, and they are loose.
    pub(crate) fn arm_for(&mut self, link: u64) -> bool {
        self.loosen_all();
        if link == 0 {
            return true;
        }
        let Self { places, loose, .. } = self;
        loose.retain(|index| !places[*index as usize].arm(link));
        let idle = loose.is_empty();
        if !idle {
            self.loosen_all();
        }
        idle
    }

    /// Disarms all members, for whomever they were armed. Its own descriptor is readable from
    /// then on until a thread waits here again (W4), because it would not be told.
    fn loosen_all(&mut self) {
        for (index, place) in (0..).zip(&mut self.places) {
            if place.loosen() {
                self.loose.push(index);
            }
        }
        self.stir();
    }
}
