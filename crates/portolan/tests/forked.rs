//! A forked child is no member: whatever it does with the handles that it has copies of says
//! so, or does nothing. It does not die of it.

use portolan::channel::{ChannelOptions, ReaderOptions, SubscribeError, TopicOptions};
use portolan::rpc::{self, RpcError};
use portolan::vmmc::{ExportMemory, ExportOptions, ImportError, Notification, Reach, UpdateError};
use portolan::{
    Access, BindError, ConnectOptions, Deadline, Disowned, Domain, ListenerOptions, Message,
    OfferOptions, Permissions, PortOptions, SendError, SignalError, WaitSet, WhenFull,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

#[portolan::service]
trait Sum {
    fn add(&self, a: u64, b: u64) -> u64;
    #[rpc(one_way)]
    fn note(&self, a: u64);
}

struct Adds;

impl Sum for Adds {
    fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn note(&self, _: u64) {}
}

/// Runs `act` in a forked child, which it must survive.
fn in_child(what: &str, act: impl FnOnce()) {
    // SAFETY:
    // - The child calls what this test is about, and ends without returning.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY:
        // - Takes no pointers. It ends a child that would wait for ever.
        unsafe { libc::alarm(60) };
        let panicked = catch_unwind(AssertUnwindSafe(act)).is_err();
        // SAFETY:
        // - Takes no pointers.
        unsafe { libc::_exit(i32::from(panicked)) };
    }
    let mut status = 0;
    // SAFETY:
    // - Room for a status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert_eq!(
        status,
        0,
        "{what}: signal {}, code {}",
        status & 0x7f,
        status >> 8
    );
}

/// Ends what a forked child has a copy of; its parent's stays.
fn end<T>(copies: &mut Option<T>) {
    drop(copies.take());
}

const GONE: Disowned = Disowned::Forked;

#[test]
fn a_listener_and_its_memory() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let handler = listener.on(at..at + 64, |_| {}).unwrap();
    let (_, note) = listener.note(at + 64..at + 128).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let seated = domain.listen(ListenerOptions::default()).unwrap();
    let token = set.add(seated).unwrap();
    let mut set = Some(set);
    domain.signal(at).unwrap();
    in_child("polls", || assert_eq!(listener.poll(), 0));
    in_child("waits", || assert_eq!(listener.wait(Deadline::NEVER), None));
    in_child("counts", || {
        assert_eq!((listener.depth(), listener.dropped()), (0, 0));
        assert_eq!(listener.unhandled(), 0);
    });
    in_child("off", || {
        let off = listener.off(handler);
        assert!(matches!(off, Err(SignalError::Disowned(GONE))));
    });
    in_child("takes one out of a set", || {
        let inner = set.as_mut().and_then(|set| set.get_mut(token));
        assert_eq!(inner.unwrap().poll(), 0);
        end(&mut set);
    });
    in_child("writes and reads", || {
        assert_eq!(segment.write_at(0, b"x"), 0);
        assert_eq!(segment.read_at(0, &mut [0]), 0);
        assert!(segment.words().is_empty());
        drop(segment.clone());
    });
    let mut listener = Some(listener);
    in_child("drops", || end(&mut listener));
    // The parent's are what they were.
    assert_eq!(segment.write_at(0, b"x"), 1);
    domain.signal(at + 64).unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while note.count() == 0 {
        assert!(Instant::now() < patience);
        std::thread::yield_now();
    }
}

#[test]
fn a_channel_and_a_topic() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(16))
        .unwrap();
    let writer = channel.bind_writer().unwrap();
    let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let options = TopicOptions::default();
    let publisher = domain.publisher::<u64>("numbers", options).unwrap();
    let mut subscriber = domain.subscriber::<u64>("numbers", options).unwrap();
    in_child("binds", || {
        assert!(channel.bind_reader(ReaderOptions::default()).is_err());
        assert!(channel.bind_writer().is_err());
        assert_eq!(channel.clone().writer(), None);
    });
    in_child("interrupts", || {
        assert!(!reader.has_writer());
        reader.interrupter().interrupt();
    });
    in_child("subscribes", || {
        let nothing = subscriber.receive(Deadline::NOW).err();
        let gone = |e: &SubscribeError| matches!(e, SubscribeError::Disowned(GONE));
        assert!(nothing.as_ref().is_some_and(gone), "{nothing:?}");
    });
    let mut all = Some((channel, writer, reader, publisher, subscriber));
    in_child("drops", || end(&mut all));
    // The parent's are what they were.
    let (_channel, mut writer, mut reader, mut publisher, mut subscriber) = all.unwrap();
    assert!(reader.has_writer());
    writer.write(b"x", Deadline::NOW).unwrap();
    assert_eq!(&reader.receive(Deadline::NOW).unwrap()[..], b"x");
    publisher.publish(&7).unwrap();
    let patience = Duration::from_secs(60);
    assert_eq!(*subscriber.receive(patience).unwrap(), 7);
}

#[test]
fn a_client_and_a_server() {
    let domain = Domain::private().unwrap();
    let server = rpc::serve(&domain, "sums", SumService(Adds), &Default::default()).unwrap();
    let client = SumClient::connect(&domain, "sums", Deadline::NEVER).unwrap();
    assert_eq!(client.add(1, 2), Ok(3));
    let pending = client.begin_add(3, 4).unwrap();
    let gone = RpcError::Disowned(GONE);
    in_child("calls", || assert_eq!(client.add(1, 2), Err(gone.clone())));
    in_child("starts", || {
        assert_eq!(client.begin_add(1, 2).err(), Some(gone.clone()));
    });
    in_child("posts", || {
        assert_eq!(client.note(1), Err(gone.clone()));
        let flushed = client.stub().flush(Deadline::NOW);
        assert_eq!(flushed, Err(gone.clone()));
    });
    let mut pending = Some(pending);
    in_child("waits", || {
        let waited = pending.take().unwrap().wait();
        assert_eq!(waited, Err(gone.clone()));
    });
    in_child("drops a call", || end(&mut pending));
    let (mut server, mut client) = (Some(server), Some(client));
    in_child("drops a server", || end(&mut server));
    in_child("drops a client", || end(&mut client));
    // The parent's are what they were.
    assert_eq!(pending.unwrap().wait(), Ok(7));
    assert_eq!(client.as_ref().unwrap().add(1, 2), Ok(3));
    assert_eq!(server.unwrap().clients(), 1);
}

#[test]
fn what_is_offered_to_other_domains() {
    let name = portolan_testkit::unique("forked");
    let theirs = Domain::join(&name).unwrap();
    let ours = Domain::private().unwrap();
    let permitted = Permissions::own_user();
    let (offer, connect) = (OfferOptions::default, ConnectOptions::default);
    let mut port = theirs.bind(PortOptions::unnamed()).unwrap();
    let offered = port.offer("frames", &permitted, offer()).unwrap();
    let channel = theirs.make_channel(&ChannelOptions::unnamed()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let followable = channel.offer("news", &permitted, offer()).unwrap();
    let other = Domain::builder(&name);
    let right = ours.connect_to(&other, "frames", connect()).unwrap();
    let followed = ours.follow(&other, "news", connect()).unwrap();
    let mut reader = followed
        .channel()
        .bind_reader(ReaderOptions::default())
        .unwrap();
    in_child("sends", || {
        let sent = right.send(Message::new(b"from nobody").unwrap(), WhenFull::Fail);
        let reason = sent.unwrap_err().why;
        assert!(matches!(reason, SendError::Disowned(GONE)), "{reason}");
    });
    in_child("offers, connects and follows", || {
        assert!(port.offer("again", &permitted, offer()).is_err());
        assert!(channel.offer("again", &permitted, offer()).is_err());
        assert!(ours.connect_to(&other, "frames", connect()).is_err());
        assert!(ours.follow(&other, "news", connect()).is_err());
    });
    let mut all = Some((offered, followable, right, followed));
    in_child("drops", || end(&mut all));
    // The parent's are what they were.
    let (offered, followable, right, followed) = all.unwrap();
    let patience = Duration::from_secs(60);
    right
        .send(Message::new(b"from us").unwrap(), WhenFull::Fail)
        .unwrap();
    let came = port
        .receive(Access::Later, Deadline::after(patience))
        .unwrap();
    assert_eq!(came.header(), b"from us");
    writer.write(b"news", Deadline::NOW).unwrap();
    assert_eq!(*reader.receive(patience).unwrap(), *b"news");
    assert!(followed.is_live());
    // Who was refused in the child may not have been seen to leave yet.
    assert!(offered.clients() >= 1 && followable.clients() >= 1);
}

#[test]
fn an_export_that_is_notified_of() {
    let domain = Domain::private().unwrap();
    let memory = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let patience = Duration::from_secs(60);
    let export = domain.export(&memory, "x", &options, patience).unwrap();
    let import = domain.import("x", patience).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(export.notifications().unwrap()).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    import.notify(8, 8).unwrap();
    in_child("imports, and ends the export", || {
        let refused = domain.import("x", Deadline::NOW).err();
        assert!(matches!(refused, Some(ImportError::Disowned(GONE))));
        assert_eq!(import.notify(0, 8), Err(UpdateError::Disowned(GONE)));
    });
    let mut all = Some((set, export));
    in_child("drops", || end(&mut all));
    // The parent's are what they were.
    let (mut set, export) = all.unwrap();
    assert_eq!(set.wait(patience).unwrap().next(), Some(token.any()));
    let notifications = set.get_mut(token).unwrap();
    let note = notifications.wait(Deadline::NOW);
    assert!(matches!(
        note,
        Ok(Notification::Written {
            offset: 8,
            len: 8,
            ..
        })
    ));
    import.write(0, b"written").unwrap();
    export.unexport().unwrap();
    let mut bytes = [0; 7];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
}

#[test]
fn what_reconnects() {
    let domain = Domain::private().unwrap();
    let _port = domain.bind(PortOptions::named("numbers")).unwrap();
    let mut sender = domain.reconnecting_sender("numbers");
    let mut apart = domain.reconnecting_sender("none");
    let sent = sender.send(Message::default(), WhenFull::Fail).unwrap();
    assert_eq!((sent.receiver, sent.lost), (1, None));
    let options = TopicOptions::default();
    let mut subscriber = domain
        .reconnecting_subscriber::<u64>("height", options)
        .unwrap();
    in_child("sends", || {
        for sender in [&mut sender, &mut apart] {
            let refused = sender.send(Message::default(), WhenFull::Fail).unwrap_err();
            assert!(matches!(refused.why, SendError::Disowned(why) if why == GONE));
            assert!(!sender.is_connected());
            assert_eq!(sender.take_lost(), None);
        }
    });
    in_child("subscribes", || {
        let nothing = subscriber.receive(Deadline::NOW);
        assert!(matches!(nothing, Err(SubscribeError::Disowned(why)) if why == GONE));
        assert_eq!(subscriber.live_publishers(), 0);
    });
    in_child("binds", || {
        let refused = domain.bind_when_free(PortOptions::named("numbers"), Deadline::NEVER);
        assert!(matches!(refused, Err(BindError::Disowned(why)) if why == GONE));
    });
    assert_eq!(sender.take_lost(), None);
}
