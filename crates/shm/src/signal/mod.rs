//! Address-valued signals tell each handler of an address, by the queue of its thread.
//!
//! [`Ranges`] leads from an address to the handlers of the ranges that hold it; each
//! handler names a [`Fifo`], which one thread reads. To signal is to look the address
//! up and to push it into each of those FIFOs.
//!
//! # Cost of a signal
//!
//! | step | lines that come from another core | locked instructions |
//! |---|---|---|
//! | look up: one probe for each level in use | - (read-mostly) | 0 |
//! | the handler's entry | - (read-mostly) | 0 |
//! | fill the slot *(commit point)* | **the slot** (the reader polls it) | 1 |
//! | the end hint | - (senders' line) | 0 |
//! | does the reader sleep? | - (the line with its doorbell, which was read to find the slot) | 0 |
//! | the reader: find, read | **the slot** | 0 |
//! | the reader, at its next look: empty | – (while the other side works) | 0 |
//!
//! So a signal to a reader that polls takes one line from core to core, the slot's. The
//! sender does not look at the slot before it fills it, which would bring the line twice;
//! and no store of the reader's to that line is under way while it handles the signal: its
//! own next locked instruction would wait for it.
//!
//! # Invariants
//!
//! - **S1** A slot goes from empty(lap) to full(lap) by one compare-exchange of a sender,
//!   and from full(lap) to empty(lap + 1) by the reader's store. A sender that dies leaves
//!   it as it was or full: there is nothing to repair.
//! - **S2** Full slots are consecutive from the reader's head: a sender fills a slot only
//!   after it saw every earlier one full or emptied. So the signals of one sender are
//!   read in order.
//! - **S3** A reader that sleeps has said so before its last look at the slot at its head; a
//!   sender looks whether it sleeps after it has filled a slot, and owes a wake then. It takes
//!   the mark only after the wake, and only of the sleep that it knew of: so another sender's
//!   signal is not held up by one that stops before the wake.
//! - **S4** A handler's blocks are in the table before it is enabled, and it is disabled
//!   before they leave. The table and the handlers are changed under a lock, which the
//!   caller holds; looking up takes none.
//! - **S5** A handler that moves to another FIFO loses nothing: the mover changes the
//!   entry, then drains the old FIFO; a sender pushes, then looks at the entry again.
//!   One of the two sees the other. (A signal may then arrive twice.) A sender that pushes
//!   once for several handlers of one FIFO has read all of their entries before.
//! - **S6** A reader empties a slot before it looks at the next one, arms or settles, and
//!   not earlier: while a handler runs the slot of its signal is full still (but for a FIFO
//!   of one slot, whose handlers could not signal otherwise).
//!
//! Address-valued signals are Cheriton and Kutter's (*Optimized Memory-Based
//! Messaging*, section 2.1); their hash of single receivers before a full map is the
//! table here.

mod fifo;
mod ranges;

pub use fifo::{Fifo, FifoControl, FifoEntry, Head, Pushed};
pub use ranges::{Crowded, HandlerEntry, HandlerState, Ranges, RangesLine};
