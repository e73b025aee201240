//! A reliable writer that waits for room, beside a reader that never sleeps.

use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
use portolan::{Deadline, Domain};
use std::time::{Duration, Instant};

/// The reader stands at no quarter of a lap when it has read everything, and from then on only
/// polls: its first look in vain tells the writer.
#[test]
fn a_long_message_beside_a_reader_that_polls() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().reliable().unit(64).units(16))
        .unwrap();
    let payload = channel.unit_payload();
    let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    // 18 short messages; 16 of them read.
    for _ in 0..8 {
        writer.write(b"x", Deadline::NOW).unwrap();
    }
    for _ in 0..8 {
        reader.receive(Deadline::NOW).unwrap();
    }
    for _ in 0..10 {
        writer.write(b"x", Deadline::NOW).unwrap();
    }
    for _ in 0..8 {
        reader.receive(Deadline::NOW).unwrap();
    }
    let long = vec![7u8; 16 * payload];
    assert_eq!(long.len(), channel.longest());
    let took = std::thread::scope(|s| {
        let w = s.spawn(move || {
            let t = Instant::now();
            let r = writer.write(&long, Deadline::from(Duration::from_secs(6)));
            (t.elapsed(), r.map(|_| ()))
        });
        std::thread::sleep(Duration::from_millis(300));
        // The rest of the short ones; then it polls for the long one.
        for _ in 0..2 {
            reader.receive(Deadline::NOW).unwrap();
        }
        let t = Instant::now();
        while t.elapsed() < Duration::from_secs(8) {
            match reader.receive(Deadline::NOW) {
                Ok(_) => break,
                Err(ReadError::TimedOut) => {}
                Err(e) => panic!("{e}"),
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        w.join().unwrap()
    });
    assert!(
        took.1.is_ok() && took.0 < Duration::from_secs(1),
        "writer slept though the channel was empty: {took:?}"
    );
}
