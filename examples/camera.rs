//! Camera: sends a picture ten times a second, until Ctrl-C, to the viewer that there is.
//!
//! Run it in one terminal, and `viewer` in another, in any order:
//! `cargo run --example camera`, `cargo run --example viewer`. Kill the viewer, and start it again.
//! An argument names another domain than `tutorial`.

use portolan::reconnect::Lost;
use portolan::{ConnectError, Deadline, Domain, Message, Refused, SendError};
use std::time::Duration;

/// Bytes of a picture.
const PICTURE: usize = 1920 * 1080 * 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("camera: process {}", std::process::id());
    // The port's name is looked up when a picture is sent, and again when the port has died.
    let mut viewer = domain.reconnecting_sender("pictures");
    for number in 1_u64.. {
        // Memory that every process of the domain has at this address.
        let mut picture = domain.allocate(PICTURE)?;
        picture.fill(u8::try_from(number % 256)?);
        let mut message = Message::new(&number.to_le_bytes())?;
        message.push(picture)?;
        // It waits for a viewer, and for room in that one's queue.
        match viewer.send(message, Deadline::after(Duration::from_secs(1))) {
            Ok(sent) => {
                if let Some(lost) = sent.lost {
                    tell(lost);
                }
                if number % 10 == 1 {
                    println!("camera: viewer {} has picture {number}", sent.receiver);
                }
            }
            // The picture has come back with the error, and is freed here.
            Err(Refused {
                why: SendError::Connect(ConnectError::NoSuchPort { .. }),
                ..
            }) => println!("camera: no viewer for picture {number}"),
            Err(Refused {
                why: SendError::Full { slots },
                ..
            }) => println!("camera: the viewer has {slots} pictures, and takes none"),
            Err(refused) => return Err(refused.into()),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn tell(lost: Lost) {
    println!(
        "camera: a viewer has gone; it had not received {} of {} pictures at most",
        lost.at_most, lost.sent
    );
}
