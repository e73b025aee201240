//! Tables 2 and 4 show where the time of a call goes, and what other systems take; and what clients
//! and the transport's timer cost.

mod clients;
mod parts;
mod software;

use portolan_measure::case::{Case, Mode, Pattern, Payload, Placement, Protection, Shape, System};

use crate::calls::{Called, Calls, LARGE, SMALL, Transport};
use crate::claims::{self, table};
use crate::error::Result;
use crate::experiment::{Context, Experiment, MBM, Need, Source};
use crate::lanes::{APART, ASLEEP, Beside, Effort, Lanes, POLLING, Track, Way, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::stepped::{self, OfCalls};
use crate::unit::Unit;
use clients::Clients;
use parts::Parts;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "rpc",
    title: "Remote procedure calls, by component and beside other systems",
    source: Source {
        paper: MBM,
        section: "3; 4.2 and 4.3, Tables 2 and 4",
    },
    hypothesis: "Most of what the RPC library does was marshalling. A line that comes from another \
        core takes longer today than copying 32 bytes into it, so the transfers should be most of \
        a call that polls, and waking most of one that sleeps. The transport, checksum and timer, should \
        not show.",
    method: "A service in another process. A call is null, or sends and receives 32 bytes, or sends \
        1 KiB and receives nothing; it goes over message-consistent channels with the whole \
        transport; and again with the checksum, the timer, and both switched off. Beside it requests \
        through a port (no transport, nothing lost), and a message there and \
        back by systems that copy; those bring the 1 KiB back, too. In a build with other libraries \
        the same calls by them, with as many bytes each way and without a checksum: iceoryx2's \
        requests and responses in shared memory (asleep with an event each way), and Cap'n Proto RPC and \
        gRPC over a Unix socket, on tokio, with one thread a side. Rows in turn, slice by \
        slice; medians of whole calls. All sleep on one CPU, then on two as between \
        the paper's processors, and then poll on two (a server \
        that polls would sleep after a pause that no row makes). Components are \
        measured alone, in one process and in cache: writing a message that signals nobody, what \
        signalling adds, and reading it. The rest of a call that polls is what is \
        left of it without two of each and without two line transfers, measured between the same \
        slices. In software only: two threads that tell each other by a locked queue, a system call \
        and an upcall each way, and the same by signals that interrupt. An idle client's memory is \
        that of fifty which have called once, by the domain's extents and what both processes keep \
        to themselves; a client that shares its channels is given its own once it is busy, and what \
        its calls took longer until then is the promotion. The timer's cost is the processor time of \
        both sides that calls with late answers take more where its period passes meanwhile, by \
        question that it asks. Instructions are counted \
        afterwards, by stepping through a client and its server in a process of their own.",
    needs: &[Need::Memory(256 << 20)],
    run,
};

/// In seconds.
mod paper {
    /// Table 2.
    pub(super) const MAP: f64 = 1e-6;
    pub(super) const MARSHAL: f64 = 2e-6;
    pub(super) const SIGNAL: f64 = 1e-6;
    pub(super) const UNMARSHAL: f64 = 2e-6;
    pub(super) const TOTAL: f64 = 7e-6;
    /// Section 3: copying with a checksum, to copying.
    pub(super) const CHECKSUM: f64 = 1.08;
    /// Table 4: a call of 32 bytes, supported and in software only: through a shared L2, and through the L3.
    pub(super) const SOFTWARE: [(f64, f64); 2] = [(47e-6, 124e-6), (127e-6, 1860e-6)];
    /// Table 4: system, processor and MIPS, and a null call, one with 32 bytes there and
    /// back, one with 1 KB.
    pub(super) const SYSTEMS: [(&str, [f64; 3]); 8] = [
        ("Opt. MBM (L2), 68040, 15", [44e-6, 47e-6, 215e-6]),
        ("Opt. MBM (L3), 68040, 15", [120e-6, 127e-6, 502e-6]),
        ("Soft MBM (L2), 68040, 15", [121e-6, 124e-6, 268e-6]),
        ("Soft MBM (L3), 68040, 15", [1857e-6, 1860e-6, 12580e-6]),
        ("Mach 3.0, DEC 3100, 14.3", [95e-6, 98e-6, 268e-6]),
        ("V System, 68040, 15", [469e-6, 472e-6, 794e-6]),
        // Printed as 899, between 93 and 608.
        ("URPC, Firefly, 3", [93e-6, 99e-6, 608e-6]),
        ("LRPC, Firefly, 3", [125e-6, 131e-6, 640e-6]),
    ];
}

const CALLS: &str = "calls";
/// The same with parts of the transport switched off.
const UNCHECKED: &str = "calls, without checksum";
const UNTIMED: &str = "calls, without timer";
const BARE: &str = "calls, without checksum and timer";
const PARTLY: [(&str, Transport); 3] = [
    (
        UNCHECKED,
        Transport {
            checksum: false,
            ..Transport::WHOLE
        },
    ),
    (
        UNTIMED,
        Transport {
            timer: false,
            ..Transport::WHOLE
        },
    ),
    (
        BARE,
        Transport {
            checksum: false,
            timer: false,
        },
    ),
];
const REQUESTS: &str = "requests through a port";
const LINE: &str = "a cache line, there and back";

/// Name, bytes there, and what is called.
const COLUMNS: [(&str, usize, Called); 3] = [
    ("null", 0, Called::Null),
    ("32 B there and back", SMALL, Called::Small),
    ("1 KiB there", LARGE, Called::Large),
];

/// A row beside the calls.
struct Other {
    name: &'static str,
    system: System,
    /// The fewest bytes of a message.
    least: u64,
    copies: bool,
    /// Of another library.
    peer: bool,
    /// A call with as many bytes there and back as ours, not a message each way.
    calls: bool,
}

/// A message there and back by a system that copies it.
const fn copied(name: &'static str, system: System, least: u64) -> Other {
    Other {
        name,
        system,
        least,
        copies: true,
        peer: false,
        calls: false,
    }
}

/// A call through another library.
#[cfg(feature = "peers")]
const fn called(name: &'static str, system: System) -> Other {
    Other {
        peer: true,
        calls: true,
        ..copied(name, system, 0)
    }
}

const OTHERS: &[Other] = &[
    Other {
        copies: false,
        ..copied(REQUESTS, System::Request, 0)
    },
    copied("pipe", System::Pipe, 8),
    copied("unix stream", System::UnixStream, 8),
    copied("unix seqpacket", System::UnixSeqpacket, 0),
    copied("tcp loopback", System::Tcp, 8),
    #[cfg(feature = "peers")]
    Other {
        copies: false,
        peer: true,
        ..copied("iceoryx2, publish/subscribe", System::Iceoryx, 8)
    },
    #[cfg(feature = "peers")]
    Other {
        copies: false,
        ..called("iceoryx2, request/response", System::IceoryxCall)
    },
    #[cfg(feature = "peers")]
    called("Cap'n Proto RPC", System::Capnp),
    #[cfg(feature = "peers")]
    called("gRPC (tonic)", System::Tonic),
];

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = Effort::beside_others(context);
    let mut outcome = Outcome::default();
    if let Some(why) = context.lacks(Need::Peers) {
        outcome.leave_out("iceoryx2, Cap'n Proto RPC, gRPC", why);
    }
    let mut ways = vec![ASLEEP];
    match context.lacks(Need::Cpus(2)) {
        None => ways.extend([APART, POLLING]),
        Some(why) => {
            outcome.leave_out(APART.1, why.as_str());
            outcome.leave_out(POLLING.1, why);
        }
    }
    context
        .progress
        .begin(ways.len() * COLUMNS.len() * (OTHERS.len() + PARTLY.len() + 2) + 3 + clients::STEPS);
    let mut found = Vec::new();
    for way in ways {
        let mut columns = Vec::new();
        for column in COLUMNS {
            let lanes = start(column, way, context, &mut outcome)?;
            columns.push((column.0, lanes.measure(effort, context)?));
        }
        found.push((way, columns));
    }
    let parts = Parts::measure(context)?;
    let polling = found.iter().find(|((id, ..), _)| *id == POLLING.0);
    outcome
        .tables
        .push(components(&parts, polling.map(|(_, columns)| &columns[..])));
    outcome.tables.push(printed());
    match context.lacks(Need::Cpus(2)) {
        None => {
            outcome.tables.push(software::table(&found));
            match stepped::calls(context.cpus)? {
                Ok(counted) => outcome.tables.push(instructions(&counted)),
                Err(why) => outcome.leave_out("instructions of a call", why),
            }
        }
        Some(why) => outcome.leave_out("software only, and instructions of a call", why),
    }
    for (way, columns) in &found {
        outcome.tables.push(table(columns, *way));
    }
    let clients = Clients::measure(context)?;
    outcome.tables.push(clients.table());
    outcome.verdicts.push(faster(&found));
    outcome.verdicts.push(transport(&found));
    outcome.verdicts.push(clients.timer());
    outcome.verdicts.extend(software::verdicts(&found));
    let polling = found.iter().find(|((id, ..), _)| *id == POLLING.0);
    let polling = polling.map(|(_, columns)| &columns[..]);
    outcome.verdicts.push(marshalling(&parts, polling));
    Ok(outcome)
}

/// The rows of one column. One that the system refuses is left out, with the reason.
fn start(
    (column, bytes, called): (&str, usize, Called),
    (id, _, mode, placement): Way,
    context: &Context<'_>,
    outcome: &mut Outcome,
) -> Result<Lanes> {
    let mut lanes = Lanes::new();
    let cpu = match placement {
        Placement::OneCpu => context.cpus.ours,
        Placement::TwoCpus => context.cpus.peer(0),
    };
    let calls = Calls::with(Transport::WHOLE, called, mode == Mode::Block, cpu)?;
    lanes.add(CALLS, Box::new(calls));
    for (row, transport) in PARTLY {
        // Without bytes there is nothing to sum.
        if transport.checksum || called != Called::Null {
            let calls = Calls::with(transport, called, mode == Mode::Block, cpu)?;
            lanes.add(row, Box::new(calls));
        }
    }
    let case = Case {
        mode,
        payload: Payload::Touched,
        pattern: Pattern::RoundTrip { one_way: false },
        placement,
        ..Case::new(System::Line, 8)
    };
    if id == POLLING.0 {
        lanes.start(LINE, &case, context)?;
        if called == Called::Small {
            software::start(&mut lanes, context, outcome)?;
        }
    }
    for other in OTHERS {
        if other.peer && context.lacks(Need::Peers).is_some() {
            continue;
        }
        let case = Case {
            system: other.system,
            bytes: other.least.max(bytes as u64),
            protection: match other.system {
                System::Request => Protection::Trusted,
                _ => Protection::None,
            },
            ..case.clone()
        };
        let case = match called {
            _ if !other.calls => case,
            Called::Small => Case {
                payload: Payload::Untouched,
                shape: Shape::Answered,
                ..case
            },
            Called::Null | Called::Large => Case {
                payload: Payload::Untouched,
                ..case
            },
        };
        match lanes.start(other.name, &case, context) {
            Ok(()) => {}
            Err(error) if other.system == System::Request => return Err(error),
            Err(error) => {
                let row = format!("{}, {column}, {id}", other.name);
                outcome.leave_out(row, error.to_string());
            }
        }
    }
    Ok(lanes)
}

type Columns = [(&'static str, Vec<Track>)];

fn track<'a>(columns: &'a Columns, column: &str, row: &str) -> Option<&'a Track> {
    let (_, tracks) = columns.iter().find(|(name, _)| *name == column)?;
    Track::find(tracks, row)
}

fn components(parts: &Parts, polling: Option<&Columns>) -> Table {
    let columns = [("a message", Unit::Seconds), ("a call", Unit::Seconds)];
    let mut table = Table::new(
        "rpc-components",
        "Table 2: components of a call of 32 bytes",
        "component",
        &columns,
    );
    let mut both = |name: &str, time: f64, paper: f64| {
        table.row(
            name,
            [Cell::here(time), Cell::here(2.0 * time).beside(paper)],
        );
    };
    both("marshal 32 bytes", parts.marshal.median(), paper::MARSHAL);
    both("trigger signal", parts.signal(), paper::SIGNAL);
    both(
        "unmarshal 32 bytes",
        parts.unmarshal.median(),
        paper::UNMARSHAL,
    );
    // The same slices hold the call and the line.
    let small = COLUMNS[1].0;
    let call = polling.and_then(|columns| track(columns, small, CALLS));
    let line = polling.and_then(|columns| track(columns, small, LINE));
    let lines = line.map_or_else(Cell::default, |line| line.timed().cell());
    let without = call.zip(line).and_then(|(call, line)| {
        let without = Beside::difference(&call.times, &line.times)?;
        Some(without.middle)
    });
    let rest = without.map(|without| without - 2.0 * parts.sum());
    let of = |value: Option<f64>| value.map_or_else(Cell::default, Cell::here);
    table.row(
        "the rest: object to channel, channel to object",
        [Cell::default(), of(rest).beside(2.0 * paper::MAP)],
    );
    table.row(
        "total, a call less line transfers",
        [Cell::default(), of(without).beside(paper::TOTAL)],
    );
    table.row("line transfers, there and back", [Cell::default(), lines]);
    table.row(
        "a call of 32 bytes, polling",
        [
            Cell::default(),
            call.map_or_else(Cell::default, |call| call.timed().cell()),
        ],
    );
    table.note(
        "The paper's figures are for request and reply together, and without the signal's way, \
         which is in its Table 1. The rest holds the transport, too: numbers, acknowledgements, \
         the table of open calls. A signal that adds less than writing varies by stands as nothing.",
    )
}

/// Counted, and none of it while anything is timed.
fn instructions(counted: &OfCalls) -> Table {
    let columns = COLUMNS[..2].iter().map(|&(name, ..)| (name, Unit::Count));
    let columns: Vec<_> = columns.collect();
    let mut table = Table::new(
        "rpc-instructions",
        "Instructions of a call that polls",
        "side",
        &columns,
    );
    let OfCalls { client, server } = counted;
    table.row(
        "client, from the call to its result",
        client.map(Cell::here),
    );
    table.row(
        "server, from the call to its answer",
        server.map(Cell::here),
    );
    let both = [client[0] + server[0], client[1] + server[1]];
    table.row("both", both.map(Cell::here));
    table.note(format!(
        "Counted {}. The waiting side looks once or twice in that time, and what the server does \
         after its answer is out is not in it.",
        portolan_measure::stepped::WHAT
    ))
}

fn printed() -> Table {
    let columns = COLUMNS.map(|(name, ..)| (name, Unit::Seconds));
    let mut table = Table::new(
        "rpc-paper",
        "Table 4: what the paper compares with",
        "system, processor, MIPS",
        &columns,
    );
    for (name, figures) in paper::SYSTEMS {
        table.row(name, figures.map(Cell::paper));
    }
    table.note(
        "The paper estimates: 1 KB of Opt. MBM (L3); 32 bytes and 1 KB of Mach and URPC (whose 32 \
         bytes it prints as 899); a null call of V; 32 bytes of LRPC.",
    )
}

fn table(columns: &Columns, (id, title, ..): Way) -> Table {
    let heading: Vec<(&str, Unit)> = columns
        .iter()
        .map(|&(name, _)| (name, Unit::Seconds))
        .collect();
    let mut table = Table::new(
        &format!("rpc-{id}"),
        &format!("A call, {title}"),
        "system",
        &heading,
    );
    let others = OTHERS.iter().map(|other| other.name);
    for row in [CALLS, UNCHECKED, UNTIMED, BARE, LINE]
        .into_iter()
        .chain(others)
    {
        let cells: Vec<Cell> = columns
            .iter()
            .zip(paper::SYSTEMS[0].1)
            .map(|((column, _), paper)| {
                let track = track(columns, column, row);
                let cell = track.map_or_else(Cell::default, |track| track.timed().cell());
                let papers = row == CALLS && id == APART.0;
                cell.beside(papers.then_some(paper))
            })
            .collect();
        if cells.iter().any(|cell| cell.here.is_some()) {
            table.row(row, cells);
        }
    }
    let calls = |(_, tracks): &(_, Vec<Track>)| {
        let mut calls = OTHERS.iter().filter(|other| other.calls);
        calls.any(|other| Track::find(tracks, other.name).is_some())
    };
    let peers = if columns.iter().any(calls) {
        " The last three are calls by other libraries, with as many bytes each way as ours; those \
         before them are a message there, and one of as many bytes back."
    } else {
        ""
    };
    let papers = if id == APART.0 {
        "Beside our calls: the paper's, between processors that share an L2 cache. Each side is woken on a \
         processor that was idle, which takes most of the time, of every system alike, and varies by more \
         than they differ; a wake alone is among the parameters of the experiment `scaling`."
    } else {
        "The paper's calls, between two processors, stand beside those that sleep on two."
    };
    table.note(format!("{papers}{peers}"))
}

type Found = [(Way, Vec<(&'static str, Vec<Track>)>)];

/// The calls' times to another row's, one way.
fn ratio(found: &Found, id: &str, column: &str, row: &str) -> Option<Beside> {
    let (_, columns) = found.iter().find(|((found, ..), _)| *found == id)?;
    let (calls, other) = (track(columns, column, CALLS)?, track(columns, column, row)?);
    Beside::ratio(&calls.times, &other.times)
}

/// The fastest of those that copy, by the median.
fn fastest_copy(found: &Found, id: &str, column: &str) -> &'static str {
    let columns = found.iter().find(|((found, ..), _)| *found == id);
    let median = |row: &str| Some(track(&columns?.1, column, row)?.timed().median());
    let copying = OTHERS.iter().filter(|other| other.copies);
    copying
        .filter_map(|other| Some((other.name, median(other.name)?)))
        .min_by(|one, other| one.1.total_cmp(&other.1))
        .map_or("", |(name, _)| name)
}

fn faster(found: &Found) -> Verdict {
    let small = COLUMNS[1].0;
    let against = |id: &str| {
        let fastest = fastest_copy(found, id, small);
        let ratio = ratio(found, id, small, fastest);
        let words = match fastest {
            "" => "not measured".to_owned(),
            fastest => format!("{} ({fastest})", shown(ratio)),
        };
        (ratio, words)
    };
    let (apart, apart_words) = against(APART.0);
    let (asleep, asleep_words) = against(ASLEEP.0);
    let (polling, polling_words) = against(POLLING.0);
    let paragraph = format!(
        "Between two processors, as the paper's, a call of 32 bytes that sleeps takes {apart_words} of \
         what the fastest of those that copy does; on one processor {asleep_words}, and one that polls \
         {polling_words}.",
    );
    table::RPC_FASTER
        .verdict(&[claims::paired(apart)])
        .because(paragraph)
        .figure(
            "asleep on one CPU, to the fastest that copies",
            Unit::Times,
            figure(asleep),
        )
        .figure(
            "polling, to the fastest that copies",
            Unit::Times,
            figure(polling),
        )
}

/// The figure beside which the paper's stands.
const CHECKSUM: &str = "asleep on two CPUs, to one without checksum";

/// Our call to our call, with parts of its transport switched off.
fn transport(found: &Found) -> Verdict {
    let of = |id: &str, at: usize, row| ratio(found, id, COLUMNS[at].0, row);
    let whole = of(APART.0, 1, BARE);
    let paragraph = format!(
        "Between two processors, as the paper's, a call of 32 bytes that sleeps takes {} of the same call \
         without checksum and timer; {} of one without the checksum, {} of one without the timer. On one \
         processor it takes {} of one without either. Where both poll it is {}, and {} with 1 KiB. What \
         remains switched on are the packets' numbers and the table of open calls. (A request through a \
         port has no transport at all, and another way: asleep on one processor a call takes {} of it.) \
         The paper's 8 % are what a checksum adds to a copy, and, as it says further on, to the common \
         small calls.",
        shown(whole),
        shown(of(APART.0, 1, UNCHECKED)),
        shown(of(APART.0, 1, UNTIMED)),
        shown(of(ASLEEP.0, 1, BARE)),
        shown(of(POLLING.0, 1, BARE)),
        shown(of(POLLING.0, 2, BARE)),
        shown(of(ASLEEP.0, 1, REQUESTS)),
    );
    let verdict = table::TRANSPORT
        .verdict(&[whole, of(POLLING.0, 1, BARE)].map(claims::paired))
        .because(paragraph);
    [
        (CHECKSUM, of(APART.0, 1, UNCHECKED)),
        (
            "asleep on two CPUs, to one without timer",
            of(APART.0, 1, UNTIMED),
        ),
        (
            "asleep on one CPU, to one without checksum and timer",
            of(ASLEEP.0, 1, BARE),
        ),
        (
            "polling, 1 KiB, to one without either",
            of(POLLING.0, 2, BARE),
        ),
        (
            "polling, 1 KiB, to one without checksum",
            of(POLLING.0, 2, UNCHECKED),
        ),
        (
            "asleep on one CPU, to a request through a port",
            of(ASLEEP.0, 1, REQUESTS),
        ),
    ]
    .into_iter()
    .fold(verdict, |verdict, (name, ratio)| {
        // What a checksum adds to a copy, in the paper.
        let paper = (name == CHECKSUM).then_some(paper::CHECKSUM);
        verdict.figure(name, Unit::Times, figure(ratio).beside(paper))
    })
}

fn marshalling(parts: &Parts, polling: Option<&Columns>) -> Verdict {
    let copies = parts.marshal.median() + parts.unmarshal.median();
    // There and back.
    let both = claims::timed(&parts.marshal)
        .zip(claims::timed(&parts.unmarshal))
        .and_then(|(one, other)| one.plus(other)?.times(2.0));
    let small = COLUMNS[1].0;
    let of = |row| polling.and_then(|columns| track(columns, small, row));
    let whole = of(CALLS)
        .zip(of(LINE))
        .and_then(|(call, line)| Beside::difference(&call.times, &line.times));
    let share = claims::ratio(both, claims::paired(whole));
    let library = copies / parts.sum();
    let paragraph = format!(
        "Writing 32 bytes into a channel takes {} and reading them {}; a call that polls has two of \
         each, and takes {} without its two line transfers: {} of that is marshalling. The rest is \
         the way from object to channel and back, and the transport. (Of what is done for a message \
         alone, its signal included, it is {}.)",
        Unit::Seconds.show(parts.marshal.median()),
        Unit::Seconds.show(parts.unmarshal.median()),
        shown(whole),
        claims::shown(share, Unit::Share),
        Unit::Share.show(library),
    );
    table::MARSHALLING
        .verdict(&[share])
        .because(paragraph)
        .figure(
            "marshalling and unmarshalling, both ways",
            Unit::Seconds,
            both.map_or_else(Cell::default, claims::Estimate::cell)
                .beside(paper::MARSHAL + paper::UNMARSHAL),
        )
        .figure(
            "a call without its lines",
            Unit::Seconds,
            figure(whole).beside(paper::TOTAL),
        )
}
