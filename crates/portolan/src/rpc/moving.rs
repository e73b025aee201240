//! Moves a server to another process, in the middle of calls.
//!
//! It stops taking calls, lets those that run end, and sends what it knows: its port, and for
//! each client both channels and the transport's state. The new one has the incarnation of
//! the old one, so clients notice nothing but a pause. What they sent meanwhile is lost, as
//! anything may be in these channels, and they are asked for it.
//!
//! Clients that share channels come along with those. A client with some of its own beside them
//! shares again: its channel is no longer written to, as when it is demoted, and where it is
//! busy it asks the new server for others.

use super::connection::{Connection, Scratch};
use super::error::ServeError;
use super::hello::{Moving, MovingClient, from_bytes, to_bytes};
use super::link::{self, LOOK};
use super::method::Service;
use super::parcel::Parcels;
use super::serve::{Server, ServerOptions, Shared};
use super::shared_channels::SharedChannels;
use crate::channel::{Channel, Reader, ReaderOptions};
use crate::port::{ReceiveError, ReceiveRight, SendRight, WhenFull};
use crate::{Access, Deadline, Domain, Message, MessageError, Right};
use portolan_proto::Server as Protocol;
use portolan_shm::mark;
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// Moves to the process that receives at `to` with [`take_over`]. Calls that run end here
    /// first; those that come meanwhile run there.
    ///
    /// ```
    /// use portolan::{Deadline, Domain, PortOptions, rpc};
    /// #[portolan::service]
    /// trait Which {
    ///     fn one(&self) -> u8;
    /// }
    /// struct Number(u8);
    /// impl Which for Number {
    ///     fn one(&self) -> u8 { self.0 }
    /// }
    /// let domain = Domain::private()?;
    /// let old = rpc::serve(&domain, "which", WhichService(Number(1)), &Default::default())?;
    /// let client = WhichClient::connect(&domain, "which", Deadline::NEVER)?;
    /// assert_eq!(client.one(), Ok(1));
    ///
    /// let mut port = domain.bind(PortOptions::unnamed())?; // of another process
    /// old.move_to(&domain, &port.make_send(), Deadline::NEVER)?;
    /// let number = WhichService(Number(2));
    /// let _new = rpc::take_over(&domain, &mut port, number, &Default::default(), Deadline::NEVER)?;
    /// assert_eq!(client.one(), Ok(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn move_to(
        mut self,
        domain: &Domain,
        to: &SendRight,
        deadline: impl Into<Deadline>,
    ) -> Result<(), ServeError> {
        let deadline = deadline.into();
        let (service, incarnation) = self.shared().identity();
        let name = self.shared().served_as().to_owned();
        let remains = self.dismantle(deadline).ok_or(ServeError::Running)?;
        mark!("serve.dismantled");
        let Some(port) = remains.port else {
            return Err(ReceiveError::Closed.into());
        };
        let own = remains.own.into_iter();
        let own = own.map(|(connection, reader)| (connection, Some(reader)));
        let sharing = remains.sharing.into_iter().map(|c| (c, None));
        let mut clients = Vec::new();
        for (connection, reader) in own.chain(sharing) {
            if let Some(message) = pack(domain, connection, reader, deadline)? {
                clients.push(message);
            }
        }
        let moving = Moving {
            service: service.to_owned(),
            name,
            incarnation,
            clients: clients.len(),
            shared: remains.shared_channels.is_some(),
        };
        let mut first = Message::new(&to_bytes(&moving))?;
        let mut rights = vec![Right::from(port)];
        // No client writes to it any more: that was the last one.
        if let Some(shared_channels) = remains.shared_channels {
            rights.extend(
                [
                    shared_channels.calls.clone(),
                    shared_channels.answers.clone(),
                ]
                .map(Right::from),
            );
        }
        attach(&mut first, rights)?;
        for message in std::iter::once(first).chain(clients) {
            to.send(message, WhenFull::Wait(deadline))
                .map_err(|error| ServeError::Unsent(error.why))?;
            mark!("serve.moving");
        }
        Ok(())
    }
}

fn attach(message: &mut Message, rights: Vec<Right>) -> Result<(), MessageError> {
    for right in rights {
        message.attach(right).map_err(|refused| refused.why)?;
    }
    Ok(())
}

/// A client of a server that moves; `None` if it has gone.
fn pack(
    domain: &Domain,
    mut connection: Arc<Connection>,
    reader: Option<Reader>,
    deadline: Deadline,
) -> Result<Option<Message>, ServeError> {
    if !connection.is_alive() {
        connection.close();
        return Ok(None);
    }
    // What has just run keeps the connection for a moment.
    let connection = loop {
        match Arc::try_unwrap(connection) {
            Ok(connection) => break connection,
            Err(_) if deadline.has_passed() => return Err(ServeError::Running),
            Err(shared) => connection = shared,
        }
        std::thread::sleep(LOOK);
    };
    let mut parts = connection.into_parts();
    let (mut rights, sent) = match (parts.shared, reader, parts.own) {
        (Some((sent, alive)), ..) if alive.is_live() => (vec![alive.into()], Some(sent)),
        (None, Some(reader), Some(writer)) => {
            (vec![reader.unbind().into(), writer.unbind().into()], None)
        }
        _ => return Ok(None),
    };
    let state = parts.protocol.freeze()?;
    let mut extent = domain.allocate(state.len())?;
    extent.copy_from_slice(&state);
    let parcels = parts.parcels.and_then(Arc::into_inner);
    let parcels = parcels.map(Parcels::into_parts);
    let client = MovingClient {
        period: parts.period,
        parcel: parcels.as_ref().map(|p| p.2),
        sent,
    };
    let mut message = Message::new(&to_bytes(&client))?;
    message.push(extent).map_err(|refused| refused.why)?;
    if let Some((to, port, _)) = parcels {
        rights.extend([to.into(), port.into()]);
    }
    attach(&mut message, rights)?;
    Ok(Some(message))
}

/// Takes a server over that moves here, which is received at `from`.
/// [`Server::move_to`] shows both ends.
///
/// # Errors
///
/// [`ServeError`].
pub fn take_over<S: Service>(
    domain: &Domain,
    from: &mut ReceiveRight,
    service: S,
    options: &ServerOptions,
    deadline: impl Into<Deadline>,
) -> Result<Server, ServeError> {
    let deadline = deadline.into();
    let not_this = || ServeError::NotThis { service: S::NAME };
    let mut first = from.receive(Access::Later, deadline)?;
    mark!("serve.coming");
    let moving = from_bytes::<Moving>(first.header()).filter(|m| m.service == S::NAME);
    let mut rights = first.take_rights().into_iter();
    let (Some(moving), Some(Right::Receive(port))) = (moving, rights.next()) else {
        return Err(not_this());
    };
    let mut clients = Vec::new();
    for _ in 0..moving.clients {
        let message = from.receive(Access::Now, deadline)?;
        clients.push(Moved::unpack(message)?.ok_or_else(not_this)?);
    }
    let (name, incarnation) = (&moving.name, moving.incarnation);
    let server = Server::new(&port, name, service, options, incarnation)?;
    let shared = server.shared();
    if moving.shared {
        let channels = (next_channel(&mut rights), next_channel(&mut rights));
        let (Some(calls), Some(answers)) = channels else {
            return Err(not_this());
        };
        shared.inherit(SharedChannels::over(calls, answers, shared)?);
        mark!("serve.inherited");
    }
    // Before the door is open, so that a client that asks for a promotion is known.
    for client in clients {
        client.settle(shared, &port)?.ok_or_else(not_this)?;
        mark!("serve.taken_over");
    }
    server.open(domain, port, options)
}

/// A client that has come with its server.
struct Moved {
    protocol: Protocol,
    channels: Channels,
    parcels: Option<Arc<Parcels>>,
    period: Duration,
}

enum Channels {
    /// On which it calls, and is answered.
    Own(Box<[Channel; 2]>),
    Shared {
        sent: u64,
        alive: SendRight,
    },
}

impl Moved {
    /// `None` if the message is of something else.
    fn unpack(mut message: Message) -> Result<Option<Self>, ServeError> {
        let mut rights = message.take_rights().into_iter();
        let (Some(client), Some(state)) = (
            from_bytes::<MovingClient>(message.header()),
            message.extents().first(),
        ) else {
            return Ok(None);
        };
        let settings = link::settings(client.period, client.sent.is_some());
        let protocol = Protocol::thaw(settings, state)?;
        let channels = match client.sent {
            Some(sent) => match rights.next() {
                Some(Right::Send(alive)) => Channels::Shared { sent, alive },
                _ => return Ok(None),
            },
            None => match (next_channel(&mut rights), next_channel(&mut rights)) {
                (Some(calls), Some(answers)) => Channels::Own(Box::new([calls, answers])),
                _ => return Ok(None),
            },
        };
        let parcels = match (client.parcel, rights.next(), rights.next()) {
            (Some(next), Some(Right::Send(to)), Some(Right::Receive(port))) => {
                Some(Arc::new(Parcels::from_parts(to, port, next)))
            }
            _ => None,
        };
        Ok(Some(Self {
            protocol,
            channels,
            parcels,
            period: client.period,
        }))
    }

    /// Goes on with it; `None` if it shares channels that have not come.
    fn settle(self, shared: &Arc<Shared>, door: &ReceiveRight) -> Result<Option<()>, ServeError> {
        let (protocol, parcels, period) = (self.protocol, self.parcels, self.period);
        match self.channels {
            Channels::Own(channels) => {
                let [calls, answers] = *channels;
                let reader = calls.bind_reader(ReaderOptions::default())?;
                let writer = answers.bind_writer()?;
                shared.connect(protocol, reader, writer, parcels, period);
            }
            Channels::Shared { sent, alive } => {
                let Some(shared_channels) = shared.there() else {
                    return Ok(None);
                };
                let ways = shared_channels.ways(protocol.session()).go_on(sent);
                let client = Connection::new(protocol, ways, Some(alive), parcels, period);
                let client = Arc::new(client);
                shared_channels.join(Arc::clone(&client), door);
                if client.has_ready() {
                    client.take_shared(shared, &mut Scratch::default());
                }
            }
        }
        Ok(Some(()))
    }
}

/// The next right, if it is one on a channel.
fn next_channel(rights: &mut impl Iterator<Item = Right>) -> Option<Channel> {
    match rights.next() {
        Some(Right::Segment(segment)) => Channel::try_from(segment).ok(),
        _ => None,
    }
}
