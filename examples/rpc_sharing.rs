//! Many clients that call seldom share channels, and cost next to nothing; a busy client is given
//! channels of its own, for as long as nobody needs them more.
//!
//! Run it with `cargo run --example rpc_sharing`.

use portolan::rpc::{self, ClientOptions, ServerOptions};
use portolan::{Deadline, Domain};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Counts what comes through its gates.
#[portolan::service]
trait Turnstile {
    /// One more through this gate: how many now through all.
    fn pass(&self, gate: usize) -> u64;
    /// Through this gate.
    fn passed(&self, gate: usize) -> u64;
}

const GATES: usize = 50;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => serve(&domain),
        None => watch(),
    }
}

struct Counters {
    all: AtomicU64,
    gates: [AtomicU64; GATES],
}

impl Turnstile for Counters {
    fn pass(&self, gate: usize) -> u64 {
        self.gates[gate].fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn passed(&self, gate: usize) -> u64 {
        self.gates[gate].load(Ordering::Relaxed)
    }
}

fn serve(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let counters = TurnstileService(Counters {
        all: AtomicU64::new(0),
        gates: [const { AtomicU64::new(0) }; GATES],
    });
    // Of those who share, one may have channels of its own.
    let options = ServerOptions::default().own_channels(1);
    let _server = rpc::serve(&domain, "turnstile", counters, &options)?;
    loop {
        std::thread::park();
    }
}

fn watch() -> Outcome {
    let name = format!("rpc-sharing-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut server = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let soon = Deadline::after(Duration::from_secs(60));
    let options = ClientOptions::default().sharing();
    let connect = || TurnstileClient::connect_with(&domain, "turnstile", &options, soon);
    let gates = (0..GATES)
        .map(|_| connect())
        .collect::<Result<Vec<_>, _>>()?;
    let mut calls = [0; GATES];
    let mut pass = |gate: usize| {
        calls[gate] += 1;
        gates[gate].pass(gate)
    };

    for gate in 0..GATES {
        pass(gate)?;
    }
    let sharing = gates.iter().filter(|g| g.stub().is_sharing()).count();
    println!("{sharing} of {GATES} gates share their channels");

    // A crowd at one gate, then at another.
    while gates[7].stub().is_sharing() {
        pass(7)?;
    }
    println!("gate 7 is busy: it has channels of its own");
    while gates[9].stub().is_sharing() {
        pass(9)?;
    }
    println!("gate 9 is busier: they are taken from gate 7");
    while !gates[7].stub().is_sharing() {
        pass(7)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("gate 7 shares again");

    let each_once = (0..GATES).all(|gate| gates[gate].passed(gate) == Ok(calls[gate]));
    println!("each call was counted once: {each_once}");
    server.kill()?;
    server.wait()?;
    Ok(())
}
