//! Clients and servers that are killed at every marked step of a call, or stopped in its
//! middle: every call ends, none runs twice, and nothing is left behind.

use super::service::{LEDGER, PATIENCE, TestClient, Tested, hurry, share, until};
use portolan::rpc::{self, Concurrency, RpcError, Server, ServerOptions};
use portolan::{Domain, PortOptions, Segment};
use portolan_sys::process::{PidFd, Signal, signal};
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The port at which a server is taken over.
const HEIR: &str = "heir";
/// Clients of one process that share.
const CROWD: usize = 4;
/// A deadline that is meant to pass.
const LITTLE: Duration = Duration::from_millis(20);

/// Another process of a test. Killed when dropped.
struct Other(Child);

impl Other {
    fn start(part: &str, domain: &Domain, mark: &str) -> Self {
        let role = [part, domain.name(), mark];
        Self(portolan_testkit::spawn("steps::other_process", &role))
    }

    #[cfg(feature = "marks")]
    fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn signal(&self, which: Signal) {
        signal(&PidFd::open(self.0.id()).unwrap(), which).unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        until("it has stopped", || {
            std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "))
        });
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: what the other processes run.
#[test]
fn other_process() {
    let Some([part, name, mark]) = portolan_testkit::role() else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    #[cfg(feature = "marks")]
    portolan_testkit::die_at(&mark, portolan_shm::mark::install);
    #[cfg(not(feature = "marks"))]
    drop(mark);
    match &*part {
        "calls" | "shares" => {
            let client = match &*part {
                "calls" => TestClient::connect(&domain, "test", PATIENCE).unwrap(),
                _ => share(&domain),
            };
            loop {
                client.add(1, 1).unwrap();
                let large = client.fill(5000, 1).unwrap();
                client.total(vec![large], false).unwrap();
                if part == "shares" {
                    hurry(&client);
                }
            }
        }
        "crowd" => {
            let clients = [(); CROWD].map(|()| share(&domain).within(10 * PATIENCE));
            until("one is promoted", || {
                (0..200).for_each(|_| clients[0].null().unwrap());
                hurry(&clients[0]);
                !clients[0].stub().is_sharing()
            });
            let slow = clients.each_ref().map(|c| c.begin_wait(600_000).unwrap());
            // Calls are handed out in order: those have begun.
            for client in &clients {
                client.fill(70_000, 1).unwrap();
                client.count(1).unwrap();
                client.null().unwrap();
            }
            drop_never(slow);
        }
        "serves" => {
            let _server = serve(&domain);
            std::thread::park();
        }
        "moves" => {
            let server = serve(&domain);
            let heir = domain.connect(HEIR, PATIENCE).unwrap();
            until("both are there", || server.clients() == 2);
            server.move_to(&domain, &heir, PATIENCE).unwrap();
        }
        "inherits" => {
            let mut heir = domain.bind(PortOptions::named(HEIR)).unwrap();
            let service = Tested::service(&domain);
            let options = ServerOptions::default();
            let _server = rpc::take_over(&domain, &mut heir, service, &options, PATIENCE);
            std::thread::park();
        }
        other => panic!("{other}"),
    }
}

/// Keeps it until this process is killed.
fn drop_never<T>(what: T) -> ! {
    loop {
        std::thread::park();
        std::hint::black_box(&what);
    }
}

fn serve(domain: &Domain) -> Server {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    // Of those who share, one may have channels of its own.
    let options = options.own_channels(1);
    rpc::serve(domain, "test", Tested::service(domain), &options).unwrap()
}

fn domain(test: &str) -> (Domain, Segment) {
    let name = portolan_testkit::unique(&format!("rpc-steps-{test}"));
    let domain = Domain::join(&name).unwrap();
    let ledger = domain.make_segment(Some(LEDGER), 1 << 20).unwrap();
    (domain, ledger)
}

fn connect(domain: &Domain) -> TestClient {
    let client = TestClient::connect(domain, "test", PATIENCE).unwrap();
    client.within(10 * PATIENCE)
}

/// Calls with a number of its own, and says how it ended; it has run once if it was answered,
/// and never twice.
fn call(client: &TestClient, ledger: &Segment, number: &mut u64) -> Result<(), RpcError> {
    *number += 1;
    let ended = client.once(*number);
    let at = usize::try_from(*number).unwrap();
    let times = ledger.words()[at].load(Ordering::SeqCst);
    assert!(times <= 1, "call {number} ran {times} times");
    assert!(
        ended.is_err() || (ended == Ok(0) && times == 1),
        "{ended:?}, {times}"
    );
    ended.map(drop)
}

#[test]
fn a_server_that_is_stopped_is_waited_for_until_the_deadline_and_no_longer() {
    let (domain, ledger) = domain("stopped");
    let server = Other::start("serves", &domain, "none");
    let client = connect(&domain);
    let mut number = 0;
    assert_eq!(call(&client, &ledger, &mut number), Ok(()));
    server.stop();
    let hasty = client.within(LITTLE);
    for _ in 0..20 {
        assert_eq!(call(&hasty, &ledger, &mut number), Err(RpcError::Deadline));
    }
    let slow = client.begin_once(1000).unwrap();
    server.signal(Signal::CONT);
    // What it was asked meanwhile it may run yet, late and once; its answers are dropped.
    assert_eq!(slow.wait(), Ok(0));
    let client = client.within(10 * PATIENCE);
    for _ in 0..20 {
        assert_eq!(call(&client, &ledger, &mut number), Ok(()));
    }
    let most = ledger
        .words()
        .iter()
        .map(|w| w.load(Ordering::SeqCst))
        .max();
    assert_eq!(most, Some(1));
}

#[test]
fn a_client_that_is_stopped_holds_up_no_other() {
    let (domain, ledger) = domain("idle");
    let server = serve(&domain);
    let stopped = Other::start("calls", &domain, "none");
    until("it calls", || server.clients() == 1);
    stopped.stop();
    let client = connect(&domain);
    let mut number = 0;
    for _ in 0..500 {
        assert_eq!(call(&client, &ledger, &mut number), Ok(()));
    }
    assert_eq!(server.clients(), 2);
    stopped.signal(Signal::CONT);
    assert_eq!(call(&client, &ledger, &mut number), Ok(()));
}

#[test]
fn those_who_share_and_are_killed_are_let_go_of_at_once_and_once() {
    let (domain, ledger) = domain("crowd");
    let server = serve(&domain);
    let client = share(&domain).within(10 * PATIENCE);
    let mut number = 0;
    assert_eq!(call(&client, &ledger, &mut number), Ok(()));
    // A client that makes 64 calls in 100 ms is given channels of its own.
    let seldom = || std::thread::sleep(Duration::from_millis(4));
    // So its own memory stays as it is from here on.
    let what_is_there = || {
        let survey = domain.survey().unwrap();
        (survey.memory.used, survey.ports.len())
    };
    let before = what_is_there();
    for round in 1..=3 {
        let crowd = Other::start("crowd", &domain, "none");
        let whole = CROWD as u64;
        until("all of them wait", || {
            seldom();
            client.counted() == Ok(round * whole)
        });
        assert_eq!(server.clients(), CROWD + 1);
        drop(crowd);
        // No client joins meanwhile: their running calls are told all the same.
        until("all are told", || {
            seldom();
            client.given_up() == Ok(round * whole)
        });
        until("all came back", || what_is_there() == before);
        assert_eq!((server.clients(), server.sharing()), (1, 1));
        assert_eq!(call(&client, &ledger, &mut number), Ok(()));
        assert_eq!(client.given_up(), Ok(round * whole));
    }
}

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan::PortKind;
    use portolan::rpc::ClientOptions;

    /// What is left but the ledger.
    fn is_left(domain: &Domain) -> bool {
        let survey = domain.survey().unwrap();
        let ports = survey.ports.iter();
        let others = ports.filter(|p| p.kind != PortKind::Segment).count();
        survey.memory.used > 1 << 20 || others > 0 || survey.ports.len() > 1
    }

    /// Another process serves in the place of a server that has died or moved.
    fn serve_again(domain: &Domain, ledger: &Segment, number: &mut u64) {
        let mut server = None;
        until("the name is free", || {
            let service = Tested::service(domain);
            server = rpc::serve(domain, "test", service, &ServerOptions::default()).ok();
            server.is_some()
        });
        assert_eq!(call(&connect(domain), ledger, number), Ok(()));
    }

    #[test]
    fn a_client_dies_at_whatever_step() {
        for (part, mark) in [
            ("calls", "call.connected"),
            ("calls", "call.begun"),
            ("calls", "call.ended"),
            ("calls", "call.parcel_sent"),
            ("calls", "call.parcel_came"),
            ("shares", "call.connected"),
            ("shares", "call.begun"),
            ("shares", "call.ended"),
            ("shares", "call.parcel_sent"),
            ("shares", "call.parcel_came"),
            ("shares", "call.presented"),
            ("shares", "call.promoted"),
        ] {
            let (domain, ledger) = domain(&format!("client-{mark}"));
            let server = serve(&domain);
            let mut victim = Other::start(part, &domain, mark);
            until(mark, || victim.ended());
            until("the server lets go of it", || server.clients() == 0);
            assert_eq!(call(&connect(&domain), &ledger, &mut 0), Ok(()));
            drop(server);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
    }

    #[test]
    fn a_server_dies_at_whatever_step() {
        for mark in [
            "serve.let_in",
            "serve.taken",
            "serve.ended",
            "serve.answered",
            "call.parcel_came",
            "call.parcel_sent",
        ] {
            dies_as_it_serves(mark, |domain| {
                let client = TestClient::connect(domain, "test", PATIENCE).ok()?;
                Some(vec![client])
            });
        }
        // The busy client takes the channels of the idle one.
        for mark in [
            "serve.let_in",
            "serve.answered",
            "call.parcel_sent",
            "serve.promoted",
            "serve.demoted",
        ] {
            dies_as_it_serves(mark, |domain| {
                let options = ClientOptions::default().sharing();
                let connect = || TestClient::connect_with(domain, "test", &options, PATIENCE);
                Some(vec![connect().ok()?, connect().ok()?])
            });
        }
    }

    fn dies_as_it_serves(mark: &str, clients: impl Fn(&Domain) -> Option<Vec<TestClient>>) {
        let (domain, ledger) = domain(mark);
        let mut victim = Other::start("serves", &domain, mark);
        let mut number = 0;
        let dead = RpcError::ServerDied;
        // Of a server that has died there is no connection, or no answer.
        let clients = clients(&domain).unwrap_or_default();
        let clients = clients.into_iter().map(|c| c.within(10 * PATIENCE));
        let clients = clients.collect::<Vec<_>>();
        while !clients.is_empty() && !victim.ended() {
            for i in 0..100 * clients.len() {
                let client = &clients[i / 100];
                if i % 100 == 0 && client.stub().is_sharing() {
                    // It is a busy one, on a busy machine too.
                    let counts = (0..100).try_for_each(|_| client.count(0));
                    let _ = counts.and_then(|()| client.stub().flush(PATIENCE));
                }
                let ended = call(client, &ledger, &mut number);
                let large = client.fill(5000, 1).map(|l| client.total(vec![l], false));
                if ended.is_err() || !matches!(large, Ok(Ok(_))) {
                    let expected = ended.is_ok() || ended == Err(dead.clone());
                    assert!(expected, "{mark}: {ended:?}");
                    until(mark, || victim.ended());
                    break;
                }
            }
        }
        until(mark, || victim.ended());
        for client in &clients {
            let ended = call(client, &ledger, &mut number);
            assert_eq!(ended, Err(dead.clone()), "{mark}");
        }
        drop(clients);
        serve_again(&domain, &ledger, &mut number);
        until(&format!("all came back after {mark}"), || !is_left(&domain));
    }

    #[test]
    fn a_server_dies_as_it_lets_go_of_the_dead() {
        let mark = "serve.reclaimed";
        let (domain, ledger) = domain(mark);
        let mut victim = Other::start("serves", &domain, mark);
        let client = share(&domain).within(10 * PATIENCE);
        let crowd = Other::start("crowd", &domain, "none");
        until("all wait", || client.counted() == Ok(CROWD as u64));
        drop(crowd);
        until(mark, || victim.ended());
        let mut number = 0;
        let ended = call(&client, &ledger, &mut number);
        assert_eq!(ended, Err(RpcError::ServerDied));
        drop(client);
        serve_again(&domain, &ledger, &mut number);
        until("all came back", || !is_left(&domain));
    }

    #[test]
    fn a_server_dies_at_whatever_step_of_its_way() {
        for mark in ["serve.dismantled", "serve.moving"] {
            let (domain, ledger) = domain(mark);
            let mut heir = domain.bind(PortOptions::named(HEIR)).unwrap();
            let mut victim = Other::start("moves", &domain, mark);
            let mut number = 0;
            let clients = both(&domain);
            until(mark, || {
                for client in &clients {
                    // On its way, it is not dead yet.
                    let ended = call(&client.within(LITTLE), &ledger, &mut number);
                    assert!(matches!(
                        ended,
                        Ok(()) | Err(RpcError::Deadline | RpcError::ServerDied)
                    ));
                }
                victim.ended()
            });
            // What came of it, if anything, is no whole server.
            let service = Tested::service(&domain);
            let options = ServerOptions::default();
            let came = rpc::take_over(&domain, &mut heir, service, &options, LITTLE);
            assert!(came.is_err(), "{mark}");
            for client in &clients {
                let dead = Err(RpcError::ServerDied);
                assert_eq!(call(client, &ledger, &mut number), dead, "{mark}");
            }
            drop((clients, heir));
            serve_again(&domain, &ledger, &mut number);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
        for mark in ["serve.coming", "serve.inherited", "serve.taken_over"] {
            let (domain, ledger) = domain(mark);
            let server = serve(&domain);
            let clients = both(&domain);
            let mut number = 0;
            for client in &clients {
                assert_eq!(call(client, &ledger, &mut number), Ok(()));
            }
            let mut victim = Other::start("inherits", &domain, mark);
            let heir = domain.connect(HEIR, PATIENCE).unwrap();
            // It may die while more is being sent.
            drop(server.move_to(&domain, &heir, PATIENCE));
            for client in &clients {
                let ended = loop {
                    if let Err(error) = call(client, &ledger, &mut number) {
                        break error;
                    }
                };
                assert_eq!(ended, RpcError::ServerDied, "{mark}");
            }
            until(mark, || victim.ended());
            drop((clients, heir));
            serve_again(&domain, &ledger, &mut number);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
    }

    /// A client with channels of its own, and one that shares.
    fn both(domain: &Domain) -> [TestClient; 2] {
        [connect(domain), share(domain).within(10 * PATIENCE)]
    }
}
