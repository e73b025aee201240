//! Reconnect: a worker is killed in the middle of its work, and its sender goes on with the next one.
//!
//! Run it with `cargo run --example reconnect`.

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use std::process::{Child, Command};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => work(&Domain::join(&domain)?),
        None => send(),
    }
}

fn send() -> Outcome {
    let name = format!("reconnect-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut worker = start(&name)?;
    let mut jobs = domain.reconnecting_sender("jobs");
    let (mut sent, mut lost) = (0, 0);
    for number in 1..=40_u64 {
        if number == 21 {
            worker.kill()?; // As by `kill -9`: it gets no chance to say anything.
            worker.wait()?;
            worker = start(&name)?;
        }
        // Waits for a worker. After the death it finds the next one, and says what may be lost.
        let job = Message::new(&number.to_le_bytes())?;
        let told = jobs.send(job, soon())?;
        sent += 1;
        if let Some(told) = told.lost {
            println!("sender: worker {} has died", told.receiver);
            lost += told.at_most;
            assert!(told.sent <= number, "some went to it after its death");
        }
    }
    // An answer says more than a count: the worker answers with the jobs that it has done.
    let mut total = domain.reconnecting_sender("total");
    let answer = total
        .right(soon())?
        .request_reply(Message::default(), Access::Now, soon())?;
    let done = u64::from_le_bytes(answer.header().try_into()?);
    println!("sender: the next worker did the rest, up to job {done} of {sent}");
    println!(
        "sender: of some it is not known whether they were done: {}",
        lost > 0
    );
    worker.wait()?;
    Ok(())
}

/// Does jobs until it is asked which one was the last.
fn work(domain: &Domain) -> Outcome {
    // The worker that was killed has the name for another moment.
    let mut jobs = domain.bind_when_free(PortOptions::named("jobs").queue(7), soon())?;
    let mut last = 0;
    while last < 40 {
        let job = jobs.receive(Access::Later, soon())?;
        last = u64::from_le_bytes(job.header().try_into()?);
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut total = domain.bind(PortOptions::named("total").synchronous())?;
    let asked = total.get_request(Access::Later, soon())?;
    asked.reply(Message::new(&last.to_le_bytes())?)?;
    Ok(())
}

fn start(domain: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).arg(domain).spawn()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
