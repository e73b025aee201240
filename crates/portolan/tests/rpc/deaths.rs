//! Servers in processes of their own, which are killed, or move to one another.

use super::service::{LEDGER, PATIENCE, TestClient, Tested, until};
use portolan::rpc::{self, Concurrency, RpcError, ServerOptions};
use portolan::{Access, Deadline, Domain, Message, PortOptions, Right};
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set in a process that serves: the domain's name.
const SERVE: &str = "PORTOLAN_RPC_SERVES";
/// Set in one that serves nothing at first.
const WAITS: &str = "PORTOLAN_RPC_WAITS";

/// Not a test of its own: what a process that serves runs.
#[test]
fn serving_process() {
    let Ok(name) = std::env::var(SERVE) else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let mut inbox = domain.bind(PortOptions::unnamed()).unwrap();
    let mut server = std::env::var(WAITS)
        .is_err()
        .then(|| rpc::serve(&domain, "test", Tested::service(&domain), &options).unwrap());
    // Tells the test where to send servers and orders, and does what it is told.
    let name = format!("orders-{}", std::process::id());
    let mut orders = domain
        .bind(PortOptions::named(&name).synchronous())
        .unwrap();
    loop {
        let mut order = orders.get_request(Access::Later, Deadline::NEVER).unwrap();
        let mut answer = Message::default();
        let right = order.message.take_rights().pop();
        match (order.message.header(), right) {
            (b"inbox", _) => answer.attach(inbox.make_send()).unwrap(),
            (b"move", Some(Right::Send(to))) => {
                server
                    .take()
                    .unwrap()
                    .move_to(&domain, &to, PATIENCE)
                    .unwrap();
            }
            (b"take", _) => {
                let service = Tested::service(&domain);
                let taken = rpc::take_over(&domain, &mut inbox, service, &options, PATIENCE);
                server = Some(taken.unwrap());
            }
            other => panic!("{other:?}"),
        }
        order.reply(answer).unwrap();
    }
}

struct Serving(Child);

impl Serving {
    fn start(domain: &Domain) -> Self {
        Self::with(domain, |_| {})
    }

    /// Serves nothing yet.
    fn waiting(domain: &Domain) -> Self {
        Self::with(domain, |command| {
            command.env(WAITS, "1");
        })
    }

    /// Has it do something; the right that it answers with.
    fn order(&self, domain: &Domain, what: &[u8], with: Option<Right>) -> Option<Right> {
        let right = domain
            .connect(&format!("orders-{}", self.0.id()), PATIENCE)
            .unwrap();
        let mut message = Message::new(what).unwrap();
        if let Some(right) = with {
            message.attach(right).unwrap();
        }
        let answer = right.request_reply(message, Access::Later, PATIENCE);
        answer.unwrap().take_rights().pop()
    }

    fn with(domain: &Domain, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "deaths::serving_process", "--nocapture"])
            .env(SERVE, domain.name())
            .stdout(Stdio::null());
        prepare(&mut command);
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

fn domain(test: &str) -> Domain {
    Domain::join(&format!("rpc-{test}-{}", std::process::id())).unwrap()
}

#[test]
fn calls_end_at_once_when_the_server_is_killed() {
    let domain = domain("killed");
    let mut server = Serving::start(&domain);
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let client = client.within(10 * PATIENCE);
    assert_eq!(client.pid(), Ok(server.0.id()));
    let slow = client.start_wait(600_000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    let awaiting = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let awaiting = awaiting.within(10 * PATIENCE);
    let awaited = std::thread::spawn(move || runtime.block_on(awaiting.wait_async(600_000)));
    let asleep = std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.wait(600_000));
        assert_eq!(client.add(1, 1), Ok(2));
        server.kill();
        waits.join().unwrap()
    });
    assert_eq!(asleep, Err(RpcError::ServerDied));
    assert_eq!(awaited.join().unwrap(), Err(RpcError::ServerDied));
    assert_eq!(slow.wait(), Err(RpcError::ServerDied));
    assert_eq!(client.null(), Err(RpcError::ServerDied));
    // Another one takes its name.
    let server = Serving::start(&domain);
    let again = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    assert_eq!(again.pid(), Ok(server.0.id()));
}

#[test]
fn a_client_that_leaves_is_noticed() {
    let domain = domain("client");
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let server = rpc::serve(&domain, "test", Tested::service(&domain), &options).unwrap();
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let other = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let slow = client.start_wait(600_000).unwrap();
    until("both are there", || server.clients() == 2);
    std::mem::forget(slow);
    // The pending call is a part of the connection: only the other one leaves.
    drop(other);
    until("one has gone", || server.clients() == 1);
    assert_eq!(client.add(1, 1), Ok(2));
}

#[test]
fn a_server_moves_between_processes_in_the_middle_of_calls() {
    let domain = domain("moves");
    // A word for each call, and one for all.
    let ledger = domain.make_segment(Some(LEDGER), 8 << 20).unwrap();
    let (a, b) = (Serving::start(&domain), Serving::waiting(&domain));
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let client = client.within(10 * PATIENCE);
    let done = AtomicBool::new(false);
    let mut pids = BTreeSet::new();
    let calls = std::thread::scope(|scope| {
        let threads = (0..4_u64).map(|thread| {
            let (client, done) = (&client, &done);
            scope.spawn(move || {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) && calls < 200_000 {
                    // Each number is called once, and runs once in all processes together.
                    let number = 1 + thread * 200_000 + calls;
                    assert_eq!(client.once(number), Ok(0), "{number:#x} ran twice");
                    client.count(1).unwrap();
                    let large = client.fill(10_000, 7).unwrap().into_extent().unwrap();
                    assert_eq!(client.total(vec![large.into()], false), Ok(70_000));
                    calls += 1;
                }
                calls
            })
        });
        let threads = threads.collect::<Vec<_>>();
        for turn in 0..4 {
            let (from, to) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
            assert_eq!(client.pid(), Ok(from.0.id()));
            pids.insert(from.0.id());
            let inbox = to.order(&domain, b"inbox", None);
            from.order(&domain, b"move", inbox);
            to.order(&domain, b"take", None);
        }
        done.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    assert_eq!(pids.len(), 2);
    assert!(calls > 0);
    assert!(client.stub().flush(PATIENCE).unwrap());
    // One-way calls too, each once.
    let counted = || ledger.words()[0].load(Ordering::Relaxed);
    until("all are counted", || counted() >= calls);
    assert_eq!(client.add(1, 2), Ok(3));
    assert_eq!(counted(), calls);
}
