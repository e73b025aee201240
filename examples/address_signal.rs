//! Address-valued signals: a shared table says which of its rows has changed.
//!
//! No message is sent. The other process changes a row and signals its address; the
//! handler is given the same address here, and looks. Run it with
//! `cargo run --example address_signal`.

use portolan::{Domain, ListenerOptions, Segment};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes of a row.
const ROW: usize = 64;
const ROWS: usize = 64;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => writer(&domain),
        None => watcher(),
    }
}

fn watcher() -> Outcome {
    let name = format!("address-signal-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let table = domain.make_segment(Some("table"), ROW * ROWS)?;
    let start = table.address();

    let mut listener = domain.listen(ListenerOptions::default())?;
    let rows = table.clone();
    listener.on(start..start + ROW * ROWS, move |address| {
        let row = (address - start) / ROW;
        let value = rows.words()[row * ROW / 8].load(Ordering::Relaxed);
        println!("watcher: row {row} is {value} now");
    })?;

    let mut writer = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    for _ in 0..3 {
        let left = listener.wait(Duration::from_secs(60));
        left.ok_or("no signal came")?;
    }
    writer.wait()?;
    println!("watcher: {} signals were dropped", listener.dropped());
    Ok(())
}

fn writer(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let table: Segment = domain.find_segment("table", Duration::from_secs(60))?;
    for (row, value) in [(3, 30), (41, 410), (7, 70)] {
        // What is written before the signal is there when the handler looks.
        table.words()[row * ROW / 8].store(value, Ordering::Relaxed);
        let reached = domain.signal(table.address() + row * ROW)?;
        assert_eq!(reached, 1);
    }
    Ok(())
}
