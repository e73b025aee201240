//! Tests extents of calls that no client waits for any more, and of answers that are read late.

use super::calls::served;
use super::service::{TestClient, until};
use portolan::Domain;
use portolan::rpc::{Concurrency, Large, RpcError, ServerOptions};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const MIB: usize = 1 << 20;
/// More than a window, and more than a port's queue holds.
const MANY: usize = 150;

fn used(domain: &Domain) -> u64 {
    domain.survey().unwrap().memory.used
}

/// Until no more is used than before: asked of a client that goes on calling.
fn until_it_is_back(domain: &Domain, client: &TestClient, before: u64) {
    until("the memory is back", || {
        assert_eq!(client.add(1, 2), Ok(3));
        used(domain) <= before
    });
}

#[test]
fn extents_of_cancelled_calls_go_back_and_stop_nobody() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Pool(2), Concurrency::Call] {
        let options = ServerOptions::default().concurrency(concurrency);
        let (domain, _server, client) = served(&options);
        drop(client.fill(MIB, 1)?);
        let before = used(&domain);
        for _ in 0..MANY {
            client.begin_fill(MIB, 7)?.cancel();
        }
        let large = client.fill(MIB, 9)?.into_extent().unwrap();
        assert!(large.iter().all(|&b| b == 9));
        drop(large);
        until_it_is_back(&domain, &client, before);
    }
    Ok(())
}

#[test]
fn extents_of_cancelled_calls_go_back_though_no_later_call_has_any() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    drop(client.fill(MIB, 1)?);
    let before = used(&domain);
    let pending: Vec<_> = (0..4)
        .map(|_| client.begin_fill(MIB, 7))
        .collect::<Result<_, _>>()?;
    // All have run, so their answers are there, or about to be.
    assert_eq!(client.add(1, 2), Ok(3));
    for call in pending {
        call.cancel();
    }
    until_it_is_back(&domain, &client, before);
    Ok(())
}

#[test]
fn an_extent_that_was_received_with_anothers_goes_back_once_its_call_is_cancelled() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    drop(client.fill(MIB, 1)?);
    let before = used(&domain);
    let first = client.begin_fill(MIB, 5)?;
    // Whose parcel comes after the first one's.
    drop(client.fill(MIB, 6)?);
    for _ in 0..10 {
        assert_eq!(client.add(1, 2), Ok(3));
    }
    first.cancel();
    until_it_is_back(&domain, &client, before);
    Ok(())
}

#[test]
fn an_answer_after_the_deadline_is_dropped_with_its_extents() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (domain, _server, client) = served(&options);
    drop(client.late(0, MIB)?);
    let before = used(&domain);
    // One that comes to its server after its deadline does not run at all.
    until("some have run", || {
        let ended = client.within(Duration::from_millis(5)).late(200, MIB);
        assert!(matches!(ended, Err(RpcError::Deadline)), "{ended:?}");
        client.counted().is_ok_and(|run| run > 10)
    });
    until_it_is_back(&domain, &client, before);
    Ok(())
}

#[test]
fn an_answer_that_is_read_after_many_others_has_its_extents() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    drop(client.fill(4096, 1)?);
    let before = used(&domain);
    let first = client.begin_fill(4096, 5)?;
    for _ in 0..4 * MANY {
        let other = client.fill(4096, 6)?.into_extent().unwrap();
        assert!(other.iter().all(|&b| b == 6));
    }
    let first = first.wait()?.into_extent().unwrap();
    assert!(first.iter().all(|&b| b == 5));
    drop(first);
    until_it_is_back(&domain, &client, before);
    Ok(())
}

#[test]
fn calls_with_extents_end_at_their_deadline_and_leave_nothing() -> Outcome {
    let options = ServerOptions::default()
        .concurrency(Concurrency::Pool(1))
        .queue(1);
    let (domain, _server, client) = served(&options);
    let piece = || Ok::<_, portolan::AllocateError>(vec![domain.allocate(MIB)?.into()]);
    assert_eq!(client.total(piece()?, false), Ok(0));
    let before = used(&domain);
    let busy = client.begin_wait(60_000)?;
    for _ in 0..MANY {
        let ended = client
            .within(Duration::from_millis(2))
            .total(piece()?, false);
        assert!(ended.is_err(), "{ended:?}");
    }
    busy.cancel();
    until("the server goes on", || {
        client.total(piece().unwrap(), false) == Ok(0)
    });
    until_it_is_back(&domain, &client, before);
    Ok(())
}

#[test]
fn a_long_row_of_one_way_calls_goes_on_though_nothing_else_comes() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Pool(2)] {
        let options = ServerOptions::default()
            .concurrency(concurrency)
            .queue(10_000);
        let (_domain, _server, client) = served(&options);
        let row = client.within(Duration::from_secs(20));
        for _ in 0..2000 {
            row.count(1)?;
        }
        until("all have run", || client.counted() == Ok(2000));
    }
    Ok(())
}

#[test]
fn extents_of_calls_that_are_never_made_are_not_sent() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    let piece = || domain.allocate(100).map(Large::from);
    let too_long = vec![0; 2 * MIB];
    for _ in 0..MANY {
        let refused = client.store(&too_long, piece()?);
        assert!(matches!(refused, Err(RpcError::Unsendable { .. })));
    }
    assert_eq!(client.store(&[1, 2, 3], piece()?), Ok(103));
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn who_awaits_takes_in_what_came_for_others() -> Outcome {
    // The server waits with an answer's extents for room among those of the others.
    let (_domain, _server, client) = served(&ServerOptions::default());
    let first = client.begin_late(100, 100)?;
    let held = (1..64).map(|_| client.begin_fill(100, 1));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    assert!(first.cancel());
    let large = client.fill_async(100, 2).await?.into_extent().unwrap();
    assert!(large.iter().all(|&byte| byte == 2));
    for call in held {
        assert!(call.wait()?.into_extent().is_some());
    }
    Ok(())
}
