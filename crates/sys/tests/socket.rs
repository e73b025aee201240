//! Sockets: addresses, messages with descriptors, peers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use portolan_sys::process::{EventFd, PidFd, comm};
use portolan_sys::socket::{self, Address, SocketError};
use portolan_testkit::{is_alone, until};
use rustix::io::{FdFlags, fcntl_getfd};

/// A deadline that comes soon; the tests do not measure how soon.
fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

fn name(test: &str) -> Address {
    // With a zero byte and one that is no UTF-8, as a name may have.
    let mut name = format!("portolan-{test}-{}", std::process::id()).into_bytes();
    name.extend([0, 0xff, b'!']);
    Address::Abstract(name)
}

fn path(test: &str) -> Address {
    let file = format!("portolan-{test}-{}.sock", std::process::id());
    Address::Path(std::env::temp_dir().join(file))
}

#[test]
fn a_name_has_one_listener_which_can_be_named() {
    for address in [name("one"), path("one")] {
        let listener = socket::listen(&address, 1).unwrap();
        let second = socket::listen(&address, 1);
        assert!(
            matches!(second, Err(SocketError::AddressInUse { .. })),
            "{second:?}"
        );
        let holder = socket::holder(&address).unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(Some(holder.comm), comm(std::process::id()));
        assert_eq!(holder.user, Some(portolan_sys::process::user()));
        assert!(!holder.stopped && socket::occupant(&address).unwrap().listens);
        drop(listener);
        // A process that another test starts has it until it runs its program.
        until("nobody listens", || socket::holder(&address).is_none());
        assert_eq!(socket::occupant(&address), None);
        remove(&address);
    }
}

#[test]
fn nobody_listening_is_refused_and_nothing_there_is_not_found() {
    let refused = socket::connect(&name("nobody"));
    assert!(
        matches!(refused, Err(SocketError::Refused { .. })),
        "{refused:?}"
    );
    let address = path("nobody");
    let missing = socket::connect(&address);
    assert!(
        matches!(missing, Err(SocketError::NotFound { .. })),
        "{missing:?}"
    );
    drop(socket::listen(&address, 1).unwrap());
    let dead = socket::connect(&address);
    assert!(matches!(dead, Err(SocketError::Refused { .. })), "{dead:?}");
    remove(&address);
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let long = Address::Abstract(vec![b'x'; 108]);
    assert!(matches!(
        socket::connect(&long),
        Err(SocketError::BadAddress { len: 108, .. })
    ));
    let fits = Address::Abstract(vec![b'x'; 107]);
    assert!(matches!(
        socket::connect(&fits),
        Err(SocketError::Refused { .. })
    ));
    let nowhere = Address::Path("/no/such/directory/socket".into());
    assert!(matches!(
        socket::listen(&nowhere, 1),
        Err(SocketError::NotFound { .. })
    ));
}

#[test]
fn a_full_backlog_is_waited_for_until_the_deadline() {
    let address = name("backlog");
    let listener = socket::listen(&address, 1).unwrap();
    let mut clients = Vec::new();
    let full = loop {
        match socket::connect_by(&address, soon()) {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
        assert!(clients.len() < 10, "the backlog has no end");
    };
    assert!(matches!(full, SocketError::BacklogFull { .. }), "{full:?}");
    // A waiting client gets in as soon as there is room.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| socket::connect(&address));
        let accepted: Vec<_> = (0..=clients.len())
            .map(|_| socket::accept(&listener).unwrap())
            .collect();
        waiting.join().unwrap().unwrap();
        drop(accepted);
    });
    assert!(matches!(
        socket::accept_by(&listener, soon()),
        Err(SocketError::TimedOut)
    ));
    assert!(socket::try_accept(&listener).unwrap().is_none());
}

/// So many descriptors of new event counters.
fn events(count: usize) -> Vec<EventFd> {
    (0..count).map(|_| EventFd::new().unwrap()).collect()
}

fn borrow(events: &[EventFd]) -> Vec<BorrowedFd<'_>> {
    events.iter().map(AsFd::as_fd).collect()
}

#[test]
fn descriptors_travel_and_close_on_exec() {
    let (ours, theirs) = socket::pair().unwrap();
    let sent = events(3);
    socket::send(&ours, b"three", &borrow(&sent)).unwrap();
    let mut buffer = [0; 16];
    let received = socket::receive(&theirs, &mut buffer, 3).unwrap();
    assert_eq!(&buffer[..received.len], b"three");
    assert!(!received.truncated);
    assert_eq!(received.fds.len(), 3);
    for (fd, sent) in received.fds.into_iter().zip(&sent) {
        assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        EventFd::from(fd).notify().unwrap();
        assert_eq!(sent.drain().unwrap(), 1);
    }
}

#[test]
fn no_more_descriptors_come_than_there_is_room_for() {
    let (ours, theirs) = socket::pair().unwrap();
    let sent = events(4);
    let mut buffer = [0; 16];
    for room in 0..4 {
        socket::send(&ours, b"four", &borrow(&sent)).unwrap();
        let received = socket::receive(&theirs, &mut buffer, room).unwrap();
        assert_eq!((received.fds.len(), received.truncated), (room, true));
    }
    let many = events(1);
    let many: Vec<_> = std::iter::repeat_n(many[0].as_fd(), 253).collect();
    socket::send(&ours, b"most", &many).unwrap();
    assert_eq!(
        socket::receive(&theirs, &mut buffer, 300)
            .unwrap()
            .fds
            .len(),
        253
    );
    let more: Vec<_> = std::iter::repeat_n(sent[0].as_fd(), 254).collect();
    let refused = socket::send(&ours, b"more", &more);
    assert!(matches!(
        refused,
        Err(SocketError::TooManyDescriptors { count: 254, .. })
    ));
}

#[test]
fn a_socket_that_refuses_descriptors_gets_none_on_any_kernel() {
    let (ours, theirs) = socket::pair().unwrap();
    let event = events(1);
    // One that was sent before waits, and is closed unseen.
    socket::send(&theirs, b"early", &borrow(&event)).unwrap();
    let refuses = socket::refuse_descriptors(&ours).unwrap();
    let sent = socket::send(&theirs, b"late", &borrow(&event));
    assert_eq!(sent.is_err(), refuses, "{sent:?}");
    if let Err(error) = &sent {
        assert!(
            matches!(error, SocketError::Io { source, .. }
                if source.raw_os_error() == Some(libc::EPERM)),
            "{error:?}"
        );
    }
    let mut buffer = [0; 16];
    for expected in std::iter::once(&b"early"[..]).chain(sent.is_ok().then_some(&b"late"[..])) {
        let received = socket::receive(&ours, &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..received.len], expected);
        assert!(received.fds.is_empty() && received.truncated);
    }
    // The other direction, and messages without descriptors, are as before.
    socket::send(&ours, b"back", &borrow(&event)).unwrap();
    assert_eq!(
        socket::receive(&theirs, &mut buffer, 1).unwrap().fds.len(),
        1
    );
    socket::send(&theirs, b"plain", &[]).unwrap();
    let received = socket::receive(&ours, &mut buffer, 0).unwrap();
    assert!(!received.truncated);
    assert!(socket::refuse_descriptors(std::fs::File::open("/dev/null").unwrap()).is_err());
}

#[test]
fn a_message_comes_whole_or_says_that_it_does_not() {
    let (ours, theirs) = socket::pair().unwrap();
    socket::send(&ours, b"too long", &[]).unwrap();
    socket::send(&ours, b"next", &[]).unwrap();
    let mut buffer = [0; 4];
    let received = socket::receive(&theirs, &mut buffer, 0).unwrap();
    assert_eq!((received.len, received.truncated), (4, true));
    let received = socket::receive(&theirs, &mut buffer, 0).unwrap();
    assert_eq!((received.len, received.truncated), (4, false));
    assert_eq!(&buffer, b"next");
    assert!(matches!(
        socket::send(&ours, b"", &[]),
        Err(SocketError::BadLength { len: 0 })
    ));
    let huge = vec![0; 64 << 20];
    assert!(matches!(
        socket::send(&ours, &huge, &[]),
        Err(SocketError::BadLength { .. })
    ));
}

#[test]
fn waiting_ends_at_the_deadline_or_with_the_connection() {
    let (ours, theirs) = socket::pair().unwrap();
    let mut buffer = [0; 4];
    let late = socket::receive_by(&ours, &mut buffer, 0, soon());
    assert!(matches!(late, Err(SocketError::TimedOut)));
    assert!(
        socket::try_receive(&ours, &mut buffer, 0)
            .unwrap()
            .is_none()
    );
    let full = loop {
        match socket::send_by(&ours, &[0; 1024], &[], soon()) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SocketError::TimedOut), "{full:?}");
    drop(theirs);
    assert!(matches!(
        socket::send(&ours, b"x", &[]),
        Err(SocketError::Closed)
    ));
    // What a peer with unread messages leaves behind is a reset, then the end.
    assert!(matches!(
        socket::receive(&ours, &mut buffer, 0),
        Err(SocketError::Closed)
    ));
    assert!(matches!(
        socket::receive(&ours, &mut buffer, 0),
        Err(SocketError::Closed)
    ));
}

#[test]
fn what_a_peer_said_before_it_hung_up_is_heard_though_it_has_not_read_all() {
    let (ours, theirs) = socket::pair().unwrap();
    socket::send(&ours, b"may I?", &[]).unwrap();
    socket::send(&theirs, b"no", &[]).unwrap();
    drop(theirs);
    let mut buffer = [0; 8];
    let came = socket::receive(&ours, &mut buffer, 0).unwrap();
    assert_eq!(&buffer[..came.len], b"no");
    assert!(matches!(
        socket::receive(&ours, &mut buffer, 0),
        Err(SocketError::Closed)
    ));
}

#[test]
fn both_ends_know_each_other() {
    let address = name("peer");
    let listener = socket::listen(&address, 1).unwrap();
    let client = socket::connect(&address).unwrap();
    let server = socket::accept(&listener).unwrap();
    for end in [&client, &server] {
        let peer = socket::peer(end).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        let mut groups: Vec<_> = groups();
        groups.sort_unstable();
        let mut found = peer.groups;
        found.sort_unstable();
        assert_eq!(found, groups);
        assert!(!PidFd::of_peer(end).unwrap().is_dead());
    }
    assert!(socket::peer(std::fs::File::open("/dev/null").unwrap()).is_err());
}

fn groups() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .unwrap();
    line.split_whitespace()
        .map(|group| group.parse().unwrap())
        .collect()
}

#[test]
fn running_out_of_descriptors_is_its_own_error() {
    if !is_alone("running_out_of_descriptors_is_its_own_error") {
        return;
    }
    let address = name("exhausted");
    let listener = socket::listen(&address, 4).unwrap();
    let client = socket::connect(&address).unwrap();
    let (ours, theirs) = socket::pair().unwrap();
    let event = EventFd::new().unwrap();
    socket::send(&ours, b"x", &[event.as_fd()]).unwrap();
    let mut filler: Vec<OwnedFd> = Vec::new();
    while let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&event, 0) {
        filler.push(fd);
    }
    let error = socket::accept(&listener).unwrap_err();
    assert!(
        matches!(error, SocketError::DescriptorsExhausted { limit: 1.., .. }),
        "{error:?}"
    );
    assert!(matches!(
        socket::pair(),
        Err(SocketError::DescriptorsExhausted { .. })
    ));
    let received = socket::receive(&theirs, &mut [0; 4], 1);
    assert!(
        matches!(received, Err(SocketError::DescriptorsExhausted { .. })),
        "{received:?}"
    );
    filler.clear();
    // The client was not lost.
    socket::accept(&listener).unwrap();
    drop(client);
}

fn remove(address: &Address) {
    if let Address::Path(path) = address {
        std::fs::remove_file(path).unwrap();
    }
}
