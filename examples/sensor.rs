//! A sensor's samples, in another user's memory: automatic update.
//!
//! The reader exports a buffer that one other user may write. The sensor, a process of that
//! user, maps memory of its own to it; whatever it stores there is in the reader's memory too,
//! in the order of the program, and the reader's processor does nothing for it. Run it with
//! `cargo run --example sensor`; as root the sensor is of another user, else of the same one.

use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
use portolan::{Deadline, Domain, Permissions};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Where the sensor counts its samples.
const COUNT: usize = 0;
/// Where they begin; eight bytes each.
const FIRST: usize = 64;
const SAMPLES: usize = 1000;
/// The sensor's user, where the reader may choose it.
const SENSOR: u32 = 1042;

fn main() -> Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [domain, reader] => sensor(domain, reader.parse()?),
        _ => reader(),
    }
}

fn reader() -> Outcome {
    let name = format!("sensor-{}", std::process::id());
    let domain = Domain::join(&name)?;
    // Whose process this is.
    let us = std::fs::metadata("/proc/self")?.uid();
    let sensor = if us == 0 { SENSOR } else { us };

    let buffer = ExportMemory::new(FIRST + 8 * SAMPLES)?;
    let options = ExportOptions::new(Reach::Write).permit(Permissions::nobody().users([sensor]));
    let _export = domain.export(&buffer, "samples", &options, soon())?;

    let mut command = Command::new(std::env::current_exe()?);
    command.arg(&name).arg(us.to_string());
    if sensor != us {
        command.uid(sensor).gid(sensor);
    }
    let mut child = command.spawn()?;
    let mut seen = 0;
    while seen < SAMPLES {
        // What was stored before the count is there when the count is.
        let count = usize::try_from(buffer.load_acquire(COUNT)?)?;
        for number in seen..count {
            let sample = f64::from_bits(buffer.load_acquire(FIRST + 8 * number)?);
            assert!((sample - measured(number)).abs() < f64::EPSILON);
        }
        seen = count;
        std::thread::yield_now();
    }
    assert!(child.wait()?.success());
    println!("reader: saw {SAMPLES} samples, each before it was counted");
    Ok(())
}

fn sensor(domain: &str, reader: u32) -> Outcome {
    let import = Domain::builder(domain)
        .of_user(reader)
        .import("samples", soon())?;
    let local = ExportMemory::new(import.len())?;
    let mut buffer = import.map_log(&local, 0..local.len(), 0)?;
    for number in 0..SAMPLES {
        buffer.store(FIRST + 8 * number, &measured(number).to_ne_bytes())?;
        buffer.store(COUNT, &(number as u64 + 1).to_ne_bytes())?;
    }
    buffer.unmap()?;
    let last = f64::from_bits(local.load_acquire(FIRST + 8 * (SAMPLES - 1))?);
    println!("sensor: the last of {SAMPLES} samples was {last:.3}");
    Ok(())
}

/// What there is to measure.
fn measured(number: usize) -> f64 {
    (number as f64 / 50.0).sin()
}

/// How long anything may take.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
