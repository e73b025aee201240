//! Echo server: answers each request with its own text in capitals, until Ctrl-C.
//!
//! Run it in one terminal, and `echo_client` in another: `cargo run --example echo_server`,
//! `cargo run --example echo_client`. An argument names another domain than `tutorial`.

use portolan::{Access, Deadline, Domain, PortOptions};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1);
    let domain = Domain::join(name.as_deref().unwrap_or("tutorial"))?;
    println!("server: process {}", std::process::id());
    // A server that was killed just now has the name for another moment.
    let options = PortOptions::named("echo").synchronous();
    let mut port = domain.bind_when_free(options, Duration::from_secs(5))?;
    loop {
        let mut request = port.get_request(Access::Now, Deadline::NEVER)?;
        for extent in request.message.extents_mut() {
            extent.make_ascii_uppercase();
        }
        // The answer is the request's own memory. A client that has died meanwhile does not matter.
        let _ = request.reply_in_place();
    }
}
