//! A bridge serves the clients of an offer: it lets each in, gives it a place and a thread, and
//! stops them all when the offer is dropped.

use super::error::{Over, Violation, ViolationKind};
use super::options::OfferOptions;
use crate::directory::{Client, Offer, OfferInbox, OfferKind, offer};
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::public::{Public, Shown};
use crate::{NoDescriptor, OfferError, Permissions};
use portolan_abi::bridge::{Answer, Denied};
use portolan_abi::handshake::Refusal;
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
/// Clients that are refused at one time for want of a place, each by a thread.
const REFUSING: usize = 8;
/// Violations that are kept until the program takes them; of more, the last ones.
const VIOLATIONS: usize = 64;

/// The port or channel that is offered.
pub(super) trait Offered: Send + Sync + Sized + 'static {
    /// The kind of offer that clients ask for.
    const KIND: OfferKind;
    /// The name of a client's thread.
    const THREAD: &str;

    /// Serves one client until its connection ends, or refuses it for want of a place.
    fn serve(bridge: &Bridge<Self>, client: Client, place: Option<Place>);
}

/// An offer, and its bridge, until dropped. When the drop has returned, no client is served.
pub(super) struct Open<T> {
    /// Withdrawn first.
    offer: Option<Offer>,
    pub(super) bridge: Arc<Bridge<T>>,
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
        let bridge = Arc::new(Bridge {
            what,
            domain: member.domain.clone(),
            offer: name.to_owned(),
            most,
            clients: options.clients,
            ring_bytes: options.ring_bytes,
            sealed: options.sealed && T::KIND == OfferKind::Port,
            inside: Arc::default(),
            process: PidFd::open(std::process::id())
                .map(Descriptor::new)
                .map_err(NoDescriptor::from)?,
            stop: Arc::new(EventFd::new().map_err(NoDescriptor::from)?),
            state: Mutex::default(),
        });
        let inbox: Arc<dyn OfferInbox> = Arc::new(BridgeInbox(Arc::clone(&bridge)));
        let offer = offer(member, T::KIND, name, permissions, inbox, options.until())?;
        Ok(Self {
            offer: Some(offer),
            bridge,
        })
    }
}

impl<T> Open<T> {
    pub(super) fn clients(&self) -> usize {
        self.bridge.inside.load(Ordering::Relaxed)
    }

    pub(super) fn take_violations(&self) -> Vec<Violation> {
        self.bridge.lock().violations.drain(..).collect()
    }
}

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        if portolan_sys::fork::in_child() {
            return;
        }
        // From here on no client is let in.
        self.offer = None;
        portolan_shm::mark!("bridge.closing");
        // Readable from now on. It can only fail for a counter that is readable already.
        let _ = self.bridge.stop.notify();
        let servers = std::mem::take(&mut self.bridge.lock().servers);
        for server in servers {
            // One that panicked has ended too.
            let _ = server.join();
        }
        portolan_shm::mark!("bridge.closed");
    }
}

/// The state that the threads of an offer's clients share.
pub(super) struct Bridge<T> {
    pub(super) what: T,
    /// The domain's name, for logs.
    pub(super) domain: String,
    /// The offer's.
    pub(super) offer: String,
    pub(super) most: u64,
    clients: usize,
    pub(super) ring_bytes: u64,
    /// Sealed memory is taken.
    pub(super) sealed: bool,
    /// The number of clients that are connected.
    inside: Arc<AtomicUsize>,
    /// This process, for clients to see its death.
    pub(super) process: Descriptor<PidFd>,
    /// Readable once all are to stop.
    pub(super) stop: Arc<EventFd>,
    state: Mutex<State>,
}

/// One of the places that an offer has for clients; free again when dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    fn take<T>(bridge: &Bridge<T>) -> Option<Self> {
        // Taken under the bridge's lock, given back at any time.
        let inside = bridge.inside.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(&bridge.inside));
        (inside < bridge.clients).then_some(place)
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
    violations: VecDeque<Violation>,
}

impl<T> Bridge<T> {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client's thread ends, for this reason.
    pub(super) fn ended(&self, uid: u32, pid: u32, over: Over) {
        let domain = self.domain.as_str();
        match over {
            Over::Violation(kind) => self.report(uid, pid, kind),
            Over::Io(error) => tracing::warn!(domain, uid, pid, %error, "cannot serve a client"),
            Over::Gone | Over::Stopped => tracing::info!(domain, uid, pid, "a client has left"),
        }
    }

    /// Keeps a client's violation until the program takes it.
    fn report(&self, uid: u32, pid: u32, kind: ViolationKind) {
        let violation = Violation { uid, pid, kind };
        let domain = self.domain.as_str();
        tracing::warn!(domain, error = %violation, "a client breaks the rules");
        let violations = &mut self.lock().violations;
        if violations.len() >= VIOLATIONS {
            violations.pop_front();
        }
        violations.push_back(violation);
    }
}

impl<T> Bridge<T> {
    /// Shows observers a client of this port or segment.
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

impl<T: Offered> Bridge<T> {
    /// Lets a client in, or says why not.
    fn meet(self: &Arc<Self>, client: Client) {
        let mut state = self.lock();
        state.servers.retain(|server| !server.is_finished());
        let place = Place::take(self);
        if place.is_none() && state.servers.len() >= self.clients + REFUSING {
            // It gets no answer: an answer must follow the client's request, and to wait for that
            // takes a thread.
            return;
        }
        let bridge = Arc::clone(self);
        let served = spawn_quiet(T::THREAD, STACK, move || {
            T::serve(&bridge, client, place);
        });
        // Without a thread its connection ends, and the client finds that it was not answered.
        state.servers.extend(served.ok());
    }
}

/// Says no, if there is room for it.
pub(super) fn deny(connection: impl AsFd, why: Denied) {
    let answer = Answer::Refused(Refusal::new(why)).encode();
    let _ = socket::send_by(connection, &answer, &[], Some(Instant::now()));
}

/// Takes the clients of an offer that the directory hands over.
struct BridgeInbox<T>(Arc<Bridge<T>>);

impl<T: Offered> OfferInbox for BridgeInbox<T> {
    fn meet(&self, client: Client) {
        self.0.meet(client);
    }
}
