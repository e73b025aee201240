//! Writes that signal the addresses of their units to handlers.

use crate::bound;
use portolan::channel::{
    Channel, ChannelError, ChannelOptions, Lagging, ReadError, ReaderOptions, Signalling,
};
use portolan::{Deadline, Domain, HandlerId, Listener, ListenerOptions};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A listener with a handler for addresses of a channel.
pub(crate) struct Ear {
    pub(crate) listener: Listener,
    handler: HandlerId,
    heard: Arc<Mutex<Vec<usize>>>,
    channel: Channel,
}

impl Ear {
    pub(crate) fn new(domain: &Domain, channel: &Channel) -> Self {
        Self::within(domain, channel, channel.addresses())
    }

    fn within(domain: &Domain, channel: &Channel, range: Range<usize>) -> Self {
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let heard = Arc::<Mutex<Vec<usize>>>::default();
        let its_own = Arc::clone(&heard);
        let handler = listener
            .on(range, move |address| its_own.lock().unwrap().push(address))
            .unwrap();
        Self {
            listener,
            handler,
            heard,
            channel: channel.clone(),
        }
    }

    /// The places of the units that it has been told of since the last time. Each address is that
    /// of a unit's first byte.
    pub(crate) fn places(&mut self) -> Vec<u64> {
        self.listener.poll();
        let (start, unit) = (self.channel.addresses().start, self.channel.unit());
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        heard
            .iter()
            .map(|address| {
                assert_eq!((address - start) % unit, 0);
                self.channel.place_of(*address).unwrap()
            })
            .collect()
    }
}

fn made(options: &ChannelOptions) -> (Domain, Channel) {
    let domain = Domain::private().unwrap();
    let channel = domain.make_channel(options).unwrap();
    (domain, channel)
}

#[test]
fn a_message_is_signalled_once_by_its_last_unit() {
    let (domain, channel) = made(&ChannelOptions::unnamed().units(16));
    let mut reader = bound(&channel);
    let mut ear = Ear::new(&domain, &channel);
    let mut writer = channel.bind_writer().unwrap();
    writer.write(b"before", Deadline::NOW).unwrap();
    reader.enable().unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"before");
    assert_eq!(ear.places(), []);
    // One unit each, also more than a lap: the place tells which.
    for n in 1..40_u64 {
        writer.write(&n.to_le_bytes(), Deadline::NOW).unwrap();
        assert_eq!(ear.places(), [n % 16]);
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), n.to_le_bytes());
    }
    // Three units, from place 8 on; and one in place, of two.
    let three = [7; 3 * 48];
    assert_eq!(writer.write(&three, Deadline::NOW).unwrap(), 40);
    assert_eq!(ear.places(), [10]);
    let claim = writer.claim(96, Deadline::NOW).unwrap();
    claim.fill(0, &[8; 96]);
    claim.commit();
    assert_eq!(ear.places(), [12]);
    // Piece by piece: what is shown is signalled.
    writer.append(&[9; 60], Deadline::NOW).unwrap();
    assert_eq!(ear.places(), []);
    writer.show();
    assert_eq!(ear.places(), [14]);
    writer.end(Deadline::NOW).unwrap();
    assert_eq!(ear.places(), [14]);
}

#[test]
fn the_signalling_unit_is_chosen_by_the_maker_and_not_seen_by_the_writer() {
    let write = |signalling, message: &[u8]| {
        let (domain, channel) = made(&ChannelOptions::unnamed().units(64).signal(signalling));
        let mut reader = bound(&channel);
        let mut ear = Ear::new(&domain, &channel);
        reader.enable().unwrap();
        let mut writer = channel.bind_writer().unwrap();
        writer.write(message, Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *message);
        ear.places()
    };
    let eight = [3; 8 * 48];
    assert_eq!(write(Signalling::Message, &eight), [7]);
    assert_eq!(
        write(Signalling::Bytes(64), &eight),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
    assert_eq!(write(Signalling::Bytes(128), &eight), [1, 3, 5, 7]);
    assert_eq!(write(Signalling::Bytes(4096), &eight), []);
    let (_domain, channel) = made(&ChannelOptions::unnamed().signal(Signalling::Never));
    let refused = bound(&channel).enable();
    assert!(
        matches!(refused, Err(ChannelError::NeverSignals)),
        "{refused:?}"
    );
}

#[test]
fn one_write_is_one_signal_to_each_listener() {
    let (domain, channel) = made(&ChannelOptions::unnamed());
    let mut readers = [(); 3].map(|()| bound(&channel));
    let mut ears = [(); 3].map(|()| Ear::new(&domain, &channel));
    // One of them has a second handler, which is called too.
    let second = ears[0].listener.on(channel.addresses(), |_| {}).unwrap();
    for reader in &mut readers {
        reader.enable().unwrap();
    }
    let mut writer = channel.bind_writer().unwrap();
    for n in 0..10 {
        writer.write(b"news", Deadline::NOW).unwrap();
        let listeners = domain.survey().unwrap().listeners;
        let waiting: Vec<_> = listeners.iter().map(|l| l.waiting).collect();
        assert_eq!(waiting, [1; 3]);
        for ear in &mut ears {
            assert_eq!(ear.places(), [n]);
        }
    }
    assert!(ears[0].listener.off(second).unwrap());
    assert_eq!(ears.iter().map(|e| e.listener.dropped()).sum::<u64>(), 0);
}

#[test]
fn a_handler_of_some_units_is_told_of_those() {
    let (domain, channel) = made(&ChannelOptions::unnamed().units(8));
    let mut reader = bound(&channel);
    let Range { start, end } = channel.addresses();
    let half = start + (end - start) / 2;
    let mut first = Ear::within(&domain, &channel, start..half);
    let mut second = Ear::within(&domain, &channel, half..end);
    reader.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for _ in 0..8 {
        writer.write(b"x", Deadline::NOW).unwrap();
    }
    assert_eq!(first.places(), [0, 1, 2, 3]);
    assert_eq!(second.places(), [4, 5, 6, 7]);
}

#[test]
fn who_has_not_enabled_is_told_nothing() {
    let (domain, channel) = made(&ChannelOptions::unnamed());
    let [mut one, mut two] = [(); 2].map(|()| bound(&channel));
    let mut ear = Ear::new(&domain, &channel);
    let mut writer = channel.bind_writer().unwrap();
    let mut write = || {
        writer.write(b"x", Deadline::NOW).unwrap();
    };
    write();
    assert_eq!(ear.places(), []);
    one.enable().unwrap();
    two.enable().unwrap();
    write();
    assert_eq!(ear.places(), [1]);
    // As long as one of them is.
    one.disable();
    write();
    assert_eq!(ear.places(), [2]);
    drop(two);
    // Its handler is still there.
    let signalled = || domain.survey().unwrap().spaces[0].signals;
    let before = signalled();
    write();
    assert_eq!((ear.places(), signalled()), (vec![3], before + 1));
    // It is gone: the writer signals once more, finds nobody, and stops.
    assert!(ear.listener.off(ear.handler).unwrap());
    let before = signalled();
    for _ in 0..5 {
        write();
    }
    assert_eq!(signalled(), before + 1);
    // And again.
    let mut ear = Ear::new(&domain, &channel);
    one.enable().unwrap();
    write();
    assert_eq!(ear.places(), [9]);
}

#[test]
fn a_frame_buffers_units_are_signalled_by_their_places() {
    let lines = ChannelOptions::unnamed().raw().unit(256).units(8);
    let (domain, channel) = made(&lines);
    let mut screen = channel.bind_frame_reader().unwrap();
    let mut ear = Ear::new(&domain, &channel);
    screen.enable().unwrap();
    let mut camera = channel.bind_frame_writer().unwrap();
    for place in [0, 5, 3] {
        camera.put(place, &[1; 256]).unwrap();
    }
    assert_eq!(ear.places(), []);
    camera.show().unwrap();
    assert_eq!(ear.places(), [3]);
    drop(camera);
    assert_eq!(ear.places().len(), 1, "the writer has gone");
    // Every line.
    let (domain, channel) = made(&lines.signal(Signalling::Bytes(256)));
    let mut screen = channel.bind_frame_reader().unwrap();
    let mut ear = Ear::new(&domain, &channel);
    screen.enable().unwrap();
    let mut camera = channel.bind_frame_writer().unwrap();
    for place in [0, 5, 3] {
        camera.put(place, &[1; 256]).unwrap();
    }
    assert_eq!(ear.places(), [0, 5, 3]);
    screen.disable();
    camera.put(1, &[1; 256]).unwrap();
    assert_eq!(ear.places(), []);
}

#[test]
fn each_of_many_writers_signals() {
    let (domain, channel) = made(&ChannelOptions::unnamed().many_writers());
    let mut reader = bound(&channel);
    let mut ear = Ear::new(&domain, &channel);
    reader.enable().unwrap();
    let mut writers = [(); 3].map(|()| channel.bind_writer().unwrap());
    for round in 0..3 {
        for (n, writer) in writers.iter_mut().enumerate() {
            writer.write(b"here", Deadline::NOW).unwrap();
            assert_eq!(ear.places(), [3 * round + n as u64]);
        }
    }
}

#[test]
fn an_upcall_interrupts_the_thread_for_a_write() {
    let (domain, channel) = made(&ChannelOptions::unnamed());
    let mut reader = bound(&channel);
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (_handler, note) = listener.note(channel.addresses()).unwrap();
    reader.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for n in 1..=50 {
        writer.write(b"x", Deadline::NOW).unwrap();
        portolan_testkit::until("the thread is interrupted", || note.count() >= n);
        assert_eq!(channel.place_of(note.address()), Some(n - 1));
    }
}

#[test]
fn a_writer_that_leaves_tells_handlers_so() {
    let (domain, channel) = made(&ChannelOptions::unnamed());
    let mut reader = bound(&channel);
    let mut ear = Ear::new(&domain, &channel);
    reader.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for _ in 0..3 {
        writer.write(b"x", Deadline::NOW).unwrap();
    }
    assert_eq!(ear.places(), [0, 1, 2]);
    drop(writer);
    assert_eq!(ear.places(), [2]);
    for _ in 0..3 {
        reader.receive(Deadline::NOW).unwrap();
    }
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::WriterGone));
}

/// A writer that finds no room has ended a unit before, of which its readers are told.
#[test]
fn a_writer_without_room_has_signalled_what_it_ended() {
    let options = ChannelOptions::unnamed().units(4).reliable();
    let (domain, channel) = made(&options);
    let _slow = bound(&channel);
    let mut reader = channel
        .bind_reader(ReaderOptions::default().lagging(Lagging::Skip))
        .unwrap();
    let mut ear = Ear::new(&domain, &channel);
    reader.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    writer.append(&[1; 4 * 48], Deadline::NOW).unwrap();
    assert_eq!(ear.places(), []);
    // The last unit ends here, and there is no next one.
    assert!(writer.append(&[2; 48], Deadline::NOW).is_err());
    assert_eq!(ear.places(), [3]);
    assert_eq!(reader.receive_some(Deadline::NOW).unwrap().len(), 4 * 48);
}

#[test]
fn a_reader_without_an_entry_cannot_enable() {
    let (_domain, channel) = made(&ChannelOptions::unnamed().readers(1));
    let _first = bound(&channel);
    let refused = bound(&channel).enable();
    assert!(
        matches!(refused, Err(ChannelError::NoEntry { entries: 1 })),
        "{refused:?}"
    );
}

#[test]
fn a_listener_that_never_looks_holds_nobody_up() {
    let (domain, channel) = made(&ChannelOptions::unnamed().units(16));
    let [mut looks, mut idle] = [(); 2].map(|()| bound(&channel));
    let mut ear = Ear::new(&domain, &channel);
    let asleep = Ear::new(&domain, &channel);
    looks.enable().unwrap();
    idle.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for n in 0..1000 {
        writer.write(b"x", Deadline::NOW).unwrap();
        assert_eq!(ear.places(), [n % 16]);
    }
    let kept = asleep.listener.depth() as u64;
    assert_eq!(asleep.listener.dropped(), 1000 - kept);
    assert!(ear.listener.wait(Deadline::NOW).is_none());
}
