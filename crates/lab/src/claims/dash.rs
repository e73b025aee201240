//! Claims of the papers on messages by moving pages.

use super::table::{
    COMPARABLE, NOTICED, SIGNIFICANTLY, about, at_least, at_most, only_times, presumed, times,
    unless, unstated, within,
};
use super::{Claim, Condition, Rule};
use crate::experiment::{DASH, DASH_88};
use crate::unit::Unit;

/// How many times as long is far longer.
const FAR: f64 = 10.0;
/// How far off a straight line, a sum or a whole may be: the paper's own accuracy.
const ACCURATE: f64 = 0.1;

pub(crate) const COPY_AGAINST_GUARD: Claim = Claim {
    id: "copy-against-guard",
    paper: DASH,
    section: "Experiment set-up and basic hardware performance",
    says: "Copying a page of 8 KiB takes far longer than changing its page table entry: 2,105 \
        against 30 µs",
    rule: Rule::All(&[at_least(
        "copying 8 KiB, to closing and opening it",
        Unit::Times,
        FAR,
        // Two updates: C and H of Figure 6, 26 and 32 µs.
        2105.0 / 58.0,
    )]),
};

pub(crate) const GAIN: Claim = Claim {
    id: "gain",
    paper: DASH,
    section: "Measurement results, Tables I and II",
    says: "Where all of 64 KiB is accessed, mapping by the receive operation gains about 12.6 %",
    rule: Rule::All(&[about("gain", Unit::Share, 0.126, 0.126)]),
};

pub(crate) const ONLY_WHEN_ALL: Claim = Claim {
    id: "only-when-all",
    paper: DASH,
    section: "Measurement results, Tables I and II",
    says: "Mapping by the receive operation is the better method exactly where the receiver \
        accesses all pages",
    rule: Rule::All(&[at_least(
        "places of the tables, of 14, where it is so",
        Unit::Count,
        14.0,
        14.0,
    )]),
};

pub(crate) const LINEAR: Claim = Claim {
    id: "linear",
    paper: DASH,
    section: "Measurement results, Figure 3",
    says: "The time that a message takes grows linearly with its pages",
    // Of what the line rises by, not of the whole: the whole is mostly what an empty message takes,
    // beside which any curve is straight.
    rule: Rule::All(&[
        straight(
            "off the line, of its rise, on demand, not accessed",
            0.001_24,
        ),
        straight(
            "off the line, of its rise, by receive, all accessed",
            0.000_50,
        ),
        straight(
            "off the line, of its rise, on demand, all accessed",
            0.000_72,
        ),
    ]),
};

/// A line from which nothing is far off, if it rises.
const fn straight(what: &'static str, paper: f64) -> Condition {
    unless(
        at_most(what, Unit::Share, ACCURATE, paper),
        "the straight line through these delays does not rise",
    )
}

pub(crate) const DATA_DOMINATES: Claim = Claim {
    id: "data-dominates",
    paper: DASH,
    section: "Data movement dominates the cost for large messages",
    says: "Moving data is most of what a large message takes, more the larger it is: 43.5, 65.5 \
        and 77.1 % of 8, 32 and 64 KiB",
    // As the paper's Figure 7 has it: segments of data movement, of all that both sides do. What a message
    // takes longer than an empty one is another quantity, and stands beside Tables I and II.
    rule: Rule::All(&[
        at_least(
            "segments of data movement, of all that both sides do, 64 KiB",
            Unit::Share,
            0.5,
            0.771,
        ),
        at_least(
            "that share, to the one of 8 KiB",
            Unit::Times,
            1.0,
            0.771 / 0.435,
        ),
    ]),
};

pub(crate) const FIRST_PAGE: Claim = Claim {
    id: "first-page",
    paper: DASH,
    section: "Conclusions; Table III",
    says: "The first page of a message costs only about 30 µs more than a later one: 291 against \
        254 µs",
    // About 30 µs more than 254.
    rule: Rule::All(&[only_times(
        "first page to a later one",
        1.0 + 30.0 / 254.0,
        291.0 / 254.0,
    )]),
};

pub(crate) const PAYS: Claim = Claim {
    id: "pays-from-one-page",
    paper: DASH,
    section: "Conclusions; Table III",
    says: "Remapping pays for a message of one page already",
    rule: Rule::All(&[at_most(
        "first page, to one copy of it",
        Unit::Times,
        1.0,
        291.0 / 2105.0,
    )]),
};

pub(crate) const LAZY: Claim = Claim {
    id: "lazy",
    paper: DASH,
    section: "The effectiveness of the DASH design",
    says: "Mapping on demand saves 113 µs for a page that is not accessed and wastes 47 µs for \
        one that is, so mapping at once pays from about three accessed pages to one that is not",
    // Pages to a page, of which the paper has 2.4 by its parts and 2.6 by its tables.
    rule: Rule::All(&[about("N, saved to wasted", Unit::Times, 3.0, 113.0 / 47.0)]),
};

pub(crate) const FASTER_THAN_COPYING: Claim = Claim {
    id: "faster-than-copying",
    paper: DASH,
    section: "Measurement results, Figure 4; Conclusions",
    says: "Remapping moves large amounts of data significantly faster than copying: 24.8 against \
        3.9 MB/s where the receiver accesses all",
    rule: Rule::All(&[at_least(
        "copying, to moving what is all accessed",
        Unit::Times,
        SIGNIFICANTLY,
        24.8 / 3.9,
    )]),
};

pub(crate) const RATES: Claim = Claim {
    id: "throughput",
    paper: DASH,
    section: "Conclusions; Figure 4",
    says: "Messages of 64 KiB move 39 MB/s if the receiver does not access them, 24.8 MB/s if it \
        does (absolute figures of 1991: every machine of today is above them)",
    rule: Rule::All(&[
        at_least("not accessed", Unit::BytesPerSecond, 39e6, 39e6),
        at_least("accessed", Unit::BytesPerSecond, 24.8e6, 24.8e6),
    ]),
};

pub(crate) const MORE_THAN_30: Claim = Claim {
    id: "more-than-30",
    paper: DASH_88,
    section: "Technical Report 88/452, abstract",
    says: "Large messages move more than 30 MB/s (an absolute figure of 1988: every machine of today \
        is above it)",
    rule: Rule::All(&[at_least(
        "64 KiB, not accessed",
        Unit::BytesPerSecond,
        30e6,
        39e6,
    )]),
};

pub(crate) const ORDER_OF_MAGNITUDE: Claim = Claim {
    id: "order-of-magnitude",
    paper: DASH_88,
    section: "Technical Report 88/452, abstract",
    says: "Large messages move ten times as fast as software copies them",
    rule: Rule::All(&[times(
        "one copy of 64 KiB, to a message that is not accessed",
        10.0,
        39.0 / 3.9,
    )]),
};

pub(crate) const SYNCHRONOUS: Claim = Claim {
    id: "synchronous-faster",
    paper: DASH,
    section: "Measurement results, Table IV",
    says: "A synchronous round is faster than an asynchronous one, because one operation, and \
        its trap, takes the place of two",
    rule: Rule::All(&[
        at_most(
            "synchronous to asynchronous, users",
            Unit::Times,
            1.0,
            2.162 / 2.496,
        ),
        at_most(
            "synchronous to asynchronous, one always open",
            Unit::Times,
            1.0,
            1.751 / 2.085,
        ),
    ]),
};

pub(crate) const ALWAYS_OPEN: Claim = Claim {
    id: "always-open-faster",
    paper: DASH,
    section: "Measurement results, Table IV",
    says: "A kernel process is faster than a user process, among other things because its pages \
        are always mapped: nothing is unmapped, and no page faults",
    rule: Rule::All(&[
        at_most(
            "always open to guarded, asynchronous",
            Unit::Times,
            1.0,
            2.085 / 2.496,
        ),
        at_most(
            "always open to guarded, synchronous",
            Unit::Times,
            1.0,
            1.751 / 2.162,
        ),
    ]),
};

pub(crate) const NULL_BELOW: Claim = Claim {
    id: "null-below-a-millisecond",
    paper: DASH,
    section: "Conclusions; Table I",
    says: "A message without data takes less than a millisecond (an absolute figure of 1991: every \
        machine of today is below it)",
    rule: Rule::All(&[at_most("a null message", Unit::Seconds, 1e-3, 0.957e-3)]),
};

pub(crate) const NULL_COMPARABLE: Claim = Claim {
    id: "null-comparable",
    paper: DASH,
    section: "Conclusions; Table V",
    says: "The speed of a message without data is comparable to that of systems that do not remap",
    // As far apart as what the paper calls comparable: by its Table V 0.96 ms, beside 0.66 ms by the fastest
    // of those that copy. (They ran on other machines, and it warns of comparing them directly.)
    rule: Rule::All(&[at_most(
        "guarded, to the fastest that copies",
        Unit::Times,
        0.96 / 0.66,
        0.96 / 0.66,
    )]),
};

pub(crate) const CLOSURE: Claim = Claim {
    id: "closure",
    paper: DASH,
    section: "Figure 6; Cross-checking the results",
    says: "The parts of a message's time, added up, are within 10 % of what the whole was measured \
        to take: 1,231 against 1,248 µs",
    rule: Rule::All(&[at_most(
        "sum of the segments, off the whole",
        Unit::Share,
        ACCURATE,
        1.0 - 1231.0 / 1248.0,
    )]),
};

pub(crate) const STEADY: Claim = Claim {
    id: "steady",
    paper: DASH,
    section: "Measurement method and its accuracy, Figure 5",
    says: "Repeated ten times, 59 of 69 segments vary by less than 5 %, and hold 97 % of the time",
    // As the paper has it, with a segment or two's grace: four in five, and nearly all the time.
    rule: Rule::All(&[
        at_least("segments below 5 %", Unit::Share, 0.8, 59.0 / 69.0),
        at_least("their share of the time", Unit::Share, 0.95, 0.97),
    ]),
};

pub(crate) const SUMS: Claim = Claim {
    id: "sums",
    paper: DASH,
    section: "Cross-checking the results",
    says: "The parts of moving a page add up to 90, 205 and 250 µs, where 87, 208 and 254 µs were \
        measured",
    rule: Rule::All(&[
        within(
            "A+B+D+E, to what was measured",
            Unit::Times,
            [1.0 - ACCURATE, 1.0 + ACCURATE],
            90.0 / 87.0,
        ),
        within(
            "A..E+G+H, to what was measured",
            Unit::Times,
            [1.0 - ACCURATE, 1.0 + ACCURATE],
            205.0 / 208.0,
        ),
        within(
            "A..I, to what was measured",
            Unit::Times,
            [1.0 - ACCURATE, 1.0 + ACCURATE],
            250.0 / 254.0,
        ),
    ]),
};

pub(crate) const STRUCTURE_PAYS: Claim = Claim {
    id: "structure-pays",
    paper: DASH,
    section: "The effectiveness of the DASH design",
    says: "Messages that need not be contiguous cost 148 µs, of a message of one page, and save \
        about 70 and 40 µs by the place of their header and 200 µs by their structure",
    // The paper does not add them up: that they outweigh the price is our balance.
    rule: Rule::All(&[at_least(
        "saved for a page, less the price",
        Unit::Seconds,
        0.0,
        (70.0 + 40.0 + 200.0 - 148.0) * 1e-6,
    )]),
};

pub(crate) const COPYING_AMPLIFIED: Claim = Claim {
    id: "copying-amplified",
    paper: DASH,
    section: "Introduction",
    says: "The more processes a request passes through, the more copying costs it",
    rule: Rule::All(&[unstated(at_most(
        "a further forwarder: moved less copied",
        Unit::Seconds,
        0.0,
        0.0,
    ))]),
};

pub(crate) const FORWARDERS_PASS_FALSE: Claim = Claim {
    id: "forwarders-pass-false",
    paper: DASH,
    section: "Message-passing abstractions",
    says: "A program that passes data on without looking at it does better to leave pages closed",
    // No process more makes a request faster: where one that leaves pages closed seems to, what is there is
    // another thing's, and as large as what is asked for.
    rule: Rule::All(&[
        unstated(at_most(
            "a further forwarder: closed less opened",
            Unit::Seconds,
            0.0,
            0.0,
        )),
        presumed(unstated(at_least(
            "left closed, each forwarder",
            Unit::Seconds,
            0.0,
            0.0,
        ))),
    ]),
};

pub(crate) const COPYING_SLOWS: Claim = Claim {
    id: "copying-slows-neighbours",
    paper: DASH,
    section: "Introduction",
    says: "Copying loads the bus, which slows devices and the programs on other processors",
    // Two things: that copying slows, and that what moves does so less.
    rule: Rule::All(&[
        unstated(at_least(
            "neighbour beside copying, to beside a loop",
            Unit::Times,
            NOTICED,
            NOTICED,
        )),
        unstated(at_most(
            "neighbour beside moving, to beside copying",
            Unit::Times,
            1.0,
            1.0,
        )),
    ]),
};

pub(crate) const UNMAPPING_DEAR: Claim = Claim {
    id: "unmapping-beside-siblings",
    paper: DASH,
    section: "Completing the transfer of the message, footnote",
    says: "Unmapping before the message goes is dear on a multiprocessor, whose other processors \
        may still hold the translation",
    // A trusted message, for which nothing is unmapped, is slowed by busy siblings, too, where two
    // processors are one core: what is unmapping's own is what a guarded one is slowed by more.
    rule: Rule::All(&[unstated(at_least(
        "8 KiB, slowed by 7 busy siblings, guarded to trusted",
        Unit::Times,
        COMPARABLE,
        1.0,
    ))]),
};

pub(crate) const ASYNCHRONOUS_UNMAPPING: Claim = Claim {
    id: "asynchronous-unmapping",
    paper: DASH,
    section: "Completing the transfer of the message",
    says: "The sender's pages are unmapped while the message travels, and a receive operation \
        returns only when that is done",
    rule: Rule::NotBuilt,
};
