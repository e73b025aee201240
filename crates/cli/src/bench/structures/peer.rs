//! Runs the process that receives: it decodes, looks up, and reports when it had done what.

use std::os::fd::OwnedFd;

use portolan::structure::{Map, Text};
use portolan::{Access, Domain, Message, PortOptions, ReceiveRight, SendRight, Waiting};
use portolan_measure::child::Control;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::data::{Record, looked_up};
use super::{PATIENCE, library};
#[cfg(feature = "serialisers")]
use crate::error::CliError;
use crate::error::Result;

/// What the receiving process needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(super) domain: String,
    pub(super) entries: u64,
    pub(super) lookups: u64,
    pub(super) cpu: usize,
    /// No other process needs the processor: look without pause.
    pub(super) poll: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// So many messages, each to be sent back.
    Echo { rounds: u64 },
    /// A structure.
    Structure,
    /// Bytes in an extent, and how many of them.
    #[cfg(feature = "serialisers")]
    Extent(super::codec::Codec),
    /// As many bytes over the socket.
    #[cfg(feature = "serialisers")]
    Socket(super::codec::Codec, u64),
}

/// When the receiver had done what, in nanoseconds of the machine's clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    /// It had the message.
    pub(super) received: u64,
    /// It could look up.
    pub(super) ready: u64,
    /// It had found the first.
    pub(super) first: u64,
    /// It had found all.
    pub(super) all: u64,
    /// How many there were.
    pub(super) found: u64,
}

/// Both processes read the same clock.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// A port of ours and one of the other side's.
pub(super) fn ports(
    domain: &Domain,
    own: &str,
    other: &str,
    poll: bool,
) -> Result<(ReceiveRight, SendRight)> {
    let mut port = domain
        .bind(PortOptions::named(own))
        .map_err(library("binding a port"))?;
    if poll {
        port.set_waiting(Waiting::Poll);
    }
    let right = domain
        .connect(other, PATIENCE)
        .map_err(library("finding the other side's port"))?;
    Ok((port, right))
}

/// The whole life of the receiver.
pub(crate) fn main(brief: &Brief, control: &Control, sockets: Vec<OwnedFd>) -> Result<()> {
    portolan_measure::cpus::pin(brief.cpu)?;
    let domain = Domain::join(&brief.domain).map_err(library("joining the domain"))?;
    let (mut port, right) = ports(&domain, "receiver", "sender", brief.poll)?;
    let keys = looked_up(brief.entries, brief.lookups);
    #[cfg(feature = "serialisers")]
    let mut buffer = rkyv::util::AlignedVec::<16>::new();
    #[cfg(not(feature = "serialisers"))]
    drop(sockets);
    control.send(&())?;
    while let Some(order) = control.receive()? {
        match order {
            Order::Echo { rounds } => {
                for _ in 0..rounds {
                    send(&right, receive(&mut port)?)?;
                }
            }
            Order::Structure => {
                let message = receive(&mut port)?;
                let received = now();
                let map = message.root::<Map<Text, Record>>();
                let map = map.map_err(library("asking for the root"))?;
                let ready = now();
                let answer = look_up(&keys, received, ready, |key| map.get(key).map(|r| r.flags));
                control.send(&answer)?;
                send(&right, message)?;
            }
            #[cfg(feature = "serialisers")]
            Order::Extent(codec) => {
                let message = receive(&mut port)?;
                let received = now();
                let bytes = message.at(0).unwrap_or(&[]);
                let decoded = codec.decode(bytes).map_err(super::codec::failed)?;
                let answer = look_up(&keys, received, now(), |key| decoded.flags(key));
                control.send(&answer)?;
            }
            #[cfg(feature = "serialisers")]
            Order::Socket(codec, bytes) => {
                buffer.resize(usize::try_from(bytes).unwrap_or(0), 0);
                let [socket] = &sockets[..] else {
                    return Err(portolan_measure::MeasureError::NoCoordinator.into());
                };
                read_all(socket, &mut buffer)?;
                let received = now();
                let decoded = codec.decode(&buffer).map_err(super::codec::failed)?;
                let answer = look_up(&keys, received, now(), |key| decoded.flags(key));
                control.send(&answer)?;
            }
        }
    }
    Ok(())
}

fn look_up(
    keys: &[String],
    received: u64,
    ready: u64,
    flags: impl Fn(&str) -> Option<u32>,
) -> Answer {
    let mut found = keys.first().and_then(|key| flags(key)).map_or(0, |_| 1);
    let first = now();
    for key in keys.iter().skip(1) {
        found += u64::from(std::hint::black_box(flags(key)).is_some());
    }
    Answer {
        received,
        ready,
        first,
        all: now(),
        found,
    }
}

pub(super) fn receive(port: &mut ReceiveRight) -> Result<Message> {
    port.receive(Access::Later, PATIENCE)
        .map_err(library("receiving"))
}

pub(super) fn send(right: &SendRight, message: Message) -> Result<()> {
    right
        .send(message, portolan::Deadline::after(PATIENCE))
        .map_err(library("sending"))
}

#[cfg(feature = "serialisers")]
fn read_all(socket: &OwnedFd, mut rest: &mut [u8]) -> Result<()> {
    while !rest.is_empty() {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut *rest))
            .map_err(CliError::system("reading from a socket"))?;
        if got == 0 {
            return Err(portolan_measure::MeasureError::NoCoordinator.into());
        }
        rest = &mut rest[got..];
    }
    Ok(())
}
