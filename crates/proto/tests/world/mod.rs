//! A client and a server in a world that loses, repeats, reorders, damages and delays
//! packets by a seed; and an oracle that counts what ran.

use portolan_proto::{
    Call, CallId, Client, Flags, Incoming, Looked, NotCalled, Outcome, PacketPath, Server,
    Settings, Status, Time,
};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How bad the way is, in thousandths of the packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) damaged: u64,
    /// Those that are delayed arrive after later ones.
    pub(crate) delayed: u64,
}

impl Faults {
    /// So many thousandths of each.
    pub(crate) fn all(share: u64) -> Self {
        Self {
            lost: share,
            repeated: share,
            damaged: share,
            delayed: share,
        }
    }
}

/// xorshift64*: enough for a world.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn happens(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Way {
    faults: Faults,
    chance: Chance,
    sent: u64,
    /// By time of arrival, then order of sending.
    under_way: BTreeMap<(Time, u64), (u64, Vec<u8>)>,
    entered: u64,
}

impl Way {
    pub(crate) fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            chance: Chance::new(seed),
            sent: 0,
            under_way: BTreeMap::new(),
            entered: 0,
        }
    }

    fn put(&mut self, now: Time, position: u64, packet: &[u8]) {
        let mut delay = 200 + self.chance.below(50);
        if self.chance.happens(self.faults.delayed) {
            delay += self.chance.below(30_000_000);
        }
        let mut packet = packet.to_vec();
        if self.chance.happens(self.faults.damaged) && !packet.is_empty() {
            let bit = self.chance.below(packet.len() as u64 * 8) as usize;
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        self.entered += 1;
        self.under_way
            .insert((Time(now.0 + delay), self.entered), (position, packet));
    }

    fn next_arrival(&self) -> Option<Time> {
        self.under_way.keys().next().map(|k| k.0)
    }
}

/// One end, now.
pub(crate) struct End<'w> {
    pub(crate) now: Time,
    pub(crate) to: &'w mut Way,
    pub(crate) from: &'w mut Way,
}

impl PacketPath for End<'_> {
    fn position(&self) -> u64 {
        self.to.sent
    }

    fn send(&mut self, packet: &[u8]) {
        let position = self.to.sent;
        self.to.sent += 1;
        if self.to.chance.happens(self.to.faults.lost) {
            return;
        }
        self.to.put(self.now, position, packet);
        if self.to.chance.happens(self.to.faults.repeated) {
            self.to.put(self.now, position, packet);
        }
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        let at = *self.from.under_way.keys().next()?;
        if at.0 > self.now {
            return None;
        }
        let (position, bytes) = self.from.under_way.remove(&at)?;
        *packet = bytes;
        Some(position)
    }
}

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    pub(crate) calls: u64,
    pub(crate) settings: Settings,
    /// Bytes of arguments and results at most.
    pub(crate) longest: u64,
    pub(crate) deadline: Option<Duration>,
    /// Calls that are best effort, one-way, cancelled: in thousandths.
    pub(crate) best_effort: u64,
    pub(crate) one_way: u64,
    pub(crate) cancelled: u64,
    /// A call runs up to so long.
    pub(crate) work: Duration,
    /// How many times the server's state moves to another server.
    pub(crate) moves: u64,
    /// How many times the server dies, and another takes its place.
    pub(crate) deaths: u64,
    /// Moments, in thousandths, before which both were stopped for a while: much is due at once.
    pub(crate) stops: u64,
}

impl Plan {
    pub(crate) fn new(seed: u64, faults: Faults, calls: u64) -> Self {
        Self {
            seed,
            faults,
            calls,
            settings: Settings::default(),
            longest: 32,
            deadline: None,
            best_effort: 0,
            one_way: 0,
            cancelled: 0,
            work: Duration::from_micros(20),
            moves: 0,
            deaths: 0,
            stops: 0,
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) deadline: u64,
    pub(crate) server_died: u64,
    pub(crate) cancelled: u64,
    pub(crate) one_way: u64,
    pub(crate) ran: u64,
    pub(crate) took: Duration,
    pub(crate) asked: u64,
}

const ONE_WAY: u32 = 1;
const BOTH_WAYS: u32 = 2;

/// Runs a plan. Panics if a call runs twice, is answered wrongly or out of order, or never
/// ends.
pub(crate) fn run(plan: Plan) -> Counts {
    World::new(plan).run()
}

struct World {
    plan: Plan,
    chance: Chance,
    /// By which both ends look in a straight line, or not.
    lines: Chance,
    now: Time,
    up: Way,
    down: Way,
    client: Client,
    server: Server,
    incarnation: u64,
    /// Tag of each open call.
    open: HashMap<CallId, u64>,
    /// How often each tag ran.
    ran: HashMap<u64, u64>,
    /// Reliable one-way calls, which must run if nothing dies.
    must_run: Vec<u64>,
    /// (when it is done, number, arguments) of what runs.
    running: Vec<(Time, u64, Vec<u8>)>,
    last_taken: u64,
    next_call: Time,
    made: u64,
    counts: Counts,
}

/// The call of this tag has ended so.
fn ended(counts: &mut Counts, ran: &HashMap<u64, u64>, tag: u64, outcome: Outcome, body: &[u8]) {
    match outcome {
        Outcome::Answered(Status::Returned) => {
            counts.answered += 1;
            let len = u64::from_le_bytes(body[..8].try_into().unwrap());
            assert_eq!(body, result(&arguments(tag, len)), "result of {tag}");
            assert_eq!(ran.get(&tag), Some(&1), "runs of {tag}, which was answered");
        }
        Outcome::Deadline | Outcome::Answered(Status::TooLate) => counts.deadline += 1,
        Outcome::ServerDied => counts.server_died += 1,
        other => panic!("{other:?}"),
    }
}

impl World {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            chance: Chance::new(plan.seed),
            lines: Chance::new(plan.seed + 3),
            now: Time(1),
            up: Way::new(plan.faults, plan.seed + 1),
            down: Way::new(plan.faults, plan.seed + 2),
            client: Client::new(plan.settings, plan.seed),
            server: Server::new(plan.settings, plan.seed, 1),
            incarnation: 1,
            open: HashMap::new(),
            ran: HashMap::new(),
            must_run: Vec::new(),
            running: Vec::new(),
            last_taken: 0,
            next_call: Time(1),
            made: 0,
            counts: Counts::default(),
        }
    }

    fn run(mut self) -> Counts {
        let mut end = End {
            now: self.now,
            to: &mut self.up,
            from: &mut self.down,
        };
        self.client.greet(&mut end);
        loop {
            self.call();
            self.serve();
            self.collect();
            let all_made = self.made == self.plan.calls;
            if all_made && self.client.open() == 0 && self.open.is_empty() {
                break;
            }
            self.misfortune();
            self.go_on();
        }
        self.check();
        self.counts.took = self.now.since(Time(1));
        self.counts.asked = self.client.counts().asked;
        self.counts
    }

    /// To the next moment at which something happens.
    fn go_on(&mut self) {
        let call = (self.made < self.plan.calls).then_some(self.next_call);
        let work = self.running.iter().map(|r| r.0).min();
        let next = [
            call,
            work,
            self.up.next_arrival(),
            self.down.next_arrival(),
            self.client.next_timeout(),
        ];
        let next = next.into_iter().flatten().min();
        let next = next.expect("calls are open and nothing will ever happen");
        self.now = Time(next.0.max(self.now.0 + 1));
        if self.plan.stops > 0 && self.chance.happens(self.plan.stops) {
            self.now = Time(self.now.0 + self.chance.below(50_000_000));
        }
        assert!(
            self.now.0 < 3_600_000_000_000,
            "an hour has passed: {:?}",
            self.counts
        );
        if self.client.next_timeout().is_some_and(|t| t <= self.now) {
            let mut end = End {
                now: self.now,
                to: &mut self.up,
                from: &mut self.down,
            };
            self.client.review(self.now, &mut end);
        }
    }

    fn call(&mut self) {
        while self.made < self.plan.calls && self.next_call <= self.now {
            let tag = self.made;
            let mut arguments = arguments(tag, self.chance.below(self.plan.longest + 1));
            let one_way = self.chance.happens(self.plan.one_way);
            let mut flags = Flags(0);
            if one_way {
                flags = flags.with(Flags::ONE_WAY);
            }
            let best_effort = self.chance.happens(self.plan.best_effort);
            if best_effort {
                flags = flags.with(Flags::BEST_EFFORT);
            }
            let call = Call {
                method: if one_way { ONE_WAY } else { BOTH_WAYS },
                flags,
                // Best effort without a deadline would wait for ever.
                deadline: self
                    .plan
                    .deadline
                    .or(best_effort.then_some(Duration::from_millis(100)))
                    .map(|d| self.now.after(d)),
            };
            let mut end = End {
                now: self.now,
                to: &mut self.up,
                from: &mut self.down,
            };
            match self.client.call(self.now, &mut end, call, &mut arguments) {
                Ok(id) => {
                    self.made += 1;
                    if one_way {
                        self.counts.one_way += 1;
                        if !best_effort && call.deadline.is_none() {
                            self.must_run.push(tag);
                        }
                    } else if self.chance.happens(self.plan.cancelled) {
                        self.client.cancel(&mut end, id);
                        self.counts.cancelled += 1;
                    } else {
                        self.open.insert(id, tag);
                    }
                }
                Err(NotCalled::WindowFull { .. }) => {
                    self.next_call = Time(self.now.0 + 100_000);
                    return;
                }
                Err(other) => panic!("{other}"),
            }
            self.next_call = Time(self.now.0 + self.chance.below(20_000));
        }
    }

    fn serve(&mut self) {
        let mut end = End {
            now: self.now,
            to: &mut self.down,
            from: &mut self.up,
        };
        let mut body = Vec::new();
        loop {
            let looked = if self.lines.happens(500) {
                let looked = self.server.poll_call(self.now, &mut end, &mut body);
                looked.unwrap()
            } else if self.server.poll(self.now, &mut end).unwrap() {
                Looked::Packet
            } else {
                Looked::Nothing
            };
            match looked {
                Looked::Nothing => break,
                Looked::Packet if self.lines.happens(500) => {}
                Looked::Packet => {
                    while let Some(incoming) = self.server.take(self.now, &mut body) {
                        self.begin(incoming, &body);
                    }
                }
                Looked::Call(incoming) => self.begin(incoming, &body),
            }
            end = End {
                now: self.now,
                to: &mut self.down,
                from: &mut self.up,
            };
        }
        while let Some(incoming) = self.server.take(self.now, &mut body) {
            self.begin(incoming, &body);
        }
        let mut end = End {
            now: self.now,
            to: &mut self.down,
            from: &mut self.up,
        };
        while self.server.take_cancelled().is_some() {}
        let now = self.now;
        let mut rest = Vec::new();
        for (done, number, body) in self.running.drain(..) {
            if done > now {
                rest.push((done, number, body));
                continue;
            }
            let mut result = result(&body);
            // The client may not wait for it any more.
            let _ = self
                .server
                .answer(&mut end, number, Status::Returned, &mut result);
        }
        self.running = rest;
    }

    /// A call was handed out.
    fn begin(&mut self, incoming: Incoming, body: &[u8]) {
        assert!(incoming.number > self.last_taken, "out of order");
        self.last_taken = incoming.number;
        let tag = u64::from_le_bytes(body[..8].try_into().unwrap());
        assert_eq!(
            body,
            arguments(tag, body.len() as u64 - 8),
            "arguments of {tag}"
        );
        let method = if incoming.flags.has(Flags::ONE_WAY) {
            ONE_WAY
        } else {
            BOTH_WAYS
        };
        assert_eq!(incoming.method, method);
        *self.ran.entry(tag).or_default() += 1;
        self.counts.ran += 1;
        let work = self.chance.below(self.plan.work.as_nanos() as u64 + 1);
        let done = Time(self.now.0 + work);
        self.running.push((done, incoming.number, body.to_vec()));
    }

    fn collect(&mut self) {
        let mut end = End {
            now: self.now,
            to: &mut self.up,
            from: &mut self.down,
        };
        // For one of them at a time, in a straight line perhaps.
        while let Some((&id, _)) = self.open.iter().min_by_key(|(_, tag)| **tag)
            && self.lines.happens(500)
        {
            let mut body = Vec::new();
            let Some(outcome) = self.client.poll_for(self.now, &mut end, id, &mut body) else {
                break;
            };
            let tag = self.open.remove(&id).unwrap();
            ended(&mut self.counts, &self.ran, tag, outcome, &body);
        }
        while self.client.poll(self.now, &mut end).unwrap() {}
        let client = &mut self.client;
        let counts = &mut self.counts;
        let ran = &self.ran;
        self.open.retain(|id, tag| {
            let mut body = Vec::new();
            match client.take(*id, &mut body) {
                None => true,
                Some(outcome) => {
                    ended(counts, ran, *tag, outcome, &body);
                    false
                }
            }
        });
    }

    /// Moves and deaths of the server.
    fn misfortune(&mut self) {
        let plan = self.plan;
        let every = plan.calls / (plan.moves + plan.deaths + 1);
        let due = plan.moves + plan.deaths > 0 && self.made > 0 && self.made.is_multiple_of(every);
        if !due || !self.chance.happens(100) {
            return;
        }
        if plan.deaths > 0 {
            self.plan.deaths -= 1;
            self.incarnation += 1;
            self.server = Server::new(plan.settings, plan.seed, self.incarnation);
            // Calls that ran have run; no server answers them. The new one hands numbers out anew.
            self.running.clear();
            self.last_taken = 0;
            let mut end = End {
                now: self.now,
                to: &mut self.down,
                from: &mut self.up,
            };
            self.server.greet(&mut end);
        } else if plan.moves > 0 && self.running.is_empty() {
            self.plan.moves -= 1;
            let state = self.server.freeze().unwrap();
            self.server = Server::thaw(plan.settings, &state).unwrap();
        }
    }

    fn check(&self) {
        assert_eq!(
            self.client.next_timeout(),
            None,
            "a timer although nothing is open"
        );
        for (tag, times) in &self.ran {
            assert_eq!(*times, 1, "call {tag} ran {times} times");
        }
        if self.incarnation == 1 {
            for tag in &self.must_run {
                assert_eq!(self.ran.get(tag), Some(&1), "one-way call {tag}");
            }
        }
        let ended = self.counts.answered
            + self.counts.deadline
            + self.counts.server_died
            + self.counts.cancelled
            + self.counts.one_way;
        assert_eq!(ended, self.plan.calls, "{:?}", self.counts);
    }
}

fn arguments(tag: u64, len: u64) -> Vec<u8> {
    let mut bytes = tag.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|i| (i * 7 + tag * 13) as u8));
    bytes
}

/// The length of the arguments beyond their tag, then the arguments backwards.
fn result(arguments: &[u8]) -> Vec<u8> {
    let mut bytes = (arguments.len() as u64 - 8).to_le_bytes().to_vec();
    bytes.extend(arguments.iter().rev());
    bytes
}
