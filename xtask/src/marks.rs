//! Lists the marked steps of the library, and says which processes pass each.

/// Every mark, in order. A test compares it with the sources.
pub(crate) static MARKS: [&str; 292] = [
    "allocate.done",
    "allocate.noted",
    "allocate.run_claimed",
    "allocate.won",
    "banks.claimed",
    "banks.counted",
    "banks.emptied",
    "banks.named",
    "banks.returning",
    "banks.taken",
    "bind.done",
    "bind.entry_taken",
    "bind.memory_counted",
    "bind.memory_had",
    "bind.name_announced",
    "bind.name_contested",
    "bind.name_published",
    "bind.name_won",
    "bind.queue_open",
    "bind.queue_taken",
    "bridge.added",
    "bridge.announced",
    "bridge.answer_came",
    "bridge.asked",
    "bridge.asking",
    "bridge.bound",
    "bridge.carried",
    "bridge.channel_carried",
    "bridge.closed",
    "bridge.closing",
    "bridge.connected",
    "bridge.delivered",
    "bridge.described",
    "bridge.followed",
    "bridge.granted",
    "bridge.granting",
    "bridge.half",
    "bridge.heard",
    "bridge.requested",
    "bridge.shared",
    "bridge.shown",
    "bridge.skipped",
    "bridge.whole",
    "bridge.written",
    "broker.accepted",
    "broker.checked",
    "broker.copied",
    "broker.withdrawn",
    "brokered.asked",
    "brokered.connected",
    "byte_ring.armed",
    "byte_ring.copied",
    "byte_ring.read",
    "byte_ring.shown",
    "call.begun",
    "call.connected",
    "call.ended",
    "call.parcel_came",
    "call.parcel_sent",
    "call.presented",
    "call.promoted",
    "channel.advanced",
    "channel.armed",
    "channel.before_futex",
    "channel.before_signal",
    "channel.before_sleep",
    "channel.before_wake",
    "channel.begun",
    "channel.bound",
    "channel.claimed",
    "channel.copied",
    "channel.enabled",
    "channel.filled",
    "channel.joined",
    "channel.joining",
    "channel.parcel_sent",
    "channel.published",
    "channel.quarter_read",
    "channel.raised",
    "channel.room_made",
    "channel.unbound",
    "chunk.bodies",
    "chunk.claimed",
    "chunk.emptied",
    "chunk.freed",
    "chunk.populated",
    "chunk.punched",
    "chunk.returning",
    "chunk.withdrawn",
    "close.begun",
    "close.disposed",
    "close.drained",
    "close.slot",
    "close.slot_drained",
    "close.told",
    "connect.accepted",
    "connect.handed",
    "connect.handing",
    "connect.received",
    "connect.waits",
    "cycle.closing",
    "entry.banks_returned",
    "entry.emptied",
    "entry.free",
    "entry.spare_emptied",
    "entry.sweeping",
    "entry.swept",
    "entry.taken",
    "export.granted",
    "export.granting",
    "export.offered",
    "export.shared",
    "free.before",
    "free.word",
    "host.asking",
    "host.claims_released",
    "host.contest",
    "host.contested",
    "host.counted",
    "host.look",
    "host.passed",
    "host.passed_on",
    "host.passing",
    "host.ready",
    "host.reclaim.answered",
    "host.reclaim.binding",
    "host.reclaim.channel",
    "host.reclaim.channels",
    "host.reclaim.chunk",
    "host.reclaim.chunks",
    "host.reclaim.claims",
    "host.reclaim.counted",
    "host.reclaim.dead",
    "host.reclaim.done",
    "host.reclaim.doubted",
    "host.reclaim.extent",
    "host.reclaim.extents",
    "host.reclaim.fifo",
    "host.reclaim.handler",
    "host.reclaim.moving",
    "host.reclaim.owner_row",
    "host.reclaim.port",
    "host.reclaim.ports",
    "host.reclaim.public_row",
    "host.reclaim.punched",
    "host.reclaim.right",
    "host.reclaim.right_row",
    "host.reclaim.rights",
    "host.reclaim.signals",
    "host.reclaim.slot",
    "host.reclaim.trace",
    "host.reclaim.trace_ring",
    "host.reclaim.unsent",
    "host.reclaim.wait_set",
    "host.reclaim.waits",
    "host.reclaim.wakes",
    "host.reclaim.watch",
    "host.reclaim.woken",
    "host.resign",
    "host.resigned",
    "host.return",
    "host.won",
    "import.accepted",
    "import.answered",
    "import.asked",
    "import.mapped",
    "join.accepted",
    "join.answered",
    "join.arrived",
    "join.before_listen",
    "join.claimed",
    "join.created",
    "join.fallback",
    "join.hosting",
    "join.listening",
    "join.live",
    "join.mapped",
    "join.reserved",
    "join.returning",
    "join.welcomed",
    "leave.asked",
    "leave.begin",
    "leave.dead",
    "leave.host",
    "leave.resigned",
    "leave.returned",
    "leave.told",
    "lent.changed",
    "lent.changing",
    "lent.told",
    "notify.asleep",
    "notify.noted",
    "notify.posted",
    "notify.taken",
    "offer.announced",
    "offer.delegated",
    "offer.entered",
    "offer.withdrawn",
    "proxy.changed",
    "proxy.changing",
    "proxy.reach",
    "public.shown",
    "public.taken",
    "receive.before_retire",
    "receive.before_take",
    "receive.mark_off",
    "receive.noted",
    "receive.passed",
    "receive.retired",
    "receive.rights_noted",
    "receive.taken",
    "reclaim.row",
    "request.before_post",
    "right.arrived",
    "right.arrives",
    "right.counted",
    "right.departs",
    "right.last_gone",
    "right.moves",
    "right.receive_leaves",
    "right.settles",
    "rights.corrected",
    "rights.rows_read",
    "room.announced",
    "segment.closing",
    "segment.in_use",
    "segment.joining",
    "segment.let_go",
    "segment.marked",
    "segment.posted",
    "segment.shared",
    "send.before_claim",
    "send.before_publish",
    "send.before_wake",
    "send.claimed",
    "send.cleared",
    "send.leaving_out",
    "send.noted",
    "send.published",
    "send.raised",
    "send.waiting",
    "send.written",
    "serve.answered",
    "serve.coming",
    "serve.demoted",
    "serve.dismantled",
    "serve.ended",
    "serve.inherited",
    "serve.let_in",
    "serve.moving",
    "serve.promoted",
    "serve.reclaimed",
    "serve.taken",
    "serve.taken_over",
    "signal.before_arm",
    "signal.before_fill",
    "signal.before_sleep",
    "signal.before_wake",
    "signal.block_added",
    "signal.block_removed",
    "signal.fifo_taken",
    "signal.filled",
    "signal.handler_claimed",
    "signal.handler_disabled",
    "signal.interrupted",
    "signal.listed",
    "signal.listing",
    "signal.locked",
    "signal.moved",
    "signal.orphaned",
    "signal.unlisted",
    "sleep.armed",
    "sleep.before_futex",
    "span.answered",
    "span.asked",
    "topic.joined",
    "topic.kept",
    "topic.shared",
    "topic.taken_back",
    "unexport.closed",
    "unexport.closing",
    "unexport.ordered",
    "unexport.private",
    "unexport.withdrawn",
    "update.copied",
    "update.copied_later",
    "update.kernel",
    "watch.fired",
    "watch.firing",
    "watch.reach_told",
    "watch.reaching",
    "watch.taken",
];

/// The index of a mark.
pub(crate) fn index(name: &str) -> Option<usize> {
    MARKS.binary_search(&name).ok()
}

/// Who has to be armed for a mark to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passer {
    /// Anybody, at work.
    Any,
    /// The host, about the dead or newcomers.
    Host,
    /// A member, while the host is killed.
    Successor,
    /// A member that is told to leave.
    Leaver,
    /// The host that is told to leave.
    LeavingHost,
    /// A process that joins.
    Newcomer,
    /// The first member of a domain.
    Creator,
    /// Nobody of a torture run, whose processes are of one user and are not stopped: tests of the
    /// library kill there.
    Tests,
}

/// Who passes a mark.
pub(crate) fn passer(name: &str) -> Passer {
    match name {
        "host.return" | "host.contest" | "host.contested" | "host.won" | "host.counted"
        | "host.look" | "host.ready" => Passer::Successor,
        "host.resign" | "host.resigned" | "leave.host" | "leave.resigned" | "leave.told" => {
            Passer::LeavingHost
        }
        "leave.begin" | "leave.dead" => Passer::Leaver,
        "join.answered" | "join.mapped" | "join.live" | "join.arrived" => Passer::Newcomer,
        "join.before_listen" | "join.listening" | "join.fallback" | "join.created"
        | "join.hosting" => Passer::Creator,
        "leave.asked" | "leave.returned" | "reclaim.row" => Passer::Host,
        "offer.entered" | "offer.withdrawn" | "connect.waits" | "connect.handing"
        | "connect.handed" => Passer::Host,
        // Structures in topics.
        "topic.kept" | "topic.shared" => Passer::Tests,
        // Between users.
        "offer.delegated" => Passer::Tests,
        // Beside somebody who is stopped: a newcomer, a listener, and who then tidies up.
        "join.returning" | "signal.orphaned" | "signal.unlisted" | "signal.listing"
        | "signal.listed" => Passer::Tests,
        // Of two that bind one name at the same time.
        "bind.name_contested" => Passer::Tests,
        // No member of such a run prefers to host.
        "host.asking" | "host.passing" | "host.passed" | "host.passed_on" => Passer::Tests,
        // Of ports that are received on behalf of another node, or lent to one.
        name if name.starts_with("proxy")
            || name.starts_with("span.")
            || name.starts_with("lent.") =>
        {
            Passer::Tests
        }
        // Of a thread that waits for room in many ports.
        "room.announced" => Passer::Tests,
        name if name.starts_with("broker") => Passer::Tests,
        name if name.starts_with("host.") || name.starts_with("join.") => Passer::Host,
        _ => Passer::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::MARKS;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn scan(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                scan(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
                for line in code {
                    for piece in line.split("mark!(\"").skip(1) {
                        found.extend(piece.split('"').next().map(str::to_owned));
                    }
                }
            }
        }
    }

    #[test]
    fn the_list_names_every_mark_of_the_sources() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(crates).unwrap().map(Result::unwrap) {
            if entry.path().join("src").is_dir() {
                scan(&entry.path().join("src"), &mut found);
            }
        }
        let listed: BTreeSet<String> = MARKS.iter().map(|m| (*m).to_owned()).collect();
        assert_eq!(listed, found, "xtask/src/marks.rs and the sources differ");
        assert!(MARKS.is_sorted_by(|one, next| one < next), "each once");
    }
}
