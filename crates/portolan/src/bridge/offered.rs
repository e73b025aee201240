//! Offers a port to other domains: each client has an ingress of its own.

use super::carrier::Context;
use super::clients::{Admission, Bridge, Offered, Open};
use super::connect::cap;
use super::error::Violation;
use super::ingress;
use super::options::OfferOptions;
use crate::directory::{Client, OfferKind};
use crate::port::SendRight;
use crate::port::sealed::SealedStore;
use crate::space::Member;
use crate::{OfferError, Permissions, ReceiveRight};
use portolan_abi::bridge::{MAX_SEALED, MAX_WINDOW};
use portolan_abi::port::PortStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A port that other domains can connect to, until this is dropped.
///
/// When the drop has returned, no client can send any more, and messages that had come in part
/// are dropped. Messages that were sent on before are in the port.
#[must_use = "a dropped offer is withdrawn"]
pub struct OfferedPort {
    pub(super) open: Open<OfferedTo>,
}

/// The port that a bridge offers.
pub(super) struct OfferedTo {
    pub(super) right: SendRight,
    pub(super) synchronous: bool,
    /// Parts of sealed memory that ingresses are about to send to it.
    in_hand: AtomicUsize,
}

/// Parts of sealed memory that clients may have waiting in a port, each with a descriptor of this
/// process: with those of several ports they have to leave room for everything else.
const MOST_PARTS: usize = 128;

/// Parts that an ingress may send on now.
pub(super) struct InHand<'a> {
    to: &'a OfferedTo,
    parts: usize,
}

impl OfferedTo {
    /// Messages of one client that may wait for room in the port: as many as the port has slots.
    pub(super) fn window(&self) -> u32 {
        let slots = u32::try_from(self.right.slots()).unwrap_or(MAX_WINDOW);
        slots.clamp(1, MAX_WINDOW)
    }

    /// Takes so many parts in hand; nothing, if there are too many until the receiver takes some.
    pub(super) fn take_in_hand(&self, parts: usize) -> Option<InHand<'_>> {
        // Relaxed: a count, of which nothing else is to be seen.
        let others = self.in_hand.fetch_add(parts, Ordering::Relaxed);
        let hand = InHand { to: self, parts };
        let waiting = self
            .right
            .to
            .member
            .part::<SealedStore>()
            .parts(self.right.to.port);
        (waiting + others + parts <= MOST_PARTS).then_some(hand)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.to.in_hand.fetch_sub(self.parts, Ordering::Relaxed);
    }
}

const _: () = assert!(MAX_SEALED <= MOST_PARTS);

impl Offered for OfferedTo {
    const KIND: OfferKind = OfferKind::Port;

    fn member(&self) -> &Arc<Member> {
        &self.right.to.member
    }

    async fn serve(
        bridge: Arc<Bridge<Self>>,
        client: Client,
        admission: Admission,
        context: Rc<Context>,
    ) {
        ingress::serve(bridge, client, admission, context).await;
    }
}

impl ReceiveRight {
    /// Makes this port known to other domains by `name`, which may be another than its own.
    ///
    /// Processes that `permissions` admit may connect
    /// ([`Domain::connect_to`](crate::Domain::connect_to)) and send. A message that comes
    /// takes at most as many bytes as the options say, has neither rights nor data structures in
    /// it, and is a copy of this domain's own. Anything else that a client does ends its own
    /// connection, and is recorded ([`OfferedPort::take_violations`]).
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
        member.present()?;
        let status = self
            .at()
            .queue()
            .port
            .control
            .status
            .load(Ordering::Relaxed);
        let to = OfferedTo {
            right: self.make_send(),
            synchronous: PortStatus::unpack(status).synchronous,
            in_hand: AtomicUsize::new(0),
        };
        // A port's limit of none would be no limit.
        let most = cap(member, options.most).max(1);
        let open = Open::new(member, to, most, name, permissions, &options)?;
        Ok(OfferedPort { open })
    }
}

impl OfferedPort {
    /// The number of clients that are connected now.
    pub fn clients(&self) -> usize {
        self.open.clients()
    }

    /// The clients' violations of the protocol: the last 64 since the last call. The bridge ended
    /// their connections.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.open.take_violations()
    }
}

impl std::fmt::Debug for OfferedPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfferedPort")
            .field("to", &self.open.bridge.what.right)
            .field("clients", &self.clients())
            .finish()
    }
}
