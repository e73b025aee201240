//! Methods that are `async`, as tasks of a runtime and in threads.

use super::service::{PATIENCE, until};
use portolan::rpc::{self, CallError, Concurrency, Context, Large, RpcError, ServerOptions};
use portolan::{Deadline, Domain};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Runtime;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[portolan::service]
trait Waiter {
    /// Ends when as many are in it as fit around a table.
    async fn sit_down(&self, guest: u64) -> u64;
    async fn order(&self, dish: &str, times: Vec<u8>) -> Result<String, String>;
    async fn never(&self);
    async fn drop_it(&self, what: String);
    async fn heavy(&self, dish: Large) -> usize;
    #[rpc(one_way)]
    async fn tip(&self, coins: u64);
    fn tips(&self) -> u64;
    fn entered(&self) -> u64;
    fn left(&self) -> u64;
}

struct Table {
    seats: u64,
    seated: AtomicU64,
    tips: AtomicU64,
    entered: AtomicU64,
    left: Arc<AtomicU64>,
}

/// Counts itself when it is dropped.
struct Leaves(Arc<AtomicU64>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Waiter for Table {
    async fn sit_down(&self, guest: u64) -> u64 {
        self.seated.fetch_add(1, Ordering::Relaxed);
        while self.seated.load(Ordering::Relaxed) < self.seats {
            tokio::task::yield_now().await;
        }
        assert!(Context::current().is_some(), "each poll knows its call");
        guest
    }

    async fn order(&self, dish: &str, times: Vec<u8>) -> Result<String, String> {
        // What is borrowed from the arguments lives as long as the call.
        for _ in &times {
            tokio::task::yield_now().await;
        }
        if dish.is_empty() {
            return Err("of what?".to_owned());
        }
        Ok(dish.repeat(times.len()))
    }

    async fn never(&self) {
        let _leaves = Leaves(Arc::clone(&self.left));
        self.entered.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    async fn drop_it(&self, what: String) {
        tokio::task::yield_now().await;
        panic!("{what}");
    }

    async fn heavy(&self, dish: Large) -> usize {
        tokio::task::yield_now().await;
        dish.into_extent().map_or(0, |e| e.len())
    }

    async fn tip(&self, coins: u64) {
        self.tips.fetch_add(coins, Ordering::Relaxed);
    }

    fn tips(&self) -> u64 {
        self.tips.load(Ordering::Relaxed)
    }

    fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

fn table(seats: u64) -> WaiterService<Table> {
    WaiterService(Table {
        seats,
        seated: AtomicU64::new(0),
        tips: AtomicU64::new(0),
        entered: AtomicU64::new(0),
        left: Arc::default(),
    })
}

/// One thread for everything.
fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

fn tasks_of(runtime: &Runtime) -> ServerOptions {
    let handle = runtime.handle().clone();
    ServerOptions::default().tasks(move |task| {
        handle.spawn(task);
    })
}

fn served(options: &ServerOptions, seats: u64) -> (Domain, rpc::Server, WaiterClient) {
    let domain = Domain::private().unwrap();
    let server = rpc::serve(&domain, "waiter", table(seats), options).unwrap();
    let client = WaiterClient::connect(&domain, "waiter", Deadline::after(PATIENCE)).unwrap();
    (domain, server, client.within(PATIENCE))
}

#[test]
fn fifty_calls_wait_at_once_in_one_thread() -> Outcome {
    let runtime = runtime();
    let (_domain, _server, client) = served(&tasks_of(&runtime), 50);
    let guests = (0..50).map(|guest| client.begin_sit_down(guest));
    let guests = guests.collect::<Result<Vec<_>, _>>()?;
    for (guest, pending) in (0..50).zip(guests) {
        assert_eq!(pending.wait(), Ok(guest));
    }
    Ok(())
}

#[test]
fn async_methods_run_however_calls_run() -> Outcome {
    let runtime = runtime();
    let threads = [Concurrency::Client, Concurrency::Call, Concurrency::Pool(2)];
    let threads = threads.map(|c| ServerOptions::default().concurrency(c));
    for options in threads.into_iter().chain([tasks_of(&runtime)]) {
        let (domain, _server, client) = served(&options, 1);
        assert_eq!(client.sit_down(7), Ok(7));
        assert_eq!(client.order("soup", vec![0; 3]), Ok("soupsoupsoup".into()));
        let refused = CallError::Method("of what?".to_owned());
        assert_eq!(client.order("", vec![0; 3]), Err(refused));
        let message = "a plate".to_owned();
        let dropped = client.drop_it(message.clone());
        assert_eq!(dropped, Err(RpcError::Panicked { message }));
        let dish = domain.allocate(12_345)?;
        let len = dish.len();
        assert_eq!(client.heavy(dish.into()), Ok(len));
        client.tip(3)?;
        until("the tip is there", || client.tips() == Ok(3));
    }
    Ok(())
}

#[test]
fn a_call_that_is_given_up_is_dropped_where_it_waits() -> Outcome {
    let runtime = runtime();
    let threads = ServerOptions::default().concurrency(Concurrency::Call);
    for options in [threads, tasks_of(&runtime)] {
        let (_domain, server, client) = served(&options, 1);
        let never = client.begin_never()?;
        until("it waits", || client.entered() == Ok(1));
        assert!(never.cancel());
        until("it has left", || client.left() == Ok(1));
        // A deadline ends it too, if it comes that far before.
        let hurried = client.within(Duration::from_millis(20));
        until("another has left", || {
            assert_eq!(hurried.never(), Err(RpcError::Deadline));
            client.left().is_ok_and(|left| left > 1)
        });
        drop(server);
    }
    Ok(())
}

#[test]
fn a_server_that_ends_drops_its_tasks() -> Outcome {
    let runtime = runtime();
    let service = table(1);
    let left = Arc::clone(&service.0.left);
    let domain = Domain::private()?;
    let server = rpc::serve(&domain, "waiter", service, &tasks_of(&runtime))?;
    let client = WaiterClient::connect(&domain, "waiter", Deadline::after(PATIENCE))?;
    let never = client.begin_never()?;
    until("it waits", || client.entered() == Ok(1));
    drop(server);
    assert_eq!(never.wait(), Err(RpcError::ServerDied));
    until("it has left", || left.load(Ordering::Relaxed) == 1);
    Ok(())
}

#[test]
fn a_runtime_that_ends_answers_for_its_tasks() -> Outcome {
    let runtime = runtime();
    let (_domain, _server, client) = served(&tasks_of(&runtime), 1);
    let never = client.begin_never()?;
    until("it waits", || client.entered() == Ok(1));
    runtime.shutdown_timeout(PATIENCE);
    assert_eq!(never.wait(), Err(RpcError::Dropped));
    assert_eq!(client.tips(), Err(RpcError::Dropped));
    Ok(())
}

#[test]
fn too_many_tasks_are_refused() -> Outcome {
    let runtime = runtime();
    let (_domain, _server, client) = served(&tasks_of(&runtime).queue(2), 1);
    let (one, two) = (client.begin_never()?, client.begin_never()?);
    assert_eq!(client.tips(), Err(RpcError::Backpressure));
    assert!(one.cancel());
    until("there is room again", || client.left().is_ok());
    assert!(two.cancel());
    Ok(())
}

#[test]
fn a_wake_counts_though_what_is_awaited_parks_the_thread() {
    let waits = std::thread::spawn(|| {
        let mut polls = 0;
        rpc::wait_for(std::future::poll_fn(|context| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(polls);
            }
            context.waker().wake_by_ref();
            // As a channel does in which there is nothing yet.
            std::thread::park_timeout(PATIENCE);
            Poll::Pending
        }))
    });
    until("it has ended", || waits.is_finished());
    assert!(matches!(waits.join(), Ok(Ok(2))));
}
