//! Lets a client in: reads its request, and gives it the memory of a connection.

use super::carrier::Context;
use super::clients::{Bridge, deny};
use super::control_socket::{ControlSocket, Watched};
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use super::sharing::Alike;
use super::side::Side;
use crate::directory::Client;
use crate::space::handshake::{Awaited, Ended};
use portolan_abi::bridge::{Answer, Ask, Denied, Granted, WAKE};
use portolan_proto::handshake::Unasked;
use portolan_sys::socket;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A client must send its request within this time, and take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads a client's request, and gives it memory of the sizes that `grant` returns, or the reason
/// for a refusal. Returns this side of the connection.
pub(super) async fn let_in<T>(
    bridge: &Bridge<T>,
    client: Client,
    has_place: bool,
    context: &Rc<Context>,
    grant: impl FnOnce(&Ask) -> Result<Granted, Denied>,
) -> Result<Side, Over> {
    let asked = Asked::hear(bridge, client, context).await?;
    // Only after the request was read: an answer to a client that is still sending gets lost.
    let granted = match has_place {
        true => grant(&asked.ask),
        false => Err(Denied::Full),
    };
    let (asked, granted) = asked.judged(granted)?;
    asked.give(bridge, granted, context).await
}

/// A client whose request was read.
pub(super) struct Asked {
    pub(super) ask: Ask,
    watched: Watched,
}

impl Asked {
    /// Reads a client's request; refuses it, if it is none that the offer takes.
    pub(super) async fn hear<T>(
        bridge: &Bridge<T>,
        client: Client,
        context: &Rc<Context>,
    ) -> Result<Self, Over> {
        let control = ControlSocket::new(client.connection, client.pidfd, false);
        let watched = Watched::new(control, context)?;
        match hear(bridge, &watched.control, context).await {
            Ok(ask) => {
                portolan_shm::mark!("bridge.heard");
                Ok(Self { ask, watched })
            }
            Err(refused) => {
                deny(watched.control.socket(), refused.says);
                Err(refused.over)
            }
        }
    }

    /// Refuses the client, if that was the judgement.
    pub(super) fn judged(self, granted: Result<Granted, Denied>) -> Result<(Self, Granted), Over> {
        match granted {
            Ok(granted) => Ok((self, granted)),
            Err(why) => {
                deny(self.watched.control.socket(), why);
                Err(Over::Stopped)
            }
        }
    }

    /// What a connection has in common with those that this port may go over.
    pub(super) fn alike(&self, granted: &Granted) -> Alike {
        Alike {
            sealed: self.ask.sealed,
            there: granted.there,
        }
    }

    /// Gives the client the memory of a connection of its own.
    pub(super) async fn give<T>(
        self,
        bridge: &Bridge<T>,
        granted: Granted,
        context: &Rc<Context>,
    ) -> Result<Side, Over> {
        let Self { ask, mut watched } = self;
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
        Ok(Side::server(memory, watched, context))
    }

    /// Tells the client which connection its port goes over; whether it has heard.
    pub(super) async fn shares(self, granted: Granted, context: &Context) -> bool {
        let socket = self.watched.control.socket();
        let (by, now) = (Instant::now() + PATIENCE, Some(Instant::now()));
        let answer = Answer::Granted(granted).encode();
        if socket::send_by(socket, &answer, &[], now).is_err() {
            return false;
        }
        portolan_shm::mark!("bridge.shared");
        let heard = context.until(|_| {
            context.by(by);
            if !context.take_news() {
                return Ok((Instant::now() >= by).then_some(false));
            }
            let mut packet = [0; 2];
            Ok(match socket::try_receive(socket, &mut packet, 0) {
                Ok(None) => None,
                Ok(Some(came)) => Some(packet[..came.len] == [WAKE]),
                Err(_) => Some(false),
            })
        });
        heard.await.unwrap_or(false)
    }
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
