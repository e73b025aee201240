//! A thousand senders to one port that is slow, by one link and by fifty: whether the receiver's node
//! keeps its memory, its fairness and its other ports.

use std::time::{Duration, Instant};

use portolan::{Access, Message, Waiting};
use portolan_measure::child::Child;
use portolan_measure::sampler::jain;

use crate::claims::{Estimate, ratio, shown, table, timed};
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DIPC, Experiment, Need, Source};
use crate::nodes::far::{Place, Said, What};
use crate::nodes::pair::{Node, Star, expect, failed, peak, program, unique};
use crate::nodes::{Mode, PATIENCE, Wire};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "nodes-flow",
    title: "A thousand senders to one port of another node",
    source: Source {
        paper: DIPC,
        section: "2",
    },
    hypothesis: "A node promises no more messages than a port has slots, and what is not promised \
        stays with its sender. So a thousand senders should cost the receiver's node the memory of \
        its links and no more, each link should deliver as much as the others, and another port should \
        not notice.",
    method: "A program takes a message from one port and sleeps 300 µs, again and again; senders are \
        threads of a program in domains of other nodes, each of which sends messages of 4 bytes as fast \
        as it may. Links are plain TCP over loopback; one node with all senders, and fifty nodes with \
        twenty each. After a while the receiver counts messages of each sender for as long. \
        Memory is the most that the receiver's node has had resident, its domain with it, first with \
        ten senders and then with all. A null request from one of the nodes to another port of the \
        receiver's domain is timed before anybody sends, and while all do.",
    needs: &[Need::Cpus(2), Need::Memory(4 << 30)],
    run,
};

/// Memory of a domain.
const LIMIT: u64 = 16 << 20;
/// What the receiver does with a message.
const EACH: Duration = Duration::from_micros(300);
/// Senders that are few.
const FEW: u32 = 10;

/// How many senders by how many links.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    row: &'static str,
    links: u8,
    /// Of each link.
    threads: u32,
}

impl Crowd {
    fn senders(self) -> u32 {
        u32::from(self.links) * self.threads
    }
}

/// What was found of one crowd.
#[derive(Debug)]
struct Found {
    crowd: Crowd,
    /// Messages of each sender.
    counts: Vec<u32>,
    /// Bytes: with few senders, and with all.
    peaks: [u64; 2],
    /// Seconds of a request: alone, and beside all senders.
    alone: Timed,
    beside: Timed,
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let crowd = |row, links, threads| Crowd {
        row,
        links,
        threads,
    };
    let crowds = [
        crowd("all by one link", 1, context.pick(40, 1000)),
        crowd(
            "all by many links",
            context.pick(4, 50),
            context.pick(10, 20),
        ),
    ];
    context.progress.begin(crowds.len());
    let mut found = Vec::new();
    for crowd in crowds {
        context.progress.step(crowd.row);
        found.push(measure(crowd, context)?);
    }
    Ok(Outcome {
        tables: vec![outcome(&found)],
        verdicts: found.iter().map(verdict).collect(),
        ..Outcome::default()
    })
}

fn measure(crowd: Crowd, context: &Context<'_>) -> Result<Found> {
    let time = context.pick(Duration::from_millis(200), Duration::from_secs(8));
    let (here, there) = (context.cpus.ours, context.cpus.peer(0));
    let star = Star::start(
        Mode::Dipc,
        Wire::Loopback,
        crowd.links,
        LIMIT,
        [there, here],
    )?;
    let home = star.hub.domain.name().to_owned();
    let place = || Place {
        domain: home.clone(),
        port: unique("port"),
    };
    let other = place();
    let ports = vec![other.clone()];
    let server = program("server", there, What::Echo { ports, threads: 1 })?;
    let asks = star.leaves[0].domain.connect(&other.port, PATIENCE);
    let asks = asks.map_err(failed)?;
    let mut message = Message::default();
    let mut ask = || -> Result<f64> {
        let begun = Instant::now();
        let asked =
            asks.request_reply_in_place(&mut message, Access::Later, PATIENCE, Waiting::Sleep);
        asked.map_err(failed)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut asked = |time: Duration| -> Result<Timed> {
        let begun = Instant::now();
        let mut times = vec![ask()?];
        while begun.elapsed() < time {
            times.push(ask()?);
        }
        Ok(Timed::of(times))
    };
    // The first requests touch what was never touched.
    asked(time / 8)?;
    let alone = asked(time / 2)?;
    // With few senders, of as many links as there are.
    let links = star.leaves.len().min(FEW as usize);
    let each = FEW.div_ceil(u32::try_from(links).unwrap_or(1));
    let few = crowded(
        &place(),
        &star.leaves[..links],
        each,
        (time / 4, EACH),
        here,
        there,
    )?;
    std::thread::sleep(time / 2);
    let with_few = peak(&star.hub.process)?;
    drop(few);
    let mut many = crowded(
        &place(),
        &star.leaves,
        crowd.threads,
        (time, EACH),
        here,
        there,
    )?;
    let beside = asked(time)?;
    let mut counts = Vec::new();
    while counts.len() < crowd.senders() as usize {
        match expect(&mut many.receiver, |said| matches!(said, Said::Counts(_)))? {
            Said::Counts(part) => counts.extend(part),
            _ => break,
        }
    }
    let peaks = [with_few, peak(&star.hub.process)?];
    drop((many, server, asks));
    star.finish()?;
    Ok(Found {
        crowd,
        counts,
        peaks,
        alone,
        beside,
    })
}

/// A slow receiver, and senders to it: who sends to a port that is gone has failed, so they end first.
struct Crowded {
    _senders: Child,
    receiver: Child,
}

fn crowded(
    at: &Place,
    leaves: &[Node],
    threads: u32,
    (time, each): (Duration, Duration),
    here: usize,
    there: usize,
) -> Result<Crowded> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let receives = What::Count {
        at: at.clone(),
        senders: threads * u32::try_from(leaves.len()).unwrap_or(u32::MAX),
        each_nanos: nanos(each),
        millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    };
    let receiver = program("receiver", there, receives)?;
    let domains = leaves.iter().map(|leaf| leaf.domain.name().to_owned());
    let sends = What::Send {
        domains: domains.collect(),
        port: at.port.clone(),
        threads,
    };
    Ok(Crowded {
        _senders: program("senders", here, sends)?,
        receiver,
    })
}

impl Found {
    fn of_senders(&self) -> f64 {
        jain(self.counts.iter().map(|&count| f64::from(count)))
    }

    fn of_links(&self) -> f64 {
        let each = usize::try_from(self.crowd.threads).unwrap_or(1);
        let links = self.counts.chunks(each);
        let sums = links.map(|link| link.iter().map(|&count| f64::from(count)).sum());
        jain(sums)
    }

    fn memory(&self) -> Option<Estimate> {
        let [few, all] = self.peaks.map(|bytes| Estimate::exact(bytes as f64));
        ratio(all, few)
    }

    /// Requests in a time, beside all senders to alone.
    fn rate(&self) -> Option<Estimate> {
        ratio(timed(&self.alone), timed(&self.beside))
    }
}

fn outcome(found: &[Found]) -> Table {
    let columns = [
        ("senders", Unit::Count),
        ("links", Unit::Count),
        ("messages counted", Unit::Count),
        ("Jain, senders", Unit::Share),
        ("Jain, links", Unit::Share),
        ("peak memory, ten senders", Unit::Bytes),
        ("peak memory, all", Unit::Bytes),
        ("a request elsewhere, alone", Unit::Seconds),
        ("beside all", Unit::Seconds),
    ];
    let title = "Senders to one slow port, plain TCP over loopback";
    let mut table = Table::new("flow", title, "senders", &columns);
    for found in found {
        let all: u32 = found.counts.iter().sum();
        let figures = [
            f64::from(found.crowd.senders()),
            f64::from(found.crowd.links),
            f64::from(all),
            found.of_senders(),
            found.of_links(),
            found.peaks[0] as f64,
            found.peaks[1] as f64,
        ];
        let mut cells: Vec<Cell> = figures.into_iter().map(Cell::here).collect();
        cells.extend([found.alone.cell(), found.beside.cell()]);
        table.row(found.crowd.row, cells);
    }
    table.note(
        "Jain's index is 1 where all have delivered as much, and one n-th where one of n has delivered \
         all. Senders of one domain share a proxy port, and a link a flow, in the order in which they \
         find room. Room in a port of this machine wakes all that wait for it, so a thousand threads of \
         one program that wait at one proxy port keep its processor busy. Memory is of the receiver's \
         node, with the domain that it spans.",
    )
}

fn verdict(found: &Found) -> Verdict {
    let (memory, rate) = (found.memory(), found.rate());
    let index = Estimate::exact(found.of_links());
    let alone = match found.crowd.links {
        1 => ", of which there is one,",
        _ => "",
    };
    table::NOT_OVERWHELMED
        .verdict_of(found.crowd.row, &[memory, index, rate])
        .because(format!(
            "With {} senders (links: {}) the receiver's node has had {} at the most, {} of that with ten \
             senders. Jain's index is {} over links{alone} and {} over senders. Requests to another port go at \
             {} of their pace alone; two processors have all nodes and all senders.",
            Unit::Count.show(f64::from(found.crowd.senders())),
            found.crowd.links,
            Unit::Bytes.show(found.peaks[1] as f64),
            shown(memory, Unit::Times),
            Unit::Count.show(found.of_links()),
            Unit::Count.show(found.of_senders()),
            shown(rate, Unit::Share),
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(counts: &[u32], peaks: [u64; 2], beside: f64) -> Verdict {
        let times = |time: f64| Timed::of(vec![time; 5]);
        verdict(&Found {
            crowd: Crowd {
                row: "planted",
                links: 2,
                threads: 2,
            },
            counts: counts.to_vec(),
            peaks,
            alone: times(1e-4),
            beside: times(beside),
        })
    }

    #[test]
    fn memory_fairness_and_another_port_decide() {
        let answer =
            |counts: &[u32], peaks, beside| planted(counts, peaks, beside).by_figures.name();
        let even = [10, 10, 10, 10];
        assert_eq!(answer(&even, [100, 110], 1.05e-4), "holds");
        // Within a link one may have more than another: that is its domain's.
        assert_eq!(answer(&[20, 0, 5, 15], [100, 110], 1e-4), "holds");
        assert_eq!(answer(&[20, 20, 1, 1], [100, 110], 1e-4), "does not hold");
        assert_eq!(answer(&even, [100, 1000], 1e-4), "does not hold");
        assert_eq!(answer(&even, [100, 100], 5e-4), "does not hold");
    }
}
