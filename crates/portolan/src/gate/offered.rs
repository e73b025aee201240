//! Offering a port to other domains: visitors are let in, each by a porter of its own.

use super::connect::cap;
use super::error::{Breach, BreachKind};
use super::options::OfferOptions;
use super::porter;
use crate::domain::{Desk, Offer, OfferKind, Visitor, offer};
use crate::port::SendRight;
use crate::{NoDescriptor, OfferError, Permissions, ReceiveRight};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::gate::{Answer, Denied};
use portolan_abi::port::PortStatus;
use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::socket;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Enough for loops and logs.
const STACK: usize = 256 << 10;
/// Visitors that are being told at one time that there is no place for them.
const REFUSING: usize = 8;
/// Breaches that are kept until somebody asks; of more, the last ones.
const BREACHES: usize = 64;

/// A port that other domains can connect to, until this is dropped.
///
/// When the drop has returned, no visitor sends any more, and what they had sent by half is
/// gone. Messages that were handed on before are in the port.
#[must_use = "a dropped offer is withdrawn"]
pub struct OfferedPort {
    /// Withdrawn first.
    offer: Option<Offer>,
    gate: Arc<Gate>,
}

impl ReceiveRight {
    /// Makes this port known to other domains by `name`, which may be another than its own.
    ///
    /// Whoever `permissions` admit may connect ([`Domain::connect_to`](crate::Domain::connect_to))
    /// and send. What comes is a stranger's message: it holds at most as many bytes as the
    /// options say, has neither rights nor data structures in it, and is a copy of this
    /// domain's own. Whatever else a stranger does ends its own connection, and is told
    /// ([`OfferedPort::take_breaches`]).
    ///
    /// # Errors
    ///
    /// [`OfferError`].
    ///
    /// # Examples
    ///
    /// See [`Domain::connect_to`](crate::Domain::connect_to).
    pub fn offer(
        &self,
        name: &str,
        permissions: &Permissions,
        options: OfferOptions,
    ) -> Result<OfferedPort, OfferError> {
        let member = &self.at().member;
        let status = self
            .at()
            .queue()
            .port
            .control
            .status
            .load(Ordering::Relaxed);
        let gate = Arc::new(Gate {
            right: self.make_send(),
            synchronous: PortStatus::unpack(status).synchronous,
            most: cap(member, options.most),
            visitors: options.visitors,
            lane: options.lane,
            sealed: options.sealed,
            inside: AtomicUsize::new(0),
            stop: Arc::new(EventFd::new().map_err(NoDescriptor::from)?),
            state: Mutex::default(),
        });
        let desk: Arc<dyn Desk> = Arc::new(GateDesk(Arc::clone(&gate)));
        let deadline = options.deadline;
        let offer = offer(member, OfferKind::Port, name, permissions, desk, deadline)?;
        Ok(OfferedPort {
            offer: Some(offer),
            gate,
        })
    }
}

impl OfferedPort {
    /// Visitors that are connected now.
    pub fn visitors(&self) -> usize {
        self.gate.inside.load(Ordering::Relaxed)
    }

    /// What visitors did that no honest one does, the last 64 since this was asked; their
    /// connections were ended.
    pub fn take_breaches(&self) -> Vec<Breach> {
        self.gate.lock().breaches.drain(..).collect()
    }
}

impl Drop for OfferedPort {
    fn drop(&mut self) {
        if portolan_sys::fork::in_child() {
            return;
        }
        // From here on nobody new is let in.
        self.offer = None;
        // Readable from now on. It can only fail for a counter that is readable already.
        let _ = self.gate.stop.notify();
        let porters = std::mem::take(&mut self.gate.lock().porters);
        for porter in porters {
            // One that panicked has ended too.
            let _ = porter.join();
        }
    }
}

impl std::fmt::Debug for OfferedPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfferedPort")
            .field("to", &self.gate.right)
            .field("visitors", &self.visitors())
            .finish()
    }
}

/// What an offer's porters share.
pub(super) struct Gate {
    pub(super) right: SendRight,
    pub(super) synchronous: bool,
    pub(super) most: u64,
    visitors: usize,
    pub(super) lane: u64,
    pub(super) sealed: bool,
    /// Those that are there.
    inside: AtomicUsize,
    /// Readable once all are to stop.
    pub(super) stop: Arc<EventFd>,
    state: Mutex<State>,
}

/// One of the places that an offer has for visitors; free again when dropped.
pub(super) struct Place(Arc<Gate>);

impl Place {
    fn take(gate: &Arc<Gate>) -> Option<Self> {
        // Taken under the gate's lock, given back at any time.
        let inside = gate.inside.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(gate));
        (inside < gate.visitors).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    porters: Vec<JoinHandle<()>>,
    breaches: VecDeque<Breach>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a visitor did, for whoever asks.
    pub(super) fn report(&self, uid: u32, pid: u32, kind: BreachKind) {
        let breach = Breach { uid, pid, kind };
        let domain = self.right.to.member.domain.as_str();
        tracing::warn!(domain, error = %breach, "a visitor breaks the rules");
        let breaches = &mut self.lock().breaches;
        if breaches.len() >= BREACHES {
            breaches.pop_front();
        }
        breaches.push_back(breach);
    }

    /// Lets a visitor in, or says why not.
    fn meet(self: &Arc<Self>, visitor: Visitor) {
        let mut state = self.lock();
        state.porters.retain(|porter| !porter.is_finished());
        let place = Place::take(self);
        if place.is_none() && state.porters.len() >= self.visitors + REFUSING {
            // It is not told why: whoever is to be told is heard first, and that takes a thread.
            return;
        }
        let gate = Arc::clone(self);
        let served = spawn_quiet("portolan-porter", STACK, move || {
            porter::serve(&gate, visitor, place);
        });
        // Without a thread its connection ends, and it is told that it was not answered.
        state.porters.extend(served.ok());
    }
}

/// Says no, if there is room for it.
pub(super) fn deny(connection: impl AsFd, why: Denied) {
    let answer = Answer::Denied(why, FORMAT_VERSION).encode();
    let _ = socket::send_by(connection, &answer, &[], Some(Instant::now()));
}

/// Where the visitors of an offer are met.
struct GateDesk(Arc<Gate>);

impl Desk for GateDesk {
    fn meet(&self, visitor: Visitor) {
        self.0.meet(visitor);
    }
}
