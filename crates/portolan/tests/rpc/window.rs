//! Full windows: an answer keeps its place until it is taken, and who waits for room hears of it.

use super::calls::served;
use super::deaths::{Serving, domain};
use super::service::{PATIENCE, TestClient, until};
use portolan::rpc::{Concurrency, RpcError, ServerOptions};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Calls that can be open.
const PLACES: u32 = 64;

/// A future, and how often it was woken.
struct Watched<F> {
    future: Pin<Box<F>>,
    woken: Arc<Count>,
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Future> Watched<F> {
    fn new(future: F) -> Self {
        let (future, woken) = (Box::pin(future), Arc::default());
        Self { future, woken }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Its outcome, once it is there.
    fn ended(&mut self) -> F::Output {
        let mut outcome = None;
        until("it has ended", || {
            if let Poll::Ready(ready) = self.poll() {
                outcome = Some(ready);
            }
            outcome.is_some()
        });
        outcome.unwrap()
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_task_has_room_when_another_takes_its_answer() -> Outcome {
    let (_domain, _server, client) = served(&ServerOptions::default());
    let calls = (0..PLACES).map(|i| Watched::new(client.add_async(i.into(), 1)));
    let mut calls = calls.collect::<Vec<_>>();
    assert!(calls.iter_mut().all(|call| call.poll().is_pending()));
    until("all have ended", || {
        calls.iter().all(|call| call.woken() > 0)
    });

    // Nothing comes any more, and there is no room. However often it is asked, one waits once.
    let mut waiting = [(); 4].map(|()| Watched::new(client.add_async(1, 1)));
    for _ in 0..3 {
        assert!(waiting.iter_mut().all(|call| call.poll().is_pending()));
    }
    let woken = |waiting: &[Watched<_>]| waiting.iter().map(Watched::woken).collect::<Vec<_>>();
    assert_eq!(woken(&waiting), [0, 0, 0, 0]);
    assert_eq!(calls[7].poll(), Poll::Ready(Ok(8)));
    // The driver may be late, and wake the next one for a place that the first has not used yet.
    let now = woken(&waiting);
    assert!(now[0] == 1 && now[3] == 0, "in turn, one for each place");
    // One that does not want its turn any more passes it on.
    let [first, mut second, third, mut fourth] = waiting;
    drop(first);
    assert_eq!(second.woken(), 1);
    drop(third);
    assert!(second.poll().is_pending());
    // There is no place for it.
    let early = fourth.woken();
    assert!(fourth.poll().is_pending());
    drop(calls.pop());
    until("a call that is given up makes room", || {
        fourth.woken() > early
    });
    assert_eq!([second.ended(), fourth.ended()], [Ok(2), Ok(2)]);
    Ok(())
}

#[test]
fn threads_have_room_when_another_takes_its_answer() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call] {
        let (_domain, _server, client) = served(&ServerOptions::default().concurrency(concurrency));
        for round in 0..100 {
            let calls = (0..PLACES).map(|i| client.begin_add(i.into(), 1));
            let mut calls = calls.collect::<Result<Vec<_>, _>>()?.into_iter();
            std::thread::scope(|scope| {
                // One of them reads, the other one listens to that.
                let waiting = [1, 2].map(|n| {
                    let client = &client;
                    scope.spawn(move || client.add(n, 1))
                });
                std::thread::sleep(Duration::from_micros(20 * round));
                for (call, sum) in calls.by_ref().take(2).zip(1..) {
                    if round % 2 == 0 {
                        assert_eq!(call.wait(), Ok(Ok(sum)));
                    } else {
                        drop(call);
                    }
                }
                let added = waiting.map(|thread| thread.join().unwrap());
                assert_eq!(added, [Ok(2), Ok(3)]);
            });
        }
    }
    Ok(())
}

#[test]
fn a_thread_and_a_task_have_room_when_a_thread_takes_its_answer() -> Outcome {
    let (_domain, _server, client) = served(&ServerOptions::default());
    for round in 0..100 {
        let calls = (0..PLACES).map(|i| client.begin_add(i.into(), 1));
        let mut calls = calls.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut task = Watched::new(client.add_async(5, 1));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| client.add(6, 1));
            let early = task.poll();
            std::thread::sleep(Duration::from_micros(20 * round));
            assert_eq!(calls.next().unwrap().wait(), Ok(Ok(1)));
            assert_eq!(calls.next().unwrap().wait(), Ok(Ok(2)));
            assert_eq!(thread.join().unwrap(), Ok(7));
            assert!(early.is_pending());
            let mut ended = early;
            until("the task has ended", || {
                ended = task.poll();
                ended.is_ready()
            });
            assert_eq!(ended, Poll::Ready(Ok(6)));
        });
    }
    Ok(())
}

#[test]
fn a_task_that_waits_for_room_hears_that_the_server_was_killed() -> Outcome {
    let domain = domain("window-killed");
    let mut server = Serving::start(&domain);
    let client = TestClient::connect(&domain, "test", PATIENCE)?.within(10 * PATIENCE);
    let calls = (0..PLACES).map(|_| client.begin_wait(600_000));
    let _held = calls.collect::<Result<Vec<_>, _>>()?;
    let mut waiting = Watched::new(client.null_async());
    assert!(waiting.poll().is_pending());
    server.kill();
    until("it is told", || waiting.woken() > 0);
    assert_eq!(waiting.poll(), Poll::Ready(Err(RpcError::ServerDied)));
    Ok(())
}

#[test]
fn a_waker_that_panics_costs_nobody_an_answer() -> Outcome {
    struct Panics(AtomicUsize);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a runtime that has gone");
        }
    }
    let (_domain, _server, client) = served(&ServerOptions::default());
    let panics = Arc::new(Panics(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut context = Context::from_waker(&waker);
    let mut call = Box::pin(client.add_async(1, 1));
    assert!(call.as_mut().poll(&mut context).is_pending());
    until("it is woken", || panics.0.load(Ordering::SeqCst) == 1);
    assert_eq!(client.add(2, 2), Ok(4));
    assert_eq!(call.as_mut().poll(&mut context), Poll::Ready(Ok(2)));
    let mut next = Watched::new(client.add_async(3, 3));
    assert!(next.poll().is_pending());
    until("it is woken", || next.woken() == 1);
    assert_eq!(next.poll(), Poll::Ready(Ok(6)));
    Ok(())
}
