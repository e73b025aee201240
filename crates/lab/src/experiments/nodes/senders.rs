//! Figure 8's cause: what nodes say to each other because a port wants to know when no sender is left.

use std::time::{Duration, Instant};

use portolan::{Access, Deadline, Message, Notice, PortOptions, ReceiveRight};

use crate::claims::{Estimate, shown, table};
use crate::error::Result;
use crate::experiment::Context;
use crate::nodes::far::{LAST, Place, Said, What};
use crate::nodes::pair::{Node, Star, expect, failed, program, unique};
use crate::nodes::{Mode, PATIENCE, Wire};
use crate::outcome::{Cell, Table, Verdict};
use crate::unit::Unit;

/// Rights that are sent to the other node, each on a port of its own.
const RIGHTS: u32 = 32;
/// A node looks every second whether a receiver wants to know: longer than that.
const LOOKS: Duration = Duration::from_millis(2500);
/// Memory of a domain.
const LIMIT: u64 = 32 << 20;

/// What two nodes have said because of so many rights, with the notice and without.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) with: u64,
    pub(super) without: u64,
}

pub(super) fn count(context: &Context<'_>) -> Result<Found> {
    let (near, away) = (context.cpus.ours, context.cpus.peer(0));
    let mut star = Star::start(Mode::Dipc, Wire::Loopback, 1, LIMIT, [near, away])?;
    let [without, with] = [false, true].map(|notice| records(&mut star, away, notice));
    let found = Found {
        with: with?,
        without: without?,
    };
    star.finish()?;
    Ok(found)
}

/// Sends rights to a program of the other node, which keeps them until it is told; how many records both
/// nodes have counted until they are gone.
fn records(star: &mut Star, away: usize, notice: bool) -> Result<u64> {
    let here = star.hub.domain.clone();
    let at = Place {
        domain: star.leaves[0].domain.name().to_owned(),
        port: unique("keeper"),
    };
    let mut keeper = program("keeper", away, What::Keep(at.clone()))?;
    let right = here.connect(&at.port, PATIENCE).map_err(failed)?;
    let before = counted(star)?;
    let mut ports: Vec<ReceiveRight> = Vec::new();
    for _ in 0..RIGHTS {
        let port = here.bind(PortOptions::unnamed()).map_err(failed)?;
        if notice {
            port.request_no_more_senders();
        }
        let mut message = Message::new(&[]).map_err(failed)?;
        let attached = message.attach(port.make_send());
        attached.map_err(|refused| failed(refused.why))?;
        let sent = right.send(message, Deadline::after(PATIENCE));
        sent.map_err(|refused| failed(refused.why))?;
        ports.push(port);
    }
    // Until all are counted, even on a busy machine; without the notice, as long as a count would take.
    let begun = Instant::now();
    let (all, until) = match notice {
        true => (2 * u64::from(RIGHTS), 10 * LOOKS),
        false => (u64::MAX, LOOKS),
    };
    while begun.elapsed() < until && counted(star)? - before < all {
        std::thread::sleep(LOOKS / 100);
    }
    let last = Message::new(LAST).map_err(failed)?;
    let sent = right.send(last, Deadline::after(PATIENCE));
    sent.map_err(|refused| failed(refused.why))?;
    expect(&mut keeper, |said| matches!(said, Said::Done))?;
    for port in &mut ports {
        if notice {
            let told = port.receive(Access::Later, PATIENCE).map_err(failed)?;
            if told.notice() != Some(Notice::NoMoreSenders) {
                return Err(failed("a port received something else than its notice"));
            }
        }
    }
    let after = counted(star)?;
    // It waits for messages alone: it is killed.
    drop(keeper);
    Ok(after - before)
}

/// Records of senders that both nodes have counted: asked for, and told.
fn counted(star: &mut Star) -> Result<u64> {
    let Star { hub, leaves } = star;
    let mut all = 0;
    for Node { process, .. } in std::iter::once(hub).chain(leaves) {
        process.send(&Said::Done)?;
        if let Said::Senders { asked, told } =
            expect(process, |said| matches!(said, Said::Senders { .. }))?
        {
            all += asked + told;
        }
    }
    Ok(all)
}

fn each(records: u64) -> Option<Estimate> {
    Estimate::exact(records as f64 / f64::from(RIGHTS))
}

pub(super) fn table(found: &Found) -> Table {
    let columns = [
        ("rights sent", Unit::Count),
        ("records of senders", Unit::Count),
    ];
    let title = "What nodes say of senders, plain loopback";
    let mut table = Table::new("senders", title, "no-more-senders", &columns);
    for (row, records, paper) in [
        ("wanted", found.with, None),
        ("not wanted", found.without, Some(0.0)),
    ] {
        let records = Cell::here(records as f64).beside(paper);
        table.row(row, [Cell::here(f64::from(RIGHTS)), records]);
    }
    table.note(
        "Rights on ports of one node, each sent to a program of the other node, which keeps them for a while \
         and then drops all. Records are counted by the engines of both: a port's borrowers are asked for \
         their senders, and the peer has heard it.",
    )
}

pub(super) fn verdict(found: &Found) -> Verdict {
    let [with, without] = [found.with, found.without].map(each);
    table::COUNT_RECORDS.verdict(&[with, without]).because(format!(
        "Of {RIGHTS} rights that another node had, both nodes counted {} records of senders for each where \
         the ports wanted the notice, and {} where they did not. What that costs a tree of tasks (Figure 8) \
         is not measured: the lab makes no remote tasks.",
        shown(with, Unit::Count),
        shown(without, Unit::Count),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_for_who_wants_the_notice_alone() {
        let answer = |with, without| verdict(&Found { with, without }).by_figures.name();
        assert_eq!(answer(64, 0), "holds");
        assert_eq!(answer(0, 0), "does not hold");
        assert_eq!(answer(64, 1), "does not hold");
        // Half of the rights are not counted.
        assert_eq!(answer(16, 0), "does not hold");
    }
}
