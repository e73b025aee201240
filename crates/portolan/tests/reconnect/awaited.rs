//! The same under tokio.
#![cfg(feature = "tokio")]

use crate::Other;
use portolan::reconnect::Update;
use portolan::{Domain, Message, PortOptions, WhenFull};
use portolan_testkit::{PATIENCE, unique};
use tokio::time::timeout;

#[tokio::test]
async fn a_task_sends_through_the_death_of_its_receiver() {
    let name = unique("reconnect-async");
    let domain = Domain::join(&name).unwrap();
    let mut sender = domain.reconnecting_sender("numbers");
    // It waits for the first one to come; then for room; then for the second.
    let first = Other::start("sleeps", &name);
    let one = || Message::new(b"1").unwrap();
    let mut sent = timeout(PATIENCE, sender.send_async(one()))
        .await
        .unwrap()
        .unwrap();
    let mut count = 0;
    while sent.receiver == 1 {
        count += 1;
        assert_eq!(sent.lost, None);
        match sender.send(one(), WhenFull::Fail) {
            Ok(more) => sent = more,
            Err(_) => break,
        }
    }
    let killed = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        first.kill();
    });
    let second = Other::start("sleeps", &name);
    let sent = timeout(PATIENCE, sender.send_async(one()))
        .await
        .unwrap()
        .unwrap();
    killed.join().unwrap();
    assert_eq!(sent.receiver, 2);
    let lost = sent
        .lost
        .map(|lost| (lost.receiver, lost.sent, lost.at_most));
    assert_eq!(lost, Some((1, count, count)));
    drop(second);
}

#[tokio::test]
async fn a_task_is_told_of_a_killed_publisher() {
    let name = unique("reconnect-async-topic");
    let domain = Domain::join(&name).unwrap();
    let options = portolan::channel::TopicOptions::default();
    let mut subscriber = domain
        .reconnecting_subscriber::<u64>("numbers", options)
        .unwrap();
    let mut publisher = Some(Other::start("publishes", &name));
    loop {
        let update = timeout(PATIENCE, subscriber.receive_async()).await.unwrap();
        match update.unwrap() {
            Update::Gone(gone) => break assert_eq!(gone.publisher, 0),
            _ => drop(publisher.take().map(Other::kill)),
        }
    }
}

#[tokio::test]
async fn a_task_binds_the_name_of_a_killed_process() {
    let name = unique("reconnect-async-name");
    let domain = Domain::join(&name).unwrap();
    let mut first = Other::start("sleeps", &name);
    assert_eq!(first.told().as_deref(), Some("bound"));
    first.kill();
    let port = domain.bind_when_free_async(PortOptions::named("numbers"));
    assert!(timeout(PATIENCE, port).await.unwrap().is_ok());
}
