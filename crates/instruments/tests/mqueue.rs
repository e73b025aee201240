//! POSIX message queues.

#![allow(missing_docs, reason = "a test")]

use portolan_instruments::mqueue::Queue;

#[test]
fn a_queue_holds_what_it_was_made_for_and_loses_its_name() {
    let mut queue = Queue::create(2, 8).unwrap();
    let name = queue.name().unwrap().to_owned();
    let other = Queue::open(&name).unwrap();
    assert_eq!(other.name(), None);
    queue.unlink();
    assert_eq!(queue.name(), None);
    assert!(Queue::open(&name).is_err());
    queue.send(b"one").unwrap();
    queue.try_send(b"two").unwrap();
    let full = queue.try_send(b"three").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    assert!(queue.send(b"much too long").is_err());
    let mut buffer = [0; 8];
    assert_eq!(other.receive(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"one");
    assert_eq!(other.try_receive(&mut buffer).unwrap(), 3);
    let empty = other.try_receive(&mut buffer).unwrap_err();
    assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
    assert!(other.try_receive(&mut [0; 7]).is_err());
}

#[test]
fn a_dropped_queue_leaves_no_name() {
    let queue = Queue::create(1, 8).unwrap();
    let name = queue.name().unwrap().to_owned();
    drop(queue);
    assert!(Queue::open(&name).is_err());
}
