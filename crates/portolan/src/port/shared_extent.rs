//! A shared extent is memory that many spaces read at once, and no space writes any more.

use crate::port::BindError;
use crate::port::segment::Segment;
use crate::port::shared_entries::{self, Sharing};
use crate::{Domain, Extent, Refused};
use std::ops::Deref;

/// A right to read an extent that has no owner any more: [`Domain::share_extent`].
///
/// Nothing is copied, and it lies at the same address in every space. A clone is another
/// right; rights travel in messages ([`crate::Message::attach`]) and beside those of channels
/// ([`crate::channel::Parcel`]). The memory is freed when the last right on it is dropped, or
/// has died.
///
/// ```
/// use portolan::{Deadline, Domain, Message, PortOptions, Right, WhenFull};
///
/// let domain = Domain::private()?;
/// let mut extent = domain.allocate(1 << 20)?;
/// extent[9] = 7;
/// let address = extent.as_ptr();
/// let shared = domain.share_extent(extent)?;
///
/// let mut port = domain.bind(PortOptions::unnamed())?;
/// let mut message = Message::default();
/// message.attach(shared.clone())?;
/// port.make_send().send(message, WhenFull::Fail)?;
/// let mut message = port.receive(Default::default(), Deadline::NOW)?;
/// let Some(Right::Shared(there)) = message.take_rights().pop() else { panic!() };
/// assert_eq!((there[9], there.as_ptr(), shared[9]), (7, address, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedExtent {
    segment: Segment,
}

impl Domain {
    /// Shares an extent where it lies: every space with a right on it may read it, and no space
    /// writes it any more.
    ///
    /// # Errors
    ///
    /// [`Refused`] holds the extent; nothing, if this process was no member any more meanwhile.
    pub fn share_extent(
        &self,
        extent: Extent,
    ) -> Result<SharedExtent, Refused<Option<Extent>, BindError>> {
        let made = shared_entries::make(self.member(), None, extent, Sharing::Frozen);
        let right = made.map_err(|(error, extent)| Refused::new(extent, error))?;
        Segment::taken(right)
            .map(|(segment, _)| SharedExtent::of(segment))
            .ok_or_else(|| Refused::new(None, crate::SendError::DeadName))
    }
}

impl SharedExtent {
    /// Of a segment that is frozen: no handle writes it, in any space.
    pub(crate) fn of(segment: Segment) -> Self {
        Self { segment }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn into_segment(self) -> Segment {
        self.segment
    }
}

impl Deref for SharedExtent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.segment.bytes()
    }
}

impl AsRef<[u8]> for SharedExtent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::{Domain, PortOptions};
    use portolan_abi::limits::MIN_ROUND;
    use std::sync::atomic::Ordering;

    /// Between the port and the extent that is shared, an entry is bound 2^23 times: half of all
    /// generations.
    #[test]
    fn a_dead_name_that_is_kept_frees_nothing() {
        const GENERATIONS: u64 = 1 << (32 + 23);
        let domain = Domain::private().unwrap();
        let bind = || domain.bind(PortOptions::unnamed().queue(1)).unwrap();
        for later in [
            GENERATIONS - (1 << 32),
            GENERATIONS,
            GENERATIONS + (1 << 32),
        ] {
            let port = bind();
            let dead = port.make_send();
            let index = dead.to.port.index;
            drop(port);
            let control = &domain.member().tables().ports[usize::from(index)].control;
            control.status.fetch_add(later, Ordering::Relaxed);
            // The entry's turn comes again.
            for _ in 1..MIN_ROUND {
                drop(bind());
            }
            let mut extent = domain.allocate(4096).unwrap();
            extent.fill(7);
            let shared = domain.share_extent(extent).unwrap();
            assert_eq!(shared.segment.right().to.port.index, index);
            // Two rights; one goes.
            drop(shared.clone());
            let other = domain.allocate(4096).unwrap();
            assert_ne!(other.as_ptr(), shared.as_ptr(), "it is in use");
            assert_eq!(domain.survey().unwrap().segments.len(), 1);
            drop(dead);
            assert_eq!(shared[0], 7);
        }
    }
}
