//! Viewer: receives the pictures of `camera`, until Ctrl-C.
//!
//! Run it with `cargo run --example viewer`; see `camera`.

use portolan::{Access, Deadline, Domain, PortOptions};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("viewer: process {}", std::process::id());
    // A viewer that was killed just now has the name for another moment.
    let options = PortOptions::named("pictures").queue(8);
    let mut port = domain.bind_when_free(options, Duration::from_secs(5))?;
    loop {
        let mut message = port.receive(Access::Later, Deadline::NEVER)?;
        let number = u64::from_le_bytes(message.header().try_into()?);
        // The pages that the camera filled, at the same address. They are ours: we may write them.
        let picture = &mut message.extents_mut()[0];
        let before = picture[0];
        picture[0] = !before;
        if number % 10 == 1 {
            println!(
                "viewer: picture {number}, {} bytes of {before} at {:#x}",
                picture.len(),
                picture.address()
            );
        }
        // Here the message is dropped: its memory goes back to the camera.
    }
}
