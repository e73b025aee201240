//! Peers that write what no honest peer writes, to channels that are in use: garbage, lengths
//! and positions that cannot be, what was said before, and packets that only look honest.
//! Nothing panics, the hostile client loses its connection, and all others go on.

use super::service::{PATIENCE, TestClient, TestService, Tested, share, until};
use portolan::channel::{Channel, ChannelOptions, Reader, ReaderOptions, Writer};
use portolan::rpc::{
    self, ClientOptions, Closed, RpcError, ServeError, Server, ServerOptions, Service,
};
use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Right, SendRight};
use portolan_abi::channel::{Meta, Shape, Stamp};
use portolan_proto::{
    Call, Client, Flags, Header, Kind, Outcome, PacketPath, Seal, Settings, Status, Time, seal,
};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Outcomes = Result<(), Box<dyn std::error::Error>>;

/// What a client says at a server's port, as any process may write it.
#[derive(Serialize, Deserialize)]
struct Hello {
    service: String,
    session: u64,
    period: Duration,
    moves: bool,
    channels: Presents,
}

#[derive(PartialEq, Serialize, Deserialize)]
enum Presents {
    Own,
    Shared,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome { incarnation: u64 },
}

const MAGIC: u64 = u64::from_le_bytes(*b"portrpc\x02");

/// Panics in the library's own code; those of methods are none.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// From here on they are counted.
fn count_panics() {
    static HOOK: OnceLock<()> = OnceLock::new();
    HOOK.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let at = info.location().map_or("", |at| at.file());
            if at.contains("/src/") || at.starts_with("src/") {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

fn nothing_panicked() {
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "the library panicked");
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap() % end.max(1)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A peer that does what it likes: with the channel in which it is believed to write.
struct Hostile {
    channel: Channel,
    writer: Writer,
    reader: Reader,
    session: u64,
    incarnation: u64,
    _inbox: ReceiveRight,
}

impl PacketPath for Hostile {
    fn position(&self) -> u64 {
        self.writer.position()
    }

    fn send(&mut self, packet: &[u8]) {
        self.writer.write(packet, Deadline::NOW).unwrap();
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        let came = self.reader.receive(Deadline::NOW).ok()?;
        *packet = came.to_vec();
        Some(came.position())
    }
}

fn settings() -> Settings {
    Settings {
        packet: 4096,
        ..Settings::default()
    }
}

fn now() -> Time {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let began = BEGAN.get_or_init(Instant::now);
    Time(1 << 40).after(began.elapsed())
}

fn session() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0xbad << 32);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn hello(session: u64, channels: Presents) -> Vec<u8> {
    let hello = Hello {
        service: TestService::<Tested>::NAME.to_owned(),
        session,
        period: Duration::from_millis(10),
        moves: true,
        channels,
    };
    postcard::to_allocvec(&(MAGIC, hello)).unwrap()
}

/// Presents itself: what came back, and from which server.
fn present(domain: &Domain, hello: &[u8], rights: Vec<Right>) -> (u64, Vec<Right>) {
    let mut message = Message::new(hello).unwrap();
    for right in rights {
        message.attach(right).unwrap();
    }
    let server = domain.connect("test", PATIENCE).unwrap();
    let mut answer = server.request_reply(message, Access::Later, PATIENCE);
    let answer = answer.as_mut().unwrap();
    let (magic, welcome) = postcard::from_bytes::<(u64, Answer)>(answer.header()).unwrap();
    let Answer::Welcome { incarnation } = welcome;
    assert_eq!(magic, MAGIC);
    (incarnation, answer.take_rights())
}

fn channels(domain: &Domain) -> (Channel, Channel) {
    let make = || {
        let options = ChannelOptions::unnamed().units(1024).readers(1);
        domain.make_channel(&options).unwrap()
    };
    (make(), make())
}

/// A hostile client, and the machine of an honest one that stands on its channels.
fn hostile_client(domain: &Domain) -> (Hostile, Client) {
    let (calls, answers) = channels(domain);
    let reader = answers.bind_reader(ReaderOptions::default()).unwrap();
    let inbox = domain.bind(PortOptions::unnamed()).unwrap();
    let session = session();
    let rights = vec![
        calls.clone().into(),
        answers.into(),
        inbox.make_send().into(),
    ];
    let (incarnation, _) = present(domain, &hello(session, Presents::Own), rights);
    let mut client = Client::new(settings(), session);
    client.met(incarnation);
    let hostile = Hostile {
        writer: calls.bind_writer().unwrap(),
        channel: calls,
        reader,
        session,
        incarnation,
        _inbox: inbox,
    };
    (hostile, client)
}

/// The number of a method.
fn id(name: &str) -> u32 {
    let methods = TestService::<Tested>::METHODS;
    methods.iter().find(|m| m.name() == name).unwrap().id()
}

/// Makes an honest call, and waits for its answer.
fn call(hostile: &mut Hostile, client: &mut Client, method: &str, arguments: &[u8]) -> Vec<u8> {
    let mut body = arguments.to_vec();
    let id = client.call(now(), hostile, Call::new(id(method)), &mut body);
    let id = id.unwrap();
    until("it is answered", || {
        client.review(now(), hostile);
        while client.poll(now(), hostile).unwrap() {}
        let outcome = client.take(id, &mut body);
        assert!(matches!(
            outcome,
            None | Some(Outcome::Answered(Status::Returned))
        ));
        outcome.is_some()
    });
    body
}

impl Hostile {
    fn words_at(&self, position: u64) -> &[AtomicU64] {
        let (unit, units) = (self.channel.unit(), self.channel.units());
        let at = Shape::new(unit, units, 1).unwrap().units_at() / 8;
        let at = usize::try_from(at).unwrap();
        let place = usize::try_from(position % units).unwrap() * unit / 8;
        &self.channel.segment().words()[at + place..at + place + unit / 8]
    }

    /// Writes any stamp and header into the next unit, and wakes its reader.
    fn scribble(&mut self, stamp: Stamp, meta: Meta) {
        let words = self.words_at(self.writer.position());
        words[1].store(meta.0, Ordering::Relaxed);
        words[0].store(stamp.0, Ordering::Release);
        // A reader of this space, which gets the wake.
        let mut bell = self.channel.bind_reader(ReaderOptions::default()).unwrap();
        bell.interrupter().interrupt();
    }

    /// A packet with a right checksum.
    fn say(&mut self, header: Header, number: u64, body: &[u8]) {
        let mut packet = Vec::new();
        let key = Seal::new(self.session, self.incarnation);
        let position = self.position();
        seal(&key, position, header, number, body, &mut packet);
        self.send(&packet);
    }
}

fn header(kind: Kind) -> Header {
    Header {
        kind,
        flags: Flags(0),
        what: 0,
        number: 0,
        behind: 0,
        when: if kind == Kind::Call { 0xff_ffff } else { 0 },
    }
}

fn piece(kind: Kind) -> Header {
    Header {
        flags: Flags::PIECE,
        ..header(kind)
    }
}

fn place(offset: u64, total: u64) -> Vec<u8> {
    let mut body = (offset | total << 32).to_le_bytes().to_vec();
    body.extend([0; 8]);
    body
}

const WHOLE: u8 = Meta::FIRST | Meta::LAST | Meta::CLOSED;

type Act = (&'static str, fn(&mut Hostile, &mut Random));

/// After so long a hostile one tries again.
const AGAIN: Duration = Duration::from_secs(2);

/// Does this until it has come of it. All of it may have been overwritten before a busy peer
/// looked.
fn acts_until(
    (what, act): Act,
    done: impl Fn() -> bool,
    (hostile, random): (&mut Hostile, &mut Random),
) {
    act(hostile, random);
    let mut again = Instant::now() + AGAIN;
    until(what, || {
        if Instant::now() > again {
            act(hostile, random);
            again = Instant::now() + AGAIN;
        }
        done()
    });
}

/// What either side can do to the other.
const ACTS: [Act; 7] = [
    ("garbage", |peer, random| {
        for _ in 0..3000 {
            let packet = random.bytes(200);
            peer.send(&packet);
            if packet.len() > 190 {
                // More than a ring at once is lost, and says nothing.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }),
    ("a huge length", |peer, _| {
        let stamp = Stamp::done(peer.position(), 1);
        peer.scribble(stamp, Meta::new(0xff_ffff, WHOLE, 0));
    }),
    ("a length of a little more", |peer, _| {
        let stamp = Stamp::done(peer.position(), 1);
        let more = peer.channel.unit_payload() + 1;
        peer.scribble(stamp, Meta::new(more, WHOLE, 0));
    }),
    ("a position that is another unit's", |peer, _| {
        let stamp = Stamp::done(peer.position() + 3, 1);
        peer.scribble(stamp, Meta::new(9, WHOLE, 0));
    }),
    ("what was said before", |peer, _| {
        let mut packet = Vec::new();
        let key = Seal::new(peer.session, peer.incarnation);
        let (at, call) = (peer.position(), header(Kind::Done));
        seal(&key, at, call, 1, &[], &mut packet);
        for i in 0..3000 {
            peer.send(&packet);
            if i % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }),
    ("an empty question", |peer, _| {
        peer.say(header(Kind::Ask), 0, &[]);
        peer.say(header(Kind::Missing), 1, &[1, 2, 3]);
    }),
    ("asking for pieces that cannot be", |peer, _| {
        let body = [u64::MAX, u64::MAX].map(u64::to_le_bytes).concat();
        peer.say(header(Kind::Missing), 1, &body);
    }),
];

/// What a client can do to a server.
const OF_CLIENTS: [Act; 5] = [
    ("an answer", |peer, _| {
        peer.say(header(Kind::Answer), 1, b"fine");
    }),
    ("a number far ahead", |peer, _| {
        let header = Header {
            behind: u8::MAX,
            ..header(Kind::Call)
        };
        peer.say(header, 1 << 20, b"");
    }),
    ("a piece beyond the end", |peer, _| {
        peer.say(piece(Kind::Call), 2, &place(4096, 4090));
    }),
    ("a call of four gigabytes", |peer, _| {
        peer.say(piece(Kind::Call), 2, &place(0, 0xffff_ffff));
    }),
    ("a piece that is too short to be one", |peer, _| {
        peer.say(piece(Kind::Call), 2, &[1, 2]);
    }),
];

/// What a server can do to a client.
const OF_SERVERS: [Act; 4] = [
    ("a call", |peer, _| {
        peer.say(header(Kind::Call), 1, b"do this");
    }),
    ("a status that there is not", |peer, _| {
        let header = Header {
            what: 99,
            ..header(Kind::Answer)
        };
        peer.say(header, 1, b"");
    }),
    ("that what was not called has arrived", |peer, _| {
        let header = Header {
            when: 5000,
            ..header(Kind::Arrived)
        };
        peer.say(header, 5000, &u64::MAX.to_le_bytes());
    }),
    ("an answer of four gigabytes", |peer, _| {
        peer.say(piece(Kind::Answer), 1, &place(0, 0xffff_ffff));
    }),
];

/// Honest clients, each of its kind, that call all along; no call of theirs fails.
fn among_others(domain: &Domain, act: impl FnOnce(&[TestClient])) {
    let over_channel = ClientOptions::default().over_channel();
    let others = [
        TestClient::connect(domain, "test", PATIENCE).unwrap(),
        TestClient::connect_with(domain, "test", &over_channel, PATIENCE).unwrap(),
        share(domain),
    ];
    let others = others.map(|client| client.within(10 * PATIENCE));
    let done = AtomicBool::new(false);
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for client in &others {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(client.once(number), Ok(0));
                    let bytes = number.to_le_bytes();
                    assert_eq!(client.raw(&bytes), Ok(8));
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        // Also when it fails: the others must end.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&others)));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

fn serve(domain: &Domain) -> Result<Server, ServeError> {
    let options = ServerOptions::default().on_channel();
    rpc::serve(domain, "test", Tested::service(domain), &options)
}

#[test]
fn a_client_that_misbehaves_is_closed_and_no_other() -> Outcomes {
    count_panics();
    let domain = Domain::private()?;
    let server = serve(&domain)?;
    let mut random = Random(0x5eed_0001);
    among_others(&domain, |others| {
        let honest = others.len();
        for (what, act) in ACTS.into_iter().chain(OF_CLIENTS) {
            let (mut hostile, mut client) = hostile_client(&domain);
            // It begins as an honest one: the number is its first call's.
            let number = u64::MAX - random.next() % (1 << 40);
            let argument = postcard::to_allocvec(&number).unwrap();
            assert_eq!(call(&mut hostile, &mut client, "once", &argument), [0]);
            assert_eq!(server.clients(), honest + 1, "{what}");
            acts_until(
                (what, act),
                || server.clients() == honest,
                (&mut hostile, &mut random),
            );
            // And it is told.
            let mut told = None;
            until(what, || {
                told = client.poll(now(), &mut hostile).err();
                told.is_some()
            });
            assert_eq!(told, Some(Closed::Left), "{what}");
            // What it called has run once, whatever it said again.
            let (mut hostile, mut client) = hostile_client(&domain);
            assert_eq!(call(&mut hostile, &mut client, "once", &argument), [1]);
            client.close(&mut hostile);
            until("it has left", || server.clients() == honest);
        }
    });
    nothing_panicked();
    Ok(())
}

/// A port at which no honest server serves; every client is welcome.
fn hostile_server(domain: &Domain, port: &mut ReceiveRight) -> (Hostile, Option<SendRight>) {
    let mut request = port.get_request(Access::Later, PATIENCE).unwrap();
    let header = request.message.header();
    let (_, hello) = postcard::from_bytes::<(u64, Hello)>(header).unwrap();
    let mut rights = request.message.take_rights().into_iter();
    let mut channel = || match rights.next() {
        Some(Right::Segment(segment)) => Channel::try_from(segment).unwrap(),
        other => panic!("{other:?}"),
    };
    let (calls, answers) = (channel(), channel());
    let inbox = domain.bind(PortOptions::unnamed()).unwrap();
    let incarnation = 7;
    let welcome = postcard::to_allocvec(&(MAGIC, Answer::Welcome { incarnation })).unwrap();
    let mut answer = Message::new(&welcome).unwrap();
    answer.attach(inbox.make_send()).unwrap();
    let hostile = Hostile {
        reader: calls.bind_reader(ReaderOptions::default()).unwrap(),
        writer: answers.bind_writer().unwrap(),
        channel: answers,
        session: hello.session,
        incarnation,
        _inbox: inbox,
    };
    let to = match rights.next() {
        Some(Right::Send(to)) => Some(to),
        _ => None,
    };
    request.reply(answer).unwrap();
    (hostile, to)
}

#[test]
fn a_server_that_misbehaves_gives_its_client_an_error_that_says_so() -> Outcomes {
    count_panics();
    let domain = Domain::private()?;
    let _server = serve(&domain)?;
    let mut port = domain.bind(PortOptions::named("hostile").synchronous())?;
    let mut random = Random(0x5eed_0002);
    among_others(&domain, |_| {
        for (what, act) in ACTS.into_iter().chain(OF_SERVERS) {
            std::thread::scope(|scope| {
                let calls = scope.spawn(|| {
                    let client = TestClient::connect(&domain, "hostile", PATIENCE).unwrap();
                    let client = client.within(10 * PATIENCE);
                    [client.pid(), client.pid()]
                });
                let (mut hostile, _to) = hostile_server(&domain, &mut port);
                let came = hostile.reader.receive(PATIENCE);
                assert!(came.is_ok(), "{what}: {came:?}");
                acts_until(
                    (what, act),
                    || calls.is_finished(),
                    (&mut hostile, &mut random),
                );
                for ended in calls.join().unwrap() {
                    let why = ended.clone().err();
                    let says_so = matches!(why, Some(RpcError::Closed(Closed::Misbehaved(_))));
                    assert!(says_so, "{what}: {ended:?}");
                }
            });
        }
    });
    nothing_panicked();
    Ok(())
}

/// A third process with a right on a channel can write anything anywhere in it.
#[test]
fn a_third_one_that_scribbles_costs_one_connection_at_most() -> Outcomes {
    count_panics();
    let domain = Domain::private()?;
    let _server = serve(&domain)?;
    let mut random = Random(0x5eed_0003);
    let over_channel = ClientOptions::default().over_channel();
    among_others(&domain, |_| {
        let mut failed = 0;
        for round in 0..40 {
            let before = names(&domain);
            let client =
                TestClient::connect_with(&domain, "test", &over_channel, PATIENCE).unwrap();
            let channels = names(&domain);
            let channels = channels.iter().filter(|name| !before.contains(name));
            let channels = channels.map(|name| domain.find_segment(name, PATIENCE).unwrap());
            let channels = channels.collect::<Vec<_>>();
            assert_eq!(channels.len(), 2, "for calls, and for answers");
            let done = AtomicBool::new(false);
            let mut random = Random(random.next());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for i in 0.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        let words = channels[random.below(2)].words();
                        // The head, the reader, and the first units; or anywhere.
                        let most = [20, 41, 200, words.len()][random.below(4)];
                        let word = match random.below(5) {
                            0 => random.next(),
                            1 => u64::MAX,
                            2 => Meta::new(0xff_ffff, 0xff, 0).0,
                            3 => Stamp::done(random.next() % 2000, 1).0,
                            _ => random.next() % 64,
                        };
                        words[random.below(most)].store(word, Ordering::Relaxed);
                        if i % 10 == 0 {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    }
                });
                let client = client.within(Duration::from_millis(50));
                let mut failed_before = 0;
                for i in 0..200 {
                    if failed_before == 4 {
                        break;
                    }
                    let bytes = vec![7; 30 * (i % 5)];
                    match client.same(Default::default(), &bytes, "text") {
                        Ok((_, same, text)) => {
                            assert_eq!((same, text), (bytes, "text".to_owned()), "{round}");
                        }
                        // Only the peer is blamed.
                        Err(RpcError::Deadline | RpcError::ServerDied | RpcError::Closed(_)) => {
                            failed_before += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                failed += failed_before;
                done.store(true, Ordering::Relaxed);
            });
        }
        assert!(failed > 0, "it has hit nothing");
    });
    nothing_panicked();
    Ok(())
}

/// Of segments that clients present by name.
fn names(domain: &Domain) -> Vec<String> {
    let survey = domain.survey().unwrap();
    let names = survey.ports.into_iter().filter_map(|port| port.name);
    let ends = |name: &String| name.ends_with(" calls") || name.ends_with(" answers");
    names.filter(|n| n.starts_with("rpc ") && ends(n)).collect()
}

#[test]
fn who_shares_and_misbehaves_is_closed_and_a_channel_that_is_spoiled_is_replaced() -> Outcomes {
    count_panics();
    let domain = Domain::private()?;
    let server = serve(&domain)?;
    let mut random = Random(0x5eed_0004);
    among_others(&domain, |others| {
        let alive = domain.bind(PortOptions::unnamed()).unwrap();
        let session = session();
        let rights = vec![alive.make_send().into()];
        let (_, rights) = present(&domain, &hello(session, Presents::Shared), rights);
        assert_eq!(server.clients(), others.len() + 1);
        let Some(Right::Segment(calls)) = rights.into_iter().next() else {
            panic!("no channel to call on");
        };
        let calls = Channel::try_from(calls).unwrap();
        let mut writer = calls.bind_writer().unwrap();
        // Garbage of no client's, of absent clients, and of its own.
        let mut garbage = |i: u64| {
            let mut packet = random.bytes(300);
            let whose = [random.next(), session, session][usize::try_from(i % 3).unwrap()];
            if let Some(head) = packet
                .first_chunk_mut::<8>()
                .filter(|_| !i.is_multiple_of(4))
            {
                *head = whose.to_le_bytes();
            }
            let _ = writer.write(&packet, PATIENCE);
            if i.is_multiple_of(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        (0..9000).for_each(&mut garbage);
        // What a busy server has not read yet is overwritten: there may have to be more.
        let mut more = 9000..;
        until("it is closed", || {
            let closed = server.clients() == others.len();
            if !closed {
                more.by_ref().take(100).for_each(&mut garbage);
            }
            closed
        });
    });
    // No honest client writes this: the channel is of no use to the clients that share it, and they
    // are told.
    let (first, own) = (
        share(&domain),
        TestClient::connect(&domain, "test", PATIENCE)?,
    );
    let alive = domain.bind(PortOptions::unnamed())?;
    let rights = vec![alive.make_send().into()];
    let (_, rights) = present(&domain, &hello(session(), Presents::Shared), rights);
    let Some(Right::Segment(calls)) = rights.into_iter().next() else {
        panic!("no channel to call on");
    };
    let calls = Channel::try_from(calls)?;
    let mut bell = calls.bind_reader(ReaderOptions::default())?;
    let first = first.within(10 * PATIENCE);
    let units = usize::try_from(Shape::new(1088, 128, 1)?.units_at() / 8)?;
    until("its clients are told", || {
        // Each unit says that it is another one.
        let words = &calls.segment().words()[units..];
        for (at, unit) in (1..).zip(words.chunks_exact(1088 / 8)) {
            unit[0].store(Stamp::done((1 << 40) + at, 1).0, Ordering::Relaxed);
        }
        bell.interrupter().interrupt();
        match first.null() {
            Ok(()) => false,
            Err(RpcError::ServerDied | RpcError::Closed(Closed::Left)) => true,
            Err(other) => panic!("{other}"),
        }
    });
    assert_eq!(own.raw(b"on"), Ok(2));
    // Who connects again has others.
    let again = share(&domain).within(10 * PATIENCE);
    for i in 0..100 {
        assert_eq!(again.add(i, 1), Ok(i + 1));
    }
    assert_eq!(own.raw(b"on"), Ok(2));
    nothing_panicked();
    Ok(())
}
