//! A bridge serves the clients of an offer: it lets each in, gives it a place and a task of the
//! carrier, and stops them all when the offer is dropped.

use super::carrier::{self, Context, Running, Stop};
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
use portolan_sys::process::PidFd;
use portolan_sys::socket;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Clients that are refused at one time for want of a place, each by a task.
const REFUSING: usize = 8;
/// Violations that are kept until the program takes them; of more, the last ones.
const VIOLATIONS: usize = 64;

/// The port or channel that is offered.
pub(super) trait Offered: Send + Sync + Sized + 'static {
    /// The kind of offer that clients ask for.
    const KIND: OfferKind;

    /// Of which membership it is.
    fn member(&self) -> &Arc<Member>;

    /// Serves one client until its connection ends, or refuses it for want of a place. Drops the admission
    /// last: then the program may leave the domain.
    fn serve(
        bridge: Arc<Bridge<Self>>,
        client: Client,
        admission: Admission,
        context: Rc<Context>,
    ) -> impl Future<Output = ()>;
}

/// An offer, and its bridge, until dropped. When the drop has returned, no client is served.
pub(super) struct Open<T: Offered> {
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
            requests: options.requests,
            ring_bytes: options.ring_bytes,
            sealed: options.sealed && T::KIND == OfferKind::Port,
            inside: Arc::default(),
            process: PidFd::open(std::process::id())
                .map(Descriptor::new)
                .map_err(NoDescriptor::from)?,
            stop: Arc::default(),
            violations: Mutex::default(),
        });
        let inbox: Arc<dyn OfferInbox> = Arc::new(BridgeInbox(Arc::clone(&bridge)));
        let offer = offer(member, T::KIND, name, permissions, inbox, options.until())?;
        Ok(Self {
            offer: Some(offer),
            bridge,
        })
    }
}

impl<T: Offered> Open<T> {
    pub(super) fn clients(&self) -> usize {
        self.bridge.inside.load(Ordering::Relaxed)
    }

    pub(super) fn take_violations(&self) -> Vec<Violation> {
        self.bridge.violations().drain(..).collect()
    }
}

impl<T: Offered> Drop for Open<T> {
    fn drop(&mut self) {
        if portolan_sys::fork::in_child() {
            return;
        }
        // From here on no client is let in.
        self.offer = None;
        portolan_shm::mark!("bridge.closing");
        self.bridge.stop.end(self.bridge.what.member());
        portolan_shm::mark!("bridge.closed");
    }
}

/// The state that the tasks of an offer's clients share.
pub(super) struct Bridge<T> {
    pub(super) what: T,
    /// The domain's name, for logs.
    pub(super) domain: String,
    /// The offer's.
    pub(super) offer: String,
    pub(super) most: u64,
    clients: usize,
    /// Requests of a client that may be with the server.
    pub(super) requests: usize,
    pub(super) ring_bytes: u64,
    /// Sealed memory is taken.
    pub(super) sealed: bool,
    /// The number of clients that are connected.
    inside: Arc<AtomicUsize>,
    /// This process, for clients to see its death.
    pub(super) process: Descriptor<PidFd>,
    pub(super) stop: Arc<Stop>,
    violations: Mutex<VecDeque<Violation>>,
}

/// A client's place, if there was one for it; and its offer waits for it when it is withdrawn.
pub(super) struct Admission {
    place: Option<Place>,
    _running: Running,
}

impl Admission {
    pub(super) fn take<T>(bridge: &Bridge<T>) -> Self {
        Self {
            place: Place::take(bridge),
            _running: bridge.stop.begin(),
        }
    }

    pub(super) fn has_place(&self) -> bool {
        self.place.is_some()
    }
}

/// One of the places that an offer has for clients; free again when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take<T>(bridge: &Bridge<T>) -> Option<Self> {
        // The offer's thread alone takes them; they are given back at any time.
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

impl<T> Bridge<T> {
    fn violations(&self) -> MutexGuard<'_, VecDeque<Violation>> {
        // Nothing that is done under the lock panics.
        self.violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A client's task ends, for this reason.
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
        let mut violations = self.violations();
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
        let running = self.stop.running();
        let admission = Admission::take(self);
        if !admission.has_place() && running >= self.clients + REFUSING {
            // It gets no answer: an answer must follow the client's request, which a task waits for.
            return;
        }
        let bridge = Arc::clone(self);
        let launched = carrier::launch(self.what.member(), move |context| {
            T::serve(bridge, client, admission, context)
        });
        if let Err(error) = launched {
            // Its connection ends, and the client finds that it was not answered.
            tracing::warn!(domain = self.domain, %error, "cannot serve a client");
        }
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
