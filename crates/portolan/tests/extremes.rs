//! Sizes, counts, lengths, places and times that no program means: each public call that takes
//! one gives an error, or does what can be done, and never ends the process.

use portolan::channel::{
    ChannelOptions, ReadError, ReaderOptions, Signalling, Since, TopicOptions, WriteError,
};
use portolan::rpc::{self, ClientOptions, ServerOptions};
use portolan::structure::Structure;
use portolan::vmmc::{
    ExportError, ExportMemory, ExportOptions, ImportOptions, OrdinaryMemory, Reach, UpdateError,
};
use portolan::{
    AllocateError, BindError, ConnectOptions, Deadline, Domain, ListenerOptions, Message,
    OfferOptions, Permissions, PortOptions, TraceOptions, Unsealed, WhenFull,
};
use std::time::{Duration, Instant};

const HALF: usize = usize::MAX / 2 + 1;
/// What no memory has.
const HUGE: [usize; 6] = [
    1 << 44,
    HALF - 1,
    HALF,
    usize::MAX - 4096,
    usize::MAX - 1,
    usize::MAX,
];
const TIMES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(u64::MAX / 2 + 1),
    Duration::MAX,
];

fn domain() -> Domain {
    let limit = 32 << 20;
    Domain::builder("extremes").limit(limit).private().unwrap()
}

#[test]
fn ports() {
    let domain = domain();
    let bind = |messages, inline_bytes| {
        let options = PortOptions::unnamed().queue(messages);
        domain.bind(options.inline_bytes(inline_bytes))
    };
    let fits = |bound: Result<portolan::ReceiveRight, BindError>| match bound {
        Ok(port) => {
            let right = port.make_send();
            right.send(Message::default(), WhenFull::Fail).unwrap();
            true
        }
        Err(BindError::Shape { .. }) => false,
        Err(other) => panic!("{other}"),
    };
    for messages in [0, 65_536, 65_537].into_iter().chain(HUGE) {
        assert!(!fits(bind(messages, 48)), "{messages}");
    }
    for inline_bytes in [497, 512, 513].into_iter().chain(HUGE) {
        assert!(!fits(bind(1, inline_bytes)), "{inline_bytes}");
    }
    for (messages, inline_bytes) in [(1, 0), (1, 1), (1, 496), (65_534, 48), (65_535, 48)] {
        assert!(
            fits(bind(messages, inline_bytes)),
            "{messages}, {inline_bytes}"
        );
    }
    for messages in [65_535, 40_000, usize::MAX, HALF] {
        let bound = domain.bind(PortOptions::unnamed().queue(messages).by_urgency());
        assert_eq!(fits(bound), messages < 65_536, "{messages}");
    }
}

#[test]
fn memory() {
    let domain = domain();
    for bytes in HUGE.into_iter().chain([33 << 20, 1 << 37, (1 << 37) + 1]) {
        let refused = domain.allocate(bytes);
        assert!(
            matches!(refused, Err(AllocateError::OutOfPages { .. })),
            "{bytes}"
        );
        let refused = domain.make_segment(None, bytes);
        assert!(
            matches!(refused, Err(BindError::Allocate(_))),
            "{bytes}: {refused:?}"
        );
    }
    for bytes in HUGE {
        assert!(Unsealed::new(bytes).is_err(), "{bytes}");
        let built = Structure::<u64>::with_capacity(&domain, bytes, |_| Ok(7));
        assert!(built.is_err(), "{bytes}");
    }
    for bytes in [0, 1, 4095, 4096, 4097] {
        assert_eq!(domain.allocate(bytes).unwrap().len(), bytes);
        assert!(domain.make_segment(None, bytes).unwrap().len() >= bytes);
        assert_eq!(Unsealed::new(bytes).unwrap().len(), bytes);
        assert!(Structure::<u64>::with_capacity(&domain, bytes, |_| Ok(7)).is_ok());
    }
    let mut extent = domain.allocate(1).unwrap();
    for len in HUGE.into_iter().chain([4097]) {
        assert_eq!(extent.set_len(len), Err(4096));
    }
    assert_eq!(extent.set_len(4096), Ok(()));
    // A domain that could hold an extent larger than any size of extents.
    let vast = Domain::builder("vast")
        .size(1 << 40)
        .limit(32 << 20)
        .private();
    for bytes in HUGE.into_iter().chain([1 << 38, 1 << 40]) {
        assert!(vast.as_ref().unwrap().allocate(bytes).is_err(), "{bytes}");
    }
}

#[test]
fn domains() {
    for size in [0, (1 << 40) + 1, u64::MAX / 2 + 1, u64::MAX] {
        assert!(
            Domain::builder("size").size(size).private().is_err(),
            "{size}"
        );
    }
    for limit in [0, 1, (2 << 20) - 1] {
        let domain = Domain::builder("limit").limit(limit).private().unwrap();
        assert!(domain.allocate(1).is_err(), "{limit}");
        drop(domain.bind(PortOptions::unnamed()).unwrap());
    }
    for limit in [u64::MAX / 2 + 1, u64::MAX] {
        let domain = Domain::builder("limit").limit(limit).private().unwrap();
        drop(domain.allocate(1).unwrap());
        assert!(domain.survey().unwrap().memory.free > limit / 2);
        assert!(domain.trim().unwrap() > 0);
    }
    for time in TIMES {
        let name = portolan_testkit::unique("deadline");
        // With no time at all it may be too late; with ever so much it is not.
        let joined = Domain::builder(&name).deadline(time).join();
        assert!(
            joined.is_ok() || time < Duration::from_secs(1),
            "{time:?}: {joined:?}"
        );
    }
}

#[test]
fn messages() {
    let domain = domain();
    let mut message = Message::new(&[7; 4096]).unwrap();
    assert!(Message::new(&[7; 4097]).is_err());
    message.push(domain.allocate(100).unwrap()).unwrap();
    for place in HUGE {
        assert!(message.remove(place).is_none());
        assert!(message.split_off(place).is_empty());
        assert!(!message.swap(0, place));
        assert!(message.at(place).is_none() && message.at_mut(place).is_none());
        let refused = message.insert(place, domain.allocate(1).unwrap());
        assert!(refused.is_err() || message.extents().len() == 2, "{place}");
        message.split_off(1);
    }
    assert_eq!(message.extents().len(), 1);
}

#[test]
fn times() {
    let domain = domain();
    let mut port = domain.bind(PortOptions::named("port").queue(1)).unwrap();
    let right = port.make_send();
    for time in TIMES {
        let deadline = Deadline::after(time);
        assert_eq!(
            deadline.has_passed(),
            time.is_zero() || deadline.has_passed()
        );
        right
            .send(Message::default(), WhenFull::Wait(deadline))
            .unwrap();
        assert!(port.receive(Default::default(), time).is_ok());
        assert!(domain.connect("port", time).is_ok());
    }
    let short = Instant::now();
    for time in [Duration::ZERO, Duration::from_nanos(1)] {
        assert!(port.receive(Default::default(), time).is_err());
        assert!(domain.connect("nobody", time).is_err());
        assert!(domain.find_segment("nobody", time).is_err());
    }
    assert!(short.elapsed() < Duration::from_secs(10));
}

#[test]
fn channels() {
    let domain = domain();
    let make = |options: ChannelOptions| domain.make_channel(&options);
    let unnamed = ChannelOptions::unnamed;
    for unit in [0, 1, 63, 65, HALF - 64, usize::MAX - 63]
        .into_iter()
        .chain(HUGE)
    {
        assert!(make(unnamed().unit(unit)).is_err(), "{unit}");
    }
    for units in [0, 1, 3, 1 << 44, u64::MAX / 2 + 1, u64::MAX] {
        assert!(make(unnamed().units(units)).is_err(), "{units}");
        assert!(
            make(unnamed().unit(1 << 20).units(units)).is_err(),
            "{units}"
        );
    }
    for readers in [1 << 20, u64::MAX / 2 + 1, u64::MAX] {
        assert!(make(unnamed().readers(readers)).is_err(), "{readers}");
    }
    for bytes in [0, 1, 63, u32::MAX] {
        let options = unnamed().signal(Signalling::Bytes(bytes));
        assert!(make(options).is_err(), "{bytes}");
    }
    let channel = make(unnamed().units(4).signal(Signalling::Bytes(u32::MAX - 63))).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for len in HUGE {
        let refused = writer.claim(len, Deadline::NOW);
        assert!(matches!(refused, Err(WriteError::TooLong { .. })), "{len}");
    }
    writer.write(b"one", Deadline::NOW).unwrap();
    for last in [0, 1, 5, u64::MAX / 2 + 1, u64::MAX] {
        let options = ReaderOptions::default().since(Since::Last(last));
        let mut reader = channel.bind_reader(options).unwrap();
        let found = reader.receive(Deadline::NOW).map(|message| message.len());
        match last {
            0 => assert!(matches!(found, Err(ReadError::TimedOut)), "{found:?}"),
            _ => assert_eq!(found.unwrap(), 3, "{last}"),
        }
    }
    for time in TIMES {
        let _ = writer.write(b"two", time);
    }
    let _ = writer.into_stream(Duration::MAX);
}

#[test]
fn frames() {
    let domain = domain();
    let options = ChannelOptions::unnamed().raw().unit(64).units(4);
    let channel = domain.make_channel(&options).unwrap();
    let mut writer = channel.bind_frame_writer().unwrap();
    let reader = channel.bind_frame_reader().unwrap();
    for place in [0, 3, 4, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
        writer.put(place, &[7; 100]).unwrap();
        let mut unit = [0; 100];
        let there = reader.get(place, &mut unit).unwrap();
        assert!(there > 0 && unit[..there].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn topics() {
    let domain = domain();
    let defaults = TopicOptions::default;
    for (at, number) in [1 << 44, u64::MAX / 2 + 1, u64::MAX]
        .into_iter()
        .enumerate()
    {
        let bytes = usize::try_from(number).unwrap();
        let publish = |what: &str, options| {
            domain
                .publisher::<[u8]>(&format!("{what}-{at}"), options)
                .and_then(|_| domain.subscriber::<[u8]>(&format!("{what}-{at}"), options))
                .map(drop)
        };
        assert!(
            publish("history", defaults().history(number)).is_err(),
            "{number}"
        );
        assert!(
            publish("copied", defaults().copied(bytes)).is_err(),
            "{number}"
        );
        assert!(
            publish("subscribers", defaults().subscribers(number)).is_err(),
            "{number}"
        );
        let mut publisher = domain
            .publisher::<[u64]>(&format!("t-{at}"), defaults())
            .unwrap();
        assert!(publisher.loan(bytes).is_err());
        let wants = defaults().history(number);
        drop(
            domain
                .subscriber::<[u64]>(&format!("t-{at}"), wants)
                .unwrap(),
        );
    }
    for (at, options) in [
        defaults().publishers(0),
        defaults().publishers(u8::MAX),
        defaults().subscribers(0),
        defaults().history(0),
        defaults().copied(0),
    ]
    .into_iter()
    .enumerate()
    {
        // Whatever it says, it says it.
        if let Ok(mut publisher) = domain.publisher::<[u8]>(&format!("few-{at}"), options) {
            let _ = publisher.publish(&[7; 10]);
            let _ = publisher.publish(&[]);
            assert!(publisher.loan(usize::MAX).is_err());
        }
    }
}

#[test]
fn signals() {
    let domain = domain();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    for depth in [0, 1, 512, 513].into_iter().chain(HUGE) {
        let listener = domain.listen(ListenerOptions::default().depth(depth));
        let mut listener = listener.unwrap();
        let (handler, note) = listener.note(at..at + 64).unwrap();
        domain.signal(at).unwrap();
        drop((handler, note));
    }
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    for address in [0, 1, at - 1].into_iter().chain(HUGE) {
        let end = address.saturating_add(64);
        assert!(listener.on(address..end, |_| {}).is_err(), "{address:#x}");
        assert!(listener.on(at..address, |_| {}).is_err(), "{address:#x}");
        assert!(listener.on(address..address, |_| {}).is_err());
        let _ = domain.signal(address);
    }
    assert!(listener.on(0..usize::MAX, |_| {}).is_err());
    assert!(listener.on(at..usize::MAX, |_| {}).is_err());
}

#[test]
fn exports() {
    let domain = domain();
    for len in HUGE.into_iter().skip(1).chain([0]) {
        assert!(ExportMemory::new(len).is_err(), "{len}");
    }
    // Of so much it has the addresses, and takes memory only where it is touched.
    drop(ExportMemory::new(HUGE[0]));
    assert!(matches!(
        ExportMemory::new(0),
        Err(ExportError::Empty { .. })
    ));
    let memory = ExportMemory::new(8192).unwrap();
    let local = ExportMemory::new(8192).unwrap();
    let anyone = || ExportOptions::new(Reach::ReadWrite);
    for start in HUGE {
        for range in [0..start, start..usize::MAX, start..start, 4096..8193] {
            let export = domain.export(&memory, "export", &anyone().within(range), Deadline::NOW);
            assert!(matches!(export, Err(ExportError::BadRanges { .. })));
        }
    }
    let few = anyone().importers(0);
    drop(domain.export(&memory, "few", &few, Deadline::NEVER));
    let many = anyone().importers(usize::MAX);
    let export = domain
        .export(&memory, "export", &many, Deadline::NEVER)
        .unwrap();
    for most in [0, 8191] {
        let options = ImportOptions::default().at_most(most);
        assert!(
            domain
                .import_with("export", &options, Deadline::after(Duration::MAX))
                .is_err()
        );
    }
    let options = ImportOptions::default().at_most(u64::MAX);
    let import = domain
        .import_with("export", &options, Deadline::NEVER)
        .unwrap();
    let mut bytes = [0; 16];
    for offset in HUGE.into_iter().chain([8192, 8191, 8177]) {
        let bounds = |done: Result<(), UpdateError>| {
            let out = matches!(
                done,
                Err(UpdateError::OutOfBounds { .. } | UpdateError::Misaligned { .. })
            );
            assert!(out, "{offset:#x}: {done:?}");
        };
        bounds(memory.read(offset, &mut bytes));
        bounds(memory.write(offset, &bytes));
        bounds(memory.load_acquire(offset).map(drop));
        bounds(memory.store_release(offset, 0));
        bounds(import.read(offset, &mut bytes));
        bounds(import.write(offset, &bytes));
        bounds(import.load_acquire(offset).map(drop));
        bounds(import.store_release(offset, 0));
        bounds(import.fetch_add(offset, 1).map(drop));
        bounds(import.compare_exchange(offset, 0, 1).map(drop));
        bounds(import.write_scattered(&[(0, &bytes), (offset, &bytes)]));
        bounds(import.write_strided(offset, 4096, 8, &bytes));
        bounds(import.write_strided(0, offset.max(8192), 8, &bytes));
        assert!(import.write_strided(0, 8, offset, &bytes).is_err());
        assert!(import.begin_write(offset, bytes).is_err());
        for part in [0..offset, offset..usize::MAX, offset..offset] {
            if part.end <= 8192 && !part.is_empty() {
                continue;
            }
            assert!(
                import.map_alias(&local, part.clone(), 0).is_err(),
                "{part:?}"
            );
            assert!(import.map_log(&local, part.clone(), 0).is_err(), "{part:?}");
            assert!(import.map_tracked(&local, part, 0, None).is_err());
        }
        assert!(import.map_alias(&local, 0..4096, offset).is_err());
        assert!(import.map_log(&local, 0..4096, offset).is_err());
        assert!(import.map_tracked(&local, 0..4096, offset, None).is_err());
        assert!(
            import
                .map_tracked(&local, 0..4096, 0, Some(offset))
                .is_err()
        );
    }
    let mut log = import.map_log(&local, 0..4096, 0).unwrap();
    for at in HUGE.into_iter().chain([4096]) {
        assert!(log.store(at, &bytes).is_err());
        assert!(log.store_release(at, 1).is_err());
        assert!(log.unmap_part(at, 1).is_err() && log.unmap_part(1, at).is_err());
    }
    drop(log);
    let mut alias = import.map_alias(&local, 0..4096, 0).unwrap();
    for at in HUGE {
        assert!(alias.unmap_part(at, 4096).is_err() && alias.unmap_part(4096, at).is_err());
    }
    drop((alias, import));
    export.unexport().unwrap();
    let ordinary = OrdinaryMemory::from(vec![0; 100]);
    for offset in HUGE.into_iter().chain([100, 90]) {
        assert!(ordinary.read(offset, &mut bytes).is_err());
        assert!(ordinary.write(offset, &bytes).is_err());
    }
}

/// Says what it is told.
#[portolan::service]
pub trait Echo {
    /// The same number.
    fn echo(&self, number: u64) -> u64;
}

struct Same;
impl Echo for Same {
    fn echo(&self, number: u64) -> u64 {
        number
    }
}

#[test]
fn calls() {
    let domain = domain();
    for (at, count) in [0, 1, HALF, usize::MAX].into_iter().enumerate() {
        let name = format!("echo-{at}");
        let options = ServerOptions::default().queue(count).own_channels(count);
        let options = options.on_channel();
        let _server = rpc::serve(&domain, &name, EchoService(Same), &options).unwrap();
        for time in TIMES {
            let mut options = ClientOptions::default().limit(time).period(time);
            if at % 2 == 1 {
                options = options.over_channel();
            }
            let Ok(client) = EchoClient::connect_with(&domain, &name, &options, Deadline::NEVER)
            else {
                continue;
            };
            let answer = client.echo(5);
            assert!(
                answer == Ok(5) || time < Duration::from_secs(1),
                "{time:?}: {answer:?}"
            );
            let _ = client.within(time).echo(6);
        }
    }
}

#[test]
fn traces() {
    let domain = domain();
    for events in [0, 1, 65_536, 65_537].into_iter().chain(HUGE) {
        let trace = domain.trace_with(TraceOptions::default().ring(events));
        assert!(trace.is_ok(), "{events}");
    }
}

#[test]
fn offers() {
    let name = portolan_testkit::unique("offers");
    let other = portolan_testkit::unique("offers-of");
    let (ours, theirs) = (Domain::join(&name).unwrap(), Domain::join(&other).unwrap());
    for (at, number) in [0, 1, HALF, usize::MAX].into_iter().enumerate() {
        let bytes = number as u64;
        let port = theirs.bind(PortOptions::unnamed()).unwrap();
        let offered = format!("port-{at}");
        let options = OfferOptions::default()
            .most_bytes(bytes)
            .most_clients(number)
            .most_ring_bytes(bytes);
        let offer = port
            .offer(&offered, &Permissions::own_user(), options)
            .unwrap();
        for queue in [0, 63, usize::MAX] {
            let options = ConnectOptions::default()
                .queue(queue)
                .ring_bytes(bytes)
                .most_bytes(bytes)
                .deadline(Duration::from_secs(2));
            let _ = ours.connect_to(&Domain::builder(&other), &offered, options);
        }
        drop(offer);
    }
}
