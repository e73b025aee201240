//! A bulk transfer: a process writes blocks straight into the memory of another one, which sleeps
//! until it is notified of each.
//!
//! Nothing is sent, received or copied twice: a block is written to where it is wanted, and what
//! goes behind it is a note of where it lies. Run it with `cargo run --example bulk_transfer`.

use portolan::vmmc::{ExportMemory, ExportOptions, Notification, Reach};
use portolan::{Deadline, Domain, Permissions};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Where the receiver counts the blocks that it is done with.
const DONE: usize = 0;
/// Where the blocks lie: two of them, so that one is written while the other one is read.
const BLOCKS: usize = 4096;
const BLOCK: usize = 1 << 20;
/// Blocks that are transferred.
const COUNT: u64 = 16;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => sender(&domain),
        None => receiver(),
    }
}

fn receiver() -> Outcome {
    let name = format!("bulk-transfer-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let memory = ExportMemory::new(BLOCKS + 2 * BLOCK)?;
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::own_user());
    let export = domain.export(&memory, "blocks", &options, soon())?;
    let mut notifications = export.notifications()?;

    let mut sender = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let (mut sum, mut bytes) = (0_u64, 0);
    let mut block = vec![0; BLOCK];
    for number in 1..=COUNT {
        // What was written is there when its note is.
        let note = notifications.wait(soon())?;
        let Notification::Written { offset, len, .. } = note else {
            return Err("a sender that waits for us never has more than two notes".into());
        };
        // The note is the sender's word: it lies within the memory, and may be any part of it.
        let part = block.get_mut(..len).ok_or("longer than a block")?;
        memory.read(offset, part)?;
        sum += part.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        bytes += len;
        memory.store_release(DONE, number)?;
    }
    sender.wait()?;
    println!("receiver: {bytes} bytes, which add up to {sum}");
    Ok(())
}

fn sender(domain: &str) -> Outcome {
    let import = Domain::builder(domain).import("blocks", soon())?;
    let mut sum = 0_u64;
    for number in 0..COUNT {
        let bytes: Vec<u8> = (0..BLOCK as u64)
            .map(|at| (at * 7 + number).to_le_bytes()[0])
            .collect();
        sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        // Not before the block that was there has been read.
        while import.load_acquire(DONE)? + 2 <= number {
            std::thread::yield_now();
        }
        let slot = if number % 2 == 0 { 0 } else { BLOCK };
        import.write_notifying(BLOCKS + slot, &bytes)?;
    }
    println!("sender: {COUNT} blocks, which add up to {sum}");
    Ok(())
}

/// How long anything may take.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
