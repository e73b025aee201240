//! Lets a client in: reads its request, and gives it the memory of a connection.

use super::carrier::Context;
use super::clients::{Bridge, deny};
use super::control_socket::{ControlSocket, Watched};
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use super::side::Side;
use crate::directory::Client;
use crate::space::handshake::{Awaited, Ended};
use portolan_abi::bridge::{Answer, Ask, Denied, Granted};
use portolan_proto::handshake::Unasked;
use portolan_sys::socket;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A client must send its request within this time, and take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads a client's request, and gives it memory of the sizes that `grant` returns, or the reason
/// for a refusal. Returns the request, and this side of the connection.
pub(super) async fn let_in<T>(
    bridge: &Bridge<T>,
    client: Client,
    has_place: bool,
    context: &Rc<Context>,
    grant: impl FnOnce(&Ask) -> Result<Granted, Denied>,
) -> Result<(Ask, Side), Over> {
    let control = ControlSocket::new(client.connection, client.pidfd, false);
    let mut watched = Watched::new(control, context)?;
    let ask = match hear(bridge, &watched.control, context).await {
        Ok(ask) => ask,
        Err(refused) => {
            deny(watched.control.socket(), refused.says);
            return Err(refused.over);
        }
    };
    // Only after the request was read: an answer to a client that is still sending gets lost.
    let granted = match has_place {
        true => grant(&ask),
        false => Err(Denied::Full),
    };
    portolan_shm::mark!("bridge.heard");
    let granted = granted.map_err(|why| {
        deny(watched.control.socket(), why);
        Over::Stopped
    })?;
    let memory = match ConnectionMemory::create(granted.there, granted.back) {
        Ok(memory) => memory,
        Err(error) => {
            deny(watched.control.socket(), Denied::Resources);
            return Err(Over::Io(std::io::Error::other(error)));
        }
    };
    for () in memory.populate() {
        context.turn().await;
    }
    if ask.sealed {
        // The host had it refuse them, and from here on they are expected.
        watched.control.take_descriptors()?;
    }
    portolan_shm::mark!("bridge.granting");
    let answer = Answer::Granted(granted).encode();
    let shown = [memory.as_fd(), bridge.process.as_fd()];
    // There is room: nothing was sent before.
    let now = Some(Instant::now());
    socket::send_by(watched.control.socket(), &answer, &shown, now)?;
    portolan_shm::mark!("bridge.granted");
    Ok((ask, Side::server(memory, watched, context)))
}

/// The answer to a client that is refused, and the end of its connection.
struct Refused {
    says: Denied,
    over: Over,
}

/// Reads a client's request, for which it has some time, unless the offer is closed meanwhile.
async fn hear<T>(
    bridge: &Bridge<T>,
    control: &ControlSocket,
    context: &Context,
) -> Result<Ask, Refused> {
    let by = Instant::now() + PATIENCE;
    let mut awaited = Awaited::<Ask>::new(Some(by));
    let refused = |says, over| Err(Refused { says, over });
    let came = context.until(|_| {
        if bridge.stop.is_asked() {
            return Err(Over::Stopped);
        }
        context.by(by);
        if !context.take_news() && Instant::now() < by {
            return Ok(None);
        }
        Ok(awaited.poll(control.socket()).transpose())
    });
    let ask = match came.await {
        Err(over) => return refused(Denied::Over, over),
        Ok(Ok(ask)) => ask,
        Ok(Err(Ended::Failed(Unasked::Refuse(says @ Denied::Version, _)))) => {
            return refused(says, Over::Stopped);
        }
        Ok(Err(Ended::Failed(Unasked::Refuse(says, _)))) => {
            return refused(says, ViolationKind::Ask.into());
        }
        Ok(Err(Ended::Failed(Unasked::HangUp))) => return refused(Denied::Resources, Over::Gone),
        Ok(Err(Ended::Socket(error))) => return refused(Denied::Resources, error.into()),
    };
    // What follows it may be there already.
    context.keep_news();
    if ask.sealed && !bridge.sealed {
        return refused(Denied::Sealed, Over::Stopped);
    }
    Ok(ask)
}
