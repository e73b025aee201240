//! A wait set in an epoll loop: any number of ports behind one descriptor, beside others.
//!
//! Run it with `cargo run --example wait_set_epoll`.

use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, WaitSet};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::process::{Command, Stdio};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SET: u64 = 0;
const PIPE: u64 = 1;
const COLOURS: [&str; 3] = ["red", "green", "blue"];

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => paint(&domain),
        None => watch(),
    }
}

fn watch() -> Outcome {
    let name = format!("wait-set-{}", std::process::id());
    let domain = Domain::join(&name)?;
    // The set owns its ports and gives a token for each.
    let mut set = WaitSet::new(&domain)?;
    for colour in COLOURS {
        set.add(domain.bind(PortOptions::named(colour))?)?;
    }
    // What else the loop waits for: here, that the painter ends and its pipe with it.
    let mut painter = Command::new(std::env::current_exe()?);
    let mut painter = painter.arg(&name).stdout(Stdio::piped()).spawn()?;
    let pipe = painter.stdout.take().ok_or("no pipe")?;

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &set, EventData::new_u64(SET), EventFlags::IN)?;
    epoll::add(&epoll, &pipe, EventData::new_u64(PIPE), EventFlags::IN)?;

    let mut painting = true;
    while painting {
        let mut events = Vec::with_capacity(4);
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            // Interrupted, as it may be when the set becomes readable: ask again.
            Err(rustix::io::Errno::INTR) => continue,
            waited => waited?,
        };
        painting = events.iter().all(|event| event.data.u64() != PIPE);
        // Readable: look, without waiting. Also before the end, for what came just now.
        serve(&mut set)?;
    }
    painter.wait()?;
    println!("the painter has gone");
    Ok(())
}

/// Receives what there is, from the ports where something is.
fn serve(set: &mut WaitSet) -> Outcome {
    for token in set.wait(Deadline::NOW)? {
        let port = set
            .get_mut(token.of::<ReceiveRight>())
            .ok_or("not in the set")?;
        while let Ok(message) = port.receive(Access::Later, Deadline::NOW) {
            let colour = port.name().unwrap_or_default();
            println!("{colour}: {}", String::from_utf8_lossy(message.header()));
        }
    }
    Ok(())
}

fn paint(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    for (colour, thing) in COLOURS.iter().zip(["an apple", "a leaf", "the sky"]) {
        let port = domain.connect(colour, Duration::from_secs(30))?;
        port.send(Message::new(thing.as_bytes())?, Deadline::NEVER)?;
    }
    Ok(())
}
