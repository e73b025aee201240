//! A newcomer who says anything at a host's socket, in a real domain of this process.

use arbitrary::{Result, Unstructured};
use portolan::Domain;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::connect::{CONNECT_MAGIC, ConnectRequest, Maker, OfferKind, OfferName};
use portolan_abi::control::FromMember;
use portolan_abi::hello::{Hello, LOOK_MAGIC, Look, MAGIC, RETURN_MAGIC, Return, socket_name};
use portolan_abi::limits::MAX_NAME;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

/// How long a host may take to answer before that is a finding.
const PATIENCE: Duration = Duration::from_secs(60);

/// The domain, and where its host listens.
fn domain() -> &'static (Domain, SocketAddrUnix) {
    static DOMAIN: OnceLock<(Domain, SocketAddrUnix)> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let name = format!("fuzz-{}", std::process::id());
        let builder = Domain::builder(&name).size(64 << 20);
        let domain = match builder.join() {
            Ok(domain) => domain,
            Err(error) => panic!("there is no domain to fuzz: {error}"),
        };
        let user = rustix::process::getuid().as_raw();
        let socket = socket_name(user, &name).unwrap_or_default();
        match SocketAddrUnix::new_abstract_name(socket.as_bytes()) {
            Ok(address) => (domain, address),
            Err(error) => panic!("{socket}: {error}"),
        }
    })
}

pub(super) fn run(data: &[u8]) {
    let (_, address) = domain();
    let Some(garbage) = open(address) else {
        // Its backlog is full of us.
        return;
    };
    let _ = speak(&garbage, &mut Unstructured::new(data));
    drop(garbage);
    // It hears the next one all the same.
    let Some(next) = open(address) else { return };
    let _ = send(&next, &Look {}.encode(), SendFlags::NOSIGNAL);
    let mut answer = [0; 256];
    // The fuzzer's clock interrupts.
    let heard = retry_on_intr(|| recv(&next, &mut answer[..], RecvFlags::empty()));
    match heard {
        Ok((_, len)) => assert!(len > 0, "the host hung up on an observer"),
        Err(error) => panic!("the host does not answer any more: {error}"),
    }
}

fn open(address: &SocketAddrUnix) -> Option<OwnedFd> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).ok()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).ok()?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).ok()?;
    connect(&socket, address).ok()?;
    Some(socket)
}

fn speak(socket: &OwnedFd, u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..u.int_in_range(1..=4)? {
        let mut packet = match u.int_in_range(0..=6)? {
            0 => {
                let len = u.int_in_range(0..=200)?;
                u.bytes(len)?.to_vec()
            }
            1 => {
                let hello = Hello {
                    name: *u.choose(&[[0; MAX_NAME + 1], [0xff; MAX_NAME + 1]])?,
                };
                hello.encode().to_vec()
            }
            2 => Look {}.encode().to_vec(),
            3 => {
                let (space, incarnation) = (u.arbitrary()?, u.int_in_range(0..=3)?);
                Return { space, incarnation }.encode().to_vec()
            }
            4 => u
                .choose(&[
                    FromMember::Arrived,
                    FromMember::Leaving,
                    FromMember::Received,
                ])?
                .encode(),
            5 => connect_request(u)?.encode().to_vec(),
            _ => {
                let magic: u32 = *u.choose(&[MAGIC, LOOK_MAGIC, RETURN_MAGIC, CONNECT_MAGIC])?;
                let mut packet = magic.to_le_bytes().to_vec();
                let len = u.int_in_range(0..=80)?.min(u.len());
                packet.extend(u.bytes(len)?);
                packet
            }
        };
        if u.ratio(1, 4)? {
            // In another format, if it is a record that says which.
            let version = version(u)?.to_le_bytes();
            let bytes = packet.iter_mut().skip(4).zip(version);
            bytes.for_each(|(byte, other)| *byte = other);
        }
        let _ = send(socket, &packet, SendFlags::NOSIGNAL);
    }
    Ok(())
}

/// Nothing is offered here, so the client waits, if this is a connect request at all.
fn connect_request(u: &mut Unstructured<'_>) -> Result<ConnectRequest> {
    let name = ["a", "samples"][usize::from(u.arbitrary::<bool>()?)];
    Ok(ConnectRequest {
        kind: *u.choose(&[OfferKind::Port, OfferKind::Channel, OfferKind::Export])?,
        name: OfferName::new(name).ok_or(arbitrary::Error::IncorrectFormat)?,
        token: u.arbitrary()?,
        maker: Maker {
            space: u.arbitrary()?,
            process: u.arbitrary()?,
            ..Maker::ANY
        },
    })
}

fn version(u: &mut Unstructured<'_>) -> Result<u32> {
    if u.arbitrary()? {
        Ok(FORMAT_VERSION)
    } else {
        u.arbitrary()
    }
}
