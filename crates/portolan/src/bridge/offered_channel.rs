//! Offers a channel to other domains: an *egress* for each client sends its messages.
//!
//! An egress reads the channel as one more reader, and writes each whole message into the byte ring
//! back. While the client makes no room there it does not read; then it misses what is
//! overwritten, and says so with the next message (G6).

use super::carrier::{Context, Word};
use super::clients::{Admission, Bridge, Offered, Open};
use super::codec;
use super::connect::FIRST;
use super::error::{Over, Violation};
use super::let_in::let_in;
use super::options::{OfferOptions, ring_bytes};
use super::side::{Side, crossing};
use crate::channel::{
    Channel, ChannelError, Lagging, ReadError, Reader, ReaderOptions, Signalling,
};
use crate::directory::{Client, OfferKind};
use crate::space::Member;
use crate::space::public::Shown;
use crate::{EventKind, OfferError, Permissions};
use portolan_abi::bridge::{Denied, Form, Granted, RING_BYTES, Secret};
use portolan_abi::public::PublicKind;
use std::rc::Rc;
use std::sync::Arc;

/// A channel that other domains can follow, until this is dropped.
///
/// When the drop has returned, no client gets a message any more.
#[must_use = "a dropped offer is withdrawn"]
pub struct OfferedChannel {
    open: Open<Heard>,
}

impl Channel {
    /// Makes this channel known to other domains by `name`.
    ///
    /// Processes that `permissions` admit may follow it
    /// ([`Domain::follow`](crate::Domain::follow)): they read copies of the messages that are
    /// written from then on, in a channel of their own. No process outside can write to it, or
    /// hold up its writer: a client that is too slow misses some, and can read how many.
    /// [`OfferOptions::lagging`] says otherwise for a reliable channel.
    ///
    /// This process need not be the one that writes, only stay.
    ///
    /// # Errors
    ///
    /// [`OfferError`].
    ///
    /// # Examples
    ///
    /// See [`Domain::follow`](crate::Domain::follow).
    pub fn offer(
        &self,
        name: &str,
        permissions: &Permissions,
        options: OfferOptions,
    ) -> Result<OfferedChannel, OfferError> {
        self.member().present()?;
        if self.is_raw() {
            return Err(OfferError::Raw);
        }
        if self.signalling() == Signalling::Never {
            return Err(OfferError::NeverSignals);
        }
        if self.has_parcels() {
            return Err(OfferError::Parcels);
        }
        let heard = Heard {
            channel: self.clone(),
            lagging: options.lagging,
        };
        let most = self.longest() as u64;
        let open = Open::new(self.member(), heard, most, name, permissions, &options)?;
        Ok(OfferedChannel { open })
    }
}

impl OfferedChannel {
    /// The number of clients that follow it now.
    pub fn clients(&self) -> usize {
        self.open.clients()
    }

    /// The clients' violations of the protocol: the last 64 since the last call. The bridge ended
    /// their connections.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.open.take_violations()
    }
}

impl std::fmt::Debug for OfferedChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfferedChannel")
            .field("channel", &self.open.bridge.what.channel)
            .field("clients", &self.clients())
            .finish()
    }
}

/// The channel that a bridge offers.
struct Heard {
    channel: Channel,
    lagging: Lagging,
}

impl Offered for Heard {
    const KIND: OfferKind = OfferKind::Channel;

    fn member(&self) -> &Arc<Member> {
        self.channel.member()
    }

    async fn serve(
        bridge: Arc<Bridge<Self>>,
        client: Client,
        admission: Admission,
        context: Rc<Context>,
    ) {
        let (uid, pid) = (client.peer.uid, client.peer.pid);
        let domain = bridge.domain.as_str();
        let over =
            match ChannelEgress::let_in(&bridge, client, admission.has_place(), &context).await {
                Ok(mut egress) => {
                    tracing::info!(domain, uid, pid, "a client follows an offered channel");
                    bridge.stop.or(egress.carry_all()).await
                }
                Err(over) => over,
            };
        bridge.ended(uid, pid, over);
        drop(bridge);
        drop(admission);
    }
}

/// The state of the egress, a task of the carrier.
struct ChannelEgress {
    reader: Reader,
    side: Side,
    /// Where the channel rings.
    word: Word,
    /// The end of the last message that was sent.
    at: u64,
    /// Positions that were not sent, since the client connected.
    missed: u64,
    scratch: Vec<u8>,
    /// What observers see.
    shown: Shown,
}

impl ChannelEgress {
    async fn let_in(
        bridge: &Bridge<Heard>,
        client: Client,
        has_place: bool,
        context: &Rc<Context>,
    ) -> Result<Self, Over> {
        let channel = &bridge.what.channel;
        let mut own = None;
        let who = (client.peer.uid, client.peer.pid);
        let side = let_in(bridge, client, has_place, context, |ask| {
            // From here on it misses nothing without being told.
            let mut options = ReaderOptions::default().lagging(bridge.what.lagging);
            if !channel.is_reliable() || bridge.what.lagging == Lagging::Skip {
                options = options.aside();
            }
            let reader = channel.bind_reader(options).map_err(|error| match error {
                ChannelError::NoEntry { .. } => Denied::Full,
                _ => Denied::Over,
            })?;
            own = Some(reader);
            Ok(Granted {
                synchronous: false,
                most: bridge.most,
                there: *RING_BYTES.start(),
                back: ring_bytes(ask.there.min(bridge.ring_bytes)),
                window: 0,
                shares: false,
                port: FIRST,
                secret: Secret::default(),
            })
        })
        .await?;
        let form = Form {
            reliable: channel.is_reliable(),
            unit: channel.unit() as u64,
            units: channel.units(),
            content: channel.content(),
        };
        side.write(&form.encode()).await?;
        portolan_shm::mark!("bridge.described");
        let reader = own.ok_or(Over::Stopped)?;
        Ok(Self {
            at: reader.position(),
            reader,
            side,
            word: context.word(),
            missed: 0,
            scratch: Vec::new(),
            shown: bridge.show(
                channel.member(),
                PublicKind::Follower,
                channel.segment().right().to.port.index,
                who,
            ),
        })
    }

    /// Carries messages until the connection ends; returns the reason.
    async fn carry_all(&mut self) -> Over {
        loop {
            if let Err(over) = self.carry_next().await {
                return over;
            }
        }
    }

    async fn carry_next(&mut self) -> Result<(), Over> {
        let Self {
            side,
            scratch,
            shown,
            ..
        } = self;
        // Also where nothing is written: what was missed is looked at in turn too.
        side.context().turn().await;
        match self.reader.receive(crate::Deadline::NOW) {
            Ok(message) => {
                self.missed += message.position().saturating_sub(self.at);
                let bytes = message.len() as u64;
                let (member, port) = shown.whose();
                let write = async {
                    codec::write_copy(side, self.missed, &message, scratch).await?;
                    Ok(((), bytes))
                };
                crossing(member, EventKind::Depart, port, write).await?;
                shown.went(bytes);
                portolan_shm::mark!("bridge.channel_carried");
                self.at = self.reader.position();
                Ok(())
            }
            Err(ReadError::TimedOut) => self.wait().await,
            // The positions show what was not sent.
            Err(ReadError::Missed(_) | ReadError::TooLong { .. } | ReadError::Interrupted) => {
                Ok(())
            }
            Err(ReadError::WriterGone) => codec::write_end(side).await,
            Err(error) => {
                tracing::info!(%error, "a client cannot follow a channel any more");
                Err(Over::Stopped)
            }
        }
    }

    /// Waits until something is written, or the client leaves.
    async fn wait(&mut self) -> Result<(), Over> {
        let Self {
            reader, side, word, ..
        } = self;
        let look = |arms: bool| {
            side.hear()?;
            if reader.may_have() {
                return Ok(Some(()));
            }
            if !arms {
                return Ok(None);
            }
            let Some(seen) = reader.arm() else {
                return Ok(Some(()));
            };
            word.arm(reader.doorbell(), seen)?;
            Ok(reader.may_have().then_some(()))
        };
        side.context().until(look).await
    }
}
