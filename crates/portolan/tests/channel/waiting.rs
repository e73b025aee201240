//! Waiting for messages: alone, among ports, between processes.

use crate::{PATIENCE, bound, number};
use portolan::channel::{ChannelOptions, ReadError, Reader, Signalling};
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveRight, WaitSet, WaitSetError, Waiting,
    WhenFull,
};
use std::time::Duration;

#[test]
fn readers_and_ports_are_waited_for_together() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let options = ChannelOptions::unnamed().readers(2);
    let channels = [(); 3].map(|()| domain.make_channel(&options).unwrap());
    let mut writers = [0, 1, 2].map(|i: usize| channels[i].bind_writer().unwrap());
    let tokens = [0, 1, 2].map(|i: usize| set.add(bound(&channels[i])).unwrap());
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let port = set.add(port).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    assert!(
        set.get(tokens[0].of::<ReceiveRight>()).is_none() && set.get(port.of::<Reader>()).is_none()
    );
    assert!(set.remove(tokens[0].of::<ReceiveRight>()).is_none());
    assert!(set.remove(port.of::<Reader>()).is_none());
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        set.set_waiting(waiting);
        for round in 0..200 {
            let which = round % 4;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if round % 3 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    match writers.get_mut(which) {
                        Some(writer) => drop(writer.write(b"x", Deadline::NOW).unwrap()),
                        None => right.send(Message::default(), WhenFull::Fail).unwrap(),
                    }
                });
                let ready: Vec<_> = set.wait(PATIENCE).unwrap().collect();
                assert_eq!(
                    ready,
                    [tokens.get(which).map_or(port.any(), |token| token.any())]
                );
            });
            match tokens.get(which) {
                Some(token) => {
                    let reader = set.get_mut(*token).unwrap();
                    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"x");
                }
                None => drop(
                    set.get_mut(port)
                        .unwrap()
                        .receive(Access::Later, Deadline::NOW)
                        .unwrap(),
                ),
            }
            assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        }
    }
    // A writer that leaves is something too.
    let [first, ..] = writers;
    drop(first);
    let ready: Vec<_> = set.wait(PATIENCE).unwrap().collect();
    assert_eq!(ready, [tokens[0]]);
    let mut reader = set.remove(tokens[0]).unwrap();
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::WriterGone));
    // Readers without an entry, without signals, of another domain.
    let _second = bound(&channels[0]);
    let refused = set.add(bound(&channels[0])).unwrap_err();
    assert_eq!(refused.why, WaitSetError::NoEntry);
    let silent = ChannelOptions::unnamed().signal(Signalling::Never);
    let silent = domain.make_channel(&silent).unwrap();
    let refused = set.add(bound(&silent)).unwrap_err();
    assert_eq!(refused.why, WaitSetError::NotSignalled);
    let other = Domain::private().unwrap();
    let other = other.make_channel(&options).unwrap();
    let refused = set.add(bound(&other)).unwrap_err();
    assert!(matches!(refused.why, WaitSetError::OtherDomain { .. }));
}

#[test]
fn two_processes_stream_whatever_way_they_wait() {
    for (waiting, signalling) in [
        (Waiting::Adaptive, Signalling::Message),
        (Waiting::Sleep, Signalling::Message),
        (Waiting::Sleep, Signalling::Bytes(64)),
        (Waiting::Sleep, Signalling::Bytes(192)),
        (Waiting::Sleep, Signalling::Bytes(4096)),
        (Waiting::Adaptive, Signalling::Bytes(4096)),
        (Waiting::Poll, Signalling::Never),
    ] {
        let name = portolan_testkit::unique("channel");
        let domain = Domain::join(&name).unwrap();
        let channel = domain
            .make_channel(
                &ChannelOptions::named("stream")
                    .units(64)
                    .reliable()
                    .signal(signalling),
            )
            .unwrap();
        let mut reader = bound(&channel);
        reader.set_waiting(waiting);
        let mut child = portolan_testkit::spawn("lagging::other", &["write", &name, "stream"]);
        for i in 0..20_000 {
            assert_eq!(number(&reader.receive(PATIENCE).unwrap()), i);
        }
        assert_eq!(reader.receive(PATIENCE), Err(ReadError::WriterGone));
        assert!(child.wait().unwrap().success());
    }
}

/// Each burst is long enough for the writer to do without barriers at its end, and the
/// reader sleeps between them.
#[test]
fn a_reader_that_sleeps_between_bursts_is_woken_by_the_first_message_of_each() {
    for waiting in [Waiting::Sleep, Waiting::Adaptive, Waiting::Poll] {
        let name = portolan_testkit::unique("bursts");
        let domain = Domain::join(&name).unwrap();
        let options = ChannelOptions::named("bursts").units(64).reliable();
        let channel = domain.make_channel(&options).unwrap();
        let back = domain.make_channel(&ChannelOptions::named("back")).unwrap();
        let mut reader = bound(&channel);
        reader.set_waiting(waiting);
        let mut back = back.bind_writer().unwrap();
        let mut child = portolan_testkit::spawn("lagging::other", &["burst", &name, "bursts"]);
        for burst in 0..40u64 {
            for i in 0..800u64 {
                let received = reader.receive(PATIENCE).unwrap();
                assert_eq!(*received, (burst * 800 + i).to_le_bytes());
            }
            // It writes on once it was asked to: we sleep by then, most times.
            back.write(&burst.to_le_bytes(), PATIENCE).unwrap();
        }
        assert_eq!(reader.receive(PATIENCE), Err(ReadError::WriterGone));
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_reader_that_waits_uses_no_processor() {
    let domain = Domain::private().unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let _writer = channel.bind_writer().unwrap();
    let mut reader = bound(&channel);
    let used = || {
        let time = rustix_time();
        Duration::new(
            u64::try_from(time.tv_sec).unwrap(),
            u32::try_from(time.tv_nsec).unwrap(),
        )
    };
    let before = used();
    let deadline = Duration::from_millis(500);
    assert_eq!(reader.receive(deadline), Err(ReadError::TimedOut));
    let spent = used() - before;
    // Not a duration of ours, but of the processor's, and a tenth of what a poll takes.
    assert!(spent < Duration::from_millis(50), "{spent:?}");
}

fn rustix_time() -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY:
    // - `time` is a timespec of ours to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time
}
