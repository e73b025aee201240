//! Draws the paper's Figures 6 and 7, with our segments in their places.

use portolan::probes::Point::{self, *};

use super::statistics::Part;

/// What a part of the work is for: Figure 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Switch,
    FixedSend,
    FixedReceive,
    HeaderCheck,
    HeaderCopy,
    Descriptor,
    Transfer,
    MoreData,
    Find,
    Fault,
    Trap,
    SpaceSwitch,
    Reference,
    Misc,
}

/// Figure 7's larger groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Control,
    Data,
    Interface,
    Misc,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Control, Self::Data, Self::Interface, Self::Misc];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Control => "control transfer",
            Self::Data => "data movement",
            Self::Interface => "user/kernel interface",
            Self::Misc => "miscellaneous",
        }
    }

    /// The paper's share of an 8 KB message.
    pub(super) fn paper(self) -> f64 {
        match self {
            Self::Control => 0.396,
            Self::Data => 0.435,
            Self::Interface => 0.156,
            Self::Misc => 0.011,
        }
    }
}

/// Figure 7's lines: group, larger group, name, the paper's share.
pub(super) const GROUPS: [(Group, Kind, &str, f64); 14] = [
    (Group::Switch, Kind::Control, "context switch", 0.097),
    (
        Group::FixedSend,
        Kind::Control,
        "fixed delay of a send",
        0.219,
    ),
    (
        Group::FixedReceive,
        Kind::Control,
        "fixed delay of a receive",
        0.080,
    ),
    (
        Group::HeaderCheck,
        Kind::Data,
        "check the message header",
        0.075,
    ),
    (
        Group::HeaderCopy,
        Kind::Data,
        "copy the message header",
        0.080,
    ),
    (
        Group::Descriptor,
        Kind::Data,
        "check a page descriptor",
        0.015,
    ),
    (Group::Transfer, Kind::Data, "transfer a page", 0.081),
    (Group::MoreData, Kind::Data, "rest of the transfer", 0.046),
    (Group::Find, Kind::Data, "find the data's address", 0.030),
    (Group::Fault, Kind::Data, "page fault and touch", 0.109),
    (
        Group::Trap,
        Kind::Interface,
        "trap into the kernel and return",
        0.054,
    ),
    (
        Group::SpaceSwitch,
        Kind::Interface,
        "switch to the kernel's space",
        0.077,
    ),
    (
        Group::Reference,
        Kind::Interface,
        "check the port reference",
        0.025,
    ),
    (Group::Misc, Kind::Misc, "the rest", 0.011),
];

/// What data movement consists of: a name, its groups, the paper's share.
pub(super) const MOVEMENT: [(&str, &[Group], f64); 2] = [
    (
        "transfer the data",
        &[
            Group::HeaderCheck,
            Group::HeaderCopy,
            Group::Descriptor,
            Group::Transfer,
            Group::MoreData,
        ],
        0.296,
    ),
    ("access the data", &[Group::Find, Group::Fault], 0.139),
];

/// A line of Figure 6.
pub(super) struct Line {
    /// How deep it stands in the tree.
    pub(super) depth: usize,
    pub(super) name: &'static str,
    /// The paper's, in microseconds; none, where a line is only ours.
    pub(super) paper: Option<f64>,
    /// What it is for; none for sums of what follows.
    pub(super) group: Option<Group>,
    /// Ours in this place. None in a line that is no sum: we have nothing of the kind.
    pub(super) parts: &'static [Part],
}

const fn sum(depth: usize, name: &'static str, paper: f64) -> Line {
    Line {
        depth,
        name,
        paper: Some(paper),
        group: None,
        parts: &[],
    }
}

const fn leaf(
    depth: usize,
    name: &'static str,
    paper: f64,
    group: Group,
    parts: &'static [Part],
) -> Line {
    Line {
        depth,
        name,
        paper: Some(paper),
        group: Some(group),
        parts,
    }
}

macro_rules! at {
    ($($point:ident),* $(,)?) => { &[$(Part::At($point)),*] };
}

/// Figure 6. Where the paper's E stands under receive, ours is done by the sender; A and D
/// have a part on either side.
pub(super) const TREE: [Line; 41] = [
    sum(0, "total", 1231.0),
    sum(1, "send", 641.0),
    leaf(
        2,
        "send: trap into the kernel and return",
        34.0,
        Group::Trap,
        &[],
    ),
    leaf(
        2,
        "send: switch to the kernel's space",
        49.0,
        Group::SpaceSwitch,
        &[],
    ),
    leaf(
        2,
        "send: port reference",
        15.0,
        Group::Reference,
        at![SendCalled, SendAdmitted],
    ),
    leaf(
        2,
        "send: header check",
        46.0,
        Group::HeaderCheck,
        at![SendChecked, SendPlanned],
    ),
    leaf(2, "send: dispatch", 7.0, Group::FixedSend, &[]),
    sum(2, "send: the operation itself", 490.0),
    leaf(
        3,
        "send: before the transfer (claim)",
        138.0,
        Group::FixedSend,
        at![SendClaimed],
    ),
    sum(3, "send: transfer", 221.0),
    leaf(
        4,
        "send: copy the header",
        74.0,
        Group::HeaderCopy,
        at![SendWritten],
    ),
    leaf(
        4,
        "send: A check a descriptor",
        19.0,
        Group::Descriptor,
        at![SendDescriptor],
    ),
    sum(4, "send: move a page", 81.0),
    leaf(
        5,
        "send: B look up the owner word",
        32.0,
        Group::Transfer,
        at![SendOwner],
    ),
    leaf(
        5,
        "send: C close the pages",
        26.0,
        Group::Transfer,
        at![GuardClosed],
    ),
    leaf(
        5,
        "send: D write the owner words",
        23.0,
        Group::Transfer,
        at![GuardLeaving, SendNoted, SendCleared],
    ),
    leaf(
        4,
        "send: rest of the transfer",
        47.0,
        Group::MoreData,
        at![],
    ),
    leaf(
        3,
        "send: after the transfer (publish, find whom to wake)",
        131.0,
        Group::FixedSend,
        at![SendPublished, SendGiven, WakeFound],
    ),
    sum(1, "receive", 296.0),
    leaf(
        2,
        "receive: trap into the kernel and return",
        33.0,
        Group::Trap,
        &[],
    ),
    leaf(
        2,
        "receive: switch to the kernel's space",
        46.0,
        Group::SpaceSwitch,
        &[],
    ),
    leaf(2, "receive: port reference", 16.0, Group::Reference, &[]),
    leaf(2, "receive: header check", 46.0, Group::HeaderCheck, &[]),
    leaf(2, "receive: dispatch", 6.0, Group::FixedReceive, &[]),
    sum(2, "receive: the operation itself", 98.0),
    // Ours is done while the sender is at work: see the segments beside the way.
    leaf(
        3,
        "receive: before it is blocked",
        91.0,
        Group::FixedReceive,
        &[],
    ),
    leaf(
        3,
        "receive: after it is awakened",
        7.0,
        Group::FixedReceive,
        at![SleepDisarmed, ReceiveSeen],
    ),
    sum(2, "receive: complete the transfer", 51.0),
    leaf(
        3,
        "receive: copy the header",
        24.0,
        Group::HeaderCopy,
        at![ReceiveRead],
    ),
    leaf(
        3,
        "E the sender's access has ended (ours: in send)",
        16.0,
        Group::Transfer,
        at![GuardWaited],
    ),
    Line {
        depth: 3,
        name: "receive: A and D, check a descriptor, note it as ours",
        paper: None,
        group: Some(Group::Transfer),
        parts: at![ReceiveDescriptor, ReceiveHeld],
    },
    leaf(
        3,
        "receive: rest (take, open)",
        11.0,
        Group::MoreData,
        at![ReceiveTaken, ReceiveOpened, ReceiveReturned],
    ),
    leaf(
        1,
        "context switch (ours: wake, interrupt, switch)",
        120.0,
        Group::Switch,
        &[Part::Passage],
    ),
    sum(1, "access", 173.0),
    leaf(
        2,
        "access: find the data's address",
        37.0,
        Group::Find,
        at![AccessFound],
    ),
    sum(2, "access: fault", 134.0),
    leaf(
        3,
        "access: F up to the handler",
        24.0,
        Group::Fault,
        at![FaultEntered],
    ),
    leaf(
        3,
        "access: G look up the owner word",
        55.0,
        Group::Fault,
        at![FaultLooked],
    ),
    leaf(
        3,
        "access: H open the pages",
        32.0,
        Group::Fault,
        at![FaultMapped],
    ),
    leaf(
        3,
        "access: I back, and the touch itself",
        23.0,
        Group::Fault,
        at![AccessDone],
    ),
    leaf(2, "access: rest", 2.0, Group::Misc, &[]),
];

/// The parts of a line: its own, or those of all below it.
pub(super) fn parts(line: usize) -> impl Iterator<Item = Part> {
    let depth = TREE[line].depth;
    let below = TREE[line + 1..].iter().take_while(move |l| l.depth > depth);
    std::iter::once(&TREE[line])
        .chain(below)
        .flat_map(|l| l.parts.iter().copied())
}

/// What a part is for. A probe that is in no line is the rest.
pub(super) fn group(part: Part) -> Group {
    let line = TREE.iter().find(|line| line.parts.contains(&part));
    line.and_then(|line| line.group).unwrap_or(Group::Misc)
}

pub(super) fn kind(part: Part) -> Kind {
    let group = group(part);
    let found = GROUPS.iter().find(|(g, ..)| *g == group);
    found.map_or(Kind::Misc, |(_, kind, ..)| *kind)
}

/// The name of a segment, with the paper's letter if it has one.
pub(super) fn name(part: Part) -> String {
    match (part, part.letter()) {
        (Part::At(point), Some(letter)) => format!("{} ({letter:?})", Point::name(point)),
        (Part::At(point), None) => point.name().to_owned(),
        (Part::Passage, _) => "from one process to the other".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_figures_are_copied_well() {
        // Each sum is that of its lines.
        let sums = [
            ("send", 641.0),
            ("send: the operation itself", 490.0),
            ("send: transfer", 221.0),
            ("send: move a page", 81.0),
            ("receive: the operation itself", 98.0),
            ("receive: complete the transfer", 51.0),
            ("access", 173.0),
            ("access: fault", 134.0),
        ];
        for (name, expected) in sums {
            let at = TREE.iter().position(|l| l.name == name).unwrap();
            let depth = TREE[at].depth;
            let below = TREE[at + 1..].iter().take_while(|l| l.depth > depth);
            let direct = below.filter(|l| l.depth == depth + 1);
            let sum: f64 = direct.filter_map(|l| l.paper).sum();
            assert!((sum - expected).abs() < 0.1, "{name}: {sum}");
        }
        let shares: f64 = GROUPS.iter().map(|(.., share)| share).sum();
        // 1 but for rounding.
        assert!((shares - 0.999).abs() < 0.001, "{shares}");
        // Every group of data movement is in one of its halves, and they are its share.
        let data: Vec<_> = GROUPS.iter().filter(|g| g.1 == Kind::Data).collect();
        let halves = MOVEMENT.iter().map(|(_, groups, share)| {
            let groups = data.iter().filter(|g| groups.contains(&g.0));
            let sum: f64 = groups.clone().map(|(.., share)| share).sum();
            assert!((sum - share).abs() < 0.0015, "{sum} {share}");
            groups.count()
        });
        assert_eq!(halves.sum::<usize>(), data.len());
        let sum: f64 = MOVEMENT.iter().map(|(.., share)| share).sum();
        assert!((sum - Kind::Data.paper()).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn every_point_on_the_way_has_one_place() {
        for point in Point::ALL {
            let lines = TREE.iter().filter(|l| l.parts.contains(&Part::At(*point)));
            let expected = match point {
                // Beside the way, or no segment of it.
                WakeCalled | SendReturned | ReceiveLooked | SleepArmed | SleepWoken | Empty => 0,
                _ => 1,
            };
            assert_eq!(lines.count(), expected, "{}", point.name());
        }
        let all: Vec<Part> = parts(0).collect();
        assert!(all.contains(&Part::Passage) && all.contains(&Part::At(SendClaimed)));
    }
}
