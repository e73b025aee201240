//! Pipeline: three processes; the one in the middle takes, modifies and forwards.
//!
//! Run it with `cargo run --example pipeline`.

use portolan::{Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight};
use std::process::{Child, Command};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("double"), Some(domain)) => double(&domain),
        (Some("print"), Some(domain)) => print(&domain),
        _ => source(),
    }
}

/// The first stage: fills frames with 1, 2, 3 and sends them.
fn source() -> Outcome {
    let name = format!("pipeline-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let stages = [stage("double", &name)?, stage("print", &name)?];
    let next = domain.connect("double", SOON)?;
    for number in 1..=3 {
        let mut frame = domain.allocate(64 << 10)?;
        frame.fill(number);
        let mut message = Message::new(&[number])?;
        message.push(frame)?;
        next.send(message, Deadline::NEVER)?;
    }
    drop(next); // The last right on that port: the next stage is told, and ends too.
    for mut stage in stages {
        stage.wait()?;
    }
    Ok(())
}

/// The second stage: changes each frame where it lies and sends the same pages on.
fn double(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut port = domain.bind(PortOptions::named("double"))?;
    let next = domain.connect("print", SOON)?;
    while let Some(mut message) = receive(&mut port)? {
        message.extents_mut()[0].iter_mut().for_each(|b| *b *= 2);
        next.send(message, Deadline::NEVER)?;
    }
    Ok(())
}

/// The last stage.
fn print(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut port = domain.bind(PortOptions::named("print"))?;
    while let Some(message) = receive(&mut port)? {
        let (number, frame) = (message.header()[0], &message.extents()[0]);
        println!("frame {number}: {} bytes of {}", frame.len(), frame[0]);
        // A dropped message gives its pages back to the process that allocated them.
    }
    println!("the pipeline is empty");
    Ok(())
}

/// The next frame; none if no sender is left.
fn receive(port: &mut ReceiveRight) -> Result<Option<Message>, Box<dyn std::error::Error>> {
    let message = port.receive(Access::Now, SOON)?;
    // To be asked only once there has been a sender; asking again does no harm.
    port.request_no_more_senders();
    Ok(Some(message).filter(|m| m.notice() != Some(Notice::NoMoreSenders)))
}

fn stage(name: &str, domain: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args([name, domain])
        .spawn()
}
