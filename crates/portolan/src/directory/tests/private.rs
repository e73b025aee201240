//! Tests that a private domain connects its process to an offer of its own.

use super::{Queue, long};
use crate::directory::{AcceptedConnection, Offer, OfferKind, connect_own, offer};
use crate::{AccessToken, Deadline, Domain, OfferConnectError, OfferError, Permissions};
use portolan_sys::socket;
use std::sync::Arc;

fn offered(domain: &Domain, name: &str, permissions: &Permissions) -> (Offer, Arc<Queue>) {
    let queue = Arc::new(Queue::default());
    let inbox = Arc::clone(&queue);
    let member = domain.member();
    let made = offer(member, OfferKind::Port, name, permissions, inbox, long());
    (made.unwrap(), queue)
}

fn asked(
    domain: &Domain,
    name: &str,
    token: Option<&AccessToken>,
    by: Deadline,
) -> Result<AcceptedConnection, OfferConnectError> {
    connect_own(domain.member(), OfferKind::Port, name, token, by)
}

#[test]
fn a_private_domain_hands_its_process_to_itself() {
    let domain = Domain::private().unwrap();
    let (offer, queue) = offered(&domain, "samples", &Permissions::default());
    let accepted = asked(&domain, "samples", None, Deadline::NOW).unwrap();
    socket::send(&accepted.connection, b"hello", &[]).unwrap();
    let client = queue.0.lock().unwrap().pop().unwrap();
    let mut buffer = [0; 8];
    let received = socket::receive(&client.connection, &mut buffer, 0).unwrap();
    assert_eq!(&buffer[..received.len], b"hello");
    assert_eq!(client.peer.pid, std::process::id());
    assert!(client.pidfd.is_some_and(|p| !p.is_dead()));
    drop(offer);
    let gone = asked(&domain, "samples", None, Deadline::NOW);
    assert!(
        matches!(gone, Err(OfferConnectError::NotOffered { .. })),
        "{gone:?}"
    );
}

#[test]
fn a_private_domain_waits_for_an_offer() {
    let domain = Domain::private().unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| asked(&domain, "later", None, long()).is_ok());
        // Another kind and another name are others.
        let _other = offered(&domain, "late", &Permissions::default());
        let _offer = offered(&domain, "later", &Permissions::default());
        assert!(client.join().unwrap());
    });
}

#[test]
fn a_private_domain_asks_for_tokens_and_names() {
    let domain = Domain::private().unwrap();
    let token = AccessToken::random().unwrap();
    let _offer = offered(&domain, "a", &Permissions::anyone().token(token));
    assert!(asked(&domain, "a", Some(&token), Deadline::NOW).is_ok());
    let none = asked(&domain, "a", None, Deadline::NOW);
    assert!(matches!(
        none,
        Err(OfferConnectError::WrongToken { shown: false, .. })
    ));
    let bad = asked(&domain, "", None, Deadline::NOW);
    assert!(matches!(bad, Err(OfferConnectError::BadName { .. })));
    let _closed = offered(&domain, "b", &Permissions::nobody());
    let refused = asked(&domain, "b", None, Deadline::NOW);
    assert!(matches!(
        refused,
        Err(OfferConnectError::NotPermitted { .. })
    ));
    let queue = Arc::new(Queue::default());
    let twice = offer(
        domain.member(),
        OfferKind::Port,
        "a",
        &Permissions::nobody(),
        queue.clone(),
        long(),
    );
    assert!(matches!(twice, Err(OfferError::NameTaken)));
    for name in ["", "a@node"] {
        let bad = offer(
            domain.member(),
            OfferKind::Port,
            name,
            &Permissions::nobody(),
            queue.clone(),
            long(),
        );
        assert!(matches!(bad, Err(OfferError::BadName)), "{name:?}");
    }
}
