//! Servers in processes of their own, which are killed; clients that leave, or are killed.

use super::service::{PATIENCE, TestClient, Tested, hurry, share, until};
use portolan::rpc::{self, Concurrency, RpcError, ServerOptions};
use portolan::{Access, Deadline, Domain, Message, PortOptions, Right};
use portolan_sys::process::{PidFd, Signal, signal};
use portolan_testkit::{role, spawn, unique};
use std::process::Child;

/// Not a test of its own: what a process that serves runs.
#[test]
fn serving_process() {
    let Some([what, name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let mut inbox = domain.bind(PortOptions::unnamed()).unwrap();
    // One that waits serves nothing at first.
    let mut server = (what == "serves")
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

pub(crate) struct Serving(Child);

impl Serving {
    pub(crate) fn start(domain: &Domain) -> Self {
        Self::running("serves", domain.name())
    }

    /// Serves nothing yet.
    pub(crate) fn waiting(domain: &Domain) -> Self {
        Self::waiting_in(domain.name())
    }

    fn waiting_in(domain: &str) -> Self {
        Self::running("waits", domain)
    }

    /// Stops it for good, but for its death.
    fn stop(&self) {
        let pidfd = PidFd::open(self.pid()).unwrap();
        signal(&pidfd, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.pid());
        until("it has stopped", || {
            std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "))
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its server goes to another process.
    pub(crate) fn move_to(&self, domain: &Domain, other: &Self) {
        let inbox = other.order(domain, b"inbox", None);
        self.order(domain, b"move", inbox);
        other.order(domain, b"take", None);
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

    fn running(what: &str, domain: &str) -> Self {
        Self(spawn("deaths::serving_process", &[what, domain]))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn domain(test: &str) -> Domain {
    Domain::join(&unique(&format!("rpc-{test}"))).unwrap()
}

#[test]
fn calls_end_at_once_when_the_server_is_killed() {
    let domain = domain("killed");
    let mut server = Serving::start(&domain);
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let client = client.within(10 * PATIENCE);
    assert_eq!(client.pid(), Ok(server.pid()));
    let slow = client.begin_wait(600_000).unwrap();
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
    assert_eq!(again.pid(), Ok(server.pid()));
}

#[test]
fn calls_end_when_the_server_is_killed_and_no_host_reclaims_it() {
    let name = unique("rpc-unreclaimed");
    let host = Serving::waiting_in(&name);
    until("it hosts", || Domain::builder(&name).observe().is_ok());
    let domain = Domain::join(&name).unwrap();
    assert!(!domain.is_host());
    let mut server = Serving::start(&domain);
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let client = client.within(10 * PATIENCE);
    assert_eq!(client.pid(), Ok(server.pid()));
    let slow = client.begin_wait(600_000).unwrap();
    let awaited = client.wait_async(600_000);
    host.stop();
    server.kill();
    assert_eq!(slow.wait(), Err(RpcError::ServerDied));
    assert_eq!(rpc::wait_for(awaited).unwrap(), Err(RpcError::ServerDied));
    assert_eq!(client.null(), Err(RpcError::ServerDied));
}

#[test]
fn a_client_that_leaves_is_noticed() {
    let domain = domain("client");
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let server = rpc::serve(&domain, "test", Tested::service(&domain), &options).unwrap();
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let other = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    let slow = client.begin_wait(600_000).unwrap();
    until("both are there", || server.clients() == 2);
    std::mem::forget(slow);
    // The pending call is a part of the connection: only the other one leaves.
    drop(other);
    until("one has gone", || server.clients() == 1);
    assert_eq!(client.add(1, 1), Ok(2));
}

#[test]
fn those_who_share_hear_at_once_of_a_server_that_is_killed() {
    let domain = domain("killed-shared");
    let mut server = Serving::start(&domain);
    let clients = [(); 4].map(|()| share(&domain).within(10 * PATIENCE));
    let [asleep, slow, awaits, busy] = &clients;
    until("one is promoted", || {
        (0..200).for_each(|_| busy.null().unwrap());
        hurry(busy);
        !busy.stub().is_sharing()
    });
    let pending = slow.begin_wait(600_000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    std::thread::scope(|scope| {
        let waits = [asleep, busy].map(|client| scope.spawn(|| client.wait(600_000)));
        let awaited = scope.spawn(|| runtime.block_on(awaits.wait_async(600_000)));
        for client in &clients {
            assert_eq!(client.add(1, 1), Ok(2));
        }
        server.kill();
        for waits in waits.into_iter().chain([awaited]) {
            assert_eq!(waits.join().unwrap(), Err(RpcError::ServerDied));
        }
    });
    assert_eq!(pending.wait(), Err(RpcError::ServerDied));
    for client in &clients {
        assert_eq!(client.null(), Err(RpcError::ServerDied));
    }
    // Another one takes its name.
    let server = Serving::start(&domain);
    assert_eq!(share(&domain).pid(), Ok(server.pid()));
}
