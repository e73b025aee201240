//! Both sides of every handshake, wired together without a socket, in all the ways it can go.

use portolan_abi::denied::Denied;
use portolan_abi::handshake::{Answer, Ask, Grant, Refusal, Request, Why};
use portolan_abi::hello::{Hello, Look, Welcome};
use portolan_abi::limits::MAX_NAME;
use portolan_abi::vmmc::{Ranges, Reach, Way};
use portolan_abi::{FORMAT_VERSION, bridge, vmmc};
use portolan_proto::handshake::{Answerer, Asker, Event, Failure, Garbled, Packet, Step, Unasked};
use proptest::prelude::*;
use std::fmt::Debug;

const WELCOME: Welcome = Welcome {
    space: 3,
    by_host: true,
    incarnation: 9,
    base: 1 << 45,
    len: 1 << 35,
};

fn packet(bytes: &[u8], descriptors: usize) -> Packet<'_> {
    let truncated = false;
    Packet {
        bytes,
        truncated,
        descriptors,
    }
}

fn asked<A: Ask>(packet: Packet<'_>) -> Step<A::Granted, Failure<<A::Granted as Grant>::Why>> {
    Asker::<A, u64>::new(None).step(Event::Came(packet))
}

fn answering<R: Request>(packet: Packet<'_>) -> Step<R, Unasked<R::Why>> {
    Answerer::<R, u64>::new(None).step(Event::Came(packet))
}

/// The whole of what can happen to one handshake, of whatever kind.
fn all_ways<A>(ask: A, granted: A::Granted)
where
    A: Ask + Copy + Debug + PartialEq,
    A::Granted: Copy + Debug + PartialEq,
{
    type W<A> = <<A as Ask>::Granted as Grant>::Why;
    let (request, grant) = (ask.to_bytes(), Answer::Granted(granted).encode());
    let wanted = A::descriptors(&granted);
    assert!(wanted <= A::DESCRIPTORS);
    assert_eq!(answering::<A>(packet(&request, 0)), Step::Done(ask));
    assert_eq!(asked::<A>(packet(&grant, wanted)), Step::Done(granted));

    // Of another version (H2), both learn the other's; even of another length.
    let newer = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[4..8].copy_from_slice(&77_u32.to_le_bytes());
        bytes
    };
    let (version, why) = (77, W::<A>::VERSION);
    for cut in [0, 1] {
        let request = newer(&request[..(request.len() - cut).max(8)]);
        let refuse = Step::Failed(Unasked::Refuse(why, version));
        assert_eq!(answering::<A>(packet(&request, 0)), refuse);
        let grant = newer(&grant[..grant.len() - cut]);
        let value = 0;
        let refusal = Refusal {
            version,
            why,
            value,
        };
        let refused = Step::Failed(Failure::Refused(refusal));
        assert_eq!(asked::<A>(packet(&grant, wanted)), refused);
        let refusal = Answer::<A::Granted>::Refused(refusal).encode();
        assert_eq!(
            asked::<A>(packet(&refusal[..refusal.len() - cut], 0)),
            refused
        );
    }
    let ours = Refusal::new(why);
    assert_eq!(ours.version, FORMAT_VERSION);
    let refusal = Answer::<A::Granted>::Refused(ours).encode();
    assert_eq!(
        asked::<A>(packet(&refusal, 0)),
        Step::Failed(Failure::Refused(ours))
    );

    // Rubbish (H3).
    let rubbish = Step::Failed(Unasked::Refuse(W::<A>::GARBLED, 0));
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    assert_eq!(answering::<A>(packet(b"?", 0)), rubbish);
    assert_eq!(answering::<A>(packet(&longer(&request), 0)), rubbish);
    assert_eq!(answering::<A>(packet(&request, 1)), rubbish);
    let truncated = Packet {
        truncated: true,
        ..packet(&request, 0)
    };
    assert_eq!(answering::<A>(truncated), rubbish);
    for bytes in [&b"?"[..], &longer(&grant), &grant[1..]] {
        let step = asked::<A>(packet(bytes, wanted));
        assert!(
            matches!(step, Step::Failed(Failure::Garbled(Garbled::Record(_)))),
            "{step:?}"
        );
    }
    let found = wanted + 1;
    let garbled = Garbled::Descriptors { found, wanted };
    assert_eq!(
        asked::<A>(packet(&grant, found)),
        Step::Failed(Failure::Garbled(garbled))
    );
    let truncated = Packet {
        truncated: true,
        ..packet(&grant, wanted)
    };
    assert_eq!(
        asked::<A>(truncated),
        Step::Failed(Failure::Garbled(Garbled::Truncated))
    );

    // Deadlines, the end of the connection, and H1.
    let mut asker = Asker::<A, u64>::new(Some(10));
    let mut answerer = Answerer::<A, u64>::new(Some(10));
    assert_eq!(asker.step(Event::Quiet(9)), Step::Wait);
    assert_eq!(answerer.step(Event::Quiet(9)), Step::Wait);
    let (mut asker_left, mut answerer_left) = (asker, answerer);
    assert_eq!(
        asker.step(Event::Quiet(10)),
        Step::Failed(Failure::Unanswered)
    );
    assert_eq!(
        answerer.step(Event::Quiet(10)),
        Step::Failed(Unasked::HangUp)
    );
    assert_eq!(
        asker_left.step(Event::HungUp),
        Step::Failed(Failure::HungUp)
    );
    assert_eq!(
        answerer_left.step(Event::HungUp),
        Step::Failed(Unasked::HangUp)
    );
    for (asker, answerer) in [(asker, answerer), (asker_left, answerer_left)] {
        let (mut asker, mut answerer) = (asker, answerer);
        let late = asker.step(Event::Came(packet(&grant, wanted)));
        assert_eq!(late, Step::Failed(Failure::HungUp));
        let late = answerer.step(Event::Came(packet(&request, 0)));
        assert_eq!(late, Step::Failed(Unasked::HangUp));
    }
}

#[test]
fn newcomers_and_observers_are_answered() {
    let name = [b'x'; MAX_NAME + 1];
    let mut hello = Hello { name };
    hello.name[MAX_NAME] = 0;
    all_ways(hello, WELCOME);
    all_ways(Look {}, WELCOME);
}

#[test]
fn clients_of_another_domain_are_answered() {
    let ask = bridge::Ask {
        sealed: true,
        there: 1 << 20,
        most: 9,
        named: [[5; 16]; 4],
    };
    let granted = bridge::Granted {
        synchronous: false,
        most: 7,
        there: 1 << 20,
        back: 1 << 16,
        window: 9,
        shares: false,
        port: 0,
        secret: [5; 16],
    };
    all_ways(ask, granted);
}

#[test]
fn importers_are_answered_however_they_reach_the_memory() {
    let ask = vmmc::Ask {
        barriers: false,
        brokered: true,
    };
    let kernel = Way::Kernel {
        address: 4096,
        status_page: 8192,
    };
    for way in [Way::Shared, kernel] {
        let granted = vmmc::Granted {
            reach: Reach::Read,
            fences: false,
            way,
            len: 8192,
            ranges: Ranges::default(),
        };
        all_ways(ask, granted);
    }
}

proptest! {
    /// Whatever comes, each side ends, and grants nothing that was not granted.
    #[test]
    fn any_bytes_end_a_handshake(bytes in prop::collection::vec(any::<u8>(), 0..200), fds in 0_usize..5) {
        let rubbish = answering::<bridge::Ask>(packet(&bytes, fds));
        prop_assert!(matches!(rubbish, Step::Failed(Unasked::Refuse(Denied::Garbled, 0))));
        let rubbish = asked::<vmmc::Ask>(packet(&bytes, fds));
        prop_assert!(matches!(rubbish, Step::Failed(Failure::Garbled(_))));
    }
}
