//! A file server in a process of its own, and a process between it and its client.
//!
//! ```text
//! client ── request ──> manager ── request ──> file server
//!        <── blocks ───         <── blocks ───
//! ```
//!
//! The blocks are read from the file into pages that go all the way to the client:
//! nobody copies them, and the manager, which counts and does not look, leaves them
//! unopened ([`Access::Later`]).
//!
//! Run it with `cargo run --example file_server -- FILE`, or without a file.

use portolan::{Access, Deadline, Domain, Message, PortOptions, Protection, Request};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes of a block.
const BLOCK: usize = 64 << 10;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", domain, file] => serve(domain, file),
        ["manage", domain] => manage(domain),
        [file] => read(file),
        _ => {
            let path = std::env::temp_dir().join(format!("file-server-{}", std::process::id()));
            let mut file = File::create(&path)?;
            // Two blocks and a bit.
            (0..150_000).try_for_each(|n: u32| file.write_all(&[n.to_le_bytes()[0]]))?;
            let read = read(path.to_str().ok_or("a path that is no text")?);
            std::fs::remove_file(&path)?;
            read
        }
    }
}

/// In a guarded domain the MMU sees to it that pages are touched by who has them only.
fn join(domain: &str) -> Result<Domain, portolan::JoinError> {
    Domain::builder(domain)
        .protection(Protection::Guarded)
        .join()
}

/// The file server: a request's header is a block's number; its answer holds the block.
fn serve(domain: &str, path: &str) -> Outcome {
    let domain = join(domain)?;
    let file = File::open(path)?;
    let mut port = domain.bind(PortOptions::named("files").synchronous())?;
    let mut request = Request::default();
    loop {
        port.get_request_into(&mut request, Access::Later, soon())?;
        let number = u64::from_le_bytes(request.message.header().try_into()?);
        let mut block = domain.allocate(BLOCK)?;
        let mut length = 0;
        loop {
            let read = file.read_at(&mut block[length..], number * BLOCK as u64 + length as u64)?;
            length += read;
            if read == 0 || length == BLOCK {
                break;
            }
        }
        // The answer's header says how much of the block is the file's.
        let mut answer = Message::new(&(length as u64).to_le_bytes())?;
        if length > 0 {
            answer.push(block)?;
        }
        std::mem::take(&mut request).reply(answer)?;
    }
}

/// The one between: it may grant, log, or count, without looking at what it passes on.
fn manage(domain: &str) -> Outcome {
    let domain = join(domain)?;
    let files = domain.connect("files", soon())?;
    let mut port = domain.bind(PortOptions::named("manager").synchronous())?;
    let (mut request, mut blocks) = (Request::default(), 0);
    loop {
        port.get_request_into(&mut request, Access::Later, soon())?;
        let question = std::mem::take(&mut request.message);
        request.message = files.request_reply(question, Access::Later, soon())?;
        blocks += request.message.extents().len();
        let last = request.message.is_empty();
        request.reply_from()?;
        if last {
            println!("manager: passed {blocks} blocks on, unopened");
            return Ok(());
        }
    }
}

/// The client: asks for one block after the other, and looks at them.
fn read(path: &str) -> Outcome {
    let name = format!("file-server-{}", std::process::id());
    let domain = join(&name)?;
    let mut server = start(&["serve", &name, path])?;
    let mut manager = start(&["manage", &name])?;
    let right = domain.connect("manager", soon())?;
    let (mut bytes, mut sum) = (0, 0_u64);
    for number in 0_u64.. {
        let request = Message::new(&number.to_le_bytes())?;
        // Looked at at once: opened in one go, not by a fault for each few pages.
        let answer = right.request_reply(request, Access::Now, soon())?;
        let length = usize::try_from(u64::from_le_bytes(answer.header().try_into()?))?;
        let Some(block) = answer.extents().first() else {
            break;
        };
        bytes += length;
        sum += block[..length].iter().map(|b| u64::from(*b)).sum::<u64>();
    }
    manager.wait()?;
    // It would serve others.
    server.kill()?;
    server.wait()?;
    println!("client: {bytes} bytes, which add up to {sum}");
    Ok(())
}

fn start(arguments: &[&str]) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .spawn()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
