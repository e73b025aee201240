//! Sealed memory is filled once, then shown to any number of receivers; no process can change it
//! any more.
//!
//! It has a descriptor, and goes to other domains by that. Within a process it goes from thread
//! to thread as any value; a message that carries it through a port holds a *token*, and the
//! memory lies in the process's *sealed store* meanwhile.
//!
//! - **D1** Sealed memory is in a message, or in the store under one token, which stands in one
//!   slot. The thread that takes the slot's message, or closes its port, takes it out.
//! - **D2** A port that leaves this process has none in its queue: it does not leave while the
//!   store has some for it, and a send of sealed memory to it is refused from then on.

use crate::port::SendError;
use crate::port::message::Message;
use crate::space::region::Attached;
use crate::space::{Member, Part};
use portolan_abi::port::{PortName, PortPhase, PortStatus};
pub use portolan_sys::memory::FreezeError;
use portolan_sys::memory::{Blank, Frozen};
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of this process alone, to be filled and then [sealed](Self::seal).
///
/// ```
/// use portolan::{Message, Unsealed};
/// let mut picture = Unsealed::new(1 << 20)?;
/// picture.fill(7);
/// let picture = picture.seal()?;
/// let mut message = Message::new(b"picture")?;
/// message.push_sealed(picture.clone())?; // not copied, however often
/// assert_eq!((message.len(), picture[5]), (1 << 20, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Unsealed(Blank);

impl Unsealed {
    /// `bytes` bytes of zeros. It is not memory of a domain, nor within its limit.
    ///
    /// # Errors
    ///
    /// [`FreezeError`].
    pub fn new(bytes: usize) -> Result<Self, FreezeError> {
        Blank::new(bytes).map(Self)
    }

    /// Seals it against writing, shrinking and growing, for ever; the kernel sees to it.
    ///
    /// # Errors
    ///
    /// [`FreezeError`]; the memory is gone then.
    pub fn seal(self) -> Result<Sealed, FreezeError> {
        Ok(Sealed(Arc::new(self.0.freeze()?)))
    }
}

impl Deref for Unsealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Unsealed {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Sealed memory. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Sealed(Arc<Frozen>);

impl Sealed {
    pub(crate) fn of(frozen: Frozen) -> Self {
        Self(Arc::new(frozen))
    }

    pub(crate) fn frozen(&self) -> &Frozen {
        &self.0
    }

    /// The bytes, to write, if this is the only handle of this process. What is written is this
    /// process's own: other receivers do not see it, and if it is sent on it is copied.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(Frozen::make_mut)
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Sealed memory on its way between threads of this process.
#[derive(Default)]
pub(crate) struct SealedStore(Mutex<Store>);

impl Part for SealedStore {}

#[derive(Default)]
struct Store {
    last: u64,
    laid: HashMap<u64, (PortName, Vec<Sealed>)>,
    /// Ports that are in a message, and may leave (D2).
    leaving: HashSet<PortName>,
}

impl SealedStore {
    fn lock(&self) -> MutexGuard<'_, Store> {
        // Nothing that is done under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays memory down for a port; `None` if that may leave.
    fn lay(&self, member: &Member, port: PortName, sealed: &mut Vec<Sealed>) -> Option<u64> {
        let mut store = self.lock();
        if store.leaving.contains(&port) {
            return None;
        }
        store.last += 1;
        // No other process has this one: it is asked there for tokens of ours, too.
        let ours = u64::from(member.space) << 56 | u64::from(member.incarnation & 0xffff) << 40;
        let token = ours | store.last & ((1 << 40) - 1);
        store.laid.insert(token, (port, std::mem::take(sealed)));
        Some(token)
    }

    /// What lies under a token; nothing, if that is another process's.
    pub(crate) fn take(&self, token: u64) -> Vec<Sealed> {
        let laid = self.lock().laid.remove(&token);
        laid.map(|(_, sealed)| sealed).unwrap_or_default()
    }

    pub(crate) fn holds(&self, port: PortName) -> bool {
        self.lock()
            .laid
            .values()
            .any(|(for_port, _)| *for_port == port)
    }

    /// Parts that wait in a port, each of which has a descriptor.
    pub(crate) fn parts(&self, port: PortName) -> usize {
        let store = self.lock();
        let here = store
            .laid
            .values()
            .filter(|(for_port, _)| *for_port == port);
        here.map(|(_, sealed)| sealed.len()).sum()
    }

    pub(crate) fn leaves(&self, port: PortName) {
        self.lock().leaving.insert(port);
    }

    pub(crate) fn stays(&self, port: PortName) {
        self.lock().leaving.remove(&port);
    }
}

/// Sealed memory in the store, of a message that is being sent. Dropped, it is taken out.
pub(crate) struct Laid {
    member: Arc<Member>,
    token: u64,
    /// Bytes of each part.
    lengths: Vec<u64>,
    given: bool,
}

impl Laid {
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// It is the receiver's now.
    pub(crate) fn given(mut self) {
        self.given = true;
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        if !self.given {
            drop(self.member.part::<SealedStore>().take(self.token));
        }
    }
}

/// Bytes of each part of a message's sealed memory that was laid down.
pub(crate) fn laid_lengths(message: &Message) -> impl Iterator<Item = u64> {
    let laid = message.rest().and_then(|rest| rest.laid.as_ref());
    laid.into_iter()
        .flat_map(|laid| laid.lengths.iter().copied())
}

/// Sends a message with sealed memory, which is laid down for it; it is in the message again if
/// it was not sent.
#[cold]
pub(crate) fn laid_down(
    to: &Attached,
    message: &mut Message,
    send: impl FnOnce(&mut Message) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let member = &to.member;
    member.present()?;
    // Acquire: pairs with the release of bind, move and close.
    let status = PortStatus::unpack(to.queue().port.control.status.load(Ordering::Acquire));
    let here = status.phase == PortPhase::Open && status.owner == member.space;
    if status.generation == to.port.generation && !here {
        return Err(SendError::Sealed);
    }
    let mut sealed = message.take_sealed();
    let lengths = sealed.iter().map(|s| s.len() as u64).collect();
    let Some(token) = member
        .part::<SealedStore>()
        .lay(member, to.port, &mut sealed)
    else {
        message.put_sealed(sealed);
        return Err(SendError::Sealed);
    };
    message.rest_mut().laid = Some(Laid {
        member: Arc::clone(member),
        token,
        lengths,
        given: false,
    });
    let sent = send(message);
    if sent.is_err() {
        // Before it is let go of.
        let sealed = member.part::<SealedStore>().take(token);
        message.rest_mut().laid = None;
        message.put_sealed(sealed);
    }
    sent
}
