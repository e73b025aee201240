//! Clients that share channels, become busy, and share again.

use super::service::{Fault, PATIENCE, TestClient, Tested, hurry, share, until};
use portolan::Domain;
use portolan::rpc::{self, CallError, ClientError, Concurrency, RpcError, ServerOptions};
use portolan_testkit::SetOnDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn served(options: &ServerOptions) -> (Domain, rpc::Server) {
    let domain = Domain::private().unwrap();
    let server = rpc::serve(&domain, "test", Tested::service(&domain), options).unwrap();
    (domain, server)
}

#[test]
fn many_who_call_seldom_share_and_have_all_that_others_have() -> Outcome {
    let (domain, server) = served(&ServerOptions::default());
    let clients = (0..30).map(|_| share(&domain)).collect::<Vec<_>>();
    assert_eq!((server.clients(), server.sharing()), (30, 30));
    for (i, client) in (0..).zip(&clients) {
        assert_eq!(client.add(i, 1), Ok(i + 1));
        assert!(client.stub().is_sharing());
    }
    let client = &clients[7];
    let (a, b) = (u64::MAX, 1);
    let overflow = CallError::Method(Fault::Overflow { a, b });
    assert_eq!(client.add(a, b), Err(overflow));
    let bytes = vec![5; 60_000];
    assert_eq!(client.raw(&bytes), Ok(bytes.len()));
    let large = client.fill(50_000, 3)?.into_extent().ok_or("no extent")?;
    assert_eq!(client.total(vec![large.into()], false), Ok(150_000));
    client.count(3)?;
    assert_eq!(client.stub().flush(PATIENCE)?, 0);
    until("it is counted", || clients[8].counted() == Ok(3));
    assert_eq!(server.counts().damaged, 0);
    drop(clients);
    until("all have left", || server.clients() == 0);
    Ok(())
}

#[test]
fn a_busy_one_gets_channels_of_its_own_and_no_call_is_lost_or_runs_twice() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call, Concurrency::Pool(2)] {
        let (domain, server) = served(&ServerOptions::default().concurrency(concurrency));
        let (busy, idle) = (share(&domain), share(&domain));
        assert_eq!(idle.add(1, 1), Ok(2));
        let done = AtomicBool::new(false);
        let calls = std::thread::scope(|scope| {
            let ends = SetOnDrop(&done);
            let threads = (0..3_u64).map(|thread| {
                let (busy, done) = (&busy, &done);
                scope.spawn(move || {
                    let mut calls = 0;
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(busy.once(thread << 32 | calls), Ok(0), "it ran twice");
                        busy.count(1).unwrap();
                        calls += 1;
                    }
                    calls
                })
            });
            let threads = threads.collect::<Vec<_>>();
            until("it is promoted", || {
                hurry(&busy);
                !busy.stub().is_sharing()
            });
            drop(ends);
            threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
        });
        assert_eq!(busy.stub().flush(PATIENCE)?, 0);
        until("all are counted", || busy.counted() == Ok(calls));
        assert!(idle.stub().is_sharing());
        assert_eq!((server.clients(), server.sharing()), (2, 1));
        assert_eq!(idle.add(2, 2), Ok(4));
    }
    Ok(())
}

/// Has a client call until it has channels of its own.
fn until_promoted(client: &TestClient, number: &mut u64) {
    until("it is promoted", || {
        for _ in 0..100 {
            *number += 1;
            assert_eq!(client.once(*number), Ok(0), "it ran twice");
        }
        hurry(client);
        !client.stub().is_sharing()
    });
}

#[test]
fn an_idle_client_gives_its_channels_and_their_memory_back_and_is_promoted_again() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call] {
        let (domain, server) = served(&ServerOptions::default().concurrency(concurrency));
        let used = || domain.survey().unwrap().memory.used;
        let client = share(&domain);
        let idle = share(&domain);
        assert_eq!((client.add(1, 2), idle.add(3, 4)), (Ok(3), Ok(7)));
        assert!(client.stub().rest(), "it has nothing to give back");
        let before = used();
        let mut number = 0;
        for round in 0..10 {
            until_promoted(&client, &mut number);
            assert!(used() >= before + 500_000, "two channels");
            // One that its client's thread runs would not hear that it is given up.
            if concurrency == Concurrency::Call {
                let open = client.begin_wait(600_000)?;
                assert!(!client.stub().rest(), "something is open");
                assert!(open.cancel());
            }
            until("nothing is open", || client.stub().rest());
            assert!(client.stub().is_sharing());
            // At once, and while the server lets go of what it had.
            number += 1;
            assert_eq!(client.once(number), Ok(0), "it ran twice");
            client.count(1)?;
            until("the server has let go", || used() == before);
            assert_eq!(server.sharing(), 2);
            until("all ran", || client.counted() == Ok(round + 1));
        }
        assert_eq!(idle.add(5, 6), Ok(11));
    }
    // One that has always had its own keeps them.
    let (domain, _server) = served(&ServerOptions::default());
    let own = TestClient::connect(&domain, "test", PATIENCE)?;
    assert!(!own.stub().rest());
    assert_eq!(own.add(1, 1), Ok(2));
    Ok(())
}

#[test]
fn an_idle_client_is_not_promoted_for_its_earlier_calls() -> Outcome {
    let (domain, server) = served(&ServerOptions::default());
    let used = || domain.survey().unwrap().memory.used;
    let client = share(&domain);
    assert_eq!(client.add(1, 2), Ok(3));
    let before = used();
    let mut number = 0;
    // So many calls, and it is being promoted, has just been, or soon will be.
    for calls in (0..300).step_by(3) {
        for _ in 0..calls {
            number += 1;
            assert_eq!(client.once(number), Ok(0), "it ran twice");
        }
        assert!(client.stub().rest(), "nothing is open");
        // Fewer than make a busy one.
        for _ in 0..5 {
            assert_eq!(client.add(3, 4), Ok(7));
        }
        until("all is given back", || {
            used() == before && server.sharing() == 1
        });
        assert!(client.stub().is_sharing());
    }
    Ok(())
}

#[test]
fn what_a_client_is_given_is_not_taken_by_the_thread_of_what_it_had() -> Outcome {
    let domain = Domain::private()?;
    let service = Tested::service(&domain);
    let waits = Arc::clone(&service.0.waits);
    let server = rpc::serve(&domain, "test", service, &ServerOptions::default())?;
    let used = || domain.survey().unwrap().memory.used;
    let client = share(&domain);
    let mut number = 0;
    until_promoted(&client, &mut number);
    let with_its_own = used();
    for round in 1..=5 {
        // That thread is held up by a call, while the client rests and is promoted again.
        let slow = client.begin_wait(200)?;
        until("it runs", || waits.load(Ordering::Relaxed) == round);
        assert!(slow.cancel());
        assert!(client.stub().rest());
        until("it is promoted", || {
            for _ in 0..100 {
                assert!(client.begin_add(1, 2).unwrap().cancel());
            }
            !client.stub().is_sharing()
        });
        until("the rest is given back", || used() == with_its_own);
        assert_eq!(client.add(3, 4), Ok(7));
        assert!(!client.stub().is_sharing(), "it was taken from it");
        assert_eq!(server.sharing(), 0);
    }
    Ok(())
}

/// Calls of one moment, each awaited: their client is a busy one on a busy machine too.
async fn awaited_at_once(client: &TestClient, number: &mut u64) {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        *number += 1;
        let (client, number) = (client.clone(), *number);
        calls.spawn(async move { client.once_async(number).await });
    }
    let all = calls.join_all().await;
    assert!(all.iter().all(|ran| *ran == Ok(0)), "it ran twice: {all:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_client_that_awaits_its_calls_may_be_idle_too() -> Outcome {
    let (domain, server) = served(&ServerOptions::default());
    let client = share(&domain);
    let mut number = 0;
    for _ in 0..5 {
        while client.stub().is_sharing() {
            awaited_at_once(&client, &mut number).await;
        }
        assert!(client.stub().rest());
        assert_eq!(client.add_async(1, 2).await, Ok(3));
    }
    drop(server);
    assert_eq!(client.null_async().await, Err(RpcError::ServerDied));
    Ok(())
}

#[test]
fn the_one_that_calls_least_shares_again_when_another_is_busy() -> Outcome {
    let options = ServerOptions::default().own_channels(1);
    let (domain, server) = served(&options.concurrency(Concurrency::Call));
    let clients = [share(&domain), share(&domain)];
    let mut number = 0;
    for turn in 0..6 {
        let (busy, other) = (&clients[turn % 2], &clients[(turn + 1) % 2]);
        // A call of the other's is under way as its channels are taken from it.
        let slow = other.begin_wait(600_000)?;
        until("the busy one is promoted", || {
            for _ in 0..100 {
                number += 1;
                assert_eq!(busy.once(number), Ok(0), "it ran twice");
            }
            hurry(busy);
            !busy.stub().is_sharing()
        });
        assert_eq!(other.add(3, 4), Ok(7));
        until("the other one shares", || {
            other.add(3, 4) == Ok(7) && other.stub().is_sharing()
        });
        assert!(slow.cancel(), "it goes on, wherever its client calls");
        assert_eq!(server.sharing(), 1);
    }
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn awaited_calls_share_too() -> Outcome {
    let (domain, server) = served(&ServerOptions::default());
    let client = share(&domain);
    let mut number = 0;
    while client.stub().is_sharing() && number < 100_000 {
        awaited_at_once(&client, &mut number).await;
    }
    assert!(!client.stub().is_sharing());
    assert_eq!(client.add_async(1, 2).await, Ok(3));
    drop(server);
    assert_eq!(client.null_async().await, Err(RpcError::ServerDied));
    Ok(())
}

#[test]
fn a_server_that_ends_tells_those_who_share() -> Outcome {
    let (domain, server) = served(&ServerOptions::default().concurrency(Concurrency::Call));
    let client = share(&domain);
    let slow = client.begin_wait(600_000)?;
    assert_eq!(client.add(1, 1), Ok(2));
    drop(server);
    assert_eq!(slow.wait(), Err(RpcError::ServerDied));
    assert_eq!(client.null(), Err(RpcError::ServerDied));
    let _again = rpc::serve(
        &domain,
        "test",
        Tested::service(&domain),
        &Default::default(),
    )?;
    assert_eq!(share(&domain).add(1, 1), Ok(2));
    Ok(())
}

#[test]
fn a_server_without_memory_for_shared_channels_says_so() -> Outcome {
    let name = portolan_testkit::unique("rpc-share-full");
    let domain = Domain::builder(&name).limit(16 << 20).join()?;
    let _server = rpc::serve(
        &domain,
        "test",
        Tested::service(&domain),
        &Default::default(),
    )?;
    let mut all = Vec::new();
    for size in [1 << 20, 4096] {
        while let Ok(extent) = domain.allocate(size) {
            all.push(extent);
        }
    }
    let sharing = rpc::ClientOptions::default().sharing();
    let connect = || TestClient::connect_with(&domain, "test", &sharing, PATIENCE);
    let refused = connect().map(|_| ());
    assert!(
        matches!(&refused, Err(ClientError::NoRoom { name }) if name == "test"),
        "{refused:?}"
    );
    drop(all);
    assert_eq!(connect()?.within(PATIENCE).add(1, 2), Ok(3));
    Ok(())
}

#[test]
fn a_call_is_given_up_where_the_server_reads() -> Outcome {
    let options = ServerOptions::default().own_channels(1);
    let (domain, server) = served(&options.concurrency(Concurrency::Call));
    let (busy, other) = (share(&domain), share(&domain).within(10 * PATIENCE));
    let mut number = 0;
    until_promoted(&other, &mut number);
    let slow = other.begin_wait(600_000)?;
    assert_eq!(other.add(1, 2), Ok(3));
    until_promoted(&busy, &mut number);
    until("the other one has no channel", || server.sharing() == 1);
    // It has not called since.
    assert!(slow.cancel());
    until("the method knows", || busy.given_up() == Ok(1));
    Ok(())
}
