//! What senders to a proxy port are told.

use crate::{Proxied, refusal, structure, with_segment};
use portolan::proxy::ProxyPort;
use portolan::{
    BindError, Deadline, Domain, Message, PortOptions, Protection, RequestError, SendError,
    WhenFull,
};
use std::time::{Duration, Instant};

#[test]
fn structures_and_segments_stay_here_whenever_the_right_was_made() {
    let f = Proxied::new(PortOptions::named("upper"));
    let found = f.domain.connect("upper", Deadline::NOW).unwrap();
    for right in [&f.right, &found, &f.proxy.make_send()] {
        let why = refusal(right, structure(&f.domain));
        assert!(matches!(why, SendError::Structure), "{why}");
        let why = refusal(right, with_segment(&f.domain));
        assert!(
            matches!(why, SendError::StaysHere { what: "a segment" }),
            "{why}"
        );
    }
    assert_eq!((f.proxy.depth(), f.proxy.left_behind()), (0, 0));
}

#[test]
fn requests_of_that_kind_are_refused_too() {
    let f = Proxied::new(PortOptions::unnamed().synchronous());
    let refused = f.right.begin_request(structure(&f.domain), WhenFull::Fail);
    let Err(RequestError::Unsent(unsent)) = refused else {
        panic!("sent");
    };
    assert!(matches!(unsent.why, SendError::Structure));
    // And of the other kind as before.
    let why = refusal(&f.right, Message::default());
    assert!(
        matches!(why, SendError::WrongKind("synchronous", _)),
        "{why}"
    );
}

#[test]
fn a_silent_node_is_named_and_what_was_sent_before_stays() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let later = f.proxy.make_send();
    f.right
        .send(Message::new(b"before").unwrap(), WhenFull::Fail)
        .unwrap();
    let silent = Instant::now();
    f.proxy.set_unreachable(silent);
    for right in [&f.right, &later] {
        let why = refusal(right, Message::new(b"meanwhile").unwrap());
        let text = why.to_string();
        let SendError::Unreachable { node, since } = why else {
            panic!("{why}");
        };
        assert_eq!(node, "hall");
        assert!(
            text.contains("\"hall\"") && text.contains("silent"),
            "{text}"
        );
        let off = since.max(silent) - since.min(silent);
        assert!(off < Duration::from_secs(1), "{off:?}");
    }
    assert_eq!(f.message().header(), b"before");
    // It has moved to a node that is there.
    f.proxy.set_node("roof").unwrap();
    f.right
        .send(Message::new(b"moved").unwrap(), WhenFull::Fail)
        .unwrap();
    f.proxy.set_unreachable(silent);
    let why = refusal(&f.right, Message::default());
    assert!(matches!(why, SendError::Unreachable { node, .. } if node == "roof"));
    f.proxy.set_reachable();
    f.right
        .send(Message::new(b"after").unwrap(), WhenFull::Fail)
        .unwrap();
    assert_eq!(f.message().header(), b"moved");
    assert_eq!(f.message().header(), b"after");
}

#[test]
fn what_is_no_nodes_name_makes_no_proxy() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    for name in ["", "a@b", "a\0b", &"n".repeat(33)] {
        let refused = ProxyPort::new(port, name).unwrap_err();
        assert!(matches!(&refused.why, BindError::BadNode { name: bad } if bad == name));
        port = *refused.item;
        // It is what it was.
        port.make_send()
            .send(structure(&domain), WhenFull::Fail)
            .unwrap();
    }
    let longest = "n".repeat(32);
    let mut proxy = ProxyPort::new(port, &longest).unwrap();
    assert_eq!(proxy.node(), longest);
    assert!(proxy.set_node("").is_err());
    proxy.set_unreachable(Instant::now());
    let why = refusal(&proxy.make_send(), Message::default());
    assert!(matches!(why, SendError::Unreachable { node, .. } if node == longest));
}

#[test]
fn in_a_guarded_domain_what_was_refused_is_open_again() {
    let name = portolan_testkit::unique("guarded-proxy");
    let domain = Domain::builder(&name)
        .protection(Protection::Guarded)
        .join()
        .unwrap();
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let mut proxy = ProxyPort::new(port, "hall").unwrap();
    let mut message = with_segment(&domain);
    let mut extent = domain.allocate(5000).unwrap();
    extent.fill(3);
    message.push(extent).unwrap();
    let refused = right.send(message, WhenFull::Fail).unwrap_err();
    assert!(matches!(refused.why, SendError::StaysHere { .. }));
    let mut message = *refused.item;
    assert_eq!(message.extents()[0][4999], 3);
    drop(message.take_rights());
    right.send(message, WhenFull::Fail).unwrap();
    let portolan::proxy::Taken::Message(came) = proxy.take(Deadline::NOW).unwrap() else {
        panic!("a message was sent");
    };
    assert_eq!(came.extents()[0][4999], 3);
}
