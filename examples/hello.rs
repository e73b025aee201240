//! Hello: one process sends a message, another receives it.
//!
//! Run it with `cargo run --example hello`.

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    // The second process is this program again, with the domain's name as an argument.
    match std::env::args().nth(1) {
        Some(domain) => send(&domain),
        None => receive(),
    }
}

fn receive() -> Outcome {
    // Nothing has to be installed or running: the first to join a domain creates it.
    let name = format!("hello-{}", std::process::id());
    let domain = Domain::join(&name)?;
    // A port is where messages are received. Others find it by its name.
    let mut port = domain.bind(PortOptions::named("greetings"))?;
    let mut peer = Command::new(std::env::current_exe()?).arg(&name).spawn()?;

    let message = port.receive(Access::Now, Deadline::after(Duration::from_secs(30)))?;
    println!("header:  {}", String::from_utf8_lossy(message.header()));
    // The pages are ours now. They were not copied: they changed owner.
    let page = &message.extents()[0];
    println!(
        "pages:   {} bytes at {:#x}, all {:?}",
        page.len(),
        page.address(),
        page[0]
    );

    peer.wait()?;
    Ok(())
}

fn send(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    // Waits until somebody has bound a port of this name.
    let port = domain.connect("greetings", Deadline::after(Duration::from_secs(30)))?;

    // A message is a short header, which is copied, and extents of pages, which are not.
    let mut pages = domain.allocate(1 << 20)?;
    pages.fill(42);
    println!("sending: {} bytes at {:#x}", pages.len(), pages.address());
    let mut message = Message::new(b"hello from another process")?;
    message.push(pages)?;
    // From here on neither the message nor its pages can be used in this process.
    port.send(message, Deadline::NEVER)?;
    Ok(())
}
