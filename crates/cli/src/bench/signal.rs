//! Lists the rows of `bench signal`.
//!
//! Each delivery has a row, one way, against one cache line carried from core to core. Three
//! more kinds of row show that what is not told does not cost: beside other ranges of all
//! sizes, of the thread that is told or of another one, and beside other listeners, which
//! stand for members that are not interested.
//! Signal-on-write is emulated by a trap, and the push hint tried where there is one.

use portolan::Delivery;
use portolan_instruments::push;
use portolan_measure::case::{Case, Mode, Payload, Protection, Shape, System};

use super::budget::{Budget, Measure};
use super::report::LeftOut;
use super::{Entry, Group};

/// How many others there are in the rows that have them; the row without them has one
/// range on each side.
const OTHERS: [u32; 2] = [100, 1000];

const POLLED: Budget = Budget::new(
    "signal, polled, one way, to the limit",
    Measure::Limit,
    1.3,
    Some(1.15),
);
const OTHERWISE: Budget = Budget::new(
    "beside 100 and 1,000 others, to the signal alone",
    Measure::Yardstick,
    1.2,
    Some(1.05),
);

/// What the processor does not have.
pub(super) fn left_out() -> Vec<LeftOut> {
    let monitor = LeftOut {
        what: "monitor-wait",
        why: "the processor, or its hypervisor, offers neither umwait nor mwaitx".into(),
    };
    let push = LeftOut {
        what: "a line with the push hint",
        why: "the processor, or its hypervisor, does not offer cldemote".into(),
    };
    let mut left_out = Vec::new();
    if Delivery::monitor_instruction().is_none() {
        left_out.push(monitor);
    }
    if !push::is_there() {
        left_out.push(push);
    }
    left_out
}

/// One group: the limit, the deliveries, and signals beside others.
pub(super) fn plan() -> Vec<Group> {
    let untouched = |case: Case| Case {
        payload: Payload::Untouched,
        ..case
    };
    let limit = Case {
        limit: true,
        ..Case::new(System::Line, 8)
    };
    let polled = untouched(Case {
        protection: Protection::Trusted,
        ..Case::new(System::Signal, 0)
    });
    let futex = untouched(Case {
        mode: Mode::Block,
        ..Case::new(System::Futex, 0)
    });
    let doorbell = Case {
        mode: Mode::Block,
        ..polled.clone()
    };
    let descriptor = Case {
        shape: Shape::Descriptor,
        ..doorbell.clone()
    };
    let by = |mode| Case {
        mode,
        ..polled.clone()
    };
    let mut rows = vec![
        Entry::new(polled.clone()).tagged(Some(POLLED)),
        Entry::new(futex.clone()),
        Entry::new(doorbell).against(&futex),
        Entry::new(descriptor).against(&futex),
        Entry::new(by(Mode::Upcall)),
    ];
    if Delivery::monitor_instruction().is_some() {
        rows.insert(1, Entry::new(by(Mode::Monitor)));
    }
    let on_write = Case {
        system: System::SignalOnWrite,
        ..polled.clone()
    };
    rows.push(Entry::new(on_write).against(&polled));
    if push::is_there() {
        // What a polled signal waits for is the line.
        rows.push(Entry::new(Case {
            shape: Shape::Pushed,
            ..Case::new(System::Line, 8)
        }));
    }
    let shapes = OTHERS
        .map(Shape::Ranges)
        .into_iter()
        .chain(OTHERS.map(Shape::OwnRanges))
        .chain(OTHERS.map(Shape::Listeners));
    rows.extend(shapes.map(|shape| {
        let beside = Case {
            shape,
            ..polled.clone()
        };
        Entry::new(beside).against(&polled).tagged(Some(OTHERWISE))
    }));
    vec![Group { limit, rows }]
}
