//! Subscriber: prints what `publisher` publishes, until Ctrl-C, and when a publisher goes.
//!
//! Run it with `cargo run --example subscriber`; see `publisher`.

use portolan::channel::{Payload, TopicOptions};
use portolan::reconnect::Update;
use portolan::{Deadline, Domain};

/// As in `publisher`.
#[derive(Clone, Copy, Payload)]
#[repr(C)]
struct Reading {
    number: u64,
    degrees: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("subscriber: process {}", std::process::id());
    let options = TopicOptions::default();
    let mut readings = domain.reconnecting_subscriber::<Reading>("readings", options)?;
    loop {
        match readings.receive(Deadline::NEVER)? {
            Update::Sample(reading) => {
                if reading.missed() > 0 {
                    println!("subscriber: missed {}", reading.missed());
                }
                if reading.number % 10 == 1 {
                    let (number, degrees) = (reading.number, reading.degrees);
                    println!("subscriber: reading {number} is {degrees:.1}");
                }
            }
            Update::Gone(gone) => println!(
                "subscriber: publisher {} has gone; {} of its readings were missed",
                gone.publisher, gone.missed
            ),
            // What later versions may tell of.
            _ => {}
        }
    }
}
