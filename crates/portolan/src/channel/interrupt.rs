//! Ends another thread's wait at a channel.

use crate::channel::Ring;
use portolan_sys::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the wait of one [`Reader`](super::Reader) of this space, from any thread.
///
/// ```
/// use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
/// let mut reader = channel.bind_reader(ReaderOptions::default())?;
/// let interrupter = reader.interrupter();
/// let waits = std::thread::spawn(move || reader.receive(Deadline::NEVER).err());
/// interrupter.interrupt();
/// assert_eq!(waits.join().unwrap(), Some(ReadError::Interrupted));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Interrupter {
    asked: Arc<AtomicBool>,
    ring: Ring,
}

impl Interrupter {
    pub(super) fn new(asked: &Arc<AtomicBool>, ring: &Ring) -> Self {
        Self {
            asked: Arc::clone(asked),
            ring: ring.clone(),
        }
    }

    /// The reader's wait ends as [`ReadError::Interrupted`](super::ReadError::Interrupted); if
    /// it does not wait, its next wait does.
    pub fn interrupt(&self) {
        // SeqCst: before the bell, as the reader looks after it has read the bell.
        self.asked.store(true, Ordering::SeqCst);
        let member = &self.ring.segment().right().to.member;
        if member.present().is_ok() {
            let channel = self.ring.channel();
            channel.change_doorbell();
            futex::wake(&channel.head().sleep.doorbell, u32::MAX);
        }
    }
}

impl std::fmt::Debug for Interrupter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupter").finish_non_exhaustive()
    }
}
