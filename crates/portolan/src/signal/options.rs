//! Options set up a listener.

use crate::wait::Waiting;
use portolan_abi::signal::DEFAULT_DEPTH;

/// How a listener is made.
///
/// ```
/// use portolan::{Domain, ListenerOptions};
/// let domain = Domain::private()?;
/// let listener = domain.listen(ListenerOptions::default().depth(500))?;
/// assert_eq!(listener.depth(), 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ListenerOptions {
    pub(super) depth: usize,
    pub(super) waiting: Waiting,
    pub(super) upcall_signal: Option<i32>,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            depth: DEFAULT_DEPTH,
            waiting: Waiting::default(),
            upcall_signal: None,
        }
    }
}

impl ListenerOptions {
    /// Signals that the FIFO holds, rounded up to a power of two, 512 at most; 128 if not
    /// said. One that finds it full is dropped and counted.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// How the thread waits: by polling, by sleeping, or first the one and then the other,
    /// which is the default.
    #[must_use]
    pub fn waiting(self, waiting: Waiting) -> Self {
        Self { waiting, ..self }
    }

    /// The real-time Unix signal by which its upcalls come ([`Delivery::upcall`](crate::Delivery::upcall)); the last
    /// but one if not said. The same number may have other handlers, and other senders, but no
    /// address is bound to it ([`Origin::UnixSignal`](crate::Origin::UnixSignal)).
    #[must_use]
    pub fn upcall_signal(self, signal: i32) -> Self {
        let upcall_signal = Some(signal);
        Self {
            upcall_signal,
            ..self
        }
    }
}
