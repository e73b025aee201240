//! Within one process: results, errors, versions, giving up.

use super::service::{Fault, PATIENCE, Record, TestClient, Tested, until};
use portolan::rpc::{
    self, CallError, ClientError, ClientOptions, Concurrency, RpcError, ServeError, ServerOptions,
};
use portolan::{BindError, Deadline, Domain, PortOptions};
use std::sync::Barrier;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

pub(crate) fn served(options: &ServerOptions) -> (Domain, rpc::Server, TestClient) {
    let domain = Domain::private().unwrap();
    let server = rpc::serve(&domain, "test", Tested::service(&domain), options).unwrap();
    let client = TestClient::connect(&domain, "test", PATIENCE).unwrap();
    (domain, server, client.within(PATIENCE))
}

fn record(len: usize) -> Record {
    Record {
        name: "record".repeat(len / 6),
        values: (0_u32..).take(len / 8).map(f64::from).collect(),
        tags: [("a".to_owned(), Some(3)), ("b".to_owned(), None)].into(),
    }
}

#[test]
fn arguments_results_and_errors_of_every_length() -> Outcome {
    let (_domain, server, client) = served(&ServerOptions::default());
    client.null()?;
    assert_eq!(client.add(2, 3), Ok(5));
    let (a, b) = (u64::MAX, 1);
    assert_eq!(
        client.add(a, b),
        Err(CallError::Method(Fault::Overflow { a, b }))
    );
    assert_eq!(client.hint()?, 7);
    for len in [0, 1, 30, 31, 32, 33, 100, 4000, 4100, 50_000, 300_000] {
        let bytes = (0..=250).cycle().take(len).collect::<Vec<u8>>();
        let same = client.same(record(len), &bytes, "text")?;
        assert_eq!(same, (record(len), bytes.clone(), "text".to_owned()));
        assert_eq!(client.raw(&bytes)?, len);
    }
    let too_long = client.raw(&vec![0; 2 << 20]);
    assert!(
        matches!(too_long, Err(RpcError::Unsendable { .. })),
        "{too_long:?}"
    );
    assert_eq!(server.counts().damaged, 0);
    assert_eq!(server.clients(), 1);
    Ok(())
}

#[test]
fn extents_move_in_arguments_and_results_and_come_back_from_errors() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    let used = || domain.survey().unwrap().memory.used;
    let large = client.fill(3 << 20, 7)?.into_extent().unwrap();
    assert!(large.len() == 3 << 20 && large.iter().all(|&b| b == 7));
    let before = used();
    let small = || {
        domain.allocate(100).map(|mut e| {
            e.fill(1);
            e.into()
        })
    };
    let total = client.total(vec![large.into(), small()?, small()?], false);
    assert_eq!(total, Ok((3 << 20) * 7 + 200));
    let refused = client.total(vec![small()?], true);
    assert_eq!(
        refused,
        Err(CallError::Method(Fault::Named("refused".to_owned())))
    );
    until("the extents are free again", || used() < before);
    Ok(())
}

#[test]
fn threads_call_at_once_each_way_of_running() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call, Concurrency::Pool(3)] {
        let options = ServerOptions::default().concurrency(concurrency);
        let (_domain, server, client) = served(&options);
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (client, start) = (&client, &start);
                scope.spawn(move || {
                    start.wait();
                    for i in 0..200 {
                        assert_eq!(client.once(thread * 1000 + i), Ok(0));
                        client.count(1).unwrap();
                    }
                });
            }
        });
        assert_eq!(client.stub().flush(PATIENCE)?, 0);
        until("all are counted", || client.counted() == Ok(1600));
        assert_eq!(server.counts().damaged, 0);
    }
    Ok(())
}

#[test]
fn a_slow_call_holds_up_nobody_where_calls_have_threads() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (_domain, _server, client) = served(&options);
    let slow = client.begin_wait(60_000)?;
    // More than a window of them.
    for i in 0..200 {
        assert_eq!(client.add(i, 1), Ok(i + 1));
    }
    assert!(slow.cancel());
    until("the slow one knows", || client.given_up() == Ok(1));
    Ok(())
}

#[test]
fn deadlines_travel_and_late_answers_are_dropped() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (_domain, _server, client) = served(&options);
    let hurried = client.within(Duration::from_millis(20));
    // One whose time was over before it began has not run, and knows nothing.
    until("a method knows", || {
        // The method knows its deadline too, and may just have said so.
        let ended = hurried.wait(60_000);
        assert!(
            matches!(ended, Err(RpcError::Deadline) | Ok(false)),
            "{ended:?}"
        );
        client.given_up().is_ok_and(|times| times > 0)
    });
    assert_eq!(client.add(1, 1), Ok(2));
    Ok(())
}

#[test]
fn a_call_that_takes_longer_than_the_period_is_acknowledged() -> Outcome {
    let (_domain, server, client) = served(&ServerOptions::default());
    assert_eq!(client.wait(300), Ok(true));
    assert_eq!(server.counts().repeated, 0);
    Ok(())
}

#[test]
fn a_method_that_panics_says_so_and_the_server_goes_on() {
    let (_domain, _server, client) = served(&ServerOptions::default());
    for how in ["at last", "again"] {
        let message = how.to_owned();
        let panicked = client.panic(message.clone());
        assert_eq!(panicked, Err(RpcError::Panicked { message }));
        assert_eq!(client.add(1, 2), Ok(3));
    }
}

#[test]
fn too_many_calls_are_refused() -> Outcome {
    for concurrency in [Concurrency::Pool(1), Concurrency::Call] {
        let options = ServerOptions::default().concurrency(concurrency).queue(1);
        let (_domain, _server, client) = served(&options);
        let first = client.begin_wait(60_000)?;
        // One more may wait for the pool's thread, and the thread may not have begun yet.
        let mut others = Vec::new();
        until("a call is refused", || {
            let hurried = client.within(Duration::from_millis(500));
            match hurried.null() {
                Err(RpcError::Backpressure) => true,
                Err(RpcError::Deadline) | Ok(()) => false,
                Err(other) => panic!("{other}"),
            }
        });
        others.push(first);
        for other in others {
            other.cancel();
        }
        until("calls are taken again", || client.null().is_ok());
    }
    Ok(())
}

#[test]
fn a_window_that_is_full_waits_and_then_refuses() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (_domain, _server, client) = served(&options);
    let hurried = client.within(Duration::from_millis(300));
    let slow = client.begin_wait(600_000)?;
    let mut waiting = Vec::new();
    let refused = loop {
        match hurried.begin_null() {
            Ok(pending) => waiting.push(pending),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100);
    };
    assert_eq!(refused, RpcError::Backpressure);
    drop((slow, waiting));
    until("calls are taken again", || client.null().is_ok());
    Ok(())
}

pub(crate) mod other {
    #![allow(dead_code, reason = "of these, only the clients are used")]

    /// Another version: one method gone, one changed.
    #[portolan::service]
    pub(crate) trait Test {
        fn add(&self, a: u32, b: u32) -> u64;
        fn same(&self, text: String) -> String;
        fn missing(&self);
        fn hint(&self) -> u64;
    }

    #[portolan::service]
    pub(crate) trait Unrelated {
        fn null(&self);
    }
}

#[test]
fn another_version_and_another_service_are_told_apart() -> Outcome {
    let (domain, _server, client) = served(&ServerOptions::default());
    let other = other::TestClient::connect(&domain, "test", PATIENCE)?;
    let Err(RpcError::OtherVersion {
        method,
        ours,
        theirs,
    }) = other.add(1, 2)
    else {
        panic!("a changed method was called");
    };
    assert_eq!(method, "add");
    assert_ne!(ours, theirs);
    let unknown = RpcError::UnknownMethod { method: "missing" };
    assert_eq!(other.missing(), Err(unknown));
    let changed = other.same("x".to_owned());
    assert!(
        matches!(changed, Err(RpcError::OtherVersion { .. })),
        "{changed:?}"
    );
    // What has not changed works.
    assert_eq!(other.hint(), Ok(7));
    assert_eq!(client.add(1, 2), Ok(3));
    let unrelated = other::UnrelatedClient::connect(&domain, "test", PATIENCE).err();
    assert!(
        matches!(&unrelated, Some(ClientError::OtherService { ours: "Unrelated", theirs, .. }) if theirs == "Test"),
        "{unrelated:?}"
    );
    Ok(())
}

#[test]
fn two_services_with_one_name_and_a_port_that_serves_none() -> Outcome {
    let (domain, _server, _client) = served(&ServerOptions::default());
    let again = rpc::serve(
        &domain,
        "test",
        Tested::service(&domain),
        &Default::default(),
    );
    assert!(matches!(
        again.err(),
        Some(ServeError::Bind(BindError::NameTaken { .. }))
    ));
    let nobody = TestClient::connect(&domain, "nobody", Deadline::NOW).err();
    assert!(
        matches!(nobody, Some(ClientError::NoService(_))),
        "{nobody:?}"
    );
    let mut port = domain.bind(PortOptions::named("plain").synchronous())?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let request = port.get_request(portolan::Access::Later, PATIENCE).unwrap();
            request
                .reply(portolan::Message::new(b"what?").unwrap())
                .unwrap();
        });
        let refused = TestClient::connect(&domain, "plain", PATIENCE).err();
        assert!(
            matches!(refused, Some(ClientError::NotServed { .. })),
            "{refused:?}"
        );
    });
    Ok(())
}

#[test]
fn over_reliable_channels_it_is_the_same() -> Outcome {
    let (domain, _server, _client) = served(&ServerOptions::default());
    let options = ClientOptions::default().reliable().limit(PATIENCE);
    let client = TestClient::connect_with(&domain, "test", &options, PATIENCE)?;
    let bytes = vec![3; 100_000];
    let same = client.same(record(9), &bytes, "")?;
    assert_eq!(same, (record(9), bytes, String::new()));
    for i in 0..2000 {
        assert_eq!(client.once(i), Ok(0));
    }
    Ok(())
}

#[test]
fn a_server_that_ends_tells_its_clients() -> Outcome {
    let options = ServerOptions::default().concurrency(Concurrency::Call);
    let (domain, server, client) = served(&options);
    let slow = client.begin_wait(60_000)?;
    drop(server);
    assert_eq!(slow.wait(), Err(RpcError::ServerDied));
    assert_eq!(client.null(), Err(RpcError::ServerDied));
    // And its name is free.
    let _again = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
    let client = TestClient::connect(&domain, "test", PATIENCE)?;
    assert_eq!(client.add(4, 5), Ok(9));
    Ok(())
}
