//! Ports that give their receiver copies, in both kinds of domain.

use crate::child::PATIENCE;
use portolan::{Access, Deadline, Domain, Message, PortOptions, Protection, SendError, WhenFull};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn domains() -> [Domain; 2] {
    [Protection::Trusted, Protection::Guarded].map(|protection| {
        let builder = Domain::builder("copied").size(64 << 20).limit(32 << 20);
        builder.protection(protection).private().unwrap()
    })
}

fn with(domain: &Domain, header: &[u8], fill: u8) -> Result<Message, Box<dyn std::error::Error>> {
    // Long headers in an extent from the beginning.
    let mut message = domain.message(header)?;
    for size in [100, 5000, 3 << 20] {
        let mut extent = domain.allocate(size)?;
        extent.fill(fill);
        message.push(extent)?;
    }
    Ok(message)
}

fn addresses(message: &Message) -> Vec<usize> {
    message
        .extents()
        .iter()
        .map(portolan::Extent::address)
        .collect()
}

#[test]
fn the_receiver_has_its_own() -> Outcome {
    for domain in domains() {
        let mut port = domain.bind(PortOptions::unnamed().copied())?;
        let right = port.make_send();
        // More than the limit in all: the originals are freed.
        for header in [0, 40, 48, 1000, 4000, 4096, 7] {
            let header = vec![9; header];
            let message = with(&domain, &header, 5)?;
            let (sent, words) = (addresses(&message), message.header().as_ptr());
            right.send(message, WhenFull::Fail)?;
            let message = port.receive(Access::Now, Deadline::NOW)?;
            assert_eq!(message.header(), header);
            assert!(message.slices().all(|s| s.iter().all(|b| *b == 5)));
            assert_eq!(message.len(), 5100 + (3 << 20));
            assert!(addresses(&message).iter().all(|a| !sent.contains(a)));
            assert!(header.len() <= 48 || message.header().as_ptr() != words);
        }
    }
    Ok(())
}

#[test]
fn what_was_not_sent_comes_back_itself() -> Outcome {
    for domain in domains() {
        let port = domain.bind(PortOptions::unnamed().copied().queue(1))?;
        let right = port.make_send();
        while right
            .send(Message::new(b"in the way")?, WhenFull::Fail)
            .is_ok()
        {}
        let message = with(&domain, &[9; 4000], 5)?;
        let (ours, header) = (addresses(&message), message.header().as_ptr());
        let refused = right.send(message, WhenFull::Fail).unwrap_err();
        assert!(matches!(refused.why, SendError::Full { .. }));
        assert_eq!(
            (addresses(&refused.item), refused.item.header().as_ptr()),
            (ours, header)
        );
        assert!(refused.item.slices().all(|s| s.iter().all(|b| *b == 5)));
        assert_eq!(refused.item.header(), [9; 4000]);
        // No memory for the copy: the same.
        let kept: Vec<_> = std::iter::from_fn(|| domain.allocate(2 << 20).ok()).collect();
        let refused = right.send(*refused.item, WhenFull::Fail).unwrap_err();
        assert!(
            matches!(refused.why, SendError::Allocate(_)),
            "{}",
            refused.why
        );
        assert_eq!(refused.item.header(), [9; 4000]);
        assert!(refused.item.slices().all(|s| s.iter().all(|b| *b == 5)));
        drop(kept);
        right.send(*refused.item, WhenFull::Drop)?;
    }
    Ok(())
}

#[test]
fn who_waits_for_room_copies_once() -> Outcome {
    for domain in domains() {
        let mut port = domain.bind(PortOptions::unnamed().copied().queue(1))?;
        let right = port.make_send();
        // Room for originals and one copy, and not for two.
        let mut message = Message::new(b"large")?;
        let mut extent = domain.allocate(12 << 20)?;
        extent.fill(3);
        message.push(extent)?;
        while right
            .send(Message::new(b"in the way")?, WhenFull::Fail)
            .is_ok()
        {}
        let waiting = port.depth();
        let sender =
            std::thread::spawn(move || right.send(message, Deadline::after(PATIENCE)).is_ok());
        // Most likely it waits by then, and if not, nothing is different.
        std::thread::sleep(std::time::Duration::from_millis(50));
        for _ in 0..waiting {
            drop(port.receive(Access::Later, Deadline::after(PATIENCE))?);
        }
        let message = port.receive(Access::Later, Deadline::after(PATIENCE))?;
        assert!(message.extents()[0].iter().all(|b| *b == 3));
        assert!(sender.join().unwrap());
    }
    Ok(())
}
