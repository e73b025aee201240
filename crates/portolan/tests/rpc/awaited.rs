//! Calls that are awaited: with blocking ones, without a runtime, dropped, refused.

use super::calls::{other, served};
use super::service::{Fault, PATIENCE, TestClient, Tested, until};
use portolan::Domain;
use portolan::rpc::{self, CallError, Concurrency, RpcError, ServerOptions};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The least runtime there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

#[test]
fn results_and_errors_come_without_any_runtime() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    assert_eq!(block_on(client.add_async(2, 3)), Ok(5));
    let (a, b) = (u64::MAX, 1);
    let overflow = CallError::Method(Fault::Overflow { a, b });
    assert_eq!(block_on(client.add_async(a, b)), Err(overflow));
    let message = "at last".to_owned();
    let panicked = RpcError::Panicked {
        message: message.clone(),
    };
    assert_eq!(block_on(client.panic_async(message)), Err(panicked));
    let bytes = vec![7; 100_000];
    assert_eq!(block_on(client.raw_async(&bytes)), Ok(bytes.len()));
    let too_long = block_on(client.raw_async(&vec![0; 2 << 20]));
    assert!(matches!(too_long, Err(RpcError::Unsendable { .. })));
    let large = block_on(client.fill_async(10_000, 9))?.into_extent();
    let total = client.total_async(vec![large.unwrap().into()], false);
    assert_eq!(block_on(total), Ok(90_000));
    // Begun before there was a task to wake.
    assert_eq!(block_on(client.begin_add(1, 2)?.into_future()), Ok(Ok(3)));

    let other = other::TestClient::connect(&domain, "test", PATIENCE)?;
    let changed = block_on(other.add_async(1, 2));
    assert!(
        matches!(changed, Err(RpcError::OtherVersion { method: "add", .. })),
        "{changed:?}"
    );
    let unknown = RpcError::UnknownMethod { method: "missing" };
    assert_eq!(block_on(other.missing_async()), Err(unknown));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_tasks_than_the_window_has_places_and_threads_that_block() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call, Concurrency::Pool(2)] {
        let options = ServerOptions::default().concurrency(concurrency);
        let (_domain, server, client) = served(&options);
        // A caller that blocks when the first one awaits, and others later.
        let blocks = (0..2_u64).map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || {
                assert_eq!(client.wait(30), Ok(true));
                for i in 0..200 {
                    assert_eq!(client.once(1_000_000 * (thread + 1) + i), Ok(0));
                }
            })
        });
        let blocks = blocks.collect::<Vec<_>>();
        let tasks = (0..200_u64).map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for i in 0..10 {
                    assert_eq!(client.once_async(task * 1000 + i).await, Ok(0));
                    client.count_async(1).await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await?;
        }
        blocks.into_iter().for_each(|t| t.join().unwrap());
        // One-way calls are seen through by the driver, without a flush.
        until("all are counted", || client.counted() == Ok(2000));
        assert_eq!(server.counts().damaged, 0);
    }
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn a_future_that_is_dropped_cancels_its_call() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let domain = Domain::private()?;
    let service = Tested::service(&domain);
    let waits = Arc::clone(&service.0.waits);
    let _server = rpc::serve(&domain, "test", service, &options)?;
    let client = TestClient::connect(&domain, "test", PATIENCE)?.within(PATIENCE);
    let mut slow = Box::pin(client.wait_async(600_000));
    // Never polled, it was never made.
    drop(client.wait_async(600_000));
    let timeout = tokio::time::timeout(Duration::from_millis(50), slow.as_mut());
    assert!(timeout.await.is_err(), "the slow one was not slow");
    // One that is cancelled before it began does not run, and knows nothing.
    until("it runs", || waits.load(Ordering::Relaxed) == 1);
    drop(slow);
    until("the method knows", || client.given_up() == Ok(1));
    assert_eq!(client.add_async(1, 1).await, Ok(2));
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn deadlines_and_a_full_window_end_what_is_awaited() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (_domain, _server, client) = served(&options);
    let hurried = client.within(Duration::from_millis(50));
    // One whose time was over before it began has not run, and knows nothing.
    let patience = Instant::now() + PATIENCE;
    while client.given_up() == Ok(0) {
        // The method knows its deadline too, and may just have said so.
        let ended = hurried.wait_async(600_000).await;
        assert!(
            matches!(ended, Err(RpcError::Deadline) | Ok(false)),
            "{ended:?}"
        );
        assert!(Instant::now() < patience, "no method has been told");
    }

    let mut waiting = Vec::new();
    while waiting.len() < 64 {
        waiting.push(client.begin_wait(600_000)?);
    }
    assert_eq!(hurried.null_async().await, Err(RpcError::Backpressure));
    // Who waits for room has it as soon as there is some.
    let client_again = client.clone();
    let late = tokio::spawn(async move { client_again.add_async(3, 4).await });
    tokio::task::yield_now().await;
    waiting.swap_remove(0).cancel();
    assert_eq!(late.await?, Ok(7));
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn a_server_that_ends_ends_what_is_awaited() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (_domain, server, client) = served(&options);
    let awaiting = client.clone();
    let slow = tokio::spawn(async move { awaiting.wait_async(600_000).await });
    until("the call runs", || client.add(1, 1) == Ok(2));
    tokio::task::yield_now().await;
    drop(server);
    assert_eq!(slow.await?, Err(RpcError::ServerDied));
    assert_eq!(client.null_async().await, Err(RpcError::ServerDied));
    assert_eq!(client.null(), Err(RpcError::ServerDied));
    Ok(())
}
