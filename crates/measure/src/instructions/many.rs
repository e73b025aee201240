//! Counts what may not take longer where there are many: the end of a segment's last right beside
//! many ports, and the most urgent of many messages.

use portolan::{
    Access, Deadline, Message, PortOptions, Protection, ReceiveRight, Urgency, WhenFull,
};
use portolan_sys::memory::PAGE;

use super::Scene;
use super::rounds::{Rounds, domain, must, refused};
use crate::error::Result;
use crate::stepped::part;

const FEW: usize = 10;
const MANY: usize = 4000;

pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ours(&["drop a last right beside 10 ports"], 0, few_ports),
        Scene::ours(&["drop a last right beside 4,000 ports"], 0, many_ports),
        Scene::ours(
            &[
                "send one more urgent of 10",
                "receive the most urgent of 10",
            ],
            0,
            few_messages,
        ),
        Scene::ours(
            &[
                "send one more urgent of 4,000",
                "receive the most urgent of 4,000",
            ],
            0,
            many_messages,
        ),
    ]
}

fn few_ports(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    last_right(FEW, rounds)
}

fn many_ports(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    last_right(MANY, rounds)
}

fn last_right(ports: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let bind = |_| domain.bind(PortOptions::unnamed().queue(1));
    let bound: std::result::Result<Vec<ReceiveRight>, _> = (0..ports).map(bind).collect();
    let bound = bound.map_err(refused)?;
    let others = bound.first().map(ReceiveRight::make_send);
    rounds.go(|| {
        let extent = domain.allocate(PAGE).map_err(refused)?;
        let shared = domain.share_extent(extent).map_err(refused)?;
        // Rights of others come and go meanwhile.
        drop(others.clone());
        part(|| drop(shared));
        Ok(())
    })
}

fn few_messages(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    most_urgent(FEW, rounds)
}

fn many_messages(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    most_urgent(MANY, rounds)
}

fn most_urgent(waiting: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let options = PortOptions::unnamed().queue(2 * waiting).by_urgency();
    let mut port = domain.bind(options).map_err(refused)?;
    let right = port.make_send();
    let message = |priority: usize| {
        let mut message = Message::default();
        let priority = u32::try_from(priority).unwrap_or(u32::MAX);
        message.set_urgency(Some(Urgency::Priority(priority)));
        message
    };
    for priority in 0..waiting {
        let sent = right.send(message(priority), WhenFull::Fail);
        sent.map_err(refused)?;
    }
    rounds.go(|| {
        let more = message(waiting);
        part(|| right.send(more, WhenFull::Fail)).map_err(refused)?;
        let received = part(|| port.receive(Access::Later, Deadline::NOW));
        must(
            received.map_err(refused)?.urgency()
                == Some(Urgency::Priority(
                    u32::try_from(waiting).unwrap_or(u32::MAX),
                )),
        )
    })
}
