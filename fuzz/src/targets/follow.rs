//! Channels between domains, with a stranger at one end that follows no rule: one that follows an
//! offered channel, or a process that offers one. As in `bridge`.

use crate::stranger::{
    MOST, Stranger, accepted, address, by, descriptor, long, process, ring_bytes, taken, until,
    welcome,
};
use arbitrary::{Result, Unstructured};
use portolan::channel::{
    Channel, ChannelOptions, Lagging, ReadError, Reader, ReaderOptions, Writer,
};
use portolan::{
    ConnectOptions, Deadline, Domain, Followed, OfferOptions, OfferedChannel, Permissions,
};
use portolan_abi::bridge::{Answer, Ask, DESCRIPTORS, Form, Granted, connection_bytes};
use portolan_abi::connect::OfferKind;
use portolan_sys::socket::{self, Address};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::thread;

/// The channel that loses what nobody reads in time, and the one whose clients are waited for.
const CHANNELS: [&str; 2] = ["newest", "kept"];
/// What stands in all that the honest writer writes.
const NEWS: [u8; 40] = [7; 40];

/// A channel that is offered, and how an honest follower reads it.
struct Told {
    writer: Writer,
    offered: OfferedChannel,
    followed: Followed,
    reader: Reader,
    _channel: Channel,
}

/// A domain that offers channels, one that follows them and the rules, and the place where one
/// that does not offers others.
struct Place {
    told: [Told; 2],
    address: Address,
    ours: Domain,
    host: OwnedFd,
    hosted: String,
    _offering: Domain,
}

impl Place {
    fn make() -> std::result::Result<Self, Box<dyn std::error::Error>> {
        let names = ["tells", "follows", "hosts-news"];
        let [offers, connects, hosts] = names.map(|n| format!("fuzz-{n}-{}", std::process::id()));
        let offering = Domain::builder(&offers).size(64 << 20).join()?;
        let ours = Domain::builder(&connects).size(64 << 20).private()?;
        let told = |name| -> std::result::Result<Told, Box<dyn std::error::Error>> {
            let options = ChannelOptions::unnamed().units(64);
            let kept = name == CHANNELS[1];
            let channel =
                offering.make_channel(&if kept { options.reliable() } else { options })?;
            let options = OfferOptions::default()
                .lagging(Lagging::Wait)
                .most_clients(4);
            let offered = channel.offer(name, &Permissions::own_user(), options)?;
            let other = Domain::builder(&offers);
            let followed = ours.follow(&other, name, ConnectOptions::default())?;
            Ok(Told {
                writer: channel.bind_writer()?,
                offered,
                reader: followed.channel().bind_reader(ReaderOptions::default())?,
                followed,
                _channel: channel,
            })
        };
        Ok(Self {
            told: [told(CHANNELS[0])?, told(CHANNELS[1])?],
            address: address(&offers),
            host: socket::listen(&address(&hosts), 16)?,
            hosted: hosts,
            ours,
            _offering: offering,
        })
    }
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

impl Told {
    /// Writes some, as far as there is room, while the honest follower reads.
    fn tell(&mut self, count: usize) {
        for _ in 0..count {
            // It is full while a stranger is waited for.
            let _ = self.writer.write(&NEWS, Deadline::NOW);
        }
        while self.hears(Deadline::NOW) {}
    }

    /// Whether the honest follower hears something by then; and that it is what was written.
    fn hears(&mut self, deadline: Deadline) -> bool {
        match self.reader.receive(deadline) {
            Ok(news) => assert_eq!(*news, NEWS),
            Err(ReadError::TimedOut) => return false,
            Err(ReadError::Missed(_)) => {}
            Err(error) => panic!("the honest follower: {error}"),
        }
        true
    }

    /// An honest follower is still served.
    fn tells_others(&mut self) {
        until("a connection does not end", || self.offered.clients() == 1);
        self.offered.take_violations();
        while self.hears(Deadline::NOW) {}
        if let Err(error) = self.writer.write(&NEWS, long()) {
            panic!("nobody is waited for, and the writer: {error}");
        }
        assert!(self.hears(long()), "what was written is not heard");
        assert!(self.followed.is_live());
    }
}

impl Place {
    fn connect(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let which = usize::from(u.arbitrary::<bool>()?);
        let name = CHANNELS[which];
        let Some(socket) = accepted(&self.address, OfferKind::Channel, name) else {
            return Ok(());
        };
        let connected = follower(u, socket, &mut self.told[which]);
        self.told[which].tells_others();
        connected
    }

    /// Offers a channel, to a following side that keeps to the rules.
    fn host(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (there, back) = (ring_bytes(u)?, ring_bytes(u)?);
        let granted = Granted {
            synchronous: u.arbitrary()?,
            most: u.int_in_range(0..=4000)?,
            there,
            back,
            window: 0,
            shares: false,
            port: 0,
            secret: [0; 16],
        };
        let answer = Answer::Granted(granted).encode();
        let bytes = connection_bytes(there, back).unwrap_or(0);
        let (shown, process) = (descriptor(u, bytes)?, process(u)?);
        let form = form(u)?;
        let before = ports(&self.ours);
        let (ours, hosted, listener) = (&self.ours, &self.hosted, &self.host);
        thread::scope(|scope| {
            let options = ConnectOptions::default().most_bytes(MOST).deadline(long());
            let following =
                scope.spawn(move || ours.follow(&Domain::builder(hosted), "any", options));
            let socket = welcome(listener);
            let fds: Vec<_> = shown.iter().chain(&process).map(AsFd::as_fd).collect();
            let told = socket::send_by(&socket, &answer, &fds, by());
            let mut stranger = match (shown, told) {
                (Some(memory), Ok(())) => Some(Stranger::new(socket, memory, [there, back], 1)),
                _ => None,
            };
            match (&mut stranger, form) {
                (Some(stranger), Some(form)) => {
                    stranger.write(&form);
                    stranger.wake();
                }
                // It says nothing of its channel, and goes.
                _ => stranger = None,
            }
            let followed = match following.join() {
                Ok(followed) => followed,
                Err(_) => panic!("following panicked"),
            };
            let (Ok(followed), Some(mut stranger)) = (followed, stranger) else {
                return Ok(());
            };
            // Or else what comes for it waits.
            let reader = followed.channel().bind_reader(ReaderOptions::default());
            let done = stranger.go_on(u, Stranger::write_news);
            drop(stranger);
            hear_all(&followed, reader.ok(), granted.most);
            drop(followed);
            until("something is left of a connection", || {
                ports(ours) == before
            });
            done
        })
    }
}

/// Ports and segments of a domain.
fn ports(domain: &Domain) -> usize {
    domain
        .survey()
        .map_or(usize::MAX, |survey| survey.ports.len())
}

/// Reads what has come, until the connection is over.
fn hear_all(followed: &Followed, mut reader: Option<Reader>, most: u64) {
    until("a connection to a process that has gone goes on", || {
        let over = !followed.is_live();
        while let Some(reader) = &mut reader {
            match reader.receive(Deadline::NOW) {
                Ok(news) => assert!(news.len() as u64 <= most),
                Err(ReadError::Missed(_)) => {}
                Err(_) => break,
            }
        }
        over
    });
    let skipped = followed.take_skipped();
    assert!(skipped.is_sorted_by_key(|skipped| skipped.before));
    assert!(skipped.iter().all(|skipped| skipped.units > 0));
}

/// What a channel is like, or almost; or nothing.
fn form(u: &mut Unstructured<'_>) -> Result<Option<Vec<u8>>> {
    let (mut unit, mut units) = (64 << u.int_in_range(0..=5)?, 4 << u.int_in_range(0..=5)?);
    if u.ratio(1, 8)? {
        unit = u.arbitrary()?;
    }
    if u.ratio(1, 8)? {
        units = u.arbitrary()?;
    }
    let form = Form {
        reliable: u.arbitrary()?,
        unit,
        units,
        content: u.arbitrary()?,
    };
    let mut bytes = form.encode().to_vec();
    if u.ratio(1, 16)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    Ok((!u.ratio(1, 16)?).then_some(bytes))
}

/// Asks to be told, and takes what it is told as no library does.
fn follower(u: &mut Unstructured<'_>, socket: OwnedFd, told: &mut Told) -> Result<()> {
    let ask = Ask {
        sealed: u.ratio(1, 8)?,
        most: u.arbitrary()?,
        there: u.arbitrary()?,
        named: Default::default(),
    };
    let mut ask = ask.encode();
    if u.ratio(1, 8)? {
        ask[u.choose_index(ask.len())?] = u.arbitrary()?;
    }
    let _ = socket::send_by(&socket, &ask, &[], by());
    let mut answer = [0; Answer::BYTES];
    let received = socket::receive_by(&socket, &mut answer, DESCRIPTORS, by());
    let Ok(received) = received else {
        return Ok(());
    };
    let Ok(Answer::Granted(granted)) = Answer::decode(&answer[..received.len]) else {
        return Ok(());
    };
    let Ok([memory, _]) = <[_; DESCRIPTORS]>::try_from(received.fds) else {
        panic!("let in without memory, or without a process");
    };
    let mut stranger = Stranger::new(socket, memory, [granted.there, granted.back], 0);
    stranger.go_on(u, |stranger, u| {
        told.tell(u.int_in_range(0..=100)?);
        if u.ratio(1, 4)? {
            return stranger.write_message(u);
        }
        stranger.take();
        Ok(())
    })
}
