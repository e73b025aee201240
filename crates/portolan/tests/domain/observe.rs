//! Looking into a domain without being in it.

use crate::child::{Child, unique, until};
use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{
    Access, Deadline, Domain, Holder, JoinError, Message, PortOptions, Protection, SegmentKind,
    WhenFull,
};
use std::time::Duration;

#[test]
fn what_is_not_there_is_not_made() {
    let name = unique("absent");
    for _ in 0..2 {
        let refused = Domain::builder(&name).observe().unwrap_err();
        assert!(matches!(refused, JoinError::NotRunning { .. }), "{refused}");
        assert!(refused.to_string().contains(&name), "{refused}");
    }
}

#[test]
fn an_observer_takes_no_space_and_keeps_nobody_alive() {
    let name = unique("observed");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let observer = Domain::builder(&name).observe().unwrap();
    let pids = |observer: &portolan::Observer| -> Vec<u32> {
        let survey = observer.survey().unwrap();
        survey.spaces.iter().map(|space| space.pid).collect()
    };
    assert_eq!(pids(&observer), [host.pid(), second.pid()]);
    // The host may die under it: it goes on to see.
    host.kill();
    until("the second hosts", || second.is_host());
    until("the first is returned", || {
        pids(&observer) == [second.pid()]
    });
    assert_eq!(observer.survey().unwrap().takeovers, 1);
    assert_eq!(second.ask("leave"), "Ok(())");
    // The process that was in it lives on; the domain does not, and can be made anew.
    assert!(matches!(observer.survey(), Err(JoinError::Ended { .. })));
    let mut anew = Child::joined(&name);
    assert!(anew.is_host());
    assert!(matches!(observer.survey(), Err(JoinError::Ended { .. })));
    assert_eq!(
        pids(&Domain::builder(&name).observe().unwrap()),
        [anew.pid()]
    );
}

#[test]
fn a_domain_whose_last_process_is_killed_is_over() {
    let name = unique("over");
    let mut only = Child::joined(&name);
    let observer = Domain::builder(&name).observe().unwrap();
    observer.survey().unwrap();
    only.kill();
    assert!(matches!(observer.survey(), Err(JoinError::Ended { .. })));
    let again = Domain::builder(&name).observe();
    assert!(
        matches!(again, Err(JoinError::NotRunning { .. })),
        "{again:?}"
    );
}

#[test]
fn an_observer_is_told_of_a_stopped_host_and_of_a_bad_name() {
    let name = unique("stopped");
    let host = Child::joined(&name);
    host.stop();
    let builder = Domain::builder(&name).deadline(Duration::from_millis(300));
    let late = builder.observe().unwrap_err();
    assert!(matches!(late, JoinError::TimedOut { .. }), "{late}");
    let bad = Domain::builder("a/b").observe().unwrap_err();
    assert!(matches!(bad, JoinError::BadName { .. }), "{bad}");
}

#[test]
fn waiters_are_seen_where_they_wait() {
    let name = unique("waiters");
    let domain = Domain::join(&name).unwrap();
    let observer = Domain::builder(&name).observe().unwrap();
    let mut sleepy = domain.bind(PortOptions::named("sleepy")).unwrap();
    let mut eager = domain.bind(PortOptions::named("eager")).unwrap();
    let crowded = domain.bind(PortOptions::named("crowded").queue(2)).unwrap();
    sleepy.set_waiting(portolan::Waiting::Sleep);
    eager.set_waiting(portolan::Waiting::Poll);
    let (to_sleepy, to_eager, to_crowded) =
        (sleepy.make_send(), eager.make_send(), crowded.make_send());
    let message = || Message::new(b"").unwrap();
    while to_crowded.send(message(), WhenFull::Fail).is_ok() {}
    let port = |name: &str| {
        let survey = observer.survey().unwrap();
        let mut ports = survey.ports.into_iter();
        ports
            .find(|port| port.name.as_deref() == Some(name))
            .unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| sleepy.receive(Access::Later, Deadline::NEVER).unwrap());
        scope.spawn(|| eager.receive(Access::Later, Deadline::NEVER).unwrap());
        scope.spawn(|| to_crowded.send(message(), Deadline::NEVER).unwrap_err());
        until("one sleeps", || port("sleepy").sleeping == 1);
        until("one spins", || port("eager").spinning == 1);
        until("one waits for room", || port("crowded").awaiting_room == 1);
        let survey = observer.survey().unwrap();
        let space = &survey.spaces[0];
        let waits = (space.spinning, space.sleeping, space.awaiting_room);
        assert_eq!(waits, (1, 1, 1));
        assert!(port("sleepy").armed && !port("eager").armed);
        assert!(space.full >= 2, "{space:?}");
        to_sleepy.send(message(), WhenFull::Fail).unwrap();
        to_eager.send(message(), WhenFull::Fail).unwrap();
        drop(crowded);
    });
}

#[test]
fn extents_are_counted_by_holder_size_and_age() {
    let name = unique("holdings");
    let domain = Domain::join(&name).unwrap();
    let observer = Domain::builder(&name).observe().unwrap();
    let port = domain.bind(PortOptions::named("frames")).unwrap();
    let kept = [
        domain.allocate(5000).unwrap(),
        domain.allocate(8192).unwrap(),
    ];
    let mut message = Message::new(b"").unwrap();
    message.push(domain.allocate(3 << 20).unwrap()).unwrap();
    port.make_send().send(message, WhenFull::Fail).unwrap();
    let of = |holder: Holder| {
        let survey = observer.survey().unwrap();
        let all = survey.holdings.into_iter();
        let rows: Vec<_> = all.filter(|h| h.holder == holder).collect();
        assert!(
            rows.iter()
                .all(|h| h.by_age.iter().sum::<u64>() == h.extents)
        );
        rows
    };
    let sizes =
        |holder| -> Vec<(u64, u64)> { of(holder).iter().map(|h| (h.size, h.extents)).collect() };
    assert_eq!(sizes(Holder::Space(1)), [(8192, 2)]);
    assert_eq!(sizes(Holder::Queues), [(4 << 20, 1)]);
    let survey = observer.survey().unwrap();
    assert_eq!(survey.memory.queued, 4 << 20);
    assert_eq!(survey.memory.used, (4 << 20) + 2 * 8192);
    until("they are a second old", || {
        of(Holder::Space(1))[0].oldest >= Duration::from_secs(1)
    });
    assert_eq!(of(Holder::Space(1))[0].by_age[0], 0);
    drop(kept);
    assert_eq!(sizes(Holder::Space(1)), []);
}

#[test]
fn bytes_are_counted_where_they_are_taken() {
    let name = unique("bytes");
    let domain = Domain::join(&name).unwrap();
    let observer = Domain::builder(&name).observe().unwrap();
    let mut port = domain.bind(PortOptions::named("frames")).unwrap();
    let right = port.make_send();
    for len in [10_000, 0, 7] {
        let mut message = Message::new(b"header").unwrap();
        if len > 0 {
            message.push(domain.allocate(len).unwrap()).unwrap();
        }
        right.send(message, WhenFull::Fail).unwrap();
        drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    }
    let survey = observer.survey().unwrap();
    let (space, port) = (&survey.spaces[0], &survey.ports[0]);
    assert_eq!((space.sent, space.sent_bytes), (3, 10_007));
    assert_eq!((port.taken, port.taken_bytes), (3, 10_007));
}

#[test]
fn channels_are_told_from_memory_also_where_pages_are_closed() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let name = unique("channels");
        let builder = Domain::builder(&name).protection(protection);
        let domain = builder.join().unwrap();
        let observer = Domain::builder(&name).observe().unwrap();
        let options = ChannelOptions::named("ticks").units(16).reliable();
        let channel = domain.make_channel(&options).unwrap();
        let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
        let mut writer = channel.bind_writer().unwrap();
        for _ in 0..5 {
            writer.write(b"tick", Deadline::NOW).unwrap();
        }
        reader.receive(Deadline::NOW).unwrap();
        let _plain = domain.make_segment(Some("plain"), 4096).unwrap();
        let survey = observer.survey().unwrap();
        assert_eq!((survey.memory.queued, survey.memory.shared), (0, 8192));
        assert!(survey.holdings.iter().all(|h| h.holder == Holder::Segments));
        let kinds: Vec<_> = survey.segments.iter().map(|s| s.kind).collect();
        assert_eq!(kinds, [SegmentKind::Channel, SegmentKind::Plain]);
        let seen = survey.segments[0].channel.as_ref().unwrap();
        assert_eq!((seen.written, seen.writer), (5, Some(domain.space())));
        let behind: Vec<u64> = seen.readers.iter().map(|r| r.behind).collect();
        assert_eq!(behind, [4]);
        // As a member sees it, too.
        assert_eq!(domain.survey().unwrap().segments, survey.segments);
        // Freed memory has no owner.
        drop((channel, reader, writer));
        let survey = observer.survey().unwrap();
        assert_eq!((survey.memory.shared, survey.segments.len()), (4096, 1));
    }
}
