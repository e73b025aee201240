//! Serves calls and makes them, and checks that each runs at most once, however often servers die
//! and move.
//!
//! Each call has a word on the board, outside the region. The server that runs it adds one there,
//! so a call that runs twice shows at once, and one that has a result and never ran shows too.

use super::super::board::{Board, Entry, MAX_WORKERS};
use super::super::{Doing, payload};
use super::awaited::{self, Naps};
use super::{SHORT, Worker};
use portolan::rpc::{
    self, CallError, ClientOptions, Closed, Concurrency, Large, Pending, RpcError, ServeError,
    Server, ServerOptions,
};
use portolan::{Deadline, Domain, PortOptions, ReceiveError, ReceiveRight};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Names under which all workers try to serve.
const NAMES: [&str; 3] = ["counting 0", "counting 1", "counting 2"];
/// Most calls in one go.
const BATCH: usize = 8;
/// Calls in one go of a client that is busy: enough to be given channels of its own.
const MANY: usize = 60;
/// How long a server has to move.
const MOVING: Duration = Duration::from_millis(500);
/// How long a server is waited for that may come.
const COMING: Duration = Duration::from_millis(100);
/// Bytes of extents that are sent, at the most.
const LARGE: usize = 100_000;
/// Bytes of arguments that are sent without one, at the most: several packets.
const LONG: usize = 20_000;

/// The port at which a worker takes servers over.
fn heir(worker: usize) -> String {
    format!("heir {worker}")
}

/// Each call names its caller and its number, for the board.
#[portolan::service]
pub(super) trait Counting {
    fn count(&self, caller: usize, number: u64) -> u64;
    fn echo(&self, caller: usize, number: u64, bytes: Vec<u8>) -> Vec<u8>;
    /// Another extent for the one that was sent, or why not.
    fn turn(&self, caller: usize, number: u64, large: Large) -> Result<Large, String>;
    fn linger(&self, caller: usize, number: u64, millis: u64);
    /// Gives up its turn so many times.
    async fn muse(&self, caller: usize, number: u64, naps: usize) -> u64;
    fn stumble(&self, caller: usize, number: u64);
    #[rpc(one_way)]
    fn note(&self, caller: usize, number: u64);
    #[rpc(best_effort)]
    fn hint(&self, caller: usize, number: u64) -> u64;
}

pub(super) struct Counter {
    board: &'static Board,
    at: usize,
    domain: Domain,
    plant: Option<&'static str>,
}

impl Counter {
    /// Whether this call is one with a fault that was planted.
    fn plants(&self, what: &str, number: u64) -> bool {
        self.plant == Some(what) && number.is_multiple_of(16)
    }

    fn run(&self, caller: usize, number: u64) {
        if self.plants("call-not", number) {
            return;
        }
        if self.plants("call-again", number) {
            self.board.runs(caller, number);
        }
        if self.board.runs(caller, number) {
            eprintln!(
                "worker {}: call {number:#x} of {caller} runs again",
                self.at
            );
            let corrupt = self.board.of(self.at, Entry::Corrupt);
            corrupt.fetch_add(1, Ordering::SeqCst);
        }
        let ran = self.board.of(self.at, Entry::Ran);
        ran.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counting for Counter {
    fn count(&self, caller: usize, number: u64) -> u64 {
        self.run(caller, number);
        !number
    }

    fn echo(&self, caller: usize, number: u64, mut bytes: Vec<u8>) -> Vec<u8> {
        self.run(caller, number);
        bytes.reverse();
        if let Some(last) = bytes
            .last_mut()
            .filter(|_| self.plants("call-answer", number))
        {
            *last ^= 1;
        }
        bytes
    }

    fn turn(&self, caller: usize, number: u64, large: Large) -> Result<Large, String> {
        self.run(caller, number);
        let extent = large.into_extent().ok_or("there is no extent")?;
        payload::verify(&extent)?;
        let len = extent.len();
        drop(extent);
        let mut other = self.domain.allocate(len).map_err(|e| e.to_string())?;
        payload::stamp(&mut other, number);
        Ok(other.into())
    }

    fn linger(&self, caller: usize, number: u64, millis: u64) {
        self.run(caller, number);
        std::thread::sleep(Duration::from_millis(millis));
    }

    async fn muse(&self, caller: usize, number: u64, naps: usize) -> u64 {
        self.run(caller, number);
        Naps(naps).await;
        !number
    }

    fn stumble(&self, caller: usize, number: u64) {
        self.run(caller, number);
        // As a panic, without its lines on standard error.
        std::panic::resume_unwind(Box::new("stumbled"));
    }

    fn note(&self, caller: usize, number: u64) {
        self.run(caller, number);
    }

    fn hint(&self, caller: usize, number: u64) -> u64 {
        self.run(caller, number);
        !number
    }
}

/// What a worker has of calls. None of it outlives a pause: threads of the library's work
/// with it, so no journal could say what there is.
#[derive(Default)]
pub(super) struct Calls {
    server: Option<Server>,
    client: Option<CountingClient>,
    /// It was let in over a channel.
    presented: bool,
    pending: Vec<(u64, Pending<u64>)>,
    /// Where servers come that move here.
    heir: Option<ReceiveRight>,
    /// Numbers of this process's calls begin here.
    base: Option<u64>,
    made: u64,
}

impl Worker {
    pub(super) fn call_or_serve(&mut self) {
        self.doing(Doing::Calling);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(32) {
            0..3 => self.serve(&domain),
            3..5 => self.move_server(&domain),
            5..7 => self.inherit(&domain),
            7 if self.random.once_in(3) => self.holds.calls.server = None,
            8 if self.random.once_in(3) => self.holds.calls.client = None,
            9..12 => self.end_pending(),
            _ => self.call(&domain),
        }
    }

    fn service(&self, domain: &Domain) -> CountingService<Counter> {
        CountingService(Counter {
            board: self.board,
            at: self.at,
            domain: domain.clone(),
            plant: self.plant,
        })
    }

    fn server_options(&mut self) -> ServerOptions {
        let own = 1 + self.random.below(2);
        let mut options = ServerOptions::default().queue(4).own_channels(own);
        if self.random.once_in(2) {
            options = options.on_channel();
        }
        match self.random.below(4) {
            0 => options.tasks(awaited::spawn),
            1 => options.concurrency(Concurrency::Call),
            2 => options.concurrency(Concurrency::Pool(2)),
            _ => options.concurrency(Concurrency::Client),
        }
    }

    fn serve(&mut self, domain: &Domain) {
        if self.holds.calls.server.is_some() {
            return;
        }
        let name = NAMES[self.random.below(NAMES.len())];
        let options = self.server_options();
        // Taken, most of the time.
        self.holds.calls.server = rpc::serve(domain, name, self.service(domain), &options).ok();
    }

    fn move_server(&mut self, domain: &Domain) {
        let to = heir(self.random.below(MAX_WORKERS / 2));
        let Ok(right) = domain.connect(&to, Deadline::NOW) else {
            return;
        };
        if let Some(server) = self.holds.calls.server.take()
            && server.move_to(domain, &right, MOVING).is_ok()
        {
            let moved = self.board.of(self.at, Entry::Moved);
            moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn inherit(&mut self, domain: &Domain) {
        if self.holds.calls.server.is_some() {
            return;
        }
        let options = self.server_options();
        let service = self.service(domain);
        if self.holds.calls.heir.is_none() {
            let port = PortOptions::named(&heir(self.at));
            self.holds.calls.heir = domain.bind(port).ok();
        }
        let Some(port) = &mut self.holds.calls.heir else {
            return;
        };
        match rpc::take_over(domain, port, service, &options, COMING) {
            Ok(server) => self.holds.calls.server = Some(server),
            Err(ServeError::Receive(ReceiveError::TimedOut)) => {}
            // What is left of a server that died on its way is of no use.
            Err(_) => self.holds.calls.heir = None,
        }
    }

    /// The number of the next call, which has not run yet.
    pub(super) fn number(&mut self) -> u64 {
        let calls = &mut self.holds.calls;
        // The next process in this place counts on from elsewhere.
        let base = *calls.base.get_or_insert_with(|| self.random.next() >> 8);
        calls.made += 1;
        let number = base.wrapping_add(calls.made) & super::super::board::NUMBERS;
        self.board.call(self.at, number);
        number
    }

    fn call(&mut self, domain: &Domain) {
        if self.holds.calls.client.is_none() {
            self.connect_to_service(domain);
        }
        let Some(client) = self.holds.calls.client.clone() else {
            return;
        };
        let limit = [5, 50, 500][self.random.below(3)];
        let client = client.within(Duration::from_millis(limit));
        let over = match self.random.below(8) {
            0..2 => Some(self.await_calls(&client)),
            2 if client.stub().is_sharing() => Some(self.call_often(&client)),
            _ => None,
        };
        if let Some(over) = over {
            if over {
                self.holds.calls.client = None;
            }
            return;
        }
        for _ in 0..=self.random.below(BATCH) {
            let number = self.number();
            let ended = self.call_once(domain, &client, number);
            if self.settle(number, ended) {
                self.holds.calls.client = None;
                return;
            }
        }
    }

    fn connect_to_service(&mut self, domain: &Domain) {
        let name = NAMES[self.random.below(NAMES.len())];
        let (options, presented) = match self.random.below(4) {
            0 => (ClientOptions::default(), false),
            1 => (ClientOptions::default().over_channel(), true),
            _ => (ClientOptions::default().sharing(), false),
        };
        let deadline = Deadline::after(SHORT);
        let client = CountingClient::connect_with(domain, name, &options, deadline);
        self.holds.calls.client = client.ok();
        self.holds.calls.presented = presented;
    }

    /// As a client does that is busy. Whether the connection is of no use any more.
    fn call_often(&mut self, client: &CountingClient) -> bool {
        let mut over = false;
        for _ in 0..2 {
            let mut pending = Vec::new();
            for _ in 0..MANY {
                let number = self.number();
                match client.begin_count(self.at, number) {
                    Ok(call) => pending.push((number, call)),
                    Err(error) => over |= self.settle(number, Err(error)),
                }
            }
            for (number, call) in pending {
                let ended = call.wait().map(|n| n == !number);
                over |= self.settle(number, ended);
            }
        }
        if !client.stub().is_sharing() {
            let promoted = self.board.of(self.at, Entry::Promoted);
            promoted.fetch_add(1, Ordering::Relaxed);
        }
        over
    }

    /// Makes one call: whether it was answered, with what it should be.
    fn call_once(
        &mut self,
        domain: &Domain,
        client: &CountingClient,
        number: u64,
    ) -> Result<bool, RpcError> {
        let at = self.at;
        match self.random.below(12) {
            0..3 => client.count(at, number).map(|n| n == !number),
            3 => {
                let mut bytes = payload::header(number, self.random.below(LONG));
                let echoed = client.echo(at, number, bytes.clone())?;
                bytes.reverse();
                Ok(echoed == bytes)
            }
            4..7 => {
                let len = payload::LEAST + self.random.below(LARGE);
                let Ok(mut extent) = domain.allocate(len) else {
                    return client.hint(at, number).map(|n| n == !number);
                };
                payload::stamp(&mut extent, !number);
                match client.turn(at, number, extent.into()) {
                    Ok(large) => {
                        let other = large.into_extent();
                        Ok(other.is_some_and(|e| payload::verify(&e).is_ok() && e.len() == len))
                    }
                    // The server had no memory.
                    Err(CallError::Method(why)) => Ok(why.contains("extent")),
                    Err(CallError::Rpc(error)) => Err(error),
                }
            }
            7 => {
                let millis = self.random.below(20) as u64;
                client.linger(at, number, millis).map(|()| true)
            }
            8 => match client.stumble(at, number) {
                Err(RpcError::Panicked { message }) => Ok(message == "stumbled"),
                Ok(()) => Ok(false),
                Err(error) => Err(error),
            },
            9 => {
                client.note(at, number)?;
                // The error does not say whether it has run.
                Err(RpcError::Deadline)
            }
            10 => client.hint(at, number).map(|n| n == !number),
            _ => {
                let pending = client.begin_count(at, number)?;
                self.holds.calls.pending.push((number, pending));
                Err(RpcError::Deadline)
            }
        }
    }

    fn end_pending(&mut self) {
        while let Some((number, pending)) = self.holds.calls.pending.pop() {
            match self.random.below(4) {
                0 => drop(pending),
                1 => drop(pending.cancel()),
                _ => {
                    let ended = pending.wait().map(|n| n == !number);
                    self.settle(number, ended);
                }
            }
        }
    }

    /// Compares how a call has ended with how often it has run. Whether the connection is of
    /// no use any more.
    pub(super) fn settle(&self, number: u64, ended: Result<bool, RpcError>) -> bool {
        // Each call has a limit of its own.
        self.beat();
        let Some(times) = self.board.has_run(self.at, number) else {
            // Whether the connection is of use, a later call says.
            return false;
        };
        let over = match &ended {
            Ok(true) if times == 1 => {
                let called = self.board.of(self.at, Entry::Called);
                called.fetch_add(1, Ordering::Relaxed);
                let calls = &self.holds.calls;
                let shares = calls.client.as_ref().is_some_and(|c| c.stub().is_sharing());
                let kinds = [(shares, Entry::Shared), (calls.presented, Entry::Presented)];
                for (_, kind) in kinds.into_iter().filter(|(is, _)| *is) {
                    self.board.of(self.at, kind).fetch_add(1, Ordering::Relaxed);
                }
                return false;
            }
            Err(RpcError::Deadline | RpcError::Dropped | RpcError::Cancelled) if times <= 1 => {
                false
            }
            // The server, or the port for its extents, has gone.
            Err(
                RpcError::ServerDied | RpcError::Unsendable { .. } | RpcError::Closed(Closed::Left),
            ) if times <= 1 => true,
            Err(RpcError::Backpressure) if times == 0 => false,
            _ => {
                self.corrupt(&format!("a call ended as {ended:?} and ran {times} times"));
                true
            }
        };
        let failed = self.board.of(self.at, Entry::Uncalled);
        failed.fetch_add(1, Ordering::Relaxed);
        over
    }

    /// Lets go of all that threads of the library work with.
    pub(super) fn drop_calls(&mut self) {
        let base = self.holds.calls.base.map(|b| b + self.holds.calls.made);
        self.holds.calls = Calls {
            base,
            ..Calls::default()
        };
    }

    /// Also waits until they have ended.
    pub(super) fn end_calls(&mut self) {
        self.drop_calls();
        let mut quiet = 0;
        // One that ends cuts a list of them short.
        while quiet < 2 {
            quiet = if serves() { 0 } else { quiet + 1 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether this process has threads that serve calls.
fn serves() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return false;
    };
    let name = |thread: &Path| std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let ours = std::process::id().to_string();
    // A thread that has just begun has the name of the thread that started it.
    let unnamed = name(&Path::new("/proc/self/task").join(&ours));
    threads.flatten().any(|thread| {
        let (at, name) = (thread.path(), name(&thread.path()));
        name.starts_with("portolan-rpc") || name == unnamed && !at.ends_with(&ours)
    })
}
