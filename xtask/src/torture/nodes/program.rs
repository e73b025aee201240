//! One program of a run: a process that sends to programs of all nodes, and serves them, until it is
//! killed.

mod roams;

use super::super::Doing;
use super::super::board::{Board, Entry, Word, enlist};
use super::super::random::Random;
use super::content::{self, Size};
use super::ledger::{Count, End, Kind, Ledger, Word as Head, now};
use super::{Shape, inbox, narrow, service};
use roams::Roams;

use portolan::{
    Access, ConnectError, Deadline, Domain, LeaveError, PendingReply, PortOptions, ReceiveError,
    ReceiveRight, RequestError, RightState, SendError, SendRight, WhenFull,
};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long it tries to join.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a call may last beyond its deadline: the process may be stopped meanwhile.
const GRACE: Duration = Duration::from_secs(45);
/// Streams of each kind that it keeps.
const KEPT: usize = 6;
/// Requests that wait for their answers at once.
const ASKED: usize = 6;
/// Bytes of memory that the extents of a domain may have: little, so that it runs out now and then.
const MEMORY_LIMIT: u64 = 64 << 20;
/// How long the target of a round rests after each message.
const REST: Duration = Duration::from_millis(8);

/// What a program was told on its command line.
pub(crate) struct Task<'a> {
    pub(crate) board: &'a Path,
    pub(crate) ledger: &'a Path,
    pub(crate) place: usize,
    pub(crate) domain: &'a str,
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) programs: usize,
}

/// A right, and what is sent by it.
struct Sends {
    stream: u64,
    to: usize,
    right: SendRight,
    /// The last number that was sent.
    number: u64,
}

/// A request that waits for its answer.
struct Asked {
    stream: u64,
    number: u64,
    pending: PendingReply,
    until: Instant,
}

struct Program {
    board: &'static Board,
    ledger: Ledger,
    shape: Shape,
    at: usize,
    random: Random,
    domain: Domain,
    inbox: ReceiveRight,
    service: ReceiveRight,
    /// What is pressed on in rounds.
    narrow: ReceiveRight,
    sends: Vec<Sends>,
    asks: Vec<Sends>,
    asked: Vec<Asked>,
    /// Its right on the target of a round.
    presses: Option<Sends>,
    roams: Roams,
}

/// Runs a program.
pub(crate) fn run(task: &Task<'_>) -> ExitCode {
    let opened = Board::open(task.board).map(|board| enlist(board, task.place));
    let (board, ledger) = match (opened, Ledger::open(task.ledger)) {
        (Ok(board), Ok(ledger)) => (board, ledger),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("no board: {error}");
            return ExitCode::FAILURE;
        }
    };
    board.set(task.place, Entry::Doing, Doing::Joining as u64);
    let mut program = match Program::join(task, board, ledger) {
        Ok(program) => program,
        Err(why) => {
            eprintln!("{}joined: {why}", super::HUNG);
            return ExitCode::FAILURE;
        }
    };
    board.set(task.place, Entry::Space, u64::from(program.domain.space()));
    while program.goes_on() {
        program.beat();
        match board.word(Word::Pause).load(Ordering::SeqCst) {
            0 => program.operate(),
            pause => program.pause(pause),
        }
    }
    program.leave()
}

impl Program {
    fn join(task: &Task<'_>, board: &'static Board, ledger: Ledger) -> Result<Self, String> {
        let mut random = Random::new(task.seed);
        let end = Instant::now() + PATIENCE;
        let (domain, [inbox, service, narrow]) = loop {
            match Self::try_join(task, &mut random) {
                Ok(joined) => break joined,
                // The node may be dead, and so may the host be. The names are taken until the last
                // process here is reclaimed.
                Err(why) if Instant::now() > end => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        Ok(Self {
            board,
            ledger,
            shape: Shape {
                nodes: task.nodes,
                programs: task.programs,
            },
            at: task.place,
            random,
            domain,
            inbox,
            service,
            narrow,
            sends: Vec::new(),
            asks: Vec::new(),
            asked: Vec::new(),
            presses: None,
            roams: Roams::default(),
        })
    }

    fn try_join(
        task: &Task<'_>,
        random: &mut Random,
    ) -> Result<(Domain, [ReceiveRight; 3]), String> {
        let mut builder = Domain::builder(task.domain).limit(MEMORY_LIMIT);
        if random.once_in(2) {
            builder = builder.spanning();
        }
        let domain = builder.join().map_err(|error| error.to_string())?;
        let bind = |options: PortOptions, queue| {
            let options = options.queue(queue).spanned();
            domain.bind(options).map_err(|error| error.to_string())
        };
        let ports = [
            bind(PortOptions::named(&inbox(task.place)), 7)?,
            bind(PortOptions::named(&service(task.place)).synchronous(), 7)?,
            bind(PortOptions::named(&narrow(task.place)), 1)?,
        ];
        Ok((domain, ports))
    }

    fn beat(&self) {
        let beats = self.board.of(self.at, Entry::Beat);
        beats.fetch_add(1, Ordering::Relaxed);
    }

    fn doing(&self, doing: Doing) {
        self.board.set(self.at, Entry::Doing, doing as u64);
    }

    /// Whether it was not told to end.
    fn goes_on(&self) -> bool {
        self.board.get(self.at, Entry::Order) == 0
    }

    fn leave(mut self) -> ExitCode {
        self.doing(Doing::Leaving);
        let kept = self.sends.drain(..).chain(self.asks.drain(..));
        for sends in kept.chain(self.roams.sends.drain(..)) {
            self.ledger.end(sends.stream, End::Dropped);
        }
        let Self {
            domain,
            inbox,
            service,
            narrow,
            asked,
            presses,
            roams,
            ..
        } = self;
        drop((inbox, service, narrow, asked, presses, roams));
        match domain.leave() {
            // The host may be stopped for longer than it is waited for.
            Ok(()) | Err(LeaveError::Unanswered { .. }) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{}left: {why}", super::HUNG);
                ExitCode::FAILURE
            }
        }
    }

    /// Something is not as it must be.
    fn found(&self, kind: &str, what: &str) {
        eprintln!("{kind}{what}");
    }

    fn operate(&mut self) {
        match self.random.below(100) {
            0..6 => self.connect(),
            6..28 => self.send(),
            28..32 => self.give(),
            32..36 => self.send_after(),
            36..50 => self.ask(),
            50..60 => self.hear_answers(),
            60..61 => self.let_go(),
            61..76 => _ = self.receive(),
            76..82 => _ = self.receive_roaming(),
            _ => _ = self.serve(),
        }
    }

    // Sending.

    /// Looks for a port of a program somewhere, by its name alone or with its node's.
    fn connect(&mut self) {
        self.doing(Doing::Connecting);
        let is_requests = self.random.once_in(2);
        let to = self.shape.program(&mut self.random, self.at);
        let name = match is_requests {
            true => service(to),
            false => inbox(to),
        };
        let name = match self.random.below(3) {
            0 => format!("{name}@{}", super::node_name(self.shape.node_of(to))),
            _ => name,
        };
        let kind = match is_requests {
            true => Kind::Requests,
            false => Kind::Messages,
        };
        let patience = Duration::from_millis(300);
        if let Some(sends) = self.find(to, &name, kind, patience) {
            let kept = match is_requests {
                true => &mut self.asks,
                false => &mut self.sends,
            };
            kept.push(sends);
            if kept.len() > KEPT {
                let oldest = kept.remove(0);
                self.ledger.end(oldest.stream, End::Dropped);
            }
        }
    }

    fn find(&mut self, to: usize, name: &str, kind: Kind, patience: Duration) -> Option<Sends> {
        let opened = now();
        let begun = Instant::now();
        let found = self.domain.connect(name, Deadline::after(patience));
        self.in_time("a name was looked for", begun, patience);
        match found {
            Ok(right) => Some(Sends {
                stream: self.ledger.begin(self.at, to, kind, opened),
                to,
                right,
                number: 0,
            }),
            Err(why @ (ConnectError::Ambiguous { .. } | ConnectError::BadName { .. })) => {
                self.found(super::LOST, &format!("{name:?} was not found: {why}"));
                None
            }
            Err(_) => None,
        }
    }

    /// A call must not last much longer than its deadline.
    fn in_time(&self, what: &str, begun: Instant, patience: Duration) {
        let took = begun.elapsed();
        if took > patience + GRACE {
            let (took, given) = (took.as_millis(), patience.as_millis());
            self.found(super::HUNG, &format!("{what} for {took} ms, not {given}"));
        }
    }

    fn send(&mut self) {
        self.doing(Doing::Sending);
        if self.sends.is_empty() {
            return self.connect();
        }
        let at = self.random.below(self.sends.len());
        for _ in 0..=self.random.below(12) {
            let when_full = match self.random.below(3) {
                0 => WhenFull::Wait(Deadline::after(Duration::from_millis(20))),
                _ => WhenFull::Fail,
            };
            let mut sends = self.sends.swap_remove(at);
            let sent = self.send_one(&mut sends, when_full, Size::Any);
            match sent {
                Sent::Dead => return self.ledger.end(sends.stream, End::Dead),
                Sent::Full | Sent::Refused => return self.sends.push(sends),
                Sent::Yes => {
                    self.sends.push(sends);
                    let last = self.sends.len() - 1;
                    self.sends.swap(at, last);
                }
            }
        }
    }

    fn send_one(&mut self, sends: &mut Sends, when_full: WhenFull, size: Size) -> Sent {
        let number = sends.number + 1;
        let name = (sends.stream, number);
        let Some(message) = content::compose(&self.domain, name, false, size) else {
            return Sent::Refused;
        };
        self.ledger.sending(sends.stream, number);
        match sends.right.send(message, when_full) {
            Ok(()) => {
                self.ledger.sent(sends.stream, number);
                sends.number = number;
                self.ledger.add(self.at, Count::Sent, 1);
                Sent::Yes
            }
            Err(refused) => self.refused(&refused.why),
        }
    }

    fn refused(&self, why: &SendError) -> Sent {
        match why {
            SendError::Full { .. } => Sent::Full,
            SendError::DeadName => Sent::Dead,
            SendError::Unreachable { .. } => {
                self.ledger.add(self.at, Count::Unreachable, 1);
                Sent::Refused
            }
            SendError::Allocate(_) => Sent::Refused,
            other => {
                self.found(super::LOST, &format!("a message was refused: {other}"));
                Sent::Refused
            }
        }
    }

    /// Drops a right in good order.
    fn let_go(&mut self) {
        let kept = match self.random.once_in(2) {
            true => &mut self.sends,
            false => &mut self.asks,
        };
        if !kept.is_empty() {
            let sends = kept.swap_remove(self.random.below(kept.len()));
            self.ledger.end(sends.stream, End::Dropped);
        }
    }

    // Requests.

    fn ask(&mut self) {
        self.doing(Doing::Requesting);
        if self.asks.is_empty() {
            return self.connect();
        }
        let at = self.random.below(self.asks.len());
        let mut asks = self.asks.swap_remove(at);
        let number = asks.number + 1;
        let name = (asks.stream, number);
        let Some(message) = content::compose(&self.domain, name, false, Size::Any) else {
            return self.asks.push(asks);
        };
        self.ledger.sending(asks.stream, number);
        asks.number = number;
        let patience = Duration::from_millis([5, 50, 500, 2_000][self.random.below(4)]);
        let begun = Instant::now();
        let is_alive = if self.asked.len() < ASKED && self.random.once_in(2) {
            let until = begun + patience;
            match asks.right.begin_request(message, WhenFull::Fail) {
                Ok(pending) => {
                    let pending = pending.with_deadline(Deadline::at(until));
                    let stream = asks.stream;
                    self.asked.push(Asked {
                        stream,
                        number,
                        pending,
                        until,
                    });
                    true
                }
                Err(why) => self.ended(name, Err(why)),
            }
        } else {
            let deadline = Deadline::after(patience);
            let answer = asks.right.request_reply(message, Access::Later, deadline);
            self.in_time("a request lasted", begun, patience);
            self.ended(name, answer)
        };
        match is_alive {
            true => self.asks.push(asks),
            false => self.ledger.end(asks.stream, End::Dead),
        }
    }

    /// A request has ended; whether its right lives.
    fn ended(&mut self, name: (u64, u64), answer: Result<portolan::Message, RequestError>) -> bool {
        let count = match answer {
            Ok(answer) => {
                if let Err(why) = content::check(&answer, name, true, Size::Any) {
                    self.found(super::CORRUPT, &format!("an answer: {why}"));
                }
                Count::Answered
            }
            Err(RequestError::TimedOut) => Count::TimedOut,
            Err(RequestError::Dropped) => Count::Dropped,
            Err(RequestError::ServerDead) => Count::ServerDead,
            Err(RequestError::NodeLost { .. }) => Count::NodeLost,
            Err(RequestError::Unsent(refused)) => {
                return self.refused(&refused.why) != Sent::Dead;
            }
            Err(RequestError::NoReplyPort(..)) => return true,
            Err(other) => {
                self.found(super::LOST, &format!("a request ended so: {other}"));
                return true;
            }
        };
        self.ledger.add(self.at, count, 1);
        true
    }

    fn hear_answers(&mut self) {
        self.doing(Doing::Requesting);
        let mut at = 0;
        while let Some(asked) = self.asked.get_mut(at) {
            let answer = asked.pending.wait(Access::Later, Deadline::NOW);
            let is_over = asked.until < Instant::now();
            if matches!(answer, Err(RequestError::TimedOut)) && !is_over {
                at += 1;
                continue;
            }
            let asked = self.asked.swap_remove(at);
            self.ended((asked.stream, asked.number), answer);
        }
    }

    // Receiving.

    /// Receives some of what has come; whether there was something.
    fn receive(&mut self) -> bool {
        self.doing(Doing::Receiving);
        let most = 1 + self.random.below(16);
        for taken in 0..most {
            let deadline = match taken {
                0 => Deadline::after(Duration::from_millis(2)),
                _ => Deadline::NOW,
            };
            match self.inbox.receive(Access::Later, deadline) {
                Ok(mut message) => self.came(&mut message),
                Err(ReceiveError::TimedOut) => return taken > 0,
                Err(why) => {
                    self.found(super::LOST, &format!("nothing can be received: {why}"));
                    return false;
                }
            }
        }
        true
    }

    fn came(&mut self, message: &mut portolan::Message) {
        let Some((stream, number)) = content::name(message) else {
            return self.found(super::CORRUPT, "a message without a name has come");
        };
        let Some(row) = self.ledger.stream(stream) else {
            return self.found(super::CORRUPT, "a message of no stream has come");
        };
        if let Err(why) = self.ledger.received(stream, number, self.at) {
            self.found(super::DISORDER, &why);
        }
        let size = match row.kind {
            Kind::Short => Size::Least,
            Kind::Messages | Kind::Requests | Kind::Roams => Size::Any,
        };
        if let Err(why) = content::check(message, (stream, number), false, size) {
            self.found(super::CORRUPT, &why);
        }
        if row.kind == Kind::Short {
            let node = self.shape.node_of(row.from);
            let arrived = self.ledger.arrived(self.at, node);
            arrived.fetch_add(1, Ordering::SeqCst);
        }
        self.ledger.add(self.at, Count::Received, 1);
        self.ledger.add(self.at, Count::Bytes, message.len() as u64);
        self.take_rights(message, row.from);
    }

    /// Answers some of the requests that have come.
    fn serve(&mut self) -> bool {
        self.doing(Doing::Serving);
        let deadline = Deadline::after(Duration::from_millis(1));
        let request = match self.service.get_request(Access::Later, deadline) {
            Ok(request) => request,
            Err(ReceiveError::TimedOut) => return false,
            Err(why) => {
                self.found(super::LOST, &format!("nothing can be served: {why}"));
                return false;
            }
        };
        let Some((stream, number)) = content::name(&request.message) else {
            self.found(super::CORRUPT, "a request without a name has come");
            return true;
        };
        if let Err(why) = self.ledger.received(stream, number, self.at) {
            self.found(super::DISORDER, &format!("a request: {why}"));
        }
        if let Err(why) = content::check(&request.message, (stream, number), false, Size::Any) {
            self.found(super::CORRUPT, &format!("a request: {why}"));
        }
        self.ledger.add(self.at, Count::Ran, 1);
        match self.random.below(40) {
            // Unanswered.
            0 => return true,
            1 => std::thread::sleep(Duration::from_millis(30)),
            _ => {}
        }
        if let Some(answer) = content::compose(&self.domain, (stream, number), true, Size::Any) {
            // Its client may be gone.
            let _ = request.reply(answer);
        }
        true
    }

    // Pauses.

    /// Sends nothing; receives and serves, and says when none of its requests is open. In a round it
    /// presses on the target, or is it.
    fn pause(&mut self, pause: u64) {
        let round = self.ledger.word(Head::Round).load(Ordering::SeqCst);
        if round != 0 {
            return self.take_part(round);
        }
        if let Some(presses) = self.presses.take() {
            self.ledger.end(presses.stream, End::Dropped);
        }
        self.hear_answers();
        let mut silent = 0;
        for kept in [&mut self.sends, &mut self.asks, &mut self.roams.sends] {
            kept.retain(|sends| {
                let state = sends.right.state();
                silent += u64::from(state == RightState::Unreachable);
                if state == RightState::Dead {
                    self.ledger.end(sends.stream, End::Dead);
                }
                state != RightState::Dead
            });
        }
        let says = self.ledger.count(self.at, Count::Silent);
        says.store(silent, Ordering::SeqCst);
        let mut any = self.receive();
        any |= self.serve();
        any |= self.rest_roaming();
        while let Ok(mut message) = self.narrow.receive(Access::Later, Deadline::NOW) {
            self.came(&mut message);
            any = true;
        }
        self.doing(Doing::Pausing);
        if self.asked.is_empty() && !any {
            self.board.set(self.at, Entry::Paused, pause);
        }
    }

    fn take_part(&mut self, round: u64) {
        let target = self.ledger.word(Head::Target).load(Ordering::SeqCst);
        let target = usize::try_from(target).unwrap_or(0);
        if target == self.at {
            self.doing(Doing::Receiving);
            let deadline = Deadline::after(REST);
            if let Ok(mut message) = self.narrow.receive(Access::Later, deadline) {
                self.came(&mut message);
            }
            std::thread::sleep(REST);
            return;
        }
        if !self.shape.presses(self.at, target) {
            self.receive();
            self.serve();
            return;
        }
        self.doing(Doing::Sending);
        let patience = Duration::from_millis(300);
        if self.presses.is_none() {
            self.presses = self.find(target, &narrow(target), Kind::Short, patience);
        }
        let Some(mut presses) = self.presses.take() else {
            return;
        };
        if presses.to != target {
            return self.ledger.end(presses.stream, End::Dropped);
        }
        let when_full = WhenFull::Wait(Deadline::after(Duration::from_millis(5)));
        match self.send_one(&mut presses, when_full, Size::Least) {
            Sent::Dead => return self.ledger.end(presses.stream, End::Dead),
            Sent::Full => {
                let says = self.ledger.count(self.at, Count::Presses);
                says.store(round, Ordering::SeqCst);
            }
            Sent::Yes | Sent::Refused => {}
        }
        self.presses = Some(presses);
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    Full,
    Dead,
    Refused,
}
