//! Claims of the paper on distributed IPC and remote tasking.
//!
//! The paper states the rates of its links, and neither delays nor gaps: those of a shaped link are the
//! lab's. What follows from them is judged on plain loopback, or not at all.

use super::table::{NOTICED, about_times, at_least, at_most, times, unstated};
use super::{Claim, Rule};
use crate::experiment::DIPC;
use crate::unit::Unit;

/// Table 1, in seconds: local and remote. The first two are of the Paragon, the last of the SCSI cluster.
pub(crate) const NORMA_FAST: [f64; 2] = [220e-6, 2070e-6];
pub(crate) const DIPC_FAST: [f64; 2] = [318e-6, 1272e-6];
pub(crate) const DIPC_SLOW: [f64; 2] = [115e-6, 1129e-6];

const fn remote_to_local([local, remote]: [f64; 2]) -> f64 {
    remote / local
}

pub(crate) const REMOTE_FASTER: Claim = Claim {
    id: "dipc-remote-faster",
    paper: DIPC,
    section: "2, Table 1",
    says: "A null request to another node takes 1.6 times as long where one message at a time goes \
        from node to node",
    // On a shaped link it would be the round trips of either, by the delay that the lab chose.
    rule: Rule::All(&[times(
        "remote null request on plain loopback, NORMA to DIPC",
        1.6,
        NORMA_FAST[1] / DIPC_FAST[1],
    )]),
};

pub(crate) const REMOTE_TO_LOCAL: Claim = Claim {
    id: "remote-to-local",
    paper: DIPC,
    section: "2, Table 1",
    says: "On the Paragon a null request to another node takes 9.4 (NORMA) and 4.0 (DIPC) times as \
        long as a local one",
    // Plain loopback is as far from the Paragon's mesh as a shaped link is; but nothing in it is ours to
    // choose.
    rule: Rule::All(&[
        about_times(
            "remote null request on plain loopback to a local one, NORMA",
            9.4,
            remote_to_local(NORMA_FAST),
        ),
        about_times(
            "remote null request on plain loopback to a local one, DIPC",
            4.0,
            remote_to_local(DIPC_FAST),
        ),
    ]),
};

pub(crate) const REMOTE_TO_LOCAL_SLOW: Claim = Claim {
    id: "remote-to-local-slow",
    paper: DIPC,
    section: "2, Table 1",
    says: "Over SCSI at 19.2 MB/s a null request to another node takes 9.8 times as long as a local one",
    // No such link is here, and a null request has next to no bytes that its rate could delay: the delay
    // that the lab chose is all of it.
    rule: Rule::Model,
};

pub(crate) const SLOWER_LOCALLY: Claim = Claim {
    id: "slower-locally",
    paper: DIPC,
    section: "2, Table 1",
    says: "With the better protocol between nodes a local null request takes 1.4 times as long",
    rule: Rule::All(&[times(
        "local null request beside a node on plain loopback, DIPC to NORMA",
        1.4,
        DIPC_FAST[0] / NORMA_FAST[0],
    )]),
};

pub(crate) const WITHOUT_HOT_PATH: Claim = Claim {
    id: "without-hot-path",
    paper: DIPC,
    section: "2",
    says: "A local null request takes nearly twice as long off the hot path, which what is \
        distributed may not use",
    rule: Rule::All(&[unstated(times(
        "local null request through a node's proxy, to one without",
        2.0,
        2.0,
    ))]),
};

pub(crate) const KKT_NEAR_BARE: Claim = Claim {
    id: "kkt-near-bare",
    paper: DIPC,
    section: "2, Figure 3",
    says: "From 32 KiB up the transport has 75 to 99 % of the bandwidth of what lies below it",
    rule: Rule::All(&[at_least(
        "least bandwidth from 32 KiB up, KKT to bare",
        Unit::Share,
        0.75,
        0.75,
    )]),
};

pub(crate) const DIPC_PEAK: Claim = Claim {
    id: "dipc-peak",
    paper: DIPC,
    section: "2, Figure 3",
    says: "Messages reach 73 % of the peak of what lies below the transport: 108 of 147 MB/s",
    rule: Rule::All(&[at_least(
        "peak bandwidth, DIPC to bare",
        Unit::Share,
        0.73,
        108.0 / 147.0,
    )]),
};

pub(crate) const SLOW_SATURATED: Claim = Claim {
    id: "slow-link-saturated",
    paper: DIPC,
    section: "2, Figure 3",
    says: "Messages saturate a link of 19.2 MB/s",
    rule: Rule::All(&[at_least(
        "peak bandwidth of DIPC on the slow link, to the link's rate",
        Unit::Share,
        0.95,
        1.0,
    )]),
};

pub(crate) const ABOVE_NORMA: Claim = Claim {
    id: "dipc-above-norma",
    paper: DIPC,
    section: "2, Figure 3",
    says: "Messages have noticeably more bandwidth than where each page waits until the one before is \
        acknowledged",
    // What a page waits for on a shaped link is the delay that the lab chose. At which sizes the paper's
    // text does not say: no less at any of ours, and noticeably more at the peak.
    rule: Rule::All(&[
        unstated(at_least(
            "peak bandwidth on plain loopback, DIPC to NORMA",
            Unit::Times,
            NOTICED,
            NOTICED,
        )),
        unstated(at_least(
            "least bandwidth on plain loopback, DIPC to NORMA",
            Unit::Times,
            1.0,
            1.0,
        )),
    ]),
};

pub(crate) const SLOWER_ATTACK: Claim = Claim {
    id: "slower-attack",
    paper: DIPC,
    section: "2, Figure 3",
    says: "The bandwidth of messages rises at larger sizes than that of the transport, because \
        each message has the latency of local messages, too",
    // Credit takes round trips: on a shaped link, so many of the delay that the lab chose. Larger: by more
    // than half.
    rule: Rule::All(&[unstated(at_least(
        "size of half of the peak on plain loopback, DIPC to KKT",
        Unit::Times,
        1.5,
        1.5,
    ))]),
};

/// How much longer several transfers at once take than one, if they are at once. The lab chose a link so
/// long that what processors do meanwhile is little of it; whether transfers wait for one another is not in
/// that, and one after the other they would take as many times as long.
const AT_ONCE: f64 = 1.3;

pub(crate) const FOUR_CONCURRENCIES: Claim = Claim {
    id: "four-concurrencies",
    paper: DIPC,
    section: "2",
    says: "Messages go at the same time to several nodes, to several ports of one node, to one port \
        with several receiving threads, and between different pairs of nodes",
    rule: Rule::All(&[
        unstated(at_most(
            "8 transfers at once to 8 nodes, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
        unstated(at_most(
            "8 transfers at once to 8 ports of a node, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
        unstated(at_most(
            "8 transfers at once to a port with 8 threads, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
        unstated(at_most(
            "8 transfers at once between 8 pairs of nodes, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
        unstated(at_most(
            "28 transfers at once between 28 pairs of nodes, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
    ]),
};

pub(crate) const OVERLAP_TO_NODES: Claim = Claim {
    id: "overlap-to-nodes-only",
    paper: DIPC,
    section: "2",
    says: "With one message at a time between two nodes, messages overlap to different nodes alone",
    // Of eight one after the other, half would be four.
    rule: Rule::All(&[
        unstated(at_most(
            "one at a time: 8 transfers at once to 8 nodes, to one transfer",
            Unit::Times,
            AT_ONCE,
            1.0,
        )),
        unstated(at_least(
            "one at a time: 8 transfers at once to 8 ports of a node, to one transfer",
            Unit::Times,
            4.0,
            8.0,
        )),
    ]),
};

pub(crate) const NOT_OVERWHELMED: Claim = Claim {
    id: "not-overwhelmed",
    paper: DIPC,
    section: "2",
    says: "Hundreds or thousands of senders do not overwhelm a receiver",
    rule: Rule::All(&[
        unstated(at_most(
            "peak memory of the receiver's node, all senders to ten",
            Unit::Times,
            1.5,
            1.0,
        )),
        unstated(at_least(
            "Jain's index of what links have delivered",
            Unit::Share,
            0.95,
            1.0,
        )),
        unstated(at_least(
            "requests to another port in a time, beside all senders to alone",
            Unit::Times,
            0.9,
            1.0,
        )),
    ]),
};

pub(crate) const COUNT_RECORDS: Claim = Claim {
    id: "count-records",
    paper: DIPC,
    section: "4.1, Figure 8",
    says: "No-more-senders costs messages between nodes, in which rights are counted; a port without \
        it has none",
    rule: Rule::All(&[
        unstated(at_least(
            "records of senders for a right, with the notice",
            Unit::Count,
            1.0,
            1.0,
        )),
        at_most(
            "records of senders for a right, without",
            Unit::Count,
            0.0,
            0.0,
        ),
    ]),
};
