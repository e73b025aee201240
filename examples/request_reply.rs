//! Request and reply: a server in a process of its own, and what a client sees of it.
//!
//! Run it with `cargo run --example request_reply`.

use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => serve(&domain),
        None => ask(),
    }
}

fn serve(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    // Requests go to synchronous ports.
    let mut port = domain.bind(PortOptions::named("upper").synchronous())?;
    loop {
        let mut request = port.get_request(Access::Now, soon())?;
        match request.message.header() {
            // Its client is told.
            b"drop me" => drop(request),
            // So is this one: the host answers for the dead.
            b"die" => std::process::exit(1),
            // The answer is the request's own pages, changed where they lie.
            _ => {
                request.message.extents_mut()[0].make_ascii_uppercase();
                request.reply_in_place()?;
            }
        }
    }
}

fn ask() -> Outcome {
    let name = format!("request-reply-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut server = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let right = domain.connect("upper", soon())?;
    let request = |text: &str| -> Result<Message, Box<dyn std::error::Error>> {
        let mut extent = domain.allocate(text.len())?;
        extent.copy_from_slice(text.as_bytes());
        let mut message = Message::new(b"")?;
        message.push(extent)?;
        Ok(message)
    };

    // Ask, and wait for the answer.
    let answer = right.request_reply(request("one at a time")?, Access::Now, soon())?;
    println!("answer: {}", String::from_utf8_lossy(&answer.extents()[0]));

    // Or have several requests under way; the answers may be taken in any order.
    let mut first = right.begin_request(request("the first of two")?, WhenFull::Fail)?;
    let mut second = right.begin_request(request("the second of two")?, WhenFull::Fail)?;
    for pending in [&mut second, &mut first] {
        let answer = pending.wait(Access::Now, soon())?;
        println!("answer: {}", String::from_utf8_lossy(&answer.extents()[0]));
    }

    // A request that is not answered ends in an error at once, not after a timeout.
    for header in ["drop me", "die"] {
        let outcome = right.request_reply(Message::new(header.as_bytes())?, Access::Now, soon());
        println!(
            "{header}: {}",
            outcome.map_or_else(|error| error.to_string(), |_| "answered".into())
        );
    }
    server.wait()?;
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
