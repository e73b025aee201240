//! Clients that leave while their one-way calls are under way.

use super::service::{PATIENCE, TestClient, Tested, share, until};
use portolan::rpc::{self, ClientOptions, Concurrency, Large, ServerOptions};
use portolan::{Domain, LeaveError, Message, PortOptions, RequestError, WhenFull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// One-way calls of each of these tests, and of each client.
const ALL: u64 = 2_000;
const EACH: u64 = 50;

#[portolan::service]
trait Notes {
    #[rpc(one_way)]
    fn note(&self, text: &[u8]);
    #[rpc(one_way)]
    async fn later(&self, by: u64);
    #[rpc(one_way)]
    fn heavy(&self, what: Large);
    #[rpc(one_way, best_effort)]
    fn hint(&self);
    fn read(&self) -> u64;
}

/// Counts the calls that it gets.
#[derive(Default)]
struct Counted {
    notes: AtomicU64,
    hints: Arc<AtomicU64>,
}

impl Notes for Counted {
    fn note(&self, _: &[u8]) {
        self.notes.fetch_add(1, Ordering::Relaxed);
    }

    async fn later(&self, by: u64) {
        // Many more calls come meanwhile, and their client leaves.
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.notes.fetch_add(by, Ordering::Relaxed);
    }

    fn heavy(&self, what: Large) {
        std::thread::sleep(Duration::from_millis(1));
        let there = what.into_extent().is_some_and(|extent| extent[0] == 9);
        self.notes.fetch_add(u64::from(there), Ordering::Relaxed);
    }

    fn hint(&self) {
        self.hints.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
    }

    fn read(&self) -> u64 {
        self.notes.load(Ordering::Relaxed)
    }
}

/// Has clients connect in four threads, post, and leave.
fn post_and_leave<C>(connect: impl Fn() -> C + Sync, post: impl Fn(&C) + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..ALL / EACH / 4 {
                    let client = connect();
                    (0..EACH).for_each(|_| post(&client));
                }
            });
        }
    });
}

#[test]
fn all_that_was_posted_runs_although_its_client_leaves_and_the_server_is_busy() -> Outcome {
    let crews = [Concurrency::Client, Concurrency::Call, Concurrency::Pool(2)];
    for (sharing, concurrency) in crews.into_iter().flat_map(|c| [(false, c), (true, c)]) {
        // Far more come than there is room for.
        let options = ServerOptions::default().concurrency(concurrency).queue(3);
        let domain = Domain::private()?;
        let server = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
        let last = TestClient::connect(&domain, "test", PATIENCE)?;
        let connect = || match sharing {
            true => share(&domain),
            false => TestClient::connect(&domain, "test", PATIENCE).unwrap(),
        };
        post_and_leave(connect, |client| client.within(PATIENCE).count(1).unwrap());
        let all = || matches!(last.counted(), Ok(ALL));
        until(&format!("{concurrency:?}, {sharing}: all ran"), all);
        assert_eq!(server.counts().refused, 0);
        assert_eq!(last.stub().flush(PATIENCE)?, 0);
    }
    Ok(())
}

#[test]
fn what_its_channel_has_lost_is_sent_again_before_a_client_leaves() -> Outcome {
    let domain = Domain::private()?;
    let _server = rpc::serve(
        &domain,
        "notes",
        NotesService(Counted::default()),
        &ServerOptions::default(),
    )?;
    let last = NotesClient::connect(&domain, "notes", PATIENCE)?;
    let connect = || NotesClient::connect(&domain, "notes", PATIENCE).unwrap();
    // In pieces: a few of them fill the ring, and the server's thread has two processors to
    // share with four clients.
    let text = vec![1; 20_000];
    post_and_leave(connect, |client| client.note(&text).unwrap());
    until("all have run", || last.read() == Ok(ALL));
    Ok(())
}

#[test]
fn a_task_of_a_one_way_call_goes_on_when_its_client_has_left() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()?;
    let tokio = runtime.handle().clone();
    let spawn = move |task| drop(tokio.spawn(task));
    // Room for a few: the others wait for it.
    let options = ServerOptions::default().queue(100).tasks(spawn);
    let domain = Domain::private()?;
    let notes = NotesService(Counted::default());
    let _server = rpc::serve(&domain, "notes", notes, &options)?;
    let last = NotesClient::connect(&domain, "notes", PATIENCE)?;
    for _ in 0..4 {
        let client = NotesClient::connect(&domain, "notes", PATIENCE)?;
        for _ in 0..EACH * 3 {
            client.later(1)?;
        }
    }
    // Awaited ones, whose driver has the reader.
    let client = NotesClient::connect(&domain, "notes", PATIENCE)?;
    runtime.block_on(async {
        for _ in 0..EACH {
            client.later_async(1).await?;
        }
        Ok::<_, rpc::RpcError>(())
    })?;
    drop(client);
    until("all have run", || last.read() == Ok(EACH * 13));
    Ok(())
}

#[test]
fn extents_wait_for_their_one_way_call_also_when_many_come_after_it() -> Outcome {
    // All wait for one thread, with their extents, far more than can be open at a time.
    let options = ServerOptions::default()
        .concurrency(Concurrency::Pool(1))
        .queue(1_000);
    let domain = Domain::private()?;
    let notes = NotesService(Counted::default());
    let _server = rpc::serve(&domain, "notes", notes, &options)?;
    let last = NotesClient::connect(&domain, "notes", PATIENCE)?;
    let client = NotesClient::connect(&domain, "notes", PATIENCE)?;
    for _ in 0..300 {
        let mut extent = domain.allocate(1)?;
        extent[0] = 9;
        client.heavy(Large::from(extent))?;
    }
    drop(client);
    until("all have run", || last.read() == Ok(300));
    Ok(())
}

#[test]
fn best_effort_is_refused_at_once_and_counted() -> Outcome {
    let options = ServerOptions::default()
        .concurrency(Concurrency::Pool(1))
        .queue(1);
    let domain = Domain::private()?;
    let counted = Counted::default();
    let hints = Arc::clone(&counted.hints);
    let server = rpc::serve(&domain, "notes", NotesService(counted), &options)?;
    let client = NotesClient::connect(&domain, "notes", PATIENCE)?;
    until("one was refused", || {
        // More at once than there is room for: one of them takes a while.
        (0..20).for_each(|_| client.hint().unwrap());
        server.counts().refused > 0
    });
    // What was refused is counted by the thread that listens, perhaps before another one has
    // come to what was not.
    until("one has run", || hints.load(Ordering::Relaxed) > 0);
    Ok(())
}

#[test]
fn a_client_that_leaves_a_server_without_room_is_told_how_many_did_not_arrive() -> Outcome {
    let options = ServerOptions::default()
        .concurrency(Concurrency::Pool(1))
        .queue(1);
    let domain = Domain::private()?;
    let service = Tested::service(&domain);
    let waits = Arc::clone(&service.0.waits);
    let server = rpc::serve(&domain, "test", service, &options)?;
    let busy = TestClient::connect(&domain, "test", PATIENCE)?.within(PATIENCE);
    let running = busy.begin_wait(600_000)?;
    until("it runs", || waits.load(Ordering::Relaxed) == 1);
    let client = ClientOptions::default().limit(PATIENCE);
    let client = TestClient::connect_with(&domain, "test", &client, PATIENCE)?;
    // The first waits in the queue, the second for a place there: then nothing is read.
    for _ in 0..30 {
        client.count(1)?;
    }
    assert_eq!(client.stub().flush(Duration::from_millis(50))?, 30);
    // Those that are given up by themselves are told of once.
    let hasty = client.within(Duration::from_millis(20));
    hasty.count(100)?;
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(client.stub().flush(Duration::from_millis(20))?, 31);
    assert_eq!(client.stub().flush(Duration::from_millis(20))?, 30);
    running.cancel();
    until("there is room", || client.stub().flush(PATIENCE) == Ok(0));
    until("all have run", || busy.counted() == Ok(30));
    assert_eq!(server.counts().refused, 0);
    Ok(())
}

#[test]
fn a_client_that_leaves_a_server_that_is_gone_does_not_wait() -> Outcome {
    let domain = Domain::private()?;
    let server = rpc::serve(
        &domain,
        "test",
        Tested::service(&domain),
        &ServerOptions::default(),
    )?;
    let client = TestClient::connect(&domain, "test", PATIENCE)?;
    client.null()?;
    drop(server);
    let _ = client.count(1);
    let (left, leaves) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(client);
        let _ = left.send(());
    });
    leaves.recv_timeout(PATIENCE)?;
    Ok(())
}

#[test]
fn a_member_that_has_dropped_its_clients_and_servers_can_leave_at_once() -> Outcome {
    let crews = [
        ServerOptions::default(),
        ServerOptions::default().concurrency(Concurrency::Call),
        ServerOptions::default().concurrency(Concurrency::Pool(2)),
        ServerOptions::default().tasks(|task| {
            std::thread::spawn(move || rpc::wait_for(task));
        }),
    ];
    let ways = [
        ClientOptions::default(),
        ClientOptions::default().sharing(),
        ClientOptions::default().over_channel(),
    ];
    for round in 0..60 {
        let domain = Domain::private()?;
        let options = crews[round % 4].clone().on_channel();
        let server = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
        let client = TestClient::connect_with(&domain, "test", &ways[round % 3], PATIENCE)?;
        // Busy: it is presented channels of its own, if it shares.
        for _ in 0..3 {
            let many = (0..40).map(|n| client.begin_add(n, 1));
            let many = many.collect::<Result<Vec<_>, _>>()?;
            assert!(many.into_iter().all(|call| call.wait().is_ok()));
        }
        // And driven.
        let awaited = rpc::wait_for(client.add_async(1, 2)).unwrap();
        assert_eq!(awaited.unwrap(), 3);
        let running = client.begin_wait(2)?;
        if round % 2 == 0 {
            drop((running, client));
            drop(server);
        } else {
            drop(server);
            drop((running, client));
        }
        domain.leave()?;
    }
    Ok(())
}

#[test]
fn a_member_with_a_server_is_told_that_it_cannot_leave() -> Outcome {
    let domain = Domain::private()?;
    let options = ServerOptions::default();
    let server = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
    let refused = domain.leave();
    assert!(matches!(refused, Err(LeaveError::StillHeld { handles }) if handles > 1));
    drop(server);
    Ok(())
}

#[test]
fn a_server_ends_although_there_is_no_memory_for_a_message_to_it() -> Outcome {
    let domain = Domain::builder("full").limit(8 << 20).private()?;
    let service = NotesService(Counted::default());
    let server = rpc::serve(&domain, "notes", service, &ServerOptions::default())?;
    let right = domain.connect("notes", PATIENCE)?;
    // All memory that queues may have, so that no client can ask for an answer.
    let bind = |slots| domain.bind(PortOptions::unnamed().queue(slots)).ok();
    let sizes = [32_768, 4_096, 512, 64, 1].into_iter();
    let _ports: Vec<_> = sizes
        .flat_map(|slots| std::iter::from_fn(move || bind(slots)))
        .collect();
    let asked = right.begin_request(Message::default(), WhenFull::Fail);
    assert!(matches!(asked, Err(RequestError::NoReplyPort(..))));
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        drop(server);
        say.send(())
    });
    assert_eq!(
        said.recv_timeout(PATIENCE),
        Ok(()),
        "the server does not end"
    );
    Ok(())
}
