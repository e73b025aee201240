//! A client that was stopped reviews at once what has become due meanwhile: some calls are past
//! their deadlines, about others it asks.

use portolan_proto::{
    Call, CallId, Client, Closed, Flags, Outcome, Pipe, Server, Settings, Status, Time, WINDOW,
};

const METHOD: u32 = 0xfeed;
const ANSWERED: Option<Outcome> = Some(Outcome::Answered(Status::Returned));

/// A client and a server that have met, and the ends of their links.
struct Both {
    client: Client,
    at_client: Pipe,
    server: Server,
    at_server: Pipe,
    now: Time,
}

impl Both {
    fn new() -> Self {
        let (at_client, at_server) = Pipe::pair();
        let mut client = Client::new(Settings::default(), 7);
        client.met(1);
        Self {
            client,
            at_client,
            server: Server::new(Settings::default(), 7, 1),
            at_server,
            now: Time::ZERO,
        }
    }

    fn call(&mut self, call: Call) -> CallId {
        let made = self
            .client
            .call(self.now, &mut self.at_client, call, &mut vec![1]);
        made.unwrap()
    }

    /// A call whose packet is lost.
    fn call_in_vain(&mut self, call: Call) -> CallId {
        let (mut lost, _) = Pipe::pair();
        let made = self.client.call(self.now, &mut lost, call, &mut vec![1]);
        made.unwrap()
    }

    /// Both do what is due until nothing is under way; the numbers that ran.
    fn talk(&mut self) -> Result<Vec<u64>, Closed> {
        let mut ran = Vec::new();
        for _ in 0..4 {
            while self.server.poll(self.now, &mut self.at_server)? {}
            while let Some(incoming) = self.server.take(self.now, &mut Vec::new()) {
                let (number, status) = (incoming.number, Status::Returned);
                let answer = &mut Vec::new();
                let answered = self
                    .server
                    .answer(&mut self.at_server, number, status, answer);
                answered.unwrap();
                ran.push(number);
            }
            while self.client.poll(self.now, &mut self.at_client)? {}
        }
        Ok(ran)
    }

    fn take(&mut self, id: CallId) -> Option<Outcome> {
        self.client.take(id, &mut Vec::new())
    }

    /// Reviews what is due after a period, and talks.
    fn review_after_a_period(&mut self) -> Result<Vec<u64>, Closed> {
        self.now = self.now.after(Settings::default().period);
        self.client.review(self.now, &mut self.at_client);
        self.talk()
    }

    /// Of two calls that are lost, the earlier one ends at its deadline in the very review that
    /// asks about the later one, whose place comes first. What ran, and the later one.
    fn ends_one_and_asks_about_the_next(&mut self) -> (Vec<u64>, CallId) {
        // The last place is that of the next number.
        for number in 1..WINDOW - 1 {
            let id = self.call(Call::new(METHOD));
            assert_eq!(self.talk(), Ok(vec![number]));
            assert_eq!(self.take(id), ANSWERED);
        }
        let short = Call {
            deadline: Some(self.now.after(Settings::default().period)),
            ..Call::new(METHOD)
        };
        let short = self.call_in_vain(short);
        let later = self.call_in_vain(Call::new(METHOD));
        assert_eq!(self.client.number(short), Some(WINDOW - 1));
        assert_eq!(self.client.number(later), Some(WINDOW));
        let ran = self.review_after_a_period().unwrap();
        assert_eq!(self.take(short), Some(Outcome::Deadline));
        (ran, later)
    }
}

#[test]
fn a_server_is_asked_about_no_number_that_was_not_used() {
    let mut both = Both::new();
    let (mut ran, later) = both.ends_one_and_asks_about_the_next();
    ran.extend(both.review_after_a_period().unwrap());
    assert_eq!((ran, both.take(later)), (vec![WINDOW], ANSWERED));
    assert_eq!(both.server.expected(), WINDOW + 1);
}

#[test]
fn the_one_way_call_that_follows_has_run_once_it_is_known_to_have_arrived() {
    let mut both = Both::new();
    let (mut ran, later) = both.ends_one_and_asks_about_the_next();
    let post = Call {
        flags: Flags::ONE_WAY,
        ..Call::new(METHOD)
    };
    both.call(post);
    ran.extend(both.talk().unwrap());
    while both.client.posted() > 0 {
        ran.extend(both.review_after_a_period().unwrap());
    }
    assert_eq!(ran, [WINDOW, WINDOW + 1]);
    assert_eq!(both.take(later), ANSWERED);
}
