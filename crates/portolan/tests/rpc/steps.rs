//! Clients and servers that are killed at every marked step of a call, or stopped in its
//! middle: every call ends, none runs twice, and nothing is left behind.

use super::service::{LEDGER, PATIENCE, TestClient, Tested, until};
use portolan::rpc::{self, Concurrency, RpcError, Server, ServerOptions};
use portolan::{Domain, PortOptions, Segment};
use portolan_sys::process::{PidFd, Signal, signal};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Set in another process: its part, the domain, and the mark at which it dies.
const ROLE: &str = "PORTOLAN_RPC_STEPS";
/// The port at which a server is taken over.
const HEIR: &str = "heir";
/// A deadline that is meant to pass.
const LITTLE: Duration = Duration::from_millis(20);

/// Another process of a test. Killed when dropped.
struct Other(Child);

impl Other {
    fn start(part: &str, domain: &Domain, mark: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "steps::other_process", "--nocapture"])
            .env(ROLE, format!("{part} {} {mark}", domain.name()))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

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
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let [part, name, mark] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let domain = Domain::join(name).unwrap();
    let mark = mark.to_owned();
    #[cfg(feature = "marks")]
    deaths::die_at(mark);
    #[cfg(not(feature = "marks"))]
    drop(mark);
    match part {
        "calls" => {
            let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
            loop {
                client.add(1, 1).unwrap();
                let large = client.fill(5000, 1).unwrap();
                client.total(vec![large], false).unwrap();
            }
        }
        "serves" => {
            let _server = serve(&domain);
            std::thread::park();
        }
        "moves" => {
            let server = serve(&domain);
            let heir = domain.connect(HEIR, PATIENCE).unwrap();
            until("somebody calls", || server.clients() > 0);
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

fn serve(domain: &Domain) -> Server {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    rpc::serve(domain, "test", Tested::service(domain), &options).unwrap()
}

fn domain(test: &str) -> (Domain, Segment) {
    // Two tests may be about one mark.
    static DOMAINS: AtomicU64 = AtomicU64::new(0);
    let (process, count) = (std::process::id(), DOMAINS.fetch_add(1, Ordering::Relaxed));
    let domain = Domain::join(&format!("rpc-steps-{test}-{process}-{count}")).unwrap();
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
    let slow = client.start_once(1000).unwrap();
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

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan::PortKind;
    use std::sync::OnceLock;

    static DEADLY: OnceLock<String> = OnceLock::new();

    pub(super) fn die_at(mark: String) {
        DEADLY.set(mark).unwrap();
        portolan_shm::mark::install(|mark| {
            if DEADLY.get().is_some_and(|deadly| deadly == mark) {
                signal(&PidFd::open(std::process::id()).unwrap(), Signal::KILL).unwrap();
                // The signal comes before the call returns to this thread, or never mind.
                std::thread::park();
            }
        });
    }

    /// What is left but the ledger.
    fn is_left(domain: &Domain) -> bool {
        let survey = domain.survey().unwrap();
        let ports = survey.ports.iter();
        let others = ports.filter(|p| p.kind != PortKind::Segment).count();
        survey.memory.used > 1 << 20 || others > 0 || survey.ports.len() > 1
    }

    /// Somebody else serves in the place of a server that has died or moved.
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
        for mark in [
            "call.connected",
            "call.begun",
            "call.ended",
            "call.parcel_sent",
            "call.parcel_came",
        ] {
            let (domain, ledger) = domain(&format!("client-{mark}"));
            let server = serve(&domain);
            let mut victim = Other::start("calls", &domain, mark);
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
            let (domain, ledger) = domain(mark);
            let mut victim = Other::start("serves", &domain, mark);
            let mut number = 0;
            // Of a server that has died there is no connection, or no answer.
            if let Ok(client) = TestClient::connect(&domain, "test", PATIENCE) {
                let client = client.within(10 * PATIENCE);
                let ended = loop {
                    let ended = call(&client, &ledger, &mut number);
                    let large = client.fill(5000, 1).map(|l| client.total(vec![l], false));
                    if ended.is_err() || !matches!(large, Ok(Ok(_))) {
                        break ended;
                    }
                };
                let dead = RpcError::ServerDied;
                assert!(
                    ended.is_ok() || ended == Err(dead.clone()),
                    "{mark}: {ended:?}"
                );
                until(mark, || victim.ended());
                assert_eq!(call(&client, &ledger, &mut number), Err(dead), "{mark}");
            }
            until(mark, || victim.ended());
            serve_again(&domain, &ledger, &mut number);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
    }

    #[test]
    fn a_server_dies_at_whatever_step_of_its_way() {
        for mark in ["serve.dismantled", "serve.moving"] {
            let (domain, ledger) = domain(mark);
            let mut heir = domain.bind(PortOptions::named(HEIR)).unwrap();
            let mut victim = Other::start("moves", &domain, mark);
            let mut number = 0;
            let client = connect(&domain);
            until(mark, || {
                // On its way, it is not dead yet.
                let ended = call(&client.within(LITTLE), &ledger, &mut number);
                assert!(matches!(
                    ended,
                    Ok(()) | Err(RpcError::Deadline | RpcError::ServerDied)
                ));
                victim.ended()
            });
            // What came of it, if anything, is no whole server.
            let service = Tested::service(&domain);
            let options = ServerOptions::default();
            let came = rpc::take_over(&domain, &mut heir, service, &options, LITTLE);
            assert!(came.is_err(), "{mark}");
            let dead = Err(RpcError::ServerDied);
            assert_eq!(call(&client, &ledger, &mut number), dead, "{mark}");
            drop((client, heir));
            serve_again(&domain, &ledger, &mut number);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
        for mark in ["serve.coming", "serve.taken_over"] {
            let (domain, ledger) = domain(mark);
            let server = serve(&domain);
            let client = connect(&domain);
            let mut number = 0;
            assert_eq!(call(&client, &ledger, &mut number), Ok(()));
            let mut victim = Other::start("inherits", &domain, mark);
            let heir = domain.connect(HEIR, PATIENCE).unwrap();
            // It may die while more is being sent.
            drop(server.move_to(&domain, &heir, PATIENCE));
            let ended = loop {
                if let Err(error) = call(&client, &ledger, &mut number) {
                    break error;
                }
            };
            assert_eq!(ended, RpcError::ServerDied, "{mark}");
            until(mark, || victim.ended());
            drop((client, heir));
            serve_again(&domain, &ledger, &mut number);
            until(&format!("all came back after {mark}"), || !is_left(&domain));
        }
    }
}
