//! Rights: they travel in messages, and a port knows when no sender is left.
//!
//! A guest hands the keeper the right to send to a port that has no name, so that no one
//! else can. Run it with `cargo run --example rights`.

use portolan::{Access, Deadline, Domain, Message, Notice, PortOptions, Right};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => guest(&domain),
        None => keeper(),
    }
}

fn keeper() -> Outcome {
    let name = format!("rights-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut lobby = domain.bind(PortOptions::named("lobby"))?;
    let mut guest = Command::new(std::env::current_exe()?).arg(&name).spawn()?;

    let mut message = lobby.receive(Access::Later, soon())?;
    println!(
        "keeper: a guest says {:?}",
        String::from_utf8_lossy(message.header())
    );
    for right in message.take_rights() {
        // The holder of a right may use it; this one came with the message.
        let Right::Send(room) = right else { continue };
        room.send(Message::new(b"breakfast is at eight")?, soon())?;
        room.send(Message::new(b"the key is yours")?, soon())?;
        // Dropped here, and it was the only one.
    }

    guest.wait()?;
    Ok(())
}

fn guest(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let lobby = domain.connect("lobby", soon())?;

    // A port without a name is reached by those only who are given a right on it.
    let mut room = domain.bind(PortOptions::unnamed())?;
    let mut message = Message::new(b"write to my room")?;
    message.attach(room.make_send())?;
    lobby.send(message, soon())?;

    // Rights are counted, also while they travel and when their holder is killed.
    room.request_no_more_senders();
    loop {
        let letter = room.receive(Access::Later, soon())?;
        if letter.notice() == Some(Notice::NoMoreSenders) {
            println!("guest: nobody can write to me any more");
            break;
        }
        println!("guest: got {:?}", String::from_utf8_lossy(letter.header()));
    }

    // The other way round: a right on a port that is gone is a dead name, and no crash.
    let right = room.make_send();
    drop(room);
    if let Err(error) = right.send(Message::new(b"anybody there?")?, soon()) {
        println!("guest: not sent, for {error}");
    }
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
