//! Strangers and half-open connections at a TCP listener, without TLS.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_abi::preface::{Carries, PREFACE_MAGIC, PREFACE_VERSION, Preface};
use portolan_sys::process::poll;
use portolan_testkit::PATIENCE;
use portolan_transport::clock::ManualClock;
use portolan_transport::{
    Address, Blame, Connection, HANDSHAKE_WITHIN, Listener, MOST_HALF_OPEN_EACH, State, Tcp,
    Transport, TransportError,
};

fn listening(transport: &Tcp) -> (Box<dyn Listener>, SocketAddr) {
    let any = Address::Internet("127.0.0.1:0".parse().unwrap());
    let listener = transport.listen(&any).unwrap();
    let Address::Internet(address) = listener.address() else {
        panic!("no internet address");
    };
    (listener, address)
}

/// What a listener does next.
fn next(listener: &mut dyn Listener) -> Result<Box<dyn Connection>, TransportError> {
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "the listener does nothing");
        match listener.accept() {
            Ok(Some(link)) => return Ok(link),
            Err(TransportError::Refused { reason, .. }) => return Err(*reason),
            Err(other) => return Err(other),
            Ok(None) => {}
        }
        let by = Instant::now() + Duration::from_millis(20);
        poll(&[listener.descriptor()], Some(by)).unwrap();
    }
}

/// Lets the listener take what has come, which is nothing whole.
fn settle(listener: &mut dyn Listener) {
    let by = Instant::now() + Duration::from_millis(50);
    poll(&[listener.descriptor()], Some(by)).unwrap();
    assert!(listener.accept().unwrap().is_none());
}

fn preface(carries: Carries, link: u8) -> Preface {
    Preface {
        magic: PREFACE_MAGIC,
        version: PREFACE_VERSION,
        carries,
        link: [link; 16],
    }
}

#[test]
fn a_client_that_says_nothing_is_dropped_at_its_time() {
    let clock = Arc::new(ManualClock::default());
    let (mut listener, address) = listening(&Tcp::new(clock.clone()));
    assert_eq!(listener.wake_at(), None);
    let mut silent = TcpStream::connect(address).unwrap();
    // And one that says half of it; and a whole one whose other half does not come.
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&preface(Carries::Records, 1).encode()[..20])
        .unwrap();
    let mut alone = TcpStream::connect(address).unwrap();
    alone
        .write_all(&preface(Carries::Records, 2).encode())
        .unwrap();
    settle(&mut *listener);
    settle(&mut *listener);
    assert_eq!(listener.wake_at(), Some(HANDSHAKE_WITHIN));
    clock.advance(HANDSHAKE_WITHIN - Duration::from_nanos(1));
    assert!(listener.accept().unwrap().is_none());
    clock.advance(Duration::from_nanos(1));
    for _ in 0..3 {
        let refused = next(&mut *listener).unwrap_err();
        let seconds = HANDSHAKE_WITHIN.as_secs();
        assert_eq!(refused, TransportError::HandshakeTimedOut { seconds });
    }
    assert_eq!(listener.wake_at(), None);
    for socket in [&mut silent, &mut half, &mut alone] {
        let mut rest = Vec::new();
        // The end, or a reset because not all was read.
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}

#[test]
fn a_crowd_from_one_address_is_bounded_and_passes() {
    let clock = Arc::new(ManualClock::default());
    let transport = Tcp::new(clock.clone());
    let (mut listener, address) = listening(&transport);
    let crowd: Vec<_> = (0..MOST_HALF_OPEN_EACH)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    settle(&mut *listener);
    let _late = TcpStream::connect(address).unwrap();
    let refused = next(&mut *listener).unwrap_err();
    let expected = TransportError::TooManyHalfOpen {
        count: MOST_HALF_OPEN_EACH,
        whose: "this address",
        most: MOST_HALF_OPEN_EACH,
    };
    assert_eq!(refused, expected);
    drop(crowd);
    for _ in 0..MOST_HALF_OPEN_EACH {
        let refused = next(&mut *listener).unwrap_err();
        assert_eq!(refused, TransportError::Truncated);
    }
    let mut client = transport.connect(&listener.address()).unwrap();
    assert!(next(&mut *listener).is_ok());
    let end = Instant::now() + PATIENCE;
    while client.progress() != State::Up {
        assert!(Instant::now() < end, "the link is not up");
    }
}

#[test]
fn strangers_are_refused_for_what_they_say() {
    let (mut listener, address) = listening(&Tcp::default());
    let refused = |listener: &mut Box<dyn Listener>, bytes: &[u8]| {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(bytes).unwrap();
        let why = next(&mut **listener).unwrap_err();
        assert_eq!(why.blame(), Blame::Peer);
        why
    };
    let other = Preface {
        version: 7,
        ..preface(Carries::Records, 1)
    };
    let expected = TransportError::OtherVersion {
        theirs: 7,
        ours: PREFACE_VERSION,
    };
    assert_eq!(refused(&mut listener, &other.encode()), expected);
    // Another version, which lays out all the rest otherwise.
    let mut bytes = other.encode();
    bytes[8..].fill(0xff);
    assert_eq!(refused(&mut listener, &bytes), expected);
    for garbage in [
        [0; 32],
        [0xff; 32],
        *b"GET / HTTP/1.1\r\nHost: portolan\r\n",
    ] {
        let why = refused(&mut listener, &garbage);
        assert!(matches!(why, TransportError::NotPortolan { .. }), "{why}");
    }
    let mut reserved = preface(Carries::Only, 1).encode();
    reserved[9] = 1;
    let why = refused(&mut listener, &reserved);
    assert!(matches!(why, TransportError::NotPortolan { .. }), "{why}");
}

#[test]
fn a_server_that_does_not_answer_or_says_something_else_fails_the_link() {
    let clock = Arc::new(ManualClock::default());
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Internet(mute.local_addr().unwrap());
    let transport = Tcp::new(clock.clone());
    let mut client = transport.connect(&address).unwrap();
    let accepted = [mute.accept().unwrap(), mute.accept().unwrap()];
    assert_eq!(client.progress(), State::Connecting);
    assert_eq!(client.wake_at(), Some(HANDSHAKE_WITHIN));
    clock.advance(HANDSHAKE_WITHIN);
    assert_eq!(client.progress(), State::Failed);
    let seconds = HANDSHAKE_WITHIN.as_secs();
    let expected = TransportError::HandshakeTimedOut { seconds };
    assert_eq!(client.failure(), Some(&expected));
    drop(accepted);
    let mut client = transport.connect(&address).unwrap();
    let (mut liar, _) = mute.accept().unwrap();
    liar.write_all(&preface(Carries::Records, 9).encode())
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while client.progress() != State::Failed {
        assert!(Instant::now() < end, "a liar is believed");
    }
    let failure = client.failure().unwrap();
    assert!(
        matches!(failure, TransportError::NotPortolan { .. }),
        "{failure}"
    );
}

#[test]
fn addresses_that_cannot_be_had_are_named() {
    let transport = Tcp::default();
    let (listener, address) = listening(&transport);
    let taken = transport.listen(&listener.address()).map(drop).unwrap_err();
    assert!(
        matches!(&taken, TransportError::CannotListen { address: a, .. } if *a == address.into()),
        "{taken}"
    );
    let named = transport
        .connect(&Address::named("hall"))
        .map(drop)
        .unwrap_err();
    assert_eq!(named.blame(), Blame::Caller);
    drop(listener);
    // Nobody listens there any more.
    let failure = match transport.connect(&address.into()) {
        Err(why) => why,
        Ok(mut client) => {
            let end = Instant::now() + PATIENCE;
            while client.progress() != State::Failed {
                assert!(Instant::now() < end, "nobody answers, and nobody says so");
                poll(
                    &[client.descriptor().as_fd()],
                    Some(Instant::now() + Duration::from_millis(20)),
                )
                .unwrap();
            }
            client.failure().unwrap().clone()
        }
    };
    assert!(
        matches!(&failure, TransportError::CannotConnect { address: a, .. } if *a == address.into()),
        "{failure}"
    );
}

#[test]
fn a_listener_goes_on_with_the_socket_of_another_and_its_backlog() {
    let transport = Tcp::default();
    let (old, address) = listening(&transport);
    let socket = old.socket().unwrap().try_clone_to_owned().unwrap();
    // A client comes while nobody accepts.
    let mut client = transport.connect(&Address::Internet(address)).unwrap();
    drop(old);
    let mut new = transport.listen_on(socket).unwrap();
    assert_eq!(new.address(), Address::Internet(address));
    let end = std::time::Instant::now() + portolan_testkit::PATIENCE;
    let server = loop {
        client.progress();
        if let Ok(Some(server)) = new.accept() {
            break server;
        }
        assert!(
            std::time::Instant::now() < end,
            "the client is not accepted"
        );
        std::thread::sleep(Duration::from_millis(1));
    };
    drop(server);
}
