//! Servers that move, in the middle of calls.

use super::deaths::{Serving, domain};
use super::service::{LEDGER, PATIENCE, TestClient, Tested, hurry, share, until};
use portolan::rpc::{self, Concurrency, RpcError, ServeError, ServerOptions};
use portolan::{Domain, PortOptions};
use portolan_testkit::SetOnDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A deadline that is meant to pass.
const LITTLE: Duration = Duration::from_millis(20);
/// Numbers of one caller's calls.
const NUMBERS: u64 = 100_000;

/// Who calls: through this client, and as often as it pauses.
struct Caller {
    client: TestClient,
    pause: Duration,
    calls: AtomicU64,
}

impl Caller {
    fn new(client: TestClient, pause: Duration) -> Self {
        Self {
            client: client.within(10 * PATIENCE),
            pause,
            calls: AtomicU64::new(0),
        }
    }

    /// Calls until it is done. Each number is called once, and runs once in all processes
    /// together.
    fn call(&self, first: u64, done: &AtomicBool) {
        let client = &self.client;
        while !done.load(Ordering::Relaxed) {
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            assert!(calls < NUMBERS, "more calls than there are numbers");
            let number = first + calls;
            assert_eq!(client.once(number), Ok(0), "{number} ran twice");
            client.count(1).unwrap();
            let large = client.fill(10_000, 7).unwrap().into_extent().unwrap();
            assert_eq!(client.total(vec![large.into()], false), Ok(70_000));
            std::thread::sleep(self.pause);
        }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// A server goes to and fro between processes while all of them call; every client sees each
/// of them, and no call is lost or runs twice. Before each move `ready` waits.
fn moves(domain: &Domain, clients: impl FnOnce() -> Vec<Caller>, ready: impl Fn(&[Caller])) {
    // A word for each call, and one for all.
    let ledger = domain.make_segment(Some(LEDGER), 8 << 20).unwrap();
    let servers = [Serving::start(domain), Serving::waiting(domain)];
    let callers = clients();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&done);
        let threads = (0..).zip(&callers).map(|(at, caller)| {
            let done = &done;
            scope.spawn(move || caller.call(1 + at * NUMBERS, done))
        });
        let threads = threads.collect::<Vec<_>>();
        for turn in 0..4 {
            let (from, to) = (&servers[turn % 2], &servers[(turn + 1) % 2]);
            for caller in &callers {
                assert_eq!(caller.client.pid(), Ok(from.pid()));
            }
            ready(&callers);
            let before = callers.iter().map(Caller::calls).collect::<Vec<_>>();
            from.move_to(domain, to);
            until("all go on", || {
                let mut went_on = callers.iter().zip(&before);
                went_on.all(|(c, before)| c.calls() > before + 1)
                    || threads.iter().any(|t| t.is_finished())
            });
        }
        drop(ends);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    for caller in &callers {
        assert_eq!(caller.client.stub().flush(PATIENCE).unwrap(), 0);
        assert_eq!(caller.client.pid(), Ok(servers[0].pid()));
    }
    // One-way calls too, each once.
    let calls = callers.iter().map(Caller::calls).sum::<u64>();
    let counted = || ledger.words()[0].load(Ordering::Relaxed);
    until("all are counted", || counted() >= calls);
    for caller in &callers {
        assert_eq!(caller.client.add(1, 2), Ok(3));
    }
    assert_eq!(counted(), calls);
}

#[test]
fn a_server_moves_between_processes_in_the_middle_of_calls() {
    let domain = domain("moves");
    let callers = || {
        let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
        // Threads of one client.
        let clients = (0..4).map(|_| client.clone());
        clients.map(|c| Caller::new(c, Duration::ZERO)).collect()
    };
    moves(&domain, callers, |_| {});
}

#[test]
fn those_who_share_move_along_and_who_is_busy_is_promoted_there() {
    let domain = domain("moves-shared");
    let callers = || {
        let mut callers = vec![Caller::new(share(&domain), Duration::ZERO)];
        for _ in 0..5 {
            callers.push(Caller::new(share(&domain), Duration::from_millis(20)));
        }
        callers
    };
    let promoted = |callers: &[Caller]| {
        let busy = &callers[0].client;
        until("the busy one is promoted", || {
            hurry(busy);
            !busy.stub().is_sharing()
        });
    };
    moves(&domain, callers, promoted);
}

#[test]
fn calls_that_run_are_waited_for_until_the_deadline() {
    for (concurrency, sharing) in [
        (Concurrency::Client, false),
        (Concurrency::Client, true),
        (Concurrency::Call, false),
        (Concurrency::Pool(2), true),
    ] {
        let domain = Domain::private().unwrap();
        let options = ServerOptions::default().concurrency(concurrency);
        let mut heir = domain.bind(PortOptions::unnamed()).unwrap();
        let service = Tested::service(&domain);
        let waits = Arc::clone(&service.0.waits);
        let server = rpc::serve(&domain, "test", service, &options).unwrap();
        let client = if sharing {
            share(&domain)
        } else {
            TestClient::connect(&domain, "test", PATIENCE).unwrap()
        };
        let client = client.within(10 * PATIENCE);

        let short = client.begin_wait(100).unwrap();
        until("it waits", || waits.load(Ordering::Relaxed) == 1);
        let to = heir.make_send();
        server.move_to(&domain, &to, PATIENCE).unwrap();
        let service = Tested::service(&domain);
        let waits = Arc::clone(&service.0.waits);
        let server = rpc::take_over(&domain, &mut heir, service, &options, PATIENCE).unwrap();
        // It ended before its server went.
        assert_eq!(short.wait(), Ok(true));
        assert_eq!(client.add(1, 1), Ok(2));
        let there = (server.clients(), server.sharing());
        assert_eq!(there, (1, usize::from(sharing)));

        let long = client.begin_wait(600_000).unwrap();
        until("it waits", || waits.load(Ordering::Relaxed) == 1);
        let moved = server.move_to(&domain, &to, LITTLE);
        assert!(matches!(moved, Err(ServeError::Running)), "{moved:?}");
        assert_eq!(long.wait(), Err(RpcError::ServerDied));
        assert_eq!(client.null(), Err(RpcError::ServerDied));
    }
}

#[test]
fn clients_that_go_while_their_server_moves_are_noticed() {
    let domain = Domain::private().unwrap();
    let options = ServerOptions::default();
    let mut heir = domain.bind(PortOptions::unnamed()).unwrap();
    let server = rpc::serve(&domain, "test", Tested::service(&domain), &options).unwrap();
    let goes = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    assert_eq!(goes.add(1, 1), Ok(2));
    server
        .move_to(&domain, &heir.make_send(), PATIENCE)
        .unwrap();
    drop(goes);
    // It asks to be let in, and is gone when it is.
    let late = TestClient::connect(&domain, "test", LITTLE);
    assert!(late.is_err(), "nobody serves");
    let service = Tested::service(&domain);
    let server = rpc::take_over(&domain, &mut heir, service, &options, PATIENCE).unwrap();
    let stays = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    assert_eq!(stays.add(1, 1), Ok(2));
    until("both are noticed", || server.clients() == 1);
    assert_eq!(stays.add(2, 2), Ok(4));
}
