//! Readers under tokio and in wait sets, beside writers that stream and stop.

use crate::{PATIENCE, bound};
use portolan::channel::{ChannelOptions, ReadError};
use portolan::{Deadline, Domain, WaitSet};
use std::time::Duration;
use tokio::time::timeout;

/// As the child's `burst` has them.
const BURSTS: u64 = 40;
const BURST: u64 = 800;

#[tokio::test(flavor = "current_thread")]
async fn a_task_follows_another_process() {
    let name = portolan_testkit::unique("awaited");
    let domain = Domain::join(&name).unwrap();
    let options = ChannelOptions::named("bursts").units(64).reliable();
    let mut reader = bound(&domain.make_channel(&options).unwrap());
    let back = domain.make_channel(&ChannelOptions::named("back")).unwrap();
    let mut back = back.bind_writer().unwrap();
    let mut child = portolan_testkit::spawn("lagging::other", &["burst", &name, "bursts"]);
    for burst in 0..BURSTS {
        for i in 0..BURST {
            let received = timeout(PATIENCE, reader.receive_async()).await.unwrap();
            assert_eq!(*received.unwrap(), (burst * BURST + i).to_le_bytes());
        }
        back.write_async(&burst.to_le_bytes()).await.unwrap();
    }
    let end = timeout(PATIENCE, reader.receive_async()).await.unwrap();
    assert_eq!(end, Err(ReadError::WriterGone));
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn a_receive_that_is_given_up_loses_nothing() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().units(16).reliable();
    let channel = domain.make_channel(&options).unwrap();
    let mut reader = bound(&channel);
    let mut writer = channel.bind_writer().unwrap();
    let thread = std::thread::spawn(move || {
        for i in 0..2_000u64 {
            writer.write(&i.to_le_bytes(), PATIENCE).unwrap();
            if i % 20 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    });
    let (mut next, mut given_up) = (0u64, 0);
    while next < 2_000 {
        match timeout(Duration::from_micros(50), reader.receive_async()).await {
            Ok(received) => {
                assert_eq!(*received.unwrap(), next.to_le_bytes());
                next += 1;
            }
            Err(_) => given_up += 1,
        }
    }
    assert!(given_up > 0, "nothing was given up");
    thread.join().unwrap();
}

#[tokio::test]
async fn readers_of_a_set_are_awaited() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let options = ChannelOptions::unnamed().units(1024).reliable();
    let channels = [(); 4].map(|()| domain.make_channel(&options).unwrap());
    let tokens = channels.each_ref().map(|c| set.add(bound(c)).unwrap());
    let threads = channels.map(|channel| {
        std::thread::spawn(move || {
            let mut writer = channel.bind_writer().unwrap();
            for i in 0..3_000u64 {
                writer.write(&i.to_le_bytes(), PATIENCE).unwrap();
                // Long enough to do without barriers, and then a pause.
                if i % 700 == 699 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        })
    });
    let mut next = [0u64; 4];
    let mut gone = 0;
    while gone < tokens.len() {
        let ready = timeout(PATIENCE, set.wait_async()).await.unwrap().unwrap();
        for token in ready {
            let which = tokens.iter().position(|t| *t == token).unwrap();
            let reader = set.get_mut(tokens[which]).unwrap();
            loop {
                match reader.receive(Deadline::NOW) {
                    Ok(received) => {
                        assert_eq!(*received, next[which].to_le_bytes());
                        next[which] += 1;
                    }
                    Err(ReadError::TimedOut) => break,
                    Err(ReadError::WriterGone) => {
                        gone += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    assert_eq!(next, [3_000; 4]);
    for thread in threads {
        thread.join().unwrap();
    }
}
