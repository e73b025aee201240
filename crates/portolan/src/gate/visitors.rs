//! An offer's visitors: each is let in, has a place and a thread, and is told to stop.

use super::error::{Breach, BreachKind};
use super::options::OfferOptions;
use crate::directory::{Offer, OfferInbox, OfferKind, Visitor, offer};
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::public::{Public, Shown};
use crate::{NoDescriptor, OfferError, Permissions};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::gate::{Answer, Denied};
use portolan_abi::public::PublicKind;
use portolan_sys::process::{EventFd, PidFd, spawn_quiet};
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

/// What is offered.
pub(super) trait Offered: Send + Sync + Sized + 'static {
    /// As what visitors ask for it.
    const KIND: OfferKind;
    /// The name of a visitor's thread.
    const THREAD: &str;

    /// Serves one visitor, until it is over, or tells it that there is no place for it.
    fn serve(gate: &Gate<Self>, visitor: Visitor, place: Option<Place>);
}

/// An offer, and its gate, until dropped. When the drop has returned, no visitor is served.
pub(super) struct Open<T> {
    /// Withdrawn first.
    offer: Option<Offer>,
    pub(super) gate: Arc<Gate<T>>,
}

impl<T: Offered> Open<T> {
    /// Offers `what`; of messages of at most `most` bytes.
    pub(super) fn new(
        member: &Arc<Member>,
        what: T,
        most: u64,
        name: &str,
        permissions: &Permissions,
        options: &OfferOptions,
    ) -> Result<Self, OfferError> {
        let gate = Arc::new(Gate {
            what,
            domain: member.domain.clone(),
            offer: name.to_owned(),
            most,
            visitors: options.visitors,
            lane: options.lane,
            sealed: options.sealed && T::KIND == OfferKind::Port,
            inside: Arc::default(),
            process: PidFd::open(std::process::id())
                .map(Descriptor::new)
                .map_err(NoDescriptor::from)?,
            stop: Arc::new(EventFd::new().map_err(NoDescriptor::from)?),
            state: Mutex::default(),
        });
        let inbox: Arc<dyn OfferInbox> = Arc::new(GateInbox(Arc::clone(&gate)));
        let offer = offer(member, T::KIND, name, permissions, inbox, options.until())?;
        Ok(Self {
            offer: Some(offer),
            gate,
        })
    }
}

impl<T> Open<T> {
    pub(super) fn visitors(&self) -> usize {
        self.gate.inside.load(Ordering::Relaxed)
    }

    pub(super) fn take_breaches(&self) -> Vec<Breach> {
        self.gate.lock().breaches.drain(..).collect()
    }
}

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        if portolan_sys::fork::in_child() {
            return;
        }
        // From here on nobody new is let in.
        self.offer = None;
        portolan_shm::mark!("gate.closing");
        // Readable from now on. It can only fail for a counter that is readable already.
        let _ = self.gate.stop.notify();
        let servers = std::mem::take(&mut self.gate.lock().servers);
        for server in servers {
            // One that panicked has ended too.
            let _ = server.join();
        }
        portolan_shm::mark!("gate.closed");
    }
}

/// What the threads of an offer's visitors share.
pub(super) struct Gate<T> {
    pub(super) what: T,
    /// The domain's name, for logs.
    pub(super) domain: String,
    /// The offer's.
    pub(super) offer: String,
    pub(super) most: u64,
    visitors: usize,
    pub(super) lane: u64,
    /// Sealed memory is taken.
    pub(super) sealed: bool,
    /// Those that are there.
    inside: Arc<AtomicUsize>,
    /// This process, for visitors to see its death.
    pub(super) process: Descriptor<PidFd>,
    /// Readable once all are to stop.
    pub(super) stop: Arc<EventFd>,
    state: Mutex<State>,
}

/// One of the places that an offer has for visitors; free again when dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    fn take<T>(gate: &Gate<T>) -> Option<Self> {
        // Taken under the gate's lock, given back at any time.
        let inside = gate.inside.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(&gate.inside));
        (inside < gate.visitors).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    servers: Vec<JoinHandle<()>>,
    breaches: VecDeque<Breach>,
}

impl<T> Gate<T> {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a visitor did, for whoever asks.
    pub(super) fn report(&self, uid: u32, pid: u32, kind: BreachKind) {
        let breach = Breach { uid, pid, kind };
        let domain = self.domain.as_str();
        tracing::warn!(domain, error = %breach, "a visitor breaks the rules");
        let breaches = &mut self.lock().breaches;
        if breaches.len() >= BREACHES {
            breaches.pop_front();
        }
        breaches.push_back(breach);
    }
}

impl<T> Gate<T> {
    /// Shows observers a visitor of ours, who has to do with this port or segment.
    pub(super) fn show(
        &self,
        member: &Arc<Member>,
        kind: PublicKind,
        port: u16,
        (user, pid): (u32, u32),
    ) -> Shown {
        let public = Public {
            port: Some(port),
            pid,
            user,
            ..Public::new(kind, &self.offer)
        };
        Shown::new(member, &public)
    }
}

impl<T: Offered> Gate<T> {
    /// Lets a visitor in, or says why not.
    fn meet(self: &Arc<Self>, visitor: Visitor) {
        let mut state = self.lock();
        state.servers.retain(|server| !server.is_finished());
        let place = Place::take(self);
        if place.is_none() && state.servers.len() >= self.visitors + REFUSING {
            // It is not told why: whoever is to be told is heard first, and that takes a thread.
            return;
        }
        let gate = Arc::clone(self);
        let served = spawn_quiet(T::THREAD, STACK, move || {
            T::serve(&gate, visitor, place);
        });
        // Without a thread its connection ends, and it is told that it was not answered.
        state.servers.extend(served.ok());
    }
}

/// Says no, if there is room for it.
pub(super) fn deny(connection: impl AsFd, why: Denied) {
    let answer = Answer::Denied(why, FORMAT_VERSION).encode();
    let _ = socket::send_by(connection, &answer, &[], Some(Instant::now()));
}

/// Where the visitors of an offer are met.
struct GateInbox<T>(Arc<Gate<T>>);

impl<T: Offered> OfferInbox for GateInbox<T> {
    fn meet(&self, visitor: Visitor) {
        self.0.meet(visitor);
    }
}
