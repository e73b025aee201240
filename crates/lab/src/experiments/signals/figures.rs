//! Makes the tables, verdicts and the plot of signals.

use super::parts::{PARTS, Part, Parts};
use super::{
    CHANNEL, CLIENTS, DOORBELL, LINE, MONITORED, POLLED, QUEUE, RING, Row, SOFTWARE, STAMPED,
    UPCALL, far, fifo, mailboxes,
};
use crate::claims::{self, table};
use crate::clock::Timed;
use crate::lanes::{Beside, figure, shown};
use crate::outcome::{Axis, Cell, Origin, Plot, Table, Verdict};
use crate::steps::BURST;
use crate::unit::Unit;

/// Table 1: microseconds and instructions, in software and supported by hardware.
mod paper {
    type Both = [Option<(f64, f64)>; 2];

    pub(super) const COMPONENTS: [(&str, Both); 13] = [
        ("sender system call", [Some((3.0, 13.0)), None]),
        ("virtual-to-physical mapping", [Some((3.0, 16.0)), None]),
        ("determine receiving processors", [Some((4.0, 23.0)), None]),
        ("insert in kernel queue", [Some((6.0, 55.0)), None]),
        ("generate interrupt", [Some((1.0, 4.0)), None]),
        ("get physical address from FIFO", [None, Some((2.0, 11.0))]),
        ("remove from kernel queue", [Some((6.0, 45.0)), None]),
        (
            "physical-to-virtual mapping",
            [Some((1.0, 9.0)), Some((1.0, 9.0))],
        ),
        // Seven instructions in software as well, and no time.
        (
            "invalidate L1 cache lines",
            [Some((f64::NAN, 7.0)), Some((1.0, 7.0))],
        ),
        (
            "check if kernel is receiver",
            [Some((1.0, 4.0)), Some((1.0, 4.0))],
        ),
        (
            "signal function scheduling",
            [Some((6.0, 37.0)), Some((6.0, 37.0))],
        ),
        (
            "return to user code",
            [Some((4.0, 25.0)), Some((4.0, 25.0))],
        ),
        (
            "user-level state save/restore",
            [Some((1.0, 11.0)), Some((1.0, 11.0))],
        ),
    ];
    pub(super) const TOTAL: Both = [Some((36.0, 249.0)), Some((16.0, 104.0))];
    /// The last three together.
    pub(super) const REST: Both = [Some((11.0, 73.0)), Some((11.0, 73.0))];
}

/// The row of the interrupt, which is what is left of the sender's part.
const INTERRUPT: usize = 4;

/// The deliveries, in the table's order, each with the components that it is made of: the
/// sender's stand before [`INTERRUPT`].
const DELIVERIES: [(&str, &[(usize, Part)]); 5] = [
    (
        SOFTWARE,
        &[(0, Part::Trap), (3, Part::Insert), (6, Part::Remove)],
    ),
    (DOORBELL, CALLED),
    (UPCALL, CALLED),
    (MONITORED, WATCHED),
    (POLLED, WATCHED),
];

/// What a signal is made of whose sender calls the kernel.
const CALLED: &[(usize, Part)] = &[
    (0, Part::Trap),
    (2, Part::Find),
    (3, Part::Push),
    (5, Part::Take),
];
/// The same of one whose receiver watches a line.
const WATCHED: &[(usize, Part)] = &[(2, Part::Find), (3, Part::Push), (5, Part::Take)];

/// How many lines that the other side wrote last a message moves, counted by hand in `ways` and in
/// the library's channel: its own, and those of what leads to it.
const LINES: [(&str, f64); 5] = [
    (LINE, 1.0),
    // Lock, ends and entry by the sender, and again by the receiver; the message.
    (QUEUE, 7.0),
    // The message, the index that says so, the index that says that it was read.
    (RING, 3.0),
    (STAMPED, 1.0),
    (CHANNEL, 1.0),
];

/// All that was measured.
pub(super) struct Found<'a> {
    rows: &'a [Row],
    parts: &'a Parts,
}

/// What is counted: each part's instructions, and where they ran.
type Counted = ([Option<f64>; PARTS], &'static str);

impl<'a> Found<'a> {
    pub(super) fn new(rows: &'a [Row], parts: &'a Parts) -> Self {
        Self { rows, parts }
    }

    fn rounds(&self, name: &str) -> &[f64] {
        let row = self.rows.iter().find(|row| row.name == name);
        row.map_or(&[], |row| &row.times)
    }

    /// One way: a round less a line between the same processors, which is half of its own round.
    fn one_way(&self, name: &str) -> Vec<f64> {
        let row = self.rows.iter().find(|row| row.name == name);
        let line = row.and_then(|row| {
            let mut lines = [LINE.to_owned(), far(LINE)].into_iter();
            lines.find(|line| {
                let line = self.rows.iter().find(|row| row.name == *line);
                line.is_some_and(|line| line.cpus == row.cpus)
            })
        });
        let lines = self.rounds(line.as_deref().unwrap_or(LINE)).iter();
        let lines = lines.map(|round| round / 2.0);
        let rounds = self.rounds(name).iter();
        rounds
            .zip(lines)
            .map(|(round, line)| round - line)
            .collect()
    }

    fn cell(&self, name: &str) -> Cell {
        timed(self.one_way(name)).map_or_else(Cell::default, |timed| timed.cell())
    }

    /// `times` of a delivery, slice by slice, without those of its components that stand in
    /// such rows.
    fn less(&self, times: &[f64], delivery: &str, row: fn(usize) -> bool) -> Vec<f64> {
        let found = DELIVERIES.iter().find(|(name, _)| *name == delivery);
        let parts = found.map_or(&[][..], |(_, parts)| parts);
        let each = times.iter().enumerate().map(|(slice, time)| {
            let parts = parts.iter().filter(|(at, _)| row(*at));
            let parts = parts.filter_map(|(_, part)| self.parts.times(*part).get(slice));
            time - parts.sum::<f64>()
        });
        each.collect()
    }

    /// What the sender's part has beside its components; no numbers for a delivery that
    /// interrupts no thread.
    fn interrupt(&self, delivery: &str) -> Vec<f64> {
        let row = self.rows.iter().find(|row| row.name == delivery);
        let sender = row.map_or(&[][..], |row| &row.sender);
        self.less(sender, delivery, |at| at < INTERRUPT)
    }

    fn ratio(&self, row: &str, to: &str) -> Option<Beside> {
        Beside::ratio(&self.one_way(row), &self.one_way(to))
    }

    pub(super) fn tables(&self, counted: Option<Counted>) -> Vec<Table> {
        vec![
            self.components(),
            self.instructions(counted),
            self.lines(),
            self.clients(),
        ]
    }

    /// The columns of Table 1: the deliveries that there are here.
    fn columns(&self, unit: Unit) -> Vec<(&'static str, Unit)> {
        let there = |name: &&str| self.rows.iter().any(|row| row.name == **name);
        let names = DELIVERIES.iter().map(|(name, _)| *name);
        names.filter(there).map(|name| (name, unit)).collect()
    }

    /// Table 1, the times.
    fn components(&self) -> Table {
        let mut table = Table::new(
            "signals-time",
            "Table 1: telling another thread, by component",
            "component",
            &self.columns(Unit::Seconds),
        );
        let beside = |ours: &dyn Fn(&str) -> Option<Cell>, paper| {
            beside(&self.columns(Unit::Seconds), ours, paper, |(time, _)| {
                time * 1e-6
            })
        };
        let part = |part| timed(self.parts.times(part).to_vec());
        for (at, (name, paper)) in paper::COMPONENTS.into_iter().enumerate() {
            let ours = |delivery: &str| {
                if at == INTERRUPT {
                    return Some(timed(self.interrupt(delivery))?.cell());
                }
                let (_, parts) = DELIVERIES.iter().find(|(name, _)| *name == delivery)?;
                let (_, found) = parts.iter().find(|(row, _)| *row == at)?;
                Some(part(*found)?.cell())
            };
            table.row(name, beside(&ours, paper));
        }
        let rest = |delivery: &str| {
            let interrupt = self.interrupt(delivery);
            let rest = self.less(&self.one_way(delivery), delivery, |_| true);
            let rest = rest.into_iter().enumerate().map(|(slice, rest)| {
                let interrupt = interrupt.get(slice).filter(|time| time.is_finite());
                rest - interrupt.unwrap_or(&0.0)
            });
            Some(timed(rest.collect())?.cell())
        };
        table.row(
            "the last three, and line transfers: the rest",
            beside(&rest, paper::REST),
        );
        let whole = |delivery: &str| Some(self.cell(delivery)).filter(|cell| cell.here.is_some());
        table.row("total", beside(&whole, paper::TOTAL));
        table.note(
            "Software only stands beside the paper's software only, and its hardware support beside \
             upcall. Ours look up who receives by the address at once, and find the handler \
             as they take an address from the FIFO; caches are coherent, and the kernel receives nothing. \
             The rest can be less than nothing: what the sender still does after the wake, the \
             receiver does not wait for.",
        )
    }

    /// Table 1, the instructions.
    fn instructions(&self, counted: Option<Counted>) -> Table {
        let columns = self.columns(Unit::Count);
        let mut table = Table::new(
            "signals-instructions",
            "Table 1: instructions",
            "component",
            &columns,
        );
        let beside = |ours: &dyn Fn(&str) -> Option<Cell>, paper| {
            beside(&columns, ours, paper, |(_, count)| count)
        };
        let parts = |delivery: &str| {
            let found = DELIVERIES.iter().find(|(name, _)| *name == delivery);
            found.map_or(&[][..], |(_, parts)| parts)
        };
        for (at, (name, paper)) in paper::COMPONENTS.into_iter().enumerate() {
            let ours = |delivery: &str| {
                let (_, part) = parts(delivery).iter().find(|(row, _)| *row == at)?;
                Some(Cell::here(counted?.0[*part as usize]?))
            };
            table.row(name, beside(&ours, paper));
        }
        let total = |delivery: &str| {
            let (counts, _) = counted?;
            let counts = parts(delivery)
                .iter()
                .filter_map(|(_, part)| counts[*part as usize]);
            Some(Cell::here(counts.sum()))
        };
        table.row("total", beside(&total, paper::TOTAL));
        table.note(match counted {
            Some((_, what)) => format!(
                "Ours are counted {what}, of the same work as is timed: bursts of {BURST} signals, and \
                 of as many addresses in the queue. Only what takes place on one processor; none of \
                 the interrupt itself, and none of the rest."
            ),
            None => "The machine has no counters for us: ours are left out.".to_owned(),
        })
    }

    /// Figure 5.
    fn lines(&self) -> Table {
        let columns = [
            ("lines, counted by hand", Unit::Count),
            ("one way", Unit::Seconds),
            ("in line transfers", Unit::Times),
        ];
        let mut table = Table::new(
            "signals-lines",
            "Figure 5: what a message of 32 bytes moves, both sides polling",
            "way",
            &columns,
        );
        for (name, lines) in LINES {
            let times = self
                .ratio(name, LINE)
                .map_or_else(Cell::default, Beside::cell);
            table.row(name, [Cell::here(lines), self.cell(name), times]);
        }
        table.note(
            "Lines are counted by hand, in the source of each way: those that the other side wrote \
             last. The paper's figure is a drawing, and its text has no counts: conventionally the \
             sender invalidates the receivers' copies before it writes, and a receiver's first look is \
             a miss that asks the sender's cache for the line; in message mode the line is pushed, and \
             that is all. On a coherent machine a line that moves is all of \
             these, and nothing pushes it; what can be saved is lines. One way in line transfers \
             is that time by a bare line's: lines that move at the same time count once.",
        )
    }

    /// The ways between processors that share no cache, where there are such.
    pub(super) fn far(&self) -> Option<Table> {
        let columns = [("near", Unit::Seconds), ("far", Unit::Seconds)];
        let title = "The same ways between processors that share no cache, one way";
        let mut table = Table::new("signals-far", title, "way", &columns);
        for name in [LINE, QUEUE, RING, CHANNEL, SOFTWARE, UPCALL] {
            let there = self.rows.iter().any(|row| row.name == far(name));
            if there {
                table.row(name, [self.cell(name), self.cell(&far(name))]);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Polling with many clients.
    fn clients(&self) -> Table {
        let columns = [
            ("a place for each client", Unit::Seconds),
            ("one FIFO of addresses", Unit::Seconds),
        ];
        let mut table = Table::new(
            "signals-clients",
            "Polling with many clients, one way",
            "clients",
            &columns,
        );
        for clients in CLIENTS {
            let cells = [self.cell(&mailboxes(clients)), self.cell(&fifo(clients))];
            table.row(clients.to_string(), cells);
        }
        table.note("Each message is another client's. The server polls and does nothing else.")
    }

    pub(super) fn plots(&self) -> Vec<Plot> {
        let mut plot = Plot::new(
            "signals-clients",
            "Polling with many clients, one way",
            Axis::log("clients", Unit::Count),
            Axis::linear("time", Unit::Seconds),
        );
        type Name = fn(usize) -> String;
        let ways: [(&str, Name); 2] = [
            ("a place for each client", mailboxes),
            ("one FIFO of addresses", fifo),
        ];
        for (colour, (name, of)) in (0..).zip(ways) {
            let points = CLIENTS.into_iter().filter_map(|clients| {
                let time = timed(self.one_way(&of(clients)))?;
                Some((clients as f64, time.median()))
            });
            plot.series(name, Origin::Here, colour, points.collect::<Vec<_>>());
        }
        vec![plot]
    }

    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        vec![self.halved(), self.fewer_lines(), self.many_clients()]
    }

    fn halved(&self) -> Verdict {
        let to_software = |row| self.ratio(row, SOFTWARE);
        let [upcall, doorbell, polled] = [UPCALL, DOORBELL, POLLED].map(to_software);
        let show = |times: Vec<f64>| {
            let timed = timed(times);
            Unit::Seconds.show(timed.map_or(f64::NAN, |timed| timed.median()))
        };
        let [insert, remove] = [Part::Insert, Part::Remove].map(|part| self.parts.times(part));
        let queue = insert
            .iter()
            .zip(remove)
            .map(|(insert, remove)| insert + remove);
        let paragraph = format!(
            "A signal that interrupts its thread takes {} of what software only does, which differs \
             by the locked queue: that takes {} in cache, and the interrupt alone takes the sender {}. \
             One that wakes a sleeping thread takes {}, and one to a thread that polls {}.",
            shown(upcall),
            show(queue.collect()),
            show(self.interrupt(SOFTWARE)),
            shown(doorbell),
            shown(polled),
        );
        table::HALF_OF_SOFTWARE
            .verdict(&[claims::paired(upcall)])
            .because(paragraph)
            .figure("doorbell, to software only", Unit::Times, figure(doorbell))
            .figure("polled, to software only", Unit::Times, figure(polled))
            .figure(SOFTWARE, Unit::Seconds, self.cell(SOFTWARE))
    }

    fn fewer_lines(&self) -> Verdict {
        let of = |row| self.ratio(row, RING);
        let (stamped, channel, queue) = (of(STAMPED), of(CHANNEL), of(QUEUE));
        let paragraph = format!(
            "A message of 32 bytes through a message-consistent channel takes {} of the time of one in \
             a ring with two indices; a bare line with a stamp in it, which is no channel, {}, and a \
             locked queue {}. By hand one counts one line for the channel and three for the ring: what \
             the channel does besides takes the rest.",
            shown(channel),
            shown(stamped),
            shown(queue),
        );
        table::FEWER_TRANSACTIONS
            .verdict(&[claims::paired(channel)])
            .because(paragraph)
            .figure(
                "a bare stamped line, to a ring",
                Unit::Times,
                figure(stamped),
            )
            .figure("locked queue, to a ring", Unit::Times, figure(queue))
    }

    fn many_clients(&self) -> Verdict {
        let to_fifo = |clients| self.ratio(&mailboxes(clients), &fifo(clients));
        let [_, many, most] = CLIENTS;
        let grown = |of: fn(usize) -> String| self.ratio(&of(most), &of(1));
        let paragraph = format!(
            "With {many} clients a message by a place of its own takes {} of one by a single FIFO of \
             addresses, with {most} clients {}. From one client to {most} the places take {}, the FIFO \
             {}: there one place is polled, and the address says whose message it is.",
            shown(to_fifo(many)),
            shown(to_fifo(most)),
            shown(grown(mailboxes)),
            shown(grown(fifo)),
        );
        table::POLLING_MANY
            .verdict(&[many, most].map(|clients| claims::paired(to_fifo(clients))))
            .because(paragraph)
            .figure(
                "1,000 places, to one",
                Unit::Times,
                figure(grown(mailboxes)),
            )
            .figure(
                "one FIFO, 1,000 clients to one",
                Unit::Times,
                figure(grown(fifo)),
            )
    }
}

/// Those that are numbers; `None` if none is.
fn timed(times: Vec<f64>) -> Option<Timed> {
    let times: Vec<f64> = times.into_iter().filter(|time| time.is_finite()).collect();
    (!times.is_empty()).then(|| Timed::of(times))
}

/// A row of Table 1: ours, and the paper's two columns where they belong.
fn beside(
    columns: &[(&str, Unit)],
    ours: &dyn Fn(&str) -> Option<Cell>,
    [software, hardware]: [Option<(f64, f64)>; 2],
    unit: fn((f64, f64)) -> f64,
) -> Vec<Cell> {
    let cell = |&(name, _): &(&str, Unit)| {
        let paper = match name {
            SOFTWARE => software,
            UPCALL => hardware,
            _ => None,
        };
        ours(name)
            .unwrap_or_default()
            .beside(paper.map(unit).filter(|figure| figure.is_finite()))
    };
    columns.iter().map(cell).collect()
}
