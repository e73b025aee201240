//! The other program of `programs.rs`: takes every second step over each structure it gets; or,
//! for `topics.rs`, publishes the structure of each step, and reads those that come.

use portolan::channel::TopicOptions;
use portolan::structure::{NoRoom, Structure};
use portolan::{Access, Deadline, Domain, Message, PortOptions};
use portolan_testkit::PATIENCE;
use portolan_twin::steps::{Chart, STEPS, begin, check, model, step};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("which domain?")?;
    let domain = Domain::join(&name)?;
    if std::env::args().nth(2).is_some() {
        return topics(&domain);
    }
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

/// Says where its code lies, publishes a chart for each step, and reads those of the test: of
/// each it says that it was right.
fn topics(domain: &Domain) -> Result<(), Box<dyn std::error::Error>> {
    let options = TopicOptions::default().history(u64::from(STEPS) + 1);
    let mut seen = domain.publisher::<u64>("seen", options)?;
    seen.publish(&((step as *const ()).addr() as u64))?;
    let mut ours = domain.publisher::<Structure<Chart>>("twin", options)?;
    let mut theirs = domain.subscriber::<Structure<Chart>>("test", options)?;
    for number in 0..=STEPS {
        let mut loan = ours.loan(|arena| Ok(begin(arena)))?;
        loan.edit(|chart, arena| {
            (0..number).try_for_each(|taken| step(chart, arena, taken))?;
            Ok::<_, NoRoom>(())
        })??;
        loan.publish()?;
        let sample = theirs.receive(PATIENCE)?;
        check(sample.root()?, &model(number));
        seen.publish(&u64::from(number))?;
    }
    // Until the test has read all: samples that no subscriber has follow their publisher.
    domain.connect("done", PATIENCE)?;
    Ok(())
}
