//! Tests that threads of a server without calls, and of a client that does not call, sleep, and
//! end with it. A program of its own, so that all threads of that name are theirs.

use portolan::rpc::{self, Concurrency, ServerOptions};
use portolan::{Deadline, Domain};
use portolan_testkit::until;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

#[portolan::service]
trait Echo {
    fn echo(&self, n: u64) -> u64;
}

struct Same;

impl Echo for Same {
    fn echo(&self, n: u64) -> u64 {
        n
    }
}

/// How often each of the library's threads has gone to sleep.
fn sleeps() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for task in Path::new("/proc/self/task").read_dir().unwrap() {
        let task = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if !read("comm").starts_with("portolan-rpc") {
            continue;
        }
        let status = read("status");
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt"));
        let count = line.unwrap_or_default().to_owned();
        found.insert(task.display().to_string(), count);
    }
    found
}

#[test]
fn a_server_that_nobody_calls_wakes_for_nothing_and_ends_when_dropped() {
    for concurrency in [Concurrency::Client, Concurrency::Call, Concurrency::Pool(2)] {
        let domain = Domain::private().unwrap();
        let options = ServerOptions::default().concurrency(concurrency);
        let server = rpc::serve(&domain, "echo", EchoService(Same), &options).unwrap();
        let client = EchoClient::connect(&domain, "echo", Deadline::NEVER).unwrap();
        assert_eq!(client.echo(3), Ok(3));
        // Its driver has no timer either while nothing is open.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        assert_eq!(runtime.unwrap().block_on(client.echo_async(5)), Ok(5));
        let idle = Duration::from_millis(1300);
        // They may spin a little at first.
        until("nobody wakes", || {
            let before = sleeps();
            assert!(!before.is_empty(), "no thread was found");
            std::thread::sleep(idle);
            before == sleeps()
        });
        assert_eq!(client.echo(4), Ok(4));
        drop((server, client));
        until("its threads have ended", || sleeps().is_empty());
    }
}
