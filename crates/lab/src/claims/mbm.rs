//! Claims of the paper on memory-based messaging.

use super::table::{COMPARABLE, SIGNIFICANTLY, at_least, at_most, unstated};
use super::{Claim, Rule};
use crate::experiment::MBM;
use crate::unit::Unit;

pub(crate) const HALF_OF_SOFTWARE: Claim = Claim {
    id: "half-of-software",
    paper: MBM,
    section: "4.1, Table 1",
    says: "Hardware support halves what the kernel does for a message: 16 instead of 36 µs",
    rule: Rule::NoHardware,
};

pub(crate) const FEWER_TRANSACTIONS: Claim = Claim {
    id: "fewer-lines",
    paper: MBM,
    section: "2.2.4, Figure 5",
    says: "Message-oriented consistency takes fewer bus transactions for a message than \
        conventional consistency",
    // Transactions, not their time: several at a time take no longer than one. No counter of ours
    // counts them.
    rule: Rule::ByHand,
};

pub(crate) const POLLING_MANY: Claim = Claim {
    id: "polling-many-clients",
    paper: MBM,
    section: "4.3",
    says: "Polling a place for each client is not practical for a server with many clients",
    // Against what the paper has instead, one queue of addresses; for each number of clients by itself.
    rule: Rule::All(&[unstated(at_least(
        "a place each, to one FIFO",
        Unit::Times,
        1.0,
        1.0,
    ))]),
};

pub(crate) const SIGNAL_EACH_LINE: Claim = Claim {
    id: "signal-each-line",
    paper: MBM,
    section: "3; 7",
    says: "A signal for each line of a large message costs more than one signal at its end",
    // More: what is no longer comparable.
    rule: Rule::All(&[unstated(at_least(
        "4 KiB, a signal a line, to one a message",
        Unit::Times,
        COMPARABLE,
        COMPARABLE,
    ))]),
};

pub(crate) const RPC_FASTER: Claim = Claim {
    id: "rpc-faster-than-copying",
    paper: MBM,
    section: "4.3, Table 4",
    says: "A call over memory-based messages is clearly faster than one of the V system, which \
        copies messages: 47 against 472 µs",
    rule: Rule::All(&[at_most(
        "asleep on two CPUs, to the fastest that copies",
        Unit::Times,
        1.0 / SIGNIFICANTLY,
        47.0 / 472.0,
    )]),
};

pub(crate) const TRANSPORT: Claim = Claim {
    id: "transport-insignificant",
    paper: MBM,
    section: "3",
    says: "Between processes of one machine a transport protocol costs nothing significant",
    // A call that sleeps on two processors is the paper's; in one that polls there is no wait that could
    // hide a transport. The paper's 8 % are the checksum's alone, and stand beside.
    rule: Rule::All(&[
        unstated(at_most(
            "asleep on two CPUs, to one without checksum and timer",
            Unit::Times,
            COMPARABLE,
            COMPARABLE,
        )),
        unstated(at_most(
            "polling, to one without checksum and timer",
            Unit::Times,
            COMPARABLE,
            COMPARABLE,
        )),
    ]),
};

pub(crate) const TIMER: Claim = Claim {
    id: "timer-small-percentage",
    paper: MBM,
    section: "3",
    says: "The timer that looks for calls without an answer takes a small fixed percentage of the \
        processor's time: P every T",
    // A percent.
    rule: Rule::All(&[unstated(at_most(
        "P to the T that is the default",
        Unit::Share,
        0.01,
        0.01,
    ))]),
};

pub(crate) const SOFTWARE_SLOWER_NEAR: Claim = Claim {
    id: "software-slower-near",
    paper: MBM,
    section: "4.2",
    says: "A call in software only takes 2.6 times as long, through a shared L2 cache",
    rule: Rule::NoHardware,
};

pub(crate) const SOFTWARE_SLOWER_FAR: Claim = Claim {
    id: "software-slower-far",
    paper: MBM,
    section: "4.2",
    says: "A call in software only takes 1,860 instead of 127 µs between processors that share only \
        the L3 cache; both are inflated by the paper's unfinished L3 software",
    rule: Rule::NoHardware,
};

pub(crate) const MARSHALLING: Claim = Claim {
    id: "mostly-marshalling",
    paper: MBM,
    section: "4.2, Table 2",
    says: "Most of the RPC library's time goes into marshalling and unmarshalling: 4 of 7 µs",
    rule: Rule::All(&[at_least(
        "marshalling, of a call without its lines",
        Unit::Share,
        0.5,
        4.0 / 7.0,
    )]),
};

pub(crate) const AMORTISE: Claim = Claim {
    id: "calls-to-amortise",
    paper: MBM,
    section: "4.2, Table 3",
    says: "It takes a significant number of calls until a channel's set-up is a small part of the \
        time: 2,030 µs are a tenth of 432 calls",
    // Significant: three digits.
    rule: Rule::All(&[at_least(
        "calls until 10 %",
        Unit::Count,
        100.0,
        2030.0 / (0.1 * 47.0),
    )]),
};

pub(crate) const MODEL_SHARES: Claim = Claim {
    id: "model-shares",
    paper: MBM,
    section: "5",
    says: "Of the speed-up through an L2 cache 79 % is due to address-valued signals, 6 % to \
        message-oriented consistency and 15 % to signal on write; through three hops 56, 37 and 7 %",
    rule: Rule::Fit,
};

pub(crate) const MODEL_NULL_RPC: Claim = Claim {
    id: "model-null-rpc",
    paper: MBM,
    section: "4.3, Table 4",
    says: "A null call through a shared L2 cache takes 44 µs with hardware support and 121 µs \
        without",
    rule: Rule::Model,
};

pub(crate) const SIGNALS_MOST: Claim = Claim {
    id: "signals-most",
    paper: MBM,
    section: "5",
    says: "Through a shared cache most of the speed-up is due to address-valued signals",
    // Whatever is measured: the model charges 14 lines and an interrupt to a message without them,
    // and 2 lines and a system call to one without the others.
    rule: Rule::Model,
};

pub(crate) const THREE_TO_FIVE: Claim = Claim {
    id: "three-to-five",
    paper: MBM,
    section: "Abstract; 5, Figure 6",
    says: "Support makes memory-based messages three to five times as fast as software alone",
    // The paper's figures are its model's, and so are ours: no supported message can be measured.
    rule: Rule::Model,
};

pub(crate) const RISES_WITH_DISTANCE: Claim = Claim {
    id: "rises-with-distance",
    paper: MBM,
    section: "5, Figure 6",
    says: "The speed-up is the greater the farther apart the processors are",
    rule: Rule::Model,
};

pub(crate) const RISES_WITH_SPEED: Claim = Claim {
    id: "rises-with-speed",
    paper: MBM,
    section: "5, Figure 7",
    says: "Through a shared cache the speed-up grows with the processors' speed",
    rule: Rule::Model,
};

pub(crate) const RISES_OVER_A_LINK: Claim = Claim {
    id: "rises-over-a-link",
    paper: MBM,
    section: "5, Figure 8",
    says: "Over a link the speed-up grows with the processors' speed, too",
    rule: Rule::Model,
};
