//! A server that moves to another process, in the middle of calls.
//!
//! It stops taking calls, lets those that run end, and sends what it knows: its port, and for
//! each client both channels and the transport's state. The new one has the incarnation of
//! the old one, so clients notice nothing but a pause. What they sent meanwhile is lost, as
//! anything may be in these channels, and they are asked for it.

use super::connection::Connection;
use super::error::ServeError;
use super::hello::{Moving, MovingClient, from_bytes, to_bytes};
use super::link;
use super::method::Service;
use super::parcel::Parcels;
use super::serve::{Server, ServerOptions};
use crate::channel::{BindChannelError, Channel, Reader, ReaderOptions};
use crate::port::{ReceiveError, ReceiveRight, SendRight, WhenFull};
use crate::{Access, AllocateError, Deadline, Domain, Message, MessageError, Right, Unsent};
use portolan_proto::{NotFrozen, Server as Protocol};
use portolan_shm::mark;
use std::sync::Arc;
use std::time::Duration;

/// Why a server did not move. It has ended then: its clients get errors and connect again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The state's: calls ran until the deadline.
    #[error("calls were still running at the deadline: give it more time")]
    Running,
    /// The caller's: what came is no server of this service.
    #[error("what came is no server of {service:?}")]
    NotThis {
        /// What is served here.
        service: &'static str,
    },
    /// What came is damaged.
    #[error(transparent)]
    State(#[from] NotFrozen),
    /// It was not sent.
    #[error("it was not sent: {0}")]
    Unsent(Unsent),
    /// It did not come.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// It does not fit a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// No memory for the state.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// A channel is taken.
    #[error(transparent)]
    Channel(#[from] BindChannelError),
    /// It cannot be served here.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Looks so often whether what runs has ended.
const LOOK: Duration = Duration::from_millis(1);

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
    /// [`MoveError`].
    pub fn move_to(
        mut self,
        domain: &Domain,
        to: &SendRight,
        deadline: impl Into<Deadline>,
    ) -> Result<(), MoveError> {
        let deadline = deadline.into();
        let (service, incarnation) = self.shared().identity();
        let name = self.shared().served_as().to_owned();
        let (port, connections) = self.dismantle();
        mark!("serve.dismantled");
        let Some(port) = port else {
            return Err(ReceiveError::Closed.into());
        };
        let mut clients = Vec::new();
        for (connection, reader) in connections {
            if let Some(message) = pack(domain, connection, reader, deadline)? {
                clients.push(message);
            }
        }
        let moving = Moving {
            service: service.to_owned(),
            name,
            incarnation,
            clients: clients.len(),
        };
        let mut first = Message::new(&to_bytes(&moving))?;
        first.attach(port).map_err(|refused| refused.error)?;
        for message in std::iter::once(first).chain(clients) {
            to.send(message, WhenFull::Wait(deadline))
                .map_err(|error| MoveError::Unsent(error.reason))?;
            mark!("serve.moving");
        }
        Ok(())
    }
}

/// A client of a server that moves; `None` if it has gone.
fn pack(
    domain: &Domain,
    mut connection: Arc<Connection>,
    reader: Reader,
    deadline: Deadline,
) -> Result<Option<Message>, MoveError> {
    // What runs keeps the connection.
    let connection = loop {
        match Arc::try_unwrap(connection) {
            Ok(connection) => break connection,
            Err(_) if deadline.has_passed() => return Err(MoveError::Running),
            Err(shared) => connection = shared,
        }
        std::thread::sleep(LOOK);
    };
    let Some((mut protocol, writer, parcels, period)) = connection.into_parts() else {
        return Ok(None);
    };
    if protocol.closed().is_some() {
        return Ok(None);
    }
    let state = protocol.freeze()?;
    let mut extent = domain.allocate(state.len())?;
    extent.copy_from_slice(&state);
    let parcels = parcels.and_then(Arc::into_inner).map(Parcels::into_parts);
    let client = MovingClient {
        period,
        parcel: parcels.as_ref().map(|p| p.2),
    };
    let mut message = Message::new(&to_bytes(&client))?;
    message.push(extent).map_err(|refused| refused.error)?;
    let mut rights = vec![Right::from(reader.unbind()), writer.unbind().into()];
    if let Some((to, port, _)) = parcels {
        rights.push(to.into());
        rights.push(port.into());
    }
    for right in rights {
        message.attach(right).map_err(|refused| refused.error)?;
    }
    Ok(Some(message))
}

/// Takes a server over that moves here ([`Server::move_to`]), which is received at `from`.
///
/// # Errors
///
/// [`MoveError`].
pub fn take_over<S: Service>(
    domain: &Domain,
    from: &mut ReceiveRight,
    service: S,
    options: &ServerOptions,
    deadline: impl Into<Deadline>,
) -> Result<Server, MoveError> {
    let deadline = deadline.into();
    let not_this = MoveError::NotThis { service: S::NAME };
    let mut first = from.receive(Access::Later, deadline)?;
    mark!("serve.coming");
    let moving = from_bytes::<Moving>(first.header()).filter(|m| m.service == S::NAME);
    let (Some(moving), Some(Right::Receive(port))) = (moving, first.take_rights().pop()) else {
        return Err(not_this);
    };
    let mut connections = Vec::new();
    for _ in 0..moving.clients {
        let message = from.receive(Access::Now, deadline)?;
        connections.push(unpack(message)?.ok_or(MoveError::NotThis { service: S::NAME })?);
    }
    let server = Server::new(
        domain,
        port,
        &moving.name,
        service,
        options,
        moving.incarnation,
    )?;
    for (protocol, up, down, parcels, period) in connections {
        let reader = up.bind_reader(ReaderOptions::default())?;
        let writer = down.bind_writer()?;
        server
            .shared()
            .connect(protocol, reader, writer, parcels, period);
        mark!("serve.taken_over");
    }
    Ok(server)
}

type Moved = (Protocol, Channel, Channel, Option<Arc<Parcels>>, Duration);

/// One client; `None` if the message is of something else.
fn unpack(mut message: Message) -> Result<Option<Moved>, MoveError> {
    let mut rights = message.take_rights().into_iter();
    let (Some(client), Some(state)) = (
        from_bytes::<MovingClient>(message.header()),
        message.extents().first(),
    ) else {
        return Ok(None);
    };
    let protocol = Protocol::thaw(link::settings(client.period, false), state)?;
    let (Some(Right::Segment(up)), Some(Right::Segment(down))) = (rights.next(), rights.next())
    else {
        return Ok(None);
    };
    let (Ok(up), Ok(down)) = (Channel::try_from(up), Channel::try_from(down)) else {
        return Ok(None);
    };
    let parcels = match (client.parcel, rights.next(), rights.next()) {
        (Some(next), Some(Right::Send(to)), Some(Right::Receive(port))) => {
            Some(Arc::new(Parcels::from_parts(to, port, next)))
        }
        _ => None,
    };
    Ok(Some((protocol, up, down, parcels, client.period)))
}
