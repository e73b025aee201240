//! Counts both sides of a call, in one process: its first thread calls, and another thread serves.
//!
//! The client's side is counted from the call to its result. A thread that is stepped through
//! is slow, so the answer is there when it looks for it.
//!
//! The server's side is counted from one call, when the method runs, to the next call. These are
//! the steps of a call in another order: answered, looked for, taken, run. The client has called
//! several times before it waits, so the next call is there when the server looks, even if the
//! client does not run meanwhile.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portolan::rpc::{
    self, ClientError, ClientOptions, Large, Pending, RpcError, Server, ServerOptions, Service,
};
use portolan::{Deadline, Domain, Protection, Waiting};
use portolan_instruments::step::Stepper;
use portolan_sys::process;

use super::Scene;
use super::rounds::{COUNTED, Rounds, domain, must, refused};
use crate::cpus;
use crate::error::{MeasureError, Result};
use crate::stepped::{Counted, What, part, refused as uncounted, to_mark};

const SERVICE: &str = "counted";
/// How long a client waits before it asks again: a stepped server is slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls that are under way at a time where the server's side is counted.
const UNDER_WAY: usize = 4;

/// What is called. The same with marks of the server's.
#[portolan::service]
trait Work {
    fn null(&self);
    fn take(&self, bytes: &[u8]);
    fn marked(&self);
    fn take_marked(&self, bytes: &[u8]);
    /// Which thread runs it.
    fn thread(&self) -> u32;
}

/// The same, of a service that takes extents: none come here.
#[portolan::service]
trait Mover {
    fn null(&self);
    fn marked(&self);
    fn thread(&self) -> u32;
    fn take_extent(&self, large: Large);
}

struct Worker;

impl Work for Worker {
    fn null(&self) {}

    fn take(&self, bytes: &[u8]) {
        black_box(bytes);
    }

    fn marked(&self) {
        part(|| {});
    }

    fn take_marked(&self, bytes: &[u8]) {
        black_box(bytes);
        part(|| {});
    }

    fn thread(&self) -> u32 {
        process::thread()
    }
}

impl Mover for Worker {
    fn null(&self) {}

    fn marked(&self) {
        part(|| {});
    }

    fn thread(&self) -> u32 {
        process::thread()
    }

    fn take_extent(&self, large: Large) {
        black_box(large);
    }
}

pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ours(&["call, null, client's side"], 0, calls),
        Scene::ours(&["call, 1 KiB, client's side"], 1024, calls),
        Scene::served(&["call, null, server's side"], 0, served_calls),
        Scene::served(&["call, 1 KiB, server's side"], 1024, served_calls),
        Scene::ours(
            &["call, null, where extents may come, client's side"],
            0,
            moving_calls,
        ),
        Scene::served(
            &["call, null, where extents may come, server's side"],
            0,
            served_moving_calls,
        ),
    ]
}

/// A client, and a server whose threads are elsewhere.
fn both<C>(
    rounds: &Rounds<'_>,
    service: impl Service,
    connect: impl FnOnce(&Domain, &ClientOptions) -> std::result::Result<C, ClientError>,
    null: impl FnOnce(&C) -> std::result::Result<(), RpcError>,
) -> Result<(C, Server)> {
    let domain = domain(Protection::Trusted)?;
    // The server's threads stay where they are made.
    cpus::pin(rounds.cpus.peer(0))?;
    // Awake for ever: a stepped thread is too slow for anything else.
    let options = ServerOptions::default().waiting(Waiting::Poll);
    let server = rpc::serve(&domain, SERVICE, service, &options).map_err(refused)?;
    let options = ClientOptions::default()
        .period(PATIENCE)
        .waiting(Waiting::Poll);
    let client = connect(&domain, &options).map_err(refused)?;
    // It is made: from now on we may be on another processor.
    null(&client).map_err(refused)?;
    cpus::pin(rounds.cpus.ours)?;
    Ok((client, server))
}

fn working(rounds: &Rounds<'_>) -> Result<(WorkClient, Server)> {
    let connect = |domain: &Domain, options: &ClientOptions| {
        WorkClient::connect_with(domain, SERVICE, options, Deadline::NEVER)
    };
    both(rounds, WorkService(Worker), connect, WorkClient::null)
}

fn moving(rounds: &Rounds<'_>) -> Result<(MoverClient, Server)> {
    let connect = |domain: &Domain, options: &ClientOptions| {
        MoverClient::connect_with(domain, SERVICE, options, Deadline::NEVER)
    };
    both(rounds, MoverService(Worker), connect, MoverClient::null)
}

fn moving_calls(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let (client, _server) = moving(rounds)?;
    rounds.go(|| part(|| client.null()).map_err(refused))
}

fn calls(_: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    let (client, _server) = working(rounds)?;
    let bytes = vec![7; bytes];
    rounds.go(|| {
        let done = part(|| match bytes.len() {
            0 => client.null(),
            _ => client.take(&bytes),
        });
        done.map_err(refused)
    })
}

fn served_calls(_: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    let (client, _server) = working(rounds)?;
    let bytes = vec![7; bytes];
    let [_, _, marked, take_marked, _] = WorkService::<Worker>::METHODS else {
        return must(false);
    };
    let start = || match bytes.len() {
        0 => client.stub().begin::<_, ()>(marked, &()),
        _ => client.stub().begin::<_, ()>(take_marked, &(&bytes[..],)),
    };
    call_until_over(rounds, start, || client.thread())
}

fn served_moving_calls(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let (client, _server) = moving(rounds)?;
    let [_, marked, ..] = MoverService::<Worker>::METHODS else {
        return must(false);
    };
    let start = || client.stub().begin::<_, ()>(marked, &());
    call_until_over(rounds, start, || client.thread())
}

/// Makes calls of the server whose thread is `server` until the coordinator leaves.
fn call_until_over(
    rounds: &Rounds<'_>,
    start: impl Fn() -> std::result::Result<Pending<()>, RpcError> + Sync,
    server: impl FnOnce() -> std::result::Result<u32, RpcError>,
) -> Result<()> {
    let mut under_way = VecDeque::new();
    let mut call = || {
        while under_way.len() < UNDER_WAY {
            under_way.push_back(start().map_err(refused)?);
        }
        let first = under_way.pop_front();
        first.map_or(Ok(()), |call| call.wait().map_err(refused))
    };
    for _ in 0..1000 {
        call()?;
    }
    let over = AtomicBool::new(false);
    let server = server().map_err(refused)?;
    thread::scope(|scope| {
        let calling = scope.spawn(|| {
            cpus::pin(rounds.cpus.ours)?;
            // Relaxed: it says nothing but that.
            while !over.load(Ordering::Relaxed) {
                call()?;
            }
            Ok::<_, MeasureError>(())
        });
        let waited = rounds.begin(server).and_then(|begins| {
            if begins {
                rounds.until_over()?;
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        let called = calling.join().map_err(|_| MeasureError::Gone);
        waited.and(called.and_then(|called| called))
    })
}

/// From mark to mark, by turns nothing and a call; which of the two is which, one sees.
pub(super) fn served(stepper: &mut Stepper, what: What) -> Counted<Vec<Vec<u64>>> {
    let mut turns = [Vec::new(), Vec::new()];
    stepper.run_to_mark().map_err(uncounted)?;
    for _ in 0..COUNTED {
        for turn in &mut turns {
            turn.push(to_mark(stepper, what)?);
        }
    }
    turns.sort();
    let [nothing, mut calls] = turns;
    let nothing = nothing.into_iter().min().unwrap_or(0);
    for call in &mut calls {
        *call = call.saturating_sub(nothing);
    }
    Ok(vec![calls])
}
