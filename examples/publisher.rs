//! Publisher: publishes a reading ten times a second, until Ctrl-C, to all subscribers there are.
//!
//! Run it in one terminal, and `subscriber` in any number of others:
//! `cargo run --example publisher`, `cargo run --example subscriber`. An argument names another
//! domain than `tutorial`.

use portolan::Domain;
use portolan::channel::{Payload, TopicOptions};
use std::time::Duration;

/// What is published. A subscriber of another type is refused.
#[derive(Clone, Copy, Payload)]
#[repr(C)]
struct Reading {
    number: u64,
    degrees: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("publisher: process {}", std::process::id());
    let mut readings = domain.publisher::<Reading>("readings", TopicOptions::default())?;
    for number in 1_u64.. {
        let degrees = 20.0 + f64::from(u32::try_from(number % 100)?) / 10.0;
        // Written once, however many subscribe. A slow, stopped or dead one delays nothing.
        readings.publish(&Reading { number, degrees })?;
        if number % 10 == 1 {
            println!("publisher: reading {number} is {degrees:.1}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
