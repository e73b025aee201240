//! An async wait that was given up leaves nothing that takes another one's wake.

use portolan::{Access, Domain, Message, PortOptions, Waiting, WhenFull};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "current_thread")]
async fn a_blocking_receive_after_an_async_one_that_was_given_up() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    port.set_waiting(Waiting::Sleep);
    let right = port.make_send();
    let wait = port.receive_async(Access::Later);
    let given_up = tokio::time::timeout(Duration::from_millis(50), wait).await;
    assert!(given_up.is_err());
    let receiver = std::thread::spawn(move || {
        let t = Instant::now();
        let got = port
            .receive(Access::Later, Duration::from_secs(5))
            .map(|m| m.header().to_vec());
        (got, t.elapsed())
    });
    std::thread::sleep(Duration::from_millis(300));
    right
        .send(Message::new(b"hello").unwrap(), WhenFull::Fail)
        .unwrap();
    std::thread::sleep(Duration::from_secs(6));
    let (got, took) = receiver.join().unwrap();
    assert_eq!(got.unwrap(), b"hello");
    assert!(
        took < Duration::from_secs(2),
        "the wake went to the bell: {took:?}"
    );
}

/// The same, through a handle that several threads may have.
#[tokio::test(flavor = "current_thread")]
async fn a_shared_receive_after_an_async_one_that_was_given_up() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let wait = port.receive_async(Access::Later);
    let given_up = tokio::time::timeout(Duration::from_millis(50), wait).await;
    assert!(given_up.is_err());
    let shared = port.share();
    let receiver = std::thread::spawn(move || {
        let t = Instant::now();
        let got = shared.receive(Access::Later, Duration::from_secs(5));
        (got.map(|m| m.header().to_vec()), t.elapsed())
    });
    std::thread::sleep(Duration::from_millis(300));
    let message = Message::new(b"hello").unwrap();
    right.send(message, WhenFull::Fail).unwrap();
    let (got, took) = receiver.join().unwrap();
    assert_eq!(got.unwrap(), b"hello");
    assert!(
        took < Duration::from_secs(2),
        "the wake went to the bell: {took:?}"
    );
}
