//! Whatever is out of the ordinary leaves the straight lines of a call, and ends as it would
//! have ended without them.
#![allow(clippy::panic, reason = "in a test")]

use portolan_proto::{
    Call, CallId, Client, Closed, Flags, Header, Kind, Looked, Misbehaved, NotCalled, Outcome,
    PacketPath, Pipe, Seal, Server, Settings, Status, Time, seal,
};
use std::time::Duration;

const NOW: Time = Time(1 << 40);
const METHOD: u32 = 0xfeed;
const SESSION: u64 = 7;

/// A client and a server that know one another, and what is between them.
struct Both {
    client: Client,
    server: Server,
    at_client: Pipe,
    at_server: Pipe,
    body: Vec<u8>,
}

impl Both {
    fn new() -> Self {
        let settings = Settings {
            packet: 64,
            ..Settings::default()
        };
        let (at_client, at_server) = Pipe::pair();
        let mut client = Client::new(settings, SESSION);
        client.met(1);
        Self {
            client,
            server: Server::new(settings, SESSION, 1),
            at_client,
            at_server,
            body: Vec::new(),
        }
    }

    fn straight(&mut self, call: Call, arguments: &[u8]) -> Option<CallId> {
        let mut body = arguments.to_vec();
        let id = self
            .client
            .call_straight(NOW, &mut self.at_client, call, &mut body);
        let rest = if id.is_some() { &[][..] } else { arguments };
        assert_eq!(body, rest, "arguments that were not taken are untouched");
        id
    }

    fn call(&mut self, call: Call, arguments: &[u8]) -> Result<CallId, NotCalled> {
        let mut body = arguments.to_vec();
        self.client.call(NOW, &mut self.at_client, call, &mut body)
    }

    fn looked(&mut self) -> Result<Looked, Closed> {
        self.server
            .poll_call(NOW, &mut self.at_server, &mut self.body)
    }

    /// The number of the call that is handed out in a straight line.
    fn in_line(&mut self) -> u64 {
        match self.looked() {
            Ok(Looked::Call(incoming)) => incoming.number,
            other => panic!("the straight line was left: {other:?}"),
        }
    }

    /// The number that is handed out, if any is, after a packet was handled in the general way.
    fn beside_the_line(&mut self) -> Option<u64> {
        assert_eq!(self.looked(), Ok(Looked::Packet));
        self.taken()
    }

    fn taken(&mut self) -> Option<u64> {
        let taken = self.server.take(NOW, &mut self.body);
        taken.map(|incoming| incoming.number)
    }

    fn answer(&mut self, number: u64, result: &[u8]) {
        let answered = self.server.answer(
            &mut self.at_server,
            number,
            Status::Returned,
            &mut result.to_vec(),
        );
        assert_eq!(answered, Ok(()));
    }

    fn poll_for(&mut self, id: CallId) -> Option<Outcome> {
        self.client
            .poll_for(NOW, &mut self.at_client, id, &mut self.body)
    }

    /// A packet that its sender's machine would not send, but with the right checksum.
    fn send(&mut self, from_client: bool, header: Header, number: u64, body: &[u8]) {
        let link = if from_client {
            &mut self.at_client
        } else {
            &mut self.at_server
        };
        let mut packet = Vec::new();
        let key = Seal::new(SESSION, 1);
        seal(&key, link.position(), header, number, body, &mut packet);
        link.send(&packet);
    }

    /// Calls and answers go in straight lines again, with both ends' results.
    fn goes_on(&mut self) {
        let id = self.straight(Call::new(METHOD), b"again").unwrap();
        let number = self.in_line();
        assert_eq!(self.body, b"again");
        self.answer(number, b"and back");
        let outcome = self.poll_for(id);
        assert_eq!(outcome, Some(Outcome::Answered(Status::Returned)));
        assert_eq!(self.body, b"and back");
        assert_eq!(self.client.open(), 0);
        assert_eq!(self.client.next_timeout(), None);
    }
}

fn header(kind: Kind) -> Header {
    Header {
        kind,
        flags: Flags(0),
        what: METHOD,
        number: 0,
        behind: 0,
        when: portolan_abi::rpc::NO_DEADLINE,
    }
}

const RETURNED: Option<Outcome> = Some(Outcome::Answered(Status::Returned));

#[test]
fn ordinary_calls_stay_in_line_also_several_at_a_time_and_unchecked() {
    let mut both = Both::new();
    for _ in 0..200 {
        both.goes_on();
    }
    let unchecked = Call {
        flags: Flags::UNCHECKED,
        ..Call::new(METHOD)
    };
    let ids = [unchecked, Call::new(METHOD), unchecked].map(|call| both.straight(call, b"x"));
    for id in ids {
        let number = both.in_line();
        both.answer(number, b"y");
        assert_eq!(both.poll_for(id.unwrap()), RETURNED);
    }
    both.goes_on();
}

#[test]
fn a_call_that_is_not_ordinary_is_made_in_the_general_way() {
    let mut both = Both::new();
    for flags in [Flags::ONE_WAY, Flags::BEST_EFFORT] {
        let call = Call {
            flags,
            ..Call::new(METHOD)
        };
        assert_eq!(both.straight(call, b"x"), None);
        let id = both.call(call, b"x").unwrap();
        let number = match both.looked() {
            Ok(Looked::Call(incoming)) => incoming.number,
            Ok(Looked::Packet) => both.taken().unwrap(),
            other => panic!("{other:?}"),
        };
        both.answer(number, b"");
        let one_way = flags == Flags::ONE_WAY;
        assert_eq!(both.poll_for(id), if one_way { None } else { RETURNED });
        both.goes_on();
    }
    // In pieces, and there in pieces.
    let long = vec![3; 500];
    assert_eq!(both.straight(Call::new(METHOD), &long), None);
    let id = both.call(Call::new(METHOD), &long).unwrap();
    let mut taken = None;
    while taken.is_none() {
        taken = both.beside_the_line();
    }
    assert_eq!(both.body, long);
    both.answer(taken.unwrap(), &long);
    while both.poll_for(id).is_none() {}
    assert_eq!(both.body, long);
    // That it has it all.
    assert_eq!(both.beside_the_line(), None);
    both.goes_on();
}

#[test]
fn a_call_that_cannot_be_made_is_refused_as_before() {
    let mut both = Both::new();
    let too_long = vec![0; (1 << 20) + 1];
    assert_eq!(both.straight(Call::new(METHOD), &too_long), None);
    let refused = both.call(Call::new(METHOD), &too_long);
    assert!(matches!(refused, Err(NotCalled::TooLong { .. })));
    let open = (0..64).map(|_| both.straight(Call::new(METHOD), b"x").unwrap());
    let open = open.collect::<Vec<_>>();
    assert_eq!(both.straight(Call::new(METHOD), b"x"), None);
    let refused = both.call(Call::new(METHOD), b"x");
    assert_eq!(refused, Err(NotCalled::WindowFull { open: 64 }));
    // One that stays open is in the way of a number, which is passed over.
    for (at, id) in open.iter().enumerate() {
        let number = both.in_line();
        if at != 0 {
            both.answer(number, b"");
            assert_eq!(both.poll_for(*id), RETURNED);
        }
    }
    assert_eq!(both.straight(Call::new(METHOD), b"x"), None);
    let id = both.call(Call::new(METHOD), b"x").unwrap();
    let number = both.beside_the_line();
    assert_eq!(number, Some(66));
    both.answer(66, b"");
    assert_eq!(both.poll_for(id), RETURNED);
    both.client.close(&mut both.at_client);
    assert_eq!(both.straight(Call::new(METHOD), b"x"), None);
    let refused = both.call(Call::new(METHOD), b"x");
    assert_eq!(refused, Err(NotCalled::Closed(Closed::Here)));
    assert_eq!(both.poll_for(open[0]), Some(Outcome::Closed(Closed::Here)));
}

#[test]
fn a_call_before_the_server_is_known_waits_for_it() {
    let mut both = Both::new();
    both.client = Client::new(Settings::default(), SESSION);
    both.client.greet(&mut both.at_client);
    assert_eq!(both.straight(Call::new(METHOD), b"x"), None);
    let id = both.call(Call::new(METHOD), b"x").unwrap();
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.looked(), Ok(Looked::Nothing));
    assert_eq!(both.poll_for(id), None);
    let number = both.in_line();
    both.answer(number, b"");
    assert_eq!(both.poll_for(id), RETURNED);
    both.goes_on();
}

#[test]
fn what_is_damaged_or_repeated_runs_no_call() {
    let mut both = Both::new();
    let call = header(Kind::Call);
    both.at_client.send(b"nothing of the kind");
    both.at_client.send(b"short");
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.server.counts().damaged, 2);
    let id = both.straight(Call::new(METHOD), b"x").unwrap();
    assert_eq!(both.in_line(), 1);
    both.send(true, call, 1, b"x");
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.server.counts().repeated, 1);
    both.at_server.send(b"no answer whatever it is");
    both.answer(1, b"y");
    assert_eq!(both.poll_for(id), None);
    assert_eq!(both.client.counts().damaged, 1);
    assert_eq!(both.poll_for(id), RETURNED);
    both.goes_on();
}

#[test]
fn a_number_that_is_left_out_holds_up_those_behind_it() {
    let mut both = Both::new();
    let call = Header {
        behind: 1,
        ..header(Kind::Call)
    };
    both.send(true, call, 2, b"second");
    assert_eq!(both.beside_the_line(), None);
    both.send(true, header(Kind::Call), 1, b"first");
    // It is the one that is expected, but not the only one.
    assert_eq!(both.beside_the_line(), Some(1));
    assert_eq!(both.body, b"first");
    assert_eq!(both.taken(), Some(2));
    assert_eq!(both.body, b"second");
    let call = Header {
        behind: 0,
        ..header(Kind::Call)
    };
    both.send(true, call, 3, b"third");
    assert_eq!(both.in_line(), 3);
}

#[test]
fn calls_that_wait_to_be_taken_go_first() {
    let mut both = Both::new();
    both.send(true, header(Kind::Call), 1, b"first");
    assert_eq!(both.server.poll(NOW, &mut both.at_server), Ok(true));
    both.send(true, header(Kind::Call), 2, b"second");
    assert_eq!(both.beside_the_line(), Some(1));
    assert_eq!(both.taken(), Some(2));
    assert_eq!(both.body, b"second");
}

#[test]
fn a_number_that_was_given_up_does_not_run_when_it_comes() {
    let mut both = Both::new();
    let not_wanted = Header {
        what: portolan_abi::rpc::NOT_WANTED,
        behind: 1,
        ..header(Kind::Cancel)
    };
    both.send(true, not_wanted, 2, b"");
    assert_eq!(both.beside_the_line(), None);
    both.send(true, header(Kind::Call), 1, b"first");
    assert_eq!(both.beside_the_line(), Some(1));
    both.send(true, header(Kind::Call), 2, b"second");
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.server.counts().repeated, 1);
    both.send(true, header(Kind::Call), 3, b"third");
    assert_eq!(both.in_line(), 3);
}

#[test]
fn a_call_that_comes_too_late_is_answered_so_and_does_not_run() {
    let mut both = Both::new();
    let late = Call {
        deadline: Some(Time(NOW.0 - (1 << 24))),
        ..Call::new(METHOD)
    };
    let id = both.straight(late, b"x").unwrap();
    assert_eq!(both.beside_the_line(), None);
    assert_eq!(both.server.counts().too_late, 1);
    // It is told when it asks.
    both.client.review(NOW, &mut both.at_client);
    assert_eq!(both.poll_for(id), Some(Outcome::Deadline));
}

#[test]
fn a_place_whose_call_still_runs_is_taken_from_it() {
    let mut both = Both::new();
    both.send(true, header(Kind::Call), 1, b"first");
    assert_eq!(both.in_line(), 1);
    for number in 2..=64 {
        both.send(true, header(Kind::Call), number, b"x");
        assert_eq!(both.in_line(), number);
        both.answer(number, b"");
    }
    // A client that uses the place of the first again does not wait for it.
    both.send(true, header(Kind::Call), 65, b"next");
    assert_eq!(both.beside_the_line(), Some(65));
    assert_eq!(both.body, b"next");
    assert_eq!(both.server.take_cancelled(), Some(1));
    both.answer(65, b"");
    let stale = both.server.answer(
        &mut both.at_server,
        1,
        Status::Returned,
        &mut b"late".to_vec(),
    );
    assert!(stale.is_err());
}

#[test]
fn what_no_honest_client_sends_closes_the_connection() {
    for behind in [64, 1] {
        let mut both = Both::new();
        let call = Header {
            behind,
            ..header(Kind::Call)
        };
        both.send(true, call, 1, b"x");
        let misbehaved = Misbehaved::Number {
            number: 1,
            expected: 1,
        };
        assert_eq!(both.looked(), Err(Closed::Misbehaved(misbehaved)));
        assert_eq!(both.looked(), Err(Closed::Misbehaved(misbehaved)));
    }
    let mut both = Both::new();
    both.send(true, header(Kind::Answer), 1, b"x");
    assert!(matches!(
        both.looked(),
        Err(Closed::Misbehaved(Misbehaved::WrongSide { .. }))
    ));
}

#[test]
fn another_calls_answer_is_kept_for_that_call() {
    let mut both = Both::new();
    let first = both.straight(Call::new(METHOD), b"first").unwrap();
    let second = both.straight(Call::new(METHOD), b"second").unwrap();
    assert_eq!((both.in_line(), both.in_line()), (1, 2));
    both.answer(2, b"to the second");
    both.answer(1, b"to the first");
    assert_eq!(both.poll_for(first), None);
    assert_eq!(both.poll_for(first), RETURNED);
    assert_eq!(both.body, b"to the first");
    assert_eq!(both.poll_for(second), RETURNED);
    assert_eq!(both.body, b"to the second");
    both.goes_on();
}

#[test]
fn an_answer_that_no_call_waits_for_is_late() {
    let mut both = Both::new();
    let given_up = both.straight(Call::new(METHOD), b"x").unwrap();
    let waits = both.straight(Call::new(METHOD), b"x").unwrap();
    assert_eq!((both.in_line(), both.in_line()), (1, 2));
    both.answer(1, b"in vain");
    both.answer(2, b"y");
    assert!(both.client.cancel(&mut both.at_client, given_up));
    assert_eq!(both.poll_for(given_up), None);
    assert_eq!(both.client.counts().late, 1);
    assert_eq!(both.poll_for(waits), RETURNED);
    assert_eq!(both.beside_the_line(), None);
    both.goes_on();
}

#[test]
fn an_answer_tells_of_one_way_calls_that_have_arrived() {
    let mut both = Both::new();
    let one_way = Call {
        flags: Flags::ONE_WAY,
        ..Call::new(METHOD)
    };
    both.call(one_way, b"posted").unwrap();
    let id = both.straight(Call::new(METHOD), b"x").unwrap();
    assert_eq!(both.client.posted(), 1);
    assert_eq!(both.beside_the_line(), Some(1));
    assert_eq!(both.in_line(), 2);
    both.answer(2, b"y");
    assert_eq!(both.poll_for(id), RETURNED);
    assert_eq!((both.client.posted(), both.client.open()), (0, 0));
    assert_eq!(both.client.next_timeout(), None);
    both.goes_on();
}

#[test]
fn what_no_honest_server_sends_ends_the_calls() {
    let answer = Header {
        what: Status::Returned as u32,
        when: 2,
        ..header(Kind::Answer)
    };
    let status = Header { what: 99, ..answer };
    let ahead = Header { when: 3, ..answer };
    let call = header(Kind::Call);
    for wrong in [status, ahead, call] {
        let mut both = Both::new();
        let id = both.straight(Call::new(METHOD), b"x").unwrap();
        both.send(false, wrong, 1, b"y");
        let outcome = both.poll_for(id);
        assert!(
            matches!(outcome, Some(Outcome::Closed(Closed::Misbehaved(_)))),
            "{wrong:?}: {outcome:?}"
        );
        assert!(both.client.closed().is_some());
    }
    // Of a number that was never given.
    let mut both = Both::new();
    let id = both.straight(Call::new(METHOD), b"x").unwrap();
    both.send(false, Header { when: 1, ..answer }, 5, b"y");
    assert_eq!(both.poll_for(id), None);
    assert_eq!(both.client.counts().late, 1);
}

#[test]
fn an_answer_after_pieces_of_it_ends_the_call_once() {
    let mut both = Both::new();
    let id = both.straight(Call::new(METHOD), b"x").unwrap();
    assert_eq!(both.in_line(), 1);
    let long = vec![5; 500];
    both.answer(1, &long);
    assert_eq!(both.poll_for(id), None, "the first piece");
    let whole = Header {
        what: Status::Returned as u32,
        when: 2,
        ..header(Kind::Answer)
    };
    // Of which no honest server sends both, and a client makes the best.
    let mut client = std::mem::replace(&mut both.client, Client::new(Settings::default(), 1));
    let mut rest = Vec::new();
    while both.at_client.receive(&mut rest).is_some() {}
    both.send(false, whole, 1, b"whole");
    assert_eq!(
        client.poll_for(NOW, &mut both.at_client, id, &mut both.body),
        RETURNED
    );
    assert_eq!(both.body, b"whole");
    assert_eq!((client.open(), client.next_timeout()), (0, None));
    let period = Settings::default().period + Duration::from_secs(1);
    client.review(NOW.after(period), &mut both.at_client);
    assert_eq!(client.counts().asked, 0);
}
