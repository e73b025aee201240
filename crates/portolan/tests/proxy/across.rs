//! Two domains, joined by one thread that carries what comes at proxy ports of the one to ports of
//! the other: as bytes, with requests open in any number, and without a thread for any of them.

use portolan::proxy::{Answer, Answered, Incoming, ProxyPort, Taken, asks_for, time_left};
use portolan::{
    Access, Deadline, Domain, Message, PendingReply, PortOptions, ReceiveRight, RequestError, Room,
    SendError, SendRight, Token, Urgency, WaitSet, WhenFull,
};
use portolan_sys::process::poll;
use portolan_testkit::{Child, PATIENCE, SetOnDrop, obey, unique, until};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MOST: u64 = 8 << 20;

/// Messages that are in the carrier's hands for one port, at the most.
const CREDIT: usize = 8;

/// As bytes, and back in extents of `to`.
fn carried(message: Message, to: &Domain) -> Message {
    let lengths: Vec<u64> = message.slices().map(|part| part.len() as u64).collect();
    let bytes: Vec<u8> = message.slices().flatten().copied().collect();
    let mut stream = &bytes[..];
    let mut incoming = Incoming::new(to, message.header(), &lengths, MOST).unwrap();
    if let Some(left) = time_left(&message) {
        incoming.set_time_left(left);
    }
    while !incoming.is_whole() {
        let taken = stream.read_vectored(&mut incoming.unfilled()).unwrap();
        incoming.filled(taken);
    }
    assert!(stream.is_empty());
    incoming.into_message().unwrap()
}

/// One proxy port, and the port that it stands for.
struct Way {
    proxy: Token<ProxyPort>,
    to: SendRight,
    /// Taken here, and for want of room not sent there.
    waits: VecDeque<(Message, Option<Answer>)>,
    room: Option<Token<Room>>,
}

struct Carrier {
    there: Domain,
    here_set: WaitSet,
    there_set: WaitSet,
    here: Domain,
    ways: Vec<Way>,
    open: BTreeMap<Token, Answer>,
    most_open: usize,
}

impl Carrier {
    fn new(here: &str, there: &str) -> Self {
        let [here, there] = [here, there].map(|name| Domain::join(name).unwrap());
        Self {
            here_set: WaitSet::new(&here).unwrap(),
            there_set: WaitSet::new(&there).unwrap(),
            here,
            there,
            ways: Vec::new(),
            open: BTreeMap::new(),
            most_open: 0,
        }
    }

    /// A port of this name here, which stands for one of the same name there.
    fn join(&mut self, name: &str, options: PortOptions) {
        let to = self.there.connect(name, PATIENCE).unwrap();
        let port = self.here.bind(options).unwrap();
        let proxy = ProxyPort::new(port, "there").unwrap();
        self.ways.push(Way {
            proxy: self.here_set.add(proxy).unwrap(),
            to: asks_for(to, "here").unwrap(),
            waits: VecDeque::new(),
            room: None,
        });
    }

    fn run(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let fds = [self.here_set.as_fd(), self.there_set.as_fd()];
            poll(&fds, Some(Instant::now() + Duration::from_millis(20))).unwrap();
            let ready: Vec<_> = self.here_set.wait(Deadline::NOW).unwrap().collect();
            for at in 0..self.ways.len() {
                if ready.iter().any(|token| *token == self.ways[at].proxy) {
                    self.take(at);
                }
                self.send(at);
            }
            let ready: Vec<_> = self.there_set.wait(Deadline::NOW).unwrap().collect();
            for token in ready {
                self.answer(token);
            }
        }
    }

    fn take(&mut self, at: usize) {
        while self.ways[at].waits.len() < CREDIT {
            let proxy = self.here_set.get_mut(self.ways[at].proxy).unwrap();
            match proxy.take(Deadline::NOW) {
                Ok(Taken::Message(message)) => self.ways[at].waits.push_back((message, None)),
                Ok(Taken::Request(message, answer)) => {
                    self.ways[at].waits.push_back((message, Some(answer)));
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => return,
            }
        }
    }

    fn send(&mut self, at: usize) {
        let way = &mut self.ways[at];
        if let Some(room) = way.room {
            if !self.there_set.get(room).unwrap().is_there() {
                return;
            }
            self.there_set.remove(room).unwrap();
            way.room = None;
        }
        while let Some((message, answer)) = way.waits.pop_front() {
            let message = carried(message, &self.there);
            let (refused, answer) = match answer {
                None => (way.to.send(message, WhenFull::Fail).err(), None),
                Some(answer) => match way.to.begin_request(message, WhenFull::Fail) {
                    Ok(pending) => {
                        let token = self.there_set.add(pending).unwrap();
                        self.open.insert(token.any(), answer);
                        self.most_open = self.most_open.max(self.open.len());
                        continue;
                    }
                    Err(RequestError::Unsent(unsent)) => (Some(unsent), Some(answer)),
                    Err(other) => panic!("{other}"),
                },
            };
            let Some(refused) = refused else { continue };
            match refused.why {
                SendError::Full { .. } => {
                    way.waits
                        .push_front((carried(*refused.item, &self.here), answer));
                    way.room = Some(self.there_set.add(way.to.room()).unwrap());
                    return;
                }
                SendError::DeadName => answer.into_iter().for_each(Answer::server_dead),
                other => panic!("{other}"),
            }
        }
    }

    fn answer(&mut self, token: Token) {
        let Some(answer) = self.open.remove(&token) else {
            return;
        };
        let mut pending = self.there_set.remove(token.of::<PendingReply>()).unwrap();
        let answered = match Answered::take(&mut pending).unwrap() {
            Answered::Reply(message) => Answered::Reply(carried(message, &self.here)),
            other => other,
        };
        // A client that is gone needs none.
        let _ = answer.give(answered);
    }
}

/// Carries while `act` runs; the most requests that were open at once.
fn beside(mut carrier: Carrier, act: impl FnOnce()) -> usize {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&over);
        let carries = scope.spawn(|| {
            carrier.run(&over);
            carrier.most_open
        });
        act();
        drop(ends);
        carries.join().unwrap()
    })
}

fn message(domain: &Domain, number: u32, lengths: &[usize]) -> Message {
    let mut message = domain.message(&number.to_le_bytes().repeat(40)).unwrap();
    for len in lengths {
        let mut extent = domain.allocate(*len).unwrap();
        let bytes = number.to_le_bytes();
        extent
            .iter_mut()
            .zip(bytes.iter().cycle())
            .for_each(|(to, from)| *to = *from);
        message.push(extent).unwrap();
    }
    message
}

#[track_caller]
fn is_the_one(message: &Message, number: u32, lengths: &[usize]) {
    let bytes = number.to_le_bytes();
    assert_eq!(message.header(), bytes.repeat(40));
    let found: Vec<_> = message
        .extents()
        .iter()
        .map(|extent| extent.len())
        .collect();
    assert_eq!(found, lengths);
    for extent in message.extents() {
        assert!(
            extent
                .iter()
                .zip(bytes.iter().cycle())
                .all(|(is, was)| is == was)
        );
    }
}

fn serve(domain: &Domain, name: &str, queue: usize) -> ReceiveRight {
    let options = PortOptions::named(name).synchronous().queue(queue);
    domain.bind(options).unwrap()
}

#[test]
fn messages_come_whole_and_in_order_through_full_ports() {
    let (here, there) = (unique("across-here"), unique("across-there"));
    let mut carrier = Carrier::new(&here, &there);
    let (ours, theirs) = (Domain::join(&here).unwrap(), Domain::join(&there).unwrap());
    let names = ["a", "b", "c"];
    let ports: Vec<_> = names
        .map(|name| theirs.bind(PortOptions::named(name).queue(3)).unwrap())
        .into();
    for name in names {
        carrier.join(name, PortOptions::named(name).queue(3));
    }
    beside(carrier, || {
        std::thread::scope(|scope| {
            for name in names {
                let ours = &ours;
                scope.spawn(move || {
                    let right = ours.connect(name, PATIENCE).unwrap();
                    for number in 0..300 {
                        let lengths = [100, 9000];
                        let mut message =
                            message(ours, number, &lengths[..number as usize % 3 % 2 + 1]);
                        let due = Instant::now() + Duration::from_secs(500);
                        message.set_urgency(Some(Urgency::Deadline(due)));
                        right.send(message, Deadline::NEVER).unwrap();
                    }
                });
            }
            for mut port in ports {
                scope.spawn(move || {
                    for number in 0..300 {
                        let came = port.receive(Access::Later, PATIENCE).unwrap();
                        let lengths = [100, 9000];
                        is_the_one(&came, number, &lengths[..number as usize % 3 % 2 + 1]);
                        let left = time_left(&came).unwrap();
                        assert!(left > Duration::from_secs(400) && left < Duration::from_secs(501));
                    }
                });
            }
        });
    });
    let nothing_left = |domain: &Domain| {
        let survey = domain.survey().unwrap();
        survey.spaces.iter().all(|space| space.extents == 0)
    };
    until("all memory is free", || {
        nothing_left(&ours) && nothing_left(&theirs)
    });
}

/// None waits for the one before.
#[test]
fn three_hundred_requests_are_open_at_once_and_answered_in_another_order() {
    let (here, there) = (unique("across-here"), unique("across-there"));
    let mut carrier = Carrier::new(&here, &there);
    let (ours, theirs) = (Domain::join(&here).unwrap(), Domain::join(&there).unwrap());
    let mut port = serve(&theirs, "server", 500);
    let options = PortOptions::named("server").synchronous().queue(500);
    carrier.join("server", options);
    let open = beside(carrier, || {
        let right = ours.connect("server", PATIENCE).unwrap();
        let mut set = WaitSet::new(&ours).unwrap();
        let mut asked: BTreeMap<Token, u32> = (0..300)
            .map(|number| {
                let asks = message(&ours, number, &[50]);
                let pending = right.begin_request(asks, WhenFull::Fail).unwrap();
                (set.add(pending).unwrap().any(), number)
            })
            .collect();
        let mut requests: Vec<_> = (0..300)
            .map(|_| port.get_request(Access::Later, PATIENCE).unwrap())
            .collect();
        // The last one first; each third is dropped, and what cannot travel comes back.
        while let Some(request) = requests.pop() {
            let header = request.message.header();
            let number = u32::from_le_bytes(header[..4].try_into().unwrap());
            match number % 3 {
                0 => drop(request),
                1 => {
                    let refused = request.reply(crate::structure(&theirs)).unwrap_err();
                    assert!(
                        matches!(refused.why, SendError::Structure),
                        "{}",
                        refused.why
                    );
                }
                _ => request.reply(message(&theirs, number, &[7000, 1])).unwrap(),
            }
        }
        while !asked.is_empty() {
            for token in set.wait(PATIENCE).unwrap() {
                let number = asked.remove(&token).unwrap();
                let mut pending = set.remove(token.of::<PendingReply>()).unwrap();
                match (number % 3, pending.wait(Access::Later, Deadline::NOW)) {
                    (2, Ok(answer)) => is_the_one(&answer, number, &[7000, 1]),
                    (0 | 1, Err(RequestError::Dropped)) => {}
                    (_, other) => panic!("{number}: {other:?}"),
                }
            }
        }
    });
    assert_eq!(open, 300);
}

#[test]
fn takes_orders() {
    let mut server = None;
    obey(|order| {
        let name = order.strip_prefix("join ").ok_or("no such order")?;
        let domain = Domain::join(name)?;
        server = Some((serve(&domain, "server", 500), domain));
        Ok("done".to_owned())
    });
}

#[test]
fn clients_of_a_killed_server_are_told_across() {
    let (here, there) = (unique("across-here"), unique("across-there"));
    let mut carrier = Carrier::new(&here, &there);
    let ours = Domain::join(&here).unwrap();
    let mut child = Child::running("across::takes_orders", |_| {});
    assert_eq!(child.ask(&format!("join {there}")), "done");
    let options = PortOptions::named("server").synchronous().queue(500);
    carrier.join("server", options);
    let there = carrier.there.clone();
    beside(carrier, || {
        let right = ours.connect("server", PATIENCE).unwrap();
        let ask = || {
            right
                .begin_request(Message::default(), WhenFull::Fail)
                .unwrap()
        };
        let mut open: Vec<_> = (0..100).map(|_| ask()).collect();
        until("all have gone over", || {
            let survey = there.survey().unwrap();
            survey.ports.iter().any(|port| port.depth == 100)
        });
        child.kill();
        for pending in &mut open {
            let answer = pending.wait(Access::Later, PATIENCE);
            assert!(
                matches!(answer, Err(RequestError::ServerDead)),
                "{answer:?}"
            );
        }
        // And those that come later.
        let answer = ask().wait(Access::Later, PATIENCE);
        assert!(
            matches!(answer, Err(RequestError::ServerDead)),
            "{answer:?}"
        );
    });
}

/// The process that carries is killed: its host answers for it, and its rights are gone.
#[test]
fn carries_until_it_is_killed() {
    let mut carries = None;
    obey(|order| {
        let (here, there) = order.split_once(' ').ok_or("here and there")?;
        let mut carrier = Carrier::new(here, there);
        carrier.join("server", PortOptions::named("server").synchronous());
        carries = Some(std::thread::spawn(move || {
            carrier.run(&AtomicBool::new(false));
        }));
        Ok("done".to_owned())
    });
}

#[test]
fn a_carrier_that_is_killed_ends_requests_on_this_side_and_answers_on_the_other() {
    let (here, there) = (unique("across-here"), unique("across-there"));
    let (ours, theirs) = (Domain::join(&here).unwrap(), Domain::join(&there).unwrap());
    let mut port = serve(&theirs, "server", 500);
    let mut child = Child::running("across::carries_until_it_is_killed", |_| {});
    assert_eq!(child.ask(&format!("{here} {there}")), "done");
    let right = ours.connect("server", PATIENCE).unwrap();
    let ask = |number| {
        let asks = message(&ours, number, &[5000]);
        right.begin_request(asks, WhenFull::Wait(PATIENCE.into()))
    };
    let mut open: Vec<_> = (0..40).map(|number| ask(number).unwrap()).collect();
    let requests: Vec<_> = (0..20)
        .map(|_| port.get_request(Access::Later, PATIENCE).unwrap())
        .collect();
    child.kill();
    for pending in &mut open {
        let answer = pending.wait(Access::Later, PATIENCE);
        assert!(
            matches!(answer, Err(RequestError::ServerDead)),
            "{answer:?}"
        );
    }
    until("it is a dead name", || !right.is_live());
    // Who asked is gone: an answer comes back, or goes into a reply port that is closed with it.
    for request in requests {
        let _ = request.reply_in_place();
    }
    until("all memory is free", || {
        while port.get_request(Access::Later, Deadline::NOW).is_ok() {}
        let left = |domain: &Domain| {
            let survey = domain.survey().unwrap();
            survey.spaces.iter().map(|space| space.extents).sum::<u64>()
        };
        left(&ours) == 0 && left(&theirs) == 0
    });
}
