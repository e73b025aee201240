//! Counts allocation, exported memory, signals and wait sets.

use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
use portolan::{
    Access, Deadline, Delivery, ListenerOptions, Message, PortOptions, Protection, ReceiveRight,
    SendRight, WaitSet, Waiting, WhenFull,
};
use portolan_sys::memory::PAGE;

use super::Scene;
use super::rounds::{Rounds, domain, must, refused};
use crate::error::Result;
use crate::stepped::part;

pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ours(
            &["signal", "signal, its look", "signal, one look in vain"],
            0,
            signals,
        ),
        Scene::ours(&["allocate, 4 KiB", "free, 4 KiB"], 0, allocation),
        Scene::ours(
            &["write to an import, 8 B", "notified write, 8 B"],
            0,
            updates,
        ),
        Scene::ours(
            &[
                "wait set of 1 port, one look in vain",
                "wait set of 1 port, its look",
            ],
            0,
            one_port,
        ),
        Scene::ours(
            &[
                "wait set of 1,000 ports, one look in vain",
                "wait set of 1,000 ports, its look",
            ],
            0,
            many_ports,
        ),
    ]
}

fn signals(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let segment = domain.make_segment(None, PAGE).map_err(refused)?;
    let at = segment.address();
    let options = ListenerOptions::default().waiting(Waiting::Poll);
    let mut listener = domain.listen(options).map_err(refused)?;
    listener
        .on_by(Delivery::POLLED, at..at + 64, |_| {})
        .map_err(refused)?;
    rounds.go(|| {
        let told = part(|| domain.signal(at));
        must(told.map_err(refused)? == 1)?;
        let look = part(|| listener.wait(Deadline::NEVER));
        must(look.is_some())?;
        let look = part(|| listener.wait(Deadline::NOW));
        must(look.is_none())
    })
}

fn allocation(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    rounds.go(|| {
        let extent = part(|| domain.allocate(PAGE)).map_err(refused)?;
        part(|| drop(extent));
        Ok(())
    })
}

fn updates(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let memory = ExportMemory::new(PAGE).map_err(refused)?;
    let options = ExportOptions::new(Reach::ReadWrite);
    let export = domain.export(&memory, "counted", &options, Deadline::NEVER);
    let export = export.map_err(refused)?;
    let mut notifications = export.notifications().map_err(refused)?;
    let import = domain.import("counted", Deadline::NEVER).map_err(refused)?;
    let word = 7_u64.to_ne_bytes();
    rounds.go(|| {
        part(|| import.write(0, &word)).map_err(refused)?;
        part(|| import.write_notifying(8, &word)).map_err(refused)?;
        notifications.wait(Deadline::NOW).map(drop).map_err(refused)
    })
}

fn one_port(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    wait_set(1, rounds)
}

fn many_ports(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    wait_set(1000, rounds)
}

fn wait_set(ports: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let mut set = WaitSet::new(&domain).map_err(refused)?;
    set.set_waiting(Waiting::Poll);
    let mut right: Option<SendRight> = None;
    for _ in 0..ports {
        let port = domain
            .bind(PortOptions::unnamed().queue(1))
            .map_err(refused)?;
        right.get_or_insert_with(|| port.make_send());
        set.add(port).map_err(refused)?;
    }
    let Some(right) = right else {
        return must(false);
    };
    rounds.go(|| {
        let look = part(|| set.wait(Deadline::NOW)).map_err(refused)?;
        must(look.is_empty())?;
        right
            .send(Message::default(), WhenFull::Fail)
            .map_err(refused)?;
        let look = part(|| set.wait(Deadline::NOW)).map_err(refused)?;
        must(look.len() == 1)?;
        for token in look {
            let port = set.get_mut(token.of::<ReceiveRight>());
            let received = port.map(|port| port.receive(Access::Later, Deadline::NOW));
            must(matches!(received, Some(Ok(_))))?;
        }
        Ok(())
    })
}
