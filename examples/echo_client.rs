//! Echo client: asks `echo_server` five times a second, until Ctrl-C, and says how each request
//! ended.
//!
//! Run it with `cargo run --example echo_client`; see `echo_server`.

use portolan::{Access, Deadline, Domain, Message};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("client: process {}", std::process::id());
    let mut server = domain.reconnecting_sender("echo");
    for number in 1_u64.. {
        let text = format!("request {number}");
        let mut extent = domain.allocate(text.len())?;
        extent.copy_from_slice(text.as_bytes());
        let mut message = Message::new(b"")?;
        message.push(extent)?;
        // The right on the port of that name, looked up again if the port has died.
        match server.right(second()) {
            Ok(right) => match right.request_reply(message, Access::Now, second()) {
                Ok(answer) => {
                    if number % 5 == 1 {
                        println!("client: {}", String::from_utf8_lossy(&answer.extents()[0]));
                    }
                }
                // A server's death ends the request at once, in an error that says so.
                Err(why) => println!("client: {text} was not answered: {why}"),
            },
            Err(why) => println!("client: {text} was not sent: {why}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn second() -> Deadline {
    Deadline::after(Duration::from_secs(1))
}
