//! One wait for everything: a row of a shared table that another process changed, a line of
//! text from a socket, a timer, and a Unix signal. Each has an address.
//!
//! Run it with `cargo run --example one_wait`.

use portolan::{Domain, ListenerOptions, Origin};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Addresses in the shared segment, from its beginning.
const ROW: usize = 0;
const TEXT: usize = 64;
const TICK: usize = 128;
const CHILD: usize = 192;

/// The number of the Unix signal that says that a child has ended.
const SIGCHLD: i32 = 17;

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => other(&domain),
        None => waiter(),
    }
}

fn waiter() -> Outcome {
    let name = format!("one-wait-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let table = domain.make_segment(Some("table"), 4096)?;
    let start = table.address();
    let server = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;

    // What is not a signal of somebody's becomes one.
    let accepts = Origin::Descriptor(server.try_clone()?.into());
    let _text = domain.bind_address(start + TEXT, accepts)?;
    let every = Some(Duration::from_millis(5));
    let first = Duration::from_millis(1);
    let _tick = domain.bind_address(start + TICK, Origin::Timer { first, every })?;
    let _child = domain.bind_address(start + CHILD, Origin::UnixSignal(SIGCHLD))?;

    let mut listener = domain.listen(ListenerOptions::default())?;
    let (happened, happens) = mpsc::channel();
    let rows = table.clone();
    listener.on(start..start + 4096, move |address| {
        let what = match address - start {
            ROW => format!("row is {}", rows.words()[0].load(Ordering::Relaxed)),
            TEXT => {
                let mut text = String::new();
                // It waits already, so this does not.
                if let Ok((mut stream, _)) = server.accept() {
                    let _ = stream.read_to_string(&mut text);
                }
                format!("text is {text:?}")
            }
            TICK => "tick".to_owned(),
            _ => "a child has ended".to_owned(),
        };
        let _ = happened.send(what);
    })?;

    let mut child = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let mut missing = vec!["row", "text", "tick", "a child"];
    while !missing.is_empty() {
        listener.wait(PATIENCE).ok_or("nothing came")?;
        for what in happens.try_iter() {
            if missing.iter().any(|m| what.starts_with(m)) {
                println!("{what}");
            }
            missing.retain(|m| !what.starts_with(m));
        }
    }
    assert!(child.wait()?.success());
    Ok(())
}

/// The other process: it changes a row and says so, writes a line, and ends.
fn other(name: &str) -> Outcome {
    let domain = Domain::join(name)?;
    let table = domain.find_segment("table", PATIENCE)?;
    table.words()[0].store(7, Ordering::Relaxed);
    domain.signal(table.address() + ROW)?;
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    stream.write_all(b"hello")?;
    Ok(())
}
