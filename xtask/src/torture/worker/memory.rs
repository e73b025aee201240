//! Takes, keeps and frees extents, wants all there is, and uses less than it has taken.

use super::super::{Doing, payload};
use super::{KEPT_EXTENTS, LARGEST, SIZES, Worker};
use portolan::Extent;

impl Worker {
    pub(super) fn extent(&mut self) -> Option<Extent> {
        let pick = if self.random.once_in(3) {
            SIZES.len()
        } else {
            6
        };
        let bytes = SIZES[self.random.below(pick)];
        let seed = self.random.next();
        let mut extent = self.domain.as_ref()?.allocate(bytes).ok()?;
        payload::stamp(&mut extent, seed);
        Some(extent)
    }

    pub(super) fn allocate(&mut self) {
        self.doing(Doing::Allocating);
        if self.holds.extents.len() >= KEPT_EXTENTS {
            return self.free();
        }
        let extent = self.extent();
        self.holds.extents.extend(extent);
    }

    /// Wants all memory in large extents, or gives back what nobody uses: so chunks change hands.
    pub(super) fn squeeze(&mut self) {
        self.doing(Doing::Allocating);
        let Some(domain) = &self.domain else { return };
        if self.random.once_in(8) {
            // Fails in a forked child only.
            let _ = domain.trim();
            return;
        }
        let most = self.random.below(12);
        let all = (0..most).map_while(|_| domain.allocate(LARGEST).ok());
        drop(all.collect::<Vec<_>>());
    }

    /// Writes to one page of an extent, as a program does that uses less than it has asked for.
    pub(super) fn touch(&mut self) {
        self.doing(Doing::Allocating);
        for _ in 0..=self.random.below(8) {
            let bytes = SIZES[self.random.below(SIZES.len() - 2)];
            let at = self.random.below(bytes);
            let Some(domain) = &self.domain else { return };
            let Ok(mut extent) = domain.allocate(bytes) else {
                return;
            };
            extent[at] = 7;
        }
    }

    pub(super) fn free(&mut self) {
        self.doing(Doing::Freeing);
        for _ in 0..=self.random.below(4) {
            if self.holds.extents.is_empty() {
                return;
            }
            let at = self.random.below(self.holds.extents.len());
            let extent = self.holds.extents.swap_remove(at);
            self.check(&extent);
        }
    }

    pub(super) fn park(&mut self) {
        self.doing(Doing::Allocating);
        let adopt = self.holds.parked.len() >= 2;
        if let (true, Some(domain)) = (adopt, &self.domain) {
            let (raw, _) = self.holds.parked.swap_remove(0);
            match domain.adopt(raw) {
                Ok(extent) => self.holds.extents.push(extent),
                Err(error) => self.corrupt(&format!("a parked extent was refused: {error}")),
            }
        } else if let Some(extent) = self.holds.extents.pop() {
            let place = (extent.address() as u64, extent.capacity() as u64);
            self.holds.parked.push((extent.into_raw(), place));
        }
    }
}
