//! A revoked import: a process lends its memory to another one, and takes it back.
//!
//! The importer is no member of the domain, and could be another user's process, had the
//! exporter permitted it. Run it with `cargo run --example revoked_import`.

use portolan::vmmc::{ExportMemory, ExportOptions, Reach, UpdateError};
use portolan::{Deadline, Domain, Permissions};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Where the importer counts what it has written.
const COUNT: usize = 0;
/// Where it writes.
const DATA: usize = 4096;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => importer(&domain),
        None => exporter(),
    }
}

fn exporter() -> Outcome {
    let name = format!("revoked-import-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let memory = ExportMemory::new(1 << 20)?;
    // Processes of this user may read and write it, whether they are in the domain or not.
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::own_user());
    let export = domain.export(&memory, "workspace", &options, soon())?;

    let mut importer = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    // The importer writes when it likes; nothing wakes us, so we look.
    while memory.load_acquire(COUNT)? < 1000 {
        std::thread::yield_now();
    }
    let address = memory.address();

    // It goes on writing all the time, and is not waited for. From here on it cannot.
    export.unexport()?;
    let count = memory.load_acquire(COUNT)?;
    importer.wait()?;
    // The same memory, at the same place, with what was there.
    assert_eq!(memory.address(), address);
    assert_eq!(memory.load_acquire(COUNT)?, count);
    let mut data = [0; 8];
    memory.read(DATA, &mut data)?;
    println!("exporter: has its memory back, with what was written last in it");
    // What was said to have landed has; the data of the next one may be there already.
    let last = u64::from_le_bytes(data);
    assert!(last == count || last == count + 1);
    Ok(())
}

fn importer(domain: &str) -> Outcome {
    let import = Domain::builder(domain).import("workspace", soon())?;
    for number in 1_u64.. {
        // First the data, then the count that announces them.
        let landed = import
            .write(DATA, &number.to_le_bytes())
            .and_then(|()| import.store_release(COUNT, number));
        match landed {
            Ok(()) => {}
            Err(UpdateError::Revoked) => {
                println!("importer: was told that the export has ended");
                return Ok(());
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

/// How long anything may take.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
