//! Tests proxy ports: what senders are told, what their receiver gets, and how a port becomes a
//! proxy and stops being one beside its senders.

mod across;
mod beside;
mod deaths;
mod reach;
mod refused;
mod taken;

use portolan::proxy::{Answer, ProxyPort, Taken};
use portolan::structure::{List, Structure};
use portolan::{Deadline, Domain, Message, PortOptions, SendError, SendRight, WhenFull};

/// A proxy port of a private domain, and a right on it that was made before it became one.
struct Proxied {
    domain: Domain,
    proxy: ProxyPort,
    right: SendRight,
}

impl Proxied {
    fn new(options: PortOptions) -> Self {
        let domain = Domain::private().unwrap();
        let port = domain.bind(options).unwrap();
        let right = port.make_send();
        let proxy = ProxyPort::new(port, "hall").unwrap();
        Self {
            domain,
            proxy,
            right,
        }
    }

    fn message(&mut self) -> Message {
        match self.proxy.take(Deadline::NOW).unwrap() {
            Taken::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    fn request(&mut self) -> (Message, Answer) {
        match self.proxy.take(Deadline::NOW).unwrap() {
            Taken::Request(message, answer) => (message, answer),
            other => panic!("{other:?}"),
        }
    }
}

fn structure(domain: &Domain) -> Message {
    let words = Structure::<List<u64>>::build(domain, |arena| {
        let mut list = arena.list();
        list.push(7)?;
        Ok(list)
    });
    words.unwrap().into_message()
}

fn with_segment(domain: &Domain) -> Message {
    let mut message = Message::new(b"with a segment").unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    message.attach(segment).unwrap();
    message
}

/// Sends, and returns why that failed, with the message as it was.
#[track_caller]
fn refusal(right: &SendRight, message: Message) -> SendError {
    let before = format!("{message:?}");
    let refused = right.send(message, WhenFull::Fail).unwrap_err();
    assert_eq!(format!("{:?}", refused.item), before);
    refused.why
}
