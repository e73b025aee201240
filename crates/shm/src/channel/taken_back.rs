//! A writer takes back what a message says of memory elsewhere, before it writes that memory again.
//!
//! ```text
//! writer:  TAKE BACK: another first word of the message    count the rights of others on the memory
//! reader:  copy the message    count its own right         LOOK at the first word and the stamp again
//! ```
//!
//! Each side writes and then looks at what the other one writes, with a barrier between (M9). The
//! word is in a line that the reader has copied just before, so the second look costs it nothing.

use super::{Channel, Pen};
use crate::atomic::{Ordering, fence, store_load_barrier};
use crate::bulk;
use portolan_abi::channel::{Stamp, UnitPhase};

impl Channel<'_> {
    /// Asks for the line that [`Self::take_back`] will write to.
    #[inline]
    pub fn will_take_back(&self, pen: &Pen, position: u64) {
        if self.is_there(pen, position) {
            bulk::will_write(self.unit(position).payload());
        }
    }

    /// Takes back a message of one unit that `pen` has written at `position`: puts `word` in the place
    /// of its first eight bytes, unless it was overwritten already. What the caller looks at
    /// afterwards it looks at after that.
    pub fn take_back(&self, pen: &Pen, position: u64, word: u64) {
        if let Some(first) = self.unit(position).payload().first()
            && self.is_there(pen, position)
        {
            // A locked instruction, for the pair with `still_begins`.
            first.swap(word, Ordering::SeqCst);
            store_load_barrier();
        } else {
            // The pair is that of the later message's stamp.
            fence(Ordering::SeqCst);
        }
    }

    /// Whether the unit of `position` holds what was written at this position.
    fn is_there(&self, pen: &Pen, position: u64) -> bool {
        let next = pen.position();
        position < next && next - position <= self.shape.units
    }

    /// Whether the message at `position`, of one unit, begins with `word` still: then the space that
    /// wrote it. A reader asks after it has copied the message and said, by a locked instruction,
    /// that it uses what the message tells of.
    #[inline]
    pub fn still_begins(&self, position: u64, word: u64) -> Option<u8> {
        // The other half of the pair with `take_back`.
        store_load_barrier();
        let unit = self.unit(position);
        let first = unit.payload().first()?.load(Ordering::SeqCst);
        // As in `copy`: if the word is of a later message, so is the stamp.
        fence(Ordering::Acquire);
        let stamp = Stamp(unit.stamp().load(Ordering::Relaxed));
        let is_of_position = stamp.phase() == UnitPhase::Done && stamp.position() == position;
        (is_of_position && first == word).then_some(stamp.writer())
    }
}
