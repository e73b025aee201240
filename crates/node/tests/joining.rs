//! Joining in one process, with a clock of the test's: who is let in, and what is used up when.

use std::time::Duration;

use portolan_abi::join::{JOIN_MAGIC, JOIN_VERSION, JoinAnswer, JoinOutcome, JoinRequest};
use portolan_node::authority::{self, Authority, renew_at};
use portolan_node::invitations;
use portolan_node::join::{Rates, answer};
use portolan_node::state::State;
use portolan_node::token::{GOOD_FOR, Token};
use portolan_testkit::unique;
use portolan_transport::Moment;
use portolan_transport::tls::Certificate;

const NOW: Moment = Moment {
    seconds: 1_800_000_000,
};
const BINDING: [u8; 32] = [7; 32];

fn later(seconds: u64) -> Moment {
    Moment {
        seconds: NOW.seconds + seconds,
    }
}

/// A node that lets others in; its directory goes with it.
struct Hall {
    state: State,
}

impl Hall {
    fn new() -> Self {
        let path = std::env::temp_dir().join(unique("hall"));
        let state = State::at(&path).unwrap();
        authority::make_first(&state, "hall", NOW).unwrap();
        Self { state }
    }

    fn invite(&self) -> Token {
        let key = Authority::load(&self.state).unwrap().key().unwrap();
        invitations::invite(&self.state, "hall:7411", key, NOW).unwrap()
    }

    fn outcome(&self, bytes: &[u8], now: Moment) -> Option<JoinOutcome> {
        let answer = answer(&self.state, bytes, &BINDING, "a test", now)?;
        Some(
            JoinAnswer::decode(&answer[..JoinAnswer::BYTES])
                .unwrap()
                .outcome,
        )
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.state.path());
    }
}

/// The bytes of a request by this token, on the connection with this binding.
fn request(token: &Token, binding: &[u8; 32], name: &str) -> Vec<u8> {
    let (_, signing) = authority::request(name).unwrap();
    let head = JoinRequest {
        magic: JOIN_MAGIC,
        version: JOIN_VERSION,
        invitation: invitations::number(&token.secret),
        proof: invitations::proof(&token.secret, binding, name, &signing),
        name: u16::try_from(name.len()).unwrap(),
        request: u16::try_from(signing.len()).unwrap(),
    };
    [&head.encode()[..], name.as_bytes(), &signing].concat()
}

#[test]
fn a_request_that_comes_byte_by_byte_is_answered_when_it_is_whole_and_once() {
    let hall = Hall::new();
    let token = hall.invite();
    let bytes = request(&token, &BINDING, "roof");
    for len in 0..bytes.len() {
        assert_eq!(hall.outcome(&bytes[..len], NOW), None, "{len} bytes");
    }
    assert_eq!(hall.outcome(&bytes, NOW), Some(JoinOutcome::Welcome));
    assert_eq!(
        hall.outcome(&bytes, NOW),
        Some(JoinOutcome::Unknown),
        "replayed"
    );
    let other = request(&token, &BINDING, "cellar");
    assert_eq!(
        hall.outcome(&other, NOW),
        Some(JoinOutcome::Unknown),
        "used again"
    );
}

#[test]
fn a_wrong_proof_spoils_nothing() {
    let hall = Hall::new();
    let token = hall.invite();
    // Relayed: the proof is of another TLS session.
    let relayed = request(&token, &[8; 32], "roof");
    assert_eq!(hall.outcome(&relayed, NOW), Some(JoinOutcome::WrongProof));
    let right = request(&token, &BINDING, "roof");
    // The proof is of this name and of this key: each byte counts.
    for at in JoinRequest::BYTES - 36..right.len() {
        let mut changed = right.clone();
        changed[at] ^= 1;
        let outcome = hall.outcome(&changed, NOW);
        assert_ne!(outcome, Some(JoinOutcome::Welcome), "byte {at}");
    }
    let longer = [&right[..], b"x"].concat();
    assert_eq!(hall.outcome(&longer, NOW), Some(JoinOutcome::BadRequest));
    let mut version = right.clone();
    version[4] = 9;
    assert_eq!(hall.outcome(&version, NOW), Some(JoinOutcome::Version));
    assert_eq!(hall.outcome(&right, NOW), Some(JoinOutcome::Welcome));
}

#[test]
fn a_token_is_good_for_ten_minutes_by_the_clock_of_who_gave_it() {
    let hall = Hall::new();
    let (first, second) = (hall.invite(), hall.invite());
    let good = GOOD_FOR.as_secs();
    let late = hall.outcome(&request(&first, &BINDING, "roof"), later(good + 1));
    assert_eq!(late, Some(JoinOutcome::Expired));
    // Not even if the clock goes back: it was used up.
    let again = hall.outcome(&request(&first, &BINDING, "roof"), NOW);
    assert_eq!(again, Some(JoinOutcome::Unknown));
    let in_time = hall.outcome(&request(&second, &BINDING, "roof"), later(good));
    assert_eq!(in_time, Some(JoinOutcome::Welcome));
    let third = hall.invite();
    invitations::sweep(&hall.state, later(good)).unwrap();
    let kept = std::fs::read_dir(hall.state.file("invitations"))
        .unwrap()
        .count();
    assert_eq!(kept, 1);
    invitations::sweep(&hall.state, later(good + 1)).unwrap();
    let swept = hall.outcome(&request(&third, &BINDING, "roof"), NOW);
    assert_eq!(swept, Some(JoinOutcome::Unknown));
}

#[test]
fn what_cannot_be_logged_does_not_happen_and_the_token_is_used_up() {
    let hall = Hall::new();
    let token = hall.invite();
    // A directory in the log's place: no line can be written.
    std::fs::create_dir(hall.state.file("audit.log")).unwrap();
    let bytes = request(&token, &BINDING, "roof");
    assert_eq!(hall.outcome(&bytes, NOW), Some(JoinOutcome::Failed));
    std::fs::remove_dir(hall.state.file("audit.log")).unwrap();
    assert_eq!(hall.outcome(&bytes, NOW), Some(JoinOutcome::Unknown));
}

#[test]
fn a_node_without_the_authority_lets_nobody_in() {
    let hall = Hall::new();
    let token = hall.invite();
    std::fs::remove_file(hall.state.file("authority.key")).unwrap();
    let refused = hall.outcome(&request(&token, &BINDING, "roof"), NOW);
    assert_eq!(refused, Some(JoinOutcome::NoAuthority));
}

#[test]
fn certificates_last_thirty_days_and_are_renewed_at_two_thirds_with_the_same_key() {
    let hall = Hall::new();
    let read = || {
        let identity = authority::identity(&hall.state).unwrap();
        Certificate::read(&identity.certificate).unwrap()
    };
    let day = 86_400;
    let first = read();
    assert_eq!(first.not_after, later(30 * day));
    // Clocks differ: it is valid from a little before.
    assert!(first.not_before < NOW && renew_at(&first) > later(19 * day));
    assert!(renew_at(&first) <= later(20 * day));
    authority::renew_own(&hall.state, later(20 * day)).unwrap();
    let second = read();
    assert_eq!((second.key, second.not_after), (first.key, later(50 * day)));
    assert_eq!(
        (second.name.as_str(), &second.issuer),
        ("hall", &first.issuer)
    );
    // A certificate of another key is not kept.
    let (key, _) = authority::request("hall").unwrap();
    let authority = Authority::load(&hall.state).unwrap();
    let other = authority.sign("hall", &key, NOW).unwrap();
    assert!(authority::renew(&hall.state, &other).is_err());
    assert_eq!(read(), second);
}

#[test]
fn each_address_and_all_together_are_let_ask_so_often_and_no_more() {
    let mut rates = Rates::default();
    let address = |n: u32| std::net::IpAddr::from(n.to_be_bytes());
    let at = Duration::from_secs;
    let mut allowed = |n, now| rates.allow(address(n), now);
    let first = (0..100).filter(|_| allowed(1, at(1))).count();
    assert_eq!(first, 8);
    assert!(!allowed(1, at(5)) && allowed(1, at(7)) && !allowed(1, at(7)));
    // Many addresses: all together are bounded, and so is what is remembered.
    let many = (2..100_000).filter(|n| allowed(*n, at(100))).count();
    assert!((8..=32).contains(&many), "{many}");
    assert!(allowed(1, at(1_000)), "it passes");
}
