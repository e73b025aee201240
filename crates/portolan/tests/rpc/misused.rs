//! Methods called in another way than they are meant, and code of others that panics.

use super::service::{PATIENCE, until};
use portolan::Domain;
use portolan::rpc::{self, Concurrency, Method, RpcError, Schema, ServerOptions, Service, Task};
use serde::{Deserialize, Serialize, Serializer};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[portolan::service]
trait Odd {
    fn add(&self, a: u64, b: u64) -> u64;
    #[rpc(one_way)]
    fn count(&self, n: u64);
    fn counted(&self) -> u64;
    fn unwritable(&self) -> Unwritable;
    fn panics(&self, len: usize);
    async fn later(&self, n: u64) -> u64;
    async fn never(&self);
}

/// It cannot be written.
#[derive(Debug, PartialEq, Deserialize)]
struct Unwritable;

impl Schema for Unwritable {
    const HASH: u64 = 77;
}

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no"))
    }
}

#[derive(Default)]
struct Counter(AtomicU64);

impl Odd for Counter {
    fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn count(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn counted(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn unwritable(&self) -> Unwritable {
        Unwritable
    }

    fn panics(&self, len: usize) {
        panic!("{}", "ü".repeat(len));
    }

    async fn later(&self, n: u64) -> u64 {
        n
    }

    async fn never(&self) {
        std::future::pending().await
    }
}

fn served(options: &ServerOptions) -> (Domain, rpc::Server, OddClient) {
    let domain = Domain::private().unwrap();
    let server = rpc::serve(&domain, "odd", OddService(Counter::default()), options).unwrap();
    let client = OddClient::connect(&domain, "odd", PATIENCE).unwrap();
    (domain, server, client.within(PATIENCE))
}

fn method(name: &str) -> &'static Method {
    let methods = OddService::<Counter>::METHODS;
    methods.iter().find(|m| m.name() == name).unwrap()
}

#[test]
fn a_method_is_called_as_it_is_meant_or_not_at_all() -> Outcome {
    let (_domain, _server, client) = served(&ServerOptions::default());
    let stub = client.stub();
    let (add, count) = (method("add"), method("count"));
    let one_way = RpcError::OneWay { method: "count" };
    assert_eq!(stub.call::<_, ()>(count, &(5u64,)), Err(one_way.clone()));
    let started = stub.begin::<_, ()>(count, &(5u64,)).map(|_| ());
    assert_eq!(started, Err(one_way));
    let not_one_way = RpcError::NotOneWay { method: "add" };
    for n in 0..200u64 {
        assert_eq!(stub.post(add, &(n, n)), Err(not_one_way.clone()));
    }
    assert_eq!(client.counted()?, 0, "none of these was called");
    // As they are meant.
    stub.post(count, &(5u64,))?;
    rpc::wait_for(stub.call_async::<_, ()>(count, &(5u64,))).unwrap()?;
    assert_eq!(stub.flush(PATIENCE)?, 0);
    until("both have run", || client.counted() == Ok(10));
    assert_eq!(stub.call(add, &(2u64, 3u64)), Ok(5u64));
    Ok(())
}

#[test]
fn a_method_says_why_it_has_no_result() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call] {
        let (_domain, _server, client) = served(&ServerOptions::default().concurrency(concurrency));
        let refused = client.unwritable();
        assert!(
            matches!(&refused, Err(RpcError::Unsendable { what, why })
                if *what == "the result" && why.contains("Serialize")),
            "{refused:?}"
        );
        for len in [0, 10, 2 << 20] {
            let Err(RpcError::Panicked { message }) = client.panics(len) else {
                panic!("it panics")
            };
            assert!(message.len() >= 2 * len.min(8000) && message.len() < 20_000);
            assert!(message.chars().all(|c| c == 'ü'));
        }
        assert_eq!(client.add(2, 3), Ok(5));
    }
    Ok(())
}

#[test]
fn a_spawner_that_panics_takes_its_call_along_and_nothing_else() {
    let panics = Arc::new(AtomicBool::new(true));
    let spawns = Arc::clone(&panics);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let tokio = runtime.handle().clone();
    let options = ServerOptions::default().tasks(move |task| {
        assert!(!spawns.load(Ordering::Relaxed), "no reactor is running");
        tokio.spawn(task);
    });
    let (domain, server, client) = served(&options);
    for _ in 0..3 {
        assert_eq!(client.later(1), Err(RpcError::Dropped));
    }
    let sharing = rpc::ClientOptions::default().sharing();
    let shares = OddClient::connect_with(&domain, "odd", &sharing, PATIENCE).unwrap();
    let shares = shares.within(PATIENCE);
    assert_eq!(shares.later(1), Err(RpcError::Dropped));
    panics.store(false, Ordering::Relaxed);
    assert_eq!(client.later(1), Ok(1));
    assert_eq!(shares.later(2), Ok(2));
    assert_eq!(server.clients(), 2);
}

/// A waker that panics when its call is given up.
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
        panic!("a runtime that has gone");
    }
}

#[test]
fn a_waker_that_panics_does_not_end_its_client() {
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&panics));
    let kept: Arc<Mutex<Vec<Task>>> = Arc::default();
    let tasks = Arc::clone(&kept);
    // Each is polled once.
    let options = ServerOptions::default().tasks(move |mut task| {
        if task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
            tasks.lock().unwrap().push(task);
        }
    });
    let (_domain, _server, client) = served(&options);
    let pending = client.begin_never().unwrap();
    until("it waits", || kept.lock().unwrap().len() == 1);
    assert!(pending.cancel());
    assert_eq!(client.later(1), Ok(1));
    until("its waker has panicked", || {
        assert_eq!(client.later(2), Ok(2));
        panics.0.load(Ordering::Relaxed)
    });
    let dropped = std::mem::take(&mut *kept.lock().unwrap());
    drop(dropped);
    assert_eq!(client.later(3), Ok(3));
}

/// A task that is polled in the thread that wakes it.
struct InPlace {
    task: Mutex<Option<Task>>,
    polls: Arc<AtomicU64>,
}

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        let task = self.task.lock().unwrap().take();
        self.polls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut task) = task {
            let waker = Waker::from(Arc::clone(&self));
            if task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
                *self.task.lock().unwrap() = Some(task);
            }
        }
    }
}

#[test]
fn a_task_may_run_in_the_thread_that_wakes_it() {
    for sharing in [false, true] {
        let polls = Arc::new(AtomicU64::new(0));
        let polled = Arc::clone(&polls);
        let options = ServerOptions::default().tasks(move |task| {
            let (task, polls) = (Mutex::new(Some(task)), Arc::clone(&polled));
            Arc::new(InPlace { task, polls }).wake();
        });
        let (domain, server, client) = served(&options);
        // One that has a connection locked for good cannot be dropped.
        let server = ManuallyDrop::new(server);
        let client = if sharing {
            let sharing = rpc::ClientOptions::default().sharing();
            let shares = OddClient::connect_with(&domain, "odd", &sharing, PATIENCE).unwrap();
            shares.within(PATIENCE)
        } else {
            client
        };
        let polls = || polls.load(Ordering::Relaxed);
        let never = client.begin_never().unwrap();
        until("it waits", || polls() == 1);
        assert!(never.cancel());
        until("it is given up", || polls() == 2);
        assert_eq!(client.later(1), Ok(1));
        let never = client.begin_never().unwrap();
        until("it waits", || polls() == 4);
        drop(ManuallyDrop::into_inner(server));
        assert_eq!(never.wait(), Err(RpcError::ServerDied));
        assert_eq!(polls(), 5, "it has ended with its server");
    }
}
