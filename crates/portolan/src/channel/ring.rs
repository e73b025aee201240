//! Presents a segment's memory as a channel, together with the right that keeps it.

use crate::Segment;
use crate::space::region::MappedChannel;
use portolan_shm::channel::{Channel, NotAChannel};

/// A segment that is a channel.
#[derive(Clone)]
pub(crate) struct Ring {
    mapped: MappedChannel,
    segment: Segment,
}

impl Ring {
    /// Takes a segment for a channel, if its head says so.
    pub(crate) fn open(segment: Segment) -> Result<Self, Box<(Segment, NotAChannel)>> {
        match segment.as_channel() {
            Ok(mapped) => Ok(Self { mapped, segment }),
            Err(error) => Err(Box::new((segment, error))),
        }
    }

    /// The channel.
    #[inline]
    pub(crate) fn channel(&self) -> &Channel<'_> {
        self.mapped.channel()
    }

    /// Its memory.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The right alone.
    pub(crate) fn into_segment(self) -> Segment {
        self.segment
    }
}
