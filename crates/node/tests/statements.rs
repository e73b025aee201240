//! What the authority states, in one process with a clock of the test's: who is believed, and when.

use portolan_abi::node::{NodeId, Stated, Statement};
use portolan_node::NodeError;
use portolan_node::authority::{self, Authority, End};
use portolan_node::state::State;
use portolan_node::statements::{Change, MOST, Refusal, Statements};
use portolan_testkit::unique;
use portolan_transport::Moment;
use portolan_transport::tls::Certificate;
use std::time::Duration;

const NOW: Moment = Moment {
    seconds: 1_800_000_000,
};
const ROOF: NodeId = NodeId([7; 16]);

fn later(seconds: u64) -> Moment {
    Moment {
        seconds: NOW.seconds + seconds,
    }
}

/// A node with the authority's key; its directory goes with it.
struct Hall(State);

impl Hall {
    fn new() -> Self {
        let state = State::at(&std::env::temp_dir().join(unique("stating"))).unwrap();
        authority::make_first(&state, "hall", NOW).unwrap();
        Self(state)
    }

    /// Another node that believes the same authority, and has heard nothing yet.
    fn peer(&self) -> Self {
        let state = State::at(&std::env::temp_dir().join(unique("hearing"))).unwrap();
        let text = self.0.read("authority.crt").unwrap().unwrap();
        state.write("authority.crt", &text).unwrap();
        Self(state)
    }

    fn states(&self, stated: Stated<'_>) -> Vec<u8> {
        let authority = Authority::load(&self.0).unwrap();
        authority.state(stated, NOW).unwrap()
    }

    fn statements(&self) -> Statements {
        Statements::load(&self.0).unwrap()
    }

    fn accepts(&self, bytes: &[u8], now: Moment) -> Result<Option<Change>, Refusal> {
        let mut statements = self.statements();
        let change = statements.accept(bytes, now);
        statements.keep(&self.0, now).unwrap();
        change
    }

    /// Rotates as the command does, without a running node.
    fn rotate(&self, end: End, now: Moment) -> Vec<Vec<u8>> {
        let all = authority::rotate(&self.0, end, now).unwrap();
        for statement in &all {
            self.accepts(statement, now).unwrap();
        }
        authority::finish_rotation(&self.0).unwrap();
        all
    }

    fn key(&self) -> [u8; 16] {
        Authority::load(&self.0).unwrap().key().unwrap()
    }

    fn believed(&self, now: Moment) -> Vec<[u8; 16]> {
        let believed = self.statements().believed(now);
        let read = believed
            .iter()
            .map(|der| Certificate::read(der).unwrap().key);
        read.collect()
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.path());
    }
}

#[test]
fn a_statement_holds_where_its_signer_is_believed_and_nowhere_else() {
    let (hall, stranger) = (Hall::new(), Hall::new());
    let peer = hall.peer();
    let forget = hall.states(Stated::Forget(ROOF));
    assert_eq!(
        peer.accepts(&forget, NOW),
        Ok(Some(Change::Forgotten(ROOF)))
    );
    assert_eq!(peer.accepts(&forget, NOW), Ok(None), "once");
    let again = hall.states(Stated::Forget(ROOF));
    assert_eq!(peer.accepts(&again, NOW), Ok(None), "of a node one is kept");
    assert_eq!(peer.statements().all().len(), 1);
    assert!(peer.statements().forgotten().contains(&ROOF));
    // Of another cluster.
    let foreign = stranger.states(Stated::Forget(ROOF));
    assert_eq!(peer.accepts(&foreign, NOW), Err(Refusal::OtherCluster));
    // Of a key that says that it is of this cluster, and that nobody has named.
    let cluster = hall.statements().cluster();
    let signer = stranger.key();
    let renamed = [&forget[..8], &cluster[..], &signer[..], &foreign[40..]].concat();
    let refused = peer.accepts(&renamed, NOW);
    assert_eq!(refused, Err(Refusal::NotBelieved { signer }));
    // Each changed byte is found.
    let other = hall.states(Stated::Forget(NodeId([8; 16])));
    for at in 0..other.len() {
        let mut changed = other.clone();
        changed[at] ^= 1;
        assert!(peer.accepts(&changed, NOW).is_err(), "byte {at}");
    }
    assert_eq!(peer.statements().all().len(), 1);
}

#[test]
fn a_key_follows_another_and_both_are_believed_until_the_old_one_ends() {
    let hall = Hall::new();
    let (peer, away) = (hall.peer(), hall.peer());
    let old = hall.key();
    let forget = hall.states(Stated::Forget(ROOF));
    for node in [&hall, &peer, &away] {
        node.accepts(&forget, NOW).unwrap();
    }
    let day = 86_400;
    let stated = hall.rotate(End::After(Duration::from_secs(30 * day)), NOW);
    let new = hall.key();
    assert_ne!(new, old);
    let before = Certificate::read(&authority::identity(&hall.0).unwrap().certificate).unwrap();
    assert!(hall.statements().is_outdated(&before, NOW));
    authority::renew_own(&hall.0, NOW).unwrap();
    let renewed = Certificate::read(&authority::identity(&hall.0).unwrap().certificate).unwrap();
    assert!(!hall.statements().is_outdated(&renewed, NOW));
    assert_eq!(renewed.node(), before.node(), "a node keeps its key");
    for statement in &stated {
        peer.accepts(statement, NOW).unwrap();
    }
    // The latest comes first.
    assert_eq!(peer.believed(later(29 * day)), [new, old]);
    assert_eq!(peer.believed(later(30 * day)), [new]);
    assert_eq!(hall.statements().cluster(), old, "a cluster keeps its id");
    // What is kept then is what a newcomer gets, who knows the new key alone: it hears who was
    // forgotten by the old one.
    let mut late = peer.statements();
    late.keep(&peer.0, later(31 * day)).unwrap();
    late = peer.statements();
    assert_eq!(peer.believed(later(31 * day)), [new]);
    let newcomer = peer.peer();
    let heard = late
        .all()
        .iter()
        .filter_map(|statement| newcomer.accepts(statement, later(31 * day)).ok().flatten());
    assert_eq!(heard.collect::<Vec<_>>(), [Change::Forgotten(ROOF)]);
    // One that was away hears of it later, by the key that it knows.
    for statement in late.all() {
        away.accepts(statement, later(31 * day)).unwrap();
    }
    assert_eq!(away.believed(later(31 * day)), [new]);
    // A cluster is rotated again.
    hall.rotate(End::After(Duration::from_secs(day)), later(40 * day));
    assert_eq!(hall.believed(later(41 * day)), [hall.key()]);
    assert_eq!(hall.statements().cluster(), old);
}

#[test]
fn a_key_that_has_a_successor_signs_nothing_more() {
    let hall = Hall::new();
    let copy = authority::copy(&hall.0).unwrap();
    let second = hall.peer();
    authority::install(&second.0, &copy, NOW).unwrap();
    let early = second.states(Stated::Forget(ROOF));
    for statement in hall.rotate(End::After(Duration::from_secs(60)), NOW) {
        second.accepts(&statement, NOW).unwrap();
    }
    assert!(matches!(
        Authority::load(&second.0),
        Err(NodeError::Superseded { .. })
    ));
    assert!(matches!(
        authority::install(&second.0, &copy, NOW),
        Err(NodeError::Superseded { .. })
    ));
    // What it has signed before holds as long as it is believed.
    assert!(hall.accepts(&early, later(59)).is_ok());
    let copy = authority::copy(&hall.0).unwrap();
    authority::install(&second.0, &copy, NOW).unwrap();
    assert_eq!(second.key(), hall.key());
}

#[test]
fn a_stolen_key_is_retired_with_all_that_follows_it_but_the_one_that_says_so() {
    let hall = Hall::new();
    let (thief, peer) = (hall.peer(), hall.peer());
    authority::install(&thief.0, &authority::copy(&hall.0).unwrap(), NOW).unwrap();
    let stolen = thief.key();
    // The thief makes a key of its own, and a node has heard of it.
    let of_thief = thief.rotate(End::After(Duration::from_secs(60)), NOW);
    peer.accepts(&of_thief[0], NOW).unwrap();
    assert_eq!(peer.believed(NOW).len(), 2);
    let revoked = hall.rotate(End::Now, NOW);
    let new = hall.key();
    for statement in &revoked {
        peer.accepts(statement, NOW).unwrap();
    }
    assert_eq!(peer.believed(NOW), [new]);
    // Neither the stolen key nor what it has named is heard any more.
    let forget_hall = Stated::Forget(NodeId([1; 16]));
    let refused = peer.accepts(&thief.states(forget_hall), NOW);
    assert!(
        matches!(refused, Err(Refusal::NotBelieved { .. })),
        "{refused:?}"
    );
    let again = thief.rotate(End::Now, NOW);
    for statement in &again {
        let refused = peer.accepts(statement, NOW);
        assert!(refused.is_err(), "{refused:?}");
    }
    // An old key does not retire a new one, nor itself.
    let another = Hall::new();
    let old = authority::copy(&another.0).unwrap();
    let witness = another.peer();
    authority::install(&witness.0, &old, NOW).unwrap();
    let signs = Authority::load(&witness.0).unwrap();
    for statement in another.rotate(End::After(Duration::from_secs(60)), NOW) {
        witness.accepts(&statement, NOW).unwrap();
    }
    for key in [another.key(), signs.key().unwrap()] {
        let retire = signs.state(Stated::Retire(key), NOW).unwrap();
        let refused = witness.accepts(&retire, NOW);
        assert!(matches!(refused, Err(Refusal::Wrong { .. })), "{refused:?}");
    }
    assert_ne!(stolen, new);
}

#[test]
fn a_revocation_takes_the_keys_of_before_with_it_and_wakes_none_of_them() {
    let hall = Hall::new();
    let first = hall.key();
    let copy = authority::copy(&hall.0).unwrap();
    let thief = hall.peer();
    authority::install(&thief.0, &copy, NOW).unwrap();
    let signs = Authority::load(&thief.0).unwrap();
    for statement in hall.rotate(End::After(Duration::from_secs(86_400)), NOW) {
        thief.accepts(&statement, NOW).unwrap();
    }
    let second = hall.key();
    assert_eq!(hall.believed(NOW), [second, first]);
    let revoked = hall.rotate(End::Now, NOW);
    assert_eq!(hall.believed(NOW), [hall.key()]);
    // A key whose successor is retired has the one behind that as its successor.
    let is_last =
        |it: &&Vec<u8>| Statement::decode(it).is_ok_and(|it| it.stated == Stated::Retire(first));
    for statement in revoked.iter().filter(|it| !is_last(it)) {
        thief.accepts(statement, NOW).unwrap();
    }
    assert_eq!(thief.believed(NOW), [hall.key(), first]);
    let loaded = Authority::load(&thief.0);
    assert!(
        matches!(loaded, Err(NodeError::Superseded { .. })),
        "{loaded:?}"
    );
    // And none of them is believed in the end.
    for statement in revoked.iter().filter(is_last) {
        thief.accepts(statement, NOW).unwrap();
    }
    assert_eq!(thief.believed(NOW), [hall.key()]);
    let forget = signs.state(Stated::Forget(ROOF), NOW).unwrap();
    let refused = hall.accepts(&forget, NOW);
    assert!(
        matches!(refused, Err(Refusal::NotBelieved { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_rotation_that_died_in_the_middle_is_finished_or_begun_again() {
    let hall = Hall::new();
    let old = hall.key();
    let end = End::After(Duration::from_secs(60));
    // It died before anybody heard of the new key.
    authority::rotate(&hall.0, end, NOW).unwrap();
    assert_eq!(hall.key(), old);
    // It died when the node had accepted it: the key is there.
    let stated = authority::rotate(&hall.0, end, NOW).unwrap();
    hall.accepts(&stated[0], NOW).unwrap();
    let Ok(Stated::Succeed { certificate, .. }) = Statement::decode(&stated[0]).map(|it| it.stated)
    else {
        panic!("{stated:?}");
    };
    assert_eq!(hall.key(), Certificate::read(certificate).unwrap().key);
    assert!(!hall.0.has("authority.key.next"));
}

#[test]
fn so_many_statements_are_kept_and_no_more() {
    let hall = Hall::new();
    let mut statements = hall.statements();
    let authority = Authority::load(&hall.0).unwrap();
    let forget = |number: usize| {
        let mut node = [9; 16];
        node[..8].copy_from_slice(&number.to_le_bytes());
        authority.state(Stated::Forget(NodeId(node)), NOW).unwrap()
    };
    for number in 0..MOST {
        statements.accept(&forget(number), NOW).unwrap();
    }
    let refused = statements.accept(&forget(MOST), NOW);
    assert_eq!(refused, Err(Refusal::TooMany));
    statements.keep(&hall.0, NOW).unwrap();
    assert_eq!(hall.statements().forgotten().len(), MOST);
}
