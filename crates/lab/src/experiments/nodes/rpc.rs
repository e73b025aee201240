//! Table 1: a null request to a server of the same node, and to one of another node.

use std::time::Duration;

use super::{LINKS, senders};
use crate::claims::table::{DIPC_FAST, DIPC_SLOW, NORMA_FAST};
use crate::claims::{paired, shown, table};
use crate::error::Result;
use crate::experiment::{Context, DIPC, Experiment, Need, Source};
use crate::lanes::{Beside, Effort, Lanes, Track, figure};
use crate::nodes::far::Punctual;
use crate::nodes::pair::{self, Local, Rounds, Way};
use crate::nodes::{Mode, NORMA, Wire};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "nodes-rpc",
    title: "A null request to another node",
    source: Source {
        paper: DIPC,
        section: "2, Table 1",
    },
    hypothesis: "A null request is one short block each way, and what nodes say beside it (that it is in \
        its port, that there is room) is blocks, too. Where each waits until the one before is \
        acknowledged, the answer should wait for such a word, so that a null request takes up to a round \
        trip of the link more. Local requests never meet the node, so they should cost the same beside \
        any, and no more than without one.",
    method: "A client asks a server for nothing, and sleeps until the answer is there. Near are the \
        client and its node, on one processor; far the server and its node, on another. Locally the \
        server is in the client's domain and on its processor. DIPC is the node's engine as it is. \
        NORMA is the same engine with one message at a time between two nodes, each block of a \
        page acknowledged. Relay is a pair of user-level proxies, one beside the client and one \
        beside the server, which speak to both by Unix sockets. Bare is 64 bytes each way by the \
        same transport without any of that. Links are TCP over loopback; shaped ones have the rates \
        of the paper, and delays and gaps that the first table states. The paper states none, and how a null \
        request over a shaped link compares follows from them: verdicts are made of plain loopback. The row through a proxy has \
        a process between client and server that does what a node does at a proxy port, but for \
        the link. Records of senders are what the engines of two nodes count of 32 rights on ports of one \
        node, which a program of the other keeps and then drops, with the notice and without. All rows in turn, slice by slice; medians, and ratios within a slice.",
    needs: &[Need::Cpus(2)],
    run,
};

/// Links, and those rows of the paper's table that are about one.
const WIRES: [Wire; 3] = [Wire::Fast, Wire::Slow, Wire::Loopback];
const MODES: [Mode; 4] = [NORMA, Mode::Dipc, Mode::Relay, Mode::Bare];
/// Memory of a domain.
const LIMIT: u64 = 32 << 20;

const ALONE: &str = "no node";
const BY_PROXY: &str = "through a proxy port";

fn paper(mode: Mode, wire: Wire) -> [Option<f64>; 2] {
    let found = match (mode, wire) {
        (NORMA, Wire::Fast) => NORMA_FAST,
        (Mode::Dipc, Wire::Fast) => DIPC_FAST,
        (Mode::Dipc, Wire::Slow) => DIPC_SLOW,
        _ => return [None; 2],
    };
    found.map(Some)
}

fn remote(mode: Mode, wire: Wire) -> String {
    format!("{}, {}", mode.name(), wire.name())
}

fn local(mode: Mode, wire: Wire) -> String {
    format!("local, {}", remote(mode, wire))
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let _punctual = Punctual::begin();
    let effort = Effort {
        slice: context.pick(Duration::from_millis(1), Duration::from_millis(20)),
        ..Effort::beside_others(context)
    };
    context.progress.begin(WIRES.len() * MODES.len() + 8);
    let mut lanes = Lanes::new();
    let here = context.cpus.ours;
    for wire in WIRES {
        for mode in MODES {
            let name = remote(mode, wire);
            context.progress.note(format!("preparing {name}"));
            let way = Way::start(mode, wire, LIMIT, context.cpus)?;
            if let Way::Engines(engines) = &way {
                let asks = Local::start(engines.here(), here)?;
                lanes.add(&local(mode, wire), Box::new(asks));
            }
            lanes.add(&name, Box::new(Rounds(way)));
        }
    }
    let alone = pair::domain(LIMIT)?;
    lanes.add(ALONE, Box::new(Local::start(&alone, here)?));
    lanes.add(BY_PROXY, Box::new(Local::by_proxy(&alone, here)?));
    let tracks = lanes.measure(effort, context)?;
    let mut outcome = Outcome::default();
    outcome.tables.push(links(&tracks));
    outcome.tables.push(table_1(&tracks));
    outcome.tables.push(locals(&tracks));
    outcome.verdicts = verdicts(&tracks);
    context.progress.note("rights, with the notice and without");
    let found = senders::count(context)?;
    outcome.tables.push(senders::table(&found));
    outcome.verdicts.push(senders::verdict(&found));
    Ok(outcome)
}

/// How many times as long as another row one takes.
fn to(tracks: &[Track], row: &str, other: &str) -> Option<Beside> {
    let (row, other) = (Track::find(tracks, row)?, Track::find(tracks, other)?);
    Beside::ratio(&row.times, &other.times)
}

fn time(tracks: &[Track], row: &str) -> Cell {
    Track::find(tracks, row).map_or_else(Cell::default, |track| track.timed().cell())
}

fn links(tracks: &[Track]) -> Table {
    let columns = [
        ("rate", Unit::BytesPerSecond),
        ("delay", Unit::Seconds),
        ("gap", Unit::Seconds),
        ("64 B there and back", Unit::Seconds),
    ];
    let mut table = Table::new("links", "The links", "link", &columns).note(LINKS);
    for wire in WIRES {
        let shape = wire.shape();
        let of = |figure: Option<f64>| figure.map_or_else(Cell::default, Cell::here);
        table.row(
            wire.name(),
            [
                of(shape.and_then(|it| it.rate).map(|rate| rate as f64)),
                of(shape.map(|it| it.delay.as_secs_f64())),
                of(shape.map(|it| it.gap.as_secs_f64())),
                time(tracks, &remote(Mode::Bare, wire)),
            ],
        );
    }
    table
}

fn table_1(tracks: &[Track]) -> Table {
    let columns = [
        ("local", Unit::Seconds),
        ("remote", Unit::Seconds),
        ("remote / local", Unit::Times),
        ("remote, to DIPC", Unit::Times),
    ];
    let title = "Table 1: a null request, local and remote";
    let mut table = Table::new("table-1", title, "mode, link", &columns);
    for wire in WIRES {
        for mode in MODES {
            let (row, its) = (remote(mode, wire), local(mode, wire));
            let [here, there] = paper(mode, wire);
            let ratio = there.zip(here).map(|(there, here)| there / here);
            let faster = there.filter(|_| mode == NORMA).map(|it| it / DIPC_FAST[1]);
            table.row(
                row.clone(),
                [
                    time(tracks, &its).beside(here),
                    time(tracks, &row).beside(there),
                    figure(to(tracks, &row, &its)).beside(ratio),
                    figure(to(tracks, &row, &remote(Mode::Dipc, wire))).beside(faster),
                ],
            );
        }
    }
    table.note(
        "Programs beside a relay have no local row: they speak to one another as any do. The paper's \
         NORMA and DIPC are on the Paragon at 175 MB/s, and DIPC on a SCSI cluster at 19.2 MB/s.",
    )
}

fn locals(tracks: &[Track]) -> Table {
    let columns = [("time", Unit::Seconds), ("to no node", Unit::Times)];
    let title = "A local null request, with and without a node";
    let mut table = Table::new("local", title, "in the domain", &columns);
    let mut row = |label: &str, track: &str| {
        table.row(
            label,
            [time(tracks, track), figure(to(tracks, track, ALONE))],
        );
    };
    row(ALONE, ALONE);
    row("a node, NORMA", &local(NORMA, Wire::Loopback));
    row("a node, DIPC", &local(Mode::Dipc, Wire::Loopback));
    row(BY_PROXY, BY_PROXY);
    table.note(
        "All on one processor, asleep between. A node is a member of the domain, linked with another \
         one whose ports it has borrowed. The last row is what a local request would cost if it went \
         by the node: two context switches more, and no link.",
    )
}

fn verdicts(tracks: &[Track]) -> Vec<Verdict> {
    let ratio = |row: &str, other: &str| paired(to(tracks, row, other));
    let show = |row: &str| {
        let cell = time(tracks, row);
        cell.show(Unit::Seconds)
            .unwrap_or_else(|| "not measured".to_owned())
    };
    let of = |wire| [NORMA, Mode::Dipc].map(|mode| remote(mode, wire));
    let ([norma, dipc], [norma_far, dipc_far]) = (of(Wire::Loopback), of(Wire::Fast));
    let slow = remote(Mode::Dipc, Wire::Slow);
    let bare = remote(Mode::Bare, Wire::Loopback);
    let faster = ratio(&norma, &dipc);
    let far = to(tracks, &norma_far, &dipc_far);
    let to_local = [NORMA, Mode::Dipc].map(|mode| {
        let wire = Wire::Loopback;
        ratio(&remote(mode, wire), &local(mode, wire))
    });
    let far_to_local = [
        (NORMA, Wire::Fast),
        (Mode::Dipc, Wire::Fast),
        (Mode::Dipc, Wire::Slow),
    ]
    .map(|(mode, wire)| to(tracks, &remote(mode, wire), &local(mode, wire)));
    let chosen = Wire::Slow
        .shape()
        .map_or(f64::NAN, |shape| shape.delay.as_secs_f64());
    let beside = ratio(
        &local(Mode::Dipc, Wire::Loopback),
        &local(NORMA, Wire::Loopback),
    );
    let proxied = ratio(BY_PROXY, ALONE);
    vec![
        table::REMOTE_FASTER
            .verdict(&[faster])
            .because(format!(
                "On plain loopback NORMA takes {}, DIPC {}: {}. Before the answer the far node says that the \
                 request is in its port: with NORMA that is a block of its own, and the answer waits until it \
                 is acknowledged. 64 bytes there and back take {}. Over the shaped link of 175 MB/s the ratio \
                 is {}, which follows from the delay that the lab chose, and decides nothing. Only the \
                 protocol of the paper's NORMA is repeated here, on this library's engine, and not its code.",
                show(&norma),
                show(&dipc),
                shown(faster, Unit::Times),
                show(&bare),
                shown(paired(far), Unit::Times),
            ))
            .figure("the same at 175 MB/s, shaped", Unit::Times, figure(far)),
        table::REMOTE_TO_LOCAL
            .verdict(&to_local)
            .because(format!(
                "On plain loopback a remote request takes {} (NORMA) and {} (DIPC) as long as a local one, \
                 which takes {}; 64 bytes there and back take {}. Processors have become faster than ways \
                 between programs. Over the shaped link of 175 MB/s it is {} and {}, by the delay that the \
                 lab chose.",
                shown(to_local[0], Unit::Times),
                shown(to_local[1], Unit::Times),
                show(ALONE),
                show(&bare),
                shown(paired(far_to_local[0]), Unit::Times),
                shown(paired(far_to_local[1]), Unit::Times),
            ))
            .figure("NORMA, 175 MB/s, shaped", Unit::Times, figure(far_to_local[0]))
            .figure("DIPC, 175 MB/s, shaped", Unit::Times, figure(far_to_local[1])),
        table::REMOTE_TO_LOCAL_SLOW
            .verdict(&[])
            .because(format!(
                "The link of 19.2 MB/s is shaped, with a delay of {} that the lab chose, since the paper \
                 states none. Two of these are in a request and its answer, which take {}, beside a local \
                 one of {}.",
                Unit::Seconds.show(chosen),
                show(&slow),
                show(&local(Mode::Dipc, Wire::Slow)),
            ))
            .figure(
                "DIPC, 19.2 MB/s, shaped",
                Unit::Times,
                figure(far_to_local[2]).beside(DIPC_SLOW[1] / DIPC_SLOW[0]),
            ),
        table::SLOWER_LOCALLY.verdict(&[beside]).because(format!(
            "It must not hold here, because a local request does not pass the node: beside one in \
             DIPC's mode it takes {} as long as beside one in NORMA's ({}; without any node {}).",
            shown(beside, Unit::Times),
            show(&local(Mode::Dipc, Wire::Loopback)),
            show(ALONE)
        )),
        table::WITHOUT_HOT_PATH.verdict(&[proxied]).because(format!(
            "Through a proxy port a local request takes {}, directly {}. The library's connect finds \
             a local port first, so no local request goes that way.",
            show(BY_PROXY),
            show(ALONE)
        )),
    ]
}
