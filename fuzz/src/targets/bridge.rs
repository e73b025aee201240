//! Messages between domains, with a stranger at one end that follows no rule: a client at an
//! offered port, or a process that offers one. Real domains of this process, a real socket,
//! and memory that the stranger writes as a file.

use crate::stranger::{
    MOST, Stranger, accepted, address, by, descriptor, long, process, ring_bytes, taken, until,
    welcome,
};
use arbitrary::{Result, Unstructured};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, Message, OfferOptions, OfferedPort, Permissions,
    PortOptions, Protection, ReceiveRight, SendRight, WhenFull,
};
use portolan_abi::bridge::{
    Answer, Ask, DESCRIPTORS, Denied, Granted, MAX_NAMED, MAX_WINDOW, connection_bytes,
};
use portolan_abi::connect::OfferKind;
use portolan_abi::handshake::Refusal;
use portolan_abi::limits::{MAX_EXTENTS, MAX_HEADER, PAGE};
use portolan_sys::socket::{self, Address};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::thread;

/// What the honest client says.
const HELLO: &[u8] = b"hello";
/// The port that takes messages, and the one that takes requests.
const PORTS: [&str; 2] = ["messages", "requests"];

/// A domain that offers ports, one that connects to it and follows the rules, and the place where
/// one that does not offers others.
struct Place {
    messages: ReceiveRight,
    offered: [OfferedPort; 2],
    address: Address,
    ours: Domain,
    rights: [SendRight; 2],
    host: OwnedFd,
    hosted: String,
    _offering: Domain,
}

impl Place {
    fn make() -> std::result::Result<Self, Box<dyn std::error::Error>> {
        let names = ["offers", "connects", "hosts"];
        let [offers, connects, hosts] = names.map(|n| format!("fuzz-{n}-{}", std::process::id()));
        let offering = Domain::builder(&offers).size(64 << 20).join()?;
        let ours = Domain::builder(&connects).size(64 << 20).private()?;
        let messages = offering.bind(PortOptions::unnamed())?;
        let mut requests = offering.bind(PortOptions::unnamed().synchronous())?;
        let offer = |port: &ReceiveRight, name| {
            let options = OfferOptions::default().most_bytes(MOST).most_clients(4);
            port.offer(name, &Permissions::own_user(), options)
        };
        let offered = [offer(&messages, PORTS[0])?, offer(&requests, PORTS[1])?];
        let connect = |name| {
            let other = Domain::builder(&offers);
            ours.connect_to(&other, name, ConnectOptions::default().most_bytes(MOST))
        };
        let rights = [connect(PORTS[0])?, connect(PORTS[1])?];
        // Sends back what it gets.
        thread::spawn(move || {
            while let Ok(mut request) = requests.get_request(Access::Later, Deadline::NEVER) {
                examine(&request.message);
                // Its client may be gone.
                let _ = request.reply_from();
            }
        });
        let host = socket::listen(&address(&hosts), 16)?;
        Ok(Self {
            messages,
            offered,
            address: address(&offers),
            ours,
            rights,
            host,
            hosted: hosts,
            _offering: offering,
        })
    }
}

/// What comes from a stranger is within the limits, and all of it can be read.
fn examine(message: &Message) -> u64 {
    assert!(message.len() as u64 <= MOST);
    assert!(message.header().len() <= MAX_HEADER);
    assert!(message.extents().len() <= MAX_EXTENTS);
    let bytes = message.slices().flatten();
    bytes.fold(0, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

pub(super) fn run(data: &[u8]) {
    static PLACE: OnceLock<Mutex<Place>> = OnceLock::new();
    let mut place = taken(&PLACE, Place::make);
    let mut u = Unstructured::new(data);
    // They end where the bytes do.
    let _ = match u.arbitrary() {
        Ok(true) => place.host(&mut u),
        _ => place.connect(&mut u),
    };
}

impl Place {
    fn connect(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let port = usize::from(u.arbitrary::<bool>()?);
        let Some(socket) = accepted(&self.address, OfferKind::Port, PORTS[port]) else {
            return Ok(());
        };
        let connected = client(u, socket, port == 1);
        self.messages_until_gone(port);
        self.serves_others();
        connected
    }

    /// Takes what has come, until the stranger's connection is over.
    fn messages_until_gone(&mut self, port: usize) {
        let (offered, messages) = (&self.offered[port], &mut self.messages);
        until("a connection does not end", || {
            while let Ok(message) = messages.receive(Access::Later, Deadline::NOW) {
                examine(&message);
            }
            offered.clients() == 1
        });
        offered.take_violations();
        while let Ok(message) = self.messages.receive(Access::Later, Deadline::NOW) {
            examine(&message);
        }
    }

    /// An honest client is still served.
    fn serves_others(&mut self) {
        let hello = || Message::new(HELLO).unwrap_or_default();
        if let Err(error) = self.rights[0].send(hello(), long()) {
            panic!("the honest client cannot send: {error}");
        }
        match self.messages.receive(Access::Later, long()) {
            Ok(message) => assert_eq!(message.header(), HELLO),
            Err(error) => panic!("what the honest client sent did not come: {error}"),
        }
        match self.rights[1].request_reply(hello(), Access::Later, long()) {
            Ok(answer) => assert_eq!(answer.header(), HELLO),
            Err(error) => panic!("the honest client is not answered: {error}"),
        }
    }

    /// Offers a port, to a connecting side that follows the rules.
    fn host(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (there, back) = (ring_bytes(u)?, ring_bytes(u)?);
        let granted = Granted {
            synchronous: u.arbitrary()?,
            most: if u.arbitrary()? { MOST } else { u.arbitrary()? },
            there,
            back,
            window: u.int_in_range(0..=MAX_WINDOW)?,
            shares: false,
            port: 0,
            secret: [1; 16],
        };
        let protection = if u.arbitrary()? {
            Protection::Sealed
        } else {
            Protection::Copied
        };
        let mut answer = match u.int_in_range(0..=7)? {
            0 => Answer::Refused(Refusal {
                version: u.arbitrary()?,
                why: Denied::Full,
                value: 0,
            }),
            _ => Answer::Granted(granted),
        }
        .encode();
        if u.ratio(1, 8)? {
            let at = u.choose_index(answer.len())?;
            answer[at] = u.arbitrary()?;
        }
        let bytes = connection_bytes(there, back).unwrap_or(0);
        let (shown, process) = (descriptor(u, bytes)?, process(u)?);
        let (ours, hosted, listener) = (&self.ours, &self.hosted, &self.host);
        thread::scope(|scope| {
            let options = ConnectOptions::default()
                .most_bytes(MOST)
                .protection(protection)
                .deadline(long());
            let connecting =
                scope.spawn(move || ours.connect_to(&Domain::builder(hosted), "any", options));
            let accepted = welcome(listener);
            let fds: Vec<_> = shown.iter().chain(&process).map(AsFd::as_fd).collect();
            let told = socket::send_by(&accepted, &answer, &fds, by());
            let right = match connecting.join() {
                Ok(right) => right,
                Err(_) => panic!("connecting panicked"),
            };
            let (Ok(right), Some(memory), Ok(())) = (right, shown, told) else {
                return Ok(());
            };
            let synchronous = granted.synchronous;
            let asking = scope.spawn({
                let right = right.clone();
                move || send(ours, &right, synchronous)
            });
            let mut stranger = Stranger::new(accepted, memory, [there, back], 1);
            let done = stranger.go_on(u, Stranger::write_message);
            drop(stranger);
            assert!(asking.join().is_ok());
            until("a right on a port that is gone lives", || !right.is_live());
            done
        })
    }
}

/// Sends what goes over.
fn send(ours: &Domain, right: &SendRight, synchronous: bool) {
    for bytes in [0, 100, 100_000] {
        let mut message = Message::new(HELLO).unwrap_or_default();
        if let Ok(extent) = ours.allocate(bytes) {
            // There is room in it.
            let _ = message.push(extent);
        }
        if synchronous {
            if let Ok(answer) = right.request_reply(message, Access::Later, long()) {
                examine(&answer);
            }
        } else {
            let _ = right.send(message, WhenFull::Fail);
        }
    }
}

/// Asks to be let in, and sends what no library does.
fn client(u: &mut Unstructured<'_>, socket: OwnedFd, synchronous: bool) -> Result<()> {
    let ask = Ask {
        sealed: u.arbitrary()?,
        most: if u.arbitrary()? { MOST } else { u.arbitrary()? },
        there: u.arbitrary()?,
        named: [u.arbitrary()?; MAX_NAMED],
    };
    let mut ask = ask.encode();
    if u.ratio(1, 8)? {
        ask[u.choose_index(ask.len())?] = u.arbitrary()?;
    }
    let shown = if u.ratio(1, 8)? {
        descriptor(u, PAGE as u64)?
    } else {
        None
    };
    let fds: Vec<_> = shown.iter().map(AsFd::as_fd).collect();
    let len = if u.ratio(1, 8)? {
        u.int_in_range(1..=ask.len())?
    } else {
        ask.len()
    };
    let _ = socket::send_by(&socket, &ask[..len], &fds, by());
    let mut answer = [0; Answer::BYTES];
    let received = socket::receive_by(&socket, &mut answer, DESCRIPTORS, by());
    let Ok(received) = received else {
        return Ok(());
    };
    let Ok(Answer::Granted(granted)) = Answer::decode(&answer[..received.len]) else {
        return Ok(());
    };
    assert_eq!(granted.synchronous, synchronous);
    let Ok([memory, _]) = <[_; DESCRIPTORS]>::try_from(received.fds) else {
        panic!("let in without memory, or without a process");
    };
    let mut stranger = Stranger::new(socket, memory, [granted.there, granted.back], 0);
    stranger.go_on(u, Stranger::write_message)
}
