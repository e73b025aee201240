//! Makes the tables, verdicts and the plot of signals.

use super::parts::{PARTS, Part, Parts};
use super::{
    CHANNEL, CLIENTS, DOORBELL, LINE, MESSAGES, MONITORED, POLLED, QUEUE, RING, Row, SOFTWARE,
    STAMPED, UPCALL, far, fifo, interrupts, mailboxes,
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
/// sender's stand before [`INTERRUPT`]. Several parts of one component are added up.
const DELIVERIES: [(&str, &[(usize, Part)]); 5] = [
    (
        SOFTWARE,
        // Its interrupt is a signal of the library's, which finds its receiver and pushes its
        // address beside the queue.
        &[
            (0, Part::Trap),
            (2, Part::Find),
            (3, Part::Insert),
            (3, Part::Push),
            (6, Part::Remove),
        ],
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
            self.interrupts(),
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
        for (at, (name, paper)) in paper::COMPONENTS.into_iter().enumerate() {
            let ours = |delivery: &str| {
                if at == INTERRUPT {
                    return Some(timed(self.interrupt(delivery))?.cell());
                }
                let found = component(delivery, at).map(|part| self.parts.times(part));
                Some(timed(added(found))?.cell())
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
             Software only is interrupted by a signal of the library's, which looks up its receiver and \
             pushes an address beside the locked queue, as the others' signals do: both are in its \
             rows. The rest can be less than nothing: what the sender still \
             does after the wake, the receiver does not wait for.",
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
                let (counts, _) = counted?;
                let found: Vec<f64> = component(delivery, at)
                    .map(|part| counts[part as usize])
                    .collect::<Option<_>>()?;
                (!found.is_empty()).then(|| Cell::here(found.iter().sum()))
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
                 the interrupt itself, and none of the rest. In cache, \
                 and with every branch foreseen, a processor of today ends several instructions a cycle: \
                 so the times above are short for these counts."
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
        let quicker = self
            .ratio(RING, LINE)
            .is_some_and(|ring| ring.quartiles[1] < 1.0);
        let quicker = if quicker {
            " That a ring, which moves three, takes less than a bare line shows that they do; why it takes less \
             is not known."
        } else {
            ""
        };
        table.note(format!(
            "Lines are counted by hand, in the source of each way: those that the other side wrote \
             last. The paper's figure is a drawing, and its text has no counts: conventionally the \
             sender invalidates the receivers' copies before it writes, and a receiver's first look is \
             a miss that asks the sender's cache for the line; in message mode the line is pushed, and \
             that is all. On a coherent machine a line that moves is all of \
             these, and nothing pushes it; what can be saved is lines. One way in line transfers \
             is that time by a bare line's: lines that move at the same time count once.{quicker}",
        ))
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
        table.note(
            "Each message is another client's, in an order that was shuffled once. The server polls, from \
             where it found the last, and does nothing else.",
        )
    }

    /// One interrupt a line, and one a message.
    fn interrupts(&self) -> Table {
        let columns = [
            ("one a message", Unit::Seconds),
            ("one a line", Unit::Seconds),
            ("a line to a message", Unit::Times),
        ];
        let mut table = Table::new(
            "signals-interrupts",
            "A message whose signals interrupt its reader, until it knows of the last line",
            "message",
            &columns,
        );
        for (lines, size) in MESSAGES {
            let [once, each] = [false, true].map(|at_each| interrupts(lines, at_each));
            let cells = [
                self.cell(&once),
                self.cell(&each),
                figure(self.ratio(&each, &once)),
            ];
            table.row(size, cells);
        }
        table.note(
            "The reader is a thread that looks at something else; a signal is an upcall, thus a Unix signal. \
             Signals that come while the reader is in its handler are taken up by it, so there can be \
             fewer interrupts than signals.",
        )
    }

    pub(super) fn plots(&self) -> Vec<Plot> {
        let mut plot = Plot::new(
            "signals-clients",
            "Polling with many clients, one way",
            Axis::log("clients", Unit::Count),
            Axis::linear("time", Unit::Seconds),
        )
        .of_points();
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
        let [_, many, most] = CLIENTS;
        vec![
            self.halved(),
            self.fewer_lines(),
            self.many_clients(many),
            self.many_clients(most),
            self.each_line(),
        ]
    }

    /// There is no hardware that supports signals: what is nearest to it is shown.
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
            "This machine has no such support: an upcall, which stands in for its delivery, is a Unix \
             signal, and so is the interrupt of software only, with its look-up and its push of an address. \
             The two differ by the locked queue, which \
             takes {} in cache, while the interrupt alone takes the sender {}: so an upcall takes {} of \
             software only, and that says nothing of hardware. A signal that wakes a sleeping thread takes \
             {}, and one to a thread that polls {}.",
            show(queue.collect()),
            show(self.interrupt(SOFTWARE)),
            shown(upcall),
            shown(doorbell),
            shown(polled),
        );
        table::HALF_OF_SOFTWARE
            .verdict(&[])
            .because(paragraph)
            .figure(
                "upcall, which is software, to software only",
                Unit::Times,
                figure(upcall),
            )
            .figure("doorbell, to software only", Unit::Times, figure(doorbell))
            .figure("polled, to software only", Unit::Times, figure(polled))
            .figure(SOFTWARE, Unit::Seconds, self.cell(SOFTWARE))
    }

    /// Transactions are not counted: times stand beside.
    fn fewer_lines(&self) -> Verdict {
        let of = |row| self.ratio(row, RING);
        let (stamped, channel, queue) = (of(STAMPED), of(CHANNEL), of(QUEUE));
        let paragraph = format!(
            "What crosses between the processors is not counted by them. By hand one counts one line for a \
             message of 32 bytes through a message-consistent channel, and three for one in a ring with two \
             indices. Its time is not that of its lines: the channel takes {} of the ring's, a bare line \
             with a stamp in it, which is no channel, {}, and a locked queue {}.",
            shown(channel),
            shown(stamped),
            shown(queue),
        );
        let by_hand = |way| {
            let found = LINES.iter().find(|(name, _)| *name == way);
            found.map_or_else(Cell::default, |(_, lines)| Cell::here(*lines))
        };
        table::FEWER_TRANSACTIONS
            .verdict(&[])
            .because(paragraph)
            .figure("lines by hand, channel", Unit::Count, by_hand(CHANNEL))
            .figure("lines by hand, ring", Unit::Count, by_hand(RING))
            .figure("time, channel to a ring", Unit::Times, figure(channel))
            .figure(
                "time, a bare stamped line to a ring",
                Unit::Times,
                figure(stamped),
            )
            .figure("time, locked queue to a ring", Unit::Times, figure(queue))
    }

    fn many_clients(&self, clients: usize) -> Verdict {
        let to_fifo = self.ratio(&mailboxes(clients), &fifo(clients));
        let grown = |of: fn(usize) -> String| self.ratio(&of(clients), &of(1));
        let count = thousands(clients);
        let paragraph = format!(
            "With {count} clients a message by a place of its own takes {} of one by a single FIFO of \
             addresses. From one client to {count} the places take {}, the FIFO {}: there one place is \
             polled, and the address says whose message it is.",
            shown(to_fifo),
            shown(grown(mailboxes)),
            shown(grown(fifo)),
        );
        table::POLLING_MANY
            .verdict_of(&format!("{count} clients"), &[claims::paired(to_fifo)])
            .because(paragraph)
            .figure(
                format!("{count} places, to one"),
                Unit::Times,
                figure(grown(mailboxes)),
            )
            .figure(
                format!("one FIFO, {count} clients to one"),
                Unit::Times,
                figure(grown(fifo)),
            )
    }

    fn each_line(&self) -> Verdict {
        let [small, judged] = MESSAGES
            .map(|(lines, _)| self.ratio(&interrupts(lines, true), &interrupts(lines, false)));
        let [(_, small_size), (_, size)] = MESSAGES;
        let paragraph = format!(
            "A reader that looks at something else knows of the last line of a message of {size} after {} \
             of the time if it is interrupted at each line instead of once; of {small_size}, {}.",
            shown(judged),
            shown(small),
        );
        table::SIGNAL_EACH_LINE
            .verdict(&[claims::paired(judged)])
            .because(paragraph)
            .figure(
                format!("{small_size}, a signal a line, to one a message"),
                Unit::Times,
                figure(small),
            )
    }
}

/// "1,000".
fn thousands(count: usize) -> String {
    match count {
        0..1000 => count.to_string(),
        _ => format!("{},{:03}", count / 1000, count % 1000),
    }
}

/// The parts of a delivery that stand in this row.
fn component(delivery: &str, row: usize) -> impl Iterator<Item = Part> {
    let found = DELIVERIES.iter().find(|(name, _)| *name == delivery);
    let parts = found.map_or(&[][..], |(_, parts)| parts).iter();
    parts
        .filter(move |(at, _)| *at == row)
        .map(|(_, part)| *part)
}

/// Several parts together, slice by slice.
fn added<'a>(parts: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    parts
        .map(<[f64]>::to_vec)
        .reduce(|sum, part| sum.iter().zip(part).map(|(sum, part)| sum + part).collect())
        .unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delivery_by_a_signal_has_what_a_signal_is_made_of() {
        // Software only, too: its interrupt is one.
        for (delivery, parts) in DELIVERIES {
            for part in [Part::Find, Part::Push] {
                let has = parts.iter().any(|(_, found)| *found == part);
                assert!(has, "{delivery}: {part:?}");
            }
        }
        let inserted: Vec<Part> = component(SOFTWARE, 3).collect();
        assert_eq!(inserted, [Part::Insert, Part::Push]);
        assert_eq!(component(POLLED, 0).count(), 0);
    }

    #[test]
    fn parts_of_one_component_are_added_slice_by_slice() {
        let [one, other] = [vec![1.0, 2.0], vec![10.0, 20.0]];
        assert_eq!(added([&one[..], &other].into_iter()), [11.0, 22.0]);
        assert!(added([].into_iter()).is_empty());
    }
}
