//! The other program of `programs.rs`: takes every second step over each structure it gets.

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use portolan_twin::steps::{Chart, check, model, step};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("which domain?")?;
    let domain = Domain::join(&name)?;
    let mut port = domain.bind(PortOptions::named("twin"))?;
    let back = domain.connect("test", PATIENCE)?;
    // Where this program's code lies.
    let here = (step as *const ()).addr();
    let mut hello = Message::new(&here.to_le_bytes())?;
    hello.set_urgency(None);
    back.send(hello, Deadline::from(PATIENCE))?;
    loop {
        let mut message = port.receive(Access::Later, PATIENCE)?;
        let Some(&[number]) = message.header().first_chunk() else {
            return Ok(());
        };
        let number = u32::from(number);
        check(message.root::<Chart>()?, &model(number));
        message.edit::<Chart, _>(|chart, arena| step(chart, arena, number))??;
        check(message.root::<Chart>()?, &model(number + 1));
        message.set_header(&[u8::try_from(number + 1)?])?;
        back.send(message, Deadline::from(PATIENCE))?;
    }
}
