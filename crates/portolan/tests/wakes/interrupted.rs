//! Tests that an interrupted wait takes no other thread's wake.

use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
use portolan::{Deadline, Domain, WaitSet};
use std::time::Duration;

#[test]
fn a_reader_in_a_wait_set_beside_one_that_is_interrupted() {
    let domain = Domain::private().unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let there = channel.bind_reader(ReaderOptions::default()).unwrap();
    let token = set.add(there).unwrap();
    let mut other = channel.bind_reader(ReaderOptions::default()).unwrap();
    let interrupter = other.interrupter();
    let waits = std::thread::spawn(move || set.wait(Duration::from_secs(20)).unwrap().next());
    let sleeps = std::thread::spawn(move || other.receive(Deadline::NEVER).err());
    std::thread::sleep(Duration::from_millis(300));
    interrupter.interrupt();
    assert_eq!(sleeps.join().unwrap(), Some(ReadError::Interrupted));
    writer.write(b"hello", Deadline::NOW).unwrap();
    assert_eq!(
        waits.join().unwrap(),
        Some(token.any()),
        "slept over the message"
    );
}
